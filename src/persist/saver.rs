//! Writes a snapshot to a file: in a thread while the server serves clients, or synchronously.
//!
//! ```text
//!   keyspace -- chunks --> queue --> thread: encode, write, sync --> rename, sync the folder
//! ```
//!
//! The loop's thread walks the keyspace in slices, only as fast as the queue drains. Entries about
//! to change are queued first. The file has a temporary name until it is complete and synced, so
//! either the old or the new file exists at any moment.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Thread;
use std::time::Duration;

use super::aof::BaseFormat;
use super::aof::rewrite::CommandWriter;
use super::leftovers;
use super::rdb::{Encoder, LeaseTimes, Newer, SavedEntry, Version, WriteError, Writer};
use crate::clock::Now;
use crate::config::system_text;
use crate::keyspace::evict::BLESSED;
use crate::keyspace::snapshot::{Chunk, Walked};
use crate::keyspace::{DbIndex, Keyspace, PerDatabase};
use crate::sys::background::Background;
use crate::sys::disk::{Disk, DiskFile, FileWriter};
use crate::sys::process;

/// The walk pauses when the queued chunks take this much memory. Unit: bytes.
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// The system is asked to write to the disk after each of these portions. Unit: bytes.
const WRITEBACK_BYTES: u64 = 4 << 20;

/// On a machine with few cores the thread sleeps for `REST` after every `BYTES_BETWEEN_RESTS`,
/// about 0.2 ms of work. Without these pauses the scheduler lets it run for a whole time slice,
/// several milliseconds, while a thread that has woken up on the same core waits.
const REST: Duration = Duration::from_micros(50);
const BYTES_BETWEEN_RESTS: usize = 64 << 10;

/// The form in which access bits are saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedAccess {
    /// Not at all: the eviction policy does not use them.
    None,
    /// Seconds since the last access.
    Idle,
    Frequency,
}

/// The form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Rdb,
    /// Commands that create the data: `aof-use-rdb-preamble no`.
    Commands {
        /// `aof-timestamp-enabled`
        has_timestamps: bool,
    },
}

impl Form {
    /// The format of an append-only file's base of this form.
    pub fn base_format(self) -> BaseFormat {
        match self {
            Form::Rdb => BaseFormat::Rdb,
            Form::Commands { .. } => BaseFormat::Aof,
        }
    }
}

/// The field with a script's source, as Redis up to 6.2 has it. Later versions skip it.
pub const SCRIPT_FIELD: &str = "lua";

