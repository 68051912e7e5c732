//! A command's properties besides its handler: group, arity, flags, and key positions.
//!
//! The specifications in `state/spec.rs` consist of these; `client` needs only this file, not the
//! gate.

use bitflags::bitflags;

use crate::resp::args::Args;

bitflags! {
    /// Flags of a command, with the names of `COMMAND INFO`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u64 {
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
        /// Needs permission by `enable-debug-command`.
        const PROTECTED = 1 << 20;

        // Only used by the gate; not shown by `COMMAND INFO`.

        /// Runs the commands queued since MULTI.
        const RUNS_QUEUED = 1 << 21;
        /// Runs at once even in a transaction.
        const NEVER_QUEUED = 1 << 22;
        /// Runs the script in its first argument.
        const RUNS_BODY = 1 << 23;
        /// Runs the script with the SHA1 in its first argument.
        const RUNS_SHA = 1 << 24;
        /// Runs the function named by its first argument.
        const RUNS_FUNCTION = 1 << 25;
        /// Updates access times even with CLIENT NO-TOUCH.
        const MARKS_ACCESS = 1 << 26;
        /// Allowed to subscribed RESP2 clients.
        const WHILE_SUBSCRIBED = 1 << 27;
        /// CLIENT CACHING stays in effect after it.
        const KEEPS_CACHING = 1 << 28;
        /// Concerns the calling connection: cannot run without a client.
        const NEEDS_CLIENT = 1 << 29;

        /// Refused like a write while the disk fails: PING.
        const TELLS_DISK = 1 << 31;
        /// Ends its client's transaction without running it.
        const ENDS_TRANSACTION = 1 << 30;
        /// A blocking command that scripts may call since Redis 7.2, where it does not block. Set
        /// with NOSCRIPT, which older versions report.
        const SCRIPTED_SINCE_7_2 = 1 << 32;
        /// Takes the element with the lowest score: it can be prefetched.
        const TAKES_LOWEST = 1 << 33;
        /// Takes the element with the highest score.
        const TAKES_HIGHEST = 1 << 34;
        /// Takes a random element, without further arguments.
        const TAKES_RANDOM = 1 << 35;
        /// EXEC tests it before it runs anything: LOCK.GUARD, XGUARD.
        const GUARDS = 1 << 36;
        /// A client's ASKING stays in effect after it: ASKING itself.
        const KEEPS_ASKING = 1 << 37;
        /// Needs the names of a hash slot's keys, for which it may have to wait.
        const NAMES_SLOT = 1 << 38;

        /// Runs a script or a function.
        const RUNS_SCRIPT = Self::RUNS_BODY.bits() | Self::RUNS_SHA.bits() | Self::RUNS_FUNCTION.bits();
        /// May run for a long time while other clients are served: scripts, and DEBUG, which may
        /// load a file. Not SCRIPT KILL, which ends a script.
        const LONG = Self::RUNS_SCRIPT.bits() | Self::PROTECTED.bits();
    }

    /// ACL categories that do not follow from the flags or group.
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
        const LOCK = 1 << 21;
    }

    /// A command's use of a key, with the names of the key specifications.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyFlags: u16 {
        const RO = 1 << 0;
        const RW = 1 << 1;
        const OW = 1 << 2;
        const RM = 1 << 3;
        /// The reply, or another key, gets data of the value (GET), not only its length or type
        /// (STRLEN).
        const ACCESS = 1 << 4;
        const UPDATE = 1 << 5;
        const INSERT = 1 << 6;
        const DELETE = 1 << 7;
        const NOT_KEY = 1 << 8;
        const INCOMPLETE = 1 << 9;
        const VARIABLE_FLAGS = 1 << 10;
        /// The command changes the value, though Redis's specification says RO. Not reported.
        const CHANGES = 1 << 11;
    }
}

/// The ACL categories with their names, in the order of `COMMAND INFO`.
pub const CATEGORY_NAMES: &[(Categories, &str)] = &[
    (Categories::KEYSPACE, "keyspace"),
    (Categories::READ, "read"),
    (Categories::WRITE, "write"),
    (Categories::SET, "set"),
    (Categories::SORTEDSET, "sortedset"),
    (Categories::LIST, "list"),
    (Categories::HASH, "hash"),
    (Categories::STRING, "string"),
    (Categories::BITMAP, "bitmap"),
    (Categories::HYPERLOGLOG, "hyperloglog"),
    (Categories::GEO, "geo"),
    (Categories::STREAM, "stream"),
    (Categories::PUBSUB, "pubsub"),
    (Categories::ADMIN, "admin"),
    (Categories::FAST, "fast"),
    (Categories::SLOW, "slow"),
    (Categories::BLOCKING, "blocking"),
    (Categories::DANGEROUS, "dangerous"),
    (Categories::CONNECTION, "connection"),
    (Categories::TRANSACTION, "transaction"),
    (Categories::SCRIPTING, "scripting"),
    (Categories::LOCK, "lock"),
];

