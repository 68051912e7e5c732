//! Readers: owners who hold a lock together, each with a field and a lease of its own.
//!
//! The key lives as long as the last of these leases. A reader whose lease ends earlier is taken
//! out at that time, to the millisecond, and a client that waits for that is served in the same
//! turn. The index (`keyspace/locks.rs`) has the end of each reader's lease. This file brings the
//! data, the AOF and the replicas into agreement with it.

use crate::clock::{Deadline, Expiry};
use crate::collections::table::Slot;
use crate::config::KeyspaceEvents;
use crate::gate::lock_writer::{limits, repeat};
use crate::keyspace::locks::{At, Held};
use crate::keyspace::{DbIndex, Keyspace};
use crate::resp::number::format_i64;
use crate::state::Core;
use crate::types::hash::Hash;
use crate::types::journal::Edit;
use crate::types::lock::{self, Reader};

/// A change of a reader's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The owner becomes a reader.
    Granted,
    /// The lease or the session has changed. Holds the former end of the lease, on the boot-time
    /// clock.
    Renewed(Deadline),
}

/// Writes an indexed reader's field into the lock at `slot`, or into a new one, and sets the key's
/// deadline. The effects are part of the present unit.
pub fn write(core: &mut Core, at: At<'_>, slot: Option<Slot>, change: Change) {
    let (Some(held), Some(owner)) = (core.keyspace.locks.get(at), at.reader) else { return };
    let (Some(until), fence) = (held.until(), held.fence) else { return };
    let before = match change {
        Change::Granted => None,
        Change::Renewed(before) => Some(before),
    };
    let session = held.session_ms();
    let unix = until.unix(core.keyspace.shown_offset_ms());
    let text = Reader { fence, until: unix, session }.text();
    let (field, fence) = (lock::reader_field(owner), format_i64(fence as i64));
    let mut request: Vec<&[u8]> = vec![b"HSET", at.key, &field, text.as_bytes()];
    if change == Change::Granted {
        request.extend([lock::FENCE, fence.as_ref(), lock::MODE, lock::SHARED]);
    }
    let (limits, now) = (limits(core), core.keyspace.now());
    let set = |hash: &mut Edit<'_, Hash>| {
        for pair in request[2..].chunks_exact(2) {
            hash.set(pair[0], pair[1], Expiry::Clear, &limits, &now);
        }
    };
    let slot = core.keyspace.in_database(at.database, |keyspace| {
        keyspace.change_lock(|keyspace| {
            let slot = match slot {
                Some(slot) => {
                    keyspace.edit::<Hash, _>(slot, set);
                    slot
                }
                None => {
                    let mut hash = Hash::default();
                    set(&mut Edit::unnoted(&mut hash));
                    keyspace.insert_collection(keyspace.key(at.key), hash)
                }
            };
            let event = if change == Change::Granted { "lock" } else { "lockrenew" };
            keyspace.changed(KeyspaceEvents::LOCK, event, at.key);
            slot
        })
    });
    repeat(core, at.database, &request);
    set_last_deadline(core, at, slot, Moved { before, after: Some(until) });
}

/// Takes the field of a reader that is no longer in the index out of its lock. Deletes the key with
/// the last field. The effects are part of the present unit.
pub fn take_out(core: &mut Core, at: At<'_>, held: &Held, is_expired: bool) {
    let Some(owner) = at.reader else { return };
    let field = lock::reader_field(owner);
    let now = core.keyspace.now();
    let is_key_left = core.keyspace.in_database(at.database, |keyspace| {
        let key = keyspace.key(at.key);
        let slot = keyspace.find_even_expired(key).or_else(|| keyspace.find(key))?;
        keyspace.view::<Hash>(slot).ok()?.get(&field, &now)?;
        let is_last = is_last(keyspace, at, slot);
        keyspace.change_lock(|keyspace| match is_last {
            true if is_expired => keyspace.delete_as_expired(slot, key),
            true => keyspace.delete_at(slot, key, "del"),
            false => {
                keyspace.edit::<Hash, _>(slot, |hash| hash.remove(&field, &now));
                keyspace.changed(KeyspaceEvents::HASH, "hdel", at.key);
                keyspace.notify_fields("hdel", at.key, [&*field].into_iter());
            }
        });
        Some((!is_last).then_some(slot))
    });
    match is_key_left {
        None => {}
        Some(None) => {
            let unlinks = is_expired && core.state.config.lazyfree_lazy_expire;
            let delete = if unlinks { &b"UNLINK"[..] } else { b"DEL" };
            repeat(core, at.database, &[delete, at.key]);
        }
        Some(Some(slot)) => {
            repeat(core, at.database, &[b"HDEL", at.key, &field]);
            set_last_deadline(core, at, slot, Moved { before: held.until(), after: None });
        }
    }
}

