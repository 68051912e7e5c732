//! CLIENT: the connected clients, their attributes, and pausing, unblocking and closing them.

use crate::client::{Client, ClientFlags, ClientId};
use crate::command::connection::client_filter::{Filter, IdRule};
use crate::command::connection::client_tracking;
use crate::command::help::help_from_specs;
use crate::error::CommandError;
use crate::gate::closing;
use crate::gate::limits::{Running, describe};
use crate::resp::number;
use crate::roles::following;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, container, spec};
use crate::state::{Pause, PauseCause};
use crate::waiting::waking;

const OTHERS: Flags = Flags::OF_OWN_CLIENT.union(Flags::ADMIN);

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("CLIENT", SUBCOMMANDS).with(Flags::KEEPS_CACHING).group(Group::Connection).since("2.4.0")
        .docs("", "Describes and manages connections.", "Depends on the subcommand"),
];

#[rustfmt::skip]
const SUBCOMMANDS: &[CommandSpec] = &[
    client_tracking::CACHING,
    spec("CAPA", capa).at_least(3).flags(Flags::OF_OWN_CLIENT.union(Flags::ALLOW_BUSY)).group(Group::Connection).since("8.0.0")
        .docs("capability [capability ...]", "Announces the capabilities of this connection.", "O(1)"),
    spec("GETNAME", get_name).exactly(2).flags(Flags::OF_OWN_CLIENT).group(Group::Connection).since("2.6.9")
        .docs("", "Returns the connection's name.", "O(1)"),
    client_tracking::GETREDIR,
    spec("HELP", help_from_specs).exactly(2).flags(Flags::LOADING_STALE).group(Group::Connection).since("5.0.0")
        .docs("", "Lists these subcommands.", "O(1)"),
    spec("ID", get_id).exactly(2).flags(Flags::OF_OWN_CLIENT).group(Group::Connection).since("5.0.0")
        .docs("", "Returns the connection's ID.", "O(1)"),
    spec("IMPORT-SOURCE", import_source).exactly(3).flags(Flags::OF_OWN_CLIENT).group(Group::Connection).since("8.1.0")
        .docs("<ON | OFF>", "Lets this connection see expired keys in import mode.", "O(1)"),
    spec("INFO", info).exactly(2).flags(Flags::OF_OWN_CLIENT).group(Group::Connection).since("6.2.0").tips(&["nondeterministic_output"])
        .docs("", "Describes this connection.", "O(1)"),
    spec("KILL", kill).at_least(3).flags(OTHERS).group(Group::Connection).since("2.4.0")
        .docs("<ip:port | <[ID client-id [client-id ...]] [TYPE <NORMAL | MASTER | SLAVE | REPLICA | PUBSUB>] [USER username] [ADDR ip:port] [LADDR ip:port] \
            [SKIPME <YES | NO>] [MAXAGE seconds]>>",
            "Closes connections.", "O(N), N connections"),
    spec("LIST", list).at_least(2).flags(OTHERS).group(Group::Connection).since("2.4.0").tips(&["nondeterministic_output"])
        .docs("[TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] [ID client-id [client-id ...]]", "Lists connections.", "O(N log N), N connections"),
    spec("NO-EVICT", no_evict).exactly(3).flags(OTHERS).group(Group::Connection).since("7.0.0")
        .docs("<ON | OFF>", "Spares this connection when clients use too much memory.", "O(1)"),
    spec("NO-TOUCH", no_touch).exactly(3).flags(Flags::OF_OWN_CLIENT).group(Group::Connection).since("7.2.0")
        .docs("<ON | OFF>", "Lets this connection access keys without marking them as used.", "O(1)"),
    spec("PAUSE", pause).at_least(3).flags(OTHERS).group(Group::Connection).since("2.9.50")
        .docs("timeout [WRITE | ALL]", "Pauses clients for a number of milliseconds.", "O(1)"),
    spec("REPLY", reply).exactly(3).flags(Flags::OF_OWN_CLIENT).group(Group::Connection).since("3.2.0")
        .docs("<ON | OFF | SKIP>", "Turns this connection's replies on or off.", "O(1)"),
    spec("SETINFO", set_info).exactly(4).flags(Flags::OF_OWN_CLIENT).group(Group::Connection).since("7.2.0")
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .docs("<LIB-NAME libname | LIB-VER libver>", "Sets the name or version of the client's library.", "O(1)"),
    spec("SETNAME", set_name).exactly(3).flags(Flags::OF_OWN_CLIENT).group(Group::Connection).since("2.6.9")
        .docs("connection-name", "Names the connection.", "O(1)"),
    client_tracking::TRACKING,
    client_tracking::TRACKINGINFO,
    spec("UNBLOCK", unblock).at_least(3).flags(OTHERS).group(Group::Connection).since("5.0.0")
        .docs("client-id [TIMEOUT | ERROR]", "Unblocks a blocked client.", "O(1)"),
    spec("UNPAUSE", unpause).exactly(2).flags(OTHERS).group(Group::Connection).since("6.2.0")
        .docs("", "Ends CLIENT PAUSE.", "O(N), N waiting clients"),
];

