//! Saving, the append-only file, and rewriting it.
//!
//! ```text
//!   SAVE, BGSAVE, save points -> snapshot -> saver's thread -> temporary file, synced -> renamed
//!   stream of changes -> append-only log, written at the turn's end, before replies leave -> synced by a thread
//!   rewrite: another increment begins and a snapshot is taken at the same moment; the snapshot becomes the base
//! ```
//!
//! [`turn`] is called once a turn of the loop, [`periodic`] some times a second. [`Persistence::may_leave`] says
//! which replies must wait for the log.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::config::system_text;
use crate::error::CommandError;
use crate::gate::replicas;
use crate::gate::state::State;
use crate::keyspace::Keyspace;
use crate::keyspace::snapshot::Walked;
use crate::persist::aof::folder::AofFolder;
use crate::persist::aof::log::{AppendLog, Fatal, LogOffset, SwitchError};
use crate::persist::leftovers;
use crate::persist::rdb::Version;
use crate::persist::saver::{Form, Job, Plan, SavedAccess, lock, put_in_place, save_now};
use crate::replication::parse_offset;
use crate::replication::pipe::Pipe;
use crate::replication::replica::Filter;
use crate::sys::background::Background;
use crate::sys::disk::{Disk, RealDisk};
use crate::sys::log::{notice, warning};
use crate::sys::process;

mod ends;
mod spread;
mod switch;

pub use ends::{Closing, begin_aof_at_start, folder_at_start, note_loaded, shut_down};
pub use spread::{SPREAD_BYTES, note_listeners, spread_early, spread_effects};
pub use switch::{apply_parameters, begin_aof, end_aof, set_flush_delay};
use switch::{open_folder, switch_on};

/// Time for the snapshot's iteration in each turn. Unit: microseconds.
const SLICE_US: i64 = 250;
/// Save points try again this long after a failed save. Unit: microseconds.
const RETRY_US: i64 = 5_000_000;
/// After this many failures in a row, rewrites are started less and less often.
const FAILURES_MAX: u32 = 3;
const PLACER_ENDED: &str = "the thread that puts it in its place has ended";
/// The longest wait after a failed rewrite. Unit: minutes.
const WAIT_MINUTES_MAX: i64 = 60;

/// What a background job writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The RDB file.
    Save,
    /// The append-only file's base.
    Rewrite,
    /// A snapshot for replicas, sent while it is made.
    Sync,
}

/// A background job.
struct Running {
    purpose: Purpose,
    job: Job,
    /// Where a save's file goes: as configured when it began.
    target: PathBuf,
    /// The count of changes when it began.
    changes: u64,
    /// Set when the file is complete, while a thread renames it.
    placing: Option<Receiver<Placed>>,
}

/// The result of renaming a file: its bytes, or an error.
type Placed = Result<u64, String>;

/// The append-only file, while it is on.
struct Aof {
    log: AppendLog,
    folder: Arc<Mutex<AofFolder>>,
    /// The first increment that the running rewrite keeps, once known. It began with that rewrite's snapshot: another rewrite's
    /// base would contain a part of it, which a start would run again.
    first_kept: Option<i64>,
    /// No rewrite has ended since the file was switched on: a start would not load it.
    is_aside: bool,
}

