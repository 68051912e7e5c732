//! The manifest: the list of the append-only file's files, in order.
//!
//! ```text
//! file appendonly.aof.2.base.rdb seq 2 type b      at most one base, first
//! file appendonly.aof.1.incr.aof seq 1 type h      history: replaced by the base, to be removed
//! file appendonly.aof.2.incr.aof seq 2 type i      increments with ascending numbers; the last one is being written
//! ```
//!
//! Parses and writes the text; each change is a function from one [`Manifest`] to the next. Knows
//! nothing of the disk: `folder` makes a state durable. Format and error texts are those of Redis
//! 7.0.15 (`aof.c`), so that either server can use the other's folder.

use std::fmt;

use crate::config::{parse_line, quoted};
use crate::resp::number;

/// The longest line, with its end. Unit: bytes.
const LINE_BYTES_MAX: usize = 1024;
/// The highest number accepted, so that counting further cannot overflow.
pub const SEQ_MAX: i64 = i64::MAX / 2;
/// The most bytes read of a manifest.
pub const MANIFEST_BYTES_MAX: u64 = 4 << 20;

/// One file of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AofFile {
    /// Its name in the folder, never a path.
    pub name: Vec<u8>,
    /// Counted from 1, bases and increments each on their own.
    pub seq: i64,
}

/// The format of a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseFormat {
    Rdb,
    /// Commands: `aof-use-rdb-preamble no`.
    Aof,
}

/// One state of the folder. See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    base: Option<AofFile>,
    history: Vec<AofFile>,
    /// With ascending numbers.
    increments: Vec<AofFile>,
    /// The highest number of a base so far.
    base_seq: i64,
    /// The highest number of an increment so far.
    increment_seq: i64,
}

/// Why a manifest is refused. Displays as Redis's text, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// The faulty line, if there is one: its number from 1, and its text.
    pub line: Option<(usize, Vec<u8>)>,
    pub reason: &'static str,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((number, text)) = &self.line {
            let text = String::from_utf8_lossy(text);
            write!(f, "Reading the manifest file, at line {number} >>> '{text}' ")?;
        }
        f.write_str(self.reason)
    }
}

impl std::error::Error for ManifestError {}

impl Manifest {
    /// The base, if there is one.
    pub fn base(&self) -> Option<&AofFile> {
        self.base.as_ref()
    }

    /// Files replaced by a rewrite, still to be removed.
    pub fn history(&self) -> &[AofFile] {
        &self.history
    }

    /// The increments; the last one is being written.
    pub fn increments(&self) -> &[AofFile] {
        &self.increments
    }

    /// The files to load, in order.
    pub fn files(&self) -> impl Iterator<Item = &AofFile> {
        self.base.iter().chain(&self.increments)
    }

    /// Whether the base, of `bytes` bytes, cannot be whole: an RDB image is never empty. A base of
    /// commands is, if there was no data.
    pub fn is_base_emptied(&self, bytes: u64) -> bool {
        bytes == 0 && self.base().is_some_and(|base| base.name.ends_with(b".base.rdb"))
    }

    /// Whether the manifest has neither base nor increment.
    pub fn is_empty(&self) -> bool {
        self.base.is_none() && self.increments.is_empty()
    }

