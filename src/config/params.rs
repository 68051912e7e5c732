//! The table of configuration parameters: the only place where one is declared.
//!
//! An entry consists of the parameter's effect and unit (the doc comment), its name and aliases,
//! the field of [`Config`] with type and default, how values are parsed and formatted (`kind.rs`),
//! and its [`Traits`](super::Traits). From this come the field, the default, CONFIG GET, SET and
//! REWRITE, the directive of the file, and the entries in `redis.conf.example`, the manual page and
//! the completions. Names, bounds and defaults are those of Redis 7.0.15, or of the newer Redis or
//! Valkey that has added the parameter. The doc comment of any other parameter ends with "This
//! server only."
//!
//! CONTRIBUTING.md says how to add one.

use std::path::{Path, PathBuf};

use super::kind::*;
use super::param::WhileLoading::{AcceptedByRedis8, Refused};
use super::param::{Action, Field, IMMUTABLE, MODIFIABLE, Param};
use super::value::*;
use crate::sys::log::{LineFormat, TimeFormat};

/// The process' working directory at its start.
fn current_dir() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| Path::new("/").to_owned())
}

const INT_MIN: i128 = i32::MIN as i128;
const INT_MAX: i128 = i32::MAX as i128;
const UINT_MAX: i128 = u32::MAX as i128;
const LONG_MAX: i128 = i64::MAX as i128;
const ULONG_MAX: i128 = u64::MAX as i128;
const MIB: i128 = 1 << 20;

macro_rules! params {
    ($( section $section:literal { $(
        $(#[doc = $doc:literal])+
        $name:literal $(| $alias:literal)* =>
            $field:ident: $type:ty = $default:expr, $kind:expr, $traits:expr;
    )+ } )+) => {
        /// The configuration: one field for each parameter.
        ///
        /// The server may set fields (REPLICAOF sets `replicaof`); clients change them through
        /// [`Config::set`], which checks bounds.
        #[derive(Clone, PartialEq)]
        pub struct Config {
            $($(
                $(#[doc = $doc])+
                #[doc = ""]
                #[doc = concat!("Source: `", $name, "`.")]
                pub $field: $type,
            )+)+
            /// Absolute path of the file on the command line, if any: CONFIG REWRITE writes it.
            pub config_file: Option<PathBuf>,
            /// Standard input was read, which is impossible a second time.
            pub is_from_stdin: bool,
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($($field: $default,)+)+ config_file: None, is_from_stdin: false }
            }
        }

        /// All parameters, in the order of the example file.
        pub static PARAMS: &[Param] = &[$($(
            Param {
                name: $name,
                aliases: &[$($alias),*],
                doc: &[$($doc),+],
                section: $section,
                traits: $traits,
                field: &Field::<$type, _> {
                    get: |config| &config.$field,
                    get_mut: |config| &mut config.$field,
                    default: || $default,
                    kind: $kind,
                },
            },
        )+)+];
    };
}

