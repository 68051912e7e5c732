//! A disk in memory for tests, which knows what a power loss would leave.
//!
//! Calls return and change the same as on the real disk: `agreement_tests.rs` runs random scripts
//! on both.
//!
//! Each file has visible bytes, durable bytes, and the unsynced writes between them. Names
//! likewise: created, renamed and removed names are only durable once their folder was synced.
//! Changing operations are numbered from 1; at a chosen number one can fail, or the machine crash.
//! The surviving data is drawn from the seed, so a failure is reproducible.
//!
//! After a power loss a file has its durable bytes, then a prefix of the unsynced writes, the last
//! of them torn; its length may have survived without the bytes, which then are NULs. Of unsynced
//! names any subset survives. Not modelled: a later write of a file survives while an earlier one
//! is lost.
//!
//! A disk may have a capacity, up to which a write stores its first bytes, and may be slow: a clock
//! moves with each operation.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Disk, DiskFile, DiskReader};
use crate::clock::ManualClock;
use crate::sys::alloc::Apart;

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The process alone: written bytes stay.
    Kill,
    /// The machine: unsynced bytes may be gone.
    PowerLoss,
}

/// The longest file, as files are in memory. Unit: bytes.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// A fault of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this error number and changes nothing; a failed sync loses the bytes that it
    /// should have made durable.
    Error(i32),
    /// A write accepts this many bytes; other operations work as usual.
    Short(usize),
}

/// An operation of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Create,
    Write,
    Sync,
    SetLen,
    StartWriteback,
    Rename,
    Link,
    Remove,
    CreateFolder,
    SyncFolder,
}

impl Call {
    pub const ALL: [Call; 10] = [
        Call::Create,
        Call::Write,
        Call::Sync,
        Call::SetLen,
        Call::StartWriteback,
        Call::Rename,
        Call::Link,
        Call::Remove,
        Call::CreateFolder,
        Call::SyncFolder,
    ];
}

/// See the module's text. Clones share the disk.
#[derive(Clone, Debug)]
pub struct ModelDisk {
    model: Arc<Mutex<Model>>,
}

#[derive(Debug)]
struct Model {
    files: Vec<Inode>,
    names: BTreeMap<PathBuf, Node>,
    durable_names: BTreeMap<PathBuf, Node>,
    unsynced_names: Vec<NameChange>,
    random: fastrand::Rng,
    operations: u64,
    faults: BTreeMap<u64, Fault>,
    /// Faults of the next operation of a kind.
    next_faults: BTreeMap<Call, Fault>,
    /// Bytes that all files together may have.
    capacity: Option<usize>,
    slow: Option<(ManualClock, i64)>,
    ends_at: Option<u64>,
    ended: bool,
    /// Files opened before the last restart are closed.
    starts: u64,
    /// Files that an open file has locked.
    locked: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    File(usize),
    Folder,
}

#[derive(Clone, Debug)]
struct NameChange {
    gone: Option<PathBuf>,
    here: Option<(PathBuf, Node)>,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    seen: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Write(Vec<u8>),
    SetLen(usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write(written) => bytes.extend_from_slice(written),
            Change::SetLen(len) => bytes.resize(*len, 0),
        }
    }
}

impl Model {
    /// An empty disk on which nothing fails.
    fn new(seed: u64) -> Self {
        let root = BTreeMap::from([(PathBuf::from("/"), Node::Folder)]);
        Model {
            files: Vec::new(),
            names: root.clone(),
            durable_names: root,
            unsynced_names: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
            operations: 0,
            faults: BTreeMap::new(),
            next_faults: BTreeMap::new(),
            capacity: None,
            slow: None,
            ends_at: None,
            ended: false,
            starts: 0,
            locked: BTreeSet::new(),
        }
    }
}

impl ModelDisk {
    /// An empty disk with one folder, `/`.
    pub fn new(seed: u64) -> Self {
        let model = Model::new(seed);
        ModelDisk { model: Arc::new(Mutex::new(model)) }
    }

