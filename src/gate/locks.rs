//! Locks that end without a LOCK command. Such ends are found before the next request runs, and the
//! holders are notified. A reader whose lease has ended is removed at that time, even if other
//! readers remain.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::client::Client;
use crate::client::acks::Grant;
use crate::clock::{Due, Expiry};
use crate::config::KeyspaceEvents;
use crate::gate::lock_writer::Found;
use crate::gate::readers::{self, Change};
use crate::gate::{effect, limits, lock_writer, permits, publish, sessions};
use crate::keyspace::lock_history::{ENDS_KEPT, Ended, HoldingEnd};
use crate::keyspace::locks::{
    At, End, EndReason, FREED_KEPT, Former, Gone, Granted, Held, LostLock, Place, Vanished, Way,
};
use crate::keyspace::waiting::Wanted;
use crate::keyspace::{DbIndex, Key, Keyspace};
use crate::pubsub::Kind;
use crate::resp::number::format_i64;
use crate::resp::reply::{Protocol, ReplyWriter};
use crate::state::context::Context;
use crate::state::{Core, State};
use crate::types::Collection;
use crate::types::hash::Hash;
use crate::types::list::List;
use crate::types::lock::{self, Lock, Reader};

/// Time for new entries of the index in a turn. Unit: microseconds.
const TAKE_IN_US: i64 = 500;
/// New entries between two readings of the clock.
const TAKE_IN_STEP: usize = 64;

/// Compares changed keys with the index of locks. A lock that its key no longer has was lost.
pub fn review(core: &mut Core) {
    if !core.keyspace.locks.has_changed() {
        return;
    }
    for (database, key, vanished) in core.keyspace.locks.take_changed() {
        for (place, reason) in lost(&mut core.keyspace, database, &key, vanished) {
            end(core, place.at(), reason);
        }
    }
    let databases = core.keyspace.locks.take_all_changed();
    if !databases.is_empty() {
        review_databases(core, &databases);
    }
    core.keyspace.locks.forget_owners();
}

/// Reviews whole databases that were emptied, exchanged or loaded anew. They may have a million
/// locks: if most of the keys are gone, their locks are taken out of the index as a whole.
fn review_databases(core: &mut Core, databases: &BTreeSet<DbIndex>) {
    let (mut emptied, mut left) = (BTreeSet::new(), BTreeSet::new());
    for &database in databases {
        let selected = core.keyspace.selected();
        core.keyspace.select(database);
        let (compared, are_others_gone) = to_compare(&core.keyspace);
        core.keyspace.select(selected);
        for key in compared {
            for (place, reason) in lost(&mut core.keyspace, database, &key, None) {
                end(core, place.at(), reason);
            }
            if are_others_gone && core.keyspace.locks.is_held(database, &key) {
                left.insert((database, key));
            }
        }
        if are_others_gone {
            emptied.insert(database);
        }
    }
    if !emptied.is_empty() {
        let gone = core.keyspace.locks.take_databases(&emptied, &left);
        announce_gone(core, &gone);
        if let Some(gone) = core.keyspace.locks.forget_gone(gone) {
            core.keyspace.lazyfree.discard_index(gone, 0);
        }
    }
}

/// The locks of the selected database that must be compared with their keys, and whether all other
/// locks are gone. If not, the others are unchanged.
fn to_compare(keyspace: &Keyspace) -> (Vec<Box<[u8]>>, bool) {
    let (locks, database, now) = (&keyspace.locks, keyspace.selected(), keyspace.now());
    let held = locks.len_of(database);
    if keyspace.table().len() <= held / 2 {
        let held = keyspace.table().iter().filter(|entry| locks.is_held(database, entry.key()));
        return (held.map(|entry| entry.key().into()).collect(), true);
    }
    let (mut gone, mut differ, mut same) = (Vec::new(), Vec::new(), Vec::new());
    for (key, held) in locks.iter_after(database, None) {
        let Some(slot) = keyspace.find_kept(keyspace.key(key)) else {
            gone.push(key);
            continue;
        };
        let lock = lock::read(keyspace.entry(slot).value(), &now).ok().flatten();
        let is_same = |lock: Lock<'_>| lock.readers == 0 && lock.fence == Some(held.fence);
        match held.until().is_none() && lock.is_some_and(is_same) {
            true => same.push(key),
            false => differ.push(key),
        }
    }
    let are_most_gone = gone.len() > held / 2;
    let further = if are_most_gone { same } else { gone };
    (differ.into_iter().chain(further).map(Box::from).collect(), are_most_gone)
}

