//! Slots that change their owner all at once, when the nodes have agreed (`slot_job.rs`).

use super::action::{Action, Outside};
use super::node::NodeIndex;
use super::{Cluster, Todo};
use crate::collections::hash_slot::SlotSet;

impl Cluster {
    /// The node that owns all of these slots. None: there is no such node.
    pub fn owner_of_all(&self, slots: &SlotSet) -> Option<NodeIndex> {
        let mut owners = slots.iter().map(|slot| self.owner(slot));
        let first = owners.next()??;
        owners.all(|owner| owner == Some(first)).then_some(first)
    }

    /// Takes slots, whose owner has agreed, with an epoch above all others, and tells all nodes.
    pub fn take_slots_granted(
        &mut self,
        slots: &SlotSet,
        outside: &Outside,
        actions: &mut Vec<Action>,
    ) {
        self.enter(outside);
        for slot in slots.iter() {
            let owner = self.owner(slot).filter(|owner| *owner != self.myself);
            self.set_owner(slot, Some(self.myself));
            self.taken.extend(owner.map(|owner| (slot, owner)));
        }
        // This also saves the slots.
        self.raise_epoch();
        self.todo |= Todo::UPDATE_STATE | Todo::BROADCAST;
        self.changed();
        actions.append(&mut self.out);
    }

    /// Sets the nodes to which this one has agreed to give slots: they may claim them with any
    /// epoch.
    pub fn set_granted(&mut self, granted: Vec<(SlotSet, NodeIndex)>) {
        self.granted = granted;
    }
}
