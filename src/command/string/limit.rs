//! Commands of rate limiters: INCREX counts within bounds, CL.THROTTLE limits a rate.
//!
//! Both keep one plain string a key, and reach files and replicas as SET, which Redis 7.0 knows.
//! `docs/limits.md` says which recipe is for what.

use crate::clock::{Deadline, Now};
use crate::collections::table::Slot;
use crate::command::deadline::{Lifetime, LifetimeWord, TimeUnit};
use crate::command::string::options::parse_time;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::{Expiry, Key};
use crate::resp::args::{Args, Cursor};
use crate::resp::float80::Float80;
use crate::resp::number;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, KeySpec, spec};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("INCREX", increx).at_least(2).keys(KeySpec::RW_ACCESS_UPDATE).flags(Flags::WRITE_DENYOOM_FAST).group(Group::String).since("8.8.0")
        .docs("key [BYINT increment | BYFLOAT increment] [LBOUND lower] [UBOUND upper] [SATURATE] \
            [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] [ENX]",
            "Adds to a key's number within bounds, and sets when it expires.", "O(1)"),
    spec("CL.THROTTLE", throttle).at_least(5).keys(KeySpec::RW_ACCESS_UPDATE).flags(Flags::WRITE_DENYOOM_FAST).group(Group::String).since("0.2.0")
        .docs("key max_burst count period [quantity]", "Asks a rate limiter whether an action is allowed, and counts it if it is.", "O(1)"),
];

const ENX_ALONE: CommandError = CommandError::Text("ERR ENX flag requires an expiration");
const BOUNDS_CROSSED: CommandError = CommandError::Text("ERR LBOUND can't be greater than UBOUND");

/// A number of INCREX: 64 bits, or extended precision.
trait Number: Copy {
    const EVENT: &'static str;
    const ZERO: Self;
    /// An argument.
    fn parse(text: &[u8]) -> Result<Self, CommandError>;
    /// The sum, if it is within these bounds or, without them, those of the type; else the bound
    /// that it passes.
    fn add_within(
        self,
        more: Self,
        bounds: (Option<Self>, Option<Self>),
    ) -> Result<Sum<Self>, CommandError>;
    /// The difference. Errors: it is no number of this type.
    fn minus(self, other: Self) -> Result<Self, CommandError>;
    fn is_above(self, other: Self) -> bool;
    fn text(self) -> Vec<u8>;
}

enum Sum<N> {
    Within(N),
    Passes(N),
}

impl Number for i64 {
    const EVENT: &'static str = "incrby";
    const ZERO: i64 = 0;

    fn parse(text: &[u8]) -> Result<i64, CommandError> {
        number::parse_i64(text).ok_or(CommandError::NotInteger)
    }

    fn add_within(
        self,
        more: i64,
        (lower, upper): (Option<i64>, Option<i64>),
    ) -> Result<Sum<i64>, CommandError> {
        let sum = i128::from(self) + i128::from(more);
        let (lower, upper) = (lower.unwrap_or(i64::MIN), upper.unwrap_or(i64::MAX));
        let bounded = sum.clamp(lower.into(), upper.into()) as i64;
        Ok(if i128::from(bounded) == sum { Sum::Within(bounded) } else { Sum::Passes(bounded) })
    }

    fn minus(self, other: i64) -> Result<i64, CommandError> {
        self.checked_sub(other).ok_or(CommandError::Overflow)
    }

    fn is_above(self, other: i64) -> bool {
        self > other
    }

    fn text(self) -> Vec<u8> {
        self.to_string().into_bytes()
    }
}

impl Number for Float80 {
    const EVENT: &'static str = "incrbyfloat";
    const ZERO: Float80 = Float80::ZERO;

    fn parse(text: &[u8]) -> Result<Float80, CommandError> {
        Float80::parse(text).filter(Float80::is_finite).ok_or(CommandError::NotFloat)
    }

    fn add_within(
        self,
        more: Float80,
        (lower, upper): (Option<Float80>, Option<Float80>),
    ) -> Result<Sum<Float80>, CommandError> {
        let sum = self + more;
        if let Some(lower) = lower.filter(|lower| lower.is_above(sum)) {
            return Ok(Sum::Passes(lower));
        }
        if let Some(upper) = upper.filter(|upper| sum.is_above(*upper)) {
            return Ok(Sum::Passes(upper));
        }
        if sum.is_finite() { Ok(Sum::Within(sum)) } else { Err(CommandError::NanOrInfinity) }
    }

    fn minus(self, other: Float80) -> Result<Float80, CommandError> {
        let difference = self + other.negated();
        if difference.is_finite() { Ok(difference) } else { Err(CommandError::NanOrInfinity) }
    }

