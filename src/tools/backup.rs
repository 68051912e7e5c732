//! `--backup`: a snapshot of a running server, by the replication protocol, as a file that has been
//! read through.
//!
//! The server need not be of this program: it is asked as a replica asks it, but for the snapshot
//! alone. In the folder, `LABEL` stands for host and port:
//!
//! - `temp-LABEL.part` receives the snapshot, and is locked; so one backup of a server is written
//!   at a time. The next one overwrites the bytes that a killed backup has left there.
//! - When it is complete and synced, it is read from the disk: each value is decoded, and the hash
//!   compared with that of the received bytes.
//! - The record (`record.rs`) is made durable, and then the file gets its name
//!   `LABEL-TIME.rdb`. A file of this name is complete, whatever happens; a record without its file
//!   is of a backup that was killed between the two, and the next one removes it.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::access::{self, Access, Options, no_address, parse_address};
use super::{Hashing, failed, record, stamp};
use crate::clock::Clock;
use crate::net::blocking::Connection;
use crate::persist::check::rdb::{Facts, read_through};
use crate::persist::rdb::VersionCheck;
use crate::replication::link::{Event, HandshakeOptions, Link};
use crate::sys::disk::{Disk, DiskFile, knows_no_locks, replace_file, write_all};
use crate::sys::log::Level;
use crate::sys::random;

/// The text of a wrong command line.
fn usage() -> String {
    format!(
        "\
Usage: latchkey --backup <host>:<port> <folder> [options]
       --user <name>       the user; without it the default one
       --pass <password>   the password; better in the environment, as REDISCLI_AUTH
{}",
        access::USAGE
    )
}

/// Bytes read from the connection at once.
const READ_BYTES: usize = 256 << 10;

/// A backup that was asked for.
#[derive(Debug)]
pub struct Backup {
    host: String,
    port: u16,
    folder: PathBuf,
    access: Access,
}

/// A backup in its place.
#[derive(Debug)]
pub struct Done {
    pub path: PathBuf,
    pub facts: Facts,
    /// The replication ID and offset of the snapshot, if the server has told them.
    pub history: Option<(String, u64)>,
}

/// The steps of a backup, for who waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Bytes received, of the number that the server has announced; 0 if it has not.
    Received(u64, u64),
    /// Bytes read through, of all.
    Checked(u64, u64),
}

impl Backup {
    /// Parses the arguments after `--backup`. `password`: that of the environment. Errors: a text
    /// for standard error.
    pub fn parse(args: &[OsString], password: Option<OsString>) -> Result<Self, String> {
        let [address, folder, options @ ..] = args else { return Err(usage()) };
        let with_usage = |why: String| format!("{why}\n{}", usage());
        let (host, port) = address
            .to_str()
            .and_then(parse_address)
            .ok_or_else(|| with_usage(no_address(address)))?;
        let mut access = Options::new(password);
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let name = option.to_str().unwrap_or_default();
            if !access.take(name, &mut options).map_err(with_usage)? {
                return Err(with_usage(format!("Unknown option '{}'", option.display())));
            }
        }
        let access = access.finish().map_err(with_usage)?;
        Ok(Backup { host, port, folder: folder.into(), access })
    }

    /// Takes the backup. `progress` is called now and then. Errors: a text with the reason; no file
    /// has a name of a backup then that had none before.
    pub fn take(
        &self,
        disk: &dyn Disk,
        clock: &Clock,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Done, String> {
        let tls = self.access.tls_client(clock)?;
        let label = label(&self.host, self.port);
        let place = Place::open(disk, &self.folder, &label)?;
        let connection = Connection::open(&self.host, self.port, tls, self.access.timeout);
        let connection = connection.map_err(|error| self.told(&error));
        let taken =
            connection.and_then(|connection| self.fill(&place, connection, clock, progress));
        if taken.is_err() {
            // If it stays, the next backup overwrites it.
            let _ = disk.remove(&place.part);
        }
        taken
    }

    fn fill(
        &self,
        place: &Place<'_>,
        mut connection: impl Read + Write,
        clock: &Clock,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Done, String> {
        let options = HandshakeOptions {
            password: self.access.login.password.clone(),
            user: self.access.login.user.clone(),
            run_id: random::hex_id(),
            snapshot_only: true,
            ..HandshakeOptions::default()
        };
        let mut receiver = Receiver::new(Link::new(options), &*place.file);
        let received = receiver.receive(&mut connection, progress);
        drop(connection);
        received.map_err(|why| match why {
            Why::Connection(error) => self.told(&error),
            Why::Server(text) => format!("{}:{}: {text}", self.host, self.port),
            Why::Disk(error) => failed(&place.part, &error),
        })?;
        let Receiver { hash, bytes, history, .. } = receiver;
        let sha256 = base16ct::lower::encode_string(&hash.finalize());
        place.file.sync_data().map_err(|error| failed(&place.part, &error))?;
        let facts = place.check(bytes, &sha256, clock, progress)?;
        let taken = stamp(clock.now().unix_seconds());
        let name = place.free_name(&taken);
        let mut text = format!("file:{name}\nbytes:{bytes}\nsha256:{sha256}\n");
        text += &format!("source:{}:{}\ntaken:{taken}\n", self.host, self.port);
        if let Some((id, offset)) = &history {
            text += &format!("replication_id:{id}\nreplication_offset:{offset}\n");
        }
        let Facts { keys, expires, functions, rdb_version, server, .. } = &facts;
        if !server.is_empty() {
            text += &format!("server_version:{}\n", server.escape_ascii());
        }
        text += &format!("rdb_version:{rdb_version}\nkeys:{keys}\nkeys_with_deadline:{expires}\n");
        text += &format!("functions:{functions}\n");
        let path = place.put(&name, text.as_bytes())?;
        Ok(Done { path, facts, history })
    }

    fn told(&self, error: &io::Error) -> String {
        format!("{}:{}: {}", self.host, self.port, self.access.told(error))
    }
}

/// Host and port as a part of names of files.
fn label(host: &str, port: u16) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let host: String = host.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    format!("{host}-{port}")
}

