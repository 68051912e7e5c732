//! Deletes the keys of slots that belong to other nodes now: some in each turn, repeated for
//! replicas and the log. As in Redis no notification is sent, because the keys live on at another
//! node.

use crate::collections::hash_slot::{HashSlot, SlotSet};
use crate::gate::effect::note_deletions_apart;
use crate::gate::publish::publish_events;
use crate::keyspace::{DbIndex, Keyspace};
use crate::state::State;

/// Time for deletions in a turn. Unit: microseconds.
const TURN_US: i64 = 1_000;
/// Keys deleted between two readings of the clock.
const STEP_KEYS: usize = 64;

/// Adds slots whose keys are to be deleted.
pub fn add(keyspace: &mut Keyspace, state: &mut State, slots: SlotSet) {
    state.cluster_work.drops.get_or_insert_default().extend(slots.iter());
    note_hidden(keyspace, state);
}

/// Sets the slots whose keys are hidden: slots that are still arriving, and slots whose keys are
/// being deleted.
pub fn note_hidden(keyspace: &mut Keyspace, state: &State) {
    let mut hidden = state.slot_moves.jobs.hidden();
    if let Some(drops) = &state.cluster_work.drops {
        hidden.get_or_insert_default().extend(drops.iter());
    }
    keyspace.hidden_slots = hidden;
}

/// Whether keys of these slots are still being deleted.
pub fn is_dropping(state: &State, slots: &SlotSet) -> bool {
    let drops = state.cluster_work.drops.as_ref();
    drops.is_some_and(|drops| slots.iter().any(|slot| drops.contains(slot)))
}

/// Cancels the remaining deletions.
pub fn forget(keyspace: &mut Keyspace, state: &mut State) {
    state.cluster_work.drops = None;
    note_hidden(keyspace, state);
}

/// Whether keys are to be deleted now. Not during a pause: a replica may be about to take over with
/// the data that it has.
pub fn has_work(state: &State) -> bool {
    state.cluster_work.drops.is_some() && state.pauses.strictest().is_none()
}

/// Deletes the remaining keys of these slots, which are about to come back: the arriving keys must
/// not mix with the old ones.
pub fn finish(keyspace: &mut Keyspace, state: &mut State, slots: &SlotSet) {
    let Some(drops) = &mut state.cluster_work.drops else { return };
    let mut now: SlotSet = slots.iter().filter(|slot| drops.remove(*slot)).collect();
    note_deletions_apart(keyspace, state);
    publish_events(keyspace, state);
    while !step(keyspace, state, &mut now) {}
    note_hidden(keyspace, state);
    drop(keyspace.events.take());
}

/// Deletes some keys.
pub fn drop_some(keyspace: &mut Keyspace, state: &mut State) {
    if !has_work(state) {
        return;
    }
    let Some(mut drops) = state.cluster_work.drops.take() else { return };
    if let Some(cluster) = &state.cluster {
        // Keep the keys of slots that have come back since.
        let back: Vec<HashSlot> = drops.iter().filter(|slot| cluster.owns(*slot)).collect();
        back.into_iter().for_each(|slot| {
            drops.remove(slot);
        });
    }
    note_deletions_apart(keyspace, state);
    publish_events(keyspace, state);
    let begun_us = state.clock.now().boot_us;
    let mut is_done = drops.is_empty() || state.replication.is_replica();
    while !is_done && state.clock.now().boot_us - begun_us < TURN_US {
        is_done = step(keyspace, state, &mut drops);
    }
    drop(keyspace.events.take());
    if !is_done {
        state.cluster_work.drops = Some(drops);
    }
    note_hidden(keyspace, state);
}

/// Deletes some keys of the slots. True: there are no more.
fn step(keyspace: &mut Keyspace, state: &mut State, drops: &mut SlotSet) -> bool {
    let config = &state.config;
    let unlinks = config.lazyfree_lazy_server_del && config.compatible_with.is_valkey();
    let verb: &[u8] = if unlinks { b"UNLINK" } else { b"DEL" };
    for _ in 0..STEP_KEYS {
        let Some(slot) = drops.iter().next() else { return true };
        let Some((database, key)) = keyspace.key_in_slot(slot) else {
            drops.remove(slot);
            continue;
        };
        let is_deleted = keyspace.in_database(database, |keyspace| {
            let key = keyspace.key(&key);
            keyspace.delete(key, "del")
        });
        if is_deleted && state.effects.is_heard() {
            let apart = state.effects.begin_apart();
            state.effects.push(database, [verb, &key[..]].into_iter());
            state.effects.end_apart(apart);
        }
    }
    false
}

/// Deletes all keys, and repeats the deletion for replicas and the log.
pub fn drop_all(keyspace: &mut Keyspace, state: &mut State) {
    forget(keyspace, state);
    keyspace.clear_all(false);
    // A replica's stream is its primary's.
    if state.effects.is_heard() && !state.replication.is_replica() {
        note_deletions_apart(keyspace, state);
        let apart = state.effects.begin_apart();
        let flush: [&[u8]; 1] = [b"FLUSHALL"];
        state.effects.push(DbIndex::ZERO, flush.into_iter());
        state.effects.end_apart(apart);
    }
}