/// The parts of an indexed lock that its key no longer has, and the reasons.
fn lost(
    keyspace: &mut Keyspace,
    database: DbIndex,
    key: &[u8],
    vanished: Option<Vanished>,
) -> Vec<(Place, EndReason)> {
    let holdings = keyspace.locks.holdings(database, key);
    let found = keyspace.in_database(database, |keyspace| {
        // A lease that has ended by a replica's clock may be renewed by its primary.
        let slot = keyspace.find_kept(keyspace.key(key))?;
        let (value, now) = (keyspace.entry(slot).value(), keyspace.now());
        let lock = lock::read(value, &now).ok().flatten();
        // The fence of an exclusive owner, or the readers.
        match lock.map(|lock| (lock.readers > 0, lock.fence)) {
            Some((true, _)) => Some((None, lock::readers(value, &now).into_iter().collect())),
            Some((false, fence)) => Some((fence, HashMap::new())),
            None => Some((None, HashMap::new())),
        }
    });
    let fate = |place: &Place| {
        let held = keyspace.locks.get(place.at())?;
        let gone = match vanished {
            Some(Vanished::Expired) => end_of_lease(held),
            Some(Vanished::Moved) => EndReason::Moved,
            None => EndReason::Deleted,
        };
        let Some((alone, readers)) = &found else { return Some(gone) };
        let fence = match place.at().reader {
            None => *alone,
            Some(owner) => readers.get(owner).map(|reader: &Reader| reader.fence),
        };
        match fence {
            Some(fence) if fence == held.fence => None,
            // Only this reader's field was deleted.
            None if !readers.is_empty() && place.at().reader.is_some() => Some(EndReason::Deleted),
            _ => Some(EndReason::Overwritten),
        }
    };
    let lost = holdings.into_iter().map(|place| (fate(&place), place));
    lost.filter_map(|(reason, place)| Some((place, reason?))).collect()
}

/// The reason for the end of a lease that was not renewed.
fn end_of_lease(held: &Held) -> EndReason {
    match &held.session {
        Some(session) if session.is_left_behind => EndReason::Promoted,
        Some(_) if held.client.is_none() => EndReason::SessionEnded,
        _ => EndReason::Expired,
    }
}

/// Takes a lost holding out of the index, announces its end, and notifies the client that asked for
/// it. A replica only follows its primary, which notifies.
pub fn end(core: &mut Core, at: At<'_>, reason: EndReason) {
    if let Some(held) = core.keyspace.locks.remove(at) {
        announce_end(core, at, &held, reason);
    }
}

/// The owner of a lock that was lost, if known: the key's value may be gone.
fn owner_had(keyspace: &mut Keyspace, at: At<'_>, held: &Held) -> Option<Box<[u8]>> {
    let noted = keyspace.locks.take_owner(at.database, at.key);
    let session = held.session.as_deref().map(|session| &*session.owner);
    at.reader.or(session).map(Box::from).or(noted)
}

/// The name of the client that asked for a lock, or its address without a name. Empty: the client
/// is gone.
fn client_had(state: &State, held: &Held) -> Box<[u8]> {
    let client = held.client.and_then(|id| state.clients.get(id));
    client.map_or_else(Box::default, |client| match &*client.name {
        [] => client.peer.to_string().into_bytes().into(),
        name => name.into(),
    })
}

