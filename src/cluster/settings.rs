//! The configuration of a node and its cluster.

use super::Cluster;
use super::Todo;
use super::node::{Address, Announced, NodeFlags};

/// Parameters of the configuration, as the server refreshes them. Empty texts and 0 stand for
/// nothing announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub node_timeout_ms: i64,
    /// `cluster-announce-ip`; empty: the address at which others reach this node.
    pub announce_ip: String,
    /// Ports at which others reach this node: the announced ones, else its own.
    pub tcp_port: u16,
    pub tls_port: u16,
    pub bus_port: u16,
    pub announced: Announced,
    pub tls_cluster: bool,
    pub tls_replication: bool,
    pub requires_full_coverage: bool,
    pub allows_replica_migration: bool,
    pub migration_barrier: usize,
    pub validity_factor: i64,
    pub no_failover: bool,
    /// `repl-ping-replica-period`. Unit: milliseconds.
    pub repl_ping_ms: i64,
    pub manual_failover_ms: i64,
    pub blacklist_ms: i64,
    /// Silence after which a node is pinged; 0: half of the node timeout.
    pub ping_interval_ms: i64,
    pub gossip_percent: usize,
    /// The largest message of PUBLISH that is accepted. Unit: bytes.
    pub message_max: usize,
    /// Whether this node does as Valkey where that differs from Redis 7.0: in the fields of
    /// nodes.conf and in the handling of slot migrations.
    pub as_valkey: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            node_timeout_ms: 15_000,
            announce_ip: String::new(),
            tcp_port: 6379,
            tls_port: 0,
            bus_port: 16_379,
            announced: Announced::default(),
            tls_cluster: false,
            tls_replication: false,
            requires_full_coverage: true,
            allows_replica_migration: true,
            migration_barrier: 1,
            validity_factor: 10,
            no_failover: false,
            repl_ping_ms: 10_000,
            manual_failover_ms: 5_000,
            blacklist_ms: 60_000,
            ping_interval_ms: 0,
            gossip_percent: 10,
            message_max: 512 << 20,
            as_valkey: false,
        }
    }
}

impl Cluster {
    /// Takes over the configuration, at the start and when it has changed.
    pub fn set_settings(&mut self, settings: Settings) {
        self.changes += 1;
        self.due_ms = 0;
        if settings == self.settings && self.myself().address.bus_port != 0 {
            return;
        }
        let ip = match settings.announce_ip.is_empty() {
            // The address at which others reached this node is kept, unless it was an announced
            // one.
            true if self.settings.announce_ip.is_empty() => self.myself().address.ip.clone(),
            _ => settings.announce_ip.clone(),
        };
        let (tcp_port, tls_port, bus_port) =
            (settings.tcp_port, settings.tls_port, settings.bus_port);
        let announced = settings.announced.clone();
        let no_failover = settings.no_failover;
        // Others hear of a new name at once.
        if announced != self.settings.announced {
            self.todo |= Todo::BROADCAST;
        }
        if settings.requires_full_coverage != self.settings.requires_full_coverage {
            self.todo |= Todo::UPDATE_STATE;
        }
        self.settings = settings;
        let myself = self.myself_mut();
        myself.address = Address { ip, tcp_port, tls_port, bus_port };
        myself.announced = announced;
        myself.flags.set(NodeFlags::NOFAILOVER, no_failover);
        self.version += 1;
        self.todo |= Todo::SAVE;
    }
}
