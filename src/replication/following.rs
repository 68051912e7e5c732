//! What a replica knows of its primary, as ROLE and INFO tell it. Who works on the link is the gate.

/// How far the link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is to be made.
    Connect,
    /// The connection is being made.
    Connecting,
    Handshake,
    /// A snapshot is on its way, or being loaded.
    Sync,
    /// The stream is followed.
    Connected,
}

impl Progress {
    /// As ROLE names it.
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

/// A snapshot that is on its way. Unit: bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transfer {
    /// None: the primary does not know.
    pub total: Option<u64>,
    pub read: u64,
}

/// The primary that is followed.
#[derive(Debug)]
pub struct Following {
    pub host: Vec<u8>,
    pub port: u16,
    pub progress: Progress,
    /// What is here is a history that the primary may let go on; otherwise only a snapshot helps.
    pub knows_history: bool,
    /// The database that the stream has selected.
    pub selected: usize,
    /// When something last came from the primary, or a connection was tried: boot-time clock, microseconds.
    pub heard_us: i64,
    /// Since when there is no link, after there was one: boot-time clock, microseconds.
    pub down_since_us: Option<i64>,
    pub transfer: Transfer,
    /// Bytes of the stream that have come and were not applied.
    pub unapplied: u64,
    /// FAILOVER has chosen the primary; it is told so.
    pub is_failover: bool,
    /// It was, and has refused or cannot be reached.
    pub failover_failed: bool,
}

impl Following {
    /// A primary to which there is no link yet.
    pub fn new(host: Vec<u8>, port: u16) -> Self {
        Following {
            host,
            port,
            progress: Progress::Connect,
            knows_history: false,
            selected: 0,
            heard_us: 0,
            down_since_us: None,
            transfer: Transfer::default(),
            unapplied: 0,
            is_failover: false,
            failover_failed: false,
        }
    }

    /// Host and port, as the log names them.
    pub fn name(&self) -> String {
        format!("{}:{}", String::from_utf8_lossy(&self.host), self.port)
    }
}

impl Following {
    /// Whether the link stands, and its data is here.
    pub fn is_connected(&self) -> bool {
        false
    }
}
