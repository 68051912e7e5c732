//! The folder of the append-only file: makes each new state of the manifest durable, so that after
//! a crash at any point either the old state or the new one is complete.
//!
//! Order of operations (all within `appenddirname`):
//! - *a new manifest*: sync the folder, so that the names in the manifest are durable before it is;
//!   write and sync `temp-<name>.manifest`, rename it over the old one; sync the folder.
//! - *any new file*: it gets the next number whose name is free, since a file that no manifest
//!   names may be somebody's data.
//! - *a new increment*: create it, empty; write the manifest that lists it. Only then may the
//!   increment be written.
//! - *the first manifest*: create a mark, an empty file, before any file that the manifest will
//!   list; remove the mark when the manifest is durable. So files without a manifest are known:
//!   with the mark they are of an attempt that did not end, and nobody's data; without it their
//!   manifest has been lost, and the folder is not opened.
//! - *the end of a rewrite*: the base is already written and synced under a temporary name; create
//!   an empty file of its final name, and rename the base over it; write the manifest that lists
//!   it, with the earlier files as history; remove those; write a manifest without them.
//! - *taking over a single file*: write the manifest that lists it as base; move it into the
//!   folder. After a crash between these steps, the next start moves it.
//! - *a failed sync*: create a mark, an empty file. Unsynced bytes may be in the system's cache
//!   alone, from which the next process would load them. A power loss would then leave a hole
//!   before everything appended and synced later. So a start that finds the mark writes the loaded
//!   data to a new base. A rewrite that replaces the file removes the mark.
//! - *a move to another folder*: when the new folder is complete and durable, a file
//!   `<name>.moved` with its path is made durable in the old one, before anything is written to the
//!   new one alone. A start that finds it is refused.
//! - *the lock*: a folder that is written to is locked first, before its manifest is read, by a
//!   lock of the system on the empty file `<name>.lock`, which stays there. If somebody removes the
//!   folder, the lock is taken anew. The manifest is locked too, by the same server, so that a
//!   removed `<name>.lock` lets nobody in; each new manifest is locked before it has its name.
//!
//! Owns the manifest. All functions may wait for the disk: the loop's thread must not call them
//! once clients are served.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use super::manifest::{AofFile, BaseFormat};
use super::manifest::{MANIFEST_BYTES_MAX, Manifest, SEQ_MAX};
use crate::config::system_text;
use crate::sys::disk::{
    Disk, DiskFile, ReplaceStep, knows_no_locks, read_whole, replace_file, replace_locked_file,
};

/// The longest path. Unit: bytes.
const PATH_BYTES_MAX: u64 = 64 << 10;

/// An operation on the folder failed. Displays as a line for the log.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct FolderError {
    pub text: String,
    /// The system's error, if there was one.
    pub source: Option<io::Error>,
}

impl FolderError {
    fn system(what: &str, error: io::Error) -> Self {
        FolderError { text: format!("{what}: {}", system_text(&error)), source: Some(error) }
    }
}

/// See the module.
#[derive(Debug)]
pub struct AofFolder {
    disk: Arc<dyn Disk>,
    /// The server's `dir`, where an old single file would be.
    parent: PathBuf,
    path: PathBuf,
    filename: Vec<u8>,
    manifest: Manifest,
    /// An increment that is not in the manifest yet. See [`AofFolder::increment_aside`].
    aside: Option<AofFile>,
    /// Number of the increment that this process could not sync.
    unsynced: Option<i64>,
    /// A file of this server was removed or replaced, perhaps with others, and no rewrite has ended
    /// since.
    has_losses: bool,
    /// The manifest that this process has read or written, to know it again; locked if the folder
    /// is. None: there was none.
    own_manifest: Option<Arc<dyn DiskFile>>,
    /// Its text: somebody may write another one into the same file.
    own_text: Vec<u8>,
    /// Paths and least bytes of the listed files that are not appended to any more.
    sizes: Vec<(PathBuf, u64)>,
    /// The text of a manifest that this process could not put into place for sure.
    tried: Vec<u8>,
    /// It had no manifest when it was opened.
    was_free: bool,
    /// The folder to which another server, or this one, has moved the append-only file.
    moved_to: Option<PathBuf>,
    /// The locked file. None: the folder is only read, or its file system knows no locks.
    lock: Option<Arc<dyn DiskFile>>,
}