    fn is_above(self, other: Float80) -> bool {
        (other + self.negated()).is_negative()
    }

    fn text(self) -> Vec<u8> {
        self.to_text()
    }
}

/// A condition on whether the key exists: Valkey's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existence {
    Absent,
    Present,
}

/// INCREX's options. Numbers are parsed once it is known of which kind they are.
#[derive(Default)]
struct Options<'a> {
    integer: Option<&'a [u8]>,
    float: Option<&'a [u8]>,
    lower: Option<&'a [u8]>,
    upper: Option<&'a [u8]>,
    saturates: bool,
    lifetime: Lifetime<'a>,
    /// The deadline is set only if the key has none.
    if_persistent: bool,
    existence: Option<Existence>,
}

impl<'a> Options<'a> {
    /// All options, in any order, from argument 2 on.
    fn parse(args: Args<'a>, is_valkey: bool) -> Result<Self, CommandError> {
        let mut options = Options::default();
        let mut cursor = args.cursor(2);
        while let Some(word) = cursor.peek() {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            cursor.take()?;
            let number = match () {
                () if is("BYINT") => &mut options.integer,
                () if is("BYFLOAT") => &mut options.float,
                () if is("LBOUND") => &mut options.lower,
                () if is("UBOUND") => &mut options.upper,
                () => {
                    options.add_word(word, is_valkey, &mut cursor)?;
                    continue;
                }
            };
            if number.replace(cursor.take()?).is_some() {
                return Err(CommandError::Syntax);
            }
        }
        let has_persist = options.lifetime == Lifetime::Persist;
        if (options.integer.is_some() && options.float.is_some())
            || (has_persist && options.if_persistent)
        {
            return Err(CommandError::Syntax);
        }
        if options.if_persistent && options.lifetime == Lifetime::Unsaid {
            return Err(ENX_ALONE);
        }
        Ok(options)
    }

    fn add_word(
        &mut self,
        word: &'a [u8],
        is_valkey: bool,
        cursor: &mut Cursor<'a>,
    ) -> Result<(), CommandError> {
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        match LifetimeWord::of(word) {
            Some(LifetimeWord::KeepTtl) => return Err(CommandError::Syntax),
            Some(_) if self.lifetime != Lifetime::Unsaid => return Err(CommandError::Syntax),
            Some(word) => return self.lifetime.add(word, cursor),
            None => {}
        }
        let existence = match () {
            () if is("NX") && is_valkey => Existence::Absent,
            () if is("XX") && is_valkey => Existence::Present,
            () if is("SATURATE") && !self.saturates => {
                self.saturates = true;
                return Ok(());
            }
            () if is("ENX") && !self.if_persistent => {
                self.if_persistent = true;
                return Ok(());
            }
            () => return Err(CommandError::Syntax),
        };
        match self.existence.replace(existence) {
            None => Ok(()),
            Some(_) => Err(CommandError::Syntax),
        }
    }
}

/// `INCREX key [BYINT increment | BYFLOAT increment] [LBOUND lower] [UBOUND upper] [SATURATE] [EX
/// seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]
/// [ENX] [NX | XX]`: the value, and what was added to it. NX and XX only with `compatible-with
/// valkey-9`: nil if they are not met.
fn increx(ctx: &mut Context<'_>) -> CommandResult {
    let is_valkey = ctx.core.state.config.compatible_with.is_valkey();
    let options = Options::parse(ctx.args, is_valkey)?;
    match options.float {
        Some(increment) => {
            let increment = <Float80 as Number>::parse(increment)?;
            let reply = |ctx: &mut Context<'_>, number: Float80| {
                ctx.reply.double_text(&number.to_text());
            };
            add(ctx, &options, increment, reply)
        }
        None => {
            let increment = options.integer.map_or(Ok(1), <i64 as Number>::parse)?;
            add(ctx, &options, increment, |ctx, number: i64| ctx.reply.integer(number))
        }
    }
}

