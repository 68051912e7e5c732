//! MIGRATE: moves keys to another server. They are restored there in one pipeline, and deleted here
//! once the other server has confirmed.
//!
//! The client waits for that while others are served (`roles/moving.rs`). In a transaction or a
//! script, which nothing may interrupt, the event loop is blocked, as always in Redis.

use std::io;
use std::ops::Range;
use std::time::Duration;

use crate::error::CommandError;
use crate::gate::confirm;
use crate::ids::ClientId;
use crate::keyspace::Key;
use crate::net::lines::Peer;
use crate::net::outgoing::Connection;
use crate::persist::rdb::payload;
use crate::resp::answer::Answer;
use crate::resp::number::parse_i64;
use crate::resp::request::encode;
use crate::roles::moving::{self, CONNECTING_FAILED, READING_FAILED, WRITING_FAILED};
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::moving::MoveOrder;
use crate::state::spec::{
    Begin, Categories, CommandSpec, Find, Flags, KeyFlags, KeyRule, KeySpec, Secrets, key, spec,
};

pub const COMMANDS: &[CommandSpec] = &[spec("MIGRATE", migrate)
    .key_rule(KeyRule::Migrated)
    .at_least(6)
    .secrets(Secrets::Behind { from: 6, words: &[("AUTH", 1), ("AUTH2", 2)], until: "KEYS" })
    .keys(&[
        key(3, KeyFlags::RW_ACCESS_DELETE),
        KeySpec {
            begin: Begin::Keyword { word: "KEYS", from: -2 },
            find: Find::Range { last: -1, step: 1, limit: 0 },
            flags: KeyFlags::RW_ACCESS_DELETE.union(KeyFlags::INCOMPLETE),
            notes: None,
        },
    ])
    .flags(Flags::WRITE)
    .categories(Categories::KEYSPACE_DANGEROUS)
    .since("2.6.0")
    .docs(
        "host port <key | \"\"> destination-db timeout [COPY] [REPLACE] [AUTH password | AUTH2 <username password>] \
         [KEYS key [key ...]]",
        "Moves keys to another server.",
        "O(N), N being the bytes of the values.",
    )
    .tips(&["nondeterministic_output"])];

const KEY_IS_NOT_EMPTY: CommandError = CommandError::Text(
    "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
);
/// The timeout if 0 or less is given. Unit: milliseconds.
const TIMEOUT_DEFAULT_MS: u64 = 1000;

/// `MIGRATE host port key|"" destination-db timeout [COPY] [REPLACE] [AUTH password | AUTH2
/// username password] [KEYS key [key ...]]`.
struct Order<'a> {
    host: &'a [u8],
    port: u16,
    database: &'a [u8],
    timeout: Duration,
    copy: bool,
    replace: bool,
    /// Password, or user and password.
    credentials: Vec<&'a [u8]>,
    /// Indices of the key arguments.
    keys: Range<usize>,
}