/// Why no snapshot was received.
#[derive(Debug)]
enum Why {
    Connection(io::Error),
    Server(String),
    Disk(io::Error),
}

/// Receives a snapshot into a file.
struct Receiver<'a> {
    link: Link,
    file: &'a dyn DiskFile,
    hash: Sha256,
    /// Bytes received of the snapshot, and their number if it is known.
    bytes: u64,
    total: u64,
    history: Option<(String, u64)>,
    /// The last line that the link has written for a log.
    last: String,
}

impl<'a> Receiver<'a> {
    fn new(link: Link, file: &'a dyn DiskFile) -> Self {
        Receiver {
            link,
            file,
            hash: Sha256::new(),
            bytes: 0,
            total: 0,
            history: None,
            last: String::new(),
        }
    }

    fn receive(
        &mut self,
        connection: &mut (impl Read + Write),
        progress: &mut dyn FnMut(Step),
    ) -> Result<(), Why> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            if !self.link.output.is_empty() {
                let output = std::mem::take(&mut self.link.output);
                connection.write_all(&output).map_err(Why::Connection)?;
                connection.flush().map_err(Why::Connection)?;
            }
            let count = match connection.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Why::Connection(error)),
                Ok(0) => {
                    let bytes = self.bytes;
                    let text = format!("the connection ended after {bytes} bytes of the snapshot");
                    return Err(Why::Server(text));
                }
                Ok(count) => count,
            };
            self.link.receive(&buffer[..count]);
            while let Some(event) = self.link.next_event() {
                if self.take(event)? {
                    return Ok(());
                }
            }
            progress(Step::Received(self.bytes, self.total));
        }
    }

    /// Acts on an event. True: the snapshot is complete.
    fn take(&mut self, event: Event) -> Result<bool, Why> {
        match event {
            Event::Log(Level::Warning | Level::Notice, text) => self.last = text,
            Event::Log(..) | Event::Alive => {}
            Event::Failed { .. } => return Err(Why::Server(std::mem::take(&mut self.last))),
            Event::Continues { .. } => {
                return Err(Why::Server("it goes on without a snapshot".into()));
            }
            Event::FullSync { history } => self.history = history,
            Event::Begins { bytes } => self.total = bytes.unwrap_or(0),
            Event::Snapshot(bytes) => {
                write_all(self.file, &bytes).map_err(Why::Disk)?;
                self.hash.update(&bytes);
                self.bytes += bytes.len() as u64;
            }
            Event::Ends { .. } => return Ok(true),
        }
        Ok(false)
    }
}

/// The folder of backups, where one is written.
struct Place<'a> {
    disk: &'a dyn Disk,
    folder: &'a Path,
    label: &'a str,
    /// The locked file that receives the snapshot.
    part: PathBuf,
    file: Arc<dyn DiskFile>,
}

