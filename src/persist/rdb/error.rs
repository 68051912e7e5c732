//! Errors of decoding values and reading files.

use std::fmt;
use std::io;

use thiserror::Error;

use super::Version;

/// A fault and its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{fault} (byte {offset})")]
pub struct DecodeError {
    pub fault: Fault,
    /// Offset in the file or payload where it was found. For a fault inside a compressed or packed string: the string's
    /// end.
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
    Magic(&'static str),
    #[error("{place}{error}")]
    Fault { place: Box<Place>, error: DecodeError },
    #[error("RDB CRC error: the checksum is {stored:016x}, of what was read it is {computed:016x}")]
    Checksum { stored: u64, computed: u64 },
    #[error("reading failed at byte {offset}: {error}")]
    Io { offset: u64, error: io::Error },
}

impl FileError {
    /// The error as a text for the log, with the key if that may be told.
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
