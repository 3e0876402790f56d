//! A software GF100 made of the definitions in fermi_spec.
