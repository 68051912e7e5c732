//! Sockets: listeners, the stream of one client, and connections to other servers. Bytes in, bytes out; knows no protocol.
//!
//! `listener` and `stream` serve clients, `tls` encrypts. `outgoing` is for commands that ask
//! another server, `primary` the socket to the primary, which `dialer` connects.

pub mod dialer;
pub mod listener;
pub mod outgoing;
pub mod primary;
pub mod stream;
pub mod tls;