/// Frequent combinations of flags, with names that list them.
impl Flags {
    pub const READONLY_FAST: Self = Self::READONLY.union(Self::FAST);
    pub const WRITE_FAST: Self = Self::WRITE.union(Self::FAST);
    pub const WRITE_DENYOOM: Self = Self::WRITE.union(Self::DENYOOM);
    pub const WRITE_DENYOOM_FAST: Self = Self::WRITE_DENYOOM.union(Self::FAST);
    pub const WRITE_BLOCKING: Self = Self::WRITE.union(Self::BLOCKING);
    pub const NO_SCRIPT_BEFORE_7_2: Self = Self::NOSCRIPT.union(Self::SCRIPTED_SINCE_7_2);
    pub const LOADING_STALE: Self = Self::LOADING.union(Self::STALE);
    pub const ADMIN_NOSCRIPT: Self = Self::ADMIN.union(Self::NOSCRIPT);
    pub const ADMIN_NOSCRIPT_NO_ASYNC_LOADING: Self =
        Self::ADMIN_NOSCRIPT.union(Self::NO_ASYNC_LOADING);
    pub const ADMIN_LOADING_STALE: Self = Self::ADMIN.union(Self::LOADING_STALE);
    pub const ADMIN_NOSCRIPT_LOADING_STALE: Self = Self::ADMIN_NOSCRIPT.union(Self::LOADING_STALE);
    /// For subcommands of CLIENT about the calling client.
    pub const OF_OWN_CLIENT: Self =
        Self::NOSCRIPT.union(Self::LOADING_STALE).union(Self::NEEDS_CLIENT);

    /// The flags of the reported version: 7.2 or later, or an earlier one.
    pub fn reported(self, is_7_2: bool) -> Self {
        if is_7_2 && self.contains(Self::SCRIPTED_SINCE_7_2) { self - Self::NOSCRIPT } else { self }
    }
}

impl Categories {
    pub const ADMIN_DANGEROUS: Self = Self::ADMIN.union(Self::DANGEROUS);
    pub const KEYSPACE_DANGEROUS: Self = Self::KEYSPACE.union(Self::DANGEROUS);
}

/// Frequent combinations.
impl KeyFlags {
    pub const RO_ACCESS: Self = Self::RO.union(Self::ACCESS);
    pub const RW_ACCESS: Self = Self::RW.union(Self::ACCESS);
    pub const RW_ACCESS_UPDATE: Self = Self::RW_ACCESS.union(Self::UPDATE);
    pub const RW_ACCESS_DELETE: Self = Self::RW_ACCESS.union(Self::DELETE);
    pub const RW_INSERT: Self = Self::RW.union(Self::INSERT);
    pub const RW_UPDATE: Self = Self::RW.union(Self::UPDATE);
    pub const RW_DELETE: Self = Self::RW.union(Self::DELETE);
    pub const OW_UPDATE: Self = Self::OW.union(Self::UPDATE);
    pub const OW_INSERT: Self = Self::OW.union(Self::INSERT);
    pub const RM_DELETE: Self = Self::RM.union(Self::DELETE);
    /// XREADGROUP.
    pub const RO_ACCESS_CHANGES: Self = Self::RO_ACCESS.union(Self::CHANGES);

    /// Whether the command may change the key's value.
    pub fn may_change(self) -> bool {
        !self.contains(Self::RO) || self.contains(Self::CHANGES)
    }
}

/// A command's documentation group.
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
    Lock,
}

/// Number of arguments, including the command's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    Exactly(u16),
    AtLeast(u16),
}

/// The place where a command's keys begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At this argument.
    Index(u16),
    /// After this word, searched from argument `from` (negative: from the end, backwards).
    Keyword {
        word: &'static str,
        from: i16,
    },
    Unknown,
}

