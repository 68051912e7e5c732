//! COMMAND: the commands and their properties, derived from the specifications; COMMAND DOCS in
//! `docs`.

pub(crate) mod docs;

use crate::collections::glob;
use crate::command::help::reply_help;
use crate::error::CommandError;
use crate::gate::keys::shown_keys;
use crate::resp::reply::ReplyWriter;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{
    Arity, Begin, CATEGORY_NAMES, Categories, CommandSpec, Find, Flags, Group, KeyFlags, KeySpec,
    all_categories, spec,
};
use crate::state::table::Command;
use docs::{Argument, Kind};

const fn subcommand(name: &'static str, handler: crate::state::spec::Handler) -> CommandSpec {
    spec(name, handler)
        .flags(Flags::LOADING_STALE)
        .categories(Categories::CONNECTION)
        .group(Group::Server)
        .since("2.8.13")
}

const ORDER: &[&str] = &["nondeterministic_output_order"];

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("COMMAND", command).at_least(1).flags(Flags::LOADING_STALE).categories(Categories::CONNECTION).group(Group::Server).since("2.8.13").tips(ORDER)
        .docs("", "Describes all commands.", "O(N), N being the number of commands").subcommands(&[
        subcommand("COUNT", count).exactly(2).docs("", "Counts the commands.", "O(1)"),
        subcommand("DOCS", docs).at_least(2).since("7.0.0").tips(ORDER)
            .docs("[command-name [command-name ...]]", "Returns the documentation of some or all commands.", "O(N), N being the number of commands"),
        subcommand("GETKEYS", get_keys).at_least(4)
            .docs("command [arg [arg ...]]", "Returns the keys of a request.", "O(N), N being the number of arguments"),
        subcommand("GETKEYSANDFLAGS", get_keys_and_flags).at_least(4).since("7.0.0")
            .docs("command [arg [arg ...]]", "Returns the keys of a request, and how they are accessed.", "O(N), N being the number of arguments"),
        subcommand("HELP", help).exactly(2).since("5.0.0").docs("", "Explains COMMAND.", "O(1)"),
        subcommand("INFO", info).at_least(2).tips(ORDER)
            .docs("[command-name [command-name ...]]", "Describes some or all commands.", "O(N), N being the number of commands"),
        subcommand("LIST", list).at_least(2).since("7.0.0").tips(ORDER)
            .docs("[FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]", "Lists the names of commands.",
                "O(N), N being the number of commands"),
    ]),
];

/// Names in `COMMAND INFO`, in its order. Other flags are internal.
const FLAG_NAMES: &[(Flags, &str)] = &[
    (Flags::WRITE, "write"),
    (Flags::READONLY, "readonly"),
    (Flags::DENYOOM, "denyoom"),
    (Flags::ADMIN, "admin"),
    (Flags::PUBSUB, "pubsub"),
    (Flags::NOSCRIPT, "noscript"),
    (Flags::BLOCKING, "blocking"),
    (Flags::LOADING, "loading"),
    (Flags::STALE, "stale"),
    (Flags::SKIP_MONITOR, "skip_monitor"),
    (Flags::SKIP_SLOWLOG, "skip_slowlog"),
    (Flags::ASKING, "asking"),
    (Flags::FAST, "fast"),
    (Flags::NO_AUTH, "no_auth"),
    (Flags::NO_MANDATORY_KEYS, "no_mandatory_keys"),
    (Flags::NO_ASYNC_LOADING, "no_async_loading"),
    (Flags::NO_MULTI, "no_multi"),
    (Flags::MOVABLEKEYS, "movablekeys"),
    (Flags::ALLOW_BUSY, "allow_busy"),
];

const KEY_FLAG_NAMES: &[(KeyFlags, &str)] = &[
    (KeyFlags::RO, "RO"),
    (KeyFlags::RW, "RW"),
    (KeyFlags::OW, "OW"),
    (KeyFlags::RM, "RM"),
    (KeyFlags::ACCESS, "access"),
    (KeyFlags::UPDATE, "update"),
    (KeyFlags::INSERT, "insert"),
    (KeyFlags::DELETE, "delete"),
    (KeyFlags::NOT_KEY, "not_key"),
    (KeyFlags::INCOMPLETE, "incomplete"),
    (KeyFlags::VARIABLE_FLAGS, "variable_flags"),
];

