//! Section Server: version, process, uptime, listeners.

use super::Unit::{One, Seconds, UnixSeconds};
use super::exposition::Exposition;
use super::{Reading, Row, Value, counter, field, gauge, line};
use crate::config::{Choice, MaxmemoryPolicy, VALKEY_VERSION};
use crate::net::tls::CertificateFacts;
use crate::state::State;
use crate::sys::{build, machine, system};

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    Row::Samples(instance),
    Row::Lines(version),
    field("redis_git_sha1", |_| build::commit().0.into()),
    field("redis_git_dirty", |_| build::commit().1.into()),
    field("redis_build_id", |_| build::id().into()),
    Row::Lines(mode),
    field("os", |_| machine::system_name().into()),
    field("arch_bits", |_| usize::BITS.into()),
    field("monotonic_clock", |_| "POSIX clock_gettime".into()),
    field("multiplexing_api", |_| system::POLLER.into()),
    field("atomicvar_api", |_| "c11-builtin".into()),
    field("gcc_version", |_| "0.0.0".into()),
    gauge("process_id", "redis_process_id", One, "Number of the process.", |_| std::process::id().into()),
    field("process_supervised", |r| r.core.state.config.supervised.into()),
    field("run_id", |r| r.core.state.process.identity.run_id.clone().into()),
    field("tcp_port", |r| r.core.state.process.identity.port.into()),
    field("server_time_usec", |r| r.core.state.now.wall_us.into()),
    gauge("uptime_in_seconds", "redis_uptime_in_seconds", Seconds, "Seconds since the start.", |r| uptime(&r.core.state).into()),
    field("uptime_in_days", |r| (uptime(&r.core.state) / 86_400).into()),
    gauge("hz", "redis_hz", One, "Background work in a second.", |r| r.core.state.config.hz.into()),
    gauge("configured_hz", "redis_configured_hz", One, "Background work in a second, as configured.", |r| r.core.state.config.hz.into()),
    field("lru_clock", |r| Value::Text(r.core.keyspace.lru_clock().to_string())),
    field("executable", |r| r.core.state.process.identity.executable.clone().into()),
    field("config_file", config_file),
    gauge("io_threads_active", "redis_io_threads_active", One, "Always 0.", |_| 0u64.into()),
    field("shutdown_in_milliseconds", shutdown_in_milliseconds),
    Row::Lines(listeners),
    field("latchkey_version", |_| build::VERSION.into()),
    gauge("", "redis_up", One, "The server answers.", |_| true.into()),
    gauge("", "redis_start_time_seconds", UnixSeconds, "When the server was started.", |r| (r.core.state.now.unix_seconds() - uptime(&r.core.state)).into()),
    gauge("", "latchkey_http_connections", One, "Connections for HTTP, which are no clients.", |r| r.core.state.net.http.len().into()),
    counter("", "latchkey_http_requests_total", One, "Requests that HTTP has answered.", |r| r.core.state.net.http.answered.into()),
    Row::Samples(scrape_error),
    Row::Samples(build_info),
];

/// Section TLS: of the certificates in use.
#[rustfmt::skip]
pub const TLS: &[Row] = &[
    field("tls_server_cert_serial", |r| serial(&r.core.state, &r.core.state.config.tls_cert_file)),
    field("tls_server_cert_expires_in_seconds", |r| left(&r.core.state, &r.core.state.config.tls_cert_file)),
    field("tls_client_cert_serial", |r| serial(&r.core.state, &r.core.state.config.tls_client_cert_file)),
    field("tls_client_cert_expires_in_seconds", |r| left(&r.core.state, &r.core.state.config.tls_client_cert_file)),
    field("tls_ca_cert_serial", |r| serial(&r.core.state, &r.core.state.config.tls_ca_cert_file)),
    field("tls_ca_cert_expires_in_seconds", |r| left(&r.core.state, &r.core.state.config.tls_ca_cert_file)),
];

fn config_file(r: &Reading<'_>) -> Value {
    let file = r.core.state.config.config_file.as_deref();
    file.map_or(String::new(), |file| file.display().to_string()).into()
}

fn shutdown_in_milliseconds(r: &Reading<'_>) -> Value {
    let until_us = r.core.state.process.shutdown.and_then(|order| order.waits_until_us);
    until_us.map(|until_us| (until_us - r.core.state.now.boot_us) / 1000).into()
}

