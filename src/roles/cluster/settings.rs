//! The parts of the configuration that the state machine needs.

use crate::cluster::node::Announced;
use crate::cluster::settings::Settings;
use crate::roles::cluster::links::MESSAGE_MAX;
use crate::state::State;

/// The present parameters. Announced ports take precedence over those in use.
pub fn of(state: &State) -> Settings {
    let config = &state.config;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let or = |announced: u16, own: u16| if announced != 0 { announced } else { own };
    let identity = &state.process.identity;
    // Without a plain port, `identity.port` is the TLS port.
    let has_plain = config.port != 0 || identity.port != identity.tls_port;
    let plain_port = if has_plain { identity.port } else { 0 };
    let listener = state.net.bus.listeners().first().and_then(|listener| listener.local_address());
    Settings {
        node_timeout_ms: config.cluster_node_timeout,
        announce_ip: text(&config.cluster_announce_ip),
        tcp_port: or(config.cluster_announce_port, plain_port),
        tls_port: or(config.cluster_announce_tls_port, identity.tls_port),
        bus_port: or(
            config.cluster_announce_bus_port,
            listener.map_or(0, |address| address.port()),
        ),
        announced: Announced {
            hostname: text(&config.cluster_announce_hostname),
            human_nodename: text(&config.cluster_announce_human_nodename),
            availability_zone: text(&config.availability_zone),
            client_ipv4: text(&config.cluster_announce_client_ipv4),
            client_ipv6: text(&config.cluster_announce_client_ipv6),
            client_port: config.cluster_announce_client_port,
            client_tls_port: config.cluster_announce_client_tls_port,
        },
        tls_cluster: config.tls_cluster,
        tls_replication: config.tls_replication,
        requires_full_coverage: config.cluster_require_full_coverage,
        allows_replica_migration: config.cluster_allow_replica_migration,
        migration_barrier: config.cluster_migration_barrier as usize,
        validity_factor: i64::from(config.cluster_replica_validity_factor),
        no_failover: config.cluster_replica_no_failover,
        repl_ping_ms: i64::from(config.repl_ping_replica_period) * 1000,
        manual_failover_ms: i64::from(config.cluster_manual_failover_timeout),
        blacklist_ms: config.cluster_blacklist_ttl.min(i64::MAX as u64 / 2000) as i64 * 1000,
        ping_interval_ms: config.cluster_ping_interval,
        gossip_percent: config.cluster_message_gossip_perc as usize,
        message_max: MESSAGE_MAX,
        as_valkey: config.compatible_with.is_valkey(),
    }
}
