//! The arguments of LOCK and SEM commands.

use std::ops;

use crate::client::acks::AcksAsked;
use crate::command::timeout::{TimeoutUnit, parse_timeout};
use crate::error::CommandError;
use crate::resp::args::{BadKeyCount, Cursor};
use crate::resp::number::parse_i64;
use crate::resp::reply::Protocol;
use crate::state::context::{Context, Origin};
use crate::types::lock::{self, may_own};

const BAD_OWNER: CommandError =
    CommandError::Text("ERR a lock's owner has 1 to 256 bytes and does not begin with a colon");
const BAD_FENCE: CommandError = CommandError::Text("ERR fence is not an integer or out of range");
const BAD_HOLDS: CommandError = CommandError::Text("ERR MAXHOLDS should be greater than 0");
const ASYNC_NEEDS_PUSHES: CommandError =
    CommandError::Text("ERR ASYNC needs push messages: switch to RESP3 with HELLO 3");
const BAD_REPLICAS: CommandError =
    CommandError::Text("ERR the number of REPLICAS should be greater than 0");
const BAD_REPLICAS_TIME: CommandError =
    CommandError::Text("ERR the time of REPLICAS is not an integer or out of range");
const CANNOT_CONFIRM: CommandError = CommandError::Text(
    "NOREPLICAS a transaction or script cannot wait for replicas to acknowledge a lock",
);

pub(super) const QUEUE_IS_FULL: CommandError =
    CommandError::Text("LOCKQUEUE as many clients wait for locks as lock-max-waiters allows");

/// Whether no further client may wait for a lock, or for replicas to acknowledge one.
pub(super) fn is_queue_full(ctx: &Context<'_>) -> bool {
    ctx.core.state.waits.all_lock_waiters() >= ctx.core.state.config.lock_max_waiters as usize
}

/// An owner's name. Errors: the argument is not a valid name.
pub(in crate::command) fn owner_of(argument: &[u8]) -> Result<&[u8], CommandError> {
    Some(argument).filter(|name| may_own(name)).ok_or(BAD_OWNER)
}

/// A time in milliseconds, up to [`lock::LEASE_MS_MAX`].
pub(super) fn take_lease(
    arguments: &mut Cursor<'_>,
    name: &'static str,
) -> Result<i64, CommandError> {
    let ms = arguments.take_integer()?;
    Some(ms)
        .filter(|ms| (1..=lock::LEASE_MS_MAX).contains(ms))
        .ok_or(CommandError::InvalidExpire(name))
}

/// The indices of counted keys.
pub(super) fn take_keys(arguments: &mut Cursor<'_>) -> Result<ops::Range<usize>, CommandError> {
    arguments.take_keys(1, 1).map_err(|bad| match bad {
        BadKeyCount::TooLarge(_) => CommandError::MANY_KEYS,
        BadKeyCount::NotInteger | BadKeyCount::TooSmall => CommandError::FEW_KEYS,
    })
}

pub(in crate::command) fn take_fence(arguments: &mut Cursor<'_>) -> Result<u64, CommandError> {
    let fence = parse_i64(arguments.take()?).and_then(|fence| u64::try_from(fence).ok());
    fence.ok_or(BAD_FENCE)
}

/// The arguments of LOCK.ACQUIRE after the key.
pub(super) struct Acquire<'a> {
    pub owner: &'a [u8],
    pub lease_ms: i64,
    pub waits: Waits,
    /// SESSION: the time that the lease lasts after the connection has closed.
    pub grace_ms: Option<i64>,
    /// REENTRANT: the number of times that the owner may hold the lock.
    pub holds_max: Option<i64>,
    /// The replicas that must acknowledge the grant before the reply leaves.
    pub acks: Option<AcksAsked>,
    /// SHARED: the owner may hold the lock together with other readers.
    pub is_shared: bool,
}

/// Whether a client waits for a refused grant, and until when: boot-time clock in microseconds;
/// None: for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    Not,
    /// BLOCK
    Blocked(Option<i64>),
    /// ASYNC: the client is not blocked, and gets a push message.
    Async(Option<i64>),
}