/// An increment opened for appending.
#[derive(Clone, Debug)]
pub struct Increment {
    pub file: Arc<dyn DiskFile>,
    pub name: Vec<u8>,
    pub path: Arc<Path>,
    /// Its number, for [`AofFolder::finish_rewrite`].
    pub seq: i64,
    /// Its bytes when it was opened.
    pub len: u64,
}

impl AofFolder {
    /// Reads the manifest of the folder `dirname` in `parent`, if it exists; creates nothing, so it
    /// may be another server's. `filename` is the prefix of the files' names.
    pub fn open(
        disk: Arc<dyn Disk>,
        parent: &Path,
        dirname: &[u8],
        filename: &[u8],
    ) -> Result<Self, FolderError> {
        let mut folder = AofFolder::unread(disk, parent, dirname, filename);
        folder.read()?;
        Ok(folder)
    }

    /// As [`AofFolder::open`], but to write: creates the folder and locks it against other servers,
    /// until this is dropped.
    pub fn open_locked(
        disk: Arc<dyn Disk>,
        parent: &Path,
        dirname: &[u8],
        filename: &[u8],
    ) -> Result<Self, FolderError> {
        let mut folder = AofFolder::unread(disk, parent, dirname, filename);
        folder.create()?;
        folder.take_lock()?;
        folder.read()?;
        Ok(folder)
    }

    /// As [`AofFolder::open_locked`], to replace the files: a manifest that is damaged or missing
    /// counts as one that lists nothing, and its files' numbers are not used again.
    pub fn open_to_replace(
        disk: Arc<dyn Disk>,
        parent: &Path,
        dirname: &[u8],
        filename: &[u8],
    ) -> Result<Self, FolderError> {
        let mut folder = AofFolder::unread(disk, parent, dirname, filename);
        folder.create()?;
        folder.take_lock()?;
        if folder.read().is_err() {
            folder.lock_manifest()?;
            let text = read_whole(&*folder.disk, &folder.manifest_path(), MANIFEST_BYTES_MAX);
            folder.own_text = text.unwrap_or_default();
        }
        Ok(folder)
    }

