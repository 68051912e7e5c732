//! The protocol: bytes to requests, replies to bytes. Knows no server.
//!
//! [`request::Parser`] finds the arguments in a client's bytes without copying; a command writes
//! its reply with [`reply::ReplyWriter`], the only place where RESP2 and RESP3 differ, into a
//! [`output::OutputBuffer`], which is written to the socket. `args` are a request's arguments,
//! `owned` and `queue` keep requests, `answer` reads another server's `+OK`. `number` converts
//! between text and numbers, `float80` has the extended-precision floats of INCRBYFLOAT, `percent`
//! shows names of any bytes without blanks.
//!
//! Specification: <https://redis.io/docs/latest/develop/reference/protocol-spec/>; where it is
//! silent, the behaviour of Redis 7.0.15.

pub mod answer;
pub mod args;
pub mod float80;
pub mod number;
pub mod output;
pub mod owned;
pub mod percent;
pub mod queue;
pub mod reply;
pub mod request;

pub use float80::Float80;
pub use output::OutputBuffer;
pub use reply::{Protocol, ReplyWriter};
pub use request::{Limits, Parsed, Parser, ProtocolError, Range};