/// Announces the end of a holding that is no longer in the index, and notifies its client.
pub fn announce_end(core: &mut Core, at: At<'_>, held: &Held, reason: EndReason) {
    if core.state.replication.is_replica() || core.state.persistence.loading.is_some() {
        return;
    }
    let At { database, key, .. } = at;
    if reason == EndReason::Moved {
        if !held.is_kept {
            core.keyspace.locks.stats.moved += 1;
            tell_holder(&mut core.state, key, held, reason);
        }
        return;
    }
    // A shared lock is free after its last reader.
    let is_free = !core.keyspace.locks.is_held(database, key);
    if is_free {
        note_freed(core, database, key);
    }
    if held.is_kept {
        return tell_redisson(core, database, key);
    }
    let at_ms = core.state.now.unix().0;
    let owner = owner_had(&mut core.keyspace, at, held);
    let end = HoldingEnd::Lost(reason);
    note_ended(core, at, Ending { held, end, owner: owner.as_deref().unwrap_or_default() });
    let who = owner.unwrap_or_else(|| client_had(&core.state, held));
    let fence = held.fence;
    core.keyspace.locks.note_end(End { database, key: key.into(), fence, reason, at_ms, who });
    core.keyspace.in_database(database, |keyspace| {
        keyspace.notify(KeyspaceEvents::LOCK, "locklost", key);
    });
    if !core.keyspace.events.is_empty() {
        publish::publish_events(core);
    }
    if reason != EndReason::Overwritten && is_free {
        tell_redisson(core, database, key);
    }
    tell_holder(&mut core.state, key, held, reason);
    let delay_ms = core.state.config.lock_delay;
    // Nothing is lost during a pause, but a transaction may begin one after it has broken a lock.
    // Then the pause withholds the lock.
    let delay_ms = if core.state.stands_still() { 0 } else { delay_ms };
    if delay_ms > 0 && is_free && !matches!(reason, EndReason::Deleted | EndReason::Overwritten) {
        let key = core.keyspace.key(key);
        withhold(core, database, key, delay_ms);
    }
}

/// Announces the ends of all locks of whole databases, and notifies the clients that asked for
/// them. Goes through all locks only if a subscriber or client is to be notified.
fn announce_gone(core: &mut Core, gone: &Gone) {
    if core.state.persistence.loading.is_some() {
        return;
    }
    tell_redisson_of_all(core, gone);
    if core.state.replication.is_replica() {
        return;
    }
    let mut count = 0;
    for (since_us, holdings) in gone.since.counts() {
        count += holdings as u64;
        note_holds(&mut core.state, since_us, holdings as u64);
    }
    let lost = || gone.holdings().filter(|(_, held)| !held.is_kept);
    let (reason, at_ms) = (EndReason::Deleted, core.state.now.unix().0);
    note_history(core, gone);
    let last: Vec<_> = lost().rev().take(ENDS_KEPT).collect();
    core.keyspace.locks.stats.deleted += count - last.len() as u64;
    for &(at, held) in last.iter().rev() {
        let (database, key, fence) = (at.database, at.key.into(), held.fence);
        let owner = owner_had(&mut core.keyspace, at, held);
        let who = owner.unwrap_or_else(|| client_had(&core.state, held));
        core.keyspace.locks.note_end(End { database, key, fence, reason, at_ms, who });
    }
    if core.keyspace.events.wants(KeyspaceEvents::LOCK) {
        for (at, _) in lost() {
            core.keyspace.in_database(at.database, |keyspace| {
                keyspace.notify(KeyspaceEvents::LOCK, "locklost", at.key);
            });
            publish::publish_events(core);
        }
    }
    if core.state.clients.iter().any(|client| client.protocol == Protocol::Resp3) {
        for (at, held) in lost() {
            tell_holder(&mut core.state, at.key, held, reason);
        }
    }
}

/// Remembers the last holdings of locks of whole databases: of those whose history is known, and of
/// a few others. Notes which of the locks clients wait for.
fn note_history(core: &mut Core, gone: &Gone) {
    let named = |(database, key): (DbIndex, &[u8])| (database, Box::<[u8]>::from(key));
    let known = core.keyspace.locks.history.locks().map(named);
    let last = gone.holdings().rev().take(ENDS_KEPT).map(|(at, _)| named((at.database, at.key)));
    for (database, key) in known.chain(last).collect::<BTreeSet<_>>() {
        for (reader, held) in gone.of_key(database, &key).filter(|(_, held)| !held.is_kept) {
            let owner = owner_had(&mut core.keyspace, At { database, key: &key, reader }, held);
            let end = HoldingEnd::Lost(EndReason::Deleted);
            let key = core.keyspace.key(&key);
            let owner = &owner.unwrap_or_default();
            note_holding(core, database, key, Ending { held, end, owner });
        }
    }
    let awaited =
        core.keyspace.waiting.ready().filter(|(database, key)| gone.contains(*database, key));
    let awaited: Vec<_> = awaited.map(named).take(FREED_KEPT).collect();
    for (database, key) in awaited {
        note_freed(core, database, &key);
    }
}

