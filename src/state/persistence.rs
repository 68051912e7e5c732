//! The state of saving and of the append-only file, and its answers to other parts.
//! `durability/persistence.rs` changes it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::State;
use crate::clock::Due;
use crate::error::CommandError;
use crate::keyspace::{DbIndex, Keyspace};
use crate::persist::aof::folder::AofFolder;
use crate::persist::aof::log::{AppendLog, Fatal, LogOffset};
use crate::persist::saver::Job;
use crate::replication::parse_offset;
use crate::sys::background::Background;
use crate::sys::disk::{Disk, RealDisk};

/// The output of a background job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The RDB file.
    Save,
    /// The append-only file's base.
    Rewrite,
    /// A snapshot for replicas, sent while it is made.
    Sync,
}

/// The background job: at most one at a time, because only one snapshot can exist.
#[derive(Default)]
pub enum Work {
    #[default]
    Idle,
    /// A rewrite, requested at this time (boot-time clock, microseconds). It waits for a sync of
    /// the AOF: after that, a new increment can be opened without delay.
    PreparingRewrite { since_us: i64 },
    /// The job's thread writes.
    Writing(Running),
    /// The file is complete; a thread renames it.
    Placing(Running, Receiver<Placed>),
}

/// A background job that has begun.
pub struct Running {
    pub purpose: Purpose,
    pub job: Job,
    /// The path of a save's file, as configured when the save began.
    pub target: PathBuf,
    /// The folder of a rewrite that began while the append-only file was off, or that moves it.
    pub folder: Option<Arc<Mutex<AofFolder>>>,
    /// The count of changes when it began.
    pub changes: u64,
}

impl Work {
    /// The job that writes, or whose file is renamed.
    pub fn running(&self) -> Option<&Running> {
        match self {
            Work::Writing(running) | Work::Placing(running, _) => Some(running),
            Work::Idle | Work::PreparingRewrite { .. } => None,
        }
    }

    pub fn is_preparing(&self) -> bool {
        matches!(self, Work::PreparingRewrite { .. })
    }

    /// Takes the job out.
    pub fn take_running(&mut self) -> Option<Running> {
        match std::mem::take(self) {
            Work::Writing(running) | Work::Placing(running, _) => Some(running),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// The progress of a background job.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub purpose: Purpose,
    /// Boot-time clock, microseconds.
    pub since_us: i64,
    pub keys_done: usize,
    pub keys_total: u64,
}

/// Jobs that begin when the running one has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queued {
    /// BGSAVE SCHEDULE.
    pub save: bool,
    /// BGREWRITEAOF, or the AOF's first base.
    pub rewrite: bool,
}

/// Statistics of saves to RDB files.
#[derive(Debug)]
pub struct SaveStats {
    pub count: u64,
    /// Unix seconds of the last successful save. Before the first save, of the start.
    pub last_unix: i64,
    /// The count of changes when it began.
    pub changes: u64,
    pub has_failed: bool,
    /// When the last background save began: boot-time clock, microseconds.
    pub last_try_us: i64,
    /// Duration in seconds; -1: none.
    pub last_seconds: i64,
    /// Bytes of entries that were copied before a change.
    pub last_copied: usize,
}

/// Figures of rewrites of the append-only file.
#[derive(Debug)]
pub struct RewriteStats {
    pub count: u64,
    pub has_failed: bool,
    pub failures_in_a_row: u32,
    /// After failures, the earliest start of the next rewrite: boot-time clock, microseconds.
    pub next_us: i64,
    /// Duration in seconds; -1: none.
    pub last_seconds: i64,
    /// Bytes of entries that were copied before a change.
    pub last_copied: usize,
}

/// Figures of the last load.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadStats {
    pub keys: u64,
    pub expired: u64,
    /// Collections without elements, which are skipped.
    pub empty_skipped: u64,
}

/// The result of renaming a file: its bytes, or an error.
pub type Placed = Result<u64, String>;

