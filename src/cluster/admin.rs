//! What an administrator's commands change: slots, epochs, members, this node's role.
//!
//! Whether a change is allowed was checked by the command.

use std::net::IpAddr;

use crate::cluster::Cluster;
use crate::cluster::action::{Action, Outside};
use crate::cluster::node::{NodeFlags, NodeId, NodeIndex};
use crate::collections::hash_slot::{HashSlot, SlotSet};

/// How a replica takes the place of its primary on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failover {
    /// The primary stops writing until the replica has all.
    Agreed,
    /// Without the primary.
    Forced,
    /// Without a vote.
    Takeover,
}

impl Cluster {
    /// Assigns slots, which have no owner, to this node.
    pub fn add_slots(&mut self, slots: &SlotSet, _: &Outside, actions: &mut Vec<Action>) {
        for slot in slots.iter() {
            self.importing.remove(&slot);
            self.set_owner(slot, Some(self.myself));
        }
        self.changed(actions);
    }

    /// Takes slots from their owners, as this node sees it.
    pub fn delete_slots(&mut self, slots: &SlotSet, _: &Outside, actions: &mut Vec<Action>) {
        slots.iter().for_each(|slot| self.set_owner(slot, None));
        self.changed(actions);
    }

    pub fn set_migrating(
        &mut self,
        slot: HashSlot,
        target: NodeIndex,
        _: &Outside,
        actions: &mut Vec<Action>,
    ) {
        self.migrating.insert(slot, target);
        self.changed(actions);
    }

    pub fn set_importing(
        &mut self,
        slot: HashSlot,
        source: NodeIndex,
        _: &Outside,
        actions: &mut Vec<Action>,
    ) {
        self.importing.insert(slot, source);
        self.changed(actions);
    }

    pub fn set_stable(&mut self, slot: HashSlot, _: &Outside, actions: &mut Vec<Action>) {
        self.migrating.remove(&slot);
        self.importing.remove(&slot);
        self.changed(actions);
    }

    /// CLUSTER SETSLOT NODE. `has_keys`: whether this node has keys of the slot.
    pub fn assign_slot(
        &mut self,
        slot: HashSlot,
        owner: NodeIndex,
        has_keys: bool,
        outside: &Outside,
        actions: &mut Vec<Action>,
    ) {
        if !has_keys {
            self.migrating.remove(&slot);
        }
        self.set_owner(slot, Some(owner));
        if owner == self.myself && self.importing.remove(&slot).is_some() {
            self.bump_epoch(outside, actions);
        }
        self.changed(actions);
    }

    /// Raises this node's epoch above all others, unless it is the greatest. True: it was raised.
    pub fn bump_epoch(&mut self, _: &Outside, actions: &mut Vec<Action>) -> bool {
        let greatest = self.nodes.iter().map(|(_, node)| node.config_epoch).max().unwrap_or(0);
        let own = self.myself().config_epoch;
        if own != 0 && own == greatest {
            return false;
        }
        self.current_epoch = self.current_epoch.max(greatest) + 1;
        let index = self.myself.get();
        self.nodes[index].config_epoch = self.current_epoch;
        self.changed(actions);
        true
    }

    pub fn set_epoch(&mut self, epoch: u64, _: &Outside, actions: &mut Vec<Action>) {
        let index = self.myself.get();
        self.nodes[index].config_epoch = epoch;
        self.current_epoch = self.current_epoch.max(epoch);
        self.changed(actions);
    }

    pub fn is_blacklisted(&self, _: &NodeId) -> bool {
        false
    }

    pub fn meet(&mut self, _: IpAddr, _: u16, _: u16, _: &Outside, _: &mut Vec<Action>) {}

    pub fn forget(&mut self, index: NodeIndex, _: &Outside, actions: &mut Vec<Action>) {
        for slot in self.node(index).slots.clone().iter() {
            self.set_owner(slot, None);
        }
        let node = self.nodes.remove(index.get());
        self.by_id.remove(&node.id);
        self.changed(actions);
    }

    pub fn replicate(&mut self, index: NodeIndex, _: &Outside, actions: &mut Vec<Action>) {
        let myself = self.myself.get();
        let node = &mut self.nodes[myself];
        node.flags = (node.flags - NodeFlags::PRIMARY) | NodeFlags::REPLICA;
        node.primary = Some(index);
        self.changed(actions);
    }

    pub fn fail_over(&mut self, _: Failover, _: &Outside, _: &mut Vec<Action>) {}

    /// Forgets all. `id`: this node's new name.
    pub fn reset(&mut self, id: Option<NodeId>, outside: &Outside, actions: &mut Vec<Action>) {
        let own = self.myself().slots.clone();
        self.delete_slots(&own, outside, actions);
        if let Some(id) = id {
            let index = self.myself.get();
            let old = std::mem::replace(&mut self.nodes[index].id, id);
            self.by_id.remove(&old);
            self.by_id.insert(id, self.myself);
            self.nodes[index].config_epoch = 0;
            self.current_epoch = 0;
        }
        self.changed(actions);
    }

    pub fn save_soon(&mut self) {}

    fn set_owner(&mut self, slot: HashSlot, owner: Option<NodeIndex>) {
        if let Some(before) = std::mem::replace(&mut self.owners[slot.index()], owner) {
            self.nodes[before.get()].slots.remove(slot);
        }
        if let Some(owner) = owner {
            self.nodes[owner.get()].slots.insert(slot);
        }
    }

    fn changed(&mut self, actions: &mut Vec<Action>) {
        self.version += 1;
        self.is_ok = self.owners.iter().all(|owner| owner.is_some());
        actions.push(Action::Recheck);
    }
}

#[cfg(test)]
impl Cluster {
    pub fn add_for_test(&mut self, id: NodeId, flags: NodeFlags) -> NodeIndex {
        let mut node = crate::cluster::node::Node::new(id);
        node.flags = flags;
        let index = NodeIndex::new(self.nodes.insert(node));
        self.by_id.insert(id, index);
        index
    }
}
