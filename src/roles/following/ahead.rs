//! Looking ahead in the primary's stream: commands are looked up, keys hashed, and their entries
//! prefetched, so that cache misses of many requests overlap.

use std::collections::VecDeque;

use crate::gate::looked_up::LookedUp;
use crate::keyspace::DbIndex;
use crate::replication::link::Link;
use crate::resp::args::Args;
use crate::state::Core;

/// Requests looked at together.
const REQUESTS: usize = 64;

/// The commands and hashes of the next requests. Each request is recognised by its place in the
/// link's buffer, which must not move until these requests have run.
#[derive(Default)]
pub(super) struct Ahead {
    /// The place, command and hash of each request.
    seen: VecDeque<(usize, LookedUp)>,
    hashes: Vec<u64>,
}

impl Ahead {
    /// Looks at the next requests, unless some that were looked at have not run yet. `selected`:
    /// the stream's database so far.
    pub(super) fn look(&mut self, link: &mut Link, core: &Core, selected: DbIndex) {
        if !self.seen.is_empty() {
            return;
        }
        self.hashes.clear();
        link.look_ahead(REQUESTS, |request| {
            let looked_up = LookedUp::of(core, Args::new(request.buffer, request.ranges));
            self.hashes.extend(looked_up.hash);
            self.seen.push_back((request.at, looked_up));
        });
        if self.hashes.len() < 2 {
            return;
        }
        core.keyspace.table_of(selected).prefetch(self.hashes.iter().copied());
    }

    /// The command and hash of the next request to run, at `at`. None: it was not looked at.
    pub(super) fn take(&mut self, at: usize) -> Option<LookedUp> {
        // MULTI and EXEC are never taken, so skip them.
        while self.seen.front().is_some_and(|&(seen_at, _)| seen_at < at) {
            self.seen.pop_front();
        }
        let &(seen_at, looked_up) = self.seen.front()?;
        (seen_at == at).then(|| {
            self.seen.pop_front();
            looked_up
        })
    }
}
