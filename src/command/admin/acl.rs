//! ACL: users, their permissions, and the log of denials.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::acl::{Acl, Format, Selector, catalogue, is_user_name};
use crate::command::help::reply_help;
use crate::config::{replace_file, system_text};
use crate::error::CommandError;
use crate::facts::CATEGORY_NAMES;
use crate::gate::request::Request;
use crate::gate::users::{self, Databases};
use crate::ids::UserId;
use crate::resp::number;
use crate::resp::reply::ReplyWriter;
use crate::state::State;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, Secrets, container, spec};
use crate::sys::log::warning;
use crate::sys::random;

const NOSCRIPT_LOADING_STALE: Flags = Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE);

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("ACL", SUBCOMMANDS).group(Group::Server).since("6.0.0")
        .docs("", "Manages users and their permissions.", "Depends on the subcommand"),
];

#[rustfmt::skip]
const SUBCOMMANDS: &[CommandSpec] = &[
    spec("CAT", cat).at_least(2).flags(NOSCRIPT_LOADING_STALE).group(Group::Server).since("6.0.0")
        .docs("[category]", "Lists the categories, or the commands of one.", "O(N), N commands"),
    spec("DELUSER", delete).at_least(3).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).group(Group::Server).since("6.0.0")
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .docs("username [username ...]", "Deletes users and closes their connections.", "O(N), N connections"),
    spec("DRYRUN", dry_run).at_least(4).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).group(Group::Server).since("7.0.0")
        .docs("username command [arg [arg ...]]", "Determines whether a user may run a command, without running it.", "O(1)"),
    spec("GENPASS", generate).at_least(2).flags(NOSCRIPT_LOADING_STALE).group(Group::Server).since("6.0.0")
        .docs("[bits]", "Generates a random password.", "O(1)"),
    spec("GETUSER", get).exactly(3).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).group(Group::Server).since("6.0.0")
        .docs("username", "Returns a user's permissions.", "O(N), N commands"),
    spec("HELP", help).exactly(2).flags(Flags::LOADING_STALE).group(Group::Server).since("6.0.0")
        .docs("", "Lists these subcommands.", "O(1)"),
    spec("LIST", list).exactly(2).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).group(Group::Server).since("6.0.0")
        .docs("", "Lists the users as lines of a configuration.", "O(N), N users"),
    spec("LOAD", load).exactly(2).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).group(Group::Server).since("6.0.0")
        .docs("", "Reads the users from the file that aclfile names.", "O(N), N users").tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    spec("LOG", log).at_least(2).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).group(Group::Server).since("6.0.0")
        .docs("[count | RESET]", "Lists the latest denials.", "O(N), N entries"),
    spec("SAVE", save).exactly(2).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).group(Group::Server).since("6.0.0")
        .docs("", "Writes the users to the file that aclfile names.", "O(N), N users").tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    spec("SETUSER", set).at_least(3).secrets(Secrets::From(2)).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).group(Group::Server).since("6.0.0")
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .docs("username [rule [rule ...]]", "Creates a user, or changes a user's permissions.", "O(N), N rules"),
    spec("USERS", names).exactly(2).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).group(Group::Server).since("6.0.0")
        .docs("", "Lists the users' names.", "O(N), N users"),
    spec("WHOAMI", who_am_i).exactly(2).flags(NOSCRIPT_LOADING_STALE.union(Flags::NEEDS_CLIENT)).group(Group::Server).since("6.0.0")
        .docs("", "Returns the user of this connection.", "O(1)"),
];

const BAD_NAME: CommandError =
    CommandError::Text("ERR Usernames can't contain spaces or null characters");
const DEFAULT_STAYS: CommandError = CommandError::Text("ERR The 'default' user cannot be removed");
const NO_FILE: CommandError = CommandError::Text(
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER command \
     and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store users in the Redis \
     configuration.",
);
const NOT_SAVED: CommandError = CommandError::Text(
    "ERR There was an error trying to save the ACLs. Please check the server logs for more information",
);
const BITS: CommandError = CommandError::Text(
    "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096",
);
/// Default and maximum bits of a generated password.
const BITS_DEFAULT: i64 = 256;
const BITS_MAX: i64 = 4096;
/// Default number of entries in ACL LOG's reply.
const LOG_DEFAULT: i64 = 10;

fn error(before: &str, part: &[u8], after: &str) -> CommandError {
    CommandError::of_parts(&[b"ERR ", before.as_bytes(), part, after.as_bytes()])
}

// ---- users --------------------------------------------------------------------------------------

