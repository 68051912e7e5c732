//! What is known of a command besides how it runs: its group, arity, flags, and where its keys are.
//!
//! The specifications in `gate/spec.rs` are made of these; what a client keeps of its commands needs no more.

use bitflags::bitflags;

use crate::resp::args::Args;

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

        // From here on the gate alone knows them; `COMMAND INFO` does not show them.

        /// It runs what is queued since MULTI.
        const RUNS_QUEUED = 1 << 21;
        /// It runs at once although its client has begun a transaction.
        const NEVER_QUEUED = 1 << 22;
        /// It runs the script that its first argument is.
        const RUNS_BODY = 1 << 23;
        /// It runs the script whose SHA1 its first argument is.
        const RUNS_SHA = 1 << 24;
        /// It runs the function that its first argument names.
        const RUNS_FUNCTION = 1 << 25;
        /// It marks accesses although its client has said CLIENT NO-TOUCH.
        const MARKS_ACCESS = 1 << 26;
        /// RESP2 clients may run it while they are subscribed.
        const WHILE_SUBSCRIBED = 1 << 27;
        /// CLIENT CACHING holds beyond it.
        const KEEPS_CACHING = 1 << 28;
        /// It has to do with the connection that it comes from: who has none cannot run it.
        const NEEDS_CLIENT = 1 << 29;

        /// It is refused, as a command that writes is, where the disk is at fault: PING.
        const TELLS_DISK = 1 << 31;
        /// It ends its client's transaction without running it.
        const ENDS_TRANSACTION = 1 << 30;

        /// It runs a script or a function.
        const RUNS_SCRIPT = Self::RUNS_BODY.bits() | Self::RUNS_SHA.bits() | Self::RUNS_FUNCTION.bits();
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

/// The ACL classes with their names, in the order of `COMMAND INFO`.
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
];

/// The flags that many commands have together. A name says which they are.
impl Flags {
    pub const READONLY_FAST: Self = Self::READONLY.union(Self::FAST);
    pub const WRITE_FAST: Self = Self::WRITE.union(Self::FAST);
    pub const WRITE_DENYOOM: Self = Self::WRITE.union(Self::DENYOOM);
    pub const WRITE_DENYOOM_FAST: Self = Self::WRITE_DENYOOM.union(Self::FAST);
    pub const WRITE_BLOCKING: Self = Self::WRITE.union(Self::BLOCKING);
    pub const LOADING_STALE: Self = Self::LOADING.union(Self::STALE);
    pub const ADMIN_NOSCRIPT: Self = Self::ADMIN.union(Self::NOSCRIPT);
    pub const ADMIN_NOSCRIPT_NO_ASYNC_LOADING: Self =
        Self::ADMIN_NOSCRIPT.union(Self::NO_ASYNC_LOADING);
    pub const ADMIN_LOADING_STALE: Self = Self::ADMIN.union(Self::LOADING_STALE);
    pub const ADMIN_NOSCRIPT_LOADING_STALE: Self = Self::ADMIN_NOSCRIPT.union(Self::LOADING_STALE);
    /// Of a subcommand of CLIENT that is about the client that sends it.
    pub const OF_OWN_CLIENT: Self =
        Self::NOSCRIPT.union(Self::LOADING_STALE).union(Self::NEEDS_CLIENT);
}

impl Categories {
    pub const ADMIN_DANGEROUS: Self = Self::ADMIN.union(Self::DANGEROUS);
    pub const KEYSPACE_DANGEROUS: Self = Self::KEYSPACE.union(Self::DANGEROUS);
}

/// What commands do with keys.
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
    /// Their number stands there, and behind it every `step`-th argument is one.
    Count {
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

/// Of a command whose one key is argument 1: what it does with it, by the name that [`KeyFlags`] has for that.
impl KeySpec {
    pub const RO: &'static [KeySpec] = &[key(1, KeyFlags::RO)];
    pub const RO_ACCESS: &'static [KeySpec] = &[key(1, KeyFlags::RO_ACCESS)];
    pub const RW_ACCESS_UPDATE: &'static [KeySpec] = &[key(1, KeyFlags::RW_ACCESS_UPDATE)];
    pub const RW_ACCESS_DELETE: &'static [KeySpec] = &[key(1, KeyFlags::RW_ACCESS_DELETE)];
    pub const RW_INSERT: &'static [KeySpec] = &[key(1, KeyFlags::RW_INSERT)];
    pub const RW_UPDATE: &'static [KeySpec] = &[key(1, KeyFlags::RW_UPDATE)];
    pub const RW_DELETE: &'static [KeySpec] = &[key(1, KeyFlags::RW_DELETE)];
    pub const OW_UPDATE: &'static [KeySpec] = &[key(1, KeyFlags::OW_UPDATE)];
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
    KeySpec { begin: Begin::Index(count), find: Find::Count { step: 1 }, flags, notes: None }
}

/// A key's place among the arguments, and what the command does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPosition {
    pub index: usize,
    pub flags: KeyFlags,
}

/// Which arguments are channels that a command publishes or listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    pub first: usize,
    /// All arguments from there on, not that one alone.
    pub many: bool,
    /// They are patterns to listen by.
    pub are_patterns: bool,
}

/// What key specifications cannot say of a command's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRule {
    None,
    /// SORT: the key behind STORE too, the last one if there are several.
    SortDestination,
    /// BZPOPDUE: none from the timeout on, behind which there may be a unit.
    BeforeTimeout,
    /// MIGRATE: the keys behind KEYS, or the one before the options.
    Migrated,
    /// SET: it is read only with GET.
    ReadWithGet,
    /// BITFIELD: it is written unless all operations are GET.
    ReadByGets,
}

/// Which databases a command works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseUse {
    /// The selected one, if it has to do with keys.
    Selected,
    /// It selects the one that its first argument names.
    Selects,
    /// Those that these arguments name; the selected one too if it names keys.
    Named(&'static [usize]),
    /// The selected one, and those that stand behind the word DB from this argument on.
    Options(usize),
    All,
}

impl DatabaseUse {
    /// The arguments of a request that name databases.
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

/// Which arguments nobody may see who looks at the log, the slow log, or monitors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrets {
    None,
    /// All from this one on.
    From(usize),
    /// So many behind each of these words, looked for from argument `from` on, up to the word `until`.
    Behind {
        from: usize,
        words: &'static [(&'static str, usize)],
        until: &'static str,
    },
    /// Values of parameters that hold secrets: pairs from this argument on.
    Parameters(usize),
}