    /// Parses a manifest.
    pub fn parse(text: &[u8]) -> Result<Self, ManifestError> {
        let fault = |reason| ManifestError { line: None, reason };
        if text.is_empty() {
            return Err(fault("Found an empty AOF manifest"));
        }
        let mut manifest = Manifest::default();
        for (index, line) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
            if line.starts_with(b"#") {
                continue;
            }
            // In C a NUL ends the string, so that Redis does not find the line's end.
            if line.len() > LINE_BYTES_MAX || !line.ends_with(b"\n") || line.contains(&0) {
                return Err(fault("The AOF manifest file contains too long line"));
            }
            let trimmed = line.trim_ascii();
            manifest.read_line(trimmed).map_err(|reason| ManifestError {
                line: (!trimmed.is_empty()).then(|| (index + 1, trimmed.to_vec())),
                reason,
            })?;
        }
        manifest.skip_numbers_of_history();
        Ok(manifest)
    }

    /// Makes sure that the numbers of files in the history are not used again: removing the history
    /// would remove new files.
    fn skip_numbers_of_history(&mut self) {
        let has = |file: &AofFile, part: &[u8]| file.name.windows(part.len()).any(|at| at == part);
        for file in &self.history {
            if has(file, b".incr.") {
                self.increment_seq = self.increment_seq.max(file.seq);
            } else if has(file, b".base.") {
                self.base_seq = self.base_seq.max(file.seq);
            }
        }
    }

    fn read_line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        const INVALID: &str = "Invalid AOF manifest file format";
        let Ok(Some(words)) = parse_line(line) else {
            return Err(INVALID);
        };
        // A later version may add further pairs to the three.
        if words.len() < 6 || words.len() % 2 != 0 {
            return Err(INVALID);
        }
        let (mut name, mut seq, mut kind) = (None, 0, None);
        for pair in words.chunks_exact(2) {
            if pair[0].eq_ignore_ascii_case(b"file") {
                if !is_file_name(&pair[1]) {
                    return Err("File can't be a path, just a filename");
                }
                name = Some(pair[1].clone());
            } else if pair[0].eq_ignore_ascii_case(b"seq") {
                seq = number::leading_i64(&pair[1]);
            } else if pair[0].eq_ignore_ascii_case(b"type") {
                kind = pair[1].first().copied();
            }
        }
        let (Some(name), Some(kind)) = (name, kind) else {
            return Err(INVALID);
        };
        if seq == 0 || seq > SEQ_MAX {
            return Err(INVALID);
        }
        let file = AofFile { name, seq };
        match kind {
            b'b' if self.base.is_some() => return Err("Found duplicate base file information"),
            b'b' => {
                self.base_seq = seq;
                self.base = Some(file);
            }
            b'h' => self.history.push(file),
            b'i' if seq <= self.increment_seq => {
                return Err("Found a non-monotonic sequence number");
            }
            b'i' => {
                self.increment_seq = seq;
                self.increments.push(file);
            }
            _ => return Err("Unknown AOF file type"),
        }
        Ok(())
    }

    /// The text of this manifest.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let bases = self.base.iter().map(|file| (file, 'b'));
        let history = self.history.iter().map(|file| (file, 'h'));
        let increments = self.increments.iter().map(|file| (file, 'i'));
        for (file, kind) in bases.chain(history).chain(increments) {
            text.extend_from_slice(b"file ");
            if needs_quotes(&file.name) {
                text.extend(quoted(&file.name));
            } else {
                text.extend_from_slice(&file.name);
            }
            text.extend_from_slice(format!(" seq {} type {kind}\n", file.seq).as_bytes());
        }
        text
    }

    /// The state with the next increment.
    #[must_use]
    pub fn with_next_increment(&self, filename: &[u8]) -> Self {
        let seq = self.increment_seq.max(0).saturating_add(1);
        let name = [filename, format!(".{seq}.incr.aof").as_bytes()].concat();
        self.with_increment(AofFile { name, seq })
    }

    /// The state with a further increment, whose number is higher than those so far.
    #[must_use]
    pub fn with_increment(&self, file: AofFile) -> Self {
        let mut next = self.clone();
        next.increment_seq = file.seq;
        next.increments.push(file);
        next
    }

    /// Leaves out the number of the next increment.
    pub fn skip_increment(&mut self) {
        self.increment_seq = self.increment_seq.max(0).saturating_add(1);
    }

    /// Leaves out the number of the next base.
    pub fn skip_base(&mut self) {
        self.base_seq = self.base_seq.max(0).saturating_add(1);
    }

    /// The state with a new base; the previous one becomes history.
    #[must_use]
    pub fn with_next_base(&self, filename: &[u8], format: BaseFormat) -> Self {
        let mut next = self.clone();
        next.history.splice(0..0, next.base.take());
        next.base_seq = next.base_seq.max(0).saturating_add(1);
        let format = match format {
            BaseFormat::Rdb => "rdb",
            BaseFormat::Aof => "aof",
        };
        let name = [filename, format!(".{}.base.{format}", next.base_seq).as_bytes()].concat();
        next.base = Some(AofFile { name, seq: next.base_seq });
        next
    }

    /// The state after a rewrite whose snapshot was taken when the increment numbered `first_kept`
    /// began: it has a new base, and the increments before that one become history.
    #[must_use]
    pub fn with_rewrite_finished(
        &self,
        filename: &[u8],
        format: BaseFormat,
        first_kept: i64,
    ) -> Self {
        let mut next = self.with_next_base(filename, format);
        let kept = next.increments.partition_point(|file| file.seq < first_kept);
        for file in next.increments.drain(..kept).rev() {
            next.history.insert(0, file);
        }
        next
    }

    /// The state with an old single file, moved into the folder under its own name, as the base.
    #[must_use]
    pub fn of_single_file(filename: &[u8]) -> Self {
        let base = AofFile { name: filename.to_vec(), seq: 1 };
        Manifest { base: Some(base), base_seq: 1, ..Manifest::default() }
    }

    /// The state without the history.
    #[must_use]
    pub fn without_history(&self) -> Self {
        Manifest { history: Vec::new(), ..self.clone() }
    }
}

