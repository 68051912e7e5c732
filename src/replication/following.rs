//! A replica's view of its primary, for ROLE and INFO. The link itself is run by
//! `roles/following.rs`.

use crate::keyspace::DbIndex;

/// The state of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Not connected.
    Connect,
    /// The connection is being established.
    Connecting,
    Handshake,
    /// A snapshot is being received or loaded.
    Sync,
    /// The stream is being received.
    Connected,
}

impl Progress {
    /// Its name in ROLE.
    pub fn name(self) -> &'static str {
        match self {
            Progress::Connect => "connect",
            Progress::Connecting => "connecting",
            Progress::Handshake => "handshake",
            Progress::Sync => "sync",
            Progress::Connected => "connected",
        }
    }
}

/// A snapshot being received. Unit: bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transfer {
    /// None: unknown.
    pub total: Option<u64>,
    pub read: u64,
}

/// The primary of this server, and the link to it.
#[derive(Debug)]
pub struct Following {
    pub host: Vec<u8>,
    pub port: u16,
    pub progress: Progress,
    /// The local data belongs to a history that the primary may continue. Otherwise a snapshot is
    /// needed.
    pub knows_history: bool,
    /// The database that the stream has selected.
    pub selected: DbIndex,
    /// When something was last received from the primary, or a connection attempted: boot-time
    /// clock, microseconds.
    pub last_sign_us: i64,
    /// The link's number among those of clients, and the time since which it is up: boot-time
    /// clock, microseconds.
    pub number: u64,
    pub up_since_us: i64,
    /// Attempts to synchronise, all of them and those since the link was last up.
    pub attempts: u64,
    pub attempts_now: u64,
    /// The total time that the link was down between times when it was up. Unit: microseconds.
    pub was_down_us: i64,
    /// The time since which the link, once up, has been down: boot-time clock, microseconds.
    pub down_since_us: Option<i64>,
    /// When the primary was last heard before the link went down: a cluster computes the age of
    /// this replica's data from it.
    pub heard_before_us: i64,
    /// How often a lost link was replaced since a time: boot-time clock, microseconds.
    pub replaced: (i64, u32),
    pub transfer: Transfer,
    /// Bytes of the stream received and not applied.
    pub unapplied: u64,
    /// The followed server is the target of FAILOVER, and not yet the primary.
    pub is_failover: bool,
    /// The last warning about the link since it was up. Empty: none.
    pub failure: String,
    /// The target of FAILOVER has refused or cannot be reached.
    pub failover_failed: bool,
}

impl Following {
    /// A primary without a link yet.
    pub fn new(host: Vec<u8>, port: u16) -> Self {
        Following {
            host,
            port,
            progress: Progress::Connect,
            knows_history: false,
            selected: DbIndex::ZERO,
            last_sign_us: 0,
            number: 0,
            up_since_us: 0,
            attempts: 0,
            attempts_now: 0,
            was_down_us: 0,
            down_since_us: None,
            heard_before_us: 0,
            replaced: (0, 0),
            transfer: Transfer::default(),
            unapplied: 0,
            is_failover: false,
            failure: String::new(),
            failover_failed: false,
        }
    }

    /// Host and port, for the log.
    pub fn name(&self) -> String {
        format!("{}:{}", String::from_utf8_lossy(&self.host), self.port)
    }

    /// Whether the link is up and the stream is being received.
    pub fn is_connected(&self) -> bool {
        self.progress == Progress::Connected
    }
}
