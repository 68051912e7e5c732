//! How each kind of value is read and written.
//!
//! Arguments (bytes of the file, the command line or CONFIG SET) come in, a typed value goes out,
//! or a [`Reason`] why not; and back: the text that CONFIG GET replies, the lines that CONFIG
//! REWRITE writes, a sentence for the example file. A kind knows neither names nor other values.
//! The wording of errors and the odd corners (an empty memory value is 0, `save` appends in a file)
//! are those of Redis 7.0.15.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::file::quoted;
use super::value::*;

/// Why a value or a directive was refused. Displays as Redis' text.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum Reason {
    #[error("argument must be 'yes' or 'no'")]
    NotYesNo,
    #[error("argument couldn't be parsed into an integer")]
    NotInteger,
    #[error("argument couldn't be parsed as an octal number")]
    NotOctal,
    #[error("argument must be a memory value")]
    NotMemory,
    #[error("argument must be a memory or percent value")]
    NotMemoryOrPercent,
    #[error("argument must be between {min} and {max} inclusive")]
    OutOfRange { min: i128, max: i128 },
    #[error("argument must be between {min:o} and {max:o} inclusive")]
    OutOfOctalRange { min: u32, max: u32 },
    #[error("percentage argument must be less or equal to 100")]
    PercentTooHigh,
    #[error("argument(s) must be one of the following: {0}")]
    NotOneOf(String),
    #[error("wrong number of arguments")]
    WrongNumberOfArguments,
    #[error("Invalid save parameters")]
    SavePoints,
    #[error("Wrong number of arguments in buffer limit configuration.")]
    BufferLimitCount,
    #[error("Invalid client class specified in buffer limit configuration.")]
    BufferLimitClass,
    #[error("Error in hard, soft or soft_seconds setting in buffer limit configuration.")]
    BufferLimitValue,
    #[error("Invalid oom-score-adj-values, elements must be between -2000 and 2000.")]
    OomScore,
    #[error("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")]
    EventClass,
    #[error("Too many bind addresses specified.")]
    BindCount,
    #[error("Invalid master port")]
    PrimaryPort,
    #[error("Invalid latency-tracking-info-percentiles parameters")]
    Percentile,
    #[error("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]")]
    PercentileRange,
    #[error("shutdown options SAVE and NOSAVE can't be used simultaneously")]
    SaveAndNosave,
    #[error("{directive} can't be empty")]
    EmptyName { directive: &'static str },
    #[error("{directive} can't be a path, just a {what}")]
    NotBaseName { directive: &'static str, what: &'static str },
    #[error("Hostnames must be less than 256 characters")]
    HostnameLength,
    #[error("Hostnames may only contain alphanumeric characters, hyphens or dots")]
    HostnameCharacter,
    #[error("template format is invalid or contains unknown variables")]
    TitleTemplate,
    #[error("a version consists of letters, digits, dots, hyphens and plus signs")]
    Version,
    #[error("duplicate parameter")]
    Duplicate,
    #[error("can't set immutable config")]
    Immutable,
    #[error("can't set protected config")]
    Protected,
    #[error("Unbalanced quotes in configuration line")]
    UnbalancedQuotes,
    #[error("Bad directive or wrong number of arguments")]
    BadDirective,
    #[error("Module config specified without value")]
    ModuleConfigWithoutValue,
    #[error("Modules are not supported by this server")]
    NoModules,
    #[error("Sentinel mode is not supported by this server")]
    NoSentinel,
    #[error("sentinel directive while not in sentinel mode")]
    SentinelDirective,
    #[error("replicaof directive not allowed in cluster mode")]
    ReplicaOfInCluster,
    #[error("include is nested too deeply")]
    IncludeDepth,
    #[error("include is not possible here")]
    IncludeForbidden,
    #[error("Can't open the log file: {0}")]
    LogFile(String),
    /// The outside world refused (a directory that cannot be entered), or the server found the
    /// fault.
    #[error("{0}")]
    Other(String),
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The file or the command line: several `save` lines add up.
    File,
    /// CONFIG SET.
    Set,
}

/// One line that CONFIG REWRITE may write.
pub(super) struct RewriteLine {
    pub text: Vec<u8>,
    /// Written even if the old file has no line of this parameter: the value is not the default.
    pub force: bool,
}

/// How values of type `T` are read and written.
pub(super) trait Kind<T: Clone + PartialEq> {
    /// Whether the value is a list of arguments; else it is exactly one.
    const MULTI: bool = false;

    fn parse(&self, args: &[&[u8]], old: &T, origin: Origin) -> Result<T, Reason>;

    /// As CONFIG GET tells it.
    fn format(&self, value: &T) -> Vec<u8>;

    /// As CONFIG REWRITE writes it. Without any line, all lines of this parameter leave the file.
    fn lines(&self, name: &str, value: &T, default: &T) -> Vec<RewriteLine> {
        vec![line(name, &self.format(value), value != default)]
    }

    /// What may stand there, for the example file.
    fn describe(&self) -> String;

