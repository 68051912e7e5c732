//! Sockets: listeners and the stream of one client. Bytes in, bytes out; knows no protocol.

pub mod listener;
pub mod stream;