    /// The names of all files of this append-only file in the folder, without the lock and
    /// temporary ones; also of files that no manifest lists.
    pub fn own_files(&self) -> Result<Vec<OsString>, FolderError> {
        let mut names = self.disk.list(&self.path).map_err(|error| self.cannot("read", error))?;
        let lock = self.lock_path();
        names.retain(|name| {
            let rest = name.as_bytes().strip_prefix(&*self.filename);
            let path = self.path.join(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
                && path != lock
                && self.disk.is_plain_file(&path)
        });
        Ok(names)
    }

    fn unread(disk: Arc<dyn Disk>, parent: &Path, dirname: &[u8], filename: &[u8]) -> Self {
        let path = parent.join(OsStr::from_bytes(dirname));
        AofFolder {
            disk,
            parent: parent.into(),
            path,
            filename: filename.into(),
            manifest: Manifest::default(),
            aside: None,
            unsynced: None,
            has_losses: false,
            own_manifest: None,
            own_text: Vec::new(),
            sizes: Vec::new(),
            tried: Vec::new(),
            was_free: true,
            moved_to: None,
            lock: None,
        }
    }

    fn read(&mut self) -> Result<(), FolderError> {
        let name = self.manifest_path();
        // Before it is read: once it is locked, no other server replaces it.
        self.note_manifest();
        self.lock_manifest()?;
        match read_whole(&*self.disk, &name, MANIFEST_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.refuse_unlisted(),
            Err(error) => {
                let what = format!(
                    "Fatal error: can't open the AOF manifest file {} for reading",
                    name.display()
                );
                Err(FolderError::system(&what, error))
            }
            Ok(text) => {
                self.manifest = Manifest::parse(&text).map_err(|error| FolderError {
                    text: format!("FATAL AOF MANIFEST FILE ERROR {}: {error}", name.display()),
                    source: None,
                })?;
                self.was_free = false;
                self.own_text = text;
                self.read_moved()
            }
        }
    }

    fn moved_path(&self) -> PathBuf {
        self.path_of(&[&self.filename, b".moved".as_slice()].concat())
    }

    fn read_moved(&mut self) -> Result<(), FolderError> {
        let path = self.moved_path();
        match read_whole(&*self.disk, &path, PATH_BYTES_MAX) {
            Ok(text) => {
                self.moved_to = Some(PathBuf::from(OsStr::from_bytes(text.trim_ascii_end())))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(FolderError::system(&format!("Can't read {}", path.display()), error));
            }
        }
        Ok(())
    }

    /// Refuses a folder whose append-only file continues in another one.
    pub fn check_not_moved(&self) -> Result<(), FolderError> {
        let Some(folder) = &self.moved_to else { return Ok(()) };
        let text = format!(
            "Fatal error: the append-only file has moved to {}, by CONFIG SET dir, and {} has only older data. Set dir \
             accordingly, or remove {} to start with the older data",
            folder.display(),
            self.path.display(),
            self.moved_path().display()
        );
        Err(FolderError { text, source: None })
    }

    /// The `dir` of the server whose files are in this folder.
    pub fn parent(&self) -> &Path {
        &self.parent
    }

    /// Whether this is the folder for the files of a server with this `dir`.
    pub fn is_in(&self, dir: &Path) -> bool {
        self.parent == dir
    }

    /// Refuses a folder that has an append-only file, unless this is the one that was moved to
    /// `from`.
    pub fn check_free(&self, from: &AofFolder) -> Result<(), FolderError> {
        if self.manifest.is_empty() || self.moved_to.as_ref() == Some(&from.path) {
            return Ok(());
        }
        let text = format!(
            "There is an append-only file already: {}. Move it away, or choose another dir",
            self.manifest_path().display()
        );
        Err(FolderError { text, source: None })
    }

    /// Notes durably that the append-only file continues in another folder.
    pub fn mark_moved(&mut self, to: &AofFolder) -> Result<(), FolderError> {
        let temporary = self.path_of(&[b"temp-".as_slice(), &self.filename, b".moved"].concat());
        let text = [to.path.as_os_str().as_bytes(), b"\n"].concat();
        replace_file(&*self.disk, &self.path, &temporary, &self.moved_path(), &text)
            .map_err(|(_, error)| self.cannot("note the move of the append-only file", error))
    }

    /// Removes what this process has made in a folder, after a move to it has failed.
    pub fn give_up(&mut self) {
        self.drop_aside();
        if self.was_free && !self.manifest.is_empty() {
            // Without its manifest first, a start would miss the files.
            let _ = self.disk.remove(&self.manifest_path());
            let _ = self.disk.sync_folder(&self.path);
            for file in std::mem::take(&mut self.manifest).files() {
                let _ = self.disk.remove(&self.path_of(&file.name));
            }
        }
        if self.was_free {
            let _ = self.disk.remove(&self.beginning_path());
        }
    }

    fn lock_path(&self) -> PathBuf {
        self.path_of(&[&self.filename, b".lock".as_slice()].concat())
    }

    fn take_lock(&mut self) -> Result<(), FolderError> {
        let path = self.lock_path();
        match self.disk.open_locked(&path) {
            Ok(Some(file)) => self.lock = Some(file),
            Ok(None) => return Err(is_locked(&path)),
            Err(error) if knows_no_locks(&error) => {}
            Err(error) => {
                return Err(FolderError::system(&format!("Can't lock {}", path.display()), error));
            }
        }
        Ok(())
    }

    /// Locks the present manifest, if the folder is locked. Somebody may have removed the lock's
    /// file while another server has the folder.
    fn lock_manifest(&self) -> Result<(), FolderError> {
        let path = self.manifest_path();
        let Some(manifest) = self.own_manifest.as_ref().filter(|_| self.lock.is_some()) else {
            return Ok(());
        };
        match manifest.lock() {
            Ok(true) if manifest.has_name(&path) => Ok(()),
            // If it has lost its name, another server has just replaced it.
            Ok(_) => Err(is_locked(&path)),
            Err(error) if knows_no_locks(&error) => Ok(()),
            Err(error) => {
                Err(FolderError::system(&format!("Can't lock {}", path.display()), error))
            }
        }
    }

    /// Creates and locks the folder again, if somebody has removed it, or the lock's file.
    fn keep_lock(&mut self) -> Result<(), FolderError> {
        let path = self.lock_path();
        match &self.lock {
            Some(lock) if !lock.has_name(&path) => {}
            _ => return Ok(()),
        }
        self.has_losses = true;
        self.create()?;
        self.take_lock()
    }

    /// Whether files may be missing that the manifest lists, until a rewrite has ended.
    pub fn has_losses(&self) -> bool {
        self.has_losses
    }

    /// Notes that a file was removed or replaced. The others may be somebody else's by now: the
    /// next rewrite no longer lists them, but removes none.
    pub fn note_losses(&mut self) {
        self.has_losses = true;
    }

    /// Whether a start would find the manifest that this process knows, and the whole of its files,
    /// without the one that is appended to.
    pub fn is_complete(&self) -> bool {
        let path = self.manifest_path();
        let is_whole = |(path, least): &(PathBuf, u64)| {
            self.disk.size(path).is_ok_and(|bytes| bytes >= *least)
        };
        let is_same = |own: &Arc<dyn DiskFile>| {
            // The open file saves most of the system's calls of a look by name.
            let text = match own.read_first(self.own_text.len() + 1) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    read_whole(&*self.disk, &path, MANIFEST_BYTES_MAX)
                }
                text => text,
            };
            // An error that is not about the file says nothing about it.
            own.has_name(&path) && text.map_or(true, |text| text == self.own_text)
        };
        self.own_manifest.as_ref().is_none_or(is_same) && self.sizes.iter().all(is_whole)
    }

    /// Notes how long the files are by now that are not appended to any more.
    fn note_sizes(&mut self) {
        let last = self.manifest.increments().last().map(|file| file.name.clone());
        let ended = self.manifest.files().filter(|file| Some(&file.name) != last.as_ref());
        let size = |file: &AofFile| {
            let path = self.path_of(&file.name);
            let known = self.sizes.iter().find(|(known, _)| *known == path);
            let bytes = known.map(|(_, bytes)| *bytes).or_else(|| self.disk.size(&path).ok());
            (path, bytes.unwrap_or(0))
        };
        self.sizes = ended.map(size).collect();
    }

    /// Files with data of this append-only file that the manifest does not name, though it names
    /// none of their number or a later one: a start does not load them.
    pub fn unlisted(&self) -> Vec<String> {
        let last = self.manifest.files().map(|file| file.seq).max().unwrap_or(0);
        let names = self.disk.list(&self.path).unwrap_or_default();
        let is_later = |name: &OsString| {
            let seq = seq_of(name.as_bytes(), &self.filename);
            let is_listed = self.manifest.files().any(|file| file.name == name.as_bytes());
            seq.is_some_and(|seq| seq >= last)
                && !is_listed
                && self.disk.size(&self.path.join(name)).is_ok_and(|bytes| bytes > 0)
        };
        let mut names: Vec<String> = names
            .into_iter()
            .filter(is_later)
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn note_manifest(&mut self) {
        let path = self.manifest_path();
        // Opening it for appending would create it.
        let exists = self.disk.size(&path).is_ok();
        self.own_manifest = if exists { self.disk.open_append(&path).ok() } else { None };
    }

    /// An error if somebody else has put a manifest into place: a backup, perhaps. It names the
    /// files that belong to it, and they must stay.
    fn refuse_foreign(&mut self) -> Result<(), FolderError> {
        let path = self.manifest_path();
        if self.disk.size(&path).is_err() {
            return Ok(());
        }
        let text = read_whole(&*self.disk, &path, MANIFEST_BYTES_MAX).unwrap_or_default();
        let is_here = self.own_manifest.as_ref().is_some_and(|own| own.has_name(&path));
        // It may have been cut.
        let is_own = is_here && self.own_text.starts_with(&text);
        let is_tried = !self.tried.is_empty() && text == self.tried;
        if is_own || is_tried {
            return Ok(());
        }
        self.has_losses = true;
        let text = format!(
            "The AOF manifest file {} was replaced by another one, which is left as it is: restart the server to load its \
             data, or move it away to go on with the data in memory",
            path.display()
        );
        Err(FolderError { text, source: None })
    }

    /// An error if the folder has data although there is no manifest.
    fn refuse_unlisted(&self) -> Result<(), FolderError> {
        let is_begun = self.disk.size(&self.beginning_path()).is_ok();
        let names = match self.disk.list(&self.path) {
            Ok(names) if !is_begun => names,
            // The folder is missing too, or cannot be read, which its use will report.
            _ => return Ok(()),
        };
        let has_data = |name: &OsString| {
            is_data_file(name.as_bytes(), &self.filename)
                && self.disk.size(&self.path.join(name)).is_ok_and(|bytes| bytes > 0)
        };
        let mut names: Vec<_> = names.into_iter().filter(has_data).collect();
        if names.is_empty() {
            return Ok(());
        }
        names.sort();
        let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
        let text = format!(
            "Fatal error: the AOF manifest file {} is missing, but its folder has data: {}. Put the manifest back, \
             or move these files away to begin without their data",
            self.manifest_path().display(),
            names.join(", ")
        );
        Err(FolderError { text, source: None })
    }

    fn beginning_path(&self) -> PathBuf {
        self.path_of(&[&self.filename, b".beginning".as_slice()].concat())
    }

    /// Creates the folder, and the mark that its first files have no manifest yet.
    fn begin(&self) -> Result<(), FolderError> {
        self.create()?;
        if !self.manifest.is_empty() {
            return Ok(());
        }
        let marked = self.disk.open_append(&self.beginning_path()).and_then(|_| {
            // Before the files, so that a power loss leaves none of them without the mark.
            self.disk.sync_folder(&self.path)
        });
        marked.map_err(|error| self.cannot("write to AOF directory", error))
    }

    /// The current state of the folder.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The disk the folder is on.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in the folder.
    pub fn path_of(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }

    /// The manifest's path.
    pub fn manifest_path(&self) -> PathBuf {
        self.path_of(&[&self.filename, b".manifest".as_slice()].concat())
    }

    /// Bytes of the base and all increments. A missing file is an error.
    pub fn size(&self) -> Result<u64, FolderError> {
        self.manifest.files().try_fold(0u64, |sum, file| {
            let size = self.disk.size(&self.path_of(&file.name)).map_err(|error| {
                let name = String::from_utf8_lossy(&file.name);
                FolderError::system(&format!("The append log file {name} can't be read"), error)
            })?;
            Ok(sum.saturating_add(size))
        })
    }

    /// Bytes of the base; 0 if there is none.
    pub fn base_size(&self) -> u64 {
        let size = |file: &AofFile| self.disk.size(&self.path_of(&file.name)).ok();
        self.manifest.base().and_then(size).unwrap_or(0)
    }

    /// Makes the single append-only file of an older Redis in `dir` the base, if there is one.
    /// Returns whether there was.
    ///
    /// Does so only if there is no manifest, or if it lists just this file as base and the file is
    /// not in the folder yet: an interrupted take-over.
    pub fn take_over_single_file(&mut self) -> Result<bool, FolderError> {
        let old = self.parent.join(OsStr::from_bytes(&self.filename));
        if self.disk.size(&old).is_err() || self.disk.is_folder(&old) {
            return Ok(false);
        }
        let inside = self.path_of(&self.filename);
        let interrupted = self.manifest.increments().is_empty()
            && self.manifest.base().is_some_and(|base| base.name == self.filename)
            && self.disk.size(&inside).is_err();
        if !self.manifest.is_empty() && !interrupted {
            return Ok(false);
        }
        if self.disk.size(&inside).is_ok() || self.disk.is_folder(&inside) {
            let text = format!(
                "Can't move the old AOF file {} into dir {}: a file of this name is there. Move one of them away",
                old.display(),
                self.path.display()
            );
            return Err(FolderError { text, source: None });
        }
        self.create()?;
        self.persist(Manifest::of_single_file(&self.filename))?;
        let moved = self.disk.rename(&old, &inside).and_then(|()| {
            self.disk.sync_folder(&self.path)?;
            self.disk.sync_folder(&self.parent)
        });
        moved.map_err(|error| {
            let what = format!(
                "Error trying to move the old AOF file {} into dir {}",
                old.display(),
                self.path.display()
            );
            FolderError::system(&what, error)
        })?;
        Ok(true)
    }

    /// Creates the folder durably.
    pub fn create(&self) -> Result<(), FolderError> {
        let made = self.disk.create_folder(&self.path).and_then(|()| {
            // Even if it existed: the process that created it may have ended before syncing.
            self.disk.sync_folder(&self.parent)
        });
        made.map_err(|error| {
            let what = format!("Can't open or create append-only dir {}", self.path.display());
            FolderError::system(&what, error)
        })
    }

    /// Opens the last increment, or creates a first one, when the server starts, after loading.
    /// Syncs the increment, so that everything clients see from now on is durable.
    ///
    /// In a new folder, or if an earlier process could not sync a file, `write_base` writes a new
    /// base; it need not sync.
    pub fn open_at_start(
        &mut self,
        format: BaseFormat,
        write_base: impl FnOnce(&dyn DiskFile) -> io::Result<()>,
    ) -> Result<Increment, FolderError> {
        self.begin()?;
        let mut next = self.manifest.clone();
        let is_marked = self.is_marked();
        let mut created = Vec::new();
        if next.is_empty() || is_marked {
            // All existing files become history.
            let rewritten =
                |now: &Manifest| now.with_rewrite_finished(&self.filename, format, i64::MAX);
            let (with_base, path, file) = self.create_base(next, rewritten)?;
            next = with_base;
            if let Err(error) = write_base(&*file).and_then(|()| file.sync_data()) {
                let _ = self.disk.remove(&path);
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                return Err(FolderError::system(
                    &format!("Can't write the AOF base file {name}"),
                    error,
                ));
            }
            created.push(path);
        }
        let opened = match next.increments().last() {
            Some(last) => self.open_last(last).map(|increment| (next, increment)),
            None => self.create_increment(next),
        };
        let (next, increment) = opened.inspect_err(|_| self.discard(&created))?;
        if next != self.manifest {
            if next.increments() != self.manifest.increments() {
                created.push(increment.path.to_path_buf());
            }
            self.list(next, &created)?;
            if is_marked {
                self.remove_history()?;
                self.remove_mark();
            }
        } else {
            let synced = self.disk.sync_folder(&self.path);
            synced.map_err(|error| self.cannot("fsync AOF directory", error))?;
            // An earlier process may have ended before it could do so.
            let _ = self.disk.remove(&self.beginning_path());
            self.note_sizes();
        }
        Ok(increment)
    }

    fn mark_path(&self) -> PathBuf {
        self.path_of(&[&self.filename, b".unsynced".as_slice()].concat())
    }

    /// Whether an earlier process could not sync a file, and no rewrite has replaced it.
    pub fn is_marked(&self) -> bool {
        self.disk.size(&self.mark_path()).is_ok()
    }

    /// The increment numbered `seq` could not be synced.
    pub fn mark_unsynced(&mut self, seq: i64) {
        self.unsynced = Some(seq);
        self.mark();
    }

    fn mark(&self) {
        // If this fails too, the next start continues as if everything were synced: there is no
        // further remedy.
        let _ = self.disk.open_append(&self.mark_path());
        let _ = self.disk.sync_folder(&self.path);
    }

    fn remove_mark(&self) {
        // If the mark stays, the next start writes another base.
        let _ = self.disk.remove(&self.mark_path());
    }

    /// Creates the next increment, at the beginning of a rewrite. After an error the manifest is
    /// unchanged; files that it does not list may be left.
    pub fn next_increment(&mut self) -> Result<Increment, FolderError> {
        if self.aside.is_some() {
            // The first rewrite after switching on begins again.
            return self.increment_aside();
        }
        if !self.disk.is_folder(&self.path) {
            // It was removed while the server runs. Until the rewrite has ended, a start misses the
            // files that the manifest lists, and is refused.
            self.create()?;
        }
        self.keep_lock()?;
        self.refuse_foreign()?;
        let (next, increment) = self.create_increment(self.manifest.clone())?;
        self.list(next, &[increment.path.to_path_buf()])?;
        Ok(increment)
    }

    /// Creates an increment "aside": it is not in the manifest until [`AofFolder::finish_rewrite`].
    /// For switching the append-only file on while the server runs: a start before the rewrite's
    /// end loads the folder's earlier state. An earlier increment aside is removed.
    pub fn increment_aside(&mut self) -> Result<Increment, FolderError> {
        self.keep_lock()?;
        self.refuse_foreign()?;
        self.begin()?;
        let (_, increment) = self.create_increment(self.manifest.clone())?;
        self.drop_aside();
        self.aside = Some(AofFile { name: increment.name.clone(), seq: increment.seq });
        Ok(increment)
    }

    /// Removes the increment that is aside, if there is one: the append-only file was switched off
    /// before its first rewrite ended. If it cannot be removed it stays, not listed anywhere.
    /// Returns its name.
    pub fn drop_aside(&mut self) -> Option<Vec<u8>> {
        let AofFile { name, .. } = self.aside.take()?;
        let _ = self.disk.remove(&self.path_of(&name));
        Some(name)
    }

    /// Opens the last increment of a manifest, for appending.
    fn open_last(&self, AofFile { name, seq }: &AofFile) -> Result<Increment, FolderError> {
        let path = self.path_of(name);
        let opened = self.disk.open_append(&path).and_then(|file| {
            file.sync_data().inspect_err(|_| self.mark())?;
            let len = file.size()?;
            Ok((file, len))
        });
        let (file, len) = opened.map_err(|error| cannot_open(name, error))?;
        Ok(Increment { file, name: name.clone(), path: path.into(), seq: *seq, len })
    }

    /// Creates an empty increment after those of a manifest. Returns the manifest with it too.
    fn create_increment(&self, mut now: Manifest) -> Result<(Manifest, Increment), FolderError> {
        loop {
            let next = now.with_next_increment(&self.filename);
            let last = next.increments().last().cloned();
            let AofFile { name, seq } = last.unwrap_or(AofFile { name: Vec::new(), seq: 0 });
            let path = self.path_of(&name);
            match self.disk.create_new(&path) {
                Ok(file) => {
                    return Ok((next, Increment { file, name, path: path.into(), seq, len: 0 }));
                }
                Err(error) if is_taken(&error, seq) => now.skip_increment(),
                Err(error) => return Err(cannot_open(&name, error)),
            }
        }
    }

    /// Creates an empty base, that of the manifest which `change` makes of `now`. Returns that
    /// manifest and the base's path too.
    fn create_base(
        &self,
        mut now: Manifest,
        change: impl Fn(&Manifest) -> Manifest,
    ) -> Result<(Manifest, PathBuf, Arc<dyn DiskFile>), FolderError> {
        loop {
            let next = change(&now);
            let base = next.base().cloned();
            let AofFile { name, seq } = base.unwrap_or(AofFile { name: Vec::new(), seq: 0 });
            let path = self.path_of(&name);
            match self.disk.create_new(&path) {
                Ok(file) => return Ok((next, path, file)),
                Err(error) if is_taken(&error, seq) => now.skip_base(),
                Err(error) => {
                    let name = String::from_utf8_lossy(&name);
                    let what = format!("Can't write the AOF base file {name}");
                    return Err(FolderError::system(&what, error));
                }
            }
        }
    }

    /// Makes a manifest the folder's state, as [`AofFolder::persist`] does. If that fails, removes
    /// the files that were created for it.
    fn list(&mut self, next: Manifest, created: &[PathBuf]) -> Result<(), FolderError> {
        let text = next.text();
        let listed = self.persist(next);
        if listed.is_err() && self.manifest.text() != text {
            self.discard(created);
        }
        listed
    }

    /// Removes files that no manifest has named.
    fn discard(&self, created: &[PathBuf]) {
        for path in created {
            let _ = self.disk.remove(path);
        }
    }

    /// Ends a rewrite: `written`, a complete and synced file in this folder, becomes the base, and
    /// the files before the increment numbered `first_kept` become history. An increment that was
    /// aside is now listed. Returns the base's bytes.
    pub fn finish_rewrite(
        &mut self,
        written: &Path,
        format: BaseFormat,
        first_kept: i64,
    ) -> Result<u64, FolderError> {
        let now = match &self.aside {
            Some(file) => self.manifest.with_increment(file.clone()),
            None => self.manifest.clone(),
        };
        self.refuse_foreign()?;
        let rewritten = |now: &Manifest| {
            let next = now.with_rewrite_finished(&self.filename, format, first_kept);
            if self.has_losses { next.without_history() } else { next }
        };
        let (next, base, _) = self.create_base(now, rewritten)?;
        let created = [base];
        let [base] = &created;
        if let Err(error) = self.disk.rename(written, base) {
            self.discard(&created);
            let what = format!(
                "Error trying to rename the temporary AOF base file {} into {}",
                written.display(),
                base.display()
            );
            return Err(FolderError::system(&what, error));
        }
        let text = next.text();
        let listed = self.list(next, &created);
        if self.manifest.text() == text {
            // The new manifest is in place, though perhaps not durably.
            self.aside = None;
        }
        listed?;
        self.has_losses = false;
        if self.unsynced.is_some_and(|seq| seq < first_kept) {
            self.unsynced = None;
            self.remove_mark();
        }
        Ok(self.base_size())
    }

    /// Removes the history. A file that cannot be removed stays, but is no longer listed; its name
    /// and error are returned.
    pub fn remove_history(&mut self) -> Result<Vec<(Vec<u8>, io::Error)>, FolderError> {
        if self.manifest.history().is_empty() {
            return Ok(Vec::new());
        }
        let mut left = Vec::new();
        let is_kept = |file: &AofFile| self.manifest.files().any(|kept| kept.name == file.name);
        for file in self.manifest.history().iter().filter(|file| !is_kept(file)) {
            match self.disk.remove(&self.path_of(&file.name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    left.push((file.name.clone(), error));
                }
                _ => {}
            }
        }
        self.persist(self.manifest.without_history())?;
        Ok(left)
    }

    /// Makes a manifest the folder's state, durably. The files' names are made durable first.
    fn persist(&mut self, next: Manifest) -> Result<(), FolderError> {
        self.refuse_foreign()?;
        let synced = self.disk.sync_folder(&self.path);
        synced.map_err(|error| self.cannot("fsync AOF directory", error))?;
        let name = [&self.filename, b".manifest".as_slice()].concat();
        let temporary = [b"temp-".as_slice(), &name].concat();
        let text = next.text();
        self.tried.clone_from(&text);
        let (from, to) = (OsStr::from_bytes(&temporary), OsStr::from_bytes(&name));
        let (disk, folder) = (&*self.disk, &self.path);
        let replaced = match &self.lock {
            Some(_) => {
                replace_locked_file(disk, folder, from.as_ref(), to.as_ref(), &text).map(Some)
            }
            None => replace_file(disk, folder, from.as_ref(), to.as_ref(), &text).map(|()| None),
        };
        match replaced {
            Ok(Some(locked)) => self.own_manifest = Some(locked),
            Ok(None) => self.note_manifest(),
            Err((step, error)) => {
                if step == ReplaceStep::SyncFolder {
                    // The new manifest is in place: readers of the folder see this state. The mark
                    // stays, since a power loss may take the manifest away.
                    self.manifest = next;
                    self.own_text = text;
                    self.note_manifest();
                    // The next new manifest is locked, if this one is not.
                    let _ = self.lock_manifest();
                    self.note_sizes();
                }
                let what = match step {
                    ReplaceStep::Create => "open the AOF manifest file",
                    ReplaceStep::Write => "write the temporary AOF manifest file",
                    ReplaceStep::Sync => "fsync the temp AOF file",
                    ReplaceStep::Rename => "rename the temporary AOF manifest file",
                    ReplaceStep::SyncFolder => "fsync AOF directory",
                };
                return Err(self.cannot(what, error));
            }
        }
        // It is there after the first manifest, or after one that was not durable.
        let _ = self.disk.remove(&self.beginning_path());
        if self.moved_to.take().is_some() {
            let _ = self.disk.remove(&self.moved_path());
        }
        self.manifest = next;
        self.own_text = text;
        self.tried.clear();
        self.note_sizes();
        Ok(())
    }

    fn cannot(&self, what: &str, error: io::Error) -> FolderError {
        FolderError::system(&format!("Fail to {what} ({})", self.path.display()), error)
    }
}

