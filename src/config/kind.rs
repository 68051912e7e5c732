//! Parsing and formatting of each kind of values.
//!
//! A kind parses the arguments of a directive or of CONFIG SET to a typed value, or refuses them
//! with a [`Reason`]. It formats values for CONFIG GET, as lines for CONFIG REWRITE and for the
//! example file. Special cases (an empty memory value is 0, `save` lines add up) are those of Redis
//! 7.0.15.

mod list;
mod number;
mod text;

pub(super) use list::*;
pub(super) use number::*;
pub(super) use text::*;
pub use {number::parse_memory, text::expand_title};

use super::reason::Reason;
use super::value::*;

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The file or the command line: several `save` lines add up.
    File,
    /// CONFIG SET.
    Set,
}

/// A line that CONFIG REWRITE may write.
pub(super) struct RewriteLine {
    pub text: Vec<u8>,
    /// Add the line even if the old file has none for this parameter: the value is not the default.
    pub force: bool,
}

/// Parsing and formatting of values of type `T`.
pub(super) trait Kind<T: Clone + PartialEq> {
    /// Whether the value may have several arguments; otherwise exactly one.
    const MULTI: bool = false;

    /// Parses a new value. `old`: the current one.
    fn parse(&self, args: &[&[u8]], old: &T, origin: Origin) -> Result<T, Reason>;

    /// As in CONFIG GET.
    fn format(&self, value: &T) -> Vec<u8>;

    /// The lines for CONFIG REWRITE. If there are none, all lines of the parameter are removed from
    /// the file.
    fn lines(&self, name: &str, value: &T, default: &T) -> Vec<RewriteLine> {
        vec![line(name, &self.format(value), value != default)]
    }

    /// The allowed values, for the example file.
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
fn single<'a>(args: &[&'a [u8]]) -> Result<&'a [u8], Reason> {
    match args {
        [arg] => Ok(arg),
        _ => Err(Reason::WrongNumberOfArguments),
    }
}

/// `yes` or `no`.
pub(super) struct YesNo;

impl Kind<bool> for YesNo {
    fn parse(&self, args: &[&[u8]], _: &bool, _: Origin) -> Result<bool, Reason> {
        match single(args)? {
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

/// The same, with words of newer servers that choose parts of it: any of them means yes.
pub(super) struct YesNoOr(pub &'static [&'static str]);

impl Kind<bool> for YesNoOr {
    const MULTI: bool = true;

    fn parse(&self, args: &[&[u8]], old: &bool, origin: Origin) -> Result<bool, Reason> {
        let is_part =
            |arg: &&[u8]| self.0.iter().any(|word| arg.eq_ignore_ascii_case(word.as_bytes()));
        match !args.is_empty() && args.iter().all(is_part) {
            true => Ok(true),
            // CONFIG SET has one value, however many words it has.
            false if args.len() != 1 && matches!(origin, Origin::Set) => Err(Reason::NotYesNo),
            false => YesNo.parse(args, old, origin),
        }
    }

    fn format(&self, value: &bool) -> Vec<u8> {
        YesNo.format(value)
    }

    fn describe(&self) -> String {
        YesNo.describe()
    }
}

/// A parameter that would enable a feature that is not supported: only the type's default is
/// allowed. The text is the error for other values.
pub(super) struct Unsupported<K>(pub K, pub &'static str);

pub(super) const NO_DEFRAG: &str = "Active defragmentation cannot be enabled: it requires a Redis server compiled with a \
                                    modified Jemalloc like the one shipped by default with the Redis source distribution";
pub(super) const NO_MPTCP: &str = "MPTCP is not supported on this platform";
pub(super) const NO_RDMA: &str = "RDMA is not supported by this server";

impl<T: Clone + Default + PartialEq, K: Kind<T>> Kind<T> for Unsupported<K> {
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

/// The same, but any value of a file is taken as the type's default: the feature would change no
/// reply, and the start of a server with another one's file should not fail for it.
pub(super) struct OnlyInFiles<K>(pub Unsupported<K>);

impl<T: Clone + Default + PartialEq, K: Kind<T>> Kind<T> for OnlyInFiles<K> {
    fn parse(&self, args: &[&[u8]], old: &T, origin: Origin) -> Result<T, Reason> {
        let OnlyInFiles(unsupported) = self;
        match origin {
            Origin::Set => unsupported.parse(args, old, origin),
            Origin::File => unsupported.0.parse(args, old, origin).map(|_| T::default()),
        }
    }

    fn format(&self, value: &T) -> Vec<u8> {
        self.0.format(value)
    }

    fn describe(&self) -> String {
        self.0.0.describe()
    }
}

/// A word for a variant of an enum.
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

/// One of some words, kept as the word.
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
