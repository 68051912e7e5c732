//! Saving, the append-only file, and rewriting it.
//!
//! ```text
//!   SAVE, BGSAVE, save points -> snapshot -> saver's thread -> temporary file, synced -> renamed
//!   stream of changes -> append-only log, written at the turn's end, before replies leave -> synced by a thread
//!   rewrite: another increment begins and a snapshot is taken at the same moment; the snapshot becomes the base
//! ```
//!
//! [`turn`] is called once a turn of the loop, [`periodic`] several times a second.
//! [`Persistence::may_leave`] decides which replies must wait for the AOF.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};

use crate::collections::hash_slot::ranges_text;
use crate::config::system_text;
use crate::durability::scripts;
use crate::keyspace::DbIndex;
use crate::keyspace::snapshot::Walked;
use crate::persist::aof::log::{AppendLog, Fatal, SwitchError};
use crate::persist::leftovers;
use crate::persist::rdb::Version;
use crate::persist::saver::{Form, Job, Plan, SavedAccess, lock, put_in_place, save_now};
use crate::replication::pipe::Pipe;
use crate::replication::replica::Filter;
use crate::state::persistence::{
    Aof, LAST_FENCE, OPEN_SLOTS, Persistence, Placed, Purpose, Running, SLOT_DROPS, SLOT_IMPORTS,
    Work,
};
use crate::state::{Core, State};
use crate::sys::log::{notice, warning};
use crate::sys::process;

mod ends;
mod moving;
mod spread;
mod switch;

pub use ends::{
    Closing, begin_aof_at_start, begin_shut_down, folder_at_start, note_loaded, shut_down,
};
pub use moving::{follow_dir, is_moving};
pub use spread::{note_listeners, spread_effects};
pub use switch::{apply_parameters, begin_aof, end_aof, read_folder, set_flush_delay};
use switch::{open_folder, switch_on};

/// Time for the snapshot's iteration in each turn. Unit: microseconds.
const SLICE_US: i64 = 250;
/// Save points try again this long after a failed save. Unit: microseconds.
const RETRY_US: i64 = 5_000_000;

/// Time until a rewrite is tried again while the log's file has no name. Unit: microseconds.
const NAMELESS_WAIT_US: i64 = 10_000_000;
/// After this many failures in a row, rewrites are started less and less often.
const FAILURES_MAX: u32 = 3;
const PLACER_ENDED: &str = "the thread that puts it in its place has ended";
/// The longest wait after a failed rewrite. Unit: minutes.
const WAIT_MINUTES_MAX: i64 = 60;

/// A background job that has ended, for which replicas may wait.
#[derive(Debug)]
pub enum EndedJob {
    /// The RDB file at this path is complete.
    Saved(PathBuf),
    SaveFailed,
    /// The snapshot for replicas is written.
    Sent,
    /// The snapshot could not be written, for this reason. None: it was given up.
    SendFailed(Option<String>),
}

// ---- saving -------------------------------------------------------------------------------------

