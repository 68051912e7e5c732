//! Writing a snapshot to a file: by a thread of its own while the server goes on, or at once.
//!
//! ```text
//!   keyspace -- chunks --> queue --> thread: encode, write, sync --> rename, sync the folder
//! ```
//!
//! The loop's thread walks the keyspace in slices and only as fast as the queue drains; what is about to change comes in between.
//! The file has another name until it is whole and synced, so that at any moment there is the old file or the new one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Thread;
use std::time::Duration;

use super::aof::BaseFormat;
use super::aof::rewrite::CommandWriter;
use super::rdb::{Encoder, SavedEntry, Version, WriteError, Writer};
use crate::clock::Now;
use crate::config::system_text;
use crate::keyspace::Keyspace;
use crate::keyspace::snapshot::{Chunk, Walked};
use crate::sys::background::Background;
use crate::sys::disk::{Disk, DiskFile, FileWriter};

/// Chunks that wait to be encoded may take so much before the walk pauses. Unit: bytes.
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// The system is asked to begin to write out what was written whenever so much has come. Unit: bytes.
const WRITEBACK_BYTES: u64 = 4 << 20;

/// How access bits are told in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTold {
    /// Not at all: the eviction policy does not go by them.
    No,
    /// Seconds since the last access.
    Idle,
    Frequency,
}

/// The form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Rdb,
    /// Commands that make what is there: `aof-use-rdb-preamble no`.
    Commands {
        /// `aof-timestamp-enabled`
        annotates: bool,
    },
}

impl Form {
    /// What a base of this form is called by.
    pub fn base_format(self) -> BaseFormat {
        match self {
            Form::Rdb => BaseFormat::Rdb,
            Form::Commands { .. } => BaseFormat::Aof,
        }
    }
}

/// What a file is to hold besides the entries, and how it is written.
#[derive(Clone, Debug)]
pub struct Plan {
    pub form: Form,
    pub version: Version,
    /// `rdbcompression`
    pub compresses: bool,
    /// `rdbchecksum`
    pub checks: bool,
    /// `rdb-save-incremental-fsync`, `aof-rewrite-incremental-fsync`
    pub writes_back: bool,
    pub aux: Vec<(&'static str, Vec<u8>)>,
    /// The texts of libraries of functions.
    pub functions: Vec<Vec<u8>>,
    pub access: AccessTold,
    /// The snapshot's moment.
    pub now: Now,
    /// The wall clock's lead that deadlines are told with.
    pub wall_offset_ms: i64,
    /// Of each database: keys, and those with a deadline.
    pub databases: Vec<(u64, u64)>,
    /// The LRU clock.
    pub lru_clock: u32,
    /// `rdb-key-save-delay`, microseconds; negative: keys for each microsecond.
    pub key_delay: i32,
    /// Keys that have expired are written too: replicas that know of them are to be told that they are gone.
    pub keeps_expired: bool,
    /// Only what is besides the keys is written.
    pub leaves_out_keys: bool,
}

impl Plan {
    /// The plan of a file that is saved now.
    pub fn new(db: &Keyspace, functions: Vec<Vec<u8>>) -> Plan {
        let databases = (0..db.databases()).map(|index| {
            let table = db.table_of(index);
            (table.len() as u64, table.volatile_len() as u64)
        });
        Plan {
            form: Form::Rdb,
            // Only deadlines of fields need a later one.
            version: if db.has_volatile_fields() { Version::VALKEY_80 } else { Version::REDIS_10 },
            compresses: true,
            checks: true,
            writes_back: true,
            aux: Vec::new(),
            functions,
            access: AccessTold::No,
            now: db.now(),
            wall_offset_ms: db.wall_offset_ms(),
            databases: databases.collect(),
            lru_clock: db.lru_clock(),
            key_delay: 0,
            keeps_expired: false,
            leaves_out_keys: false,
        }
    }
}

enum FormWriter<'a> {
    Rdb(Box<Writer<FileWriter<'a>>>),
    Commands(CommandWriter<FileWriter<'a>>),
}

impl FormWriter<'_> {
    /// Bytes given to the file so far.
    fn len(&self) -> u64 {
        match self {
            FormWriter::Rdb(writer) => writer.len(),
            FormWriter::Commands(writer) => writer.written_bytes(),
        }
    }
}

/// Encodes chunks into a file.
struct FileSaver<'a> {
    writer: FormWriter<'a>,
    file: &'a dyn DiskFile,
    plan: &'a Plan,
    database: Option<usize>,
    written_back: u64,
    /// Somebody has given the file up.
    aborted: Option<&'a AtomicBool>,
}

