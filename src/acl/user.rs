//! A user: whether it may come in, with which passwords, and what it may do then.

use bitflags::bitflags;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::catalogue::Catalogue;
use super::selector::{Access, Keys, Selector};
use super::{Denied, Form, Reason, Request, RuleError};

bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct UserFlags: u8 {
        const ON = 1 << 0;
        const OFF = 1 << 1;
        /// Any password will do.
        const NO_PASSWORD = 1 << 2;
        const SKIP_SANITIZE = 1 << 3;
        const SANITIZE = 1 << 4;
    }
}

/// The flags with their names, in the order in which they are shown.
const FLAG_NAMES: &[(UserFlags, &str)] = &[
    (UserFlags::ON, "on"),
    (UserFlags::OFF, "off"),
    (UserFlags::NO_PASSWORD, "nopass"),
    (UserFlags::SKIP_SANITIZE, "skip-sanitize-payload"),
    (UserFlags::SANITIZE, "sanitize-payload"),
];

/// What rules are read by.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    pub catalogue: &'a Catalogue,
    /// New users and selectors may use all channels: `acl-pubsub-default`.
    pub all_channels: bool,
}

/// The SHA-256 of a password.
type Hash = [u8; 32];

/// A user, whose name is known to [`Acl`](super::Acl).
#[derive(Clone, Debug)]
pub struct User {
    flags: UserFlags,
    passwords: Vec<Hash>,
    root: Selector,
    /// Those in parentheses.
    others: Vec<Selector>,
}

impl User {
    /// A new user, which may not come in.
    pub fn new(rules: Rules<'_>) -> Self {
        User {
            flags: UserFlags::OFF,
            passwords: Vec::new(),
            root: Selector::new(rules.all_channels),
            others: Vec::new(),
        }
    }

    /// The default user as it is without a configuration: with all rights and without a password.
    pub fn unrestricted(catalogue: &Catalogue) -> Self {
        let rules = Rules { catalogue, all_channels: false };
        let mut user = User::new(rules);
        for rule in ["+@all", "~*", "&*", "on", "nopass"] {
            user.apply(rule.as_bytes(), rules).expect("a rule of the language");
        }
        user
    }

    pub fn is(&self, flag: UserFlags) -> bool {
        self.flags.contains(flag)
    }

    pub fn flags(&self) -> UserFlags {
        self.flags
    }

    /// The passwords' SHA-256, in hexadecimal digits.
    pub fn passwords(&self) -> impl ExactSizeIterator<Item = String> {
        self.passwords.iter().map(digits)
    }

    /// The permissions of the user itself.
    pub fn root(&self) -> &Selector {
        &self.root
    }

    /// Those in parentheses.
    pub fn others(&self) -> &[Selector] {
        &self.others
    }

    fn selectors(&self) -> impl Iterator<Item = &Selector> {
        std::iter::once(&self.root).chain(&self.others)
    }

    // ---- rules -----------------------------------------------------------------------------------------------------------