/// State and statistics of saving and of the append-only file.
pub struct Persistence {
    disk: Arc<dyn Disk>,
    background: Background,
    wake: Arc<dyn Fn() + Send + Sync>,
    stop: Arc<AtomicUsize>,
    running: Option<Running>,
    aof: Option<Aof>,
    /// The end of the log that was switched off last.
    closed_log: LogOffset,
    /// The log was switched off without all that was answered under `always`: the process must end.
    fatal: Option<Fatal>,
    /// The folder of a rewrite that was started while the append-only file is off.
    folder_alone: Option<Arc<Mutex<AofFolder>>>,
    /// When a rewrite was requested (boot-time clock, microseconds) that waits for a sync of the log, after which a
    /// new increment can be opened without delay.
    preparing: Option<i64>,
    /// Unix seconds of the last successful save; before the first, of the start.
    pub last_save_unix: i64,
    /// The count of changes when it began.
    saved_changes: u64,
    pub last_save_failed: bool,
    last_try_us: i64,
    /// Duration in seconds; -1: none.
    pub last_save_seconds: i64,
    pub saves: u64,
    /// Background jobs started.
    pub jobs: u64,
    /// BGSAVE SCHEDULE or BGREWRITEAOF waits for a running job.
    pub save_is_scheduled: bool,
    pub rewrite_is_scheduled: bool,
    pub last_rewrite_seconds: i64,
    pub last_rewrite_failed: bool,
    pub rewrites: u64,
    pub rewrite_failures: u32,
    next_rewrite_us: i64,
    pub last_save_copied: usize,
    pub last_rewrite_copied: usize,
    pub keys_loaded: u64,
    pub keys_expired_at_load: u64,
    /// Collections without elements that were skipped while loading.
    pub empty_keys_skipped: u64,
    /// The replication position saved in the RDB file that was loaded last.
    pub moment: Moment,
    /// The file being loaded.
    pub loading: Option<Loading>,
    /// `DEBUG AOF-FLUSH-SLEEP`
    flush_delay: Duration,
}

/// The field of an RDB file that has the last fence of a lock.
pub const LAST_FENCE: &str = "latchkey-last-fence";

/// The replication history and offset that an RDB file belongs to, as far as it says.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    pub id: Option<String>,
    pub offset: Option<u64>,
    /// The database that the stream had selected.
    pub stream_db: usize,
}

impl Moment {
    /// Reads a field about the file.
    pub fn note(&mut self, name: &[u8], value: &[u8]) {
        let Ok(text) = std::str::from_utf8(value) else { return };
        match name {
            b"repl-id" => self.id = Some(text.to_owned()).filter(|id| id.len() == 40),
            b"repl-offset" => self.offset = parse_offset(text),
            b"repl-stream-db" => self.stream_db = text.parse().unwrap_or(0),
            _ => {}
        }
    }
}

/// The file being loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loading {
    pub started_unix: i64,
    pub total_bytes: u64,
    pub loaded_bytes: u64,
    /// The memory used when the file was saved, as it says. Unit: bytes.
    pub memory_then: u64,
    /// It comes from the primary, into databases beside the served ones.
    pub is_beside: bool,
    /// Clients were served meanwhile.
    pub others_heard: bool,
    /// The server is to end: the rest is not loaded, and nobody sees what was.
    pub is_interrupted: bool,
}

impl Persistence {
    pub fn new(started_unix: i64) -> Self {
        Persistence {
            disk: Arc::new(RealDisk),
            background: Background::Threads,
            wake: Arc::new(|| ()),
            stop: Arc::default(),
            running: None,
            aof: None,
            closed_log: LogOffset::default(),
            fatal: None,
            folder_alone: None,
            preparing: None,
            last_save_unix: started_unix,
            saved_changes: 0,
            last_save_failed: false,
            last_try_us: i64::MIN / 2,
            last_save_seconds: -1,
            saves: 0,
            jobs: 0,
            save_is_scheduled: false,
            rewrite_is_scheduled: false,
            last_rewrite_seconds: -1,
            last_rewrite_failed: false,
            rewrites: 0,
            rewrite_failures: 0,
            next_rewrite_us: i64::MIN / 2,
            last_save_copied: 0,
            last_rewrite_copied: 0,
            keys_loaded: 0,
            keys_expired_at_load: 0,
            empty_keys_skipped: 0,
            moment: Moment::default(),
            loading: None,
            flush_delay: Duration::ZERO,
        }
    }

    /// Wakes the event loop from another thread.
    pub fn wake(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.wake.clone()
    }

    /// Runs work that the loop must not wait for.
    pub fn background(&self) -> &Background {
        &self.background
    }

    /// Replaces the disk, and threads by work run in the loop (for simulation). To be called before anything starts.
    pub fn set_apart(&mut self, disk: Arc<dyn Disk>) {
        (self.disk, self.background) = (disk, Background::Later(Arc::default()));
    }

