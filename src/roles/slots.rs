//! Slots that move to another node all at once, by CLUSTER MIGRATESLOTS: the loop's part of the
//! jobs (`cluster/slot_job.rs`).
//!
//! `export` is the source's end, `import` the target's. This file has the common part: how jobs
//! begin, time out, and end.
//!
//! Only writes to the migrating slots are paused, and only until the new owner is known.

use crate::clock::Due;
use crate::cluster::node::NodeId;
use crate::cluster::slot_job::{Job, Phase, Word};
use crate::resp::request::encode;
use crate::roles::cluster;
use crate::state::{Core, State};
use crate::sys::log::{notice, warning};

mod export;
mod import;

pub use export::{begin_export, cancel_exports, remaining};
pub use import::{begin_import, finish_tracked, hear_source};

/// Seconds between two signs of life.
const ACK_S: i64 = 1;
/// The shortest time for which a grant is valid, and the time in which the news of the new owner
/// must arrive. Unit: milliseconds.
const NEWS_MS: i64 = 2_000;

const TIMED_OUT: &str = "Timed out after too long with no interaction";
const HANDED_OVER: &str = "A manual failover is in progress";
const FLUSHED: &str = "Data was flushed";

/// When [`turn`] has work without an event.
pub fn due(state: &State) -> Due {
    if state.node.moves.is_due || export::wants_turn(state) {
        return Due::NOW;
    }
    let jobs = state.node.moves.jobs.0.iter().filter(|job| !job.phase.is_finished());
    let paused = jobs.clone().filter(|job| job.pause_end_ms > 0).map(|job| job.pause_end_ms * 1000);
    let soon = jobs.clone().next().map(|_| state.now.boot_us + 100_000);
    Due::at(paused.chain(soon).chain(export::next_us(state)).min())
}

/// Continues all moves, after the turn's changes have been passed on. Until the next turn no
/// command runs.
pub fn turn(core: &mut Core) {
    if core.state.node.cluster.is_none() {
        return;
    }
    let len_max = usize::try_from(core.state.config.cluster_slot_migration_log_max_len);
    core.state.node.moves.jobs.trim(len_max.unwrap_or(usize::MAX));
    let has_jobs = core.state.node.moves.jobs.0.iter().any(|job| !job.phase.is_finished());
    if !has_jobs && core.state.node.moves.is_idle() {
        return;
    }
    core.state.node.moves.is_due = false;
    if std::mem::take(&mut core.state.node.moves.is_flushed) {
        data_flushed(core);
    }
    export::turn(core);
    import::turn(core);
    time_out(core);
}

/// Deletes, after loading, the keys of imports that a restart has cut short. On a replica the
/// primary decides how they end.
pub fn loaded(core: &mut Core) {
    if !core.state.node.cluster.as_deref().is_some_and(|cluster| cluster.myself().is_replica()) {
        fail_all(core, |job| job.is_import, "Process restarted");
    }
}

/// Fails the moves in progress, because data was flushed. Granted slots are no longer this node's
/// to flush.
pub fn data_flushed(core: &mut Core) {
    fail_all(core, |job| !job.is_granted(), FLUSHED);
}

/// Fails the jobs that a change of role or of the data concerns.
pub fn fail_all(core: &mut Core, concerns: impl Fn(&Job) -> bool, message: &str) {
    let jobs = core.state.node.moves.jobs.0.iter().filter(|job| job.phase.is_in_progress());
    let names: Vec<NodeId> = jobs.filter(|job| concerns(job)).map(|job| job.name).collect();
    names.into_iter().for_each(|name| finish(core, &name, Phase::Failed, message));
}

fn time_out(core: &mut Core) {
    let now_s = core.state.now.unix_seconds();
    let timeout_s = i64::from(core.state.config.repl_timeout);
    let moves = &core.state.node.moves;
    let heard = |job: &Job| match moves.imports.get(&job.name) {
        Some(import) => import.heard_s,
        None => job.acked_s,
    };
    let late = moves.jobs.0.iter().filter(|job| job.is_timed_out(heard(job), now_s, timeout_s));
    let names: Vec<NodeId> = late.map(|job| job.name).collect();
    for name in names {
        if let Some(job) = core.state.node.moves.jobs.find(&name) {
            let job = job.description();
            warning!(
                core.state,
                "Timing out slot migration {job} after not receiving ack for too long"
            );
        }
        finish(core, &name, Phase::Failed, TIMED_OUT);
    }
}

/// Sets a job's phase, and logs it.
fn set_phase(state: &mut State, name: &NodeId, phase: Phase) {
    let now_s = state.now.unix_seconds();
    let Some(job) = state.node.moves.jobs.find_mut(name) else { return };
    let before = job.phase;
    job.set_phase(phase, now_s);
    log_transition(state, name, before);
}

/// Logs that a job has left a phase.
fn log_transition(state: &State, name: &NodeId, before: Phase) {
    let Some(job) = state.node.moves.jobs.find(name) else { return };
    let (job, before, after) = (job.description(), before.name(), job.phase.name());
    notice!(state, "Slot migration {job} state transition: {before} -> {after}");
}

/// Ends a job: closes its connection, lets writes continue, and deletes the keys of a failed
/// import.
fn finish(core: &mut Core, name: &NodeId, phase: Phase, message: &str) {
    let Some(job) = core.state.node.moves.jobs.find_mut(name) else { return };
    if !job.phase.is_in_progress() {
        return;
    }
    job.message = message.into();
    job.pause_end_ms = 0;
    let is_import = job.is_import;
    match is_import {
        true => import::close(core, name),
        false => export::close(core, name),
    }
    let is_primary = !core.state.replication.is_replica();
    let slots = core.state.node.moves.jobs.find(name).map(|job| job.slots.clone());
    if let (true, true, true, Some(slots)) = (is_import, is_primary, phase != Phase::Success, slots)
    {
        if let Some(job) = core.state.node.moves.jobs.find_mut(name) {
            job.after_cleanup = phase;
            let text = format!("{} after {}", job.description(), phase.name());
            notice!(core.state, "Cleaning up slot migration {text}");
        }
        set_phase(&mut core.state, name, Phase::CleaningUp);
        cluster::drop_keys(core, slots);
        core.state.node.moves.is_due = true;
        return;
    }
    conclude(core, name, phase);
}

/// Takes the last step of a job, when it has nothing left to clean up.
fn conclude(core: &mut Core, name: &NodeId, phase: Phase) {
    set_phase(&mut core.state, name, phase);
    let Some(job) = core.state.node.moves.jobs.find(name) else { return };
    let message = if job.message.is_empty() { "none" } else { &job.message };
    let text = format!(
        "Slot migration {} finished. State: {}, Message: {message}",
        job.description(),
        phase.name()
    );
    let (is_import, message) = (job.is_import, job.message.clone());
    match phase {
        Phase::Failed => warning!(core.state, "{text}"),
        _ => notice!(core.state, "{text}"),
    }
    if is_import {
        core.note_hidden();
        import::repeat_finish(&mut core.state, name, phase, &message);
    }
}

/// A message of one node to the other, as a request.
fn said(word: Word) -> Vec<u8> {
    let mut request = Vec::new();
    encode([&b"CLUSTER"[..], b"SYNCSLOTS", word.text().as_bytes()], &mut request);
    request
}
