//! Removing temporary files of processes that were killed while writing them.
//!
//! Only bases of the append-only file, which are written in a folder of the server's own.
//! `temp-PID.rdb` in `dir` stays, as in Redis: a user's file may have this name, and another server
//! may be writing it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::sys::disk::Disk;
use crate::sys::process;

const PREFIX: &str = "temp-rewriteaof-bg-";
const SUFFIX: &str = ".aof";

/// The name under which a process writes a base.
pub fn temporary_base(pid: u32) -> String {
    format!("{PREFIX}{pid}{SUFFIX}")
}

/// The process ID in the name of a base that is being written; None for any other name.
fn owner(name: &OsStr) -> Option<u32> {
    let digits =
        name.as_bytes().strip_prefix(PREFIX.as_bytes())?.strip_suffix(SUFFIX.as_bytes())?;
    let digits = Some(digits).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Removes the bases being written in `folder`, that of the append-only file, whose processes have
/// ended or had this one's ID; other processes may still be writing theirs. Must be called before
/// this process creates any. Returns the names of the removed files. A missing folder is not an
/// error.
pub fn remove(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names = match disk.list(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names?,
    };
    names.retain(|name| {
        let is_left_over =
            owner(name).is_some_and(|pid| pid == std::process::id() || !process::is_running(pid));
        is_left_over && disk.remove(&folder.join(name)).is_ok()
    });
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::disk::RealDisk;

    #[test]
    fn only_bases_of_ended_processes_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = child.id();
        child.wait().unwrap();
        let left = [temporary_base(gone), temporary_base(std::process::id())];
        let kept = [
            temporary_base(1),
            format!("temp-{gone}.rdb"),
            format!("temp-{}.rdb", std::process::id()),
            format!("temp-rewriteaof-{gone}.aof"),
            "temp-rewriteaof-bg-.aof".into(),
            "temp-rewriteaof-bg-x1.aof".into(),
            "temp-rewriteaof-bg-99999999999999.aof".into(),
            "dump.rdb".into(),
        ];
        for name in left.iter().chain(&kept) {
            std::fs::write(scratch.path().join(name), name).unwrap();
        }
        let mut removed = remove(&RealDisk, scratch.path()).unwrap();
        removed.sort();
        let mut expected = left.map(OsString::from);
        expected.sort();
        assert_eq!(removed, expected);
        assert_eq!(RealDisk.list(scratch.path()).unwrap().len(), kept.len());
        assert!(remove(&RealDisk, &scratch.path().join("none")).unwrap().is_empty());
    }
}
