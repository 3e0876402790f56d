//! Turns a trapped BAR0 access into a named operation.