/// `ACL SETUSER username [rule [rule ...]]`: `OK`. An error in any rule changes nothing.
fn set(ctx: &mut Context<'_>) -> CommandResult {
    let name = ctx.args.get(2);
    if !is_user_name(name) {
        return Err(BAD_NAME);
    }
    let rules: Vec<&[u8]> = ctx.args.iter_from(3).collect();
    let all_channels = users::all_channels(&ctx.core.state.config);
    let changed = ctx.core.state.acl.set_user(name, &rules, all_channels);
    let changed = changed.map_err(|text| error("", &text, ""))?;
    warn_about_first_arguments(&ctx.core.state, &rules);
    let caller = ctx.caller.client();
    ctx.reply.ok();
    match users::update_clients_of(ctx.core, &changed, caller) {
        true => Ok(Outcome::Close),
        false => Ok(Outcome::Replied),
    }
}

/// Logs a warning about applied rules that allow a command with one first argument.
fn warn_about_first_arguments(state: &State, rules: &[&[u8]]) {
    let catalogue = state.acl.catalogue();
    for rule in rules {
        let rule = rule.strip_prefix(b"(").unwrap_or(rule);
        let rule = rule.strip_suffix(b")").unwrap_or(rule);
        let Some(name) = rule.strip_prefix(b"+").filter(|name| name.contains(&b'|')) else {
            continue;
        };
        if catalogue.find(name).is_none() {
            let offender = String::from_utf8_lossy(name);
            warning!(
                state,
                "Deprecation warning: Allowing a first arg of an otherwise blocked command is a misuse of ACL and may get \
                     disabled in the future (offender: +{offender})"
            );
        }
    }
}

/// `ACL DELUSER username [username ...]`: the number of deleted users. Their connections are
/// closed.
fn delete(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.iter_from(2).any(|name| name == crate::acl::DEFAULT_NAME) {
        return Err(DEFAULT_STAYS);
    }
    let acl = &mut ctx.core.state.acl;
    let deleted: Vec<_> = ctx.args.iter_from(2).filter_map(|name| acl.delete(name)).collect();
    ctx.reply.integer(deleted.len() as i64);
    let caller = ctx.caller.client();
    match users::close_clients_of(ctx.core, &deleted, caller) {
        true => Ok(Outcome::Close),
        false => Ok(Outcome::Replied),
    }
}

/// `ACL GETUSER username`: a map of flags, passwords' hashes, rules and selectors; nil if there is
/// no such user.
fn get(ctx: &mut Context<'_>) -> CommandResult {
    let (acl, format) = (&ctx.core.state.acl, users::rule_format(&ctx.core.state));
    let reply = &mut ctx.reply;
    let Some(user) = acl.find(ctx.args.get(2)).map(|id| acl.user(id)) else {
        reply.null();
        return Ok(Outcome::Replied);
    };
    // Redis has no such rules: its replies have this entry only if a rule is used.
    let shows_databases = format == Format::Valkey9
        || std::iter::once(user.root())
            .chain(user.others())
            .any(|selector| !selector.databases().is_all());
    reply.map(6 + usize::from(shows_databases));
    reply.bulk(b"flags");
    let flags = user.describe_flags(format);
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"passwords");
    reply.array(user.passwords().len());
    user.passwords().for_each(|hash| reply.bulk(hash.as_bytes()));
    describe_selector(acl, user.root(), format, shows_databases, reply);
    reply.bulk(b"selectors");
    reply.array(user.others().len());
    for selector in user.others() {
        reply.map(3 + usize::from(shows_databases));
        describe_selector(acl, selector, format, shows_databases, reply);
    }
    Ok(Outcome::Replied)
}

/// Writes a selector as three or four entries of a map.
fn describe_selector(
    acl: &Acl,
    selector: &Selector,
    format: Format,
    shows_databases: bool,
    reply: &mut ReplyWriter<'_>,
) {
    reply.bulk(b"commands");
    reply.bulk(&selector.describe_commands(acl.catalogue(), format));
    reply.bulk(b"keys");
    reply.bulk(&selector.describe_keys());
    reply.bulk(b"channels");
    reply.bulk(&selector.describe_channels());
    if shows_databases {
        reply.bulk(b"databases");
        reply.bulk(&selector.databases().describe());
    }
}

/// `ACL LIST`: an array of `user name rules`.
fn list(ctx: &mut Context<'_>) -> CommandResult {
    let lines = ctx.core.state.acl.lines(users::rule_format(&ctx.core.state));
    ctx.reply.array(lines.len());
    lines.for_each(|line| ctx.reply.bulk(&[b"user ", &line[..]].concat()));
    Ok(Outcome::Replied)
}

