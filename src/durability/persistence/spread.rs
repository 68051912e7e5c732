//! Passes effects on to the append-only log and to the replication backlog.

use crate::state::{Core, State};

/// Passes the effects of ended units on to the AOF and the backlog. Call this before a command
/// during which other clients are served: replies that show earlier changes wait for the AOF's end.
pub fn spread_effects(state: &mut State) {
    let State { persistence, effects, replication, node, now, .. } = state;
    // A replica's backlog is its primary's stream, byte for byte.
    let feeds = replication.backlog.is_some() && !replication.is_replica();
    // If none of them takes the effects, DEBUG EFFECTS does.
    let is_moving = !node.moves.exports.is_empty();
    if effects.is_empty() || !(feeds || persistence.is_aof_on() || is_moving) {
        return;
    }
    let units = effects.take_ended();
    effects.take_apart(|logged, sent| {
        if let Some(aof) = &mut persistence.aof {
            aof.log.append(logged, units, *now);
        }
        if is_moving {
            node.moves.changes.extend_from_slice(sent);
        }
        if feeds {
            replication.feed(sent);
            if let (Some(aof), Some(backlog)) = (&persistence.aof, &replication.backlog) {
                replication.logged.push_back((backlog.end(), aof.log.end()));
            }
        }
    });
}

/// Starts or stops the recording of effects. Call this where the AOF or backlog is opened or
/// closed, and where the role changes. A new reader's stream starts with SELECT.
pub fn note_listeners(core: &mut Core) {
    let replication = &core.state.replication;
    let follows = replication.backlog.is_some() && !replication.is_replica();
    let moves = !core.state.node.moves.exports.is_empty() && !replication.is_replica();
    let heard = core.state.persistence.is_aof_on() || follows || moves;
    core.state.effects.listen(heard);
    core.keyspace.deletions.listen(heard);
}