/// Whether a new file's name is taken, and another number is left to try.
fn is_taken(error: &io::Error, seq: i64) -> bool {
    error.kind() == io::ErrorKind::AlreadyExists && seq < SEQ_MAX
}

fn is_locked(path: &Path) -> FolderError {
    let text = format!(
        "Another server uses this append-only file: it has {} locked. Servers with the same dir need an appenddirname or \
         appendfilename of their own",
        path.display()
    );
    FolderError { text, source: None }
}

fn cannot_open(name: &[u8], error: io::Error) -> FolderError {
    let name = String::from_utf8_lossy(name);
    FolderError::system(&format!("Can't open the append-only file {name}"), error)
}

/// Whether a manifest of files with this prefix may list the name: `PREFIX.N.base.rdb`,
/// `PREFIX.N.base.aof` or `PREFIX.N.incr.aof`.
fn is_data_file(name: &[u8], prefix: &[u8]) -> bool {
    digits_of(name, prefix).is_some()
}

/// The number of such a file; the greatest one if it has more digits.
fn seq_of(name: &[u8], prefix: &[u8]) -> Option<i64> {
    let digits = std::str::from_utf8(digits_of(name, prefix)?).ok()?;
    Some(digits.parse().unwrap_or(i64::MAX))
}

fn digits_of<'a>(name: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let rest = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(b"."));
    let ends = [b".base.rdb".as_slice(), b".base.aof", b".incr.aof"];
    let digits = rest.and_then(|rest| ends.iter().find_map(|end| rest.strip_suffix(*end)));
    digits.filter(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests;
