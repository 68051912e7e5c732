//! The events that the state machine receives, and the actions that it asks for.

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
    /// A connection requested by [`Action::Connect`] is established. Its local address, if known.
    Connected { link: LinkId, local: Option<IpAddr> },
    /// A connection has ended or could not be made. Not sent for those that [`Action::Close`]
    /// ended.
    Closed { link: LinkId },
    /// A whole message has arrived. Only signature and length are checked.
    Received { link: LinkId, message: &'a [u8] },
}

/// The state of this node's replication and data at each call of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outside {
    /// The boot-time clock, which nobody sets, for durations. Unit: milliseconds.
    pub boot_ms: i64,
    /// The wall clock, for times in nodes.conf and CLUSTER NODES. Unit: milliseconds.
    pub unix_ms: i64,
    /// The primary's `master_repl_offset`, or the replica's own offset.
    pub offset: u64,
    /// Whether the link of a replica to its primary is up.
    pub is_link_up: bool,
    /// Milliseconds since the primary was heard of: since its last byte, or since the link went
    /// down. `i64::MAX` if never.
    pub data_age_ms: i64,
    /// Whether the server is loading its data.
    pub is_loading: bool,
}

/// An action for the server, which carries them out in order.
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
    /// Closes a connection when all earlier messages are written, at once if the peer takes
    /// nothing.
    Close {
        link: LinkId,
    },
    /// Saves the text of nodes.conf. The numbers of saves grow; one save may replace all earlier
    /// ones.
    Save {
        number: u64,
        text: Arc<[u8]>,
        is_awaited: bool,
    },
    /// Becomes a replica of the node at this address, or changes its primary. The port is the one
    /// for TLS with `tls-replication yes`, if the node has one.
    Follow {
        ip: String,
        port: u16,
    },
    /// Becomes a primary. The history continues under a new ID.
    Promote,
    /// Postpones clients' writes for a manual failover until this time of the boot clock.
    PauseWrites {
        until_boot_ms: i64,
    },
    EndPause,
    /// Deletes the keys of slots that now belong to another node, in steps. The deletions also go
    /// to replicas and the AOF.
    DropKeys(SlotSet),
    /// Deletes all data: this node begins anew as an empty one (CLUSTER RESET of a replica).
    DropAllKeys,
    /// Delivers a message to this node's subscribers.
    Deliver {
        channel: Arc<[u8]>,
        message: Arc<[u8]>,
        is_shard: bool,
    },
    /// Slots have changed their owner, or the state has changed: checks the clients that wait for
    /// keys and the subscribers of shard channels.
    Recheck,
    /// Writes a line to the log.
    Log {
        is_warning: bool,
        text: String,
    },
}