fn plan(core: &mut Core, is_base: bool) -> Plan {
    let database = if is_base { None } else { stream_database(&mut core.state) };
    scripts::set_rule(&mut core.state);
    let scripts = core.state.scripts.bodies_to_save();
    let config = &core.state.config;
    let functions = core.state.scripts.library_texts();
    let mut plan = Plan::new(&core.keyspace, functions, core.state.newer());
    // Replicas get expired keys too, and the deletions later.
    plan.now.ignores_deadlines = core.state.replication.is_replica() || database.is_some();
    plan.scripts = scripts;
    plan.compresses = config.rdbcompression;
    plan.checks = config.rdbchecksum;
    plan.starts_writeback = match is_base {
        true => config.aof_rewrite_incremental_fsync,
        false => config.rdb_save_incremental_fsync,
    };
    plan.key_delay = config.rdb_key_save_delay;
    if is_base && !config.aof_use_rdb_preamble {
        plan.form = Form::Commands { has_timestamps: config.aof_timestamp_enabled };
    }
    plan.access = if config.maxmemory_policy.is_lfu() {
        SavedAccess::Frequency
    } else if config.maxmemory_policy.uses_time() {
        SavedAccess::Idle
    } else {
        SavedAccess::None
    };
    let number = |number: i64| number.to_string().into_bytes();
    plan.aux = vec![
        ("redis-ver", config.redis_version.clone()),
        ("redis-bits", number(64)),
        ("ctime", number(core.keyspace.now().unix_seconds())),
        ("used-mem", number(crate::sys::alloc::allocated() as i64)),
    ];
    if let Some(database) = database {
        plan.keeps_expired = true;
        plan.aux.extend([
            ("repl-stream-db", number(database.get() as i64)),
            ("repl-id", core.state.replication.id.clone().into_bytes()),
            ("repl-offset", number(core.state.replication.offset as i64)),
        ]);
    }
    let cluster = core.state.node.cluster.as_deref().filter(|cluster| cluster.has_open_slots());
    if let (Some(_), Some(cluster)) = (database, cluster)
        && cluster.settings().as_valkey
    {
        plan.aux.push((OPEN_SLOTS, cluster.open_slots().into_bytes()));
    }
    let imports = core.state.node.moves.jobs.imports_text();
    if !imports.is_empty() {
        plan.aux.push((SLOT_IMPORTS, imports.into_bytes()));
    }
    if let Some(drops) = &core.state.node.work.slots_to_empty {
        plan.aux.push((SLOT_DROPS, ranges_text(&drops.ranges()).into_bytes()));
    }
    plan.aux.push(("aof-base", number(is_base as i64)));
    // Only if locks have been granted: other files are like those of Redis.
    if core.keyspace.locks.fences.is_used() {
        plan.aux.push((LAST_FENCE, number(core.keyspace.locks.fences.last() as i64)));
    }
    plan
}

/// The database selected by the stream of changes, if a file saved now can hold its position in the
/// stream: the fields `repl-stream-db`, `repl-id` and `repl-offset`, from which a restarted replica
/// continues.
fn stream_database(state: &mut State) -> Option<DbIndex> {
    let is_between = state.effects.is_between_units();
    if let Some(following) = &state.replication.following {
        return following.knows_history.then_some(following.selected);
    }
    if state.replication.backlog.is_none() || !is_between {
        return None;
    }
    spread_effects(state);
    Some(state.effects.selected().unwrap_or(DbIndex::ZERO))
}

fn temporary_rdb(state: &State) -> PathBuf {
    state.config.dir.join(leftovers::temporary_snapshot(std::process::id()))
}

/// `SAVE`: writes the RDB file and waits for it. Errors: a text, already logged.
pub fn save(core: &mut Core) -> Result<(), String> {
    let plan = plan(core, false);
    let (changes, target) = (core.keyspace.dirty(), core.state.rdb_path());
    let temporary = temporary_rdb(&core.state);
    let disk = core.state.persistence.disk.clone();
    core.state.persistence.saves.count += 1;
    process::remove_when_interrupted(Some(&temporary));
    let saved = save_now(&mut core.keyspace, &*disk, &temporary, &target, &plan);
    process::remove_when_interrupted(None);
    match saved {
        Ok(_) => {
            notice!(core.state, "DB saved on disk");
            note_saved(&mut core.state, changes);
            Ok(())
        }
        Err(error) => {
            let why = system_text(&error);
            let at = target.display();
            warning!(core.state, "Failed saving the DB to {at}: {why}");
            Err(why)
        }
    }
}

fn note_saved(state: &mut State, changes: u64) {
    let unix = state.clock.now().unix_seconds();
    let persistence = &mut state.persistence;
    persistence.saves.changes = changes;
    persistence.saves.last_unix = unix;
    persistence.saves.has_failed = false;
    state.refresh_fast_path();
}

fn note_save_failed(state: &mut State) {
    state.persistence.saves.has_failed = true;
    state.refresh_fast_path();
}

/// Starts a background save. False: it failed, which is logged.
pub fn begin_save(core: &mut Core) -> bool {
    let plan = plan(core, false);
    let temporary = temporary_rdb(&core.state);
    core.state.persistence.saves.count += 1;
    core.state.persistence.queued.save = false;
    core.state.persistence.saves.last_try_us = core.state.now.boot_us;
    let begun = begin_job(core, Purpose::Save, temporary, plan);
    match begun {
        Ok(()) => {
            notice!(core.state, "Background saving started");
            true
        }
        Err(error) => {
            let why = system_text(&error);
            warning!(core.state, "Can't save in background: {why}");
            note_save_failed(&mut core.state);
            false
        }
    }
}