    /// The default as lines of the example file.
    fn example(&self, name: &str, default: &T) -> Vec<Vec<u8>> {
        let lines = self.lines(name, default, default);
        if lines.is_empty() {
            return vec![line(name, b"\"\"", false).text];
        }
        lines.into_iter().map(|line| line.text).collect()
    }
}

fn line(name: &str, value: &[u8], force: bool) -> RewriteLine {
    let mut text = name.as_bytes().to_vec();
    text.push(b' ');
    text.extend_from_slice(value);
    RewriteLine { text, force }
}

/// The one argument of a kind that is not `MULTI`.
fn only<'a>(args: &[&'a [u8]]) -> Result<&'a [u8], Reason> {
    match args {
        [arg] => Ok(arg),
        _ => Err(Reason::WrongNumberOfArguments),
    }
}

/// `yes` or `no`.
pub(super) struct YesNo;

impl Kind<bool> for YesNo {
    fn parse(&self, args: &[&[u8]], _: &bool, _: Origin) -> Result<bool, Reason> {
        match only(args)? {
            arg if arg.eq_ignore_ascii_case(b"yes") => Ok(true),
            arg if arg.eq_ignore_ascii_case(b"no") => Ok(false),
            _ => Err(Reason::NotYesNo),
        }
    }

    fn format(&self, value: &bool) -> Vec<u8> {
        if *value { b"yes".to_vec() } else { b"no".to_vec() }
    }

    fn describe(&self) -> String {
        "yes or no".into()
    }
}