    /// Syncs the log where no thread does.
    pub fn sync_log(&self) {
        if let Some(log) = self.log().filter(|_| !self.background.has_threads()) {
            while log.syncer().step() {}
        }
    }

    /// Sets how a thread wakes the event loop.
    pub fn set_wake(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.wake = wake;
    }

    /// Sets the flag by which a signal stops the server while it loads.
    pub fn set_stop(&mut self, stop: Arc<AtomicUsize>) {
        self.stop = stop;
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) != 0
    }

    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// The running background job: purpose, start (boot-time clock, microseconds), keys written and in all.
    pub fn under_way(&self) -> Option<(Purpose, i64, usize, u64)> {
        if let Some(since_us) = self.preparing {
            return Some((Purpose::Rewrite, since_us, 0, 0));
        }
        let running = self.running.as_ref()?;
        let job = &running.job;
        Some((running.purpose, job.started_us, job.keys_done(), job.keys_total))
    }

    /// The append-only log, if it is on.
    pub fn log(&self) -> Option<&AppendLog> {
        self.aof.as_ref().map(|aof| &aof.log)
    }

    pub fn is_aof_on(&self) -> bool {
        self.aof.is_some()
    }

    /// The log's offset that a reply sent now depends on.
    #[inline]
    pub fn depends_on(&self) -> LogOffset {
        self.aof.as_ref().map_or(LogOffset::default(), |aof| aof.log.end())
    }

    /// Whether the log may delay replies.
    #[inline]
    pub fn may_hold_replies(&self) -> bool {
        self.aof.is_some()
    }

    /// Whether a reply that depends on this offset may be sent.
    #[inline]
    pub fn may_leave(&self, offset: LogOffset) -> bool {
        self.aof.as_ref().is_none_or(|aof| offset <= aof.log.acknowledged())
    }

    /// The log's offset on disk. None: unknown, or a start would not load this log.
    pub fn on_disk(&self) -> Option<LogOffset> {
        let aof = self.aof.as_ref().filter(|aof| !aof.is_aside)?;
        Some(aof.log.synced())
    }

    /// When the log must be called again even without events: boot-time clock, microseconds.
    pub fn next_call_us(&self) -> Option<i64> {
        self.aof.as_ref().and_then(|aof| aof.log.next_call_us())
    }

    /// To be called when a rewrite has ended or is given up.
    fn forget_first_kept(&mut self) {
        if let Some(aof) = &mut self.aof {
            aof.first_kept = None;
        }
    }

    /// Whether the snapshot's iteration can continue now.
    pub fn wants_turn(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.job.is_full())
    }
}

impl State {
    /// Changes since the last save, for INFO.
    pub fn changes_since_save(&self, keyspace: &Keyspace) -> u64 {
        keyspace.dirty().saturating_sub(self.persistence.saved_changes)
    }

    /// The error for write commands while the disk fails.
    pub fn disk_refusal(&self) -> Option<CommandError> {
        const SAVES_FAIL: CommandError = CommandError::Text(
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that may \
             modify the data set are disabled, because this instance is configured to report errors during writes if RDB \
             snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB \
             error.",
        );
        let config = &self.config;
        if config.stop_writes_on_bgsave_error
            && self.persistence.last_save_failed
            && !config.save.is_empty()
        {
            return Some(SAVES_FAIL);
        }
        let error = self.persistence.log().and_then(AppendLog::disk_error)?;
        Some(CommandError::formatted(format!("MISCONF Errors writing to the AOF file: {error}")))
    }

    /// Path of the RDB file.
    pub fn rdb_path(&self) -> PathBuf {
        self.config.dir.join(OsStr::from_bytes(&self.config.dbfilename))
    }
}

// ---- saving ----------------------------------------------------------------------------------------------------------

