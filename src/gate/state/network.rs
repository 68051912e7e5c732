//! Where connections come from and go to, and what the loop has not come to yet.

use std::collections::VecDeque;
use std::net::SocketAddr;

use mio::Poll;

use crate::client::ClientId;
use crate::net::dialer::{Dialer, SystemDialer};
use crate::net::listener::Listener;
use crate::net::outgoing::Outgoing;
use crate::net::tls::Tls;

/// Sockets that belong to no client, and whose turn it is.
pub struct Network {
    /// Where the system says what has come from whom.
    pub poll: Poll,
    /// Sockets that take connections: the Unix socket first, which stays, then TCP. Their tokens follow from their places.
    pub listeners: Vec<Listener>,
    /// TCP addresses listened on, those for TLS last.
    pub listening: Vec<SocketAddr>,
    /// What connections over TLS are made from, once the configuration has asked for it.
    pub tls: Option<Tls>,
    /// How a primary is reached.
    pub dialer: Box<dyn Dialer>,
    /// Connections to other servers, kept for the next MIGRATE.
    pub outgoing: Outgoing,
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
            outgoing: Outgoing::default(),
            pending: Pending::default(),
        }
    }
}

/// What has come, or may have come, and was left for the next turn: the system will not announce it again.
#[derive(Debug, Default)]
pub struct Pending {
    /// Listeners where connections still wait after a full share was taken.
    pub accept_again: Vec<usize>,
    /// Listeners the system gave no connection, although some may wait: for the next periodic work.
    pub accept_later: Vec<usize>,
    /// Clients to be read in the next turn without waiting: the last read filled its buffer.
    pub read_again: Vec<ClientId>,
    /// Clients that go on with requests they have sent before.
    pub resumed: Vec<ClientId>,
    /// Clients whose handshakes can go on, for the end of the turn; who waited longest first.
    pub handshakes: VecDeque<ClientId>,
    /// Clients that have begun a handshake, and until when it must be over; boot-time clock, microseconds. In that order.
    pub handshaking: VecDeque<(i64, ClientId)>,
}
