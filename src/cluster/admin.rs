//! Changes by an administrator's commands: slots, epochs, members, this node's role.
//!
//! The command has checked that the change is allowed.

use std::net::IpAddr;

use super::action::{Action, Outside};
use super::node::{Node, NodeFlags, NodeId, NodeIndex};
use super::{Cluster, Faults, Todo};
use crate::collections::hash_slot::{HashSlot, SlotSet};

/// The most forgotten nodes that are remembered.
const BLACKLIST_MAX: usize = 1_024;

/// How a replica takes the place of its primary on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failover {
    /// The primary stops writing until the replica has everything.
    Agreed,
    /// Without the primary.
    Forced,
    /// Without a vote.
    Takeover,
}

impl Cluster {
    /// Assigns slots, which have no owner, to this node.
    pub fn add_slots(&mut self, slots: &SlotSet, outside: &Outside, actions: &mut Vec<Action>) {
        self.enter(outside);
        for slot in slots.iter() {
            self.importing.remove(&slot);
            self.set_owner(slot, Some(self.myself));
        }
        // On disk before others hear of it.
        self.save(true);
        self.carry_out(actions);
    }

    /// Takes slots from their owners, as this node sees it.
    pub fn delete_slots(&mut self, slots: &SlotSet, outside: &Outside, actions: &mut Vec<Action>) {
        self.enter(outside);
        self.clear_slots(slots);
        self.carry_out(actions);
    }

    /// CLUSTER SETSLOT MIGRATING.
    pub fn set_migrating(
        &mut self,
        slot: HashSlot,
        target: NodeIndex,
        outside: &Outside,
        actions: &mut Vec<Action>,
    ) {
        self.enter(outside);
        let id = self.node(target).id;
        self.log(format!("Migrating slot {} to node {id}", slot.number()));
        self.migrating.insert(slot, target);
        // Its next claim, if it had the slot before, is not an old one.
        self.taken.remove(&slot);
        self.changed();
        self.carry_out(actions);
    }

    /// CLUSTER SETSLOT IMPORTING.
    pub fn set_importing(
        &mut self,
        slot: HashSlot,
        source: NodeIndex,
        outside: &Outside,
        actions: &mut Vec<Action>,
    ) {
        self.enter(outside);
        let id = self.node(source).id;
        self.log(format!("Importing slot {} from node {id}", slot.number()));
        self.importing.insert(slot, source);
        self.changed();
        self.carry_out(actions);
    }

    /// CLUSTER SETSLOT STABLE.
    pub fn set_stable(&mut self, slot: HashSlot, outside: &Outside, actions: &mut Vec<Action>) {
        self.enter(outside);
        self.log(format!("Marking slot {} stable", slot.number()));
        self.migrating.remove(&slot);
        self.importing.remove(&slot);
        self.changed();
        self.carry_out(actions);
    }

    /// CLUSTER SETSLOT NODE, or its repetition at a replica. `has_keys`: whether this node has keys
    /// of the slot.
    pub fn assign_slot(
        &mut self,
        slot: HashSlot,
        owner: NodeIndex,
        has_keys: bool,
        outside: &Outside,
        actions: &mut Vec<Action>,
    ) {
        self.enter(outside);
        let (number, id, shard) = (slot.number(), self.node(owner).id, self.node(owner).shard_id);
        self.log(format!("Assigning slot {number} to node {id} in shard {shard}"));
        if !has_keys {
            self.migrating.remove(&slot);
        }
        let my_primary = self.my_primary();
        let was_mine = my_primary.is_some() && self.owner(slot) == my_primary;
        self.set_owner(slot, Some(owner));
        let is_empty =
            was_mine && my_primary.is_some_and(|primary| self.node(primary).slots.is_empty());
        if is_empty && owner != self.myself && self.settings.allows_replica_migration {
            self.warn(format!(
                "Lost my last slot during slot migration. Reconfiguring myself as a replica of {id} in shard {shard}"
            ));
            self.follow(owner);
        } else if is_empty && self.myself().is_primary() {
            self.tell_empty(owner);
        }
        if Some(owner) == my_primary
            && self.importing.remove(&slot).is_some()
            && owner == self.myself
        {
            if self.raise_epoch() {
                self.log(format!("ConfigEpoch updated after importing slot {number}"));
            }
            // Other nodes hear of it at once, so that fewer clients are redirected back and forth.
            self.todo |= Todo::BROADCAST;
        }
        self.changed();
        self.carry_out(actions);
    }

