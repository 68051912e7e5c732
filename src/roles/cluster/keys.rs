//! Deletes the keys of slots that belong to other nodes now: some in each turn, and repeated for replicas and the log.

use super::tell;
use crate::cluster::action::Event;
use crate::collections::hash_slot::SlotSet;
use crate::gate::effect::note_deletions_apart;
use crate::keyspace::Keyspace;
use crate::state::State;

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
pub fn drop_some(_keyspace: &mut Keyspace, state: &mut State) {
    if state.cluster_work.drops.take().is_some() {
        tell(state, Event::Dropped);
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
