//! Replication: the server's history, the stream of it that replicas follow, and the primary it follows itself.
//!
//! ```text
//! history   id, 40 digits; offset, bytes of the stream so far; the id it went on from, after a promotion
//! stream    what commands changed, in the form of the protocol: the backlog keeps its end for all replicas together
//! ```
//!
//! A replica's history is its primary's, and its stream the primary's bytes unchanged. Source: `replication.c` of Redis 7.0.15.

pub mod backlog;
pub mod following;
pub mod link;
pub mod pipe;
pub mod replica;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::ClientId;
use crate::persist::aof::log::LogOffset;
use crate::sys::random;
use backlog::Backlog;
use following::Following;
use pipe::Pipe;
use replica::Filter;

/// A history that another one went on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    pub id: String,
    /// The offset of the first byte that is not common, as replicas ask for it: `second_repl_offset`.
    pub end: u64,
}

/// A snapshot that is sent while it is made, to all who were there when it began.
pub struct Broadcast {
    pub pipe: Arc<Pipe>,
    /// What was taken from the pipe and not sent to everybody. Places count from 0.
    pub bytes: Backlog,
    /// Behind it there is the mark that ends it: no more comes.
    pub is_whole: bool,
    /// 40 bytes that do not occur in it.
    pub mark: String,
    pub filter: Filter,
}

/// What is uncertain about a primary that has just started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restart {
    /// It has started without data, or with that of an RDB file: the offset up to which it has any. None: there is nothing to fear for
    /// replicas, as with an append-only file, which has all that was answered.
    pub data_end: Option<u64>,
    /// Histories that this server began since, and that have ended (`repl-backlog-ttl`): who has one of them has nothing that this
    /// server lacks. The last comes first.
    pub ended: Vec<String>,
    /// It refuses writes until its part is certain: `primary-restart-read-only`.
    pub is_read_only: bool,
    /// Since when there have been replicas without a break: boot-time clock, microseconds.
    pub replicas_since_us: Option<i64>,
    /// When a replica with data was last held off, which is so no more after a while, and when the log was told: boot-time
    /// clock, microseconds.
    pub held_off_us: Option<i64>,
    pub told_us: Option<i64>,
}

/// A primary that hands its part to a replica.
pub struct Failover {
    /// Host and port of the replica, once that is known.
    pub target: Option<(String, u16)>,
    /// When it is given up, or forced: boot-time clock, microseconds.
    pub until_us: Option<i64>,
    /// When the time is up it goes on, whatever the replica lacks.
    pub forces: bool,
    /// The replica has been asked to take the part.
    pub is_under_way: bool,
}

/// No stream comes so far: offsets beyond, which only a fault can tell, would have no room to grow.
const OFFSET_MAX: u64 = 1 << 62;

/// An offset as a primary or a file tells it. None: it is no number, or none that a stream can have come to.
pub fn parse_offset(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&offset| offset <= OFFSET_MAX)
}

/// All that replication knows, on either side.
pub struct Replication {
    /// 40 hexadecimal digits that name this history of changes.
    pub id: String,
    /// The history this one went on from, after a promotion.
    pub ancestor: Option<Ancestor>,
    /// Bytes of the stream so far: `master_repl_offset`.
    pub offset: u64,
    /// None: nobody has followed yet, or nobody has for long; nothing is noted then.
    pub backlog: Option<Backlog>,
    /// Clients that are replicas, in any state.
    pub replicas: Vec<ClientId>,
    /// Since when there are none: boot-time clock, microseconds.
    pub without_replicas_since_us: i64,
    /// Those that are online and have acknowledged lately: `min-replicas-max-lag`.
    pub good_replicas: u32,
    /// The snapshot that is being sent without a file.
    pub broadcast: Option<Broadcast>,
    /// Offsets of the stream, and where what is before them ends in the log: it leaves when the log's policy has kept it.
    pub logged: VecDeque<(u64, LogOffset)>,
    /// The offset of the first byte of which the log's policy has not been seen to have kept it.
    kept_end: u64,
    /// Replicas are asked for an acknowledgement at the end of the turn.
    pub wants_acks: bool,
    /// A replica takes more than its share of a turn.
    pub has_more: bool,
    /// When what is done each second is due: boot-time clock, microseconds.
    pub next_second_us: i64,
    /// Seconds counted there.
    pub seconds: u64,
    /// A replica that waited for a file has gone: perhaps nobody needs it any more.
    pub file_lost_replica: bool,
    /// The file was saved for replicas alone, and nobody else wants one: `rdb-del-sync-files`.
    pub file_is_ours: bool,
    pub restart: Restart,
    /// FAILOVER
    pub failover: Option<Box<Failover>>,
    /// The primary that is followed; None: this server is a primary itself.
    pub following: Option<Box<Following>>,
}

impl Default for Replication {
    /// A primary with a history of its own, and no replicas.
    fn default() -> Self {
        Replication {
            id: random::hex_id(),
            ancestor: None,
            offset: 0,
            backlog: None,
            replicas: Vec::new(),
            without_replicas_since_us: 0,
            good_replicas: 0,
            broadcast: None,
            logged: VecDeque::new(),
            kept_end: 0,
            wants_acks: false,
            has_more: false,
            next_second_us: 0,
            seconds: 0,
            file_lost_replica: false,
            file_is_ours: false,
            restart: Restart::default(),
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

    /// Begins a history of its own, that has nothing in common with what was before.
    pub fn begin_history(&mut self) {
        self.id = random::hex_id();
        self.ancestor = None;
    }

    /// Goes on with another history from here: those who know the old one can go on too. To be called when a replica becomes a
    /// primary.
    pub fn branch_off(&mut self) {
        let id = std::mem::replace(&mut self.id, random::hex_id());
        self.ancestor = Some(Ancestor { id, end: self.offset + 1 });
    }

    /// Adds bytes to the stream: whole requests.
    pub fn feed(&mut self, bytes: &[u8]) {
        if let Some(backlog) = &mut self.backlog {
            backlog.append(bytes);
            self.offset += bytes.len() as u64;
        }
    }

    /// The offset of the first byte that is not to leave yet; `may_leave` says of an offset of the log whether what depends on it
    /// may be shown.
    pub fn sendable_end(&mut self, may_leave: impl Fn(LogOffset) -> bool) -> u64 {
        while let Some(&(offset, logged)) = self.logged.front() {
            if !may_leave(logged) {
                return self.kept_end;
            }
            self.kept_end = offset;
            self.logged.pop_front();
        }
        self.kept_end = self.backlog.as_ref().map_or(0, Backlog::end);
        self.kept_end
    }

    /// Whether who has all of history `id` before offset `from` can go on from there. Redis counts from 1: `from` is the offset
    /// of the first byte that is missing.
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
    fn offsets_that_could_not_grow_are_none() {
        assert_eq!(parse_offset("0"), Some(0));
        assert_eq!(parse_offset("4611686018427387904"), Some(1 << 62));
        for text in ["4611686018427387905", "18446744073709551615", "-1", "", "1x"] {
            assert_eq!(parse_offset(text), None, "{text}");
        }
    }

    #[test]
    fn who_knows_a_history_goes_on_where_the_backlog_reaches() {
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
}
