//! The connection: authentication, protocol version, selected database.

pub(crate) mod client;
pub(crate) mod client_filter;
pub(crate) mod client_tracking;

use crate::acl::DEFAULT_NAME;
use crate::client::ClientFlags;
use crate::config::VALKEY_VERSION;
use crate::error::CommandError;
use crate::gate::{publish, tracking, transaction, users};
use crate::ids::UserId;
use crate::keyspace::DbIndex;
use crate::resp::number;
use crate::resp::reply::Protocol;
use crate::roles::cluster::hear_drops;
use crate::roles::restart;
use crate::state::context::{CommandResult, Context, Effect, Origin, Outcome};
use crate::state::spec::{CommandSpec, DatabaseUse, Flags, Group, Secrets, spec};
use crate::waiting;

/// Allowed while loading, with stale data, while the server is busy, and before authentication.
const ALWAYS: Flags = Flags::NOSCRIPT
    .union(Flags::LOADING)
    .union(Flags::STALE)
    .union(Flags::FAST)
    .union(Flags::NO_AUTH)
    .union(Flags::ALLOW_BUSY);
const QUICK: Flags = Flags::LOADING.union(Flags::STALE).union(Flags::FAST);

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("AUTH", auth).at_least(2).secrets(Secrets::From(1)).flags(ALWAYS).with(Flags::NEEDS_CLIENT).group(Group::Connection).since("1.0.0")
        .docs("[username] password", "Authenticates the connection.", "O(N), N passwords of the user"),
    spec("ECHO", echo).exactly(2).flags(QUICK).group(Group::Connection).since("1.0.0")
        .docs("message", "Returns the message.", "O(1)"),
    spec("HELLO", hello).at_least(1).secrets(Secrets::Behind { from: 2, words: &[("AUTH", 2)], until: "" }).flags(ALWAYS).with(Flags::NEEDS_CLIENT)
        .group(Group::Connection).since("6.0.0")
        .docs("[protover [AUTH username password] [SETNAME clientname]]", "Describes the server, and chooses the protocol's version.", "O(1)"),
    spec("PING", ping).at_least(1).flags(Flags::FAST).with(Flags::WHILE_SUBSCRIBED.union(Flags::TELLS_DISK)).group(Group::Connection).since("1.0.0")
        .docs("[message]", "Returns PONG, or the message.", "O(1)").tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    spec("QUIT", quit).at_least(1).flags(ALWAYS).with(Flags::NEVER_QUEUED.union(Flags::ENDS_TRANSACTION).union(Flags::WHILE_SUBSCRIBED))
        .group(Group::Connection).since("1.0.0").deprecated("7.2.0", "just closing the connection")
        .docs("", "Closes the connection.", "O(1)"),
    spec("RESET", reset).exactly(1).flags(ALWAYS)
        .with(Flags::NEVER_QUEUED.union(Flags::ENDS_TRANSACTION).union(Flags::WHILE_SUBSCRIBED).union(Flags::NEEDS_CLIENT)).group(Group::Connection)
        .since("6.2.0")
        .docs("", "Resets the connection to its initial state.", "O(1)"),
    spec("SELECT", select).exactly(2).databases(DatabaseUse::Selects).flags(QUICK).group(Group::Connection).since("1.0.0")
        .docs("index", "Chooses the database of this connection.", "O(1)"),
];

const AUTH_WITHOUT_PASSWORD: CommandError = CommandError::Text(
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is \
     correct?",
);
const HELLO_UNAUTHENTICATED: CommandError = CommandError::Text(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be \
     used to authenticate the client and select the RESP protocol version at the same time",
);
const PROTOCOL_VERSION: CommandError =
    CommandError::Text("ERR Protocol version is not an integer or out of range");
const OUTSIDE_INT: CommandError =
    CommandError::ValueOutOfRange("value must between -2147483648 and 2147483647");

