//! Errors of decoding values and reading files.

use std::fmt;
use std::io;

use thiserror::Error;

use super::version::{HeaderFault, Version, VersionCheck};

/// A fault and its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{fault} (byte {offset})")]
pub struct DecodeError {
    pub fault: Fault,
    /// Offset in the file or payload where it was found. For a fault inside a compressed or packed
    /// string: the string's end.
    pub offset: u64,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    #[error("the data ends within {0}")]
    Truncated(&'static str),
    #[error("{0}")]
    Malformed(&'static str),
    /// An empty collection. Files of old servers may hold such keys, which are skipped.
    #[error("a collection without elements")]
    Empty,
    #[error("type {0} is not known")]
    UnknownType(u8),
    #[error("an array of Redis 8.8, a type that does not exist here")]
    Array,
    #[error("a value of module {0}, which cannot be read without it")]
    Module(ModuleId),
}

/// The name and version of a module's type: 9 characters of 6 bits, then 10 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleId(pub u64);

const MODULE_CHARACTERS: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl fmt::Display for ModuleId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for index in (0..9).rev() {
            let bits = (self.0 >> (10 + 6 * index) & 0x3f) as usize;
            write!(out, "{}", char::from(MODULE_CHARACTERS[bits]))?;
        }
        write!(out, " (encoding version {})", self.0 & 0x3ff)
    }
}

/// Where in a file an error is, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub version: Option<Version>,
    pub db: u64,
    /// The key, once read.
    pub key: Option<Vec<u8>>,
    /// The type of its value, once read.
    pub value_type: Option<u8>,
}

/// Why reading a file fails.
#[derive(Debug, Error)]
pub enum FileError {
    #[error("the file {0}")]
    Header(HeaderFault),
    #[error("{place}{error}")]
    Fault { place: Box<Place>, error: DecodeError },
    #[error("RDB CRC error: the checksum is {stored:016x}, of what was read it is {computed:016x}")]
    Checksum { stored: u64, computed: u64 },
    #[error("reading failed at byte {offset}: {error}")]
    Io { offset: u64, error: io::Error },
}

/// The types and opcodes that mean one thing in Redis and another in Valkey.
const FOREIGN_TYPES: std::ops::RangeInclusive<u8> = 22..=243;

impl FileError {
    /// The line that Redis or Valkey logs for a file refused because of its version or, with
    /// `check` relaxed, because of an unknown type, which they do not treat as damage. `is_valkey`:
    /// where the two differ, Valkey's. None: any other error.
    pub fn refusal(&self, check: VersionCheck, is_valkey: bool) -> Option<String> {
        match self {
            FileError::Header(HeaderFault::Signature(magic)) => {
                let text = "Wrong signature trying to load DB from file";
                Some(match is_valkey {
                    true => format!("{text}: {}", magic.escape_ascii()),
                    false => text.into(),
                })
            }
            FileError::Header(HeaderFault::Version(number)) => {
                Some(format!("Can't handle RDB format version {number}"))
            }
            FileError::Fault {
                place,
                error: DecodeError { fault: Fault::UnknownType(value_type), .. },
            } if check == VersionCheck::Relaxed => {
                let version = place.version.filter(|version| !version.is_valkey());
                Some(match version.filter(|_| FOREIGN_TYPES.contains(value_type)) {
                    Some(version) => format!(
                        "Can't handle foreign type or opcode {value_type} in RDB with version {}",
                        version.number()
                    ),
                    None => {
                        "Unknown type or opcode when loading DB. Unrecoverable error, aborting now."
                            .into()
                    }
                })
            }
            _ => None,
        }
    }

    /// The error as a text for the log, with the key if that may be shown.
    pub fn text(mut self, hides_key: bool) -> String {
        if let FileError::Fault { place, .. } = &mut self
            && hides_key
        {
            place.key = None;
        }
        self.to_string()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(version) = self.version {
            write!(out, "{version}, ")?;
        }
        write!(out, "database {}", self.db)?;
        if let Some(key) = &self.key {
            // A key may be very long.
            let start = &key[..key.len().min(128)];
            write!(out, ", key '{}'", start.escape_ascii())?;
        }
        if let Some(value_type) = self.value_type {
            write!(out, ", type {value_type}")?;
        }
        out.write_str(": ")
    }
}
