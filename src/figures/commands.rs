//! Sections Commandstats, Errorstats and Latencystats: calls, times and errors of each command.

use super::exposition::Exposition;
use super::{Reading, Row, line};
use crate::state::State;
use crate::state::table::Command;
use crate::stats::command_log::LogKind;
use crate::stats::commands::CommandStats;

pub const CALLS: &[Row] = &[Row::Lines(calls), Row::Samples(call_samples)];
pub const ERRORS: &[Row] = &[Row::Lines(errors), Row::Samples(error_samples)];
pub const LATENCIES: &[Row] =
    &[Row::Lines(latencies), Row::Samples(latency_samples), Row::Samples(slow_log)];

pub const HOT_KEYS: &[Row] = &[Row::Lines(hot_keys)];

/// Whether somebody looks for hot keys, and how much was found.
fn hot_keys(reading: &Reading<'_>, out: &mut String) {
    let State { stats, now, .. } = &reading.core.state;
    if let Some(hot) = &stats.hot_keys {
        line(out, "hotkeys-tracking-active", u8::from(hot.is_active(now.boot_us)));
        if let Some(cpu) = &hot.cpu {
            line(out, "hotkeys-cmd-cpu-time", cpu.total() / 1_000_000);
        }
        if let Some(net) = &hot.net {
            line(out, "hotkeys-net-bytes", net.total());
        }
    }
}

/// Commands that have statistics.
fn with_stats(state: &State) -> impl Iterator<Item = (&'static Command, &CommandStats)> {
    state.commands.commands.iter().zip(&state.stats.command_stats)
}

fn called(state: &State) -> impl Iterator<Item = (&'static Command, &CommandStats)> {
    with_stats(state).filter(|(_, stats)| stats.calls + stats.rejected + stats.failed > 0)
}

fn calls(reading: &Reading<'_>, out: &mut String) {
    for (command, stats) in called(&reading.core.state) {
        let us = stats.nanoseconds / 1000;
        let per_call = if stats.calls == 0 { 0.0 } else { us as f64 / stats.calls as f64 };
        line(
            out,
            &format!("cmdstat_{}", command.full_name),
            format_args!(
                "calls={},usec={us},usec_per_call={per_call:.2},rejected_calls={},failed_calls={}",
                stats.calls, stats.rejected, stats.failed
            ),
        );
    }
}

fn call_samples(reading: &Reading<'_>, out: &mut Exposition) {
    type Of = fn(&CommandStats) -> f64;
    let families: [(&str, &str, Of); 4] = [
        ("redis_commands_total", "Calls of a command.", |stats| stats.calls as f64),
        (
            "redis_commands_duration_seconds_total",
            "Time of a command.",
            // In whole microseconds, as in INFO.
            |stats| (stats.nanoseconds / 1000) as f64 / 1e6,
        ),
        ("redis_commands_rejected_calls_total", "Calls that were refused.", |stats| {
            stats.rejected as f64
        }),
        ("redis_commands_failed_calls_total", "Calls that failed.", |stats| stats.failed as f64),
    ];
    for (name, help, value) in families {
        out.family(name, "counter", help);
        for (command, stats) in called(&reading.core.state) {
            out.sample(name, &[("cmd", &command.full_name)], value(stats));
        }
    }
}

/// The errors by their first word, in order.
fn sorted_errors(state: &State) -> Vec<(&str, u64)> {
    let errors = state.stats.error_stats.iter();
    let mut errors: Vec<(&str, u64)> = errors.map(|(word, count)| (&**word, *count)).collect();
    errors.sort_unstable();
    errors
}

fn errors(reading: &Reading<'_>, out: &mut String) {
    for (word, count) in sorted_errors(&reading.core.state) {
        line(out, &format!("errorstat_{word}"), format_args!("count={count}"));
    }
}

fn error_samples(reading: &Reading<'_>, out: &mut Exposition) {
    out.family("redis_errors_total", "counter", "Errors that clients were sent.");
    for (word, count) in sorted_errors(&reading.core.state) {
        out.sample("redis_errors_total", &[("err", word)], count as f64);
    }
}

fn latencies(reading: &Reading<'_>, out: &mut String) {
    for (command, stats) in with_stats(&reading.core.state) {
        let Some(histogram) = &stats.histogram else {
            continue;
        };
        let percents = &reading.core.state.config.latency_tracking_info_percentiles;
        let percentiles = percents.iter().map(|percent| {
            let us = histogram.percentile(*percent) as f64 / 1000.0;
            format!("p{percent}={us:.3}")
        });
        let percentiles = percentiles.collect::<Vec<_>>().join(",");
        line(out, &format!("latency_percentiles_usec_{}", command.full_name), percentiles);
    }
}

fn latency_samples(reading: &Reading<'_>, out: &mut Exposition) {
    let name = "redis_latency_percentiles_usec";
    out.family(name, "summary", "Time of a call in microseconds.");
    let percents = &reading.core.state.config.latency_tracking_info_percentiles;
    for (command, stats) in called(&reading.core.state) {
        let Some(histogram) = &stats.histogram else { continue };
        let cmd = ("cmd", &*command.full_name);
        for (percent, ns) in percents.iter().zip(histogram.percentiles(percents)) {
            let quantile = format!("{percent}");
            // Rounded as in INFO.
            let us = (ns as f64).round() / 1000.0;
            out.sample(name, &[cmd, ("quantile", &quantile)], us);
        }
        out.sample(&format!("{name}_sum"), &[cmd], (stats.nanoseconds / 1000) as f64);
        out.sample(&format!("{name}_count"), &[cmd], stats.calls as f64);
    }
}

fn slow_log(reading: &Reading<'_>, out: &mut Exposition) {
    let log = &reading.core.state.stats.command_logs[LogKind::Slow as usize];
    out.family("redis_slowlog_length", "gauge", "Entries of the slow log.");
    out.sample("redis_slowlog_length", &[], log.len() as f64);
    let last = log.iter().next();
    out.family("redis_slowlog_last_id", "gauge", "Number of the slow log's last entry.");
    out.sample("redis_slowlog_last_id", &[], last.map_or(0.0, |entry| entry.id as f64));
    let name = "redis_last_slow_execution_duration_seconds";
    out.family(name, "gauge", "Time of the slow log's last entry.");
    out.sample(name, &[], last.map_or(0.0, |entry| entry.value as f64 / 1e6));
    out.family("latchkey_slow_commands_total", "counter", "Calls that came into the slow log.");
    for (command, stats) in called(&reading.core.state).filter(|(_, stats)| stats.slow > 0) {
        let labels = [("cmd", &*command.full_name)];
        out.sample("latchkey_slow_commands_total", &labels, f64::from(stats.slow));
    }
}
