//! A node's part in a cluster: the nodes, the owners of slots, failures and failovers.
//!
//! [`Cluster`] is a state machine without I/O. The server gives it the time, the messages of other
//! nodes, and what happened to connections ([`Event`]); it answers with a list of things to do
//! ([`Action`]), in order. Commands read it by its queries and change it by the functions in
//! `admin.rs`. Clock, random numbers, disk and network stay outside, so that tests can run many
//! nodes in one thread.
//!
//! - `node` is one node as this one knows it, `topology` the table of them and of the slots,
//!   `settings` its part of the configuration; `action` has the machine's events and actions.
//! - `wire` is the bus's format, `gossip` fills and reads headers and gossip about third nodes,
//!   `receive` takes messages in, `links` are the connections, `cron` is periodic work.
//! - `failure` decides which nodes have failed, `slots` which node owns a slot, `election` which
//!   replica takes over. `manual` is failover on demand, and `migration` gives replicas to
//!   primaries that have none.
//! - `slot_job` is a migration of slots all at once, at whose end one node takes them (`takeover`).
//! - `admin` has the changes by commands, `report` their replies, `config_file` the text of
//!   nodes.conf, and `restore` writes and reads a cluster's state in it.
//!
//! Times inside are milliseconds of the boot-time clock, 0 for never.
//!
//! Source: the cluster specification of Redis; the bus of Redis 7.0.15 and Valkey 9.1.2.

pub mod action;
pub mod admin;
pub mod config_file;
mod cron;
mod election;
mod failure;
mod gossip;
mod links;
mod manual;
mod migration;
pub mod node;
mod receive;
pub mod report;
mod restore;
pub mod settings;
pub mod slot_job;
mod slots;
mod takeover;
mod topology;
pub mod wire;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use bitflags::bitflags;
use slab::Slab;

use crate::collections::hash_slot::{HashSlot, SLOTS, SlotSet};
use action::{Action, Event, LinkId, Outside};
use election::{EarlyRequest, Election};
use links::Link;
use manual::Manual;
use node::{Node, NodeFlags, NodeId, NodeIndex};
use settings::Settings;
use takeover::Taken;
use topology::WhyDown;

bitflags! {
    /// Work left for the end of the turn.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Todo: u8 {
        /// nodes.conf is out of date.
        const SAVE = 1;
        /// The majority and the served slots may have changed.
        const UPDATE_STATE = 2;
        /// All nodes are to hear of this one's slots and epoch.
        const BROADCAST = 4;
        /// Clients may be waiting for slots that now have another owner.
        const RECHECK = 8;
    }
}

/// Faults that DEBUG makes a node commit.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// The type of the messages to drop; -1: none, -2: all.
    pub dropped: i64,
    /// A connection on which such a message arrives is closed.
    pub closes_on_drop: bool,
    /// No node is pinged at random.
    pub pings_nobody: bool,
    /// Connections that have ended are not made again.
    pub stays_apart: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Faults { dropped: -1, closes_on_drop: false, pings_nobody: false, stays_apart: false }
    }
}

/// Messages of each type, by the type's number on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    pub sent: [u64; 11],
    pub received: [u64; 11],
    pub bytes_sent: [u64; 11],
    pub bytes_received: [u64; 11],
}

/// A time in which this node's data are of another shard than its own.
#[derive(Clone, Copy, Debug)]
struct Foreign {
    since_ms: i64,
    /// The link to the former primary has ended.
    was_link_down: bool,
}

impl Foreign {
    /// A link that is up after this time is one to the new primary, though nobody saw it begin.
    /// Unit: milliseconds.
    const LEAVING_MS: i64 = 1_000;

    fn is_over(self, now: i64) -> bool {
        self.was_link_down || now - self.since_ms >= Self::LEAVING_MS
    }
}

