//! provisional
pub use value::KeyspaceEvents;
pub mod value;
pub struct Config {
    pub bind: Vec<String>, pub port: u16, pub unixsocket: Vec<u8>, pub unixsocketperm: u32, pub tcp_backlog: i32, pub maxclients: u32, pub requirepass: Vec<u8>,
    pub databases: u32, pub pidfile: Vec<u8>, pub hz: u32, pub timeout: u32, pub tcp_keepalive: u32, pub protected_mode: bool, pub maxmemory: u64, pub proto_max_bulk_len: u64,
    pub client_query_buffer_limit: u64, pub slowlog_log_slower_than: i64, pub slowlog_max_len: u64, pub latency_monitor_threshold: i64, pub latency_tracking: bool,
}
