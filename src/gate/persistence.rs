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
use crate::persist::rdb::Version;
use crate::persist::saver::{Form, Job, Plan, SavedAccess, lock, put_in_place, save_now};
use crate::replication::parse_offset;
use crate::replication::pipe::Pipe;
use crate::replication::replica::Filter;
use crate::sys::background::Background;
use crate::sys::disk::{Disk, RealDisk};
use crate::sys::log::Level;
use crate::sys::process;

mod ends;
mod spread;
mod switch;

pub use ends::{begin_aof_at_start, folder_at_start, note_loaded, shut_down};
pub use spread::{SPREAD_BYTES, note_listeners, spread_early, spread_effects, spread_ended};
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
    pub fn changes_since_save(&self, db: &Keyspace) -> u64 {
        db.dirty().saturating_sub(self.persistence.saved_changes)
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

fn plan(db: &Keyspace, server: &mut State, is_base: bool) -> Plan {
    let database = if is_base { None } else { stream_database(server) };
    let config = &server.config;
    let mut plan = Plan::new(db, server.scripts.library_texts());
    // Replicas get expired keys too: they are told of the deletion later.
    plan.now.is_loading = server.replication.is_replica() || database.is_some();
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
        ("ctime", number(db.now().unix_seconds())),
        ("used-mem", number(crate::sys::alloc::allocated() as i64)),
    ];
    if let Some(database) = database {
        plan.keeps_expired = true;
        plan.aux.extend([
            ("repl-stream-db", number(database as i64)),
            ("repl-id", server.replication.id.clone().into_bytes()),
            ("repl-offset", number(server.replication.offset as i64)),
        ]);
    }
    plan.aux.push(("aof-base", number(is_base as i64)));
    plan
}

/// The database selected by the stream of changes, if a file saved now can hold its position in the stream: the
/// fields `repl-stream-db`, `repl-id` and `repl-offset`, from which a restarted replica continues.
fn stream_database(server: &mut State) -> Option<usize> {
    let is_between = server.effects.is_between_units();
    if let Some(following) = &server.replication.following {
        return following.knows_history.then_some(following.selected);
    }
    if server.replication.backlog.is_none() || !is_between {
        return None;
    }
    spread_effects(server);
    Some(server.effects.selected().unwrap_or(0))
}

fn temporary_name() -> String {
    format!("temp-{}.rdb", std::process::id())
}

/// `SAVE`: writes the RDB file and waits for it. Errors: a text, already logged.
pub fn save(db: &mut Keyspace, server: &mut State) -> Result<(), String> {
    let plan = plan(db, server, false);
    let (changes, target) = (db.dirty(), server.rdb_path());
    let temporary = server.config.dir.join(temporary_name());
    let disk = server.persistence.disk.clone();
    server.persistence.saves += 1;
    process::remove_when_interrupted(Some(&temporary));
    let saved = save_now(db, &*disk, &temporary, &target, &plan);
    process::remove_when_interrupted(None);
    match saved {
        Ok(_) => {
            server.log(Level::Notice, format_args!("DB saved on disk"));
            note_saved(server, changes);
            Ok(())
        }
        Err(error) => {
            let why = system_text(&error);
            let at = target.display();
            server.log(Level::Warning, format_args!("Failed saving the DB to {at}: {why}"));
            Err(why)
        }
    }
}

fn note_saved(server: &mut State, changes: u64) {
    let unix = server.clock.now().unix_seconds();
    let persistence = &mut server.persistence;
    persistence.saved_changes = changes;
    persistence.last_save_unix = unix;
    persistence.last_save_failed = false;
    server.note_gate();
}

fn note_save_failed(server: &mut State) {
    server.persistence.last_save_failed = true;
    server.note_gate();
}

/// Starts a background save. False: it failed, which is logged.
pub fn begin_save(db: &mut Keyspace, server: &mut State) -> bool {
    let plan = plan(db, server, false);
    let temporary = server.config.dir.join(temporary_name());
    server.persistence.saves += 1;
    server.persistence.save_is_scheduled = false;
    server.persistence.last_try_us = server.now.boot_us;
    let begun = begin_job(db, server, Purpose::Save, temporary, plan);
    match begun {
        Ok(()) => {
            server.log(Level::Notice, format_args!("Background saving started"));
            true
        }
        Err(error) => {
            let why = system_text(&error);
            server.log(Level::Warning, format_args!("Can't save in background: {why}"));
            note_save_failed(server);
            false
        }
    }
}