const NAME_NOT_PLAIN: CommandError =
    CommandError::Text("ERR Client names cannot contain spaces, newlines or special characters.");
const PAUSE_MODE: CommandError = CommandError::Text("ERR CLIENT PAUSE mode must be WRITE or ALL");
const UNBLOCK_REASON: CommandError =
    CommandError::Text("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR");
const NOT_IN_IMPORT_MODE: CommandError = CommandError::Text("ERR Server is not in import mode");
const NO_SUCH_CLIENT: CommandError = CommandError::Text("ERR No such client");

// ---- connected clients --------------------------------------------------------------------------

/// `CLIENT ID`: a number that is unique among all connections of this server process.
fn get_id(ctx: &mut Context<'_>) -> CommandResult {
    ctx.reply.integer(ctx.client_id().number as i64);
    Ok(Outcome::Replied)
}

/// `CLIENT INFO`: the connection's line of CLIENT LIST.
fn info(ctx: &mut Context<'_>) -> CommandResult {
    let running = Running::of(ctx);
    let state = &ctx.core.state;
    let client = state.clients.get(ctx.client_id());
    let lines = client
        .map_or_else(String::new, |client| describe(state, client, Some(&running), false) + "\n");
    ctx.reply.verbatim(b"txt", lines.as_bytes());
    Ok(Outcome::Replied)
}

/// `CLIENT LIST [filter ...]`: a line for each connection, the oldest first; with IDs only, in
/// their order.
fn list(ctx: &mut Context<'_>) -> CommandResult {
    let filter = match ctx.args.len() {
        2 => Filter::default(),
        3 => return Err(CommandError::Syntax),
        _ => parse_filter(ctx, IdRule::Any)?,
    };
    let state = &ctx.core.state;
    let is_there = |client: &&Client| !client.is_closing_now();
    let running = Running::of(ctx);
    let line = |client: &Client| describe(state, client, Some(&running), false);
    // The link to the primary is not a client, but has a line as if it were one.
    let dialect = state.config.compatible_with;
    let link = following::link_line(state).filter(|link| filter.matches_link(link));
    let link = link.map(|link| (link.number, link.text(dialect)));
    let found: Vec<String> = match filter.only_ids() {
        Some(ids) => {
            let of = |number: u64| match &link {
                Some((own, line)) if *own == number => Some(line.clone()),
                _ => state.clients.by_number(number).filter(is_there).map(line),
            };
            ids.iter().filter_map(|&id| of(u64::try_from(id).ok()?)).collect()
        }
        None => {
            let skipped = filter.skip_me.unwrap_or(false).then_some(ctx.client_id());
            let chosen =
                |client: &&Client| Some(client.id) != skipped && filter.matches(client, state.now);
            let clients = state.clients.iter().filter(is_there).filter(chosen);
            let mut found: Vec<(u64, String)> =
                clients.map(|client| (client.id.number, line(client))).chain(link).collect();
            found.sort_unstable_by_key(|(number, _)| *number);
            found.into_iter().map(|(_, line)| line).collect()
        }
    };
    let lines: String = found.iter().flat_map(|line| [line, "\n"]).collect();
    ctx.reply.verbatim(b"txt", lines.as_bytes());
    Ok(Outcome::Replied)
}

