//! A request, the context in which it runs, and the outcome for its sender.

use crate::client::waits::{Answer, Wait};
use crate::ids::CommandId;
use crate::resp::args::Args;
use crate::resp::reply::ReplyWriter;
use crate::state::Core;
use crate::state::context::{Caller, Origin};
use crate::state::table::Command;

/// A parsed request on its way to the handler.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub args: Args<'a>,
    /// The command; until the gate has looked further, the container of a subcommand, or
    /// `CommandTable::unknown`.
    pub command: &'static Command,
    /// The hashes of the keys at fixed positions, as far as they were prefetched.
    pub hashes: &'a [u64],
    pub origin: Origin,
}

impl<'a> Request<'a> {
    /// A request whose keys were not prefetched.
    pub fn new(command: &'static Command, args: Args<'a>, origin: Origin) -> Self {
        Request { args, command, hashes: &[], origin }
    }
}

/// The result of a request, for its sender.
#[derive(Debug)]
#[must_use = "a wait has to be begun"]
pub enum Ran {
    /// The reply is complete, or there is none by design.
    Done,
    /// The reply is complete. The request's changes are many, and are passed on before the next
    /// request.
    DoneMuch,
    /// The request did not run. It and the client's later requests wait until the server resumes
    /// the client.
    NotYet,
    /// The request has run; the client's later requests wait until the server resumes it.
    Suspended,
    /// The request has run or is to run again. Its sender begins the wait.
    Waits(Box<Wait>),
    /// The connection is closed once the reply is sent.
    Closes,
}

impl Ran {
    pub fn has_run(&self) -> bool {
        !matches!(self, Ran::NotYet)
    }

    /// Whether the client's later requests wait for this one's reply.
    pub fn blocks(&self) -> bool {
        match self {
            Ran::Suspended => true,
            Ran::Waits(wait) => wait.answer == Answer::Reply,
            Ran::Done | Ran::DoneMuch | Ran::NotYet | Ran::Closes => false,
        }
    }
}

/// Everything that a running command needs: borrowed for one or a few requests.
pub struct Gate<'a> {
    /// The keyspace, with the caller's database selected.
    pub core: &'a mut Core,
    pub caller: Caller,
    pub reply: ReplyWriter<'a>,
    /// A command that has run for a client, and is not counted there yet: the sender of the request
    /// has to look the client up anyway.
    pub uncounted: Option<CommandId>,
}

impl<'a> Gate<'a> {
    pub fn new(core: &'a mut Core, caller: Caller, reply: ReplyWriter<'a>) -> Self {
        Gate { core, caller, reply, uncounted: None }
    }
}
