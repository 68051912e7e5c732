//! What a primary knows of one replica: what it has said of itself, and how far it has come.
//!
//! ```text
//!   Greets -> AwaitsSnapshot -> TakesSnapshot ----------> Online      without a file
//!                            -> AwaitsFile -> TakesFile -> Online     by way of a file
//!   Greets ----------------------------------------------> Online     it goes on where it was
//! ```

use std::io::{self, IoSlice, Read, Write};

use super::backlog::Backlog;
use crate::sys::disk::DiskReader;

/// Bytes of a file that are read at once to be sent.
const FILE_PIECE_BYTES: usize = 64 << 10;
/// Pieces of shared blocks in one write.
const PIECES_MAX: usize = 64;

/// How far a replica has come.
pub enum Stage {
    /// It has told of itself, and is a client like others.
    Greets,
    /// It waits for a snapshot to begin.
    AwaitsSnapshot,
    /// A snapshot is written to a file, which it will be sent.
    AwaitsFile,
    /// It is sent a snapshot while that is made; `at` is its place in it.
    TakesSnapshot {
        at: u64,
    },
    TakesFile(FileSending),
    /// It has the data. Behind a snapshot of which it has to find the end, the stream begins with its first acknowledgement.
    Online {
        awaits_ack: bool,
    },
}

/// A file on its way to a replica.
pub struct FileSending {
    reader: Box<dyn DiskReader>,
    /// Bytes of the file that were not read yet.
    left: u64,
    piece: Vec<u8>,
    sent: usize,
}

impl FileSending {
    pub fn new(reader: Box<dyn DiskReader>, bytes: u64) -> Self {
        FileSending { reader, left: bytes, piece: Vec::new(), sent: 0 }
    }

    fn is_done(&self) -> bool {
        self.left == 0 && self.sent == self.piece.len()
    }

    /// Reads the next piece if the last is sent. Errors: the file's, and `UnexpectedEof` if it has become shorter.
    fn fill(&mut self) -> io::Result<()> {
        if self.sent == self.piece.len() && self.left > 0 {
            self.piece.resize(self.left.min(FILE_PIECE_BYTES as u64) as usize, 0);
            self.sent = 0;
            self.reader.read_exact(&mut self.piece)?;
            self.left -= self.piece.len() as u64;
        }
        Ok(())
    }
}

/// A client that follows this server, or is about to.
pub struct Replica {
    pub stage: Stage,
    /// Bytes that go before anything else: what the handshake answers, signs of life, a header.
    pub preamble: Vec<u8>,
    /// The offset of the first byte of the stream that it has not been sent; from the beginning of its snapshot on.
    pub next: u64,
    /// The last offset it has acknowledged, and the last it has on its disk. None: it has not told, not even that it has the
    /// beginning.
    pub acknowledged: Option<u64>,
    pub synced: Option<u64>,
    /// When it last acknowledged, and when it was last sent a piece of a snapshot: boot-time clock, microseconds.
    pub acknowledged_us: i64,
    pub sent_us: i64,
    /// Where it takes clients itself: `REPLCONF listening-port`, `ip-address`.
    pub port: u16,
    pub address: Option<Box<str>>,
    /// `REPLCONF capa eof`: it finds the end of a snapshot whose length nobody knows.
    pub finds_end: bool,
    /// `REPLCONF capa psync2`: it can be told of a new history when it goes on.
    pub takes_new_history: bool,
    /// `REPLCONF rdb-only 1`: it goes when it has the snapshot.
    pub snapshot_only: bool,
    /// `REPLCONF version`, the first number; None: it has not said, and is taken for a Redis 7.0.
    pub version: Option<u32>,
    /// What it leaves out: `REPLCONF rdb-filter-only`.
    pub filter: Filter,
    /// It has come by SYNC, and never acknowledges.
    pub is_old: bool,
}

/// What a snapshot leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub keys: bool,
    pub functions: bool,
}

impl Filter {
    pub fn is_some(self) -> bool {
        self.keys || self.functions
    }
}

impl Default for Replica {
    fn default() -> Self {
        Replica {
            stage: Stage::Greets,
            preamble: Vec::new(),
            next: 0,
            acknowledged: None,
            synced: None,
            acknowledged_us: 0,
            sent_us: 0,
            port: 0,
            address: None,
            finds_end: false,
            takes_new_history: false,
            snapshot_only: false,
            version: None,
            filter: Filter::default(),
            is_old: false,
        }
    }
}

/// What came of sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub bytes: usize,
    /// The socket takes no more now.
    pub is_full: bool,
    /// There is more to send, which waits for the next turn.
    pub has_more: bool,
    /// The snapshot is sent to its end.
    pub has_all: bool,
}

impl Replica {
    pub fn is_online(&self) -> bool {
        matches!(self.stage, Stage::Online { .. })
    }

