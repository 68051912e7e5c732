//! Headers and gossip: this node's messages about itself and others, and its use of the gossip that
//! it receives.

use std::sync::Arc;

use super::action::LinkId;
use super::node::{Address, Announced, Dialect, FailureReport, Node, NodeFlags, NodeIndex};
use super::wire::{Body, Extension, Gossip, Header, Kind, Marks, Message};
use super::{Cluster, Todo};
use crate::collections::hash_slot::SlotSet;

/// How far in the future a PONG may have been received, by the clock of another node. Unit:
/// milliseconds.
const FUTURE_MAX_MS: i64 = 500;

impl Cluster {
    /// The header of a message of this node.
    pub(super) fn header(&self, marks: Marks) -> Header {
        let myself = self.myself();
        let primary = self.my_primary().map(|index| self.node(index));
        let address = &myself.address;
        let (port, other_port) = match self.settings.tls_cluster {
            true => (address.tls_port, address.tcp_port),
            false => (address.tcp_port, address.tls_port),
        };
        Header {
            port,
            other_port,
            bus_port: address.bus_port,
            current_epoch: self.current_epoch,
            config_epoch: primary.map_or(0, |primary| primary.config_epoch),
            offset: self.outside.offset,
            sender: myself.id,
            slots: self.my_primary().map(|index| self.claims_of(index)).unwrap_or_default(),
            primary: myself.primary.map(|index| self.node(index).id),
            ip: self.settings.announce_ip.clone(),
            // This node understands light headers, and MEET from a known node. Redis ignores the
            // bits that Valkey adds.
            flags: (myself.flags - NodeFlags::EXTENSIONS)
                | NodeFlags::LIGHT_PUBLISH
                | NodeFlags::LIGHT_MODULE,
            is_ok: self.is_ok,
            marks,
        }
    }

    /// The slots that a node is said to own. This node claims none that it has granted: the target
    /// may have taken them, with an epoch that this node's may exceed before it hears of that.
    pub(super) fn claims_of(&self, index: NodeIndex) -> SlotSet {
        let mut slots = self.node(index).slots.clone();
        if index == self.myself {
            for slot in self.granted.iter().flat_map(|(granted, _)| granted.iter()) {
                slots.remove(slot);
            }
        }
        slots
    }

    fn message(&self, body: Body, marks: Marks) -> Arc<[u8]> {
        Message { header: self.header(marks), body }.encode()
    }

    /// Sends a message without gossip to one node, if it is connected. Returns whether it was sent.
    pub(super) fn send_to(&mut self, index: NodeIndex, body: Body, marks: Marks) -> bool {
        let Some(link) = self.open_link(index) else { return false };
        let kind = body.index();
        let message = self.message(body, marks);
        self.send(link, kind, message);
        true
    }

    /// Sends a message to all connected nodes that have ended their handshake.
    pub(super) fn broadcast(&mut self, body: Body, marks: Marks) {
        let kind = body.index();
        let message = self.message(body, marks);
        for index in self.others() {
            if let Some(link) = self.open_link(index) {
                self.send(link, kind, message.clone());
            }
        }
    }

    /// Nodes other than this one that have ended their handshake.
    pub(super) fn others(&self) -> Vec<NodeIndex> {
        let is_other =
            |node: &Node| !node.flags.intersects(NodeFlags::MYSELF | NodeFlags::HANDSHAKE);
        self.nodes().filter(|(_, node)| is_other(node)).map(|(index, _)| index).collect()
    }

    /// Lets all nodes know of this one's slots, epoch and role.
    pub(super) fn broadcast_pong(&mut self) {
        for index in self.others() {
            if let Some(link) = self.open_link(index) {
                self.send_ping(link, Kind::Pong);
            }
        }
    }

    /// Lets the replicas of this node's shard know of its offset.
    pub(super) fn broadcast_pong_to_shard(&mut self) {
        let Some(primary) = self.my_primary() else { return };
        for index in self.node(primary).replicas.clone() {
            if let Some(link) = self.open_link(index).filter(|_| index != self.myself) {
                self.send_ping(link, Kind::Pong);
            }
        }
    }

