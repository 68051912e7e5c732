//! Removing temporary files of processes that were killed while writing them.
//!
//! Bases of the append-only file are in a folder of the server's own, so their names are enough.
//! Snapshots are in `dir`, where a user's file may have such a name, and another server may be
//! writing its own: so they are removed only if they are RDB files without an end, their process
//! has ended, and nobody has them locked, as this server does while it writes one. (A process of
//! another container cannot be seen, but its lock can.)

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::rdb::{HeaderFault, Version, VersionCheck, opcode};
use crate::sys::disk::{Disk, DiskFile};
use crate::sys::process;

const PREFIX: &str = "temp-rewriteaof-bg-";
const SUFFIX: &str = ".aof";

/// The name under which a process writes a base.
pub fn temporary_base(pid: u32) -> String {
    format!("{PREFIX}{pid}{SUFFIX}")
}

/// The name under which a process writes a snapshot.
pub fn temporary_snapshot(pid: u32) -> String {
    format!("temp-{pid}.rdb")
}

/// The name under which a process writes the snapshot that its primary sends. `unix`: the time in
/// seconds.
pub fn temporary_arriving(unix: i64, pid: u32) -> String {
    format!("temp-{unix}.{pid}.rdb")
}

/// Locks a snapshot that is being written, so that no other process removes it.
pub fn hold(file: &dyn DiskFile) {
    // Where a file system knows no locks, process IDs have to be enough.
    let _ = file.lock();
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = Some(digits).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The process ID in the name of a base that is being written; None for any other name.
fn owner_of_base(name: &OsStr) -> Option<u32> {
    let name = name.as_bytes().strip_prefix(PREFIX.as_bytes())?;
    u32::try_from(number(name.strip_suffix(SUFFIX.as_bytes())?)?).ok()
}

/// The process ID in the name of a snapshot that is being written; None for any other name.
fn owner_of_snapshot(name: &OsStr) -> Option<u32> {
    let name = name.as_bytes().strip_prefix(b"temp-")?.strip_suffix(b".rdb")?;
    let pid = match name.iter().position(|byte| *byte == b'.') {
        Some(dot) => number(&name[..dot]).and(number(&name[dot + 1..])),
        None => number(name),
    };
    u32::try_from(pid?).ok()
}

fn has_ended(pid: u32) -> bool {
    pid == std::process::id() || !process::is_running(pid)
}

/// Removes the bases being written in `folder`, that of the append-only file, whose processes have
/// ended or had this one's ID; other processes may still be writing theirs. Must be called before
/// this process creates any. Returns the names of the removed files. A missing folder is not an
/// error.
pub fn remove_bases(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<OsString>> {
    remove(disk, folder, |name, _| owner_of_base(name).is_some_and(has_ended))
}

/// As [`remove_bases`], for the snapshots in `dir`. `dump`: the name of the server's RDB file.
pub fn remove_snapshots(disk: &dyn Disk, dir: &Path, dump: &Path) -> io::Result<Vec<OsString>> {
    remove(disk, dir, |name, path| {
        owner_of_snapshot(name).is_some_and(has_ended)
            && Path::new(name) != dump
            && disk.is_plain_file(path)
            && is_begun_snapshot(disk, path).unwrap_or(false)
            // A file that cannot be locked stays.
            && matches!(disk.open_locked(path), Ok(Some(_)))
    })
}

fn remove(
    disk: &dyn Disk,
    folder: &Path,
    is_left_over: impl Fn(&OsStr, &Path) -> bool,
) -> io::Result<Vec<OsString>> {
    let mut names = match disk.list(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names?,
    };
    names.retain(|name| {
        let path = folder.join(name);
        is_left_over(name, &path) && disk.remove(&path).is_ok()
    });
    Ok(names)
}

/// Whether a file is empty, or begins as an RDB file and does not end as one.
fn is_begun_snapshot(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    /// The last opcode and the checksum.
    const END_BYTES: i64 = 9;
    let mut file = disk.open_read(path)?;
    let mut magic = Vec::new();
    file.by_ref().take(Version::MAGIC_BYTES as u64).read_to_end(&mut magic)?;
    let Ok(magic) = <&[u8; Version::MAGIC_BYTES]>::try_from(&magic[..]) else {
        return Ok(magic.is_empty());
    };
    if let Err(HeaderFault::Signature(_)) = Version::from_magic(magic, VersionCheck::Relaxed) {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-END_BYTES))?;
    file.read_exact(&mut last)?;
    Ok(last != [opcode::END])
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
        let mut removed = remove_bases(&RealDisk, scratch.path()).unwrap();
        removed.sort();
        let mut expected = left.map(OsString::from);
        expected.sort();
        assert_eq!(removed, expected);
        assert_eq!(RealDisk.list(scratch.path()).unwrap().len(), kept.len());
        assert!(remove_bases(&RealDisk, &scratch.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn only_snapshots_of_ended_processes_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = child.id();
        child.wait().unwrap();
        let image = b"REDIS0010\xfa\x09redis-ver".as_slice();
        let us = std::process::id();
        let left = [
            (temporary_snapshot(gone), image),
            (temporary_snapshot(us), b""),
            (temporary_arriving(1_700_000_000, gone), b"VALKEY080\xfa"),
            (temporary_arriving(0, us), b"REDIS9999"),
        ];
        let kept = [
            (temporary_snapshot(1), image),
            (temporary_base(gone), image),
            ("temp-.rdb".into(), image),
            (format!("temp-1.2.{gone}.rdb"), image),
            (format!("temp-.{gone}.rdb"), image),
            (format!("temp-x{gone}.rdb"), image),
            (format!("temp-{gone}.rdb.bak"), image),
            (format!("temp-0{gone}.rdb"), b"a user's"),
            (format!("temp-00{gone}.rdb"), b"REDIS"),
            (format!("temp-000{gone}.rdb"), b"REDIS00x0"),
            (format!("temp-2.{gone}.rdb"), image),
            (format!("temp-5.{gone}.rdb"), image),
            (format!("temp-6.{gone}.rdb"), b"REDIS0010\xfa\xff12345678"),
            ("dump.rdb".into(), image),
        ];
        for (name, bytes) in left.iter().chain(&kept) {
            std::fs::write(at(name), bytes).unwrap();
        }
        // Another container's process is writing it.
        let locked = RealDisk.open_append(&at(&format!("temp-2.{gone}.rdb"))).unwrap();
        hold(&*locked);
        std::os::unix::fs::symlink("dump.rdb", at(&format!("temp-3.{gone}.rdb"))).unwrap();
        std::fs::create_dir(at(&format!("temp-4.{gone}.rdb"))).unwrap();
        let dump = format!("temp-5.{gone}.rdb");
        let mut removed = remove_snapshots(&RealDisk, scratch.path(), Path::new(&dump)).unwrap();
        removed.sort();
        let mut expected = left.map(|(name, _)| OsString::from(name));
        expected.sort();
        assert_eq!(removed, expected);
        assert_eq!(RealDisk.list(scratch.path()).unwrap().len(), kept.len() + 2);
    }
}
