//! The specification of a command, from which `COMMAND`, key extraction, the gate's checks and the
//! docs are derived.
//!
//! A family's file opens with its table, two lines a command: what the server needs, and what the
//! documentation says. So a new command is an entry, its handler and its transcript.

pub use crate::facts::*;
use crate::state::context::{CommandResult, Context};

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
    /// The rule that the key specifications cannot express.
    pub key_rule: KeyRule,
    /// The arguments that are channels for publishing or subscribing.
    pub channels: Option<Channels>,
    /// The databases that the command uses.
    pub databases: DatabaseUse,
    /// Which arguments MONITOR and logs hide.
    pub secrets: Secrets,
    pub group: Group,
    /// The version of Redis or Valkey that added it. For a command of Latchkey alone, Latchkey's
    /// version.
    pub since: &'static str,
    pub summary: &'static str,
    pub complexity: &'static str,
    /// Arguments in the notation of the command pages; `COMMAND DOCS` derives its tree from it.
    pub syntax: &'static str,
    /// Hints for proxies, such as `nondeterministic_output`.
    pub tips: &'static [&'static str],
    pub subcommands: &'static [CommandSpec],
    /// Version since which it is deprecated, and its replacement.
    pub deprecated: Option<(&'static str, &'static str)>,
}

/// Starts an entry in a family's table.
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
        key_rule: KeyRule::None,
        channels: None,
        databases: DatabaseUse::Selected,
        secrets: Secrets::None,
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

    /// Adds flags.
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

    /// The rule that the key specifications cannot express.
    pub const fn key_rule(mut self, rule: KeyRule) -> Self {
        self.key_rule = rule;
        self
    }

    /// Arguments from `first` on are channels: only that one, or with `many` all.
    pub const fn channels(mut self, first: usize, many: bool) -> Self {
        self.channels = Some(Channels { first, many, are_patterns: false });
        self
    }

    /// All arguments from the first on are channel patterns.
    pub const fn channel_patterns(mut self) -> Self {
        self.channels = Some(Channels { first: 1, many: true, are_patterns: true });
        self
    }

    pub const fn databases(mut self, databases: DatabaseUse) -> Self {
        self.databases = databases;
        self
    }

    pub const fn secrets(mut self, secrets: Secrets) -> Self {
        self.secrets = secrets;
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

    /// Arguments in the notation of the command's page, one sentence, and the complexity.
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

/// A command's ACL categories: those of its specification, and those that follow from flags and
/// group.
pub fn all_categories(spec: &CommandSpec) -> Categories {
    let mut classes = spec.categories;
    // Containers have no such categories, because they do nothing themselves.
    if spec.handler.is_some() {
        classes |= match spec.group {
            // SORT and WAIT are in the group "generic", but state other categories for the data
            // that they use.
            Group::Generic if spec.categories.intersects(NOT_GENERIC) => Categories::empty(),
            Group::Generic => Categories::KEYSPACE,
            Group::String => Categories::STRING,
            Group::List => Categories::LIST,
            Group::Set => Categories::SET,
            Group::SortedSet => Categories::SORTEDSET,
            Group::Hash => Categories::HASH,
            Group::Transactions => Categories::TRANSACTION,
            Group::Connection => Categories::CONNECTION,
            Group::Scripting => Categories::SCRIPTING,
            Group::HyperLogLog => Categories::HYPERLOGLOG,
            Group::Geo => Categories::GEO,
            Group::Stream => Categories::STREAM,
            Group::Bitmap => Categories::BITMAP,
            Group::Lock => Categories::LOCK,
            Group::PubSub | Group::Server | Group::Cluster => Categories::empty(),
        };
    }
    for (flag, class) in [
        (Flags::WRITE, Categories::WRITE),
        (Flags::ADMIN, Categories::ADMIN.union(Categories::DANGEROUS)),
        (Flags::PUBSUB, Categories::PUBSUB),
        (Flags::FAST, Categories::FAST),
        (Flags::BLOCKING, Categories::BLOCKING),
    ] {
        if spec.flags.contains(flag) {
            classes |= class;
        }
    }
    // A read-only script may still be slow or dangerous in other ways.
    if spec.flags.contains(Flags::READONLY) && !classes.contains(Categories::SCRIPTING) {
        classes |= Categories::READ;
    }
    if !classes.contains(Categories::FAST) {
        classes |= Categories::SLOW;
    }
    classes
}

const NOT_GENERIC: Categories = Categories::SET
    .union(Categories::SORTEDSET)
    .union(Categories::LIST)
    .union(Categories::CONNECTION);
