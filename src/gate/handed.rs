//! Takes back what was handed to clients that are closed before the reply has left: elements and
//! permits of [`crate::client::handed`]. Locks are taken back by `gate/locks.rs`.
//!
//! Elements go back to the end from which they were taken, and members with their scores, unless
//! they have been added again in the meantime. Other waiting clients are served in the next turn.
//! BLMOVE, BLMOVEM, BRPOPLPUSH, BZMOVE and BZMOVEDUE lose nothing: the elements are in the
//! destination.

use crate::client::ClientId;
use crate::client::handed::{Handed, What};
use crate::clock::Deadline;
use crate::collections::hash_slot::HashSlot;
use crate::config::KeyspaceEvents;
use crate::gate::{effect, permits, publish};
use crate::keyspace::DatabaseKey;
use crate::resp::number;
use crate::resp::owned::OwnedRequest;
use crate::resp::reply::scalars;
use crate::state::Core;
use crate::types::Collection;
use crate::types::journal::Edit;
use crate::types::list::{self, End, List};
use crate::types::sorted_set::{self, SortedSet};

/// Notes the new permits of a client.
pub fn note_permits(
    core: &mut Core,
    client: ClientId,
    at: DatabaseKey<'_>,
    permits: Vec<Box<[u8]>>,
) {
    if core.state.handed.has_many() {
        let keyspace = &core.keyspace;
        core.state.handed.retain_permits(|_, database, key, permit| {
            let entry = keyspace.entry_quietly(database, key);
            let set = entry.and_then(|entry| SortedSet::view(entry.value()));
            set.is_some_and(|set| set.score(permit).is_some())
        });
    }
    let what = What::Permits { database: at.database, key: at.key.into(), permits };
    core.state.handed.push(Handed { client, sent_at: None, what });
}

/// A client learns of these permits, which may have been handed to another one before.
pub fn know_permits(core: &mut Core, client: ClientId, at: DatabaseKey<'_>, known: &[&[u8]]) {
    if !known.is_empty() && !core.state.handed.is_empty() {
        core.state.handed.retain_permits(|its_client, database, key, permit| {
            its_client == client || at != DatabaseKey { database, key } || !known.contains(&permit)
        });
    }
}

/// At the end of a turn: takes back what was handed to clients that were closed before the reply
/// had left.
pub fn take_back(core: &mut Core) {
    if core.state.handed.is_empty() {
        return;
    }
    let mut kept = Vec::new();
    for mut handed in core.state.handed.take() {
        match core.state.clients.get(handed.client) {
            Some(client) => {
                let after_reply = client.bytes_out + client.output.len() as u64;
                if client.bytes_out < *handed.sent_at.get_or_insert(after_reply) {
                    kept.push(handed);
                }
            }
            None if core.state.clients.informed.contains(&handed.client) => {}
            // The primary, or the node that this server is about to follow, decides.
            None if core.state.is_read_only() => {}
            None if core.state.takes_nothing_back() => kept.push(handed),
            None => take_back_one(core, &handed),
        }
    }
    core.state.handed.give(kept);
    if !core.keyspace.events.is_empty() {
        publish::publish_events(core);
    }
}

fn take_back_one(core: &mut Core, handed: &Handed) {
    let (wait, reply, deadline) = match &handed.what {
        What::Served { wait, reply, deadline } => (wait, reply, *deadline),
        What::Permits { database, key, permits } => {
            return give_permits_back(core, DatabaseKey { database: *database, key }, permits);
        }
        What::Renewed(renewed) => return permits::take_renewal_back(core, handed.client, renewed),
    };
    let encoded = reply.whole();
    let scalars = scalars(&encoded);
    let Some((key, elements)) = scalars.split_first() else { return };
    if !is_here(core, key) {
        return;
    }
    let taken = Taken { at: DatabaseKey { database: wait.database, key }, elements, deadline };
    match core.state.commands.get(wait.command).spec.name {
        "BLPOP" => push_back(core, &taken, End::Front),
        "BRPOP" => push_back(core, &taken, End::Back),
        "BLMPOP" => push_back(core, &taken, named_end(&wait.request)),
        "BZPOPMIN" | "BZPOPMAX" | "BZMPOP" | "BZPOPDUE" => add_back(core, &taken),
        _ => {}
    }
}

/// Whether this server has the key's slot.
fn is_here(core: &Core, key: &[u8]) -> bool {
    let cluster = core.state.node.cluster.as_deref();
    !core.keyspace.is_hidden(key) && cluster.is_none_or(|cluster| cluster.owns(HashSlot::of(key)))
}