impl<'a> Place<'a> {
    fn open(disk: &'a dyn Disk, folder: &'a Path, label: &'a str) -> Result<Self, String> {
        disk.create_folder(folder).map_err(|error| failed(folder, &error))?;
        let part = folder.join(format!("temp-{label}.part"));
        let file = match disk.open_locked(&part) {
            Ok(Some(file)) => file,
            Ok(None) => {
                let shown = part.display();
                return Err(format!("Another backup of this server is being written: {shown}"));
            }
            Err(error) if knows_no_locks(&error) => {
                disk.create(&part).map_err(|error| failed(&part, &error))?
            }
            Err(error) => return Err(failed(&part, &error)),
        };
        file.set_len(0).map_err(|error| failed(&part, &error))?;
        let place = Place { disk, folder, label, part, file };
        place.remove_leftovers();
        Ok(place)
    }

    /// Removes records of backups of this server that were killed before the file had its name.
    fn remove_leftovers(&self) {
        let start = format!("{}-", self.label);
        for name in self.disk.list(self.folder).unwrap_or_default() {
            let Some(snapshot) = name.to_str().and_then(|name| name.strip_suffix(".info")) else {
                continue;
            };
            let time = snapshot.strip_prefix(&start).and_then(|rest| rest.strip_suffix(".rdb"));
            if time.is_some_and(is_time)
                && self
                    .disk
                    .size(&self.folder.join(snapshot))
                    .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
            {
                let _ = self.disk.remove(&self.folder.join(name));
            }
        }
    }

    /// Reads the file from the disk. Errors: it differs from the received bytes, or is no snapshot
    /// that can be loaded.
    fn check(
        &self,
        bytes: u64,
        sha256: &str,
        clock: &Clock,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Facts, String> {
        let unreadable = |error: io::Error| failed(&self.part, &error);
        let mut source = Hashing::new(self.disk.open_read(&self.part).map_err(unreadable)?);
        let now = clock.now();
        let checked = read_through(&mut source, VersionCheck::Strict, now, &mut |done| {
            progress(Step::Checked(done, bytes));
        });
        let facts = checked.map_err(|why| format!("The snapshot is damaged: {why}"))?;
        if source.finish().map_err(unreadable)? != (bytes, sha256.to_owned()) {
            let shown = self.part.display();
            return Err(format!("{shown}: the disk returns other bytes than were written"));
        }
        if facts.bytes != bytes {
            let more = bytes - facts.bytes;
            return Err(format!("The snapshot is damaged: {more} bytes follow its end"));
        }
        Ok(facts)
    }

    /// A name that no file has: of two backups in one second, the later one has a number too.
    fn free_name(&self, taken: &str) -> String {
        let mut name = format!("{}-{taken}.rdb", self.label);
        let mut number = 1;
        let is_free = |name: &str| {
            let path = self.folder.join(name);
            self.disk.size(&path).is_err() && self.disk.size(&record::path_of(&path)).is_err()
        };
        while !is_free(&name) {
            number += 1;
            name = format!("{}-{taken}-{number}.rdb", self.label);
        }
        name
    }

    /// Gives the file its name, after the record has got its own.
    fn put(&self, name: &str, text: &[u8]) -> Result<PathBuf, String> {
        let path = self.folder.join(name);
        let record = record::path_of(&path);
        let record_name = Path::new(record.file_name().unwrap_or_default());
        let temporary = format!("temp-{}.info", self.label);
        replace_file(self.disk, self.folder, temporary.as_ref(), record_name, text)
            .map_err(|(_, error)| failed(&record, &error))?;
        let renamed = self.disk.rename(&self.part, &path);
        if let Err(error) = renamed {
            let _ = self.disk.remove(&record);
            return Err(failed(&path, &error));
        }
        self.disk.sync_folder(self.folder).map_err(|error| failed(&path, &error))?;
        Ok(path)
    }
}

/// Whether this is the time in a backup's name, perhaps with a number.
fn is_time(text: &str) -> bool {
    let (time, number) = text.split_once('-').unwrap_or((text, "2"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = time.strip_suffix('Z').and_then(|time| time.split_once('T'));
    is_number(number) && parts.is_some_and(|(day, time)| is_number(day) && is_number(time))
}

#[cfg(test)]
mod tests;
