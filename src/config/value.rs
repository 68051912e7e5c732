//! The types of configuration values other than numbers, flags and texts. `kind.rs` parses and
//! formats them.

use bitflags::bitflags;

use crate::sys::log::{LineFormat, TimeFormat};

/// An enum whose values have names in the configuration.
pub trait Choice: Copy + PartialEq + 'static {
    /// The words in the order in which errors list them. If a value has several, the first is
    /// shown.
    const WORDS: &'static [(&'static str, Self)];
    /// Words that Redis 7.0 does not have: errors do not list them.
    const NEWER_WORDS: &'static [(&'static str, Self)] = &[];

    /// All words, the newer ones last.
    fn words() -> impl Iterator<Item = &'static (&'static str, Self)> {
        Self::WORDS.iter().chain(Self::NEWER_WORDS)
    }

    /// The word of this value.
    fn word(self) -> &'static str {
        Self::words().find(|(_, value)| *value == self).map_or("unknown", |(word, _)| word)
    }
}

/// The keys that are evicted when memory is full. Source: `maxmemory-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxmemoryPolicy {
    VolatileLru,
    VolatileLfu,
    VolatileRandom,
    VolatileTtl,
    AllkeysLru,
    AllkeysLfu,
    AllkeysRandom,
    /// Of those with a deadline the one that was changed longest ago. Source: Redis 8.6.
    VolatileLrm,
    /// The one that was changed longest ago. Source: Redis 8.6.
    AllkeysLrm,
    NoEviction,
}

/// The contents of an entry's access bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// The time of the last access (LRU); also for policies that do not need it.
    Used,
    /// The time of the last change (LRM).
    Modified,
    /// A counter of accesses (LFU).
    Counted,
}

impl MaxmemoryPolicy {
    /// The contents of access bits under this policy.
    pub fn access_kind(self) -> AccessKind {
        use MaxmemoryPolicy::*;
        match self {
            VolatileLfu | AllkeysLfu => AccessKind::Counted,
            VolatileLrm | AllkeysLrm => AccessKind::Modified,
            VolatileLru | AllkeysLru | VolatileRandom | AllkeysRandom | VolatileTtl
            | NoEviction => AccessKind::Used,
        }
    }

    /// Whether entries store a counter of accesses, not a time.
    pub fn is_lfu(self) -> bool {
        self.access_kind() == AccessKind::Counted
    }

    /// Whether it uses the time of the last access or change.
    pub fn uses_time(self) -> bool {
        use MaxmemoryPolicy::*;
        matches!(self, VolatileLru | AllkeysLru | VolatileLrm | AllkeysLrm)
    }

    /// Whether only keys with a deadline are evicted.
    pub fn is_volatile(self) -> bool {
        use MaxmemoryPolicy::*;
        matches!(self, VolatileLru | VolatileLfu | VolatileRandom | VolatileTtl | VolatileLrm)
    }
}

impl Choice for MaxmemoryPolicy {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("volatile-lru", MaxmemoryPolicy::VolatileLru),
        ("volatile-lfu", MaxmemoryPolicy::VolatileLfu),
        ("volatile-random", MaxmemoryPolicy::VolatileRandom),
        ("volatile-ttl", MaxmemoryPolicy::VolatileTtl),
        ("allkeys-lru", MaxmemoryPolicy::AllkeysLru),
        ("allkeys-lfu", MaxmemoryPolicy::AllkeysLfu),
        ("allkeys-random", MaxmemoryPolicy::AllkeysRandom),
        ("noeviction", MaxmemoryPolicy::NoEviction),
    ];
    const NEWER_WORDS: &'static [(&'static str, Self)] = &[
        ("volatile-lrm", MaxmemoryPolicy::VolatileLrm),
        ("allkeys-lrm", MaxmemoryPolicy::AllkeysLrm),
    ];
}

/// The treatment of a script that keeps the server busy. Source: `busy-script-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusyScriptPolicy {
    /// It continues until a client kills it.
    Wait,
    /// It is killed if it has written nothing.
    KillReadonly,
    /// It is killed, and its writes are rolled back.
    Rollback,
}

impl Choice for BusyScriptPolicy {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("wait", BusyScriptPolicy::Wait),
        ("kill-readonly", BusyScriptPolicy::KillReadonly),
        ("rollback", BusyScriptPolicy::Rollback),
    ];
}

/// The minimum level of logged messages. Source: `loglevel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Debug,
    Verbose,
    Notice,
    Warning,
    Nothing,
}

impl Choice for LogLevel {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("debug", LogLevel::Debug),
        ("verbose", LogLevel::Verbose),
        ("notice", LogLevel::Notice),
        ("warning", LogLevel::Warning),
    ];
    const NEWER_WORDS: &'static [(&'static str, Self)] = &[("nothing", LogLevel::Nothing)];
}

impl Choice for LineFormat {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("legacy", LineFormat::Legacy),
        ("logfmt", LineFormat::Logfmt),
        ("json", LineFormat::Json),
    ];
}

