//! Where effects go: to the append-only log, and to the stream that replicas follow.

use crate::gate::replicas;
use crate::gate::state::State;
use crate::keyspace::Keyspace;

/// Effects that may collect within a turn before they are handed on. Unit: bytes.
pub const SPREAD_BYTES: usize = 1 << 20;

/// Hands what commands have changed so far to those who repeat it: the log, and the stream that replicas follow. To be called
/// between units.
pub fn spread_effects(server: &mut State) {
    let State { persistence, effects, replication, now, .. } = server;
    // A replica's stream is its primary's, byte for byte.
    let feeds = replication.backlog.is_some() && !replication.is_replica();
    let messages = std::mem::take(&mut replication.messages);
    // With neither it is DEBUG EFFECTS that listens, and takes them itself.
    if effects.is_empty() || !(feeds || persistence.is_aof_on()) {
        if feeds {
            replication.feed(&messages);
        }
        return;
    }
    effects.take_apart(|logged, sent| {
        if let Some(aof) = &mut persistence.aof {
            aof.log.append(logged, *now);
        }
        if feeds {
            replication.feed(sent);
            replication.feed(&messages);
            if let (Some(aof), Some(backlog)) = (&persistence.aof, &replication.backlog) {
                replication.logged.push_back((backlog.end(), aof.log.end()));
            }
        }
    });
}

/// [`spread_effects`] in the middle of a turn that changes much: replicas are sent what they may be sent of it.
#[cold]
pub fn spread_early(server: &mut State) {
    spread_effects(server);
    replicas::send(server);
}

/// Has commands note what they change while somebody repeats it: to be called where the log or the backlog comes or goes, and
/// where the role changes. Whoever is new is told the database.
pub fn note_listeners(db: &mut Keyspace, server: &mut State) {
    let replication = &server.replication;
    let follows = replication.backlog.is_some() && !replication.is_replica();
    let heard = server.persistence.is_aof_on() || follows;
    server.effects.listen(heard);
    db.deletions.listen(heard);
}
