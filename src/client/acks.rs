//! Acknowledgements by replicas for which clients wait: of earlier writes (WAIT, WAITAOF), and of
//! grants of locks.

use crate::keyspace::locks::Former;
use crate::persist::aof::log::LogOffset;
use crate::resp::reply::ReplyWriter;

/// The number of replicas that must acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// A fixed number of replicas.
    Count(i64),
    /// All that could be promoted: the connected ones, but at least `wait-all-replicas`.
    All,
}

/// The offset of writes that no replica will ever acknowledge.
pub const LOST: u64 = u64::MAX;

/// The wait of WAIT and WAITAOF for replicas that acknowledge an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcksAwaited {
    /// The replication offset; [`LOST`] if a full synchronisation has discarded the writes.
    pub offset: u64,
    pub replicas: Replicas,
    /// For WAITAOF: replicas must have the offset on disk.
    pub on_disk: Option<OnDisk>,
}

/// The part of WAITAOF that concerns this server's own AOF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDisk {
    /// The log offset to be on disk.
    pub logged: LogOffset,
    /// Whether to wait for this server's disk.
    pub here_too: bool,
}

/// The demand of a LOCK command: replicas must have acknowledged its effects before the reply
/// leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcksAsked {
    /// The number of replicas; at least 1.
    pub replicas: i64,
    /// The longest wait for them. Unit: milliseconds.
    pub ms: i64,
}

/// The reply that a LOCK command gets once replicas have acknowledged its effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// LOCK.ACQUIRE: fence, holds, and the milliseconds left when the reply is sent.
    Lock { holds: i64 },
    /// LOCK.MACQUIRE: fence, and the milliseconds left when the reply is sent.
    Locks,
    /// LOCK.RENEW: the fences.
    Renewal(Vec<i64>),
}

/// A grant or renewal that replicas have to acknowledge, or that a push message announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number of replicas that must acknowledge its offset in the stream.
    pub replicas: i64,
    pub offset: u64,
    pub keys: Vec<Box<[u8]>>,
    pub owner: Box<[u8]>,
    /// The fence of the grant; 0 for a renewal.
    pub fence: u64,
    pub confirmed: Confirmed,
    /// The keys that this request has newly locked. They are unlocked again if too few replicas
    /// acknowledge.
    pub taken: Vec<Box<[u8]>>,
    /// Whether this request has counted one more hold, which is then taken back too.
    pub counted_hold: bool,
    /// The locks whose fences this request has replaced, which then get their former ones.
    pub former: Vec<(Box<[u8]>, Box<Former>)>,
}

impl Grant {
    /// The grant with this fence, which has locked no key that was free, nor counted a hold.
    pub fn of(fence: u64, confirmed: Confirmed) -> Self {
        Grant {
            replicas: 0,
            offset: 0,
            keys: Vec::new(),
            owner: Box::default(),
            fence,
            confirmed,
            taken: Vec::new(),
            counted_hold: false,
            former: Vec::new(),
        }
    }

    /// Writes the reply.
    pub fn write_reply(&self, reply: &mut ReplyWriter<'_>, ms_left: i64) {
        match &self.confirmed {
            Confirmed::Lock { holds } => {
                reply.array(3);
                reply.integer(self.fence as i64);
                reply.integer(*holds);
                reply.integer(ms_left);
            }
            Confirmed::Locks => {
                reply.array(2);
                reply.integer(self.fence as i64);
                reply.integer(ms_left);
            }
            Confirmed::Renewal(fences) => {
                reply.array(fences.len());
                fences.iter().for_each(|fence| reply.integer(*fence));
            }
        }
    }

    /// Writes the push `lock-granted key owner fence holds ms-left`. Of LOCK.MACQUIRE, `key` is an
    /// array.
    pub fn write_push(&self, push: &mut ReplyWriter<'_>, ms_left: i64) {
        let keys: Vec<&[u8]> = self.keys.iter().map(|key| &**key).collect();
        let (holds, is_array) = match self.confirmed {
            Confirmed::Lock { holds } => (holds, false),
            Confirmed::Locks | Confirmed::Renewal(_) => (1, true),
        };
        push.push(6);
        push.bulk(b"lock-granted");
        write_keys(push, &keys, is_array);
        push.bulk(&self.owner);
        push.integer(self.fence as i64);
        push.integer(holds);
        push.integer(ms_left);
    }
}

/// One key as a string, several as an array.
pub fn write_keys(push: &mut ReplyWriter<'_>, keys: &[&[u8]], is_array: bool) {
    if is_array {
        push.array(keys.len());
    }
    keys.iter().for_each(|key| push.bulk(key));
}
