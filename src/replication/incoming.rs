//! A snapshot from the primary: the arrived bytes, and the loaded part of them.
//! `roles/following/sync.rs` receives and loads it.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use crate::cluster::node::NodeId;
use crate::collections::hash_slot::SlotRanges;
use crate::keyspace::DbIndex;
use crate::keyspace::beside::Beside;
use crate::persist::ahead::{EntryDecoder, KeysExpected};
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
    pub loader: Option<Loader>,
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

    /// Whether it is being loaded.
    pub fn is_loading(&self) -> bool {
        self.loader.is_some()
    }

    /// Whether it is loaded from a file: no bytes are expected from the primary.
    pub fn reads_file(&self) -> bool {
        self.loader.as_ref().is_some_and(|loader| loader.feed_is_file)
    }

    /// Whether reading from the primary must stop for now.
    pub fn is_full(&self) -> bool {
        self.loader.as_ref().is_some_and(Loader::is_full)
    }

    pub fn wants_turn(&self) -> bool {
        self.loader.as_ref().is_some_and(|loader| loader.has_more)
    }
}

/// Builds databases from a snapshot's bytes.
pub struct Loader {
    pub parser: Parser<Feed>,
    pub feed_is_file: bool,
    pub decoder: EntryDecoder,
    /// None with a pipe: the total is unknown.
    pub expected: KeysExpected,
    pub beside: Beside,
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
