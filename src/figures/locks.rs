//! Section Locks: held locks, and the clients that wait for locks and permits.

use super::exposition::Exposition;
use crate::gate::cycles;
use crate::keyspace::waiting::Wanted;

use super::Unit::{Milliseconds, One, Seconds};
use super::{Reading, Row, Value, counter, gauge};

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    gauge("locks_held", "latchkey_locks_held", One, "Held locks.", |r| r.core.keyspace.locks.len().into()),
    gauge("lock_waiters", "latchkey_lock_waiters", One, "Clients that wait for locks.", |r| r.core.state.waits.len_of(Wanted::Lock).into()),
    gauge("lock_longest_wait_ms", "", Milliseconds, "", |r| (longest_wait_us(r) / 1000).into()),
    gauge("lock_longest_hold_ms", "", Milliseconds, "", |r| (longest_hold_us(r) / 1000).into()),
    gauge("", "latchkey_lock_longest_wait_seconds", Seconds, "How long the first of the clients has waited that wait for locks or permits.",
        |r| Value::Decimal(longest_wait_us(r) as f64 / 1e6, 6)),
    gauge("", "latchkey_lock_longest_hold_seconds", Seconds, "How long the lock has been held that is held longest.",
        |r| Value::Decimal(longest_hold_us(r) as f64 / 1e6, 6)),
    counter("lock_grants_total", "", One, "", |r| r.core.keyspace.locks.stats.grants.into()),
    counter("lock_timeouts_total", "", One, "", |r| r.core.keyspace.locks.stats.timeouts.into()),
    counter("lock_expired_total", "", One, "", |r| r.core.keyspace.locks.stats.expired.into()),
    counter("lock_session_ended_total", "", One, "", |r| (r.core.keyspace.locks.stats.sessions_ended + r.core.keyspace.locks.stats.promoted).into()),
    counter("lock_broken_total", "", One, "", |r| r.core.keyspace.locks.stats.broken.into()),
    counter("lock_noreplicas_total", "", One, "", |r| r.core.keyspace.locks.stats.no_replicas.into()),
    gauge("lock_wait_cycles", "latchkey_lock_wait_cycles", One, "Circles of owners that wait for each other's locks, among the 1,000 longest waits.",
        |r| cycles::count(r.core).into()),
    gauge("sem_permits_held", "latchkey_semaphore_permits_held", One, "Held permits of all semaphores.",
        |r| r.core.keyspace.semaphores.held(r.core.state.now.unix().0).into()),
    gauge("sem_waiters", "latchkey_semaphore_waiters", One, "Clients that wait for permits.", |r| r.core.state.waits.len_of(Wanted::Semaphore).into()),
    gauge("", "latchkey_due_waiters", One, "Clients that wait until a sorted set's member is due.", |r| r.core.state.waits.due_waiters().into()),
    Row::Samples(samples),
];

fn longest_wait_us(reading: &Reading<'_>) -> i64 {
    let now_us = reading.core.state.now.boot_us;
    now_us - reading.core.state.waits.for_lock_since_us().unwrap_or(now_us).min(now_us)
}

fn longest_hold_us(reading: &Reading<'_>) -> i64 {
    let now_us = reading.core.state.now.boot_us;
    now_us - reading.core.keyspace.locks.oldest_us().unwrap_or(now_us)
}

fn samples(reading: &Reading<'_>, out: &mut Exposition) {
    let stats = &reading.core.keyspace.locks.stats;
    let acquired = [
        ("granted", stats.grants),
        ("timeout", stats.timeouts),
        ("oom", stats.out_of_memory),
        ("noreplicas", stats.no_replicas),
        ("unblocked", stats.unblocked),
    ];
    let help = "Requests for locks and permits, by their result.";
    counts(out, "latchkey_lock_acquisitions_total", help, "result", &acquired);
    let ended = [
        ("released", stats.released),
        ("lease", stats.expired),
        ("session", stats.sessions_ended),
        ("broken", stats.broken),
        ("deleted", stats.deleted),
        ("promoted", stats.promoted),
        ("moved", stats.moved),
    ];
    counts(out, "latchkey_lock_ends_total", "Ends of locks, by their reason.", "reason", &ended);
    let renewed = [
        ("renewed", stats.renewals),
        ("not_held", stats.renewals_refused),
        ("noreplicas", stats.renewals_unconfirmed),
    ];
    let help = "Renewals of leases by requests or sessions, by their result.";
    counts(out, "latchkey_lock_renewals_total", help, "result", &renewed);
    let durations = &reading.core.state.stats.durations;
    let help = "How long granted locks and permits were waited for.";
    out.histogram("latchkey_lock_wait_seconds", help, &durations.lock_wait);
    let help = "How long locks were held that have ended.";
    out.histogram("latchkey_lock_hold_seconds", help, &durations.lock_hold);
    let help = "From the end of a lock to the grant to a client that has waited for it.";
    out.histogram("latchkey_lock_handover_seconds", help, &durations.lock_handover);
}

/// A family of counters that differ in one label.
fn counts(out: &mut Exposition, name: &str, help: &str, label: &str, counts: &[(&str, u64)]) {
    out.family(name, "counter", help);
    for (value, count) in counts {
        out.sample(name, &[(label, *value)], *count as f64);
    }
}
