//! Users from the configuration's `user` lines and from the file that `aclfile` names.

use std::collections::HashSet;

use super::{
    Acl, ChangedUser, DEFAULT_NAME, Format, RuleError, User, UserFlags, is_user_name,
    join_selectors,
};
use crate::ids::UserId;

/// The result of loading a file.
pub struct Loaded {
    /// Deleted users, whose clients must be closed.
    pub deleted: Vec<UserId>,
    /// All users of the file.
    pub changed: Vec<ChangedUser>,
}

/// Users with their names, in the order of lines.
type Users = Vec<(Box<[u8]>, User)>;

impl Acl {
    /// Sets the user of a `user` line. `default` starts without permissions. Returns whether the
    /// user is off. Errors: texts for the log; then the user is not set.
    pub fn load_config_line(
        &mut self,
        name: &[u8],
        rules: &[Vec<u8>],
        all_channels: bool,
    ) -> Result<bool, Vec<Vec<u8>>> {
        if !is_user_name(name) {
            return Err(vec![b"Spaces not allowed in ACL usernames".to_vec()]);
        }
        let context = self.rule_context(all_channels);
        let mut user = User::new(context);
        if name == DEFAULT_NAME {
            let applied = user.apply(b"reset", context);
            debug_assert_eq!(applied, Ok(()));
        }
        let mut errors = Vec::new();
        for rule in rules {
            if let Err(error) = user.apply(rule, context) {
                let what: &[u8] = b"' for the user named '";
                let why = error.text().as_bytes();
                errors.push(
                    [b"Error loading ACL rule '", &rule[..], what, name, b"': ", why].concat(),
                );
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let is_off = user.has_flag(UserFlags::OFF);
        self.put(name, user);
        Ok(is_off)
    }

    /// Replaces all users by those of a file's text, or none on an error. Error: a text.
    pub fn load_file_text(
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
        let removed: Vec<Box<[u8]>> =
            self.by_name.keys().filter(|name| !kept.contains(&***name)).cloned().collect();
        let deleted = removed.iter().filter_map(|name| self.delete(name)).collect();
        let mut changed = Vec::new();
        for (name, user) in users {
            let old = self.find(&name);
            let remaining_channels = old.and_then(|id| self.user(id).remaining_channels(&user));
            let id = self.put(&name, user);
            changed.push(ChangedUser { id, remaining_channels });
        }
        Ok(Loaded { deleted, changed })
    }

    /// The users of a file's text, and its errors.
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
            let mut user = User::new(self.rule_context(all_channels));
            self.apply_line(&mut user, line, &at, all_channels, &mut errors);
            users.push(((*name).into(), user));
        }
        (users, errors)
    }

    /// Applies a line's rules. Reports all unknown names, and the first of other errors, as later
    /// ones may follow from it.
    fn apply_line(
        &self,
        user: &mut User,
        line: &[&[u8]],
        at: &[u8],
        all_channels: bool,
        errors: &mut Vec<u8>,
    ) {
        let Ok(rules) = join_selectors(line) else {
            errors.extend([at, b": Unmatched parenthesis in selector definition."].concat());
            return;
        };
        let mut has_error = false;
        for rule in rules {
            let rule = rule.trim_ascii();
            match user.apply(rule, self.rule_context(all_channels)) {
                Ok(()) => {}
                Err(error @ RuleError::Unknown) => {
                    let why = error.text().as_bytes();
                    let what = b": Error in applying operation '";
                    errors.extend([at, what, rule, b"': ", why, b". "].concat());
                }
                Err(error) if !has_error => {
                    errors.extend([at, b": ", error.text().as_bytes(), b". "].concat());
                    has_error = true;
                }
                Err(_) => {}
            }
        }
    }

    /// All users as the text of a file.
    pub fn to_file_text(&self, format: Format) -> Vec<u8> {
        self.lines(format).flat_map(|line| [b"user ", &line[..], b"\n"].concat()).collect()
    }
}
