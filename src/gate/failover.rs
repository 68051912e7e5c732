//! FAILOVER: a primary hands its role to one of its replicas without losing a write.
//!
//! ```text
//!   writes are paused -> a replica has the whole stream -> this server follows it, with PSYNC ... FAILOVER
//!     -> it becomes the primary and accepts this server -> writes resume, and are refused here
//! ```
//!
//! Each step waits for the one before; ABORT and a timeout undo them. Texts are Redis's.

use crate::gate::state::{Pause, PauseCause, State};
use crate::gate::{following, persistence, replicas};
use crate::keyspace::Keyspace;
use crate::replication::Failover;
use crate::sys::log::Level;

/// Starts a failover to this replica, or to the first that has the whole stream. Pauses writes.
pub fn begin(
    server: &mut State,
    target: Option<(String, u16)>,
    timeout_ms: Option<i64>,
    forces: bool,
) {
    match &target {
        Some((host, port)) => {
            server.log(Level::Notice, format_args!("FAILOVER requested to {host}:{port}."));
        }
        None => server.log(Level::Notice, format_args!("FAILOVER requested to any replica.")),
    }
    let now_us = server.now.boot_us;
    let until_us = timeout_ms.map(|ms| now_us.saturating_add(ms.saturating_mul(1000)));
    server.replication.failover =
        Some(Box::new(Failover { target, until_us, forces, is_under_way: false }));
    let pause = Pause { until_us: i64::MAX, writes_only: true };
    server.set_pause(PauseCause::Failover, Some(pause));
}

/// The state's name in INFO.
pub fn state_name(server: &State) -> &'static str {
    match server.replication.failover.as_deref() {
        None => "no-failover",
        Some(failover) if failover.is_under_way => "failover-in-progress",
        Some(_) => "waiting-for-sync",
    }
}

/// Returns to the state before the failover, unless a replica has become the primary already.
pub fn abort(db: &mut Keyspace, server: &mut State, why: &str) {
    let Some(failover) = server.replication.failover.take() else { return };
    let target = name(&failover);
    server.log(Level::Notice, format_args!("FAILOVER to {target} aborted: {why}"));
    if failover.is_under_way {
        following::unfollow(db, server);
    }
    server.end_pause(PauseCause::Failover);
}

fn name(failover: &Failover) -> String {
    match &failover.target {
        Some((host, port)) => format!("{host}:{port}"),
        None => "any replica".into(),
    }
}

/// Takes the next step of a failover. To be called once a turn.
pub fn turn(db: &mut Keyspace, server: &mut State) {
    let Some(failover) = server.replication.failover.as_deref() else { return };
    if failover.is_under_way {
        return look_at_target(db, server);
    }
    if failover.until_us.is_some_and(|until_us| until_us <= server.now.boot_us) {
        if !failover.forces {
            return abort(db, server, "Replica never caught up before timeout");
        }
        let target = name(failover);
        let text = "time out exceeded, failing over.";
        server.log(Level::Notice, format_args!("FAILOVER to {target} {text}"));
        return hand_over(db, server);
    }
    persistence::spread_effects(server);
    let Some(found) = replica_with_all(server) else { return };
    if let Some(failover) = server.replication.failover.as_deref_mut() {
        failover.target = Some(found);
        let target = name(failover);
        server
            .log(Level::Notice, format_args!("Failover target {target} is synced, failing over."));
    }
    hand_over(db, server);
}

/// Address and port of a replica with the whole stream: of the requested one, if one was requested.
fn replica_with_all(server: &State) -> Option<(String, u16)> {
    let failover = server.replication.failover.as_deref()?;
    let offset = server.replication.offset;
    let mut found = replicas::replicas(server).filter(|(client, replica)| {
        let is_asked_for = failover.target.as_ref().is_none_or(|(host, port)| {
            host.eq_ignore_ascii_case(&replicas::address(client)) && *port == replica.port
        });
        is_asked_for && replica.is_online() && replica.acknowledged == Some(offset)
    });
    found.next().map(|(client, replica)| (replicas::address(client), replica.port))
}

fn hand_over(db: &mut Keyspace, server: &mut State) {
    let Some(failover) = server.replication.failover.as_deref_mut() else { return };
    failover.is_under_way = true;
    let Some((host, port)) = failover.target.clone() else { return };
    following::follow(db, server, host.as_bytes(), port, true);
}

/// Checks whether the target has become the primary or has refused.
fn look_at_target(db: &mut Keyspace, server: &mut State) {
    match server.replication.following.as_deref() {
        Some(following) if following.failover_failed => {
            abort(db, server, "Failover target rejected psync request");
        }
        Some(following) if following.is_failover => {}
        following => {
            let primary = following.map(|following| (following.host.clone(), following.port));
            server.replication.failover = None;
            if let Some((host, port)) = primary {
                following::end_blocking(db, server, &host, port);
            }
            server.end_pause(PauseCause::Failover);
        }
    }
}