    /// Takes over the list of slots that the primary is moving, which came with its data.
    pub fn take_open_slots(&mut self, text: &[u8], outside: &Outside) {
        self.enter(outside);
        let Ok(text) = std::str::from_utf8(text) else { return };
        if text.is_empty() && !self.has_open_slots() {
            return;
        }
        self.migrating.clear();
        self.importing.clear();
        for word in text.split(',') {
            let Some(at) = word.find(['<', '>']) else { continue };
            let number = word[..at].parse().ok().and_then(HashSlot::new);
            let node = NodeId::from_bytes(&word.as_bytes()[at + 1..]).and_then(|id| self.find(&id));
            // The primary may have named a node that has been replaced since.
            let node = node.map(|node| self.node(node).primary.unwrap_or(node));
            let (Some(slot), Some(node)) = (number, node) else { continue };
            match &word[at..=at] {
                "<" => self.importing.insert(slot, node),
                _ => self.migrating.insert(slot, node),
            };
        }
        self.changed();
    }

    /// Raises this node's epoch above all others, unless it is the greatest. Returns whether it was
    /// raised.
    pub fn bump_epoch(&mut self, outside: &Outside, actions: &mut Vec<Action>) -> bool {
        self.enter(outside);
        let is_raised = self.raise_epoch();
        self.carry_out(actions);
        is_raised
    }

    /// Takes a new epoch without anybody's consent, unless this node's is the greatest already.
    pub(super) fn raise_epoch(&mut self) -> bool {
        let greatest = self.nodes.iter().map(|(_, node)| node.config_epoch).max().unwrap_or(0);
        let greatest = greatest.max(self.current_epoch);
        let own = self.myself().config_epoch;
        if own != 0 && own == greatest {
            // Slots taken with this epoch must be on disk before others hear of them: otherwise
            // nobody would own them after a crash.
            self.save(true);
            return false;
        }
        self.current_epoch = greatest.saturating_add(1);
        let epoch = self.current_epoch;
        self.myself_mut().config_epoch = epoch;
        self.unasked_epoch = Some(epoch);
        self.version += 1;
        self.save(true);
        self.warn(format!("New configEpoch set to {epoch}"));
        true
    }

    /// CLUSTER SET-CONFIG-EPOCH.
    pub fn set_epoch(&mut self, epoch: u64, outside: &Outside, actions: &mut Vec<Action>) {
        self.enter(outside);
        self.myself_mut().config_epoch = epoch;
        self.current_epoch = self.current_epoch.max(epoch);
        self.warn(format!("configEpoch set to {epoch} via CLUSTER SET-CONFIG-EPOCH"));
        self.changed();
        self.carry_out(actions);
    }

    /// Notes a node that is forgotten, unless `BLACKLIST_MAX` are noted: only an attacker makes a
    /// node forget thousands.
    pub(super) fn ban(&mut self, id: NodeId, until_ms: i64) {
        if self.blacklist.len() < BLACKLIST_MAX || self.blacklist.contains_key(&id) {
            self.blacklist.insert(id, until_ms);
        }
    }

    /// Whether a node was forgotten a short time ago.
    pub fn is_blacklisted(&self, id: &NodeId) -> bool {
        self.blacklist.get(id).is_some_and(|until| *until > self.now())
    }

    /// Begins a handshake with the node at an address, unless one is under way.
    pub fn meet(
        &mut self,
        ip: IpAddr,
        port: u16,
        bus_port: u16,
        outside: &Outside,
        actions: &mut Vec<Action>,
    ) {
        self.enter(outside);
        let ip = ip.to_canonical().to_string();
        let is_coming = |node: &Node| {
            node.flags.contains(NodeFlags::HANDSHAKE)
                && node.address.ip == ip
                && node.address.bus_port == bus_port
        };
        if !self.nodes.iter().any(|(_, node)| is_coming(node)) {
            let mut node = Node::new(self.random_name());
            node.flags = NodeFlags::HANDSHAKE | NodeFlags::MEET;
            node.address = self.address(ip, port, 0, bus_port);
            self.add_node(node);
        }
        self.carry_out(actions);
    }

    /// Forgets a node, which is not added again for a while.
    pub fn forget(&mut self, index: NodeIndex, outside: &Outside, actions: &mut Vec<Action>) {
        self.enter(outside);
        let until_ms = self.now() + self.settings.blacklist_ms;
        self.ban(self.node(index).id, until_ms);
        self.remove_node(index);
        // Nodes that understand it forget the node too.
        self.todo |= Todo::BROADCAST;
        self.carry_out(actions);
    }

    /// CLUSTER REPLICATE.
    pub fn replicate(&mut self, index: NodeIndex, outside: &Outside, actions: &mut Vec<Action>) {
        self.enter(outside);
        self.follow(index);
        self.carry_out(actions);
    }

