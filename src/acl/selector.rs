//! A selector: permissions for commands, keys, channels and databases that apply together. A user
//! has one or more.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use bitflags::bitflags;

use super::catalogue::{self, Catalogue, Entry};
use super::commands::CommandSet;
use super::databases::Databases;
use super::{Denied, Format, Reason, Request, RuleError};
use crate::collections::glob;
use crate::facts::{KeyFlags, KeyPosition};
use crate::ids::CommandId;

bitflags! {
    /// How a key may be accessed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        const READ = 1 << 0;
        const WRITE = 1 << 1;
    }
}

impl Access {
    /// The access that a command with these flags needs. Empty: any access is enough, as for
    /// EXISTS.
    pub fn needed(flags: KeyFlags) -> Self {
        let mut needed = Access::empty();
        needed.set(Access::READ, flags.contains(KeyFlags::ACCESS));
        let writes = KeyFlags::INSERT | KeyFlags::DELETE | KeyFlags::UPDATE;
        needed.set(Access::WRITE, flags.intersects(writes));
        needed
    }
}

#[derive(Clone, Debug)]
struct KeyPattern {
    access: Access,
    pattern: Box<[u8]>,
}

/// A set of permissions, by default none.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    all_commands: bool,
    all_keys: bool,
    all_channels: bool,
    commands: CommandSet,
    /// Commands that are permitted only with these first arguments.
    first_args: BTreeMap<CommandId, Vec<Box<[u8]>>>,
    /// The rules about commands since the last about all, in order, without those that a later rule
    /// overrides.
    command_rules: Vec<Box<[u8]>>,
    keys: Vec<KeyPattern>,
    channels: Vec<Box<[u8]>>,
    databases: Databases,
}

/// The keys of a request, found once for all selectors.
pub(super) type RequestKeys = OnceCell<Vec<KeyPosition>>;

impl Selector {
    /// No permissions except for channels, which `acl-pubsub-default` may permit.
    pub fn new(all_channels: bool) -> Self {
        Selector { all_channels, ..Selector::default() }
    }

    /// Whether everything is permitted.
    pub fn is_unrestricted(&self) -> bool {
        self.all_commands && self.all_keys && self.all_channels && self.databases.is_all()
    }

    pub fn has_all_channels(&self) -> bool {
        self.all_channels
    }

    pub fn channels(&self) -> &[Box<[u8]>] {
        &self.channels
    }

    pub fn databases(&self) -> &Databases {
        &self.databases
    }

    // ---- rules ----------------------------------------------------------------------------------

