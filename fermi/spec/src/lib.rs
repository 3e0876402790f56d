//! What the GF100 hardware defines: registers, table entries, channel structures, methods.
