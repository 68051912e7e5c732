//! Users and what they may do.
//!
//! Rules come in as words (`on >secret ~cache:* +@read`), from the configuration, a file or ACL SETUSER; a [`User`] is made of
//! them, and asked before each request of a client whose user may not do everything. Who is connected as whom, and what
//! happens to those whose user changes, is not known here: the gate (`gate/users.rs`) keeps both together.

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
pub use user::{Rules, User, UserFlags, merge};

/// Whose way to describe a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The shortest rules that permit the same commands.
    Redis70,
    /// The rules of commands as they were given, and whether payloads are checked.
    Redis72,
    /// The rules as given, and nothing of payloads.
    Valkey9,
}

/// Why a request is denied; in the order in which one is told rather than another.
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

/// A request is denied, for a key, channel or database in this argument; 0: for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    pub reason: Reason,
    pub argument: usize,
}

/// A request, as far as permissions ask.
pub struct Request<'a> {
    pub command: CommandId,
    /// Anybody may run it, also before AUTH.
    pub is_free: bool,
    pub args: Args<'a>,
    /// Finds its keys, where they matter.
    pub keys: &'a dyn Fn() -> Vec<KeyPosition>,
    pub channels: Option<Channels>,
    pub databases: DatabasesUsed,
}

/// What is wrong with a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// No such command or category.
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

/// The name of the user that every connection begins as.
pub const DEFAULT_NAME: &[u8] = b"default";

/// What SETUSER has done.
pub struct Changed {
    pub id: UserId,
    /// The channel patterns that are left to it, if it has lost some.
    pub channels_left: Option<Vec<Box<[u8]>>>,
}

/// All users, and the log of what was denied.
pub struct Acl {
    catalogue: Catalogue,
    users: Slab<(Box<[u8]>, User)>,
    by_name: BTreeMap<Box<[u8]>, UserId>,
    pub log: Log,
}

impl Acl {
    /// With the default user alone, who may do everything.
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

    fn rules(&self, all_channels: bool) -> Rules<'_> {
        Rules { catalogue: &self.catalogue, all_channels }
    }

    pub fn find(&self, name: &[u8]) -> Option<UserId> {
        self.by_name.get(name).copied()
    }

    /// A user that is there: whose clients are told when it is deleted.
    pub fn user(&self, id: UserId) -> &User {
        &self.users[id.index()].1
    }

    pub fn name(&self, id: UserId) -> &[u8] {
        &self.users[id.index()].0
    }

    fn default_user(&mut self) -> &mut User {
        &mut self.users[UserId::DEFAULT.index()].1
    }

    /// Whether a connection that has said nothing has to authenticate.
    #[inline]
    pub fn asks_password(&self) -> bool {
        let flags = self.user(UserId::DEFAULT).flags();
        !flags.contains(UserFlags::ON | UserFlags::NO_PASSWORD)
    }

    /// Whether the default user has to name a password.
    pub fn has_default_password(&self) -> bool {
        !self.user(UserId::DEFAULT).is(UserFlags::NO_PASSWORD)
    }

    /// The names in their order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.by_name.keys().map(|name| &**name)
    }

    /// Each user as `name rules`, in the order of names.
    pub fn lines(&self, form: Form) -> impl ExactSizeIterator<Item = Vec<u8>> {
        self.by_name.iter().map(move |(name, id)| {
            let rules = self.user(*id).describe(&self.catalogue, form);
            [name, &b" "[..], &rules].concat()
        })
    }

    /// The user with this name and password.
    pub fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<UserId> {
        self.find(name).filter(|&id| self.user(id).accepts(password))
    }

    /// `requirepass`: the default user's only password, or none.
    pub fn set_default_password(&mut self, password: &[u8]) {
        self.default_user().set_password(password);
    }

    /// Applies rules to a user, which is made if it is not there: all of them or, on an error, none. Error: in words.
    pub fn set_user(
        &mut self,
        name: &[u8],
        args: &[&[u8]],
        all_channels: bool,
    ) -> Result<Changed, Vec<u8>> {
        let merged = merge(args).map_err(|open| {
            [b"Unmatched parenthesis in acl selector starting at '", open, b"'."].concat()
        })?;
        let rules = self.rules(all_channels);
        let old = self.find(name);
        let mut user = old.map_or_else(|| User::new(rules), |id| self.user(id).clone());
        for rule in merged {
            user.apply(&rule, rules).map_err(|error| {
                let text = error.text().as_bytes();
                [b"Error in ACL SETUSER modifier '", &rule[..], b"': ", text].concat()
            })?;
        }
        let channels_left = old.and_then(|id| self.user(id).channels_left(&user));
        Ok(Changed { id: self.put(name, user), channels_left })
    }

    /// Puts a user in the place of the one with its name, if there is one.
    fn put(&mut self, name: &[u8], user: User) -> UserId {
        if let Some(id) = self.find(name) {
            self.users[id.index()].1 = user;
            return id;
        }
        let id = UserId(self.users.insert((name.into(), user)) as u32);
        self.by_name.insert(name.into(), id);
        id
    }

    /// Deletes a user, which is not the default one. None: there is none. Its id may be another user's from now on.
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
    selector::check_plain(name).is_ok()
}
