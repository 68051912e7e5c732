//! LATENCY: latency spikes by event, and each command's latency histogram.

use crate::command::help::reply_help;
use crate::error::CommandError;
use crate::state::State;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, Handler, container, spec};
use crate::state::table::Command;
use crate::stats::commands::Histogram;
use crate::stats::latency::LatencySeries;

const NONDETERMINISTIC: &[&str] =
    &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"];

const fn latency(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler)
        .exactly(2)
        .flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE)
        .group(Group::Server)
        .since("2.8.13")
        .tips(NONDETERMINISTIC)
}

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("LATENCY", &[
        latency("DOCTOR", latency_doctor).docs("", "Describes latency spikes in words.", "O(1)"),
        latency("GRAPH", latency_graph).exactly(3)
            .docs("event", "Draws a graph of the latest spikes of an event.", "O(1)"),
        latency("HISTOGRAM", latency_histogram).at_least(2).since("7.0.0")
            .docs("[command [command ...]]", "Returns histograms of the times that commands took.", "O(N), N being the number of commands"),
        latency("HISTORY", latency_history).exactly(3)
            .docs("event", "Returns the latest spikes of an event.", "O(1)"),
        latency("LATEST", latency_latest)
            .docs("", "Returns the latest and the worst spike of each event.", "O(1)"),
        latency("RESET", latency_reset).at_least(2).tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
            .docs("[event [event ...]]", "Deletes the spikes of some or all events.", "O(1)"),
        latency("HELP", latency_help).flags(Flags::LOADING_STALE).tips(&[])
            .docs("", "Explains LATENCY.", "O(1)"),
    ]).group(Group::Server).since("2.8.13")
        .docs("", "Commands about latency.", "Depends on the subcommand"),
];

/// `LATENCY LATEST`: for each event its name, Unix time and milliseconds of the latest spike, and
/// the worst spike; for Valkey the sum and number of all spikes too.
fn latency_latest(ctx: &mut Context<'_>) -> CommandResult {
    let series = &ctx.core.state.stats.latency.series;
    let is_valkey = ctx.core.state.config.compatible_with.is_valkey();
    ctx.reply.array(series.len());
    for (event, series) in series {
        let (time, ms) = series.samples.back().copied().unwrap_or_default();
        ctx.reply.array(if is_valkey { 6 } else { 4 });
        ctx.reply.bulk(event.as_bytes());
        ctx.reply.integer(time);
        ctx.reply.integer(ms as i64);
        ctx.reply.integer(series.max_ms as i64);
        if is_valkey {
            ctx.reply.integer(series.sum_ms as i64);
            ctx.reply.integer(series.count as i64);
        }
    }
    Ok(Outcome::Replied)
}

/// The series of the event in argument 2.
fn series_of<'s>(state: &'s State, event: &[u8]) -> Option<&'s LatencySeries> {
    let mut all = state.stats.latency.series.iter();
    all.find(|(name, _)| name.as_bytes() == event).map(|(_, series)| series)
}

/// `LATENCY HISTORY event`: an array of pairs of Unix time and milliseconds, oldest first.
fn latency_history(ctx: &mut Context<'_>) -> CommandResult {
    let Some(series) = series_of(&ctx.core.state, ctx.args.get(2)) else {
        ctx.reply.array(0);
        return Ok(Outcome::Replied);
    };
    ctx.reply.array(series.samples.len());
    for (time, ms) in &series.samples {
        ctx.reply.array(2);
        ctx.reply.integer(*time);
        ctx.reply.integer(*ms as i64);
    }
    Ok(Outcome::Replied)
}

/// `LATENCY RESET [event ...]`: the number of events that were reset.
fn latency_reset(ctx: &mut Context<'_>) -> CommandResult {
    let latency = &mut ctx.core.state.stats.latency;
    let forgotten = if ctx.args.len() == 2 {
        std::mem::take(&mut latency.series).len()
    } else {
        ctx.args.iter_from(2).filter(|event| latency.reset(event)).count()
    };
    ctx.reply.integer(forgotten as i64);
    Ok(Outcome::Replied)
}

