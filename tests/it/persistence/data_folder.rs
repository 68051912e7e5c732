//! Files of the data folder that are gone, cut, foreign or of another kind, before a start and while
//! the server runs, with folders, names and switches changed in between.
//!
//! Each round kills or ends a server, does something to a file, and starts one again. The start is
//! refused with a name, and then has changed nothing; or it has all that `always` has answered. No
//! file is emptied or overwritten that no manifest names, at a start or later.
//!
//! `DATA_FOLDER_SEED` and `DATA_FOLDER_SEEDS` choose other runs.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{Client, Reply, copy_folder, number_from, wait_for};

const SEEDS: u64 = 3;
const ROUNDS: usize = 8;
const KEYS: usize = 8;
const FOREIGN: &[u8] = b"somebody's data";

type Data = BTreeMap<String, String>;

/// Where an append-only file is: `dir`, `appenddirname` and `appendfilename`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place {
    dir: &'static str,
    folder: &'static str,
    name: &'static str,
}

/// What a start in a place must find.
#[derive(Clone, Debug)]
enum Expected {
    Data(Data),
    /// The file has moved to another folder.
    Moved,
}

struct Running {
    child: Child,
    client: Client,
}

struct Run {
    random: fastrand::Rng,
    seed: u64,
    root: tempfile::TempDir,
    /// Sockets and logs.
    aside: tempfile::TempDir,
    place: Place,
    is_on: bool,
    server: Option<Running>,
    expected: HashMap<Place, Expected>,
    /// States that were answered earlier, for a log that was cut.
    earlier: Vec<Data>,
    /// Files that must stay as they are.
    foreign: BTreeMap<PathBuf, Vec<u8>>,
    events: Vec<String>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    started: usize,
    refused: usize,
    damaged: usize,
    moved: usize,
    foreign: usize,
    restored: usize,
}

/// All regular files below a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files(&path)),
            Ok(kind) if kind.is_file() => {
                if let Ok(bytes) = std::fs::read(&path) {
                    found.insert(path, bytes);
                }
            }
            _ => {}
        }
    }
    found
}