/// The content of a file besides the entries, and how it is written.
#[derive(Clone, Debug)]
pub struct Plan {
    pub form: Form,
    pub version: Version,
    /// `rdbcompression`
    pub compresses: bool,
    /// `rdbchecksum`
    pub checks: bool,
    /// `rdb-save-incremental-fsync`, `aof-rewrite-incremental-fsync`
    pub starts_writeback: bool,
    pub aux: Vec<(&'static str, Vec<u8>)>,
    /// The source texts of function libraries.
    pub functions: Vec<Vec<u8>>,
    /// The source texts of scripts that survive a restart, the last used one last.
    pub scripts: Vec<Arc<[u8]>>,
    pub access: SavedAccess,
    /// The time of the snapshot.
    pub now: Now,
    /// The difference between the wall clock and the boot-time clock, to convert deadlines.
    pub wall_offset_ms: i64,
    pub leases: LeaseTimes,
    /// For each database: the number of keys, and of those with a deadline.
    pub databases: PerDatabase<(u64, u64)>,
    /// The LRU clock.
    pub lru_clock: u32,
    /// `rdb-key-save-delay`. Unit: microseconds a key; no delay if negative.
    pub key_delay: i32,
    /// Expired keys are written too: replicas that have them will get their deletions.
    pub keeps_expired: bool,
    /// No keys are written.
    pub omits_keys: bool,
}

impl Plan {
    /// The plan for a file that is saved now.
    pub fn new(db: &Keyspace, functions: Vec<Vec<u8>>, newer: Newer) -> Plan {
        let databases = PerDatabase::new(db.databases(), |database| {
            let table = db.table_of(database);
            (table.len() as u64, table.volatile_len() as u64)
        });
        Plan {
            form: Form::Rdb,
            version: match () {
                // It has deadlines of fields too.
                () if newer.producers && db.may_have_producers() => Version::REDIS_13,
                () if db.has_volatile_fields() => newer.volatile,
                () => Version::REDIS_10,
            },
            compresses: true,
            checks: true,
            starts_writeback: true,
            aux: Vec::new(),
            functions,
            scripts: Vec::new(),
            access: SavedAccess::None,
            now: db.now(),
            wall_offset_ms: db.shown_offset_ms(),
            leases: LeaseTimes { shift_ms: db.lease_shift_ms(), latest_ms: None },
            databases,
            lru_clock: db.lru_clock(),
            key_delay: 0,
            keeps_expired: false,
            omits_keys: false,
        }
    }
}

enum FormWriter<'a> {
    Rdb(Box<Writer<PacedFile<'a>>>),
    Commands(CommandWriter<PacedFile<'a>>),
}

impl FormWriter<'_> {
    fn written_bytes(&self) -> u64 {
        match self {
            FormWriter::Rdb(writer) => writer.written_bytes(),
            FormWriter::Commands(writer) => writer.written_bytes(),
        }
    }
}

/// A file that is written with pauses, if `rests`, and no further once the save is aborted.
struct PacedFile<'a> {
    file: FileWriter<'a>,
    rests: bool,
    since_rest: usize,
    aborted: Option<&'a AtomicBool>,
}

impl Write for PacedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if is_set(self.aborted) {
            return Err(aborted_error());
        }
        let written = self.file.write(bytes)?;
        self.since_rest += written;
        if self.rests && self.since_rest >= BYTES_BETWEEN_RESTS {
            self.since_rest = 0;
            std::thread::sleep(REST);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Encodes chunks into a file.
struct FileSaver<'a> {
    writer: FormWriter<'a>,
    file: &'a dyn DiskFile,
    plan: &'a Plan,
    database: Option<DbIndex>,
    /// Bytes for which writing to the disk was started.
    written_back: u64,
    /// Set when the save is aborted.
    aborted: Option<&'a AtomicBool>,
}

fn io_error(error: WriteError) -> io::Error {
    match error {
        WriteError::Io(error) => error,
        WriteError::NeedsVersion(error) => io::Error::other(error),
    }
}

impl<'a> FileSaver<'a> {
    /// `rests`, `aborted`: as [`PacedFile`] has them.
    fn new(
        file: &'a dyn DiskFile,
        plan: &'a Plan,
        rests: bool,
        aborted: Option<&'a AtomicBool>,
    ) -> io::Result<Self> {
        let paced = PacedFile { file: FileWriter(file), rests, since_rest: 0, aborted };
        let writer = match plan.form {
            Form::Rdb => {
                let mut encoder = Encoder::new(plan.compresses).with_leases(plan.leases);
                if rests {
                    encoder.rest = || std::thread::sleep(REST);
                }
                let mut writer = Writer::new(paced, plan.version, encoder, plan.checks)?;
                for (name, value) in &plan.aux {
                    writer.aux(name.as_bytes(), value)?;
                }
                for text in &plan.scripts {
                    writer.aux(SCRIPT_FIELD.as_bytes(), text)?;
                }
                for text in &plan.functions {
                    writer.function(text)?;
                }
                FormWriter::Rdb(Box::new(writer))
            }
            Form::Commands { has_timestamps } => {
                let time = has_timestamps.then(|| plan.now.unix_seconds());
                let has_producers = plan.version.is_redis_since(Version::REDIS_13);
                let mut writer = CommandWriter::new(paced, time, plan.leases, has_producers);
                for text in &plan.scripts {
                    writer.load([b"SCRIPT", b"LOAD", text])?;
                }
                for text in &plan.functions {
                    writer.load([b"FUNCTION", b"LOAD", text])?;
                }
                FormWriter::Commands(writer)
            }
        };
        Ok(FileSaver { writer, file, plan, database: None, written_back: 0, aborted })
    }

