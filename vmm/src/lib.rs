//! One KVM virtual machine with a vGPU, and the vramd binary.
