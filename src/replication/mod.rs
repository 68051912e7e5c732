//! Replication: the state of a primary with its replicas, and of a replica with its primary.
//!
//! ```text
//! history   a sequence of changes: replication ID, 40 digits; offset, bytes of the stream so far; after a promotion the
//!           previous ID
//! stream    the changes as requests; the backlog holds its end, for all replicas together
//! ```
//!
//! A replica has its primary's history, and forwards the primary's bytes unchanged. Source:
//! `replication.c` of Redis 7.0.15.
//!
//! - The stream: `effects` collects it, `backlog` keeps its end.
//! - A primary: `replica` is its view of one, `pipe` passes a snapshot from the thread that writes
//!   it, `promoted` notices that sentinels have made one the primary.
//! - A replica: `following` is its view of the primary; `primary_link` the connection, with `link`,
//!   the protocol without a socket, and `incoming`, the snapshot being received.

pub mod backlog;
pub mod effects;
pub mod following;
pub mod incoming;
pub mod link;
pub mod pipe;
pub mod primary_link;
pub mod promoted;
pub mod replica;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::CommandError;
use crate::ids::ClientId;
use crate::persist::aof::log::LogOffset;
use crate::sys::random;
use backlog::Backlog;
use following::Following;
use pipe::Pipe;
use primary_link::PrimaryLink;
use promoted::Promoted;
use replica::Filter;

/// After -READONLY, clients that use sentinels ask these for the primary and retry there.
const RESTARTED: CommandError = CommandError::Text(
    "READONLY This primary has restarted, and takes no writes until its part is certain (primary-restart-read-only).",
);
const EMPTY: CommandError = CommandError::Text(
    "READONLY This primary has started without data that its replicas have (repl-protect-empty-primary).",
);

/// The history before a promotion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    pub id: String,
    /// The first offset that is not part of it: `second_repl_offset`.
    pub end: u64,
}

/// A snapshot sent while it is written, to all replicas that waited when it began.
pub struct Broadcast {
    pub pipe: Arc<Pipe>,
    /// The bytes from the pipe that some replica still lacks. Offsets count from 0.
    pub bytes: Backlog,
    /// The snapshot is completely written, mark included.
    pub is_complete: bool,
    /// The 40 random bytes that end it.
    pub mark: String,
    pub filter: Filter,
}

/// The caution of a primary that has just started, whose data may be older than its replicas': see
/// `roles/restart.rs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restart {
    /// The offset of its data, if it started without data or with an RDB file. None: replicas
    /// cannot have newer data. An append-only file, for example, has every change that was
    /// answered.
    pub data_end: Option<u64>,
    /// Histories that this server began since its start, and that have ended (`repl-backlog-ttl`).
    /// A replica with one of them has no data of another primary. The last comes first.
    pub ended: Vec<String>,
    /// It refuses writes until it is certain to be the primary: `primary-restart-read-only`.
    pub is_read_only: bool,
    /// The time since which it has had replicas continuously: boot-time clock, microseconds.
    pub replicas_since_us: Option<i64>,
    /// When a replica with data was last held off (forgotten after a while), and when that was last
    /// logged: boot-time clock, microseconds.
    pub held_off_us: Option<i64>,
    pub logged_us: Option<i64>,
}

impl Restart {
    /// The error for clients' writes, if they are refused.
    #[inline]
    pub fn refusal(&self) -> Option<CommandError> {
        match (self.held_off_us, self.is_read_only) {
            (Some(_), _) => Some(EMPTY),
            (None, true) => Some(RESTARTED),
            (None, false) => None,
        }
    }
}

/// A FAILOVER in progress.
pub struct Failover {
    /// Host and port of the replica that takes over, once chosen.
    pub target: Option<(String, u16)>,
    /// When it is aborted, or forced: boot-time clock, microseconds.
    pub until_us: Option<i64>,
    /// At the timeout it continues, even if the replica lacks data.
    pub forces: bool,
    /// The replica has been asked to take over.
    pub is_under_way: bool,
}

