//! The file operations that durability depends on, as a trait.
//!
//! Snapshots, the append-only file and its manifest access the disk only through [`Disk`].
//! [`RealDisk`] is the operating system; [`model::ModelDisk`] knows what would survive a power
//! loss, and can fail or crash at any operation: so tests can crash at every step of a save or
//! rewrite.
//!
//! Durability depends on order: a file's bytes become durable by [`DiskFile::sync_data`], its name
//! (created, renamed, removed) by [`Disk::sync_folder`] of its folder. [`replace_file`] shows that
//! order for a small file.
//!
//! Errors are the system's, without the path, which the caller adds.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::system;

#[cfg(test)]
mod agreement_tests;
pub mod model;

/// Files and their names.
pub trait Disk: Send + Sync + std::fmt::Debug {
    /// Creates a file for appending, or truncates an existing one.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates a file for appending. `AlreadyExists`: something has the name, perhaps a link to
    /// nothing.
    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file for appending, creating it if needed.
    fn open_append(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file for appending, creating it if needed, and locks it as [`DiskFile::lock`] does.
    /// None: it is locked by another process. The lock is on the file that has the name now: if the
    /// file is replaced during the call, the new one is opened.
    fn open_locked(&self, path: &Path) -> io::Result<Option<Arc<dyn DiskFile>>>;

    /// Opens a file for reading from its start.
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn DiskReader>>;

    /// Bytes of a file. `NotFound` if there is none.
    fn size(&self, path: &Path) -> io::Result<u64>;

    /// Whether this is an existing folder.
    fn is_folder(&self, path: &Path) -> bool;

    /// Whether this is an existing file, not a link or a device.
    fn is_plain_file(&self, path: &Path) -> bool;

    /// Renames a file atomically, replacing any file at `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file a further name, in the same file system. `AlreadyExists`: something has it. Not
    /// all file systems can do it.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file or folder the owner and group of another one, if this process may do so.
    fn own_as(&self, _path: &Path, _other: &Path) {}

    /// When a file was last changed or got its name. None: the disk does not know.
    fn changed(&self, _path: &Path) -> Option<SystemTime> {
        None
    }

    /// Removes a file's name.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates a folder, if it does not exist.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Makes a folder's names durable. Not an error on file systems that cannot do so.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;

    /// The names in a folder, unordered.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;
}

/// A file open for appending. Shared: one thread writes while another syncs.
pub trait DiskFile: Send + Sync + std::fmt::Debug {
    /// Appends as many bytes as the system accepts in one call; returns their number.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Makes the file's bytes and length durable (fdatasync; on macOS also in the disk). After an
    /// error the content on disk is unknown, and a later success does not change that: the kernel
    /// reports a lost page only once.
    fn sync_data(&self) -> io::Result<()>;

    /// Truncates the file, or extends it with zeros. The next write continues at the new end.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Bytes of the file.
    fn size(&self) -> io::Result<u64>;

    /// Whether this file has this name now. False: the name is gone, or another file has it. An
    /// error that says neither counts as true. So does what is no file.
    fn has_name(&self, _path: &Path) -> bool {
        true
    }

    /// Whether this file has this name now, as [`DiskFile::has_name`] says, and at least this
    /// number of bytes.
    fn is_whole(&self, path: &Path, bytes: u64) -> bool {
        self.has_name(path) && self.size().map_or(true, |present| present >= bytes)
    }

    /// The file's first bytes, at most `max`. Errors: among others `Unsupported`, if only its name
    /// can be read.
    fn read_first(&self, _max: usize) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Locks the file against other processes that lock it, until it is closed; a rename does not
    /// matter. False: another process has it locked.
    fn lock(&self) -> io::Result<bool>;