/// The append-only file, while it is on.
pub struct Aof {
    pub log: AppendLog,
    pub folder: Arc<Mutex<AofFolder>>,
    /// The first increment that the running rewrite keeps, once known. It began at the same moment
    /// as that rewrite's snapshot. The base of another rewrite would contain a part of it, and a
    /// start would run that part again.
    pub first_kept: Option<i64>,
    /// No rewrite has ended since the file was switched on: a start would not load it.
    pub is_aside: bool,
}

/// State and statistics of saving and of the append-only file.
pub struct Persistence {
    pub disk: Arc<dyn Disk>,
    pub background: Background,
    pub wake: Arc<dyn Fn() + Send + Sync>,
    pub stop: Arc<AtomicUsize>,
    pub work: Work,
    pub queued: Queued,
    pub aof: Option<Aof>,
    /// The end of the AOF that was switched off last.
    pub closed_log: LogOffset,
    /// Where that was.
    pub closed_at: Option<ClosedAof>,
    /// The log was switched off, but lacks writes that were answered under `always`: the process
    /// must end.
    pub fatal: Option<Fatal>,
    /// Background jobs started.
    pub jobs: u64,
    pub saves: SaveStats,
    pub rewrites: RewriteStats,
    pub loads: LoadStats,
    /// The replication position saved in the RDB file that was loaded last.
    pub moment: Moment,
    /// The file being loaded.
    pub loading: Option<Loading>,
    /// `DEBUG AOF-FLUSH-SLEEP`
    pub flush_delay: Duration,
}

/// An AOF that was switched off: the server's `dir` then, and its manifest.
#[derive(Clone, Debug)]
pub struct ClosedAof {
    pub dir: PathBuf,
    pub manifest: Vec<u8>,
}

/// The field of an RDB file that has the last fence of a lock.
pub const LAST_FENCE: &str = "latchkey-last-fence";

/// The field of an RDB file that has the slots that a primary is moving by hand; only its replicas
/// need it.
pub const OPEN_SLOTS: &str = "cluster-slot-states";

/// The field of an RDB file that has the slot migrations to this server that have not ended: the
/// keys that have come so far stay hidden.
pub const SLOT_IMPORTS: &str = "latchkey-slot-imports";

/// The field of an RDB file that has the slots whose keys are being deleted, because they belong to
/// another node: their deletion goes on after a start, and at a replica that takes over.
pub const SLOT_DROPS: &str = "latchkey-slot-drops";

/// The replication history and offset of an RDB file, if the file states them.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    pub id: Option<String>,
    pub offset: Option<u64>,
    /// The database that the stream had selected.
    pub stream_database: DbIndex,
}

