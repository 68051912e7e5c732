//! Options shared by several string commands: the condition of a write, and the new deadline.
//!
//! Input: a [`Cursor`]; output: complete values. The keyspace is not accessed.

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::clock::Now;
use crate::command::deadline::{Lifetime, LifetimeWord, TimeUnit};
use crate::error::CommandError;
use crate::keyspace::Expiry;
use crate::resp::args::Cursor;
use crate::types::string::StringView;

/// Hexadecimal digits of a digest.
const DIGEST_DIGITS: usize = 16;
const DIGEST_LENGTH: CommandError =
    CommandError::Text("ERR must be exactly 16 hexadecimal characters");

/// The option words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Nx,
    Xx,
    IfEq,
    IfNe,
    IfDeq,
    IfDne,
    Get,
    Lifetime(LifetimeWord),
}

impl Word {
    /// Parses an option word, case-insensitively.
    fn of(argument: &[u8]) -> Option<Word> {
        // Two-letter words are the most frequent, and compared without a copy. The bit is the case
        // of a letter.
        if let [first, second] = argument {
            return match &[first | 0x20, second | 0x20] {
                b"nx" => Some(Word::Nx),
                b"xx" => Some(Word::Xx),
                _ => LifetimeWord::of(argument).map(Word::Lifetime),
            };
        }
        let mut lower = [0; 7];
        let lower = lower.get_mut(..argument.len())?;
        lower.copy_from_slice(argument);
        lower.make_ascii_lowercase();
        Some(match &*lower {
            b"ifeq" => Word::IfEq,
            b"ifne" => Word::IfNe,
            b"ifdeq" => Word::IfDeq,
            b"ifdne" => Word::IfDne,
            b"get" => Word::Get,
            _ => return LifetimeWord::of(argument).map(Word::Lifetime),
        })
    }
}

/// The change of a key's deadline by an option. Errors: a time that is not positive, or too late.
pub fn parse_expiry(
    lifetime: Lifetime<'_>,
    now: &Now,
    command: &'static str,
) -> Result<Expiry, CommandError> {
    match lifetime {
        Lifetime::Unsaid | Lifetime::Persist => Ok(Expiry::Clear),
        Lifetime::Keep => Ok(Expiry::Keep),
        Lifetime::Given(unit, time) => parse_time(unit, time, now, command),
    }
}

/// The deadline of a time. Errors: it is not positive, or too late.
pub fn parse_time(
    unit: TimeUnit,
    time: &[u8],
    now: &Now,
    command: &'static str,
) -> Result<Expiry, CommandError> {
    let when = unit.parse(time, now, command, |time, _| time > 0)?;
    Ok(Expiry::At(when.deadline(now)))
}

/// `[EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds |
/// PERSIST]`: GETEX.
pub fn parse_getex<'a>(mut cursor: Cursor<'a>) -> Result<Lifetime<'a>, CommandError> {
    let mut lifetime = Lifetime::default();
    while let Some(argument) = cursor.peek() {
        cursor.take()?;
        match Word::of(argument) {
            Some(Word::Lifetime(word)) if word != LifetimeWord::KeepTtl => {
                lifetime.add(word, &mut cursor)?;
            }
            _ => return Err(CommandError::Syntax),
        }
    }
    Ok(lifetime)
}

