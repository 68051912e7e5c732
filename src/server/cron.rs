//! Periodic work, `hz` times a second: rates, idle clients, soft limits.
//!
//! A wake of an idle process costs more than the work for which it wakes, as all caches are cold.
//! So a server at which nothing happens does not wake for this work alone, but once a second.

use mio::Events;

use super::Server;
use crate::client::{Client, ClientFlags, ClientId};
use crate::clock::ABOUT_A_SECOND_US;
use crate::command::configure_tls;
use crate::durability::persistence;
use crate::gate::limits::{check_output_limit, count_clients_memory};
use crate::http;
use crate::net::source::Source;
use crate::roles::{cluster, following, replicas};
use crate::state::State;
use crate::sys::log::{notice, warning};
use crate::sys::{alloc, crash, process};

/// How long a client that is being closed may leave its last replies unread. Unit: microseconds.
const LAST_REPLIES_US: i64 = 10_000_000;

/// How much later than otherwise a server that rests wakes. Unit: microseconds.
const REST_US: i64 = 900_000;

impl Server {
    /// Notes whether clients, replicas, files or other threads have done anything. Other nodes are
    /// answered without the periodic work.
    pub(super) fn note_activity(&mut self, events: &Events) {
        if !events.iter().all(|event| Source::of(event.token()) == Source::Bus) {
            self.is_quiet = false;
        }
    }

    /// When the loop must wake for the periodic work. Turns before that do the work if it is due.
    pub(super) fn next_cron_wake_us(&self) -> i64 {
        if self.rests() { self.next_cron_us + REST_US } else { self.next_cron_us }
    }

    /// Whether nothing happens, and nothing waits that the periodic work must serve in time. The
    /// rest of that work may be late by a second.
    fn rests(&self) -> bool {
        let State { replication, persistence, clients, net, config, stats, .. } = &self.core.state;
        let rates = [&stats.commands_rate, &stats.input_rate, &stats.output_rate];
        self.is_quiet
            && replication.following.is_none()
            && replication.replicas.is_empty()
            && replication.failover.is_none()
            && persistence.under_way().is_none()
            && !(persistence.queued.save || persistence.queued.rewrite)
            && !clients.has_overdue()
            && self.core.state.waits.all_lock_waiters() == 0
            && net.pending.accept_later.is_empty()
            && net.pending.handshaking.is_empty()
            && net.http.is_empty()
            && config.page_keys.is_empty()
            && !crash::has_watchdog()
            && rates.iter().all(|rate| rate.per_second() == 0)
    }

    /// Does the periodic work if it is due.
    pub(super) fn cron_if_due(&mut self) {
        let now_us = self.core.state.now.boot_us;
        if now_us < self.next_cron_us {
            return;
        }
        let hz = self.core.state.config.hz.clamp(1, 500) as i64;
        let period_us = 1_000_000 / hz;
        if self.next_cron_us == 0 {
            self.next_cron_us = now_us;
        }
        // The times keep their phase, which is that of the start. If a late run moved it, nodes of
        // a cluster, which wake each other, would soon do all their work in the same moments.
        let late_us = now_us - self.next_cron_us;
        self.next_cron_us += (late_us / period_us + 1) * period_us;
        self.is_quiet = true;
        cluster::tick_with_periodic(&mut self.core.state, self.next_cron_us, period_us);
        if self.core.state.debug.cron_paused {
            return;
        }
        crash::tell_watchdog();
        let state = &mut self.core.state;
        process::reap(&mut state.scripts.debugged);
        let used = alloc::allocated();
        if used > state.stats.peak_memory {
            state.stats.peak_memory = used;
            state.stats.peak_memory_unix = state.now.unix_seconds();
        }
        if now_us >= self.next_sample_us {
            self.next_sample_us = self.next_cron_us - period_us + 100_000;
            state.stats.commands_rate.sample(state.stats.counters.commands, now_us);
            state.stats.input_rate.sample(state.stats.counters.bytes_in, now_us);
            state.stats.output_rate.sample(state.stats.counters.bytes_out, now_us);
            let turns = state.stats.timing.turns();
            state.stats.turns_rate.sample(turns, now_us);
            state.stats.turn_time.sample_by(state.stats.timing.turns_us(), turns as i64, 1);
        }
        self.core
            .state
            .net
            .pending
            .accept_again
            .append(&mut self.core.state.net.pending.accept_later);
        self.core.state.net.lines.close_unused(now_us);
        if let Err(fatal) = persistence::periodic(&mut self.core) {
            return self.fail(&fatal);
        }
        if self.core.keyspace.own_deadlines() > 0 {
            self.core.keyspace.expire_own();
            self.announce_deletions();
        }
        following::periodic(&mut self.core);
        self.clients().close_slow_handshakes();
        self.reload_tls_if_due();
        replicas::periodic(&mut self.core);
        http::periodic(&mut self.core);
        self.close_idle_clients();
        self.core.state.clients.close_stuck(self.core.state.now, LAST_REPLIES_US);
        self.check_soft_limits();
        count_clients_memory(&mut self.core.state);
    }