    /// CLUSTER REPLICATE NO ONE, at a replica: it becomes an empty primary, and a shard of its own.
    pub fn follow_nobody(&mut self, outside: &Outside, actions: &mut Vec<Action>) {
        self.enter(outside);
        self.warn("Stop replication and turning myself into empty primary.".into());
        self.become_empty_primary();
        self.forget_plans();
        let shard_id = self.myself().shard_id;
        self.log(format!("Moving myself to a new shard {shard_id}."));
        self.changed();
        self.todo |= Todo::BROADCAST;
        self.carry_out(actions);
    }

    /// Makes this replica an empty primary of a shard of its own.
    fn become_empty_primary(&mut self) {
        self.set_as_primary(self.myself);
        self.out.push(Action::Promote);
        self.out.push(Action::DropAllKeys);
        let shard_id = self.random_name();
        self.myself_mut().shard_id = shard_id;
    }

    /// Gives up all moves of single slots, and any attempt to become a primary.
    fn forget_plans(&mut self) {
        self.migrating.clear();
        self.importing.clear();
        self.end_manual_failover();
        self.election = Default::default();
    }

    /// CLUSTER FAILOVER, at a replica that knows its primary. `by_primary`: the primary itself has
    /// asked for the failover.
    pub fn fail_over(
        &mut self,
        kind: Failover,
        by_primary: bool,
        outside: &Outside,
        actions: &mut Vec<Action>,
    ) {
        self.enter(outside);
        let Some(primary) = self.myself().primary else { return };
        self.end_manual_failover();
        match kind {
            Failover::Agreed => self.begin_manual_failover(primary, false),
            Failover::Forced => {
                let by = if by_primary { "primary" } else { "user" };
                self.warn(format!("Forced failover {by} request accepted."));
                self.begin_manual_failover(primary, true);
            }
            Failover::Takeover => {
                self.warn("Taking over the master (user request).".into());
                self.raise_epoch();
                self.take_over(primary);
            }
        }
        self.carry_out(actions);
    }

    /// Forgets all nodes and slots. `id`: this node's new name, with which its epochs begin anew.
    pub fn reset(&mut self, id: Option<NodeId>, outside: &Outside, actions: &mut Vec<Action>) {
        self.enter(outside);
        if self.myself().is_replica() {
            self.become_empty_primary();
        }
        self.forget_plans();
        HashSlot::all().for_each(|slot| self.set_owner(slot, None));
        let others: Vec<NodeIndex> =
            self.nodes().map(|(index, _)| index).filter(|index| *index != self.myself).collect();
        others.into_iter().for_each(|index| self.remove_node(index));
        self.blacklist.clear();
        if let Some(id) = id {
            self.rename_node(self.myself, id);
            self.myself_mut().shard_id = id;
            self.current_epoch = 0;
            self.last_vote_epoch = 0;
            self.myself_mut().config_epoch = 0;
            self.unasked_epoch = None;
            self.log(format!("Node hard reset, now I'm {id}"));
        }
        self.changed();
        self.carry_out(actions);
    }

    /// Takes an unowned slot whose keys this node has loaded. False: another node owns the slot,
    /// which is then marked as imported from there.
    pub fn claim_loaded(&mut self, slot: HashSlot) -> bool {
        self.changes += 1;
        match self.owner(slot) {
            None => {
                self.set_owner(slot, Some(self.myself));
                true
            }
            Some(owner) => {
                self.importing.insert(slot, owner);
                self.changed();
                false
            }
        }
    }

    /// CLUSTER COUNT-FAILURE-REPORTS.
    pub fn failure_reports(&mut self, index: NodeIndex, outside: &Outside) -> usize {
        self.enter(outside);
        self.count_reports(index)
    }

    /// CLUSTER SAVECONFIG.
    pub fn save_soon(&mut self) {
        self.todo |= Todo::SAVE;
    }

    /// The secret that nodes of Redis 8 share, as far as one of them is known.
    pub fn secret(&self) -> Option<&[u8]> {
        self.secret.as_ref().map(|secret| secret.as_slice())
    }

    /// The faults that DEBUG makes this node commit.
    pub fn faults(&mut self) -> &mut Faults {
        &mut self.faults
    }

    /// DEBUG CLUSTERLINK KILL: closes the connections to and from a node.
    pub fn kill_links(
        &mut self,
        index: NodeIndex,
        to: bool,
        from: bool,
        outside: &Outside,
        actions: &mut Vec<Action>,
    ) {
        self.enter(outside);
        let node = self.node(index);
        let links = [node.outbound.filter(|_| to), node.inbound.filter(|_| from)];
        links.into_iter().flatten().for_each(|link| self.close(link));
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: &mut Vec<Action>) {
        actions.append(&mut self.out);
    }
}