/// A feature that does not exist here: asking for it is an error, which says why, rather than a silent lie. Off is the type's
/// default.
pub(super) struct Absent<K>(pub K, pub &'static str);

pub(super) const NO_DEFRAG: &str = "Active defragmentation cannot be enabled: it requires a Redis server compiled with a \
                                    modified Jemalloc like the one shipped by default with the Redis source distribution";
pub(super) const NO_MPTCP: &str = "MPTCP is not supported on this platform";
pub(super) const NO_RDMA: &str = "RDMA is not supported by this server";

impl<T: Clone + Default + PartialEq, K: Kind<T>> Kind<T> for Absent<K> {
    fn parse(&self, args: &[&[u8]], old: &T, origin: Origin) -> Result<T, Reason> {
        let value = self.0.parse(args, old, origin)?;
        if value == T::default() { Ok(value) } else { Err(Reason::Other(self.1.to_owned())) }
    }

    fn format(&self, value: &T) -> Vec<u8> {
        self.0.format(value)
    }

    fn describe(&self) -> String {
        format!("only {}", String::from_utf8_lossy(&self.0.format(&T::default())))
    }
}

/// A decimal integer within bounds, both inclusive.
pub(super) struct Int {
    min: i128,
    max: i128,
}

pub(super) const fn int(min: i128, max: i128) -> Int {
    Int { min, max }
}

impl Int {
    fn check<T: TryFrom<i128>>(&self, number: i128) -> Result<T, Reason> {
        let out_of_range = Reason::OutOfRange { min: self.min, max: self.max };
        if !(self.min..=self.max).contains(&number) {
            return Err(out_of_range);
        }
        T::try_from(number).map_err(|_| out_of_range)
    }
}

impl<T: Copy + PartialEq + ToString + TryFrom<i128>> Kind<T> for Int {
    fn parse(&self, args: &[&[u8]], _: &T, _: Origin) -> Result<T, Reason> {
        let number = parse_integer(only(args)?).ok_or(Reason::NotInteger)?;
        self.check(i128::from(number))
    }

    fn format(&self, value: &T) -> Vec<u8> {
        value.to_string().into_bytes()
    }

    fn describe(&self) -> String {
        if self.max >= i128::from(i32::MAX) {
            format!("integer, at least {}", self.min)
        } else {
            format!("integer, {} to {}", self.min, self.max)
        }
    }
}

/// An integer that is brought within `min..=max` rather than refused.
pub(super) struct Clamped {
    pub min: u32,
    pub max: u32,
}

impl Kind<u32> for Clamped {
    fn parse(&self, args: &[&[u8]], old: &u32, origin: Origin) -> Result<u32, Reason> {
        let number: u32 = int(0, i128::from(i32::MAX)).parse(args, old, origin)?;
        Ok(number.clamp(self.min, self.max))
    }

    fn format(&self, value: &u32) -> Vec<u8> {
        value.to_string().into_bytes()
    }

    fn describe(&self) -> String {
        format!("integer; brought within {} to {}", self.min, self.max)
    }
}

/// Bytes within bounds, with a unit: 1k is 1000, 1kb 1024, and so for m and g; b and nothing are
/// bytes. A number below 0 has no unit.
pub(super) struct Memory {
    range: Int,
    /// Less than this is accepted and raised to it.
    floor: u64,
}

pub(super) const fn memory(min: i128, max: i128) -> Memory {
    Memory { range: int(min, max), floor: 0 }
}

impl Memory {
    pub(super) const fn raised_to(self, floor: u64) -> Self {
        Memory { floor, ..self }
    }
}

impl<T: Copy + PartialEq + ToString + TryFrom<i128> + TryInto<u64>> Kind<T> for Memory {
    fn parse(&self, args: &[&[u8]], _: &T, _: Origin) -> Result<T, Reason> {
        let arg = only(args)?;
        if let Some(number) = parse_integer(arg).filter(|number| *number < 0 && self.range.min < 0)
        {
            return self.range.check(i128::from(number));
        }
        let bytes = parse_memory(arg).ok_or(Reason::NotMemory)?;
        self.range.check::<T>(i128::from(bytes))?;
        self.range.check(i128::from(bytes.max(self.floor)))
    }

    fn format(&self, value: &T) -> Vec<u8> {
        value.to_string().into_bytes()
    }

    fn lines(&self, name: &str, value: &T, default: &T) -> Vec<RewriteLine> {
        // What is below 0 is none.
        let text = (*value).try_into().map_or_else(|_| value.to_string(), with_unit);
        vec![line(name, text.as_bytes(), value != default)]
    }

    fn describe(&self) -> String {
        match (self.range.min, self.floor) {
            (_, 1..) => format!("memory (units b k kb m mb g gb), raised to {}", self.floor),
            (1.., _) => format!("memory (units b k kb m mb g gb), at least {}", self.range.min),
            (..=-1, _) => format!("memory (units b k kb m mb g gb), or {}", self.range.min),
            _ => "memory (units b k kb m mb g gb)".into(),
        }
    }
}

/// Bytes, or a percentage.
pub(super) struct MemoryOrPercent;

impl Kind<MemoryLimit> for MemoryOrPercent {
    fn parse(&self, args: &[&[u8]], _: &MemoryLimit, _: Origin) -> Result<MemoryLimit, Reason> {
        let arg = only(args)?;
        if let Some(bytes) = parse_memory(arg) {
            // Redis keeps percentages as negative numbers and takes these for some.
            let fits = i64::try_from(bytes).is_ok();
            return if fits { Ok(MemoryLimit::Bytes(bytes)) } else { Err(Reason::PercentTooHigh) };
        }
        let number = arg.strip_suffix(b"%").and_then(parse_integer).filter(|number| *number >= 0);
        match number {
            None => Err(Reason::NotMemoryOrPercent),
            Some(0) => Ok(MemoryLimit::Bytes(0)),
            Some(percent @ 1..=100) => Ok(MemoryLimit::Percent(percent as u8)),
            Some(_) => Err(Reason::PercentTooHigh),
        }
    }

    fn format(&self, value: &MemoryLimit) -> Vec<u8> {
        match value {
            MemoryLimit::Bytes(bytes) => bytes.to_string().into_bytes(),
            MemoryLimit::Percent(percent) => format!("{percent}%").into_bytes(),
        }
    }

    fn lines(&self, name: &str, value: &MemoryLimit, default: &MemoryLimit) -> Vec<RewriteLine> {
        let text = match value {
            MemoryLimit::Bytes(bytes) => with_unit(*bytes).into_bytes(),
            MemoryLimit::Percent(_) => self.format(value),
        };
        vec![line(name, &text, value != default)]
    }

    fn describe(&self) -> String {
        "memory (units b k kb m mb g gb), or a percentage such as 5%".into()
    }
}

/// An octal number within bounds, such as permissions.
pub(super) struct Octal {
    pub max: u32,
}

impl Kind<u32> for Octal {
    fn parse(&self, args: &[&[u8]], _: &u32, _: Origin) -> Result<u32, Reason> {
        let number = leading_integer(only(args)?, 8).ok_or(Reason::NotOctal)?;
        let out_of_range = Reason::OutOfOctalRange { min: 0, max: self.max };
        u32::try_from(number).ok().filter(|number| *number <= self.max).ok_or(out_of_range)
    }

    fn format(&self, value: &u32) -> Vec<u8> {
        format!("{value:o}").into_bytes()
    }

    fn describe(&self) -> String {
        format!("octal, 0 to {:o}", self.max)
    }
}

/// Any bytes.
pub(super) struct Text {
    /// An empty value means unset: its line leaves the file.
    unset_if_empty: bool,
    /// May hold NUL bytes. Other texts become names for the operating system and end at the first
    /// one.
    binary: bool,
    check: fn(&[u8]) -> Result<(), Reason>,
}

/// A text for which empty is a value like others.
pub(super) const TEXT: Text = Text { unset_if_empty: false, binary: false, check: |_| Ok(()) };
/// A text that is unset when empty.
pub(super) const OPTIONAL_TEXT: Text = Text { unset_if_empty: true, ..TEXT };
/// Bytes that are unset when empty.
pub(super) const SECRET: Text = Text { unset_if_empty: true, binary: true, ..TEXT };
/// A program's title in which variables are replaced.
pub(super) const TITLE_TEMPLATE: Text = Text { check: check_title_template, ..TEXT };
/// A host name, unset when empty.
pub(super) const HOSTNAME: Text = Text { check: check_hostname, ..OPTIONAL_TEXT };
/// An address of IPv4, unset when empty.
pub(super) const IPV4: Text = Text { check: check_ipv4, ..OPTIONAL_TEXT };
/// An address of IPv6, unset when empty.
pub(super) const IPV6: Text = Text { check: check_ipv6, ..OPTIONAL_TEXT };
/// A version that clients are told.
pub(super) const VERSION: Text = Text { check: check_version, ..TEXT };
pub(super) const DB_FILENAME: Text =
    Text { check: |name| check_base_name(name, "dbfilename", "filename"), ..TEXT };
pub(super) const APPEND_FILENAME: Text =
    Text { check: |name| check_filled_base_name(name, "appendfilename", "filename"), ..TEXT };
pub(super) const APPEND_DIRNAME: Text =
    Text { check: |name| check_filled_base_name(name, "appenddirname", "dirname"), ..TEXT };

impl Kind<Vec<u8>> for Text {
    fn parse(&self, args: &[&[u8]], _: &Vec<u8>, _: Origin) -> Result<Vec<u8>, Reason> {
        let mut arg = only(args)?;
        if !self.binary {
            arg = arg.split(|byte| *byte == 0).next().unwrap_or_default();
        }
        (self.check)(arg)?;
        Ok(arg.to_vec())
    }

    fn format(&self, value: &Vec<u8>) -> Vec<u8> {
        value.clone()
    }

    fn lines(&self, name: &str, value: &Vec<u8>, default: &Vec<u8>) -> Vec<RewriteLine> {
        if self.unset_if_empty && value.is_empty() {
            return Vec::new();
        }
        vec![line(name, &quoted(value), value != default)]
    }

    fn describe(&self) -> String {
        if self.unset_if_empty { "text; \"\" unsets it".into() } else { "text".into() }
    }
}

/// The `title`, `server-mode` and `unixsocket` variables may stand for nothing; what is left must
/// not be blank.
/// The process' title: the template with each `{name}` replaced by what `variable` says, `{{` by a brace, and without spaces
/// at its ends.
pub fn expand_title(template: &[u8], variable: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let (mut title, mut rest) = (Vec::new(), template);
    while let Some(open) = rest.iter().position(|byte| *byte == b'{') {
        title.extend_from_slice(&rest[..open]);
        rest = &rest[open + 1..];
        if let Some(after) = rest.strip_prefix(b"{") {
            title.push(b'{');
            rest = after;
            continue;
        }
        let close = rest.iter().position(|byte| *byte == b'}').unwrap_or(rest.len());
        title.extend_from_slice(&variable(&rest[..close]));
        rest = rest.get(close + 1..).unwrap_or_default();
    }
    title.extend_from_slice(rest);
    let is_text = |byte: &u8| *byte != b' ';
    let end = title.iter().rposition(is_text).map_or(0, |last| last + 1);
    title.truncate(end);
    title.drain(..title.iter().position(is_text).unwrap_or(0));
    title
}

fn check_title_template(template: &[u8]) -> Result<(), Reason> {
    let mut rest = template;
    let mut blank = true;
    while let Some(open) = rest.iter().position(|byte| *byte == b'{') {
        blank &= rest[..open].iter().all(|byte| *byte == b' ');
        rest = &rest[open + 1..];
        if let Some(after) = rest.strip_prefix(b"{") {
            blank = false;
            rest = after;
            continue;
        }
        let close = rest.iter().position(|byte| *byte == b'}').ok_or(Reason::TitleTemplate)?;
        match &rest[..close] {
            b"title" | b"server-mode" | b"unixsocket" => {}
            b"listen-addr" | b"port" | b"tls-port" | b"config-file" => blank = false,
            _ => return Err(Reason::TitleTemplate),
        }
        rest = &rest[close + 1..];
    }
    blank &= rest.iter().all(|byte| *byte == b' ');
    if blank { Err(Reason::TitleTemplate) } else { Ok(()) }
}

fn check_hostname(name: &[u8]) -> Result<(), Reason> {
    if name.len() >= 256 {
        return Err(Reason::HostnameLength);
    }
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if name.iter().all(fits) { Ok(()) } else { Err(Reason::HostnameCharacter) }
}

fn check_ipv4(address: &[u8]) -> Result<(), Reason> {
    check_ip::<std::net::Ipv4Addr>(address, "Invalid IPv4 address")
}

fn check_ipv6(address: &[u8]) -> Result<(), Reason> {
    check_ip::<std::net::Ipv6Addr>(address, "Invalid IPv6 address")
}

fn check_ip<T: std::str::FromStr>(address: &[u8], otherwise: &str) -> Result<(), Reason> {
    let address = std::str::from_utf8(address).unwrap_or("?");
    let is_one = address.is_empty() || address.parse::<T>().is_ok();
    if is_one { Ok(()) } else { Err(Reason::Other(otherwise.to_owned())) }
}

fn check_version(version: &[u8]) -> Result<(), Reason> {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'+');
    if !version.is_empty() && version.iter().all(fits) { Ok(()) } else { Err(Reason::Version) }
}