fn plan(keyspace: &Keyspace, state: &mut State, is_base: bool) -> Plan {
    let database = if is_base { None } else { stream_database(state) };
    let config = &state.config;
    let mut plan = Plan::new(keyspace, state.scripts.library_texts());
    // Replicas get expired keys too: they are told of the deletion later.
    plan.now.is_loading = state.replication.is_replica() || database.is_some();
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
    } else if config.maxmemory_policy.is_lru() {
        SavedAccess::Idle
    } else {
        SavedAccess::None
    };
    let number = |number: i64| number.to_string().into_bytes();
    plan.aux = vec![
        ("redis-ver", config.redis_version.clone()),
        ("redis-bits", number(64)),
        ("ctime", number(keyspace.now().unix_seconds())),
        ("used-mem", number(crate::sys::alloc::allocated() as i64)),
    ];
    if let Some(database) = database {
        plan.keeps_expired = true;
        plan.aux.extend([
            ("repl-stream-db", number(database as i64)),
            ("repl-id", state.replication.id.clone().into_bytes()),
            ("repl-offset", number(state.replication.offset as i64)),
        ]);
    }
    plan.aux.push(("aof-base", number(is_base as i64)));
    // Only where locks have been granted: other files are those of Redis.
    if keyspace.locks.fences.is_used() {
        plan.aux.push((LAST_FENCE, number(keyspace.locks.fences.last() as i64)));
    }
    plan
}

/// The database selected by the stream of changes, if a file saved now can hold its position in the stream: the
/// fields `repl-stream-db`, `repl-id` and `repl-offset`, from which a restarted replica continues.
fn stream_database(state: &mut State) -> Option<usize> {
    let is_between = state.effects.is_between_units();
    if let Some(following) = &state.replication.following {
        return following.knows_history.then_some(following.selected);
    }
    if state.replication.backlog.is_none() || !is_between {
        return None;
    }
    spread_effects(state);
    Some(state.effects.selected().unwrap_or(0))
}

fn temporary_rdb(state: &State) -> PathBuf {
    state.config.dir.join(format!("temp-{}.rdb", std::process::id()))
}

/// `SAVE`: writes the RDB file and waits for it. Errors: a text, already logged.
pub fn save(keyspace: &mut Keyspace, state: &mut State) -> Result<(), String> {
    let plan = plan(keyspace, state, false);
    let (changes, target) = (keyspace.dirty(), state.rdb_path());
    let temporary = temporary_rdb(state);
    let disk = state.persistence.disk.clone();
    state.persistence.saves += 1;
    process::remove_when_interrupted(Some(&temporary));
    let saved = save_now(keyspace, &*disk, &temporary, &target, &plan);
    process::remove_when_interrupted(None);
    match saved {
        Ok(_) => {
            notice!(state, "DB saved on disk");
            note_saved(state, changes);
            Ok(())
        }
        Err(error) => {
            let why = system_text(&error);
            let at = target.display();
            warning!(state, "Failed saving the DB to {at}: {why}");
            Err(why)
        }
    }
}

fn note_saved(state: &mut State, changes: u64) {
    let unix = state.clock.now().unix_seconds();
    let persistence = &mut state.persistence;
    persistence.saved_changes = changes;
    persistence.last_save_unix = unix;
    persistence.last_save_failed = false;
    state.note_gate();
}

fn note_save_failed(state: &mut State) {
    state.persistence.last_save_failed = true;
    state.note_gate();
}

/// Starts a background save. False: it failed, which is logged.
pub fn begin_save(keyspace: &mut Keyspace, state: &mut State) -> bool {
    let plan = plan(keyspace, state, false);
    let temporary = temporary_rdb(state);
    state.persistence.saves += 1;
    state.persistence.save_is_scheduled = false;
    state.persistence.last_try_us = state.now.boot_us;
    let begun = begin_job(keyspace, state, Purpose::Save, temporary, plan);
    match begun {
        Ok(()) => {
            notice!(state, "Background saving started");
            true
        }
        Err(error) => {
            let why = system_text(&error);
            warning!(state, "Can't save in background: {why}");
            note_save_failed(state);
            false
        }
    }
}

