//! A node of a cluster: what the loop does for the state machine (`crate::cluster`).
//!
//! ```text
//! sockets -> whole messages, time, ends of connections -> the state machine -> actions
//!   actions -> messages and connections; nodes.conf; following or leading; deleted keys; messages to subscribers
//! ```
//!
//! [`turn`] takes in the messages of other nodes, before the clients' requests; [`end_turn`]
//! carries out the actions that the state machine and commands ask for. In a nested turn, while a
//! script or a loading keeps the server busy, other nodes are answered, but data and role do not
//! change: the turn itself does that.
//!
//! - `settings` are the parameters, `links` the connections, `file` is nodes.conf, `lists` has
//!   the names of the keys of each slot when they are needed, `keys` deletes the keys of slots that
//!   this node has lost.

use crate::clock::Due;
use crate::cluster::action::{Action, Event};
use crate::cluster::node::NodeId;
use crate::cluster::{Cluster, config_file};
use crate::collections::hash_slot::SlotSet;
use crate::config::PrimaryAddress;
use crate::gate::cluster::is_as_valkey;
use crate::gate::publish::deliver;
use crate::keyspace::DbIndex;
use crate::pubsub::Kind;
use crate::replication::replica::Replica;
use crate::resp::request::encode;
use crate::roles::following;
use crate::state::{Core, Pause, PauseCause, State, ThisNode};
use crate::sys::log::{notice, warning};
use crate::sys::random;
use crate::waiting::slots_left;

mod file;
mod keys;
mod links;
pub mod lists;
mod settings;

pub use keys::{add as drop_keys, hear as hear_drops, is_dropping};
pub use links::{bus_port, listen, take_in_link};

/// Interval at which the state machine learns the time. Unit: microseconds.
const TICK_US: i64 = 100_000;

/// Interval at which other nodes are answered in a script. Unit: microseconds.
const IN_SCRIPT_US: i64 = 25_000;

/// When [`turn`] or [`end_turn`] have work without an event.
pub fn due(state: &State) -> Due {
    let Some(cluster) = &state.node.cluster else { return Due::NEVER };
    let has_work = cluster.wants_turn()
        || state.net.bus.has_work()
        || !state.node.actions.is_empty()
        || !state.node.work.held.is_empty()
        || keys::has_work(state)
        || lists::has_work(state);
    if has_work { Due::NOW } else { Due::at(next_tick_us(state)) }
}

/// The next tick, on the boot-time clock, in microseconds. Ticks that would find nothing to do are
/// left out; the others come when they would come anyway.
fn next_tick_us(state: &State) -> Option<i64> {
    let due_us = state.node.cluster.as_ref()?.due_ms().saturating_mul(1000);
    let tick_us = state.node.work.next_tick_us;
    let is_saving = state.node.work.file.as_ref().is_some_and(|file| !file.is_idle());
    if due_us <= tick_us || is_saving || links::has_periodic_work(state) {
        return Some(tick_us);
    }
    let ticks = (due_us - tick_us).unsigned_abs().div_ceil(TICK_US.unsigned_abs());
    Some(tick_us.saturating_add_unsigned(ticks.saturating_mul(TICK_US.unsigned_abs())))
}

/// Puts the next tick into the turn of the server's next periodic work, `next_us`, so that one wake
/// serves both. That comes every `period_us`.
pub fn tick_with_periodic(state: &mut State, next_us: i64, period_us: i64) {
    let tick_us = &mut state.node.work.next_tick_us;
    if period_us <= TICK_US && *tick_us < next_us + period_us {
        *tick_us = next_us;
    }
}

/// A cluster of this node alone, with a new name.
pub fn alone(state: &State) -> Cluster {
    let id = NodeId::from_bytes(random::hex_id().as_bytes()).expect("40 hexadecimal digits");
    Cluster::new(id, settings::of(state), random::number())
}