impl Choice for TimeFormat {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("legacy", TimeFormat::Legacy),
        ("iso8601", TimeFormat::Iso8601),
        ("milliseconds", TimeFormat::Milliseconds),
    ];
}

/// When the append-only file is synced to disk. Source: `appendfsync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendFsync {
    EverySecond,
    Always,
    No,
}

impl Choice for AppendFsync {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("everysec", AppendFsync::EverySecond),
        ("always", AppendFsync::Always),
        ("no", AppendFsync::No),
    ];
}

/// The clients that may use a dangerous feature. Sources: `enable-debug-command`,
/// `enable-module-command`, `enable-protected-configs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    Nobody,
    Everybody,
    /// Clients on a Unix socket or a loopback address.
    Local,
}

impl Permission {
    /// Whether a client has the permission.
    pub fn allows(self, local_client: bool) -> bool {
        match self {
            Permission::Nobody => false,
            Permission::Everybody => true,
            Permission::Local => local_client,
        }
    }
}

impl Choice for Permission {
    const WORDS: &'static [(&'static str, Self)] =
        &[("no", Permission::Nobody), ("yes", Permission::Everybody), ("local", Permission::Local)];
}

/// Whether payloads of RESTORE are checked in depth. Source: `sanitize-dump-payload`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SanitizeDumpPayload {
    No,
    Yes,
    /// Payloads from clients are checked, those from a primary or a file are not.
    Clients,
}

impl Choice for SanitizeDumpPayload {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("no", SanitizeDumpPayload::No),
        ("yes", SanitizeDumpPayload::Yes),
        ("clients", SanitizeDumpPayload::Clients),
    ];
}

/// The channels that a new user may access. Source: `acl-pubsub-default`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclPubsubDefault {
    AllChannels,
    ResetChannels,
}

impl Choice for AclPubsubDefault {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("allchannels", AclPubsubDefault::AllChannels),
        ("resetchannels", AclPubsubDefault::ResetChannels),
    ];
}

/// The meaning of `oom-score-adj-values`. Source: `oom-score-adj`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomScoreAdj {
    No,
    /// Added to the score at the start.
    Relative,
    Absolute,
}

impl Choice for OomScoreAdj {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("no", OomScoreAdj::No),
        ("yes", OomScoreAdj::Relative),
        ("relative", OomScoreAdj::Relative),
        ("absolute", OomScoreAdj::Absolute),
    ];
}

/// The server to follow where servers of the protocol contradict each other: see
/// docs/compatible-with.md. Source: `compatible-with`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compatibility {
    Redis70,
    Redis72,
    Redis8,
    Valkey9,
}

/// The version of Valkey that `compatible-with valkey-9` names.
pub const VALKEY_VERSION: &str = "9.1.2";

impl Compatibility {
    /// The Redis version that such a server reports.
    pub fn redis_version(self) -> &'static str {
        match self {
            Compatibility::Redis70 => "7.0.15",
            // Valkey reports the version at which it forked from Redis.
            Compatibility::Redis72 | Compatibility::Valkey9 => "7.2.4",
            Compatibility::Redis8 => "8.6.3",
        }
    }

    pub fn is_valkey(self) -> bool {
        self == Compatibility::Valkey9
    }

    pub fn is_redis_8(self) -> bool {
        self == Compatibility::Redis8
    }
}

impl Choice for Compatibility {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("redis-7.0", Compatibility::Redis70),
        ("redis-7.2", Compatibility::Redis72),
        ("redis-8", Compatibility::Redis8),
        ("valkey-9", Compatibility::Valkey9),
    ];
}

/// Whether a replica loads a snapshot directly from the socket. Source: `repl-diskless-load`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisklessLoad {
    Disabled,
    OnEmptyDb,
    SwapDb,
    /// Known from Valkey 8.
    FlushBeforeLoad,
}

impl Choice for DisklessLoad {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("disabled", DisklessLoad::Disabled),
        ("on-empty-db", DisklessLoad::OnEmptyDb),
        ("swapdb", DisklessLoad::SwapDb),
    ];
    const NEWER_WORDS: &'static [(&'static str, Self)] = &[
        ("flush-before-load", DisklessLoad::FlushBeforeLoad),
        ("flushdb", DisklessLoad::FlushBeforeLoad),
    ];
}

