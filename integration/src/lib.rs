//! Everything together: simulator, checkers, virtual machine tests, benches.