    fn lock(&self) -> Locked<'_> {
        let apart = Apart::begin();
        let model = self.model.lock().expect("no thread panics while it holds the model");
        Locked { model, _apart: apart }
    }

    /// Number of changing operations so far.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Makes the operation of this number fail.
    pub fn fail_at(&self, operation: u64, fault: Fault) {
        self.lock().faults.insert(operation, fault);
    }

    /// Makes the next operation of this kind fail.
    pub fn fail_next(&self, call: Call, fault: Fault) {
        self.lock().next_faults.insert(call, fault);
    }

    /// Limits the bytes of all files together. None: there is no limit.
    pub fn set_capacity(&self, bytes: Option<usize>) {
        self.lock().capacity = bytes;
    }

    /// Bytes of all files that have a name.
    pub fn used(&self) -> usize {
        self.lock().used()
    }

    /// Each later operation moves this clock, by `us` microseconds.
    pub fn slow_down(&self, clock: ManualClock, us: i64) {
        self.lock().slow = Some((clock, us));
    }

    /// Removes all planned faults, the capacity and the slowness.
    pub fn heal(&self) {
        self.lock().heal();
    }

    /// Crashes during the operation of this number: it and all later ones fail.
    pub fn end_at(&self, operation: u64) {
        self.lock().ends_at = Some(operation);
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Restarts after a crash: with the surviving data, all files closed, and no planned faults.
    pub fn restart(&self, death: Death) {
        let model = &mut *self.lock();
        if death == Death::PowerLoss {
            model.lose_power();
        }
        model.heal();
        model.ends_at = None;
        model.ended = false;
        model.starts += 1;
        model.locked.clear();
    }

    /// Another disk with the data that this one would keep if the process were killed.
    pub fn fork(&self) -> ModelDisk {
        let model = self.lock();
        let mut forked = Model {
            files: model.files.clone(),
            names: model.names.clone(),
            durable_names: model.durable_names.clone(),
            unsynced_names: model.unsynced_names.clone(),
            random: model.random.clone(),
            ..Model::new(0)
        };
        // Only a file with a name is worth its memory.
        let named: Vec<usize> = forked
            .names
            .values()
            .chain(forked.durable_names.values())
            .filter_map(|node| match node {
                Node::File(inode) => Some(*inode),
                Node::Folder => None,
            })
            .collect();
        for (inode, file) in forked.files.iter_mut().enumerate() {
            if !named.contains(&inode) {
                *file = Inode::default();
            }
        }
        ModelDisk { model: Arc::new(Mutex::new(forked)) }
    }

    /// A file's visible bytes.
    pub fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        let model = self.lock();
        model.inode(path).ok().map(|inode| model.files[inode].seen.clone())
    }

    /// Adds a durable file, without counting an operation.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let model = &mut *self.lock();
        model.files.push(Inode { seen: bytes.into(), durable: bytes.into(), unsynced: Vec::new() });
        let node = Node::File(model.files.len() - 1);
        model.names.insert(path.into(), node);
        model.durable_names.insert(path.into(), node);
    }
}

/// The locked model. Its memory does not count as a server's.
struct Locked<'a> {
    model: MutexGuard<'a, Model>,
    _apart: Apart,
}

impl Deref for Locked<'_> {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Model {
        &mut self.model
    }
}

impl Model {
    fn heal(&mut self) {
        self.faults.clear();
        self.next_faults.clear();
        (self.capacity, self.slow) = (None, None);
    }

    fn used(&self) -> usize {
        let lens = self.names.values().map(|node| match node {
            Node::File(inode) => self.files[*inode].seen.len(),
            Node::Folder => 0,
        });
        lens.sum()
    }

    /// Bytes that a file of now `len` bytes can have.
    fn room_for(&self, len: usize, more: usize) -> usize {
        self.capacity
            .map_or(more, |capacity| capacity.saturating_sub(self.used().max(len)).min(more))
    }

    /// Counts an operation. `Ok(None)`: it happens. `Ok(Some(_))`: only this number of bytes.
    /// `Err`: it fails; if `self.ended` is set, by the crash, and a part of it may have happened.
    fn operation(&mut self, call: Call) -> io::Result<Option<usize>> {
        self.alive()?;
        if let Some((clock, us)) = &self.slow {
            clock.advance_us(*us);
        }
        self.operations += 1;
        if self.ends_at == Some(self.operations) {
            self.ended = true;
            return Err(ended());
        }
        let fault = self.faults.remove(&self.operations);
        match fault.or_else(|| self.next_faults.remove(&call)) {
            None => Ok(None),
            Some(Fault::Short(count)) => Ok(Some(count)),
            Some(Fault::Error(number)) => Err(error_of(number)),
        }
    }