fn check_base_name(name: &[u8], directive: &'static str, what: &'static str) -> Result<(), Reason> {
    let path = name.iter().any(|byte| matches!(byte, b'/' | b'\\'));
    if path { Err(Reason::NotBaseName { directive, what }) } else { Ok(()) }
}

fn check_filled_base_name(
    name: &[u8],
    directive: &'static str,
    what: &'static str,
) -> Result<(), Reason> {
    if name.is_empty() {
        return Err(Reason::EmptyName { directive });
    }
    check_base_name(name, directive, what)
}

/// One word of a closed set that the server works with.
pub(super) struct OneOf;

impl<T: Choice> Kind<T> for OneOf {
    fn parse(&self, args: &[&[u8]], _: &T, _: Origin) -> Result<T, Reason> {
        let words = || T::WORDS.iter().map(|(word, _)| *word).collect::<Vec<_>>();
        match args {
            [arg] => T::words().find(|(word, _)| arg.eq_ignore_ascii_case(word.as_bytes())),
            _ => None,
        }
        .map(|(_, value)| *value)
        .ok_or_else(|| Reason::NotOneOf(words().join(", ")))
    }

    fn format(&self, value: &T) -> Vec<u8> {
        value.word().as_bytes().to_vec()
    }

    fn describe(&self) -> String {
        let words: Vec<_> = T::words().map(|(word, _)| *word).collect();
        words.join(" | ")
    }
}