    /// Applies one rule. On an error it may be half applied: apply rules to a copy.
    pub fn apply(&mut self, rule: &[u8], rules: Rules<'_>) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        match rule {
            [] => {}
            _ if is("on") => self.switch(UserFlags::OFF, UserFlags::ON),
            _ if is("off") => self.switch(UserFlags::ON, UserFlags::OFF),
            _ if is("skip-sanitize-payload") => {
                self.switch(UserFlags::SANITIZE, UserFlags::SKIP_SANITIZE);
            }
            _ if is("sanitize-payload") => {
                self.switch(UserFlags::SKIP_SANITIZE, UserFlags::SANITIZE);
            }
            _ if is("nopass") => {
                self.flags |= UserFlags::NO_PASSWORD;
                self.passwords.clear();
            }
            _ if is("resetpass") => {
                self.flags -= UserFlags::NO_PASSWORD;
                self.passwords.clear();
            }
            [b'>', password @ ..] => self.add_password(hash(password)),
            [b'#', text @ ..] => self.add_password(parse_hash(text)?),
            [b'<', password @ ..] => return self.remove_password(&hash(password)),
            [b'!', text @ ..] => return self.remove_password(&parse_hash(text)?),
            [b'(', inner @ .., b')'] => self.others.push(parse_selector(inner, rules)?),
            _ if is("clearselectors") => self.others.clear(),
            _ if is("reset") => {
                let flags = UserFlags::OFF | UserFlags::SANITIZE;
                *self = User { flags, ..User::new(rules) };
            }
            _ => return self.root.apply(rule, rules.catalogue),
        }
        Ok(())
    }

    fn switch(&mut self, from: UserFlags, to: UserFlags) {
        self.flags -= from;
        self.flags |= to;
    }

    fn add_password(&mut self, password: Hash) {
        if !self.passwords.contains(&password) {
            self.passwords.push(password);
        }
        self.flags -= UserFlags::NO_PASSWORD;
    }

    fn remove_password(&mut self, password: &Hash) -> Result<(), RuleError> {
        let known = self.passwords.iter().position(|known| known == password);
        self.passwords.remove(known.ok_or(RuleError::NoSuchPassword)?);
        Ok(())
    }

    /// `requirepass`: this password and no other; an empty one asks for none.
    pub fn set_password(&mut self, password: &[u8]) {
        self.passwords.clear();
        self.flags |= UserFlags::NO_PASSWORD;
        if !password.is_empty() {
            self.add_password(hash(password));
        }
    }

    /// The names of the flags. Whether payloads are checked changes nothing here; it is shown as the form asks.
    pub fn describe_flags(&self, form: Form) -> Vec<&'static str> {
        let mut flags = self.flags;
        match form {
            Form::Redis70 => {}
            Form::Redis72 => flags.set(UserFlags::SANITIZE, !self.is(UserFlags::SKIP_SANITIZE)),
            Form::Valkey9 => flags.remove(UserFlags::SANITIZE | UserFlags::SKIP_SANITIZE),
        }
        FLAG_NAMES.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| *name).collect()
    }

    /// All that makes this user, as rules with blanks between them: what ACL LIST shows, and what files hold.
    pub fn describe(&self, catalogue: &Catalogue, form: Form) -> Vec<u8> {
        let flags = self.describe_flags(form);
        let mut words: Vec<Vec<u8>> = flags.iter().map(|name| name.as_bytes().to_vec()).collect();
        words.extend(self.passwords.iter().map(|hash| format!("#{}", digits(hash)).into_bytes()));
        words.extend(self.root.rules(catalogue, form));
        for selector in &self.others {
            let rules = selector.rules(catalogue, form);
            let rules = rules.iter().flat_map(|rules| rules.split(|&byte| byte == b' '));
            let rules: Vec<Vec<u8>> = rules.map(quoted).collect();
            words.push([b"(", &rules.join(&b' ')[..], b")"].concat());
        }
        words.join(&b' ')
    }

    // ---- checks ----------------------------------------------------------------------------------------------------------

    /// Whether somebody with this password is this user. The time this takes does not depend on which password is like it.
    pub fn accepts(&self, password: &[u8]) -> bool {
        if !self.is(UserFlags::ON) || self.is(UserFlags::NO_PASSWORD) {
            return self.is(UserFlags::ON);
        }
        let given = hash(password);
        let same = |known: &Hash| known[..].ct_eq(&given[..]);
        let none = subtle::Choice::from(0);
        self.passwords.iter().map(same).fold(none, |any, one| any | one).into()
    }

    /// Whether one set of permissions permits everything.
    pub fn is_full(&self) -> bool {
        self.selectors().any(Selector::is_full)
    }

    /// Whether one set of permissions permits a request. If none does, what is told is that its database or the command may
    /// not be used, or the last key or channel that stands in the way.
    pub fn check(&self, request: &Request<'_>) -> Result<(), Denied> {
        let keys = Keys::new();
        let mut worst = Denied { reason: Reason::Database, argument: 0 };
        for selector in self.selectors() {
            match selector.check(request, &keys) {
                Ok(()) => return Ok(()),
                Err(denied) => {
                    let order = |it: &Denied| (it.reason, it.argument);
                    if order(&denied) > order(&worst) {
                        worst = denied;
                    }
                }
            }
        }
        Err(worst)
    }

    /// Whether a request may read keys whose names nobody knows before it runs.
    pub fn may_read_any_key(&self, request: &Request<'_>) -> bool {
        let keys = Keys::new();
        self.selectors().any(|selector| {
            selector.check(request, &keys).is_ok() && selector.allows_any_key(Access::READ)
        })
    }

    /// What is left of the channels where `new` takes some of this user's: the patterns of `new`. None: nothing is taken.
    pub fn channels_left(&self, new: &User) -> Option<Vec<Box<[u8]>>> {
        if new.selectors().any(Selector::has_all_channels) {
            return None;
        }
        let left: Vec<Box<[u8]>> =
            new.selectors().flat_map(|selector| selector.channels().iter().cloned()).collect();
        let keeps = |old: &Selector| {
            !old.has_all_channels() && old.channels().iter().all(|name| left.contains(name))
        };
        if self.selectors().all(keeps) { None } else { Some(left) }
    }
}

