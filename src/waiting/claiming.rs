//! Clients that wait for entries which may come by time (XREADGROUP with CLAIM or DUE, and BLOCK):
//! what each reads at its keys, and when they are woken.

use crate::gate::evict;
use crate::gate::keys::ReadOption;
use crate::keyspace::DbIndex;
use crate::keyspace::due::Unit;
use crate::keyspace::waiting::{Alarm, Reading};
use crate::resp::args::Args;
use crate::resp::number;
use crate::state::Core;

/// The pause before the next try, if memory was short when entries had to move. Unit: milliseconds.
const SHORT_PAUSE_MS: i64 = 100;

/// What a request reads at each of its keys: the index of the key, and the idle time from which
/// the client claims.
pub(super) fn readings(args: Args<'_>) -> Vec<(usize, Reading, i64)> {
    let (mut group, mut idle_ms, mut due) = (None, i64::MAX, Vec::<(usize, Unit)>::new());
    let mut cursor = args.cursor(1);
    while let Some(option) = ReadOption::take(&mut cursor) {
        match option {
            ReadOption::Streams => break,
            ReadOption::Group => {
                group = cursor.take().ok();
                let _ = cursor.take();
            }
            ReadOption::Claim => {
                idle_ms = cursor.take().ok().and_then(number::parse_i64).unwrap_or(idle_ms);
            }
            ReadOption::NoAck => {}
            ReadOption::Due => {
                due.push((cursor.position(), Unit::default()));
                let _ = cursor.take();
            }
            ReadOption::Unit => {
                let unit = cursor.take().ok().and_then(Unit::parse).unwrap_or_default();
                due.iter_mut().last().into_iter().for_each(|(_, last)| *last = unit);
            }
            ReadOption::Block
            | ReadOption::Count
            | ReadOption::MaxCount
            | ReadOption::MaxSize
            | ReadOption::Field
            | ReadOption::MaxDeliveries
            | ReadOption::DeadLetter => drop(cursor.take()),
        }
    }
    let (first, streams) = (cursor.position(), cursor.remaining() / 2);
    let Some(group) = group else { return Vec::new() };
    let reading = |due| Reading { group: group.into(), due };
    let of_streams = (first..first + streams).map(|at| (at, reading(None), idle_ms));
    let of_due = due.iter().enumerate().map(|(index, (at, unit))| {
        let stream = args.get(first + index).into();
        (*at, reading(Some((unit.wanted(), stream))), idle_ms)
    });
    of_streams.chain(of_due).collect()
}

/// Sets a key's alarms: when the next member is due, and when the next pending entry may be claimed
/// by one of the clients that wait here.
pub(super) fn set_alarm(core: &mut Core, database: DbIndex, key: &[u8]) {
    let readings = core.keyspace.waiting.readings(database, key);
    let selected = core.keyspace.selected();
    core.keyspace.select(database);
    let (mut due_ms, mut claim_ms) = (None, None);
    let earlier =
        |at: &mut Option<i64>, other: Option<i64>| *at = at.iter().copied().chain(other).min();
    for (Reading { group, due }, idle_ms) in readings {
        match due {
            None => earlier(&mut claim_ms, core.keyspace.next_claim_ms(key, &group, idle_ms)),
            Some((wanted, stream)) if !core.keyspace.is_paused(&stream, &group) => {
                earlier(&mut due_ms, core.keyspace.next_due_ms(key, wanted));
            }
            Some(_) => {}
        }
    }
    core.keyspace.select(selected);
    if evict::is_over(core) {
        let later = |now_ms: i64| move |at_ms: i64| at_ms.max(now_ms + SHORT_PAUSE_MS);
        due_ms = due_ms.map(later(core.state.now.unix().0));
        claim_ms = claim_ms.map(later(core.keyspace.lease_ms()));
    }
    core.keyspace.waiting.set_alarm(database, key, Alarm::DueToStream, due_ms);
    core.keyspace.waiting.set_alarm(database, key, Alarm::Claim, claim_ms);
}