/// `ACL USERS`: an array of names.
fn names(ctx: &mut Context<'_>) -> CommandResult {
    let names = ctx.core.state.acl.names();
    ctx.reply.array(names.len());
    names.for_each(|name| ctx.reply.bulk(name));
    Ok(Outcome::Replied)
}

/// `ACL WHOAMI`: the connection's user.
fn who_am_i(ctx: &mut Context<'_>) -> CommandResult {
    let user = ctx.client().user;
    ctx.reply.bulk(ctx.core.state.acl.name(user));
    Ok(Outcome::Replied)
}

// ---- the file -----------------------------------------------------------------------------------

/// The path in `aclfile`. Error: it is not set.
fn file(ctx: &Context<'_>) -> Result<Vec<u8>, CommandError> {
    let file = &ctx.core.state.config.aclfile;
    if file.is_empty() { Err(NO_FILE) } else { Ok(file.clone()) }
}

/// `ACL LOAD`: `OK`. An error in the file changes nothing. Connections of deleted users are closed;
/// if Redis before 7.2 is emulated, those of all users except the default one.
fn load(ctx: &mut Context<'_>) -> CommandResult {
    let file = file(ctx)?;
    let all_channels = users::all_channels(&ctx.core.state.config);
    let loaded = load_file(&mut ctx.core.state.acl, &file, all_channels);
    let loaded = loaded.map_err(|text| error("", &text, ""))?;
    let caller = ctx.caller.client();
    ctx.reply.ok();
    let mut deleted = loaded.deleted;
    if !ctx.core.state.config.reports_7_2() {
        let others = loaded.changed.iter().map(|changed| changed.id);
        deleted.extend(others.filter(|&id| id != UserId::DEFAULT));
    }
    let mut closes = users::close_clients_of(ctx.core, &deleted, caller);
    // Usually only a few users are connected: this avoids a loop over all clients for each user.
    let in_use: HashSet<UserId> = ctx.core.state.clients.iter().map(|client| client.user).collect();
    for changed in loaded.changed.iter().filter(|changed| in_use.contains(&changed.id)) {
        closes |= users::update_clients_of(ctx.core, changed, caller);
    }
    Ok(if closes { Outcome::Close } else { Outcome::Replied })
}

/// Replaces the users with those of a file. Error: a text.
pub(crate) fn load_file(
    acl: &mut Acl,
    file: &[u8],
    all_channels: bool,
) -> Result<crate::acl::Loaded, Vec<u8>> {
    let text = std::fs::read(OsStr::from_bytes(file)).map_err(|error| {
        let why = format!("': {}", system_text(&error));
        [b"Error loading ACLs, opening file '", file, why.as_bytes()].concat()
    })?;
    acl.load_file_text(&text, file, all_channels)
}

