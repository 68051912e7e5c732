//! Section CPU, and the figures of the loop itself: its turns, a running script, lag of expiry,
//! certificates.

use super::Unit::{Ratio, Seconds};
use super::exposition::Exposition;
use super::{Reading, Row, Value, counter, gauge};
use crate::state::State;

#[rustfmt::skip]
pub const CPU: &[Row] = &[
    counter("used_cpu_sys", "redis_cpu_sys_seconds_total", Seconds, "Processor time of the system for the process.", |r| seconds(r.cpu().system)),
    counter("used_cpu_user", "redis_cpu_user_seconds_total", Seconds, "Processor time of the process.", |r| seconds(r.cpu().user)),
    counter("used_cpu_sys_children", "redis_cpu_sys_children_seconds_total", Seconds, "Processor time of the system for child processes.",
        |r| seconds(r.cpu().system_children)),
    counter("used_cpu_user_children", "redis_cpu_user_children_seconds_total", Seconds, "Processor time of child processes.",
        |r| seconds(r.cpu().user_children)),
    counter("used_cpu_sys_main_thread", "redis_cpu_sys_main_thread_seconds_total", Seconds, "Processor time of the system for the loop.",
        |r| seconds(r.cpu().system_thread)),
    counter("used_cpu_user_main_thread", "redis_cpu_user_main_thread_seconds_total", Seconds, "Processor time of the loop.", |r| seconds(r.cpu().user_thread)),
    counter("used_active_time_main_thread", "redis_active_time_main_thread_seconds_total", Seconds,
        "Time of the loop's turns, without the waits between them.", used_active_time_main_thread),
];

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    Row::Samples(turn_times),
    gauge("", "latchkey_loop_busy_ratio", Ratio, "Part of the last seconds in which the loop worked.", |r| Value::Decimal(busy_ratio(&r.core.state), 4)),
    gauge("", "latchkey_script_running_seconds", Seconds, "For how long a script has kept the server busy.",
        |r| Value::Decimal(script_us(&r.core.state).unwrap_or(0) as f64 / 1e6, 6)),
    Row::Samples(certificates),
];

fn used_active_time_main_thread(r: &Reading<'_>) -> Value {
    match r.core.state.config.compatible_with.is_valkey() {
        true => seconds(r.core.state.stats.timing.turns_us() as f64 / 1e6),
        false => Value::Absent,
    }
}

fn turn_times(r: &Reading<'_>, out: &mut Exposition) {
    let help = "How long turns of the loop took, without the waits between them.";
    out.histogram("latchkey_loop_turn_seconds", help, r.core.state.stats.timing.turn_times());
    let help = "How long after its deadline a key was deleted.";
    out.histogram("latchkey_expiry_lag_seconds", help, &r.core.keyspace.stats.expiry_lag);
}

fn seconds(seconds: f64) -> Value {
    Value::Decimal(seconds, 6)
}

/// Turns per second times microseconds per turn, over the last 1.6 seconds.
fn busy_ratio(state: &State) -> f64 {
    let (turns, us) = (state.stats.turns_rate.per_second(), state.stats.turn_time.per_second());
    (turns as f64 * us as f64 / 1e6).min(1.0)
}

/// The time for which a script has kept the server busy, in microseconds. Time stands still for
/// commands since it began.
pub fn script_us(state: &State) -> Option<i64> {
    let is_busy = state.scripts.is_busy();
    is_busy.then(|| (state.clock.now().boot_us - state.now.boot_us).max(0))
}

fn certificates(reading: &Reading<'_>, out: &mut Exposition) {
    let Some(tls) = &reading.core.state.net.tls else { return };
    let name = "latchkey_tls_certificate_expiry_timestamp_seconds";
    out.family(name, "gauge", "When a certificate ends.");
    for certificate in tls.certificates() {
        let file = String::from_utf8_lossy(&certificate.file);
        out.sample(name, &[("file", &*file)], certificate.ends_unix as f64);
    }
}