/// One word of a closed set that is only stored so far.
pub(super) struct Word(pub &'static [&'static str]);

impl Kind<&'static str> for Word {
    fn parse(&self, args: &[&[u8]], _: &&'static str, _: Origin) -> Result<&'static str, Reason> {
        match args {
            [arg] => self.0.iter().find(|word| arg.eq_ignore_ascii_case(word.as_bytes())).copied(),
            _ => None,
        }
        .ok_or_else(|| Reason::NotOneOf(self.0.join(", ")))
    }

    fn format(&self, value: &&'static str) -> Vec<u8> {
        value.as_bytes().to_vec()
    }

    fn describe(&self) -> String {
        self.0.join(" | ")
    }
}

/// The words of [`ShutdownOptions`], in the order in which they are written.
const SHUTDOWN_WORDS: [(&str, ShutdownOptions); 7] = [
    ("default", ShutdownOptions::empty()),
    ("save", ShutdownOptions::SAVE),
    ("nosave", ShutdownOptions::NOSAVE),
    ("now", ShutdownOptions::NOW),
    ("force", ShutdownOptions::FORCE),
    ("safe", ShutdownOptions::SAFE),
    ("failover", ShutdownOptions::FAILOVER),
];
/// How many of them errors list: those of Redis 7.0.
const SHUTDOWN_WORDS_LISTED: usize = 5;

/// Several words that add up.
pub(super) struct Shutdown;

impl Kind<ShutdownOptions> for Shutdown {
    const MULTI: bool = true;

    fn parse(
        &self,
        args: &[&[u8]],
        _: &ShutdownOptions,
        _: Origin,
    ) -> Result<ShutdownOptions, Reason> {
        let listed = &SHUTDOWN_WORDS[..SHUTDOWN_WORDS_LISTED];
        let refused = || {
            Reason::NotOneOf(listed.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", "))
        };
        if args.is_empty() {
            return Err(refused());
        }
        let mut options = ShutdownOptions::empty();
        for arg in args {
            let known =
                SHUTDOWN_WORDS.iter().find(|(word, _)| arg.eq_ignore_ascii_case(word.as_bytes()));
            options |= known.ok_or_else(refused)?.1;
        }
        if options.contains(ShutdownOptions::SAVE | ShutdownOptions::NOSAVE) {
            return Err(Reason::SaveAndNosave);
        }
        Ok(options)
    }

    fn format(&self, value: &ShutdownOptions) -> Vec<u8> {
        if value.is_empty() {
            return b"default".to_vec();
        }
        let set = SHUTDOWN_WORDS
            .iter()
            .filter(|(_, option)| !option.is_empty() && value.contains(*option));
        set.map(|(word, _)| *word).collect::<Vec<_>>().join(" ").into_bytes()
    }

    fn describe(&self) -> String {
        "default, or some of save nosave now force; safe and failover are kept".into()
    }
}

/// Pairs of seconds and changes.
pub(super) struct Save;

impl Kind<Vec<SavePoint>> for Save {
    const MULTI: bool = true;

