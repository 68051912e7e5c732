//! A snapshot from the primary: the arrived bytes, and the loaded part of them.
//! `roles/following/sync.rs` receives and loads it.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cluster::node::NodeId;
use crate::collections::hash_slot::SlotRanges;
use crate::keyspace::DbIndex;
use crate::keyspace::beside::StagedDatabases;
use crate::persist::ahead::{EntryDecoder, Failure, KeysExpected, Verification, Verified};
use crate::persist::rdb::Parser;
use crate::sys::disk::{DiskFile, DiskReader};

/// Pipe size at which reading from the primary stops. Unit: bytes.
const PIPE_MAX: usize = 1 << 20;

/// A snapshot being received or loaded.
pub struct Sync {
    /// Replication ID and offset of the snapshot.
    pub history: Option<(String, u64)>,
    pub by_mark: bool,
    /// None: it goes through a pipe.
    pub file: Option<Arriving>,
    pub keeps_old: bool,
    pub total: Option<u64>,
    /// The check of the whole file, before it is loaded.
    pub checking: Option<Checking>,
    pub loader: Option<Loader>,
}

/// A thread that checks a received file.
pub struct Checking {
    shared: Arc<Checked>,
}

#[derive(Default)]
struct Checked {
    is_given_up: AtomicBool,
    result: Mutex<Option<Result<Verified, Failure>>>,
}

impl Checking {
    /// Returns the check and the thread's work.
    pub fn new(verification: Verification) -> (Self, impl FnOnce() + Send + 'static) {
        let shared = Arc::<Checked>::default();
        let theirs = Arc::clone(&shared);
        let work = move || {
            if let Some(result) = verification.run(&theirs.is_given_up) {
                *theirs.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            }
        };
        (Checking { shared }, work)
    }

    fn is_done(&self) -> bool {
        self.shared.result.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The result, once.
    pub fn take(&self) -> Option<Result<Verified, Failure>> {
        self.shared.result.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        self.shared.is_given_up.store(true, Ordering::Relaxed);
    }
}

/// A file being received.
pub struct Arriving {
    pub file: Arc<dyn DiskFile>,
    pub path: PathBuf,
    pub bytes: u64,
    pub written_back: u64,
}

/// The loader's source.
pub enum Feed {
    Pipe { bytes: VecDeque<u8>, is_ended: bool },
    File(Box<dyn DiskReader>),
}

impl Read for Feed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Feed::Pipe { bytes, is_ended: false } if bytes.is_empty() => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Feed::Pipe { bytes, .. } => bytes.read(buffer),
            Feed::File(file) => file.read(buffer),
        }
    }
}

impl Sync {
    pub fn is_by_mark(&self) -> bool {
        self.by_mark
    }

    /// Whether it is being checked or loaded.
    pub fn is_loading(&self) -> bool {
        self.checking.is_some() || self.loader.is_some()
    }

    /// Whether it is loaded from a file: no bytes are expected from the primary.
    pub fn reads_file(&self) -> bool {
        self.checking.is_some() || self.loader.as_ref().is_some_and(|loader| loader.feed_is_file)
    }

    /// Whether reading from the primary must stop for now.
    pub fn is_full(&self) -> bool {
        self.checking.is_some() || self.loader.as_ref().is_some_and(Loader::is_full)
    }

    pub fn wants_turn(&self) -> bool {
        self.checking.as_ref().is_some_and(Checking::is_done)
            || self.loader.as_ref().is_some_and(|loader| loader.has_more)
    }
}

/// Builds databases from a snapshot's bytes.
pub struct Loader {
    pub parser: Parser<Feed>,
    pub feed_is_file: bool,
    pub decoder: EntryDecoder,
    /// None with a pipe: the total is unknown.
    pub expected: KeysExpected,
    pub beside: StagedDatabases,
    pub functions: Vec<Vec<u8>>,
    pub stream_database: DbIndex,
    /// The primary's unfinished imports of slots.
    pub imports: Vec<(NodeId, SlotRanges)>,
    /// The fields with the slots that the primary moves one by one, and whose keys it deletes.
    pub open_slots: Vec<u8>,
    pub slot_drops: Vec<u8>,
    /// It can continue without further bytes.
    pub has_more: bool,
    /// Bytes in the pipe at which the record is parsed again, and the time at which it is parsed
    /// anyway.
    pub wanted: usize,
    pub look_at_us: i64,
    pub steps: u32,
    pub is_done: bool,
}

impl Loader {
    /// Bytes in the pipe; None: no pipe, or all bytes were received.
    pub fn piped(&self) -> Option<usize> {
        match self.parser.source() {
            Feed::Pipe { bytes, is_ended: false } => Some(bytes.len()),
            _ => None,
        }
    }

    pub fn is_full(&self) -> bool {
        let most = PIPE_MAX.max(2 * self.wanted);
        self.is_done || self.piped().is_none_or(|piped| piped >= most)
    }

    /// Notes that bytes were added to the pipe.
    pub fn note_bytes(&mut self) {
        let piped = self.piped();
        self.has_more |= piped.is_none_or(|piped| piped >= self.wanted);
    }
}
