//! The model behaves like the real disk: random scripts of calls run on both, and each result and
//! each file's bytes are compared.
//!
//! For a short write, the test passes fewer bytes to the real disk, and all of them to the model
//! with [`Fault::Short`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::model::{Fault, ModelDisk};
use super::{Disk, DiskFile, DiskReader, RealDisk};

const SCRIPTS: u64 = 150;
const CALLS: usize = 80;
/// Few names, so that scripts use them again; some are below a file, or below a folder that does
/// not exist.
const NAMES: [&str; 7] = ["a", "b", "c", "d", "d/a", "d/b", "a/b"];

/// An error as the system's number. The standard library has replaced some numbers with kinds.
fn comparable<T>(result: io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{:?}", error.kind()))
}

/// A file that both disks have open.
struct Both<T: ?Sized> {
    real: Box<T>,
    model: Box<T>,
}

struct Script {
    random: fastrand::Rng,
    real: RealDisk,
    model: ModelDisk,
    root: PathBuf,
    writers: Vec<Both<Arc<dyn DiskFile>>>,
    readers: Vec<Both<dyn DiskReader>>,
    calls: Vec<String>,
}

impl Script {
    fn name(&mut self) -> &'static str {
        NAMES[self.random.usize(..NAMES.len())]
    }

    fn real_path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn note(&mut self, call: String) {
        self.calls.push(call);
    }

    /// Both results, which must be equal.
    fn same<T: PartialEq + std::fmt::Debug>(&self, real: io::Result<T>, model: io::Result<T>) {
        assert_eq!(comparable(real), comparable(model), "{}", self.calls.join("\n"));
    }

    /// Both files, if both could be opened.
    fn opened<T: ?Sized>(
        &self,
        real: io::Result<Box<T>>,
        model: io::Result<Box<T>>,
    ) -> Option<Both<T>> {
        match (real, model) {
            (Ok(real), Ok(model)) => Some(Both { real, model }),
            (real, model) => {
                self.same(real.map(drop), model.map(drop));
                None
            }
        }
    }

    fn call(&mut self) {
        let name = self.name();
        let (path, model_path) = (self.real_path(name), Path::new("/").join(name));
        match self.random.u32(..26) {
            0..2 => {
                self.note(format!("create {name}"));
                let (real, model) = (self.real.create(&path), self.model.create(&model_path));
                let opened = self.opened(real.map(Box::new), model.map(Box::new));
                self.writers.extend(opened);
            }
            2..4 => {
                self.note(format!("open_append {name}"));
                let (real, model) =
                    (self.real.open_append(&path), self.model.open_append(&model_path));
                let opened = self.opened(real.map(Box::new), model.map(Box::new));
                self.writers.extend(opened);
            }
            4..6 => {
                self.note(format!("open_read {name}"));
                if !self.real.is_folder(&path) {
                    let opened =
                        self.opened(self.real.open_read(&path), self.model.open_read(&model_path));
                    self.readers.extend(opened);
                }
            }
            6 => {
                let to = self.name();
                self.note(format!("rename {name} {to}"));
                let onto_own_folder = name.starts_with(to) && name != to;
                // Folders are not renamed, and a file onto the one it is in has an error of its
                // own.
                if !self.real.is_folder(&path) && !onto_own_folder {
                    let real = self.real.rename(&path, &self.real_path(to));
                    self.same(real, self.model.rename(&model_path, &Path::new("/").join(to)));
                }
            }
            7 => {
                self.note(format!("remove {name}"));
                self.same(self.real.remove(&path), self.model.remove(&model_path));
            }
            8 => {
                self.note(format!("create_folder {name}"));
                self.same(self.real.create_folder(&path), self.model.create_folder(&model_path));
            }
            9 => {
                self.note(format!("sync_folder {name}"));
                if self.real.size(&path).is_err() {
                    self.same(self.real.sync_folder(&path), self.model.sync_folder(&model_path));
                }
            }
            24 => {
                self.note(format!("create_new {name}"));
                let (real, model) =
                    (self.real.create_new(&path), self.model.create_new(&model_path));
                let opened = self.opened(real.map(Box::new), model.map(Box::new));
                self.writers.extend(opened);
            }
            25 => {
                let to = self.name();
                self.note(format!("link {name} {to}"));
                if !self.real.is_folder(&path) {
                    let real = self.real.link(&path, &self.real_path(to));
                    self.same(real, self.model.link(&model_path, &Path::new("/").join(to)));
                }
            }
            10 => self.close(),
            11..14 => self.read(),
            _ => self.write(),
        }
    }

    fn close(&mut self) {
        if !self.writers.is_empty() {
            let index = self.random.usize(..self.writers.len());
            self.note(format!("close the writer {index}"));
            self.writers.swap_remove(index);
        }
    }

    fn read(&mut self) {
        if self.readers.is_empty() {
            return;
        }
        let index = self.random.usize(..self.readers.len());
        let mut reader = self.readers.swap_remove(index);
        let from = io::SeekFrom::Start(self.random.u64(..40));
        let seeks = self.random.bool();
        let mut bytes = [[0; 16]; 2];
        let len = self.random.usize(..=16);
        self.note(format!("read {len} bytes with the reader {index}, {seeks} {from:?}"));
        if seeks {
            self.same(reader.real.seek(from), reader.model.seek(from));
        }
        let read =
            (reader.real.read(&mut bytes[0][..len]), reader.model.read(&mut bytes[1][..len]));
        self.same(read.0, read.1);
        assert_eq!(bytes[0], bytes[1], "{}", self.calls.join("\n"));
        if self.random.u32(..8) > 0 {
            self.readers.push(reader);
        }
    }

    fn write(&mut self) {
        if self.writers.is_empty() {
            return;
        }
        let index = self.random.usize(..self.writers.len());
        let Both { real, model } = &self.writers[index];
        let (real, model) = (real.clone(), model.clone());
        let len = self.random.usize(..12);
        let bytes: Vec<u8> =
            std::iter::repeat_with(|| self.random.alphanumeric() as u8).take(len).collect();
        match self.random.u32(..8) {
            0..3 => {
                self.note(format!("write {} with {index}", bytes.escape_ascii()));
                self.same(real.write(&bytes), model.write(&bytes));
            }
            3..5 => {
                let count = self.random.usize(..=bytes.len());
                self.note(format!("write {count} of {} with {index}", bytes.escape_ascii()));
                self.model.fail_at(self.model.operations() + 1, Fault::Short(count));
                self.same(real.write(&bytes[..count]), model.write(&bytes));
            }
            5..7 => {
                let len = match self.random.u32(..20) {
                    0 => u64::MAX,
                    _ => self.random.u64(..40),
                };
                self.note(format!("set_len {len} with {index}"));
                self.same(real.set_len(len), model.set_len(len));
            }
            _ => {
                self.note(format!("sync with {index}"));
                real.start_writeback(0, 10);
                model.start_writeback(0, 10);
                self.same(real.sync_data(), model.sync_data());
            }
        }
        self.same(real.size(), model.size());
    }

    /// All names and bytes.
    fn compare(&self) {
        for folder in ["", "d", "a", "none"] {
            let (real, model) = (
                self.real.list(&self.root.join(folder)),
                self.model.list(&Path::new("/").join(folder)),
            );
            let sorted = |list: io::Result<Vec<std::ffi::OsString>>| {
                list.map(|mut names| {
                    names.sort();
                    names
                })
            };
            self.same(sorted(real), sorted(model));
        }
        for name in NAMES {
            let (path, model_path) = (self.real_path(name), Path::new("/").join(name));
            assert_eq!(self.real.is_folder(&path), self.model.is_folder(&model_path));
            assert_eq!(self.real.is_plain_file(&path), self.model.is_plain_file(&model_path));
            self.same(self.real.size(&path), self.model.size(&model_path));
            self.same(
                super::read_whole(&self.real, &path, 1 << 20),
                super::read_whole(&self.model, &model_path, 1 << 20),
            );
        }
    }
}

#[test]
fn the_model_and_the_real_disk_do_the_same() {
    for seed in 0..SCRIPTS {
        let scratch = tempfile::tempdir().unwrap();
        let mut script = Script {
            random: fastrand::Rng::with_seed(seed),
            real: RealDisk,
            model: ModelDisk::new(seed),
            root: scratch.path().to_owned(),
            writers: Vec::new(),
            readers: Vec::new(),
            calls: vec![format!("seed {seed}")],
        };
        for _ in 0..CALLS {
            script.call();
            script.compare();
        }
    }
}
