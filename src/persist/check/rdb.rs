//! The check tool for RDB files: `--check-rdb`, and the name `redis-check-rdb`.
//!
//! Every record is read and every value decoded, as the server does when it loads a file: a file
//! that passes here can be loaded, unless a library of functions in it does not compile, which is
//! not tried here. The output and exit codes are those of `redis-check-rdb` 7.0.15, on which
//! scripts rely, except the texts of faults, which are the decoder's. Nothing is ever changed.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::clock::Now;
use crate::collections::hash::KeyHasher;
use crate::config::{Config, system_text};
use crate::persist::rdb::{
    Checksum, Decoder, Event, Fault, FileError, HeaderFault, Limits, Parser, Place, Version,
    VersionCheck, value_type,
};
use crate::sys::disk::Disk;
use crate::types::{hash, list, set, sorted_set};

/// The options of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckRdb {
    File(PathBuf, VersionCheck),
    Version,
}

impl CheckRdb {
    /// Parses the arguments after the program's name. Errors: a text for standard error; the exit
    /// code is 1 then.
    pub fn parse(program: &str, args: &[OsString]) -> Result<Self, String> {
        match args {
            [option] if option == "-v" || option == "--version" => Ok(CheckRdb::Version),
            [path] => Ok(CheckRdb::File(path.into(), VersionCheck::Strict)),
            [path, option, word] if option == "--rdb-version-check" && word == "relaxed" => {
                Ok(CheckRdb::File(path.into(), VersionCheck::Relaxed))
            }
            _ => Err(format!("Usage: {program} <rdb-file-name>\n")),
        }
    }
}

/// Checks a file and reports on `out`. `progress` is called now and then with the bytes read and
/// the file's size. Returns the exit code: 0, or 1 for any fault.
pub fn check_file(
    path: &std::path::Path,
    version_check: VersionCheck,
    disk: &dyn Disk,
    out: &mut dyn Write,
    now: Now,
    progress: &mut dyn FnMut(u64, u64),
) -> i32 {
    let name = path.as_os_str().as_bytes();
    let opened = disk.open_read(path).and_then(|source| Ok((source, disk.size(path)?)));
    let checked = match opened {
        Ok((mut source, size)) => {
            let source = &mut *source;
            check_image(name, version_check, source, out, now, &mut |done| progress(done, size))
        }
        Err(error) => {
            let mut report = Report { out, facts: Facts::default() };
            report.line_at(0, &[b"Checking RDB file ", name]);
            report.line(&[b"Cannot open file ", name, b": ", system_text(&error).as_bytes()]);
            None
        }
    };
    // A failure of the output cannot be reported.
    let _ = out.flush();
    if checked.is_some() { 0 } else { 1 }
}

/// Checks an image, which other data may follow. Returns its bytes; None after a fault.
pub fn check_image(
    name: &[u8],
    version_check: VersionCheck,
    source: &mut dyn Read,
    out: &mut dyn Write,
    now: Now,
    progress: &mut dyn FnMut(u64),
) -> Option<u64> {
    let mut report = Report { out, facts: Facts::default() };
    report.line_at(0, &[b"Checking RDB file ", name]);
    let mut magic = Vec::new();
    // The parser will meet the same error again.
    let _ = source.take(Version::MAGIC_BYTES as u64).read_to_end(&mut magic);
    let mut parser = Parser::new(magic.as_slice().chain(source), true).with_versions(version_check);
    let checked = check(&magic, &mut parser, &mut report, now, progress);
    match &checked {
        Ok(end) if parser.version().is_some_and(|version| !version.is_known()) => {
            let text = "\\o/ RDB looks OK, but loading requires config 'rdb-version-check relaxed'";
            report.line_at(*end, &[text.as_bytes()]);
        }
        Ok(end) => {
            report.line_at(*end, &[b"\\o/ RDB looks OK! \\o/"]);
        }
        Err(failure) => report.failure(failure),
    }
    report.summary();
    checked.ok()
}

/// The contents of a file that was read through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Bytes of the image, which others may follow.
    pub bytes: u64,
    pub keys: u64,
    /// Keys with a deadline.
    pub expires: u64,
    /// Keys whose deadline has passed.
    pub expired: u64,
    pub functions: u64,
    /// The highest number of a database.
    pub database_max: u64,
    /// The version of the server that wrote it; empty if it does not say so.
    pub server: Vec<u8>,
    /// The number of the file's format; 0 before its header.
    pub rdb_version: u16,
}

