//! What can be wrong with bytes that are to be values.

use std::fmt;
use std::io;

use thiserror::Error;

use super::Version;

/// A fault, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{fault} (byte {offset})")]
pub struct DecodeError {
    pub fault: Fault,
    /// Byte in the file or payload at which it was seen. Within a compressed string, or what is packed inside a string, that is
    /// the end of the string.
    pub offset: u64,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    #[error("the data ends within {0}")]
    Truncated(&'static str),
    #[error("{0}")]
    Malformed(&'static str),
    /// Nothing is in a collection. Files of old servers may hold such keys, which are left out.
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

/// What a record of a file is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub version: Option<Version>,
    pub db: u64,
    /// The key, if it was read already.
    pub key: Option<Vec<u8>>,
    /// The type of its value, if it was read already.
    pub value_type: Option<u8>,
}

/// Why a file cannot be read on.
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

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(version) = self.version {
            write!(out, "{version}, ")?;
        }
        write!(out, "database {}", self.db)?;
        if let Some(key) = &self.key {
            // A key may be very long.
            let shown = &key[..key.len().min(128)];
            write!(out, ", key '{}'", shown.escape_ascii())?;
        }
        if let Some(value_type) = self.value_type {
            write!(out, ", type {value_type}")?;
        }
        out.write_str(": ")
    }
}