/// Withholds a free lock from all clients for a time. Its former holder may not know yet that it is
/// lost (`lock-delay`), or has asked for this (KEEP).
pub fn withhold(core: &mut Core, database: DbIndex, key: Key<'_>, ms: i64) {
    let (fence, now) = (core.keyspace.locks.fences.grant(), core.keyspace.now());
    let selected = core.keyspace.selected();
    core.keyspace.select(database);
    if core.keyspace.find_quietly(key).is_none() {
        let apart = core.state.effects.begin_apart();
        let kept = Lock::granted(lock::KEEP, fence, core.state.now.unix().0);
        lock_writer::write(core, Found { key, slot: None }, &kept, Some(now.after(ms)));
        core.state.effects.end_apart(apart);
        let held = Held { is_kept: true, ..Held::new(fence, core.state.now.boot_us) };
        core.keyspace.locks.insert(At::key(database, key.bytes), held);
    }
    core.keyspace.select(selected);
}

/// Adds locks and semaphores that have come from another server to the index, some in each turn.
/// Sessions have lost their connections, as with a promotion. Not under CLIENT PAUSE, because
/// their grace periods are replicated.
fn take_in(core: &mut Core) {
    if !core.state.stands_still() && core.keyspace.coming.has_shown() {
        take_in_for(core, TAKE_IN_US);
    }
    if !core.keyspace.coming.has_shown() {
        let pending = &mut core.state.net.pending;
        pending.resumed.append(&mut pending.attaching);
    }
}

/// Indexes the locks that have come, for at most this time in microseconds.
fn take_in_for(core: &mut Core, us: i64) {
    let begun_us = core.state.clock.now().boot_us;
    while core.state.clock.now().boot_us - begun_us < us {
        for _ in 0..TAKE_IN_STEP {
            let Some((database, key)) = core.keyspace.coming.take_shown() else { return };
            let is_new = core
                .keyspace
                .in_database(database, |keyspace| keyspace.index_lock(keyspace.key(&key)));
            if is_new && !core.state.replication.is_replica() {
                sessions::gain_lock(core, database, &key);
            }
        }
    }
}

/// Whether all locks that have come are indexed. If not, the calling client is suspended until they
/// are; for a command that cannot wait they are indexed at once.
pub fn are_all_indexed(ctx: &mut Context<'_>) -> bool {
    if !ctx.core.keyspace.coming.has_shown() {
        return true;
    }
    if let Some(id) = ctx.suspend_until_retry() {
        ctx.core.state.net.pending.attaching.push(id);
        return false;
    }
    take_in_for(ctx.core, i64::MAX);
    true
}

/// Ends the leases of readers whose time is over. Not under CLIENT PAUSE, and not on a replica,
/// which follows its primary. Before that, indexes locks that have come.
pub fn on_time(core: &mut Core) {
    take_in(core);
    permits::announce_ended(core);
    if stands_still(core) {
        return;
    }
    while let Some(place) = core.keyspace.locks.ended_reader(core.state.now.boot_us) {
        let Some(held) = core.keyspace.locks.remove(place.at()) else { return };
        readers::take_out(core, place.at(), &held, true);
        core.state.effects.end_unit();
        announce_end(core, place.at(), &held, end_of_lease(&held));
    }
}

/// When [`on_time`] is to be called.
pub fn due(core: &Core) -> Due {
    let pending = &core.state.net.pending;
    let takes_in = core.keyspace.coming.has_shown() || !pending.attaching.is_empty();
    if takes_in && !core.state.stands_still() {
        return Due::NOW;
    }
    let readers_us = core.keyspace.locks.next_end_us().filter(|_| !stands_still(core));
    Due::at([readers_us, permits::next_end_us(core)].into_iter().flatten().min())
}

fn stands_still(core: &Core) -> bool {
    core.state.stands_still() || core.keyspace.leaves_expiry()
}

