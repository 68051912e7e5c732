//! `--restore`: puts a snapshot into a data folder, for the next start of its server.
//!
//! The file is read through first. A start loads it then whether its append-only file is on or off:
//! it becomes the RDB file, and, if the folder has an append-only file or the configuration wants
//! one, the base of a new append-only file. Files that were there are kept: the RDB file as
//! `NAME.before-restore-TIME`, the append-only files in the folder `NAME.before-restore-TIME`.
//!
//! Order of operations, so that a start finds the old files or the new ones, wherever this ends:
//! - lock the append-only folder, as a server does; check that no server works in `dir`;
//! - give the old files their further names, by links or copies, and make them durable;
//! - copy the snapshot beside each place, synced; the copies have the hash of the file that was
//!   checked;
//! - rename the copy over the RDB file; sync the folder;
//! - rename the other copy to a new base, and write the manifest that lists it alone
//!   (`persist/aof/folder.rs`);
//! - remove the old names of append-only files.
//!
//! A start with the append-only file off decides by the first rename, another one by the manifest.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Hashing, failed, record, stamp};
use crate::clock::Clock;
use crate::config::Config;
use crate::persist::aof::folder::{AofFolder, BaseFormat};
use crate::persist::check::rdb::{Facts, read_through};
use crate::persist::leftovers::temporary_base;
use crate::persist::rdb::VersionCheck;
use crate::sys::disk::{Disk, write_all};
use crate::sys::system;

/// Bytes copied at once.
const COPY_BYTES: usize = 256 << 10;
/// The name under which the new RDB file is written.
const TEMPORARY: &str = "temp-restore.rdb";

/// A restore that was asked for.
#[derive(Debug)]
pub struct Restore<'a> {
    pub disk: Arc<dyn Disk>,
    pub clock: &'a Clock,
    /// The snapshot.
    pub file: &'a Path,
    /// The configuration of the server: its `dir`, and the names of its files.
    pub config: &'a Config,
}

/// The result of a restore.
#[derive(Debug)]
pub struct Restored {
    pub facts: Facts,
    /// Whether the file was compared with the record of its backup.
    pub has_record: bool,
    /// The files that have the data now.
    pub placed: Vec<PathBuf>,
    /// The files and folders that were kept: the old name and the new one.
    pub kept: Vec<(PathBuf, PathBuf)>,
    /// Files that could not be removed from the append-only folder. No start reads them.
    pub left: Vec<PathBuf>,
}

