//! Reading a file record by record, without decoding values.
//!
//! The parser buffers one record and the bytes read ahead. Its buffer grows with the bytes that
//! arrive, never by a declared length. After an error of the kind `WouldBlock` the record can be
//! parsed again ([`Parser::go_back`]); any other error is final.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::ops::Range;

use crc::{Digest, Table};

use super::error::{DecodeError, Fault, FileError, Place};
use super::input::{self, Input};
use super::reader::{Reader, Text};
use super::writer::BLESSED_FIELD;
use super::{CHECKSUM, Version, VersionCheck, opcode, value_type};
use crate::collections::hash_slot::{HashSlot, SLOTS, SlotRanges};
use crate::collections::packed::Element;

/// Bytes requested from the source at once.
const CHUNK: usize = 64 * 1024;
/// A buffer larger than this, after a large record, is freed. Unit: bytes.
const BUFFER_MAX: usize = 1024 * 1024;

/// One record of a file.
#[derive(Debug)]
pub enum Event<'a> {
    /// The file begins.
    Header(Version),
    /// A field about the file or its server.
    Aux {
        name: Text<'a>,
        value: Text<'a>,
    },
    /// The entries from here on are in this database.
    SelectDb(u64),
    /// The number of keys in the database, and of those with deadlines: only a hint.
    ResizeDb {
        db: u64,
        keys: u64,
        volatile_keys: u64,
    },
    /// The source text of a function library.
    Function(Text<'a>),
    /// A slot migration to the node that wrote the file, not ended: in files of Valkey 9.
    SlotImport {
        /// The name of the move.
        name: Text<'a>,
        ranges: SlotRanges,
    },
    Entry(RawEntry<'a>),
    /// The end of the image. Other data may follow: see [`Parser::into_rest`].
    End(Checksum),
}

/// A deadline of this many milliseconds means none, as in Redis.
const NO_DEADLINE: i64 = -1;

/// Length of the name of a slot migration.
const MOVE_NAME_BYTES: usize = 40;

/// The result of verifying a file's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    Right,
    /// The file has none, or it was not to be verified.
    Unchecked,
}

/// A key whose value is not decoded yet.
#[derive(Debug)]
pub struct RawEntry<'a> {
    pub db: u64,
    pub key: Text<'a>,
    /// Unix milliseconds.
    pub deadline_ms: Option<i64>,
    pub idle_seconds: Option<u64>,
    pub frequency: Option<u8>,
    /// Whether the key is never evicted.
    pub is_blessed: bool,
    pub value_type: u8,
    /// The bytes that [`super::Decoder`] decodes.
    pub value: &'a [u8],
    /// The value's offset in the file.
    pub offset: u64,
    pub version: Version,
}

impl RawEntry<'_> {
    /// The place for an error of decoding the value.
    pub fn place(&self) -> Place {
        Place {
            version: Some(self.version),
            db: self.db,
            key: Some(self.key.to_vec()),
            value_type: Some(self.value_type),
        }
    }
}

/// Attributes of the next entry. Other records may stand between them and the entry.
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    deadline_ms: Option<i64>,
    idle_seconds: Option<u64>,
    frequency: Option<u8>,
    is_blessed: bool,
}

/// Reads a file.
pub struct Parser<R> {
    source: Source<R>,
    /// None before the header.
    version: Option<Version>,
    db: u64,
    /// Whether the checksum is verified. Source: `rdbchecksum`.
    checks: bool,
    version_check: VersionCheck,
}

impl<R: Read> Parser<R> {
    /// Reads a file of a known version; `checks`: the checksum is verified.
    pub fn new(reader: R, checks: bool) -> Self {
        let source = Source {
            reader,
            buffer: Vec::new(),
            filled: 0,
            at: 0,
            offset: 0,
            digest: checks.then(|| CHECKSUM.digest()),
            digested: 0,
            record_start: 0,
            attributes: Attributes::default(),
            templates: HashMap::new(),
            rebuilt: Vec::new(),
        };
        Parser { source, version: None, db: 0, checks, version_check: VersionCheck::Strict }
    }

    /// Sets the versions that are accepted.
    pub fn with_versions(mut self, check: VersionCheck) -> Self {
        self.version_check = check;
        self
    }

