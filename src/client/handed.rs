//! Elements and permits that were handed to clients whose replies have not left yet.
//!
//! A client may be closed before its reply is sent: by CLIENT KILL, by its user's deletion, by a
//! limit that its own reply exceeds. It will never learn of what it was handed, which is then put
//! back (`gate/handed.rs`). Grants of locks have a list of their own, in the index of locks.

use crate::client::ClientId;
use crate::client::waits::Wait;
use crate::clock::Deadline;
use crate::keyspace::DbIndex;
use crate::keyspace::permits::PermitSession;
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
        wait: Box<Wait>,
        reply: OutputBuffer,
        /// The deadline of the key before the client was served.
        deadline: Option<Deadline>,
    },
    /// New permits of a semaphore.
    Permits { database: DbIndex, key: Box<[u8]>, permits: Vec<Box<[u8]>> },
    /// Permits that their owner held already.
    Renewed(Box<Renewed>),
}

/// A request of an owner has renewed the permits that it held, and perhaps their session.
pub struct Renewed {
    pub database: DbIndex,
    pub key: Box<[u8]>,
    pub owner: Box<[u8]>,
    pub permits: Vec<RenewedPermit>,
    /// The former session, if the request has begun another one.
    pub session: Option<Option<PermitSession>>,
}

/// A permit with its deadlines before and after the request, in Unix milliseconds.
pub struct RenewedPermit {
    pub permit: Box<[u8]>,
    pub before_ms: f64,
    pub after_ms: f64,
}

impl Renewed {
    fn is_of(&self, session: &PermitSession) -> bool {
        let PermitSession { database, key, owner, .. } = session;
        self.database == *database && self.key == *key && self.owner == *owner
    }
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

    /// Adds what a client's request has renewed, to what its earlier ones have in this turn.
    pub fn push_renewed(&mut self, client: ClientId, new: Box<Renewed>) {
        let earlier = self.all.iter_mut().find_map(|handed| match &mut handed.what {
            What::Renewed(earlier) => {
                let is_same = handed.client == client
                    && handed.sent_at.is_none()
                    && (earlier.database, &earlier.key, &earlier.owner)
                        == (new.database, &new.key, &new.owner);
                is_same.then_some(earlier)
            }
            _ => None,
        });
        let Some(earlier) = earlier else {
            return self.push(Handed { client, sent_at: None, what: What::Renewed(new) });
        };
        let Renewed { permits, session, .. } = *new;
        for one in permits {
            match earlier.permits.iter_mut().find(|known| known.permit == one.permit) {
                Some(known) => known.after_ms = one.after_ms,
                None => earlier.permits.push(one),
            }
        }
        earlier.session = earlier.session.take().or(session);
    }

    pub fn take(&mut self) -> Vec<Handed> {
        std::mem::take(&mut self.all)
    }

    /// Puts back what stays on its way, before anything that has been added since.
    pub fn give(&mut self, mut kept: Vec<Handed>) {
        kept.append(&mut self.all);
        self.all = kept;
    }

    /// Whether a request that has begun this session, of permits held before, is on its way to its
    /// client.
    pub fn has_renewed(&self, session: &PermitSession) -> bool {
        self.all.iter().any(|handed| match &handed.what {
            What::Renewed(renewed) => {
                renewed.session.is_some()
                    && session.client == Some(handed.client)
                    && renewed.is_of(session)
            }
            _ => false,
        })
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
            What::Renewed(renewed) => {
                let Renewed { database, key, permits, .. } = &mut **renewed;
                permits.retain(|one| keep(handed.client, *database, key, &one.permit));
                !permits.is_empty()
            }
            What::Served { .. } => true,
        });
        self.permits_max = 2 * self.all.len();
    }
}
