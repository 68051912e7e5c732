//! HTTP's work over many turns. An answer may look at all locks and write many, some in each turn.
//! A walk over all keys searches for queues and for the largest keys.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::keyspace::DbIndex;
use crate::keyspace::lock_scan::LockScan;
use crate::net::http::head::Request;

/// A lock's rank in a list, its database and its key.
type Place = (i64, DbIndex, Box<[u8]>);

/// The results found and written so far. The request states what to find.
pub struct HttpJob {
    pub request: Request,
    /// None: all results are found.
    pub scan: Option<LockScan>,
    /// Counts of held locks, grouped by the beginning of their names.
    pub groups: HashMap<Box<[u8]>, LockGroup>,
    /// The locks that are still to be written.
    pub places: VecDeque<Place>,
    pub text: String,
    /// The number of items in the text, and the last item that was looked at.
    pub written: usize,
    pub last: Option<Place>,
}

/// A walk over all keys, again and again, some keys in each turn.
#[derive(Debug, Default)]
pub struct KeyWalk {
    /// The value of `page-keys` for which the keys are searched.
    pub patterns: Vec<Vec<u8>>,
    /// Where the next slice begins.
    pub database: DbIndex,
    pub cursor: u64,
    /// What the present round has found, and the last complete one.
    pub present: Round,
    pub complete: Option<Round>,
}

/// What a round over all keys has found.
#[derive(Debug, Default)]
pub struct Round {
    /// The keys of database 0 that match the patterns of `page-keys`.
    pub named: BTreeSet<Box<[u8]>>,
    /// The longest streams of database 0 that have groups, with their lengths.
    pub streams: BTreeSet<(u64, Box<[u8]>)>,
    pub types: BTreeMap<&'static str, KeysOfType>,
    /// When it ended: boot-time clock, microseconds.
    pub ended_us: i64,
}

/// The keys of a type.
#[derive(Debug, Default)]
pub struct KeysOfType {
    pub keys: u64,
    /// Approximate bytes of memory.
    pub bytes: u64,
    /// The largest ones, with their bytes.
    pub largest: BTreeSet<(usize, DbIndex, Box<[u8]>)>,
}

/// Locks whose names begin alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockGroup {
    pub held: u64,
    /// When the lock that is held longest was granted: boot-time clock, microseconds.
    pub oldest_us: i64,
}

impl HttpJob {
    /// A job at its beginning.
    pub fn new(request: Request) -> Box<Self> {
        Box::new(HttpJob {
            request,
            scan: Some(LockScan::default()),
            groups: HashMap::new(),
            places: VecDeque::new(),
            text: String::new(),
            written: 0,
            last: None,
        })
    }

    /// Sets the items to write.
    pub fn found(&mut self, places: BTreeSet<Place>) {
        (self.scan, self.places) = (None, places.into_iter().collect());
    }
}