impl<'a> Order<'a> {
    fn parse(ctx: &Context<'a>) -> Result<Self, CommandError> {
        let args = ctx.args;
        let (mut copy, mut replace, mut keys) = (false, false, 3..4);
        let mut credentials = Vec::new();
        let mut options = args.cursor(6);
        while !options.is_at_end() {
            if options.take_word("COPY") {
                copy = true;
            } else if options.take_word("REPLACE") {
                replace = true;
            } else if options.take_word("AUTH") {
                // After AUTH2 it replaces only the password, as in Redis.
                let password = options.take()?;
                credentials.pop();
                credentials.push(password);
            } else if options.take_word("AUTH2") {
                credentials = vec![options.take()?, options.take()?];
            } else if options.take_word("KEYS") {
                if !args.get(3).is_empty() {
                    return Err(KEY_IS_NOT_EMPTY);
                }
                keys = options.position()..args.len();
                break;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        let timeout_ms = args.integer(5)?;
        args.integer(4)?;
        let timeout_ms =
            u64::try_from(timeout_ms).ok().filter(|ms| *ms > 0).unwrap_or(TIMEOUT_DEFAULT_MS);
        Ok(Order {
            host: args.get(1),
            // An invalid port cannot be connected to.
            port: parse_i64(args.get(2)).and_then(|port| port.try_into().ok()).unwrap_or(0),
            database: args.get(4),
            timeout: Duration::from_millis(timeout_ms),
            copy,
            replace,
            credentials,
            keys,
        })
    }
}

/// Why a transfer failed.
struct Broken {
    error: io::Error,
    told: CommandError,
}

/// The result of a transfer on a connection that stays open.
struct HandedOver<'a> {
    /// The keys that the other server has confirmed.
    taken: Vec<Key<'a>>,
    /// Its first error reply.
    refused: Option<Vec<u8>>,
    /// The connection broke before all replies came.
    broken: Option<Broken>,
}

/// `MIGRATE host port key|"" destination-db timeout [COPY] [REPLACE] [AUTH password | AUTH2
/// username password] [KEYS key [key ...]]`: OK, or NOKEY if no key exists.
///
/// Its effect is a DEL of the moved keys.
fn migrate(ctx: &mut Context<'_>) -> CommandResult {
    let order = Order::parse(ctx)?;
    match ctx.caller.client().filter(|_| ctx.may_wait()) {
        Some(client) => begin(ctx, &order, client),
        None => migrate_at_once(ctx, &order),
    }
}

/// Starts to move the keys from the first one on that exists.
fn begin(ctx: &mut Context<'_>, order: &Order<'_>, client: ClientId) -> CommandResult {
    let mut keys = order.keys.clone();
    let first = keys.find(|&index| ctx.core.keyspace.find_for_read(ctx.key(index)).is_some());
    let Some(first) = first else {
        ctx.reply.simple("NOKEY");
        return Ok(Outcome::Replied);
    };
    let own = |bytes: &[u8]| Box::from(bytes);
    let order = MoveOrder {
        peer: Peer {
            host: own(order.host),
            port: order.port,
            is_tls: ctx.core.state.config.tls_cluster,
        },
        target_database: own(order.database),
        timeout_us: i64::try_from(order.timeout.as_micros()).unwrap_or(i64::MAX),
        copies: order.copy,
        replaces: order.replace,
        credentials: order.credentials.iter().map(|one| own(one)).collect(),
        database: ctx.core.keyspace.selected(),
        names: (first..order.keys.end).map(|index| ctx.args.get(index)).collect(),
    };
    Ok(Outcome::Moves(moving::begin(&mut ctx.core.state, client, order)))
}

/// Moves the keys while all clients wait.
fn migrate_at_once(ctx: &mut Context<'_>, order: &Order<'_>) -> CommandResult {
    let mut keys: Vec<Key<'_>> = order.keys.clone().map(|index| ctx.key(index)).collect();
    keys.retain(|key| ctx.core.keyspace.find_for_read(*key).is_some());
    if keys.is_empty() {
        ctx.reply.simple("NOKEY");
        return Ok(Outcome::Replied);
    }
    let handed = hand_over_or_try_again(ctx, order, &keys);
    let deleted = match &handed {
        Ok(handed) if !order.copy => delete(ctx, &handed.taken),
        _ => Vec::new(),
    };
    if !deleted.is_empty() {
        let request: Vec<&[u8]> = std::iter::once(&b"DEL"[..]).chain(deleted).collect();
        ctx.instead(&request);
    }
    // In a script time stands still.
    if ctx.core.state.scripts.running.is_none() {
        let now = ctx.core.state.clock.now();
        ctx.core.state.now = now;
        ctx.core.keyspace.set_now(now);
    }
    match handed? {
        HandedOver { refused: Some(error), .. } => Err(moving::refused_by_target(&error)),
        HandedOver { broken: Some(broken), .. } => Err(broken.told),
        HandedOver { .. } => {
            ctx.reply.ok();
            Ok(Outcome::Replied)
        }
    }
}

/// Deletes keys; returns those that existed.
fn delete<'a>(ctx: &mut Context<'_>, keys: &[Key<'a>]) -> Vec<&'a [u8]> {
    let database = ctx.core.keyspace.selected();
    let deleted = keys.iter().filter(|key| {
        ctx.core.keyspace.locks.note_moved(database, key.bytes);
        confirm::follow(ctx.core, database, key.bytes);
        ctx.core.keyspace.delete(**key, "del")
    });
    deleted.map(|key| key.bytes).collect()
}

/// Transfers keys on a kept connection or a new one. A kept connection may have been closed: if it
/// breaks before the first reply, and not by a timeout, a new one is tried.
fn hand_over_or_try_again<'a>(
    ctx: &mut Context<'_>,
    order: &Order<'_>,
    keys: &[Key<'a>],
) -> Result<HandedOver<'a>, CommandError> {
    let mut may_retry = true;
    loop {
        let mut connection = connect(ctx, order)?;
        let handed = hand_over(ctx, &mut connection, order, keys);
        match handed {
            HandedOver { broken: None, .. } => {
                connection.database = match handed.refused {
                    None => parse_i64(order.database),
                    Some(_) => None,
                };
                let now_us = ctx.core.state.clock.now().boot_us;
                ctx.core.state.net.outgoing.keep(order.host, order.port, connection, now_us);
                return Ok(handed);
            }
            HandedOver { taken, refused: None, broken: Some(broken) }
                if may_retry
                    && taken.is_empty()
                    && !matches!(
                        broken.error.kind(),
                        io::ErrorKind::TimedOut | io::ErrorKind::InvalidData
                    ) =>
            {
                may_retry = false;
            }
            HandedOver { .. } => return Ok(handed),
        }
    }
}

fn connect(ctx: &mut Context<'_>, order: &Order<'_>) -> Result<Connection, CommandError> {
    let tls = ctx.core.state.net.tls.as_ref().filter(|_| ctx.core.state.config.tls_cluster);
    let kept = ctx.core.state.net.outgoing.take(order.host, order.port, tls.is_some());
    let connected = match (kept, std::str::from_utf8(order.host)) {
        (Some(connection), _) => Ok(connection),
        (None, Ok(host)) => {
            Connection::open(host, order.port, order.timeout, tls.map(|tls| &tls.client))
        }
        (None, Err(_)) => return Err(CONNECTING_FAILED),
    };
    let connection = connected.map_err(|error| match error.kind() {
        // Redis notices a refused connection only when it writes.
        io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable => WRITING_FAILED,
        _ => CONNECTING_FAILED,
    })?;
    connection.set_timeout(order.timeout).map_err(|_| CONNECTING_FAILED)?;
    Ok(connection)
}

/// Sends all requests and reads all replies.
fn hand_over<'a>(
    ctx: &mut Context<'_>,
    connection: &mut Connection,
    order: &Order<'_>,
    keys: &[Key<'a>],
) -> HandedOver<'a> {
    let mut handed = HandedOver { taken: Vec::new(), refused: None, broken: None };
    let mut requests = Vec::new();
    let mut preambles = 0;
    if !order.credentials.is_empty() {
        let auth = std::iter::once(&b"AUTH"[..]).chain(order.credentials.iter().copied());
        encode(auth.collect::<Vec<_>>(), &mut requests);
        preambles += 1;
    }
    if connection.database.is_none() || connection.database != parse_i64(order.database) {
        encode([&b"SELECT"[..], order.database], &mut requests);
        preambles += 1;
    }
    let sent = push_keys(ctx, order, keys, &mut requests);
    if let Err(error) = connection.send(&requests) {
        handed.broken = Some(Broken { error, told: WRITING_FAILED });
        return handed;
    }
    let mut preamble_refused = None;
    for _ in 0..preambles {
        match read_answer(connection) {
            Ok(refused) => preamble_refused = preamble_refused.or(refused),
            Err(error) => {
                handed.broken = Some(Broken { error, told: READING_FAILED });
                return handed;
            }
        }
    }
    for key in sent {
        match read_answer(connection) {
            Ok(refused) => match preamble_refused.clone().or(refused) {
                Some(text) => _ = handed.refused.get_or_insert(text),
                None => handed.taken.push(key),
            },
            Err(error) => {
                handed.broken = Some(Broken { error, told: READING_FAILED });
                break;
            }
        }
    }
    handed
}

