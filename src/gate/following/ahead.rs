//! Looking ahead in the primary's stream: commands are looked up, keys hashed, and their entries prefetched, so that
//! cache misses of many requests overlap.

use std::collections::VecDeque;
use std::slice;

use crate::gate::state::State;
use crate::gate::table::Command;
use crate::keyspace::Keyspace;
use crate::replication::link::Link;
use crate::resp::args::{Args, Prehashed};
use crate::resp::request::Range;

/// Requests looked at together.
const REQUESTS: usize = 64;

/// What was looked up of the next requests. They are recognised by where they lie in the link's buffer.
#[derive(Default)]
pub(super) struct Ahead {
    seen: VecDeque<Seen>,
    hashes: Vec<u64>,
}

pub(super) struct Seen {
    /// Where the request's first argument begins.
    at: u32,
    pub(super) command: Option<&'static Command>,
    /// The index of the first key, and its hash, if it was looked at and has one at a fixed position.
    key: Option<(usize, u64)>,
}

impl Seen {
    /// What a request needs that was not looked at.
    pub(super) fn of(server: &State, args: Args<'_>) -> Seen {
        Seen { at: 0, command: server.commands.find(args.get(0)), key: None }
    }

    pub(super) fn prehashed(&self) -> Prehashed<'_> {
        match &self.key {
            Some((first, hash)) => {
                Prehashed { first: *first, step: 1, hashes: slice::from_ref(hash) }
            }
            None => Prehashed::default(),
        }
    }
}

impl Ahead {
    /// Forgets what was seen. To be called when the link's buffer may have moved.
    pub(super) fn forget(&mut self) {
        self.seen.clear();
    }

    /// Looks at the next requests, unless some have been looked at that did not run yet. `selected`: the stream's
    /// database so far.
    pub(super) fn look(&mut self, link: &mut Link, db: &Keyspace, server: &State, selected: usize) {
        if !self.seen.is_empty() {
            return;
        }
        self.hashes.clear();
        link.look_ahead(REQUESTS, |buffer, ranges| {
            let args = Args::new(buffer, ranges);
            let command = server.commands.find(args.get(0));
            let first = command.map_or(0, |command| usize::from(command.fixed_keys.first));
            let key = (first > 0 && first < args.len()).then(|| (first, db.hash(args.get(first))));
            self.hashes.extend(key.map(|(_, hash)| hash));
            self.seen.push_back(Seen { at: ranges[0].start, command, key });
        });
        if self.hashes.len() < 2 {
            return;
        }
        db.table_of(selected).prefetch(self.hashes.iter().copied());
    }

    /// What was seen of the next request to run. None: it was not looked at.
    pub(super) fn take(&mut self, ranges: &[Range]) -> Option<Seen> {
        let at = ranges[0].start;
        // MULTI and EXEC are not asked for.
        while self.seen.front().is_some_and(|seen| seen.at < at) {
            self.seen.pop_front();
        }
        if self.seen.front()?.at == at { self.seen.pop_front() } else { None }
    }
}