    /// The current offset in the file.
    pub fn offset(&self) -> u64 {
        self.source.offset + self.source.at as u64
    }

    /// The version, once the header is read.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// The bytes read ahead, and the source.
    pub fn into_rest(mut self) -> (Vec<u8>, R) {
        self.source.buffer.truncate(self.source.filled);
        self.source.buffer.drain(..self.source.at);
        (self.source.buffer, self.source.reader)
    }

    /// The source.
    pub fn source(&self) -> &R {
        &self.source.reader
    }

    /// The source, to be given more bytes.
    pub fn source_mut(&mut self) -> &mut R {
        &mut self.source.reader
    }

    /// Restarts the record after an error of the kind `WouldBlock`: the next call begins with it
    /// again. Returns its bytes read so far.
    pub fn go_back(&mut self) -> usize {
        self.source.at = self.source.record_start;
        self.source.filled - self.source.record_start
    }

    /// The next record. Must not be called again after [`Event::End`] or an error, except after
    /// [`Self::go_back`].
    pub fn next_event(&mut self) -> Result<Event<'_>, FileError> {
        self.source.drop_earlier();
        self.source.record_start = self.source.at;
        let Some(version) = self.version else {
            let magic = input::array(&mut self.source, "the header");
            let magic = magic.map_err(|error| error.at(self.place()))?;
            let version =
                Version::from_magic(&magic, self.version_check).map_err(FileError::Header)?;
            if !version.has_checksum() {
                self.source.digest = None;
            }
            self.version = Some(version);
            return Ok(Event::Header(version));
        };
        let mut place = self.place();
        let record = match self.source.record(version, &mut place) {
            Ok(record) => record,
            Err(error) => return Err(error.at(place)),
        };
        if let Record::End = record {
            return self.end(version).map(Event::End);
        }
        let Source { buffer, offset, rebuilt, attributes, .. } = &mut self.source;
        let (buffer, offset, rebuilt) = (&*buffer, *offset, &*rebuilt);
        let text = |range: &Range<usize>, what| {
            let mut reader = Reader::new(&buffer[range.clone()], offset + range.start as u64);
            reader.string(what)
        };
        let fault = |error, place: Place| FileError::Fault { place: Box::new(place), error };
        match record {
            Record::Aux { name, value } => {
                let name = text(&name, "a field's name");
                let value = text(&value, "a field");
                attributes.is_blessed |= name.as_deref() == Ok(BLESSED_FIELD);
                match (name, value) {
                    (Ok(name), Ok(value)) => Ok(Event::Aux { name, value }),
                    (Err(error), _) | (_, Err(error)) => Err(fault(error, place)),
                }
            }
            Record::SelectDb(db) => {
                self.db = db;
                Ok(Event::SelectDb(db))
            }
            Record::ResizeDb { keys, volatile_keys } => {
                Ok(Event::ResizeDb { db: self.db, keys, volatile_keys })
            }
            Record::Function(range) => match text(&range, "a library of functions") {
                Ok(text) => Ok(Event::Function(text)),
                Err(error) => Err(fault(error, place)),
            },
            Record::SlotImport { name: range, ranges } => {
                const WHAT: &str = "the name of a slot migration";
                match text(&range, WHAT) {
                    Ok(name) if name.len() == MOVE_NAME_BYTES => {
                        Ok(Event::SlotImport { name, ranges })
                    }
                    Ok(_) => {
                        let offset = offset + range.start as u64;
                        let error = DecodeError { fault: Fault::Malformed(WHAT), offset };
                        Err(fault(error, place))
                    }
                    Err(error) => Err(fault(error, place)),
                }
            }
            Record::Entry { attributes: own, value_type, key, value, is_rebuilt } => {
                let key = match text(&key, "a key") {
                    Ok(key) => key,
                    Err(error) => return Err(fault(error, place)),
                };
                Ok(Event::Entry(RawEntry {
                    db: self.db,
                    key,
                    deadline_ms: own.deadline_ms,
                    idle_seconds: own.idle_seconds,
                    frequency: own.frequency,
                    is_blessed: own.is_blessed,
                    value_type,
                    offset: offset + value.start as u64,
                    value: if is_rebuilt { rebuilt } else { &buffer[value] },
                    version,
                }))
            }
            Record::End => unreachable!("the end was seen above"),
        }
    }

    fn place(&self) -> Place {
        Place { version: self.version, db: self.db, ..Place::default() }
    }

    fn end(&mut self, version: Version) -> Result<Checksum, FileError> {
        if !version.has_checksum() {
            return Ok(Checksum::Unchecked);
        }
        let checked = self.source.at;
        let stored = input::array(&mut self.source, "the checksum");
        let stored = u64::from_le_bytes(stored.map_err(|error| error.at(self.place()))?);
        self.source.digest_until(checked);
        let Some(digest) = self.source.digest.take().filter(|_| self.checks && stored != 0) else {
            return Ok(Checksum::Unchecked);
        };
        let computed = digest.finalize();
        if computed == stored {
            Ok(Checksum::Right)
        } else {
            Err(FileError::Checksum { stored, computed })
        }
    }
}

