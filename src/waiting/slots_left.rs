//! Slots that have left this node: clients that wait for their keys are sent to the new owner,
//! watched keys have changed, and subscribers of their shard channels are told that the
//! subscription has ended.

use super::{confirm, end_with};
use crate::client::waits::{Answer, Wait};
use crate::client::{ClientFlags, ClientId};
use crate::cluster::Cluster;
use crate::collections::hash_slot::HashSlot;
use crate::gate::cluster::{Elsewhere, error, follows};
use crate::gate::limits;
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::pubsub::{Kind, Name};
use crate::resp::reply::ReplyWriter;
use crate::state::spec::Flags;
use crate::state::{Core, State};

/// Looks through the clients that wait for keys, watched keys and the subscribers of shard
/// channels, after slots have changed their owner or the cluster its state. O(waiting clients +
/// watched keys + shard channels).
pub fn recheck(core: &mut Core) {
    core.state.refresh_fast_path();
    let Some(cluster) = core.state.node.cluster.as_deref() else { return };
    let mut sent = Vec::new();
    for wait in core.state.waits.iter().filter(|wait| wait.answer != Answer::Kept) {
        if let Some(elsewhere) = ends_elsewhere(&core.state, cluster, wait) {
            sent.push((wait.ticket, elsewhere));
        }
    }
    let mut ended: Vec<Name> = Vec::new();
    for channel in core.state.pubsub.names(Kind::Shard) {
        if !serves(cluster, channel) {
            ended.push(channel.into());
        }
    }
    // A key may change at another owner before its slot comes back.
    core.keyspace.watch.note_changes(|key| {
        !serves(cluster, key) && cluster.importing_from(HashSlot::of(key)).is_none()
    });
    sent.into_iter().for_each(|(ticket, elsewhere)| send_away(core, ticket, elsewhere));
    ended.iter().for_each(|channel| end_subscriptions(&mut core.state, channel));
}

/// Sends those who wait for a lock or permits to the target of their slot's move by hand, if the
/// key is there by now: here they would be granted what others may hold there. False: it is not.
pub fn follow_key(core: &mut Core, database: DbIndex, name: &[u8]) -> bool {
    let Some(cluster) = core.state.node.cluster.as_deref() else { return false };
    if !cluster.has_open_slots() {
        return false;
    }
    let slot = HashSlot::of(name);
    let Some(target) = cluster.migrating_to(slot) else { return false };
    core.keyspace.select(database);
    let key = core.keyspace.key(name);
    if core.keyspace.find_quietly(key).is_some() {
        return false;
    }
    for wanted in [Wanted::Lock, Wanted::Semaphore] {
        let waits: Vec<Ticket> = core.keyspace.waiting.iter(database, name, wanted).collect();
        for ticket in waits {
            send_away(core, ticket, Elsewhere::Ask(slot, target));
        }
    }
    true
}

/// Ends a wait: its client is sent elsewhere.
fn send_away(core: &mut Core, ticket: Ticket, elsewhere: Elsewhere) {
    if ticket.is_for(Wanted::Confirmation) {
        return confirm::end_elsewhere(core, ticket, elsewhere);
    }
    let wait = core.state.waits.get(ticket);
    let client = wait.and_then(|wait| core.state.clients.get(wait.client));
    let text = error(&core.state, client, elsewhere).wire().into_owned();
    end_with(core, ticket, &text);
}

/// Where a client should wait instead. None: it may wait here.
fn ends_elsewhere(state: &State, cluster: &Cluster, wait: &Wait) -> Option<Elsewhere> {
    // All keys are in one slot.
    if let Some(grant) = wait.grant() {
        let elsewhere = waits_elsewhere(cluster, grant.keys.first()?, false);
        return elsewhere.filter(|elsewhere| matches!(elsewhere, Elsewhere::Moved(..)));
    }
    let (_, key) = wait.keys().next()?;
    let writes = state.commands.get(wait.command).is(Flags::WRITE);
    let client = state.clients.get(wait.client);
    let reads = client.is_some_and(|client| client.flags.contains(ClientFlags::READS_HERE));
    waits_elsewhere(cluster, key, reads && !writes)
}

