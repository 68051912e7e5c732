//! What a handler gets: the keyspace, the server's other state, the request, and where to reply.

use crate::gate::table::Command;
use crate::resp::args::Args;
use std::ops::Range;

pub use crate::client::blocked::{AcksAwaited, Replicas, Wait};
use crate::client::{Client, ClientId};
use crate::error::CommandError;
use crate::gate::effect::Effect;
use crate::gate::state::State;
use crate::keyspace::{Key, Keyspace};
use crate::resp::args::Prehashed;
use crate::resp::reply::ReplyWriter;

/// What a handler says when it is done. An error is written as the reply by the gate.
pub type CommandResult = Result<Outcome, CommandError>;

/// What became of a command.
#[derive(Debug)]
pub enum Outcome {
    /// The reply is complete (or there is none by design).
    Replied,
    /// The client stops here: this command and all behind it wait until the server resumes the client.
    Postponed,
    /// The reply is complete, and the client's further commands wait until the server resumes it.
    Suspended,
    /// There is no reply yet: the client waits. [`Context::block`] makes this.
    Blocked(Box<Wait>),
    /// There is no reply yet: the client waits for replicas.
    AwaitsAcks(Box<AcksAwaited>),
    /// A command that was woken has still nothing to reply: the client keeps its place and its time.
    WaitsOn,
    /// The connection ends once the reply is sent.
    Close,
}

/// Who asks for commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    Client(ClientId),
    /// A file that is being loaded: with full rights, and nobody reads the replies.
    Load,
    /// The primary that this server follows: with full rights, and nobody reads the replies.
    Primary,
}

impl Caller {
    /// The client, if it is one.
    #[inline]
    pub fn client(self) -> Option<ClientId> {
        match self {
            Caller::Client(id) => Some(id),
            Caller::Load | Caller::Primary => None,
        }
    }
}

/// On which way a command has come to the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// By a request of its caller.
    Client,
    /// EXEC, which the client has asked for: nothing in it waits.
    Transaction,
    /// A script that a client runs: nothing in it waits.
    Script,
    /// A client that was blocked: the key in this argument has changed, or its time has come.
    Woken(usize),
}

/// Elements that a script may have one command draw with repetition, and bytes of them: a command is not interrupted, and
/// these are not bounded by what is there.
const SCRIPT_DRAWS_MAX: u64 = 100_000;
const SCRIPT_DRAWN_BYTES_MAX: usize = 16 << 20;
const TOO_MANY_DRAWS: CommandError =
    CommandError::Text("ERR a script may draw at most 100000 elements with repetition at once");

/// One command being run.
pub struct Context<'a> {
    /// The keyspace, with the client's database selected.
    pub db: &'a mut Keyspace,
    /// Everything else the server owns.
    pub server: &'a mut State,
    pub reply: ReplyWriter<'a>,
    pub args: Args<'a>,
    pub command: &'static Command,
    pub caller: Caller,
    pub prehashed: Prehashed<'a>,
    pub origin: Origin,
    /// What is to be repeated elsewhere.
    pub effect: Effect,
}

impl<'a> Context<'a> {
    /// Argument `index` as a key.
    #[inline]
    pub fn key(&self, index: usize) -> Key<'a> {
        let bytes = self.args.get(index);
        let hash = self.prehashed.get(index).unwrap_or_else(|| self.db.hash(bytes));
        Key { bytes, hash }
    }

    /// The arguments among `keys` that a blocking command is to try: all of them, or the one that woke it.
    pub fn keys_to_try(&self, keys: Range<usize>) -> Range<usize> {
        match self.origin {
            Origin::Woken(key) => key..key + 1,
            Origin::Client | Origin::Transaction | Origin::Script => keys,
        }
    }

    /// Whether the command may leave its client waiting: in a transaction, in a script and without a client nothing waits.
    pub fn may_wait(&self) -> bool {
        let has_client = self.caller.client().is_some();
        has_client && matches!(self.origin, Origin::Client | Origin::Woken(_))
    }

    /// Leaves the client waiting. A woken command that is not served waits on with its place and its time; its new wait is
    /// ignored. In a transaction, in a script and without a client the answer is that of a timeout, a null array.
    pub fn block(&mut self, wait: Wait) -> CommandResult {
        match self.origin {
            Origin::Client if self.caller.client().is_some() => {
                Ok(Outcome::Blocked(Box::new(wait)))
            }
            Origin::Woken(_) => Ok(Outcome::WaitsOn),
            Origin::Client | Origin::Transaction | Origin::Script => {
                self.reply.null_array();
                Ok(Outcome::Replied)
            }
        }
    }

    /// Before elements are drawn with repetition. Refuses a script that asks for too many; what it gets may be cut.
    pub fn check_draws(&mut self, count: u64) -> Result<(), CommandError> {
        if self.origin != Origin::Script {
            return Ok(());
        }
        if count > SCRIPT_DRAWS_MAX {
            return Err(TOO_MANY_DRAWS);
        }
        self.reply.output().lower_limit(SCRIPT_DRAWN_BYTES_MAX);
        Ok(())
    }

    /// The number of the client that runs this command, which is one that needs a client (`Flags::NEEDS_CLIENT`).
    #[inline]
    pub fn client_id(&self) -> ClientId {
        self.caller.client().expect("the gate lets what needs a client run for clients alone")
    }

    /// The client that runs this command, which is one that needs a client.
    pub fn client(&mut self) -> &mut Client {
        let id = self.client_id();
        self.server.clients.get_mut(id).expect("a client outlives the command it runs")
    }

    /// The error for a subcommand that takes fewer arguments than its arity lets through.
    pub fn wrong_subcommand(&self) -> CommandError {
        let container = self.command.parent.map(|id| self.server.commands.get(id));
        let container = container.map_or("", |container| container.spec.name);
        CommandError::wrong_subcommand(container, self.args.get(1))
    }

    /// The command's name in lower case, as error texts quote it.
    pub fn name(&self) -> &'static str {
        &self.command.full_name
    }
}