/// Whether a name is a plain file name, not a path out of the folder.
fn is_file_name(name: &[u8]) -> bool {
    let is_special = matches!(name, b"" | b"." | b"..");
    !is_special && !name.iter().any(|byte| matches!(byte, b'/' | b'\\' | 0))
}

fn needs_quotes(name: &[u8]) -> bool {
    name.iter().any(|byte| !byte.is_ascii_graphic() || matches!(byte, b'\\' | b'"' | b'\''))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(text: &[u8]) -> &'static str {
        Manifest::parse(text).unwrap_err().reason
    }

    #[test]
    fn a_manifest_of_redis_is_read_and_written_byte_for_byte() {
        let text = b"file appendonly.aof.2.base.rdb seq 2 type b\n\
            file appendonly.aof.1.incr.aof seq 1 type h\n\
            file appendonly.aof.2.incr.aof seq 2 type h\n\
            file appendonly.aof.4.incr.aof seq 4 type i\n\
            file appendonly.aof.5.incr.aof seq 5 type i\n";
        let manifest = Manifest::parse(text).unwrap();
        assert_eq!(manifest.base().unwrap().seq, 2);
        assert_eq!(manifest.history().len(), 2);
        let names: Vec<_> = manifest.files().map(|file| &file.name[14..]).collect();
        assert_eq!(names, [b".2.base.rdb".as_slice(), b".4.incr.aof", b".5.incr.aof"]);
        assert_eq!(manifest.text(), text);
    }

    #[test]
    fn names_with_special_bytes_are_quoted() {
        let manifest = Manifest::default().with_next_increment(b"a \"b\xff\n");
        let text = b"file \"a \\\"b\\xff\\n.1.incr.aof\" seq 1 type i\n";
        assert_eq!(manifest.text(), text);
        assert_eq!(Manifest::parse(text).unwrap(), manifest);
    }

    #[test]
    fn comments_additional_pairs_and_any_case_and_order_are_accepted() {
        let text = b"#comment\nTYPE incr Seq 3x new thing FILE f\r\n# the end";
        let manifest = Manifest::parse(text).unwrap();
        assert_eq!(manifest.increments(), [AofFile { name: b"f".to_vec(), seq: 3 }]);
    }

    #[test]
    fn faults_have_the_texts_of_redis() {
        const INVALID: &str = "Invalid AOF manifest file format";
        assert_eq!(refused(b""), "Found an empty AOF manifest");
        assert_eq!(refused(b"\n"), INVALID);
        assert_eq!(refused(b"file a seq 1 type i more\n"), INVALID);
        assert_eq!(refused(b"file a seq 0 type i\n"), INVALID);
        assert_eq!(refused(b"file a seq x type i\n"), INVALID);
        assert_eq!(refused(b"file a seq 1 type \"\"\n"), INVALID);
        assert_eq!(refused(b"file \"a seq 1 type i\n"), INVALID);
        assert_eq!(refused(b"file a seq 99999999999999999999 type i\n"), INVALID);
        let path = "File can't be a path, just a filename";
        for name in ["/a", "a/b", "../a", "a\\\\b", "..", ".", "\\x00"] {
            assert_eq!(refused(format!("file \"{name}\" seq 1 type i\n").as_bytes()), path);
        }
        assert_eq!(refused(b"file a seq 1 type x\n"), "Unknown AOF file type");
        let bases = b"file a seq 1 type b\nfile b seq 2 type b\n";
        assert_eq!(refused(bases), "Found duplicate base file information");
        let falling = b"file a seq 2 type i\nfile b seq 2 type i\n";
        assert_eq!(refused(falling), "Found a non-monotonic sequence number");
        assert_eq!(refused(b"file a seq -1 type i\n"), "Found a non-monotonic sequence number");
        let too_long = "The AOF manifest file contains too long line";
        assert_eq!(refused(b"file a seq 1 type i"), too_long);
        let name = "a".repeat(1100);
        assert_eq!(refused(format!("file {name} seq 1 type i\n").as_bytes()), too_long);
        let error = Manifest::parse(b"# c\nfile a seq 1 type x\n").unwrap_err();
        let expected =
            "Reading the manifest file, at line 2 >>> 'file a seq 1 type x' Unknown AOF file type";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn files_replaced_by_a_rewrite_become_history() {
        let first = Manifest::default().with_next_base(b"a", BaseFormat::Rdb);
        let open = first.with_next_increment(b"a");
        // A rewrite that failed has left an increment.
        let failed = open.with_next_increment(b"a");
        let begun = failed.with_next_increment(b"a");
        let done = begun.with_rewrite_finished(b"a", BaseFormat::Aof, 3);
        let text = b"file a.2.base.aof seq 2 type b\n\
            file a.1.incr.aof seq 1 type h\n\
            file a.2.incr.aof seq 2 type h\n\
            file a.1.base.rdb seq 1 type h\n\
            file a.3.incr.aof seq 3 type i\n";
        assert_eq!(String::from_utf8(done.text()), String::from_utf8(text.to_vec()));
        let clean = done.without_history();
        let text = b"file a.2.base.aof seq 2 type b\nfile a.3.incr.aof seq 3 type i\n";
        assert_eq!(clean.text(), text);
        assert_eq!(clean.with_next_increment(b"a").increments().last().unwrap().seq, 4);
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_again(
            name in proptest::collection::vec(1u8.., 1..40),
            steps in proptest::collection::vec(0..4, 0..12),
        ) {
            prop_assume!(is_file_name(&name));
            let mut manifest = Manifest::default();
            for step in steps {
                manifest = match step {
                    0 => manifest.with_next_increment(&name),
                    1 => manifest.with_next_base(&name, BaseFormat::Rdb),
                    2 => manifest.with_rewrite_finished(
                        &name, BaseFormat::Aof, manifest.increment_seq),
                    _ => manifest.without_history(),
                };
            }
            let text = manifest.text();
            prop_assume!(!text.is_empty());
            let read = Manifest::parse(&text).unwrap();
            prop_assert_eq!(read.text(), text);
            prop_assert_eq!(read.base(), manifest.base());
            prop_assert_eq!(read.increments(), manifest.increments());
        }

        #[test]
        fn no_text_makes_the_parser_panic(text: Vec<u8>) {
            let _ = Manifest::parse(&text);
        }
    }
}