/// A record, as ranges of the buffer.
enum Record {
    Aux {
        name: Range<usize>,
        value: Range<usize>,
    },
    SelectDb(u64),
    ResizeDb {
        keys: u64,
        volatile_keys: u64,
    },
    Function(Range<usize>),
    SlotImport {
        name: Range<usize>,
        ranges: SlotRanges,
    },
    Entry {
        attributes: Attributes,
        value_type: u8,
        key: Range<usize>,
        value: Range<usize>,
        /// Whether the value is not the file's bytes but [`Source::rebuilt`].
        is_rebuilt: bool,
    },
    End,
}

/// The file's bytes, from before the current record on.
struct Source<R> {
    reader: R,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were read from the file.
    filled: usize,
    /// The current position in the buffer.
    at: usize,
    /// The buffer's offset in the file.
    offset: u64,
    digest: Option<Digest<'static, u64, Table<16>>>,
    /// Bytes of the buffer that are in the digest.
    digested: usize,
    /// Where the current record begins in the buffer.
    record_start: usize,
    attributes: Attributes,
    /// Names of fields, by the numbers that hashes refer to.
    templates: HashMap<u64, Names>,
    /// A hash that referred to names, together with them.
    rebuilt: Vec<u8>,
}

/// Names of fields, as they are in the file.
struct Names {
    count: u32,
    encoded: Box<[u8]>,
}

/// Why bytes could not be read.
enum SourceError {
    Fault(DecodeError),
    Io(std::io::Error, u64),
}

impl SourceError {
    fn at(self, place: Place) -> FileError {
        match self {
            SourceError::Fault(error) => FileError::Fault { place: Box::new(place), error },
            SourceError::Io(error, offset) => FileError::Io { offset, error },
        }
    }
}

impl<R: Read> Input for Source<R> {
    type Error = SourceError;

    #[inline]
    fn take(&mut self, len: u64, what: &'static str) -> Result<&[u8], SourceError> {
        let ahead = self.filled - self.at;
        if len > ahead as u64 {
            self.fill(len, what)?;
        }
        let start = self.at;
        self.at += len as usize;
        Ok(&self.buffer[start..self.at])
    }

    fn error(&self, fault: Fault) -> SourceError {
        SourceError::Fault(DecodeError { fault, offset: self.offset + self.at as u64 })
    }
}

