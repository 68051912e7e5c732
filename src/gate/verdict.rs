//! The decisions of the rules on a command.

use crate::acl::Denied;
use crate::error::CommandError;

/// The decision on a command.
#[derive(Debug)]
pub enum Verdict {
    Run,
    /// It is queued until EXEC.
    Queue,
    /// It and its client's later requests run later.
    Postpone,
    /// The same, when this key is no longer on its way to another server.
    Await {
        database: usize,
        key: Box<[u8]>,
    },
    Refuse(CommandError),
    /// Its user lacks the permission.
    Deny(Denied),
    /// It needs memory: evict keys, then ask again with [`Asked::room`](super::admit::Asked::room)
    /// set.
    MakeRoom,
}

impl From<CommandError> for Verdict {
    fn from(error: CommandError) -> Self {
        Verdict::Refuse(error)
    }
}
