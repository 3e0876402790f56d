//! Reads guest GPU page tables and keeps the shadow tables that the card walks.