    fn alive(&self) -> io::Result<()> {
        if self.ended { Err(ended()) } else { Ok(()) }
    }

    /// An atomic operation: it happens or not, even if an error is returned.
    fn whole(&mut self, call: Call, change: impl FnOnce(&mut Self)) -> io::Result<()> {
        match self.operation(call) {
            Ok(_) => change(self),
            Err(error) => {
                if self.ended && self.operations_end_here() && self.random.bool() {
                    change(self);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn operations_end_here(&self) -> bool {
        self.ends_at == Some(self.operations)
    }

    fn inode(&self, path: &Path) -> io::Result<usize> {
        match self.names.get(path) {
            Some(Node::File(inode)) => Ok(*inode),
            Some(Node::Folder) => Err(error_of(libc::EISDIR)),
            None => Err(self.missing(path)),
        }
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.unsynced_names.push(change);
    }

    /// Checks that a path's parent is a folder.
    fn parent_is_folder(&self, path: &Path) -> io::Result<()> {
        path.parent().map_or(Ok(()), |parent| self.folder(parent))
    }

    /// Checks that a path is a folder.
    fn folder(&self, path: &Path) -> io::Result<()> {
        match self.names.get(path) {
            Some(Node::Folder) => Ok(()),
            Some(Node::File(_)) => Err(error_of(libc::ENOTDIR)),
            None => Err(self.missing(path)),
        }
    }

    /// The error for a missing name. A file in place of a folder on the path is reported first.
    fn missing(&self, path: &Path) -> io::Error {
        let is_file = |path: &Path| matches!(self.names.get(path), Some(Node::File(_)));
        let number =
            if path.ancestors().skip(1).any(is_file) { libc::ENOTDIR } else { libc::ENOENT };
        error_of(number)
    }

    /// The file of this name, if there is one. Errors: the name cannot be that of a file.
    fn existing_file(&self, path: &Path) -> io::Result<Option<usize>> {
        self.parent_is_folder(path)?;
        match self.names.get(path) {
            Some(Node::File(inode)) => Ok(Some(*inode)),
            Some(Node::Folder) => Err(error_of(libc::EISDIR)),
            None => Ok(None),
        }
    }

    fn lose_power(&mut self) {
        for change in std::mem::take(&mut self.unsynced_names) {
            if self.random.bool() {
                change.apply(&mut self.durable_names);
            }
        }
        self.names = self.durable_names.clone();
        for file in &mut self.files {
            let unsynced = std::mem::take(&mut file.unsynced);
            let survive = self.random.usize(..=unsynced.len());
            for change in &unsynced[..survive] {
                change.apply(&mut file.durable);
            }
            if let Some(Change::Write(torn)) = unsynced.get(survive) {
                let len = self.random.usize(..=torn.len());
                file.durable.extend_from_slice(&torn[..len]);
                if self.random.u8(..4) == 0 {
                    let nuls = self.random.usize(..=torn.len() - len);
                    file.durable.resize(file.durable.len() + nuls, 0);
                }
            }
            file.seen = file.durable.clone();
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, Node>) {
        if let Some(gone) = &self.gone {
            names.remove(gone);
        }
        if let Some((here, node)) = &self.here {
            names.insert(here.clone(), *node);
        }
    }

    /// The folder whose sync makes it durable.
    fn folder(&self) -> Option<&Path> {
        self.here.as_ref().map(|(path, _)| path).or(self.gone.as_ref())?.parent()
    }
}

fn error_of(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn ended() -> io::Error {
    io::Error::other("the process has ended")
}

impl Disk for ModelDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut model = self.lock();
        model.alive()?;
        let existing = model.existing_file(path)?;
        model.whole(Call::Create, |model| match existing {
            Some(inode) => {
                model.files[inode].seen.clear();
                model.files[inode].unsynced.push(Change::SetLen(0));
            }
            None => model.new_file(path),
        })?;
        self.handle(model, path)
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut model = self.lock();
        model.alive()?;
        model.parent_is_folder(path)?;
        if model.names.contains_key(path) {
            return Err(error_of(libc::EEXIST));
        }
        model.whole(Call::Create, |model| model.new_file(path))?;
        self.handle(model, path)
    }

    fn open_append(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut model = self.lock();
        model.alive()?;
        if model.existing_file(path)?.is_none() {
            model.whole(Call::Create, |model| model.new_file(path))?;
        }
        self.handle(model, path)
    }

    fn open_locked(&self, path: &Path) -> io::Result<Option<Arc<dyn DiskFile>>> {
        let file = self.open_append(path)?;
        Ok(file.lock()?.then_some(file))
    }

    fn open_read(&self, path: &Path) -> io::Result<Box<dyn DiskReader>> {
        let model = self.lock();
        model.alive()?;
        let file = self.file(&model, path)?;
        drop(model);
        Ok(Box::new(ModelReader { file, position: 0 }))
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        let model = self.lock();
        model.alive()?;
        let inode = model.inode(path)?;
        Ok(model.files[inode].seen.len() as u64)
    }

    fn is_folder(&self, path: &Path) -> bool {
        self.lock().names.get(path) == Some(&Node::Folder)
    }

    fn is_plain_file(&self, path: &Path) -> bool {
        matches!(self.lock().names.get(path), Some(Node::File(_)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let model = &mut *self.lock();
        model.alive()?;
        model.parent_is_folder(from)?;
        model.parent_is_folder(to)?;
        let inode = model.inode(from)?;
        let node = Node::File(inode);
        if model.existing_file(to)? == Some(inode) {
            // One file under one name: nothing happens.
            return model.whole(Call::Rename, |_| ());
        }
        let change = NameChange { gone: Some(from.into()), here: Some((to.into(), node)) };
        model.whole(Call::Rename, |model| model.change_name(change))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let model = &mut *self.lock();
        model.alive()?;
        model.parent_is_folder(from)?;
        let node = Node::File(model.inode(from)?);
        model.parent_is_folder(to)?;
        if model.names.contains_key(to) {
            return Err(error_of(libc::EEXIST));
        }
        let change = NameChange { gone: None, here: Some((to.into(), node)) };
        model.whole(Call::Link, |model| model.change_name(change))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let model = &mut *self.lock();
        model.alive()?;
        model.inode(path)?;
        let change = NameChange { gone: Some(path.into()), here: None };
        model.whole(Call::Remove, |model| model.change_name(change))
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        let model = &mut *self.lock();
        model.alive()?;
        match model.names.get(path) {
            Some(Node::Folder) => return Ok(()),
            Some(Node::File(_)) => return Err(error_of(libc::EEXIST)),
            None => model.parent_is_folder(path)?,
        }
        let change = NameChange { gone: None, here: Some((path.into(), Node::Folder)) };
        model.whole(Call::CreateFolder, |model| model.change_name(change))
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        let model = &mut *self.lock();
        model.alive()?;
        model.folder(path)?;
        model.whole(Call::SyncFolder, |model| {
            let (synced, left) = std::mem::take(&mut model.unsynced_names)
                .into_iter()
                .partition(|change: &NameChange| change.folder() == Some(path));
            model.unsynced_names = left;
            for change in synced {
                change.apply(&mut model.durable_names);
            }
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        // The names are the server's memory, so the model is locked directly.
        let model = self.model.lock().expect("no thread panics while it holds the model");
        model.alive()?;
        model.folder(path)?;
        let inside = model.names.keys().filter(|name| name.parent() == Some(path));
        Ok(inside.filter_map(|name| name.file_name()).map(Into::into).collect())
    }
}

impl Model {
    fn new_file(&mut self, path: &Path) {
        self.files.push(Inode::default());
        let node = Node::File(self.files.len() - 1);
        self.change_name(NameChange { gone: None, here: Some((path.into(), node)) });
    }
}

impl ModelDisk {
    fn handle(&self, model: Locked<'_>, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.file(&model, path)?;
        // The handle is the server's memory.
        drop(model);
        Ok(Arc::new(file))
    }

    fn file(&self, model: &Model, path: &Path) -> io::Result<ModelFile> {
        let (inode, opened) = (model.inode(path)?, model.starts);
        Ok(ModelFile { disk: self.clone(), inode, opened, has_locked: AtomicBool::new(false) })
    }
}

#[derive(Debug)]
struct ModelFile {
    disk: ModelDisk,
    inode: usize,
    /// The restart count when it was opened.
    opened: u64,
    has_locked: AtomicBool,
}

impl Drop for ModelFile {
    fn drop(&mut self) {
        if *self.has_locked.get_mut() {
            // A restart has unlocked all files.
            let _ = self.with(|model| Ok(model.locked.remove(&self.inode)));
        }
    }
}

impl ModelFile {
    fn with<T>(&self, work: impl FnOnce(&mut Model) -> io::Result<T>) -> io::Result<T> {
        let model = &mut *self.disk.lock();
        if model.starts == self.opened { work(model) } else { Err(ended()) }
    }
}

impl DiskFile for ModelFile {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.with(|model| {
            let mut result = model.operation(Call::Write);
            let room = model.room_for(model.files[self.inode].seen.len(), bytes.len());
            if room == 0 && !bytes.is_empty() && result.is_ok() {
                result = Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            let count = match result {
                Ok(count) => count.unwrap_or(bytes.len()).min(room),
                Err(_) if model.ended && model.operations_end_here() => {
                    model.random.usize(..=bytes.len())
                }
                Err(_) => 0,
            };
            let file = &mut model.files[self.inode];
            file.seen.extend_from_slice(&bytes[..count]);
            file.unsynced.push(Change::Write(bytes[..count].into()));
            result.map(|_| count)
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|model| {
            let inode = self.inode;
            let result = model.whole(Call::Sync, |model| {
                let file = &mut model.files[inode];
                for change in std::mem::take(&mut file.unsynced) {
                    change.apply(&mut file.durable);
                }
            });
            if result.is_err() && !model.ended {
                // The kernel has marked the pages clean: a later sync succeeds without them.
                for change in &mut model.files[inode].unsynced {
                    if let Change::Write(bytes) = change {
                        bytes.fill(0);
                    }
                }
            }
            result
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|model| {
            if len > FILE_BYTES_MAX {
                let number = if len > i64::MAX as u64 { libc::EINVAL } else { libc::EFBIG };
                return Err(error_of(number));
            }
            let len = len as usize;
            model.whole(Call::SetLen, |model| {
                let file = &mut model.files[self.inode];
                file.seen.resize(len, 0);
                file.unsynced.push(Change::SetLen(len));
            })
        })
    }

    fn size(&self) -> io::Result<u64> {
        self.with(|model| {
            model.alive()?;
            Ok(model.files[self.inode].seen.len() as u64)
        })
    }

    fn has_name(&self, path: &Path) -> bool {
        self.disk.lock().names.get(path) == Some(&Node::File(self.inode))
    }

    fn lock(&self) -> io::Result<bool> {
        self.with(|model| {
            model.alive()?;
            if !model.locked.insert(self.inode) {
                return Ok(self.has_locked.load(Ordering::Relaxed));
            }
            self.has_locked.store(true, Ordering::Relaxed);
            Ok(true)
        })
    }

    fn start_writeback(&self, _from: u64, _len: u64) {
        // A failure is not reported.
        let _ = self.with(|model| model.operation(Call::StartWriteback));
    }
}

/// Sees bytes that are written while it reads.
#[derive(Debug)]
struct ModelReader {
    file: ModelFile,
    position: u64,
}

impl Read for ModelReader {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let ModelReader { file, position } = self;
        file.with(|model| {
            model.alive()?;
            let seen = &model.files[file.inode].seen;
            let from = usize::try_from(*position).map_or(seen.len(), |from| from.min(seen.len()));
            let count = target.len().min(seen.len() - from);
            target[..count].copy_from_slice(&seen[from..from + count]);
            *position += count as u64;
            Ok(count)
        })
    }
}

impl Seek for ModelReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
            SeekFrom::End(offset) => self.file.size()?.checked_add_signed(offset),
        };
        self.position = position.ok_or_else(|| error_of(libc::EINVAL))?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{read_whole, replace_file, write_all};
    use super::*;

    #[test]
    fn only_what_was_synced_survives_for_certain() {
        let (mut lost, mut kept, mut torn, mut nameless) = (0, 0, 0, 0);
        for seed in 0..200 {
            let disk = ModelDisk::new(seed);
            let path = Path::new("/a");
            let file = disk.create(path).unwrap();
            write_all(&*file, b"durable").unwrap();
            file.sync_data().unwrap();
            disk.sync_folder("/".as_ref()).unwrap();
            write_all(&*file, b" and not").unwrap();
            disk.create("/b".as_ref()).unwrap();
            disk.restart(Death::PowerLoss);
            assert!(file.write(b"x").is_err(), "opened before the restart");
            let bytes = disk.bytes(path).unwrap();
            match bytes.strip_prefix(b"durable").unwrap() {
                b"" => lost += 1,
                b" and not" => kept += 1,
                _ => torn += 1,
            }
            nameless += usize::from(disk.bytes("/b".as_ref()).is_none());
        }
        assert!(lost > 0 && kept > 0 && torn > 0, "{lost} {kept} {torn}");
        assert!(nameless > 0 && nameless < 200);
    }

    #[test]
    fn a_kill_keeps_what_was_written() {
        let disk = ModelDisk::new(1);
        let file = disk.create("/a".as_ref()).unwrap();
        write_all(&*file, b"written").unwrap();
        disk.restart(Death::Kill);
        assert_eq!(disk.bytes("/a".as_ref()).unwrap(), b"written");
    }

    #[test]
    fn a_replaced_file_is_old_or_new_at_every_crash_point() {
        let old_and_new: [&[u8]; 2] = [b"old bytes", b"new"];
        let (mut old, mut new) = (0, 0);
        for operation in 1..=5 {
            for seed in 0..50 {
                let disk = ModelDisk::new(seed);
                disk.put("/f".as_ref(), old_and_new[0]);
                disk.end_at(operation);
                let result =
                    replace_file(&disk, "/".as_ref(), "temp".as_ref(), "f".as_ref(), b"new");
                assert!(result.is_err());
                disk.restart(Death::PowerLoss);
                let bytes = read_whole(&disk, "/f".as_ref(), 100).unwrap();
                assert!(old_and_new.contains(&&bytes[..]), "operation {operation}, seed {seed}");
                *if bytes == b"new" { &mut new } else { &mut old } += 1;
            }
        }
        assert!(old > 0 && new > 0);
    }

    #[test]
    fn a_failed_sync_loses_its_bytes_even_if_the_next_succeeds() {
        let disk = ModelDisk::new(7);
        let file = disk.create("/a".as_ref()).unwrap();
        disk.sync_folder("/".as_ref()).unwrap();
        write_all(&*file, b"abc").unwrap();
        disk.fail_at(disk.operations() + 1, Fault::Error(libc::EIO));
        assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::EIO));
        file.sync_data().unwrap();
        disk.restart(Death::PowerLoss);
        assert_eq!(disk.bytes("/a".as_ref()).unwrap(), b"\0\0\0");
    }

    #[test]
    fn a_full_disk_takes_what_fits_and_all_once_it_has_room() {
        let disk = ModelDisk::new(1);
        let file = disk.create("/a".as_ref()).unwrap();
        disk.set_capacity(Some(5));
        assert_eq!(file.write(b"abcdefg").unwrap(), 5);
        assert_eq!(file.write(b"fg").unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(disk.used(), 5);
        disk.heal();
        assert_eq!(file.write(b"fg").unwrap(), 2);
        assert_eq!(disk.fork().bytes("/a".as_ref()).unwrap(), b"abcdefg");
    }

    #[test]
    fn the_next_call_of_a_kind_fails_and_no_other() {
        let disk = ModelDisk::new(1);
        let clock = ManualClock::new(crate::clock::UnixMillis(0));
        let begun_us = clock.boot_us();
        disk.slow_down(clock.clone(), 7);
        let file = disk.create("/a".as_ref()).unwrap();
        disk.fail_next(Call::Sync, Fault::Error(libc::EIO));
        assert_eq!(file.write(b"abc").unwrap(), 3);
        assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::EIO));
        file.sync_data().unwrap();
        assert_eq!(clock.boot_us() - begun_us, 4 * 7);
    }
}