fn failed(error: WriteError) -> io::Error {
    match error {
        WriteError::Io(error) => error,
        WriteError::NeedsVersion(error) => io::Error::other(error),
    }
}

impl<'a> FileSaver<'a> {
    fn new(file: &'a dyn DiskFile, plan: &'a Plan) -> io::Result<Self> {
        let writer = match plan.form {
            Form::Rdb => {
                let encoder = Encoder::new(plan.compresses);
                let mut writer = Writer::new(FileWriter(file), plan.version, encoder, plan.checks)?;
                for (name, value) in &plan.aux {
                    writer.aux(name.as_bytes(), value)?;
                }
                for text in &plan.functions {
                    writer.function(text)?;
                }
                FormWriter::Rdb(Box::new(writer))
            }
            Form::Commands { annotates } => {
                let time = annotates.then(|| plan.now.unix_seconds());
                let mut writer = CommandWriter::new(FileWriter(file), time);
                for text in &plan.functions {
                    writer.function(text)?;
                }
                FormWriter::Commands(writer)
            }
        };
        Ok(FileSaver { writer, file, plan, database: None, written_back: 0, aborted: None })
    }

    fn chunk(&mut self, chunk: &Chunk) -> io::Result<()> {
        if self.plan.leaves_out_keys {
            return Ok(());
        }
        let Plan { now, wall_offset_ms, access, lru_clock, key_delay, .. } = *self.plan;
        if self.database != Some(chunk.database) {
            self.database = Some(chunk.database);
            let (keys, volatile) = self.plan.databases[chunk.database];
            let database = chunk.database as u64;
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
            let idle = u64::from(lru_clock.wrapping_sub(copied.access) & 0xff_ffff);
            let entry = SavedEntry {
                key: copied.key,
                value: copied.value,
                deadline_ms: copied.deadline.map(|deadline| deadline.unix(wall_offset_ms).0),
                idle_seconds: (access == AccessTold::Idle).then_some(idle),
                frequency: (access == AccessTold::Frequency).then_some(copied.access as u8),
            };
            self.delay(key_delay)?;
            match &mut self.writer {
                FormWriter::Rdb(writer) => writer.entry(entry, &now).map_err(failed),
                FormWriter::Commands(writer) => writer.entry(&entry, &now),
            }
        })?;
        if self.plan.writes_back && self.writer.len() > self.written_back + WRITEBACK_BYTES {
            self.file.start_writeback(self.written_back, self.writer.len() - self.written_back)?;
            self.written_back = self.writer.len();
        }
        Ok(())
    }

    /// `rdb-key-save-delay`: waits so many microseconds, or until the file is given up, which is an error.
    fn delay(&self, key_delay: i32) -> io::Result<()> {
        if key_delay <= 0 {
            return Ok(());
        }
        let Some(aborted) = self.aborted else {
            std::thread::sleep(Duration::from_micros(key_delay as u64));
            return Ok(());
        };
        // Whoever gives it up unparks the thread.
        std::thread::park_timeout(Duration::from_micros(key_delay as u64));
        match aborted.load(Ordering::Relaxed) {
            true => Err(given_up()),
            false => Ok(()),
        }
    }

    /// Ends the file and syncs it; its bytes.
    fn finish(self) -> io::Result<u64> {
        match self.writer {
            FormWriter::Rdb(writer) => drop(writer.finish()?),
            FormWriter::Commands(writer) => writer.finish()?,
        }
        self.file.sync_data()?;
        self.file.size()
    }
}

fn given_up() -> io::Error {
    io::Error::other("the save was given up")
}

/// Puts a whole and synced file in its place.
pub fn put_in_place(disk: &dyn Disk, temporary: &Path, target: &Path) -> io::Result<()> {
    disk.rename(temporary, target)?;
    disk.sync_folder(target.parent().unwrap_or(Path::new(".")))
}

/// Saves all databases now, without a thread. Returns the file's bytes. Errors: the system's; nothing is left then but the old
/// file.
pub fn save_now(
    db: &mut Keyspace,
    disk: &dyn Disk,
    temporary: &Path,
    target: &Path,
    plan: &Plan,
) -> io::Result<u64> {
    let saved = save_aside_now(db, disk, temporary, plan)
        .and_then(|bytes| put_in_place(disk, temporary, target).map(|()| bytes));
    if saved.is_err() {
        db.abort_snapshot();
        // It may not even have been made.
        let _ = disk.remove(temporary);
    }
    saved
}

