//! The context of a handler: the keyspace, the server's other state, the request, and the reply.

use crate::resp::args::Args;
use crate::state::table::Command;
use std::ops::Range;

pub use crate::client::acks::{AcksAwaited, Replicas};
use crate::client::life::Suspension;
pub use crate::client::waits::On;
use crate::client::waits::{Answer, NEVER, ScatteredKeys, Wait};
use crate::client::{Client, ClientId};
use crate::error::CommandError;
use crate::keyspace::Key;
use crate::keyspace::waiting::Wanted;
use crate::resp::owned::OwnedRequest;
use crate::resp::reply::ReplyWriter;
use crate::state::{Core, State};

/// A handler's result. The gate writes an error as the reply.
pub type CommandResult = Result<Outcome, CommandError>;

/// The wait of a command for a key's change.
pub struct WaitForKeys {
    pub wanted: Wanted,
    /// The indices of the key arguments.
    pub keys: Range<usize>,
    /// Those of keys elsewhere in the request.
    pub others: Vec<usize>,
    /// Boot-time clock, microseconds; None: no timeout.
    pub deadline_us: Option<i64>,
    /// The request to run when a key is ready, if it differs from the sent one; its keys have the
    /// same indices.
    pub rewritten: Option<OwnedRequest>,
    /// How long the place is kept while the client is away; None: not at all.
    pub grace_ms: Option<i64>,
    /// Whether the client waits at the head of the queues, before the order of arrival.
    pub is_first: bool,
}

impl WaitForKeys {
    /// A wait in the order of arrival, with the request as it was sent.
    pub fn new(wanted: Wanted, keys: Range<usize>, deadline_us: Option<i64>) -> Self {
        let others = Vec::new();
        let (rewritten, grace_ms, is_first) = (None, None, false);
        WaitForKeys { wanted, keys, others, deadline_us, rewritten, grace_ms, is_first }
    }
}

/// The outcome of a command.
#[derive(Debug)]
pub enum Outcome {
    /// The reply is complete (or there is none by design).
    Replied,
    /// The command did not run. It and the client's later requests wait until the server resumes
    /// the client.
    Postponed,
    /// The reply is complete; the client's further requests wait until the server resumes it.
    Suspended,
    /// The client waits, for a reply or a push message. The command replies now only if a push
    /// message comes later.
    Waits(Box<Wait>),
    /// A woken command still has nothing to reply: the client keeps its place and its deadline.
    WaitsOn,
    /// The connection is closed once the reply is sent.
    Close,
}

/// The sender of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    Client(ClientId),
    /// A file being loaded: full rights, replies are discarded.
    Load,
    /// The primary that this server follows: full rights, replies are discarded.
    Primary,
}

impl Caller {
    /// The client's ID, if the caller is a client.
    #[inline]
    pub fn client(self) -> Option<ClientId> {
        match self {
            Caller::Client(id) => Some(id),
            Caller::Load | Caller::Primary => None,
        }
    }

    /// Whether the caller's requests are effects that have happened before, in an earlier process
    /// or at the primary. They are exact, and trusted: no limit, permission or state of this server
    /// may refuse one, because the data would then differ.
    #[inline]
    pub fn is_repeating(self) -> bool {
        matches!(self, Caller::Load | Caller::Primary)
    }
}

/// The limits of a command's data, in bytes. The configured limits are for clients: a permitted
/// request is in the AOF and goes to replicas, and must have the same effect there under any
/// configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeLimits {
    /// A string. Source: `proto-max-bulk-len`.
    pub string: u64,
    /// The source of a script or library. Source: `script-source-limit`.
    pub script_source: usize,
    /// The memory of a script. Source: `script-memory-limit`.
    pub script_memory: usize,
}

impl SizeLimits {
    /// The limits for files and the primary: larger than any client can reach.
    const TRUSTED: Self =
        SizeLimits { string: 1 << 40, script_source: 1 << 40, script_memory: 1 << 40 };

    /// The limits of a caller.
    pub fn of(state: &State, caller: Caller) -> Self {
        let config = &state.config;
        let configured = SizeLimits {
            string: config.proto_max_bulk_len,
            script_source: config.script_source_limit as usize,
            script_memory: config.script_memory_limit as usize,
        };
        match caller {
            Caller::Client(_) => configured,
            Caller::Load | Caller::Primary => SizeLimits {
                string: configured.string.max(Self::TRUSTED.string),
                script_source: configured.script_source.max(Self::TRUSTED.script_source),
                script_memory: configured.script_memory.max(Self::TRUSTED.script_memory),
            },
        }
    }
}

