//! The program's version and commit, for `--version`, the log and INFO.

use xxhash_rust::xxh3::xxh3_64;

/// The program's own version; clients see the parameter `redis-version`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The first eight digits of the commit, zeros if unknown, and whether the source had changes (`0`
/// or `1`).
pub fn commit() -> (&'static str, &'static str) {
    env!("LATCHKEY_COMMIT").split_once(':').unwrap_or(("00000000", "0"))
}

/// A hash of version and commit. 16 hexadecimal digits.
pub fn id() -> String {
    let source = concat!(env!("CARGO_PKG_VERSION"), " ", env!("LATCHKEY_COMMIT"));
    format!("{:016x}", xxh3_64(source.as_bytes()))
}