/// `ACL SAVE`: `OK`. The file is replaced atomically.
fn save(ctx: &mut Context<'_>) -> CommandResult {
    let file = file(ctx)?;
    let text = ctx.core.state.acl.to_file_text(users::rule_format(&ctx.core.state));
    let path = Path::new(OsStr::from_bytes(&file));
    if let Err(error) = replace_file(path, &text) {
        let why = system_text(&error);
        warning!(ctx.core.state, "Writing ACL file for ACL SAVE: {why}");
        return Err(NOT_SAVED);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

// ---- denials ------------------------------------------------------------------------------------

/// `ACL DRYRUN username command [arg [arg ...]]`: `OK`, or the reason for a denial.
fn dry_run(ctx: &mut Context<'_>) -> CommandResult {
    let args = ctx.args.from(3);
    let (user_name, command_name) = (ctx.args.get(2), args.get(0));
    let state = &ctx.core.state;
    let user = state.acl.find(user_name);
    let user = user.ok_or_else(|| error("User '", user_name, "' not found"))?;
    let command = state.find_command(command_name).and_then(|command| match args.len() {
        2.. if !command.subcommands.is_empty() => {
            state.commands.find_subcommand(command, args.get(1))
        }
        _ => Some(command),
    });
    let command = command.ok_or_else(|| error("Command '", command_name, "' not found"))?;
    if !command.spec.accepts(args.len()) {
        return Err(CommandError::WrongArity(command.full_name.clone()));
    }
    let selected = ctx.core.keyspace.selected();
    let databases = Databases { selected, count: state.database_count() };
    let Err(denied) = users::check_user(state.acl.user(user), command, args, databases) else {
        ctx.reply.ok();
        return Ok(Outcome::Replied);
    };
    let request = Request::new(command, args, Origin::Client);
    let text = users::dry_run_text(state, user_name, denied, &request);
    ctx.reply.bulk(&text);
    Ok(Outcome::Replied)
}

/// `ACL LOG [count | RESET]`: an array of maps, the latest first; `OK` for RESET.
fn log(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() > 3 {
        return Err(ctx.wrong_subcommand());
    }
    let mut args = ctx.args.cursor(2);
    if args.take_word("RESET") {
        ctx.core.state.acl.log.clear();
        ctx.reply.ok();
        return Ok(Outcome::Replied);
    }
    let count = if args.is_at_end() { LOG_DEFAULT } else { args.take_integer()? };
    let entries = ctx.core.state.acl.log.iter();
    let count = usize::try_from(count).unwrap_or_default().min(entries.len());
    let now_ms = ctx.core.state.now.wall_us / 1000;
    let is_7_2 = ctx.core.state.config.reports_7_2();
    let reply = &mut ctx.reply;
    reply.array(count);
    for entry in entries.take(count) {
        let last = &entry.last;
        reply.map(if is_7_2 { 10 } else { 7 });
        reply.bulk(b"count");
        reply.integer(entry.count as i64);
        for (name, value) in [
            ("reason", last.reason.word().as_bytes()),
            ("context", last.context.word().as_bytes()),
            ("object", &last.object),
            ("username", &last.user),
        ] {
            reply.bulk(name.as_bytes());
            reply.bulk(value);
        }
        reply.bulk(b"age-seconds");
        reply.double((now_ms - last.at_ms) as f64 / 1000.0);
        reply.bulk(b"client-info");
        reply.bulk(last.client.as_bytes());
        if is_7_2 {
            for (name, value) in [
                ("entry-id", entry.id as i64),
                ("timestamp-created", entry.created_ms),
                ("timestamp-last-updated", last.at_ms),
            ] {
                reply.bulk(name.as_bytes());
                reply.integer(value);
            }
        }
    }
    Ok(Outcome::Replied)
}

// ---- utilities ----------------------------------------------------------------------------------

/// `ACL CAT [category]`: an array of the categories, or of a category's commands and subcommands.
fn cat(ctx: &mut Context<'_>) -> CommandResult {
    let names: Vec<&[u8]> = match ctx.args.len() {
        2 => CATEGORY_NAMES.iter().map(|(_, name)| name.as_bytes()).collect(),
        3 => {
            let name = ctx.args.get(2);
            let shown = &name[..name.len().min(128)];
            let category = catalogue::category(name);
            let category = category.ok_or_else(|| error("Unknown category '", shown, "'"))?;
            let commands = ctx.core.state.acl.catalogue().with_subcommands();
            commands
                .filter(|command| command.categories.contains(category))
                .map(|command| command.name.as_bytes())
                .collect()
        }
        _ => return Err(ctx.wrong_subcommand()),
    };
    ctx.reply.array(names.len());
    names.into_iter().for_each(|name| ctx.reply.bulk(name));
    Ok(Outcome::Replied)
}

/// `ACL GENPASS [bits]`: random bits as hexadecimal digits, rounded up to whole digits.
fn generate(ctx: &mut Context<'_>) -> CommandResult {
    let bits = match ctx.args.len() {
        2 => BITS_DEFAULT,
        3 => number::parse_i64(ctx.args.get(2)).ok_or(CommandError::NotInteger)?,
        _ => return Err(ctx.wrong_subcommand()),
    };
    if !(1..=BITS_MAX).contains(&bits) {
        return Err(BITS);
    }
    let digits = (bits as usize).div_ceil(4);
    let words = (0..digits.div_ceil(16)).map(|_| format!("{:016x}", random::number()));
    ctx.reply.bulk(&words.collect::<String>().as_bytes()[..digits]);
    Ok(Outcome::Replied)
}

/// `ACL HELP`.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    reply_help(
        ctx,
        &[
            "CAT [<category>]",
            "    List all commands that belong to <category>, or all command categories",
            "    when no category is specified.",
            "DELUSER <username> [<username> ...]",
            "    Delete a list of users.",
            "DRYRUN <username> <command> [<arg> ...]",
            "    Returns whether the user can execute the given command without executing the command.",
            "GETUSER <username>",
            "    Get the user's details.",
            "GENPASS [<bits>]",
            "    Generate a secure 256-bit user password. The optional `bits` argument can",
            "    be used to specify a different size.",
            "LIST",
            "    Show users details in config file format.",
            "LOAD",
            "    Reload users from the ACL file.",
            "LOG [<count> | RESET]",
            "    Show the ACL log entries.",
            "SAVE",
            "    Save the current config to the ACL file.",
            "SETUSER <username> <attribute> [<attribute> ...]",
            "    Create or modify a user with the specified attributes.",
            "USERS",
            "    List all the registered usernames.",
            "WHOAMI",
            "    Return the current connection username.",
        ],
    )
}