fn group_name(group: Group) -> &'static str {
    match group {
        Group::Generic => "generic",
        Group::String => "string",
        Group::List => "list",
        Group::Set => "set",
        Group::SortedSet => "sorted-set",
        Group::Hash => "hash",
        Group::PubSub => "pubsub",
        Group::Transactions => "transactions",
        Group::Connection => "connection",
        Group::Server => "server",
        Group::Scripting => "scripting",
        Group::HyperLogLog => "hyperloglog",
        Group::Cluster => "cluster",
        Group::Geo => "geo",
        Group::Stream => "stream",
        Group::Bitmap => "bitmap",
        Group::Lock => "lock",
    }
}

/// The legacy key range: first, last (negative: from the end), step; zeros if there are no keys.
/// True: the range is incomplete, and clients must use GETKEYS.
fn legacy_range(keys: &[KeySpec]) -> ([i64; 3], bool) {
    let mut movable = keys.iter().any(|keys| keys.flags.contains(KeyFlags::INCOMPLETE));
    if let [KeySpec { begin: Begin::Index(first), find: Find::Range { last, step, .. }, .. }] = keys
    {
        return ([*first as i64, absolute(*first, *last), *step as i64], movable);
    }
    let mut range: Option<(i64, i64)> = None;
    let mut previous = 0;
    for keys in keys {
        let (Begin::Index(first), Find::Range { last, step: 1, .. }) = (keys.begin, keys.find)
        else {
            movable = true;
            continue;
        };
        if previous != 0 && previous != first as i64 - 1 {
            movable = true;
            continue;
        }
        // A last key counted from the end is beyond all other keys.
        let last = absolute(first, last);
        let (start, end) = range.unwrap_or((first as i64, last));
        let end = if end < 0 || last < 0 { end.min(last) } else { end.max(last) };
        range = Some((start.min(first as i64), end));
        previous = end;
    }
    (range.map_or([0, 0, 0], |(first, last)| [first, last, 1]), movable)
}

fn absolute(first: u16, last: i16) -> i64 {
    if last >= 0 { first as i64 + last as i64 } else { last as i64 }
}

fn arity(spec: &CommandSpec) -> i64 {
    match spec.arity {
        Arity::Exactly(count) => count as i64,
        Arity::AtLeast(count) => -(count as i64),
    }
}

/// `COMMAND`: all commands as COMMAND INFO describes them.
fn command(ctx: &mut Context<'_>) -> CommandResult {
    let commands = top_level(ctx);
    ctx.reply.array(commands.len());
    commands.into_iter().for_each(|command| describe(ctx, command));
    Ok(Outcome::Replied)
}

/// `COMMAND COUNT`: an integer.
fn count(ctx: &mut Context<'_>) -> CommandResult {
    let count = top_level(ctx).len();
    ctx.reply.integer(count as i64);
    Ok(Outcome::Replied)
}

