//! The append side of the AOF: writes each turn's bytes to the current increment. A thread syncs
//! them.
//!
//! Changes made by commands are appended to a buffer in memory. The loop writes the buffer once, at
//! the end of the turn. A thread of its own syncs the file, so the loop does not wait for the disk.
//! An output remembers the offset that it depends on; it may leave once [`AppendLog::acknowledged`]
//! has reached that offset.
//!
//! | `appendfsync` | data is synced | replies may leave |
//! |---|---|---|
//! | `always` | as soon as the previous sync has ended and the writers that it released have had a moment to write again, so that one sync serves all of them | once it is synced |
//! | `everysec` | one second after the last sync began | once it is written: it survives a kill of the process |
//! | `no` | only before another file is begun, and at the end | once it is written |
//!
//! A rewrite begins another increment. From that moment bytes stay in the buffer until the thread
//! has synced the old file and has made the manifest that names the new one durable. Replies that
//! depend on these bytes wait until then, under any policy. If the bytes were written earlier, a
//! kill might lose them, or they might survive a power loss that tears the file before them. A
//! client that waits for its reply sends nothing in that time. Data that comes without replies (a
//! primary's stream, `CLIENT REPLY OFF`) stays in memory up to a limit; after that the loop waits
//! for the disk.
//!
//! Errors follow Redis. A failed write is tried again each turn (`always`: the process ends), and
//! until it succeeds commands that write are refused. A failed sync is final for its file, because
//! the kernel reports the error once and then forgets it. The error status stays until a rewrite
//! has replaced the file.
//!
//! When the log moves to another folder, a second log there gets the same bytes at the same offsets
//! while the base for it is written. Until then only the first one counts, for replies and for
//! errors. Then the second one takes its place.
//!
//! This module knows no clients: the owner of an output asks here.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gathering::Gathering;

use super::folder::{AofFolder, FolderError, Increment};
use super::reader::timestamp_annotation;
use crate::clock::{Clock, Now};
use crate::config::{AppendFsync, system_text};
use crate::stats::histogram::Histogram;
use crate::sys::disk::DiskFile;
use crate::sys::log::Level;

/// The shortest time from the beginning of one sync to the next, in microseconds. Source:
/// `everysec`.
const SYNC_EVERY_US: i64 = 1_000_000;
/// A longer sync counts as late, in microseconds. Source: `aof.c` of Redis 7.0.15.
const SYNC_LATE_US: i64 = 2_000_000;
/// The shortest time between two log lines about failed writes, in microseconds. Source:
/// `AOF_WRITE_LOG_ERROR_RATE`.
const ERROR_LINE_EVERY_US: i64 = 30_000_000;
/// A failed write is tried again after this time at the latest, in microseconds.
const RETRY_US: i64 = 100_000;
/// The buffer's size from which the loop waits for a file that is being made. Unit: bytes.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// A waiting loop checks at this interval that the thread is still alive.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// A larger buffer is freed once it is written, in bytes.
const BUFFER_KEPT_MAX: usize = 1 << 20;

/// A position in all bytes appended since the start, in whichever file they are. Unit: bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogOffset(pub u64);

impl LogOffset {
    fn plus(self, bytes: usize) -> Self {
        LogOffset(self.0 + bytes as u64)
    }
}

/// The process must end, because it cannot keep a promise. Displays as the line for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fatal(pub String);