/// The way by which a command came to the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// As a request of its caller.
    Client,
    /// From EXEC. The command must not block.
    Transaction,
    /// From a client's script. The command must not block.
    Script,
    /// From the primary's stream, which marks the ends of units. The command must not block.
    Stream,
    /// From a blocked client that is woken: the key in this argument has changed or its alarm is
    /// due.
    Woken(usize),
    /// From a blocked client whose deadline has passed, for a command whose reply is then more than
    /// a null array.
    TimedOut,
}

/// The effect of a changing command on the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// The request as it was sent.
    #[default]
    AsSent,
    /// The request as it was sent, even if it changed nothing.
    Forced,
    /// The requests given to [`Context::instead`].
    Instead,
    /// The requests given to [`Context::instead_of`], although the count of changes is the same.
    Hint,
    /// Nothing: the commands that this one ran were replicated themselves, or no other server needs
    /// to know.
    Nothing,
}

/// Limits of random elements, and of their bytes, that one command of a script may draw with
/// repetition. The command cannot be interrupted, and the collection's size does not bound its
/// reply.
const SCRIPT_DRAWS_MAX: u64 = 100_000;
const SCRIPT_DRAWN_BYTES_MAX: usize = 16 << 20;
const TOO_MANY_DRAWS: CommandError =
    CommandError::Text("ERR a script may draw at most 100000 elements with repetition at once");

/// One command being run.
pub struct Context<'a> {
    /// The keyspace, with the client's database selected.
    pub core: &'a mut Core,
    pub reply: ReplyWriter<'a>,
    pub args: Args<'a>,
    pub command: &'static Command,
    pub caller: Caller,
    /// The hashes of the keys at fixed positions, as far as they are known.
    pub hashes: &'a [u64],
    pub origin: Origin,
    /// The requests for the append-only file and replicas.
    pub effect: Effect,
}

