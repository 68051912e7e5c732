//! The file in which a cluster's node keeps its state: read and locked at the start, and replaced
//! by a thread.
//!
//! ```text
//!   text -> temporary file, locked, synced -> renamed -> folder synced -> messages that depend on it may leave
//! ```
//!
//! The lock is the file's own, and lasts from the start to the end: a new file is locked before it
//! gets the name, and the old one is kept open until then. One save is under way at a time; of the
//! texts that arrive in that time, only the last is saved.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::saver::lock;
use crate::sys::background::Background;
use crate::sys::disk::{Disk, DiskFile, ReplaceStep, read_whole, replace_locked_file};

/// A longer file is not this server's. Unit: bytes.
const BYTES_MAX: u64 = 256 << 20;

type Outcome = Arc<(Mutex<Option<Result<Arc<dyn DiskFile>, SaveError>>>, Condvar)>;

/// See the module.
#[derive(Debug)]
pub struct NodesFile {
    folder: PathBuf,
    name: PathBuf,
    disk: Arc<dyn Disk>,
    locked: Arc<dyn DiskFile>,
    under_way: Option<(Save, Outcome)>,
    next: Option<Save>,
}

/// A text to be saved, and its number.
#[derive(Clone, Debug)]
struct Save {
    number: u64,
    text: Arc<[u8]>,
}

/// Why the file cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// Another process has it locked.
    Locked,
    Io(io::Error),
}

/// Why a save failed.
#[derive(Debug)]
pub struct SaveError {
    pub step: ReplaceStep,
    pub error: io::Error,
}

impl NodesFile {
    /// Opens and locks a file, creating an empty one if there is none. Returns its text too.
    /// `folder` and `name` make up the path.
    pub fn open(
        disk: Arc<dyn Disk>,
        folder: &Path,
        name: &Path,
    ) -> Result<(NodesFile, Vec<u8>), OpenError> {
        let path = folder.join(name);
        let locked = disk.open_locked(&path).map_err(OpenError::Io)?.ok_or(OpenError::Locked)?;
        let text = read_whole(&*disk, &path, BYTES_MAX).map_err(OpenError::Io)?;
        let folder = path.parent().unwrap_or(folder).to_owned();
        let name = path.file_name().map_or_else(|| name.to_owned(), PathBuf::from);
        Ok((NodesFile { folder, name, disk, locked, under_way: None, next: None }, text))
    }

    /// Saves a text at once.
    pub fn save_now(&mut self, text: &[u8]) -> Result<(), SaveError> {
        self.locked = replace(&*self.disk, &self.folder, &self.name, text)?;
        Ok(())
    }

    /// Schedules a save of a text, after the save that is under way.
    pub fn save(&mut self, number: u64, text: Arc<[u8]>) {
        self.next = Some(Save { number, text });
    }

    /// At the end: waits for the save that is under way, and makes the next one, if there is one.
    pub fn finish(&mut self, background: &Background) -> Result<(), SaveError> {
        if let Some((save, outcome)) = self.under_way.take() {
            let (result, ended) = &*outcome;
            let mut result = lock(result);
            while result.is_none() && background.has_threads() {
                result = ended.wait(result).unwrap_or_else(PoisonError::into_inner);
            }
            match result.take() {
                Some(Ok(locked)) => self.locked = locked,
                _ => drop(self.next.get_or_insert(save)),
            }
        }
        match self.next.take() {
            Some(save) => self.save_now(&save.text),
            None => Ok(()),
        }
    }