/// Files that the server may change at will, if no manifest names them.
fn is_own(name: &str) -> bool {
    let ends = ["manifest", "lock", "beginning", "unsynced", "moved"];
    name.starts_with("temp-") || ends.iter().any(|end| name.ends_with(end))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Run {
    fn new(seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        let root = tempfile::tempdir().expect("a folder");
        for dir in ["a", "b"] {
            std::fs::create_dir(root.path().join(dir)).expect("a folder");
        }
        Run {
            random,
            seed,
            root,
            aside: tempfile::tempdir().expect("a folder"),
            place: Place { dir: "a", folder: "aof", name: "x.aof" },
            is_on: true,
            server: None,
            expected: HashMap::new(),
            earlier: Vec::new(),
            foreign: BTreeMap::new(),
            events: Vec::new(),
            counts: Counts::default(),
        }
    }

    fn fail(&self, why: &str) -> ! {
        let log = std::fs::read_to_string(self.aside.path().join("log")).unwrap_or_default();
        let files: Vec<_> =
            files(self.root.path()).into_iter().map(|(path, bytes)| (path, bytes.len())).collect();
        let events = self.events.join("\n");
        panic!("seed {}: {why}\n{events}\n{log}\n{files:#?}", self.seed);
    }

    fn note(&mut self, event: String) {
        self.events.push(event);
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.usize(..of.len())]
    }

    fn dir(&self) -> PathBuf {
        self.root.path().join(self.place.dir)
    }

    fn folder(&self) -> PathBuf {
        self.dir().join(self.place.folder)
    }

    fn manifest(&self) -> PathBuf {
        self.folder().join(format!("{}.manifest", self.place.name))
    }

    /// What the server answers, as text. Err: an error.
    fn ask(&mut self, line: &str) -> Result<String, String> {
        let server = self.server.as_mut().expect("it runs");
        match server.client.try_ask(line) {
            Some(Reply::NullBulk) => Ok(String::new()),
            Some(error @ Reply::Error(_)) => Err(error.error()),
            Some(reply) => Ok(reply.text()),
            None => Err("the connection has ended".into()),
        }
    }

    fn found(&mut self) -> Data {
        let mut data = Data::new();
        for key in (0..KEYS).map(|key| format!("k{key}")) {
            let value = self.ask(&format!("GET {key}")).unwrap_or_else(|why| self.fail(&why));
            if !value.is_empty() {
                data.insert(key, value);
            }
        }
        data
    }

    fn is(&mut self, line: &str) -> bool {
        self.ask("INFO persistence").is_ok_and(|text| text.lines().any(|it| it == line))
    }

    /// Waits until no rewrite is under way. Whether the last one has succeeded.
    fn settle(&mut self) -> bool {
        for round in 0..30_000 {
            let idle = ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"];
            if idle.into_iter().all(|line| self.is(line)) {
                return self.is("aof_last_bgrewrite_status:ok");
            }
            if round > 1000 {
                // A busy disk may take seconds to sync.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        self.fail("a rewrite does not end");
    }

    // ---- starts ---------------------------------------------------------------------------------

    fn start(&mut self) -> Result<(), String> {
        self.note(format!("start {:?} {}", self.place, self.is_on));
        self.server = Some(self.start_beside("")?);
        Ok(())
    }

    /// Starts a server whose socket and log have this ending. Err: what it says.
    fn start_beside(&self, ending: &str) -> Result<Running, String> {
        let aside = |name: &str| self.aside.path().join(format!("{name}{ending}"));
        let (log, socket) = (aside("log"), aside("socket"));
        let _ = std::fs::remove_file(&log);
        let Place { folder, name, .. } = self.place;
        let text = format!(
            "dir {}\nport 0\nunixsocket {}\nlogfile {}\nsave \"\"\nappendonly {}\nappendfsync always\n\
             appenddirname {folder}\nappendfilename {name}\nenable-protected-configs yes\n\
             auto-aof-rewrite-percentage 0\n",
            self.dir().display(),
            socket.display(),
            log.display(),
            if self.is_on { "yes" } else { "no" },
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_latchkey"));
        let config = aside("config");
        std::fs::write(&config, text).expect("a file");
        let output = std::fs::File::create(aside("output")).expect("a file");
        let mut child = command
            .arg(&config)
            .stdout(Stdio::from(output.try_clone().expect("a file")))
            .stderr(Stdio::from(output))
            .spawn()
            .expect("the program starts");
        let started = wait_for("a start or a refusal", || {
            if child.try_wait().expect("a child").is_some() {
                return Some(None);
            }
            Some(Some(Client::try_connect_unix(&socket).ok()?.if_served()?))
        });
        match started {
            Some(client) => Ok(Running { child, client }),
            None => {
                let read = |name: &str| std::fs::read(aside(name)).unwrap_or_default();
                let said = [read("log"), read("output")].concat();
                Err(String::from_utf8_lossy(&said).into_owned())
            }
        }
    }

    fn end(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        if self.random.bool() {
            self.note("kill".into());
            server.child.kill().expect("it runs");
        } else {
            self.note("SHUTDOWN".into());
            // The connection ends instead of an answer.
            server.client.try_ask("SHUTDOWN NOSAVE");
        }
        server.child.wait().expect("it ends");
    }

    fn check_foreign(&self) {
        for (path, bytes) in &self.foreign {
            if std::fs::read(path).ok().as_ref() != Some(bytes) {
                self.fail(&format!("{} has changed", path.display()));
            }
        }
    }

    /// The files that the manifest here names.
    fn listed(&self) -> Vec<PathBuf> {
        let text = std::fs::read_to_string(self.manifest()).unwrap_or_default();
        let names = text.lines().filter_map(|line| line.split(' ').nth(1));
        names.map(|name| self.folder().join(name)).collect()
    }

    /// Notes the files that the server must leave alone.
    fn note_foreign(&mut self) {
        let listed = self.listed();
        self.foreign = files(self.root.path());
        self.foreign.retain(|path, bytes| {
            !bytes.is_empty() && !listed.contains(path) && !is_own(&name_of(path))
        });
    }

    // ---- a life ---------------------------------------------------------------------------------

    fn set(&mut self, data: &mut Data) {
        let (key, value) = (self.random.usize(..KEYS), self.random.u32(..1000));
        let (key, value) = (format!("k{key}"), value.to_string());
        match self.ask(&format!("SET {key} {value}")) {
            Ok(_) => {
                self.events.push(format!("SET {key} {value}"));
                self.earlier.push(data.clone());
                data.insert(key, value);
            }
            Err(why) if why.contains("MISCONF") => {}
            Err(why) => self.fail(&why),
        }
    }

    fn live(&mut self) {
        let mut data = self.found();
        if !self.is_on {
            // The log begins with this data.
            match self.ask("CONFIG SET appendonly yes") {
                Ok(_) if self.settle() => self.is_on = true,
                // It is refused where a start would be.
                Ok(_) | Err(_) => return,
            }
        }
        for _ in 0..self.random.usize(2..10) {
            match self.random.usize(..15) {
                0..6 => self.set(&mut data),
                6 | 7 => {
                    self.note("BGREWRITEAOF".into());
                    let _ = self.ask("BGREWRITEAOF");
                    if self.random.bool() {
                        self.settle();
                    }
                }
                8 => match self.random.u32(..3) {
                    0 => {
                        self.note("SAVE".into());
                        let _ = self.ask("SAVE");
                        let dump = self.dir().join("dump.rdb");
                        self.foreign.remove(&dump);
                    }
                    _ => self.plant(),
                },
                9 => self.remove_while_running(&mut data),
                10 => self.second_server(),
                11 | 12 => self.move_file(&mut data),
                13 => self.cut_while_running(&mut data),
                _ => self.restore_backup(&mut data),
            }
            self.expected.insert(self.place.clone(), Expected::Data(data.clone()));
            self.check_foreign();
        }
    }

    /// Puts a file where the server may want to create one, or beside.
    fn plant(&mut self) {
        let number = self.random.u32(1..8);
        let end = self.one(&["base.rdb", "base.aof", "incr.aof"]);
        let name = self.one(&["x.aof", "y.aof"]);
        let path = match self.random.usize(..3) {
            0 => self.dir().join(format!("temp-{number}.rdb")),
            _ => self.folder().join(format!("{name}.{number}.{end}")),
        };
        if std::fs::symlink_metadata(&path).is_err() && self.folder().is_dir() {
            self.note(format!("plant {}", path.display()));
            std::fs::write(&path, FOREIGN).expect("a file");
            self.foreign.insert(path, FOREIGN.into());
            self.counts.foreign += 1;
        }
    }

    /// A removed file may cost nothing that is answered from then on, nor what is in memory once a
    /// rewrite has ended.
    fn remove_while_running(&mut self, data: &mut Data) {
        let folder = self.folder();
        if self.random.bool() {
            self.note("remove the folder".into());
            let _ = std::fs::remove_dir_all(&folder);
            self.foreign.retain(|path, _| !path.starts_with(&folder));
            self.counts.damaged += 1;
            self.set(data);
            // Nobody asks for it.
            return wait_for("a rewrite that makes it whole", || {
                self.ask("PING").expect("it runs");
                let listed = self.listed();
                let is_whole = listed.iter().all(|path| path.exists()) && !listed.is_empty();
                (is_whole && self.settle()).then_some(())
            });
        } else {
            let found: Vec<PathBuf> = files(&folder)
                .into_keys()
                .filter(|path| !self.foreign.contains_key(path))
                .collect();
            if let Some(path) = self.random.choice(found) {
                self.note(format!("remove {} while it runs", path.display()));
                let _ = std::fs::remove_file(path);
            }
        }
        self.counts.damaged += 1;
        self.set(data);
        // The rewrite that was under way may fail, but not for ever.
        let is_whole = (0..5).any(|_| {
            let _ = self.ask("BGREWRITEAOF");
            self.settle()
        });
        if !is_whole {
            self.fail("no rewrite succeeds");
        }
        self.set(data);
    }

    /// A file that somebody empties or cuts may cost nothing either. Nobody asks for the rewrite.
    fn cut_while_running(&mut self, data: &mut Data) {
        let listed: Vec<PathBuf> = self
            .listed()
            .into_iter()
            .chain([self.manifest()])
            .filter(|path| path.exists())
            .collect();
        let Some(path) = self.random.choice(listed) else { return };
        let bytes = std::fs::read(&path).unwrap_or_default();
        if bytes.is_empty() {
            return;
        }
        let len = if self.random.bool() { 0 } else { self.random.usize(..bytes.len()) };
        self.note(format!("cut {} to {len}", path.display()));
        let cut = std::fs::OpenOptions::new().write(true).open(&path);
        cut.and_then(|file| file.set_len(len as u64)).expect("a file");
        self.counts.damaged += 1;
        self.set(data);
        wait_for("a rewrite that replaces it", || {
            let text = self.ask("INFO persistence").expect("it runs");
            let is_well = text.contains("aof_last_write_status:ok")
                && text.contains("aof_rewrite_in_progress:0")
                && text.contains("aof_last_bgrewrite_status:ok");
            let listed = self.listed();
            let is_new = path == self.manifest() || !listed.contains(&path);
            (is_well && is_new && !listed.is_empty()).then_some(())
        });
        self.set(data);
    }

    /// Somebody restores a backup over the folder of the running server. Nothing is healed at the
    /// expense of the backup: its manifest stays, and the files that it names.
    fn restore_backup(&mut self, data: &mut Data) {
        if !self.settle() {
            return;
        }
        let (folder, manifest) = (self.folder(), self.manifest());
        let (kept, old) = (tempfile::tempdir().expect("a folder"), data.clone());
        copy_folder(&folder, kept.path());
        self.set(data);
        let how = self.random.usize(..3);
        if how == 2 || self.random.bool() {
            let _ = self.ask("BGREWRITEAOF");
            self.settle();
        }
        self.note(format!("restore a backup, {how}"));
        self.counts.restored += 1;
        if how == 0 {
            std::fs::remove_dir_all(&folder).expect("a folder");
            std::fs::create_dir(&folder).expect("a folder");
        }
        let is_copied =
            |path: &Path| !is_own(&name_of(path)) || name_of(path) == name_of(&manifest);
        for (path, bytes) in files(kept.path()).iter().filter(|(path, _)| is_copied(path)) {
            let to = folder.join(name_of(path));
            match how {
                // Into the same file, if it is there.
                2 => std::fs::write(&to, bytes).expect("a file"),
                _ => {
                    let new = folder.join("temp-restored");
                    std::fs::write(&new, bytes).expect("a file");
                    std::fs::rename(&new, &to).expect("a file");
                }
            }
        }
        let mut backup = files(&folder);
        let listed = self.listed();
        backup.retain(|path, _| listed.contains(path) || *path == manifest);
        // It is not answered, as it is in no file with a name.
        let socket = self.aside.path().join("socket");
        let mut unanswered = std::os::unix::net::UnixStream::connect(socket).expect("it runs");
        let sent = std::io::Write::write_all(
            &mut unanswered,
            b"SET k0 unanswered
",
        );
        sent.expect("it runs");
        for _ in 0..3 {
            let _ = self.ask("BGREWRITEAOF");
            self.settle();
        }
        for (path, bytes) in &backup {
            if std::fs::read(path).ok().as_ref() != Some(bytes) {
                self.fail(&format!("{} of the backup has changed", path.display()));
            }
        }
        if self.random.bool() {
            self.note("kill".into());
            let mut server = self.server.take().expect("it runs");
            server.child.kill().expect("it runs");
            server.child.wait().expect("it ends");
            self.expected.insert(self.place.clone(), Expected::Data(old.clone()));
            self.start_again();
            self.earlier.push(std::mem::replace(data, old));
            return;
        }
        // What is in memory counts again, once the manifest is away.
        self.note("move the manifest away".into());
        std::fs::remove_file(&manifest).expect("a file");
        let is_whole = (0..5).any(|_| {
            let _ = self.ask("BGREWRITEAOF");
            self.settle()
        });
        if !is_whole {
            self.fail("no rewrite succeeds");
        }
        let found = self.found();
        let mut with_last = data.clone();
        with_last.insert("k0".into(), "unanswered".into());
        if found != *data && found != with_last {
            self.fail(&format!("{data:?} was in memory, {found:?} is there"));
        }
        self.earlier.push(std::mem::replace(data, found));
        backup.remove(&manifest);
        self.foreign.extend(backup);
    }

    /// Another server with the same files is refused, also if somebody has removed the lock.
    fn second_server(&mut self) {
        let lock = self.folder().join(format!("{}.lock", self.place.name));
        if self.random.bool() && self.manifest().exists() {
            self.note("remove the lock".into());
            let _ = std::fs::remove_file(lock);
        }
        self.note("a second server".into());
        self.counts.refused += 1;
        match self.start_beside("2") {
            Ok(mut second) => {
                let _ = second.child.kill();
                let _ = second.child.wait();
                self.fail("two servers have the same files");
            }
            Err(said) if said.contains(&format!("{}.lock locked", self.place.name)) => {}
            Err(said) if said.contains(&format!("{}.manifest locked", self.place.name)) => {}
            Err(said) => self.fail(&said),
        }
    }

    fn move_file(&mut self, data: &mut Data) {
        let dir = if self.place.dir == "a" { "b" } else { "a" };
        let from = self.place.clone();
        let to = self.root.path().join(dir);
        // A rewrite that runs would come first.
        self.settle();
        self.give_up_old_files(dir);
        self.note(format!("CONFIG SET dir {}", to.display()));
        if let Err(why) = self.ask(&format!("CONFIG SET dir {}", to.display())) {
            let is_known = ["an append-only file already", "manifest file", "being switched on"];
            if !is_known.iter().any(|known| why.contains(known)) {
                self.fail(&why);
            }
            return;
        }
        if self.random.u32(..3) == 0 {
            // The log ends in the old folder, and begins again in the new one.
            self.note("appendonly no, yes".into());
            for value in ["no", "yes"] {
                if let Err(why) = self.ask(&format!("CONFIG SET appendonly {value}")) {
                    self.fail(&why);
                }
            }
        } else if self.random.u32(..4) == 0 {
            // The end comes before that of the move, perhaps.
            let mark = self.folder().join(format!("{}.moved", self.place.name));
            self.set(data);
            self.expected.insert(from.clone(), Expected::Data(data.clone()));
            self.end();
            if mark.exists() {
                self.place.dir = dir;
                self.expected.insert(from, Expected::Moved);
                self.expected.insert(self.place.clone(), Expected::Data(data.clone()));
            }
            self.start_again();
            return;
        }
        if !self.settle() {
            self.fail("the move has failed");
        }
        self.counts.moved += 1;
        self.place.dir = dir;
        self.expected.insert(from, Expected::Moved);
    }

    /// A folder from which the file has moved may be moved to again, and then is replaced.
    fn give_up_old_files(&mut self, dir: &'static str) {
        let here = std::mem::replace(&mut self.place.dir, dir);
        if self.folder().join(format!("{}.moved", self.place.name)).exists() {
            let listed = self.listed();
            self.foreign.retain(|path, _| !listed.contains(path));
        }
        self.place.dir = here;
    }

    /// A start after which nothing was done to the files.
    fn start_again(&mut self) {
        self.note_foreign();
        if let Err(said) = self.start() {
            self.fail(&format!("refused: {said}"));
        }
        let found = self.found();
        match self.expected.get(&self.place) {
            Some(Expected::Data(data)) if *data == found => {}
            other => self.fail(&format!("{other:?} was promised, {found:?} is there")),
        }
    }

    // ---- between lives --------------------------------------------------------------------------

    /// Does something to one of the files. Returns its path and its bytes before.
    fn damage(&mut self) -> Option<(PathBuf, Vec<u8>)> {
        let mut found: Vec<(PathBuf, Vec<u8>)> = files(self.root.path()).into_iter().collect();
        let listed = self.listed();
        if self.random.bool() && !listed.is_empty() {
            found.retain(|(path, _)| listed.contains(path));
        }
        // The base alone holds what a rewrite found.
        let base = found.iter().find(|(path, _)| name_of(path).contains(".base.")).cloned();
        let (path, bytes) = match base.filter(|_| self.random.u32(..4) == 0) {
            Some(base) => base,
            None => self.random.choice(found)?,
        };
        let how = self.random.usize(..10);
        self.note(format!("damage {how} {}", path.display()));
        let write = |bytes: &[u8]| std::fs::write(&path, bytes).expect("a file");
        match how {
            0 | 1 => std::fs::remove_file(&path).expect("a file"),
            2 | 3 => write(b""),
            4 | 9 => write(&bytes[..self.random.usize(..=bytes.len())]),
            5 => write(FOREIGN),
            6 => write(&[&bytes, FOREIGN].concat()),
            7 => {
                let target = self.aside.path().join("target");
                std::fs::write(&target, FOREIGN).expect("a file");
                std::fs::remove_file(&path).expect("a file");
                std::os::unix::fs::symlink(target, &path).expect("a link");
            }
            _ => {
                std::fs::remove_file(&path).expect("a file");
                std::fs::create_dir(&path).expect("a folder");
            }
        }
        self.counts.damaged += 1;
        Some((path, bytes))
    }

    fn restart(&mut self) {
        let kept = tempfile::tempdir().expect("a folder");
        let (place, is_on) = (self.place.clone(), self.is_on);
        copy_folder(self.root.path(), kept.path());
        let damaged = (self.random.u32(..3) > 0).then(|| self.damage()).flatten();
        if self.random.u32(..4) == 0 {
            self.place.dir = self.one(&["a", "b"]);
            if self.random.bool() {
                self.place.folder = self.one(&["aof", "other"]);
                self.place.name = self.one(&["x.aof", "y.aof"]);
            }
        }
        let moved = self.expected.iter().filter(|(_, it)| matches!(it, Expected::Moved));
        let mut moved: Vec<Place> = moved.map(|(place, _)| place.clone()).collect();
        moved.sort();
        if let Some(place) = self.random.choice(moved)
            && self.random.u32(..4) == 0
        {
            // Somebody starts with the former configuration.
            self.place = place;
        }
        self.is_on = self.random.u32(..6) > 0;
        let before = files(self.root.path());
        self.note_foreign();
        let started = self.start();
        self.check_foreign();
        if let Err(said) = started {
            self.counts.refused += 1;
            let root = self.root.path().as_os_str().as_bytes();
            let is_named = said.contains(&*String::from_utf8_lossy(root))
                || damaged.as_ref().is_some_and(|(path, _)| said.contains(&name_of(path)))
                || said.contains(self.place.name);
            if !is_named {
                self.fail(&format!("a refusal without a name: {said}"));
            }
            let was_moved = matches!(self.expected.get(&self.place), Some(Expected::Moved));
            let is_orphaned = !self.manifest().exists();
            if damaged.is_none() && !was_moved && !is_orphaned {
                self.fail(&format!("refused: {said}"));
            }
            let after = files(self.root.path());
            let changed = |(path, bytes): (&PathBuf, &Vec<u8>)| {
                !is_own(&name_of(path)) && after.get(path) != Some(bytes)
            };
            if let Some((path, _)) = before.iter().find(|it| changed(*it)) {
                self.fail(&format!("a refused start has changed {}", path.display()));
            }
            // With the files as they were it starts.
            for dir in ["a", "b"] {
                std::fs::remove_dir_all(self.root.path().join(dir)).expect("a folder");
            }
            copy_folder(kept.path(), self.root.path());
            (self.place, self.is_on) = (place, true);
            let _ = is_on;
            return self.start_again();
        }
        self.counts.started += 1;
        let is_here = damaged.as_ref().is_some_and(|(path, _)| {
            let is_named = name_of(path).starts_with(self.place.name);
            self.is_on && is_named && path.parent() == Some(&self.folder())
        });
        if let Some((path, bytes)) = damaged.as_ref().filter(|_| !is_here) {
            // The server does not use it, and a later start is to find it as it was.
            self.note("undo".into());
            let _ = std::fs::remove_dir(path);
            let _ = std::fs::remove_file(path);
            std::fs::write(path, bytes).expect("a file");
            self.note_foreign();
        }
        if !self.is_on {
            return;
        }
        let found = self.found();
        let is_right = match self.expected.get(&self.place) {
            Some(Expected::Data(data)) => *data == found,
            Some(Expected::Moved) => false,
            None => found.is_empty(),
        };
        // A log may be cut; a folder without any file is a new one; who removes the mark of a move
        // wants the older data.
        let may_differ = damaged.as_ref().filter(|_| is_here).is_some_and(|(path, _)| {
            let (name, is_earlier) = (name_of(path), self.earlier.contains(&found));
            is_earlier && (name.ends_with(".incr.aof") || name.ends_with(".moved"))
        });
        if !is_right && !may_differ {
            let expected = self.expected.get(&self.place);
            self.fail(&format!("{expected:?} was promised, {found:?} is there"));
        }
        self.expected.insert(self.place.clone(), Expected::Data(found));
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.child.kill();
            let _ = server.child.wait();
        }
    }
}

#[test]
fn whatever_happens_to_a_file_a_start_is_right_or_refused_and_nothing_is_overwritten() {
    let first = number_from("DATA_FOLDER_SEED", 1);
    let mut all = Counts::default();
    for seed in first..first + number_from("DATA_FOLDER_SEEDS", SEEDS) {
        let mut run = Run::new(seed);
        run.start().unwrap_or_else(|said| run.fail(&said));
        for _ in 0..ROUNDS {
            run.live();
            run.end();
            run.check_foreign();
            run.restart();
        }
        let counts = std::mem::take(&mut run.counts);
        all.started += counts.started;
        all.refused += counts.refused;
        all.damaged += counts.damaged;
        all.moved += counts.moved;
        all.foreign += counts.foreign;
        all.restored += counts.restored;
    }
    println!("{all:?}");
    let Counts { started, refused, moved, foreign, restored, .. } = all;
    let least = [started, refused, moved, foreign, restored].into_iter().min();
    assert!(least > Some(0), "{all:?}");
}
