//! A check of debug builds: a command that changes data has said so. The rules that hold writes
//! back or replicate them (moving keys, pauses, read-only scripts, replicas) ask the specification
//! alone.

use std::collections::BTreeSet;

use crate::gate::keys::keys_of;
use crate::keyspace::Announced;
use crate::resp::args::Args;
use crate::state::Core;
use crate::state::spec::Flags;
use crate::state::table::Command;

/// Commands with one of these may change data.
const WRITERS: Flags = Flags::WRITE.union(Flags::MAY_REPLICATE).union(Flags::PROTECTED);

/// The changes before a command, and what an outer command has announced.
pub struct Before {
    changes: u64,
    outer: Announced,
}

/// Notes the keys that a command announces to change. Whatever runs other commands announces
/// nothing; those do.
pub fn begin(core: &mut Core, command: &Command, args: Args<'_>) -> Before {
    let changes = core.keyspace.changes_by_commands();
    let keys = match command.is(Flags::RUNS_SCRIPT | Flags::RUNS_QUEUED) {
        true => Vec::new(),
        false => keys_of(command.spec, args),
    };
    let is_writer = command.is(WRITERS);
    let announced = (!keys.is_empty()).then(|| {
        let changed = keys.iter().filter(|key| is_writer && key.flags.may_change());
        changed.map(|key| args.get(key.index).to_vec()).collect::<BTreeSet<_>>()
    });
    Before { changes, outer: core.keyspace.announce(announced) }
}

/// Checks that a command has changed nothing that it did not announce. Commands that change the
/// server's part in a cluster or the primary it follows may give up data without naming keys.
pub fn end(core: &mut Core, command: &Command, before: Before) {
    let announced = core.keyspace.announce(before.outer);
    if core.keyspace.changes_by_commands() == before.changes
        || command.is(Flags::RUNS_SCRIPT | Flags::RUNS_QUEUED | Flags::ADMIN)
    {
        return;
    }
    assert!(
        command.is(WRITERS),
        "{} has changed data, and is no writing command",
        command.full_name,
    );
    assert!(
        announced.is_none_or(|keys| !keys.is_empty()),
        "{} has changed data, and its specification says that it only reads its keys",
        command.full_name,
    );
}
