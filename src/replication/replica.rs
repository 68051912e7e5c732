//! A primary's view of a replica: its announced properties, its stage, and sending to it.
//!
//! ```text
//!   Handshake -> AwaitsSnapshot -> ReceivesSnapshot -------------> Online     without a file
//!                               -> AwaitsFile -> ReceivesFile ---> Online     with a file
//!   Handshake ---------------------------------------------------> Online     it continues where it was
//! ```

use std::io::{self, IoSlice, Read, Write};

use super::backlog::Backlog;
use crate::cluster::node::NodeId;
use crate::sys::disk::DiskReader;

/// Bytes of a file read at once.
const FILE_PIECE_BYTES: usize = 64 << 10;
/// The most pieces in one write.
const PIECES_MAX: usize = 64;

/// The stage of a replica.
pub enum Stage {
    /// It has sent REPLCONF, and is still an ordinary client.
    Handshake,
    /// It waits for a snapshot to begin.
    AwaitsSnapshot,
    /// It waits for a file that is being saved.
    AwaitsFile,
    /// It is being sent a snapshot while that is written, from offset `at` on.
    ReceivesSnapshot { at: u64 },
    /// It is being sent a file.
    ReceivesFile(FileSending),
    /// It has the data. After a snapshot of unknown length the stream begins with its first
    /// acknowledgement (`awaits_ack`).
    Online { awaits_ack: bool },
}

/// A file being sent to a replica.
pub struct FileSending {
    reader: Box<dyn DiskReader>,
    /// Bytes of the file not read yet.
    left: u64,
    piece: Vec<u8>,
    /// Bytes of the piece that are sent.
    sent: usize,
}

impl FileSending {
    pub fn new(reader: Box<dyn DiskReader>, bytes: u64) -> Self {
        FileSending { reader, left: bytes, piece: Vec::new(), sent: 0 }
    }

    fn is_done(&self) -> bool {
        self.left == 0 && self.sent == self.piece.len()
    }

    /// Reads the next piece if the last one is sent. Errors: those of reading; `UnexpectedEof` if
    /// the file has become shorter.
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

/// A client that is a replica, or has begun the handshake.
pub struct Replica {
    pub stage: Stage,
    /// Bytes to be sent first: the reply to PSYNC, newlines, a header.
    pub preamble: Vec<u8>,
    /// The offset of the first byte of the stream not sent to it. Set when its snapshot begins.
    pub next: u64,
    /// The acknowledged offset, and the one on its disk. None: not acknowledged, not even offset 0.
    pub acknowledged: Option<u64>,
    pub synced: Option<u64>,
    /// When it last acknowledged, and when it was last sent a piece of a snapshot: boot-time clock,
    /// microseconds.
    pub acknowledged_us: i64,
    pub sent_us: i64,
    /// Its silence counts from here, or from the last bytes it has sent: boot-time clock,
    /// microseconds.
    pub last_sign_us: i64,
    /// The port and address at which it accepts clients: `REPLCONF listening-port`, `ip-address`.
    pub port: u16,
    pub address: Option<Box<str>>,
    /// `REPLCONF capa eof`: it accepts a snapshot of unknown length, ended by a mark.
    pub accepts_eof_mark: bool,
    /// `REPLCONF capa psync2`: it accepts a new replication ID in `+CONTINUE`.
    pub accepts_new_history: bool,
    /// `REPLCONF capa run-id=ID`, which only this server sends: two links of the same process are
    /// one replica.
    pub run_id: Option<Box<[u8]>>,
    /// `REPLCONF rdb-only 1`: it wants only the snapshot.
    pub snapshot_only: bool,
    /// `REPLCONF set-cluster-node-id`: its name in the cluster.
    pub node_id: Option<NodeId>,
    /// `REPLCONF version`, the first number; None: not announced, it counts as Redis 7.0.
    pub version: Option<u32>,
    /// The parts that its snapshot omits: `REPLCONF rdb-filter-only`.
    pub filter: Filter,
    /// It came by SYNC instead of PSYNC, and never acknowledges.
    pub uses_sync: bool,
}

/// The parts that a snapshot omits.
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
            stage: Stage::Handshake,
            preamble: Vec::new(),
            next: 0,
            acknowledged: None,
            synced: None,
            acknowledged_us: 0,
            sent_us: 0,
            last_sign_us: 0,
            port: 0,
            address: None,
            accepts_eof_mark: false,
            accepts_new_history: false,
            run_id: None,
            node_id: None,
            snapshot_only: false,
            version: None,
            filter: Filter::default(),
            uses_sync: false,
        }
    }
}