/// The arguments from there on that are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Find {
    /// `last` relative to the first key (-1: to the end, -2: all but the last), `step`, and `limit`
    /// (2: half of the rest).
    Range {
        last: i16,
        step: u16,
        limit: u16,
    },
    /// A count, after which every `step`-th argument is a key.
    Count {
        step: u16,
    },
    Unknown,
}

/// A key specification, as in `COMMAND INFO`.
#[derive(Clone, Copy, Debug)]
pub struct KeySpec {
    pub begin: Begin,
    pub find: Find,
    pub flags: KeyFlags,
    pub notes: Option<&'static str>,
}

/// Specifications of a command whose only key is argument 1, named like the [`KeyFlags`].
impl KeySpec {
    pub const RO: &'static [KeySpec] = &[key(1, KeyFlags::RO)];
    pub const RO_ACCESS: &'static [KeySpec] = &[key(1, KeyFlags::RO_ACCESS)];
    pub const RW_ACCESS_UPDATE: &'static [KeySpec] = &[key(1, KeyFlags::RW_ACCESS_UPDATE)];
    pub const RW_ACCESS_DELETE: &'static [KeySpec] = &[key(1, KeyFlags::RW_ACCESS_DELETE)];
    pub const RW_INSERT: &'static [KeySpec] = &[key(1, KeyFlags::RW_INSERT)];
    pub const RW_UPDATE: &'static [KeySpec] = &[key(1, KeyFlags::RW_UPDATE)];
    pub const RW_DELETE: &'static [KeySpec] = &[key(1, KeyFlags::RW_DELETE)];
    pub const OW_UPDATE: &'static [KeySpec] = &[key(1, KeyFlags::OW_UPDATE)];

    pub const fn noted(self, notes: &'static str) -> KeySpec {
        KeySpec { notes: Some(notes), ..self }
    }
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

/// Keys after their count, which is argument `count`.
pub const fn counted_keys(count: u16, flags: KeyFlags) -> KeySpec {
    KeySpec { begin: Begin::Index(count), find: Find::Count { step: 1 }, flags, notes: None }
}

/// A key's argument index, and how the command uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPosition {
    pub index: usize,
    pub flags: KeyFlags,
}

/// The arguments that are channels to which a command publishes or subscribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    pub first: usize,
    /// All arguments from there on.
    pub many: bool,
    /// They are patterns.
    pub are_patterns: bool,
}

/// Rules that key specifications cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRule {
    None,
    /// SORT: the key after the last STORE too.
    SortDestination,
    /// XREAD, XREADGROUP: the first half of the arguments after STREAMS.
    ReadStreams,
    /// BZPOPDUE: keys end before the timeout, which a unit may follow.
    BeforeTimeout,
    /// MIGRATE: the keys after KEYS, or the one before the options.
    Migrated,
    /// SET: read only with GET, compared with a condition.
    ReadWithGet,
    /// DELEX: compared only with a condition.
    Compared,
    /// BITFIELD: written unless all operations are GET.
    ReadByGets,
}

/// The databases that a command uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseUse {
    /// The selected one, if it has keys.
    Selected,
    /// Selects the one in its first argument.
    Selects,
    /// Those in these arguments; the selected one too if it has keys.
    Named(&'static [usize]),
    /// The selected one, and those after the word DB from this argument on.
    Options(usize),
    All,
}

impl DatabaseUse {
    /// The indices of arguments that name databases.
    pub fn arguments(self, args: Args<'_>) -> Vec<usize> {
        let named: &[usize] = match self {
            DatabaseUse::Selected | DatabaseUse::All => &[],
            DatabaseUse::Selects => &[1],
            DatabaseUse::Named(named) => named,
            DatabaseUse::Options(from) => {
                let is_word = |&index: &usize| args.get(index).eq_ignore_ascii_case(b"db");
                let words = (from..args.len().saturating_sub(1)).filter(is_word);
                return words.map(|index| index + 1).collect();
            }
        };
        named.iter().copied().filter(|&index| index < args.len()).collect()
    }
}

/// The arguments that are hidden in logs and MONITOR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrets {
    None,
    /// All from this one on.
    From(usize),
    /// A number of arguments after each of these words, searched from `from` up to the word
    /// `until`.
    Behind {
        from: usize,
        words: &'static [(&'static str, usize)],
        until: &'static str,
    },
    /// Values of secret parameters: pairs from this argument on.
    Parameters(usize),
}
