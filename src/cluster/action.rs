//! What the state machine is told, and what it wants done.

use std::net::IpAddr;
use std::sync::Arc;

use crate::collections::hash_slot::SlotSet;

/// A connection between the bus ports of two nodes. The state machine numbers those that it opens,
/// the server those that it accepts; a number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// What has happened outside.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A node has connected to this node's bus port.
    Accepted { link: LinkId, peer: IpAddr, local: IpAddr },
    /// A connection asked for by [`Action::Connect`] stands.
    Connected { link: LinkId, local: IpAddr },
    /// A connection has ended or could not be made; not told of those that [`Action::Close`] ended.
    Closed { link: LinkId },
    /// A whole message has arrived. Only signature and length are checked.
    Received { link: LinkId, message: &'a [u8] },
}

/// What this node's replication and data look like, each time the machine is asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outside {
    /// The clock that is never set, in milliseconds, for durations.
    pub boot_ms: i64,
    /// The wall clock in milliseconds, for what nodes.conf and CLUSTER NODES show.
    pub unix_ms: i64,
    /// The primary's `master_repl_offset`, or the replica's own offset.
    pub offset: u64,
    /// Whether the link of a replica to its primary is up.
    pub is_link_up: bool,
    /// Milliseconds since the primary was heard of: since its last byte, or since the link went
    /// down. `i64::MAX` if never.
    pub data_age_ms: i64,
    /// Whether the server loads its data.
    pub is_loading: bool,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Opens a connection to a bus port, with TLS if `tls-cluster yes`. Messages may be sent to it
    /// at once.
    Connect {
        link: LinkId,
        ip: String,
        bus_port: u16,
    },
    /// Sends a whole message. If `Save { is_awaited: true }` came before, waits until it is on
    /// disk.
    Send {
        link: LinkId,
        message: Arc<[u8]>,
    },
    /// Closes a connection when what was sent before is written, at once if the peer takes nothing.
    Close {
        link: LinkId,
    },
    /// Saves the text of nodes.conf. Saves have growing numbers; one may stand for all before it.
    Save {
        number: u64,
        text: Arc<[u8]>,
        is_awaited: bool,
    },
    /// Becomes a replica of the node at this address, or goes to another primary. Port as clients
    /// of `tls-replication` use it.
    Follow {
        ip: String,
        port: u16,
    },
    /// Becomes a primary. The history goes on under a new ID.
    Promote,
    /// Postpones clients' writes for a manual failover until this time of the boot clock.
    PauseWrites {
        until_boot_ms: i64,
    },
    EndPause,
    /// Deletes the keys of slots that belong to another node now, in steps, and repeats that for
    /// replicas and the log.
    DropKeys(SlotSet),
    /// Deletes all data: this node begins anew as an empty one (CLUSTER RESET of a replica).
    DropAllKeys,
    /// Gives a message to subscribers of this node.
    Deliver {
        channel: Arc<[u8]>,
        message: Arc<[u8]>,
        is_shard: bool,
    },
    /// Slots have changed their owner, or the state has changed: clients that wait for keys, and
    /// subscribers of shard channels, are looked through.
    Recheck,
    /// Writes a line to the log.
    Log {
        is_warning: bool,
        text: String,
    },
}