fn begin_job(
    keyspace: &mut Keyspace,
    state: &mut State,
    purpose: Purpose,
    temporary: PathBuf,
    plan: Plan,
) -> io::Result<()> {
    let (changes, target) = (keyspace.dirty(), state.rdb_path());
    let persistence = &mut state.persistence;
    let wake = persistence.wake.clone();
    let file = persistence.disk.create(&temporary)?;
    let job = Job::begin(keyspace, file, Some(temporary), plan, wake, &persistence.background)?;
    persistence.running = Some(Running { purpose, job, target, changes, placing: None });
    persistence.jobs += 1;
    pause_syncs(state);
    Ok(())
}

/// Starts a snapshot for replicas, written to a pipe, in this RDB version or a later one if the data needs that.
/// Closing the pipe requires [`abort`].
pub fn begin_sync(
    keyspace: &mut Keyspace,
    state: &mut State,
    pipe: Arc<Pipe>,
    filter: Filter,
    version: Version,
) -> io::Result<()> {
    let mut plan = plan(keyspace, state, false);
    plan.version = plan.version.max(version);
    plan.starts_writeback = false;
    plan.omits_keys = filter.keys;
    if filter.functions {
        plan.functions.clear();
    }
    let changes = keyspace.dirty();
    let wake = state.persistence.wake.clone();
    let job = Job::begin(keyspace, pipe, None, plan, wake, &state.persistence.background)?;
    let (purpose, target) = (Purpose::Sync, PathBuf::new());
    let running = Running { purpose, job, target, changes, placing: None };
    state.persistence.running = Some(running);
    state.persistence.saves += 1;
    pause_syncs(state);
    Ok(())
}

/// `no-appendfsync-on-rewrite`: no syncs while another file is written.
fn pause_syncs(state: &mut State) {
    let paused = state.config.no_appendfsync_on_rewrite && state.persistence.running.is_some();
    if let Some(aof) = &mut state.persistence.aof {
        aof.log.pause_syncs(paused);
    }
}

/// Cancels the background job of this purpose. A file that is being renamed is finished: this waits for its thread,
/// as two working in one folder would remove each other's files.
pub fn abort(keyspace: &mut Keyspace, state: &mut State, purpose: Purpose) {
    if purpose == Purpose::Rewrite {
        state.persistence.preparing = None;
        state.persistence.forget_first_kept();
    }
    let Persistence { running, background, .. } = &state.persistence;
    if let Some(Running { placing: Some(placing), .. }) =
        running.as_ref().filter(|running| running.purpose == purpose)
    {
        background.run();
        let placed = placing.recv().unwrap_or_else(|_| Err(PLACER_ENDED.into()));
        return conclude_job(keyspace, state, placed);
    }
    if let Some(running) = state.persistence.running.take_if(|running| running.purpose == purpose) {
        if purpose == Purpose::Sync {
            // Its writer may be blocked on the pipe to replicas.
            replicas::end_broadcast(state);
        }
        let disk = state.persistence.disk.clone();
        let seconds = (state.now.boot_us - running.job.started_us) / 1_000_000;
        running.job.abort(keyspace, &*disk);
        pause_syncs(state);
        if purpose == Purpose::Save {
            state.persistence.last_save_seconds = seconds;
            replicas::file_is_saved(state, None);
        }
        if purpose == Purpose::Rewrite {
            notice!(state, "Killing running AOF rewrite child: a thread of this process");
        }
    }
}

// ---- each turn -------------------------------------------------------------------------------------------------------

/// Writes the turn's changes to the log, and finishes a thread's work. To be called before replies are sent. Errors: the
/// process must end, as changes cannot be made durable.
pub fn turn(keyspace: &mut Keyspace, state: &mut State) -> Result<(), Fatal> {
    write_log(state)?;
    if state.persistence.preparing.is_some() {
        match continue_rewrite(keyspace, state) {
            Ok(()) => {}
            Err(RewriteError::Failed(why)) => note_rewrite_ended(state, Err(why)),
            Err(RewriteError::Fatal(fatal)) => return Err(fatal),
        }
    }
    if state.persistence.running.is_some() {
        finish_job(keyspace, state);
    }
    Ok(())
}

