//! The check tool for append-only files: `--check-aof`, and the name `redis-check-aof`.
//!
//! A file or a manifest is read by the server's own parsers; what is found is told in the lines of `redis-check-aof` 7.0.15,
//! whose last ones and exit codes scripts look for. With `--fix` the last file is cut back to what is whole, after asking;
//! with `--truncate-to-timestamp` to before the first annotation of a later time, unasked. Nothing else is ever changed.
//!
//! Two differences, both to what the server itself does: a file counts as the last one if all behind it are empty, and a count
//! of no arguments is a fault.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub mod rdb;

use crate::config::system_text;
use crate::persist::aof::load::is_rdb;
use crate::persist::aof::manifest::{MANIFEST_BYTES_MAX, Manifest};
use crate::persist::aof::reader::{AnnotationKind, End, FaultKind, Item, Reader, Tail};
use crate::sys::disk::{Disk, DiskReader};

/// What the tool needs from outside.
pub struct Surroundings<'a> {
    pub disk: &'a dyn Disk,
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Reads one answer: whether it begins with `y` or `Y`.
    pub answer: &'a mut dyn FnMut() -> bool,
    /// Checks an RDB image at the start of a file of this name and so many bytes, telling on the output what it finds as
    /// `redis-check-rdb` does. Returns how many bytes it has; None if it is not sane.
    pub rdb: &'a mut RdbCheck<'a>,
}

/// See [`Surroundings::rdb`].
pub type RdbCheck<'a> =
    dyn FnMut(&[u8], &mut dyn DiskReader, u64, &mut dyn Write) -> Option<u64> + 'a;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckAof {
    pub path: PathBuf,
    pub fix: bool,
    /// Seconds since 1970. Some 0 is none, as for Redis.
    pub truncate_to: Option<i64>,
}

impl CheckAof {
    /// Reads the arguments behind the program's name: `[--fix | --truncate-to-timestamp <seconds>] <file>`. An error is the
    /// text for standard output; the exit code is 1 then.
    pub fn parse(program: &str, args: &[OsString]) -> Result<Self, String> {
        let check =
            |path: &OsString, fix, truncate_to| CheckAof { path: path.into(), fix, truncate_to };
        match args {
            [path] => Ok(check(path, false, None)),
            [option, path] if option == "--fix" => Ok(check(path, true, None)),
            [option, time, path] if option == "--truncate-to-timestamp" => {
                let time = time.to_str().and_then(|text| text.parse().ok());
                let time: i64 = time.ok_or("Invalid timestamp, aborting...\n")?;
                Ok(check(path, false, Some(time).filter(|time| *time != 0)))
            }
            _ => Err(format!(
                "Usage: {program} [--fix|--truncate-to-timestamp $timestamp] <file.manifest|file.aof>\n"
            )),
        }
    }

    /// Checks, and mends where that is asked for. Returns the exit code: 0, or 1 for whatever is wrong.
    pub fn run(&self, surroundings: Surroundings<'_>) -> i32 {
        let mut checker = Checker { options: self, around: surroundings, line: 1 };
        let result = match checker.is_manifest() {
            Ok(true) => checker.manifest(),
            Ok(false) => checker.single_file(),
            Err(stop) => Err(stop),
        };
        // Trouble with the output has nobody to be told.
        let _ = checker.around.out.flush();
        if result.is_ok() { 0 } else { 1 }
    }
}

/// The reason was told.
struct Stop;

/// What became of a file.
enum Verdict {
    Valid,
    Empty,
    Truncated,
    TruncatedToTime(i64),
}

struct Checker<'o, 'a> {
    options: &'o CheckAof,
    around: Surroundings<'a>,
    /// Counted on from file to file.
    line: u64,
}

/// Writes a line of which parts are bytes.
macro_rules! tell {
    ($self:expr, $($part:expr),+) => {{
        // Trouble with the output has nobody to be told.
        $(let _ = $self.around.out.write_all($part.as_ref());)+
        let _ = $self.around.out.write_all(b"\n");
    }};
}

impl Checker<'_, '_> {
    /// Whether the file's first line that is no comment begins with `file`.
    fn is_manifest(&mut self) -> Result<bool, Stop> {
        let path = &self.options.path;
        let read = || -> io::Result<Vec<u8>> {
            let mut text = Vec::new();
            self.around.disk.open_read(path)?.take(MANIFEST_BYTES_MAX).read_to_end(&mut text)?;
            Ok(text)
        };
        match read() {
            Ok(text) => {
                let mut lines =
                    text.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#"));
                Ok(lines.next().is_some_and(|line| line.starts_with(b"file")))
            }
            Err(error) => {
                let name = path.as_os_str().as_bytes();
                tell!(self, "Cannot open file ", name, ": ", system_text(&error));
                Err(Stop)
            }
        }
    }