/// A condition on the string of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison<'a> {
    Equal(&'a [u8]),
    Different(&'a [u8]),
    DigestEqual(&'a [u8]),
    DigestDifferent(&'a [u8]),
}

impl<'a> Comparison<'a> {
    /// The condition of a word (`IFEQ`, `IFNE`, `IFDEQ`, `IFDNE`) and its operand; `None` for
    /// another word.
    pub fn of(word: &[u8], operand: &'a [u8]) -> Option<Self> {
        Self::of_word(Word::of(word)?, operand)
    }

    fn of_word(word: Word, operand: &'a [u8]) -> Option<Self> {
        Some(match word {
            Word::IfEq => Comparison::Equal(operand),
            Word::IfNe => Comparison::Different(operand),
            Word::IfDeq => Comparison::DigestEqual(operand),
            Word::IfDne => Comparison::DigestDifferent(operand),
            _ => return None,
        })
    }

    /// Errors: a digest of another length, which is only looked at if there is a value, as in Redis
    /// 8.6.
    pub fn holds(&self, value: StringView<'_>) -> Result<bool, CommandError> {
        Ok(match self {
            Comparison::Equal(operand) => value == **operand,
            Comparison::Different(operand) => value != **operand,
            Comparison::DigestEqual(operand) => parse_digest(operand)? == Some(digest(value)),
            Comparison::DigestDifferent(operand) => parse_digest(operand)? != Some(digest(value)),
        })
    }

    /// Whether it holds for an absent key, which differs from every value.
    pub fn holds_for_absent(&self) -> bool {
        matches!(self, Comparison::Different(_) | Comparison::DigestDifferent(_))
    }
}

/// DIGEST's value as a number: XXH3 with 64 bits and no seed.
pub fn digest(value: StringView<'_>) -> u64 {
    if let Some(bytes) = value.as_slice() {
        return xxh3_64(bytes);
    }
    let mut digest = Xxh3Default::new();
    value.pieces(0..value.len()).for_each(|piece| digest.update(piece));
    digest.digest()
}

/// None: no value has it, because there are other characters than digits.
fn parse_digest(text: &[u8]) -> Result<Option<u64>, CommandError> {
    if text.len() != DIGEST_DIGITS {
        return Err(DIGEST_LENGTH);
    }
    let digits = std::str::from_utf8(text).ok().filter(|_| text.iter().all(u8::is_ascii_hexdigit));
    Ok(digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()))
}

/// The condition of a SET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition<'a> {
    #[default]
    Always,
    Absent,
    Present,
    If(Comparison<'a>),
}

/// `[NX | XX | IFEQ value | IFNE value | IFDEQ digest | IFDNE digest] [GET] [EX seconds | PX
/// milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]`, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetOptions<'a> {
    pub condition: Condition<'a>,
    /// Reply the old value.
    pub get: bool,
    pub lifetime: Lifetime<'a>,
}

impl<'a> SetOptions<'a> {
    /// Parses SET's options from all remaining arguments.
    pub fn parse(mut cursor: Cursor<'a>) -> Result<Self, CommandError> {
        let mut options = SetOptions::default();
        while let Some(argument) = cursor.peek() {
            cursor.take()?;
            let word = Word::of(argument).ok_or(CommandError::Syntax)?;
            match word {
                Word::Get => options.get = true,
                Word::IfEq | Word::IfNe | Word::IfDeq | Word::IfDne
                    if options.condition == Condition::Always =>
                {
                    let comparison = Comparison::of_word(word, cursor.take()?);
                    options.condition = Condition::If(comparison.ok_or(CommandError::Syntax)?);
                }
                _ => options.add(word, &mut cursor)?,
            }
        }
        Ok(options)
    }

    /// Parses MSETEX's options: without GET and comparisons.
    pub fn parse_msetex(mut cursor: Cursor<'a>) -> Result<Self, CommandError> {
        let mut options = SetOptions::default();
        while let Some(argument) = cursor.peek() {
            cursor.take()?;
            options.add(Word::of(argument).ok_or(CommandError::Syntax)?, &mut cursor)?;
        }
        Ok(options)
    }

    fn add(&mut self, word: Word, cursor: &mut Cursor<'a>) -> Result<(), CommandError> {
        match (word, self.condition) {
            (Word::Nx, Condition::Always | Condition::Absent) => self.condition = Condition::Absent,
            (Word::Xx, Condition::Always | Condition::Present) => {
                self.condition = Condition::Present;
            }
            (Word::Lifetime(word), _) if word != LifetimeWord::Persist => {
                self.lifetime.add(word, cursor)?;
            }
            _ => return Err(CommandError::Syntax),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::args::Args;
    use crate::resp::request::Range;
    use proptest::prelude::*;
    use proptest::sample::select;

    fn with_arguments<R>(arguments: &[&str], f: impl FnOnce(Cursor<'_>) -> R) -> R {
        let buffer = arguments.concat();
        let mut start = 0;
        let ranges: Vec<Range> = arguments
            .iter()
            .map(|argument| {
                let len = argument.len() as u32;
                start += len;
                Range { start: start - len, len }
            })
            .collect();
        f(Args::new(buffer.as_bytes(), &ranges).cursor(0))
    }

    /// A word of SET with its operand.
    fn option() -> impl Strategy<Value = Vec<&'static str>> {
        select(vec![
            vec!["nx"],
            vec!["XX"],
            vec!["Get"],
            vec!["KEEPTTL"],
            vec!["ex", "10"],
            vec!["PX", "get"],
            vec!["EXAT", "12"],
            vec!["pxat", "13"],
            vec!["ifeq", "nx"],
            vec!["IFNE", "ifne"],
        ])
    }

    /// The number of different words among the options, of these, and their number of occurrences.
    fn count(options: &[Vec<&'static str>], words: &[&str]) -> (usize, usize) {
        let is_there =
            |word: &&&str| options.iter().any(|option| option[0].eq_ignore_ascii_case(word));
        let is_one =
            |option: &&Vec<&str>| words.iter().any(|word| option[0].eq_ignore_ascii_case(word));
        (words.iter().filter(is_there).count(), options.iter().filter(is_one).count())
    }

    proptest! {
        #[test]
        fn options_come_in_any_order_and_exclude_others_of_their_kind(
            options in proptest::collection::vec(option(), 0..5),
        ) {
            let conditions = count(&options, &["NX", "XX", "IFEQ", "IFNE"]);
            let comparisons = count(&options, &["IFEQ", "IFNE"]);
            let lifetimes = count(&options, &["EX", "PX", "EXAT", "PXAT", "KEEPTTL"]);
            let good = conditions.0 <= 1 && comparisons.1 <= 1 && lifetimes.0 <= 1;
            let parsed = with_arguments(&options.concat(), |cursor| SetOptions::parse(cursor).is_ok());
            prop_assert_eq!(parsed, good);
            let reversed: Vec<_> = options.iter().rev().cloned().collect();
            let parsed = with_arguments(&reversed.concat(), |cursor| SetOptions::parse(cursor).is_ok());
            prop_assert_eq!(parsed, good);
        }
    }
}