/// Writes the effects of ended units to the log.
pub fn write_log(state: &mut State) -> Result<(), Fatal> {
    spread_effects(state);
    let now = state.now;
    let Persistence { aof, running, fatal, .. } = &mut state.persistence;
    if let Some(fatal) = fatal.take() {
        return Err(fatal);
    }
    let Some(aof) = aof else { return Ok(()) };
    let had_error = aof.log.disk_error().is_some();
    let written = aof.log.write(now);
    let has_error = aof.log.disk_error().is_some();
    if let Some(result) = aof.log.take_switch_result() {
        // The rewrite that the increment was made for may have been given up meanwhile.
        let rewrites = running.as_ref().is_some_and(|running| running.purpose == Purpose::Rewrite);
        aof.first_kept = result.ok().filter(|_| rewrites);
    }
    for (level, line) in aof.log.take_notices() {
        state.log(level, format_args!("{line}"));
    }
    if had_error != has_error {
        state.note_gate();
    }
    written
}

/// Continues the snapshot's iteration for one slice, unless the thread is behind. To be called after replies are sent, so
/// that they wait for one slice at most.
pub fn walk(keyspace: &mut Keyspace, state: &mut State) {
    if !keyspace.has_snapshot() {
        return;
    }
    let start_us = state.clock.now().boot_us;
    while keyspace.has_snapshot() {
        let full = state.persistence.running.as_ref().is_none_or(|running| running.job.is_full());
        if full || matches!(keyspace.walk_snapshot(), Walked::Done) {
            break;
        }
        if state.clock.now().boot_us - start_us >= SLICE_US {
            break;
        }
    }
}

/// Finishes a job whose thread has written the file: starts the thread that renames it, and logs the result.
fn finish_job(keyspace: &mut Keyspace, state: &mut State) {
    let State { persistence, .. } = state;
    let Some(running) = &mut persistence.running else { return };
    let placed = match &running.placing {
        Some(placing) => match placing.try_recv() {
            Ok(placed) => placed,
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err(PLACER_ENDED.into()),
        },
        None => {
            // The manifest must name the increment before its base.
            if running.purpose == Purpose::Rewrite
                && persistence.aof.as_ref().is_some_and(|aof| aof.log.is_switching())
            {
                return;
            }
            match running.job.take_result() {
                None => return,
                Some(Err(why)) => Err(why),
                Some(Ok(bytes)) if running.purpose == Purpose::Sync => Ok(bytes),
                Some(Ok(bytes)) => match place(state, bytes) {
                    Ok(()) => return,
                    Err(why) => Err(why),
                },
            }
        }
    };
    conclude_job(keyspace, state, placed);
}

/// Finishes a job with this result, and reports it.
fn conclude_job(keyspace: &mut Keyspace, state: &mut State, placed: Placed) {
    let Some(running) = state.persistence.running.take() else { return };
    let copied = keyspace.snapshot_copied();
    keyspace.abort_snapshot();
    pause_syncs(state);
    if placed.is_err()
        && let Some(temporary) = running.job.temporary()
    {
        // Fails harmlessly if it was renamed already.
        let _ = state.persistence.disk.remove(temporary);
    }
    let seconds = (state.now.boot_us - running.job.started_us) / 1_000_000;
    match running.purpose {
        Purpose::Save => {
            state.persistence.last_save_seconds = seconds;
            state.persistence.last_save_copied = copied;
            match placed {
                Ok(_) => {
                    notice!(state, "Background saving terminated with success");
                    note_saved(state, running.changes);
                    replicas::file_is_saved(state, Some(&running.target));
                }
                Err(why) => {
                    warning!(state, "Background saving error: {why}");
                    note_save_failed(state);
                    replicas::file_is_saved(state, None);
                }
            }
        }
        Purpose::Sync => {
            state.persistence.last_save_copied = copied;
            replicas::snapshot_is_written(state, placed.map(drop));
        }
        Purpose::Rewrite => {
            state.persistence.last_rewrite_seconds = seconds;
            state.persistence.last_rewrite_copied = copied;
            if let (Ok(bytes), Some(aof)) = (&placed, &mut state.persistence.aof) {
                aof.is_aside = false;
                aof.log.rewrite_finished(*bytes);
                state.note_gate();
            }
            state.persistence.forget_first_kept();
            note_rewrite_ended(state, placed.map(drop));
        }
    }
}

