//! Locks that end other than by a LOCK command: found before the next request runs, and told to who held them.

use crate::client::{ClientFlags, ClientId};
use crate::config::KeyspaceEvents;
use crate::gate::{effect, limits, publish};
use crate::keyspace::Keyspace;
use crate::keyspace::locks::{End, EndReason, Granted};
use crate::keyspace::waiting::Wanted;
use crate::pubsub::Kind;
use crate::resp::reply::{Protocol, ReplyWriter};
use crate::state::State;
use crate::types::lock;

/// Compares indexed locks whose keys have changed with the index. Those that are gone have been lost.
pub fn review(keyspace: &mut Keyspace, state: &mut State) {
    if !keyspace.locks.has_changed() {
        return;
    }
    for (database, key, is_expired) in keyspace.locks.take_changed() {
        let Some(fence) = keyspace.locks.get(database, &key).map(|held| held.fence) else {
            continue;
        };
        let found = keyspace.in_database(database, |keyspace| {
            let slot = keyspace.find_quietly(keyspace.key(&key))?;
            let found = lock::read(keyspace.entry(slot).value(), &keyspace.now());
            Some(found.ok().flatten().and_then(|lock| lock.fence))
        });
        let reason = match found {
            Some(found) if found == Some(fence) => continue,
            Some(_) => EndReason::Overwritten,
            None if is_expired => EndReason::Expired,
            None => EndReason::Deleted,
        };
        end(keyspace, state, database, &key, reason);
    }
}

/// Takes a lost lock out of the index, announces it, and tells the client that asked for it. A replica only follows its
/// primary, which tells.
pub fn end(
    keyspace: &mut Keyspace,
    state: &mut State,
    database: usize,
    key: &[u8],
    reason: EndReason,
) {
    let Some(held) = keyspace.locks.remove(database, key) else { return };
    if state.replication.is_replica() || state.persistence.loading.is_some() {
        return;
    }
    if held.is_kept {
        return tell_redisson(keyspace, state, database, key);
    }
    let at_ms = state.now.unix().0;
    keyspace.locks.note_end(End { database, key: key.into(), fence: held.fence, reason, at_ms });
    keyspace.in_database(database, |keyspace| {
        keyspace.notify(KeyspaceEvents::LOCK, "locklost", key);
    });
    if !keyspace.events.is_empty() {
        publish::publish_events(keyspace, state);
    }
    note_hold(state, held.since_us);
    if reason != EndReason::Overwritten {
        tell_redisson(keyspace, state, database, key);
    }
    if let Some(id) = held.client {
        tell_holder(state, id, key, held.fence, reason);
    }
}

/// At the end of a turn: takes back what was granted to clients that were closed before the reply had left. Waiting clients
/// are served in the next turn.
pub fn take_back(keyspace: &mut Keyspace, state: &mut State) {
    if !keyspace.locks.has_granted() {
        return;
    }
    let mut lost = Vec::new();
    keyspace.locks.retain_granted(|database, key, granted| {
        let Some(client) = state.clients.get(granted.client) else {
            lost.push((database, key.to_vec(), granted.clone()));
            return false;
        };
        let after_reply = client.bytes_out + client.output.len() as u64;
        client.bytes_out < *granted.sent_at.get_or_insert(after_reply)
    });
    for (database, key, granted) in lost {
        give_up(keyspace, state, database, &key, &granted);
    }
}

/// Deletes a lock whose owner will never know that it was granted.
fn give_up(
    keyspace: &mut Keyspace,
    state: &mut State,
    database: usize,
    key: &[u8],
    granted: &Granted,
) {
    let held = keyspace.locks.get(database, key);
    // Nobody else has asked for it since.
    let is_held = held.is_some_and(|held| {
        held.fence == granted.fence && held.client.is_none_or(|id| id == granted.client)
    });
    if !is_held || state.is_read_only() {
        return;
    }
    keyspace.locks.remove(database, key);
    keyspace.in_database(database, |keyspace| {
        keyspace.delete(keyspace.key(key), "del");
        keyspace.notify(KeyspaceEvents::LOCK, "unlock", key);
    });
    if state.effects.is_heard() {
        state.effects.push(database, [&b"DEL"[..], key].into_iter());
        state.effects.end_unit();
    }
    if !keyspace.events.is_empty() {
        publish::publish_events(keyspace, state);
    }
    tell_redisson(keyspace, state, database, key);
}

/// Publishes the message by which Redisson's lock tells its waiting clients that it was released: they sleep until it comes, or
/// until the lease ends that they have seen. Not if a client waits here, which takes the lock.
pub fn tell_redisson(keyspace: &mut Keyspace, state: &mut State, database: usize, key: &[u8]) {
    let has_backlog = state.replication.backlog.is_some();
    if state.pubsub.is_silent() && !has_backlog
        || keyspace.waiting.next_after(database, key, Wanted::Lock, 0).is_some()
    {
        return;
    }
    let mut channel = b"redisson_lock__channel:".to_vec();
    // Where the key has a hash tag, the channel has the same.
    match key.contains(&b'{') {
        true => channel.extend_from_slice(key),
        false => channel.extend([b"{", key, b"}"].concat()),
    }
    publish::deliver(state, Kind::Channel, &channel, b"0");
    if has_backlog && !state.replication.is_replica() {
        let is_apart = state.effects.is_between_units();
        effect::note_deletions(keyspace, state);
        let request = [&b"PUBLISH"[..], &channel, b"0"];
        state.effects.push_message(database, request.into_iter());
        if is_apart {
            state.effects.end_unit();
        }
    }
}

/// The push `lock-lost key fence reason`, for clients of RESP3.
fn tell_holder(state: &mut State, id: ClientId, key: &[u8], fence: u64, reason: EndReason) {
    let Some(client) = state.clients.get_to_push(id) else { return };
    if client.protocol != Protocol::Resp3 || client.flags.intersects(ClientFlags::REPLY_OFF) {
        return;
    }
    let mut push = ReplyWriter::new(&mut client.output, Protocol::Resp3);
    push.push(4);
    push.bulk(b"lock-lost");
    push.bulk(key);
    push.integer(fence as i64);
    push.bulk(reason.name().as_bytes());
    limits::check_output_limit(state, id);
}

/// Adds a holding that ends now to the latency monitor. `since_us`: when it began, boot-time clock.
pub fn note_hold(state: &mut State, since_us: i64) {
    note_latency(state, "lock-hold", since_us);
}

/// Adds what began at `since_us` and ends now to the latency monitor, if it took long enough.
pub fn note_latency(state: &mut State, event: &'static str, since_us: i64) {
    let threshold_ms = state.config.latency_monitor_threshold;
    let ms = (state.now.boot_us - since_us) / 1000;
    if threshold_ms > 0 && ms >= threshold_ms {
        let time = state.now.unix_seconds();
        state.stats.latency.add(event, time, ms as u64);
    }
}