/// The cluster as this node sees it.
pub struct Cluster {
    nodes: Slab<Node>,
    by_id: HashMap<NodeId, NodeIndex>,
    myself: NodeIndex,
    /// The owner of each slot.
    owners: Box<[Option<NodeIndex>; SLOTS]>,
    /// Slots whose owner has stopped claiming them: any node that claims one gets it.
    unclaimed: SlotSet,
    /// How often this node has got a slot.
    slots_gained: u64,
    /// Slots of this node that are being moved to another one by hand, and that are being moved
    /// here.
    migrating: BTreeMap<HashSlot, NodeIndex>,
    importing: BTreeMap<HashSlot, NodeIndex>,
    /// Slots that these nodes may claim with any epoch: CLUSTER MIGRATESLOTS has granted them.
    granted: Vec<(SlotSet, NodeIndex)>,
    /// Slots that this node has taken because their owner had granted them: its claims may be older
    /// than its grant.
    taken: BTreeMap<HashSlot, Taken>,
    /// A replica that is to take this node's place when no slots are granted and no other replica
    /// is about to, and until when it waits: boot-time clock, milliseconds.
    waiting_heir: Option<(NodeIndex, i64)>,
    current_epoch: u64,
    last_vote_epoch: u64,
    /// Whether the cluster's state is `ok`, as this node sees it.
    is_ok: bool,
    /// The reason of `fail` that was logged last.
    why_down: Option<WhyDown>,
    /// Primaries with slots.
    size: usize,
    /// Grows with each change that a redirection or a reply of CLUSTER NODES, SLOTS or SHARDS
    /// shows.
    version: u64,
    changes: u64,
    settings: Settings,
    /// Nodes that were forgotten, and until when they are not added again.
    blacklist: HashMap<NodeId, i64>,
    /// The least secret that nodes of Redis 8 have sent.
    secret: Option<[u8; wire::SECRET]>,
    links: HashMap<LinkId, Link>,
    opened: u64,
    counts: MessageCounts,
    /// Faults that tests make this node commit.
    faults: Faults,
    election: Election,
    early: Option<EarlyRequest>,
    manual: Option<Manual>,
    todo: Todo,
    saves: u64,
    ticks: u64,
    /// When [`Self::tick`] has something to do if nothing but the time changes; 0: at once.
    due_ms: i64,
    /// When a node chosen at random is pinged next.
    random_ping_ms: i64,
    /// When the state was first computed, and when this node was last in a minority.
    began_ms: Option<i64>,
    minority_ms: i64,
    /// The last epoch that this node took without asking anybody.
    unasked_epoch: Option<u64>,
    /// The data are of another shard: this node has followed its primary since then, but was not
    /// synchronised yet.
    foreign: Option<Foreign>,
    /// The state of the world in this call.
    outside: Outside,
    random: fastrand::Rng,
    out: Vec<Action>,
}

impl Cluster {
    /// A cluster of this node alone, without slots. `seed`: for the random choice of nodes and
    /// delays.
    pub fn new(id: NodeId, settings: Settings, seed: u64) -> Cluster {
        let mut nodes = Slab::new();
        let mut node = Node::new(id);
        node.flags = NodeFlags::MYSELF | NodeFlags::PRIMARY;
        let myself = NodeIndex::new(nodes.insert(node));
        let mut cluster = Cluster {
            nodes,
            by_id: HashMap::from([(id, myself)]),
            myself,
            owners: Box::new([None; SLOTS]),
            unclaimed: SlotSet::default(),
            slots_gained: 0,
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
            granted: Vec::new(),
            taken: BTreeMap::new(),
            waiting_heir: None,
            current_epoch: 0,
            last_vote_epoch: 0,
            is_ok: false,
            why_down: None,
            size: 0,
            version: 0,
            changes: 0,
            settings: Settings::default(),
            blacklist: HashMap::new(),
            secret: None,
            links: HashMap::new(),
            opened: 0,
            counts: MessageCounts::default(),
            faults: Faults::default(),
            election: Election::default(),
            early: None,
            manual: None,
            todo: Todo::SAVE | Todo::UPDATE_STATE,
            saves: 0,
            ticks: 0,
            due_ms: 0,
            random_ping_ms: 0,
            began_ms: None,
            minority_ms: 0,
            unasked_epoch: None,
            foreign: None,
            outside: Outside::default(),
            random: fastrand::Rng::with_seed(seed),
            out: Vec::new(),
        };
        cluster.set_settings(settings);
        cluster
    }

    /// Takes in an event.
    pub fn handle(&mut self, outside: &Outside, event: Event<'_>, actions: &mut Vec<Action>) {
        let before = (self.due_ms, self.version, self.links.len());
        self.enter(outside);
        match event {
            Event::Accepted { link, peer, local } => self.accepted(link, peer, local),
            Event::Connected { link, local } => self.connected(link, local),
            Event::Closed { link } => self.closed(link),
            Event::Received { link, message } => {
                self.receive(link, message);
                let (due_ms, version, links) = before;
                if (version, links) == (self.version, self.links.len()) {
                    self.due_ms = self.due_after_message(link, due_ms);
                }
            }
        }
        actions.append(&mut self.out);
    }

    /// Periodic work, to be called every 100 ms. A call before [`Self::due_ms`] does nothing.
    pub fn tick(&mut self, outside: &Outside, actions: &mut Vec<Action>) {
        self.enter(outside);
        self.run_cron();
        actions.append(&mut self.out);
    }

    /// A number that grows when this node gets a slot.
    pub fn slots_gained(&self) -> u64 {
        self.slots_gained
    }

    /// Whether slots are being moved here by hand: clients may be sent on to this node for them.
    pub fn is_importing(&self) -> bool {
        !self.importing.is_empty()
    }

    /// When the next call of [`Self::tick`] has something to do, unless something else happens
    /// before. Boot-time clock, milliseconds.
    pub fn due_ms(&self) -> i64 {
        if self.todo.is_empty() && self.manual.is_none() { self.due_ms } else { 0 }
    }

    /// Does the work that a turn has left, to be called at its end.
    pub fn before_sleep(&mut self, outside: &Outside, actions: &mut Vec<Action>) {
        let is_idle = self.todo.is_empty() && self.manual.is_none() && self.waiting_heir.is_none();
        if is_idle && !self.election.is_under_way() {
            return;
        }
        self.enter(outside);
        self.serve_waiting_heir();
        self.go_on_with_manual_failover();
        self.go_on_with_election();
        self.finish_todo();
        actions.append(&mut self.out);
    }