    fn parse(
        &self,
        args: &[&[u8]],
        old: &Vec<SavePoint>,
        origin: Origin,
    ) -> Result<Vec<SavePoint>, Reason> {
        if let [b""] = args {
            return Ok(Vec::new());
        }
        let (pairs, rest) = args.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(Reason::SavePoints);
        }
        // The loader empties the default before the first line of the file, so several lines add up
        // to the value.
        let mut points = if origin == Origin::File { old.clone() } else { Vec::new() };
        for [seconds, changes] in pairs {
            let number =
                |arg| leading_integer(arg, 10).and_then(|number| u64::try_from(number).ok());
            match (number(seconds), number(changes)) {
                (Some(seconds @ 1..), Some(changes)) => points.push(SavePoint { seconds, changes }),
                _ => return Err(Reason::SavePoints),
            }
        }
        Ok(points)
    }

    fn format(&self, value: &Vec<SavePoint>) -> Vec<u8> {
        let points: Vec<_> =
            value.iter().map(|point| format!("{} {}", point.seconds, point.changes)).collect();
        points.join(" ").into_bytes()
    }

    fn lines(&self, name: &str, value: &Vec<SavePoint>, _: &Vec<SavePoint>) -> Vec<RewriteLine> {
        // Always written, or the next start would take the default.
        if value.is_empty() {
            return vec![line(name, b"\"\"", true)];
        }
        let text = |point: &SavePoint| format!("{} {}", point.seconds, point.changes).into_bytes();
        value.iter().map(|point| line(name, &text(point), true)).collect()
    }

    fn describe(&self) -> String {
        "pairs of seconds and changes; \"\" for none. Several lines add up".into()
    }
}

/// Classes of clients with hard bytes, soft bytes and soft seconds.
pub(super) struct OutputBufferLimits;

/// Indexed by [`ClientClass`]: the class as CONFIG GET tells it, and as CONFIG REWRITE writes it.
const CLIENT_CLASSES: [(&str, &str); 3] =
    [("normal", "normal"), ("slave", "replica"), ("pubsub", "pubsub")];

impl Kind<[OutputBufferLimit; 3]> for OutputBufferLimits {
    const MULTI: bool = true;

    fn parse(
        &self,
        args: &[&[u8]],
        old: &[OutputBufferLimit; 3],
        _: Origin,
    ) -> Result<[OutputBufferLimit; 3], Reason> {
        let (groups, rest) = args.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(Reason::BufferLimitCount);
        }
        let mut limits = *old;
        for [class, hard, soft, seconds] in groups {
            let is_class = |(get, rewrite): &(&str, &str)| {
                class.eq_ignore_ascii_case(get.as_bytes())
                    || class.eq_ignore_ascii_case(rewrite.as_bytes())
            };
            let class = CLIENT_CLASSES.iter().position(is_class).ok_or(Reason::BufferLimitClass)?;
            let seconds =
                leading_integer(seconds, 10).and_then(|seconds| u64::try_from(seconds).ok());
            match (parse_memory(hard), parse_memory(soft), seconds) {
                (Some(hard_bytes), Some(soft_bytes), Some(soft_seconds)) => {
                    limits[class] = OutputBufferLimit { hard_bytes, soft_bytes, soft_seconds };
                }
                _ => return Err(Reason::BufferLimitValue),
            }
        }
        Ok(limits)
    }

    fn format(&self, value: &[OutputBufferLimit; 3]) -> Vec<u8> {
        let text = |((class, _), limit): (&(&str, &str), &OutputBufferLimit)| {
            format!("{class} {} {} {}", limit.hard_bytes, limit.soft_bytes, limit.soft_seconds)
        };
        CLIENT_CLASSES.iter().zip(value).map(text).collect::<Vec<_>>().join(" ").into_bytes()
    }

    fn lines(
        &self,
        name: &str,
        value: &[OutputBufferLimit; 3],
        default: &[OutputBufferLimit; 3],
    ) -> Vec<RewriteLine> {
        let mut lines = Vec::new();
        for (index, (_, class)) in CLIENT_CLASSES.iter().enumerate() {
            let limit = value[index];
            let (hard, soft) = (with_unit(limit.hard_bytes), with_unit(limit.soft_bytes));
            let text = format!("{class} {hard} {soft} {}", limit.soft_seconds);
            lines.push(line(name, text.as_bytes(), limit != default[index]));
        }
        lines
    }

    fn describe(&self) -> String {
        "class (normal, replica, pubsub), hard limit, soft limit, soft seconds".into()
    }
}

/// Scores for a primary, a replica and background children.
pub(super) struct OomScores;

impl Kind<[i32; 3]> for OomScores {
    const MULTI: bool = true;

    fn parse(&self, args: &[&[u8]], _: &[i32; 3], _: Origin) -> Result<[i32; 3], Reason> {
        let args: &[&[u8]; 3] = args.try_into().map_err(|_| Reason::WrongNumberOfArguments)?;
        let mut scores = [0; 3];
        for (score, arg) in scores.iter_mut().zip(args) {
            let number = leading_integer(arg, 10).filter(|number| (-2000..=2000).contains(number));
            *score = number.ok_or(Reason::OomScore)? as i32;
        }
        Ok(scores)
    }

    fn format(&self, value: &[i32; 3]) -> Vec<u8> {
        value.map(|score| score.to_string()).join(" ").into_bytes()
    }

