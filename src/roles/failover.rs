//! FAILOVER: a primary hands its role to one of its replicas without losing a write.
//!
//! ```text
//!   writes are paused -> a replica has the whole stream -> this server follows it, with PSYNC ... FAILOVER
//!     -> it becomes the primary and accepts this server -> writes resume, and are refused here
//! ```
//!
//! Each step waits for the one before; ABORT and a timeout undo them. Texts are Redis's.

use crate::durability::persistence;
use crate::replication::Failover;
use crate::roles::following;
use crate::state::{Core, Pause, PauseCause, State};
use crate::sys::log::notice;

/// Starts a failover to this replica, or to the first that has the whole stream. Pauses writes.
pub fn begin(
    state: &mut State,
    target: Option<(String, u16)>,
    timeout_ms: Option<i64>,
    forces: bool,
) {
    match &target {
        Some((host, port)) => {
            notice!(state, "FAILOVER requested to {host}:{port}.");
        }
        None => notice!(state, "FAILOVER requested to any replica."),
    }
    let now_us = state.now.boot_us;
    let until_us = timeout_ms.map(|ms| now_us.saturating_add(ms.saturating_mul(1000)));
    state.replication.failover =
        Some(Box::new(Failover { target, until_us, forces, is_under_way: false }));
    let pause = Pause { until_us: i64::MAX, writes_only: true };
    state.set_pause(PauseCause::Failover, Some(pause));
}

/// The state's name in INFO.
pub fn state_name(state: &State) -> &'static str {
    match state.replication.failover.as_deref() {
        None => "no-failover",
        Some(failover) if failover.is_under_way => "failover-in-progress",
        Some(_) => "waiting-for-sync",
    }
}

/// Returns to the state before the failover, unless a replica has become the primary already.
pub fn abort(core: &mut Core, why: &str) {
    let Some(failover) = core.state.replication.failover.take() else { return };
    let target = name(&failover);
    notice!(core.state, "FAILOVER to {target} aborted: {why}");
    if failover.is_under_way {
        following::unfollow(core);
    }
    core.state.end_pause(PauseCause::Failover);
}

fn name(failover: &Failover) -> String {
    match &failover.target {
        Some((host, port)) => format!("{host}:{port}"),
        None => "any replica".into(),
    }
}

/// Takes the next step of a failover. Call this once a turn.
pub fn turn(core: &mut Core) {
    let Some(failover) = core.state.replication.failover.as_deref() else { return };
    if failover.is_under_way {
        return look_at_target(core);
    }
    if failover.until_us.is_some_and(|until_us| until_us <= core.state.now.boot_us) {
        if !failover.forces {
            return abort(core, "Replica never caught up before timeout");
        }
        let target = name(failover);
        notice!(core.state, "FAILOVER to {target} time out exceeded, failing over.");
        return hand_over(core);
    }
    persistence::spread_effects(&mut core.state);
    let Some(found) = replica_with_all(&core.state) else { return };
    if let Some(failover) = core.state.replication.failover.as_deref_mut() {
        failover.target = Some(found);
        let target = name(failover);
        notice!(core.state, "Failover target {target} is synced, failing over.");
    }
    hand_over(core);
}

/// Address and port of a replica with the whole stream: of the requested one, if one was requested.
fn replica_with_all(state: &State) -> Option<(String, u16)> {
    let failover = state.replication.failover.as_deref()?;
    let offset = state.replication.offset;
    let mut found = state.replicas().filter(|(client, replica)| {
        let is_asked_for = failover.target.as_ref().is_none_or(|(host, port)| {
            host.eq_ignore_ascii_case(&client.replica_address()) && *port == replica.port
        });
        is_asked_for && replica.is_online() && replica.acknowledged == Some(offset)
    });
    found.next().map(|(client, replica)| (client.replica_address(), replica.port))
}

fn hand_over(core: &mut Core) {
    let Some(failover) = core.state.replication.failover.as_deref_mut() else { return };
    failover.is_under_way = true;
    let Some((host, port)) = failover.target.clone() else { return };
    following::follow(core, host.as_bytes(), port, true);
}

/// Checks whether the target has become the primary or has refused.
fn look_at_target(core: &mut Core) {
    match core.state.replication.following.as_deref() {
        Some(following) if following.failover_failed => {
            abort(core, "Failover target rejected psync request");
        }
        Some(following) if following.is_failover => {}
        following => {
            let primary = following.map(|following| (following.host.clone(), following.port));
            core.state.replication.failover = None;
            if let Some((host, port)) = primary {
                following::end_blocking(core, &host, port);
            }
            core.state.end_pause(PauseCause::Failover);
        }
    }
}
