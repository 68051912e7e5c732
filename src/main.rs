use latchkey::clock::Clock;
use latchkey::config::Config;
use latchkey::server::Server;
use latchkey::sys::log::{Level, Logger};

fn main() {
    let port = std::env::args().nth(2).and_then(|p| p.parse().ok()).unwrap_or(6379);
    let config = Config {
        bind: vec!["127.0.0.1".into()], port, unixsocket: vec![], unixsocketperm: 0, tcp_backlog: 511, maxclients: 10000, requirepass: vec![],
        databases: 16, pidfile: vec![], hz: 10, timeout: 0, tcp_keepalive: 300, protected_mode: true, maxmemory: 0, proto_max_bulk_len: 512<<20,
        client_query_buffer_limit: 1<<30, slowlog_log_slower_than: 10000, slowlog_max_len: 128, latency_monitor_threshold: 0, latency_tracking: true,
    };
    let mut server = Server::start(config, Clock::System, Logger::new(Level::Notice, b"")).unwrap();
    server.run().unwrap();
}