fn begin_job(
    db: &mut Keyspace,
    server: &mut State,
    purpose: Purpose,
    temporary: PathBuf,
    plan: Plan,
) -> io::Result<()> {
    let changes = db.dirty();
    let persistence = &mut server.persistence;
    let wake = persistence.wake.clone();
    let file = persistence.disk.create(&temporary)?;
    let job = Job::begin(db, file, Some(temporary), plan, wake, &persistence.background)?;
    persistence.running = Some(Running { purpose, job, changes, placing: None });
    persistence.jobs += 1;
    pause_syncs(server);
    Ok(())
}

/// Starts a snapshot for replicas, written to a pipe, in this RDB version or a later one if the data needs that.
/// Closing the pipe requires [`abort`].
pub fn begin_sync(
    db: &mut Keyspace,
    server: &mut State,
    pipe: Arc<Pipe>,
    filter: Filter,
    version: Version,
) -> io::Result<()> {
    let mut plan = plan(db, server, false);
    plan.version = plan.version.max(version);
    plan.starts_writeback = false;
    plan.omits_keys = filter.keys;
    if filter.functions {
        plan.functions.clear();
    }
    let changes = db.dirty();
    let wake = server.persistence.wake.clone();
    let job = Job::begin(db, pipe, None, plan, wake, &server.persistence.background)?;
    let running = Running { purpose: Purpose::Sync, job, changes, placing: None };
    server.persistence.running = Some(running);
    server.persistence.saves += 1;
    pause_syncs(server);
    Ok(())
}

/// `no-appendfsync-on-rewrite`: no syncs while another file is written.
fn pause_syncs(server: &mut State) {
    let paused = server.config.no_appendfsync_on_rewrite && server.persistence.running.is_some();
    if let Some(aof) = &mut server.persistence.aof {
        aof.log.pause_syncs(paused);
    }
}

/// Cancels the background job of this purpose. A file that is being renamed is finished: this waits for its thread,
/// as two working in one folder would remove each other's files.
pub fn abort(db: &mut Keyspace, server: &mut State, purpose: Purpose) {
    if purpose == Purpose::Rewrite {
        server.persistence.preparing = None;
        server.persistence.forget_first_kept();
    }
    let Persistence { running, background, .. } = &server.persistence;
    if let Some(Running { placing: Some(placing), .. }) =
        running.as_ref().filter(|running| running.purpose == purpose)
    {
        background.run();
        let placed = placing.recv().unwrap_or_else(|_| Err(PLACER_ENDED.into()));
        return conclude_job(db, server, placed);
    }
    if let Some(running) = server.persistence.running.take_if(|running| running.purpose == purpose)
    {
        if purpose == Purpose::Sync {
            // Its writer may be blocked on the pipe to replicas.
            replicas::end_broadcast(server);
        }
        let disk = server.persistence.disk.clone();
        let seconds = (server.now.boot_us - running.job.started_us) / 1_000_000;
        running.job.abort(db, &*disk);
        pause_syncs(server);
        if purpose == Purpose::Save {
            server.persistence.last_save_seconds = seconds;
            replicas::file_is_saved(server, false);
        }
        if purpose == Purpose::Rewrite {
            let text = "Killing running AOF rewrite child: a thread of this process";
            server.log(Level::Notice, format_args!("{text}"));
        }
    }
}

// ---- each turn -------------------------------------------------------------------------------------------------------

/// Writes the turn's changes to the log, and finishes a thread's work. To be called before replies are sent. Errors: the
/// process must end, as changes cannot be made durable.
pub fn turn(db: &mut Keyspace, server: &mut State) -> Result<(), Fatal> {
    write_log(server)?;
    if server.persistence.preparing.is_some() {
        match continue_rewrite(db, server) {
            Ok(()) => {}
            Err(RewriteError::Failed(why)) => note_rewrite_ended(server, Err(why)),
            Err(RewriteError::Fatal(fatal)) => return Err(fatal),
        }
    }
    if server.persistence.running.is_some() {
        finish_job(db, server);
    }
    Ok(())
}

/// Writes the effects of ended units to the log.
pub fn write_log(server: &mut State) -> Result<(), Fatal> {
    spread_ended(server);
    let now = server.now;
    let Persistence { aof, running, .. } = &mut server.persistence;
    let Some(aof) = aof else { return Ok(()) };
    let had_error = aof.log.disk_error().is_some();
    aof.log.write(now)?;
    let has_error = aof.log.disk_error().is_some();
    if let Some(result) = aof.log.take_switch_result() {
        // The rewrite that the increment was made for may have been given up meanwhile.
        let rewrites = running.as_ref().is_some_and(|running| running.purpose == Purpose::Rewrite);
        aof.first_kept = result.ok().filter(|_| rewrites);
    }
    for (level, line) in aof.log.take_notices() {
        server.log(level, format_args!("{line}"));
    }
    if had_error != has_error {
        server.note_gate();
    }
    Ok(())
}