    fn chunk(&mut self, chunk: &Chunk) -> io::Result<()> {
        if self.plan.omits_keys {
            return Ok(());
        }
        let Plan { now, wall_offset_ms, access, lru_clock, key_delay, .. } = *self.plan;
        if self.database != Some(chunk.database) {
            self.database = Some(chunk.database);
            let (keys, volatile) = self.plan.databases[chunk.database];
            let database = chunk.database.get() as u64;
            match &mut self.writer {
                FormWriter::Rdb(writer) => writer.select_db(database, keys, volatile)?,
                FormWriter::Commands(writer) => writer.select_db(database)?,
            }
        }
        chunk.each(|copied| {
            let has_expired = copied.deadline.is_some_and(|deadline| now.is_past(deadline));
            if has_expired && !self.plan.keeps_expired {
                return Ok(());
            }
            let is_blessed = copied.access == BLESSED;
            let access = if is_blessed { SavedAccess::None } else { access };
            let idle = u64::from(lru_clock.wrapping_sub(copied.access) & 0xff_ffff);
            let entry = SavedEntry {
                key: copied.key,
                value: copied.value,
                deadline_ms: copied.deadline.map(|deadline| deadline.unix(wall_offset_ms).0),
                idle_seconds: (access == SavedAccess::Idle).then_some(idle),
                frequency: (access == SavedAccess::Frequency).then_some(copied.access as u8),
                is_blessed,
            };
            self.delay(key_delay)?;
            match &mut self.writer {
                FormWriter::Rdb(writer) => writer.entry(entry, &now).map_err(io_error),
                FormWriter::Commands(writer) => writer.entry(&entry, &now),
            }
        })?;
        if self.plan.starts_writeback
            && self.writer.written_bytes() > self.written_back + WRITEBACK_BYTES
        {
            self.file.start_writeback(
                self.written_back,
                self.writer.written_bytes() - self.written_back,
            );
            self.written_back = self.writer.written_bytes();
        }
        Ok(())
    }

    /// Waits for `rdb-key-save-delay`. Errors: the save was aborted.
    fn delay(&self, key_delay: i32) -> io::Result<()> {
        if key_delay <= 0 {
            return Ok(());
        }
        let delay = Duration::from_micros(key_delay as u64);
        match self.aborted {
            // [`Job::abort`] unparks the thread.
            Some(_) => std::thread::park_timeout(delay),
            None => std::thread::sleep(delay),
        }
        if is_set(self.aborted) { Err(aborted_error()) } else { Ok(()) }
    }

    /// Ends and syncs the file. Returns its bytes.
    fn finish(self) -> io::Result<u64> {
        match self.writer {
            FormWriter::Rdb(writer) => drop(writer.finish()?),
            FormWriter::Commands(writer) => writer.finish()?,
        }
        self.file.sync_data()?;
        self.file.size()
    }
}

fn is_set(aborted: Option<&AtomicBool>) -> bool {
    aborted.is_some_and(|aborted| aborted.load(Ordering::Relaxed))
}

fn aborted_error() -> io::Error {
    io::Error::other("the save was given up")
}

/// Gives a complete and synced file its final name.
pub fn put_in_place(disk: &dyn Disk, temporary: &Path, target: &Path) -> io::Result<()> {
    disk.rename(temporary, target)?;
    disk.sync_folder(target.parent().unwrap_or(Path::new(".")))
}