    /// Whether the stream is kept for it: its snapshot has begun.
    pub fn has_place(&self) -> bool {
        match self.stage {
            Stage::Greets | Stage::AwaitsSnapshot => false,
            Stage::AwaitsFile | Stage::TakesSnapshot { .. } | Stage::TakesFile(_) => {
                !self.snapshot_only
            }
            Stage::Online { .. } => true,
        }
    }

    /// Whether a snapshot is being made or sent for it, or is to be.
    pub fn is_syncing(&self) -> bool {
        !matches!(self.stage, Stage::Greets | Stage::Online { .. })
    }

    /// As INFO names the stage.
    pub fn stage_name(&self) -> &'static str {
        match self.stage {
            Stage::Greets | Stage::AwaitsSnapshot | Stage::AwaitsFile => "wait_bgsave",
            Stage::TakesSnapshot { .. } => "wait_bgsave",
            Stage::TakesFile(_) => "send_bulk",
            Stage::Online { .. } => "online",
        }
    }

    /// Bytes of memory held for this replica alone.
    pub fn memory(&self) -> usize {
        let piece = match &self.stage {
            Stage::TakesFile(file) => file.piece.capacity(),
            _ => 0,
        };
        size_of::<Replica>() + self.preamble.capacity() + piece
    }

    /// Sends what is there for it, about `most` bytes, the stream up to before offset `end`. Errors: the connection is lost, or the
    /// file cannot be read.
    pub fn send(
        &mut self,
        stream: &mut impl Write,
        backlog: &Backlog,
        end: u64,
        snapshot: Option<(&Backlog, bool)>,
        most: usize,
    ) -> io::Result<Sent> {
        let mut sent = Sent::default();
        while sent.bytes < most {
            let pieces = match (&mut self.stage, snapshot) {
                _ if !self.preamble.is_empty() => vec![IoSlice::new(&self.preamble)],
                (Stage::TakesSnapshot { at }, Some((snapshot, is_whole))) => {
                    if *at == snapshot.end() {
                        sent.has_all = is_whole;
                        return Ok(sent);
                    }
                    snapshot.pieces(*at, snapshot.end(), PIECES_MAX).unwrap_or_default()
                }
                (Stage::TakesFile(file), _) => {
                    file.fill()?;
                    if file.is_done() {
                        sent.has_all = true;
                        return Ok(sent);
                    }
                    vec![IoSlice::new(&file.piece[file.sent..])]
                }
                (Stage::Online { awaits_ack: false }, _) if self.next < end => {
                    let pieces = backlog.pieces(self.next, end, PIECES_MAX);
                    pieces.ok_or(io::ErrorKind::NotFound)?
                }
                _ => return Ok(sent),
            };
            let count = match stream.write_vectored(&pieces) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sent.is_full = true;
                    return Ok(sent);
                }
                Err(error) => return Err(error),
            };
            sent.bytes += count;
            self.advance(count);
        }
        sent.has_more = true;
        Ok(sent)
    }

    fn advance(&mut self, count: usize) {
        if !self.preamble.is_empty() {
            self.preamble.drain(..count);
            return;
        }
        match &mut self.stage {
            Stage::TakesSnapshot { at } => *at += count as u64,
            Stage::TakesFile(file) => file.sent += count,
            _ => self.next += count as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes with each write, and now and then none.
    #[derive(Default)]
    struct Narrow {
        taken: Vec<u8>,
        calls: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            if self.calls.is_multiple_of(3) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = bytes.len().min(7);
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_replica_gets_each_byte_once_and_in_order() {
        let text: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
        let mut backlog = Backlog::new(1 << 20, 1);
        backlog.append(&text);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&text[..100_000]).unwrap();
        io::Seek::rewind(&mut file).unwrap();
        let sending = FileSending::new(Box::new(file), 100_000);
        let mut replica = Replica {
            stage: Stage::TakesFile(sending),
            preamble: b"$100000\r\n".to_vec(),
            next: 5,
            ..Replica::default()
        };
        let mut out = Narrow::default();
        loop {
            let sent = replica.send(&mut out, &backlog, 401, None, 50).unwrap();
            if sent.has_all {
                replica.stage = Stage::Online { awaits_ack: false };
            }
            assert!(sent.bytes < 50 + 7);
            if sent == Sent::default() {
                break;
            }
        }
        let expected = [&b"$100000\r\n"[..], &text[..100_000], &text[4..400]].concat();
        assert!(out.taken == expected);
        assert_eq!(replica.next, 401);
    }

    #[test]
    fn a_file_that_has_become_shorter_is_an_error() {
        let sending = FileSending::new(Box::new(io::Cursor::new(b"short")), 6);
        let mut replica = Replica { stage: Stage::TakesFile(sending), ..Replica::default() };
        let sent = replica.send(&mut Vec::new(), &Backlog::new(1, 1), 1, None, 50);
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