/// Continues the snapshot's iteration for one slice, unless the thread is behind. To be called after replies are sent, so
/// that they wait for one slice at most.
pub fn walk(db: &mut Keyspace, server: &mut State) {
    if !db.has_snapshot() {
        return;
    }
    let start_us = server.clock.now().boot_us;
    while db.has_snapshot() {
        let full = server.persistence.running.as_ref().is_none_or(|running| running.job.is_full());
        if full || matches!(db.walk_snapshot(), Walked::Done) {
            break;
        }
        if server.clock.now().boot_us - start_us >= SLICE_US {
            break;
        }
    }
}

/// Finishes a job whose thread has written the file: starts the thread that renames it, and logs the result.
fn finish_job(db: &mut Keyspace, server: &mut State) {
    let State { persistence, .. } = server;
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
                Some(Ok(bytes)) => match place(server, bytes) {
                    Ok(()) => return,
                    Err(why) => Err(why),
                },
            }
        }
    };
    conclude_job(db, server, placed);
}

/// Finishes a job with this result, and reports it.
fn conclude_job(db: &mut Keyspace, server: &mut State, placed: Placed) {
    let Some(running) = server.persistence.running.take() else { return };
    let copied = db.snapshot_copied();
    db.abort_snapshot();
    pause_syncs(server);
    if placed.is_err()
        && let Some(temporary) = running.job.temporary()
    {
        // Fails harmlessly if it was renamed already.
        let _ = server.persistence.disk.remove(temporary);
    }
    let seconds = (server.now.boot_us - running.job.started_us) / 1_000_000;
    match running.purpose {
        Purpose::Save => {
            server.persistence.last_save_seconds = seconds;
            server.persistence.last_save_copied = copied;
            match placed {
                Ok(_) => {
                    let text = "Background saving terminated with success";
                    server.log(Level::Notice, format_args!("{text}"));
                    note_saved(server, running.changes);
                    replicas::file_is_saved(server, true);
                }
                Err(why) => {
                    server.log(Level::Warning, format_args!("Background saving error: {why}"));
                    note_save_failed(server);
                    replicas::file_is_saved(server, false);
                }
            }
        }
        Purpose::Sync => {
            server.persistence.last_save_copied = copied;
            replicas::snapshot_is_written(server, placed.map(drop));
        }
        Purpose::Rewrite => {
            server.persistence.last_rewrite_seconds = seconds;
            server.persistence.last_rewrite_copied = copied;
            if let (Ok(bytes), Some(aof)) = (&placed, &mut server.persistence.aof) {
                aof.is_aside = false;
                aof.log.rewrite_finished(*bytes);
            }
            server.persistence.forget_first_kept();
            note_rewrite_ended(server, placed.map(drop));
        }
    }
}

