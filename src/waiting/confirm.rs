//! Grants of locks that replicas have to acknowledge before the reply leaves: LOCK commands with
//! REPLICAS.
//!
//! The grant is made and repeated at once; only its answer waits. If too few replicas acknowledge
//! the grant in time, it is taken back. Further grants that need as many replicas are not tried
//! until that number has acknowledged the failed grant's offset: otherwise each waiting client in
//! turn would hold the lock in vain until its timeout.

use super::pushes::{push, push_failed};
use super::{acks, answer, end};
use crate::client::acks::{Confirmed, Grant};
use crate::client::waits::{Answer, Wait};
use crate::clock::Due;
use crate::collections::hash_slot::HashSlot;
use crate::error::CommandError;
use crate::gate::cluster::{self, Elsewhere};
use crate::gate::locks;
use crate::keyspace::locks::{At, Granted, Held};
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::keyspace::{DbIndex, Keyspace};
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::state::{Core, State};
use crate::types::lock;

const LOST: CommandError =
    CommandError::Text("NOREPLICAS the lock was lost before replicas had acknowledged it");

/// Whether grants that need this number of replicas wait: fewer replicas have acknowledged an
/// earlier grant that failed.
pub fn holds_back(state: &State, replicas: i64) -> bool {
    state.waits.failed.is_some_and(|(_, count)| count < replicas)
}

/// Answers the grants that enough replicas have acknowledged, and takes back those that too few
/// have acknowledged in time.
pub fn serve(core: &mut Core) {
    take_back_given_up(core);
    retry(core);
    let mut confirmed = Vec::new();
    for (ticket, grant) in pending(&core.state) {
        let count = acks::count(&core.state, grant.offset, false);
        if count >= grant.replicas {
            confirmed.push(ticket);
        } else if count == 0 {
            // Later grants have later offsets.
            break;
        }
    }
    for ticket in confirmed {
        confirm(core, ticket);
    }
    // A grant whose time ends during a pause is taken back when the pause is over, unless replicas
    // have acknowledged it by then.
    while !core.state.takes_nothing_back()
        && let Some(ticket) = core.state.waits.confirmations.overdue(core.state.now.boot_us)
        && let Some(wait) = end(core, ticket)
    {
        take_back(core, &wait);
        send(core, &wait, Err(acks::NO_REPLICAS));
    }
}

/// The grants that replicas have to acknowledge, in the order of their offsets.
fn pending(state: &State) -> impl Iterator<Item = (Ticket, &Grant)> {
    let waits = state.waits.of(Wanted::Confirmation);
    waits.filter_map(|wait| Some((wait.ticket, wait.grant()?)))
}

/// When [`serve`] has to take a grant back.
pub fn due(state: &State) -> Due {
    Due::at(state.waits.confirmations.next_us().filter(|_| !state.takes_nothing_back()))
}

/// Retries the clients that were held back, once a further replica has acknowledged the failed
/// grant.
fn retry(core: &mut Core) {
    let Some((offset, before)) = core.state.waits.failed else { return };
    let count = acks::count(&core.state, offset, false);
    core.state.waits.failed = Some((offset, count));
    if count > before {
        core.keyspace.waiting.retry_held_back();
    }
}

/// Sends the answer of a grant or renewal.
fn confirm(core: &mut Core, ticket: Ticket) {
    let Some(wait) = end(core, ticket) else { return };
    let Some(grant) = wait.grant() else { return };
    let Some(ms_left) = ms_left(&mut core.keyspace, wait.database, grant) else {
        core.keyspace.locks.stats.no_replicas += 1;
        return send(core, &wait, Err(LOST));
    };
    for key in &grant.taken {
        let at = place(&core.keyspace, (wait.database, key), grant);
        core.keyspace.locks.note_granted(at, grant.fence, wait.client);
    }
    for (key, former) in &grant.former {
        let (at, former) = (At::key(wait.database, key), Some(former.clone()));
        core.keyspace.locks.note_granted_again(at, grant.fence, wait.client, former);
    }
    send(core, &wait, Ok(ms_left));
}

/// Ends a wait whose locks have moved to another server, where the grant is valid: the client asks
/// there again, and gets the same fence.
pub fn end_elsewhere(core: &mut Core, ticket: Ticket, elsewhere: Elsewhere) {
    let Some(wait) = end(core, ticket) else { return };
    let Some(grant) = wait.grant() else { return };
    // The client does not know of the grant, so it must not be told of the move.
    for key in &grant.taken {
        let at = place(&core.keyspace, (wait.database, key), grant).to_place();
        core.keyspace.locks.bind(at.at(), None);
    }
    let error = cluster::error(&core.state, core.state.clients.get(wait.client), elsewhere);
    send(core, &wait, Err(error));
}