/// `CLIENT KILL ip:port`: `OK`. `CLIENT KILL filter ...`: the number of closed connections.
fn kill(ctx: &mut Context<'_>) -> CommandResult {
    let by_address = ctx.args.len() == 3;
    let filter = match by_address {
        true => Filter::by_address(ctx.args.get(2)),
        false => parse_filter(ctx, IdRule::Possible)?,
    };
    let own = ctx.client_id();
    let skipped = filter.skip_me.unwrap_or(true).then_some(own);
    let state = &mut ctx.core.state;
    let chosen = |client: &&Client| {
        !client.is_closing_now() && Some(client.id) != skipped && filter.matches(client, state.now)
    };
    let killed: Vec<ClientId> =
        state.clients.iter().filter(chosen).map(|client| client.id).collect();
    for &id in killed.iter().filter(|&&id| id != own) {
        closing::close_client(ctx.core, id);
    }
    // The link to the primary is not a client.
    let link = following::link_line(&ctx.core.state);
    let link = link.is_some_and(|link| filter.chooses_link(&link))
        && following::kill_link(&mut ctx.core.state);
    match (by_address, killed.len() + usize::from(link)) {
        (true, 0) => return Err(NO_SUCH_CLIENT),
        (true, _) => ctx.reply.ok(),
        (false, count) => ctx.reply.integer(count as i64),
    }
    Ok(if killed.contains(&own) { Outcome::Close } else { Outcome::Replied })
}

// ---- a client's attributes ----------------------------------------------------------------------

/// Whether a text can be shown in a line of CLIENT LIST: printable ASCII without spaces.
fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b'!'..=b'~'))
}

/// Checks a name for SETNAME and HELLO.
pub fn check_name(name: &[u8]) -> Result<&[u8], CommandError> {
    if is_plain(name) { Ok(name) } else { Err(NAME_NOT_PLAIN) }
}

/// `CLIENT SETNAME connection-name`: `OK`.
fn set_name(ctx: &mut Context<'_>) -> CommandResult {
    let name = check_name(ctx.args.get(2))?;
    ctx.client().name = name.into();
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLIENT GETNAME`: the name, or nil.
fn get_name(ctx: &mut Context<'_>) -> CommandResult {
    let name = ctx.client().name.clone();
    match &*name {
        [] => ctx.reply.null(),
        name => ctx.reply.bulk(name),
    }
    Ok(Outcome::Replied)
}

/// `CLIENT SETINFO <LIB-NAME libname | LIB-VER libver>`: `OK`.
fn set_info(ctx: &mut Context<'_>) -> CommandResult {
    let (attribute, value) = (ctx.args.get(2), ctx.args.get(3));
    let is_name = attribute.eq_ignore_ascii_case(b"LIB-NAME");
    if !is_name && !attribute.eq_ignore_ascii_case(b"LIB-VER") {
        return Err(CommandError::of_parts(&[b"ERR Unrecognized option '", attribute, b"'"]));
    }
    if !is_plain(value) {
        let why = b" cannot contain spaces, newlines or special characters.";
        return Err(CommandError::of_parts(&[b"ERR ", attribute, why]));
    }
    let client = ctx.client();
    if is_name {
        client.library_name = value.into();
    } else {
        client.library_version = value.into();
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLIENT REPLY <ON | OFF | SKIP>`: `OK` for ON, nothing else.
fn reply(ctx: &mut Context<'_>) -> CommandResult {
    let mut args = ctx.args.cursor(2);
    let client = ctx.client();
    if args.take_word("ON") {
        client.set_replies(client.replies().turned_on());
        ctx.reply.ok();
    } else if args.take_word("OFF") {
        client.set_replies(client.replies().turned_off());
    } else if args.take_word("SKIP") {
        client.set_replies(client.replies().skipping_next());
    } else {
        return Err(CommandError::Syntax);
    }
    Ok(Outcome::Replied)
}

/// `CLIENT NO-EVICT <ON | OFF>`: `OK`.
fn no_evict(ctx: &mut Context<'_>) -> CommandResult {
    let outcome = set_flag(ctx, ClientFlags::NO_EVICT)?;
    ctx.core.state.clients.note_eviction(ctx.client_id());
    Ok(outcome)
}

/// `CLIENT NO-TOUCH <ON | OFF>`: `OK`.
fn no_touch(ctx: &mut Context<'_>) -> CommandResult {
    set_flag(ctx, ClientFlags::NO_TOUCH)
}

/// `CLIENT IMPORT-SOURCE <ON | OFF>`: `OK`. Without `import-mode` only OFF.
fn import_source(ctx: &mut Context<'_>) -> CommandResult {
    if !ctx.core.state.config.import_mode && !ctx.args.get(2).eq_ignore_ascii_case(b"OFF") {
        return Err(NOT_IN_IMPORT_MODE);
    }
    set_flag(ctx, ClientFlags::IMPORT_SOURCE)
}

/// The filters after the subcommand. IDs follow Redis's rule, or Valkey's if Valkey is emulated.
fn parse_filter<'a>(ctx: &Context<'a>, of_redis: IdRule) -> Result<Filter<'a>, CommandError> {
    let is_valkey = ctx.core.state.config.compatible_with.is_valkey();
    let id_rule = if is_valkey { IdRule::Valkey } else { of_redis };
    Filter::parse(ctx.args.cursor(2), ctx.core.keyspace.databases(), &ctx.core.state.acl, id_rule)
}