fn add<N: Number>(
    ctx: &mut Context<'_>,
    options: &Options<'_>,
    increment: N,
    reply: impl Fn(&mut Context<'_>, N),
) -> CommandResult {
    let lower = options.lower.map(N::parse).transpose()?;
    let upper = options.upper.map(N::parse).transpose()?;
    if let (Some(lower), Some(upper)) = (lower, upper)
        && lower.is_above(upper)
    {
        return Err(BOUNDS_CROSSED);
    }
    let now = ctx.core.keyspace.now();
    let expiry = match options.lifetime {
        Lifetime::Given(unit, time) => parse_time(unit, time, &now, &ctx.command.full_name)?,
        _ => Expiry::Keep,
    };
    let key = ctx.key(1);
    let found = ctx.core.keyspace.find_for_write(key);
    let old = match found {
        Some(slot) => {
            let text = ctx.core.keyspace.string_at(slot)?.as_slice();
            N::parse(text.ok_or(CommandError::NotInteger)?)?
        }
        None => N::ZERO,
    };
    let existence = if found.is_some() { Existence::Present } else { Existence::Absent };
    if options.existence.is_some_and(|wanted| wanted != existence) {
        ctx.reply.null();
        return Ok(Outcome::Replied);
    }
    let (new, added) = match old.add_within(increment, (lower, upper))? {
        Sum::Within(new) => (new, increment),
        Sum::Passes(bound) if options.saturates => (bound, bound.minus(old)?),
        Sum::Passes(_) => {
            ctx.reply.array(2);
            reply(ctx, old);
            reply(ctx, N::ZERO);
            return Ok(Outcome::Replied);
        }
    };
    ctx.reply.array(2);
    reply(ctx, new);
    reply(ctx, added);
    let change = Change { options, event: N::EVENT, expiry };
    change.apply(ctx, found, key, &new.text());
    Ok(Outcome::Replied)
}

/// A number to be stored.
struct Change<'a> {
    options: &'a Options<'a>,
    event: &'static str,
    expiry: Expiry,
}

impl Change<'_> {
    fn apply(self, ctx: &mut Context<'_>, found: Option<Slot>, key: Key<'_>, text: &[u8]) {
        let now = ctx.core.keyspace.now();
        let had = found.and_then(|slot| ctx.core.keyspace.entry(slot).deadline());
        let expiry = match self.options.lifetime {
            Lifetime::Persist => Expiry::Clear,
            _ if self.options.if_persistent && had.is_some() => Expiry::Keep,
            _ => self.expiry,
        };
        if let (Expiry::At(deadline), Lifetime::Given(unit, _)) = (expiry, self.options.lifetime)
            && unit.is_absolute()
            && now.has_come(deadline)
        {
            if let Some(slot) = found {
                ctx.delete_overdue(slot, key);
            }
            return;
        }
        match expiry {
            Expiry::Keep => ctx.core.keyspace.overwrite_string(found, key, text),
            _ => ctx.core.keyspace.update_string_at(found, key, text, expiry),
        }
        ctx.core.keyspace.changed(KeyspaceEvents::STRING, self.event, key.bytes);
        let more = match expiry {
            Expiry::At(_) => Some("expire"),
            Expiry::Clear => had.map(|_| "persist"),
            Expiry::Keep => None,
        };
        if let Some(event) = more {
            ctx.core.keyspace.notify(KeyspaceEvents::GENERIC, event, key.bytes);
        }
        ctx.instead_set(key.bytes, text, expiry);
    }
}

// ---- CL.THROTTLE --------------------------------------------------------------------------------

const BURST_NEGATIVE: CommandError = CommandError::Text("ERR max_burst can't be negative");
const COUNT_NOT_POSITIVE: CommandError = CommandError::Text("ERR count must be positive");
const PERIOD_NOT_POSITIVE: CommandError = CommandError::Text("ERR period must be positive");
const QUANTITY_NEGATIVE: CommandError = CommandError::Text("ERR quantity can't be negative");
const RATE_TOO_HIGH: CommandError =
    CommandError::Text("ERR count is too large: at most one action a nanosecond is allowed");
const TOO_LONG: CommandError = CommandError::Text(
    "ERR max_burst, period or quantity is too large: the limit would last for centuries",
);

const NS_PER_SECOND: i64 = 1_000_000_000;
const NS_PER_MS: i64 = 1_000_000;
/// No time of a limiter is further away: about 146 years. So sums of two fit into 64 bits.
const SPAN_NS_MAX: i64 = i64::MAX / 2;

/// A limiter's arguments. Unit of times: nanoseconds.
struct Limiter {
    /// Actions at once.
    limit: i64,
    /// From one action to the next at the limited rate.
    interval_ns: i64,
    /// What the actions asked for take at this rate.
    increment_ns: i64,
    /// What all actions at once take.
    tolerance_ns: i64,
    is_look: bool,
}

/// What a limiter answers.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    is_limited: bool,
    remaining: i64,
    /// None: it is allowed, or never will be.
    retry_after_ns: Option<i64>,
    reset_after_ns: i64,
}