fn begin_job(core: &mut Core, purpose: Purpose, temporary: PathBuf, plan: Plan) -> io::Result<()> {
    let (changes, target) = (core.keyspace.dirty(), core.state.rdb_path());
    let persistence = &mut core.state.persistence;
    let wake = persistence.wake.clone();
    let file = persistence.disk.create(&temporary)?;
    leftovers::hold(&*file);
    let job =
        Job::begin(&mut core.keyspace, file, Some(temporary), plan, wake, &persistence.background)?;
    let folder = None;
    persistence.work = Work::Writing(Running { purpose, job, target, folder, changes });
    persistence.jobs += 1;
    pause_syncs(&mut core.state);
    Ok(())
}

/// What the replicas that get a snapshot can read.
#[derive(Clone, Copy, Debug)]
pub struct ReadBy {
    pub version: Version,
    /// Times in the future of released entries.
    pub knows_pauses: bool,
}

/// Starts a snapshot for replicas, written to a pipe in this RDB version, which must hold all data
/// that the filter leaves. Closing the pipe requires [`abort`].
pub fn begin_sync(
    core: &mut Core,
    pipe: Arc<Pipe>,
    filter: Filter,
    read_by: ReadBy,
) -> io::Result<()> {
    let mut plan = plan(core, false);
    plan.version = read_by.version;
    if !read_by.knows_pauses {
        plan.leases.latest_ms = Some(plan.now.unix().0);
    }
    plan.starts_writeback = false;
    plan.omits_keys = filter.keys;
    if filter.functions {
        plan.functions.clear();
        plan.scripts.clear();
    }
    let changes = core.keyspace.dirty();
    let wake = core.state.persistence.wake.clone();
    let job =
        Job::begin(&mut core.keyspace, pipe, None, plan, wake, &core.state.persistence.background)?;
    let (purpose, target) = (Purpose::Sync, PathBuf::new());
    let running = Running { purpose, job, target, folder: None, changes };
    core.state.persistence.work = Work::Writing(running);
    core.state.persistence.saves.count += 1;
    pause_syncs(&mut core.state);
    Ok(())
}

/// `no-appendfsync-on-rewrite`: no syncs while another file is written.
fn pause_syncs(state: &mut State) {
    let is_writing = state.persistence.work.running().is_some();
    let paused = state.config.no_appendfsync_on_rewrite && is_writing;
    if let Some(aof) = &mut state.persistence.aof {
        aof.log.pause_syncs(paused);
    }
}

/// Cancels the background job of this purpose. If its file is being renamed, waits for the thread
/// that does it instead: two threads that work in one folder would remove each other's files. The
/// caller must close a broadcast that is given up, because its writer may be blocked on the pipe.
#[must_use = "replicas may wait for it"]
pub fn abort(core: &mut Core, purpose: Purpose) -> Option<EndedJob> {
    if purpose == Purpose::Rewrite {
        core.state.persistence.forget_first_kept();
    }
    if core.state.persistence.purpose() != Some(purpose) {
        return None;
    }
    let running = match std::mem::take(&mut core.state.persistence.work) {
        Work::Placing(running, placing) => {
            core.state.persistence.background.run();
            let placed = placing.recv().unwrap_or_else(|_| Err(PLACER_ENDED.into()));
            return conclude_job(core, running, placed);
        }
        Work::Writing(running) => running,
        Work::PreparingRewrite { .. } | Work::Idle => return None,
    };
    let disk = core.state.persistence.disk.clone();
    let seconds = (core.state.now.boot_us - running.job.started_us) / 1_000_000;
    if let Some(folder) = &running.folder {
        moving::give_up(&mut core.state, folder);
    }
    running.job.abort(&mut core.keyspace, &*disk);
    pause_syncs(&mut core.state);
    match purpose {
        Purpose::Save => {
            core.state.persistence.saves.last_seconds = seconds;
            Some(EndedJob::SaveFailed)
        }
        Purpose::Sync => Some(EndedJob::SendFailed(None)),
        Purpose::Rewrite => {
            notice!(core.state, "Killing running AOF rewrite child: a thread of this process");
            None
        }
    }
}

