//! Users and their permissions.
//!
//! A [`User`] is made from rules (`on >secret ~cache:* +@read`) of the configuration, a file or ACL
//! SETUSER. The gate checks each request of a client whose user is restricted. This module knows no
//! clients: `gate/users.rs` knows each client's user.
//!
//! `user` has flags, passwords and selectors; a `selector` has `commands`, keys, channels and
//! `databases`. `catalogue` is the commands that rules may name, `file` the users of a file, `log`
//! the log of denials.

pub mod catalogue;
mod commands;
pub mod databases;
mod file;
pub mod log;
mod selector;
#[cfg(test)]
mod tests;
mod user;

use std::collections::BTreeMap;

use slab::Slab;

use crate::facts::{Channels, KeyPosition};
use crate::ids::{CommandId, UserId};
use crate::resp::args::Args;
use catalogue::Catalogue;
use databases::DatabasesUsed;
use log::Log;

pub use file::Loaded;
pub use selector::{Selector, allows_channel};
pub use user::{RuleContext, User, UserFlags, join_selectors};

/// The format in which users are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The shortest rules that permit the same commands.
    Redis70,
    /// The command rules as given, and whether payloads are sanitized.
    Redis72,
    /// The command rules as given.
    Valkey9,
}

/// Why a request is denied. If selectors give several reasons, the greatest is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    Database,
    Command,
    Key,
    /// A wrong password.
    Auth,
    Channel,
}

impl Reason {
    /// As in ACL LOG.
    pub fn word(self) -> &'static str {
        match self {
            Reason::Database => "database",
            Reason::Command => "command",
            Reason::Key => "key",
            Reason::Auth => "auth",
            Reason::Channel => "channel",
        }
    }
}

/// A denial. `argument`: the index of the key, channel or database that is denied, or 0 for the
/// command itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    pub reason: Reason,
    pub argument: usize,
}

/// The properties of a request that permission checks need.
pub struct Request<'a> {
    pub command: CommandId,
    /// The command needs no permission, such as AUTH.
    pub needs_no_permission: bool,
    pub args: Args<'a>,
    /// Finds its keys. Called only for users with restricted keys.
    pub keys: &'a dyn Fn() -> Vec<KeyPosition>,
    pub channels: Option<Channels>,
    pub databases: DatabasesUsed,
}

/// Why a rule is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// There is no such command or category.
    Unknown,
    Syntax,
    KeysAfterAll,
    ChannelsAfterAll,
    NoSuchPassword,
    BadHash,
    FirstArgumentOfSubcommand,
    NoSuchDatabase,
}

impl RuleError {
    pub fn text(self) -> &'static str {
        match self {
            RuleError::Unknown => "Unknown command or category name in ACL",
            RuleError::Syntax => "Syntax error",
            RuleError::KeysAfterAll => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. \
                 Try 'resetkeys' to start with an empty list of patterns"
            }
            RuleError::ChannelsAfterAll => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any \
                 effect. Try 'resetchannels' to start with an empty list of channels"
            }
            RuleError::NoSuchPassword => {
                "The password you are trying to remove from the user does not exist"
            }
            RuleError::BadHash => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            RuleError::NoSuchDatabase => "The provided database ID is out of range",
            RuleError::FirstArgumentOfSubcommand => {
                "Allowing first-arg of a subcommand is not supported"
            }
        }
    }
}

/// The user of new connections.
pub const DEFAULT_NAME: &[u8] = b"default";

/// A user that was set.
pub struct ChangedUser {
    pub id: UserId,
    /// Its channel patterns, if it has fewer than before.
    pub remaining_channels: Option<Vec<Box<[u8]>>>,
}

/// All users, and the log of denials.
pub struct Acl {
    catalogue: Catalogue,
    users: Slab<(Box<[u8]>, User)>,
    by_name: BTreeMap<Box<[u8]>, UserId>,
    pub log: Log,
}

