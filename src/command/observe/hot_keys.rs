//! HOTKEYS, as Redis 8.6 has it: the keys that take most time and network, from START to STOP.

use crate::collections::hash_slot::HashSlot;
use crate::command::cluster::enabled;
use crate::command::help::help_from_specs;
use crate::command::key::scan::slot_of_text;
use crate::error::CommandError;
use crate::gate::hot_keys::end;
use crate::resp::args::Cursor;
use crate::resp::reply::ReplyWriter;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, Handler, container, spec};
use crate::stats::hot_keys::{HotKeys, Order, Ranking};
use crate::sys::machine::{CpuTimes, cpu_times};

const fn hotkeys(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler).exactly(2).flags(Flags::ADMIN_NOSCRIPT).group(Group::Server).since("8.6.0")
}

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("HOTKEYS", &[
        hotkeys("START", start).at_least(2).tips(&["request_policy:special"])
            .docs("METRICS count [CPU] [NET] [COUNT k] [DURATION duration] [SAMPLE ratio] [SLOTS count slot [slot ...]]",
                "Starts to look for the keys that take most time and network.", "O(1)"),
        hotkeys("STOP", stop).tips(&["request_policy:special"])
            .docs("", "Stops to look for these keys; GET still shows them.", "O(1)"),
        hotkeys("GET", get).tips(&["nondeterministic_output", "request_policy:special", "response_policy:special"])
            .docs("", "Returns the keys that take most time and network.", "O(K) for K keys"),
        hotkeys("RESET", reset).tips(&["request_policy:special"])
            .docs("", "Forgets the keys that were found.", "O(1)"),
        spec("HELP", help).exactly(2).flags(Flags::LOADING_STALE).group(Group::Server).since("8.6.0")
            .docs("", "Explains HOTKEYS.", "O(1)"),
    ]).group(Group::Server).since("8.6.0")
        .docs("", "Commands about keys that take much time and network.", "Depends on the subcommand"),
];

const NO_METRICS: CommandError = CommandError::Text("ERR METRICS parameter is required");
const BAD_METRICS: CommandError = CommandError::Text("ERR METRICS count must be > 0 and <= 2");
const OTHER_METRICS: CommandError =
    CommandError::Text("ERR METRICS count does not match number of metric types provided");
const UNKNOWN_METRICS: CommandError =
    CommandError::Text("ERR METRICS no valid metrics passed. Supported: CPU|NET");
const CPU_TWICE: CommandError = CommandError::Text("ERR METRICS CPU defined more than once!");
const NET_TWICE: CommandError = CommandError::Text("ERR METRICS NET defined more than once!");
const IS_ACTIVE: CommandError =
    CommandError::Text("ERR hotkey tracking session already in progress");
const IS_NOT_STOPPED: CommandError =
    CommandError::Text("ERR hotkey tracking session in progress, stop tracking first");

const COUNT_DEFAULT: usize = 10;
const COUNT_MAX: i64 = 64;
const DURATION_MAX: i64 = 1_000_000;

/// Takes a number within bounds.
fn take_number(
    cursor: &mut Cursor<'_>,
    max: i64,
    error: &'static str,
) -> Result<i64, CommandError> {
    let number = cursor.take_integer().ok().filter(|number| (1..=max).contains(number));
    number.ok_or(CommandError::Text(error))
}