impl Limiter {
    /// `max_burst count period [quantity]`, from argument 2 on.
    fn parse(args: Args<'_>) -> Result<Self, CommandError> {
        let (burst, count, period) = (args.integer(2)?, args.integer(3)?, args.integer(4)?);
        let quantity = if args.len() > 5 { args.integer(5)? } else { 1 };
        for (is_wrong, error) in [
            (burst < 0, BURST_NEGATIVE),
            (count <= 0, COUNT_NOT_POSITIVE),
            (period <= 0, PERIOD_NOT_POSITIVE),
            (quantity < 0, QUANTITY_NEGATIVE),
        ] {
            if is_wrong {
                return Err(error);
            }
        }
        let period_ns = period.checked_mul(NS_PER_SECOND).ok_or(TOO_LONG)?;
        // redis-cell divides so.
        let interval_ns = (period_ns as f64 / count as f64) as i64;
        if interval_ns == 0 {
            return Err(RATE_TOO_HIGH);
        }
        let limit = burst.checked_add(1).ok_or(TOO_LONG)?;
        let span = |actions: i64| {
            let span = interval_ns.checked_mul(actions).filter(|span| *span <= SPAN_NS_MAX);
            span.ok_or(TOO_LONG)
        };
        Ok(Limiter {
            limit,
            interval_ns,
            increment_ns: span(quantity)?,
            tolerance_ns: span(limit)?,
            is_look: quantity == 0,
        })
    }

    /// The answer, and how long from now the limiter remembers the actions if they are allowed.
    /// `ahead_ns`: how long it remembers earlier ones; at least 0.
    fn ask(&self, ahead_ns: i64) -> (Answer, i64) {
        let ahead_ns = ahead_ns.clamp(0, SPAN_NS_MAX);
        let new_ahead_ns = ahead_ns + self.increment_ns;
        let over_ns = new_ahead_ns - self.tolerance_ns;
        let is_limited = over_ns > 0;
        let reset_after_ns = if is_limited { ahead_ns } else { new_ahead_ns };
        let left_ns = self.tolerance_ns - reset_after_ns;
        let remaining = match left_ns > -self.interval_ns {
            // Microseconds, as redis-cell divides them, where there are any.
            true if self.interval_ns >= 1000 => {
                ((left_ns / 1000) as f64 / (self.interval_ns / 1000) as f64) as i64
            }
            true => left_ns / self.interval_ns,
            false => 0,
        };
        let can_retry = is_limited && self.increment_ns <= self.tolerance_ns;
        let answer = Answer {
            is_limited,
            remaining,
            retry_after_ns: can_retry.then_some(over_ns),
            reset_after_ns,
        };
        (answer, new_ahead_ns)
    }
}

/// Seconds, rounded up from the first millisecond on.
fn whole_seconds(ns: i64) -> i64 {
    ns / NS_PER_SECOND + i64::from(ns % NS_PER_SECOND >= NS_PER_MS)
}

/// How far ahead of now a stored time lies. The key's deadline, rounded up to milliseconds, is on
/// the clock that nobody sets: where the two differ the wall clock was set.
fn ahead_ns(stored_ns: i64, deadline: Option<Deadline>, now: &Now) -> i64 {
    let by_wall = stored_ns.saturating_sub(now.wall_us.saturating_mul(1000));
    let Some(deadline) = deadline else { return by_wall };
    let left_ms = now.remaining_ms(deadline);
    let by_deadline = left_ms.saturating_mul(NS_PER_MS);
    match by_deadline.saturating_sub(by_wall) {
        // Both clocks are read in microseconds.
        between if (-NS_PER_MS..=2 * NS_PER_MS).contains(&between) => by_wall,
        _ => by_deadline,
    }
}

