//! How a client tracks the keys it holds copies of.

use std::collections::BTreeSet;

use crate::client::Client;

/// Which keys a client tracks.
#[derive(Debug)]
pub enum Mode {
    /// Those it reads.
    Reads(Choice),
    /// Those that begin so.
    Prefixes(BTreeSet<Box<[u8]>>),
}

/// Which reads count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    All,
    /// Those behind CLIENT CACHING YES.
    OptIn,
    /// All but those behind CLIENT CACHING NO.
    OptOut,
}

/// How a client tracks keys.
#[derive(Debug)]
pub struct ClientTracking {
    pub mode: Mode,
    /// Number of the client that gets the messages instead.
    pub redirect: Option<u64>,
    /// A message was not sent since that client was gone.
    pub is_broken: bool,
    /// What the client changes itself does not concern it.
    pub no_loop: bool,
}

impl ClientTracking {
    /// The prefixes it tracks, if it tracks prefixes.
    pub fn prefixes(&self) -> Option<&BTreeSet<Box<[u8]>>> {
        match &self.mode {
            Mode::Reads(_) => None,
            Mode::Prefixes(prefixes) => Some(prefixes),
        }
    }

    /// Bytes of memory held, about.
    pub fn memory(&self) -> usize {
        let prefixes = self.prefixes().into_iter().flatten();
        size_of::<Self>()
            + prefixes.map(|prefix| prefix.len() + 2 * size_of::<usize>()).sum::<usize>()
    }

    /// What CLIENT LIST shows as `redir`: 0 for no other client.
    pub fn redirection(client: &Client) -> i64 {
        let tracking = client.tracking.as_deref();
        tracking.map_or(-1, |tracking| tracking.redirect.unwrap_or(0) as i64)
    }

    /// The letters it adds to the flags of CLIENT LIST.
    pub fn letters(&self) -> impl Iterator<Item = char> {
        let broken = self.is_broken.then_some('R');
        let prefixes = self.prefixes().map(|_| 'B');
        ['t'].into_iter().chain(broken).chain(prefixes)
    }
}