/// Reads nodes.conf, or begins anew without one. Errors: a text for the log; the server must not
/// start.
pub fn begin(state: &mut State) -> Result<(), String> {
    let text = file::open(state)?;
    if text.is_empty() {
        let cluster = alone(state);
        notice!(state, "No cluster configuration found, I'm {}", cluster.myself().id);
        state.node.cluster = Some(Box::new(cluster));
    } else {
        let corrupt = |why: &str| {
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            format!("Unrecoverable error: corrupted cluster config file{why}.")
        };
        let conf = config_file::parse(&text).map_err(|error| corrupt(&error.to_string()))?;
        let cluster = Cluster::restore(&conf, settings::of(state), random::number());
        let cluster = cluster.ok_or_else(|| corrupt("no line of this node"))?;
        notice!(state, "Node configuration loaded, I'm {}", cluster.myself().id);
        state.node.cluster = Some(Box::new(cluster));
    }
    let outside = state.outside();
    let ThisNode { cluster, actions, .. } = &mut state.node;
    if let Some(cluster) = cluster {
        cluster.before_sleep(&outside, actions);
    }
    // If the file cannot be written, the start fails now.
    carry_out_outside(state);
    file::save_first(state)
}

/// Passes changed parameters to the state machine.
pub fn refresh_settings(state: &mut State) {
    let settings = settings::of(state);
    if let Some(cluster) = &mut state.node.cluster {
        cluster.set_settings(settings);
    }
}

/// Checks the loaded keys against the cluster. Errors: a text for the log; the server must not
/// start.
pub fn loaded(core: &mut Core) -> Result<(), String> {
    if core.state.node.cluster.is_none() {
        return Ok(());
    }
    core.state.net.bus.accept_postponed();
    let is_foreign = |database| !core.keyspace.table_of(database).is_empty();
    if core.state.config.cluster_databases == 1
        && DbIndex::all(core.keyspace.databases()).skip(1).any(is_foreign)
    {
        return Err(
            "You can't have keys in a DB different than DB 0 when in Cluster mode. Exiting.".into(),
        );
    }
    claim_loaded(core);
    Ok(())
}

/// Takes each slot that has loaded keys, if no node owns it. If another node does, the slot is set
/// to importing from it.
fn claim_loaded(core: &mut Core) {
    let Some(cluster) = &mut core.state.node.cluster else { return };
    if cluster.myself().is_replica() {
        return;
    }
    let drops = core.state.node.work.slots_to_empty.as_ref();
    for slot in core.keyspace.slots_with_keys().iter() {
        let is_owned = cluster.owner(slot).is_some();
        let is_leaving = is_owned && drops.is_some_and(|drops| drops.contains(slot));
        let is_moving = core.state.node.moves.jobs.imports(slot) || is_leaving;
        if is_moving || cluster.owns(slot) || cluster.importing_from(slot).is_some() {
            continue;
        }
        let number = slot.number();
        let text = match cluster.claim_loaded(slot) {
            true => {
                format!("I have keys for unassigned slot {number}. Taking responsibility for it.")
            }
            false => format!(
                "I have keys for slot {number}, but the slot is assigned to another node. Setting it to importing state."
            ),
        };
        core.state.node.actions.push(Action::Log { is_warning: true, text });
    }
}

/// The primary that a server follows from its start on.
pub fn primary_at_start(state: &State) -> Option<PrimaryAddress> {
    let Some(cluster) = &state.node.cluster else { return state.config.replicaof.clone() };
    let primary = &cluster.node(cluster.myself().primary?).address;
    let is_tls = state.config.tls_replication && primary.tls_port != 0;
    let port = if is_tls { primary.tls_port } else { primary.tcp_port };
    (!primary.ip.is_empty()).then(|| PrimaryAddress { host: primary.ip.clone().into_bytes(), port })
}

/// Before this primary ends, asks a replica that has the whole stream to take its place. The
/// request is in the stream of all replicas; only the one that it names acts on it.
pub fn hand_over(state: &mut State) {
    let is_primary =
        state.node.cluster.as_ref().is_some_and(|cluster| cluster.myself().is_primary());
    if !is_primary {
        return;
    }
    // Before version 9, Valkey refuses these arguments.
    let are_new = state.replicas().all(|(_, replica)| replica.version.is_some_and(|it| it >= 9));
    if !are_new {
        return notice!(
            state,
            "Unable to perform auto failover on shutdown since there are legacy replicas."
        );
    }
    let end = state.replication.changes_end();
    let has_all = |replica: &Replica| {
        replica.is_online() && replica.acknowledged.is_some_and(|acknowledged| acknowledged >= end)
    };
    let heirs = state.replicas().filter(|(_, replica)| has_all(replica));
    let Some(id) = heirs.filter_map(|(_, replica)| replica.node_id).last() else {
        return notice!(
            state,
            "Unable to find a replica to perform the auto failover on shutdown."
        );
    };
    let request: [&[u8]; 5] = [b"CLUSTER", b"FAILOVER", b"FORCE", b"REPLICAID", id.as_bytes()];
    let mut bytes = Vec::new();
    encode(request, &mut bytes);
    state.replication.feed(&bytes);
    notice!(state, "Perform auto failover to replica {id} on shutdown.");
}

