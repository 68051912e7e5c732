//! The configuration: one table of parameters, and the file they come from.