/// Cancels a rewrite, for which no replica waits.
fn abort_rewrite(core: &mut Core) {
    let ended = abort(core, Purpose::Rewrite);
    debug_assert!(ended.is_none());
}

// ---- each turn ----------------------------------------------------------------------------------

/// Writes the turn's changes to the AOF, and finishes a thread's work. Call this before replies are
/// sent. Errors: the process must end, as changes cannot be made durable.
pub fn turn(core: &mut Core) -> Result<Option<EndedJob>, Fatal> {
    write_log(&mut core.state)?;
    if core.state.persistence.work.is_preparing() {
        match continue_rewrite(core) {
            Ok(()) => {}
            Err(RewriteError::Failed(why)) => note_rewrite_ended(&mut core.state, Err(why)),
            Err(RewriteError::Fatal(fatal)) => return Err(fatal),
        }
    }
    Ok(finish_job(core))
}

/// Writes the effects of ended units to the AOF.
pub fn write_log(state: &mut State) -> Result<(), Fatal> {
    spread_effects(state);
    let now = state.now;
    let Persistence { aof, work, fatal, .. } = &mut state.persistence;
    if let Some(fatal) = fatal.take() {
        return Err(fatal);
    }
    let Some(aof) = aof else { return Ok(()) };
    let had_error = aof.log.disk_error().is_some();
    let written = aof.log.write(now);
    let has_error = aof.log.disk_error().is_some();
    if let Some(result) = aof.log.take_switch_result() {
        // The increment's rewrite may have been given up by now.
        let rewrites = work.running().is_some_and(|running| running.purpose == Purpose::Rewrite);
        aof.first_kept = result.ok().filter(|_| rewrites);
    }
    for (level, line) in aof.log.take_notices() {
        state.log(level, format_args!("{line}"));
    }
    if had_error != has_error {
        state.refresh_fast_path();
    }
    written
}

/// Continues the snapshot's iteration for one slice, unless the thread lags. Call it after replies
/// are sent, so that they wait for one slice at most.
pub fn walk(core: &mut Core) {
    if !core.keyspace.has_snapshot() {
        return;
    }
    let start_us = core.state.clock.now().boot_us;
    while core.keyspace.has_snapshot() {
        let full =
            core.state.persistence.work.running().is_none_or(|running| running.job.is_full());
        if full || matches!(core.keyspace.walk_snapshot(), Walked::Done) {
            break;
        }
        if core.state.clock.now().boot_us - start_us >= SLICE_US {
            break;
        }
    }
    // The loop does not sleep between slices. A client on the same core would otherwise wait for a
    // whole time slice of the scheduler.
    if core.state.persistence.work.running().is_some_and(|running| running.job.shares_cores) {
        std::thread::yield_now();
    }
}

/// Finishes a job whose thread has written the file: starts the thread that renames it, and logs
/// the result.
fn finish_job(core: &mut Core) -> Option<EndedJob> {
    let Persistence { work, aof, .. } = &mut core.state.persistence;
    let placed = match work {
        Work::Idle | Work::PreparingRewrite { .. } => return None,
        Work::Placing(_, placing) => match placing.try_recv() {
            Ok(placed) => placed,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(PLACER_ENDED.into()),
        },
        Work::Writing(running) => {
            // The manifest must name the increment before its base.
            if running.purpose == Purpose::Rewrite
                && aof.as_ref().is_some_and(|aof| aof.log.is_switching())
            {
                return None;
            }
            running.job.take_result()?
        }
    };
    let is_placed = matches!(core.state.persistence.work, Work::Placing(..));
    let running = core.state.persistence.work.take_running()?;
    let placed = match placed {
        Ok(bytes) if !is_placed && running.purpose != Purpose::Sync => {
            match place(&mut core.state, &running, bytes) {
                Ok(placing) => {
                    core.state.persistence.work = Work::Placing(running, placing);
                    return None;
                }
                Err(why) => Err(why),
            }
        }
        placed => placed,
    };
    conclude_job(core, running, placed)
}

