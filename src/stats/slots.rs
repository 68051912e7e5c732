//! The costs of the requests of each hash slot: for CLUSTER SLOT-STATS, while
//! `cluster-slot-stats-enabled yes`.

use crate::collections::hash_slot::{HashSlot, SLOTS};

/// The costs of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCosts {
    /// Time of its commands. Unit: microseconds.
    pub cpu_us: u64,
    /// Bytes of its requests.
    pub bytes_in: u64,
    /// Bytes of their replies, of messages to subscribers, and of the stream to replicas.
    pub bytes_out: u64,
}

/// The costs of all slots.
pub struct SlotStats {
    slots: Box<[SlotCosts; SLOTS]>,
    /// The slot of the transaction or script that has just ended.
    pub of_group: Option<HashSlot>,
    /// Bytes of effects that were counted, of [`crate::replication::effects::Effects::added`].
    pub effects_seen: u64,
    /// The version of the cluster for which `owners` holds.
    version: Option<u64>,
    /// The owner of each slot in that version; a slot that gets another owner begins anew.
    owners: Box<[Option<u16>; SLOTS]>,
}

impl Default for SlotStats {
    fn default() -> Self {
        SlotStats {
            slots: Box::new([SlotCosts::default(); SLOTS]),
            of_group: None,
            effects_seen: 0,
            version: None,
            owners: Box::new([None; SLOTS]),
        }
    }
}

impl SlotStats {
    pub fn get(&self, slot: HashSlot) -> SlotCosts {
        self.slots[slot.index()]
    }

    pub fn add(&mut self, slot: HashSlot, costs: SlotCosts) {
        let sum = &mut self.slots[slot.index()];
        sum.cpu_us += costs.cpu_us;
        sum.bytes_in += costs.bytes_in;
        sum.bytes_out += costs.bytes_out;
    }

    pub fn reset(&mut self) {
        self.slots.fill(SlotCosts::default());
    }

    /// Forgets the costs of slots whose owner has changed. `owner`: a number for each owner. O(1)
    /// if the version is the same.
    pub fn follow_owners(&mut self, version: u64, owner: impl Fn(HashSlot) -> Option<u16>) {
        if self.version == Some(version) {
            return;
        }
        let is_first = self.version.replace(version).is_none();
        for slot in HashSlot::all() {
            let now = owner(slot);
            let before = std::mem::replace(&mut self.owners[slot.index()], now);
            if before != now && !is_first {
                self.slots[slot.index()] = SlotCosts::default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_gets_another_owner_begins_anew() {
        let mut stats = SlotStats::default();
        let slots = [HashSlot::of(b"a"), HashSlot::of(b"b")];
        stats.follow_owners(1, |_| Some(1));
        for slot in slots {
            stats.add(slot, SlotCosts { cpu_us: 1, bytes_in: 2, bytes_out: 3 });
        }
        stats.follow_owners(1, |_| None);
        assert_eq!(stats.get(slots[0]).bytes_in, 2);
        stats.follow_owners(2, |slot| Some(if slot == slots[0] { 7 } else { 1 }));
        assert_eq!(stats.get(slots[0]), SlotCosts::default());
        assert_eq!(stats.get(slots[1]).bytes_out, 3);
        stats.reset();
        assert_eq!(stats.get(slots[1]), SlotCosts::default());
    }
}
