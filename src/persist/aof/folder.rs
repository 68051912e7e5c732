//! The folder of the append-only file: makes each state of the manifest durable, in an order that a crash at any point leaves
//! with a whole state, the old one or the new.
//!
//! The orders (all within `appenddirname`):
//! - *any new manifest*: folder synced, so that the names it mentions are durable before it is; `temp-<name>.manifest` written,
//!   synced, renamed over the old; folder synced.
//! - *a new increment*: created empty, then the manifest that names it. Only then may it be written.
//! - *a rewrite's end*: the base was written aside and synced by who made it; it gets its name, then the manifest that names
//!   it and calls the files before it history. Then those are removed, and a manifest without them is written.
//! - *taking over a single file*: the manifest that names it as base, then it is moved in. A crash between is seen at the
//!   next start, and the move done then.
//!
//! Owns the manifest. Every function here may wait for the disk; none is to be called by the loop's thread once clients are
//! served.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use super::manifest::{AofFile, BaseFormat};
use super::manifest::{MANIFEST_BYTES_MAX, Manifest};
use crate::config::system_text;
use crate::sys::disk::{Disk, DiskFile, ReplaceStep, read_whole, replace_file};

/// Why the folder could not be brought into a state. Displays as one line of the log.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct FolderError {
    pub text: String,
    /// What the system said, where it did.
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
    /// Where an old single file would lie: the server's `dir`.
    parent: PathBuf,
    path: PathBuf,
    filename: Vec<u8>,
    manifest: Manifest,
    /// Number of the increment that no manifest names yet. See [`AofFolder::increment_aside`].
    aside: Option<i64>,
}

/// An increment, open to be written at its end.
#[derive(Clone, Debug)]
pub struct Increment {
    pub file: Arc<dyn DiskFile>,
    pub name: Vec<u8>,
    /// Its number, which [`AofFolder::finish_rewrite`] wants to know.
    pub seq: i64,
    /// Bytes it already had.
    pub len: u64,
}

