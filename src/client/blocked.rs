//! A client that waits for a key: what it waits for, until when, and the request that runs again when the key is ready.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::ids::{ClientId, CommandId};
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::resp::args::Args;
use crate::resp::request;

/// What a command waits for.
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

/// What a blocked client waits for.
pub struct Blocked {
    pub command: CommandId,
    pub wait: Wait,
    pub db: usize,
    pub ticket: Ticket,
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
        self.wait.keys.clone().map(|index| (index, self.args().get(index)))
    }
}

/// Who is blocked until when.
#[derive(Default)]
pub struct Blocking {
    pub deadlines: BTreeSet<(i64, ClientId)>,
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