/// Has a thread rename a complete file: that syncs folders, which takes long.
fn place(state: &mut State, bytes: u64) -> Result<(), String> {
    let keeps_history = state.config.aof_disable_auto_gc;
    let Persistence { disk, background, wake, running, aof, folder_alone, .. } =
        &mut state.persistence;
    let Some(running) = running else { return Ok(()) };
    let (disk, wake, target) = (disk.clone(), wake.clone(), running.target.clone());
    let temporary = running.job.temporary().map(Path::to_owned).unwrap_or_default();
    let work: Box<dyn FnOnce() -> Placed + Send> = match running.purpose {
        Purpose::Save => Box::new(move || {
            let placed = put_in_place(&*disk, &temporary, &target);
            placed.map(|()| bytes).map_err(|error| system_text(&error))
        }),
        Purpose::Sync => return Ok(()),
        Purpose::Rewrite => {
            let (folder, first_kept) = match (aof, folder_alone.take()) {
                (Some(aof), _) => {
                    let first_kept = aof.first_kept.take();
                    let first_kept = first_kept.ok_or("no other increment could be made")?;
                    (aof.folder.clone(), first_kept)
                }
                (None, Some(folder)) => (folder, i64::MAX),
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
    running.placing = Some(placing);
    Ok(())
}

// ---- the append-only file --------------------------------------------------------------------------------------------

/// Why a rewrite cannot start.
#[derive(Debug)]
pub enum RewriteError {
    /// A text for the log.
    Failed(String),
    Fatal(Fatal),
}

/// Starts to rewrite the append-only file: a new increment, and a snapshot as the new base. With `appendonly no` the
/// base is written too, as in Redis.
pub fn begin_rewrite(keyspace: &mut Keyspace, state: &mut State) -> Result<(), RewriteError> {
    state.persistence.rewrite_is_scheduled = false;
    if state.persistence.aof.is_none() {
        return begin_rewrite_alone(keyspace, state);
    }
    state.persistence.preparing = Some(state.now.boot_us);
    notice!(state, "Background append only file rewriting started");
    continue_rewrite(keyspace, state)
}

/// BGREWRITEAOF while the append-only file is off: writes a folder with the base alone, for a start with it on.
fn begin_rewrite_alone(keyspace: &mut Keyspace, state: &mut State) -> Result<(), RewriteError> {
    let folder = open_folder(state).map_err(RewriteError::Failed)?;
    folder.create().map_err(|error| RewriteError::Failed(error.to_string()))?;
    let temporary = folder.path().join(leftovers::temporary_base(std::process::id()));
    state.persistence.folder_alone = Some(Arc::new(Mutex::new(folder)));
    let plan = plan(keyspace, state, true);
    let begun = begin_job(keyspace, state, Purpose::Rewrite, temporary, plan);
    begun.map_err(|error| RewriteError::Failed(system_text(&error)))?;
    notice!(state, "Background append only file rewriting started");
    Ok(())
}

/// Opens the next increment and starts the snapshot, once the log is synced so far that this is quick.
fn continue_rewrite(keyspace: &mut Keyspace, state: &mut State) -> Result<(), RewriteError> {
    let now = state.now;
    let Some(aof) = &mut state.persistence.aof else { return Ok(()) };
    if !aof.log.sync_ahead(now) {
        return Ok(());
    }
    state.persistence.preparing = None;
    debug_assert!(state.effects.is_between_units(), "a unit is in one increment");
    // Earlier changes go to the old increment, later ones to the next.
    write_log(state).map_err(RewriteError::Fatal)?;
    let plan = plan(keyspace, state, true);
    let Some(aof) = &mut state.persistence.aof else { return Ok(()) };
    let temporary = lock(&aof.folder).path().join(leftovers::temporary_base(std::process::id()));
    // If the log was just switched on, it has an increment of its own already.
    if aof.first_kept.is_none() {
        match aof.log.begin_switch(now) {
            Ok(()) => {}
            Err(SwitchError::Refused(why)) => return Err(RewriteError::Failed(why.into())),
            Err(SwitchError::Fatal(fatal)) => return Err(RewriteError::Fatal(fatal)),
        }
    }
    state.effects.select_anew();
    let begun = begin_job(keyspace, state, Purpose::Rewrite, temporary, plan);
    begun.map_err(|error| {
        state.persistence.forget_first_kept();
        RewriteError::Failed(system_text(&error))
    })
}

fn note_rewrite_ended(state: &mut State, result: Result<(), String>) {
    let now_us = state.now.boot_us;
    let persistence = &mut state.persistence;
    persistence.rewrites += 1;
    persistence.last_rewrite_failed = result.is_err();
    let mut wait_minutes = None;
    match result {
        Ok(()) => {
            persistence.rewrite_failures = 0;
            let text = "Background AOF rewrite terminated with success";
            notice!(state, "{text}");
            notice!(state, "Background AOF rewrite finished successfully");
        }
        Err(why) => {
            persistence.rewrite_failures += 1;
            if persistence.rewrite_failures >= FAILURES_MAX {
                let doubled = persistence.rewrite_failures - FAILURES_MAX;
                let minutes = 1_i64.checked_shl(doubled.min(16)).unwrap_or(WAIT_MINUTES_MAX);
                let minutes = minutes.min(WAIT_MINUTES_MAX);
                persistence.next_rewrite_us = now_us + minutes * 60_000_000;
                wait_minutes = Some(minutes);
            }
            if persistence.aof.as_ref().is_some_and(|aof| aof.is_aside) {
                persistence.rewrite_is_scheduled = true;
            }
            warning!(state, "Background AOF rewrite terminated with error: {why}");
        }
    }
    if let Some(minutes) = wait_minutes {
        let text =
            "Background AOF rewrite has repeatedly failed and triggered the limit, will retry in";
        warning!(state, "{text} {minutes} minutes");
    }
}

// ---- periodic work ---------------------------------------------------------------------------------------------------

/// Starts what is due: scheduled saves and rewrites, save points, a rewrite of a grown file.
pub fn periodic(keyspace: &mut Keyspace, state: &mut State) -> Result<(), Fatal> {
    // While loading the data is incomplete: nothing to save.
    if state.persistence.under_way().is_some() || state.persistence.loading.is_some() {
        return Ok(());
    }
    let now_us = state.now.boot_us;
    let may_retry = now_us >= state.persistence.next_rewrite_us;
    if may_retry && (state.persistence.rewrite_is_scheduled || has_grown(state)) {
        return match begin_rewrite(keyspace, state) {
            Ok(()) => Ok(()),
            Err(RewriteError::Failed(why)) => {
                note_rewrite_ended(state, Err(why));
                Ok(())
            }
            Err(RewriteError::Fatal(fatal)) => Err(fatal),
        };
    }
    if state.persistence.save_is_scheduled {
        begin_save(keyspace, state);
        return Ok(());
    }
    let changes = state.changes_since_save(keyspace);
    let since = state.now.unix_seconds() - state.persistence.last_save_unix;
    let failed_lately =
        state.persistence.last_save_failed && now_us - state.persistence.last_try_us <= RETRY_US;
    let points = state.config.save.iter();
    let due = points
        .clone()
        .find(|point| changes >= point.changes && since > point.seconds as i64 && !failed_lately);
    if let Some(point) = due {
        let (changes, seconds) = (point.changes, point.seconds);
        notice!(state, "{changes} changes in {seconds} seconds. Saving...");
        begin_save(keyspace, state);
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
    if is_due && state.now.boot_us >= state.persistence.next_rewrite_us {
        notice!(state, "Starting automatic rewriting of AOF on {grown}% growth");
    }
    is_due
}
