//! A client that waits: for keys, with the request that runs again when one is ready, or for replicas to acknowledge.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::ids::{ClientId, CommandId};
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::persist::aof::log::LogOffset;
use crate::resp::args::Args;
use crate::resp::request;

/// What a command waits for that needs a key to change.
#[derive(Debug)]
pub struct Wait {
    pub wanted: Wanted,
    /// The arguments that are the keys.
    pub keys: Range<usize>,
    /// Boot-time clock, microseconds; None: as long as it takes.
    pub deadline_us: Option<i64>,
    /// The request to run when a key is ready, if it is not the one that was sent; the keys stand in the same places.
    pub rewritten: Option<Vec<Vec<u8>>>,
}

/// Whose acknowledgements are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// So many, whichever they are.
    Count(i64),
    /// All that could be promoted: `wait-all-replicas`, and who is connected beyond that number.
    All,
}

/// What WAIT and WAITAOF wait for: replicas that have all of the stream before an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcksAwaited {
    /// Bytes of the stream.
    pub offset: u64,
    pub replicas: Replicas,
    /// WAITAOF: they have it on their disks.
    pub on_disk: Option<OnDisk>,
    /// Boot-time clock, microseconds; None: as long as it takes.
    pub deadline_us: Option<i64>,
}

/// What WAITAOF asks of this server's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDisk {
    /// The place behind what is to be on disk.
    pub logged: LogOffset,
    /// It is waited for.
    pub here_too: bool,
}

/// For what a client is blocked.
pub enum Cause {
    Keys {
        wanted: Wanted,
        /// The arguments that are the keys.
        keys: Range<usize>,
        ticket: Ticket,
    },
    Acks(AcksAwaited),
}

/// What a blocked client waits for.
pub struct Blocked {
    pub command: CommandId,
    pub cause: Cause,
    /// Boot-time clock, microseconds; None: as long as it takes.
    pub deadline_us: Option<i64>,
    pub db: usize,
    /// The request's arguments, one after the other.
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

    /// The keys with the arguments they are.
    pub fn keys(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let keys = match &self.cause {
            Cause::Keys { keys, .. } => keys.clone(),
            Cause::Acks(_) => 0..0,
        };
        keys.map(|index| (index, self.args().get(index)))
    }
}

/// Who is blocked until when.
#[derive(Default)]
pub struct Blocking {
    pub deadlines: BTreeSet<(i64, ClientId)>,
    /// Those that wait for replicas, in the order they came.
    pub for_acks: Vec<ClientId>,
    pub count: usize,
}

impl Blocking {
    /// Clients that are blocked by a command.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Those that will time out.
    pub fn timing_out(&self) -> usize {
        self.deadlines.len()
    }

    /// When the first of them times out: boot-time clock, microseconds.
    pub fn next_deadline_us(&self) -> Option<i64> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }
}
