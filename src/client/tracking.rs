//! A client's CLIENT TRACKING state.

use std::collections::BTreeSet;

use crate::client::Client;

/// Which keys a client tracks.
#[derive(Debug)]
pub enum Mode {
    /// The keys that the client reads.
    Reads(Choice),
    /// The keys with these prefixes (BCAST).
    Prefixes(BTreeSet<Box<[u8]>>),
}

/// Which reads are tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    All,
    /// Only after CLIENT CACHING YES.
    OptIn,
    /// All but those after CLIENT CACHING NO.
    OptOut,
}

/// How a client tracks keys.
#[derive(Debug)]
pub struct ClientTracking {
    pub mode: Mode,
    /// Number of the client that gets its messages.
    pub redirect: Option<u64>,
    /// A message was lost because that client is gone.
    pub is_broken: bool,
    /// The client gets no messages about its own changes.
    pub no_loop: bool,
    /// Approximate bytes of all prefixes.
    prefix_bytes: usize,
}

impl ClientTracking {
    /// New tracking with these options. Cost: O(number of prefixes).
    pub fn new(mode: Mode, redirect: Option<u64>, no_loop: bool) -> Self {
        let prefix_bytes = match &mode {
            Mode::Reads(_) => 0,
            Mode::Prefixes(prefixes) => {
                prefixes.iter().map(|prefix| prefix.len() + 2 * size_of::<usize>()).sum()
            }
        };
        ClientTracking { mode, redirect, is_broken: false, no_loop, prefix_bytes }
    }

    /// The prefixes it tracks, if it tracks prefixes.
    pub fn prefixes(&self) -> Option<&BTreeSet<Box<[u8]>>> {
        match &self.mode {
            Mode::Reads(_) => None,
            Mode::Prefixes(prefixes) => Some(prefixes),
        }
    }

    /// Approximate bytes of memory held.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.prefix_bytes
    }

    /// The field `redir` of CLIENT LIST: 0 without another client.
    pub fn redirection(client: &Client) -> i64 {
        let tracking = client.tracking.as_deref();
        tracking.map_or(-1, |tracking| tracking.redirect.unwrap_or(0) as i64)
    }

    /// Its letters among CLIENT LIST's flags.
    pub fn letters(&self) -> impl Iterator<Item = char> {
        let broken = self.is_broken.then_some('R');
        let prefixes = self.prefixes().map(|_| 'B');
        ['t'].into_iter().chain(broken).chain(prefixes)
    }
}