    /// Sends PING, PONG or MEET with gossip.
    pub(super) fn send_ping(&mut self, link: LinkId, kind: Kind) {
        let Some(to) = self.links.get(&link) else { return };
        let (receiver, is_inbound) = (to.node, to.is_inbound);
        if let (Kind::Ping | Kind::Meet, Some(index), false) = (kind, receiver, is_inbound) {
            let now = self.now();
            let node = self.node_mut(index);
            node.ping_sent_ms = now;
            if kind == Kind::Meet {
                node.meet_sent_ms = now;
            }
        }
        let knows = |node: &Node| node.flags.contains(NodeFlags::EXTENSIONS);
        let extensions = match receiver.map(|index| self.node(index)).filter(|node| knows(node)) {
            Some(node) => self.extensions(node.dialect),
            None => self.extensions_for_all(),
        };
        let body = Body::Ping { kind, gossip: self.gossip(receiver), extensions };
        let mut marks = Marks::EXTENSIONS;
        marks.set(Marks::PAUSED, receiver.is_some_and(|index| self.is_pausing_for(index)));
        let mut message = Message { header: self.header(marks), body };
        if receiver.is_some_and(|index| self.keeps_granted(index)) {
            message.header.slots = self.myself().slots.clone();
        }
        self.send(link, kind as usize, message.encode());
    }

    /// Whether a node is to see granted slots as this one's: a replica of Redis that takes over
    /// would lose slots that its primary has once left out, to any claim.
    fn keeps_granted(&self, index: NodeIndex) -> bool {
        let node = self.node(index);
        !self.granted.is_empty()
            && self.myself().is_primary()
            && node.primary == Some(self.myself)
            && !node.flags.contains(NodeFlags::LIGHT_PUBLISH)
    }

    /// The entries about other nodes: a few at random, and all that this node cannot reach.
    fn gossip(&mut self, receiver: Option<NodeIndex>) -> Vec<Gossip> {
        let known = self.nodes.len();
        let most = known.saturating_sub(2);
        let wanted = (known * self.settings.gossip_percent / 100).max(3).min(most);
        let mut chosen: Vec<NodeIndex> = Vec::with_capacity(wanted);
        let capacity = self.nodes.capacity().min(u16::MAX as usize);
        // Places of the table may be empty: hence more attempts than nodes, and a limit.
        for _ in 0..wanted * 8 {
            if chosen.len() == wanted {
                break;
            }
            let place = self.random.usize(..capacity);
            let Some(node) = self.nodes.get(place) else { continue };
            let index = NodeIndex::new(place);
            let is_nobody = node.flags.intersects(
                NodeFlags::MYSELF | NodeFlags::PFAIL | NodeFlags::HANDSHAKE | NodeFlags::NOADDR,
            ) || (node.outbound.is_none() && node.slots.is_empty());
            if !is_nobody && Some(index) != receiver && !chosen.contains(&index) {
                chosen.push(index);
            }
        }
        let is_suspect = |node: &Node| {
            node.flags.contains(NodeFlags::PFAIL)
                && !node.flags.intersects(NodeFlags::HANDSHAKE | NodeFlags::NOADDR)
        };
        chosen.extend(self.nodes().filter(|(_, node)| is_suspect(node)).map(|(index, _)| index));
        chosen.truncate(u16::MAX as usize);
        chosen.into_iter().map(|index| self.gossip_of(index)).collect()
    }

    fn gossip_of(&self, index: NodeIndex) -> Gossip {
        let node = self.node(index);
        let seconds = |ms: i64| (self.shown(ms) / 1000).clamp(0, u32::MAX.into()) as u32;
        let (port, other_port) = match self.settings.tls_cluster {
            true => (node.address.tls_port, node.address.tcp_port),
            false => (node.address.tcp_port, node.address.tls_port),
        };
        Gossip {
            id: node.id,
            ping_sent_s: seconds(node.ping_sent_ms),
            pong_received_s: seconds(node.pong_received_ms),
            ip: node.address.ip.clone(),
            port,
            bus_port: node.address.bus_port,
            flags: node.flags - NodeFlags::EXTENSIONS,
            other_port,
        }
    }