    fn describe(&self) -> String {
        "three integers, -2000 to 2000: primary, replica, background child".into()
    }
}

/// Letters, one for each class of events.
pub(super) struct EventClasses;

/// The letters in the order in which they are written. `A` stands for all of `KeyspaceEvents::ALL`.
const EVENT_LETTERS: [(u8, KeyspaceEvents); 14] = [
    (b'g', KeyspaceEvents::GENERIC),
    (b'$', KeyspaceEvents::STRING),
    (b'l', KeyspaceEvents::LIST),
    (b's', KeyspaceEvents::SET),
    (b'h', KeyspaceEvents::HASH),
    (b'z', KeyspaceEvents::ZSET),
    (b'x', KeyspaceEvents::EXPIRED),
    (b'e', KeyspaceEvents::EVICTED),
    (b't', KeyspaceEvents::STREAM),
    (b'd', KeyspaceEvents::MODULE),
    (b'n', KeyspaceEvents::NEW),
    (b'K', KeyspaceEvents::KEYSPACE),
    (b'E', KeyspaceEvents::KEYEVENT),
    (b'm', KeyspaceEvents::KEY_MISS),
];

impl Kind<KeyspaceEvents> for EventClasses {
    fn parse(
        &self,
        args: &[&[u8]],
        _: &KeyspaceEvents,
        _: Origin,
    ) -> Result<KeyspaceEvents, Reason> {
        let mut events = KeyspaceEvents::empty();
        for letter in only(args)? {
            if *letter == b'A' {
                events |= KeyspaceEvents::ALL;
                continue;
            }
            let known = EVENT_LETTERS.iter().find(|(known, _)| known == letter);
            events |= known.ok_or(Reason::EventClass)?.1;
        }
        Ok(events)
    }

    fn format(&self, value: &KeyspaceEvents) -> Vec<u8> {
        let all = value.contains(KeyspaceEvents::ALL);
        let mut text = if all { b"A".to_vec() } else { Vec::new() };
        for (letter, class) in EVENT_LETTERS {
            // Redis leaves `n` out next to `A`, although `A` does not mean it.
            let implied = all && (KeyspaceEvents::ALL | KeyspaceEvents::NEW).contains(class);
            if value.contains(class) && !implied {
                text.push(letter);
            }
        }
        text
    }

    fn lines(
        &self,
        name: &str,
        value: &KeyspaceEvents,
        default: &KeyspaceEvents,
    ) -> Vec<RewriteLine> {
        vec![line(name, &quoted(&self.format(value)), value != default)]
    }

    fn describe(&self) -> String {
        "letters out of KEg$lshzxetdmnA; \"\" for none".into()
    }
}

/// Addresses to listen on.
pub(super) struct Addresses;

const BIND_ADDRESSES_MAX: usize = 16;

impl Kind<Vec<Vec<u8>>> for Addresses {
    const MULTI: bool = true;

    fn parse(&self, args: &[&[u8]], _: &Vec<Vec<u8>>, _: Origin) -> Result<Vec<Vec<u8>>, Reason> {
        if args.len() > BIND_ADDRESSES_MAX {
            return Err(Reason::BindCount);
        }
        if let [b""] = args {
            return Ok(Vec::new());
        }
        Ok(args.iter().map(|arg| arg.to_vec()).collect())
    }

    fn format(&self, value: &Vec<Vec<u8>>) -> Vec<u8> {
        value.join(&b' ')
    }

    fn lines(&self, name: &str, value: &Vec<Vec<u8>>, default: &Vec<Vec<u8>>) -> Vec<RewriteLine> {
        if value == default {
            return Vec::new();
        }
        let text = if value.is_empty() { b"\"\"".to_vec() } else { self.format(value) };
        vec![line(name, &text, true)]
    }

    fn describe(&self) -> String {
        "up to 16 addresses; * is all IPv4, ::* all IPv6, - before one forgives its absence".into()
    }

    fn example(&self, name: &str, default: &Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        vec![line(name, &self.format(default), false).text]
    }
}

/// Host and port of the primary, or `no one`.
pub(super) struct Primary;

impl Kind<Option<PrimaryAddress>> for Primary {
    const MULTI: bool = true;

    fn parse(
        &self,
        args: &[&[u8]],
        _: &Option<PrimaryAddress>,
        _: Origin,
    ) -> Result<Option<PrimaryAddress>, Reason> {
        let [host, port] = args else {
            return Err(Reason::WrongNumberOfArguments);
        };
        if host.eq_ignore_ascii_case(b"no") && port.eq_ignore_ascii_case(b"one") {
            return Ok(None);
        }
        let port = leading_integer(port, 10).and_then(|port| u16::try_from(port).ok());
        Ok(Some(PrimaryAddress { host: host.to_vec(), port: port.ok_or(Reason::PrimaryPort)? }))
    }

    fn format(&self, value: &Option<PrimaryAddress>) -> Vec<u8> {
        match value {
            Some(primary) => [&primary.host[..], primary.port.to_string().as_bytes()].join(&b' '),
            None => Vec::new(),
        }
    }