impl<R: Read> Source<R> {
    /// Reads until `len` bytes are ahead.
    #[cold]
    fn fill(&mut self, len: u64, what: &'static str) -> Result<(), SourceError> {
        while ((self.filled - self.at) as u64) < len {
            let missing = len - (self.filled - self.at) as u64;
            // Bytes after the record will have to be moved: read at most a chunk of them, even if
            // the buffer has more room.
            let wanted = usize::try_from(missing).unwrap_or(usize::MAX).max(CHUNK);
            if self.buffer.len() - self.filled < CHUNK {
                let twice = self.filled.min(wanted);
                self.buffer.resize(self.filled + twice.max(CHUNK), 0);
            }
            let room = (self.buffer.len() - self.filled).min(wanted);
            match self.reader.read(&mut self.buffer[self.filled..self.filled + room]) {
                Ok(0) => return Err(self.error(Fault::Truncated(what))),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(SourceError::Io(error, self.offset + self.filled as u64));
                }
            }
        }
        Ok(())
    }

    /// Adds the bytes up to a position in the buffer to the digest.
    fn digest_until(&mut self, end: usize) {
        if let Some(digest) = &mut self.digest {
            digest.update(&self.buffer[self.digested..end]);
        }
        self.digested = end;
    }

    /// Drops the bytes of earlier records, once they are many.
    fn drop_earlier(&mut self) {
        if self.at < CHUNK {
            return;
        }
        self.digest_until(self.at);
        self.buffer.copy_within(self.at..self.filled, 0);
        self.filled -= self.at;
        self.offset += self.at as u64;
        (self.at, self.digested) = (0, 0);
        if self.buffer.len() > BUFFER_MAX && self.filled < BUFFER_MAX / 2 {
            self.buffer.truncate(BUFFER_MAX);
            self.buffer.shrink_to_fit();
        }
    }

    fn string(&mut self, what: &'static str) -> Result<Range<usize>, SourceError> {
        let start = self.at;
        input::skip_string(self, what)?;
        Ok(start..self.at)
    }

    fn slot_ranges(&mut self) -> Result<SlotRanges, SourceError> {
        let len = input::length(self, "a count of ranges of slots")?;
        let malformed = Fault::Malformed("ranges of slots");
        let (mut ranges, mut slots) = (Vec::new(), 0);
        for _ in 0..len {
            let first = input::length(self, "a slot")?;
            let last = input::length(self, "a slot")?;
            let slot = |number| usize::try_from(number).ok().and_then(HashSlot::new);
            match (slot(first), slot(last)) {
                (Some(first), Some(last)) if first <= last => ranges.push((first, last)),
                _ => return Err(self.error(malformed)),
            }
            slots += last - first + 1;
            // Otherwise a short file could name all slots many times.
            if slots > SLOTS as u64 {
                return Err(self.error(malformed));
            }
        }
        Ok(ranges)
    }

    /// Reads names of fields that later hashes refer to.
    fn names(&mut self) -> Result<(), SourceError> {
        const WHAT: &str = "names of fields";
        let id = input::length(self, WHAT)?;
        let count = input::length(self, WHAT)?;
        let Some(count) = u32::try_from(count).ok().filter(|count| *count > 0) else {
            return Err(self.error(Fault::Malformed(WHAT)));
        };
        let start = self.at;
        for _ in 0..count {
            input::skip_string(self, WHAT)?;
        }
        let names = Names { count, encoded: self.buffer[start..self.at].into() };
        match self.templates.insert(id, names) {
            None => Ok(()),
            Some(_) => Err(self.error(Fault::Malformed("names of fields with a number twice"))),
        }
    }

    /// Reads a hash that refers to names of fields, and writes it to `rebuilt` with the names.
    /// Returns the type that it has then.
    fn rebuild(&mut self, value_type: u8) -> Result<u8, SourceError> {
        const WHAT: &str = "a hash's values";
        let is_packed = value_type == value_type::HASH_TEMPLATE_LISTPACK_REF;
        let mut start = self.at;
        let id = if is_packed {
            input::skip_string(self, WHAT)?;
            let mut reader = Reader::new(&self.buffer[start..self.at], self.offset + start as u64);
            let text = reader.string(WHAT).map_err(SourceError::Fault)?;
            let packed = reader.listpack(&text).map_err(SourceError::Fault)?;
            match packed.elements().next() {
                Some(Element::Integer(id)) => id as u64,
                _ => return Err(self.error(Fault::Malformed("a listpack without a number"))),
            }
        } else {
            let id = input::length(self, WHAT)?;
            start = self.at;
            id
        };
        let Some(names) = self.templates.get(&id) else {
            return Err(self.error(Fault::Malformed("values whose fields are in no record")));
        };
        /// The mark of a length of 32 bits.
        const LONG: u8 = 0x80;
        let count = names.count;
        self.rebuilt.clear();
        self.rebuilt.extend([input::NAMES_PLAIN as u8, LONG]);
        self.rebuilt.extend(count.to_be_bytes());
        self.rebuilt.extend_from_slice(&names.encoded);
        if !is_packed {
            for _ in 0..count {
                input::skip_string(self, WHAT)?;
            }
        }
        self.rebuilt.extend_from_slice(&self.buffer[start..self.at]);
        Ok(match is_packed {
            true => value_type::HASH_TEMPLATE_LISTPACK,
            false => value_type::HASH_TEMPLATE_ARRAY,
        })
    }

    /// The next record that is not skipped. Notes its known properties in `place`, for errors.
    fn record(&mut self, version: Version, place: &mut Place) -> Result<Record, SourceError> {
        loop {
            match input::byte(self, "a record's type")? {
                opcode::EXPIRE_SECONDS => {
                    let seconds = i32::from_le_bytes(input::array(self, "a deadline")?);
                    self.attributes.deadline_ms = Some(i64::from(seconds) * 1000);
                }
                opcode::EXPIRE_MS => {
                    let ms = i64::from_le_bytes(input::array(self, "a deadline")?);
                    self.attributes.deadline_ms = Some(ms).filter(|ms| *ms != NO_DEADLINE);
                }
                opcode::IDLE => {
                    self.attributes.idle_seconds = Some(input::length(self, "an idle time")?);
                }
                opcode::FREQ => {
                    self.attributes.frequency = Some(input::byte(self, "a count of accesses")?);
                }
                opcode::AUX => {
                    let name = self.string("a field's name")?;
                    return Ok(Record::Aux { name, value: self.string("a field")? });
                }
                opcode::SELECT_DB => {
                    return Ok(Record::SelectDb(input::length(self, "a database's number")?));
                }
                opcode::RESIZE_DB => {
                    let keys = input::length(self, "a count of keys")?;
                    let volatile_keys = input::length(self, "a count of keys")?;
                    return Ok(Record::ResizeDb { keys, volatile_keys });
                }
                opcode::FUNCTION => {
                    return Ok(Record::Function(self.string("a library of functions")?));
                }
                opcode::FUNCTION_PRE_GA => {
                    return Err(self.error(Fault::Malformed(
                        "functions as the release candidates of Redis 7.0 wrote them",
                    )));
                }
                opcode::SLOT_IMPORT if version.is_valkey() => {
                    let name = self.string("the name of a slot migration")?;
                    return Ok(Record::SlotImport { name, ranges: self.slot_ranges()? });
                }
                opcode::KEY_META if version.is_redis_since(Version::REDIS_13) => {
                    input::skip_key_meta(self)?;
                    self.record_start = self.at;
                }
                opcode::HASH_TEMPLATE if version.is_redis_since(Version::REDIS_15) => {
                    self.names()?;
                    self.record_start = self.at;
                }
                skipped @ (opcode::MODULE_AUX | opcode::SLOT_INFO) => {
                    input::skip_record(self, skipped)?;
                    // Skipped records may be larger than memory.
                    self.drop_earlier();
                    self.record_start = self.at;
                }
                opcode::END => return Ok(Record::End),
                value_type => {
                    place.value_type = Some(value_type);
                    if !input::is_value_type(value_type, version) {
                        return Err(self.error(Fault::UnknownType(value_type)));
                    }
                    let key = self.string("a key")?;
                    let start = self.at;
                    let rebuilt = match value_type {
                        value_type::HASH_TEMPLATE_LISTPACK_REF
                        | value_type::HASH_TEMPLATE_ARRAY_REF => self.rebuild(value_type).map(Some),
                        _ => input::skip_value(self, value_type, version).map(|()| None),
                    };
                    let rebuilt = rebuilt.inspect_err(|_| {
                        let key = Reader::new(&self.buffer[key.clone()], 0).string("a key");
                        place.key = key.ok().map(Text::into_vec);
                    })?;
                    return Ok(Record::Entry {
                        attributes: std::mem::take(&mut self.attributes),
                        value_type: rebuilt.unwrap_or(value_type),
                        key,
                        value: start..self.at,
                        is_rebuilt: rebuilt.is_some(),
                    });
                }
            }
        }
    }
}