/// Saves all databases synchronously. Returns the file's bytes. After an error the old file is
/// unchanged, and the temporary one removed.
pub fn save_now(
    db: &mut Keyspace,
    disk: &dyn Disk,
    temporary: &Path,
    target: &Path,
    plan: &Plan,
) -> io::Result<u64> {
    let saved = disk.create(temporary).and_then(|file| {
        leftovers::hold(&*file);
        let bytes = write_now(db, &*file, plan)?;
        put_in_place(disk, temporary, target)?;
        Ok(bytes)
    });
    if saved.is_err() {
        db.abort_snapshot();
        // It may not exist.
        let _ = disk.remove(temporary);
    }
    saved
}

/// Writes all databases to a file and syncs it. Returns its bytes.
pub fn write_now(db: &mut Keyspace, file: &dyn DiskFile, plan: &Plan) -> io::Result<u64> {
    let mut saver = FileSaver::new(file, plan, false, None)?;
    let (sender, receiver) = channel();
    // After an error the receiver no longer exists.
    let held = db.held.begin();
    db.begin_snapshot(Box::new(move |chunk| _ = sender.send(chunk)), held);
    loop {
        let walked = db.walk_snapshot();
        while let Ok(chunk) = receiver.try_recv() {
            saver.chunk(&chunk)?;
        }
        if let Walked::Done = walked {
            return saver.finish();
        }
    }
}

/// Locks a mutex. A poisoned one is usable: no thread leaves its content inconsistent.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A snapshot that a thread is writing.
pub struct Job {
    temporary: Option<PathBuf>,
    shared: Arc<Shared>,
    thread: Option<Thread>,
    /// Whether the loop, the thread and the clients compete for few cores.
    pub shares_cores: bool,
    pub form: Form,
    pub started_us: i64,
    pub keys_total: u64,
}