    /// Reloads changed TLS files every `tls-auto-reload-interval`. On an error, which is logged,
    /// the old ones stay in use.
    fn reload_tls_if_due(&mut self) {
        let now_us = self.core.state.now.boot_us;
        let interval_us = i64::from(self.core.state.config.tls_auto_reload_interval) * 1_000_000;
        if interval_us == 0 || now_us < self.next_reload_us {
            return;
        }
        self.next_reload_us = now_us + interval_us;
        let state = &mut self.core.state;
        if !state.net.tls.as_ref().is_some_and(|tls| tls.is_stale(&state.config)) {
            return;
        }
        notice!(state, "TLS materials changed, reloading");
        match configure_tls(state) {
            Ok(()) => notice!(state, "TLS materials reloaded successfully"),
            Err(_) => warning!(state, "TLS reload failed"),
        }
    }

    /// Closes clients idle for longer than `timeout`, but not holders of sessions: their silence
    /// ends the lease, and their connection's end would free the lock before that. Runs once a
    /// second, because it visits every client.
    fn close_idle_clients(&mut self) {
        let now_us = self.core.state.now.boot_us;
        let timeout_us = self.core.state.config.timeout as i64 * 1_000_000;
        if timeout_us == 0 || now_us < self.next_idle_us {
            return;
        }
        self.next_idle_us = now_us + ABOUT_A_SECOND_US;
        let waiting = ClientFlags::SUBSCRIBED | ClientFlags::REPLICA | ClientFlags::MONITOR;
        let (locks, permits) = (&self.core.keyspace.locks, &self.core.keyspace.semaphores.sessions);
        let is_idle = |client: &&Client| {
            now_us - client.active_us > timeout_us
                && !client.flags.intersects(waiting)
                && !client.is_suspended()
                && !client.has_waits()
                && !locks.has_sessions_of(client.id)
                && !permits.has_sessions_of(client.id)
        };
        let idle: Vec<ClientId> =
            self.core.state.clients.iter().filter(is_idle).map(|client| client.id).collect();
        idle.into_iter().for_each(|id| self.core.state.clients.close(id));
    }

    /// Closes clients that exceed their soft output limit for too long.
    fn check_soft_limits(&mut self) {
        let mut over = std::mem::take(&mut self.core.state.clients.queues.over_soft_limit);
        over.sort_unstable_by_key(|id| id.number);
        over.dedup();
        over.retain(|&id| {
            check_output_limit(&mut self.core.state, id);
            let client = self.core.state.clients.get(id);
            client.is_some_and(|client| client.over_soft_limit_since_us.is_some())
        });
        self.core.state.clients.queues.over_soft_limit.append(&mut over);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::{Clock, ManualClock, UnixMillis};
    use crate::config::Config;
    use crate::sys::log::Logger;

    #[test]
    fn a_server_at_which_nothing_happens_wakes_once_a_second() {
        let clock = ManualClock::new(UnixMillis(1_700_000_000_000));
        let config = Config::from_text(b"bind 127.0.0.1\nport 0\n").expect("a configuration");
        let mut server = Server::start(config, Clock::Manual(clock.clone()), Logger::silent())
            .expect("the server starts");
        let mut wait_after = |us: i64, is_woken: bool| {
            clock.advance_us(us);
            if is_woken {
                server.handle().wake().expect("the loop can be woken");
            }
            assert!(server.turn_now().expect("a turn"));
            server.timeout().expect("a limit")
        };
        assert_eq!(wait_after(0, false), Duration::from_millis(1_000));
        // The periodic work that is due after an event comes in time.
        assert_eq!(wait_after(0, true), Duration::from_millis(100));
        assert_eq!(wait_after(30_000, false), Duration::from_millis(70));
        assert_eq!(wait_after(70_000, false), Duration::from_millis(1_000));
        // If it comes late, the next times stay as they were.
        assert_eq!(wait_after(250_000, false), Duration::from_millis(950));
    }
}
