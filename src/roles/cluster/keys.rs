//! Deletes the keys of slots that belong to other nodes now: some in each turn, repeated for
//! replicas and the log. As in Redis no notification is sent, because the keys live on at another
//! node.

use super::lists;
use crate::collections::hash_slot::{HashSlot, SlotSet};
use crate::gate::effect::note_deletions_apart;
use crate::gate::publish::publish_events;
use crate::keyspace::{DbIndex, Keyspace};
use crate::state::{Core, State};

/// Time for deletions in a turn. Unit: microseconds.
const TURN_US: i64 = 500;
/// Keys deleted between two readings of the clock.
const STEP_KEYS: usize = 64;

/// Adds slots whose keys are to be deleted.
pub fn add(core: &mut Core, slots: SlotSet) {
    core.state.cluster_work.drops.get_or_insert_default().extend(slots.iter());
    core.note_hidden();
}

/// Whether keys of these slots are still being deleted.
pub fn is_dropping(state: &State, slots: &SlotSet) -> bool {
    let drops = state.cluster_work.drops.as_ref();
    drops.is_some_and(|drops| slots.iter().any(|slot| drops.contains(slot)))
}

/// Cancels the remaining deletions.
pub fn forget(core: &mut Core) {
    core.state.cluster_work.drops = None;
    core.note_hidden();
}

/// Whether keys are to be deleted now. Not during a pause: a replica may be about to take over with
/// the data that it has.
pub fn has_work(state: &State) -> bool {
    state.cluster_work.drops.is_some() && state.pauses.strictest().is_none()
}

/// Deletes the remaining keys of these slots, which are about to come back: the arriving keys must
/// not mix with the old ones.
pub fn finish(core: &mut Core, slots: &SlotSet) {
    let Some(drops) = &mut core.state.cluster_work.drops else { return };
    let mut now: SlotSet = slots.iter().filter(|slot| drops.remove(*slot)).collect();
    remove_empty(&core.keyspace, &mut now);
    if !now.is_empty() {
        lists::make(core);
    }
    note_deletions_apart(core);
    publish_events(core);
    while !step(core, &mut now) {}
    core.note_hidden();
    drop(core.keyspace.events.take());
}

/// Deletes some keys.
pub fn drop_some(core: &mut Core) {
    if !has_work(&core.state) {
        return;
    }
    let Some(mut drops) = core.state.cluster_work.drops.take() else { return };
    if let Some(cluster) = &core.state.cluster {
        // Keep the keys of slots that have come back since.
        let back: Vec<HashSlot> = drops.iter().filter(|slot| cluster.owns(*slot)).collect();
        back.into_iter().for_each(|slot| {
            drops.remove(slot);
        });
    }
    note_deletions_apart(core);
    publish_events(core);
    let begun_us = core.state.clock.now().boot_us;
    let mut is_done = drops.is_empty() || core.state.replication.is_replica();
    if !is_done && !core.keyspace.are_slots_listed() {
        remove_empty(&core.keyspace, &mut drops);
        is_done = drops.is_empty();
    }
    let may_begin = !is_done && lists::ask(core);
    while may_begin && !is_done && core.state.clock.now().boot_us - begun_us < TURN_US {
        is_done = step(core, &mut drops);
    }
    drop(core.keyspace.events.take());
    if !is_done {
        core.state.cluster_work.drops = Some(drops);
    }
    core.note_hidden();
}

/// Removes slots without keys.
fn remove_empty(keyspace: &Keyspace, slots: &mut SlotSet) {
    let empty: Vec<HashSlot> =
        slots.iter().filter(|slot| !keyspace.has_keys_in_slot(*slot)).collect();
    empty.into_iter().for_each(|slot| {
        slots.remove(slot);
    });
}

/// Deletes some keys of the slots. True: there are no more.
fn step(core: &mut Core, drops: &mut SlotSet) -> bool {
    let config = &core.state.config;
    let unlinks = config.lazyfree_lazy_server_del && config.compatible_with.is_valkey();
    let verb: &[u8] = if unlinks { b"UNLINK" } else { b"DEL" };
    let Some(slot) = drops.iter().next() else { return true };
    for _ in 0..STEP_KEYS {
        let Some((database, key)) = core.keyspace.key_in_slot(slot) else {
            drops.remove(slot);
            break;
        };
        let is_deleted = core.keyspace.in_database(database, |keyspace| {
            let key = keyspace.key(&key);
            keyspace.delete(key, "del")
        });
        if is_deleted && core.state.effects.is_heard() {
            let apart = core.state.effects.begin_apart();
            core.state.effects.push(database, [verb, &key[..]].into_iter());
            core.state.effects.end_apart(apart);
        }
    }
    false
}

/// Deletes all keys, and repeats the deletion for replicas and the log.
pub fn drop_all(core: &mut Core) {
    forget(core);
    core.keyspace.clear_all(false);
    // A replica's stream is its primary's.
    if core.state.effects.is_heard() && !core.state.replication.is_replica() {
        note_deletions_apart(core);
        let apart = core.state.effects.begin_apart();
        let flush: [&[u8]; 1] = [b"FLUSHALL"];
        core.state.effects.push(DbIndex::ZERO, flush.into_iter());
        core.state.effects.end_apart(apart);
    }
}