/// The commands that are not subcommands.
fn top_level(ctx: &Context<'_>) -> Vec<&'static Command> {
    ctx.core.state.known_commands().filter(|command| command.parent.is_none()).collect()
}

/// `COMMAND INFO [command-name ...]`: an array of ten properties for each, or nil.
fn info(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() == 2 {
        return command(ctx);
    }
    let names = ctx.args.iter_from(2);
    ctx.reply.array(names.len());
    for name in names {
        match ctx.core.state.find_full_command(name) {
            Some(command) => describe(ctx, command),
            None => ctx.reply.null(),
        }
    }
    Ok(Outcome::Replied)
}

fn status_set<F: Copy>(reply: &mut ReplyWriter<'_>, names: &[(F, &str)], has: impl Fn(F) -> bool) {
    let found: Vec<&str> =
        names.iter().filter(|(flag, _)| has(*flag)).map(|(_, name)| *name).collect();
    reply.set(found.len());
    found.into_iter().for_each(|name| reply.simple(name));
}

fn describe(ctx: &mut Context<'_>, command: &Command) {
    let spec = command.spec;
    let (range, movable) = legacy_range(spec.keys);
    let flags = spec.flags.reported(ctx.core.state.config.reports_7_2());
    let flags = if movable { flags | Flags::MOVABLEKEYS } else { flags };
    let reply = &mut ctx.reply;
    reply.array(10);
    reply.bulk(command.full_name.as_bytes());
    reply.integer(arity(spec));
    status_set(reply, FLAG_NAMES, |flag| flags.contains(flag));
    range.into_iter().for_each(|number| reply.integer(number));
    let classes = all_categories(spec);
    let classes: Vec<&str> = CATEGORY_NAMES
        .iter()
        .filter(|(class, _)| classes.contains(*class))
        .map(|(_, name)| *name)
        .collect();
    reply.set(classes.len());
    classes.into_iter().for_each(|name| reply.simple(format!("@{name}")));
    reply.set(spec.tips.len());
    spec.tips.iter().for_each(|tip| reply.bulk(tip.as_bytes()));
    reply.set(spec.keys.len());
    spec.keys.iter().for_each(|keys| describe_keys(reply, keys));
    let subcommands = ctx.core.state.commands.subcommands(command);
    if subcommands.is_empty() && !ctx.core.state.config.compatible_with.is_valkey() {
        ctx.reply.set(0);
    } else {
        ctx.reply.array(subcommands.len());
    }
    for subcommand in subcommands {
        describe(ctx, subcommand);
    }
}

/// One key specification: a map of notes, flags, and how the keys are found.
fn describe_keys(reply: &mut ReplyWriter<'_>, keys: &KeySpec) {
    reply.map(3 + keys.notes.is_some() as usize);
    if let Some(notes) = keys.notes {
        reply.bulk(b"notes");
        reply.bulk(notes.as_bytes());
    }
    reply.bulk(b"flags");
    status_set(reply, KEY_FLAG_NAMES, |flag| keys.flags.contains(flag));
    reply.bulk(b"begin_search");
    let typed = |reply: &mut ReplyWriter<'_>, kind: &str, facts: usize| {
        reply.map(2);
        reply.bulk(b"type");
        reply.bulk(kind.as_bytes());
        reply.bulk(b"spec");
        reply.map(facts);
    };
    let fact = |reply: &mut ReplyWriter<'_>, name: &str, value: i64| {
        reply.bulk(name.as_bytes());
        reply.integer(value);
    };
    match keys.begin {
        Begin::Index(index) => {
            typed(reply, "index", 1);
            fact(reply, "index", index as i64);
        }
        Begin::Keyword { word, from } => {
            typed(reply, "keyword", 2);
            reply.bulk(b"keyword");
            reply.bulk(word.as_bytes());
            fact(reply, "startfrom", from as i64);
        }
        Begin::Unknown => typed(reply, "unknown", 0),
    }
    reply.bulk(b"find_keys");
    match keys.find {
        Find::Range { last, step, limit } => {
            typed(reply, "range", 3);
            fact(reply, "lastkey", last as i64);
            fact(reply, "keystep", step as i64);
            fact(reply, "limit", limit as i64);
        }
        Find::Count { step } => {
            typed(reply, "keynum", 3);
            fact(reply, "keynumidx", 0);
            fact(reply, "firstkey", 1);
            fact(reply, "keystep", step as i64);
        }
        Find::Unknown => typed(reply, "unknown", 0),
    }
}

/// `COMMAND DOCS [command-name ...]`: a map from names to maps, without unknown names.
fn docs(ctx: &mut Context<'_>) -> CommandResult {
    let commands: Vec<&Command> = if ctx.args.len() == 2 {
        top_level(ctx)
    } else {
        let state = &ctx.core.state;
        ctx.args.iter_from(2).filter_map(|name| state.find_full_command(name)).collect()
    };
    ctx.reply.map(commands.len());
    for command in commands {
        document(ctx, command);
    }
    Ok(Outcome::Replied)
}

fn document(ctx: &mut Context<'_>, command: &Command) {
    let spec = command.spec;
    let arguments = docs::arguments_of(spec);
    let subcommands = ctx.core.state.commands.subcommands(command);
    let (deprecated_since, replaced_by) = spec.deprecated.unwrap_or_default();
    let facts = [
        ("summary", spec.summary),
        ("since", spec.since),
        ("group", group_name(spec.group)),
        ("complexity", spec.complexity),
        ("doc_flags", if spec.deprecated.is_some() { "deprecated" } else { "" }),
        ("deprecated_since", deprecated_since),
        ("replaced_by", replaced_by),
    ];
    let known = facts.iter().filter(|(_, text)| !text.is_empty());
    let reply = &mut ctx.reply;
    reply.bulk(command.full_name.as_bytes());
    let more = usize::from(!arguments.is_empty()) + usize::from(!subcommands.is_empty());
    reply.map(known.clone().count() + more);
    for (name, text) in known {
        reply.bulk(name.as_bytes());
        if *name == "doc_flags" {
            reply.set(1);
            reply.simple(text);
        } else {
            reply.bulk(text.as_bytes());
        }
    }
    if !arguments.is_empty() {
        reply.bulk(b"arguments");
        reply_arguments(reply, &arguments);
    }
    if !subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(subcommands.len());
        for subcommand in subcommands {
            document(ctx, subcommand);
        }
    }
}