    fn single_file(&mut self) -> Result<(), Stop> {
        tell!(self, "Start checking Old-Style AOF");
        let path = self.options.path.clone();
        let name = path.as_os_str().as_bytes();
        let verdict = self.file(name, &path, true)?;
        self.tell_verdict("", name, &verdict);
        Ok(())
    }

    fn manifest(&mut self) -> Result<(), Stop> {
        tell!(self, "Start checking Multi Part AOF");
        let path = &self.options.path;
        let text = crate::sys::disk::read_whole(self.around.disk, path, MANIFEST_BYTES_MAX);
        let manifest = match text.map_err(|error| system_text(&error)) {
            Ok(text) => Manifest::parse(&text).map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        let manifest = manifest.map_err(|error| {
            tell!(self, "\n*** FATAL AOF MANIFEST FILE ERROR ***\n", error);
            Stop
        })?;
        // As `dirname` gives it.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let in_folder = |name: &[u8]| folder.join(OsStr::from_bytes(name));
        let sizes = manifest.files().map(|file| self.around.disk.size(&in_folder(&file.name)));
        let last = sizes.collect::<Vec<_>>().iter().rposition(|size| !matches!(size, Ok(0)));
        let mut index = 0;
        let mut is_last = || {
            index += 1;
            last.is_none_or(|last| index > last)
        };
        if let Some(base) = manifest.base() {
            let path = in_folder(&base.name);
            let is_rdb = self.open(&path, &base.name)?.2;
            let format = if is_rdb { "RDB" } else { "RESP" };
            tell!(self, "Start to check BASE AOF (", format, " format).");
            let verdict = self.file(&base.name, &path, is_last())?;
            self.tell_verdict("BASE ", &base.name, &verdict);
        }
        if !manifest.increments().is_empty() {
            tell!(self, "Start to check INCR files.");
            for increment in manifest.increments() {
                let path = in_folder(&increment.name);
                let verdict = self.file(&increment.name, &path, is_last())?;
                self.tell_verdict("INCR ", &increment.name, &verdict);
            }
        }
        tell!(self, "All AOF files and manifest are valid");
        Ok(())
    }

    fn tell_verdict(&mut self, kind: &str, name: &[u8], verdict: &Verdict) {
        match verdict {
            Verdict::Valid => tell!(self, kind, "AOF ", name, " is valid"),
            Verdict::Empty => tell!(self, kind, "AOF ", name, " is empty"),
            Verdict::Truncated => tell!(self, "Successfully truncated AOF ", name),
            Verdict::TruncatedToTime(time) => {
                let time = time.to_string();
                tell!(self, "Successfully truncated AOF ", name, " to timestamp ", time);
            }
        }
    }

    /// A file, its bytes, and whether it begins with an RDB image.
    fn open(&mut self, path: &Path, name: &[u8]) -> Result<(Box<dyn DiskReader>, u64, bool), Stop> {
        let open = || {
            let mut source = self.around.disk.open_read(path)?;
            let size = self.around.disk.size(path)?;
            let is_rdb = is_rdb(&mut *source)?;
            Ok((source, size, is_rdb))
        };
        open().map_err(|error: io::Error| {
            let (path, error) = (path.as_os_str().as_bytes(), system_text(&error));
            let _ = name;
            tell!(self, "Cannot open file ", path, ": ", error, ", aborting...");
            Stop
        })
    }

    fn file(&mut self, name: &[u8], path: &Path, is_last: bool) -> Result<Verdict, Stop> {
        let (mut source, size, is_rdb) = self.open(path, name)?;
        if size == 0 {
            return Ok(Verdict::Empty);
        }
        let mut offset = 0;
        if is_rdb {
            let checked = (self.around.rdb)(name, &mut *source, size, self.around.out);
            let taken = checked.filter(|taken| *taken <= size);
            let taken = taken.filter(|taken| source.seek(SeekFrom::Start(*taken)).is_ok());
            let Some(taken) = taken else {
                tell!(self, "RDB preamble of AOF file is not sane, aborting.");
                return Err(Stop);
            };
            offset = taken;
            tell!(self, "RDB preamble is OK, proceeding with AOF tail...");
        }
        let mut reader = Reader::new(source, offset, size).counting_lines_from(self.line);
        let end = loop {
            match reader.next() {
                Ok(Item::Request(_)) => {}
                Ok(Item::End(end)) => break end,
                Ok(Item::Annotation(annotation)) => {
                    let Some(limit) = self.options.truncate_to else { continue };
                    match annotation.kind {
                        AnnotationKind::Time(time) if time > limit => {
                            self.cut_to_time(path, limit, annotation.valid_up_to, is_last)?;
                            return Ok(Verdict::TruncatedToTime(limit));
                        }
                        AnnotationKind::BrokenTime => {
                            tell!(self, "Invalid timestamp annotation");
                            return Err(Stop);
                        }
                        _ => {}
                    }
                }
                Err(error) => {
                    let error = system_text(&error);
                    tell!(self, "Failed to read from AOF ", name, ": ", error, ", aborting...");
                    return Err(Stop);
                }
            }
        };
        self.line = end.line;
        self.judge(name, path, &end, is_last)
    }

    fn cut_to_time(&mut self, path: &Path, time: i64, at: u64, is_last: bool) -> Result<(), Stop> {
        let (name, time) = (path.as_os_str().as_bytes(), time.to_string());
        if at == 0 {
            tell!(self, "AOF ", name, " has nothing before timestamp ", time, ", aborting...");
            return Err(Stop);
        }
        if !is_last {
            let at = at.to_string();
            tell!(
                self,
                "Failed to truncate AOF ",
                name,
                " to timestamp ",
                time,
                " to offset ",
                at,
                " because it is not the last file.\nIf you insist, please delete all files after this file according to the \
                 manifest file and delete the corresponding records in manifest file manually. Then re-run redis-check-aof."
            );
            return Err(Stop);
        }
        self.cut(path, at).map_err(|error| {
            tell!(self, "Failed to truncate AOF ", name, " to timestamp ", time, ": ", error);
            Stop
        })
    }

    fn cut(&self, path: &Path, at: u64) -> Result<(), String> {
        let cut = self.around.disk.open_append(path).and_then(|file| {
            file.set_len(at)?;
            file.sync_data()
        });
        cut.map_err(|error| system_text(&error))
    }

    fn judge(
        &mut self,
        name: &[u8],
        path: &Path,
        end: &End,
        is_last: bool,
    ) -> Result<Verdict, Stop> {
        match &end.tail {
            Tail::Clean => {}
            Tail::OpenTransaction => {
                self.tell_fault(end.size, "Reached EOF before reading EXEC for MULTI")
            }
            Tail::Cut(fault) | Tail::Nuls(fault) | Tail::Damage(fault) => match &fault.kind {
                FaultKind::NoRequest(_) => tell!(self, "AOF ", name, " format error"),
                // Said by the numbers below.
                FaultKind::NoLine => {}
                FaultKind::NestedMulti | FaultKind::ExecWithoutMulti => {
                    let text = format!("{} in AOF {}", fault.kind, path.display());
                    self.tell_fault(fault.field_at, &text);
                }
                kind => self.tell_fault(fault.field_at, &kind.to_string()),
            },
        }
        let excess = end.size - end.valid_up_to;
        if excess == 0
            && let Some(time) = self.options.truncate_to
        {
            let time = time.to_string();
            tell!(self, "Truncate nothing in AOF ", name, " to timestamp ", time);
            return Ok(Verdict::Valid);
        }
        let End { valid_up_to, size, line, .. } = end;
        let numbers =
            format!("size={size}, ok_up_to={valid_up_to}, ok_up_to_line={line}, diff={excess}");
        tell!(self, "AOF analyzed: filename=", name, ", ", numbers);
        if excess == 0 {
            return Ok(Verdict::Valid);
        }
        if !self.options.fix {
            tell!(self, "AOF ", name, " is not valid. Use the --fix option to try fixing it.");
            return Err(Stop);
        }
        if !is_last {
            tell!(self, "Failed to truncate AOF ", name, " because it is not the last file");
            return Err(Stop);
        }
        let numbers = format!("from {size} bytes, with {excess} bytes, to {valid_up_to} bytes");
        tell!(self, "This will shrink the AOF ", name, " ", numbers);
        let _ =
            self.around.out.write_all(b"Continue? [y/N]: ").and_then(|()| self.around.out.flush());
        if !(self.around.answer)() {
            tell!(self, "Aborting...");
            return Err(Stop);
        }
        self.cut(path, *valid_up_to).map_err(|error| {
            tell!(self, "Failed to truncate AOF ", name, ": ", error);
            Stop
        })?;
        Ok(Verdict::Truncated)
    }

    fn tell_fault(&mut self, at: u64, text: &str) {
        let place = format!("0x{at:>16x}: ");
        tell!(self, place, text);
    }
}

#[cfg(test)]
mod tests;
