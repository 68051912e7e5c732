//! The link to the primary while a connection lasts. `roles/following.rs` runs it.

use std::collections::VecDeque;

use super::incoming::Sync;
use super::link::Link;
use crate::persist::aof::log::LogOffset;

/// The connection to the primary, except its socket (`net/primary.rs`).
pub struct PrimaryLink {
    pub link: Link,
    /// The buffer for reading; empty between reads.
    pub buffer: Box<[u8]>,
    /// A snapshot being received or loaded.
    pub sync: Option<Sync>,
    /// CLIENT KILL.
    pub is_killed: bool,
    /// Part of the stream was received during a pause, and is applied after it.
    pub holds: bool,
    /// Offsets of the stream, each with the AOF's position after it.
    pub logged: VecDeque<(u64, LogOffset)>,
    /// The last of those offsets known to be on disk.
    pub on_disk: Option<u64>,
}