fn reply_arguments(reply: &mut ReplyWriter<'_>, arguments: &[Argument]) {
    reply.array(arguments.len());
    for argument in arguments {
        let flags = [
            (argument.optional, "optional"),
            (argument.multiple, "multiple"),
            (argument.multiple_token, "multiple_token"),
        ];
        let has_flags = flags.iter().any(|(is, _)| *is);
        let is_group = matches!(argument.kind, Kind::OneOf | Kind::Block);
        let optional_facts =
            [argument.key_spec_index.is_some(), argument.token.is_some(), has_flags, is_group];
        reply.map(2 + optional_facts.into_iter().filter(|is| *is).count());
        reply.bulk(b"name");
        reply.bulk(argument.name.as_bytes());
        reply.bulk(b"type");
        reply.bulk(argument.kind.name().as_bytes());
        if let Some(index) = argument.key_spec_index {
            reply.bulk(b"key_spec_index");
            reply.integer(index as i64);
        }
        if let Some(token) = &argument.token {
            reply.bulk(b"token");
            reply.bulk(token.as_bytes());
        }
        if has_flags {
            reply.bulk(b"flags");
            status_set(reply, &flags, |is| is);
        }
        if is_group {
            reply.bulk(b"arguments");
            reply_arguments(reply, &argument.arguments);
        }
    }
}

/// COMMAND LIST's filter.
enum Filter<'a> {
    All,
    /// There are no modules, so it matches nothing.
    Module,
    /// None: no such category.
    Category(Option<Categories>),
    Pattern(&'a [u8]),
}

/// `COMMAND LIST [FILTERBY MODULE module-name | ACLCAT category | PATTERN pattern]`: an array of
/// names, subcommands included.
fn list(ctx: &mut Context<'_>) -> CommandResult {
    let filter = list_filter(ctx)?;
    let names: Vec<&[u8]> = ctx
        .core
        .state
        .known_commands()
        .filter(|command| match filter {
            Filter::All => true,
            Filter::Module => false,
            Filter::Category(class) => {
                class.is_some_and(|class| all_categories(command.spec).contains(class))
            }
            Filter::Pattern(pattern) => glob::matches(pattern, command.full_name.as_bytes(), true),
        })
        .map(|command| command.full_name.as_bytes())
        .collect();
    ctx.reply.array(names.len());
    names.into_iter().for_each(|name| ctx.reply.bulk(name));
    Ok(Outcome::Replied)
}

fn list_filter<'a>(ctx: &Context<'a>) -> Result<Filter<'a>, CommandError> {
    let mut cursor = ctx.args.cursor(2);
    if cursor.is_at_end() {
        return Ok(Filter::All);
    }
    if !cursor.take_word("FILTERBY") || cursor.remaining() != 2 {
        return Err(CommandError::Syntax);
    }
    if cursor.take_word("MODULE") {
        return Ok(Filter::Module);
    }
    if cursor.take_word("ACLCAT") {
        let name = cursor.take()?;
        let class =
            CATEGORY_NAMES.iter().find(|(_, known)| name.eq_ignore_ascii_case(known.as_bytes()));
        return Ok(Filter::Category(class.map(|(class, _)| *class)));
    }
    if cursor.take_word("PATTERN") {
        return Ok(Filter::Pattern(cursor.take()?));
    }
    Err(CommandError::Syntax)
}

/// `COMMAND GETKEYS command [arg ...]`: an array of keys.
fn get_keys(ctx: &mut Context<'_>) -> CommandResult {
    reply_keys(ctx, false)
}

/// `COMMAND GETKEYSANDFLAGS command [arg ...]`: an array of pairs of key and array (RESP3: set) of
/// flags.
fn get_keys_and_flags(ctx: &mut Context<'_>) -> CommandResult {
    reply_keys(ctx, true)
}

fn reply_keys(ctx: &mut Context<'_>, with_flags: bool) -> CommandResult {
    let request = ctx.args.from(2);
    let table = ctx.core.state.commands;
    let found = ctx.core.state.find_command(request.get(0)).and_then(|command| {
        // A container's name is followed by its subcommand's.
        let is_container = !command.subcommands.is_empty() && request.len() > 1;
        if is_container { table.find_subcommand(command, request.get(1)) } else { Some(command) }
    });
    let Some(command) = found else {
        return Err(CommandError::Text("ERR Invalid command specified"));
    };
    let is_key = |keys: &KeySpec| !keys.flags.contains(KeyFlags::NOT_KEY);
    if !command.spec.keys.iter().any(is_key) {
        return Err(CommandError::Text("ERR The command has no key arguments"));
    }
    if !command.spec.accepts(request.len()) {
        let text = "ERR Invalid number of arguments specified for command";
        return Err(CommandError::Text(text));
    }
    let keys = shown_keys(command.spec, request);
    if keys.is_empty() && !command.is(Flags::NO_MANDATORY_KEYS) {
        return Err(CommandError::Text("ERR Invalid arguments specified for command"));
    }
    ctx.reply.array(keys.len());
    for key in keys {
        if with_flags {
            ctx.reply.array(2);
        }
        ctx.reply.bulk(request.get(key.index));
        if with_flags {
            status_set(&mut ctx.reply, KEY_FLAG_NAMES, |flag| key.flags.contains(flag));
        }
    }
    Ok(Outcome::Replied)
}