/// At the end of a turn: takes back grants to clients that were closed before the reply had left.
/// Waiting clients are served in the next turn. During a pause these grants are kept for later.
pub fn take_back(core: &mut Core) {
    if !core.keyspace.locks.has_granted() {
        return;
    }
    let waits = core.state.takes_nothing_back();
    let Core { state, keyspace, .. } = core;
    let lost = keyspace.locks.take_lost(|granted| match state.clients.get(granted.client) {
        None if state.clients.informed.contains(&granted.client) => Way::Ended,
        None if waits => Way::Goes,
        None => Way::Lost,
        Some(client) => {
            let after_reply = client.bytes_out + client.output.len() as u64;
            let is_sent = client.bytes_out >= *granted.sent_at.get_or_insert(after_reply);
            if is_sent { Way::Ended } else { Way::Goes }
        }
    });
    // The last one first: a reader may have become the writer.
    let mut restored = Restored::new();
    for (place, granted) in lost.into_iter().rev() {
        give_up(core, place.at(), &granted, &mut restored);
    }
    end_restoring(core, restored);
}

/// Holdings that are as they were before a grant, and whether the client that had them then has
/// gone.
pub type Restored = BTreeMap<Place, bool>;

/// Deletes a lock whose owner will never learn of the grant, or takes that reader out of it. If the
/// owner held the lock before, restores that; then [`end_restoring`] has to follow.
pub fn give_up(core: &mut Core, at: At<'_>, granted: &Granted, restored: &mut Restored) {
    let held = core.keyspace.locks.get(at);
    // No other client has asked for the lock since.
    let is_held = held.is_some_and(|held| {
        held.fence == granted.fence && held.client.is_none_or(|id| id == granted.client)
    });
    if !is_held || core.state.is_read_only() {
        return;
    }
    let At { database, key, .. } = at;
    match &granted.former {
        Some(former) if at.reader.is_some() => {
            return restore_reader(core, at, former, restored);
        }
        Some(former) => return restore(core, at, former, restored),
        None => {}
    }
    let Some(held) = core.keyspace.locks.remove(at) else { return };
    let owner = at.reader.map(Box::from).or_else(|| {
        let entry = core.keyspace.entry_quietly(database, key)?;
        let lock = lock::read(entry.value(), &core.keyspace.now()).ok()??;
        Some(Box::from(&*lock.owner))
    });
    let (end, owner) = (HoldingEnd::TakenBack, owner.as_deref().unwrap_or_default());
    note_ended(core, at, Ending { held: &held, end, owner });
    if !core.keyspace.locks.is_held(database, key) {
        note_freed(core, database, key);
    }
    let apart = core.state.effects.begin_apart();
    if at.reader.is_some() {
        readers::take_out(core, at, &held, false);
    } else {
        core.keyspace.in_database(database, |keyspace| keyspace.delete(keyspace.key(key), "del"));
        if core.state.effects.is_heard() {
            core.state.effects.push(database, [&b"DEL"[..], key].into_iter());
        }
    }
    core.state.effects.end_apart(apart);
    core.keyspace.in_database(database, |keyspace| {
        keyspace.notify(KeyspaceEvents::LOCK, "unlock", key);
    });
    if !core.keyspace.events.is_empty() {
        publish::publish_events(core);
    }
    if !core.keyspace.locks.is_held(database, key) {
        tell_redisson(core, database, key);
    }
}