/// Has a thread rename a complete file: that syncs folders, which takes long.
fn place(server: &mut State, bytes: u64) -> Result<(), String> {
    let (target, keeps_history) = (server.rdb_path(), server.config.aof_disable_auto_gc);
    let Persistence { disk, background, wake, running, aof, folder_alone, .. } =
        &mut server.persistence;
    let Some(running) = running else { return Ok(()) };
    let (disk, wake) = (disk.clone(), wake.clone());
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
pub fn begin_rewrite(db: &mut Keyspace, server: &mut State) -> Result<(), RewriteError> {
    server.persistence.rewrite_is_scheduled = false;
    if server.persistence.aof.is_none() {
        return begin_rewrite_alone(db, server);
    }
    server.persistence.preparing = Some(server.now.boot_us);
    let text = "Background append only file rewriting started";
    server.log(Level::Notice, format_args!("{text}"));
    continue_rewrite(db, server)
}

/// BGREWRITEAOF while the append-only file is off: writes a folder with the base alone, for a start with it on.
fn begin_rewrite_alone(db: &mut Keyspace, server: &mut State) -> Result<(), RewriteError> {
    let folder = open_folder(server).map_err(RewriteError::Failed)?;
    folder.create().map_err(|error| RewriteError::Failed(error.to_string()))?;
    let temporary = folder.path_of(temporary_base().as_bytes());
    server.persistence.folder_alone = Some(Arc::new(Mutex::new(folder)));
    let plan = plan(db, server, true);
    let begun = begin_job(db, server, Purpose::Rewrite, temporary, plan);
    begun.map_err(|error| RewriteError::Failed(system_text(&error)))?;
    let text = "Background append only file rewriting started";
    server.log(Level::Notice, format_args!("{text}"));
    Ok(())
}

fn temporary_base() -> String {
    format!("temp-rewriteaof-bg-{}.aof", std::process::id())
}

/// Opens the next increment and starts the snapshot, once the log is synced so far that this is quick.
fn continue_rewrite(db: &mut Keyspace, server: &mut State) -> Result<(), RewriteError> {
    let now = server.now;
    let Some(aof) = &mut server.persistence.aof else { return Ok(()) };
    if !aof.log.sync_ahead(now) {
        return Ok(());
    }
    server.persistence.preparing = None;
    // Earlier changes go to the old increment, later ones to the next.
    write_log(server).map_err(RewriteError::Fatal)?;
    let plan = plan(db, server, true);
    let Some(aof) = &mut server.persistence.aof else { return Ok(()) };
    let temporary = lock(&aof.folder).path_of(temporary_base().as_bytes());
    // If the log was just switched on, it has an increment of its own already.
    if aof.first_kept.is_none() {
        match aof.log.begin_switch(now) {
            Ok(()) => {}
            Err(SwitchError::Refused(why)) => return Err(RewriteError::Failed(why.into())),
            Err(SwitchError::Fatal(fatal)) => return Err(RewriteError::Fatal(fatal)),
        }
    }
    server.effects.select_anew();
    let begun = begin_job(db, server, Purpose::Rewrite, temporary, plan);
    begun.map_err(|error| {
        server.persistence.forget_first_kept();
        RewriteError::Failed(system_text(&error))
    })
}

fn note_rewrite_ended(server: &mut State, result: Result<(), String>) {
    let now_us = server.now.boot_us;
    let persistence = &mut server.persistence;
    persistence.rewrites += 1;
    persistence.last_rewrite_failed = result.is_err();
    let mut wait_minutes = None;
    match result {
        Ok(()) => {
            persistence.rewrite_failures = 0;
            let text = "Background AOF rewrite terminated with success";
            server.log(Level::Notice, format_args!("{text}"));
            let text = "Background AOF rewrite finished successfully";
            server.log(Level::Notice, format_args!("{text}"));
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
            let text = "Background AOF rewrite terminated with error";
            server.log(Level::Warning, format_args!("{text}: {why}"));
        }
    }
    if let Some(minutes) = wait_minutes {
        let text =
            "Background AOF rewrite has repeatedly failed and triggered the limit, will retry in";
        server.log(Level::Warning, format_args!("{text} {minutes} minutes"));
    }
}

// ---- periodic work ---------------------------------------------------------------------------------------------------

/// Starts what is due: scheduled saves and rewrites, save points, a rewrite of a grown file.
pub fn periodic(db: &mut Keyspace, server: &mut State) -> Result<(), Fatal> {
    // While loading the data is incomplete: nothing to save.
    if server.persistence.under_way().is_some() || server.persistence.loading.is_some() {
        return Ok(());
    }
    let now_us = server.now.boot_us;
    let may_retry = now_us >= server.persistence.next_rewrite_us;
    if may_retry && (server.persistence.rewrite_is_scheduled || has_grown(server)) {
        return match begin_rewrite(db, server) {
            Ok(()) => Ok(()),
            Err(RewriteError::Failed(why)) => {
                note_rewrite_ended(server, Err(why));
                Ok(())
            }
            Err(RewriteError::Fatal(fatal)) => Err(fatal),
        };
    }
    if server.persistence.save_is_scheduled {
        begin_save(db, server);
        return Ok(());
    }
    let changes = server.changes_since_save(db);
    let since = server.now.unix_seconds() - server.persistence.last_save_unix;
    let failed_lately =
        server.persistence.last_save_failed && now_us - server.persistence.last_try_us <= RETRY_US;
    let points = server.config.save.iter();
    let due = points
        .clone()
        .find(|point| changes >= point.changes && since > point.seconds as i64 && !failed_lately);
    if let Some(point) = due {
        let (changes, seconds) = (point.changes, point.seconds);
        server
            .log(Level::Notice, format_args!("{changes} changes in {seconds} seconds. Saving..."));
        begin_save(db, server);
    }
    Ok(())
}

/// Whether the append-only file has grown enough since the last rewrite for another one.
fn has_grown(server: &State) -> bool {
    let config = &server.config;
    let Some(log) = server.persistence.log() else { return false };
    if config.auto_aof_rewrite_percentage == 0
        || log.current_size() <= config.auto_aof_rewrite_min_size
    {
        return false;
    }
    let base = log.base_size().max(1);
    let growth = log.current_size().saturating_mul(100) / base;
    let grown = growth.saturating_sub(100);
    let is_due = grown >= u64::from(config.auto_aof_rewrite_percentage);
    if is_due && server.now.boot_us >= server.persistence.next_rewrite_us {
        let text = "Starting automatic rewriting of AOF on";
        server.log(Level::Notice, format_args!("{text} {grown}% growth"));
    }
    is_due
}