/// `LATENCY HISTOGRAM [command ...]`: a map from commands that ran to their calls and cumulative
/// counts by microseconds.
fn latency_histogram(ctx: &mut Context<'_>) -> CommandResult {
    let table = ctx.core.state.commands;
    let commands: Vec<&Command> = if ctx.args.len() == 2 {
        table.commands.iter().collect()
    } else {
        let named = ctx.args.iter_from(2).filter_map(|name| ctx.core.state.find_full_command(name));
        named.flat_map(|command| [command].into_iter().chain(table.subcommands(command))).collect()
    };
    let stats = &ctx.core.state.stats.command_stats;
    let known: Vec<(&Command, &Histogram)> = commands
        .into_iter()
        .filter_map(|command| Some((command, stats[command.id.index()].histogram.as_deref()?)))
        .collect();
    let reply = &mut ctx.reply;
    reply.map(known.len());
    for (command, histogram) in known {
        reply.bulk(command.full_name.as_bytes());
        reply.map(2);
        reply.bulk(b"calls");
        reply.integer(histogram.total() as i64);
        reply.bulk(b"histogram_usec");
        let steps = cumulative(histogram);
        reply.map(steps.len());
        for (us, count) in steps {
            reply.integer(us as i64);
            reply.integer(count as i64);
        }
    }
    Ok(Outcome::Replied)
}

/// Limits in microseconds, doubling, and cumulative counts, only where these grow. The limits are
/// Redis's: powers of two in nanoseconds plus one step of its histogram, 1/128.
fn cumulative(histogram: &Histogram) -> Vec<(u64, u64)> {
    let total = histogram.total();
    let mut steps = Vec::new();
    let mut seen = 0;
    // The last bucket has no upper bound; it is shown as 2^30 ns.
    for limit in (10..=30).map(|bits| (1u64 << bits) + (1 << (bits - 7)) - 1) {
        let count = histogram.at_most(limit);
        if count > seen {
            steps.push((limit / 1000, count));
            seen = count;
        }
        if seen == total {
            break;
        }
    }
    steps
}

/// `LATENCY GRAPH event`: an ASCII graph of the event's spikes.
fn latency_graph(ctx: &mut Context<'_>) -> CommandResult {
    let event = ctx.args.get(2);
    let Some(series) = series_of(&ctx.core.state, event) else {
        let text = b"ERR No samples available for event '";
        return Err(CommandError::of_parts(&[text, event, b"'"]));
    };
    let graph = draw(&String::from_utf8_lossy(event), series, ctx.core.state.now.unix_seconds());
    ctx.reply.verbatim(b"txt", graph.as_bytes());
    Ok(Outcome::Replied)
}

const GRAPH_COLUMNS: usize = 80;
const GRAPH_ROWS: usize = 4;
/// The upper end of a column, in thirds of a row.
const GRAPH_LEVELS: [char; 3] = ['_', 'o', '#'];

/// A heading, a line, and columns: the height is a spike's duration, the vertical label its age.
fn draw(event: &str, series: &LatencySeries, now: i64) -> String {
    let spikes: Vec<(u64, String)> =
        series.samples.iter().map(|(time, ms)| (*ms, age(now - time))).collect();
    let high = spikes.iter().map(|(ms, _)| *ms).max().unwrap_or(0);
    let low = spikes.iter().map(|(ms, _)| *ms).min().unwrap_or(0);
    let mut graph = format!(
        "{event} - high {high} ms, low {low} ms (all time high {} ms)\n{}\n",
        series.max_ms,
        "-".repeat(GRAPH_COLUMNS)
    );
    for (index, part) in spikes.chunks(GRAPH_COLUMNS).enumerate() {
        if index > 0 {
            graph.push('\n');
        }
        for row in 0..GRAPH_ROWS {
            let below = (GRAPH_ROWS - row - 1) * GRAPH_LEVELS.len();
            graph.extend(part.iter().map(|(ms, _)| {
                let level = level(*ms, low, high);
                match level.checked_sub(below) {
                    None => ' ',
                    Some(rest) => *GRAPH_LEVELS.get(rest).unwrap_or(&'|'),
                }
            }));
            graph.push('\n');
        }
        graph.push_str(&" ".repeat(part.len()));
        graph.push('\n');
        let depth = part.iter().map(|(_, label)| label.len()).max().unwrap_or(0);
        for row in 0..depth {
            let char_of = |label: &str| label.chars().nth(row).unwrap_or(' ');
            graph.extend(part.iter().map(|(_, label)| char_of(label)));
            graph.push('\n');
        }
    }
    graph
}

/// The level between the lowest and highest spike.
fn level(ms: u64, low: u64, high: u64) -> usize {
    let levels = GRAPH_ROWS * GRAPH_LEVELS.len();
    let span = (high - low).max(1) as f64;
    (((ms - low) as f64 * levels as f64 / span) as usize).min(levels - 1)
}