struct Shared {
    /// Bytes of the queued chunks.
    queued: AtomicUsize,
    keys: AtomicUsize,
    aborted: AtomicBool,
    /// The file's bytes, or an error text.
    result: Mutex<Option<Result<u64, String>>>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Job {
    /// Begins a snapshot and a thread that writes it to `file`, whose name is `temporary` if it has
    /// one. `wake` is called when the queue has room again, and at the end. Errors: no thread can
    /// be started.
    pub fn begin(
        db: &mut Keyspace,
        file: Arc<dyn DiskFile>,
        temporary: Option<PathBuf>,
        plan: Plan,
        wake: Arc<dyn Fn() + Send + Sync>,
        background: &Background,
    ) -> io::Result<Job> {
        let shared = Arc::new(Shared {
            queued: AtomicUsize::new(0),
            keys: AtomicUsize::new(0),
            aborted: AtomicBool::new(false),
            result: Mutex::new(None),
            wake,
        });
        let (sender, receiver) = channel::<Chunk>();
        let (form, started_us) = (plan.form, plan.now.boot_us);
        let keys_total = plan.databases.iter().map(|(keys, _)| keys).sum();
        let in_thread = shared.clone();
        let held = db.held.begin();
        let held_there = held.clone();
        let has_threads = background.has_threads();
        let shares_cores = has_threads && process::has_few_cores();
        let encode = move || {
            let encoding = || encode_all(&*file, &plan, &receiver, &in_thread, shares_cores);
            // A panic must become a result, as without one the save would never end.
            let saved = catch_unwind(AssertUnwindSafe(encoding));
            let saved = saved.unwrap_or_else(|_| Err(io::Error::other("its thread has panicked")));
            let result = saved.map_err(|error| system_text(&error));
            *lock(&in_thread.result) = Some(result);
            (in_thread.wake)();
            // Chunks that arrive before the walk has ended are not freed by the loop: that may take
            // long.
            if has_threads {
                receiver.iter().for_each(drop);
            }
        };
        // Chunks that are not written are dropped within it too.
        let thread = background.spawn("saver", move || held_there.count(encode))?;
        let in_walk = shared.clone();
        let send = Box::new(move |chunk: Chunk| {
            in_walk.queued.fetch_add(chunk.memory(), Ordering::Relaxed);
            // A thread that has failed receives no more; its result is the error.
            let _ = sender.send(chunk);
        });
        db.begin_snapshot(send, held);
        Ok(Job { temporary, shared, thread, shares_cores, form, started_us, keys_total })
    }

    /// The temporary file.
    pub fn temporary(&self) -> Option<&Path> {
        self.temporary.as_deref()
    }

    /// Whether the walk must pause until the thread has caught up.
    pub fn is_full(&self) -> bool {
        // A simulation has no thread: it writes only after the whole snapshot is queued.
        self.thread.is_some() && self.shared.queued.load(Ordering::Relaxed) >= QUEUE_BYTES_MAX
    }

    /// Keys written so far.
    pub fn keys_done(&self) -> usize {
        self.shared.keys.load(Ordering::Relaxed)
    }

    /// The result, once the thread has ended: the file's bytes, or an error text.
    pub fn take_result(&mut self) -> Option<Result<u64, String>> {
        lock(&self.shared.result).take()
    }

    /// Makes the thread stop, without waiting for it: it may be in the middle of a sync. Its file
    /// no longer has a name, so another save may begin.
    pub fn abort(self, db: &mut Keyspace, disk: &dyn Disk) {
        self.shared.aborted.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
        db.abort_snapshot();
        if let Some(temporary) = &self.temporary {
            // It may have been removed already.
            let _ = disk.remove(temporary);
        }
    }
}

fn encode_all(
    file: &dyn DiskFile,
    plan: &Plan,
    chunks: &Receiver<Chunk>,
    shared: &Shared,
    rests: bool,
) -> io::Result<u64> {
    let mut saver = FileSaver::new(file, plan, rests, Some(&shared.aborted))?;
    while let Ok(chunk) = chunks.recv() {
        if shared.aborted.load(Ordering::Relaxed) {
            return Err(aborted_error());
        }
        let written_before = saver.writer.written_bytes();
        saver.chunk(&chunk)?;
        // Data that compresses well takes more work than its written bytes show.
        if rests && saver.writer.written_bytes() == written_before {
            std::thread::sleep(REST);
        }
        shared.keys.fetch_add(chunk.len(), Ordering::Relaxed);
        let bytes = chunk.memory();
        let before = shared.queued.fetch_sub(bytes, Ordering::Relaxed);
        if before >= QUEUE_BYTES_MAX && before - bytes < QUEUE_BYTES_MAX {
            (shared.wake)();
        }
    }
    if shared.aborted.load(Ordering::Relaxed) {
        return Err(aborted_error());
    }
    saver.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::collections::hash::KeyHasher;

    #[derive(Debug)]
    struct PanickingFile;

    impl DiskFile for PanickingFile {
        fn write(&self, _: &[u8]) -> io::Result<usize> {
            panic!("a test")
        }

        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }

        fn set_len(&self, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn size(&self) -> io::Result<u64> {
            Ok(0)
        }

        fn lock(&self) -> io::Result<bool> {
            Ok(true)
        }

        fn start_writeback(&self, _: u64, _: u64) {}
    }

    #[test]
    fn a_save_whose_thread_panics_fails() {
        let mut db = Keyspace::new(1, KeyHasher::new([3, 4]), Clock::System.now());
        let plan = Plan::new(&db, Vec::new(), Newer::default());
        let background = Background::Later(Arc::default());
        let file = Arc::new(PanickingFile);
        let mut job = Job::begin(&mut db, file, None, plan, Arc::new(|| {}), &background).unwrap();
        while let Walked::More = db.walk_snapshot() {}
        assert_eq!(job.take_result(), None);
        background.run();
        assert_eq!(job.take_result(), Some(Err("its thread has panicked".to_owned())));
    }
}
