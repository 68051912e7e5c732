//! Writes the lock that an owner holds alone: its fields, its deadline, and the effects of both.
//! Those of readers are written by `gate/readers.rs`.
//!
//! All functions act on the selected database. The caller updates the index of locks.

use smallvec::{SmallVec, smallvec};

use crate::clock::{Deadline, Expiry, Now};
use crate::collections::packed::{Element, Text};
use crate::collections::table::Slot;
use crate::config::KeyspaceEvents;
use crate::gate::effect;
use crate::keyspace::{DbIndex, Key, Keyspace};
use crate::resp::number::format_i64;
use crate::state::Core;
use crate::types::hash::{Hash, Limits};
use crate::types::journal::Edit;
use crate::types::lock::{self, Lock};

/// The limits of a listpack.
pub fn limits(core: &Core) -> Limits {
    let config = &core.state.config;
    Limits {
        entries_max: config.hash_max_listpack_entries,
        bytes_max: config.hash_max_listpack_value,
        hasher: core.keyspace.hasher(),
    }
}

/// A key, and its slot if it exists.
#[derive(Clone, Copy)]
pub struct Found<'a> {
    pub key: Key<'a>,
    pub slot: Option<Slot>,
}

/// Writes a lock and its deadline.
pub fn write(core: &mut Core, found: Found<'_>, granted: &Lock<'_>, deadline: Option<Deadline>) {
    let Found { key, slot } = found;
    let (limits, now) = (limits(core), core.keyspace.now());
    core.keyspace.change_lock(|keyspace| {
        match slot {
            None => {
                let usual = lock::usual(granted, &limits, || keyspace.take_scratch());
                let hash = usual.unwrap_or_else(|| new_hash(keyspace, granted, &limits));
                keyspace.insert_collection_until(key, hash, deadline);
            }
            Some(slot) => {
                keyspace.edit::<Hash, _>(slot, |hash| set_fields(hash, granted, &limits, &now));
                keyspace.set_deadline(slot, deadline);
            }
        }
        keyspace.changed(KeyspaceEvents::LOCK, "lock", key.bytes);
    });
    if core.state.effects.is_heard() {
        repeat_fields(core, key, granted);
        repeat_deadline(core, key, deadline);
    }
}

/// Sets a later deadline.
pub fn extend(core: &mut Core, key: Key<'_>, slot: Slot, deadline: Option<Deadline>) {
    core.keyspace.change_lock(|keyspace| {
        keyspace.set_deadline(slot, deadline);
        keyspace.changed(KeyspaceEvents::LOCK, "lockrenew", key.bytes);
    });
    repeat_deadline(core, key, deadline);
}

/// Repeats a request that changes a lock, as a part of the present unit.
pub fn repeat(core: &mut Core, database: DbIndex, request: &[&[u8]]) {
    if core.state.effects.is_heard() {
        effect::note_deletions(core);
        core.state.effects.push(database, request.iter().copied());
    }
}

/// A lock in any layout.
fn new_hash(keyspace: &mut Keyspace, lock: &Lock<'_>, limits: &Limits) -> Hash {
    let session = session_text(lock);
    let fields = fields(lock, session.as_deref());
    Hash::packed_of(&fields, limits, keyspace.take_scratch()).unwrap_or_else(|| {
        let mut hash = Hash::default();
        set_fields(&mut Edit::unnoted(&mut hash), lock, limits, &keyspace.now());
        hash
    })
}

fn set_fields(hash: &mut Edit<'_, Hash>, lock: &Lock<'_>, limits: &Limits, now: &Now) {
    let session = session_text(lock);
    for (field, value) in fields(lock, session.as_deref()) {
        hash.set(field, value.text().as_ref(), Expiry::Clear, limits, now);
    }
}

/// The value of a lock's field for its session.
fn session_text(lock: &Lock<'_>) -> Option<String> {
    lock.session.map(|(grace_ms, lease_ms)| format!("{grace_ms} {lease_ms}"))
}

/// A lock's fields.
fn fields<'a>(
    lock: &'a Lock<'_>,
    session: Option<&'a str>,
) -> SmallVec<[(&'a [u8], Element<'a>); 4]> {
    let reserved = [
        (lock::FENCE, lock.fence.map(|fence| Element::Integer(fence as i64))),
        (lock::SINCE, lock.since_ms.map(Element::Integer)),
        (lock::SESSION, session.map(|session| Element::Bytes(session.as_bytes()))),
    ];
    let mut fields = smallvec![(&*lock.owner, Element::Integer(lock.holds))];
    fields.extend(reserved.into_iter().filter_map(|(field, value)| Some((field, value?))));
    fields
}

#[cold]
fn repeat_fields(core: &mut Core, key: Key<'_>, lock: &Lock<'_>) {
    let session = session_text(lock);
    let fields = fields(lock, session.as_deref());
    let values: SmallVec<[Text<'_>; 4]> = fields.iter().map(|(_, value)| value.text()).collect();
    let mut request: SmallVec<[&[u8]; 10]> = smallvec![&b"HSET"[..], key.bytes];
    let names = fields.iter().map(|(field, _)| *field);
    request.extend(names.zip(&values).flat_map(|(field, value)| [field, value.as_ref()]));
    repeat(core, core.keyspace.selected(), &request);
}

fn repeat_deadline(core: &mut Core, key: Key<'_>, deadline: Option<Deadline>) {
    if let Some(deadline) = deadline.filter(|_| core.state.effects.is_heard()) {
        let at_ms = format_i64(deadline.unix(core.keyspace.shown_offset_ms()).0);
        repeat(core, core.keyspace.selected(), &[b"PEXPIREAT", key.bytes, at_ms.as_ref()]);
    }
}