/// Gives a lock the fence, the holds and the lease that its owner had before a grant of which
/// nobody will learn.
fn restore(core: &mut Core, at: At<'_>, former: &Former, restored: &mut Restored) {
    let At { database, key, .. } = at;
    let limits = lock_writer::limits(core);
    let until = core.keyspace.in_database(database, |keyspace| {
        let slot = keyspace.find_quietly(keyspace.key(key))?;
        let now = keyspace.now();
        let mut others = Vec::new();
        keyspace.view::<Hash>(slot).ok()?.for_each(&now, |field, _| others.push(field.to_vec()));
        others.retain(|field| !former.fields.iter().any(|(name, _)| name == field));
        let present = keyspace.entry(slot).deadline();
        let is_passed = former.deadline.is_some_and(|deadline| now.is_past(deadline));
        // A renewal since then stays.
        let until =
            if present == former.replaced_by && !is_passed { former.deadline } else { present };
        keyspace.change_lock(|keyspace| {
            keyspace.edit::<Hash, _>(slot, |hash| {
                for (field, value) in &former.fields {
                    hash.set(field, value, Expiry::Clear, &limits, &now);
                }
                for field in &others {
                    hash.remove(field, &now);
                }
            });
            if until != present {
                keyspace.set_deadline(slot, until);
            }
            keyspace.changed(KeyspaceEvents::LOCK, "lock", key);
        });
        Some(until)
    });
    let Some(until) = until else { return };
    core.keyspace.locks.remove(At::key(database, key));
    for (place, held) in &former.holdings {
        let client = held.client.filter(|id| core.state.clients.get(*id).is_some());
        restored.insert(place.clone(), client.is_none() && held.client.is_some());
        core.keyspace.locks.insert(place.at(), Held { client, ..held.clone() });
    }
    if !core.keyspace.events.is_empty() {
        publish::publish_events(core);
    }
    if !core.state.effects.is_heard() {
        return;
    }
    let apart = core.state.effects.begin_apart();
    core.state.effects.push(database, [&b"DEL"[..], key].into_iter());
    let pairs = former.fields.iter().flat_map(|(field, value)| [field.as_slice(), value]);
    let set: Vec<&[u8]> = [&b"HSET"[..], key].into_iter().chain(pairs).collect();
    core.state.effects.push(database, set.into_iter());
    if let Some(until) = until {
        let at_ms = format_i64(until.unix(core.keyspace.shown_offset_ms()).0);
        let expire = [&b"PEXPIREAT"[..], key, at_ms.as_ref()];
        core.state.effects.push(database, expire.into_iter());
    }
    core.state.effects.end_apart(apart);
}

/// Gives a reader the lease and the session that it had before a request of whose success nobody
/// will learn.
fn restore_reader(core: &mut Core, at: At<'_>, former: &Former, restored: &mut Restored) {
    let Some((_, held)) = former.holdings.first() else { return };
    let present = core.keyspace.locks.get(at).and_then(Held::until);
    // A renewal since then stays.
    let until = if present == former.replaced_by { held.until() } else { present };
    let (Some(present), Some(until)) = (present, until) else { return };
    let until = if core.keyspace.now().is_past(until) { present } else { until };
    let slot = core.keyspace.in_database(at.database, |keyspace| {
        let key = keyspace.key(at.key);
        keyspace.find_quietly(key)
    });
    if slot.is_none() {
        return;
    }
    let client = held.client.filter(|id| core.state.clients.get(*id).is_some());
    restored.insert(at.to_place(), client.is_none() && held.client.is_some());
    core.keyspace.locks.insert(at, Held { client, ..held.clone() });
    core.keyspace.locks.set_until(at, until);
    let apart = core.state.effects.begin_apart();
    readers::write(core, at, slot, Change::Renewed(present));
    core.state.effects.end_apart(apart);
    if !core.keyspace.events.is_empty() {
        publish::publish_events(core);
    }
}

/// Continues the sessions of what [`give_up`] has restored. Not before all is restored: a grace
/// would count as a renewal since then.
pub fn end_restoring(core: &mut Core, restored: Restored) {
    for (place, has_left) in restored {
        if has_left {
            sessions::grant_grace(core, place.at());
        } else {
            sessions::look_again(&mut core.keyspace, place.at());
        }
    }
    if !core.keyspace.events.is_empty() {
        publish::publish_events(core);
    }
}

/// Repeats a request, in a unit of its own unless one has begun.
fn push_apart(state: &mut State, database: DbIndex, request: &[&[u8]]) {
    let apart = state.effects.begin_apart();
    state.effects.push(database, request.iter().copied());
    state.effects.end_apart(apart);
}

/// Takes back one hold of a reentrant lock, whose grant was not confirmed.
pub fn take_hold_back(core: &mut Core, database: DbIndex, key: &[u8], grant: &Grant) {
    if core.state.is_read_only() {
        return;
    }
    let limits = lock_writer::limits(core);
    let left = core.keyspace.in_database(database, |keyspace| {
        let slot = keyspace.find_quietly(keyspace.key(key))?;
        let now = keyspace.now();
        let lock = lock::read(keyspace.entry(slot).value(), &now).ok()??;
        if !lock.is_held_by(&grant.owner, Some(grant.fence)) || lock.holds < 2 {
            return None;
        }
        let left = format_i64(lock.holds - 1);
        keyspace.change_lock(|keyspace| {
            keyspace.edit::<Hash, _>(slot, |hash| {
                hash.set(&grant.owner, left.as_ref(), Expiry::Clear, &limits, &now);
            });
            keyspace.changed(KeyspaceEvents::LOCK, "unlock", key);
        });
        Some(left)
    });
    if let Some(left) = left
        && core.state.effects.is_heard()
    {
        let request = [&b"HSET"[..], key, &grant.owner, left.as_ref()];
        push_apart(&mut core.state, database, &request);
    }
}

