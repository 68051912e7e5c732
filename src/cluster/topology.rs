//! The table of nodes and slots: all changes, which keep its indexes consistent, and the cluster's
//! state, which follows from the table.

use super::node::{Node, NodeFlags, NodeId, NodeIndex};
use super::{Cluster, Foreign, Todo};
use crate::cluster::action::Action;
use crate::collections::hash_slot::{HashSlot, SlotSet};

/// The most nodes in the table. A cluster of Redis has at most 1,000; more are an attack or an
/// accident.
const NODES_MAX: usize = 16_384;
/// How long a primary refuses queries after its start: other nodes may have given its slots away.
/// Unit: milliseconds.
const WRITABLE_DELAY_MS: i64 = 2_000;

/// Why the cluster's state is `fail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhyDown {
    /// A slot has no owner, or one that has failed.
    NotServed,
    /// Most primaries cannot be reached.
    Minority,
}

impl Cluster {
    /// Adds a node, unless its name is known or the table is full.
    pub(super) fn add_node(&mut self, mut node: Node) -> Option<NodeIndex> {
        if self.nodes.len() >= NODES_MAX || self.by_id.contains_key(&node.id) {
            return None;
        }
        node.created_ms = self.now();
        let id = node.id;
        let index = NodeIndex::new(self.nodes.insert(node));
        self.by_id.insert(id, index);
        self.changed();
        Some(index)
    }

    /// Forgets a node other than this one, with its slots and connections.
    pub(super) fn remove_node(&mut self, index: NodeIndex) {
        debug_assert_ne!(index, self.myself);
        let slots = self.node(index).slots.clone();
        slots.iter().for_each(|slot| self.set_owner(slot, None));
        self.migrating.retain(|_, to| *to != index);
        self.importing.retain(|_, from| *from != index);
        self.forget_taken_from(index);
        self.leave_primary(index);
        for (_, node) in &mut self.nodes {
            node.reports.retain(|report| report.by != index);
            if node.primary == Some(index) {
                node.primary = None;
            }
        }
        self.election.votes.retain(|by| *by != index);
        for link in [self.node(index).outbound, self.node(index).inbound].into_iter().flatten() {
            self.close(link);
        }
        let node = self.nodes.remove(index.get());
        self.by_id.remove(&node.id);
        self.forget_heir(index);
        self.changed();
    }

    pub(super) fn rename_node(&mut self, index: NodeIndex, id: NodeId) {
        let node = self.node_mut(index);
        let before = std::mem::replace(&mut node.id, id);
        if node.shard_id == before {
            node.shard_id = id;
        }
        self.by_id.remove(&before);
        self.by_id.insert(id, index);
        self.changed();
    }

    /// Gives a slot to a node, or to none.
    pub(super) fn set_owner(&mut self, slot: HashSlot, owner: Option<NodeIndex>) {
        let before = std::mem::replace(&mut self.owners[slot.index()], owner);
        self.unclaimed.remove(slot);
        if before == owner {
            return;
        }
        if let Some(before) = before {
            self.node_mut(before).slots.remove(slot);
            self.taken.remove(&slot);
            if before == self.myself && !self.keeps_open_slots(owner) {
                self.migrating.remove(&slot);
            }
        }
        if let Some(owner) = owner {
            self.slots_gained += u64::from(owner == self.myself);
            let is_first = self.node(owner).slots.is_empty();
            self.node_mut(owner).slots.insert(slot);
            if is_first && self.nodes.iter().any(|(_, node)| !node.replicas.is_empty()) {
                self.node_mut(owner).flags |= NodeFlags::MIGRATE_TO;
            }
        }
        self.changed();
    }

    pub(super) fn clear_slots(&mut self, slots: &SlotSet) {
        slots.iter().for_each(|slot| self.set_owner(slot, None));
    }

    /// Takes a replica from its primary's list.
    fn leave_primary(&mut self, index: NodeIndex) {
        let Some(primary) = self.node_mut(index).primary.take() else { return };
        let primary = self.node_mut(primary);
        primary.replicas.retain(|replica| *replica != index);
        if primary.replicas.is_empty() {
            primary.flags -= NodeFlags::MIGRATE_TO;
        }
    }

    pub(super) fn set_as_primary(&mut self, index: NodeIndex) {
        if self.node(index).is_primary() {
            return;
        }
        self.leave_primary(index);
        let is_myself = index == self.myself;
        let node = self.node_mut(index);
        node.flags -= NodeFlags::REPLICA | NodeFlags::PRIMARY_FAILED;
        node.flags |= NodeFlags::PRIMARY;
        if !is_myself {
            node.flags |= NodeFlags::MIGRATE_TO;
        }
        self.changed();
    }

    /// Makes a node other than this one the replica of a primary; None: the primary is not known.
    pub(super) fn set_as_replica(&mut self, index: NodeIndex, primary: Option<NodeIndex>) {
        debug_assert_ne!(Some(index), primary);
        let node = self.node_mut(index);
        if !node.is_replica() {
            node.flags -= NodeFlags::PRIMARY | NodeFlags::MIGRATE_TO;
            node.flags |= NodeFlags::REPLICA;
            let slots = node.slots.clone();
            self.clear_slots(&slots);
        } else if node.primary == primary {
            return;
        }
        self.leave_primary(index);
        let Some(primary) = primary else { return self.changed() };
        if primary != self.myself {
            self.end_manual_failover_with(index);
        }
        let shard_id = self.node(primary).shard_id;
        let node = self.node_mut(index);
        node.primary = Some(primary);
        node.shard_id = shard_id;
        // All nodes show a primary's replicas to clients in the same order: by name.
        let id = self.node(index).id;
        let place = self.node(primary).replicas.partition_point(|other| self.node(*other).id < id);
        let primary = self.node_mut(primary);
        primary.replicas.insert(place, index);
        primary.flags |= NodeFlags::MIGRATE_TO;
        self.changed();
    }

