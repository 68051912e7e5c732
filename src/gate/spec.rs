//! What a command is: the facts that `COMMAND`, key extraction, the gate's checks and the docs derive from.
//!
//! A family's file opens with its table of `spec(...)` lines, so that adding a command is that line, its handler and its
//! transcript.

pub use crate::facts::*;
use crate::gate::context::{CommandResult, Context};

/// Runs a command: parse, look up, change, reply.
pub type Handler = fn(&mut Context<'_>) -> CommandResult;

/// A command or subcommand. `name` is upper case, a subcommand's without its container.
pub struct CommandSpec {
    pub name: &'static str,
    pub handler: Option<Handler>,
    pub arity: Arity,
    pub flags: Flags,
    pub categories: Categories,
    pub keys: &'static [KeySpec],
    pub group: Group,
    pub since: &'static str,
    pub summary: &'static str,
    pub complexity: &'static str,
    /// Arguments in the notation of the command pages; `COMMAND DOCS` derives its tree from it.
    pub syntax: &'static str,
    /// Hints for proxies, such as `nondeterministic_output`.
    pub tips: &'static [&'static str],
    pub subcommands: &'static [CommandSpec],
    /// Version since which it is deprecated, and what replaces it.
    pub deprecated: Option<(&'static str, &'static str)>,
}

/// The beginning of a line in a family's table.
pub const fn spec(name: &'static str, handler: Handler) -> CommandSpec {
    CommandSpec { handler: Some(handler), ..container(name, &[]) }
}

/// A command that only has subcommands.
pub const fn container(name: &'static str, subcommands: &'static [CommandSpec]) -> CommandSpec {
    CommandSpec {
        name,
        handler: None,
        arity: Arity::AtLeast(2),
        flags: Flags::empty(),
        categories: Categories::empty(),
        keys: &[],
        group: Group::Generic,
        since: "1.0.0",
        summary: "",
        complexity: "",
        syntax: "",
        tips: &[],
        subcommands,
        deprecated: None,
    }
}

impl CommandSpec {
    pub const fn exactly(mut self, arguments: u16) -> Self {
        self.arity = Arity::Exactly(arguments);
        self
    }

    pub const fn at_least(mut self, arguments: u16) -> Self {
        self.arity = Arity::AtLeast(arguments);
        self
    }

    pub const fn flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    /// These flags besides those there are.
    pub const fn with(mut self, flags: Flags) -> Self {
        self.flags = self.flags.union(flags);
        self
    }

    pub const fn categories(mut self, categories: Categories) -> Self {
        self.categories = categories;
        self
    }

    pub const fn keys(mut self, keys: &'static [KeySpec]) -> Self {
        self.keys = keys;
        self
    }

    pub const fn group(mut self, group: Group) -> Self {
        self.group = group;
        self
    }

    pub const fn since(mut self, since: &'static str) -> Self {
        self.since = since;
        self
    }

    /// Arguments as on the command's page, one sentence, and the cost.
    pub const fn docs(
        mut self,
        syntax: &'static str,
        summary: &'static str,
        complexity: &'static str,
    ) -> Self {
        self.syntax = syntax;
        self.summary = summary;
        self.complexity = complexity;
        self
    }

    pub const fn tips(mut self, tips: &'static [&'static str]) -> Self {
        self.tips = tips;
        self
    }

    pub const fn subcommands(mut self, subcommands: &'static [CommandSpec]) -> Self {
        self.subcommands = subcommands;
        self
    }

    pub const fn deprecated(mut self, since: &'static str, instead: &'static str) -> Self {
        self.deprecated = Some((since, instead));
        self
    }

    /// Whether a request of this many arguments fits.
    #[inline]
    pub fn accepts(&self, arguments: usize) -> bool {
        match self.arity {
            Arity::Exactly(n) => arguments == n as usize,
            Arity::AtLeast(n) => arguments >= n as usize,
        }
    }
}