    /// The extensions for nodes that have not shown that they know extensions. Redis 7.0, which
    /// shows that only if it has a hostname itself, sends its own hostname to all nodes: so a node
    /// that learns of another one's slots knows its name too.
    fn extensions_for_all(&self) -> Vec<Extension> {
        let hostname = &self.settings.announced.hostname;
        match hostname.is_empty() || self.settings.as_valkey {
            true => Vec::new(),
            false => vec![Extension::Hostname(hostname.clone())],
        }
    }

    /// The extensions about this node that a node of this dialect understands, in Valkey's order.
    fn extensions(&self, dialect: Dialect) -> Vec<Extension> {
        let announced = &self.settings.announced;
        let mut extensions = vec![
            Extension::Hostname(announced.hostname.clone()),
            Extension::HumanNodename(announced.human_nodename.clone()),
        ];
        if dialect == Dialect::Valkey {
            extensions.extend([
                Extension::ClientIpv4(announced.client_ipv4.clone()),
                Extension::ClientIpv6(announced.client_ipv6.clone()),
                Extension::ClientPort(announced.client_port),
                Extension::ClientTlsPort(announced.client_tls_port),
                Extension::AvailabilityZone(announced.availability_zone.clone()),
            ]);
        }
        extensions.retain(|extension| !extension.is_empty());
        let now = self.now();
        extensions.extend(self.blacklist.iter().filter(|(_, until)| **until > now).map(
            |(id, until)| Extension::Forgotten {
                id: *id,
                ttl_s: ((until - now) as u64).div_ceil(1000),
            },
        ));
        extensions.push(Extension::ShardId(self.myself().shard_id));
        if dialect == Dialect::Redis8 {
            extensions.extend(self.secret.map(Extension::Secret));
        }
        extensions
    }

    /// The address in a header or an entry of gossip. `tls-cluster` decides which port is that for
    /// TLS.
    pub(super) fn address(&self, ip: String, port: u16, other_port: u16, bus_port: u16) -> Address {
        let (tcp_port, tls_port) = match self.settings.tls_cluster {
            true => (other_port, port),
            false => (port, other_port),
        };
        Address { ip, tcp_port, tls_port, bus_port }
    }

    /// Takes in a node's gossip about others.
    pub(super) fn take_gossip(&mut self, sender: NodeIndex, gossip: Vec<Gossip>) {
        for entry in gossip {
            match self.find(&entry.id) {
                Some(index) => self.take_gossip_of(sender, index, entry),
                None => self.meet_by_gossip(entry),
            }
        }
    }

    fn take_gossip_of(&mut self, sender: NodeIndex, index: NodeIndex, entry: Gossip) {
        let now = self.now();
        let is_failing = entry.flags.intersects(NodeFlags::FAIL | NodeFlags::PFAIL);
        if self.node(sender).is_voting() && index != self.myself {
            match is_failing {
                true => self.add_report(index, FailureReport { by: sender, at_ms: now }),
                false => self.remove_report(index, sender),
            }
            if is_failing {
                self.mark_failed_if_agreed(index);
            }
        }
        let pong_ms = self.inside(i64::from(entry.pong_received_s) * 1000);
        let node = self.node(index);
        // A failed node is pinged itself, however well others hear it: here only its own PONG ends
        // the failure.
        let is_calm =
            !is_failing && !node.is_failing() && node.ping_sent_ms == 0 && node.reports.is_empty();
        if is_calm && pong_ms > node.pong_received_ms && pong_ms <= now + FUTURE_MAX_MS {
            self.node_mut(index).pong_received_ms = pong_ms;
        }
        if index == self.myself || is_failing || !self.node(index).is_failing() {
            return;
        }
        // Other nodes reach it, perhaps at another address.
        let is_placed = !entry.flags.intersects(NodeFlags::NOADDR | NodeFlags::HANDSHAKE)
            && !entry.ip.is_empty();
        let address = self.address(entry.ip, entry.port, entry.other_port, entry.bus_port);
        let before = &self.node(index).address;
        let is_moved = (&before.ip, before.tcp_port, before.bus_port)
            != (&address.ip, address.tcp_port, address.bus_port);
        if is_placed && is_moved {
            if let Some(link) = self.node(index).outbound {
                self.close(link);
            }
            self.node_mut(index).address = address;
            self.node_mut(index).flags -= NodeFlags::NOADDR;
            self.todo |= Todo::SAVE;
            self.version += 1;
        }
    }

