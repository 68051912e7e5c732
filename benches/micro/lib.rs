//! Nothing: the benches are this package.
