//! The check tool for append-only files: `--check-aof`, and the name `redis-check-aof`.
//!
//! A file or manifest is read by the server's own parsers. The output and exit codes are those of
//! `redis-check-aof` 7.0.15, on which scripts rely. With `--fix` the last file is truncated to its
//! valid part, after asking; with `--truncate-to-timestamp` it is truncated before the first
//! annotation of a later time, without asking. Nothing else is ever changed.
//!
//! Two differences from Redis's tool, as loading works here: a file counts as the last one if all
//! after it are empty, and a request without arguments is a fault.

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

/// The tool's surroundings: disk, output and input.
pub struct Environment<'a> {
    pub disk: &'a dyn Disk,
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Reads an answer: whether it begins with `y` or `Y`.
    pub answer: &'a mut dyn FnMut() -> bool,
    /// Checks the RDB image at the start of a file, given its name, source and size. Reports on the
    /// output as `redis-check-rdb` does. Returns the image's bytes; None if it is damaged.
    pub rdb: &'a mut RdbCheck<'a>,
}

/// See [`Environment::rdb`].
pub type RdbCheck<'a> =
    dyn FnMut(&[u8], &mut dyn DiskReader, u64, &mut dyn Write) -> Option<u64> + 'a;

/// The options of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckAof {
    pub path: PathBuf,
    pub fix: bool,
    /// Seconds since 1970. 0 counts as None, as in Redis.
    pub truncate_to: Option<i64>,
}

impl CheckAof {
    /// Parses the arguments after the program's name: `[--fix | --truncate-to-timestamp <seconds>]
    /// <file>`. Errors: a text for standard output; the exit code is 1 then.
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

    /// Checks, and truncates if requested. Returns the exit code: 0, or 1 for any fault.
    pub fn run(&self, env: Environment<'_>) -> i32 {
        let mut checker = Checker { options: self, env, line: 1 };
        let result = match checker.is_manifest() {
            Ok(true) => checker.manifest(),
            Ok(false) => checker.single_file(),
            Err(failed) => Err(failed),
        };
        // A failure of the output cannot be reported.
        let _ = checker.env.out.flush();
        if result.is_ok() { 0 } else { 1 }
    }
}

/// Checking has failed; the reason was printed.
struct Failed;

/// The result of checking a file.
enum Verdict {
    Valid,
    Empty,
    Truncated,
    TruncatedToTime(i64),
}

struct Checker<'o, 'a> {
    options: &'o CheckAof,
    env: Environment<'a>,
    /// The line reached, counted through all files.
    line: u64,
}

/// Prints a line made of texts and bytes.
macro_rules! print_line {
    ($self:expr, $($part:expr),+) => {{
        // A failure of the output cannot be reported.
        $(let _ = $self.env.out.write_all($part.as_ref());)+
        let _ = $self.env.out.write_all(b"\n");
    }};
}