    /// Whether the next turn must not wait: a manual failover continues in it.
    pub fn wants_turn(&self) -> bool {
        self.manual.as_ref().is_some_and(Manual::wants_turn)
    }

    /// Must be called at the start of every operation that may change the machine.
    fn enter(&mut self, outside: &Outside) {
        self.outside = *outside;
        self.look_at_data();
        self.changes += 1;
        self.due_ms = 0;
    }

    /// A replica that has changed shards reports offset 0 until it is synchronised: its old data
    /// must not win an election.
    fn look_at_data(&mut self) {
        let now = self.now();
        let Some(foreign) = &mut self.foreign else { return };
        foreign.was_link_down |= !self.outside.is_link_up;
        // The server may not have left the former primary yet.
        let has_come = self.outside.is_link_up && foreign.is_over(now);
        if has_come || self.myself().is_primary() {
            self.foreign = None;
        } else {
            (self.outside.offset, self.outside.data_age_ms) = (0, i64::MAX);
        }
    }

    /// Grows whenever something that replies show may have changed, times of messages included. A
    /// reply stays valid while this number stays the same.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn finish_todo(&mut self) {
        if self.todo.contains(Todo::UPDATE_STATE) {
            self.todo -= Todo::UPDATE_STATE;
            self.update_state();
        }
        if self.todo.contains(Todo::SAVE) {
            self.save(false);
        }
        if self.todo.contains(Todo::BROADCAST) {
            self.todo -= Todo::BROADCAST;
            self.broadcast_pong();
        }
        if self.todo.contains(Todo::RECHECK) {
            self.todo -= Todo::RECHECK;
            self.out.push(Action::Recheck);
        }
    }

    /// Saves nodes.conf now. With `is_awaited` messages after it wait until it is on disk.
    fn save(&mut self, is_awaited: bool) {
        self.todo -= Todo::SAVE;
        self.saves += 1;
        let text = self.file_text().into();
        self.out.push(Action::Save { number: self.saves, text, is_awaited });
    }

    fn log(&mut self, text: String) {
        self.out.push(Action::Log { is_warning: false, text });
    }

    fn warn(&mut self, text: String) {
        self.out.push(Action::Log { is_warning: true, text });
    }

    #[inline]
    fn now(&self) -> i64 {
        self.outside.boot_ms
    }

    /// The time in Unix milliseconds of a boot-time clock's time, 0 for never.
    fn shown(&self, boot_ms: i64) -> i64 {
        if boot_ms == 0 { 0 } else { boot_ms + self.outside.unix_ms - self.outside.boot_ms }
    }

    /// The boot-time clock's time of a time in Unix milliseconds.
    fn inside(&self, unix_ms: i64) -> i64 {
        if unix_ms == 0 { 0 } else { unix_ms - self.outside.unix_ms + self.outside.boot_ms }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn counts(&self) -> &MessageCounts {
        &self.counts
    }

    pub fn reset_counts(&mut self) {
        self.counts = MessageCounts::default();
    }

    pub fn myself(&self) -> &Node {
        self.node(self.myself)
    }

    fn myself_mut(&mut self) -> &mut Node {
        self.node_mut(self.myself)
    }

    pub fn my_index(&self) -> NodeIndex {
        self.myself
    }

    /// A node. The index must be of this cluster, and its node must not have been forgotten since.
    pub fn node(&self, index: NodeIndex) -> &Node {
        &self.nodes[index.get()]
    }

    fn node_mut(&mut self, index: NodeIndex) -> &mut Node {
        &mut self.nodes[index.get()]
    }

    pub fn find(&self, id: &NodeId) -> Option<NodeIndex> {
        self.by_id.get(id).copied()
    }

    /// All nodes, this one and those in handshake included.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        self.nodes.iter().map(|(index, node)| (NodeIndex::new(index), node))
    }

    /// The primary of this node's shard: itself, or the one that it follows.
    fn my_primary(&self) -> Option<NodeIndex> {
        if self.myself().is_primary() { Some(self.myself) } else { self.myself().primary }
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

    pub fn version(&self) -> u64 {
        self.version
    }

    /// Primaries that own slots: those that vote.
    pub fn size(&self) -> usize {
        self.size
    }
}

#[cfg(test)]
impl Cluster {
    pub fn place_for_test(&mut self, index: NodeIndex, ip: &str, tcp_port: u16) {
        let address = &mut self.nodes[index.get()].address;
        (address.ip, address.tcp_port) = (ip.into(), tcp_port);
    }

    pub fn add_for_test(&mut self, id: NodeId, flags: NodeFlags) -> NodeIndex {
        let mut node = Node::new(id);
        node.flags = flags;
        self.add_node(node).expect("a new name")
    }

    pub fn follow_for_test(&mut self, primary: NodeIndex) {
        let node = self.myself_mut();
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
