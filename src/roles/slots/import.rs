//! The target's end of a move. The source's connection is a client whose commands bring the keys.
//! The keys stay hidden until this node owns the slots.

use super::{ACK_S, HANDED_OVER, NEWS_MS, conclude, finish, log_transition, said, set_phase};
use crate::client::{ClientFlags, ClientId};
use crate::cluster::Cluster;
use crate::cluster::node::NodeId;
use crate::cluster::slot_job::{Job, PAUSE_OVER, Phase, UNEXPECTED, Word};
use crate::collections::hash_slot::SlotRanges;
use crate::keyspace::DbIndex;
use crate::roles::cluster;
use crate::state::slot_moves::Import;
use crate::state::{Core, State, ThisNode};
use crate::sys::log::{notice, warning};

const LOST: &str = "Connection lost to source. Check CLUSTER GETSLOTMIGRATIONS on the source node for more information.";
const FAILED_COMMAND: &str =
    "Failed to process command during slot migration. Check logs for more information";
const OUT_OF_MEMORY: &str = "Ran out of memory (OOM) during slot import";
const TO_MYSELF: &str = "Slots were unexpectedly assigned to myself during import";
const NOT_THE_SOURCE: &str = "Slots are no longer owned by source node";

/// Begins to take keys from a client, which is the source. Without a client, only tracks the import
/// of another node.
pub fn begin_import(
    core: &mut Core,
    (name, ranges): (NodeId, SlotRanges),
    source: Option<(NodeId, ClientId)>,
) {
    let now_s = core.state.now.unix_seconds();
    // A file that is loaded may name the same job again.
    close(core, &name);
    core.state.node.moves.jobs.0.retain(|job| job.name != name);
    let Some(cluster) = core.state.node.cluster.as_deref() else { return };
    let myself = cluster.myself().id;
    let job = match source {
        Some((source, _)) => Job::import(name, ranges, source, myself, now_s),
        None => Job::tracked(name, ranges, now_s),
    };
    if source.is_none() {
        // This node has missed the end of an earlier move of these slots.
        let concerns = |other: &Job| other.slots.iter().any(|slot| job.slots.contains(slot));
        core.state.node.moves.jobs.forget_tracked(concerns);
    }
    notice!(core.state, "New slot import job created: {}.", job.description());
    core.state.node.moves.jobs.add(job);
    core.note_hidden();
    if let Some((_, client)) = source {
        let import = Import {
            client,
            heard_s: now_s,
            said_s: now_s,
            heard: core.state.clients.get(client).map_or(0, |client| client.bytes_in),
            asked_us: 0,
            has_failed: false,
            is_out_of_memory: false,
        };
        core.state.node.moves.imports.insert(name, import);
        if let Some(client) = core.state.clients.get_mut(client) {
            client.flags |= ClientFlags::BRINGS_SLOTS;
            client.set_replies(client.replies().turned_off());
        }
    }
}

/// Handles a message of the source. None: the client is no source.
pub fn hear_source(core: &mut Core, client: ClientId, word: Word) -> Option<()> {
    let (now_s, now_ms) = (core.state.now.unix_seconds(), core.state.now.boot_us / 1000);
    let (name, _) = core.state.node.moves.import_of(client)?;
    let job = core.state.node.moves.jobs.find_mut(&name)?;
    let before = job.phase;
    let heard = job.hear(word, now_s, now_ms);
    let description = job.description();
    if before != job.phase {
        log_transition(&core.state, &name, before);
    }
    match heard {
        Ok(Some(answer)) => {
            let asked_us = core.state.clock.now().boot_us;
            if let Some((_, import)) = core.state.node.moves.import_of(client) {
                import.asked_us = asked_us;
            }
            say(&mut core.state, client, answer);
        }
        Ok(None) => {}
        Err(why) => {
            if why == UNEXPECTED {
                let word = word.text();
                warning!(
                    core.state,
                    "Received unexpected CLUSTER SYNCSLOTS {word} from slot migration {description}. Failing migration."
                );
            }
            finish(core, &name, Phase::Failed, why);
        }
    }
    core.state.node.moves.is_due = true;
    Some(())
}

fn say(state: &mut State, client: ClientId, word: Word) {
    let request = said(word);
    if let Some(client) = state.clients.get_to_push(client) {
        client.output.push(&request);
    }
}

/// Ends the connection of a job.
pub(super) fn close(core: &mut Core, name: &NodeId) {
    if let Some(import) = core.state.node.moves.imports.remove(name) {
        core.state.clients.close(import.client);
    }
}

/// Continues all imports.
pub(super) fn turn(core: &mut Core) {
    let jobs =
        core.state.node.moves.jobs.0.iter().filter(|job| job.is_import && !job.phase.is_finished());
    let names: Vec<NodeId> = jobs.map(|job| job.name).collect();
    for name in names {
        go_on(core, &name);
    }
}

