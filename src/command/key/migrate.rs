//! MIGRATE: moves keys to another server. They are restored there in one pipeline, and deleted here
//! once the other server has confirmed.
//!
//! `roles/moving.rs` does it, while other clients are served. In a transaction or a script, which
//! nothing may interrupt, the event loop is blocked, as always in Redis.

use std::ops::Range;
use std::time::Duration;

use crate::error::CommandError;
use crate::keyspace::waiting::Wanted;
use crate::net::lines::Peer;
use crate::resp::number::parse_i64;
use crate::roles::moving;
use crate::state::context::{CommandResult, Context, On, Outcome};
use crate::state::moving::MoveOrder;
use crate::state::spec::{
    Begin, Categories, CommandSpec, Find, Flags, KeyFlags, KeyRule, KeySpec, Secrets, key, spec,
};

/// The keys after the option KEYS.
const NAMED_LAST: KeySpec = KeySpec {
    begin: Begin::Keyword { word: "KEYS", from: -2 },
    find: Find::Range { last: -1, step: 1, limit: 0 },
    flags: KeyFlags::RW_ACCESS_DELETE.union(KeyFlags::INCOMPLETE),
    notes: None,
};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("MIGRATE", migrate).key_rule(KeyRule::Migrated).at_least(6).secrets(Secrets::Behind { from: 6, words: &[("AUTH", 1), ("AUTH2", 2)], until: "KEYS" })
        .keys(&[key(3, KeyFlags::RW_ACCESS_DELETE), NAMED_LAST])
        .flags(Flags::WRITE).categories(Categories::KEYSPACE_DANGEROUS).since("2.6.0").tips(&["nondeterministic_output"])
        .docs("host port <key | \"\"> destination-db timeout [COPY] [REPLACE] [AUTH password | AUTH2 <username password>] [KEYS key [key ...]]",
            "Moves keys to another server.", "O(N), N being the bytes of the values."),
];

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

    /// The order to move the keys from this argument on.
    fn owned(&self, ctx: &Context<'_>, first: usize) -> MoveOrder {
        let own = |bytes: &[u8]| Box::from(bytes);
        MoveOrder {
            peer: Peer {
                host: own(self.host),
                port: self.port,
                is_tls: ctx.core.state.config.tls_cluster,
            },
            target_database: own(self.database),
            timeout_us: i64::try_from(self.timeout.as_micros()).unwrap_or(i64::MAX),
            copies: self.copy,
            replaces: self.replace,
            credentials: self.credentials.iter().map(|one| own(one)).collect(),
            database: ctx.core.keyspace.selected(),
            names: (first..self.keys.end).map(|index| ctx.args.get(index)).collect(),
        }
    }
}

/// `MIGRATE host port key|"" destination-db timeout [COPY] [REPLACE] [AUTH password | AUTH2
/// username password] [KEYS key [key ...]]`: OK, or NOKEY if no key exists.
///
/// Its effect is a DEL of the moved keys.
fn migrate(ctx: &mut Context<'_>) -> CommandResult {
    let order = Order::parse(ctx)?;
    // From the first key on that exists.
    let mut keys = order.keys.clone();
    let first = keys.find(|&index| ctx.core.keyspace.find_for_read(ctx.key(index)).is_some());
    let Some(first) = first else {
        ctx.reply.simple("NOKEY");
        return Ok(Outcome::Replied);
    };
    let order = order.owned(ctx, first);
    match ctx.caller.client().filter(|_| ctx.may_wait()) {
        Some(client) => {
            let number = moving::begin(&mut ctx.core.state, client, order);
            Ok(Outcome::Waits(ctx.wait(Wanted::Move, On::Move(number), None)))
        }
        None => migrate_at_once(ctx, order),
    }
}

/// Moves the keys while all clients wait.
fn migrate_at_once(ctx: &mut Context<'_>, order: MoveOrder) -> CommandResult {
    let (migration, ended) = moving::run(ctx.core, order);
    if !migration.taken.is_empty() {
        let names = migration.taken.iter().map(|&name| migration.order.names.get(name));
        let request: Vec<&[u8]> = std::iter::once(&b"DEL"[..]).chain(names).collect();
        ctx.instead(&request);
    }
    // In a script time stands still.
    if ctx.core.state.scripts.running.is_none() {
        let now = ctx.core.state.clock.now();
        ctx.core.state.now = now;
        ctx.core.keyspace.set_now(now);
    }
    ended?;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}