/// `PING [message]`: `PONG` or the message; to a RESP2 subscriber an array like that of a message.
fn ping(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() > 2 {
        return Err(CommandError::WrongArity("ping".into()));
    }
    if let Some(error) = restart::unhealthy(&ctx.core.state, ctx.caller.client()) {
        return Err(error);
    }
    let message = (ctx.args.len() == 2).then(|| ctx.args.get(1));
    if ctx.caller.is_repeating() && message.is_some_and(|text| hear_drops(ctx.core, text)) {
        ctx.effect = Effect::Forced;
    }
    let resp2 = ctx.reply.protocol() == Protocol::Resp2 && ctx.origin != Origin::Script;
    let client = ctx.caller.client().and_then(|id| ctx.core.state.clients.get(id));
    let subscribed = client.is_some_and(|it| it.flags.contains(ClientFlags::SUBSCRIBED));
    if resp2 && subscribed {
        ctx.reply.array(2);
        ctx.reply.bulk(b"pong");
        ctx.reply.bulk(message.unwrap_or_default());
    } else if let Some(message) = message {
        ctx.reply.bulk(message);
    } else {
        ctx.reply.pong();
    }
    Ok(Outcome::Replied)
}

/// `ECHO message`: the message.
fn echo(ctx: &mut Context<'_>) -> CommandResult {
    ctx.reply.bulk(ctx.args.get(1));
    Ok(Outcome::Replied)
}

/// `QUIT`: `OK`, then closes the connection.
fn quit(ctx: &mut Context<'_>) -> CommandResult {
    ctx.reply.ok();
    Ok(Outcome::Close)
}

const NO_SELECT: CommandError = CommandError::Text("ERR SELECT is not allowed in cluster mode");

