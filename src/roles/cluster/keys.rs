//! Deletes the keys of slots that belong to other nodes now: some in each turn, replicated, to the
//! AOF too. As in Redis no notification is sent, because the keys live on at another node.

use super::lists;
use crate::collections::hash_slot::{HashSlot, SlotSet, ranges_text};
use crate::gate::effect::note_deletions_apart;
use crate::gate::publish::publish_events;
use crate::keyspace::{DbIndex, Keyspace};
use crate::state::{Core, PauseCause, State};

/// Time for deletions in a turn. Unit: microseconds.
const TURN_US: i64 = 500;
/// Keys deleted between two readings of the clock.
const STEP_KEYS: usize = 64;
/// The message of PING by which replicas and the AOF learn of the deletions: before ranges of
/// slots.
const DROPS: &[u8] = b"latchkey-slot-drops:";

/// Adds slots whose keys are to be deleted.
pub fn add(core: &mut Core, mut slots: SlotSet) {
    remove_empty(&core.keyspace, &mut slots);
    if slots.is_empty() {
        return;
    }
    core.state.node.work.slots_to_empty.get_or_insert_default().extend(slots.iter());
    core.state.node.work.is_announced = false;
    core.note_hidden();
}

/// Continues the deletions of the primary that this server replaces, except in slots that are being
/// imported again.
pub fn take_over(core: &mut Core) {
    let (Some(drops), Some(cluster)) =
        (core.state.node.work.slots_to_empty.take(), &core.state.node.cluster)
    else {
        return;
    };
    let jobs = &core.state.node.moves.jobs;
    let is_lost = |slot: &HashSlot| {
        let owner = cluster.owner(*slot);
        let comes = cluster.importing_from(*slot).is_some() || jobs.imports(*slot);
        owner.is_some_and(|owner| owner != cluster.my_index()) && !comes
    };
    let lost = drops.iter().filter(is_lost).collect();
    core.note_hidden();
    add(core, lost);
}

/// Announces the slots being emptied (always the complete list) to replicas and the AOF, so that
/// they can finish if this server fails. It is sent as a PING, which Redis's replicas accept.
fn tell(core: &mut Core) {
    core.state.node.work.is_announced = true;
    if !core.state.effects.is_heard() || core.state.replication.is_replica() {
        return;
    }
    let ranges =
        core.state.node.work.slots_to_empty.as_ref().map(SlotSet::ranges).unwrap_or_default();
    let message = [DROPS, ranges_text(&ranges).as_bytes()].concat();
    let apart = core.state.effects.begin_apart();
    core.state.effects.push(DbIndex::ZERO, [&b"PING"[..], &message].into_iter());
    core.state.effects.end_apart(apart);
}

/// Takes in the message of a PING that another server repeats. True: it was news of this kind.
pub fn hear(core: &mut Core, message: &[u8]) -> bool {
    let ranges = message.strip_prefix(DROPS);
    if let Some(ranges) = ranges {
        core.track_drops(ranges);
    }
    ranges.is_some()
}

/// Whether keys of these slots are still being deleted.
pub fn is_dropping(state: &State, slots: &SlotSet) -> bool {
    let drops = state.node.work.slots_to_empty.as_ref();
    drops.is_some_and(|drops| slots.iter().any(|slot| drops.contains(slot)))
}

/// Cancels the remaining deletions.
pub fn forget(core: &mut Core) {
    core.state.node.work.slots_to_empty = None;
    core.note_hidden();
}

/// Whether keys are to be deleted now. Not during a pause: a replica may be about to take over with
/// the data that it has. Nor by a replica, whose primary deletes them.
pub fn has_work(state: &State) -> bool {
    state.node.work.slots_to_empty.is_some()
        && !state.stands_still()
        && !state.replication.is_replica()
}

/// Deletes the remaining keys of these slots, which are about to come back: the arriving keys must
/// not mix with the old ones.
pub fn finish(core: &mut Core, slots: &SlotSet) {
    if core.state.replication.is_replica() {
        // Its primary does so.
        return;
    }
    let Some(drops) = &mut core.state.node.work.slots_to_empty else { return };
    let mut now: SlotSet = slots.iter().filter(|slot| drops.remove(*slot)).collect();
    remove_empty(&core.keyspace, &mut now);
    if !now.is_empty() {
        lists::make(core);
    }
    note_deletions_apart(core);
    publish_events(core);
    while !step(core, &mut now) {}
    if core.state.node.work.slots_to_empty.as_ref().is_some_and(SlotSet::is_empty) {
        core.state.node.work.slots_to_empty = None;
    }
    // The slots' next keys are not to be deleted.
    tell(core);
    core.note_hidden();
    drop(core.keyspace.events.take());
}

/// Continues the deletions.
pub fn drop_some(core: &mut Core) {
    if core.state.node.work.slots_to_empty.is_none() || core.state.replication.is_replica() {
        return;
    }
    note_deletions_apart(core);
    publish_events(core);
    tell_news(core);
    if has_work(&core.state) {
        drop_for_a_while(core);
    }
    drop(core.keyspace.events.take());
    core.note_hidden();
}

/// Tells of deletions that have begun or ended, unless a replica waits for the stream to stand
/// still.
fn tell_news(core: &mut Core) {
    if let (Some(cluster), Some(drops)) =
        (&core.state.node.cluster, &mut core.state.node.work.slots_to_empty)
    {
        // Keep the keys of slots that have come back since.
        let back: Vec<HashSlot> = drops.iter().filter(|slot| cluster.owns(*slot)).collect();
        for slot in back {
            drops.remove(slot);
            core.state.node.work.is_announced = false;
        }
    }
    let pauses = &core.state.pauses;
    let failovers = [PauseCause::Failover, PauseCause::ClusterFailover];
    let stands_still = failovers.iter().any(|cause| pauses.by(*cause).is_some());
    if !core.state.node.work.is_announced && !stands_still {
        tell(core);
    }
}

/// Deletes some keys.
fn drop_for_a_while(core: &mut Core) {
    let Some(mut drops) = core.state.node.work.slots_to_empty.take() else { return };
    let begun_us = core.state.clock.now().boot_us;
    let mut is_done = drops.is_empty();
    if !is_done && !core.keyspace.are_slots_listed() {
        remove_empty(&core.keyspace, &mut drops);
        is_done = drops.is_empty();
    }
    let may_begin = !is_done && lists::ask(core);
    while may_begin && !is_done && core.state.clock.now().boot_us - begun_us < TURN_US {
        is_done = step(core, &mut drops);
    }
    match is_done {
        false => core.state.node.work.slots_to_empty = Some(drops),
        true => tell(core),
    }
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
    let dialect = config.compatible_with;
    let unlinks = config.lazyfree_lazy_server_del && (dialect.is_valkey() || dialect.is_redis_8());
    let verb: &[u8] = if unlinks { b"UNLINK" } else { b"DEL" };
    let Some(slot) = drops.iter().next() else { return true };
    for _ in 0..STEP_KEYS {
        let Some((database, key)) = core.keyspace.key_in_slot(slot) else {
            drops.remove(slot);
            break;
        };
        let is_deleted = core.keyspace.in_database(database, |keyspace| {
            keyspace.locks.note_moved(database, &key);
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

/// Deletes all keys, and replicates the deletion, to the AOF too.
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
        tell(core);
    }
}