fn save_aside_now(db: &mut Keyspace, disk: &dyn Disk, path: &Path, plan: &Plan) -> io::Result<u64> {
    let file = disk.create(path)?;
    write_now(db, &*file, plan)
}

/// Writes all databases to a file and syncs it.
pub fn write_now(db: &mut Keyspace, file: &dyn DiskFile, plan: &Plan) -> io::Result<u64> {
    let mut saver = FileSaver::new(file, plan)?;
    let (sender, receiver) = channel();
    // What an error has left unread need not arrive.
    db.begin_snapshot(Box::new(move |chunk| _ = sender.send(chunk)));
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

/// What threads share; a thread that panicked with it has left it whole.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A file that is being written by a thread.
pub struct Job {
    temporary: Option<PathBuf>,
    shared: Arc<Shared>,
    thread: Option<Thread>,
    pub form: Form,
    pub started_us: i64,
    pub keys_total: u64,
}

struct Shared {
    /// Bytes of chunks that wait.
    queued: AtomicUsize,
    keys: AtomicUsize,
    aborted: AtomicBool,
    /// The file's bytes, or why there is none.
    result: Mutex<Option<Result<u64, String>>>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Job {
    /// Begins a snapshot of this moment and a thread that writes it to `file`, whose name is `temporary` if it has one. `wake` is
    /// called when the queue has room again and at the end. Errors: there is no thread.
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
        let theirs = shared.clone();
        let thread = background.spawn("saver", move || {
            let saved = encode_all(&*file, &plan, &receiver, &theirs);
            let result = saved.map_err(|error| system_text(&error));
            *lock(&theirs.result) = Some(result);
            (theirs.wake)();
        })?;
        let ours = shared.clone();
        db.begin_snapshot(Box::new(move |chunk| {
            ours.queued.fetch_add(chunk.memory(), Ordering::Relaxed);
            // A thread that has failed takes no more; its result says why.
            let _ = sender.send(chunk);
        }));
        Ok(Job { temporary, shared, thread, form, started_us, keys_total })
    }

    /// The file that is written, until it is put in place.
    pub fn temporary(&self) -> Option<&Path> {
        self.temporary.as_deref()
    }

    /// Whether the walk is to wait until the thread has caught up.
    pub fn is_full(&self) -> bool {
        self.shared.queued.load(Ordering::Relaxed) >= QUEUE_BYTES_MAX
    }

    /// Keys written so far.
    pub fn keys_done(&self) -> usize {
        self.shared.keys.load(Ordering::Relaxed)
    }

    /// What came of it, once the thread is done: the file's bytes, or why there is no file.
    pub fn take_result(&mut self) -> Option<Result<u64, String>> {
        lock(&self.shared.result).take()
    }

    /// Has the thread stop, without waiting for it: it may be in the middle of a sync. From now on it writes to a file without a
    /// name, so that another one may be begun.
    pub fn abort(self, db: &mut Keyspace, disk: &dyn Disk) {
        self.shared.aborted.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
        db.abort_snapshot();
        if let Some(temporary) = &self.temporary {
            // It may be gone already.
            let _ = disk.remove(temporary);
        }
    }
}

fn encode_all(
    file: &dyn DiskFile,
    plan: &Plan,
    chunks: &Receiver<Chunk>,
    shared: &Shared,
) -> io::Result<u64> {
    let mut saver = FileSaver::new(file, plan)?;
    saver.aborted = Some(&shared.aborted);
    while let Ok(chunk) = chunks.recv() {
        if shared.aborted.load(Ordering::Relaxed) {
            return Err(given_up());
        }
        saver.chunk(&chunk)?;
        shared.keys.fetch_add(chunk.len(), Ordering::Relaxed);
        let bytes = chunk.memory();
        let before = shared.queued.fetch_sub(bytes, Ordering::Relaxed);
        if before >= QUEUE_BYTES_MAX && before - bytes < QUEUE_BYTES_MAX {
            (shared.wake)();
        }
    }
    if shared.aborted.load(Ordering::Relaxed) {
        return Err(given_up());
    }
    saver.finish()
}
