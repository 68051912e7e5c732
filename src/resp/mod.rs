//! The protocol: bytes to requests, replies to bytes. Knows no server.
//!
//! A client's bytes go through [`request::Parser`], which finds the arguments where they lie; what a command answers
//! goes through [`reply::ReplyWriter`], the only place where RESP2 and RESP3 differ, into a [`reply::OutputBuffer`],
//! which writes itself to the socket. Text and numbers are turned into each other by `number`, the extended-precision
//! floats of INCRBYFLOAT by `float80`.
//!
//! Specification: <https://redis.io/docs/latest/develop/reference/protocol-spec/>; where it is silent, what Redis 7.0.15
//! does.

pub mod args;
pub mod float80;
pub mod number;
pub mod reply;
pub mod request;

pub use float80::Float80;
pub use reply::{OutputBuffer, Protocol, ReplyWriter};
pub use request::{Limits, Parsed, Parser, ProtocolError, Range};
