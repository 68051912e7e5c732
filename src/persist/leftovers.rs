//! Removing temporary files of processes that were killed while writing them.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::sys::disk::Disk;
use crate::sys::process;

/// Prefix and suffix of the names of temporary files; the writer's process ID is in between.
const NAMES: [(&[u8], &[u8]); 3] =
    [(b"temp-rewriteaof-bg-", b".aof"), (b"temp-rewriteaof-", b".aof"), (b"temp-", b".rdb")];

/// The process ID in the name of a temporary file; None for any other name.
fn owner(name: &[u8]) -> Option<u32> {
    let digits = NAMES.iter().find_map(|(prefix, suffix)| {
        let digits = name.strip_prefix(*prefix)?.strip_suffix(*suffix)?;
        digits.iter().all(u8::is_ascii_digit).then_some(digits)
    })?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Removes the temporary files in a folder whose processes have ended or had this one's ID; other processes may still be
/// writing theirs. Must be called before this process creates any. Returns the names of the removed files. A missing
/// folder is not an error.
pub fn remove(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names = match disk.list(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names?,
    };
    names.retain(|name| {
        let is_left_over = owner(name.as_bytes())
            .is_some_and(|pid| pid == std::process::id() || !process::is_running(pid));
        is_left_over && disk.remove(&folder.join(name)).is_ok()
    });
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::disk::RealDisk;

    #[test]
    fn only_files_of_ended_processes_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = child.id();
        child.wait().unwrap();
        let left = [
            format!("temp-{gone}.rdb"),
            format!("temp-rewriteaof-bg-{gone}.aof"),
            format!("temp-rewriteaof-{gone}.aof"),
            format!("temp-{}.rdb", std::process::id()),
        ];
        let kept = [
            "temp-1.rdb",
            "temp-.rdb",
            "temp-x1.rdb",
            "dump.rdb",
            "temp-99999999999999.rdb",
            "temp-2.aof",
        ];
        for name in left.iter().map(String::as_str).chain(kept) {
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
