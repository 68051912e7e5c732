//! Slots that change their owner all at once, when the nodes have agreed (`slot_job.rs`).

use super::action::{Action, Outside};
use super::node::NodeIndex;
use super::wire::Header;
use super::{Cluster, Todo};
use crate::collections::hash_slot::{HashSlot, SlotSet};

/// The former owner of a slot that this node has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    from: NodeIndex,
    /// Its epoch when it was first heard not to claim the slot, and when that was: boot-time clock,
    /// milliseconds. Older headers may still come, by its other connection.
    left: Option<(u64, i64)>,
}

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
            self.taken.extend(owner.map(|from| (slot, Taken { from, left: None })));
        }
        // This also saves the slots.
        self.raise_epoch();
        self.todo |= Todo::UPDATE_STATE | Todo::BROADCAST;
        self.changed();
        actions.append(&mut self.out);
    }

    /// Notes which of the slots taken from the sender it no longer claims. They are forgotten when
    /// its connections cannot bring older headers any more.
    pub(super) fn note_left(&mut self, sender: NodeIndex, header: &Header) {
        let (now_ms, timeout_ms) = (self.now(), self.settings.node_timeout_ms);
        self.taken.retain(|slot, taken| {
            if taken.from != sender {
                return true;
            }
            if !header.slots.contains(*slot) {
                taken.left.get_or_insert((header.config_epoch, now_ms));
            }
            taken.left.is_none_or(|(_, left_ms)| now_ms - left_ms <= timeout_ms)
        });
    }

    /// Whether a claim to a slot of this node may be older than the sender's grant.
    pub(super) fn may_be_old(&self, slot: HashSlot, sender: NodeIndex, config_epoch: u64) -> bool {
        let taken = self.taken.get(&slot).filter(|taken| taken.from == sender);
        let may_be_old = |taken: &Taken| taken.left.is_none_or(|(epoch, _)| config_epoch <= epoch);
        self.owner(slot) == Some(self.myself) && taken.is_some_and(may_be_old)
    }

    /// Forgets whom slots were taken from, of a node that is forgotten itself.
    pub(super) fn forget_taken_from(&mut self, node: NodeIndex) {
        self.taken.retain(|_, taken| taken.from != node);
    }

    /// Sets the nodes to which this one has agreed to give slots: they may claim them with any
    /// epoch.
    pub fn set_granted(&mut self, granted: Vec<(SlotSet, NodeIndex)>) {
        self.granted = granted;
    }
}
