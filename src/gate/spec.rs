//! What a command is: the facts that `COMMAND`, key extraction, the gate's checks and the docs derive from.
//!
//! A family's file opens with its table of `spec(...)` lines, so that adding a command is that line, its handler and its
//! transcript.

use bitflags::bitflags;

use crate::gate::context::{CommandResult, Context};

/// Runs a command: parse, look up, change, reply.
pub type Handler = fn(&mut Context<'_>) -> CommandResult;

bitflags! {
    /// What the gate and `COMMAND INFO` need to know, with the names of `COMMAND INFO`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u32 {
        const WRITE = 1 << 0;
        const READONLY = 1 << 1;
        const DENYOOM = 1 << 2;
        const ADMIN = 1 << 3;
        const PUBSUB = 1 << 4;
        const NOSCRIPT = 1 << 5;
        const BLOCKING = 1 << 6;
        const LOADING = 1 << 7;
        const STALE = 1 << 8;
        const SKIP_MONITOR = 1 << 9;
        const SKIP_SLOWLOG = 1 << 10;
        const ASKING = 1 << 11;
        const FAST = 1 << 12;
        const NO_AUTH = 1 << 13;
        const MAY_REPLICATE = 1 << 14;
        const NO_ASYNC_LOADING = 1 << 15;
        const NO_MULTI = 1 << 16;
        const MOVABLEKEYS = 1 << 17;
        const ALLOW_BUSY = 1 << 18;
        const NO_MANDATORY_KEYS = 1 << 19;
        /// The configuration must allow it: `enable-debug-command`.
        const PROTECTED = 1 << 20;
    }

    /// ACL classes that do not follow from the flags or the group.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Categories: u32 {
        const KEYSPACE = 1 << 0;
        const READ = 1 << 1;
        const WRITE = 1 << 2;
        const SET = 1 << 3;
        const SORTEDSET = 1 << 4;
        const LIST = 1 << 5;
        const HASH = 1 << 6;
        const STRING = 1 << 7;
        const BITMAP = 1 << 8;
        const HYPERLOGLOG = 1 << 9;
        const GEO = 1 << 10;
        const STREAM = 1 << 11;
        const PUBSUB = 1 << 12;
        const ADMIN = 1 << 13;
        const FAST = 1 << 14;
        const SLOW = 1 << 15;
        const BLOCKING = 1 << 16;
        const DANGEROUS = 1 << 17;
        const CONNECTION = 1 << 18;
        const TRANSACTION = 1 << 19;
        const SCRIPTING = 1 << 20;
    }

    /// What a command does with a key, with the names of the key specifications.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyFlags: u16 {
        const RO = 1 << 0;
        const RW = 1 << 1;
        const OW = 1 << 2;
        const RM = 1 << 3;
        const ACCESS = 1 << 4;
        const UPDATE = 1 << 5;
        const INSERT = 1 << 6;
        const DELETE = 1 << 7;
        const NOT_KEY = 1 << 8;
        const INCOMPLETE = 1 << 9;
        const VARIABLE_FLAGS = 1 << 10;
    }
}

/// The group of the documentation a command belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Generic,
    String,
    List,
    Set,
    SortedSet,
    Hash,
    PubSub,
    Transactions,
    Connection,
    Server,
    Scripting,
    HyperLogLog,
    Cluster,
    Geo,
    Stream,
    Bitmap,
}

/// How many arguments, the name included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    Exactly(u16),
    AtLeast(u16),
}

/// Where a command's keys begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At this argument.
    Index(u16),
    /// Behind this word, looked for from argument `from` (negative: from the end, backwards).
    Keyword {
        word: &'static str,
        from: i16,
    },
    Unknown,
}

/// Which arguments from there on are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Find {
    /// `last` relative to the first key (-1: to the end, -2: all but the last), `step`, and `limit` (2: half of the rest).
    Range {
        last: i16,
        step: u16,
        limit: u16,
    },
    /// The argument at `count` (relative) holds the number of keys, which start at `first` (relative).
    Count {
        count: u16,
        first: u16,
        step: u16,
    },
    Unknown,
}

/// One specification of keys, as `COMMAND INFO` gives them.
#[derive(Clone, Copy, Debug)]
pub struct KeySpec {
    pub begin: Begin,
    pub find: Find,
    pub flags: KeyFlags,
    pub notes: Option<&'static str>,
}

/// One key at argument `index`.
pub const fn key(index: u16, flags: KeyFlags) -> KeySpec {
    keys(index, 0, 1, flags)
}

/// Keys from argument `first`, the last one `last` further on (-1: up to the end), every `step`-th.
pub const fn keys(first: u16, last: i16, step: u16, flags: KeyFlags) -> KeySpec {
    KeySpec {
        begin: Begin::Index(first),
        find: Find::Range { last, step, limit: 0 },
        flags,
        notes: None,
    }
}

/// Keys behind their number, which is argument `count`.
pub const fn counted_keys(count: u16, flags: KeyFlags) -> KeySpec {
    KeySpec {
        begin: Begin::Index(count),
        find: Find::Count { count: 0, first: 1, step: 1 },
        flags,
        notes: None,
    }
}

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
