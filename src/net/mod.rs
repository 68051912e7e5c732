//! Sockets: listeners, the stream of one client, and connections to other servers. Bytes in, bytes
//! out; knows no protocol but HTTP's.
//!
//! `listener` and `stream` serve clients, `tls` encrypts. `bus` connects the nodes of a cluster.
//! `primary` is the socket to the primary, which `dialer` connects; `lines` are such sockets to the
//! targets of MIGRATE and of moving slots, `outgoing` those of a MIGRATE that blocks the loop.
//! `http` is for probes and the page.

pub mod bus;
pub mod dialer;
pub mod http;
pub mod lines;
pub mod listener;
pub mod outgoing;
pub mod primary;
pub mod stream;
pub mod tls;
