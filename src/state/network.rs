//! Sockets: the sources of connections, and work that the loop has postponed.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use mio::Poll;

use super::http_job::{HttpJob, KeyWalk};
use crate::client::ClientId;
use crate::config::Config;
use crate::net::bus::Bus;
use crate::net::dialer::{Dialer, Route, SystemDialer};
use crate::net::http::Http;
use crate::net::lines::Lines;
use crate::net::listener::Listener;
use crate::net::primary::Socket;
use crate::net::stream::Stream;
use crate::net::tls::Tls;

/// Listeners, the poll, outgoing connections, and postponed work.
pub struct Network {
    /// The operating system's readiness events.
    pub poll: Poll,
    /// Listening sockets: first the Unix socket, which stays, then TCP. A listener's token follows
    /// from its index.
    pub listeners: Vec<Listener>,
    /// TCP addresses in use; those for TLS are last.
    pub listening: Vec<SocketAddr>,
    /// Creates TLS connections, once configured.
    pub tls: Option<Tls>,
    /// Makes all connections to other servers.
    pub dialer: Box<dyn Dialer>,
    /// The connection to the primary; its protocol is `Replication::link`.
    pub primary: Option<Box<Socket>>,
    /// Connections to the other nodes of the cluster.
    pub bus: Bus,
    /// Connections to other servers, some of them kept for the next MIGRATE.
    pub lines: Lines,
    /// HTTP: probes, metrics and the page.
    pub http: Http<HttpJob>,
    /// The look through all keys for the page and the metrics.
    pub key_walk: KeyWalk,
    pub pending: Pending,
}

impl Network {
    pub fn new(poll: Poll) -> Self {
        Network {
            poll,
            listeners: Vec::new(),
            listening: Vec::new(),
            tls: None,
            dialer: Box::new(SystemDialer),
            primary: None,
            bus: Bus::default(),
            lines: Lines::default(),
            http: Http::default(),
            key_walk: KeyWalk::default(),
            pending: Pending::default(),
        }
    }

    /// Begins to connect to another server, from `bind-source-addr`. Errors: the connection fails
    /// at once, or TLS is not configured.
    pub fn dial(&self, config: &Config, to: SocketAddr, is_tls: bool) -> io::Result<Stream> {
        let from = String::from_utf8_lossy(&config.bind_source_addr).parse().ok();
        let tls = match (&self.tls, is_tls) {
            (_, false) => None,
            (Some(tls), true) => Some(&tls.client),
            (None, true) => return Err(io::ErrorKind::Unsupported.into()),
        };
        self.dialer.connect(&Route { to, from, tls })
    }
}

/// Work left for the next turn, which the system will not announce again.
#[derive(Debug, Default)]
pub struct Pending {
    /// Listeners that have further connections after the most allowed in a turn was accepted.
    pub accept_again: Vec<usize>,
    /// Listeners whose accept has failed although connections may wait. The next periodic work
    /// tries again.
    pub accept_later: Vec<usize>,
    /// Clients whose pending requests are resumed.
    pub resumed: Vec<ClientId>,
    /// Clients whose LOCK.ATTACH waits until all locks that have come are indexed.
    pub attaching: Vec<ClientId>,
    /// Clients whose handshakes can continue, at the end of the turn; the longest waiting first.
    pub handshakes: VecDeque<ClientId>,
    /// Clients in a handshake, each after its deadline (boot-time clock, microseconds), in that
    /// order.
    pub handshaking: VecDeque<(i64, ClientId)>,
}