    /// Applies a rule about commands, keys, channels or databases.
    pub fn apply(&mut self, rule: &[u8], catalogue: &Catalogue) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        match rule {
            _ if is("allkeys") || is("~*") => self.set_all_keys(true),
            _ if is("resetkeys") => self.set_all_keys(false),
            _ if is("allchannels") || is("&*") => self.set_all_channels(true),
            _ if is("resetchannels") => self.set_all_channels(false),
            _ if is("alldbs") => self.databases = Databases::All,
            _ if is("resetdbs") => self.databases = Databases::none(),
            [b'd' | b'D', b'b' | b'B', b'=', list @ ..] => {
                self.databases = Databases::parse(list)?;
            }
            _ if is("allcommands") || is("+@all") => self.set_all_commands(catalogue, true),
            _ if is("nocommands") || is("-@all") => self.set_all_commands(catalogue, false),
            [b'~', pattern @ ..] => return self.add_keys(Access::all(), pattern),
            [b'%', rest @ ..] => {
                let (access, pattern) = parse_access(rest).ok_or(RuleError::Syntax)?;
                return self.add_keys(access, pattern);
            }
            [b'&', pattern @ ..] => return self.add_channels(pattern),
            [sign @ (b'+' | b'-'), b'@', category @ ..] => {
                let category = catalogue::category(category).ok_or(RuleError::Unknown)?;
                let allowed = *sign == b'+';
                let first_args = &mut self.first_args;
                self.commands
                    .set_category(catalogue, category, allowed, |id| drop(first_args.remove(&id)));
                self.all_commands &= allowed;
                self.record_rule(allowed, &rule[1..]);
            }
            [b'+', name @ ..] => return self.allow(name, catalogue),
            [b'-', name @ ..] => {
                let entry = catalogue.find(name).ok_or(RuleError::Unknown)?;
                self.set_command(catalogue, entry, false);
            }
            _ => return Err(RuleError::Syntax),
        }
        Ok(())
    }

    fn set_all_keys(&mut self, all: bool) {
        self.all_keys = all;
        self.keys.clear();
    }

    fn set_all_channels(&mut self, all: bool) {
        self.all_channels = all;
        self.channels.clear();
    }

    fn set_all_commands(&mut self, catalogue: &Catalogue, all: bool) {
        self.all_commands = all;
        self.commands = if all { CommandSet::all(catalogue) } else { CommandSet::default() };
        self.first_args.clear();
        self.command_rules.clear();
    }

    fn set_command(&mut self, catalogue: &Catalogue, entry: &Entry, allowed: bool) {
        self.commands.set(catalogue, entry, allowed);
        self.first_args.remove(&entry.id);
        self.all_commands &= allowed;
        self.record_rule(allowed, entry.name.as_bytes());
    }

    /// Appends a rule to `command_rules`, and removes those about the same command or its parts.
    fn record_rule(&mut self, allowed: bool, name: &[u8]) {
        let name = name.to_ascii_lowercase();
        let is_part = |rest: &[u8]| rest.is_empty() || rest[0] == b'|';
        self.command_rules.retain(|rule| !rule[1..].strip_prefix(&name[..]).is_some_and(is_part));
        self.command_rules.push([if allowed { b"+" } else { b"-" }, &name[..]].concat().into());
    }

    fn add_keys(&mut self, access: Access, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::KeysAfterAll);
        }
        check_no_spaces(pattern)?;
        match self.keys.iter_mut().find(|known| *known.pattern == *pattern) {
            Some(known) => known.access |= access,
            None => self.keys.push(KeyPattern { access, pattern: pattern.into() }),
        }
        Ok(())
    }

    fn add_channels(&mut self, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_channels {
            return Err(RuleError::ChannelsAfterAll);
        }
        check_no_spaces(pattern)?;
        if !self.channels.iter().any(|known| **known == *pattern) {
            self.channels.push(pattern.into());
        }
        Ok(())
    }

    /// `+command`, `+container|subcommand` or `+command|first-argument`.
    fn allow(&mut self, name: &[u8], catalogue: &Catalogue) -> Result<(), RuleError> {
        let Some(bar) = name.iter().rposition(|&byte| byte == b'|') else {
            let entry = catalogue.find(name).ok_or(RuleError::Unknown)?;
            self.set_command(catalogue, entry, true);
            return Ok(());
        };
        let entry = catalogue.find(&name[..bar]).ok_or(RuleError::Unknown)?;
        let argument = &name[bar + 1..];
        if entry.is_subcommand {
            return Err(RuleError::FirstArgumentOfSubcommand);
        }
        if argument.is_empty() {
            return Err(RuleError::Syntax);
        }
        if !entry.subcommands.is_empty() {
            let entry = catalogue.find(name).ok_or(RuleError::Unknown)?;
            self.set_command(catalogue, entry, true);
            return Ok(());
        }
        // Redis accepts any bytes, and writes files that it cannot load again.
        check_no_spaces(argument)?;
        let known = self.first_args.entry(entry.id).or_default();
        if !known.iter().any(|other| other.eq_ignore_ascii_case(argument)) {
            known.push(argument.into());
        }
        self.record_rule(true, name);
        Ok(())
    }

    // ---- descriptions ---------------------------------------------------------------------------

    /// The rules about commands: `-@all +get`.
    pub fn describe_commands(&self, catalogue: &Catalogue, format: Format) -> Vec<u8> {
        if format != Format::Redis70 {
            let first = if self.commands.includes_new { b"+@all" } else { b"-@all" };
            let rules = self.command_rules.iter().map(|rule| &rule[..]);
            return std::iter::once(&first[..]).chain(rules).collect::<Vec<_>>().join(&b' ');
        }
        self.commands.describe(catalogue, |entry, text| {
            for argument in self.first_args.get(&entry.id).into_iter().flatten() {
                text.extend_from_slice(b" +");
                text.extend_from_slice(entry.name.as_bytes());
                text.push(b'|');
                text.extend_from_slice(argument);
            }
        })
    }

    /// The rules about keys.
    fn key_rules(&self) -> Vec<Vec<u8>> {
        if self.all_keys {
            return vec![b"~*".to_vec()];
        }
        let rule = |known: &KeyPattern| {
            let prefix: &[u8] = match known.access {
                Access::READ => b"%R~",
                Access::WRITE => b"%W~",
                // After `~*`, other patterns would be refused.
                _ if *known.pattern == *b"*" && self.keys.len() > 1 => b"%RW~",
                _ => b"~",
            };
            [prefix, &known.pattern].concat()
        };
        self.keys.iter().map(rule).collect()
    }

    /// The rules about channels.
    fn channel_rules(&self) -> Vec<Vec<u8>> {
        if self.all_channels {
            return vec![b"&*".to_vec()];
        }
        self.channels.iter().map(|pattern| [b"&", &pattern[..]].concat()).collect()
    }

    /// The rules about keys, separated by spaces.
    pub fn describe_keys(&self) -> Vec<u8> {
        self.key_rules().join(&b' ')
    }

    /// The rules about channels, separated by spaces.
    pub fn describe_channels(&self) -> Vec<u8> {
        self.channel_rules().join(&b' ')
    }

    /// All rules. The last element has all rules about commands.
    pub(super) fn rules(&self, catalogue: &Catalogue, format: Format) -> Vec<Vec<u8>> {
        let mut rules = self.key_rules();
        if !self.all_channels {
            rules.push(b"resetchannels".to_vec());
        }
        rules.extend(self.channel_rules());
        rules.extend(self.databases.rule());
        rules.push(self.describe_commands(catalogue, format));
        rules
    }

    // ---- checks ---------------------------------------------------------------------------------

    /// Whether a request is permitted.
    pub(super) fn check(&self, request: &Request<'_>, keys: &RequestKeys) -> Result<(), Denied> {
        if !self.databases.is_all() {
            self.databases.check(request)?;
        }
        if !self.all_commands && !request.needs_no_permission && !self.allows_command(request) {
            return Err(Denied { reason: Reason::Command, argument: 0 });
        }
        if !self.all_keys {
            for key in keys.get_or_init(|| (request.keys)()) {
                let name = request.args.get(key.index);
                if !self.allows_key(name, Access::needed(key.flags)) {
                    return Err(Denied { reason: Reason::Key, argument: key.index });
                }
            }
        }
        if !self.all_channels
            && let Some(channels) = request.channels
        {
            let end = if channels.many { request.args.len() } else { channels.first + 1 };
            for argument in channels.first..end.min(request.args.len()) {
                let name = request.args.get(argument);
                if !allows_channel(&self.channels, name, channels.are_patterns) {
                    return Err(Denied { reason: Reason::Channel, argument });
                }
            }
        }
        Ok(())
    }

    fn allows_command(&self, request: &Request<'_>) -> bool {
        if self.commands.contains(request.command) {
            return true;
        }
        let Some(allowed) = self.first_args.get(&request.command) else { return false };
        let Some(first) = request.args.iter_from(1).next() else { return false };
        allowed.iter().any(|argument| argument.eq_ignore_ascii_case(first))
    }

    fn allows_key(&self, key: &[u8], needed: Access) -> bool {
        self.keys
            .iter()
            .any(|known| known.access.contains(needed) && glob::matches(&known.pattern, key, false))
    }

    /// Whether any key may be accessed in this way: for keys whose names are known only while the
    /// command runs.
    pub(super) fn allows_any_key(&self, needed: Access) -> bool {
        let is_any = |known: &KeyPattern| *known.pattern == *b"*" && known.access.contains(needed);
        self.all_keys || self.keys.iter().any(is_any)
    }
}

