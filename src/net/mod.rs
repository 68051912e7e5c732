//! Sockets: listeners, the stream of one client, and connections to other servers. Bytes in, bytes out; knows no protocol.

pub mod dialer;
pub mod listener;
pub mod outgoing;
pub mod primary;
pub mod stream;
pub mod tls;