/// The reason why no other file is begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// The old file stays in use. The text is for the log.
    #[error("{0}")]
    Refused(&'static str),
    #[error(transparent)]
    Fatal(#[from] Fatal),
}

/// With at most this many bytes unsynced, waiting for the next file is short.
const SWITCH_BYTES: u64 = 64 << 10;
/// The limit of syncs before a switch; each has less to do than the one before.
const SYNCS_AHEAD_MAX: u32 = 5;

/// A line for the server's log.
pub type Notice = (Level, String);

/// The append side, owned by the loop's thread. See the module.
pub struct AppendLog {
    policy: AppendFsync,
    /// Whether syncs are left out (`no-appendfsync-on-rewrite` during a rewrite or save).
    paused: bool,
    timestamps: bool,
    /// See [`AppendLog::set_flush_delay`].
    flush_delay: Duration,
    last_timestamp: i64,
    /// Appended bytes that are not written yet; begins at `written`.
    buffer: Vec<u8>,
    /// Units appended.
    units: u64,
    written: LogOffset,
    current: Increment,
    /// Bytes of the current increment.
    current_bytes: u64,
    /// Bytes of all earlier files.
    earlier_bytes: u64,
    /// Bytes of all files when the last rewrite ended.
    base_bytes: u64,
    /// Whether another increment is being made, for which the buffer waits.
    switching: bool,
    /// Syncs made to prepare the next switch.
    syncs_ahead: u32,
    /// The result of the last switch, until it is taken.
    switch_result: Option<Result<i64, String>>,
    /// The last requested sync: its offset, its time (on the boot-time clock), and whether it wakes
    /// the loop when it is done.
    requested: LogOffset,
    requested_us: i64,
    requested_wakes: bool,
    late_was_counted: bool,
    delayed_fsync: u64,
    write_error: Option<WriteError>,
    /// The thread's failed sync, as noted by the loop at the end of a turn: commands must not be
    /// refused from the middle of a turn on.
    sync_error: Option<String>,
    error_line_us: Option<i64>,
    notices: Vec<Notice>,
    /// The log in another folder that is to take the place of this one.
    successor: Option<Box<AppendLog>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct WriteError {
    text: String,
    /// The time of the last try.
    tried_us: i64,
}

/// The state shared by the loop's thread and the syncing thread.
struct Shared {
    state: Mutex<State>,
    /// Signals work, or the end.
    changed: Condvar,
    /// Signals a finished switch.
    switched: Condvar,
    /// Everything before this offset is durable.
    synced: AtomicU64,
    folder: Arc<Mutex<AofFolder>>,
    /// Wakes the loop.
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    sync: Option<SyncJob>,
    /// The old increment, which is synced before another one is made.
    switch: Option<SyncJob>,
    /// Whether work is taken and unfinished.
    running: bool,
    /// The thread waits for a limited time until this number of units is written. 0: it does not
    /// wait.
    wanted_units: u64,
    /// The result of a switch.
    switched: Option<Result<Increment, FolderError>>,
    failed: Option<Failed>,
    ended: bool,
    sync_times: Histogram,
}

/// A failed sync.
struct Failed {
    /// The number of the increment.
    seq: i64,
    text: String,
    /// The file has no name any more: its bytes are unharmed, but no start finds them. A rewrite
    /// repairs it, so the process need not end.
    is_nameless: bool,
}

struct SyncJob {
    file: Arc<dyn DiskFile>,
    path: Arc<Path>,
    seq: i64,
    /// The file's bytes.
    len: u64,
    up_to: LogOffset,
    /// The number of units before it, approximately.
    units: u64,
    wakes: bool,
    /// Whether its failure ends the process.
    is_vital: bool,
}

impl AppendLog {
    /// A log that continues in `current`. Further increments are made in `folder`. `loaded_bytes`
    /// is the size of the loaded files and `base_bytes` that of the base. The syncing thread calls
    /// `wake` when the loop should look again.
    ///
    /// Nothing is synced before [`AppendLog::spawn`].
    pub fn new(
        folder: Arc<Mutex<AofFolder>>,
        current: Increment,
        loaded_bytes: u64,
        base_bytes: u64,
        policy: AppendFsync,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            switched: Condvar::new(),
            synced: AtomicU64::new(0),
            folder,
            wake,
        };
        AppendLog {
            policy,
            paused: false,
            timestamps: false,
            flush_delay: Duration::ZERO,
            last_timestamp: i64::MIN,
            buffer: Vec::new(),
            units: 0,
            written: LogOffset::default(),
            current_bytes: current.len,
            earlier_bytes: loaded_bytes.saturating_sub(current.len),
            current,
            base_bytes,
            switching: false,
            syncs_ahead: 0,
            switch_result: None,
            requested: LogOffset::default(),
            requested_us: i64::MIN / 2,
            requested_wakes: false,
            late_was_counted: false,
            delayed_fsync: 0,
            write_error: None,
            sync_error: None,
            error_line_us: None,
            notices: Vec::new(),
            successor: None,
            shared: Arc::new(shared),
            thread: None,
        }
    }

    /// Continues the offsets of a closed log. The offsets that it handed out stay valid and count
    /// as synced.
    #[must_use]
    pub fn behind(mut self, closed: LogOffset) -> Self {
        (self.written, self.requested) = (closed, closed);
        self.shared.synced.store(closed.0, Ordering::Release);
        self
    }

    /// Starts the syncing thread. Errors: the system refuses a thread.
    pub fn spawn(&mut self) -> io::Result<()> {
        let syncer = self.syncer();
        let thread = std::thread::Builder::new().name("aof".into()).spawn(move || syncer.run())?;
        self.thread = Some(thread);
        Ok(())
    }

    /// Does all that a thread would do, if there is none.
    pub fn do_syncs(&self) {
        while self.syncer().step() {}
        if let Some(successor) = &self.successor {
            successor.do_syncs();
        }
    }

    /// The syncing side, which a thread runs, or a test step by step.
    pub fn syncer(&self) -> Syncer {
        Syncer { shared: self.shared.clone() }
    }

    // ---- appending ------------------------------------------------------------------------------

    /// Appends `units` units to the buffer (a unit is one command, or MULTI to EXEC); nothing is
    /// written yet. Returns the offset after them: replies that show these changes must wait for
    /// it.
    pub fn append(&mut self, stream: &[u8], units: u64, now: Now) -> LogOffset {
        let begin = self.buffer.len();
        if self.timestamps && self.last_timestamp < now.unix_seconds() {
            self.last_timestamp = now.unix_seconds();
            self.buffer.extend(timestamp_annotation(self.last_timestamp));
        }
        self.buffer.extend_from_slice(stream);
        self.units += units;
        if let Some(successor) = &mut self.successor {
            successor.buffer.extend_from_slice(&self.buffer[begin..]);
            successor.units += units;
        }
        self.end()
    }

    /// The offset after all appended bytes.
    pub fn end(&self) -> LogOffset {
        self.written.plus(self.buffer.len())
    }

    // ---- a turn's end ---------------------------------------------------------------------------

    /// Writes the buffer and requests a sync if the policy wants one. Call it once a turn, before
    /// replies leave, also in turns without commands (see [`AppendLog::next_call_us`]). It waits
    /// for the disk only if a switch is under way and the buffer exceeds its limit.
    ///
    /// Afterwards [`AppendLog::acknowledged`] has its new value, and [`AppendLog::take_notices`]
    /// may have lines.
    pub fn write(&mut self, now: Now) -> Result<(), Fatal> {
        if let Some(successor) = &mut self.successor {
            // Its errors are not vital, and its rewrite looks for them at the end.
            successor.write(now)?;
        }
        if self.switching && self.buffer.len() > WAITING_BYTES_MAX && self.thread.is_some() {
            self.delayed_fsync += 1;
            let text = "Asynchronous AOF fsync is taking too long (disk is busy?). Waiting for it: too much data waits to be written after it.";
            self.notices.push((Level::Notice, text.into()));
            self.wait_for_switch();
        }
        self.take_switched();
        self.note_sync_error();
        match self.switching {
            true => self.check_sync_errors()?,
            false => self.write_buffer(now)?,
        }
        self.request_sync(now);
        Ok(())
    }

    /// Waits until the thread, if there is one, has made the next file.
    #[cold]
    fn wait_for_switch(&self) {
        let Some(thread) = &self.thread else { return };
        let mut state = self.shared.lock();
        // A thread that has panicked makes no file.
        while state.switched.is_none() && !thread.is_finished() {
            let waited = self.shared.switched.wait_timeout(state, LOOK_AGAIN);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The offset up to which changes may be shown: outputs that depend on more wait.
    ///
    /// While writes fail, replies leave as in Redis (except under `always`), since commands that
    /// write are refused then.
    pub fn acknowledged(&self) -> LogOffset {
        if self.policy == AppendFsync::Always && !self.paused {
            self.synced()
        } else if self.write_error.is_some() && !self.switching {
            self.end()
        } else {
            self.written
        }
    }

    /// Everything before this offset is on disk. WAITAOF asks for it.
    pub fn synced(&self) -> LogOffset {
        LogOffset(self.shared.synced.load(Ordering::Acquire))
    }

    /// The latest time of the next call of [`AppendLog::write`] even if nothing happens, in
    /// microseconds of the boot-time clock.
    pub fn next_call_us(&self) -> Option<i64> {
        let retry = self.write_error.as_ref().map(|error| error.tried_us + RETRY_US);
        let wants_sync = self.policy == AppendFsync::EverySecond && !self.paused;
        let sync = (wants_sync && self.requested < self.written)
            .then_some(self.requested_us + SYNC_EVERY_US);
        let successor = self.successor.as_ref().and_then(|successor| successor.next_call_us());
        [retry, sync, successor].into_iter().flatten().min()
    }

    /// Takes the lines for the server's log since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn write_buffer(&mut self, now: Now) -> Result<(), Fatal> {
        // Nothing may be written after data that a sync has lost: a hole at the end of a file is a
        // cut, a hole within it is damage.
        self.check_sync_errors()?;
        if !self.flush_delay.is_zero() && !self.buffer.is_empty() {
            std::thread::sleep(self.flush_delay);
        }
        let mut count = 0;
        let error = loop {
            if count == self.buffer.len() {
                break None;
            }
            match self.current.file.write(&self.buffer[count..]) {
                Ok(0) => break Some(io::ErrorKind::WriteZero.into()),
                Ok(some) => count += some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(error),
            }
        };
        let Some(error) = error else {
            self.written_to_file(count);
            self.buffer.clear();
            self.buffer.shrink_to(BUFFER_KEPT_MAX);
            if self.write_error.take().is_some() {
                let text = "AOF write error looks solved. The server can write again.";
                self.notices.push((Level::Warning, text.into()));
            }
            return Ok(());
        };
        let is_always = self.policy == AppendFsync::Always;
        let tells = is_always
            || self.error_line_us.is_none_or(|told| now.boot_us - told > ERROR_LINE_EVERY_US);
        if tells {
            self.error_line_us = Some(now.boot_us);
            self.notices.push((
                Level::Warning,
                if count == 0 {
                    format!("Error writing to the AOF file: {}", system_text(&error))
                } else {
                    let expected = self.buffer.len();
                    format!("Short write while writing to the AOF file: (nwritten={count}, expected={expected})")
                },
            ));
        }
        self.write_error = Some(WriteError { text: system_text(&error), tried_us: now.boot_us });
        if count > 0 {
            // Cuts off a torn request, which a start without `aof-load-truncated` would refuse.
            match self.current.file.set_len(self.current_bytes) {
                Ok(()) => {}
                Err(error) => {
                    if tells {
                        let text = format!(
                            "Could not remove short write from the append-only file.  The server may refuse to load the AOF \
                             the next time it starts.  ftruncate: {}",
                            system_text(&error)
                        );
                        self.notices.push((Level::Warning, text));
                    }
                    // The written part stays in the file, and the rest will follow it.
                    self.written_to_file(count);
                    self.buffer.drain(..count);
                }
            }
        }
        if is_always {
            let text = "Can't recover from AOF write error when the AOF fsync policy is 'always'. Exiting...";
            return Err(Fatal(text.into()));
        }
        Ok(())
    }

    fn written_to_file(&mut self, count: usize) {
        self.written = self.written.plus(count);
        self.current_bytes += count as u64;
    }

    fn note_sync_error(&mut self) {
        let failed = &self.shared.lock().failed;
        if failed.is_some() != self.sync_error.is_some() {
            self.sync_error = failed.as_ref().map(|failed| failed.text.clone());
            if let Some(Failed { text, is_nameless: true, .. }) = failed {
                let text = format!("The data of the AOF file would be lost: {text}");
                self.notices.push((Level::Warning, text));
            }
        }
    }

    /// Fails under `always` if a sync has failed: the process ends.
    fn check_sync_errors(&mut self) -> Result<(), Fatal> {
        if self.policy != AppendFsync::Always || self.paused {
            return Ok(());
        }
        match &self.shared.lock().failed {
            Some(Failed { text, is_nameless: false, .. }) => Err(Fatal(format!(
                "Can't persist AOF for fsync error when the AOF fsync policy is 'always': {text}. Exiting..."
            ))),
            Some(_) | None => Ok(()),
        }
    }

    fn request_sync(&mut self, now: Now) {
        if self.paused || self.switching || self.policy == AppendFsync::No {
            return;
        }
        let is_always = self.policy == AppendFsync::Always;
        // A sync requested under another policy does not wake the loop.
        let is_asked_for = self.requested_wakes || !is_always || self.synced() >= self.written;
        if self.requested >= self.written && is_asked_for {
            return;
        }
        if !is_always && now.boot_us - self.requested_us < SYNC_EVERY_US {
            return;
        }
        let state = &mut *self.shared.lock();
        if state.failed.is_some() {
            // The failure is final for this file: another try would only seem to succeed.
            return;
        }
        if !is_always && (state.running || state.sync.is_some()) {
            if now.boot_us - self.requested_us >= SYNC_LATE_US && !self.late_was_counted {
                self.late_was_counted = true;
                self.delayed_fsync += 1;
                let text = "Asynchronous AOF fsync is taking too long (disk is busy?). Writing the AOF buffer without waiting \
                            for fsync to complete, this may slow down the server.";
                self.notices.push((Level::Notice, text.into()));
            }
            return;
        }
        state.sync = Some(self.current_sync(is_always));
        self.requested = self.written;
        self.requested_us = now.boot_us;
        self.requested_wakes = is_always;
        self.late_was_counted = false;
        // A busy thread looks again when it has finished, a waiting one when its time is up.
        if !state.running && self.units >= state.wanted_units {
            self.shared.changed.notify_one();
        }
    }

    fn current_sync(&self, wakes: bool) -> SyncJob {
        SyncJob {
            file: self.current.file.clone(),
            path: self.current.path.clone(),
            seq: self.current.seq,
            len: self.current_bytes,
            up_to: self.written,
            units: self.units,
            wakes,
            is_vital: self.policy == AppendFsync::Always && !self.paused,
        }
    }

    // ---- another file ---------------------------------------------------------------------------

    /// Syncs the written data, so that the switch, during which every reply waits, has little left
    /// to do. Call it once a turn until it returns true. Then at most `SWITCH_BYTES` are
    /// unsynced, or `SYNCS_AHEAD_MAX` syncs have not caught up with the writers, or a sync has
    /// failed.
    pub fn sync_ahead(&mut self, now: Now) -> bool {
        if self.switching {
            return false;
        }
        let unsynced = self.written.0 - self.synced().0;
        let mut state = self.shared.lock();
        if unsynced <= SWITCH_BYTES || state.failed.is_some() {
            return true;
        }
        if state.running || state.sync.is_some() {
            return false;
        }
        if self.syncs_ahead >= SYNCS_AHEAD_MAX {
            return true;
        }
        self.syncs_ahead += 1;
        state.sync = Some(self.current_sync(true));
        self.requested = self.written;
        self.requested_us = now.boot_us;
        self.requested_wakes = true;
        self.shared.changed.notify_one();
        false
    }

    /// Begins another increment when a rewrite's snapshot is taken: later bytes go there. Call it
    /// between commands. The syncing thread makes the file; some turns later
    /// [`AppendLog::take_switch_result`] has the result.
    pub fn begin_switch(&mut self, now: Now) -> Result<(), SwitchError> {
        if self.switching {
            return Err(SwitchError::Refused("Another AOF file is being made already"));
        }
        self.write_buffer(now)?;
        if !self.buffer.is_empty() {
            // If the rest went to another file, the old one would be damaged for good.
            let text = "Can't begin another AOF file while writes to this one fail";
            return Err(SwitchError::Refused(text));
        }
        self.switching = true;
        self.syncs_ahead = 0;
        let state = &mut *self.shared.lock();
        state.sync = None;
        state.switched = None;
        state.switch = Some(self.current_sync(true));
        self.requested = self.written;
        self.requested_us = now.boot_us;
        self.requested_wakes = true;
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Whether another file is being made, for which the buffer waits.
    pub fn is_switching(&self) -> bool {
        self.switching
    }

    /// Takes the result of the last switch. `Ok`: the number of the new increment, which the end of
    /// the rewrite passes to [`AofFolder::finish_rewrite`]. `Err`: the reason why there is none;
    /// the old increment stays in use, and the caller gives up the rewrite.
    pub fn take_switch_result(&mut self) -> Option<Result<i64, String>> {
        self.switch_result.take()
    }

    /// The number of the current increment.
    pub fn current_seq(&self) -> i64 {
        self.current.seq
    }

    /// Takes over the next file if the thread has made it, or notes why it could not.
    fn take_switched(&mut self) {
        if !self.switching {
            return;
        }
        let Some(switched) = self.shared.lock().switched.take() else {
            return;
        };
        self.switching = false;
        match switched {
            Ok(next) => {
                let name = String::from_utf8_lossy(&next.name).into_owned();
                let text = format!("Creating AOF incr file {name} on background rewrite");
                self.notices.push((Level::Notice, text));
                self.earlier_bytes += self.current_bytes;
                self.current_bytes = next.len;
                self.switch_result = Some(Ok(next.seq));
                self.current = next;
            }
            Err(error) => {
                self.notices.push((Level::Warning, error.to_string()));
                self.switch_result = Some(Err(error.to_string()));
            }
        }
    }

    /// Notes that a rewrite has ended. Its base, of `base_bytes`, replaces everything before the
    /// current increment.
    pub fn rewrite_finished(&mut self, base_bytes: u64) {
        self.earlier_bytes = base_bytes;
        self.base_bytes = base_bytes + self.current_bytes;
        let state = &mut *self.shared.lock();
        if state.failed.as_ref().is_some_and(|failed| failed.seq < self.current.seq) {
            state.failed = None;
            self.sync_error = None;
            // Syncs requested after the failure were not made.
            self.requested = LogOffset(self.shared.synced.load(Ordering::Acquire));
            let text = "The AOF file whose fsync failed is replaced. The server can write again.";
            self.notices.push((Level::Warning, text.into()));
        }
    }

    // ---- parameters -----------------------------------------------------------------------------

    /// Sets the policy, from the next [`AppendLog::write`] on. Source: `appendfsync`.
    pub fn set_policy(&mut self, policy: AppendFsync) {
        self.policy = policy;
    }

    /// Leaves syncs out while a snapshot is written, or makes them again. Source:
    /// `no-appendfsync-on-rewrite`. Replies under `always` then wait for no sync, as in Redis: that
    /// is the parameter's purpose.
    pub fn pause_syncs(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Whether a unit is preceded by the time in seconds if a new second has begun. Source:
    /// `aof-timestamp-enabled`.
    pub fn set_timestamps(&mut self, enabled: bool) {
        self.timestamps = enabled;
    }

    /// Sleeps for `delay` before each write: a slow disk for tests. Source: `DEBUG
    /// AOF-FLUSH-SLEEP`.
    pub fn set_flush_delay(&mut self, delay: Duration) {
        self.flush_delay = delay;
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Writes the whole buffer. If another file is being made, waits for it. Errors: the file lacks
    /// a part.
    pub fn write_out(&mut self, now: Now) -> Result<(), Fatal> {
        if self.switching {
            self.wait_for_switch();
            // There is no thread, or it has ended with work left.
            while self.shared.lock().switched.is_none() && self.syncer().step() {}
        }
        self.take_switched();
        self.write_buffer(now)?;
        match &self.write_error {
            None => Ok(()),
            Some(error) => Err(Fatal(format!("Error writing to the AOF file: {}", error.text))),
        }
    }

    /// Writes and syncs everything, and ends the thread. Waits for the disk. Errors: the text for
    /// the log.
    pub fn close(mut self, now: Now) -> Result<(), Fatal> {
        self.stop_thread();
        // There was no thread, or it has ended with work left.
        while self.syncer().step() {}
        self.write_out(now)?;
        if let Some(Failed { text, .. }) = &self.shared.lock().failed {
            return Err(Fatal(format!("Fail to fsync the AOF file: {text}")));
        }
        self.current.file.sync_data().map_err(|error| {
            self.shared.folder().mark_unsynced(self.current.seq);
            Fatal(format!("Fail to fsync the AOF file: {}", system_text(&error)))
        })?;
        self.shared.synced.store(self.written.0, Ordering::Release);
        Ok(())
    }

    fn stop_thread(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // If it panicked, its message was printed, and `close` does its work.
            let _ = thread.join();
        }
    }

    // ---- figures --------------------------------------------------------------------------------

    /// Bytes of all files. INFO: `aof_current_size`.
    pub fn current_size(&self) -> u64 {
        self.earlier_bytes + self.current_bytes
    }

    /// Bytes of all files when the last rewrite ended, or of the base at the start. INFO:
    /// `aof_base_size`.
    pub fn base_size(&self) -> u64 {
        self.base_bytes
    }

    /// Bytes in the buffer that are not written yet. INFO: `aof_buffer_length`.
    pub fn buffer_length(&self) -> usize {
        self.buffer.len()
    }

    /// Memory of the buffer, in bytes. INFO: `mem_aof_buffer`.
    pub fn buffer_memory(&self) -> usize {
        let successor = self.successor.as_ref().map_or(0, |successor| successor.buffer_memory());
        self.buffer.capacity() + successor
    }

    /// Requested syncs that are not done. INFO: `aof_pending_bio_fsync`.
    pub fn pending_fsync(&self) -> u32 {
        let state = self.shared.lock();
        u32::from(state.running)
            + u32::from(state.sync.is_some())
            + u32::from(state.switch.is_some())
    }

    /// Syncs that were late while another one was due, and waits of the loop for a file. INFO:
    /// `aof_delayed_fsync`.
    pub fn delayed_fsync(&self) -> u64 {
        self.delayed_fsync
    }

    /// The durations of syncs.
    pub fn sync_times(&self) -> Histogram {
        self.shared.lock().sync_times.clone()
    }

    /// The policy in use.
    pub fn policy(&self) -> AppendFsync {
        self.policy
    }

    /// Whether the current file has lost its name, which only a rewrite repairs.
    pub fn is_nameless(&self) -> bool {
        self.shared.lock().failed.as_ref().is_some_and(|failed| failed.is_nameless)
    }

    /// Whether [`AppendLog::set_policy`] may set this policy. While the disk fails, `always` would
    /// end the process and lose writes that were answered under the earlier policy.
    pub fn allows(&self, policy: AppendFsync) -> bool {
        let begins_always = policy == AppendFsync::Always && self.policy != policy;
        !begins_always || self.write_error.is_none() && self.shared.lock().failed.is_none()
    }

    /// The disk's error as the last [`AppendLog::write`] has found it. Commands that write are
    /// refused with `MISCONF Errors writing to the AOF file: <text>`. INFO: `aof_last_write_status`
    /// is `ok` if None.
    pub fn disk_error(&self) -> Option<String> {
        if let Some(error) = &self.write_error {
            return Some(error.text.clone());
        }
        self.sync_error.clone()
    }
}

impl Drop for AppendLog {
    fn drop(&mut self) {
        self.stop_thread();
    }
}

impl std::fmt::Debug for AppendLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppendLog")
            .field("written", &self.written)
            .field("buffer", &self.buffer.len())
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent even if a thread panicked with the lock: only moves of values
        // happen under it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self) -> MutexGuard<'_, AofFolder> {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SyncJob {
    /// Whether the file still has its name and all that was written to it. An error that says
    /// neither counts as true.
    fn is_whole(&self) -> bool {
        self.file.is_whole(&self.path, self.len)
    }
}

impl State {
    fn take_work(&mut self) -> Option<Work> {
        let switch = self.switch.take().map(Work::Switch);
        let work = switch.or_else(|| self.sync.take().map(Work::Sync));
        self.running |= work.is_some();
        work
    }
}

/// The side that waits for the disk. See [`AppendLog::syncer`].
pub struct Syncer {
    shared: Arc<Shared>,
}

enum Work {
    Sync(SyncJob),
    Switch(SyncJob),
}

impl Syncer {
    /// Works until the log is closed.
    fn run(&self) {
        let clock = Clock::System;
        let mut gathering = Gathering::default();
        while let Some(work) = self.wait_for_work(&mut gathering, &clock) {
            let units = match &work {
                Work::Sync(sync) if sync.wakes => Some(sync.units),
                Work::Sync(_) | Work::Switch(_) => None,
            };
            let began_us = clock.now().boot_us;
            self.perform(work);
            let now_us = clock.now().boot_us;
            let mut state = self.shared.lock();
            state.sync_times.record_us((now_us - began_us).unsigned_abs());
            if let Some(synced) = units {
                let written = state.sync.as_ref().map_or(synced, |sync| sync.units);
                gathering.sync_ended(synced, written, now_us - began_us, now_us);
            }
        }
    }

    /// Waits for writers, then returns the next work. None: the log is closed.
    fn wait_for_work(&self, gathering: &mut Gathering, clock: &Clock) -> Option<Work> {
        let mut state = self.shared.lock();
        loop {
            let wait_us = match &state.sync {
                _ if state.switch.is_some() => None,
                Some(sync) if sync.wakes && !state.ended => {
                    gathering.wait_us(sync.units, clock.now().boot_us)
                }
                Some(_) => None,
                None if state.ended => return None,
                None => Some(i64::MAX),
            };
            let Some(wait_us) = wait_us else {
                return state.take_work();
            };
            state.wanted_units = if state.sync.is_some() { gathering.wanted() } else { 0 };
            let wait = Duration::from_micros(wait_us.unsigned_abs());
            let waited = self.shared.changed.wait_timeout(state, wait);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Does one piece of work, if there is any.
    pub fn step(&self) -> bool {
        let work = self.shared.lock().take_work();
        work.map(|work| self.perform(work)).is_some()
    }

    fn perform(&self, work: Work) {
        let wakes = match work {
            Work::Sync(sync) => {
                let is_ok = self.sync(&sync);
                sync.wakes || !is_ok
            }
            Work::Switch(old) => {
                self.switch(&old);
                true
            }
        };
        self.shared.lock().running = false;
        if wakes {
            (self.shared.wake)();
        }
    }

    /// Syncs, unless an earlier sync of this file failed. Returns whether the data is durable.
    fn sync(&self, sync: &SyncJob) -> bool {
        if self.shared.lock().failed.is_some() {
            return false;
        }
        match sync.file.sync_data() {
            Ok(()) if sync.is_whole() && self.is_complete() => {
                self.shared.synced.fetch_max(sync.up_to.0, Ordering::Release);
                true
            }
            Ok(()) => {
                let folder = sync.path.parent().unwrap_or(&sync.path);
                let what = match sync.is_whole() {
                    true => format!("The manifest or an earlier file in {}", folder.display()),
                    false => sync.path.display().to_string(),
                };
                let text =
                    format!("{what} was removed, replaced or cut. A rewrite makes a new file");
                let failed = Failed { seq: sync.seq, text, is_nameless: true };
                self.shared.lock().failed = Some(failed);
                false
            }
            Err(error) => {
                self.shared.folder().mark_unsynced(sync.seq);
                let text = system_text(&error);
                let failed = Failed { seq: sync.seq, text, is_nameless: false };
                self.shared.lock().failed = Some(failed);
                false
            }
        }
    }

    /// Whether a start would load this log. True as well while a thread works in the folder.
    fn is_complete(&self) -> bool {
        self.shared.folder.try_lock().map_or(true, |folder| folder.is_complete())
    }

    fn switch(&self, old: &SyncJob) {
        let is_nameless =
            || self.shared.lock().failed.as_ref().is_some_and(|failed| failed.is_nameless);
        let is_synced = self.sync(old);
        let is_nameless = is_nameless();
        let made = if is_synced || !old.is_vital || is_nameless {
            // A failed sync does not stop the rewrite, which repairs it by replacing the file.
            let mut folder = self.shared.folder();
            if is_nameless {
                folder.note_losses();
            }
            folder.next_increment()
        } else {
            // The process will end before the rewrite does: the lost data must stay at the end of
            // the last file.
            let text = "Can't begin another AOF file: the one before could not be synced".into();
            Err(FolderError { text, source: None })
        };
        self.shared.lock().switched = Some(made);
        self.shared.switched.notify_one();
    }
}

mod gathering;
mod successor;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod tests;