fn certificate<'s>(state: &'s State, file: &[u8]) -> Option<&'s CertificateFacts> {
    let tls = state.net.tls.as_ref()?;
    tls.certificates().iter().find(|certificate| certificate.file == file)
}

fn serial(state: &State, file: &[u8]) -> Value {
    certificate(state, file).map_or("none", |certificate| &certificate.serial).into()
}

fn left(state: &State, file: &[u8]) -> Value {
    let left = |certificate: &CertificateFacts| certificate.ends_unix - state.now.unix_seconds();
    certificate(state, file).map_or(0, left).max(0).into()
}

fn uptime(state: &State) -> i64 {
    (state.now.boot_us - state.process.identity.started_us).max(0) / 1_000_000
}

fn version(reading: &Reading<'_>, out: &mut String) {
    let config = &reading.core.state.config;
    line(out, "redis_version", String::from_utf8_lossy(&config.redis_version));
    if config.compatible_with.is_valkey() {
        line(out, "server_name", "valkey");
        line(out, "valkey_version", VALKEY_VERSION);
        line(out, "valkey_release_stage", "ga");
    }
}

fn mode(reading: &Reading<'_>, out: &mut String) {
    let is_valkey = reading.core.state.config.compatible_with.is_valkey();
    let name = if is_valkey { "server_mode" } else { "redis_mode" };
    line(out, name, mode_name(&reading.core.state));
}

fn mode_name(state: &State) -> &'static str {
    if state.config.cluster_enabled { "cluster" } else { "standalone" }
}

/// The listeners, by kind and number as in Valkey.
fn listeners(reading: &Reading<'_>, out: &mut String) {
    let state = &reading.core.state;
    let config = &state.config;
    let addresses = config.bind.iter().map(|address| String::from_utf8_lossy(address));
    let bound: String = addresses.map(|address| format!(",bind={address}")).collect();
    let listens = |is_tls| {
        let mut listeners = state.net.listeners.iter();
        listeners.any(|listener| listener.local_address().is_some() && listener.is_tls() == is_tls)
    };
    if listens(false) {
        let port = state.process.identity.port;
        line(out, "listener0", format_args!("name=tcp{bound},port={port}"));
    }
    if !config.unixsocket.is_empty() {
        let path = String::from_utf8_lossy(&config.unixsocket);
        line(out, "listener1", format_args!("name=unix,bind={path}"));
    }
    if listens(true) {
        let port = state.process.identity.tls_port;
        line(out, "listener2", format_args!("name=tls{bound},port={port}"));
    }
}

/// `maxmemory-policy`, as configured.
pub fn policy_name(policy: MaxmemoryPolicy) -> &'static str {
    policy.word()
}

fn instance(reading: &Reading<'_>, out: &mut Exposition) {
    let state = &reading.core.state;
    let identity = &state.process.identity;
    out.family("redis_instance_info", "gauge", "What this server is.");
    let labels = [
        ("role", if state.replication.is_replica() { "slave" } else { "master" }),
        ("redis_version", &String::from_utf8_lossy(&state.config.redis_version)),
        ("redis_build_id", &build::id()),
        ("redis_mode", mode_name(state)),
        ("os", &machine::system_name()),
        ("maxmemory_policy", policy_name(state.config.maxmemory_policy)),
        ("tcp_port", &identity.port.to_string()),
        ("run_id", &identity.run_id),
        ("process_id", &std::process::id().to_string()),
    ];
    out.sample("redis_instance_info", &labels, 1.0);
}

fn scrape_error(_: &Reading<'_>, out: &mut Exposition) {
    let name = "redis_exporter_last_scrape_error";
    out.family(name, "gauge", "Always 0: no exporter stands between.");
    out.sample(name, &[("err", "")], 0.0);
}

fn build_info(reading: &Reading<'_>, out: &mut Exposition) {
    out.family("latchkey_build_info", "gauge", "The program's version.");
    let labels = [
        ("version", build::VERSION),
        ("commit", build::commit().0),
        ("redis_version", &String::from_utf8_lossy(&reading.core.state.config.redis_version)),
    ];
    out.sample("latchkey_build_info", &labels, 1.0);
}