/// Whether the server may end: not a voting primary, unless `is_forced`.
pub fn may_end(state: &State, is_forced: bool) -> bool {
    let votes = state.node.cluster.as_ref().is_some_and(|cluster| cluster.myself().is_voting());
    if votes {
        let end = if is_forced { "Exit anyway." } else { "Can't exit." };
        warning!(
            state,
            "This is a voting primary. Shutting down may cause the cluster to go down. {end}"
        );
    }
    is_forced || !votes
}

/// Finishes the cluster's work when the server ends.
pub fn end(state: &mut State) {
    file::finish(state);
    state.net.bus.end();
}

/// Takes in the messages of other nodes.
pub fn turn(state: &mut State) {
    if state.node.cluster.is_none() {
        return;
    }
    for link in std::mem::take(&mut state.node.work.held) {
        state.net.bus.read_again(link);
    }
    links::take_in(state, false);
}

/// Carries out the actions that the state machine and commands ask for. Call this once a turn,
/// before the turn's changes are written to the AOF.
pub fn end_turn(core: &mut Core) {
    if core.state.node.cluster.is_none() {
        return;
    }
    tick_if_due(&mut core.state);
    if let (outside, Some(cluster)) = (core.state.outside(), &mut core.state.node.cluster) {
        cluster.before_sleep(&outside, &mut core.state.node.actions);
    }
    carry_out_outside(&mut core.state);
    // A reply need not wait if its command has changed nothing that is saved.
    core.state.node.work.unconfirmed.retain(|(_, save)| save.is_some());
    for action in std::mem::take(&mut core.state.node.actions) {
        carry_out(core, action);
    }
    renew_fences(core);
    keys::drop_some(core);
    lists::go_on(core);
    file::go_on(&mut core.state);
    core.state.net.bus.flush();
}

/// A nested turn, in which other nodes are answered.
pub fn nested_turn(state: &mut State) {
    if state.node.cluster.is_none() {
        return;
    }
    links::take_in(state, true);
    if !links::keeps_silent(state) {
        tick_if_due(state);
    }
    carry_out_outside(state);
    file::go_on(state);
    state.net.bus.flush();
}

/// A nested turn in a script during which other clients are not served yet. Runs once in each
/// `IN_SCRIPT_US`, and does not poll for events, because the loop would miss those.
pub fn turn_in_script(state: &mut State) {
    let now_us = state.clock.now().boot_us;
    if now_us < state.node.work.next_in_script_us {
        return;
    }
    state.node.work.next_in_script_us = now_us + IN_SCRIPT_US;
    state.net.bus.look_at_all();
    nested_turn(state);
}

/// Passes an event to the state machine, and collects its actions.
fn tell(state: &mut State, event: Event<'_>) {
    let outside = state.outside();
    if let Some(cluster) = &mut state.node.cluster {
        cluster.handle(&outside, event, &mut state.node.actions);
    }
}

fn tick_if_due(state: &mut State) {
    // `state.now` stands still during a script.
    let now_us = state.clock.now().boot_us;
    if next_tick_us(state).is_none_or(|tick_us| now_us < tick_us) {
        return;
    }
    state.node.work.next_tick_us = now_us + TICK_US;
    links::periodic(state);
    let outside = state.outside();
    if let Some(cluster) = &mut state.node.cluster {
        cluster.tick(&outside, &mut state.node.actions);
    }
}