/// Finishes a job with this result, and reports it.
fn conclude_job(core: &mut Core, running: Running, placed: Placed) -> Option<EndedJob> {
    let placed = match &running.folder {
        Some(folder) => moving::end(&mut core.state, folder, placed),
        None => placed,
    };
    let copied = core.keyspace.snapshot_copied();
    core.keyspace.abort_snapshot();
    pause_syncs(&mut core.state);
    if placed.is_err()
        && let Some(temporary) = running.job.temporary()
    {
        // Fails harmlessly if it was renamed already.
        let _ = core.state.persistence.disk.remove(temporary);
    }
    let seconds = (core.state.now.boot_us - running.job.started_us) / 1_000_000;
    match running.purpose {
        Purpose::Save => {
            core.state.persistence.saves.last_seconds = seconds;
            core.state.persistence.saves.last_copied = copied;
            match placed {
                Ok(_) => {
                    notice!(core.state, "Background saving terminated with success");
                    note_saved(&mut core.state, running.changes);
                    Some(EndedJob::Saved(running.target))
                }
                Err(why) => {
                    warning!(core.state, "Background saving error: {why}");
                    note_save_failed(&mut core.state);
                    Some(EndedJob::SaveFailed)
                }
            }
        }
        Purpose::Sync => {
            core.state.persistence.saves.last_copied = copied;
            Some(match placed {
                Ok(_) => EndedJob::Sent,
                Err(why) => EndedJob::SendFailed(Some(why)),
            })
        }
        Purpose::Rewrite => {
            core.state.persistence.rewrites.last_seconds = seconds;
            core.state.persistence.rewrites.last_copied = copied;
            let mut begins = false;
            if let (Ok(bytes), Some(aof)) = (&placed, &mut core.state.persistence.aof) {
                if std::mem::take(&mut aof.is_aside) {
                    // This turn's waits for the disk have been looked at already.
                    (core.state.persistence.wake)();
                    begins = true;
                }
                aof.log.rewrite_finished(*bytes);
                core.state.refresh_fast_path();
            }
            if begins {
                moving::mark_closed(&mut core.state);
            }
            core.state.persistence.forget_first_kept();
            note_rewrite_ended(&mut core.state, placed.map(drop));
            None
        }
    }
}

/// Starts a thread that renames a complete file: syncing the folders takes long.
fn place(state: &mut State, running: &Running, bytes: u64) -> Result<Receiver<Placed>, String> {
    let keeps_history = state.config.aof_disable_auto_gc;
    let Persistence { disk, background, wake, aof, .. } = &mut state.persistence;
    let (disk, wake, target) = (disk.clone(), wake.clone(), running.target.clone());
    let temporary = running.job.temporary().map(Path::to_owned).unwrap_or_default();
    let work: Box<dyn FnOnce() -> Placed + Send> = match running.purpose {
        Purpose::Save => Box::new(move || {
            let placed = put_in_place(&*disk, &temporary, &target);
            placed.map(|()| bytes).map_err(|error| system_text(&error))
        }),
        Purpose::Sync => Box::new(move || Ok(bytes)),
        Purpose::Rewrite => {
            let (folder, first_kept) = match (aof, &running.folder) {
                (Some(aof), folder) => {
                    let first_kept = aof.first_kept.take();
                    let first_kept = first_kept.ok_or("no other increment could be made")?;
                    (folder.clone().unwrap_or_else(|| aof.folder.clone()), first_kept)
                }
                (None, Some(folder)) => (folder.clone(), i64::MAX),
                (None, None) => return Err("it is switched off".into()),
            };
            let format = running.job.form.base_format();
            Box::new(move || {
                let mut folder = lock(&folder);
                let finished = folder.finish_rewrite(&temporary, format, first_kept);
                let bytes = finished.map_err(|error| error.to_string())?;
                if !keeps_history {
                    // Files that cannot be removed are in no manifest and do no harm.
                    let _ = folder.remove_history();
                }
                Ok(bytes)
            })
        }
    };
    let (sender, placing) = channel();
    let spawned = background.spawn("placer", move || {
        // Fails harmlessly if the server is shutting down.
        let _ = sender.send(work());
        wake();
    });
    spawned.map_err(|error| system_text(&error))?;
    Ok(placing)
}