/// Whether patterns permit a channel. A pattern of PSUBSCRIBE must be equal to one of them.
pub fn allows_channel(patterns: &[Box<[u8]>], name: &[u8], is_pattern: bool) -> bool {
    patterns.iter().any(|pattern| match is_pattern {
        true => **pattern == *name,
        false => glob::matches(pattern, name, false),
    })
}

/// Parses the access after `%`: `R~`, `W~` or `RW~`, in any case and order. Returns the pattern
/// too.
fn parse_access(rule: &[u8]) -> Option<(Access, &[u8])> {
    let mut access = Access::empty();
    let mut rest = rule;
    while let [letter, tail @ ..] = rest {
        rest = tail;
        let new = match letter.to_ascii_uppercase() {
            b'R' => Access::READ,
            b'W' => Access::WRITE,
            b'~' => break,
            _ => return None,
        };
        if access.intersects(new) {
            return None;
        }
        access |= new;
    }
    (!access.is_empty()).then_some((access, rest))
}

/// Refuses names and patterns with spaces or NUL: files separate rules by spaces.
pub(super) fn check_no_spaces(text: &[u8]) -> Result<(), RuleError> {
    let is_refused = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | 0);
    if text.iter().any(is_refused) { Err(RuleError::Syntax) } else { Ok(()) }
}