/// Publishes the message by which Redisson's clients learn that a lock was released. Without it,
/// they sleep until the end of the lease that they have seen. Not published if a client waits here,
/// because that client takes the lock.
pub fn tell_redisson(core: &mut Core, database: DbIndex, key: &[u8]) {
    let has_backlog = core.state.replication.backlog.is_some();
    if core.state.pubsub.is_silent() && !has_backlog
        || core.keyspace.waiting.first(database, key, Wanted::Lock).is_some()
    {
        return;
    }
    let channel = redisson_channel(key);
    let fair =
        first_of_fair_queue(core, database, key).map(|first| [&*channel, b":", &first].concat());
    for channel in [Some(channel), fair].into_iter().flatten() {
        publish::deliver(&mut core.state, Kind::Channel, &channel, b"0");
        if has_backlog && !core.state.replication.is_replica() {
            let apart = core.state.effects.begin_apart();
            effect::note_deletions(core);
            let request = [&b"PUBLISH"[..], &channel, b"0"];
            core.state.effects.push_message(database, request.into_iter());
            core.state.effects.end_apart(apart);
        }
    }
}

/// The client that Redisson's RFairLock serves next, which listens at a channel of its own: the
/// head of the list in which these clients wait for this key.
fn first_of_fair_queue(core: &Core, database: DbIndex, key: &[u8]) -> Option<Vec<u8>> {
    let queue = redisson_name(b"redisson_lock_queue:", key);
    let entry = core.keyspace.entry_quietly(database, &queue)?;
    Some(List::view(entry.value())?.get(0)?.text().as_ref().to_vec())
}

const REDISSON_CHANNELS: &[u8] = b"redisson_lock__channel:";

/// The channel of a lock's messages.
fn redisson_channel(key: &[u8]) -> Vec<u8> {
    redisson_name(REDISSON_CHANNELS, key)
}

/// A name of Redisson's that belongs to a key. A key with a hash tag is used as it is.
fn redisson_name(prefix: &[u8], key: &[u8]) -> Vec<u8> {
    match key.contains(&b'{') {
        true => [prefix, key].concat(),
        false => [prefix, b"{", key, b"}"].concat(),
    }
}

/// Publishes the same message for all locks of whole databases. It is not replicated: a replica
/// sends it to its own subscribers when it runs the request.
fn tell_redisson_of_all(core: &mut Core, gone: &Gone) {
    let is_literal = |byte: &u8| !b"*?[\\".contains(byte);
    let may_match = |pattern: &[u8]| {
        let literal: Vec<u8> = pattern.iter().copied().take_while(is_literal).collect();
        literal.starts_with(REDISSON_CHANNELS) || REDISSON_CHANNELS.starts_with(&literal)
    };
    let mut keys: Vec<(DbIndex, &[u8])> = if core.state.pubsub.names(Kind::Pattern).any(may_match) {
        gone.keys().collect()
    } else {
        // Subscribed channels are fewer than locks.
        let names = core.state.pubsub.names(Kind::Channel);
        let named = names.filter_map(|name| name.strip_prefix(REDISSON_CHANNELS));
        let keys = named.map(|name| match name {
            [b'{', key @ .., b'}'] if !key.contains(&b'{') => gone.find(key),
            _ => gone.find(name).filter(|_| name.contains(&b'{')),
        });
        keys.flatten().collect()
    };
    keys.sort_unstable();
    for (database, key) in keys {
        // A client that waits here takes the lock.
        if core.keyspace.waiting.first(database, key, Wanted::Lock).is_none() {
            publish::deliver(&mut core.state, Kind::Channel, &redisson_channel(key), b"0");
        }
    }
}

