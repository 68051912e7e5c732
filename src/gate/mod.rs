//! The one way a command runs, whoever asks for it.

pub mod args;
pub mod blocking;
pub mod context;
pub mod evict;
pub mod execute;
pub mod keys;
pub mod spec;
pub mod state;
pub mod table;
