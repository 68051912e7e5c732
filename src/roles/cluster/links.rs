//! Connections of the cluster's nodes: accepting and making them, and reading whole messages for
//! the state machine.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::{carry_out_outside, tell};
use crate::cluster::action::{Event, LinkId};
use crate::cluster::wire;
use crate::config::Config;
use crate::net::bus::{Accepted, Progress};
use crate::net::listener::tcp_listeners;
use crate::net::stream::{Address, Stream};
use crate::state::State;
use crate::sys::log::{verbose, warning};

/// The longest message that is accepted: a PUBLISH with the largest channel and message. Other
/// messages are far shorter. Memory is used only for bytes that have arrived. Unit: bytes.
pub const MESSAGE_MAX: usize = (1 << 30) + 4096;
/// The longest message on a connection that is not yet known to be a node's: a message with gossip
/// about 2,400 nodes. The limit is low because anybody can connect. Unit: bytes.
const FIRST_MESSAGE_MAX: usize = 256 << 10;
/// Difference between the bus port and the clients' port.
const PORT_DISTANCE: u16 = 10_000;

/// The bus port by the configuration. None: no port is configured from which it could be derived.
/// Errors: a text for the log.
pub fn bus_port(config: &Config) -> Result<Option<u16>, String> {
    if config.bind.is_empty() {
        return Err("No bind address is configured, but it is required for the Cluster bus.".into());
    }
    match (config.cluster_port, base_port(config)) {
        (0, 0) => Ok(None),
        (0, base) => base.checked_add(PORT_DISTANCE).map(Some).ok_or_else(|| {
            let name = if config.compatible_with.is_valkey() { "Valkey" } else { "Redis" };
            format!(
                "{name} port number too high. Cluster communication port is 10,000 port numbers higher than your {name} \
                 port. Your {name} port number must be 55535 or less."
            )
        }),
        (port, _) => Ok(Some(port)),
    }
}

/// The port from which the bus port follows.
fn base_port(config: &Config) -> u16 {
    match config.tls_cluster || config.port == 0 {
        true if config.tls_port != 0 => config.tls_port,
        _ => config.port,
    }
}

/// Listens for other nodes. Errors: a text for the log.
pub fn listen(state: &mut State) -> Result<(), String> {
    let config = &state.config;
    let Some(port) = bus_port(config)? else { return Ok(()) };
    let mut warnings = Vec::new();
    let bound =
        tcp_listeners(&config.bind, port, config.tcp_backlog, config.tls_cluster, &mut warnings);
    for warning in warnings {
        warning!(state, "Warning: {warning}");
    }
    let listeners =
        bound.map_err(|_| format!("Failed listening on port {port} (cluster), aborting."))?;
    state.net.bus.listen(listeners);
    Ok(())
}

/// Whether this node takes no part in the cluster for now: a primary that loads its data would
/// serve no clients, so a replica may take its place.
pub fn keeps_silent(state: &State) -> bool {
    state.persistence.loading.is_some() && !state.replication.is_replica()
}

/// Accepts connections, makes progress with them, and passes whole messages to the state machine.
pub fn take_in(state: &mut State, is_nested: bool) {
    for link in state.net.bus.take_ended() {
        tell(state, Event::Closed { link });
    }
    accept(state);
    for _ in 0..state.net.bus.ready() {
        match state.net.bus.serve_next() {
            Progress::Waits => {}
            Progress::Connected(link, local) => tell(state, Event::Connected { link, local }),
            Progress::Bytes(link, bytes) => receive(state, link, bytes, is_nested),
            Progress::Ended(link) => tell(state, Event::Closed { link }),
        }
    }
}