/// The push `lock-lost key fence reason`, for clients of RESP3. A push is no reply, so CLIENT REPLY
/// does not suppress it.
fn tell_holder(state: &mut State, key: &[u8], held: &Held, reason: EndReason) {
    let Some(client) = held.client else { return };
    let lost = LostLock { client, key: key.into(), fence: held.fence, reason };
    match state.scripts.running.is_some() {
        // It may be undone.
        true => state.in_script.lost_locks.push(lost),
        false => tell_lost(state, &lost),
    }
}

/// Notifies the holders of the locks that a script has ended, unless it was undone.
#[inline]
pub fn tell_lost_in_script(state: &mut State, is_undone: bool) {
    if state.in_script.lost_locks.is_empty() {
        return;
    }
    for lost in std::mem::take(&mut state.in_script.lost_locks) {
        if !is_undone {
            tell_lost(state, &lost);
        }
    }
}

fn tell_lost(state: &mut State, lost: &LostLock) {
    let id = lost.client;
    let is_told = |client: &Client| client.protocol == Protocol::Resp3;
    if !state.clients.get(id).is_some_and(is_told) {
        return;
    }
    let Some(client) = state.clients.get_to_push(id) else { return };
    let mut push = ReplyWriter::new(&mut client.output, Protocol::Resp3);
    push.push(4);
    push.bulk(b"lock-lost");
    push.bulk(&lost.key);
    push.integer(lost.fence as i64);
    push.bulk(lost.reason.name().as_bytes());
    limits::check_output_limit(state, id);
}

/// A holding that ends now.
#[derive(Clone, Copy)]
pub struct Ending<'a> {
    pub held: &'a Held,
    pub end: HoldingEnd,
    pub owner: &'a [u8],
}

/// Remembers a holding that ends now, and adds it to the latency monitor.
fn note_ended(core: &mut Core, at: At<'_>, ending: Ending<'_>) {
    let key = core.keyspace.key(at.key);
    note_ended_at(core, at.database, key, ending);
}

/// The same for a key whose hash is known.
pub fn note_ended_at(core: &mut Core, database: DbIndex, key: Key<'_>, ending: Ending<'_>) {
    note_holding(core, database, key, ending);
    if matches!(ending.end, HoldingEnd::Released | HoldingEnd::Lost(_)) {
        note_latency(&mut core.state, "lock-hold", ending.held.since_us);
    }
}

fn note_holding(core: &mut Core, database: DbIndex, key: Key<'_>, ending: Ending<'_>) {
    let Ending { held, end, owner } = ending;
    let held_us = (core.state.now.boot_us - held.since_us).max(0).unsigned_abs();
    let (fence, at_ms) = (held.fence, core.state.now.unix().0);
    let ended = Ended { fence, at_ms, held_us, end, owner };
    core.keyspace.locks.history.note_holding(database, key, ended);
}

/// Notes the time at which a lock that a client waits for became free, to measure the hand-over.
pub fn note_freed(core: &mut Core, database: DbIndex, key: &[u8]) {
    if !core.keyspace.waiting.is_empty()
        && core.keyspace.waiting.first(database, key, Wanted::Lock).is_some()
    {
        core.keyspace.locks.note_freed(database, key, core.state.clock.now().boot_us);
    }
}

/// Adds several holdings that began at the same time and end now to the latency monitor.
fn note_holds(state: &mut State, since_us: i64, count: u64) {
    note_latency(state, "lock-hold", since_us);
    let us = (state.now.boot_us - since_us).max(0);
    state.stats.durations.lock_hold.record_many_us(us.unsigned_abs(), count - 1);
}

/// Adds an event from `since_us` until now to the latency monitor, if it took long enough.
pub fn note_latency(state: &mut State, event: &'static str, since_us: i64) {
    let threshold_ms = state.config.latency_monitor_threshold;
    let us = (state.now.boot_us - since_us).max(0);
    match event {
        "lock-wait" => state.stats.durations.lock_wait.record_us(us.unsigned_abs()),
        _ => state.stats.durations.lock_hold.record_us(us.unsigned_abs()),
    }
    let ms = us / 1000;
    if threshold_ms > 0 && ms >= threshold_ms {
        let time = state.now.unix_seconds();
        state.stats.latency.add(event, time, ms as u64);
    }
}
