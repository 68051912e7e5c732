//! One node of a cluster, as another one knows it.

use bitflags::bitflags;

use crate::cluster::action::LinkId;
use crate::collections::hash_slot::SlotSet;

/// A node's name: 40 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; NodeId::BYTES]);

impl NodeId {
    pub const BYTES: usize = 40;

    /// The name in these bytes; None if they are not 40 lower-case letters and digits.
    pub fn from_bytes(bytes: &[u8]) -> Option<NodeId> {
        let bytes: [u8; Self::BYTES] = bytes.try_into().ok()?;
        let is_name = bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        is_name.then_some(NodeId(bytes))
    }

    /// A new name, of 20 random bytes.
    pub fn from_random(random: [u8; 20]) -> NodeId {
        let mut name = [0; Self::BYTES];
        base16ct::lower::encode(&random, &mut name).expect("a byte has two digits");
        NodeId(name)
    }

    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a name is ASCII")
    }
}

impl std::fmt::Debug for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A node's place in this node's table. Another node may have it after a node was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(u16);

impl NodeIndex {
    /// # Panics
    /// If there are more than 65,536 nodes: the table's limit is far lower.
    pub fn new(index: usize) -> NodeIndex {
        NodeIndex(u16::try_from(index).expect("the number of nodes is bounded"))
    }

    pub fn get(self) -> usize {
        self.0 as usize
    }
}

bitflags! {
    /// A node's flags, with the bits of the bus.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct NodeFlags: u16 {
        const PRIMARY = 1;
        const REPLICA = 2;
        /// Perhaps failed: this node cannot reach it.
        const PFAIL = 4;
        /// Failed: most primaries cannot reach it.
        const FAIL = 8;
        const MYSELF = 16;
        const HANDSHAKE = 32;
        const NOADDR = 64;
        /// MEET is to be sent to it.
        const MEET = 128;
        /// A primary to which replicas may migrate.
        const MIGRATE_TO = 256;
        const NOFAILOVER = 512;
        /// It understands extensions of PING (Valkey; Redis 7.0 with a hostname).
        const EXTENSIONS = 1024;
        /// It understands light headers of PUBLISH (Valkey 8).
        const LIGHT_PUBLISH = 2048;
        /// It understands light headers of MODULE, and more than one MEET (Valkey 8.1).
        const LIGHT_MODULE = 4096;
        /// A replica that sees its own primary as failed (Valkey 9).
        const PRIMARY_FAILED = 8192;
    }
}

/// Where a node can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Text of an IPv4 or IPv6 address; empty if not known.
    pub ip: String,
    /// Ports for clients without and with TLS; 0 if it has none.
    pub tcp_port: u16,
    pub tls_port: u16,
    pub bus_port: u16,
}

/// Names that a node announces by extensions of PING; empty or 0 if it announces none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    pub hostname: String,
    pub human_nodename: String,
    pub availability_zone: String,
    pub client_ipv4: String,
    pub client_ipv6: String,
    pub client_port: u16,
    pub client_tls_port: u16,
}

/// A report by another node that a node is failing. Valid for twice the node timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureReport {
    pub by: NodeIndex,
    pub at_ms: i64,
}

/// Whose extensions a node has sent. From number 4 on they mean something else in Redis 8 than in
/// Valkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Unknown,
    Valkey,
    Redis8,
}

/// One node. Times are milliseconds of the boot-time clock, 0 for never.
#[derive(Clone, Debug)]
pub struct Node {
    pub id: NodeId,
    /// The same for a primary and its replicas (Valkey).
    pub shard_id: NodeId,
    pub flags: NodeFlags,
    /// The primary that a replica follows.
    pub primary: Option<NodeIndex>,
    /// The replicas that follow a primary.
    pub replicas: Vec<NodeIndex>,
    pub slots: SlotSet,
    pub config_epoch: u64,
    pub address: Address,
    pub announced: Announced,
    pub dialect: Dialect,
    /// The time since which an answer to PING is missing; 0 if none is.
    pub ping_sent_ms: i64,
    pub pong_received_ms: i64,
    /// When it last sent anything.
    pub data_received_ms: i64,
    pub failed_since_ms: i64,
    /// A primary has announced its failure to all nodes.
    pub is_failure_told: bool,
    pub created_ms: i64,
    pub orphaned_since_ms: i64,
    /// When the connection that it had opened ended, and when MEET was last sent to it.
    pub inbound_lost_ms: i64,
    pub meet_sent_ms: i64,
    pub repl_offset: u64,
    pub reports: Vec<FailureReport>,
    /// The connection that this node has opened to it, and the one that it has opened.
    pub outbound: Option<LinkId>,
    pub inbound: Option<LinkId>,
}

impl Node {
    /// A node of which nothing but the name is known. It is its own shard.
    pub fn new(id: NodeId) -> Node {
        Node {
            id,
            shard_id: id,
            flags: NodeFlags::empty(),
            primary: None,
            replicas: Vec::new(),
            slots: SlotSet::default(),
            config_epoch: 0,
            address: Address::default(),
            announced: Announced::default(),
            dialect: Dialect::Unknown,
            ping_sent_ms: 0,
            pong_received_ms: 0,
            data_received_ms: 0,
            failed_since_ms: 0,
            is_failure_told: false,
            created_ms: 0,
            orphaned_since_ms: 0,
            inbound_lost_ms: 0,
            meet_sent_ms: 0,
            repl_offset: 0,
            reports: Vec::new(),
            outbound: None,
            inbound: None,
        }
    }

    pub fn is_primary(&self) -> bool {
        self.flags.contains(NodeFlags::PRIMARY)
    }

    pub fn is_replica(&self) -> bool {
        self.flags.contains(NodeFlags::REPLICA)
    }

    pub fn is_failing(&self) -> bool {
        self.flags.intersects(NodeFlags::FAIL | NodeFlags::PFAIL)
    }

    /// Whether it votes in elections: a primary with slots.
    pub fn is_voting(&self) -> bool {
        self.is_primary() && !self.slots.is_empty()
    }
}
