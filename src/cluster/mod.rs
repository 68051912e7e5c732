//! A node's part in a cluster: who the nodes are, who owns which slots, who has failed and who takes over.
//!
//! [`Cluster`] is a state machine without I/O. The server gives it the time, what other nodes have sent, and what happened to
//! connections ([`Event`]); it answers with a list of things to do ([`Action`]), in order. Commands read it by its queries and
//! change it by the functions in `admin.rs`. Clock, random numbers, disk and network stay outside, so that tests can run many
//! nodes in one thread.
//!
//! Files: `node` is one node as this one knows it; `action` is what the machine is told and what it wants done;
//! `admin` is what commands change, `report` what CLUSTER NODES and INFO say.
//!
//! Source: the cluster specification of Redis; the bus of Redis 7.0.15 and Valkey 9.1.2.

pub mod action;
pub mod admin;
pub mod node;
pub mod report;

use std::collections::{BTreeMap, HashMap};

use slab::Slab;

use crate::collections::hash_slot::{HashSlot, SLOTS};
use node::{Node, NodeFlags, NodeId, NodeIndex};

/// The cluster as this node sees it.
pub struct Cluster {
    nodes: Slab<Node>,
    by_id: HashMap<NodeId, NodeIndex>,
    myself: NodeIndex,
    /// The owner of each slot.
    owners: Box<[Option<NodeIndex>; SLOTS]>,
    /// Slots of this node that are being moved to another one by hand, and that are being moved here.
    migrating: BTreeMap<HashSlot, NodeIndex>,
    importing: BTreeMap<HashSlot, NodeIndex>,
    current_epoch: u64,
    last_vote_epoch: u64,
    /// Whether the slots that must be served are, as far as this node knows.
    is_ok: bool,
    /// Grows with each change that a redirection or a reply of CLUSTER NODES, SLOTS or SHARDS shows.
    version: u64,
}

impl Cluster {
    /// A cluster of this node alone, without slots.
    pub fn new(id: NodeId) -> Cluster {
        let mut nodes = Slab::new();
        let mut node = Node::new(id);
        node.flags = NodeFlags::MYSELF | NodeFlags::PRIMARY;
        let myself = NodeIndex::new(nodes.insert(node));
        Cluster {
            nodes,
            by_id: HashMap::from([(id, myself)]),
            myself,
            owners: Box::new([None; SLOTS]),
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
            current_epoch: 0,
            last_vote_epoch: 0,
            is_ok: false,
            version: 0,
        }
    }

    pub fn myself(&self) -> &Node {
        self.node(self.myself)
    }

    pub fn my_index(&self) -> NodeIndex {
        self.myself
    }

    /// A node; its index must be of this cluster, and the node not forgotten since.
    pub fn node(&self, index: NodeIndex) -> &Node {
        &self.nodes[index.get()]
    }

    pub fn find(&self, id: &NodeId) -> Option<NodeIndex> {
        self.by_id.get(id).copied()
    }

    /// All nodes, this one and those in handshake included.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        self.nodes.iter().map(|(index, node)| (NodeIndex::new(index), node))
    }

    #[inline]
    pub fn owner(&self, slot: HashSlot) -> Option<NodeIndex> {
        self.owners[slot.index()]
    }

    /// Whether this node is the primary that owns a slot.
    #[inline]
    pub fn owns(&self, slot: HashSlot) -> bool {
        self.owners[slot.index()] == Some(self.myself)
    }

    /// The node to which this one is moving a slot (CLUSTER SETSLOT MIGRATING).
    pub fn migrating_to(&self, slot: HashSlot) -> Option<NodeIndex> {
        self.migrating.get(&slot).copied()
    }

    /// The node from which this one is taking a slot over (CLUSTER SETSLOT IMPORTING).
    pub fn importing_from(&self, slot: HashSlot) -> Option<NodeIndex> {
        self.importing.get(&slot).copied()
    }

    /// Whether any slot is being moved from or to this node by hand.
    pub fn has_open_slots(&self) -> bool {
        !self.migrating.is_empty() || !self.importing.is_empty()
    }

    /// Whether the cluster's state is `ok`.
    pub fn is_ok(&self) -> bool {
        self.is_ok
    }

    pub fn current_epoch(&self) -> u64 {
        self.current_epoch
    }

    pub fn last_vote_epoch(&self) -> u64 {
        self.last_vote_epoch
    }

    pub fn version(&self) -> u64 {
        self.version
    }
}

#[cfg(test)]
impl Cluster {
    pub fn place_for_test(&mut self, index: NodeIndex, ip: &str, tcp_port: u16) {
        let address = &mut self.nodes[index.get()].address;
        (address.ip, address.tcp_port) = (ip.into(), tcp_port);
    }

    pub fn follow_for_test(&mut self, primary: NodeIndex) {
        let myself = self.myself.get();
        let node = &mut self.nodes[myself];
        node.flags = NodeFlags::MYSELF | NodeFlags::REPLICA;
        node.primary = Some(primary);
    }

    pub fn own_for_test(&mut self, slot: HashSlot, owner: Option<NodeIndex>) {
        self.owners[slot.index()] = owner;
    }

    pub fn open_for_test(
        &mut self,
        slot: HashSlot,
        to: Option<NodeIndex>,
        from: Option<NodeIndex>,
    ) {
        self.migrating.extend(to.map(|to| (slot, to)));
        self.importing.extend(from.map(|from| (slot, from)));
    }

    pub fn set_ok_for_test(&mut self, is_ok: bool) {
        self.is_ok = is_ok;
    }
}
