//! Sockets: listeners, the stream of one client, and connections to other servers. Bytes in, bytes
//! out; knows no protocol but HTTP's.
//!
//! `listener` and `stream` serve clients, `tls` encrypts. `ready` is a stream that tells whether it
//! can be read or written, for all others; `source` tells their events apart. `bus` connects the
//! nodes of a cluster. `primary` is the socket to the primary, which `dialer` connects; `lines` are
//! such sockets to the targets of MIGRATE and of slot migrations. `http` is for probes and the
//! page. `blocking` is a connection of a program that does nothing else.

pub mod blocking;
pub mod bus;
pub mod dialer;
pub mod http;
pub mod lines;
pub mod listener;
pub mod primary;
pub mod ready;
pub mod source;
pub mod stream;
pub mod tls;