/// `SELECT index`: `OK`.
fn select(ctx: &mut Context<'_>) -> CommandResult {
    let index = ctx.args.integer(1)?;
    let index = i32::try_from(index).map_err(|_| OUTSIDE_INT)?;
    if index != 0 && ctx.core.state.has_one_database() {
        return Err(NO_SELECT);
    }
    let database = DbIndex::checked(index, ctx.core.keyspace.databases())
        .ok_or(CommandError::DbIndexOutOfRange)?;
    if ctx.caller.client().is_some() {
        ctx.client().database = database;
    }
    ctx.core.keyspace.select(database);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// Finds the user with this name and password.
fn authenticate(
    ctx: &mut Context<'_>,
    name: &[u8],
    password: &[u8],
) -> Result<UserId, CommandError> {
    if let Some(user) = ctx.core.state.acl.authenticate(name, password) {
        return Ok(user);
    }
    let id = ctx.client_id();
    users::log_wrong_password(&mut ctx.core.state, id, name, ctx.args.get(0));
    Err(CommandError::WrongPassword)
}

/// `AUTH [username] password`: `OK`.
fn auth(ctx: &mut Context<'_>) -> CommandResult {
    let (user, password) = match ctx.args.len() {
        2 if !ctx.core.state.acl.default_needs_password() => return Err(AUTH_WITHOUT_PASSWORD),
        2 => (DEFAULT_NAME, ctx.args.get(1)),
        3 => (ctx.args.get(1), ctx.args.get(2)),
        _ => return Err(CommandError::Syntax),
    };
    let user = authenticate(ctx, user, password)?;
    let id = ctx.client_id();
    users::log_in(&mut ctx.core.state, id, user);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// The options of HELLO.
struct Hello<'a> {
    protocol: Option<Protocol>,
    user: Option<UserId>,
    name: Option<&'a [u8]>,
}

impl<'a> Hello<'a> {
    /// Errors come in the order of the arguments, including a wrong password; after an error
    /// nothing was changed. Valkey and Redis 8 check only the last password, at the end.
    fn parse(ctx: &mut Context<'a>) -> Result<Self, CommandError> {
        let dialect = ctx.core.state.config.compatible_with;
        let only_last = dialect.is_valkey() || dialect.is_redis_8();
        let mut last = None;
        let mut hello = Hello { protocol: None, user: None, name: None };
        let mut args = ctx.args.cursor(1);
        if let Some(version) = args.peek() {
            hello.protocol = Some(match number::parse_i64(version) {
                Some(2) => Protocol::Resp2,
                Some(3) => Protocol::Resp3,
                Some(_) => return Err(CommandError::NoProto),
                None => return Err(PROTOCOL_VERSION),
            });
            args.take()?;
        }
        while let Some(option) = args.peek() {
            if args.remaining() >= 3 && args.take_word("AUTH") {
                let (user, password) = (args.take()?, args.take()?);
                match only_last {
                    true => last = Some((user, password)),
                    false => hello.user = Some(authenticate(ctx, user, password)?),
                }
            } else if args.remaining() >= 2 && args.take_word("SETNAME") {
                hello.name = Some(client::check_name(args.take()?)?);
            } else {
                return Err(CommandError::of_parts(&[
                    b"ERR Syntax error in HELLO option '",
                    option,
                    b"'",
                ]));
            }
        }
        if let Some((user, password)) = last {
            hello.user = Some(authenticate(ctx, user, password)?);
        }
        Ok(hello)
    }
}

/// Ends the waits that only push messages would answer.
fn end_pushes(ctx: &mut Context<'_>) {
    let id = ctx.client_id();
    waiting::forget_pushed(ctx.core, id);
}

/// `HELLO [protover [AUTH username password] [SETNAME clientname]]`: a map about the server, in the
/// requested protocol.
fn hello(ctx: &mut Context<'_>) -> CommandResult {
    let hello = Hello::parse(ctx)?;
    let flags = ctx.client().flags;
    if hello.user.is_none() && !flags.contains(ClientFlags::AUTHENTICATED) {
        return Err(HELLO_UNAUTHENTICATED);
    }
    if let Some(user) = hello.user {
        let id = ctx.client_id();
        users::log_in(&mut ctx.core.state, id, user);
    }
    if hello.protocol == Some(Protocol::Resp2) {
        end_pushes(ctx);
    }
    let client = ctx.client();
    if let Some(name) = hello.name {
        client.name = name.into();
    }
    if let Some(protocol) = hello.protocol {
        // The client's protocol is for pushes caused by other clients, the writer's for its own
        // replies.
        client.protocol = protocol;
        ctx.reply.set_protocol(protocol);
    }
    let version = if ctx.reply.protocol() == Protocol::Resp3 { 3 } else { 2 };
    let number = ctx.client_id().number;
    let is_replica = ctx.core.state.replication.is_replica();
    let reply = &mut ctx.reply;
    let config = &ctx.core.state.config;
    let zone = Some(&config.availability_zone)
        .filter(|zone| config.compatible_with.is_valkey() && !zone.is_empty());
    reply.map(7 + zone.is_some() as usize);
    reply.bulk(b"server");
    let (name, told): (&[u8], &[u8]) = match config.compatible_with.is_valkey() {
        true => (b"valkey", VALKEY_VERSION.as_bytes()),
        false => (b"redis", &config.redis_version),
    };
    reply.bulk(name);
    reply.bulk(b"version");
    reply.bulk(told);
    reply.bulk(b"proto");
    reply.integer(version);
    reply.bulk(b"id");
    reply.integer(number as i64);
    reply.bulk(b"mode");
    reply.bulk(if config.cluster_enabled { b"cluster" } else { b"standalone" });
    reply.bulk(b"role");
    reply.bulk(if is_replica { b"replica" } else { b"master" });
    reply.bulk(b"modules");
    reply.array(0);
    if let Some(zone) = zone {
        reply.bulk(b"availability_zone");
        reply.bulk(zone);
    }
    Ok(Outcome::Replied)
}

/// `RESET`: `RESET`. Database 0, RESP2, no name, subscriptions, monitoring or tracking, replies on,
/// unauthenticated.
fn reset(ctx: &mut Context<'_>) -> CommandResult {
    end_pushes(ctx);
    let id = ctx.client_id();
    publish::unsubscribe_all(&mut ctx.core.state, id);
    ctx.core.state.remove_monitor(id);
    tracking::stop(ctx.core, ctx.client_id());
    users::log_out(&mut ctx.core.state, id);
    let client =
        ctx.core.state.clients.get_mut(ctx.client_id()).expect("a client outlives its command");
    transaction::abandon(&mut ctx.core.keyspace, client);
    client.flags.remove(
        ClientFlags::MONITOR
            | ClientFlags::NO_TOUCH
            | ClientFlags::NO_EVICT
            | ClientFlags::READS_HERE
            | ClientFlags::ASKING
            | ClientFlags::IMPORT_SOURCE,
    );
    client.set_replies(client.replies().reset());
    client.database = DbIndex::ZERO;
    client.name = Box::default();
    client.field_sets = None;
    client.protocol = Protocol::Resp2;
    ctx.core.state.clients.note_eviction(ctx.client_id());
    ctx.core.keyspace.select(DbIndex::ZERO);
    ctx.reply.set_protocol(Protocol::Resp2);
    ctx.reply.simple("RESET");
    Ok(Outcome::Replied)
}