impl<'a> Context<'a> {
    /// Argument `index` as a key.
    #[inline]
    pub fn key(&self, index: usize) -> Key<'a> {
        let bytes = self.args.get(index);
        let known = self.command.fixed_keys.hash_of(index, self.hashes);
        let hash = known.unwrap_or_else(|| self.core.keyspace.hash(bytes));
        debug_assert_eq!(
            hash,
            self.core.keyspace.hash(bytes),
            "a hash made ahead is the argument's"
        );
        Key { bytes, hash }
    }

    /// The arguments among `keys` that a blocking command tries: all, or the one that woke it.
    pub fn keys_to_try(&self, keys: Range<usize>) -> Range<usize> {
        match self.origin {
            Origin::Woken(key) => key..key + 1,
            Origin::Client
            | Origin::Transaction
            | Origin::Script
            | Origin::Stream
            | Origin::TimedOut => keys,
        }
    }

    /// The limits of the command's data.
    pub fn size_limits(&self) -> SizeLimits {
        SizeLimits::of(&self.core.state, self.caller)
    }

    /// Whether the command may block: not in a transaction or script, nor without a client.
    pub fn may_wait(&self) -> bool {
        let has_client = self.caller.client().is_some();
        has_client && matches!(self.origin, Origin::Client | Origin::Woken(_))
    }

    /// Blocks the client. A woken command that is not served keeps its place and deadline; its new
    /// wait is ignored. If blocking is not allowed, the reply is that of a timeout, a null array.
    pub fn block(&mut self, wait: WaitForKeys) -> CommandResult {
        match self.origin {
            Origin::Client if self.caller.client().is_some() => {
                Ok(Outcome::Waits(self.wait_for_keys(wait, Answer::Reply)))
            }
            Origin::Woken(_) => Ok(Outcome::WaitsOn),
            Origin::Client
            | Origin::Transaction
            | Origin::Script
            | Origin::Stream
            | Origin::TimedOut => {
                self.reply.null_array();
                Ok(Outcome::Replied)
            }
        }
    }

    /// The calling client's wait for keys without being blocked. A client that already waits for
    /// them, for the same owner, keeps its place. None: the client has no place, and no further one
    /// may wait (`is_full`). Only for commands of clients.
    pub fn wait_without_blocking(&mut self, wait: WaitForKeys, is_full: bool) -> Option<Box<Wait>> {
        let (wanted, names) = (wait.wanted, self.names(wait.keys.clone()));
        let names = (self.core.keyspace.selected(), &*names);
        let own = self.core.state.waits.find(self.caller.client(), wanted, names);
        if own.is_none() && is_full {
            return None;
        }
        let mut wait = self.wait_for_keys(wait, Answer::Push);
        wait.ticket = own.unwrap_or(wait.ticket);
        Some(wait)
    }

    /// The names of keys, and the argument after them: the owner of locks.
    pub fn names(&self, keys: Range<usize>) -> Vec<&'a [u8]> {
        self.args.iter_from(keys.start).take(keys.len() + 1).collect()
    }

    fn wait_for_keys(&mut self, wait: WaitForKeys, answer: Answer) -> Box<Wait> {
        let WaitForKeys { wanted, keys, others, deadline_us, rewritten, grace_ms, is_first } = wait;
        let together = keys.start as u32..keys.end as u32;
        let on = match others.is_empty() {
            true => On::Keys(together),
            false => {
                let others = others.into_iter().map(|index| index as u32).collect();
                On::ScatteredKeys(Box::new(ScatteredKeys { together, others }))
            }
        };
        let mut wait = self.wait(wanted, on, deadline_us);
        wait.answer = answer;
        wait.grace_ms = grace_ms.unwrap_or(0);
        wait.request = rewritten.unwrap_or_else(|| OwnedRequest::new(self.args.iter_from(0)));
        if is_first {
            wait.ticket = self.core.keyspace.waiting.next_ticket(wanted, true);
        }
        if grace_ms.is_some() && self.core.state.waits.has_kept() {
            let names = (wait.database, &*self.names(keys));
            let kept = self.core.state.waits.take_kept(wanted, names);
            wait.ticket = kept.unwrap_or(wait.ticket);
        }
        wait
    }

    /// The calling client's wait, for which it is blocked and after which the command does not run
    /// again. Only for commands of clients.
    pub fn wait(&mut self, wanted: Wanted, on: On, deadline_us: Option<i64>) -> Box<Wait> {
        Box::new(Wait {
            ticket: self.core.keyspace.waiting.next_ticket(wanted, false),
            client: self.client_id(),
            on,
            answer: Answer::Reply,
            command: self.command.id,
            database: self.core.keyspace.selected(),
            deadline_us: deadline_us.unwrap_or(NEVER),
            since_us: self.core.state.now.boot_us,
            grace_ms: 0,
            request: OwnedRequest::default(),
        })
    }

    /// Checks a number of random elements to be drawn with repetition. Errors: a script asks for
    /// too many. Also limits the bytes of a script's reply.
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

    /// Whether the command has run before: see [`Caller::is_repeating`].
    #[inline]
    pub fn is_repeated(&self) -> bool {
        self.caller.is_repeating()
    }

    /// Suspends the calling client, whose request is to run again later. None: it cannot wait, as
    /// in a script or a transaction.
    pub fn suspend_until_retry(&mut self) -> Option<ClientId> {
        let id = self.caller.client().filter(|_| self.origin == Origin::Client)?;
        self.core.state.clients.suspend(id, Suspension::UntilRetry).then_some(id)
    }

    /// The caller's client ID. Only for commands with `Flags::NEEDS_CLIENT`.
    #[inline]
    pub fn client_id(&self) -> ClientId {
        self.caller.client().expect("the gate lets what needs a client run for clients alone")
    }

    /// The calling client. Only for commands with `Flags::NEEDS_CLIENT`.
    pub fn client(&mut self) -> &mut Client {
        let id = self.client_id();
        self.core.state.clients.get_mut(id).expect("a client outlives the command it runs")
    }

    /// The error for a subcommand with too few arguments that its arity lets through.
    pub fn wrong_subcommand(&self) -> CommandError {
        let container = self.command.parent.map(|id| self.core.state.commands.get(id));
        let container = container.map_or("", |container| container.spec.name);
        CommandError::wrong_subcommand(container, self.args.get(1))
    }

    /// The command's name in lower case, as error texts quote it.
    pub fn name(&self) -> &'static str {
        &self.command.full_name
    }
}