params! {
section "Network" {
    /// Addresses on which TCP clients are accepted.
    "bind" => bind: Vec<Vec<u8>> = vec![b"*".to_vec(), b"-::*".to_vec()], Addresses, MODIFIABLE.then(Action::Bind);
    /// Port for TCP clients. 0 accepts none.
    "port" => port: u16 = 6379, int(0, 65535), MODIFIABLE.then(Action::Port);
    /// Path of a Unix socket on which clients are accepted.
    "unixsocket" => unixsocket: Vec<u8> = Vec::new(), OPTIONAL_TEXT, IMMUTABLE;
    /// Permissions of the Unix socket. 0 leaves them to the umask.
    "unixsocketperm" => unixsocketperm: u32 = 0, Octal { max: 0o777 }, IMMUTABLE;
    /// Refuses clients from other hosts while the default user has no password.
    "protected-mode" => protected_mode: bool = true, YesNo, MODIFIABLE;
    /// Length of the queue of connections not accepted yet. The kernel may limit it
    /// (net.core.somaxconn).
    "tcp-backlog" => tcp_backlog: u32 = 511, int(0, INT_MAX), IMMUTABLE;
    /// Seconds after which an idle client is closed. 0 is never.
    "timeout" => timeout: u32 = 0, int(0, INT_MAX), MODIFIABLE;
    /// Seconds between TCP keepalive probes. 0 sends none.
    "tcp-keepalive" => tcp_keepalive: u32 = 300, int(0, INT_MAX), MODIFIABLE;
    /// Address from which connections to other servers are made.
    "bind-source-addr" => bind_source_addr: Vec<u8> = Vec::new(), OPTIONAL_TEXT, MODIFIABLE;
    /// Mark (SO_MARK) of every socket, for packet filters. 0 is none.
    "socket-mark-id" => socket_mark_id: u32 = 0, int(0, UINT_MAX), IMMUTABLE.only_stored();
    /// Maximum number of new connections accepted in a turn of the loop. Known from Redis 7.4.
    "max-new-connections-per-cycle" => max_new_connections_per_cycle: u32 = 10, int(1, 1000), MODIFIABLE.only_stored();
    /// Maximum number of new TLS connections accepted in a turn of the loop. Known from Redis 7.4.
    "max-new-tls-connections-per-cycle" => max_new_tls_connections_per_cycle: u32 = 1, int(1, 1000),
        MODIFIABLE.only_stored();
    /// Group of the Unix socket's file, by name or number. Known from Valkey 9.
    "unixsocketgroup" => unixsocketgroup: Vec<u8> = Vec::new(), OPTIONAL_TEXT, IMMUTABLE;
    /// Multipath TCP. Not supported. Known from Valkey 9.
    "mptcp" => mptcp: bool = false, Unsupported(YesNo, NO_MPTCP), IMMUTABLE;
    /// Port for RDMA. Not supported. Known from Valkey 8.1.
    "rdma-port" => rdma_port: u16 = 0, Unsupported(int(0, 65535), NO_RDMA), MODIFIABLE;
    /// Addresses for RDMA.
    "rdma-bind" => rdma_bind: Vec<Vec<u8>> = Vec::new(), Addresses, MODIFIABLE.only_stored();
    /// Bytes of an RDMA receive buffer.
    "rdma-rx-size" => rdma_rx_size: u32 = 1 << 20, int(64 << 10, 16 << 20), IMMUTABLE.only_stored();
    /// Completion vector of RDMA. -1 leaves it to the system.
    "rdma-completion-vector" => rdma_completion_vector: i32 = -1, int(-1, 1024), IMMUTABLE.only_stored();
}

section "HTTP" {
    /// Port for HTTP: probes, metrics, and a page for operators (docs/http.md). 0 is off. This
    /// server only.
    "http-port" => http_port: u16 = 0, int(0, 65535), MODIFIABLE.then(Action::Http);
    /// Addresses on which HTTP is served. All but loopback addresses ask for a user's password.
    /// This server only.
    "http-bind" => http_bind: Vec<Vec<u8>> = vec![b"127.0.0.1".to_vec()], Addresses, MODIFIABLE.then(Action::Http);
    /// Uses TLS for HTTP, with the server's certificate and tls-auth-clients. This server only.
    "http-tls" => http_tls: bool = false, YesNo, MODIFIABLE.then(Action::Http);
    /// Asks for a user's password on loopback addresses too. This server only.
    "http-auth" => http_auth: bool = false, YesNo, MODIFIABLE;
    /// Host names under which the page and its data are served, besides localhost and addresses.
    /// This server only.
    "http-hosts" => http_hosts: Vec<Vec<u8>> = Vec::new(), Words, MODIFIABLE;
    /// This server's name at the head of the page. Empty: the machine's name. This server only.
    "instance-name" => instance_name: Vec<u8> = Vec::new(), TEXT, MODIFIABLE;
    /// Patterns of keys that are shown as queues and get labels in metrics, at most 100 keys. This
    /// server only.
    "page-keys" => page_keys: Vec<Vec<u8>> = Vec::new(), Words, MODIFIABLE;
}

section "TLS" {
    /// Port for TLS clients. 0 accepts none.
    "tls-port" => tls_port: u16 = 0, int(0, 65535), MODIFIABLE.then(Action::TlsPort);
    /// File with the certificate, in PEM.
    "tls-cert-file" => tls_cert_file: Vec<u8> = Vec::new(), OPTIONAL_TEXT, MODIFIABLE.names_file().then(Action::Tls);
    /// File with the private key, in PEM.
    "tls-key-file" => tls_key_file: Vec<u8> = Vec::new(), OPTIONAL_TEXT, MODIFIABLE.names_file().then(Action::Tls);
    /// Passphrase of the private key.
    "tls-key-file-pass" => tls_key_file_pass: Vec<u8> = Vec::new(), OPTIONAL_TEXT,
        MODIFIABLE.sensitive().then(Action::Tls);
    /// File with the certificate shown to other servers, if it is not the same.
    "tls-client-cert-file" => tls_client_cert_file: Vec<u8> = Vec::new(), OPTIONAL_TEXT,
        MODIFIABLE.names_file().then(Action::Tls);
    /// File with the key of that certificate.
    "tls-client-key-file" => tls_client_key_file: Vec<u8> = Vec::new(), OPTIONAL_TEXT,
        MODIFIABLE.names_file().then(Action::Tls);
    /// Passphrase of that key.
    "tls-client-key-file-pass" => tls_client_key_file_pass: Vec<u8> = Vec::new(), OPTIONAL_TEXT,
        MODIFIABLE.sensitive().then(Action::Tls);
    /// File with Diffie-Hellman parameters. It is checked, but no cipher here uses it.
    "tls-dh-params-file" => tls_dh_params_file: Vec<u8> = Vec::new(), OPTIONAL_TEXT,
        MODIFIABLE.names_file().then(Action::Tls);
    /// File with the certificates of trusted authorities.
    "tls-ca-cert-file" => tls_ca_cert_file: Vec<u8> = Vec::new(), OPTIONAL_TEXT,
        MODIFIABLE.names_file().then(Action::Tls);
    /// Directory with files of such certificates.
    "tls-ca-cert-dir" => tls_ca_cert_dir: Vec<u8> = Vec::new(), OPTIONAL_TEXT,
        MODIFIABLE.names_file().then(Action::Tls);
    /// Whether clients must show a certificate.
    "tls-auth-clients" => tls_auth_clients: &'static str = "yes", Word(&["no", "yes", "optional"]),
        MODIFIABLE.then(Action::Tls);
    /// Field of a client's certificate that names its user, who then needs no password. Known from
    /// Valkey 9.
    "tls-auth-clients-user" => tls_auth_clients_user: &'static str = "off", Word(&["CN", "URI", "off"]), MODIFIABLE;
    /// Uses TLS for the connection to the primary.
    "tls-replication" => tls_replication: bool = false, YesNo, MODIFIABLE.then(Action::Tls);
    /// Uses TLS for connections that MIGRATE opens.
    "tls-cluster" => tls_cluster: bool = false, YesNo, MODIFIABLE.then(Action::Tls);
    /// Versions of TLS that are accepted, separated by spaces, such as "TLSv1.2 TLSv1.3".
    "tls-protocols" => tls_protocols: Vec<u8> = Vec::new(), OPTIONAL_TEXT, MODIFIABLE.then(Action::Tls);
    /// Ciphers of TLS 1.2, in OpenSSL's notation.
    "tls-ciphers" => tls_ciphers: Vec<u8> = Vec::new(), OPTIONAL_TEXT, MODIFIABLE.then(Action::Tls);
    /// Cipher suites of TLS 1.3.
    "tls-ciphersuites" => tls_ciphersuites: Vec<u8> = Vec::new(), OPTIONAL_TEXT, MODIFIABLE.then(Action::Tls);
    /// Lets the server choose the cipher, not the client.
    "tls-prefer-server-ciphers" => tls_prefer_server_ciphers: bool = false, YesNo, MODIFIABLE.then(Action::Tls);
    /// Lets clients resume a session.
    "tls-session-caching" => tls_session_caching: bool = true, YesNo, MODIFIABLE.then(Action::Tls);
    /// Maximum number of sessions kept. 0 is no limit.
    "tls-session-cache-size" => tls_session_cache_size: u32 = 20480, int(0, INT_MAX), MODIFIABLE.then(Action::Tls);
    /// Seconds for which a session is kept.
    "tls-session-cache-timeout" => tls_session_cache_timeout: u32 = 300, int(0, INT_MAX), MODIFIABLE.then(Action::Tls);
    /// Seconds between checks whether one of the files was replaced; if so, they are loaded again.
    /// 0 is never. Known from Valkey 9.1.
    "tls-auto-reload-interval" => tls_auto_reload_interval: u32 = 0, int(0, INT_MAX), MODIFIABLE;
    /// Groups for the exchange of keys. Known from Redis 8.12.
    "tls-groups" => tls_groups: Vec<u8> = Vec::new(), OPTIONAL_TEXT, MODIFIABLE.only_stored();
    /// A second certificate, of another kind of key. Known from Valkey 9.2.
    "tls-alt-cert-file" => tls_alt_cert_file: Vec<u8> = Vec::new(), OPTIONAL_TEXT, MODIFIABLE.only_stored();
    /// Its private key.
    "tls-alt-key-file" => tls_alt_key_file: Vec<u8> = Vec::new(), OPTIONAL_TEXT, MODIFIABLE.only_stored();
    /// Password of this key.
    "tls-alt-key-file-pass" => tls_alt_key_file_pass: Vec<u8> = Vec::new(), OPTIONAL_TEXT,
        MODIFIABLE.sensitive().only_stored();
}

section "General" {
    /// Server and version to follow where servers contradict each other; its name and version are
    /// reported too. See docs/compatible-with.md. Sets redis-version and some defaults too. This
    /// server only.
    "compatible-with" => compatible_with: Compatibility = Compatibility::Redis72, OneOf, MODIFIABLE;
    /// Version that INFO, HELLO and LOLWUT report, for clients that check it before they use a
    /// feature. Overrides the one of compatible-with, in any order of lines. This server only.
    "redis-version" => redis_version: Vec<u8> = b"7.2.4".to_vec(), VERSION, MODIFIABLE;
    /// Runs in the background.
    "daemonize" => daemonize: bool = false, YesNo, IMMUTABLE;
    /// Informs a supervisor once the server is ready.
    "supervised" => supervised: &'static str = "no", Word(&["upstart", "systemd", "auto", "no"]), IMMUTABLE;
    /// File with the process ID while the server runs. In the background, unset means
    /// /var/run/redis.pid.
    "pidfile" => pidfile: Vec<u8> = Vec::new(), OPTIONAL_TEXT, IMMUTABLE;
    /// Minimum level of messages that are logged.
    "loglevel" => loglevel: LogLevel = LogLevel::Notice, OneOf, MODIFIABLE;
    /// File for the log. Empty is standard output.
    "logfile" => logfile: Vec<u8> = Vec::new(), TEXT, IMMUTABLE;
    /// Format of log lines. Known from Valkey 9.
    "log-format" => log_format: LineFormat = LineFormat::Legacy, OneOf, MODIFIABLE;
    /// Format of times in log lines. Known from Valkey 9.
    "log-timestamp-format" => log_timestamp_format: TimeFormat = TimeFormat::Legacy, OneOf, MODIFIABLE;
    /// Keeps keys and names of clients and users out of the log. The default is yes with
    /// compatible-with valkey-9. Known from Redis 8 and Valkey 8.
    "hide-user-data-from-log" => hide_user_data_from_log: bool = false, YesNo, MODIFIABLE;
    /// Logs to syslog too.
    "syslog-enabled" => syslog_enabled: bool = false, YesNo, IMMUTABLE;
    /// The server's name in syslog.
    "syslog-ident" => syslog_ident: Vec<u8> = b"redis".to_vec(), TEXT, IMMUTABLE;
    /// Facility of messages to syslog.
    "syslog-facility" => syslog_facility: &'static str = "local0",
        Word(&["user", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"]), IMMUTABLE;
    /// Writes a report to the log on a crash.
    "crash-log-enabled" => crash_log_enabled: bool = true, YesNo, MODIFIABLE.then(Action::CrashLog);
    /// Tests memory on a crash.
    "crash-memcheck-enabled" => crash_memcheck_enabled: bool = true, YesNo, MODIFIABLE.only_stored();
    /// Exits instead of aborting on a bug of the server.
    "use-exit-on-panic" => use_exit_on_panic: bool = false, YesNo, MODIFIABLE.hidden();
    /// Number of databases. SELECT takes 0 to one less.
    "databases" => databases: u32 = 16, int(1, INT_MAX), IMMUTABLE;
    /// Shows the logo at start even without a terminal.
    "always-show-logo" => always_show_logo: bool = false, YesNo, IMMUTABLE;
    /// Shows addresses and mode in the process' title.
    "set-proc-title" => set_proc_title: bool = true, YesNo, IMMUTABLE;
    /// The process' title. Variables: {title} {listen-addr} {server-mode} {port} {tls-port}
    /// {unixsocket} {config-file}.
    "proc-title-template" => proc_title_template: Vec<u8> = b"{title} {listen-addr} {server-mode}".to_vec(),
        TITLE_TEMPLATE, MODIFIABLE.then(Action::ProcessTitle);
    /// Locale for the order of SORT ... ALPHA. Empty: the environment's. Known from Redis 7.2.
    "locale-collate" => locale_collate: Vec<u8> = Vec::new(), TEXT, MODIFIABLE.only_stored();
    /// Warnings about the kernel's state that do not prevent the start.
    "ignore-warnings" => ignore_warnings: Vec<u8> = Vec::new(), TEXT, MODIFIABLE.only_stored();
    /// Clients that may use DEBUG.
    "enable-debug-command" => enable_debug_command: Permission = Permission::Nobody, OneOf, IMMUTABLE;
    /// Clients that may use MODULE.
    "enable-module-command" => enable_module_command: Permission = Permission::Nobody, OneOf, IMMUTABLE.only_stored();
    /// Clients that may change protected parameters by CONFIG SET: dir, dbfilename.
    "enable-protected-configs" => enable_protected_configs: Permission = Permission::Nobody, OneOf, IMMUTABLE;
    /// Runs of background work per second. Only a hint here: keys expire in time at any value.
    /// An idle server wakes once a second.
    "hz" => hz: u32 = 10, Clamped { min: 1, max: 500 }, MODIFIABLE.then(Action::Hz);
    /// Raises hz with the number of clients.
    "dynamic-hz" => dynamic_hz: bool = true, YesNo, MODIFIABLE.only_stored();
    /// Milliseconds that a turn of the loop may take before the watchdog reports it. 0 switches it
    /// off.
    "watchdog-period" => watchdog_period: u32 = 0, int(0, INT_MAX), MODIFIABLE.hidden().then(Action::Watchdog);
}

section "Shutdown" {
    /// Seconds for which a shutdown waits for lagging replicas.
    "shutdown-timeout" => shutdown_timeout: u32 = 10, int(0, INT_MAX), MODIFIABLE;
    /// Options of a shutdown on SIGINT.
    "shutdown-on-sigint" => shutdown_on_sigint: ShutdownOptions = ShutdownOptions::empty(), Shutdown, MODIFIABLE;
    /// Options of a shutdown on SIGTERM.
    "shutdown-on-sigterm" => shutdown_on_sigterm: ShutdownOptions = ShutdownOptions::empty(), Shutdown, MODIFIABLE;
}

section "Clients and security" {
    /// Password of the default user. Without one, anybody may connect.
    "requirepass" => requirepass: Vec<u8> = Vec::new(), SECRET, MODIFIABLE.sensitive().then(Action::RequirePass);
    /// File with ACL users, instead of user directives.
    "aclfile" => aclfile: Vec<u8> = Vec::new(), TEXT, IMMUTABLE;
    /// Maximum number of entries in ACL LOG.
    "acllog-max-len" => acllog_max_len: usize = 128, int(0, LONG_MAX), MODIFIABLE;
    /// Channels that a new ACL user may use.
    "acl-pubsub-default" => acl_pubsub_default: AclPubsubDefault = AclPubsubDefault::ResetChannels, OneOf, MODIFIABLE;
    /// Maximum number of clients. Further ones get an error and are closed.
    "maxclients" => maxclients: u32 = 10000, int(1, UINT_MAX), MODIFIABLE.then(Action::MaxClients);
    /// Places of maxclients kept for clients of the Unix socket and of loopback addresses, so that
    /// an operator can log in when the others are taken. One place is for everybody, even if this
    /// is more than maxclients. This server only.
    "maxclients-reserved" => maxclients_reserved: u32 = 0, int(0, UINT_MAX), MODIFIABLE;
    /// Networks whose clients get the places of maxclients-reserved. Known from Valkey 9.2.
    "priority-subnets" => priority_subnets: Vec<u8> = Vec::new(), TEXT, MODIFIABLE.only_stored();
    /// Microseconds after which a long command lets such clients be served. Known from Valkey 9.2.
    "priority-preemptive-poll-interval-us" => priority_preemptive_poll_interval_us: Vec<u8> = Vec::new(), TEXT,
        MODIFIABLE.only_stored();
    /// Bytes of unread replies at which a client is closed: at once at the hard limit, after some
    /// seconds above the soft limit. 0 is no limit. Each line sets one or more classes; the others
    /// are unchanged.
    "client-output-buffer-limit" => client_output_buffer_limit: [OutputBufferLimit; 3] = [
        OutputBufferLimit { hard_bytes: 0, soft_bytes: 0, soft_seconds: 0 },
        OutputBufferLimit { hard_bytes: 256 << 20, soft_bytes: 64 << 20, soft_seconds: 60 },
        OutputBufferLimit { hard_bytes: 32 << 20, soft_bytes: 8 << 20, soft_seconds: 60 },
    ], OutputBufferLimits, MODIFIABLE;
    /// Maximum bytes of a client's pending requests.
    "client-query-buffer-limit" => client_query_buffer_limit: u64 = 1 << 30, memory(MIB, LONG_MAX), MODIFIABLE;
    /// Maximum bytes of a string in a request.
    "proto-max-bulk-len" => proto_max_bulk_len: u64 = 512 << 20, memory(MIB, LONG_MAX), MODIFIABLE;
    /// Maximum number of keys remembered for client-side caching. 0 is no limit.
    "tracking-table-max-keys" => tracking_table_max_keys: usize = 1_000_000, int(0, LONG_MAX), MODIFIABLE;
    /// Gives scripts the functions that Redis calls deprecated: getfenv, setfenv (of functions, not
    /// of levels) and newproxy.
    "lua-enable-deprecated-api" | "lua-enable-insecure-api" => lua_enable_deprecated_api: bool = false, YesNo,
        IMMUTABLE.hidden();
    /// Milliseconds after which a script or another long command makes other clients get BUSY
    /// errors.
    "busy-reply-threshold" | "lua-time-limit" => busy_reply_threshold: i64 = 5000, int(0, LONG_MAX), MODIFIABLE;
    /// Treatment of a script that has run for busy-reply-threshold: it continues (wait), is killed
    /// if it has written nothing (kill-readonly), or is killed in any case and its writes are
    /// rolled back (rollback). This server only.
    "busy-script-policy" => busy_script_policy: BusyScriptPolicy = BusyScriptPolicy::Wait, OneOf, MODIFIABLE;
    /// Bytes of old values that are copied while a script runs, for SCRIPT KILL ROLLBACK. A script
    /// that changes more cannot be rolled back. 0 disables rollback. This server only.
    "script-undo-limit" => script_undo_limit: u64 = 64 << 20, memory(0, LONG_MAX), MODIFIABLE;
    /// Maximum bytes of memory that scripts hold in Lua; a script that needs more gets an error.
    /// This server only.
    "script-memory-limit" => script_memory_limit: u64 = 256 << 20, memory(MIB, LONG_MAX), MODIFIABLE;
    /// Maximum bytes of the source of a script or library. Nothing else runs while it is compiled,
    /// which takes about a quarter of a second for a megabyte. This server only.
    "script-source-limit" => script_source_limit: u64 = 1 << 20, memory(1024, LONG_MAX), MODIFIABLE;
    /// Sources of scripts survive restarts and failovers: those loaded, and those that EVAL has
    /// sent more than once. Snapshots have them, and so have the append-only file and replicas, as
    /// SCRIPT LOAD. This server only.
    "script-cache-persist" => script_cache_persist: bool = false, YesNo, MODIFIABLE;
    /// Maximum bytes of the sources that survive; the last used ones do. This server only.
    "script-cache-persist-limit" => script_cache_persist_limit: u64 = 16 << 20, memory(0, LONG_MAX), MODIFIABLE;
}

section "Memory" {
    /// Bytes that data may take; above that, maxmemory-policy applies. 0 is no limit.
    "maxmemory" => maxmemory: u64 = 0, memory(0, ULONG_MAX), MODIFIABLE.then(Action::MaxMemory);
    /// Which keys are evicted above maxmemory: of all keys (allkeys-) or of those with a time to
    /// live (volatile-), the least recently used (lru) or changed (lrm), the least frequently used
    /// (lfu), random ones (random) or the next to expire (ttl). With noeviction, writes are
    /// refused.
    "maxmemory-policy" => maxmemory_policy: MaxmemoryPolicy = MaxmemoryPolicy::NoEviction, OneOf, MODIFIABLE;
    /// Keys sampled for each eviction. More are closer to true LRU, and slower.
    "maxmemory-samples" => maxmemory_samples: u32 = 5, int(1, INT_MAX), MODIFIABLE;
    /// How long eviction may take before clients are served again: from 0, the shortest time, to
    /// 100, no limit.
    "maxmemory-eviction-tenacity" => maxmemory_eviction_tenacity: u32 = 10, int(0, 100), MODIFIABLE;
    /// Patterns of keys that are never evicted. Locks and semaphores are not, either. This server
    /// only.
    "maxmemory-protect" => maxmemory_protect: Vec<Vec<u8>> = Vec::new(), Words, MODIFIABLE;
    /// Bytes that sources of scripts may take. Known from Valkey 9.2.
    "maxmemory-scripts" => maxmemory_scripts: Vec<u8> = Vec::new(), TEXT, MODIFIABLE.only_stored();
    /// Bytes that the buffers of all clients may take; above that, the largest clients are closed.
    /// 0 is no limit; a percentage is of maxmemory.
    "maxmemory-clients" => maxmemory_clients: MemoryLimit = MemoryLimit::Bytes(0), MemoryOrPercent,
        MODIFIABLE.then(Action::MaxMemoryClients);
    /// How slowly LFU's access counter saturates: at 10, after about a million accesses.
    "lfu-log-factor" => lfu_log_factor: u32 = 10, int(0, INT_MAX), MODIFIABLE;
    /// Minutes after which LFU's access counter is decremented. 0 is never.
    "lfu-decay-time" => lfu_decay_time: u32 = 1, int(0, INT_MAX), MODIFIABLE;
    /// Effort to find expired keys. Not needed here: all deadlines are indexed.
    "active-expire-effort" => active_expire_effort: u32 = 1, int(1, 10), MODIFIABLE.only_stored();
    /// Frees evicted values in the background, and replicates the deletion as UNLINK, not DEL.
    /// Large values are always freed in the background here.
    "lazyfree-lazy-eviction" => lazyfree_lazy_eviction: bool = false, YesNo, MODIFIABLE;
    /// The same for expired values.
    "lazyfree-lazy-expire" => lazyfree_lazy_expire: bool = false, YesNo, MODIFIABLE;
    /// Frees values that commands replace in the background, as it always does here. With
    /// compatible-with valkey-9, SPOP and RESTORE that delete a key are replicated as UNLINK.
    "lazyfree-lazy-server-del" => lazyfree_lazy_server_del: bool = false, YesNo, MODIFIABLE;
    /// Makes DEL work like UNLINK, as it always does here; GETDEL is replicated as UNLINK.
    "lazyfree-lazy-user-del" => lazyfree_lazy_user_del: bool = false, YesNo, MODIFIABLE;
    /// Makes FLUSHALL, FLUSHDB, SCRIPT FLUSH and FUNCTION FLUSH asynchronous unless SYNC is given.
    "lazyfree-lazy-user-flush" => lazyfree_lazy_user_flush: bool = false, YesNo, MODIFIABLE.only_stored();
    /// Resizes hash tables in idle time. Not needed here: tables grow in small steps.
    "activerehashing" => activerehashing: bool = true, YesNo, MODIFIABLE.only_stored();
    /// Moves values in memory to reduce fragmentation. CONFIG SET refuses yes; files may have it.
    "activedefrag" => activedefrag: bool = false, OnlyInFiles(Unsupported(YesNo, NO_DEFRAG)),
        MODIFIABLE.only_stored();
    /// Microseconds of a cycle of defragmentation. Known from Valkey 8.1.
    "active-defrag-cycle-us" => active_defrag_cycle_us: u32 = 500, int(0, 100_000), MODIFIABLE.only_stored();
    /// Bytes of fragmentation below which nothing is moved.
    "active-defrag-ignore-bytes" => active_defrag_ignore_bytes: u64 = 100 << 20, memory(1, LONG_MAX),
        MODIFIABLE.only_stored();
    /// Percentage of fragmentation at which defragmentation starts.
    "active-defrag-threshold-lower" => active_defrag_threshold_lower: u32 = 10, int(0, 1000), MODIFIABLE.only_stored();
    /// Percentage of fragmentation at which defragmentation works hardest.
    "active-defrag-threshold-upper" => active_defrag_threshold_upper: u32 = 100, int(0, 1000), MODIFIABLE.only_stored();
    /// Minimum percentage of CPU time for defragmentation.
    "active-defrag-cycle-min" => active_defrag_cycle_min: u32 = 1, int(1, 99), MODIFIABLE.only_stored();
    /// Maximum percentage of CPU time for defragmentation.
    "active-defrag-cycle-max" => active_defrag_cycle_max: u32 = 25, int(1, 99), MODIFIABLE.only_stored();
    /// Elements above which a collection is moved in several steps.
    "active-defrag-max-scan-fields" => active_defrag_max_scan_fields: usize = 1000, int(1, LONG_MAX),
        MODIFIABLE.only_stored();
    /// Lets the allocator return memory to the system from a background thread. Otherwise commands
    /// do so now and then, which can take some milliseconds after large deletions.
    "jemalloc-bg-thread" => jemalloc_bg_thread: bool = true, YesNo,
        MODIFIABLE.then(Action::AllocatorThread);
    /// Disables transparent huge pages for the process: they cost memory while a child process
    /// saves.
    "disable-thp" => disable_thp: bool = true, YesNo, IMMUTABLE.only_stored();
    /// How oom-score-adj-values are used: added to the score at start (relative, yes), as they are
    /// (absolute), or not at all (no).
    "oom-score-adj" => oom_score_adj: OomScoreAdj = OomScoreAdj::No, OneOf, MODIFIABLE.then(Action::OomScore);
    /// Scores by which the kernel chooses the process to kill when memory runs out.
    "oom-score-adj-values" => oom_score_adj_values: [i32; 3] = [0, 200, 800], OomScores,
        MODIFIABLE.then(Action::OomScore);
    /// Counts keys by their size. Known from Redis 8.6.
    "key-memory-histograms" => key_memory_histograms: bool = false, YesNo, MODIFIABLE.only_stored();
}

section "Encodings" {
    /// Maximum number of fields in a hash that is a listpack.
    "hash-max-listpack-entries" | "hash-max-ziplist-entries" => hash_max_listpack_entries: usize = 512,
        int(0, LONG_MAX), MODIFIABLE;
    /// Maximum bytes of a field or value in a hash that is a listpack.
    "hash-max-listpack-value" | "hash-max-ziplist-value" => hash_max_listpack_value: usize = 64, memory(0, LONG_MAX),
        MODIFIABLE;
    /// Maximum size of a node of a list: elements if positive; -1 to -5 are 4, 8, 16, 32 and 64 KB.
    "list-max-listpack-size" | "list-max-ziplist-size" => list_max_listpack_size: i32 = -2, int(INT_MIN, INT_MAX),
        MODIFIABLE;
    /// Nodes at each end of a list that stay uncompressed. 0 compresses none.
    "list-compress-depth" => list_compress_depth: u32 = 0, int(0, INT_MAX), MODIFIABLE.only_stored();
    /// Maximum number of integers in a set that is an intset.
    "set-max-intset-entries" => set_max_intset_entries: usize = 512, int(0, LONG_MAX), MODIFIABLE;
    /// Maximum number of elements in a set that is a listpack. Known from Redis 7.2.
    "set-max-listpack-entries" => set_max_listpack_entries: usize = 128, int(0, LONG_MAX), MODIFIABLE;
    /// Maximum bytes of an element in a set that is a listpack. Known from Redis 7.2.
    "set-max-listpack-value" => set_max_listpack_value: usize = 64, int(0, LONG_MAX), MODIFIABLE;
    /// Maximum number of elements in a sorted set that is a listpack.
    "zset-max-listpack-entries" | "zset-max-ziplist-entries" => zset_max_listpack_entries: usize = 128,
        int(0, LONG_MAX), MODIFIABLE;
    /// Maximum bytes of an element in a sorted set that is a listpack.
    "zset-max-listpack-value" | "zset-max-ziplist-value" => zset_max_listpack_value: usize = 64, memory(0, LONG_MAX),
        MODIFIABLE;
    /// Maximum bytes of a HyperLogLog that is sparse.
    "hll-sparse-max-bytes" => hll_sparse_max_bytes: usize = 3000, memory(0, LONG_MAX), MODIFIABLE;
    /// Maximum bytes of a node of a stream. 0 is no limit.
    "stream-node-max-bytes" => stream_node_max_bytes: usize = 4096, memory(0, LONG_MAX), MODIFIABLE;
    /// Maximum number of entries in a node of a stream. 0 is no limit.
    "stream-node-max-entries" => stream_node_max_entries: i64 = 100, int(0, LONG_MAX), MODIFIABLE;
    /// Seconds for which a stream remembers what producers have added. Known from Redis 8.6.
    "stream-idmp-duration" => stream_idmp_duration: u32 = 100, int(1, 86_400), MODIFIABLE;
    /// Entries that a stream remembers of each producer. Known from Redis 8.6.
    "stream-idmp-maxsize" => stream_idmp_maxsize: u32 = 100, int(1, 10_000), MODIFIABLE;
    /// Runs commands of vector sets on one thread. Known from Redis 8.4.
    "vset-force-single-threaded-execution" => vset_force_single_threaded_execution: bool = false, YesNo,
        MODIFIABLE.only_stored();
    /// Hashes of a file that share the names of their fields, at least, for them to do so in
    /// memory. Known from Redis 8.10.
    "hash-rdb-load-min-template-entries" => hash_rdb_load_min_template_entries: Vec<u8> = Vec::new(), TEXT,
        MODIFIABLE.only_stored();
    /// The most fields of hashes that share their names in memory. Known from Redis 8.10.
    "hash-rdb-load-max-template-entries" => hash_rdb_load_max_template_entries: Vec<u8> = Vec::new(), TEXT,
        MODIFIABLE.only_stored();
    /// When hashes of a file no longer share the names of their fields. Known from Redis 8.10.
    "hash-rdb-load-template-disassembly-threshold" => hash_rdb_load_template_disassembly_threshold: Vec<u8> = Vec::new(),
        TEXT, MODIFIABLE.only_stored();
    /// Stores new bitmaps compressed. Known from Redis 8.12.
    "bitmap-default-roaring" => bitmap_default_roaring: bool = false, YesNo, MODIFIABLE.only_stored();
}

section "Events, slow log and latency" {
    /// Which keyspace events are published: to keyspace channels (K), to keyevent channels (E), and
    /// those about fields of hashes to the channels of Redis 8.8, by key (S), event (T), field (I),
    /// or event and key (V); of generic commands (g), strings ($), lists (l), sets (s), hashes (h),
    /// sorted sets (z), streams (t), modules (d), of expired keys (x), evicted keys (e), missed
    /// keys (m), new keys (n), values that are replaced (o), and get another type thereby (c). A is
    /// g$lshztdxe.
    "notify-keyspace-events" => notify_keyspace_events: KeyspaceEvents = KeyspaceEvents::empty(), EventClasses,
        MODIFIABLE;
    /// Microseconds that a command must take to be added to the slow log. 0 adds all, -1 none.
    "slowlog-log-slower-than" | "commandlog-execution-slower-than" => slowlog_log_slower_than: i64 = 10000,
        int(-1, LONG_MAX), MODIFIABLE;
    /// Maximum number of entries in the slow log.
    "slowlog-max-len" | "commandlog-slow-execution-max-len" => slowlog_max_len: usize = 128, int(0, LONG_MAX),
        MODIFIABLE;
    /// Bytes that a request must have to be added to the command log. -1 adds none. Known from
    /// Valkey 8.1.
    "commandlog-request-larger-than" => commandlog_request_larger_than: i64 = 1 << 20, int(-1, LONG_MAX), MODIFIABLE;
    /// Maximum number of large requests in the command log. Known from Valkey 8.1.
    "commandlog-large-request-max-len" => commandlog_large_request_max_len: usize = 128, int(0, LONG_MAX), MODIFIABLE;
    /// Bytes that a reply must have to be added to the command log. -1 adds none. Known from Valkey
    /// 8.1.
    "commandlog-reply-larger-than" => commandlog_reply_larger_than: i64 = 1 << 20, int(-1, LONG_MAX), MODIFIABLE;
    /// Maximum number of large replies in the command log. Known from Valkey 8.1.
    "commandlog-large-reply-max-len" => commandlog_large_reply_max_len: usize = 128, int(0, LONG_MAX), MODIFIABLE;
    /// Milliseconds that an event must take to be added to the latency monitor. 0 switches it off.
    "latency-monitor-threshold" => latency_monitor_threshold: i64 = 0, int(0, LONG_MAX), MODIFIABLE;
    /// Keeps a histogram of execution times for each command.
    "latency-tracking" => latency_tracking: bool = true, YesNo, MODIFIABLE;
    /// Percentiles of those times in INFO latencystats.
    "latency-tracking-info-percentiles" => latency_tracking_info_percentiles: Vec<f64> = vec![50.0, 99.0, 99.9],
        Percentiles, MODIFIABLE;
    /// Arguments of a request in the slow log. Known from Redis 8.8.
    "slowlog-entry-max-argc" => slowlog_entry_max_argc: u32 = 32, int(0, INT_MAX), MODIFIABLE.only_stored();
    /// Bytes of such an argument. Known from Redis 8.8.
    "slowlog-entry-max-string-len" => slowlog_entry_max_string_len: u32 = 128, int(0, INT_MAX), MODIFIABLE.only_stored();
    /// Keys that are counted as the hottest. Known from Valkey 9.2.
    "hotkeys-top-k" => hotkeys_top_k: u32 = 0, int(0, INT_MAX), MODIFIABLE.only_stored();
    /// Percentage of requests that count for this. Known from Valkey 9.2.
    "hotkeys-sampling-percentage" => hotkeys_sampling_percentage: u32 = 1, int(0, 100), MODIFIABLE.only_stored();
}

section "Snapshots" {
    /// Directory of snapshots and append-only files; other relative paths start here too.
    "dir" => dir: PathBuf = current_dir(), Directory, MODIFIABLE.protected().while_loading(Refused).then(Action::Dir);
    /// File name of the snapshot.
    "dbfilename" => dbfilename: Vec<u8> = b"dump.rdb".to_vec(), DB_FILENAME, MODIFIABLE.protected();
    /// Pairs of seconds and changes: a snapshot is saved when both have been reached since the last
    /// one. The process is not forked: see docs/durability.md.
    "save" => save: Vec<SavePoint> = vec![
        SavePoint { seconds: 3600, changes: 1 },
        SavePoint { seconds: 300, changes: 100 },
        SavePoint { seconds: 60, changes: 10000 },
    ], Save, MODIFIABLE;
    /// Refuses writes after a background save failed, until one succeeds.
    "stop-writes-on-bgsave-error" => stop_writes_on_bgsave_error: bool = true, YesNo, MODIFIABLE;
    /// Compresses strings in snapshots.
    "rdbcompression" => rdbcompression: bool = true, YesNoOr(&["lz4", "zstd"]), MODIFIABLE;
    /// Writes and checks a checksum at the end of snapshots.
    "rdbchecksum" => rdbchecksum: bool = true, YesNo, IMMUTABLE;
    /// Checks payloads of RESTORE and of snapshots in depth.
    "sanitize-dump-payload" => sanitize_dump_payload: SanitizeDumpPayload = SanitizeDumpPayload::No, OneOf,
        MODIFIABLE.only_stored();
    /// Deletes snapshots made for replication if no other persistence is enabled.
    "rdb-del-sync-files" => rdb_del_sync_files: bool = false, YesNo, MODIFIABLE;
    /// Syncs snapshots to disk in parts while they are written.
    "rdb-save-incremental-fsync" => rdb_save_incremental_fsync: bool = true, YesNo, MODIFIABLE;
    /// Whether snapshots of unknown versions are refused, or with relaxed read as far as their
    /// types are known. From Valkey 9.
    "rdb-version-check" => rdb_version_check: &'static str = "strict", Word(&["strict", "relaxed"]), MODIFIABLE;
    /// Microseconds to wait after each saved key, for tests; if negative, the number of keys per
    /// microsecond.
    "rdb-key-save-delay" => rdb_key_save_delay: i32 = 0, int(INT_MIN, INT_MAX), MODIFIABLE.hidden();
    /// Microseconds to wait after each loaded key, for tests; if negative, the number of keys per
    /// microsecond.
    "key-load-delay" => key_load_delay: i32 = 0, int(INT_MIN, INT_MAX), MODIFIABLE.hidden();
    /// Bytes loaded between checks for events of clients.
    "loading-process-events-interval-bytes" => loading_process_events_interval_bytes: u64 = 2 << 20, int(1024, INT_MAX),
        MODIFIABLE.hidden().only_stored();
    /// Folder for the files of BACKUP. Known from Redis 8.10.
    "backupdirname" => backupdirname: Vec<u8> = b"backupdir".to_vec(), TEXT, MODIFIABLE.only_stored();
    /// Seconds after which a finished backup is deleted. 0 is never.
    "backup-sealed-ttl" => backup_sealed_ttl: i64 = 0, int(0, LONG_MAX), MODIFIABLE.only_stored();
    /// Allows snapshots without a child process; here all are. Known from Valkey 9.2.
    "forkless-infrastructure-enabled" => forkless_infrastructure_enabled: bool = false, YesNo, MODIFIABLE.only_stored();
    /// How BGSAVE saves; here always without a child process. Known from Valkey 9.2.
    "bgsave-default-method" => bgsave_default_method: &'static str = "fork", Word(&["fork", "forkless"]),
        MODIFIABLE.only_stored();
}

section "Append-only file" {
    /// Logs every write. If enabled while the server runs, it takes effect once the existing data
    /// is written.
    "appendonly" => appendonly: bool = false, YesNo, MODIFIABLE.while_loading(AcceptedByRedis8).then(Action::AppendOnly);
    /// Prefix of the names of the append-only files.
    "appendfilename" => appendfilename: Vec<u8> = b"appendonly.aof".to_vec(), APPEND_FILENAME, IMMUTABLE;
    /// Directory of the append-only files, within dir.
    "appenddirname" => appenddirname: Vec<u8> = b"appendonlydir".to_vec(), APPEND_DIRNAME, IMMUTABLE;
    /// When the AOF is synced to disk: before each reply to a write (always), every second
    /// (everysec), or when the system decides (no). A reply to a write is never sent before the
    /// write is handed to the system.
    "appendfsync" => appendfsync: AppendFsync = AppendFsync::EverySecond, OneOf, MODIFIABLE;
    /// Does not sync the AOF to disk while a snapshot or rewrite is written.
    "no-appendfsync-on-rewrite" => no_appendfsync_on_rewrite: bool = false, YesNo, MODIFIABLE;
    /// Percentage by which the AOF must have grown before it is rewritten. 0 is never.
    "auto-aof-rewrite-percentage" => auto_aof_rewrite_percentage: u32 = 100, int(0, INT_MAX), MODIFIABLE;
    /// Minimum bytes of an AOF that is rewritten.
    "auto-aof-rewrite-min-size" => auto_aof_rewrite_min_size: u64 = 64 << 20, memory(0, LONG_MAX), MODIFIABLE;
    /// Starts although the AOF ends in an incomplete request or transaction, which is cut off.
    /// Damage elsewhere always prevents the start.
    "aof-load-truncated" => aof_load_truncated: bool = true, YesNo, MODIFIABLE;
    /// Rewrites the AOF as a snapshot; otherwise as commands, which load more slowly.
    "aof-use-rdb-preamble" => aof_use_rdb_preamble: bool = true, YesNo, MODIFIABLE;
    /// Writes times into the AOF, so that it can be cut off at one.
    "aof-timestamp-enabled" => aof_timestamp_enabled: bool = false, YesNo, MODIFIABLE;
    /// Syncs a rewritten AOF to disk in parts.
    "aof-rewrite-incremental-fsync" => aof_rewrite_incremental_fsync: bool = true, YesNo, MODIFIABLE;
    /// Keeps the files that a rewrite replaced.
    "aof-disable-auto-gc" => aof_disable_auto_gc: bool = false, YesNo, MODIFIABLE.then(Action::AofHistory);
    /// Starts although the AOF ends in at most this many bytes from the first damaged request or
    /// transaction on, which are cut off. 0 never. Known from Redis 8.4.
    "aof-load-corrupt-tail-max-size" => aof_load_corrupt_tail_max_size: i64 = 0, int(0, LONG_MAX), MODIFIABLE;
}

section "Locks" {
    /// Number of replicas that must acknowledge each grant and renewal of a lock before the reply
    /// leaves, if the command does not give its own number (REPLICAS). This server only.
    "lock-min-replicas" => lock_min_replicas: u32 = 0, int(0, 1000), MODIFIABLE.then(Action::Locks);
    /// Milliseconds that such a reply waits before the grant is taken back. This server only.
    "lock-ack-timeout" => lock_ack_timeout: i64 = 1000, int(1, 3_600_000), MODIFIABLE;
    /// Milliseconds for which no lock is granted after a start or a promotion: the longest lease
    /// that may have been lost with the last writes. This server only.
    "lock-recovery-delay" => lock_recovery_delay: i64 = 0, int(0, 3_600_000), MODIFIABLE;
    /// Milliseconds for which a lost lock is granted to nobody: its lease or session has ended, or
    /// it was broken. This server only.
    "lock-delay" => lock_delay: i64 = 0, int(0, 3_600_000), MODIFIABLE;
    /// Maximum number of clients that wait for locks and permits. This server only.
    "lock-max-waiters" => lock_max_waiters: u32 = 100_000, int(0, INT_MAX), MODIFIABLE;
}

section "Replication" {
    /// The server of which this one is a replica.
    "replicaof" | "slaveof" => replicaof: Option<PrimaryAddress> = None, Primary, IMMUTABLE;
    /// Password for the primary.
    "masterauth" | "primaryauth" => masterauth: Vec<u8> = Vec::new(), SECRET, MODIFIABLE.sensitive();
    /// User for the primary.
    "masteruser" | "primaryuser" => masteruser: Vec<u8> = Vec::new(), OPTIONAL_TEXT, MODIFIABLE.sensitive();
    /// Serves reads while the link to the primary is down.
    "replica-serve-stale-data" | "slave-serve-stale-data" => replica_serve_stale_data: bool = true, YesNo, MODIFIABLE;
    /// Refuses clients' writes on a replica.
    "replica-read-only" | "slave-read-only" => replica_read_only: bool = true, YesNo, MODIFIABLE;
    /// Evicts nothing on a replica: its primary does.
    "replica-ignore-maxmemory" | "slave-ignore-maxmemory" => replica_ignore_maxmemory: bool = true, YesNo, MODIFIABLE;
    /// Frees the old data in the background before a full synchronisation.
    "replica-lazy-flush" | "slave-lazy-flush" => replica_lazy_flush: bool = false, YesNo, MODIFIABLE;
    /// Continues as a replica if writing to its own disk fails.
    "replica-ignore-disk-write-errors" => replica_ignore_disk_write_errors: bool = false, YesNo,
        MODIFIABLE.only_stored();
    /// Sentinel promotes the replica with the lowest priority. 0 is never promoted.
    "replica-priority" | "slave-priority" => replica_priority: u32 = 100, int(0, INT_MAX), MODIFIABLE;
    /// Whether Sentinel reports this replica to clients.
    "replica-announced" => replica_announced: bool = true, YesNo, MODIFIABLE;
    /// Address that a replica reports to its primary.
    "replica-announce-ip" | "slave-announce-ip" => replica_announce_ip: Vec<u8> = Vec::new(), OPTIONAL_TEXT, MODIFIABLE;
    /// Port that a replica reports to its primary. 0 is the port it listens on.
    "replica-announce-port" | "slave-announce-port" => replica_announce_port: u16 = 0, int(0, 65535), MODIFIABLE;
    /// Minimum number of good replicas for writes; with fewer, writes are refused. 0 needs none.
    "min-replicas-to-write" | "min-slaves-to-write" => min_replicas_to_write: u32 = 0, int(0, INT_MAX),
        MODIFIABLE.then(Action::GoodReplicas);
    /// Maximum seconds of lag of a good replica.
    "min-replicas-max-lag" | "min-slaves-max-lag" => min_replicas_max_lag: u32 = 10, int(0, INT_MAX),
        MODIFIABLE.then(Action::GoodReplicas);
    /// Number of replicas that could be promoted: WAIT ALL waits for at least this number,
    /// connected or not. 0 disables WAIT ALL. This server only.
    "wait-all-replicas" => wait_all_replicas: u32 = 0, int(0, INT_MAX), MODIFIABLE;
    /// Seconds for which a server that starts as a primary must have replicas before it accepts
    /// writes. It should be longer than a failover takes: if a replica has been promoted, those
    /// writes would be lost. REPLICAOF NO ONE ends the wait. 0 accepts writes at once. This server
    /// only.
    "primary-restart-read-only" => primary_restart_read_only: u32 = 0, int(0, INT_MAX),
        MODIFIABLE.then(Action::GoodReplicas);
    /// Sends no snapshot to replicas with data if this primary started without data, or with an
    /// older RDB file: the snapshot would delete theirs. Off, as Redis users expect of a cache that
    /// is restarted. This server only.
    "repl-protect-empty-primary" => repl_protect_empty_primary: bool = false, YesNo,
        MODIFIABLE.then(Action::GoodReplicas);
    /// Stops a primary as soon as sentinels have made a replica of it the primary: it takes no more
    /// writes, and closes clients, which then ask sentinels (docs/failover.md). This server only.
    "sentinel-step-down" => sentinel_step_down: bool = true, YesNo, MODIFIABLE;
    /// Bytes of the replication backlog, from which reconnecting replicas continue.
    "repl-backlog-size" => repl_backlog_size: u64 = 1 << 20, memory(1, LONG_MAX).raised_to(16 << 10),
        MODIFIABLE.then(Action::ReplicationBacklog);
    /// Seconds without replicas after which the backlog is freed. 0 is never.
    "repl-backlog-ttl" => repl_backlog_ttl: i64 = 3600, int(0, LONG_MAX), MODIFIABLE;
    /// Seconds between pings to replicas.
    "repl-ping-replica-period" | "repl-ping-slave-period" => repl_ping_replica_period: u32 = 10, int(1, INT_MAX),
        MODIFIABLE;
    /// Seconds of silence after which a replication link is closed.
    "repl-timeout" => repl_timeout: u32 = 60, int(1, INT_MAX), MODIFIABLE;
    /// Sends small writes to replicas in fewer packets, with up to 40 ms more lag.
    "repl-disable-tcp-nodelay" => repl_disable_tcp_nodelay: bool = false, YesNo, MODIFIABLE;
    /// Sends snapshots to replicas without writing a file.
    "repl-diskless-sync" => repl_diskless_sync: bool = true, YesNo, MODIFIABLE;
    /// Seconds to wait for more replicas before such a snapshot starts.
    "repl-diskless-sync-delay" => repl_diskless_sync_delay: u32 = 5, int(0, INT_MAX), MODIFIABLE;
    /// Number of replicas with which such a snapshot starts without waiting. 0 always waits.
    "repl-diskless-sync-max-replicas" => repl_diskless_sync_max_replicas: u32 = 0, int(0, INT_MAX), MODIFIABLE;
    /// When a replica loads the snapshot directly from the socket.
    "repl-diskless-load" => repl_diskless_load: DisklessLoad = DisklessLoad::Disabled, OneOf, MODIFIABLE.while_loading(Refused);
    /// Sends the snapshot and the writes after it over two connections. Known from Valkey 8.
    "dual-channel-replication-enabled" => dual_channel_replication_enabled: bool = false, YesNo,
        MODIFIABLE.only_stored();
    /// Reaction to an error in a command from the primary or the append-only file.
    "propagation-error-behavior" => propagation_error_behavior: &'static str = "ignore",
        Word(&["ignore", "panic", "panic-on-replicas"]), MODIFIABLE;
    /// Multipath TCP to the primary. Not supported. Known from Valkey 9.
    "repl-mptcp" => repl_mptcp: bool = false, Unsupported(YesNo, NO_MPTCP), IMMUTABLE;
    /// Sends the snapshot over a separate connection. Known from Redis 8.
    "repl-rdb-channel" => repl_rdb_channel: bool = false, YesNo, MODIFIABLE.hidden().only_stored();
    /// Bytes of the replication stream that a replica keeps while it loads the snapshot. Known from
    /// Redis 8.
    "replica-full-sync-buffer-limit" => replica_full_sync_buffer_limit: u64 = 0, memory(0, ULONG_MAX),
        MODIFIABLE.only_stored();
    /// Slows down clients while replicas lag. Known from Valkey 9.2.
    "repl-throttling-enabled" => repl_throttling_enabled: bool = false, YesNo, MODIFIABLE.only_stored();
    /// Compresses the stream to replicas. Known from Valkey 9.2.
    "repl-compression" => repl_compression: Vec<u8> = b"no".to_vec(), TEXT, MODIFIABLE.only_stored();
}

section "Cluster" {
    /// Runs as a node of a cluster.
    "cluster-enabled" => cluster_enabled: bool = false, YesNo, IMMUTABLE;
    /// File in which the node keeps the cluster's state.
    "cluster-config-file" => cluster_config_file: Vec<u8> = b"nodes.conf".to_vec(), TEXT, IMMUTABLE;
    /// Milliseconds of silence after which a node is considered failed.
    "cluster-node-timeout" => cluster_node_timeout: i64 = 15000, int(0, LONG_MAX), MODIFIABLE;
    /// Port of the cluster bus. 0 is the client port plus 10000.
    "cluster-port" => cluster_port: u16 = 0, int(0, 65535), IMMUTABLE;
    /// Databases in cluster mode. Known from Valkey 9.
    "cluster-databases" => cluster_databases: u32 = 1, int(1, INT_MAX), IMMUTABLE;
    /// Address reported to other nodes and to clients.
    "cluster-announce-ip" => cluster_announce_ip: Vec<u8> = Vec::new(), ANNOUNCED_IP,
        MODIFIABLE.then(Action::ClusterAnnounce);
    /// Host name reported to clients.
    "cluster-announce-hostname" => cluster_announce_hostname: Vec<u8> = Vec::new(), HOSTNAME,
        MODIFIABLE.then(Action::ClusterAnnounce);
    /// Name of the node in logs. Known from Redis 7.2.
    "cluster-announce-human-nodename" => cluster_announce_human_nodename: Vec<u8> = Vec::new(), ANNOUNCED_NAME,
        MODIFIABLE.then(Action::ClusterAnnounce);
    /// Client port reported to others. 0 is port.
    "cluster-announce-port" => cluster_announce_port: u16 = 0, int(0, 65535),
        MODIFIABLE.then(Action::ClusterAnnounce);
    /// TLS port reported to others. 0 is tls-port.
    "cluster-announce-tls-port" => cluster_announce_tls_port: u16 = 0, int(0, 65535),
        MODIFIABLE.then(Action::ClusterAnnounce);
    /// Bus port reported to others. 0 is the one in use.
    "cluster-announce-bus-port" => cluster_announce_bus_port: u16 = 0, int(0, 65535),
        MODIFIABLE.then(Action::ClusterAnnounce);
    /// Whether clients are redirected to an address, a host name, or the endpoint they used.
    "cluster-preferred-endpoint-type" => cluster_preferred_endpoint_type: &'static str = "ip",
        Word(&["ip", "hostname", "unknown-endpoint"]), MODIFIABLE;
    /// Refuses commands while any slot is unassigned.
    "cluster-require-full-coverage" => cluster_require_full_coverage: bool = true, YesNo, MODIFIABLE;
    /// Serves reads while the cluster is down.
    "cluster-allow-reads-when-down" => cluster_allow_reads_when_down: bool = false, YesNo, MODIFIABLE;
    /// Serves shard channels while the cluster is down.
    "cluster-allow-pubsubshard-when-down" => cluster_allow_pubsubshard_when_down: bool = true, YesNo,
        MODIFIABLE;
    /// Lets replicas move to a primary that has none.
    "cluster-allow-replica-migration" => cluster_allow_replica_migration: bool = true, YesNo, MODIFIABLE;
    /// Replicas that a primary keeps when one of them moves.
    "cluster-migration-barrier" => cluster_migration_barrier: u32 = 1, int(0, INT_MAX), MODIFIABLE;
    /// Never promotes this replica automatically.
    "cluster-replica-no-failover" | "cluster-slave-no-failover" => cluster_replica_no_failover: bool = false, YesNo,
        MODIFIABLE.then(Action::ClusterAnnounce);
    /// A replica without a link for more than this many node timeouts is not promoted. 0 always
    /// allows it.
    "cluster-replica-validity-factor" | "cluster-slave-validity-factor" => cluster_replica_validity_factor: u32 = 10,
        int(0, INT_MAX), MODIFIABLE;
    /// Bytes in a bus link's send buffer at which it is closed. 0 is no limit.
    "cluster-link-sendbuf-limit" => cluster_link_sendbuf_limit: u64 = 0, memory(0, ULONG_MAX), MODIFIABLE;
    /// Collects statistics for each slot. Known from Redis 8 and Valkey 8.
    "cluster-slot-stats-enabled" => cluster_slot_stats_enabled: bool = false, YesNoOr(&["cpu", "net", "mem"]), MODIFIABLE;
    /// Zone in which the node runs, reported to clients. Known from Valkey 8.
    "availability-zone" => availability_zone: Vec<u8> = Vec::new(), ANNOUNCED_NAME, MODIFIABLE.then(Action::ClusterAnnounce);
    /// IPv4 address reported to clients, if it is not the node's. Known from Valkey 9.
    "cluster-announce-client-ipv4" => cluster_announce_client_ipv4: Vec<u8> = Vec::new(), IPV4,
        MODIFIABLE.then(Action::ClusterAnnounce);
    /// The same for IPv6.
    "cluster-announce-client-ipv6" => cluster_announce_client_ipv6: Vec<u8> = Vec::new(), IPV6,
        MODIFIABLE.then(Action::ClusterAnnounce);
    /// The same for the port.
    "cluster-announce-client-port" => cluster_announce_client_port: u16 = 0, int(0, 65535),
        MODIFIABLE.then(Action::ClusterAnnounce);
    /// The same for the TLS port.
    "cluster-announce-client-tls-port" => cluster_announce_client_tls_port: u16 = 0, int(0, 65535),
        MODIFIABLE.then(Action::ClusterAnnounce);
    /// Seconds for which a forgotten node is not added again. Known from Valkey 9.
    "cluster-blacklist-ttl" => cluster_blacklist_ttl: u64 = 60, int(0, ULONG_MAX), MODIFIABLE;
    /// What happens if the cluster's state cannot be saved. Known from Valkey 9.1.
    "cluster-config-save-behavior" => cluster_config_save_behavior: &'static str = "sync",
        Word(&["sync", "best-effort"]), MODIFIABLE;
    /// Milliseconds that a manual failover may take. Known from Valkey 8.1.
    "cluster-manual-failover-timeout" => cluster_manual_failover_timeout: u32 = 5000, int(1, INT_MAX),
        MODIFIABLE;
    /// Maximum number of slot migrations that are remembered. Known from Valkey 9.
    "cluster-slot-migration-log-max-len" => cluster_slot_migration_log_max_len: u64 = 1000, int(0, LONG_MAX),
        MODIFIABLE.only_stored();
    /// Bytes of the stream that may be missing when a slot gets a new owner. -1 is no limit. Known
    /// from Valkey 9.
    "slot-migration-max-failover-repl-bytes" => slot_migration_max_failover_repl_bytes: i64 = 0, memory(-1, LONG_MAX),
        MODIFIABLE.only_stored();
    /// Percentage of commands that are checked for use that a cluster would refuse. Known from
    /// Redis 8.
    "cluster-compatibility-sample-ratio" => cluster_compatibility_sample_ratio: u32 = 0, int(0, 100),
        MODIFIABLE.only_stored();
    /// Milliseconds between pings, for tests.
    "cluster-ping-interval" => cluster_ping_interval: i64 = 0, int(0, LONG_MAX), MODIFIABLE.hidden();
    /// Percentage of nodes that a gossip message describes.
    "cluster-message-gossip-perc" => cluster_message_gossip_perc: u32 = 10, int(1, 100),
        MODIFIABLE.hidden();
    /// Bytes of changes with which a move of slots is handed over. Known from Redis 8.4.
    "cluster-slot-migration-handoff-max-lag-bytes" => cluster_slot_migration_handoff_max_lag_bytes: u64 = 1 << 20,
        memory(0, LONG_MAX), MODIFIABLE.only_stored();
    /// Milliseconds that writes are paused for a hand-over. Known from Redis 8.4.
    "cluster-slot-migration-write-pause-timeout" => cluster_slot_migration_write_pause_timeout: i64 = 10_000,
        int(0, LONG_MAX), MODIFIABLE.only_stored();
}

section "Threads and processors" {
    /// Threads for input and output. Not needed here: one thread does everything.
    "io-threads" => io_threads: u32 = 1, int(1, 128), MODIFIABLE.only_stored();
    /// Lets these threads read and parse too.
    "io-threads-do-reads" => io_threads_do_reads: bool = false, YesNo, MODIFIABLE.only_stored();
    /// Keys prefetched together. Known from Valkey 8.
    "prefetch-batch-max-size" => prefetch_batch_max_size: u32 = 16, int(0, 128), MODIFIABLE.only_stored();
    /// Processors for the server's thread, such as 0-7:2.
    "server_cpulist" | "server-cpulist" => server_cpulist: Vec<u8> = Vec::new(), OPTIONAL_TEXT, IMMUTABLE.only_stored();
    /// Processors for background threads.
    "bio_cpulist" | "bio-cpulist" => bio_cpulist: Vec<u8> = Vec::new(), OPTIONAL_TEXT, IMMUTABLE.only_stored();
    /// Processors for the child that rewrites the append-only file.
    "aof_rewrite_cpulist" | "aof-rewrite-cpulist" => aof_rewrite_cpulist: Vec<u8> = Vec::new(), OPTIONAL_TEXT,
        IMMUTABLE.only_stored();
    /// Processors for the child that saves a snapshot.
    "bgsave_cpulist" | "bgsave-cpulist" => bgsave_cpulist: Vec<u8> = Vec::new(), OPTIONAL_TEXT, IMMUTABLE.only_stored();
    /// Keeps these threads active under low load, for tests.
    "io-threads-always-active" => io_threads_always_active: bool = false, YesNo, MODIFIABLE.hidden().only_stored();
    /// Minimum number of threads for sending long strings without a copy. Not needed here.
    "min-io-threads-avoid-copy-reply" => min_io_threads_avoid_copy_reply: u32 = 7, int(0, INT_MAX),
        MODIFIABLE.hidden().only_stored();
    /// Minimum bytes of such a string without threads.
    "min-string-size-avoid-copy-reply" => min_string_size_avoid_copy_reply: u32 = 16384, int(0, INT_MAX),
        MODIFIABLE.hidden().only_stored();
    /// Minimum bytes of such a string with threads.
    "min-string-size-avoid-copy-reply-threaded" => min_string_size_avoid_copy_reply_threaded: u32 = 65536,
        int(0, INT_MAX), MODIFIABLE.hidden().only_stored();
    /// Requests of a client that are parsed ahead. Known from Redis 8.4.
    "lookahead" => lookahead: u32 = 16, int(1, INT_MAX), MODIFIABLE.only_stored();
}

section "Compatibility" {
    /// Makes a server with another name introduce itself as Redis. Known from Valkey 8.
    "extended-redis-compatibility" => extended_redis_compatibility: bool = false, YesNo, MODIFIABLE.only_stored();
    /// Suspends expiry and eviction while data is imported: expired keys are hidden but kept, and
    /// importing clients (CLIENT IMPORT-SOURCE) see them. Known from Valkey 8.1.
    "import-mode" => import_mode: bool = false, YesNo, MODIFIABLE;
    /// Seed for hashing keys, instead of a random one: servers with the same seed can continue each
    /// other's scans. Anyone who knows it can choose keys that collide. Known from Valkey 9.
    "hash-seed" => hash_seed: Vec<u8> = Vec::new(), HASH_SEED, IMMUTABLE;
    /// Permits DEBUG ASSERT. Here it follows `enable-debug-command`.
    "enable-debug-assert" => enable_debug_assert: bool = false, YesNo, IMMUTABLE.hidden().only_stored();
    /// Protocol of new clients, for tests.
    "client-default-resp" => client_default_resp: u8 = 2, int(2, 3), IMMUTABLE.hidden().only_stored();
    /// Note in crash reports, for tests.
    "debug-context" => debug_context: Vec<u8> = Vec::new(), TEXT, MODIFIABLE.hidden().only_stored();
    /// File for a log of requests and replies, for tests.
    "req-res-logfile" => req_res_logfile: Vec<u8> = Vec::new(), OPTIONAL_TEXT, IMMUTABLE.hidden().only_stored();
    /// Deletes expired keys that scripts and transactions access. Known from Redis 7.4.
    "lazyexpire-nested-arbitrary-keys" => lazyexpire_nested_arbitrary_keys: bool = true, YesNo,
        MODIFIABLE.hidden().only_stored();
}
}
