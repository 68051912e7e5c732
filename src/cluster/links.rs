//! Connections to other nodes: this node opens one to each, over which it asks, and accepts one
//! from each, over which it answers.

use std::net::IpAddr;
use std::sync::Arc;

use super::Cluster;
use super::action::{Action, LinkId};
use super::node::{NodeFlags, NodeIndex};
use super::wire::Kind;

/// A connection as the state machine knows it.
#[derive(Clone, Debug)]
pub struct Link {
    /// The node at the other end; None: not known yet.
    pub node: Option<NodeIndex>,
    pub is_inbound: bool,
    pub peer: Option<IpAddr>,
    pub local: Option<IpAddr>,
    pub is_connected: bool,
    pub created_ms: i64,
}

impl Cluster {
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        self.links.iter().map(|(id, link)| (*id, link))
    }

    /// Whether it is known which node is at the other end.
    pub fn has_node_at(&self, id: LinkId) -> bool {
        self.links.get(&id).is_some_and(|link| link.node.is_some())
    }

    pub(super) fn accepted(&mut self, id: LinkId, peer: IpAddr, local: IpAddr) {
        let link = Link {
            node: None,
            is_inbound: true,
            peer: Some(peer),
            local: Some(local),
            is_connected: true,
            created_ms: self.now(),
        };
        self.links.insert(id, link);
    }

    /// Begins to connect to a node.
    pub(super) fn connect(&mut self, index: NodeIndex) {
        let now = self.now();
        self.opened += 1;
        // The server gives accepted connections the lower half of the numbers.
        let id = LinkId(1 << 63 | self.opened);
        let node = self.node_mut(index);
        node.outbound = Some(id);
        // A node that cannot be connected to answers nothing either.
        if node.ping_sent_ms == 0 {
            node.ping_sent_ms = now;
        }
        let peer = node.address.ip.parse().ok();
        let (ip, bus_port) = (node.address.ip.clone(), node.address.bus_port);
        let link = Link {
            node: Some(index),
            is_inbound: false,
            peer,
            local: None,
            is_connected: false,
            created_ms: now,
        };
        self.links.insert(id, link);
        self.out.push(Action::Connect { link: id, ip, bus_port });
    }

    pub(super) fn connected(&mut self, id: LinkId, local: Option<IpAddr>) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.is_connected = true;
        link.local = local;
        let Some(index) = link.node else { return };
        let before = self.node(index).ping_sent_ms;
        let is_meet = self.node(index).flags.contains(NodeFlags::MEET);
        self.send_ping(id, if is_meet { Kind::Meet } else { Kind::Ping });
        let node = self.node_mut(index);
        // Reconnecting must not hide a failure.
        if before != 0 {
            node.ping_sent_ms = before;
        }
    }

    pub(super) fn closed(&mut self, id: LinkId) {
        let Some(link) = self.links.remove(&id) else { return };
        let Some(index) = link.node else { return };
        let now = self.now();
        let Some(node) = self.nodes.get_mut(index.get()) else { return };
        if node.outbound == Some(id) {
            node.outbound = None;
        }
        if node.inbound == Some(id) {
            node.inbound = None;
            node.inbound_lost_ms = now;
        }
    }

    pub(super) fn close(&mut self, id: LinkId) {
        if self.links.contains_key(&id) {
            self.closed(id);
            self.out.push(Action::Close { link: id });
        }
    }

    /// Notes which node is at the other end of an accepted connection, and closes an older
    /// connection from that node.
    pub(super) fn bind(&mut self, id: LinkId, index: NodeIndex) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if link.node.is_some() || !link.is_inbound {
            return;
        }
        link.node = Some(index);
        if let Some(older) = self.node_mut(index).inbound.replace(id) {
            self.links.remove(&older);
            self.out.push(Action::Close { link: older });
        }
    }

    /// Sends a message of the type with this number.
    pub(super) fn send(&mut self, link: LinkId, kind: usize, message: Arc<[u8]>) {
        if let Some(count) = self.counts.sent.get_mut(kind) {
            *count += 1;
        }
        if let Some(bytes) = self.counts.bytes_sent.get_mut(kind) {
            *bytes += message.len() as u64;
        }
        self.out.push(Action::Send { link, message });
    }

    /// The connection over which this node pings another one, once it is established.
    pub(super) fn open_link(&self, index: NodeIndex) -> Option<LinkId> {
        let id = self.node(index).outbound?;
        self.links.get(&id).is_some_and(|link| link.is_connected).then_some(id)
    }
}