fn hash(password: &[u8]) -> Hash {
    Sha256::digest(password).into()
}

fn digits(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// 64 lower-case hexadecimal digits.
fn parse_hash(text: &[u8]) -> Result<Hash, RuleError> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(RuleError::BadHash),
    };
    if text.len() != 64 {
        return Err(RuleError::BadHash);
    }
    let mut hash = Hash::default();
    for (byte, pair) in hash.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(hash)
}

/// What stands in parentheses: rules with blanks between them, in quotes if they hold special characters.
fn parse_selector(text: &[u8], rules: Rules<'_>) -> Result<Selector, RuleError> {
    let mut selector = Selector::new(rules.all_channels);
    if text.contains(&0) {
        return Err(RuleError::Syntax);
    }
    for rule in crate::config::split_args(text).ok_or(RuleError::Syntax)? {
        selector.apply(&rule, rules.catalogue)?;
    }
    Ok(selector)
}

/// A rule as it stands in parentheses: in quotes if it holds what would end a word, a quote or the parentheses.
fn quoted(rule: &[u8]) -> Vec<u8> {
    if !rule.iter().any(|byte| matches!(byte, b'"' | b'\'' | b'\\' | b')')) {
        return rule.to_vec();
    }
    let mut text = b"\"".to_vec();
    for &byte in rule {
        match byte {
            b'"' | b'\\' => text.extend([b'\\', byte]),
            b')' => text.extend_from_slice(b"\\x29"),
            _ => text.push(byte),
        }
    }
    text.push(b'"');
    text
}

/// Puts selectors that were taken apart at their blanks together again: `(~a`, `+get)` is one rule. Error: the argument whose
/// parenthesis is never closed.
pub fn merge<'a>(args: &[&'a [u8]]) -> Result<Vec<Vec<u8>>, &'a [u8]> {
    let mut merged = Vec::new();
    let mut open: Option<(&[u8], Vec<u8>)> = None;
    for &arg in args {
        if arg.first() == Some(&b'(') && arg.last() != Some(&b')') {
            open = Some((arg, arg.to_vec()));
        } else if let Some((_, selector)) = &mut open {
            selector.push(b' ');
            selector.extend_from_slice(arg);
            if arg.last() == Some(&b')') {
                merged.extend(open.take().map(|(_, selector)| selector));
            }
        } else {
            merged.push(arg.to_vec());
        }
    }
    match open {
        Some((arg, _)) => Err(arg),
        None => Ok(merged),
    }
}