/// `CL.THROTTLE key max_burst count period [quantity]`, as the module redis-cell has it: 0 if the
/// actions are allowed and counted, else 1; the limit, how many actions are left, the seconds after
/// which these may be tried again (-1: they are allowed, or never will be), and the seconds after
/// which all are left again. The string is the time at which this is so, in Unix nanoseconds.
fn throttle(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() > 6 {
        return Err(CommandError::WrongArity(ctx.name().into()));
    }
    let limiter = Limiter::parse(ctx.args)?;
    let key = ctx.key(1);
    let now = ctx.core.keyspace.now();
    let found = ctx.core.keyspace.find_for_write(key);
    let ahead = match found {
        Some(slot) => {
            let text = ctx.core.keyspace.string_at(slot)?.as_slice();
            let stored = text.and_then(number::parse_i64).ok_or(CommandError::NotInteger)?;
            ahead_ns(stored, ctx.core.keyspace.entry(slot).deadline(), &now)
        }
        None => 0,
    };
    let (answer, new_ahead_ns) = limiter.ask(ahead);
    ctx.reply.array(5);
    ctx.reply.integer(answer.is_limited.into());
    ctx.reply.integer(limiter.limit);
    ctx.reply.integer(answer.remaining);
    ctx.reply.integer(answer.retry_after_ns.map_or(-1, whole_seconds));
    ctx.reply.integer(whole_seconds(answer.reset_after_ns));
    if answer.is_limited || limiter.is_look {
        return Ok(Outcome::Replied);
    }
    let until_ns = now.wall_us.saturating_mul(1000).saturating_add(new_ahead_ns);
    let ms = new_ahead_ns.div_euclid(NS_PER_MS) + i64::from(new_ahead_ns % NS_PER_MS > 0);
    let when = TimeUnit::Milliseconds.when(ms, &now).ok_or(TOO_LONG)?;
    let expiry = Expiry::At(when.deadline(&now));
    let text = until_ns.to_string();
    ctx.core.keyspace.update_string_at(found, key, text.as_bytes(), expiry);
    ctx.core.keyspace.changed(KeyspaceEvents::STRING, "set", key.bytes);
    ctx.core.keyspace.notify(KeyspaceEvents::GENERIC, "expire", key.bytes);
    ctx.instead_set(key.bytes, text.as_bytes(), expiry);
    Ok(Outcome::Replied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limiter(burst: i64, interval_ns: i64, quantity: i64) -> Limiter {
        Limiter {
            limit: burst + 1,
            interval_ns,
            increment_ns: interval_ns * quantity,
            tolerance_ns: interval_ns * (burst + 1),
            is_look: quantity == 0,
        }
    }

    /// The rows of the module's own test: milliseconds since the start, quantity; remaining,
    /// seconds until reset and retry, whether it is limited.
    #[test]
    fn it_limits_as_the_module_does() {
        let second = NS_PER_SECOND as f64;
        let mut until_ns = 0;
        for (at_ms, quantity, remaining, reset, retry, is_limited) in [
            (0, 6, 5, 0.0, None, true),
            (0, 1, 4, 1.0, None, false),
            (0, 1, 3, 2.0, None, false),
            (0, 1, 2, 3.0, None, false),
            (0, 1, 1, 4.0, None, false),
            (0, 1, 0, 5.0, None, false),
            (0, 1, 0, 5.0, Some(1.0), true),
            (3000, 1, 2, 3.0, None, false),
            (3100, 1, 1, 3.9, None, false),
            (4000, 1, 1, 4.0, None, false),
            (8000, 1, 4, 1.0, None, false),
            (9500, 1, 4, 1.0, None, false),
            (9500, 0, 4, 1.0, None, false),
            (9500, 2, 2, 3.0, None, false),
            (9500, 5, 2, 3.0, Some(3.0), true),
        ] {
            let now_ns = at_ms * NS_PER_MS;
            let (answer, ahead) = limiter(4, NS_PER_SECOND, quantity).ask(until_ns - now_ns);
            if !answer.is_limited {
                until_ns = now_ns + ahead;
            }
            let expected = Answer {
                is_limited,
                remaining,
                retry_after_ns: retry.map(|retry: f64| (retry * second) as i64),
                reset_after_ns: (reset * second) as i64,
            };
            assert_eq!(answer, expected, "{at_ms} ms, {quantity}");
        }
    }

    proptest! {
        /// In no span of time are more actions allowed than the burst and what the rate adds.
        #[test]
        fn no_span_has_more_actions_than_the_rate_allows(
            burst in 0i64..20,
            interval_us in 1i64..5000,
            steps in prop::collection::vec((0i64..20_000, 0i64..5), 1..200),
        ) {
            let interval_ns = interval_us * 1000;
            let (mut now_ns, mut until_ns) = (0, 0);
            let mut allowed: Vec<(i64, i64)> = Vec::new();
            for (passed_us, quantity) in steps {
                now_ns += passed_us * 1000;
                let (answer, ahead) = limiter(burst, interval_ns, quantity).ask(until_ns - now_ns);
                if let Some(retry) = answer.retry_after_ns {
                    let later = limiter(burst, interval_ns, quantity);
                    prop_assert!(!later.ask(until_ns - now_ns - retry).0.is_limited);
                    prop_assert!(later.ask(until_ns - now_ns - retry + 1).0.is_limited);
                }
                if !answer.is_limited {
                    until_ns = now_ns + ahead;
                    allowed.push((now_ns, quantity));
                }
                let mut sum = 0;
                for (at_ns, quantity) in allowed.iter().rev() {
                    sum += quantity;
                    prop_assert!((sum - burst - 1) * interval_ns <= now_ns - at_ns);
                }
            }
        }
    }
}