fn waits_elsewhere(cluster: &Cluster, key: &[u8], reads_here: bool) -> Option<Elsewhere> {
    // Even if reads are served: only a write would end the wait.
    if !cluster.is_ok() {
        return Some(Elsewhere::Down);
    }
    let slot = HashSlot::of(key);
    let Some(owner) = cluster.owner(slot) else { return Some(Elsewhere::Unserved) };
    let is_here = owner == cluster.my_index()
        || reads_here && follows(cluster, owner)
        || cluster.importing_from(slot).is_some();
    (!is_here).then_some(Elsewhere::Moved(slot, owner))
}

/// Whether a shard channel, or a key for readers, is served here: by the slot's owner and its
/// replicas.
fn serves(cluster: &Cluster, name: &[u8]) -> bool {
    let owner = cluster.owner(HashSlot::of(name));
    owner.is_some_and(|owner| owner == cluster.my_index() || follows(cluster, owner))
}

/// Ends all subscriptions to a shard channel, with a message to each subscriber.
fn end_subscriptions(state: &mut State, channel: &[u8]) {
    let listeners: Vec<ClientId> = state.pubsub.listeners(Kind::Shard, channel).to_vec();
    for id in listeners {
        let State { pubsub, clients, .. } = &mut *state;
        let Some(client) = clients.get_to_push(id) else { continue };
        let Some(own) = client.subscriptions.as_deref_mut() else { continue };
        pubsub.unsubscribe(Kind::Shard, own, id, channel);
        let mut reply = ReplyWriter::new(&mut client.output, client.protocol);
        reply.push(3);
        reply.bulk(b"sunsubscribe");
        reply.bulk(channel);
        reply.integer(own.count(Kind::Shard) as i64);
        if own.is_empty() {
            client.subscriptions = None;
            client.flags.remove(ClientFlags::SUBSCRIBED);
        }
        limits::check_output_limit(state, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::node::{NodeFlags, NodeId};
    use crate::cluster::settings::Settings;

    #[test]
    fn waits_and_subscriptions_go_with_their_slot() {
        let id = |digit: u8| NodeId::from_bytes(&[digit; NodeId::BYTES]).expect("a name");
        let mut cluster = Cluster::new(id(b'0'), Settings::default(), 1);
        let other = cluster.add_for_test(id(b'1'), NodeFlags::PRIMARY);
        let (slot, myself) = (HashSlot::of(b"k"), cluster.my_index());
        let waits = |cluster: &Cluster, reads| waits_elsewhere(cluster, b"k", reads);
        cluster.own_for_test(slot, Some(myself));
        assert_eq!(waits(&cluster, true), Some(Elsewhere::Down));
        cluster.set_ok_for_test(true);
        assert_eq!((waits(&cluster, false), serves(&cluster, b"k")), (None, true));
        cluster.own_for_test(slot, None);
        assert_eq!(waits(&cluster, false), Some(Elsewhere::Unserved));
        assert!(!serves(&cluster, b"k"));
        cluster.own_for_test(slot, Some(other));
        assert_eq!(waits(&cluster, true), Some(Elsewhere::Moved(slot, other)));
        assert!(!serves(&cluster, b"k"));
        // A replica serves readers and subscribers, no command that would take an element.
        cluster.follow_for_test(other);
        assert_eq!((waits(&cluster, true), serves(&cluster, b"k")), (None, true));
        assert_eq!(waits(&cluster, false), Some(Elsewhere::Moved(slot, other)));
        cluster.open_for_test(slot, None, Some(other));
        assert_eq!(waits(&cluster, false), None);
    }
}