/// The result of sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub bytes: usize,
    /// The socket accepts nothing more now.
    pub is_full: bool,
    /// There is more to send in the next turn.
    pub has_more: bool,
    /// The snapshot is sent completely.
    pub is_snapshot_sent: bool,
}

impl Replica {
    pub fn is_online(&self) -> bool {
        matches!(self.stage, Stage::Online { .. })
    }

    /// Whether the stream must be kept for it: it is online, or its snapshot has begun.
    pub fn needs_stream(&self) -> bool {
        match self.stage {
            Stage::Handshake | Stage::AwaitsSnapshot => false,
            Stage::AwaitsFile | Stage::ReceivesSnapshot { .. } | Stage::ReceivesFile(_) => {
                !self.snapshot_only
            }
            Stage::Online { .. } => true,
        }
    }

    /// Whether it waits for a snapshot or is being sent one.
    pub fn is_syncing(&self) -> bool {
        !matches!(self.stage, Stage::Handshake | Stage::Online { .. })
    }

    /// The stage's name in INFO.
    pub fn stage_name(&self) -> &'static str {
        match self.stage {
            Stage::Handshake
            | Stage::AwaitsSnapshot
            | Stage::AwaitsFile
            | Stage::ReceivesSnapshot { .. } => "wait_bgsave",
            Stage::ReceivesFile(_) => "send_bulk",
            Stage::Online { .. } => "online",
        }
    }

    /// Bytes of memory owned by this replica's state.
    pub fn memory(&self) -> usize {
        size_of::<Replica>() + self.preamble.capacity() + self.file_bytes()
    }

    /// Bytes of memory that hold a part of the file being sent.
    pub fn file_bytes(&self) -> usize {
        match &self.stage {
            Stage::ReceivesFile(file) => file.piece.capacity(),
            _ => 0,
        }
    }

    /// Sends pending bytes, about `bytes_max`; of the stream those before offset `end`. `snapshot`:
    /// the broadcast's bytes, and whether they are complete. Errors: the connection is lost, or the
    /// file cannot be read.
    pub fn send(
        &mut self,
        stream: &mut impl Write,
        backlog: &Backlog,
        end: u64,
        snapshot: Option<(&Backlog, bool)>,
        bytes_max: usize,
    ) -> io::Result<Sent> {
        let mut sent = Sent::default();
        while sent.bytes < bytes_max {
            let pieces = match (&mut self.stage, snapshot) {
                _ if !self.preamble.is_empty() => vec![IoSlice::new(&self.preamble)],
                (Stage::ReceivesSnapshot { at }, Some((snapshot, is_complete))) => {
                    if *at == snapshot.end() {
                        sent.is_snapshot_sent = is_complete;
                        return Ok(sent);
                    }
                    snapshot.pieces(*at, snapshot.end(), PIECES_MAX).unwrap_or_default()
                }
                (Stage::ReceivesFile(file), _) => {
                    file.fill()?;
                    if file.is_done() {
                        sent.is_snapshot_sent = true;
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
            Stage::ReceivesSnapshot { at } => *at += count as u64,
            Stage::ReceivesFile(file) => file.sent += count,
            _ => self.next += count as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts a few bytes with each write, and sometimes none.
    #[derive(Default)]
    struct SlowSocket {
        taken: Vec<u8>,
        calls: usize,
    }

    impl Write for SlowSocket {
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
            stage: Stage::ReceivesFile(sending),
            preamble: b"$100000\r\n".to_vec(),
            next: 5,
            ..Replica::default()
        };
        let mut out = SlowSocket::default();
        loop {
            let sent = replica.send(&mut out, &backlog, 401, None, 50).unwrap();
            if sent.is_snapshot_sent {
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
        let mut replica = Replica { stage: Stage::ReceivesFile(sending), ..Replica::default() };
        let sent = replica.send(&mut Vec::new(), &Backlog::new(1, 1), 1, None, 50);
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