fn parse(ctx: &Context<'_>) -> Result<Order, CommandError> {
    let mut cursor = ctx.args.cursor(2);
    if cursor.remaining() < 2 || !cursor.take_word("METRICS") {
        return Err(NO_METRICS);
    }
    let count = cursor.take_integer().ok().filter(|count| (1..=2).contains(count));
    let count = count.ok_or(BAD_METRICS)?;
    let mut order = Order {
        cpu: false,
        net: false,
        count: COUNT_DEFAULT,
        duration_us: None,
        ratio: 1,
        slots: None,
    };
    for _ in 0..count {
        if cursor.is_at_end() {
            return Err(OTHER_METRICS);
        }
        if cursor.take_word("CPU") {
            if std::mem::replace(&mut order.cpu, true) {
                return Err(CPU_TWICE);
            }
        } else if cursor.take_word("NET") {
            if std::mem::replace(&mut order.net, true) {
                return Err(NET_TWICE);
            }
        } else {
            // One that a later server may know.
            cursor.take()?;
        }
    }
    if !order.cpu && !order.net {
        return Err(UNKNOWN_METRICS);
    }
    while !cursor.is_at_end() {
        if cursor.remaining() < 2 {
            return Err(CommandError::Syntax);
        }
        if cursor.take_word("COUNT") {
            let text = "ERR COUNT must be between 1 and 64";
            order.count = take_number(&mut cursor, COUNT_MAX, text)? as usize;
        } else if cursor.take_word("DURATION") {
            let text = "ERR DURATION must be between 1 and 1000000";
            let seconds = take_number(&mut cursor, DURATION_MAX, text)?;
            order.duration_us = Some(seconds * 1_000_000);
        } else if cursor.take_word("SAMPLE") {
            let text = "ERR SAMPLE ratio must be positive";
            order.ratio = take_number(&mut cursor, i64::MAX, text)? as u64;
        } else if cursor.take_word("SLOTS") {
            take_slots(ctx, &mut cursor, &mut order)?;
        } else {
            return Err(CommandError::Syntax);
        }
    }
    Ok(order)
}

fn take_slots(
    ctx: &Context<'_>,
    cursor: &mut Cursor<'_>,
    order: &mut Order,
) -> Result<(), CommandError> {
    let cluster = enabled::cluster(&ctx.core.state).map_err(|_| {
        CommandError::Text("ERR SLOTS parameter cannot be used in non-cluster mode")
    })?;
    if order.slots.is_some() {
        return Err(CommandError::Text("ERR SLOTS parameter already specified"));
    }
    let count = cursor.take_integer()?;
    let count = usize::try_from(count).ok().filter(|count| *count > 0);
    let count = count.ok_or(CommandError::Text("ERR SLOTS count must be > 0"))?;
    if count > cursor.remaining() {
        return Err(CommandError::Text("ERR not enough slot numbers provided"));
    }
    let mut slots = Vec::new();
    for _ in 0..count {
        let slot: HashSlot = slot_of_text(cursor.take()?)?;
        if !cluster.myself().slots.contains(slot) {
            let number = slot.number();
            let text = format!("ERR slot {number} not handled by this node");
            return Err(CommandError::formatted(text));
        }
        if slots.contains(&slot) {
            return Err(CommandError::Text("ERR duplicate slot number"));
        }
        slots.push(slot);
    }
    slots.sort_unstable();
    order.slots = Some(slots);
    Ok(())
}

fn is_active(ctx: &Context<'_>) -> bool {
    let hot = ctx.core.state.stats.hot_keys.as_ref();
    hot.is_some_and(|hot| hot.is_active(ctx.core.state.now.boot_us))
}