/// The largest offset accepted: no stream gets there, and larger ones could overflow.
const OFFSET_MAX: u64 = 1 << 62;

/// Parses an offset from a primary or a file. None: no number, or too large.
pub fn parse_offset(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&offset| offset <= OFFSET_MAX)
}

/// The state of replication.
pub struct Replication {
    /// The replication ID: 40 hexadecimal digits.
    pub id: String,
    /// The history before the last promotion.
    pub ancestor: Option<Ancestor>,
    /// Bytes of the stream so far: `master_repl_offset`.
    pub offset: u64,
    /// Pings at the end of the stream, by their offsets.
    pings: Range<u64>,
    /// None: there have been no replicas, or none for a long time; then the stream is not recorded.
    pub backlog: Option<Backlog>,
    /// Clients that are replicas, in any state.
    pub replicas: Vec<ClientId>,
    /// The time since which there have been no replicas: boot-time clock, microseconds.
    pub without_replicas_since_us: i64,
    /// Number of replicas that are online and acknowledged within `min-replicas-max-lag`.
    pub good_replicas: u32,
    /// The snapshot being sent without a file.
    pub broadcast: Option<Broadcast>,
    /// Ends of parts of the stream, and of the same parts in the AOF: a part may be sent when the
    /// log's policy allows it.
    pub logged: VecDeque<(u64, LogOffset)>,
    /// The end of the part that may be sent, as last computed.
    sendable_end: u64,
    /// Replicas will be asked for acknowledgements at the end of the turn.
    pub wants_acks: bool,
    /// Clients may have [`crate::client::ClientFlags::LOST_WRITES`].
    pub has_lost_writes: bool,
    /// A replica has followed that refuses XADD with IDMP: it would lack the entry. It may come
    /// back and continue with the backlog, so this stays.
    pub had_older_replica: bool,
    /// The link to the primary, while there is a connection (`state.net.primary`).
    pub link: Option<Box<PrimaryLink>>,
    /// A replica has more to receive than one turn allows.
    pub has_more: bool,
    /// When the periodic work of each second is due: boot-time clock, microseconds.
    pub next_second_us: i64,
    /// Number of times that work was done.
    pub seconds: u64,
    /// A replica that waited for a file has left: perhaps none needs the file now.
    pub file_lost_replica: bool,
    /// A file that was saved only for replicas, and may be removed: `rdb-del-sync-files`.
    pub file_for_replicas: Option<PathBuf>,
    pub restart: Restart,
    pub promoted: Promoted,
    /// FAILOVER
    pub failover: Option<Box<Failover>>,
    /// The primary of this server. None: it is a primary itself.
    pub following: Option<Box<Following>>,
}

impl Default for Replication {
    /// A primary with a new history, and no replicas.
    fn default() -> Self {
        Replication {
            id: random::hex_id(),
            ancestor: None,
            offset: 0,
            pings: 0..0,
            backlog: None,
            replicas: Vec::new(),
            without_replicas_since_us: 0,
            good_replicas: 0,
            broadcast: None,
            logged: VecDeque::new(),
            sendable_end: 0,
            wants_acks: false,
            has_lost_writes: false,
            had_older_replica: false,
            link: None,
            has_more: false,
            next_second_us: 0,
            seconds: 0,
            file_lost_replica: false,
            file_for_replicas: None,
            restart: Restart::default(),
            promoted: Promoted::default(),
            failover: None,
            following: None,
        }
    }
}

impl Replication {
    /// Whether this server follows another.
    #[inline]
    pub fn is_replica(&self) -> bool {
        self.following.is_some()
    }

    /// Begins a new history, unrelated to the previous one.
    pub fn begin_history(&mut self) {
        self.id = random::hex_id();
        self.ancestor = None;
    }