impl Checker<'_, '_> {
    /// Whether the file's first line, comments aside, begins with `file`.
    fn is_manifest(&mut self) -> Result<bool, Failed> {
        let path = &self.options.path;
        let read = || -> io::Result<Vec<u8>> {
            let mut text = Vec::new();
            self.env.disk.open_read(path)?.take(MANIFEST_BYTES_MAX).read_to_end(&mut text)?;
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
                print_line!(self, "Cannot open file ", name, ": ", system_text(&error));
                Err(Failed)
            }
        }
    }

    fn single_file(&mut self) -> Result<(), Failed> {
        print_line!(self, "Start checking Old-Style AOF");
        let path = self.options.path.clone();
        let name = path.as_os_str().as_bytes();
        let verdict = self.file(name, &path, true)?;
        self.print_verdict("", name, &verdict);
        Ok(())
    }

    fn manifest(&mut self) -> Result<(), Failed> {
        print_line!(self, "Start checking Multi Part AOF");
        let path = &self.options.path;
        let text = crate::sys::disk::read_whole(self.env.disk, path, MANIFEST_BYTES_MAX);
        let manifest = match text.map_err(|error| system_text(&error)) {
            Ok(text) => Manifest::parse(&text).map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        let manifest = manifest.map_err(|error| {
            print_line!(self, "\n*** FATAL AOF MANIFEST FILE ERROR ***\n", error);
            Failed
        })?;
        // As `dirname` does.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let in_folder = |name: &[u8]| folder.join(OsStr::from_bytes(name));
        let sizes = manifest.files().map(|file| self.env.disk.size(&in_folder(&file.name)));
        let last = sizes.collect::<Vec<_>>().iter().rposition(|size| !matches!(size, Ok(0)));
        let mut index = 0;
        let mut is_last = || {
            index += 1;
            last.is_none_or(|last| index > last)
        };
        if let Some(base) = manifest.base() {
            let path = in_folder(&base.name);
            let is_rdb = self.open(&path)?.2;
            let format = if is_rdb { "RDB" } else { "RESP" };
            print_line!(self, "Start to check BASE AOF (", format, " format).");
            let verdict = self.file(&base.name, &path, is_last())?;
            if matches!(verdict, Verdict::Empty) && manifest.is_base_emptied(0) {
                print_line!(self, "BASE AOF ", base.name, " is empty, so its data is lost");
                return Err(Failed);
            }
            self.print_verdict("BASE ", &base.name, &verdict);
        }
        if !manifest.increments().is_empty() {
            print_line!(self, "Start to check INCR files.");
            for increment in manifest.increments() {
                let path = in_folder(&increment.name);
                let verdict = self.file(&increment.name, &path, is_last())?;
                self.print_verdict("INCR ", &increment.name, &verdict);
            }
        }
        print_line!(self, "All AOF files and manifest are valid");
        Ok(())
    }

    fn print_verdict(&mut self, kind: &str, name: &[u8], verdict: &Verdict) {
        match verdict {
            Verdict::Valid => print_line!(self, kind, "AOF ", name, " is valid"),
            Verdict::Empty => print_line!(self, kind, "AOF ", name, " is empty"),
            Verdict::Truncated => print_line!(self, "Successfully truncated AOF ", name),
            Verdict::TruncatedToTime(time) => {
                let time = time.to_string();
                print_line!(self, "Successfully truncated AOF ", name, " to timestamp ", time);
            }
        }
    }

    /// Opens a file. Returns it with its size, and whether it begins with an RDB image.
    fn open(&mut self, path: &Path) -> Result<(Box<dyn DiskReader>, u64, bool), Failed> {
        let open = || {
            let mut source = self.env.disk.open_read(path)?;
            let size = self.env.disk.size(path)?;
            let is_rdb = is_rdb(&mut *source)?;
            Ok((source, size, is_rdb))
        };
        open().map_err(|error: io::Error| {
            let (path, error) = (path.as_os_str().as_bytes(), system_text(&error));
            print_line!(self, "Cannot open file ", path, ": ", error, ", aborting...");
            Failed
        })
    }

    fn file(&mut self, name: &[u8], path: &Path, is_last: bool) -> Result<Verdict, Failed> {
        let (mut source, size, is_rdb) = self.open(path)?;
        if size == 0 {
            return Ok(Verdict::Empty);
        }
        let mut offset = 0;
        if is_rdb {
            let checked = (self.env.rdb)(name, &mut *source, size, self.env.out);
            let image = checked.filter(|bytes| *bytes <= size);
            let image = image.filter(|bytes| source.seek(SeekFrom::Start(*bytes)).is_ok());
            let Some(image_bytes) = image else {
                print_line!(self, "RDB preamble of AOF file is not sane, aborting.");
                return Err(Failed);
            };
            offset = image_bytes;
            print_line!(self, "RDB preamble is OK, proceeding with AOF tail...");
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
                            print_line!(self, "Invalid timestamp annotation");
                            return Err(Failed);
                        }
                        _ => {}
                    }
                }
                Err(error) => {
                    let error = system_text(&error);
                    print_line!(
                        self,
                        "Failed to read from AOF ",
                        name,
                        ": ",
                        error,
                        ", aborting..."
                    );
                    return Err(Failed);
                }
            }
        };
        self.line = end.line;
        self.check_end(name, path, &end, is_last)
    }

    /// Truncates a file at `at`, before an annotation of a time later than `time`.
    fn cut_to_time(
        &mut self,
        path: &Path,
        time: i64,
        at: u64,
        is_last: bool,
    ) -> Result<(), Failed> {
        let (name, time) = (path.as_os_str().as_bytes(), time.to_string());
        if at == 0 {
            print_line!(
                self,
                "AOF ",
                name,
                " has nothing before timestamp ",
                time,
                ", aborting..."
            );
            return Err(Failed);
        }
        if !is_last {
            let at = at.to_string();
            print_line!(
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
            return Err(Failed);
        }
        self.cut(path, at).map_err(|error| {
            print_line!(self, "Failed to truncate AOF ", name, " to timestamp ", time, ": ", error);
            Failed
        })
    }

    fn cut(&self, path: &Path, at: u64) -> Result<(), String> {
        let cut = self.env.disk.open_append(path).and_then(|file| {
            file.set_len(at)?;
            file.sync_data()
        });
        cut.map_err(|error| system_text(&error))
    }

    /// Reports how a file ends, and truncates it if requested.
    fn check_end(
        &mut self,
        name: &[u8],
        path: &Path,
        end: &End,
        is_last: bool,
    ) -> Result<Verdict, Failed> {
        match &end.tail {
            Tail::Clean => {}
            Tail::OpenTransaction => {
                self.print_fault(end.size, "Reached EOF before reading EXEC for MULTI")
            }
            Tail::Cut(fault) | Tail::Nuls(fault) | Tail::Damage(fault) => match &fault.kind {
                FaultKind::NotARequest(_) => print_line!(self, "AOF ", name, " format error"),
                // The numbers below show it.
                FaultKind::MissingLine => {}
                FaultKind::NestedMulti | FaultKind::ExecWithoutMulti => {
                    let text = format!("{} in AOF {}", fault.kind, path.display());
                    self.print_fault(fault.field_at, &text);
                }
                kind => self.print_fault(fault.field_at, &kind.to_string()),
            },
        }
        let excess = end.size - end.valid_up_to;
        if excess == 0
            && let Some(time) = self.options.truncate_to
        {
            let time = time.to_string();
            print_line!(self, "Truncate nothing in AOF ", name, " to timestamp ", time);
            return Ok(Verdict::Valid);
        }
        let End { valid_up_to, size, line, .. } = end;
        let numbers =
            format!("size={size}, ok_up_to={valid_up_to}, ok_up_to_line={line}, diff={excess}");
        print_line!(self, "AOF analyzed: filename=", name, ", ", numbers);
        if excess == 0 {
            return Ok(Verdict::Valid);
        }
        if !self.options.fix {
            print_line!(
                self,
                "AOF ",
                name,
                " is not valid. Use the --fix option to try fixing it."
            );
            return Err(Failed);
        }
        if !is_last {
            print_line!(self, "Failed to truncate AOF ", name, " because it is not the last file");
            return Err(Failed);
        }
        let numbers = format!("from {size} bytes, with {excess} bytes, to {valid_up_to} bytes");
        print_line!(self, "This will shrink the AOF ", name, " ", numbers);
        let _ = self.env.out.write_all(b"Continue? [y/N]: ").and_then(|()| self.env.out.flush());
        if !(self.env.answer)() {
            print_line!(self, "Aborting...");
            return Err(Failed);
        }
        self.cut(path, *valid_up_to).map_err(|error| {
            print_line!(self, "Failed to truncate AOF ", name, ": ", error);
            Failed
        })?;
        Ok(Verdict::Truncated)
    }

    fn print_fault(&mut self, at: u64, text: &str) {
        let place = format!("0x{at:>16x}: ");
        print_line!(self, place, text);
    }
}

#[cfg(test)]
mod tests;
