//! Takes messages in: finds the sender, and acts on each type.

use std::net::IpAddr;

use super::action::{Action, LinkId};
use super::links::Link;
use super::node::{Node, NodeFlags, NodeId, NodeIndex};
use super::wire::{self, Body, Decoded, Extension, Gossip, Header, Kind, Marks, Message};
use super::{Cluster, Faults, Todo};

impl Cluster {
    pub(super) fn receive(&mut self, link: LinkId, bytes: &[u8]) {
        let Some(from) = self.links.get(&link) else { return };
        let node = from.node.filter(|node| !self.node(*node).flags.contains(NodeFlags::HANDSHAKE));
        if bytes.len() >= wire::PREFIX {
            let kind = wire::type_of(bytes);
            if let Some(count) = self.counts.received.get_mut(kind) {
                *count += 1;
                self.counts.bytes_received[kind] += bytes.len() as u64;
            }
        }
        let Faults { dropped, closes_on_drop, .. } = self.faults;
        if dropped == -2 || (bytes.len() >= wire::PREFIX && dropped == wire::type_of(bytes) as i64)
        {
            if closes_on_drop {
                self.close(link);
            }
            return;
        }
        match wire::decode(bytes) {
            Err(malformed) => self.warn(malformed.0),
            Ok(Decoded::Ignored) => {}
            // A light header names nobody.
            Ok(Decoded::Light(body)) => match node {
                None => self.close(link),
                Some(_) => self.deliver(body),
            },
            Ok(Decoded::Full(message)) => {
                let Message { header, body } = *message;
                // A node that answers at another one's address says nothing about that one.
                let is_named = |node: &NodeIndex| self.node(*node).id == header.sender;
                let is_outbound = !from.is_inbound;
                let sender = match node {
                    Some(node) if is_outbound => Some(node).filter(is_named),
                    _ => self.find(&header.sender),
                };
                let is_friend = |node: &NodeIndex| {
                    !self.node(*node).flags.intersects(NodeFlags::HANDSHAKE | NodeFlags::MYSELF)
                };
                let sender = sender.filter(is_friend);
                if let Some(sender) = sender {
                    self.take_header(link, sender, &header);
                }
                match (body, sender) {
                    (Body::Ping { kind, gossip, extensions }, sender) => {
                        self.take_ping(link, sender, &header, kind, gossip, extensions);
                    }
                    (_, None) => {}
                    (body, Some(sender)) => self.take_body(sender, &header, body),
                }
            }
        }
    }

    /// Takes in the header that every message of a known node has.
    fn take_header(&mut self, link: LinkId, sender: NodeIndex, header: &Header) {
        let now = self.now();
        self.bind(link, sender);
        if header.current_epoch > self.current_epoch {
            self.current_epoch = header.current_epoch;
            self.todo |= Todo::SAVE;
        }
        let node = self.node_mut(sender);
        node.data_received_ms = now;
        node.repl_offset = header.offset;
        // A replica names the epoch of its primary.
        if header.primary.is_none() && header.config_epoch > node.config_epoch {
            self.version += 1;
            self.todo |= Todo::SAVE;
            self.note_epoch(sender, header.config_epoch);
        }
        let announced = NodeFlags::NOFAILOVER | NodeFlags::LIGHT_PUBLISH | NodeFlags::LIGHT_MODULE;
        let node = self.node_mut(sender);
        let before = node.flags;
        node.flags = (node.flags - announced) | (header.flags & announced);
        node.flags.set(NodeFlags::EXTENSIONS, header.marks.contains(Marks::EXTENSIONS));
        if (before ^ node.flags).contains(NodeFlags::NOFAILOVER) {
            self.version += 1;
            self.todo |= Todo::SAVE;
        }
    }