    fn lines(
        &self,
        name: &str,
        value: &Option<PrimaryAddress>,
        _: &Option<PrimaryAddress>,
    ) -> Vec<RewriteLine> {
        if value.is_some() { vec![line(name, &self.format(value), true)] } else { Vec::new() }
    }

    fn describe(&self) -> String {
        "host and port, or no one".into()
    }

    fn example(&self, name: &str, _: &Option<PrimaryAddress>) -> Vec<Vec<u8>> {
        vec![line(name, b"no one", false).text]
    }
}

/// Percentages with fractions.
pub(super) struct Percentiles;

impl Kind<Vec<f64>> for Percentiles {
    const MULTI: bool = true;

    fn parse(&self, args: &[&[u8]], _: &Vec<f64>, _: Origin) -> Result<Vec<f64>, Reason> {
        if let [b""] = args {
            return Ok(Vec::new());
        }
        let mut percentiles = Vec::new();
        for arg in args {
            let number = str::from_utf8(arg).ok().and_then(|arg| arg.parse::<f64>().ok());
            let number = number.filter(|number| !number.is_nan()).ok_or(Reason::Percentile)?;
            if !(0.0..=100.0).contains(&number) {
                return Err(Reason::PercentileRange);
            }
            percentiles.push(number);
        }
        Ok(percentiles)
    }

    fn format(&self, value: &Vec<f64>) -> Vec<u8> {
        let text = |number: &f64| {
            format!("{number:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        value.iter().map(text).collect::<Vec<_>>().join(" ").into_bytes()
    }

    fn lines(&self, name: &str, value: &Vec<f64>, _: &Vec<f64>) -> Vec<RewriteLine> {
        let text = if value.is_empty() { b"\"\"".to_vec() } else { self.format(value) };
        vec![line(name, &text, true)]
    }

    fn describe(&self) -> String {
        "numbers, 0 to 100; \"\" for none".into()
    }
}

/// A directory that exists and may be entered, kept as its absolute path.
pub(super) struct Directory;

impl Kind<PathBuf> for Directory {
    fn parse(&self, args: &[&[u8]], old: &PathBuf, _: Origin) -> Result<PathBuf, Reason> {
        let arg = only(args)?;
        let arg = arg.split(|byte| *byte == 0).next().unwrap_or_default();
        if arg.is_empty() {
            return Err(Reason::Other("No such file or directory".into()));
        }
        let path = old.join(std::ffi::OsStr::from_bytes(arg));
        // With the dot, the look-up fails unless this is a directory that may be searched.
        let inside = path.join(".");
        let absolute = std::fs::metadata(&inside).and_then(|_| std::fs::canonicalize(&path));
        absolute.map_err(|error| Reason::Other(system_text(&error)))
    }

    fn format(&self, value: &PathBuf) -> Vec<u8> {
        value.clone().into_os_string().into_vec()
    }

    fn lines(&self, name: &str, value: &PathBuf, _: &PathBuf) -> Vec<RewriteLine> {
        // Always written: the directory of the next start may be another.
        vec![line(name, &quoted(value.as_os_str().as_bytes()), true)]
    }

    fn describe(&self) -> String {
        "directory".into()
    }

    fn example(&self, name: &str, _: &PathBuf) -> Vec<Vec<u8>> {
        vec![line(name, b".", false).text]
    }
}

/// The operating system's text of an error, without the number that `Display` adds.
pub fn system_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(number) => {
            text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text).to_owned()
        }
        None => text,
    }
}

/// A canonical decimal integer: no blanks, no plus sign, no leading zero.
fn parse_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = text == b"0" || matches!(digits.first(), Some(b'1'..=b'9'));
    if !canonical || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

/// An integer as C's `strtoll` reads one that fills its text: leading blanks, a sign, no digit at
/// all (0); beyond 64 bits the nearest bound.
fn leading_integer(text: &[u8], radix: u32) -> Option<i64> {
    if text.is_empty() {
        return Some(0);
    }
    let text = str::from_utf8(text).ok()?;
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() {
        return None;
    }
    let mut number: i64 = 0;
    for digit in digits.chars() {
        let digit = i64::from(digit.to_digit(radix)?);
        let signed = if negative { -digit } else { digit };
        number = number.saturating_mul(i64::from(radix)).saturating_add(signed);
    }
    Some(number)
}

/// Bytes with a unit. No digits at all are 0, as in Redis. Where Redis wraps around 2^64, this
/// refuses.
pub fn parse_memory(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, unit) = text.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    let mut number: u64 = 0;
    for digit in digits {
        number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    number.checked_mul(factor)
}

/// Bytes in the largest unit of gb, mb, kb that divides them.
fn with_unit(bytes: u64) -> String {
    for (unit, size) in [("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)] {
        if bytes != 0 && bytes.is_multiple_of(size) {
            return format!("{}{unit}", bytes / size);
        }
    }
    bytes.to_string()
}