/// `COMMAND HELP`: an array of lines.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    reply_help(
        ctx,
        &[
            "(no subcommand)",
            "    Describe all commands.",
            "COUNT",
            "    Count the commands.",
            "LIST [FILTERBY MODULE <name>|ACLCAT <category>|PATTERN <pattern>]",
            "    List the names of all commands, or of those that match.",
            "INFO [<command-name> ...]",
            "    Describe these commands, or all.",
            "DOCS [<command-name> ...]",
            "    Return the documentation of these commands, or of all.",
            "GETKEYS <full-command>",
            "    Return the keys of a whole request.",
            "GETKEYSANDFLAGS <full-command>",
            "    Return the keys of a whole request and how they are accessed.",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::TABLE;

    /// The commands of Redis 7.0.15: name, arity, flags and ACL classes in the order of letters,
    /// keys.
    const REDIS: &str = include_str!("../../../tests/data/commands-7.0.tsv");

    /// The commands that options of newer servers or our own ones change.
    const NEWER: &[&str] = &[
        "cluster|replicate",
        "zrank",
        "zrevrank",
        "function|kill",
        "script|kill",
        "xgroup|delconsumer",
    ];

    #[test]
    fn commands_that_wait_may_be_called_by_scripts_since_7_2() {
        for name in ["BLPOP", "BRPOPLPUSH", "BLMOVE", "BZPOPMAX", "WAIT"] {
            let flags = TABLE.find(name.as_bytes()).expect("a command").spec.flags;
            assert!(flags.reported(false).contains(Flags::NOSCRIPT), "{name}");
            assert!(!flags.reported(true).contains(Flags::NOSCRIPT), "{name}");
        }
        let multi = TABLE.find(b"MULTI").expect("a command").spec.flags;
        assert!(multi.reported(true).contains(Flags::NOSCRIPT));
    }

    /// The same line for one of our commands.
    fn facts(command: &Command) -> String {
        let spec = command.spec;
        let (range, movable) = legacy_range(spec.keys);
        let flags = if movable { spec.flags | Flags::MOVABLEKEYS } else { spec.flags };
        let names = |names: Vec<&str>| {
            let mut names = names;
            names.sort_unstable();
            names.join(",")
        };
        let flags = FLAG_NAMES.iter().filter(|(flag, _)| flags.contains(*flag));
        let classes = all_categories(spec);
        let classes = CATEGORY_NAMES.iter().filter(|(class, _)| classes.contains(*class));
        let [first, last, step] = range;
        format!(
            "{}\t{}\t{}\t{}\t{first}:{last}:{step}",
            command.full_name,
            arity(spec),
            names(flags.map(|(_, name)| *name).collect()),
            names(classes.map(|(_, name)| *name).collect()),
        )
    }

    #[test]
    fn commands_that_redis_7_has_are_described_as_there() {
        let mut faults = Vec::new();
        for line in REDIS.lines().skip(1) {
            let name = line.split('\t').next().unwrap_or_default();
            let Some(command) = TABLE.find_full(name.as_bytes()) else {
                continue;
            };
            let ours = facts(command);
            if ours != line && !NEWER.contains(&name) {
                faults.push(format!("theirs {line}\nours   {ours}\n"));
            }
        }
        assert!(faults.is_empty(), "{} commands differ:\n{}", faults.len(), faults.join("\n"));
    }

    #[test]
    fn every_command_is_documented() {
        for command in &TABLE.commands {
            let name = &command.full_name;
            let spec = command.spec;
            assert!(!spec.summary.is_empty(), "{name}: its specification has no summary (`docs`)");
            assert!(
                !spec.complexity.is_empty(),
                "{name}: its specification has no complexity (`docs`)"
            );
            assert!(
                spec.since.split('.').count() == 3,
                "{name}: `since` is no version of three numbers"
            );
        }
    }
}
