//! `rename-command` and `user` lines: parsed before the start; the start loads the users.
//!
//! Errors are collected: a start reports the first one, `--check-config` (`check`) all of them.

use std::collections::HashMap;

use super::Server;
use crate::acl::{Acl, RuleContext, RuleError, User, join_selectors};
use crate::command::{TABLE, load_users};
use crate::config::{Config, ConfigError, Directive, Line};
use crate::gate::users;
use crate::state::table::Command;
use crate::sys::log::{notice, warning};

/// Renamed commands by lower-case name; None: removed.
pub type RenamedCommands = HashMap<Box<[u8]>, Option<&'static Command>>;

/// Applies `rename-command` lines to the command table, one after the other, so that two commands
/// can swap names through a third. Lines with an error are left out.
pub fn renamed_commands(directives: &[Directive]) -> (RenamedCommands, Vec<ConfigError>) {
    let (mut renamed, mut errors) = (RenamedCommands::new(), Vec::new());
    for directive in directives {
        if let Err(reason) = rename(&mut renamed, directive) {
            errors.push(directive.error(reason));
        }
    }
    (renamed, errors)
}

fn rename(renamed: &mut RenamedCommands, directive: &Directive) -> Result<(), &'static str> {
    let [old, new] = &directive.args[..] else {
        return Err("wrong number of arguments");
    };
    let (old, new) = (old.to_ascii_lowercase(), new.to_ascii_lowercase());
    let find = |renamed: &RenamedCommands, name: &[u8]| match renamed.get(name) {
        Some(command) => *command,
        None => TABLE.find(name),
    };
    let Some(command) = find(renamed, &old) else {
        return Err("No such command in rename-command");
    };
    if !new.is_empty() && new != old && find(renamed, &new).is_some() {
        return Err("Target command name already exists");
    }
    renamed.insert(old.into(), None);
    if !new.is_empty() {
        renamed.insert(new.into(), Some(command));
    }
    Ok(())
}

/// A `user` line.
pub struct UserLine {
    pub name: Vec<u8>,
    pub rules: Vec<Vec<u8>>,
    pub line: Line,
}

/// Parses `user` lines. Errors: a fault in any rule, except unknown commands, which are found
/// later. Lines with an error are left out.
pub fn user_lines(directives: &[Directive]) -> (Vec<UserLine>, Vec<ConfigError>) {
    let (mut lines, mut errors) = (Vec::new(), Vec::new());
    for directive in directives {
        match user_line(directive, &lines) {
            Ok(line) => lines.push(line),
            Err(found) => errors.extend(found),
        }
    }
    (lines, errors)
}

fn user_line(directive: &Directive, known: &[UserLine]) -> Result<UserLine, Vec<ConfigError>> {
    let catalogue = TABLE.catalogue();
    let context = RuleContext { catalogue: &catalogue, all_channels: false };
    let wrong = |what: &[u8], why: &str| {
        let what = String::from_utf8_lossy(what);
        directive.error(format!("Error in user declaration '{what}': {why}"))
    };
    let [name, args @ ..] = &directive.args[..] else {
        return Err(vec![directive.error("wrong number of arguments")]);
    };
    if known.iter().any(|known| known.name == *name) {
        const TWICE: &str = "Duplicate user found. A user can only be defined once in config files";
        return Err(vec![wrong(name, TWICE)]);
    }
    let args: Vec<&[u8]> = args.iter().map(|arg| &arg[..]).collect();
    let rules = join_selectors(&args).map_err(|open| vec![wrong(open, "Wrong format")])?;
    let mut user = User::new(context);
    let (mut errors, mut unknown) = (Vec::new(), Vec::new());
    for rule in &rules {
        match user.apply(rule, context) {
            Ok(()) => {}
            Err(error @ RuleError::Unknown) => unknown.push(wrong(rule, error.text())),
            Err(error) => errors.push(wrong(rule, error.text())),
        }
    }
    if !errors.is_empty() {
        errors.extend(unknown);
        return Err(errors);
    }
    Ok(UserLine { name: name.clone(), rules, line: directive.line.clone() })
}

const BOTH: &str = "Configuring Latchkey with users defined in the configuration and at the same setting an ACL file path \
                    is invalid. This setup is very likely to lead to configuration errors and security holes, please \
                    define either an ACL file or declare users directly in your configuration, but not both.";

/// Why the users cannot be loaded. Texts are for the log.
pub struct UsersFault {
    /// The faulty `user` line; None: the fault is in `aclfile`.
    pub line: Option<Line>,
    pub text: String,
    /// The log's last line.
    end: Option<&'static str>,
}

/// The users that the start has loaded.
pub struct LoadedUsers {
    /// Lines for the log about users that cannot log in.
    pub notes: Vec<String>,
    pub faults: Vec<UsersFault>,
}

/// Creates the users of `user` lines, or of `aclfile`. `stops`: whether to stop at the first fault.
pub fn load(
    acl: &mut Acl,
    config: &Config,
    lines: &[UserLine],
    all_channels: bool,
    stops: bool,
) -> LoadedUsers {
    let mut loaded = LoadedUsers { notes: Vec::new(), faults: Vec::new() };
    let file = &config.aclfile;
    if !file.is_empty() && !lines.is_empty() {
        loaded.faults.push(UsersFault { line: None, text: BOTH.to_owned(), end: None });
    }
    for UserLine { name, rules, line } in lines {
        if stops && !loaded.faults.is_empty() {
            return loaded;
        }
        match acl.load_config_line(name, rules, all_channels) {
            Ok(false) => {}
            Ok(true) => {
                let name = String::from_utf8_lossy(name);
                loaded.notes.push(format!(
                    "The user '{name}' is disabled (there is no 'on' modifier in the user description). Make sure this \
                     is not a configuration error."
                ));
            }
            Err(errors) => loaded.faults.extend(errors.iter().map(|why| UsersFault {
                line: Some(line.clone()),
                text: String::from_utf8_lossy(why).into_owned(),
                end: Some("Critical error while loading ACLs. Exiting."),
            })),
        }
    }
    if !file.is_empty()
        && (!stops || loaded.faults.is_empty())
        && let Err(why) = load_users(acl, file, all_channels)
    {
        let why = String::from_utf8_lossy(&why);
        let text = format!("Aborting Latchkey's start because of ACL errors: {why}");
        loaded.faults.push(UsersFault { line: None, text, end: None });
    }
    loaded
}

impl Server {
    /// Creates the users of `user` lines, or of `aclfile`. False on an error, which is logged.
    pub fn load_users(&mut self, lines: &[UserLine]) -> bool {
        let state = &mut self.core.state;
        let all_channels = users::all_channels(&state.config);
        let loaded = load(&mut state.acl, &state.config, lines, all_channels, true);
        for note in loaded.notes {
            notice!(state, "{note}");
        }
        let Some(fault) = loaded.faults.first() else { return true };
        warning!(state, "{}", fault.text);
        if let Some(end) = fault.end {
            warning!(state, "{end}");
        }
        false
    }
}