/// Reads an image and decodes each value, as [`check_image`] does, without a report. Errors: a text
/// with the place and the fault.
pub fn read_through(
    source: &mut dyn Read,
    version_check: VersionCheck,
    now: Now,
    progress: &mut dyn FnMut(u64),
) -> Result<Facts, String> {
    let mut report = Report { out: &mut std::io::sink(), facts: Facts::default() };
    let mut parser = Parser::new(source, true).with_versions(version_check);
    // Only the wording of a fault depends on the first bytes.
    let magic = [0; Version::MAGIC_BYTES];
    match check(&magic, &mut parser, &mut report, now, progress) {
        Ok(bytes) => Ok(Facts { bytes, ..report.facts }),
        Err(Failure { offset, text, place, .. }) => {
            let key = place.key.map(|key| format!(", key '{}'", key.escape_ascii()));
            Err(format!("{text} (at offset {offset}{})", key.unwrap_or_default()))
        }
    }
}

/// A fault, and where it is.
struct Failure {
    offset: u64,
    text: String,
    doing: &'static str,
    place: Place,
}

fn check(
    magic: &[u8],
    parser: &mut Parser<impl Read>,
    report: &mut Report<'_>,
    now: Now,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, Failure> {
    let limits = limits();
    loop {
        match parser.next_event() {
            Ok(Event::Aux { name, value }) => {
                if matches!(&*name, b"redis-ver" | b"valkey-ver") {
                    report.facts.server = value.to_vec();
                }
                let line = [b"AUX FIELD ", &*name, b" = '", &*value, b"'"].concat();
                report.line_at(parser.offset(), &[&line]);
            }
            Ok(Event::SelectDb(db)) => {
                report.facts.database_max = report.facts.database_max.max(db);
                let line = format!("Selecting DB ID {db}");
                report.line_at(parser.offset(), &[line.as_bytes()]);
            }
            Ok(Event::Header(version)) if !version.is_known() => {
                let line = format!("{} RDB version {} detected", origin(version), version.number());
                report.line_at(parser.offset(), &[line.as_bytes()]);
            }
            Ok(Event::Function(_)) => report.facts.functions += 1,
            Ok(Event::Header(_) | Event::ResizeDb { .. } | Event::SlotImport { .. }) => {}
            Ok(Event::Entry(entry)) => {
                let facts = &mut report.facts;
                facts.keys += 1;
                if let Some(deadline_ms) = entry.deadline_ms {
                    facts.expires += 1;
                    facts.expired += u64::from(deadline_ms < now.unix().0);
                }
                let decoder = Decoder { limits: &limits, now, version: entry.version };
                if let Err(error) = decoder.value(entry.value_type, entry.value, entry.offset) {
                    return Err(Failure {
                        offset: error.offset,
                        text: fault_text(&error.fault),
                        doing: "read-object-value",
                        place: entry.place(),
                    });
                }
                let end = entry.offset + entry.value.len() as u64;
                progress(end);
            }
            Ok(Event::End(checksum)) => {
                let end = parser.offset();
                report.facts.rdb_version = parser.version().map_or(0, Version::number);
                let has_checksum = parser.version().is_some_and(Version::has_checksum);
                match checksum {
                    Checksum::Right => report.line_at(end, &[b"Checksum OK"]),
                    Checksum::Unchecked if has_checksum => {
                        let text = "RDB file was saved with checksum disabled: no check performed.";
                        report.line_at(end, &[text.as_bytes()]);
                    }
                    Checksum::Unchecked => {}
                }
                progress(end);
                return Ok(end);
            }
            Err(error) => return Err(file_failure(error, magic, parser.offset())),
        }
    }
}

/// Valkey's name for the origin of a version that it does not know.
fn origin(version: Version) -> &'static str {
    if version.is_valkey() { "Future" } else { "Foreign" }
}

fn file_failure(error: FileError, magic: &[u8], offset: u64) -> Failure {
    let failure = |offset, text, doing| Failure { offset, text, doing, place: Place::default() };
    match error {
        FileError::Header(HeaderFault::Version(number)) => {
            failure(offset, format!("Can't handle RDB format version {number}"), "start")
        }
        FileError::Header(HeaderFault::Signature(_)) => {
            failure(offset, "Wrong signature trying to load DB from file".into(), "start")
        }
        FileError::Checksum { .. } => failure(offset, "RDB CRC error".into(), "check-sum"),
        FileError::Io { offset, error } => {
            failure(offset, format!("Reading failed: {}", system_text(&error)), "read-type")
        }
        FileError::Fault { place, error } => {
            let doing = match (&error.fault, &place.value_type, &place.key) {
                (Fault::UnknownType(_), ..) => "read-type",
                (_, _, Some(_)) => "read-object-value",
                (_, Some(_), None) => "read-key",
                _ if magic.len() < Version::MAGIC_BYTES => "start",
                _ => "read-type",
            };
            let mut place = *place;
            if doing == "read-type" {
                place.value_type = None;
            }
            let unknown = place.version.filter(|version| !version.is_known());
            let text = match (&error.fault, unknown) {
                (Fault::UnknownType(value_type), Some(version)) => format!(
                    "Unknown object type {value_type} in RDB file with {} version {}",
                    origin(version).to_lowercase(),
                    version.number()
                ),
                (fault, _) => fault_text(fault),
            };
            Failure { offset: error.offset, text, doing, place }
        }
    }
}