    /// Asks the system to start writing a range out, so that a later [`DiskFile::sync_data`] is
    /// faster. Makes nothing durable.
    ///
    /// Not all file systems can do it. This does not consume an error of the disk:
    /// [`DiskFile::sync_data`] still reports it.
    fn start_writeback(&self, from: u64, len: u64);
}

/// A file open for reading.
pub trait DiskReader: Read + Seek + Send {}

impl<T: Read + Seek + Send> DiskReader for T {}

/// Writes all bytes, in as many calls as needed.
pub fn write_all(file: &dyn DiskFile, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether an error of locking is that of a file system without locks.
pub fn knows_no_locks(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    number.is_some_and(|number| [libc::ENOLCK, libc::ENOSYS, libc::EOPNOTSUPP].contains(&number))
}

/// Adapts a file to `std::io::Write`.
#[derive(Debug)]
pub struct FileWriter<'a>(pub &'a dyn DiskFile);

impl Write for FileWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a file of at most `bytes_max`; a longer one is `InvalidData`.
pub fn read_whole(disk: &dyn Disk, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    disk.open_read(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(bytes)
}

/// The step of replacing a file that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceStep {
    Create,
    Write,
    Sync,
    Rename,
    SyncFolder,
}

/// Replaces a small file durably: written to a temporary file, synced, renamed, the folder synced.
/// After a crash either the old or the new file exists, complete.
///
/// Errors name the step. If `SyncFolder` failed, the new file is in place but may not survive a
/// power loss.
pub fn replace_file(
    disk: &dyn Disk,
    folder: &Path,
    temporary: &Path,
    name: &Path,
    bytes: &[u8],
) -> Result<(), (ReplaceStep, io::Error)> {
    let temporary = folder.join(temporary);
    let file = disk.create(&temporary).map_err(|error| (ReplaceStep::Create, error))?;
    put_in_place(disk, &*file, folder, &temporary, name, bytes)
}

/// As [`replace_file`]; the new file is locked before it has the name, so that the name is never
/// without a lock. Returns the new file, which is locked until it is dropped. The caller must keep
/// the old file open until this call returns.
pub fn replace_locked_file(
    disk: &dyn Disk,
    folder: &Path,
    temporary: &Path,
    name: &Path,
    bytes: &[u8],
) -> Result<Arc<dyn DiskFile>, (ReplaceStep, io::Error)> {
    let temporary = folder.join(temporary);
    let file = disk.create(&temporary).map_err(|error| (ReplaceStep::Create, error))?;
    let is_locked = file.lock().map_err(|error| (ReplaceStep::Create, error))?;
    if !is_locked {
        return Err((ReplaceStep::Create, io::ErrorKind::WouldBlock.into()));
    }
    put_in_place(disk, &*file, folder, &temporary, name, bytes)?;
    Ok(file)
}

fn put_in_place(
    disk: &dyn Disk,
    file: &dyn DiskFile,
    folder: &Path,
    temporary: &Path,
    name: &Path,
    bytes: &[u8],
) -> Result<(), (ReplaceStep, io::Error)> {
    let target = folder.join(name);
    write_all(file, bytes).map_err(|error| (ReplaceStep::Write, error))?;
    file.sync_data().map_err(|error| (ReplaceStep::Sync, error))?;
    disk.rename(temporary, &target).map_err(|error| (ReplaceStep::Rename, error))?;
    disk.sync_folder(folder).map_err(|error| (ReplaceStep::SyncFolder, error))
}

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(FILE_MODE);
        // Without this flag, a write after `set_len` would leave a hole. `OpenOptions::append` does
        // not allow `truncate`.
        options.custom_flags(libc::O_APPEND);
        Ok(Arc::new(RealFile::new(options.open(path)?)))
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().append(true).create_new(true).mode(FILE_MODE).open(path)?;
        Ok(Arc::new(RealFile::new(file)))
    }

    fn open_append(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(FILE_MODE);
        Ok(Arc::new(RealFile::new(options.open(path)?)))
    }

    fn open_locked(&self, path: &Path) -> io::Result<Option<Arc<dyn DiskFile>>> {
        loop {
            let file = OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path)?;
            let file = RealFile::new(file);
            if !file.lock()? {
                return Ok(None);
            }
            let ours = file.0.metadata()?;
            match std::fs::metadata(path) {
                Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => {
                    return Ok(Some(Arc::new(file)));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                // The file was replaced between the two calls.
                _ => {}
            }
        }
    }

    fn open_read(&self, path: &Path) -> io::Result<Box<dyn DiskReader>> {
        Ok(Box::new(File::open(path)?))
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        let metadata = std::fs::metadata(path)?;
        if metadata.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(metadata.len())
    }

    fn is_folder(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn is_plain_file(&self, path: &Path) -> bool {
        std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn own_as(&self, path: &Path, other: &Path) {
        if let Ok(other) = std::fs::metadata(other) {
            // Only root may give files away; for others they have the right owner.
            let _ = std::os::unix::fs::lchown(path, Some(other.uid()), Some(other.gid()));
        }
    }

    fn changed(&self, path: &Path) -> Option<SystemTime> {
        let found = std::fs::metadata(path).ok()?;
        let seconds = u64::try_from(found.ctime()).ok()?;
        let nanoseconds = u32::try_from(found.ctime_nsec()).ok()?;
        UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        match std::fs::DirBuilder::new().mode(FOLDER_MODE).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            result => result,
        }
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        match system::sync_all(&File::open(path)?) {
            // Some file systems cannot sync folders, and return one of these errors.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBADF | libc::EINVAL)) => {
                Ok(())
            }
            result => result,
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
    }
}

/// A file, whether it is locked, and its device and number there.
#[derive(Debug)]
struct RealFile(File, AtomicBool, OnceLock<(u64, u64)>);

impl RealFile {
    fn new(file: File) -> Self {
        RealFile(file, AtomicBool::new(false), OnceLock::new())
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        if let Some(known) = self.2.get() {
            return Ok(*known);
        }
        let ours = self.0.metadata()?;
        Ok(*self.2.get_or_init(|| (ours.dev(), ours.ino())))
    }