impl Waits {
    /// Parses `BLOCK ms` or `ASYNC ms`, if they are next. Errors: ASYNC needs RESP3.
    pub(super) fn take(
        ctx: &Context<'_>,
        arguments: &mut Cursor<'_>,
    ) -> Result<Option<Self>, CommandError> {
        let is_async = arguments.take_word("ASYNC");
        if !is_async && !arguments.take_word("BLOCK") {
            return Ok(None);
        }
        let until =
            parse_timeout(arguments.take()?, TimeoutUnit::Milliseconds, ctx.core.state.now)?;
        match is_async {
            true if ctx.reply.protocol() != Protocol::Resp3 => Err(ASYNC_NEEDS_PUSHES),
            true => Ok(Some(Waits::Async(until))),
            false => Ok(Some(Waits::Blocked(until))),
        }
    }
}

/// Parses `REPLICAS n ms`, if it is next.
pub(super) fn take_acks(arguments: &mut Cursor<'_>) -> Result<Option<AcksAsked>, CommandError> {
    if !arguments.take_word("REPLICAS") {
        return Ok(None);
    }
    let replicas = arguments.take_positive(BAD_REPLICAS)? as i64;
    let ms = arguments.take_integer()?;
    match (1..=lock::LEASE_MS_MAX).contains(&ms) {
        true => Ok(Some(AcksAsked { replicas, ms })),
        false => Err(BAD_REPLICAS_TIME),
    }
}

/// The acknowledgements that a command needs: those that it asks for, else the configured ones.
/// Errors: the command cannot wait for any.
pub(super) fn acks_needed(
    ctx: &Context<'_>,
    asked: Option<AcksAsked>,
) -> Result<Option<AcksAsked>, CommandError> {
    let config = &ctx.core.state.config;
    let configured =
        AcksAsked { replicas: config.lock_min_replicas.into(), ms: config.lock_ack_timeout };
    let needed = asked.or(Some(configured).filter(|acks| acks.replicas > 0));
    let needed = needed.filter(|_| !ctx.is_repeated());
    match ctx.origin {
        Origin::Transaction | Origin::Script | Origin::Stream if needed.is_some() => {
            Err(CANNOT_CONFIRM)
        }
        Origin::Client if needed.is_some() && is_queue_full(ctx) => Err(QUEUE_IS_FULL),
        _ => Ok(needed),
    }
}

impl<'a> Acquire<'a> {
    /// Parses `owner PX ms [BLOCK ms | ASYNC ms] [SHARED] [SESSION GRACE ms] [REENTRANT [MAXHOLDS
    /// n]] [REPLICAS n ms]` of the command `name`, which errors quote.
    pub(super) fn parse(
        ctx: &Context<'a>,
        mut arguments: Cursor<'a>,
        name: &'static str,
    ) -> Result<Self, CommandError> {
        let owner = owner_of(arguments.take()?)?;
        let (mut lease_ms, mut waits, mut holds_max) = (None, None, None);
        let (mut grace_ms, mut acks, mut is_shared) = (None, None, false);
        while !arguments.is_at_end() {
            if lease_ms.is_none() && arguments.take_word("PX") {
                lease_ms = Some(take_lease(&mut arguments, name)?);
            } else if waits.is_none()
                && let Some(taken) = Waits::take(ctx, &mut arguments)?
            {
                waits = Some(taken);
            } else if acks.is_none()
                && let Some(taken) = take_acks(&mut arguments)?
            {
                acks = Some(taken);
            } else if grace_ms.is_none() && arguments.take_word("SESSION") {
                if !arguments.take_word("GRACE") {
                    return Err(CommandError::Syntax);
                }
                grace_ms = Some(take_lease(&mut arguments, name)?);
            } else if holds_max.is_none() && arguments.take_word("REENTRANT") {
                let most = match arguments.take_word("MAXHOLDS") {
                    true => arguments.take_positive(BAD_HOLDS)? as i64,
                    false => i64::MAX,
                };
                holds_max = Some(most);
            } else if !is_shared && arguments.take_word("SHARED") {
                is_shared = true;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        // Readers' holds are not counted.
        if is_shared && holds_max.is_some() {
            return Err(CommandError::Syntax);
        }
        let lease_ms = lease_ms.ok_or(CommandError::Syntax)?;
        let (waits, acks) = (waits.unwrap_or(Waits::Not), acks_needed(ctx, acks)?);
        Ok(Acquire { owner, lease_ms, waits, grace_ms, holds_max, acks, is_shared })
    }

    /// Grace and lease of the session that is asked for.
    pub(super) fn session(&self) -> Option<(i64, i64)> {
        self.grace_ms.map(|grace_ms| (grace_ms, self.lease_ms))
    }
}