/// Carries out the actions that concern other nodes, the file and the AOF. Others stay, in order.
fn carry_out_outside(state: &mut State) {
    let mut rest = Vec::new();
    for action in std::mem::take(&mut state.node.actions) {
        match action {
            Action::Connect { link, ip, bus_port } => links::connect(state, link, &ip, bus_port),
            Action::Send { link, message } => state.net.bus.send(link, message),
            Action::Close { link } => state.net.bus.close(link),
            Action::Save { number, text, is_awaited } => {
                file::save(state, number, text, is_awaited);
            }
            Action::Deliver { channel, message, is_shard } => {
                let kind = if is_shard { Kind::Shard } else { Kind::Channel };
                deliver(state, kind, &channel, &message);
            }
            Action::Log { is_warning: true, text } => warning!(state, "{text}"),
            Action::Log { is_warning: false, text } => notice!(state, "{text}"),
            action => rest.push(action),
        }
    }
    // These actions may have caused further ones.
    rest.append(&mut state.node.actions);
    state.node.actions = rest;
}

/// Carries out at once the actions that concern this server's data and role: clients' next requests
/// may depend on them. Other actions stay, in order. For the actions of a command, and for those of
/// other nodes' messages before clients are served: until then, a new primary is a replica.
pub fn act(core: &mut Core) {
    renew_fences(core);
    let mut rest = Vec::new();
    for action in std::mem::take(&mut core.state.node.actions) {
        match action {
            Action::Follow { .. }
            | Action::Promote
            | Action::PauseWrites { .. }
            | Action::EndPause
            | Action::DropKeys(_)
            | Action::DropAllKeys => carry_out(core, action),
            action => rest.push(action),
        }
    }
    rest.append(&mut core.state.node.actions);
    core.state.node.actions = rest;
}

/// Lets the fences of locks grow when slots have come from another server, and while slots come:
/// the server that owns them may begin an epoch then.
fn renew_fences(core: &mut Core) {
    let Some(cluster) = core.state.node.cluster.as_deref() else { return };
    let (gained, is_importing) = (cluster.slots_gained(), cluster.is_importing());
    let fenced = std::mem::replace(&mut core.state.node.work.fenced, gained);
    if is_importing || fenced != gained {
        core.keyspace.locks.fences.renew_epoch(core.state.now.unix_seconds());
    }
}

/// Deletes the remaining keys of slots that are about to come back.
pub fn finish_drops(core: &mut Core, slots: &SlotSet) {
    act(core);
    keys::finish(core, slots);
}

/// Carries out an action that concerns this server's data and role.
fn carry_out(core: &mut Core, action: Action) {
    match action {
        Action::Follow { ip, port } => follow(core, &ip, port),
        Action::Promote => {
            following::unfollow(core);
            keys::take_over(core);
        }
        Action::PauseWrites { until_boot_ms } => {
            let until_us = until_boot_ms.saturating_mul(1000);
            let pause = Pause { until_us, writes_only: true };
            core.state.set_pause(PauseCause::ClusterFailover, Some(pause));
        }
        Action::EndPause => core.state.end_pause(PauseCause::ClusterFailover),
        Action::DropKeys(slots) => {
            log_drops(core, &slots);
            keys::add(core, slots);
        }
        Action::DropAllKeys => keys::drop_all(core),
        Action::Recheck => slots_left::recheck(core),
        other => core.state.node.actions.push(other),
    }
}

/// Logs the slots whose keys are about to be deleted.
fn log_drops(core: &Core, slots: &SlotSet) {
    let Some(myself) = core.state.node.cluster.as_ref().map(|cluster| cluster.myself()) else {
        return;
    };
    let (id, shard) = (myself.id, myself.shard_id);
    for slot in slots.iter().filter(|slot| core.keyspace.has_keys_in_slot(*slot)) {
        let number = slot.number();
        notice!(core.state, "Deleting keys in dirty slot {number} on node {id} in shard {shard}");
    }
}

/// Follows the primary that the cluster names, unless this server does so already.
fn follow(core: &mut Core, ip: &str, port: u16) {
    let followed = core.state.replication.following.as_deref();
    if followed.is_some_and(|primary| primary.host == ip.as_bytes() && primary.port == port) {
        return;
    }
    if is_as_valkey(&core.state.config) {
        // Clients that wait for a key are redirected to its owner, instead of being told that this
        // node is now a replica.
        slots_left::recheck(core);
    }
    // The new primary deletes those keys, and tells of it.
    keys::forget(core);
    following::follow(core, ip.as_bytes(), port, false);
}