    /// Begins a new history that continues the current one: replicas of the current one can follow
    /// it. For a promotion.
    pub fn branch_off(&mut self) {
        let id = std::mem::replace(&mut self.id, random::hex_id());
        self.ancestor = Some(Ancestor { id, end: self.offset + 1 });
    }

    /// Adds complete requests to the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        if let Some(backlog) = &mut self.backlog {
            backlog.append(bytes);
            self.offset += bytes.len() as u64;
        }
    }

    /// Adds a request that changes nothing: a ping, or REPLCONF GETACK.
    pub fn feed_ping(&mut self, bytes: &[u8]) {
        let begin = self.changes_end();
        self.feed(bytes);
        self.pings = begin..self.offset;
    }

    /// The end of the last change in the stream: only pings follow.
    pub fn changes_end(&self) -> u64 {
        if self.pings.end == self.offset { self.pings.start } else { self.offset }
    }

    /// The first offset that must not be sent yet. `may_leave`: whether the AOF's policy allows
    /// showing the data before an offset of the AOF.
    pub fn compute_sendable_end(&mut self, may_leave: impl Fn(LogOffset) -> bool) -> u64 {
        while let Some(&(offset, logged)) = self.logged.front() {
            if !may_leave(logged) {
                return self.sendable_end;
            }
            self.sendable_end = offset;
            self.logged.pop_front();
        }
        self.sendable_end = self.backlog.as_ref().map_or(0, Backlog::end);
        self.sendable_end
    }

    /// Whether a replica that has history `id` up to before offset `from` can continue there.
    /// Offsets count from 1: `from` is that of the first missing byte.
    pub fn can_continue(&self, id: &[u8], from: u64) -> bool {
        let known = id == self.id.as_bytes()
            || self
                .ancestor
                .as_ref()
                .is_some_and(|ancestor| id == ancestor.id.as_bytes() && from <= ancestor.end);
        let holds = |backlog: &Backlog| (backlog.start()..=backlog.end()).contains(&from);
        known && self.backlog.as_ref().is_some_and(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_that_are_too_large_are_refused() {
        assert_eq!(parse_offset("0"), Some(0));
        assert_eq!(parse_offset("4611686018427387904"), Some(1 << 62));
        for text in ["4611686018427387905", "18446744073709551615", "-1", "", "1x"] {
            assert_eq!(parse_offset(text), None, "{text}");
        }
    }

    #[test]
    fn a_known_history_continues_within_the_backlog() {
        let mut replication = Replication::default();
        replication.feed(b"lost: nobody follows");
        assert_eq!(replication.offset, 0);
        replication.backlog = Some(Backlog::new(16 << 10, 1));
        replication.feed(b"0123456789");
        let id = replication.id.clone().into_bytes();
        assert!(replication.can_continue(&id, 1) && replication.can_continue(&id, 11));
        assert!(!replication.can_continue(&id, 0) && !replication.can_continue(&id, 12));
        assert!(!replication.can_continue(&[b'0'; 40], 1));
        replication.branch_off();
        replication.feed(b"new");
        assert!(replication.can_continue(&id, 11) && !replication.can_continue(&id, 12));
        let now = replication.id.clone().into_bytes();
        assert!(replication.can_continue(&now, 14) && id != now);
        replication.begin_history();
        assert!(!replication.can_continue(&now, 11) && !replication.can_continue(&id, 11));
    }

    #[test]
    fn pings_are_no_changes() {
        let mut replication =
            Replication { backlog: Some(Backlog::new(16 << 10, 1)), ..Replication::default() };
        replication.feed(b"0123456789");
        replication.feed_ping(b"ping");
        replication.feed_ping(b"ping");
        assert_eq!((replication.offset, replication.changes_end()), (18, 10));
        replication.feed(b"last");
        assert_eq!((replication.offset, replication.changes_end()), (22, 22));
    }
}