    fn take_ping(
        &mut self,
        id: LinkId,
        sender: Option<NodeIndex>,
        header: &Header,
        kind: Kind,
        gossip: Vec<Gossip>,
        extensions: Vec<Extension>,
    ) {
        let Some(link) = self.links.get(&id).cloned() else { return };
        let mut newcomer = None;
        if kind != Kind::Pong {
            if kind == Kind::Meet || self.myself().address.ip.is_empty() {
                self.learn_own_address(&link);
            }
            if kind == Kind::Meet
                && self.find(&header.sender).is_none()
                && header.sender != self.myself().id
            {
                newcomer = self.meet_stranger(&link, header);
            } else if let (Kind::Meet, Some(sender)) = (kind, sender) {
                self.reconnect_to(sender);
            }
            self.send_ping(id, Kind::Pong);
        }
        if let (false, Some(index)) = (link.is_inbound, link.node) {
            if self.node(index).flags.contains(NodeFlags::HANDSHAKE) {
                self.end_handshake(index, &link, header);
                return;
            }
            if self.node(index).id != header.sender {
                self.disown_address(index, header.sender);
                return;
            }
            if kind == Kind::Pong {
                self.take_answer(index);
            }
        }
        // If the handshake fails, the stranger's cluster can still be joined through others.
        if let Some(newcomer) = newcomer {
            self.take_gossip(newcomer, gossip);
            return;
        }
        let Some(sender) = sender else { return };
        self.node_mut(sender).flags -= NodeFlags::MEET;
        if kind == Kind::Ping && link.is_inbound {
            self.take_address(sender, &link, header);
        }
        self.take_role(sender, header);
        self.take_claims(sender, header);
        if header.marks.contains(Marks::PAUSED) && self.myself().primary == Some(sender) {
            self.take_pause(sender, header);
        }
        self.follow_successor(sender);
        self.part_equal_epochs(sender, header.config_epoch);
        self.take_gossip(sender, gossip);
        if !header.marks.contains(Marks::EXTENSIONS) {
            self.take_silence(sender);
        } else if !extensions.is_empty() {
            self.take_extensions(sender, extensions);
        }
    }

    fn take_body(&mut self, sender: NodeIndex, header: &Header, body: Body) {
        match body {
            Body::Fail(id) => {
                if let Some(index) = self.find(&id) {
                    self.take_failure(sender, index);
                }
            }
            Body::Update { config_epoch, id, slots } => {
                if let Some(index) = self.find(&id) {
                    self.take_update(index, config_epoch, &slots);
                }
            }
            body @ Body::Publish { .. } => self.deliver(body),
            Body::AuthRequest => self.vote_if_allowed(sender, header),
            Body::AuthAck => self.take_vote(sender, header.current_epoch),
            Body::ManualFailoverStart => self.pause_for(sender),
            Body::Module { .. } | Body::Ping { .. } => {}
        }
    }

    fn deliver(&mut self, body: Body) {
        if let Body::Publish { channel, message, is_shard } = body {
            let (channel, message) = (channel.into(), message.into());
            self.out.push(Action::Deliver { channel, message, is_shard });
        }
    }

    /// Publishes a message to the other nodes: all, or those of this node's shard.
    pub fn publish(
        &mut self,
        channel: &[u8],
        message: &[u8],
        is_shard: bool,
        actions: &mut Vec<Action>,
    ) {
        let body = Body::Publish { channel: channel.to_vec(), message: message.to_vec(), is_shard };
        let kind = body.index();
        let (mut light, mut full) = (None, None);
        let primary = self.my_primary();
        for index in self.others() {
            let node = self.node(index);
            let is_of_shard =
                Some(index) == primary || (node.primary.is_some() && node.primary == primary);
            let Some(link) = self.open_link(index).filter(|_| !is_shard || is_of_shard) else {
                continue;
            };
            // The node has answered over this connection, so it knows the sender.
            let is_light = node.flags.contains(NodeFlags::LIGHT_PUBLISH)
                && self
                    .links
                    .get(&link)
                    .is_some_and(|link| node.pong_received_ms >= link.created_ms);
            let message = match is_light {
                true => light.get_or_insert_with(|| wire::encode_light(&body)).clone(),
                false => full
                    .get_or_insert_with(|| {
                        Message { header: self.header(Marks::default()), body: body.clone() }
                            .encode()
                    })
                    .clone(),
            };
            self.send(link, kind, message);
        }
        actions.append(&mut self.out);
    }

    /// Learns this node's address, at which another node reached it, unless one is announced.
    fn learn_own_address(&mut self, link: &Link) {
        let Some(local) = link.local.filter(|_| self.settings.announce_ip.is_empty()) else {
            return;
        };
        let ip = local.to_canonical().to_string();
        if self.myself().address.ip != ip && !local.is_unspecified() {
            self.log(format!("IP address for this node updated to {ip}"));
            self.myself_mut().address.ip = ip;
            self.version += 1;
            self.todo |= Todo::SAVE;
        }
    }

    /// The address that a header gives, or that of the connection.
    fn ip_of(link: &Link, header: &Header) -> String {
        match (header.ip.is_empty(), link.peer) {
            (true, Some(peer)) => peer.to_canonical().to_string(),
            _ => header.ip.clone(),
        }
    }