bitflags! {
    /// The keyspace events that are published, and their channels. Source:
    /// `notify-keyspace-events`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyspaceEvents: u32 {
        /// `K`: publish to `__keyspace@<db>__:<key>`.
        const KEYSPACE = 1;
        /// `E`: publish to `__keyevent@<db>__:<event>`.
        const KEYEVENT = 1 << 1;
        /// `g`: commands for all types, such as DEL, EXPIRE, RENAME.
        const GENERIC = 1 << 2;
        /// `$`: strings.
        const STRING = 1 << 3;
        /// `l`: lists.
        const LIST = 1 << 4;
        /// `s`: sets.
        const SET = 1 << 5;
        /// `h`: hashes.
        const HASH = 1 << 6;
        /// `z`: sorted sets.
        const ZSET = 1 << 7;
        /// `x`: expired keys.
        const EXPIRED = 1 << 8;
        /// `e`: evicted keys.
        const EVICTED = 1 << 9;
        /// `t`: streams.
        const STREAM = 1 << 10;
        /// `m`: lookups of missing keys. Not part of `A`.
        const KEY_MISS = 1 << 11;
        /// `d`: module types.
        const MODULE = 1 << 12;
        /// `n`: new keys. Not part of `A`.
        const NEW = 1 << 13;
        /// `L`: locks. Not part of `A`.
        const LOCK = 1 << 14;
        /// `o`: values that are replaced altogether. Not part of `A`.
        const OVERWRITTEN = 1 << 15;
        /// `c`: those of them that get another type. Not part of `A`.
        const TYPE_CHANGED = 1 << 16;
        /// `S`: publish fields to `__subkeyspace@<db>__:<key>`. Not part of `A`, as the next ones.
        const FIELDS_OF_KEY = 1 << 17;
        /// `T`: publish fields to `__subkeyevent@<db>__:<event>`.
        const FIELDS_OF_EVENT = 1 << 18;
        /// `I`: publish events to `__subkeyspaceitem@<db>__:<key>\n<field>`.
        const EVENTS_OF_FIELD = 1 << 19;
        /// `V`: publish fields to `__subkeyspaceevent@<db>__:<event>|<key>`.
        const FIELDS_OF_KEY_AND_EVENT = 1 << 20;
        /// Channels of keys.
        const OF_KEYS = Self::KEYSPACE.bits() | Self::KEYEVENT.bits();
        /// Channels of fields.
        const OF_FIELDS = Self::FIELDS_OF_KEY.bits() | Self::FIELDS_OF_EVENT.bits()
            | Self::EVENTS_OF_FIELD.bits() | Self::FIELDS_OF_KEY_AND_EVENT.bits();
        /// `A`: `g$lshzxetd`.
        const ALL = Self::GENERIC.bits() | Self::STRING.bits() | Self::LIST.bits()
            | Self::SET.bits() | Self::HASH.bits() | Self::ZSET.bits() | Self::EXPIRED.bits()
            | Self::EVICTED.bits() | Self::STREAM.bits() | Self::MODULE.bits();
    }

    /// The options of a shutdown on a signal. Sources: `shutdown-on-sigint`, `shutdown-on-sigterm`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ShutdownOptions: u8 {
        /// Save even without save points.
        const SAVE = 1;
        /// Do not save.
        const NOSAVE = 2;
        /// Do not wait for replicas.
        const NOW = 4;
        /// Shut down even if saving fails.
        const FORCE = 8;
        /// In a cluster, do not shut down a primary with slots.
        const SAFE = 16;
        /// In a cluster, promote a replica first.
        const FAILOVER = 32;
    }
}

/// A snapshot is saved after this number of seconds if there were this number of changes. Source:
/// `save`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavePoint {
    pub seconds: u64,
    pub changes: u64,
}

/// The limit of a client's unread replies. Zero is no limit. Source: `client-output-buffer-limit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputBufferLimit {
    /// Bytes at which the client is closed at once.
    pub hard_bytes: u64,
    /// Bytes above which the client is closed after `soft_seconds`.
    pub soft_bytes: u64,
    pub soft_seconds: u64,
}

impl OutputBufferLimit {
    /// Whether `used` bytes exceed the hard limit, or have exceeded the soft limit for too long.
    /// `over_soft_since_us`: the time since which they exceed the soft limit, on the boot-time
    /// clock in microseconds; updated here.
    pub fn is_exceeded(
        &self,
        used: u64,
        over_soft_since_us: &mut Option<i64>,
        now_us: i64,
    ) -> bool {
        let is_over_hard = self.hard_bytes > 0 && used >= self.hard_bytes;
        if self.soft_bytes == 0 || used < self.soft_bytes {
            *over_soft_since_us = None;
            return is_over_hard;
        }
        let since_us = *over_soft_since_us.get_or_insert(now_us);
        let allowed_us =
            i64::try_from(self.soft_seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        is_over_hard || now_us - since_us > allowed_us
    }
}

/// Classes of clients with an [`OutputBufferLimit`] each: the index into
/// `Config::client_output_buffer_limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientClass {
    Normal = 0,
    Replica = 1,
    Pubsub = 2,
}

/// A memory limit, in bytes or as a percentage. Source: `maxmemory-clients`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// Zero is no limit.
    Bytes(u64),
    /// Of `maxmemory`: 1 to 100.
    Percent(u8),
}

/// The address of the primary. Source: `replicaof`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrimaryAddress {
    pub host: Vec<u8>,
    pub port: u16,
}