    /// Adds a node that this one first hears of by gossip.
    fn meet_by_gossip(&mut self, entry: Gossip) {
        let is_known_away = self.is_blacklisted(&entry.id);
        if entry.flags.contains(NodeFlags::NOADDR) || entry.ip.is_empty() || is_known_away {
            return;
        }
        let mut node = Node::new(entry.id);
        let role = NodeFlags::PRIMARY | NodeFlags::REPLICA | NodeFlags::NOFAILOVER;
        node.flags = entry.flags & role;
        node.address = self.address(entry.ip, entry.port, entry.other_port, entry.bus_port);
        self.add_node(node);
    }

    /// Takes in the extensions by which a node describes itself. An announced field without an
    /// extension is cleared.
    pub(super) fn take_extensions(&mut self, sender: NodeIndex, extensions: Vec<Extension>) {
        let mut announced = Announced::default();
        let is_secret = |extension: &Extension| matches!(extension, Extension::Secret(_));
        self.node_mut(sender).dialect = match extensions.iter().any(is_secret) {
            true => Dialect::Redis8,
            false => Dialect::Valkey,
        };
        for extension in extensions {
            match extension {
                Extension::Secret(secret) => {
                    self.secret = Some(self.secret.map_or(secret, |own| own.min(secret)));
                }
                Extension::Hostname(name) => announced.hostname = name,
                Extension::HumanNodename(name) => announced.human_nodename = name,
                Extension::AvailabilityZone(name) => announced.availability_zone = name,
                Extension::ClientIpv4(ip) => announced.client_ipv4 = ip,
                Extension::ClientIpv6(ip) => announced.client_ipv6 = ip,
                Extension::ClientPort(port) => announced.client_port = port,
                Extension::ClientTlsPort(port) => announced.client_tls_port = port,
                Extension::ShardId(id) if self.node(sender).shard_id != id => {
                    self.node_mut(sender).shard_id = id;
                    self.todo |= Todo::SAVE;
                    self.version += 1;
                }
                Extension::Forgotten { id, ttl_s } => self.forget_with(sender, id, ttl_s),
                Extension::ShardId(_) | Extension::Unknown { .. } => {}
            }
        }
        // The last extension may have made this node forget the sender itself.
        if let Some(node) = self.nodes.get_mut(sender.get())
            && node.announced != announced
        {
            node.announced = announced;
            self.todo |= Todo::SAVE;
            self.version += 1;
        }
    }

    /// Clears the hostname of a node that sends no extensions. Redis 7.0 sends them only if it has
    /// a hostname.
    pub(super) fn take_silence(&mut self, sender: NodeIndex) {
        if let Some(node) = self.nodes.get_mut(sender.get())
            && !node.announced.hostname.is_empty()
        {
            node.announced.hostname.clear();
            self.todo |= Todo::SAVE;
            self.version += 1;
        }
    }

    /// Forgets a node that the sender was told to forget.
    fn forget_with(&mut self, sender: NodeIndex, id: super::node::NodeId, ttl_s: u64) {
        let Some(index) = self.find(&id) else { return };
        if index == self.myself || index == sender || self.myself().primary == Some(index) {
            return;
        }
        let ttl_ms = (ttl_s.min(1 << 32) as i64) * 1000;
        self.ban(id, self.now() + ttl_ms);
        self.remove_node(index);
    }
}