/// `CLIENT CAPA capability [capability ...]`: `OK`. Unknown ones are ignored.
fn capa(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.iter_from(2).any(|capability| capability.eq_ignore_ascii_case(b"REDIRECT")) {
        ctx.client().flags |= ClientFlags::CAN_REDIRECT;
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

fn set_flag(ctx: &mut Context<'_>, flag: ClientFlags) -> CommandResult {
    let mut args = ctx.args.cursor(2);
    let on = args.take_word("ON");
    if !on && !args.take_word("OFF") {
        return Err(CommandError::Syntax);
    }
    ctx.client().flags.set(flag, on);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

// ---- pausing and unblocking ---------------------------------------------------------------------

/// `CLIENT PAUSE timeout [WRITE | ALL]`: `OK`. An active pause is extended or widened, never
/// shortened.
fn pause(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() > 4 {
        return Err(ctx.wrong_subcommand());
    }
    let mut mode = ctx.args.cursor(3);
    let writes_only = mode.take_word("WRITE");
    if !writes_only && !mode.take_word("ALL") && !mode.is_at_end() {
        return Err(PAUSE_MODE);
    }
    let timeout_ms = number::parse_i64(ctx.args.get(2)).ok_or(CommandError::TIMEOUT_NOT_INTEGER)?;
    if timeout_ms < 0 {
        return Err(CommandError::TIMEOUT_NEGATIVE);
    }
    let now_us = ctx.core.state.now.boot_us;
    let until_us = timeout_ms.checked_mul(1000).and_then(|us| us.checked_add(now_us));
    let until_us = until_us.ok_or(CommandError::TIMEOUT_OUT_OF_RANGE)?;
    let mut pause = Pause { until_us, writes_only };
    if let Some(old) = ctx.core.state.pauses.by(PauseCause::Asked) {
        pause.until_us = pause.until_us.max(old.until_us);
        pause.writes_only &= old.writes_only;
    }
    let pause = Some(pause).filter(|pause| pause.until_us > now_us);
    ctx.core.state.set_pause(PauseCause::Asked, pause);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLIENT UNPAUSE`: `OK`.
fn unpause(ctx: &mut Context<'_>) -> CommandResult {
    ctx.core.state.end_pause(PauseCause::Asked);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLIENT UNBLOCK client-id [TIMEOUT | ERROR]`: 1 if the client was blocked by a command, else 0.
fn unblock(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() > 4 {
        return Err(ctx.wrong_subcommand());
    }
    let mut reason = ctx.args.cursor(3);
    let with_error = !reason.take_word("TIMEOUT") && reason.take_word("ERROR");
    if !reason.is_at_end() {
        return Err(UNBLOCK_REASON);
    }
    let number = ctx.args.integer(2)?;
    // Clients that wait for the end of a pause are not unblocked.
    let client =
        u64::try_from(number).ok().and_then(|number| ctx.core.state.clients.by_number(number));
    let id = client.map(|client| client.id);
    let unblocked = id.is_some_and(|id| waking::unblock(ctx.core, id, with_error));
    ctx.reply.integer(unblocked as i64);
    Ok(Outcome::Replied)
}
