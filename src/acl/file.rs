//! Users from the configuration's `user` lines and from the file that `aclfile` names.

use std::collections::HashSet;

use super::{Acl, Changed, DEFAULT_NAME, Form, RuleError, User, UserFlags, is_user_name, merge};
use crate::ids::UserId;

/// What has come of a file.
pub struct Loaded {
    /// Users that are gone: who is connected as one has to go.
    pub deleted: Vec<UserId>,
    /// Users that have lost channels.
    pub changed: Vec<Changed>,
}

/// Users as lines name them.
type Users = Vec<(Box<[u8]>, User)>;

impl Acl {
    /// Sets the users of `user` lines, each its name and rules. The default user begins without any rights there. Returns those
    /// that are off, of whom the log is to tell. Error: what the log says.
    pub fn load_lines(
        &mut self,
        lines: &[(Vec<u8>, Vec<Vec<u8>>)],
        all_channels: bool,
    ) -> Result<Vec<Vec<u8>>, Vec<u8>> {
        let mut off = Vec::new();
        for (name, line) in lines {
            if !is_user_name(name) {
                return Err(b"Spaces not allowed in ACL usernames".to_vec());
            }
            let rules = self.rules(all_channels);
            let mut user = User::new(rules);
            if name == DEFAULT_NAME {
                let done = user.apply(b"reset", rules);
                debug_assert_eq!(done, Ok(()));
            }
            for rule in line {
                user.apply(rule, rules).map_err(|error| {
                    let what: &[u8] = b"' for the user named '";
                    let why = error.text().as_bytes();
                    [b"Error loading ACL rule '", &rule[..], what, name, b"': ", why].concat()
                })?;
            }
            if user.is(UserFlags::OFF) {
                off.push(name.clone());
            }
            self.put(name, user);
        }
        Ok(off)
    }

    /// Takes the users of a file's text in place of those there are: all of them or, on an error, none. Error: in words.
    pub fn load_text(
        &mut self,
        text: &[u8],
        file: &[u8],
        all_channels: bool,
    ) -> Result<Loaded, Vec<u8>> {
        let (mut users, errors) = self.parse(text, file, all_channels);
        if !errors.is_empty() {
            let end =
                b"WARNING: ACL errors detected, no change to the previously active ACL rules was performed";
            return Err([&errors[..], end].concat());
        }
        if !users.iter().any(|(name, _)| **name == *DEFAULT_NAME) {
            users.push((DEFAULT_NAME.into(), User::unrestricted(&self.catalogue)));
        }
        let kept: HashSet<&[u8]> = users.iter().map(|(name, _)| &**name).collect();
        let gone: Vec<Box<[u8]>> =
            self.by_name.keys().filter(|name| !kept.contains(&***name)).cloned().collect();
        let deleted = gone.iter().filter_map(|name| self.delete(name)).collect();
        let mut changed = Vec::new();
        for (name, user) in users {
            let old = self.find(&name);
            let channels_left = old.and_then(|id| self.user(id).channels_left(&user));
            let id = self.put(&name, user);
            changed.push(Changed { id, channels_left });
        }
        Ok(Loaded { deleted, changed })
    }

    /// The users of a file's text, and what is wrong with it.
    fn parse(&self, text: &[u8], file: &[u8], all_channels: bool) -> (Users, Vec<u8>) {
        let mut users = Users::new();
        let mut errors = Vec::new();
        let mut known = HashSet::new();
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let at = [file, format!(":{}", index + 1).as_bytes()].concat();
            let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
            let [b"user", name, line @ ..] = &words[..] else {
                errors.extend_from_slice(&at);
                errors.extend_from_slice(
                    b" should start with user keyword followed by the username. ",
                );
                continue;
            };
            if !is_user_name(name) {
                let what = b"' contains invalid characters. ";
                errors.extend([b"'", &at[..], b": username '", name, what].concat());
                continue;
            }
            if !known.insert(*name) {
                let line = format!("' found on line {}. ", index + 1);
                errors.extend([b"WARNING: Duplicate user '", *name, line.as_bytes()].concat());
                continue;
            }
            let mut user = User::new(self.rules(all_channels));
            self.apply_line(&mut user, line, &at, all_channels, &mut errors);
            users.push(((*name).into(), user));
        }
        (users, errors)
    }

    /// Applies a line's rules. Of unknown names all are told, of other mistakes the first: what follows may come from it.
    fn apply_line(
        &self,
        user: &mut User,
        line: &[&[u8]],
        at: &[u8],
        all_channels: bool,
        errors: &mut Vec<u8>,
    ) {
        let Ok(merged) = merge(line) else {
            errors.extend([at, b": Unmatched parenthesis in selector definition."].concat());
            return;
        };
        let mut is_told = false;
        for rule in merged {
            let rule = rule.trim_ascii();
            match user.apply(rule, self.rules(all_channels)) {
                Ok(()) => {}
                Err(error @ RuleError::Unknown) => {
                    let why = error.text().as_bytes();
                    let what = b": Error in applying operation '";
                    errors.extend([at, what, rule, b"': ", why, b". "].concat());
                }
                Err(error) if !is_told => {
                    errors.extend([at, b": ", error.text().as_bytes(), b". "].concat());
                    is_told = true;
                }
                Err(_) => {}
            }
        }
    }

    /// The text of a file with all users.
    pub fn file_text(&self, form: Form) -> Vec<u8> {
        self.lines(form).flat_map(|line| [b"user ", &line[..], b"\n"].concat()).collect()
    }
}