impl AofFolder {
    /// Reads the manifest of the folder `dirname` in `parent` if there is one; creates nothing. `filename` is what the files'
    /// names begin with.
    pub fn open(
        disk: Arc<dyn Disk>,
        parent: &Path,
        dirname: &[u8],
        filename: &[u8],
    ) -> Result<Self, FolderError> {
        let path = parent.join(OsStr::from_bytes(dirname));
        let mut folder = AofFolder {
            disk,
            parent: parent.into(),
            path,
            filename: filename.into(),
            manifest: Manifest::default(),
            aside: None,
        };
        let name = folder.manifest_path();
        match read_whole(&*folder.disk, &name, MANIFEST_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let what = format!(
                    "Fatal error: can't open the AOF manifest file {} for reading",
                    name.display()
                );
                return Err(FolderError::system(&what, error));
            }
            Ok(text) => {
                folder.manifest = Manifest::parse(&text).map_err(|error| FolderError {
                    text: format!("FATAL AOF MANIFEST FILE ERROR {}: {error}", name.display()),
                    source: None,
                })?;
            }
        }
        Ok(folder)
    }

    /// The state the folder is in.
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

    /// Bytes of all files that are loaded. A file that the manifest names and that is not there is an error.
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

    /// Takes over a single file of Redis before 7, if one lies in `dir`: it becomes the base. Tells whether one did.
    ///
    /// That is so if there is no manifest, or one that names this file as base and nothing else while it is not in the folder
    /// yet: the same step, interrupted.
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

    /// Makes the folder itself, durably.
    pub fn create(&self) -> Result<(), FolderError> {
        let made = self.disk.create_folder(&self.path).and_then(|()| {
            // Also where it was there: a process that made it may have ended before this.
            self.disk.sync_folder(&self.parent)
        });
        made.map_err(|error| {
            let what = format!("Can't open or create append-only dir {}", self.path.display());
            FolderError::system(&what, error)
        })
    }

    /// The last increment, or a first one, open to be written: after loading, when the server starts. What is in it is synced,
    /// so that nothing that clients see from now on was only written by a process that is gone.
    ///
    /// In a new folder `write_base` writes the first base; it need not sync.
    pub fn open_at_start(
        &mut self,
        format: BaseFormat,
        write_base: impl FnOnce(&dyn DiskFile) -> io::Result<()>,
    ) -> Result<Increment, FolderError> {
        self.create()?;
        let mut next = self.manifest.clone();
        if next.is_empty() {
            next = next.with_next_base(&self.filename, format);
            let name = next.base().map(|base| base.name.clone()).unwrap_or_default();
            let written = self.disk.create(&self.path_of(&name)).and_then(|file| {
                write_base(&*file)?;
                file.sync_data()
            });
            written.map_err(|error| {
                let name = String::from_utf8_lossy(&name);
                FolderError::system(&format!("Can't write the AOF base file {name}"), error)
            })?;
        }
        // What lies under the name of one that the manifest does not have was aside when the process ended: it is no part of this.
        let has_increment = !next.increments().is_empty();
        if !has_increment {
            next = next.with_next_increment(&self.filename);
        }
        let increment = self.open_last(&next, has_increment)?;
        if next != self.manifest {
            self.persist(next)?;
        } else {
            let synced = self.disk.sync_folder(&self.path);
            synced.map_err(|error| self.cannot("fsync AOF directory", error))?;
        }
        Ok(increment)
    }

    /// A new increment after the last, for a rewrite to begin with: when this returns it may be written. On an error the folder
    /// is as it was, whatever lies in it without being named.
    pub fn next_increment(&mut self) -> Result<Increment, FolderError> {
        if self.aside.is_some() {
            // The rewrite that was to make the folder count is begun once more.
            return self.increment_aside();
        }
        let next = self.manifest.with_next_increment(&self.filename);
        let increment = self.open_last(&next, false)?;
        self.persist(next)?;
        Ok(increment)
    }

    /// A new increment that no manifest names before [`AofFolder::finish_rewrite`]: for switching the append-only file on while
    /// the server runs. A start before that loads what the folder had before. One from before that is aside is removed.
    pub fn increment_aside(&mut self) -> Result<Increment, FolderError> {
        self.create()?;
        let seq = self.aside.map_or(self.manifest.next_increment_seq(), |seq| seq + 1);
        let next = self.manifest.with_increment(&self.filename, seq);
        let increment = self.open_last(&next, false)?;
        self.drop_aside();
        self.aside = Some(seq);
        Ok(increment)
    }

    /// Gives up the increment that is aside, if there is one: the append-only file was switched off before its first rewrite
    /// ended. Where it cannot be removed it stays, named by nothing. Returns its name.
    pub fn drop_aside(&mut self) -> Option<Vec<u8>> {
        let seq = self.aside.take()?;
        let manifest = self.manifest.with_increment(&self.filename, seq);
        let name = manifest.increments().last()?.name.clone();
        let _ = self.disk.remove(&self.path_of(&name));
        Some(name)
    }

    fn open_last(&self, manifest: &Manifest, keep: bool) -> Result<Increment, FolderError> {
        let last = manifest.increments().last().cloned();
        let AofFile { name, seq } = last.unwrap_or(AofFile { name: Vec::new(), seq: 0 });
        let path = self.path_of(&name);
        let opened = if keep {
            self.disk.open_append(&path)
        } else {
            // One of the same name is left of an attempt that no manifest came to name.
            self.disk.create(&path)
        };
        let opened = opened.and_then(|file| {
            if keep {
                file.sync_data()?;
            }
            let len = file.size()?;
            Ok((file, len))
        });
        let (file, len) = opened.map_err(|error| {
            let name = String::from_utf8_lossy(&name);
            FolderError::system(&format!("Can't open the append-only file {name}"), error)
        })?;
        Ok(Increment { file, name, seq, len })
    }

    /// Ends a rewrite: `written`, a whole and synced file in this folder, becomes the base, and all that was written before
    /// the increment numbered `first_kept` is history. An increment that was aside is named from now on. Returns the bytes of
    /// the base.
    pub fn finish_rewrite(
        &mut self,
        written: &Path,
        format: BaseFormat,
        first_kept: i64,
    ) -> Result<u64, FolderError> {
        let mut next = self.manifest.clone();
        if let Some(seq) = self.aside {
            next = next.with_increment(&self.filename, seq);
        }
        let next = next.with_rewrite_finished(&self.filename, format, first_kept);
        let name = next.base().map(|base| base.name.clone()).unwrap_or_default();
        let base = self.path_of(&name);
        self.disk.rename(written, &base).map_err(|error| {
            let what = format!(
                "Error trying to rename the temporary AOF base file {} into {}",
                written.display(),
                base.display()
            );
            FolderError::system(&what, error)
        })?;
        let persisted = self.persist(next);
        if self.manifest.base().is_some_and(|base| base.name == name) {
            // Its name is there, though perhaps not durably.
            self.aside = None;
        }
        persisted?;
        Ok(self.base_size())
    }

    /// Removes the files that a rewrite has replaced. One that cannot be removed stays, and is forgotten; its error is
    /// returned beside its name.
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

    /// Makes a state the folder's, durably. The names it mentions are made so first: a manifest must not survive a file of it.
    fn persist(&mut self, next: Manifest) -> Result<(), FolderError> {
        let synced = self.disk.sync_folder(&self.path);
        synced.map_err(|error| self.cannot("fsync AOF directory", error))?;
        let name = [&self.filename, b".manifest".as_slice()].concat();
        let temporary = [b"temp-".as_slice(), &name].concat();
        let replaced = replace_file(
            &*self.disk,
            &self.path,
            OsStr::from_bytes(&temporary).as_ref(),
            OsStr::from_bytes(&name).as_ref(),
            &next.text(),
        );
        match replaced {
            Ok(()) => {}
            Err((step, error)) => {
                if step == ReplaceStep::SyncFolder {
                    // Its name is there: who reads the folder from now on reads this state.
                    self.manifest = next;
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
        self.manifest = next;
        Ok(())
    }

    fn cannot(&self, what: &str, error: io::Error) -> FolderError {
        FolderError::system(&format!("Fail to {what} ({})", self.path.display()), error)
    }
}

#[cfg(test)]
mod tests;