fn accept(state: &mut State) {
    if !state.net.bus.has_arrivals() {
        return;
    }
    if keeps_silent(state) {
        // Connections are accepted when the data is loaded.
        return state.net.bus.postpone();
    }
    let tls = state.config.tls_cluster.then(|| state.net.tls.as_ref().map(|tls| tls.bus.clone()));
    if tls.as_ref().is_some_and(Option::is_none) {
        return state.net.bus.postpone();
    }
    let keepalive = (state.config.cluster_node_timeout / 500).clamp(1, 3600) as u64;
    let links_max = (state.config.maxclients as usize).saturating_sub(state.clients.len()).max(1);
    let now_ms = state.clock.now().unix().0;
    let net = &mut state.net;
    let (accepted, result) =
        net.bus.accept(net.poll.registry(), tls.flatten().as_ref(), keepalive, links_max, now_ms);
    if let Err(error) = result {
        verbose!(state, "Error accepting cluster node: {error}");
    }
    for Accepted { link, peer, local } in accepted {
        tell(state, Event::Accepted { link, peer, local });
    }
}

/// Takes in a connection as if accepted.
pub fn take_in_link(state: &mut State, stream: Stream, peer: &Address, local: &Address) {
    let now_ms = state.clock.now().unix().0;
    let net = &mut state.net;
    let accepted = net.bus.take_in(net.poll.registry(), stream, peer, local, now_ms);
    if let Some(Accepted { link, peer, local }) = accepted {
        tell(state, Event::Accepted { link, peer, local });
    }
}

/// Passes the whole messages among these bytes to the state machine. In a nested turn a manual
/// failover waits, because a script may be writing.
fn receive(state: &mut State, link: LinkId, bytes: Vec<u8>, is_nested: bool) {
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let is_known = state.node.cluster.as_ref().is_some_and(|cluster| cluster.has_node_at(link));
        let most = if is_known { MESSAGE_MAX } else { FIRST_MESSAGE_MAX };
        let length = match wire::frame_length(rest, most) {
            Ok(Some(length)) if length <= rest.len() => length,
            Ok(_) => break,
            Err(wire::BadFrame) => {
                warning!(state, "Bad message length or signature received from Cluster bus.");
                state.net.bus.cut(link);
                return tell(state, Event::Closed { link });
            }
        };
        let message = &rest[..length];
        if is_nested && wire::type_of(message) == wire::MANUAL_FAILOVER_START {
            state.node.work.held.push(link);
            state.net.bus.hold(link);
            break;
        }
        tell(state, Event::Received { link, message });
        at += length;
        // The state machine may ask to close the connection.
        carry_out_outside(state);
        if !state.net.bus.knows(link) {
            return;
        }
    }
    state.net.bus.keep(link, bytes, at);
}

/// Begins to connect to a node.
pub fn connect(state: &mut State, link: LinkId, ip: &str, port: u16) {
    let now_ms = state.clock.now().unix().0;
    let stream = dial(state, ip, port);
    if let Err(error) = &stream {
        verbose!(state, "Unable to connect to Cluster Node [{ip}]:{port} -> {error}");
    }
    let net = &mut state.net;
    net.bus.open(net.poll.registry(), link, stream, now_ms);
}

fn dial(state: &State, ip: &str, port: u16) -> io::Result<Stream> {
    let ip: IpAddr = ip.parse().map_err(|_| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
    state.net.dial(&state.config, SocketAddr::new(ip, port), state.config.tls_cluster)
}

/// Whether [`periodic`] may have something to do.
pub fn has_periodic_work(state: &State) -> bool {
    state.config.cluster_link_sendbuf_limit > 0 || state.net.bus.is_postponed()
}

/// Closes connections whose peers read too slowly, and retries postponed accepts. Call this several
/// times a second.
pub fn periodic(state: &mut State) {
    let limit = state.config.cluster_link_sendbuf_limit;
    if limit > 0 {
        let closed = state.net.bus.close_slow(limit);
        if closed > 0 {
            warning!(
                state,
                "Closed {closed} links of the cluster bus for exceeding cluster-link-sendbuf-limit."
            );
        }
    }
    state.net.bus.accept_postponed();
}
