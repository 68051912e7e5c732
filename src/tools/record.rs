//! The record of a backup, `NAME.rdb.info` beside `NAME.rdb`: a line `name:value` for each fact, as
//! INFO has them.
//!
//! ```text
//! file:127.0.0.1-6379-20261129T220126Z.rdb
//! bytes:1048576
//! sha256:64 hexadecimal digits, of the whole file
//! source:127.0.0.1:6379
//! taken:20261129T220126Z         when the file was complete, in UTC
//! replication_id:40 hexadecimal digits     missing if the source has not told them
//! replication_offset:123456
//! server_version:7.0.15          as the file says
//! rdb_version:10
//! keys:1000
//! keys_with_deadline:10
//! functions:0
//! ```

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::system_text;
use crate::sys::disk::{Disk, read_whole};

/// The most bytes read of a record.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// The part of a record that a restore compares with the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub bytes: u64,
    /// Hexadecimal digits.
    pub sha256: String,
}

/// The path of the record of a snapshot.
pub fn path_of(snapshot: &Path) -> PathBuf {
    let mut name = OsString::from(snapshot);
    name.push(".info");
    name.into()
}

/// The record beside a snapshot. None: there is none. Errors: a text.
pub fn read(disk: &dyn Disk, snapshot: &Path) -> Result<Option<Expected>, String> {
    let path = path_of(snapshot);
    let text = match read_whole(disk, &path, RECORD_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {}", path.display(), system_text(&error))),
        Ok(text) => text,
    };
    match parse(&text) {
        Some(expected) => Ok(Some(expected)),
        None => Err(format!("{}: it has no bytes and sha256 of a backup", path.display())),
    }
}

fn parse(text: &[u8]) -> Option<Expected> {
    let text = std::str::from_utf8(text).ok()?;
    let value = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value)
    };
    let bytes = value("bytes")?.parse().ok()?;
    let sha256 = value("sha256")?.to_ascii_lowercase();
    let is_hash = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then_some(Expected { bytes, sha256 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_a_length_and_a_hash() {
        let hash = "AB".repeat(32);
        let expected = Expected { bytes: 7, sha256: "ab".repeat(32) };
        let text = format!("file:x\r\nbytes:7\r\nsource:a:1\r\nsha256:{hash}\r\n");
        assert_eq!(parse(text.as_bytes()), Some(expected));
        for wrong in [
            String::new(),
            format!("sha256:{hash}\n"),
            format!("bytes:-1\nsha256:{hash}\n"),
            format!("bytes:7\nsha256:{}\n", &hash[1..]),
            format!("bytes:7\nsha256:{}g\n", &hash[1..]),
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(parse(b"bytes:7\nsha256:\xff"), None);
    }
}
