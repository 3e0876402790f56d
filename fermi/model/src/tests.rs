//! Whole-card tests.
