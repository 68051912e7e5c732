//! The questions to the rules about a command, and the decisions.

use crate::acl::Denied;
use crate::error::CommandError;
use crate::gate::evict::Room;
use crate::keyspace::DbIndex;
use crate::resp::args::Args;
use crate::resp::reply::Protocol;
use crate::state::context::Caller;
use crate::state::table::Command;

/// The decision on a command.
#[derive(Debug)]
pub enum Verdict {
    Run,
    /// It is queued until EXEC.
    Queue,
    /// The command and its client's later requests run later.
    Postpone,
    /// They run when this key is no longer on its way to another server.
    Await {
        database: DbIndex,
        key: Box<[u8]>,
    },
    Refuse(CommandError),
    /// Its user lacks the permission.
    Deny(Denied),
    /// The command needs memory: evict keys, then ask again with [`Asked::room`] set.
    MakeRoom,
}

impl From<CommandError> for Verdict {
    fn from(error: CommandError) -> Self {
        Verdict::Refuse(error)
    }
}

/// A command to be admitted. It exists, and its arguments fit its arity.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub caller: Caller,
    pub command: &'static Command,
    pub args: Args<'a>,
    pub protocol: Protocol,
    /// The result of evicting keys for it; None: not tried yet.
    pub room: Option<Room>,
}
