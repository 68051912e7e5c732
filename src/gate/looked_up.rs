//! The command and key hash of a request that has not run yet. With them, callers prefetch the keys
//! of many requests together.

use std::slice;

use crate::resp::args::{Args, Prehashed};
use crate::state::table::Command;
use crate::state::{Core, State};

/// A request's command, and its first key's hash.
#[derive(Clone, Copy)]
pub struct LookedUp {
    pub command: Option<&'static Command>,
    /// The index of the key, and its hash. None: the request has no key at a fixed position, or the
    /// hash was not asked for.
    key: Option<(usize, u64)>,
}

impl LookedUp {
    pub fn of(core: &Core, args: Args<'_>) -> Self {
        let found = Self::without_key(&core.state, args);
        let first = found.command.map_or(0, |command| usize::from(command.fixed_keys.first));
        let has_key = (1..args.len()).contains(&first);
        LookedUp { key: has_key.then(|| (first, core.keyspace.hash(args.get(first)))), ..found }
    }

    pub fn without_key(state: &State, args: Args<'_>) -> Self {
        LookedUp { command: state.find_trusted(args.get(0)), key: None }
    }

    /// The key's hash, to prefetch its entry.
    pub fn hash(&self) -> Option<u64> {
        self.key.map(|(_, hash)| hash)
    }

    /// The hash in the form that the request's run takes.
    pub fn prehashed(&self) -> Prehashed<'_> {
        match &self.key {
            Some((first, hash)) => {
                Prehashed { first: *first, step: 1, hashes: slice::from_ref(hash) }
            }
            None => Prehashed::default(),
        }
    }
}
