//! A user: its flags, passwords and permissions.

use bitflags::bitflags;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::catalogue::Catalogue;
use super::selector::{Access, RequestKeys, Selector};
use super::{Denied, Format, Reason, Request, RuleError};

bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct UserFlags: u8 {
        const ON = 1 << 0;
        const OFF = 1 << 1;
        /// Any password is accepted.
        const NO_PASSWORD = 1 << 2;
        const SKIP_SANITIZE = 1 << 3;
        const SANITIZE = 1 << 4;
    }
}

/// The names of the flags, in the order in which they are shown.
const FLAG_NAMES: &[(UserFlags, &str)] = &[
    (UserFlags::ON, "on"),
    (UserFlags::OFF, "off"),
    (UserFlags::NO_PASSWORD, "nopass"),
    (UserFlags::SKIP_SANITIZE, "skip-sanitize-payload"),
    (UserFlags::SANITIZE, "sanitize-payload"),
];

/// The settings on which the meaning of rules depends.
#[derive(Clone, Copy)]
pub struct RuleContext<'a> {
    pub catalogue: &'a Catalogue,
    /// `acl-pubsub-default`: new users and selectors may access all channels.
    pub all_channels: bool,
}

/// The SHA-256 of a password.
type Hash = [u8; 32];

/// A user. [`Acl`](super::Acl) knows its name.
#[derive(Clone, Debug)]
pub struct User {
    flags: UserFlags,
    passwords: Vec<Hash>,
    root: Selector,
    /// The selectors in parentheses.
    others: Vec<Selector>,
}

impl User {
    /// A new user, which is off and has no permissions.
    pub fn new(context: RuleContext<'_>) -> Self {
        User {
            flags: UserFlags::OFF,
            passwords: Vec::new(),
            root: Selector::new(context.all_channels),
            others: Vec::new(),
        }
    }

    /// A user with all permissions and without a password: the default user, unless it is
    /// configured.
    pub fn unrestricted(catalogue: &Catalogue) -> Self {
        let context = RuleContext { catalogue, all_channels: false };
        let mut user = User::new(context);
        for rule in ["+@all", "~*", "&*", "on", "nopass"] {
            user.apply(rule.as_bytes(), context).expect("a valid rule");
        }
        user
    }

    pub fn has_flag(&self, flag: UserFlags) -> bool {
        self.flags.contains(flag)
    }

    pub fn flags(&self) -> UserFlags {
        self.flags
    }

    /// The SHA-256 of each password, in hexadecimal.
    pub fn passwords(&self) -> impl ExactSizeIterator<Item = String> {
        self.passwords.iter().map(|hash| base16ct::lower::encode_string(hash))
    }

    /// The first selector, which has no parentheses.
    pub fn root(&self) -> &Selector {
        &self.root
    }

    /// The selectors in parentheses.
    pub fn others(&self) -> &[Selector] {
        &self.others
    }

    fn selectors(&self) -> impl Iterator<Item = &Selector> {
        std::iter::once(&self.root).chain(&self.others)
    }

    // ---- rules ----------------------------------------------------------------------------------

    /// Applies a rule. On an error, it may be partly applied: apply rules to a copy.
    pub fn apply(&mut self, rule: &[u8], context: RuleContext<'_>) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        match rule {
            [] => {}
            _ if is("on") => self.replace_flag(UserFlags::OFF, UserFlags::ON),
            _ if is("off") => self.replace_flag(UserFlags::ON, UserFlags::OFF),
            _ if is("skip-sanitize-payload") => {
                self.replace_flag(UserFlags::SANITIZE, UserFlags::SKIP_SANITIZE);
            }
            _ if is("sanitize-payload") => {
                self.replace_flag(UserFlags::SKIP_SANITIZE, UserFlags::SANITIZE);
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
            [b'(', inner @ .., b')'] => self.others.push(parse_selector(inner, context)?),
            _ if is("clearselectors") => self.others.clear(),
            _ if is("reset") => {
                let flags = UserFlags::OFF | UserFlags::SANITIZE;
                *self = User { flags, ..User::new(context) };
            }
            _ => return self.root.apply(rule, context.catalogue),
        }
        Ok(())
    }