/// Reads a reply. Some: the text of an error. Errors: also a reply that is neither this nor `+OK`,
/// after which no line says what became of a key.
fn read_answer(connection: &mut Connection) -> io::Result<Option<Vec<u8>>> {
    let line = connection.line()?;
    match Answer::of(&line) {
        Answer::Done => Ok(None),
        Answer::Refused(error) => Ok(Some(error.to_vec())),
        Answer::Foreign => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Appends a RESTORE, or RESTORE-ASKING in a cluster, for each key that has not expired by now;
/// returns those keys.
fn push_keys<'a>(
    ctx: &mut Context<'_>,
    order: &Order<'_>,
    keys: &[Key<'a>],
    requests: &mut Vec<u8>,
) -> Vec<Key<'a>> {
    // Connecting may have taken time: read the clock again.
    let now = ctx.core.state.clock.now();
    // The target does not own a slot that is still being moved.
    let restore: &[u8] = match ctx.core.state.cluster {
        Some(_) => b"RESTORE-ASKING",
        None => b"RESTORE",
    };
    let mut sent = Vec::new();
    for &key in keys {
        let Some(slot) = ctx.core.keyspace.find(key) else { continue };
        let entry = ctx.core.keyspace.entry(slot);
        let ttl_ms = match entry.deadline().map(|deadline| now.remaining_ms(deadline)) {
            Some(..0) => continue,
            // 0 would mean no deadline.
            Some(ms) => ms.max(1),
            None => 0,
        };
        let ttl = ttl_ms.to_string();
        let payload =
            payload::dump_as_in_files(ctx.core.state.payload_encoder(), entry.value(), &now);
        let mut request = vec![restore, key.bytes, ttl.as_bytes(), &payload];
        if order.replace {
            request.push(b"REPLACE");
        }
        encode(request, requests);
        sent.push(key);
    }
    sent
}
