//! Sections Keyspace and Cluster: the databases' keys.

use super::Unit::One;
use super::exposition::Exposition;
use super::{Reading, Row, gauge, line};
use crate::config::Compatibility;
use crate::keyspace::DbIndex;
use crate::state::State;

#[rustfmt::skip]
pub const CLUSTER: &[Row] = &[
    gauge("cluster_enabled", "redis_cluster_enabled", One, "Whether this is a node of a cluster.", |r| r.core.state.config.cluster_enabled.into()),
];

/// The lines of CLUSTER INFO.
#[rustfmt::skip]
pub const CLUSTER_INFO: &[Row] = &[
    Row::Lines(|reading, out| { out.push_str(&cluster_info(&reading.core.state).unwrap_or_default()) }),
];

pub const ROWS: &[Row] = &[Row::Lines(lines), Row::Samples(samples)];

/// Keys sampled for a database's average TTL.
const TTL_SAMPLES: usize = 32;
/// If fewer than one key in this number has a deadline, scrapes sample no keys.
const SPARSE: usize = 64;
/// The most databases with keys that have samples, the most databases visited, and the most empty
/// databases with samples, which redis_exporter reports too.
const SAMPLED_MAX: usize = 64;
const LOOKED_AT_MAX: usize = 1024;
const EMPTY_SAMPLED_MAX: usize = 16;

/// The lines of CLUSTER INFO. None: there is no cluster.
pub fn cluster_info(state: &State) -> Option<String> {
    let mut text = state.node.cluster.as_ref()?.info();
    let closed = state.net.bus.limit_exceeded;
    text.push_str(&format!("total_cluster_links_buffer_limit_exceeded:{closed}\r\n"));
    Some(text)
}

/// The figures of a database.
struct Database {
    index: DbIndex,
    keys: usize,
    expiring: usize,
    average_ttl_ms: i128,
}

fn database(reading: &Reading<'_>, index: DbIndex) -> Database {
    let now = reading.core.keyspace.now();
    let table = reading.core.keyspace.table_of(index);
    let (mut sum_ms, mut count) = (0i128, 0);
    table.sample(TTL_SAMPLES, true, |_, entry| {
        if let Some(deadline) = entry.deadline() {
            sum_ms += now.remaining_ms(deadline).max(0) as i128;
            count += 1;
        }
    });
    let average_ttl_ms = if count == 0 { 0 } else { sum_ms / count };
    let keys = reading.core.keyspace.shown_len(index);
    Database { index, keys, expiring: table.volatile_len().min(keys), average_ttl_ms }
}

fn with_keys<'a>(reading: &'a Reading<'_>) -> impl Iterator<Item = Database> + 'a {
    let indices = DbIndex::all(reading.core.keyspace.databases());
    let filled = indices.filter(|&index| reading.core.keyspace.shown_len(index) > 0);
    filled.map(|index| database(reading, index))
}

fn lines(reading: &Reading<'_>, out: &mut String) {
    for Database { index, keys, expiring, average_ttl_ms } in with_keys(reading) {
        // The number of keys with expiring fields.
        let volatile = || reading.core.keyspace.keys_with_field_deadlines(index);
        let more = match reading.core.state.config.compatible_with {
            Compatibility::Redis70 | Compatibility::Redis72 => String::new(),
            Compatibility::Redis8 => format!(",subexpiry={}", volatile()),
            Compatibility::Valkey9 => format!(",keys_with_volatile_items={}", volatile()),
        };
        line(
            out,
            &format!("db{index}"),
            format_args!("keys={keys},expires={expiring},avg_ttl={average_ttl_ms}{more}"),
        );
    }
}

fn samples(reading: &Reading<'_>, out: &mut Exposition) {
    type Of = fn(&Database) -> f64;
    let mut databases: Vec<Database> = Vec::new();
    for index in DbIndex::all(reading.core.keyspace.databases()).take(LOOKED_AT_MAX) {
        let keys = reading.core.keyspace.shown_len(index);
        let expiring = reading.core.keyspace.table_of(index).volatile_len().min(keys);
        if keys == 0 && index.get() >= EMPTY_SAMPLED_MAX || databases.len() >= SAMPLED_MAX {
            continue;
        }
        databases.push(match expiring * SPARSE >= keys {
            true => database(reading, index),
            false => Database { index, keys, expiring, average_ttl_ms: 0 },
        });
    }
    let families: [(&str, &str, Of); 3] = [
        ("redis_db_keys", "Keys of a database.", |database| database.keys as f64),
        ("redis_db_keys_expiring", "Keys with a deadline.", |database| database.expiring as f64),
        ("redis_db_avg_ttl_seconds", "Average time left, of some keys.", |database| {
            database.average_ttl_ms as f64 / 1000.0
        }),
    ];
    for (name, help, value) in families {
        out.family(name, "gauge", help);
        for database in &databases {
            out.sample(name, &[("db", &format!("db{}", database.index))], value(database));
        }
    }
}