    fn replace_flag(&mut self, from: UserFlags, to: UserFlags) {
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

    /// `requirepass`: sets the only password; with an empty one, none is needed.
    pub fn set_password(&mut self, password: &[u8]) {
        self.passwords.clear();
        self.flags |= UserFlags::NO_PASSWORD;
        if !password.is_empty() {
            self.add_password(hash(password));
        }
    }

    /// The names of the flags. Those about payloads have no effect; the format decides whether they
    /// are shown.
    pub fn describe_flags(&self, format: Format) -> Vec<&'static str> {
        let mut flags = self.flags;
        match format {
            Format::Redis70 => {}
            Format::Redis72 => {
                flags.set(UserFlags::SANITIZE, !self.has_flag(UserFlags::SKIP_SANITIZE))
            }
            Format::Valkey9 => flags.remove(UserFlags::SANITIZE | UserFlags::SKIP_SANITIZE),
        }
        FLAG_NAMES.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| *name).collect()
    }

    /// The user as rules, separated by spaces: for ACL LIST and files.
    pub fn describe(&self, catalogue: &Catalogue, format: Format) -> Vec<u8> {
        let flags = self.describe_flags(format);
        let mut words: Vec<Vec<u8>> = flags.iter().map(|name| name.as_bytes().to_vec()).collect();
        words.extend(
            self.passwords
                .iter()
                .map(|hash| format!("#{}", base16ct::lower::encode_string(hash)).into_bytes()),
        );
        words.extend(self.root.rules(catalogue, format));
        for selector in &self.others {
            let rules = selector.rules(catalogue, format);
            let rules = rules.iter().flat_map(|rules| rules.split(|&byte| byte == b' '));
            let rules: Vec<Vec<u8>> = rules.map(quoted).collect();
            words.push([b"(", &rules.join(&b' ')[..], b")"].concat());
        }
        words.join(&b' ')
    }

    // ---- checks ---------------------------------------------------------------------------------

    /// Whether the user accepts this password. Compares in constant time.
    pub fn accepts(&self, password: &[u8]) -> bool {
        if !self.has_flag(UserFlags::ON) || self.has_flag(UserFlags::NO_PASSWORD) {
            return self.has_flag(UserFlags::ON);
        }
        let given = hash(password);
        let equals = |known: &Hash| known[..].ct_eq(&given[..]);
        let none = subtle::Choice::from(0);
        self.passwords.iter().map(equals).fold(none, |any, one| any | one).into()
    }

    /// Whether a selector permits everything.
    pub fn is_unrestricted(&self) -> bool {
        self.selectors().any(Selector::is_unrestricted)
    }

    /// Whether a selector permits a request. If none does, returns the greatest of their
    /// [`Denied`]: by reason, then by argument.
    pub fn check(&self, request: &Request<'_>) -> Result<(), Denied> {
        let keys = RequestKeys::new();
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

    /// Whether a request may read keys whose names are known only while it runs.
    pub fn may_read_any_key(&self, request: &Request<'_>) -> bool {
        let keys = RequestKeys::new();
        self.selectors().any(|selector| {
            selector.check(request, &keys).is_ok() && selector.allows_any_key(Access::READ)
        })
    }

    /// The channel patterns of `new`, if it lacks some of this user's. None: it lacks none.
    pub fn remaining_channels(&self, new: &User) -> Option<Vec<Box<[u8]>>> {
        if new.selectors().any(Selector::has_all_channels) {
            return None;
        }
        let remaining: Vec<Box<[u8]>> =
            new.selectors().flat_map(|selector| selector.channels().iter().cloned()).collect();
        let is_kept = |old: &Selector| {
            !old.has_all_channels() && old.channels().iter().all(|name| remaining.contains(name))
        };
        if self.selectors().all(is_kept) { None } else { Some(remaining) }
    }
}

fn hash(password: &[u8]) -> Hash {
    Sha256::digest(password).into()
}

/// Parses 64 lower-case hexadecimal digits.
fn parse_hash(text: &[u8]) -> Result<Hash, RuleError> {
    let mut hash = Hash::default();
    match base16ct::lower::decode(text, &mut hash) {
        Ok(decoded) if decoded.len() == size_of::<Hash>() => Ok(hash),
        _ => Err(RuleError::BadHash),
    }
}

/// Parses the text between parentheses: rules separated by spaces, quoted if they have special
/// characters.
fn parse_selector(text: &[u8], context: RuleContext<'_>) -> Result<Selector, RuleError> {
    let mut selector = Selector::new(context.all_channels);
    if text.contains(&0) {
        return Err(RuleError::Syntax);
    }
    for rule in crate::config::split_args(text).ok_or(RuleError::Syntax)? {
        selector.apply(&rule, context.catalogue)?;
    }
    Ok(selector)
}

/// A rule for use between parentheses: quoted if it contains quotes, backslashes or a closing
/// parenthesis.
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

/// Joins selectors that were split at spaces: `(~a`, `+get)` is one rule. Error: the argument whose
/// parenthesis is not closed.
pub fn join_selectors<'a>(args: &[&'a [u8]]) -> Result<Vec<Vec<u8>>, &'a [u8]> {
    let mut rules = Vec::new();
    let mut open: Option<(&[u8], Vec<u8>)> = None;
    for &arg in args {
        if arg.first() == Some(&b'(') && arg.last() != Some(&b')') {
            open = Some((arg, arg.to_vec()));
        } else if let Some((_, selector)) = &mut open {
            selector.push(b' ');
            selector.extend_from_slice(arg);
            if arg.last() == Some(&b')') {
                rules.extend(open.take().map(|(_, selector)| selector));
            }
        } else {
            rules.push(arg.to_vec());
        }
    }
    match open {
        Some((arg, _)) => Err(arg),
        None => Ok(rules),
    }
}
