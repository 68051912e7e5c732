//! What this program was built from, as `--version`, the log and INFO tell it.

use xxhash_rust::xxh3::xxh3_64;

/// Of this program itself; what it tells clients is the parameter `redis-version`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The first eight digits of the commit, zeros if it is not known, and whether the source differed from it (`0` or `1`).
pub fn commit() -> (&'static str, &'static str) {
    env!("LATCHKEY_COMMIT").split_once(':').unwrap_or(("00000000", "0"))
}

/// A number for the version and commit, the same for all builds of them. 16 hexadecimal digits.
pub fn id() -> String {
    let source = concat!(env!("CARGO_PKG_VERSION"), " ", env!("LATCHKEY_COMMIT"));
    format!("{:016x}", xxh3_64(source.as_bytes()))
}