// ---- the append-only file -----------------------------------------------------------------------

/// The reason why a rewrite cannot start.
#[derive(Debug)]
pub enum RewriteError {
    /// A text for the log.
    Failed(String),
    Fatal(Fatal),
}

/// Starts to rewrite the append-only file: a new increment, and a snapshot as the new base. With
/// `appendonly no` the base is written too, as in Redis.
pub fn begin_rewrite(core: &mut Core) -> Result<(), RewriteError> {
    core.state.persistence.queued.rewrite = false;
    if core.state.persistence.aof.is_none() {
        return begin_rewrite_alone(core);
    }
    core.state.persistence.work = Work::PreparingRewrite { since_us: core.state.now.boot_us };
    notice!(core.state, "Background append only file rewriting started");
    continue_rewrite(core)
}

/// BGREWRITEAOF while the append-only file is off: writes a folder with the base alone, for a start
/// with it on.
fn begin_rewrite_alone(core: &mut Core) -> Result<(), RewriteError> {
    let folder = open_folder(&core.state).map_err(RewriteError::Failed)?;
    let temporary = folder.path().join(leftovers::temporary_base(std::process::id()));
    let plan = plan(core, true);
    let begun = begin_job(core, Purpose::Rewrite, temporary, plan);
    begun.map_err(|error| RewriteError::Failed(system_text(&error)))?;
    if let Work::Writing(running) = &mut core.state.persistence.work {
        running.folder = Some(Arc::new(Mutex::new(folder)));
    }
    notice!(core.state, "Background append only file rewriting started");
    Ok(())
}

/// Opens the next increment and starts the snapshot, once little of the AOF is unsynced.
fn continue_rewrite(core: &mut Core) -> Result<(), RewriteError> {
    let now = core.state.now;
    let Some(aof) = &mut core.state.persistence.aof else { return Ok(()) };
    if !aof.log.sync_ahead(now) {
        return Ok(());
    }
    core.state.persistence.work = Work::Idle;
    debug_assert!(core.state.effects.is_between_units(), "a unit is in one increment");
    // Earlier changes go to the old increment, later ones to the next.
    write_log(&mut core.state).map_err(RewriteError::Fatal)?;
    let plan = plan(core, true);
    let elsewhere = match is_moving(&core.state) {
        true => Some(moving::begin(&mut core.state).map_err(RewriteError::Failed)?),
        false => None,
    };
    let Some(aof) = &mut core.state.persistence.aof else { return Ok(()) };
    let folder = lock(elsewhere.as_ref().unwrap_or(&aof.folder)).path().to_owned();
    // If it was removed. The next increment makes its name durable; if this fails, the base cannot
    // be created, which is reported.
    let _ = core.state.persistence.disk.create_folder(&folder);
    let temporary = folder.join(leftovers::temporary_base(std::process::id()));
    // If the AOF was just switched on, or moves, it has an increment of its own already.
    if aof.first_kept.is_none() {
        match aof.log.begin_switch(now) {
            Ok(()) => {}
            Err(SwitchError::Refused(why)) => return Err(RewriteError::Failed(why.into())),
            Err(SwitchError::Fatal(fatal)) => return Err(RewriteError::Fatal(fatal)),
        }
    }
    core.state.effects.select_anew();
    if let Err(error) = begin_job(core, Purpose::Rewrite, temporary, plan) {
        core.state.persistence.forget_first_kept();
        if let Some(folder) = &elsewhere {
            moving::give_up(&mut core.state, folder);
        }
        return Err(RewriteError::Failed(system_text(&error)));
    }
    if let Work::Writing(running) = &mut core.state.persistence.work {
        running.folder = elsewhere;
    }
    Ok(())
}

