//! A blocked client: it waits for keys, with the request to run again when one is ready, or for replicas' acknowledgements.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::ids::{ClientId, CommandId};
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::persist::aof::log::LogOffset;
use crate::resp::args::Args;
use crate::resp::request;

/// What a command that waits for a key's change waits for.
#[derive(Debug)]
pub struct Wait {
    pub wanted: Wanted,
    /// The indices of the key arguments.
    pub keys: Range<usize>,
    /// Boot-time clock, microseconds; None: no timeout.
    pub deadline_us: Option<i64>,
    /// The request to run when a key is ready, if it differs from the sent one; its keys have the same indices.
    pub rewritten: Option<Vec<Vec<u8>>>,
}

/// How many replicas must acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// This number of replicas.
    Count(i64),
    /// All that could be promoted: the connected ones, but at least `wait-all-replicas`.
    All,
}

/// The offset of what no replica will ever acknowledge.
pub const LOST: u64 = u64::MAX;

/// What WAIT and WAITAOF wait for: replicas that acknowledge an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcksAwaited {
    /// The replication offset; [`LOST`] if a full synchronisation has thrown away what was written.
    pub offset: u64,
    pub replicas: Replicas,
    /// WAITAOF: replicas must have it on disk.
    pub on_disk: Option<OnDisk>,
    /// Boot-time clock, microseconds; None: no timeout.
    pub deadline_us: Option<i64>,
}

/// What WAITAOF asks of this server's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDisk {
    /// The log offset to be on disk.
    pub logged: LogOffset,
    /// Whether to wait for it.
    pub here_too: bool,
}

/// Why a client is blocked.
pub enum Cause {
    Keys {
        wanted: Wanted,
        /// The indices of the key arguments.
        keys: Range<usize>,
        ticket: Ticket,
    },
    Acks(AcksAwaited),
}

/// A blocked client's request and what it waits for.
pub struct Blocked {
    pub command: CommandId,
    pub cause: Cause,
    /// Boot-time clock, microseconds; None: no timeout.
    pub deadline_us: Option<i64>,
    pub db: usize,
    /// The request's arguments, concatenated.
    pub buffer: Vec<u8>,
    pub ranges: Vec<request::Range>,
    /// When it began to wait: boot-time clock, microseconds.
    pub since_us: i64,
}

impl Blocked {
    /// The request.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.buffer, &self.ranges)
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        size_of::<Blocked>()
            + self.buffer.capacity()
            + self.ranges.capacity() * size_of::<request::Range>()
    }

    /// The keys, each with its argument index.
    pub fn keys(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let keys = match &self.cause {
            Cause::Keys { keys, .. } => keys.clone(),
            Cause::Acks(_) => 0..0,
        };
        keys.map(|index| (index, self.args().get(index)))
    }
}

/// The blocked clients and their deadlines.
#[derive(Default)]
pub struct Blocking {
    pub deadlines: BTreeSet<(i64, ClientId)>,
    /// Clients that wait for replicas, in order.
    pub for_acks: Vec<ClientId>,
    pub count: usize,
}

impl Blocking {
    /// Number of blocked clients.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Number of blocked clients with a timeout.
    pub fn timing_out(&self) -> usize {
        self.deadlines.len()
    }

    /// The next deadline: boot-time clock, microseconds.
    pub fn next_deadline_us(&self) -> Option<i64> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }
}
