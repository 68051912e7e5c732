//! Elements and permits that were handed to clients whose replies have not left yet.
//!
//! A client may be closed before its reply is sent: by CLIENT KILL, by its user's deletion, by a
//! limit that its own reply exceeds. It will never learn of what it was handed, which is then put
//! back (`gate/handed.rs`). Grants of locks have a list of their own, in the index of locks.

use crate::client::ClientId;
use crate::client::blocked::Blocked;
use crate::clock::Deadline;
use crate::keyspace::DbIndex;
use crate::resp::reply::OutputBuffer;

/// Permits on their way from which those that were given back are dropped.
const PERMITS_MIN: usize = 1024;

/// A client's reply that is on its way, and what it hands over.
pub struct Handed {
    pub client: ClientId,
    /// The client's count of sent bytes when the reply has left; None: not known yet.
    pub sent_at: Option<u64>,
    pub what: What,
}

pub enum What {
    /// A blocked client was served. Its request and reply, which show the elements, are kept as
    /// they are: that costs a wait nothing.
    Served {
        blocked: Box<Blocked>,
        reply: OutputBuffer,
        /// The deadline of the key before the client was served.
        deadline: Option<Deadline>,
    },
    /// New permits of a semaphore.
    Permits { database: DbIndex, key: Box<[u8]>, permits: Vec<Box<[u8]>> },
}

/// What is on its way.
#[derive(Default)]
pub struct OnTheWay {
    all: Vec<Handed>,
    /// The length at which permits that are no longer held are dropped.
    permits_max: usize,
}

impl OnTheWay {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn push(&mut self, handed: Handed) {
        self.all.push(handed);
    }

    pub fn take(&mut self) -> Vec<Handed> {
        std::mem::take(&mut self.all)
    }

    /// Puts back what stays on its way, before anything that has been added since.
    pub fn give(&mut self, mut kept: Vec<Handed>) {
        kept.append(&mut self.all);
        self.all = kept;
    }

    /// Whether [`Self::retain_permits`] is due: a script may take and release permits without end.
    pub fn has_many(&self) -> bool {
        self.all.len() >= self.permits_max.max(PERMITS_MIN)
    }

    /// Keeps the permits for which `keep` returns true. Another client may have asked for some of
    /// them again: that one knows of them.
    pub fn retain_permits(&mut self, keep: impl Fn(ClientId, DbIndex, &[u8], &[u8]) -> bool) {
        self.all.retain_mut(|handed| match &mut handed.what {
            What::Permits { database, key, permits } => {
                permits.retain(|permit| keep(handed.client, *database, key, permit));
                !permits.is_empty()
            }
            What::Served { .. } => true,
        });
        self.permits_max = 2 * self.all.len();
    }
}
