//! Clients that are gone in the turn in which they would be served: nothing is taken for them.

use super::world::World;
use crate::support::Reply;

/// Who waits, what would serve it, what is asked afterwards, and what is to be answered.
const CASES: &[(&str, &str, &str, &str)] = &[
    ("BLPOP kill:l 0", "RPUSH kill:l e", "LLEN kill:l", "(integer) 1"),
    ("BRPOP kill:l 0", "LPUSH kill:l e", "LLEN kill:l", "(integer) 1"),
    ("BLMOVE kill:l kill:m LEFT RIGHT 0", "RPUSH kill:l e", "LLEN kill:l", "(integer) 1"),
    ("BRPOPLPUSH kill:l kill:m 0", "RPUSH kill:l e", "LLEN kill:l", "(integer) 1"),
    ("BLMPOP 0 1 kill:l LEFT COUNT 2", "RPUSH kill:l e f", "LLEN kill:l", "(integer) 2"),
    ("BZPOPMIN kill:z 0", "ZADD kill:z 1 e", "ZCARD kill:z", "(integer) 1"),
    ("BZMPOP 0 1 kill:z MAX COUNT 2", "ZADD kill:z 1 e 2 f", "ZCARD kill:z", "(integer) 2"),
    (
        "XREADGROUP GROUP g c BLOCK 0 STREAMS kill:x >",
        "XADD kill:x * f v",
        "XPENDING kill:x g - + 9",
        "(empty array)",
    ),
];

/// Has a client wait, and another kill it and serve it at once.
pub fn serve_and_kill(world: &mut World, node: usize) {
    let words = |text: &'static str| text.split(' ').collect::<Vec<_>>();
    let (waits, serves, asks, expected) = CASES[world.random.usize(..CASES.len())];
    world.ask(node, &["SELECT", "0"]);
    world.ask(node, &["DEL", "kill:l", "kill:m", "kill:z", "kill:x"]);
    if waits.starts_with("XREADGROUP") {
        world.ask(node, &["XGROUP", "CREATE", "kill:x", "g", "$", "MKSTREAM"]);
    }
    let Some(mut waiting) = world.connect(node) else { return };
    waiting.send(&["CLIENT", "ID"]);
    waiting.send(&words(waits));
    world.turn(node);
    let Some(Reply::Integer(id)) = waiting.take().first().cloned() else { return };
    let id = id.to_string();
    let Some(mut killer) = world.connect(node) else { return };
    let as_one = world.random.u32(..3) == 0;
    let mut asked: Vec<Vec<&str>> = vec![vec!["CLIENT", "KILL", "ID", &id], words(serves)];
    if as_one {
        asked.insert(0, vec!["MULTI"]);
        asked.push(vec!["EXEC"]);
    }
    world.trace.note(|| format!("kill {waits} while {serves}, {as_one}"));
    for request in &asked {
        killer.send(request);
    }
    world.turn(node);
    let replies = killer.take();
    let served = match replies.last() {
        Some(Reply::Array(replies)) => replies.last().cloned(),
        other => other.cloned(),
    };
    // It may have been refused: memory or the disk is full.
    if !matches!(served, Some(Reply::Integer(_) | Reply::Bulk(_))) || replies.len() < asked.len() {
        return;
    }
    if world.nodes[node].server.as_ref().is_some_and(|server| server.evictions().1 > 0) {
        // What was served may have been evicted.
        return;
    }
    world.ask(node, &["SELECT", "0"]);
    let told = world.show(node, &words(asks));
    if told != expected && told != "(ended)" {
        world
            .fail(&format!("{waits}: the client was killed before {serves}, and {asks} is {told}"));
    }
}
