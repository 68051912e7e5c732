//! Reading and decoding an RDB image in a thread, ahead of the thread that inserts its entries into
//! the keyspace.
//!
//! ```text
//!   source -- this thread: read, checksum, decode, hash --> a few batches --> loop's thread: insert
//! ```
//!
//! Inserting mostly waits for memory, and takes about as long as all other steps together: two
//! threads take half the time of one. Entries are allocated from the arena of the inserting thread,
//! so that they lie in memory as if it had made them.
//!
//! A replica checks a received image in this way before it gives up its data ([`Verification`]).
//!
//! Knows neither the keyspace's tables nor the treatment of skipped keys.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use thiserror::Error;

use super::rdb::{
    DecodeError, Decoder, Event, Fault, FileError, Limits, Parser, RawEntry, VersionCheck,
};
use crate::clock::{Now, UnixMillis};
use crate::collections::hash_slot::SlotRanges;
use crate::keyspace::DbIndex;
use crate::keyspace::evict::BLESSED;
use crate::keyspace::snapshot::LoadedEntry;
use crate::sys::disk::DiskReader;
use crate::sys::{alloc, jemalloc};

/// The most batches in the channel.
pub const BATCHES_AHEAD: usize = 4;
/// Entries of a batch: enough to make the cost of waking the other thread negligible.
const BATCH_ENTRIES: usize = 1024;
/// A batch is sent once it has covered this part of the file. Unit: bytes.
const BATCH_BYTES: u64 = 256 << 10;

/// The bits of an entry's access word that hold the LFU counter; the time of its last decrement is
/// above.
const LFU_COUNTER: u32 = 0xff;
/// All bits of an access word.
const ACCESS: u32 = 0xff_ffff;

/// Turns records of a file into entries for the keyspace.
#[derive(Clone, Copy, Debug)]
pub struct EntryDecoder {
    pub limits: Limits,
    /// The time of loading, against which deadlines are compared.
    pub now: Now,
    /// Number of databases.
    pub databases: usize,
    /// The access bits of a key that is created now.
    pub fresh_access: u32,
    /// Access bits are those of LFU, not LRU.
    pub is_lfu: bool,
    /// Expired keys are loaded too.
    pub keeps_expired: bool,
    /// Errors do not name keys.
    pub hides_keys: bool,
}

/// The result of decoding an entry.
pub enum DecodedEntry {
    Entry(LoadedEntry),
    /// The key has expired.
    Expired,
    /// An empty collection, as some versions of Redis have saved.
    Empty,
}

impl EntryDecoder {
    /// Decodes an entry. Errors: a text with key, type and offset, or without the key.
    pub fn decode(&self, raw: &RawEntry<'_>) -> Result<DecodedEntry, String> {
        let Some(database) = DbIndex::checked(raw.db, self.databases) else {
            return Err(format!(
                "the file has keys in database {}, and this server has {}",
                raw.db, self.databases
            ));
        };
        let deadline = raw.deadline_ms.map(|ms| self.now.at(UnixMillis(ms)));
        if !self.keeps_expired && deadline.is_some_and(|deadline| self.now.is_past(deadline)) {
            return Ok(DecodedEntry::Expired);
        }
        let decoder = Decoder { limits: &self.limits, now: self.now, version: raw.version };
        let access = self.access(raw);
        let (value_type, offset) = (raw.value_type, raw.offset);
        match decoder.entry(&raw.key, value_type, raw.value, offset, deadline, access) {
            Ok(entry) => {
                Ok(DecodedEntry::Entry(LoadedEntry::new(database, entry, self.limits.hash.hasher)))
            }
            Err(DecodeError { fault: Fault::Empty, .. }) => Ok(DecodedEntry::Empty),
            Err(error) => {
                let place = Box::new(raw.place());
                Err(FileError::Fault { place, error }.text(self.hides_keys))
            }
        }
    }

    fn access(&self, raw: &RawEntry<'_>) -> u32 {
        if raw.is_blessed {
            return BLESSED;
        }
        let access = match (raw.frequency, raw.idle_seconds) {
            (Some(counter), _) if self.is_lfu => {
                self.fresh_access & !LFU_COUNTER | u32::from(counter)
            }
            (_, Some(seconds)) if !self.is_lfu => {
                let seconds = seconds.min(ACCESS.into()) as u32;
                self.fresh_access.wrapping_sub(seconds) & ACCESS
            }
            _ => self.fresh_access,
        };
        access.min(BLESSED - 1)
    }
}

/// Entries, and the record after them.
#[derive(Default)]
pub struct Batch {
    pub entries: Vec<LoadedEntry>,
    /// Number of skipped expired keys, except those reported as [`Record::Expired`].
    pub expired: u64,
    /// The offset up to which the file is read. Unit: bytes.
    pub offset: u64,
    /// The record after the entries; None: more entries follow.
    pub record: Option<Record>,
}

/// A record that is no entry to be inserted.
pub enum Record {
    Aux {
        name: Vec<u8>,
        value: Vec<u8>,
    },
    /// The source text of a function library.
    Function(Vec<u8>),
    /// A slot migration that has not ended: its name.
    SlotImport {
        name: Vec<u8>,
        ranges: SlotRanges,
    },
    /// The number of keys that a database will have: a hint.
    ResizeDb {
        database: DbIndex,
        keys: u64,
    },
    /// An expired key, which is skipped.
    Expired {
        database: DbIndex,
        key: Vec<u8>,
    },
    /// The key of an empty collection, which is skipped.
    Empty(Vec<u8>),
    /// The end of the image.
    End,
    /// The image cannot be read.
    Failed(Failure),
}

