//! Reading an RDB image ahead of who puts its entries into the keyspace.
//!
//! ```text
//!   source -- thread: read, checksum, decode, hash --> batches, a few at a time --> loop's thread: find each key's place
//! ```
//!
//! Looking for places is waiting for memory, and takes about as long as all the rest: two threads take half the time of one. What
//! the thread makes it allocates from the arena of the thread that takes it, so that the memory lies as if that one had made it.
//!
//! Refuses to know: the keyspace's tables, and what is done about keys that are left out.

use std::sync::mpsc::SyncSender;

use super::rdb::{DecodeError, Decoder, Event, Fault, Limits, Parser, RawEntry};
use crate::clock::{Now, UnixMillis};
use crate::keyspace::snapshot::LoadedEntry;
use crate::sys::disk::DiskReader;
use crate::sys::{alloc, jemalloc};

/// Batches that wait at most, besides those that are made and taken.
pub const BATCHES_AHEAD: usize = 4;
/// Entries of a batch: enough that waking the other thread does not count.
const BATCH_ENTRIES: usize = 1024;
/// A batch is handed on when its values took so much of the file. Unit: bytes.
const BATCH_BYTES: u64 = 256 << 10;

/// Bits of an access word that hold the counter of accesses; the time of the last decrement is above.
const LFU_COUNTER: u32 = 0xff;
/// Bits of an access word.
const ACCESS: u32 = 0xff_ffff;

/// Makes entries of what a file holds.
#[derive(Clone, Copy, Debug)]
pub struct Maker {
    pub limits: Limits,
    /// The moment of loading: what is past its deadline then has expired.
    pub now: Now,
    /// Databases that there are.
    pub databases: usize,
    /// The access bits of a key that is made now, and whether they are those of LFU.
    pub fresh_access: u32,
    pub is_lfu: bool,
    /// Expired keys are loaded too.
    pub keeps_expired: bool,
}

/// What came of an entry of a file.
pub enum Made {
    Entry(LoadedEntry),
    /// It has expired.
    Expired,
    /// A collection without elements. Versions of Redis have saved such keys.
    Empty,
}

impl Maker {
    /// Decodes an entry. Errors: in words, with key, type and offset.
    pub fn make(&self, raw: &RawEntry<'_>) -> Result<Made, String> {
        let database = usize::try_from(raw.db).ok().filter(|&number| number < self.databases);
        let Some(database) = database else {
            return Err(format!(
                "the file has keys in database {}, and this server has {}",
                raw.db, self.databases
            ));
        };
        let deadline = raw.deadline_ms.map(|ms| self.now.at(UnixMillis(ms)));
        if !self.keeps_expired && deadline.is_some_and(|deadline| self.now.is_past(deadline)) {
            return Ok(Made::Expired);
        }
        let decoder = Decoder { limits: &self.limits, now: self.now, version: raw.version };
        let access = self.access(raw);
        let (value_type, offset) = (raw.value_type, raw.offset);
        match decoder.entry(&raw.key, value_type, raw.value, offset, deadline, access) {
            Ok(entry) => {
                Ok(Made::Entry(LoadedEntry::new(database, entry, self.limits.hash.hasher)))
            }
            Err(DecodeError { fault: Fault::Empty, .. }) => Ok(Made::Empty),
            Err(error) => Err(format!("{}{error}", raw.place())),
        }
    }

    fn access(&self, raw: &RawEntry<'_>) -> u32 {
        match (raw.frequency, raw.idle_seconds) {
            (Some(counter), _) if self.is_lfu => {
                self.fresh_access & !LFU_COUNTER | u32::from(counter)
            }
            (_, Some(seconds)) if !self.is_lfu => {
                let seconds = seconds.min(ACCESS.into()) as u32;
                self.fresh_access.wrapping_sub(seconds) & ACCESS
            }
            _ => self.fresh_access,
        }
    }
}

/// Some entries, and what the file has behind them.
#[derive(Default)]
pub struct Batch {
    pub entries: Vec<LoadedEntry>,
    /// Expired keys that were left out, but those that are told one by one.
    pub expired: u64,
    /// How far the file is read. Unit: bytes.
    pub offset: u64,
    /// None: more entries.
    pub then: Option<Then>,
}

/// What is no entry.
pub enum Then {
    Aux {
        name: Vec<u8>,
        value: Vec<u8>,
    },
    /// The text of a library.
    Function(Vec<u8>),
    /// A database will have so many keys: a hint.
    Expect {
        database: usize,
        keys: u64,
    },
    /// A key that has expired and is left out.
    Expired {
        database: usize,
        key: Vec<u8>,
    },
    /// A key without elements is left out.
    Empty(Vec<u8>),
    /// The image is whole.
    End,
    /// It is not: in words.
    Failed(String),
}

/// Reads an image to its end, or to where nobody takes the batches any more. To be run by a thread of its own.
pub struct ReadAhead<'a> {
    pub source: &'a mut dyn DiskReader,
    pub checks: bool,
    pub maker: Maker,
    /// Whether expired keys are told one by one.
    pub tells_expired: bool,
    /// The arena to allocate from.
    pub arena: Option<u64>,
    pub batches: SyncSender<Batch>,
}

impl ReadAhead<'_> {
    /// See [`ReadAhead`].
    pub fn run(self) {
        jemalloc::use_arena(self.arena);
        self.read();
        alloc::hand_over();
    }

    fn read(self) {
        let ReadAhead { source, checks, maker, tells_expired, batches, .. } = self;
        let mut parser = Parser::new(source, checks);
        let mut batch = Batch::default();
        let mut began = 0;
        loop {
            let then = match parser.next_event() {
                Ok(Event::Entry(entry)) => {
                    batch.offset = entry.offset;
                    match maker.make(&entry) {
                        Ok(Made::Entry(made)) => {
                            batch.entries.push(made);
                            None
                        }
                        Ok(Made::Expired) if tells_expired => Some(Then::Expired {
                            database: entry.db as usize,
                            key: entry.key.to_vec(),
                        }),
                        Ok(Made::Expired) => {
                            batch.expired += 1;
                            None
                        }
                        Ok(Made::Empty) => Some(Then::Empty(entry.key.to_vec())),
                        Err(why) => Some(Then::Failed(why)),
                    }
                }
                Ok(Event::Function(text)) => Some(Then::Function(text.into_vec())),
                Ok(Event::Aux { name, value }) => {
                    Some(Then::Aux { name: name.into_vec(), value: value.into_vec() })
                }
                Ok(Event::ResizeDb { db, keys, .. }) => {
                    let database = usize::try_from(db).unwrap_or(usize::MAX);
                    Some(Then::Expect { database, keys })
                }
                Ok(Event::Header(_) | Event::SelectDb(_)) => None,
                Ok(Event::End(_)) => Some(Then::End),
                Err(error) => Some(Then::Failed(error.to_string())),
            };
            let is_end = matches!(then, Some(Then::End | Then::Failed(_)));
            if is_end {
                batch.offset = parser.offset();
            }
            let is_full =
                batch.entries.len() >= BATCH_ENTRIES || batch.offset - began >= BATCH_BYTES;
            if then.is_none() && !is_full {
                continue;
            }
            began = batch.offset;
            let next = Batch { offset: began, ..Batch::default() };
            let ready = Batch { then, ..std::mem::replace(&mut batch, next) };
            if batches.send(ready).is_err() || is_end {
                return;
            }
        }
    }
}
