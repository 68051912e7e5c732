//! Figures that documents quote from the code: a constant that changes takes its documents along.

/// A document, its words, and the file below `src`, the constant and the value that they quote.
const QUOTED: &[(&str, &str, &str, &str, &str)] = &[
    ("ARCHITECTURE.md", "at most 64 KiB,", "server/intake.rs", "READ_BYTES", "64 * 1024"),
    ("ARCHITECTURE.md", "256 KiB arena", "server/intake.rs", "ARENA_BYTES", "256 * 1024"),
    ("ARCHITECTURE.md", "ends at 64 requests", "server/batch.rs", "BATCH_REQUESTS", "64"),
    ("ARCHITECTURE.md", "pieces of 64 KB", "collections/shared_bytes.rs", "PIECE", "64 * 1024"),
    ("ARCHITECTURE.md", "pages of 24 entries", "collections/packed_table.rs", "LOAD_MAX", "24"),
    (
        "docs/aof.md",
        "at most 1,024 bytes long",
        "persist/aof/manifest.rs",
        "LINE_BYTES_MAX",
        "1024",
    ),
    ("docs/aof.md", "at most 1,024 bytes incl", "persist/aof/reader.rs", "ANNOTATION_MAX", "1024"),
    ("docs/durability.md", "up to 16 MB", "persist/aof/log.rs", "WAITING_BYTES_MAX", "16 << 20"),
    ("docs/durability.md", "pieces of 64 KB", "collections/shared_bytes.rs", "PIECE", "64 * 1024"),
    ("docs/http.md", "64 connections at", "net/http.rs", "CONNECTIONS_MAX", "64"),
    ("docs/http.md", "at most 8 KB and", "net/http/head.rs", "HEAD_BYTES_MAX", "8 * 1024"),
    ("docs/http.md", "and 64 headers", "net/http/head.rs", "HEADERS_MAX", "64"),
    ("docs/http.md", "within 5 s", "net/http/connection.rs", "HEAD_US", "5_000_000"),
    ("docs/http.md", "after 30 s", "net/http/connection.rs", "IDLE_US", "30_000_000"),
    ("docs/http.md", "the ten largest keys", "http/walk.rs", "LARGEST_MAX", "10"),
    ("docs/http.md", "last ten grants and", "http/locks.rs", "EVENTS_MAX", "10"),
    ("docs/http.md", "Answers get half a", "http/mod.rs", "TURN_US", "500"),
    ("docs/http.md", "of 100 items or", "http/locks.rs", "LIMIT", "100"),
    ("docs/http.md", "at most 1,000;", "http/locks.rs", "LIMIT_MAX", "1000"),
    ("docs/locks.md", "1 to 256 bytes", "types/lock.rs", "OWNER_MAX", "256"),
    ("docs/locks.md", "more than 64 fields", "types/lock.rs", "FIELDS_MAX", "64"),
    ("docs/locks.md", "at most 1000 readers", "types/lock.rs", "READERS_MAX", "1000"),
    (
        "docs/commands/locks.md",
        "remembers 256 such",
        "keyspace/lock_history.rs",
        "ENDS_KEPT",
        "256",
    ),
    (
        "docs/commands/locks.md",
        "last ten holdings,",
        "keyspace/lock_history.rs",
        "HOLDINGS_KEPT",
        "10",
    ),
    ("docs/commands/locks.md", "(at most 100)", "command/lock/many.rs", "KEYS_MAX", "100"),
    ("docs/commands/semaphores.md", "at most 1000)", "command/lock/mod.rs", "TAKEN_MAX", "1000"),
    ("docs/commands/semaphores.md", "10,000) are held", "types/lock.rs", "PERMITS_MAX", "10_000"),
    ("docs/operate.md", "above 90% of", "server/check_system.rs", "DATA_PERCENT_MAX", "90"),
    ("docs/operate.md", "is above 10 |", "server/check_system.rs", "SWAPPINESS_MAX", "10"),
    ("docs/operate.md", "median of five", "server/check_system.rs", "SYNCS", "5"),
    ("docs/operate.md", "than 10 ms,", "server/check_system.rs", "SYNC_US_MAX", "10_000"),
    ("docs/replication.md", "at most 16 MB", "replication/pipe.rs", "HELD_BYTES_MAX", "16 << 20"),
    ("docs/replication.md", "blocks of 16 KB", "replication/backlog.rs", "BLOCK_BYTES", "16 << 10"),
    ("docs/replication.md", "slices of 5 ms", "roles/following/sync.rs", "SLICE_US", "5_000"),
    ("docs/scripts.md", "at most 256 MB", "script/lua/text.rs", "MADE_BYTES_MAX", "256 << 20"),
    ("docs/scripts.md", "the 500 used last", "script/cache.rs", "EVAL_SCRIPTS_MAX", "500"),
    ("docs/scripts.md", "larger than 64 KB", "script/mod.rs", "SMALL_SOURCE", "64 << 10"),
    ("docs/scripts.md", "128 bytes for each", "script/mod.rs", "COMPILER_BYTES", "128"),
    ("docs/tls.md", "at most 8 TLS", "server/accept.rs", "ACCEPTS_TLS_MAX", "8"),
    ("docs/tls.md", "get 0.2 milliseconds", "server/handshake.rs", "TURN_US", "200"),
    ("docs/tls.md", "than ten seconds", "server/handshake.rs", "HANDSHAKE_US", "10_000_000"),
];

/// The value of a constant in a file's text, as it is written.
fn value_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let declared = format!("const {name}: ");
    let (_, rest) = text.split_once(&declared)?;
    let (_, value) = rest.split_once(" = ")?;
    value.split(';').next()
}

#[test]
fn figures_in_documents_are_those_of_the_code() {
    let root = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| {
        std::fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let mut wrong = Vec::new();
    for (document, words, file, constant, value) in QUOTED {
        // Lines break anywhere.
        let text = read(document).split_whitespace().collect::<Vec<_>>().join(" ");
        if !text.contains(words) {
            wrong.push(format!("{document} does not say \"{words}\""));
        }
        let source = read(&format!("src/{file}"));
        let found = value_of(&source, constant);
        if found != Some(value) {
            wrong.push(format!("{file}: {constant} is {found:?}, but {document} says \"{words}\""));
        }
    }
    assert!(
        wrong.is_empty(),
        "change the code, the document and QUOTED in tests/tidy/figures.rs together:\n{}",
        wrong.join("\n")
    );
}