fn note_rewrite_ended(state: &mut State, result: Result<(), String>) {
    let now_us = state.now.boot_us;
    let persistence = &mut state.persistence;
    persistence.rewrites.count += 1;
    persistence.rewrites.has_failed = result.is_err();
    let mut wait_minutes = None;
    match result {
        Ok(()) => {
            persistence.rewrites.failures_in_a_row = 0;
            notice!(state, "Background AOF rewrite terminated with success");
            notice!(state, "Background AOF rewrite finished successfully");
        }
        Err(why) => {
            persistence.rewrites.failures_in_a_row += 1;
            if persistence.rewrites.failures_in_a_row >= FAILURES_MAX {
                let doubled = persistence.rewrites.failures_in_a_row - FAILURES_MAX;
                let minutes = 1_i64.checked_shl(doubled.min(16)).unwrap_or(WAIT_MINUTES_MAX);
                let minutes = minutes.min(WAIT_MINUTES_MAX);
                // Until a rewrite has ended writes are not answered, or refused.
                let is_nameless = persistence.log().is_some_and(AppendLog::is_nameless);
                persistence.rewrites.next_us = match is_nameless {
                    true => now_us + NAMELESS_WAIT_US,
                    false => now_us + minutes * 60_000_000,
                };
                wait_minutes = Some(minutes).filter(|_| !is_nameless);
            }
            let is_in = |aof: &Aof| lock(&aof.folder).is_in(&state.config.dir);
            if persistence.aof.as_ref().is_some_and(|aof| aof.is_aside || !is_in(aof)) {
                persistence.queued.rewrite = true;
            }
            warning!(state, "Background AOF rewrite terminated with error: {why}");
        }
    }
    if let Some(minutes) = wait_minutes {
        warning!(
            state,
            "Background AOF rewrite has repeatedly failed and triggered the limit, will retry in {minutes} minutes"
        );
    }
}

// ---- periodic work ------------------------------------------------------------------------------

/// Starts due work: scheduled saves and rewrites, save points, a rewrite of a grown file.
pub fn periodic(core: &mut Core) -> Result<(), Fatal> {
    // While loading the data is incomplete: nothing to save.
    if core.state.persistence.under_way().is_some() || core.state.persistence.loading.is_some() {
        return Ok(());
    }
    let now_us = core.state.now.boot_us;
    let may_retry = now_us >= core.state.persistence.rewrites.next_us;
    let is_nameless = core.state.persistence.log().is_some_and(AppendLog::is_nameless);
    // If the folder is locked, a thread works in it, and the next call looks again.
    let folder = core.state.persistence.aof.as_ref().and_then(|aof| aof.folder.try_lock().ok());
    let has_losses = folder.is_some_and(|folder| folder.has_losses());
    let is_asked_for = core.state.persistence.queued.rewrite || is_nameless || has_losses;
    let is_due = is_asked_for || has_grown(&core.state);
    if may_retry && is_due {
        return match begin_rewrite(core) {
            Ok(()) => Ok(()),
            Err(RewriteError::Failed(why)) => {
                note_rewrite_ended(&mut core.state, Err(why));
                Ok(())
            }
            Err(RewriteError::Fatal(fatal)) => Err(fatal),
        };
    }
    if core.state.persistence.queued.save {
        begin_save(core);
        return Ok(());
    }
    let changes = core.state.changes_since_save(&core.keyspace);
    let since = core.state.now.unix_seconds() - core.state.persistence.saves.last_unix;
    let failed_lately = core.state.persistence.saves.has_failed
        && now_us - core.state.persistence.saves.last_try_us <= RETRY_US;
    let points = core.state.config.save.iter();
    let due = points
        .clone()
        .find(|point| changes >= point.changes && since > point.seconds as i64 && !failed_lately);
    if let Some(point) = due {
        let (changes, seconds) = (point.changes, point.seconds);
        notice!(core.state, "{changes} changes in {seconds} seconds. Saving...");
        begin_save(core);
    }
    Ok(())
}

/// Whether the append-only file has grown enough since the last rewrite for another one.
fn has_grown(state: &State) -> bool {
    let config = &state.config;
    let Some(log) = state.persistence.log() else { return false };
    if config.auto_aof_rewrite_percentage == 0
        || log.current_size() <= config.auto_aof_rewrite_min_size
    {
        return false;
    }
    let base = log.base_size().max(1);
    let growth = log.current_size().saturating_mul(100) / base;
    let grown = growth.saturating_sub(100);
    let is_due = grown >= u64::from(config.auto_aof_rewrite_percentage);
    if is_due && state.now.boot_us >= state.persistence.rewrites.next_us {
        notice!(state, "Starting automatic rewriting of AOF on {grown}% growth");
    }
    is_due
}
