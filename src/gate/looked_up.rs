//! The command and key hash of a request that has not run yet. With them, callers prefetch the keys
//! of many requests together.

use crate::gate::request::Request;
use crate::resp::args::Args;
use crate::state::context::Origin;
use crate::state::table::Command;
use crate::state::{Core, State};

/// A trusted request's command, and its first key's hash.
#[derive(Clone, Copy)]
pub struct LookedUp {
    pub command: &'static Command,
    /// None: the request has no key at a fixed position, or the hash was not asked for.
    pub hash: Option<u64>,
}

impl LookedUp {
    pub fn of(core: &Core, args: Args<'_>) -> Self {
        let found = Self::without_key(&core.state, args);
        let first = usize::from(found.command.fixed_keys.first);
        let has_key = (1..args.len()).contains(&first);
        LookedUp { hash: has_key.then(|| core.keyspace.hash(args.get(first))), ..found }
    }

    pub fn without_key(state: &State, args: Args<'_>) -> Self {
        let command = state.find_trusted(args.get(0)).unwrap_or(&state.commands.unknown);
        LookedUp { command, hash: None }
    }

    /// The request in the form that the gate takes.
    pub fn request<'a>(&'a self, args: Args<'a>, origin: Origin) -> Request<'a> {
        Request { args, command: self.command, hashes: self.hash.as_slice(), origin }
    }
}