/// Ends the wait for a grant of a lock that has just moved to another node by MIGRATE, if there is
/// one: its client is sent after it.
pub fn follow(core: &mut Core, database: DbIndex, key: &[u8]) {
    if core.state.waits.len_of(Wanted::Confirmation) == 0 {
        return;
    }
    let Some(cluster) = core.state.node.cluster.as_deref() else { return };
    let slot = HashSlot::of(key);
    let Some(target) = cluster.migrating_to(slot) else { return };
    let is_it = |wait: &&Wait| wait.database == database && wait.names().contains(&key);
    let found = core.state.waits.of(Wanted::Confirmation).filter(is_it);
    let found: Vec<Ticket> = found.map(|wait| wait.ticket).collect();
    for ticket in found {
        end_elsewhere(core, ticket, Elsewhere::Ask(slot, target));
    }
}

/// Takes back grants for which clients no longer wait. Not during a pause: the next turn tries
/// again.
pub fn take_back_given_up(core: &mut Core) {
    if core.state.takes_nothing_back() {
        return;
    }
    for wait in std::mem::take(&mut core.state.waits.given_up) {
        take_back(core, &wait);
    }
}

fn take_back(core: &mut Core, wait: &Wait) {
    let Some(grant) = wait.grant() else { return };
    let stats = &mut core.keyspace.locks.stats;
    match &grant.confirmed {
        Confirmed::Renewal(_) => stats.renewals_unconfirmed += 1,
        Confirmed::Lock { .. } | Confirmed::Locks => stats.no_replicas += 1,
    }
    let count = acks::count(&core.state, grant.offset, false);
    if count < grant.replicas {
        let failed = &mut core.state.waits.failed;
        if failed.is_none_or(|(offset, _)| offset <= grant.offset) {
            *failed = Some((grant.offset, count));
        }
    }
    let Wait { client, database, .. } = *wait;
    let granted = Granted { client, fence: grant.fence, sent_at: None, former: None };
    let mut restored = locks::Restored::new();
    for key in &grant.taken {
        let at = place(&core.keyspace, (database, key), grant);
        locks::give_up(core, at, &granted, &mut restored);
    }
    for (key, former) in &grant.former {
        let granted = Granted { former: Some(former.clone()), ..granted.clone() };
        locks::give_up(core, At::key(database, key), &granted, &mut restored);
    }
    locks::end_restoring(core, restored);
    if grant.counted_hold && grant.former.is_empty() {
        for key in &grant.keys {
            locks::take_hold_back(core, database, key, grant);
        }
    }
}

/// The place of a granted lock in the index: that of a reader, or that of an exclusive owner.
fn place<'a>(
    keyspace: &Keyspace,
    (database, key): (DbIndex, &'a [u8]),
    grant: &'a Grant,
) -> At<'a> {
    let reader = At::reader(database, key, &grant.owner);
    let held = keyspace.locks.get(reader);
    match held.is_some_and(|held| held.fence == grant.fence) {
        true => reader,
        false => At::key(database, key),
    }
}

/// The milliseconds left of the granted lease that ends first. None: one of the locks is lost. 0
/// for a renewal, whose reply does not show it.
fn ms_left(keyspace: &mut Keyspace, database: DbIndex, grant: &Grant) -> Option<i64> {
    if matches!(grant.confirmed, Confirmed::Renewal(_)) {
        return Some(0);
    }
    keyspace.in_database(database, |keyspace| {
        let mut least = i64::MAX;
        for key in &grant.keys {
            let slot = keyspace.find_quietly(keyspace.key(key))?;
            let now = keyspace.now();
            let entry = keyspace.entry(slot);
            let lock = lock::read_for(entry.value(), &now, &grant.owner).ok()??;
            if !lock.is_held_by(&grant.owner, Some(grant.fence)) {
                return None;
            }
            let held = keyspace.locks.get(place(keyspace, (database, key), grant));
            let deadline = held.and_then(Held::until).or(entry.deadline());
            let left = deadline.map_or(-1, |deadline| now.remaining_ms(deadline).max(0));
            least = least.min(left);
        }
        Some(least)
    })
}

/// Sends the reply or the push message: the milliseconds left of the lease, or an error.
fn send(core: &mut Core, wait: &Wait, result: Result<i64, CommandError>) {
    let Some(grant) = wait.grant() else { return };
    let state = &mut core.state;
    if let Err(error) = &result {
        state.stats.count_error(&error.wire());
    }
    match (wait.answer, result) {
        (Answer::Reply, result) => {
            let Some(client) = state.clients.get(wait.client) else { return };
            let mut output = OutputBuffer::default();
            let mut reply = ReplyWriter::new(&mut output, client.protocol);
            match result {
                Err(error) => reply.error(error.wire()),
                Ok(ms_left) => grant.write_reply(&mut reply, ms_left),
            }
            answer(state, wait.client, &output);
        }
        (_, Ok(ms_left)) => push(state, wait.client, |push| grant.write_push(push, ms_left)),
        (_, Err(error)) => push_failed(state, wait, &error.wire()),
    }
}