impl Moment {
    /// Reads a field about the file.
    pub fn note(&mut self, name: &[u8], value: &[u8]) {
        let Ok(text) = std::str::from_utf8(value) else { return };
        match name {
            b"repl-id" => self.id = Some(text.to_owned()).filter(|id| id.len() == 40),
            b"repl-offset" => self.offset = parse_offset(text),
            b"repl-stream-db" => self.stream_database = text.parse().unwrap_or(DbIndex::ZERO),
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
    /// The memory used when the file was saved, by the file's own field. Unit: bytes.
    pub memory_then: u64,
    /// The file comes from the primary, into databases beside the served ones.
    pub is_beside: bool,
    /// Clients were served during the load.
    pub others_heard: bool,
    /// The server is to end: the rest of the file is not loaded, and no client sees the loaded
    /// part.
    pub is_interrupted: bool,
}

impl Persistence {
    pub fn new(started_unix: i64) -> Self {
        Persistence {
            disk: Arc::new(RealDisk),
            background: Background::Threads,
            wake: Arc::new(|| ()),
            stop: Arc::default(),
            work: Work::Idle,
            queued: Queued::default(),
            aof: None,
            closed_log: LogOffset::default(),
            closed_at: None,
            fatal: None,
            jobs: 0,
            saves: SaveStats {
                count: 0,
                last_unix: started_unix,
                changes: 0,
                has_failed: false,
                last_try_us: i64::MIN / 2,
                last_seconds: -1,
                last_copied: 0,
            },
            rewrites: RewriteStats {
                count: 0,
                has_failed: false,
                failures_in_a_row: 0,
                next_us: i64::MIN / 2,
                last_seconds: -1,
                last_copied: 0,
            },
            loads: LoadStats::default(),
            moment: Moment::default(),
            loading: None,
            flush_delay: Duration::ZERO,
        }
    }

    /// Wakes the event loop from another thread.
    pub fn wake(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.wake.clone()
    }

    /// The threads for work that the loop must not wait for.
    pub fn background(&self) -> &Background {
        &self.background
    }

    /// Replaces the disk, and makes the loop do the threads' work (for simulation). Call this
    /// before anything starts.
    pub fn set_apart(&mut self, disk: Arc<dyn Disk>) {
        (self.disk, self.background) = (disk, Background::Later(Arc::default()));
    }

    /// Syncs the AOF, if no thread does.
    pub fn sync_log(&self) {
        if let Some(log) = self.log().filter(|_| !self.background.has_threads()) {
            log.do_syncs();
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

    /// The progress of the background job, if one runs.
    pub fn under_way(&self) -> Option<Progress> {
        Some(match &self.work {
            Work::Idle => return None,
            &Work::PreparingRewrite { since_us } => {
                Progress { purpose: Purpose::Rewrite, since_us, keys_done: 0, keys_total: 0 }
            }
            Work::Writing(running) | Work::Placing(running, _) => Progress {
                purpose: running.purpose,
                since_us: running.job.started_us,
                keys_done: running.job.keys_done(),
                keys_total: running.job.keys_total,
            },
        })
    }

    /// The output of the background job, if one runs.
    pub fn purpose(&self) -> Option<Purpose> {
        self.under_way().map(|progress| progress.purpose)
    }

    /// The append-only log, if it is on.
    pub fn log(&self) -> Option<&AppendLog> {
        self.aof.as_ref().map(|aof| &aof.log)
    }

    pub fn is_aof_on(&self) -> bool {
        self.aof.is_some()
    }

    /// The log's offset on which a reply sent now depends.
    #[inline]
    pub fn depends_on(&self) -> LogOffset {
        self.aof.as_ref().map_or(LogOffset::default(), |aof| aof.log.end())
    }

    /// Whether the AOF may delay replies.
    #[inline]
    pub fn may_hold_replies(&self) -> bool {
        self.aof.is_some()
    }

    /// Whether a reply that depends on this offset may be sent.
    #[inline]
    pub fn may_leave(&self, offset: LogOffset) -> bool {
        self.aof.as_ref().is_none_or(|aof| offset <= aof.log.acknowledged())
    }

    /// The log's offset on disk. None: unknown, or a start would not load this AOF.
    pub fn on_disk(&self) -> Option<LogOffset> {
        let aof = self.aof.as_ref().filter(|aof| !aof.is_aside)?;
        Some(aof.log.synced())
    }

    /// Call this when a rewrite has ended or is given up.
    pub fn forget_first_kept(&mut self) {
        if let Some(aof) = &mut self.aof {
            aof.first_kept = None;
        }
    }

    /// When the log has to be called, or the snapshot's walk can continue. The saver wakes the loop
    /// when its queue has room again and when it has ended, so the loop need not check for the end.
    pub fn due(&self, keyspace: &Keyspace) -> Due {
        let may_walk = |running: &Running| !running.job.is_full();
        if keyspace.has_snapshot() && self.work.running().is_some_and(may_walk) {
            return Due::NOW;
        }
        Due::at(self.aof.as_ref().and_then(|aof| aof.log.next_call_us()))
    }
}

impl State {
    /// Changes since the last save, for INFO.
    pub fn changes_since_save(&self, keyspace: &Keyspace) -> u64 {
        keyspace.dirty().saturating_sub(self.persistence.saves.changes)
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
            && self.persistence.saves.has_failed
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
