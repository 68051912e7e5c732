//! Writing a file record by record, with a running checksum.

use std::io::{self, Write};
use std::mem;

use crc::{Digest, Table};
use thiserror::Error;

use crate::clock::Now;
use crate::collections::table::ValueRef;
use crate::types::Value;

use super::encode::NeedsVersion;
use super::encoder::{Encoder, Sink};
use super::{CHECKSUM, Version, opcode};

/// Bytes collected before they are written.
const BUFFER_BYTES: usize = 64 * 1024;

/// The field before a blessed key.
pub const BLESSED_FIELD: &[u8] = b"latchkey-blessed";

/// Why an entry was not written.
#[derive(Debug, Error)]
pub enum WriteError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Nothing of the entry was written; writing can continue.
    #[error(transparent)]
    NeedsVersion(#[from] NeedsVersion),
}

/// A key with everything that a file contains of it.
pub struct SavedEntry<'a> {
    pub key: &'a [u8],
    pub value: ValueRef<'a, Value>,
    /// Unix milliseconds.
    pub deadline_ms: Option<i64>,
    /// Seconds since the last access, if the eviction policy uses it.
    pub idle_seconds: Option<u64>,
    /// The LFU counter, if the eviction policy uses it.
    pub frequency: Option<u8>,
    /// Whether the key is never evicted.
    pub is_blessed: bool,
}

/// Writes a file.
pub struct Writer<W: Write> {
    out: Output<W>,
    encoder: Encoder,
    version: Version,
}

impl<W: Write> Writer<W> {
    /// Begins a file. Entries that this version cannot hold will be refused. `checks` is
    /// `rdbchecksum`: without it the checksum is 0, which readers ignore.
    pub fn new(inner: W, version: Version, encoder: Encoder, checks: bool) -> io::Result<Self> {
        let digest = checks.then(|| CHECKSUM.digest());
        let mut out = Output::new(inner);
        out.digest = digest;
        out.put(&version.magic());
        Ok(Writer { out, encoder, version })
    }

    /// A field about the file or its server.
    pub fn aux(&mut self, name: &[u8], value: &[u8]) -> io::Result<()> {
        self.out.put(&[opcode::AUX]);
        self.encoder.string(name, &mut self.out);
        self.encoder.string(value, &mut self.out);
        self.out.check()
    }

    /// The source text of a function library.
    pub fn function(&mut self, text: &[u8]) -> io::Result<()> {
        self.out.put(&[opcode::FUNCTION]);
        self.encoder.string(text, &mut self.out);
        self.out.check()
    }

    /// The next entries are in this database. The numbers of its keys, and of those with deadlines,
    /// are hints for readers and need not be exact.
    pub fn select_db(&mut self, db: u64, keys: u64, volatile_keys: u64) -> io::Result<()> {
        let Writer { out, encoder, .. } = self;
        out.put(&[opcode::SELECT_DB]);
        encoder.length(db, out);
        out.put(&[opcode::RESIZE_DB]);
        encoder.length(keys, out);
        encoder.length(volatile_keys, out);
        out.check()
    }

    /// Writes an entry. `now` converts deadlines of fields to wall-clock times.
    pub fn entry(&mut self, entry: SavedEntry<'_>, now: &Now) -> Result<(), WriteError> {
        let value_type = Encoder::value_type(entry.value, self.version)?;
        let Writer { out, encoder, .. } = self;
        if entry.is_blessed {
            // A field that its reader does not know is skipped, wherever it stands.
            out.put(&[opcode::AUX]);
            encoder.string(BLESSED_FIELD, out);
            encoder.string(b"1", out);
        }
        if let Some(ms) = entry.deadline_ms {
            out.put(&[opcode::EXPIRE_MS]);
            out.put(&ms.to_le_bytes());
        }
        if let Some(seconds) = entry.idle_seconds {
            out.put(&[opcode::IDLE]);
            encoder.length(seconds, out);
        }
        if let Some(frequency) = entry.frequency {
            out.put(&[opcode::FREQ, frequency]);
        }
        out.put(&[value_type]);
        encoder.string(entry.key, out);
        encoder.write_value(entry.value, value_type, now, out);
        Ok(out.check()?)
    }

    /// Bytes written to the file so far, without those in the buffer.
    pub fn written_bytes(&self) -> u64 {
        self.out.written
    }

    /// Ends the file. Returns it, and the encoder for reuse.
    pub fn finish(mut self) -> io::Result<(W, Encoder)> {
        self.out.put(&[opcode::END]);
        self.out.write_buffer();
        let checksum = self.out.digest.take().map_or(0u64, |digest| digest.finalize());
        self.out.put(&checksum.to_le_bytes());
        self.out.write_buffer();
        self.out.check()?;
        self.out.inner.flush()?;
        Ok((self.out.inner, self.encoder))
    }
}

/// A buffered file. After an error nothing more is written.
pub(in crate::persist) struct Output<W> {
    inner: W,
    buffer: Vec<u8>,
    digest: Option<Digest<'static, u64, Table<16>>>,
    /// A write failed.
    is_broken: bool,
    /// The error, until it is returned by [`Output::check`].
    error: Option<io::Error>,
    written: u64,
}

impl<W: Write> Sink for Output<W> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.write_buffer();
            if bytes.len() > BUFFER_BYTES {
                return self.write(bytes);
            }
        }
        self.buffer.extend_from_slice(bytes);
    }
}

impl<W: Write> Output<W> {
    pub fn new(inner: W) -> Self {
        // It grows when needed: the commands of a single key are few bytes.
        let buffer = Vec::new();
        Output { inner, buffer, digest: None, is_broken: false, error: None, written: 0 }
    }

    /// Bytes written to the file so far, without those in the buffer.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes the rest. Returns the file.
    pub fn finish(mut self) -> io::Result<W> {
        self.write_buffer();
        self.check()?;
        self.inner.flush()?;
        Ok(self.inner)
    }

    fn write_buffer(&mut self) {
        let mut buffer = mem::take(&mut self.buffer);
        self.write(&buffer);
        buffer.clear();
        self.buffer = buffer;
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.is_broken {
            return;
        }
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
        self.written += bytes.len() as u64;
        self.error = self.inner.write_all(bytes).err();
        self.is_broken = self.error.is_some();
    }

    /// Returns a new error once, then a general one each time, as nothing more is written.
    pub fn check(&mut self) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None if self.is_broken => Err(io::Error::other("an earlier write failed")),
            None => Ok(()),
        }
    }
}