    /// Whether all is saved.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_none() && self.next.is_none()
    }

    /// Begins the next save, if there is one and none is under way; at its end its thread calls
    /// `wake`. Returns the number of a save that has ended since the last call. After an error the
    /// file is unchanged, and the save is still to be done.
    pub fn go_on(
        &mut self,
        background: &Background,
        wake: &Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Option<u64>, SaveError> {
        let ended = self.end_save()?;
        if self.under_way.is_none()
            && let Some(save) = self.next.take()
        {
            self.begin(save, background, wake)?;
        }
        Ok(ended)
    }

    fn end_save(&mut self) -> Result<Option<u64>, SaveError> {
        let Some((save, outcome)) = &self.under_way else { return Ok(None) };
        let Some(result) = lock(&outcome.0).take() else { return Ok(None) };
        let save = save.clone();
        self.under_way = None;
        match result {
            Ok(locked) => {
                self.locked = locked;
                Ok(Some(save.number))
            }
            Err(error) => {
                self.next.get_or_insert(save);
                Err(error)
            }
        }
    }

    fn begin(
        &mut self,
        save: Save,
        background: &Background,
        wake: &Arc<dyn Fn() + Send + Sync>,
    ) -> Result<(), SaveError> {
        let outcome = Outcome::default();
        let (theirs, wake, text) = (outcome.clone(), wake.clone(), save.text.clone());
        let (disk, folder, name) = (self.disk.clone(), self.folder.clone(), self.name.clone());
        let spawned = background.spawn("nodes-file", move || {
            let result = replace(&*disk, &folder, &name, &text);
            *lock(&theirs.0) = Some(result);
            theirs.1.notify_all();
            wake();
        });
        match spawned {
            Ok(_) => {
                self.under_way = Some((save, outcome));
                Ok(())
            }
            Err(error) => {
                self.next.get_or_insert(save);
                Err(SaveError { step: ReplaceStep::Create, error })
            }
        }
    }
}

fn replace(
    disk: &dyn Disk,
    folder: &Path,
    name: &Path,
    text: &[u8],
) -> Result<Arc<dyn DiskFile>, SaveError> {
    let mut temporary = name.as_os_str().to_owned();
    temporary.push(format!(".tmp-{}", std::process::id()));
    replace_locked_file(disk, folder, temporary.as_ref(), name, text)
        .map_err(|(step, error)| SaveError { step, error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::disk::RealDisk;
    use crate::sys::disk::model::{Call, Fault, ModelDisk};

    fn wake() -> Arc<dyn Fn() + Send + Sync> {
        Arc::new(|| {})
    }

    #[test]
    fn a_file_stays_locked_over_saves() {
        let scratch = tempfile::tempdir().unwrap();
        let open = || NodesFile::open(Arc::new(RealDisk), scratch.path(), "nodes.conf".as_ref());
        let (mut file, text) = open().unwrap();
        assert_eq!(text, b"");
        assert!(matches!(open(), Err(OpenError::Locked)));
        file.save_now(b"one").unwrap();
        assert!(matches!(open(), Err(OpenError::Locked)));
        drop(file);
        assert_eq!(open().unwrap().1, b"one");
    }

    #[test]
    fn the_last_save_stands_for_those_that_waited_and_a_failed_one_is_repeated() {
        let disk = ModelDisk::new(1);
        let later = Background::Later(Arc::default());
        let (mut file, _) =
            NodesFile::open(Arc::new(disk.clone()), "/".as_ref(), "nodes.conf".as_ref()).unwrap();
        file.save(1, b"one"[..].into());
        assert_eq!(file.go_on(&later, &wake()).unwrap(), None);
        file.save(2, b"two"[..].into());
        file.save(3, b"three"[..].into());
        assert_eq!(file.go_on(&later, &wake()).unwrap(), None);
        later.run();
        assert_eq!(file.go_on(&later, &wake()).unwrap(), Some(1));
        disk.fail_next(Call::Sync, Fault::Error(libc::EIO));
        later.run();
        assert_eq!(file.go_on(&later, &wake()).unwrap_err().step, ReplaceStep::Sync);
        assert!(!file.is_idle());
        assert_eq!(disk.bytes("/nodes.conf".as_ref()).unwrap(), b"one");
        assert_eq!(file.go_on(&later, &wake()).unwrap(), None);
        later.run();
        assert_eq!(file.go_on(&later, &wake()).unwrap(), Some(3));
        assert!(file.is_idle());
        assert_eq!(disk.bytes("/nodes.conf".as_ref()).unwrap(), b"three");
        file.save(4, b"four"[..].into());
        assert_eq!(file.go_on(&later, &wake()).unwrap(), None);
        file.finish(&later).unwrap();
        assert_eq!(disk.bytes("/nodes.conf".as_ref()).unwrap(), b"four");
    }
}