/// The age in seconds, minutes, hours or days.
fn age(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// `LATENCY DOCTOR`: a human-readable report.
fn latency_doctor(ctx: &mut Context<'_>) -> CommandResult {
    let report = diagnose(&ctx.core.state);
    ctx.reply.verbatim(b"txt", report.as_bytes());
    Ok(Outcome::Replied)
}

fn diagnose(state: &State) -> String {
    let threshold_ms = state.config.latency_monitor_threshold;
    let events = &state.stats.latency.series;
    if events.is_empty() && threshold_ms == 0 {
        return "The latency monitor is off, so there is nothing to report. CONFIG SET \
                latency-monitor-threshold <milliseconds> turns it on.\n"
            .into();
    }
    if events.is_empty() {
        return "No latency spike was seen so far.\n".into();
    }
    let mut report = String::from("Latency spikes were seen:\n\n");
    for (number, (event, series)) in events.iter().enumerate() {
        let Statistics { average, deviation, period } = statistics(series);
        report.push_str(&format!(
            "{}. {event}: {} latency spikes (average {average}ms, mean deviation {deviation}ms, \
             period {period:.2} sec). Worst all time event {}ms.\n",
            number + 1,
            series.samples.len(),
            series.max_ms
        ));
    }
    report.push_str("\nWhat may help:\n\n");
    if events.contains_key("command") {
        let slowlog_us = state.config.slowlog_log_slower_than;
        if slowlog_us < 0 || slowlog_us / 1000 > threshold_ms {
            report.push_str(&format!(
                "- The slow log does not show all of these commands. CONFIG SET \
                 slowlog-log-slower-than {} makes it do so.\n",
                threshold_ms.saturating_mul(1000)
            ));
        }
        report.push_str(
            "- SLOWLOG GET names the requests that took long.\n\
             - A command takes as long as the value it walks over is large: split large values.\n",
        );
    }
    if events.contains_key("fast-command") {
        report.push_str(
            "- Commands that cost little took long: the machine is short of processor time. Look \
             for other processes on it, for other guests of the host if it is virtual, and at \
             `redis-cli --intrinsic-latency 100`.\n",
        );
    }
    report
}

/// Statistics of an event's spikes.
struct Statistics {
    average: u64,
    deviation: u64,
    /// Mean seconds between spikes.
    period: f64,
}

fn statistics(series: &LatencySeries) -> Statistics {
    let count = series.samples.len().max(1) as u64;
    let average = series.samples.iter().map(|(_, ms)| ms).sum::<u64>() / count;
    let off = |(_, ms): &(i64, u64)| ms.abs_diff(average);
    let first = series.samples.front().map_or(0, |(time, _)| *time);
    let last = series.samples.back().map_or(0, |(time, _)| *time);
    Statistics {
        average,
        deviation: series.samples.iter().map(off).sum::<u64>() / count,
        period: (last - first).max(1) as f64 / count as f64,
    }
}

/// `LATENCY HELP`: an array of lines.
fn latency_help(ctx: &mut Context<'_>) -> CommandResult {
    reply_help(
        ctx,
        &[
            "DOCTOR",
            "    Describe the spikes seen so far in words.",
            "GRAPH <event>",
            "    Draw the spikes of <event>.",
            "HISTORY <event>",
            "    Return time and milliseconds of the latest spikes of <event>.",
            "LATEST",
            "    Return the latest spike of each event.",
            "RESET [<event> ...]",
            "    Delete the spikes of these events, or of all.",
            "HISTOGRAM [<command> ...]",
            "    Return histograms of the times that these commands, or all, took.",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::latency::LatencyMonitor;

    #[test]
    fn a_graph_shows_heights_and_ages() {
        let mut monitor = LatencyMonitor::default();
        for (time, ms) in [(0, 10), (86_400, 22), (90_000, 15), (90_050, 11)] {
            monitor.add("command", time, ms);
        }
        let graph = draw("command", &monitor.series["command"], 90_060);
        let rule = "-".repeat(80);
        let expected = format!(
            "command - high 22 ms, low 10 ms (all time high 22 ms)\n{rule}\n \
             #  \n |  \n |# \n_||o\n    \n1111\ndhm0\n   s\n"
        );
        assert_eq!(graph, expected);
    }

    #[test]
    fn a_histogram_is_told_in_powers_of_two() {
        let mut histogram = Histogram::default();
        for ns in [500, 3_000, 3_500, 5_000, u64::MAX] {
            histogram.record(ns);
        }
        assert_eq!(cumulative(&histogram), [(1, 1), (4, 3), (8, 4), (1_082_130, 5)]);
    }
}
