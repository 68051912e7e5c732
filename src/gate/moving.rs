//! Requests that would write a key that is on its way to another server (`state/moving.rs`), alone
//! or with its slot. They wait, as in Redis everything waits for MIGRATE. Reads continue.

use crate::client::Client;
use crate::error::CommandError;
use crate::gate::keys::keys_of;
use crate::gate::verdict::{Asked, Verdict};
use crate::keyspace::DbIndex;
use crate::resp::args::Args;
use crate::state::spec::{DatabaseUse, Flags, KeyFlags};
use crate::state::table::Command;
use crate::state::{Core, State};

/// The error of a request that cannot wait.
const ON_ITS_WAY: &str = "TRYAGAIN The key is on its way to another server";

/// Checks whether a client's request must wait for a moving key, or fails because it cannot wait.
pub fn check(core: &Core, client: &Client, asked: &Asked<'_>) -> Result<(), Verdict> {
    if !core.state.moving.is_in_the_way() {
        return Ok(());
    }
    let Asked { command, args, .. } = *asked;
    let queued = client.transaction.as_deref();
    if let Some(queued) = queued.filter(|_| command.is(Flags::RUNS_QUEUED)) {
        let mut database = core.keyspace.selected();
        for (command, args, _) in queued.requests() {
            let command = core.state.commands.get(command);
            if command.spec.databases == DatabaseUse::Selects
                && let Ok(selected) = args.integer(1)
                && let Some(selected) = DbIndex::checked(selected, core.state.database_count())
            {
                database = selected;
            }
            check_one(&core.state, database, command, args)?;
        }
        return Ok(());
    }
    // A request that is only queued now is checked by EXEC.
    if queued.is_some() && !command.is(Flags::NEVER_QUEUED) {
        return Ok(());
    }
    check_one(&core.state, core.keyspace.selected(), command, args)
}

fn check_one(
    state: &State,
    database: DbIndex,
    command: &'static Command,
    args: Args<'_>,
) -> Result<(), Verdict> {
    let Some(index) = moving_key(state, database, command, args) else { return Ok(()) };
    if restores(command) && !state.moving.pauses(args.get(index)) {
        // The RESTORE may come from the server to which the key is sent, or from this server
        // itself: if both waited for each other, both would time out.
        return match replaces(args) {
            true => Err(CommandError::Cluster(ON_ITS_WAY).into()),
            // The RESTORE will find that the key exists.
            false => Ok(()),
        };
    }
    Err(Verdict::Await { database, key: args.get(index).into() })
}

fn restores(command: &Command) -> bool {
    matches!(&*command.full_name, "restore" | "restore-asking")
}

fn replaces(args: Args<'_>) -> bool {
    args.iter_from(4.min(args.len())).any(|word| word.eq_ignore_ascii_case(b"REPLACE"))
}

/// The index of the first moving key that a request would write.
fn moving_key(
    state: &State,
    database: DbIndex,
    command: &'static Command,
    args: Args<'_>,
) -> Option<usize> {
    let may_write = Flags::WRITE.union(Flags::MAY_REPLICATE);
    if !state.flags_of(command, args).intersects(may_write) {
        return None;
    }
    let may_change = |flags: KeyFlags| flags.may_change() || command.is(Flags::RUNS_SCRIPT);
    let keys = keys_of(command.spec, args).into_iter().filter(|key| may_change(key.flags));
    let mut keys = keys.map(|key| key.index);
    keys.find(|&index| {
        let key = args.get(index);
        state.moving.holds(database, key)
    })
}

/// Whether a waiting command must keep waiting, because it may write a moving key: any of its keys,
/// not only the one that has woken it.
pub fn holds_woken(
    state: &State,
    database: DbIndex,
    command: &'static Command,
    args: Args<'_>,
) -> bool {
    state.moving.is_in_the_way() && moving_key(state, database, command, args).is_some()
}

/// Checks whether a script's call would write a moving key that the script did not declare: a
/// running script cannot wait. Errors: the whole text.
pub fn check_scripted(
    core: &Core,
    command: &'static Command,
    args: Args<'_>,
) -> Result<(), &'static str> {
    let is_free = !core.state.moving.is_in_the_way()
        || moving_key(&core.state, core.keyspace.selected(), command, args).is_none();
    // Requests of the primary or a file have no client.
    let has_client =
        core.state.scripts.running.as_ref().is_some_and(|running| running.client.is_some());
    if is_free || !has_client { Ok(()) } else { Err(ON_ITS_WAY) }
}
