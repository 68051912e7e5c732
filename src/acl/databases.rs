//! The databases that a set of permissions is for.

use std::collections::BTreeSet;

use super::{Denied, Reason, Request, RuleError};
use crate::facts::DatabaseUse;
use crate::resp::args::Args;
use crate::resp::number;

/// Which databases may be used. All of them, unless a rule names some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Databases {
    #[default]
    All,
    Only(BTreeSet<u32>),
}

/// The largest number that a rule may name: there may be more databases one day.
const NUMBER_MAX: i64 = i32::MAX as i64;

impl Databases {
    /// What stands behind `db=`: numbers with commas between them.
    pub fn parse(list: &[u8]) -> Result<Self, RuleError> {
        let number = |text: &[u8]| {
            let digits = text.strip_prefix(b"-").unwrap_or(text);
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return Err(RuleError::Syntax);
            }
            let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
            let number = number.filter(|number| (0..=NUMBER_MAX).contains(number));
            number.map(|number| number as u32).ok_or(RuleError::NoSuchDatabase)
        };
        let numbers: Result<_, _> = list.split(|&byte| byte == b',').map(number).collect();
        numbers.map(Databases::Only)
    }

    /// No database at all.
    pub fn none() -> Self {
        Databases::Only(BTreeSet::new())
    }

    pub fn are_all(&self) -> bool {
        *self == Databases::All
    }

    fn have(&self, number: usize) -> bool {
        match self {
            Databases::All => true,
            Databases::Only(numbers) => numbers.contains(&(number as u32)),
        }
    }

    /// `db=0,1`; empty for none and for all.
    fn listed(&self) -> Vec<u8> {
        match self {
            Databases::Only(numbers) if !numbers.is_empty() => {
                let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
                format!("db={}", numbers.join(",")).into_bytes()
            }
            _ => Vec::new(),
        }
    }

    /// As ACL GETUSER tells it.
    pub fn describe(&self) -> Vec<u8> {
        if self.are_all() { b"alldbs".to_vec() } else { self.listed() }
    }

    /// The rule that makes it. None: without a rule it is so.
    pub fn rule(&self) -> Option<Vec<u8>> {
        let listed = self.listed();
        match self {
            Databases::All => None,
            Databases::Only(_) if listed.is_empty() => Some(b"resetdbs".to_vec()),
            Databases::Only(_) => Some(listed),
        }
    }

    /// Whether a request may use the databases that it uses. A number that is none is left to the command to refuse.
    pub(super) fn check(&self, request: &Request<'_>) -> Result<(), Denied> {
        let denied = |argument| Err(Denied { reason: Reason::Database, argument });
        let used = &request.databases;
        let stays_in = match used.named {
            DatabaseUse::All => {
                return if (0..used.count).all(|number| self.have(number)) {
                    Ok(())
                } else {
                    denied(0)
                };
            }
            DatabaseUse::Selected => used.touches_keys,
            // What names another database may work with a key of this one as well.
            _ => used.has_keys,
        };
        for argument in used.named.arguments(request.args) {
            match number_of(request.args, argument, used.count) {
                Some(number) if !self.have(number) => return denied(argument),
                Some(_) => {}
                None => break,
            }
        }
        if stays_in && !self.have(used.selected) { denied(0) } else { Ok(()) }
    }
}

/// The database that an argument names, if it names one of so many.
pub fn number_of(args: Args<'_>, argument: usize, count: usize) -> Option<usize> {
    let number = number::parse_i64(args.get(argument))?;
    usize::try_from(number).ok().filter(|&number| number < count)
}

/// The databases that a request has to do with.
pub struct DatabasesUsed {
    pub named: DatabaseUse,
    /// The selected one.
    pub selected: usize,
    /// How many there are.
    pub count: usize,
    /// It names keys.
    pub has_keys: bool,
    /// It names keys, or works with those of the database in another way.
    pub touches_keys: bool,
}