/// Whether no other reader has a field.
fn is_last(keyspace: &Keyspace, at: At<'_>, slot: Slot) -> bool {
    let found = lock::read(keyspace.entry(slot).value(), &keyspace.now());
    keyspace.locks.readers(at.database, at.key).len() == 0
        && found.is_ok_and(|lock| lock.is_some_and(|lock| lock.readers == 1))
}

/// A change of a reader's deadline. None: it is no reader.
struct Moved {
    before: Option<Deadline>,
    after: Option<Deadline>,
}

/// Sets the key's deadline to that of its last reader, after the deadline of one reader has moved.
fn set_last_deadline(core: &mut Core, at: At<'_>, slot: Slot, moved: Moved) {
    let Moved { before, after } = moved;
    let now = core.keyspace.now();
    let ms_left = |deadline: Option<Deadline>| deadline.map(|it| now.remaining_ms(it));
    let old = core.keyspace.in_database(at.database, |keyspace| keyspace.entry(slot).deadline());
    let old_ms = ms_left(old);
    let last = match old_ms {
        Some(old_ms) if ms_left(after).is_some_and(|ms| ms >= old_ms) => after,
        // Another reader is still the last one.
        Some(old_ms) if ms_left(before).is_none_or(|ms| ms < old_ms) => old,
        _ => core.keyspace.locks.last_until(at.database, at.key),
    };
    let Some(last) = last.filter(|last| ms_left(Some(*last)) != old_ms) else { return };
    core.keyspace.in_database(at.database, |keyspace| keyspace.set_deadline(slot, Some(last)));
    let at_ms = format_i64(last.unix(core.keyspace.shown_offset_ms()).0);
    repeat(core, at.database, &[b"PEXPIREAT", at.key, at_ms.as_ref()]);
}

/// Sets when a reader's lease ends, outside of commands.
pub fn set_until(core: &mut Core, at: At<'_>, until: Deadline) {
    let apart = core.state.effects.begin_apart();
    renew(core, at, until);
    core.state.effects.end_apart(apart);
}

/// Sets when a reader's lease ends. The effects are part of the present unit.
pub fn renew(core: &mut Core, at: At<'_>, until: Deadline) {
    let Some(before) = core.keyspace.locks.get(at).and_then(Held::until) else { return };
    let slot = core.keyspace.in_database(at.database, |keyspace| {
        let key = keyspace.key(at.key);
        keyspace.find_even_expired(key).or_else(|| keyspace.find(key))
    });
    if slot.is_some() && before != until {
        core.keyspace.locks.set_until(at, until);
        write(core, at, slot, Change::Renewed(before));
    }
}

/// Whether a reader's lease has ended. The reader is taken out later if expiry stands still.
pub fn is_over(keyspace: &Keyspace, at: At<'_>) -> bool {
    let until = keyspace.locks.get(at).and_then(Held::until);
    until.is_some_and(|until| keyspace.now().is_past(until))
}

/// Adds the readers of a lock that was copied to the index, unless it has them.
pub fn adopt(keyspace: &mut Keyspace, database: DbIndex, key: &[u8], slot: Slot) {
    let now = keyspace.now();
    let readers = lock::readers(keyspace.entry(slot).value(), &now);
    for (owner, reader) in readers {
        let at = At::reader(database, key, &owner);
        if keyspace.locks.get(at).is_none() {
            keyspace.locks.note_reader(at, reader, &now);
        }
    }
}
