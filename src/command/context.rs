//! What a handler gets: the keyspace, the server's other state, the request, and where to reply.

use super::args::Args;
use super::table::Command;
use std::ops::Range;

use crate::client::{Client, ClientId};
use crate::error::CommandError;
use crate::keyspace::waiting::Wanted;
use crate::keyspace::{Key, Keyspace};
use crate::resp::reply::ReplyWriter;
use crate::state::State;

/// What a handler says when it is done. An error is written as the reply by the gate.
pub type CommandResult = Result<Outcome, CommandError>;

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The reply is complete (or there is none by design).
    Replied,
    /// The client stops here: this command and all behind it wait until the server resumes the client.
    Postponed,
    /// The reply is complete, and the client's further commands wait until the server resumes it.
    Suspended,
    /// There is no reply yet: the client waits for what [`Context::block`] was told.
    Blocked,
    /// The connection ends once the reply is sent.
    Close,
}

/// Who asks for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client, by its request.
    Client,
    /// EXEC, which the client has asked for: nothing in it waits.
    Transaction,
    /// A script that a client runs: nothing in it waits.
    Script,
    /// A client that was blocked: the key in this argument has changed, or its time has come.
    Woken(usize),
}

/// What is answered when nothing came in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutReply {
    Null,
    NullArray,
}

impl TimeoutReply {
    pub fn write(self, reply: &mut ReplyWriter<'_>) {
        match self {
            TimeoutReply::Null => reply.null(),
            TimeoutReply::NullArray => reply.null_array(),
        }
    }
}

/// What a command waits for.
#[derive(Debug)]
pub struct Wait {
    pub wanted: Wanted,
    /// The arguments that are the keys.
    pub keys: Range<usize>,
    /// Boot-time clock, microseconds; None: as long as it takes.
    pub deadline_us: Option<i64>,
    pub on_timeout: TimeoutReply,
    /// The request to run when a key is ready, if it is not the one that was sent; the keys stand in the same places.
    pub rewritten: Option<Vec<Vec<u8>>>,
}

/// One command being run.
pub struct Context<'a> {
    /// The keyspace, with the client's database selected.
    pub db: &'a mut Keyspace,
    /// Everything else the server owns.
    pub server: &'a mut State,
    pub reply: ReplyWriter<'a>,
    pub args: Args<'a>,
    pub command: &'static Command,
    pub client: ClientId,
    pub prehashed: Prehashed<'a>,
    pub origin: Origin,
    /// Set by [`Context::block`].
    pub wait: Option<Wait>,
}

/// Elements that a script may have one command draw with repetition, and bytes of them: a command is not interrupted, and
/// these are not bounded by what is there.
const SCRIPT_DRAWS_MAX: u64 = 100_000;
const SCRIPT_DRAWN_BYTES_MAX: usize = 16 << 20;
const TOO_MANY_DRAWS: CommandError =
    CommandError::Text("ERR a script may draw at most 100000 elements with repetition at once");

/// The hashes of a request's keys, computed while they were prefetched.
#[derive(Clone, Copy, Default)]
pub struct Prehashed<'a> {
    /// Argument of the first hash; the next ones follow every `step` arguments.
    pub first: usize,
    pub step: usize,
    pub hashes: &'a [u64],
}

impl Prehashed<'_> {
    /// The hash of argument `index`, if it is known.
    #[inline]
    fn get(&self, index: usize) -> Option<u64> {
        let distance = index.wrapping_sub(self.first);
        match self.step {
            1 => self.hashes.get(distance).copied(),
            2 if distance.is_multiple_of(2) => self.hashes.get(distance / 2).copied(),
            _ => None,
        }
    }
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

    /// Leaves the client waiting. A woken command that is not served waits on with its place and its time; its new wait is
    /// of no account.
    /// In a transaction or a script the answer is that of a timeout.
    pub fn block(&mut self, wait: Wait) -> CommandResult {
        if matches!(self.origin, Origin::Transaction | Origin::Script) {
            wait.on_timeout.write(&mut self.reply);
            return Ok(Outcome::Replied);
        }
        self.wait = Some(wait);
        Ok(Outcome::Blocked)
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

    /// The client that runs this command.
    pub fn client(&mut self) -> &mut Client {
        self.server.clients.get_mut(self.client).expect("a client outlives the command it runs")
    }

    /// The error for a subcommand that takes fewer arguments than its arity lets through.
    pub fn wrong_subcommand(&self) -> CommandError {
        let container = self.command.parent.map(|id| &self.server.commands.commands[id as usize]);
        let mut text = b"ERR unknown subcommand or wrong number of arguments for '".to_vec();
        text.extend_from_slice(self.args.get(1));
        text.extend_from_slice(b"'. Try ");
        text.extend_from_slice(container.map_or("", |container| container.spec.name).as_bytes());
        text.extend_from_slice(b" HELP.");
        CommandError::formatted(text)
    }

    /// The command's name in lower case, as error texts quote it.
    pub fn name(&self) -> &'static str {
        &self.command.full_name
    }
}
