//! Deletes the keys of slots that belong to other nodes now: some in each turn, and repeated for replicas and the log.

use super::tell;
use crate::cluster::action::Event;
use crate::collections::hash_slot::{HashSlot, SlotSet};
use crate::gate::effect::note_deletions_apart;
use crate::keyspace::Keyspace;
use crate::state::State;

/// How long keys are deleted in one turn. Unit: microseconds.
const SLICE_US: i64 = 500;

/// The keys of these slots are to be deleted too.
pub fn add(state: &mut State, slots: SlotSet) {
    let drops = state.cluster_work.drops.get_or_insert_default();
    slots.iter().for_each(|slot| {
        drops.insert(slot);
    });
}

/// Nothing more is to be deleted.
pub fn forget(state: &mut State) {
    state.cluster_work.drops = None;
}

/// Deletes some keys; when there are no more, the state machine is told.
pub fn drop_some(keyspace: &mut Keyspace, state: &mut State) {
    let Some(mut drops) = state.cluster_work.drops.take() else { return };
    // A slot may have come back, or come back key by key.
    if let Some(cluster) = &state.cluster {
        let is_back =
            |slot: &HashSlot| cluster.owns(*slot) || cluster.importing_from(*slot).is_some();
        let back: Vec<HashSlot> = drops.iter().filter(is_back).collect();
        back.into_iter().for_each(|slot| {
            drops.remove(slot);
        });
    }
    let end_us = state.clock.now().boot_us + SLICE_US;
    let mut left = drops.iter();
    let mut next = left.next();
    while let Some(slot) = next {
        if !keyspace.delete_one_in_slot(slot) {
            next = left.next();
        } else if state.clock.now().boot_us >= end_us {
            break;
        }
    }
    let rest = next.into_iter().chain(left);
    let mut slots = SlotSet::default();
    rest.for_each(|slot| {
        slots.insert(slot);
    });
    note_deletions_apart(keyspace, state);
    match slots.is_empty() {
        true => tell(state, Event::Dropped),
        false => state.cluster_work.drops = Some(slots),
    }
}

/// Deletes all keys, and repeats that.
pub fn drop_all(keyspace: &mut Keyspace, state: &mut State) {
    forget(state);
    keyspace.clear(0..keyspace.databases(), false);
    // A replica's stream is its primary's.
    if state.effects.is_heard() && !state.replication.is_replica() {
        note_deletions_apart(keyspace, state);
        state.effects.end_unit();
        let flush: [&[u8]; 1] = [b"FLUSHALL"];
        state.effects.push(0, flush.into_iter());
        state.effects.end_unit();
    }
}
