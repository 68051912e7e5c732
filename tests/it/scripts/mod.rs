//! Scripts and functions: what they may do, what they answer, and how they end.

mod conversions;
mod debugger;
mod hostile;
mod libraries;
mod rollback;
mod run_times;
mod survival;