/// The reason why an image cannot be read.
#[derive(Debug, Error)]
pub enum Failure {
    #[error(transparent)]
    File(#[from] FileError),
    /// An entry is damaged, or does not fit this server.
    #[error("{0}")]
    Entry(String),
}

/// Reads an image to its end, or until the receiver of the batches is gone. Runs in a thread of its
/// own.
pub struct ReadAhead<'a> {
    pub source: &'a mut dyn DiskReader,
    /// Whether the checksum is verified.
    pub checks: bool,
    pub version_check: VersionCheck,
    pub decoder: EntryDecoder,
    /// Expired keys are reported as [`Record::Expired`], not just counted.
    pub reports_expired: bool,
    /// The arena to allocate from.
    pub arena: Option<u64>,
    /// The owner of the memory.
    pub account: &'static alloc::Account,
    pub batches: SyncSender<Batch>,
}

impl ReadAhead<'_> {
    /// See [`ReadAhead`].
    pub fn run(self) {
        jemalloc::use_arena(self.arena);
        self.account.enter();
        self.read();
        alloc::hand_over();
    }

    fn read(self) {
        let ReadAhead { source, checks, version_check, decoder, reports_expired, batches, .. } =
            self;
        let mut parser = Parser::new(source, checks).with_versions(version_check);
        let mut batch = Batch::default();
        let mut began = 0;
        loop {
            let record = match parser.next_event() {
                Ok(Event::Entry(entry)) => {
                    batch.offset = entry.offset;
                    match decoder.decode(&entry) {
                        Ok(DecodedEntry::Entry(loaded)) => {
                            batch.entries.push(loaded);
                            None
                        }
                        Ok(DecodedEntry::Expired) if reports_expired => Some(Record::Expired {
                            database: DbIndex::new(entry.db as usize),
                            key: entry.key.to_vec(),
                        }),
                        Ok(DecodedEntry::Expired) => {
                            batch.expired += 1;
                            None
                        }
                        Ok(DecodedEntry::Empty) => Some(Record::Empty(entry.key.to_vec())),
                        Err(why) => Some(Record::Failed(Failure::Entry(why))),
                    }
                }
                Ok(Event::Function(text)) => Some(Record::Function(text.into_vec())),
                Ok(Event::Aux { name, value }) => {
                    Some(Record::Aux { name: name.into_vec(), value: value.into_vec() })
                }
                Ok(Event::SlotImport { name, ranges }) => {
                    Some(Record::SlotImport { name: name.into_vec(), ranges })
                }
                Ok(Event::ResizeDb { db, keys, .. }) => {
                    let database = DbIndex::checked(db, decoder.databases);
                    database.map(|database| Record::ResizeDb { database, keys })
                }
                Ok(Event::Header(_) | Event::SelectDb(_)) => None,
                Ok(Event::End(_)) => Some(Record::End),
                Err(error) => Some(Record::Failed(error.into())),
            };
            let is_end = matches!(record, Some(Record::End | Record::Failed(_)));
            if is_end {
                batch.offset = parser.offset();
            }
            let is_full =
                batch.entries.len() >= BATCH_ENTRIES || batch.offset - began >= BATCH_BYTES;
            if record.is_none() && !is_full {
                continue;
            }
            began = batch.offset;
            let next = Batch { offset: began, ..Batch::default() };
            let ready = Batch { record, ..std::mem::replace(&mut batch, next) };
            if batches.send(ready).is_err() || is_end {
                return;
            }
        }
    }
}

/// A check of a whole image before it is loaded.
pub struct Verification {
    pub source: Box<dyn DiskReader>,
    /// Whether the checksum is verified.
    pub checks: bool,
    pub version_check: VersionCheck,
    pub decoder: EntryDecoder,
}

/// The result of a check of an image that can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Two keys may be the same: their hashes are.
    pub may_repeat_keys: bool,
}

impl Verification {
    /// Decodes the image, and keeps nothing of it but 8 bytes for each key. Errors: it cannot be
    /// loaded. None: it was given up.
    pub fn run(self, is_given_up: &AtomicBool) -> Option<Result<Verified, Failure>> {
        let Verification { source, checks, version_check, decoder } = self;
        let mut parser = Parser::new(source, checks).with_versions(version_check);
        let mut hashes = Vec::new();
        while !is_given_up.load(Ordering::Relaxed) {
            match parser.next_event() {
                Ok(Event::Entry(entry)) => match decoder.decode(&entry) {
                    Ok(DecodedEntry::Entry(loaded)) => hashes.push(loaded.hash_in_all()),
                    Ok(DecodedEntry::Expired | DecodedEntry::Empty) => {}
                    Err(why) => return Some(Err(Failure::Entry(why))),
                },
                Ok(Event::End(_)) => {
                    hashes.sort_unstable();
                    let may_repeat_keys = hashes.windows(2).any(|two| two[0] == two[1]);
                    return Some(Ok(Verified { may_repeat_keys }));
                }
                Ok(_) => {}
                Err(error) => return Some(Err(error.into())),
            }
        }
        None
    }
}

/// The smallest entry of a file: a type, an empty key and an empty value. Unit: bytes.
const ENTRY_BYTES_MIN: u64 = 3;

/// The most keys that the rest of a file can hold: limits the memory reserved for all its databases
/// together.
pub struct KeysExpected(u64);

impl KeysExpected {
    pub fn of_file(bytes: u64) -> Self {
        KeysExpected(bytes / ENTRY_BYTES_MIN)
    }

    /// The number of keys to reserve memory for in a database that declares `keys`. Deducts them.
    pub fn take(&mut self, keys: u64) -> usize {
        let taken = keys.min(self.0);
        self.0 -= taken;
        usize::try_from(taken).unwrap_or(0)
    }
}