fn fault_text(fault: &Fault) -> String {
    match fault {
        Fault::Truncated(_) => "Unexpected EOF reading RDB file".into(),
        Fault::UnknownType(value_type) => format!("Invalid object type: {value_type}"),
        other => other.to_string(),
    }
}

/// The limits of the default configuration: they affect only encodings, not validity.
fn limits() -> Limits {
    let config = Config::default();
    let hasher = KeyHasher::new([0, 0]);
    Limits {
        list: list::Limits::from_setting(config.list_max_listpack_size),
        hash: hash::Limits {
            entries_max: config.hash_max_listpack_entries,
            bytes_max: config.hash_max_listpack_value,
            hasher,
        },
        set: set::Limits {
            intset_entries: config.set_max_intset_entries,
            listpack_entries: config.set_max_listpack_entries,
            listpack_value: config.set_max_listpack_value,
            hasher,
        },
        sorted_set: sorted_set::Limits {
            entries: config.zset_max_listpack_entries,
            value: config.zset_max_listpack_value,
        },
    }
}

/// Prints the findings, and counts keys.
struct Report<'a> {
    out: &'a mut dyn Write,
    facts: Facts,
}

impl Report<'_> {
    fn line(&mut self, parts: &[&[u8]]) {
        for part in parts.iter().chain([&b"\n".as_slice()]) {
            // A failure of the output cannot be reported.
            let _ = self.out.write_all(part);
        }
    }

    fn line_at(&mut self, offset: u64, parts: &[&[u8]]) {
        let _ = write!(self.out, "[offset {offset}] ");
        self.line(parts);
    }

    fn failure(&mut self, failure: &Failure) {
        self.line(&[b"--- RDB ERROR DETECTED ---"]);
        self.line_at(failure.offset, &[failure.text.as_bytes()]);
        self.line(&[b"[additional info] While doing: ", failure.doing.as_bytes()]);
        if let Some(key) = &failure.place.key {
            self.line(&[b"[additional info] Reading key '", key, b"'"]);
        }
        if let Some(number) = failure.place.value_type {
            let line = format!("[additional info] Reading type {number} ({})", type_name(number));
            self.line(&[line.as_bytes()]);
        }
    }

    fn summary(&mut self) {
        let Facts { keys, expires, expired, .. } = self.facts;
        for (count, what) in
            [(keys, "keys read"), (expires, "expires"), (expired, "already expired")]
        {
            self.line(&[format!("[info] {count} {what}").as_bytes()]);
        }
    }
}

/// Redis's name of a value type.
fn type_name(number: u8) -> &'static str {
    match number {
        value_type::STRING => "string",
        value_type::LIST => "list-linked",
        value_type::SET => "set-hashtable",
        value_type::SORTED_SET => "zset-v1",
        value_type::HASH => "hash-hashtable",
        value_type::SORTED_SET_2 => "zset-v2",
        value_type::MODULE => "module-pre-release",
        value_type::MODULE_2 => "module-value",
        value_type::HASH_ZIPMAP => "hash-zipmap",
        value_type::LIST_ZIPLIST => "list-ziplist",
        value_type::SET_INTSET => "set-intset",
        value_type::SORTED_SET_ZIPLIST => "zset-ziplist",
        value_type::HASH_ZIPLIST => "hash-ziplist",
        value_type::LIST_QUICKLIST => "quicklist",
        value_type::STREAM => "stream",
        value_type::HASH_LISTPACK => "hash-listpack",
        value_type::SORTED_SET_LISTPACK => "zset-listpack",
        value_type::LIST_QUICKLIST_2 => "quicklist-v2",
        value_type::STREAM_2 => "stream-v2",
        value_type::SET_LISTPACK => "set-listpack",
        value_type::STREAM_3 => "stream-v3",
        value_type::STREAM_4 => "stream-v4",
        value_type::STREAM_5 => "stream-v5",
        value_type::ARRAY => "array",
        value_type::HASH_TEMPLATE_LISTPACK => "hash-template-listpack",
        value_type::HASH_TEMPLATE_ARRAY => "hash-template-array",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests;