fn go_on(core: &mut Core, name: &NodeId) {
    let is_replica = core.state.replication.is_replica();
    let Some(job) = core.state.node.moves.jobs.find(name) else { return };
    let phase = job.phase;
    match phase {
        Phase::CleaningUp => {
            let after = job.after_cleanup;
            if !cluster::is_dropping(&core.state, &job.slots) {
                conclude(core, name, after);
            }
            return;
        }
        // The primary decides how the job ends.
        Phase::OccurringOnPrimary if is_replica => return,
        Phase::OccurringOnPrimary => {
            let why = "A failover occurred during slot import";
            return finish(core, name, Phase::Failed, why);
        }
        _ => {}
    }
    if is_replica {
        // The new primary deletes or completes the keys that have arrived.
        close(core, name);
        if let Some(job) = core.state.node.moves.jobs.find_mut(name) {
            (job.source, job.target) = (None, None);
        }
        return set_phase(&mut core.state, name, Phase::OccurringOnPrimary);
    }
    if let Some(why) = failure(&core.state, name) {
        return finish(core, name, Phase::Failed, why);
    }
    if phase == Phase::MayTake {
        return take_over(core, name);
    }
    let now_s = core.state.now.unix_seconds();
    note_reads(&mut core.state, name, now_s);
    let says = core.state.node.moves.jobs.find(name).is_some_and(Job::says_ack);
    if let Some(import) = core.state.node.moves.imports.get_mut(name).filter(|_| says)
        && now_s - import.said_s >= ACK_S
    {
        import.said_s = now_s;
        let client = import.client;
        say(&mut core.state, client, Word::Ack);
    }
}

/// Notes whether bytes of the source have come: a large value may take longer than the time-out to
/// arrive.
fn note_reads(state: &mut State, name: &NodeId, now_s: i64) {
    let Some(import) = state.node.moves.imports.get_mut(name) else { return };
    let heard = state.clients.get(import.client).map_or(0, |client| client.bytes_in);
    if heard != import.heard {
        state.stats.counters.slot_bytes_in += heard.saturating_sub(import.heard);
        (import.heard, import.heard_s) = (heard, now_s);
    }
}

/// The reason why a job cannot continue. None: it can.
fn failure(state: &State, name: &NodeId) -> Option<&'static str> {
    let job = state.node.moves.jobs.find(name)?;
    let import = state.node.moves.imports.get(name);
    let client = import.and_then(|import| state.clients.get(import.client));
    if let Some(import) = import.filter(|import| import.has_failed) {
        return Some(if import.is_out_of_memory { OUT_OF_MEMORY } else { FAILED_COMMAND });
    }
    if client.is_none_or(|client| client.is_closing()) {
        return Some(LOST);
    }
    let cluster = state.node.cluster.as_deref()?;
    let owner = cluster.owner_of_all(&job.slots);
    match owner {
        Some(owner) if Some(cluster.node(owner).id) == job.source => None,
        Some(owner) if owner == cluster.my_index() => Some(TO_MYSELF),
        _ => Some(NOT_THE_SOURCE),
    }
}

/// Takes the slots that the source has granted.
fn take_over(core: &mut Core, name: &NodeId) {
    if core.state.node.moves.prevents_failover {
        return;
    }
    // The replica that takes over would not know of these slots.
    if core.state.node.cluster.as_deref().is_some_and(Cluster::is_handing_over) {
        return finish(core, name, Phase::Failed, HANDED_OVER);
    }
    // The grant came after the request for it, and is valid for at least this time. Later, the
    // source may accept writes again.
    let now_us = core.state.clock.now().boot_us;
    let import = core.state.node.moves.imports.get(name);
    if import.is_none_or(|import| now_us - import.asked_us >= NEWS_MS * 1000) {
        return finish(core, name, Phase::Failed, PAUSE_OVER);
    }
    let Some(job) = core.state.node.moves.jobs.find(name) else { return };
    let (slots, description) = (job.slots.clone(), job.description());
    let outside = core.state.outside();
    let ThisNode { cluster, actions, .. } = &mut core.state.node;
    if let Some(cluster) = cluster {
        cluster.take_slots_granted(&slots, &outside, actions);
    }
    notice!(
        core.state,
        "Slot migration {description} completed successfully. This node is now the owner of the slots"
    );
    finish(core, name, Phase::Success, "");
}

/// Replicates the end of a job, to the AOF too.
pub(super) fn repeat_finish(state: &mut State, name: &NodeId, phase: Phase, message: &str) {
    if state.replication.is_replica() || !state.effects.is_heard() {
        return;
    }
    let word: &[u8] = if phase == Phase::Success { b"success" } else { b"failed" };
    let mut request =
        vec![&b"CLUSTER"[..], b"SYNCSLOTS", b"FINISH", b"STATE", word, b"NAME", name.as_bytes()];
    if !message.is_empty() {
        request.extend([&b"MESSAGE"[..], message.as_bytes()]);
    }
    let apart = state.effects.begin_apart();
    state.effects.push(DbIndex::ZERO, request.into_iter());
    state.effects.end_apart(apart);
}

/// CLUSTER SYNCSLOTS FINISH: the primary, or the file being loaded, reports how a job has ended.
/// False: no such job exists.
pub fn finish_tracked(core: &mut Core, name: &NodeId, is_success: bool, message: &str) -> bool {
    let Some(job) = core.state.node.moves.jobs.find_mut(name) else { return false };
    job.message = message.into();
    let phase = if is_success { Phase::Success } else { Phase::Failed };
    close(core, name);
    set_phase(&mut core.state, name, phase);
    core.note_hidden();
    true
}