/// The file that was checked.
struct Checked {
    facts: Facts,
    bytes: u64,
    sha256: String,
    has_record: bool,
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl Restore<'_> {
    /// Runs it. `progress` is called now and then with the bytes of the file that were checked, and
    /// its size. Errors: a text with the reason; the old files are in place then, or the new ones
    /// if the text says so.
    pub fn run(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Restored, String> {
        let checked = self.check(progress)?;
        let dump = self.config.dir.join(OsStr::from_bytes(&self.config.dbfilename));
        let running = system::servers_in(&self.config.dir);
        if let Some(number) = running.first() {
            let dir = self.config.dir.display();
            return Err(format!("A server works in {dir}, process {number}: stop it first"));
        }
        let mut log = self.open_log()?;
        let suffix = self.suffix(&dump, log.as_ref());
        let mut kept = Vec::new();
        let replaces_dump = self.file != dump;
        if replaces_dump && self.disk.size(&dump).is_ok() {
            let to = with_suffix(&dump, &suffix);
            self.keep(&dump, &to)?;
            kept.push((dump.clone(), to));
        }
        let old = match &log {
            Some(log) => self.keep_log(log, &suffix, &mut kept)?,
            None => Vec::new(),
        };
        self.sync(&self.config.dir)?;
        let mut placed = Vec::new();
        let temporary = self.config.dir.join(TEMPORARY);
        if replaces_dump {
            self.copy(&checked, &temporary)?;
        }
        let base = log.as_ref().map(|log| log.path().join(temporary_base(std::process::id())));
        if let Some(base) = &base {
            self.copy(&checked, base)?;
        }
        if replaces_dump {
            let renamed = self.disk.rename(&temporary, &dump);
            renamed.map_err(|error| failed(&dump, &error))?;
            self.sync(&self.config.dir)?;
            placed.push(dump);
        }
        let mut left = Vec::new();
        if let (Some(log), Some(base)) = (&mut log, &base) {
            let switched = log.finish_rewrite(base, BaseFormat::Rdb, i64::MAX);
            switched.map_err(|error| match replaces_dump {
                true => {
                    format!("{error}. The RDB file is the new one, the append-only file is not")
                }
                false => error.to_string(),
            })?;
            self.disk.own_as(&log.manifest_path(), &self.config.dir);
            let base = log.manifest().base().map(|base| log.path_of(&base.name));
            placed.extend(base);
            left = self.clear(log, &old);
        }
        let Checked { facts, has_record, .. } = checked;
        Ok(Restored { facts, has_record, placed, kept, left })
    }

    /// Reads the file through, and compares it with the record beside it.
    fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Checked, String> {
        let file = self.file;
        let failed = |error: io::Error| failed(file, &error);
        let expected = record::read(&*self.disk, file)?;
        let size = self.disk.size(file).map_err(failed)?;
        let mut source = Hashing::new(self.disk.open_read(file).map_err(failed)?);
        let versions = match self.config.rdb_version_check {
            "relaxed" => VersionCheck::Relaxed,
            _ => VersionCheck::Strict,
        };
        let now = self.clock.now();
        let checked = read_through(&mut source, versions, now, &mut |done| progress(done, size));
        let facts = checked.map_err(|why| format!("{}: {why}", file.display()))?;
        let (bytes, sha256) = source.finish().map_err(failed)?;
        let wrong = |why: String| Err(format!("{}: {why}", file.display()));
        if let Some(expected) = &expected
            && (expected.bytes != bytes || expected.sha256 != sha256)
        {
            let record = record::path_of(file);
            return wrong(format!("it is not the file of which {} tells", record.display()));
        }
        if facts.bytes != bytes {
            let more = bytes - facts.bytes;
            return wrong(format!("{more} bytes follow the end of the snapshot"));
        }
        let databases = self.config.database_count() as u64;
        if facts.keys > 0 && facts.database_max >= databases {
            let highest = facts.database_max;
            return wrong(format!(
                "it has database {highest}, and the server has {databases}: 'databases' must be higher"
            ));
        }
        Ok(Checked { facts, bytes, sha256, has_record: expected.is_some() })
    }

    /// The append-only folder, locked. None: a start reads none.
    fn open_log(&self) -> Result<Option<AofFolder>, String> {
        let Config { dir, appenddirname, appendfilename, appendonly, .. } = self.config;
        let path = dir.join(OsStr::from_bytes(appenddirname));
        let single = dir.join(OsStr::from_bytes(appendfilename));
        let is_wanted =
            *appendonly || self.disk.is_folder(&path) || self.disk.is_plain_file(&single);
        if !is_wanted {
            return Ok(None);
        }
        let is_new = !self.disk.is_folder(&path);
        let disk = self.disk.clone();
        let log = AofFolder::open_to_replace(disk, dir, appenddirname, appendfilename);
        let log = log.map_err(|error| error.to_string())?;
        if is_new {
            self.disk.own_as(&path, dir);
        }
        if let Ok(names) = self.disk.list(&path) {
            let locks = names.iter().filter(|name| name.as_bytes().ends_with(b".lock"));
            locks.for_each(|name| self.disk.own_as(&path.join(name), dir));
        }
        Ok(Some(log))
    }

    /// The end of the names of what is kept, which no file has.
    fn suffix(&self, dump: &Path, log: Option<&AofFolder>) -> String {
        let taken = stamp(self.clock.now().unix_seconds());
        let is_taken = |suffix: &str| {
            let has = |path: &Path| {
                let path = with_suffix(path, suffix);
                self.disk.size(&path).is_ok() || self.disk.is_folder(&path)
            };
            has(dump) || log.is_some_and(|log| has(log.path()))
        };
        let mut suffix = format!(".before-restore-{taken}");
        let mut number = 1;
        while is_taken(&suffix) {
            number += 1;
            suffix = format!(".before-restore-{taken}-{number}");
        }
        suffix
    }

    /// Gives a file a further name; where files have only one, copies it.
    fn keep(&self, from: &Path, to: &Path) -> Result<(), String> {
        let error = match self.disk.link(from, to) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        const CAN: [io::ErrorKind; 3] =
            [io::ErrorKind::AlreadyExists, io::ErrorKind::NotFound, io::ErrorKind::StorageFull];
        if CAN.contains(&error.kind()) {
            return Err(failed(to, &error));
        }
        self.copy_bytes(from, to).map(drop)
    }

    /// Keeps all files of the append-only folder in another folder. Returns their names.
    fn keep_log(
        &self,
        log: &AofFolder,
        suffix: &str,
        kept: &mut Vec<(PathBuf, PathBuf)>,
    ) -> Result<Vec<PathBuf>, String> {
        let names = log.own_files().map_err(|error| error.to_string())?;
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let folder = with_suffix(log.path(), suffix);
        self.disk.create_folder(&folder).map_err(|error| failed(&folder, &error))?;
        self.disk.own_as(&folder, &self.config.dir);
        self.sync(&self.config.dir)?;
        for name in &names {
            self.keep(&log.path().join(name), &folder.join(name))?;
        }
        self.sync(&folder)?;
        kept.push((log.path().into(), folder));
        Ok(names.into_iter().map(|name| log.path().join(name)).collect())
    }

    /// Copies the snapshot. Errors: also if it has changed since it was checked.
    fn copy(&self, checked: &Checked, to: &Path) -> Result<(), String> {
        if self.file == to {
            let shown = to.display();
            return Err(format!(
                "{shown}: a restore writes under this name; give the file another"
            ));
        }
        // A restore that was killed may have left it.
        match self.disk.remove(to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(to, &error));
            }
            _ => {}
        }
        let copied = self.copy_bytes(self.file, to).and_then(|copied| {
            match copied == (checked.bytes, checked.sha256.clone()) {
                true => Ok(()),
                false => Err(format!("{}: it changes while it is copied", self.file.display())),
            }
        });
        if copied.is_err() {
            let _ = self.disk.remove(to);
        }
        copied
    }

    /// Copies a file and syncs the copy. Returns its bytes and their hash.
    fn copy_bytes(&self, from: &Path, to: &Path) -> Result<(u64, String), String> {
        let opened = self.disk.open_read(from).map_err(|error| failed(from, &error))?;
        let mut source = Hashing::new(opened);
        let target = self.disk.create_new(to).map_err(|error| failed(to, &error))?;
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            let count = io::Read::read(&mut source, &mut buffer);
            let count = count.map_err(|error| failed(from, &error))?;
            if count == 0 {
                break;
            }
            let written = write_all(&*target, &buffer[..count]);
            written.map_err(|error| failed(to, &error))?;
        }
        target.sync_data().map_err(|error| failed(to, &error))?;
        self.disk.own_as(to, &self.config.dir);
        source.finish().map_err(|error| failed(from, &error))
    }

    fn sync(&self, folder: &Path) -> Result<(), String> {
        self.disk.sync_folder(folder).map_err(|error| failed(folder, &error))
    }

    /// Removes the old names of append-only files, which have others by now. Returns those that
    /// stay.
    fn clear(&self, log: &mut AofFolder, old: &[PathBuf]) -> Vec<PathBuf> {
        // A start repeats it, if it fails.
        let _ = log.remove_history();
        self.disk.own_as(&log.manifest_path(), &self.config.dir);
        let mut left = Vec::new();
        let manifest = log.manifest_path();
        let listed: Vec<PathBuf> =
            log.manifest().files().map(|file| log.path_of(&file.name)).collect();
        for path in old.iter().filter(|path| **path != manifest && !listed.contains(path)) {
            match self.disk.remove(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => left.push(path.clone()),
                _ => {}
            }
        }
        let _ = self.disk.sync_folder(log.path());
        left
    }
}

#[cfg(test)]
mod tests;