    /// Whether another node is of this one's shard, and continues this one's slot migrations, as in
    /// Valkey.
    pub(super) fn keeps_open_slots(&self, other: Option<NodeIndex>) -> bool {
        let is_of_shard = |other| self.node(other).shard_id == self.myself().shard_id;
        self.settings.as_valkey && other.is_some_and(is_of_shard)
    }

    /// Makes this node a replica of another one.
    pub(super) fn follow(&mut self, primary: NodeIndex) {
        debug_assert_ne!(primary, self.myself);
        if !self.keeps_open_slots(Some(primary)) {
            self.migrating.clear();
            self.importing.clear();
        }
        let is_of_other_shard = self.node(primary).shard_id != self.myself().shard_id;
        self.set_as_replica(self.myself, Some(primary));
        if is_of_other_shard {
            let since_ms = self.now();
            self.foreign = Some(Foreign { since_ms, was_link_down: false });
            self.look_at_data();
        }
        self.follow_address();
        // Otherwise nodes would take this one for a primary until their next ping.
        self.todo |= Todo::BROADCAST;
        self.end_manual_failover();
        self.election = super::Election::default();
    }

    /// Passes the primary's address to the server, if this node is a replica and knows the address.
    pub(super) fn follow_address(&mut self) {
        let Some(primary) = self.myself().primary else { return };
        let address = &self.node(primary).address;
        let is_tls = self.settings.tls_replication && address.tls_port != 0;
        let port = if is_tls { address.tls_port } else { address.tcp_port };
        if !address.ip.is_empty() {
            let ip = address.ip.clone();
            self.out.push(Action::Follow { ip, port });
        }
    }

    /// Notes a change of something that is saved and shown.
    pub(super) fn changed(&mut self) {
        self.version += 1;
        self.todo |= Todo::SAVE | Todo::UPDATE_STATE | Todo::RECHECK;
    }

    /// Recomputes whether the cluster serves queries, and the number of voting nodes.
    pub(super) fn update_state(&mut self) {
        let now = self.now();
        let began_ms = *self.began_ms.get_or_insert(now);
        self.count_voting();
        let voting = self.nodes.iter().filter(|(_, node)| node.is_voting());
        let reachable = voting.filter(|(_, node)| !node.is_failing()).count();
        let is_primary = self.myself().is_primary();
        if is_primary && !self.is_ok && now - began_ms < WRITABLE_DELAY_MS {
            self.todo |= Todo::UPDATE_STATE;
            return;
        }
        let is_served = |owner: &Option<NodeIndex>| {
            owner.is_some_and(|owner| !self.node(owner).flags.contains(NodeFlags::FAIL))
        };
        let is_whole = !self.settings.requires_full_coverage || self.owners.iter().all(is_served);
        let mut why = (!is_whole).then_some(WhyDown::NotServed);
        if reachable < self.majority() {
            why = Some(WhyDown::Minority);
            self.minority_ms = now;
        }
        let is_ok = why.is_none();
        if is_ok == self.is_ok {
            return self.tell_why_down(why);
        }
        if is_ok && is_primary && self.was_in_minority() {
            self.todo |= Todo::UPDATE_STATE;
            return;
        }
        if is_ok && is_primary {
            self.part_known_epochs();
        }
        self.is_ok = is_ok;
        self.version += 1;
        self.todo |= Todo::RECHECK;
        self.warn(format!("Cluster state changed: {}", if is_ok { "ok" } else { "fail" }));
        self.tell_why_down(why);
    }

    /// Whether this node is in a minority, or was a short time ago.
    fn was_in_minority(&self) -> bool {
        let delay_ms = self.settings.node_timeout_ms.clamp(500, 5_000);
        self.minority_ms != 0 && self.now() - self.minority_ms < delay_ms
    }

    /// Whether others may have taken this node's slots without its knowledge: it has just started,
    /// or comes back from a minority.
    pub(super) fn may_be_outdated(&self) -> bool {
        let is_new = |began_ms| self.now() - began_ms < WRITABLE_DELAY_MS;
        self.began_ms.is_none_or(is_new) || self.was_in_minority()
    }

    /// Logs the reason for the state `fail`, if the reason is new.
    fn tell_why_down(&mut self, why: Option<WhyDown>) {
        if std::mem::replace(&mut self.why_down, why) == why {
            return;
        }
        let text = match why {
            None => return,
            Some(WhyDown::NotServed) => {
                "At least one hash slot is not served by any available node. \
                 Please check the 'cluster-require-full-coverage' configuration."
            }
            Some(WhyDown::Minority) => "I am part of a minority partition.",
        };
        self.warn(format!("Cluster is currently down: {text}"));
    }

    pub(super) fn count_voting(&mut self) {
        self.size = self.nodes.iter().filter(|(_, node)| node.is_voting()).count();
    }

    /// The number of votes that an election or a failure needs.
    pub(super) fn majority(&self) -> usize {
        self.size / 2 + 1
    }

    /// Whether `count` is a majority of the voting nodes. The nodes are counted anew, as the
    /// message with the last vote may also have announced another voting node.
    pub(super) fn is_majority(&mut self, count: usize) -> bool {
        if count < self.majority() {
            return false;
        }
        self.count_voting();
        count >= self.majority()
    }
}