impl Acl {
    /// Only the default user, without restrictions.
    pub fn new(catalogue: Catalogue) -> Self {
        let user = User::unrestricted(&catalogue);
        let (users, by_name) = (Slab::new(), BTreeMap::new());
        let mut acl = Acl { catalogue, users, by_name, log: Log::default() };
        let id = acl.put(DEFAULT_NAME, user);
        debug_assert_eq!(id, UserId::DEFAULT);
        acl
    }

    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    fn rule_context(&self, all_channels: bool) -> RuleContext<'_> {
        RuleContext { catalogue: &self.catalogue, all_channels }
    }

    pub fn find(&self, name: &[u8]) -> Option<UserId> {
        self.by_name.get(name).copied()
    }

    /// The user with this ID, which must exist.
    pub fn user(&self, id: UserId) -> &User {
        &self.users[id.index()].1
    }

    pub fn name(&self, id: UserId) -> &[u8] {
        &self.users[id.index()].0
    }

    fn default_user(&mut self) -> &mut User {
        &mut self.users[UserId::DEFAULT.index()].1
    }

    /// Whether new connections have to authenticate.
    #[inline]
    pub fn requires_auth(&self) -> bool {
        let flags = self.user(UserId::DEFAULT).flags();
        !flags.contains(UserFlags::ON | UserFlags::NO_PASSWORD)
    }

    /// Whether the default user needs a password.
    pub fn default_needs_password(&self) -> bool {
        !self.user(UserId::DEFAULT).has_flag(UserFlags::NO_PASSWORD)
    }

    /// The names in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.by_name.keys().map(|name| &**name)
    }

    /// Each user as `name rules`, in the order of names.
    pub fn lines(&self, format: Format) -> impl ExactSizeIterator<Item = Vec<u8>> {
        self.by_name.iter().map(move |(name, id)| {
            let rules = self.user(*id).describe(&self.catalogue, format);
            [name, &b" "[..], &rules].concat()
        })
    }

    /// The user with this name and password.
    pub fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<UserId> {
        self.find(name).filter(|&id| self.user(id).accepts(password))
    }

    /// `requirepass`: sets the default user's only password; an empty one removes it.
    pub fn set_default_password(&mut self, password: &[u8]) {
        self.default_user().set_password(password);
    }

    /// Creates a user, or applies rules to an existing one: all of them or, on an error, none.
    /// Error: a text.
    pub fn set_user(
        &mut self,
        name: &[u8],
        args: &[&[u8]],
        all_channels: bool,
    ) -> Result<ChangedUser, Vec<u8>> {
        let rules = join_selectors(args).map_err(|open| {
            [b"Unmatched parenthesis in acl selector starting at '", open, b"'."].concat()
        })?;
        let context = self.rule_context(all_channels);
        let old = self.find(name);
        let mut user = old.map_or_else(|| User::new(context), |id| self.user(id).clone());
        for rule in rules {
            user.apply(&rule, context).map_err(|error| {
                let text = error.text().as_bytes();
                [b"Error in ACL SETUSER modifier '", &rule[..], b"': ", text].concat()
            })?;
        }
        let remaining_channels = old.and_then(|id| self.user(id).remaining_channels(&user));
        Ok(ChangedUser { id: self.put(name, user), remaining_channels })
    }

    /// Adds a user, or replaces the one with that name.
    fn put(&mut self, name: &[u8], user: User) -> UserId {
        if let Some(id) = self.find(name) {
            self.users[id.index()].1 = user;
            return id;
        }
        let id = UserId(self.users.insert((name.into(), user)) as u32);
        self.by_name.insert(name.into(), id);
        id
    }

    /// Deletes a user other than the default one. None: there is none. Its ID may be used again.
    pub fn delete(&mut self, name: &[u8]) -> Option<UserId> {
        if name == DEFAULT_NAME {
            return None;
        }
        let id = self.by_name.remove(name)?;
        self.users.remove(id.index());
        Some(id)
    }
}

/// Whether a name can be a user's.
pub fn is_user_name(name: &[u8]) -> bool {
    selector::check_no_spaces(name).is_ok()
}
