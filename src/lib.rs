//! Latchkey: a Redis-protocol server.

pub mod clock;
pub mod collections;
pub mod config;
pub mod resp;
pub mod types;