/// `HOTKEYS START METRICS count [CPU] [NET] [COUNT k] [DURATION seconds] [SAMPLE ratio] [SLOTS
/// count slot [slot ...]]`: OK.
fn start(ctx: &mut Context<'_>) -> CommandResult {
    if is_active(ctx) {
        return Err(IS_ACTIVE);
    }
    let order = parse(ctx)?;
    let state = &mut ctx.core.state;
    let (now_ms, now_us) = (state.now.unix().0, state.now.boot_us);
    state.stats.hot_keys = Some(Box::new(HotKeys::new(order, now_ms, now_us, cpu_times())));
    state.stats.timing.watch_all(true, &state.config);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `HOTKEYS STOP`: OK, or nil if it was not started.
fn stop(ctx: &mut Context<'_>) -> CommandResult {
    match is_active(ctx) {
        true => {
            end(&mut ctx.core.state);
            ctx.reply.ok();
        }
        false => ctx.reply.null(),
    }
    Ok(Outcome::Replied)
}

/// `HOTKEYS RESET`: OK.
fn reset(ctx: &mut Context<'_>) -> CommandResult {
    if is_active(ctx) {
        return Err(IS_NOT_STOPPED);
    }
    ctx.core.state.stats.hot_keys = None;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

fn named(reply: &mut ReplyWriter<'_>, name: &str, value: i64) {
    reply.bulk(name.as_bytes());
    reply.integer(value);
}

fn ranked(reply: &mut ReplyWriter<'_>, name: &str, ranking: &Ranking, unit: u64) {
    reply.bulk(name.as_bytes());
    let first = ranking.first();
    reply.array(2 * first.len());
    for (key, sum) in first {
        reply.bulk(key);
        reply.integer((sum / unit) as i64);
    }
}

/// First and last slots of the ranges that these slots make.
fn ranges(slots: Option<&[HashSlot]>) -> Vec<(u16, u16)> {
    let Some(slots) = slots else { return vec![(0, 16_383)] };
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for number in slots.iter().map(|slot| slot.number()) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges
}

/// `HOTKEYS GET`: an array of one map, or nil.
fn get(ctx: &mut Context<'_>) -> CommandResult {
    const NS_PER_US: u64 = 1000;
    let (is_active, now_us) = (is_active(ctx), ctx.core.state.now.boot_us);
    let Some(hot) = &ctx.core.state.stats.hot_keys else {
        ctx.reply.null();
        return Ok(Outcome::Replied);
    };
    let reply = &mut ctx.reply;
    let order = &hot.order;
    let has_slots = order.slots.is_some();
    let is_sampled = has_slots && order.ratio > 1;
    let metrics = 3 * usize::from(order.cpu) + 2 * usize::from(order.net);
    reply.array(1);
    reply.map(7 + 2 * usize::from(has_slots) + 2 * usize::from(is_sampled) + metrics);
    named(reply, "tracking-active", is_active.into());
    named(reply, "sample-ratio", order.ratio as i64);
    reply.bulk(b"selected-slots");
    // Without SLOTS, all that this node has.
    let owned = ctx.core.state.node.cluster.as_deref();
    let owned = owned.map(|cluster| cluster.myself().slots.iter().collect::<Vec<_>>());
    let ranges = ranges(order.slots.as_deref().or(owned.as_deref()));
    reply.array(ranges.len());
    for (first, last) in ranges {
        reply.array(if first == last { 1 } else { 2 });
        reply.integer(first.into());
        if first != last {
            reply.integer(last.into());
        }
    }
    let us = |nanoseconds: u64| (nanoseconds / NS_PER_US) as i64;
    if is_sampled {
        named(reply, "sampled-commands-selected-slots-us", us(hot.sampled.nanoseconds));
    }
    if has_slots {
        named(reply, "all-commands-selected-slots-us", us(hot.selected.nanoseconds));
    }
    named(reply, "all-commands-all-slots-us", us(hot.all.nanoseconds));
    if is_sampled {
        let bytes = hot.sampled.bytes as i64;
        named(reply, "net-bytes-sampled-commands-selected-slots", bytes);
    }
    if has_slots {
        named(reply, "net-bytes-all-commands-selected-slots", hot.selected.bytes as i64);
    }
    named(reply, "net-bytes-all-commands-all-slots", hot.all.bytes as i64);
    named(reply, "collection-start-time-unix-ms", hot.begun_ms);
    named(reply, "collection-duration-ms", hot.duration_us(now_us) / 1000);
    if hot.cpu.is_some() {
        let cpu = hot.ended_cpu.unwrap_or_else(cpu_times);
        let ms = |time: fn(&CpuTimes) -> f64| ((time(&cpu) - time(&hot.begun_cpu)) * 1e3) as i64;
        named(reply, "total-cpu-time-user-ms", ms(|times| times.user));
        named(reply, "total-cpu-time-sys-ms", ms(|times| times.system));
    }
    if let Some(net) = &hot.net {
        named(reply, "total-net-bytes", net.total() as i64);
    }
    if let Some(cpu) = &hot.cpu {
        ranked(reply, "by-cpu-time-us", cpu, NS_PER_US);
    }
    if let Some(net) = &hot.net {
        ranked(reply, "by-net-bytes", net, 1);
    }
    Ok(Outcome::Replied)
}

/// `HOTKEYS HELP`: an array of lines.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    help_from_specs(ctx)
}
