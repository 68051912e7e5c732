//! The databases that a selector permits.

use std::collections::BTreeSet;

use super::{Denied, Reason, Request, RuleError};
use crate::facts::DatabaseUse;
use crate::keyspace::DbIndex;
use crate::resp::args::Args;
use crate::resp::number;

/// Permitted databases: all, unless a rule names some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Databases {
    #[default]
    All,
    Only(BTreeSet<DbIndex>),
}

/// The largest number in a rule. It may exceed the number of databases, as that may be raised.
const NUMBER_MAX: i64 = i32::MAX as i64;

impl Databases {
    /// Parses the list after `db=`: numbers separated by commas.
    pub fn parse(list: &[u8]) -> Result<Self, RuleError> {
        let number = |text: &[u8]| {
            let digits = text.strip_prefix(b"-").unwrap_or(text);
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return Err(RuleError::Syntax);
            }
            let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
            let number = number.filter(|number| (0..=NUMBER_MAX).contains(number));
            number.and_then(DbIndex::read).ok_or(RuleError::NoSuchDatabase)
        };
        let numbers: Result<_, _> = list.split(|&byte| byte == b',').map(number).collect();
        numbers.map(Databases::Only)
    }

    /// No database at all.
    pub fn none() -> Self {
        Databases::Only(BTreeSet::new())
    }

    pub fn is_all(&self) -> bool {
        *self == Databases::All
    }

    fn contains(&self, database: DbIndex) -> bool {
        match self {
            Databases::All => true,
            Databases::Only(databases) => databases.contains(&database),
        }
    }

    /// `db=0,1`; empty if it is none or all.
    fn list_rule(&self) -> Vec<u8> {
        match self {
            Databases::Only(numbers) if !numbers.is_empty() => {
                let numbers: Vec<String> = numbers.iter().map(DbIndex::to_string).collect();
                format!("db={}", numbers.join(",")).into_bytes()
            }
            _ => Vec::new(),
        }
    }

    /// As in ACL GETUSER.
    pub fn describe(&self) -> Vec<u8> {
        if self.is_all() { b"alldbs".to_vec() } else { self.list_rule() }
    }

    /// The rule for it. None: it is the default.
    pub fn rule(&self) -> Option<Vec<u8>> {
        let list = self.list_rule();
        match self {
            Databases::All => None,
            Databases::Only(_) if list.is_empty() => Some(b"resetdbs".to_vec()),
            Databases::Only(_) => Some(list),
        }
    }

    /// Whether a request may use its databases. An invalid number is not checked, as the command
    /// refuses it.
    pub(super) fn check(&self, request: &Request<'_>) -> Result<(), Denied> {
        let denied = |argument| Err(Denied { reason: Reason::Database, argument });
        let used = &request.databases;
        let uses_selected = match used.named {
            DatabaseUse::All => {
                let contains_all = DbIndex::all(used.count).all(|database| self.contains(database));
                return if contains_all { Ok(()) } else { denied(0) };
            }
            DatabaseUse::Selected => used.touches_keys,
            // A command with a database argument may also use keys of the selected database.
            _ => used.has_keys,
        };
        for argument in used.named.arguments(request.args) {
            match number_of(request.args, argument, used.count) {
                Some(database) if !self.contains(database) => return denied(argument),
                Some(_) => {}
                None => break,
            }
        }
        if uses_selected && !self.contains(used.selected) { denied(0) } else { Ok(()) }
    }
}

/// The number of a database in an argument, if it is less than `count`.
pub fn number_of(args: Args<'_>, argument: usize, count: usize) -> Option<DbIndex> {
    DbIndex::checked(number::parse_i64(args.get(argument))?, count)
}

/// The databases that a request uses.
pub struct DatabasesUsed {
    pub named: DatabaseUse,
    /// The selected one.
    pub selected: DbIndex,
    /// The number of databases.
    pub count: usize,
    /// It has key arguments.
    pub has_keys: bool,
    /// It has key arguments, or accesses keys in another way (as SCAN does).
    pub touches_keys: bool,
}