    /// Begins a handshake with an unknown node, which joins through this one, unless one is under
    /// way. Returns the node in handshake.
    fn meet_stranger(&mut self, link: &Link, header: &Header) -> Option<NodeIndex> {
        let ip = Self::ip_of(link, header);
        if ip.is_empty() || ip.parse::<IpAddr>().is_err() {
            return None;
        }
        let is_coming = |node: &Node| {
            node.flags.contains(NodeFlags::HANDSHAKE)
                && node.address.ip == ip
                && node.address.bus_port == header.bus_port
        };
        let coming = self.nodes().find(|(_, node)| is_coming(node));
        if let Some((index, _)) = coming {
            return Some(index);
        }
        let mut node = Node::new(self.random_name());
        node.flags = NodeFlags::HANDSHAKE;
        node.address = self.address(ip, header.port, header.other_port, header.bus_port);
        self.add_node(node)
    }

    /// Connects again to a known node that asks to join: it has heard nothing over the connection
    /// there is. A ping that was lost keeps this node from sending another one.
    fn reconnect_to(&mut self, sender: NodeIndex) {
        let wait_ms = self.handshake_ms();
        let node = self.node(sender);
        // Before, the handshake may still be under way at the other end.
        if self.now() - node.created_ms > wait_ms
            && let Some(outbound) = node.outbound
        {
            let id = node.id;
            self.log(format!(
                "Freeing outbound link to node {id} after receiving a MEET packet from this known node"
            ));
            self.close(outbound);
        }
    }

    /// A name for a node whose own is not known yet.
    pub(super) fn random_name(&mut self) -> NodeId {
        NodeId::from_random(std::array::from_fn(|_| self.random.u8(..)))
    }

    /// Ends the handshake with a node that this one asked to join: it has answered.
    fn end_handshake(&mut self, index: NodeIndex, link: &Link, header: &Header) {
        if let Some(known) = self.find(&header.sender) {
            if known != self.myself {
                let id = header.sender;
                self.log(format!(
                    "Handshake: we already know node {id}, updating the address if needed."
                ));
                self.take_address(known, link, header);
            }
            self.remove_node(index);
            return;
        }
        self.rename_node(index, header.sender);
        let id = header.sender;
        self.log(format!("Handshake with node {id} completed."));
        let role = if header.primary.is_some() { NodeFlags::REPLICA } else { NodeFlags::PRIMARY };
        let now = self.now();
        let node = self.node_mut(index);
        node.flags = (node.flags - NodeFlags::HANDSHAKE - NodeFlags::MEET) | role;
        node.flags.set(NodeFlags::EXTENSIONS, header.marks.contains(Marks::EXTENSIONS));
        node.data_received_ms = now;
        self.take_answer(index);
        self.changed();
    }

    /// Drops the address of a node, `index`: another node, `sender`, answers there.
    fn disown_address(&mut self, index: NodeIndex, sender: NodeId) {
        let age = self.now() - self.node(index).created_ms;
        let (id, flags) = (self.node(index).id, self.node(index).flags.bits());
        self.log(format!(
            "PONG contains mismatching sender ID. About node {id} added {age} ms ago, having flags {flags} ({sender})"
        ));
        if let Some(link) = self.node(index).outbound {
            self.close(link);
        }
        let node = self.node_mut(index);
        node.flags |= NodeFlags::NOADDR;
        node.address = Default::default();
        self.changed();
        // Nobody will ping it again, and without a failure no replica would take its place.
        if self.settings.as_valkey && !self.node(index).flags.contains(NodeFlags::FAIL) {
            self.fail(index);
        }
    }

    /// Takes in a PONG that answers this node's own ping.
    fn take_answer(&mut self, index: NodeIndex) {
        let now = self.now();
        let node = self.node_mut(index);
        node.pong_received_ms = now;
        node.ping_sent_ms = 0;
        if node.flags.contains(NodeFlags::PFAIL) {
            node.flags -= NodeFlags::PFAIL;
            self.version += 1;
            self.todo |= Todo::SAVE | Todo::UPDATE_STATE;
        } else if node.flags.contains(NodeFlags::FAIL) {
            self.clear_failure_if_due(index);
        }
    }

    /// Notes the new address of a known node whose message came from another address.
    fn take_address(&mut self, index: NodeIndex, link: &Link, header: &Header) {
        let ip = Self::ip_of(link, header);
        let address = self.address(ip, header.port, header.other_port, header.bus_port);
        if address.ip.is_empty() || address == self.node(index).address {
            return;
        }
        let (id, shown) = (self.node(index).id, format!("{}:{}", address.ip, header.port));
        self.warn(format!("Address updated for node {id}, now {shown}"));
        if let Some(outbound) = self.node(index).outbound {
            self.close(outbound);
        }
        let node = self.node_mut(index);
        node.flags -= NodeFlags::NOADDR;
        node.address = address;
        self.changed();
        if self.myself().primary == Some(index) {
            self.follow_address();
        }
    }
}