    /// What has this name, if it is this file. None: it is not. An error says neither.
    fn named(&self, path: &Path) -> io::Result<Option<Metadata>> {
        match std::fs::metadata(path) {
            Ok(named) => {
                let is_ours = (named.dev(), named.ino()) == self.identity()?;
                Ok(is_ours.then_some(named))
            }
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl Drop for RealFile {
    fn drop(&mut self) {
        if *self.1.get_mut() {
            // A process that another thread is just starting has the file open too, until it runs
            // its program, and would keep the lock.
            let _ = flock(&self.0, FlockOperation::Unlock);
        }
    }
}

impl DiskFile for RealFile {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        (&self.0).write(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        system::sync_data(&self.0)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn has_name(&self, path: &Path) -> bool {
        self.named(path).map_or(true, |named| named.is_some())
    }

    fn is_whole(&self, path: &Path, bytes: u64) -> bool {
        let is_long = |named: Option<Metadata>| named.is_some_and(|named| named.len() >= bytes);
        self.named(path).map_or(true, is_long)
    }

    fn read_first(&self, max: usize) -> io::Result<Vec<u8>> {
        let (mut bytes, mut filled) = (vec![0; max], 0);
        while filled < max {
            match self.0.read_at(&mut bytes[filled..], filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn lock(&self) -> io::Result<bool> {
        match flock(&self.0, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                self.1.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn start_writeback(&self, from: u64, len: u64) {
        system::start_writeback(&self.0, from, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_disk_does_what_its_names_say() {
        let scratch = tempfile::tempdir().unwrap();
        let disk = RealDisk;
        let folder = scratch.path().join("inner");
        disk.create_folder(&folder).unwrap();
        disk.create_folder(&folder).unwrap();
        assert!(disk.is_folder(&folder));
        let file = disk.open_append(&folder.join("a")).unwrap();
        write_all(&*file, b"hello world").unwrap();
        file.start_writeback(0, 5);
        file.sync_data().unwrap();
        file.set_len(5).unwrap();
        write_all(&*file, b"!").unwrap();
        assert_eq!(file.size().unwrap(), 6);
        assert!(file.has_name(&folder.join("a")));
        disk.rename(&folder.join("a"), &folder.join("b")).unwrap();
        assert!(!file.has_name(&folder.join("a")) && !file.has_name(&folder.join("a/c")));
        assert!(file.has_name(&folder.join("b")) && file.is_whole(&folder.join("b"), 6));
        assert!(!file.is_whole(&folder.join("b"), 7) && !file.is_whole(&folder.join("a"), 6));
        assert_eq!([3, 6, 9].map(|max| file.read_first(max).unwrap().len()), [3, 6, 6]);
        disk.sync_folder(&folder).unwrap();
        assert_eq!(disk.size(&folder.join("a")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(read_whole(&disk, &folder.join("b"), 6).unwrap(), b"hello!");
        let too_long = read_whole(&disk, &folder.join("b"), 5).unwrap_err();
        assert_eq!(too_long.kind(), io::ErrorKind::InvalidData);
        replace_file(&disk, &folder, "temp-b".as_ref(), "b".as_ref(), b"new").unwrap();
        assert_eq!(disk.list(&folder).unwrap(), ["b"]);
        assert_eq!(read_whole(&disk, &folder.join("b"), 6).unwrap(), b"new");
        let locked = disk.open_locked(&folder.join("b")).unwrap().expect("nobody has it locked");
        assert!(disk.open_locked(&folder.join("b")).unwrap().is_none());
        let replaced =
            replace_locked_file(&disk, &folder, "temp-b".as_ref(), "b".as_ref(), b"newer").unwrap();
        drop(locked);
        assert!(disk.open_locked(&folder.join("b")).unwrap().is_none());
        drop(replaced);
        assert!(disk.open_locked(&folder.join("b")).unwrap().is_some());
        // As a process has it that is being started.
        let locked = RealFile::new(File::open(folder.join("b")).unwrap());
        assert!(locked.lock().unwrap());
        let inherited = locked.0.try_clone().unwrap();
        drop(locked);
        assert!(disk.open_locked(&folder.join("b")).unwrap().is_some());
        drop(inherited);
        disk.link(&folder.join("b"), &folder.join("c")).unwrap();
        let taken = disk.link(&folder.join("b"), &folder.join("c")).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        disk.remove(&folder.join("b")).unwrap();
        assert_eq!(read_whole(&disk, &folder.join("c"), 6).unwrap(), b"newer");
        assert!(disk.changed(&folder.join("c")).is_some());
        disk.remove(&folder.join("c")).unwrap();
        assert!(disk.list(&folder).unwrap().is_empty());
    }
}