/// The end that BLMPOP names after its keys.
fn named_end(request: &OwnedRequest) -> End {
    let keys = request.iter().nth(2).and_then(number::parse_i64);
    let keys = keys.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
    let word = request.iter().nth(3 + keys);
    match word.is_some_and(|word| word.eq_ignore_ascii_case(b"RIGHT")) {
        true => End::Back,
        false => End::Front,
    }
}

/// What a client was handed of a collection.
struct Taken<'a> {
    at: DatabaseKey<'a>,
    /// In the order of the reply; those of a sorted set each with its score after it.
    elements: &'a [&'a [u8]],
    /// The key's deadline before.
    deadline: Option<Deadline>,
}

/// Puts elements back to the end from which they were taken in this order.
fn push_back(core: &mut Core, taken: &Taken<'_>, end: End) {
    let limits = list::Limits::from_setting(core.state.config.list_max_listpack_size);
    let (event, command) = match end {
        End::Front => ("lpush", &b"LPUSH"[..]),
        End::Back => ("rpush", &b"RPUSH"[..]),
    };
    let elements = || taken.elements.iter().rev().copied();
    let push = |list: &mut Edit<'_, List>| {
        elements().for_each(|element| list.push(end, element, &limits));
        (KeyspaceEvents::LIST, event, taken.elements.len())
    };
    let Some(is_new) = change(core, taken, push) else { return };
    let request = [command, taken.at.key].into_iter().chain(elements());
    repeat(core, taken, &request.collect::<Vec<_>>(), is_new);
}

/// Puts members back, unless they have been added again.
fn add_back(core: &mut Core, taken: &Taken<'_>) {
    let config = &core.state.config;
    let limits = sorted_set::Limits {
        entries: config.zset_max_listpack_entries,
        value: config.zset_max_listpack_value,
    };
    let members = || taken.elements.chunks_exact(2);
    let add = |set: &mut Edit<'_, SortedSet>| {
        for pair in members() {
            set.update(pair[0], limits, |old| match old {
                None => number::parse_f64(pair[1]),
                Some(_) => None,
            });
        }
        (KeyspaceEvents::ZSET, "zadd", members().len())
    };
    let Some(is_new) = change(core, taken, add) else { return };
    let mut request = vec![&b"ZADD"[..], taken.at.key, b"NX"];
    request.extend(members().flat_map(|pair| [pair[1], pair[0]]));
    repeat(core, taken, &request, is_new);
}

/// Changes the collection from which elements were taken, or a new one with its deadline. `edit`
/// returns the event, and the number of changes. Returns whether the collection is new. None:
/// nothing has changed, as the key has another type or would have expired.
fn change<C: Collection + Default>(
    core: &mut Core,
    taken: &Taken<'_>,
    edit: impl FnOnce(&mut Edit<'_, C>) -> (KeyspaceEvents, &'static str, usize),
) -> Option<bool> {
    core.keyspace.in_database(taken.at.database, |keyspace| {
        let key = keyspace.key(taken.at.key);
        let slot = keyspace.slot_of::<C>(key).ok()?;
        let (class, event, count) = match slot {
            Some(slot) => keyspace.edit::<C, _>(slot, edit),
            None if taken.deadline.is_some_and(|deadline| keyspace.now().is_past(deadline)) => {
                return None;
            }
            None => {
                let mut collection = C::default();
                let changed = edit(&mut Edit::unnoted(&mut collection));
                keyspace.insert_collection_until(key, collection, taken.deadline);
                changed
            }
        };
        keyspace.changed_by(count as u64, class, event, taken.at.key);
        Some(slot.is_none())
    })
}

/// Repeats a request in a unit of its own, with the key's deadline if the key is new.
fn repeat(core: &mut Core, taken: &Taken<'_>, request: &[&[u8]], is_new: bool) {
    if !core.state.effects.is_heard() {
        return;
    }
    let DatabaseKey { database, key } = taken.at;
    let apart = core.state.effects.begin_apart();
    effect::note_deletions(core);
    core.state.effects.push(database, request.iter().copied());
    if let Some(deadline) = taken.deadline.filter(|_| is_new) {
        let at_ms = number::format_i64(deadline.unix(core.keyspace.shown_offset_ms()).0);
        core.state.effects.push(database, [&b"PEXPIREAT"[..], key, at_ms.as_ref()].into_iter());
    }
    core.state.effects.end_apart(apart);
}

/// Removes permits of which no client has learnt.
fn give_permits_back(core: &mut Core, at: DatabaseKey<'_>, given: &[Box<[u8]>]) {
    permits::remove(core, at, "semrelease", |view| {
        let held = given.iter().filter(|permit| view.score(permit).is_some());
        held.map(|permit| permit.to_vec()).collect()
    });
}
