//! Lists the keys of each slot while somebody needs their names: some of them in each turn. The
//! lists are dropped when nobody has asked for a while, because they take memory for each key.

use crate::client::life::Suspension;
use crate::state::context::{Context, Origin};
use crate::state::{Core, State};

/// Time for listing in a turn. Unit: microseconds.
const TURN_US: i64 = 1_000;
/// Keys listed between two readings of the clock.
const STEP_KEYS: usize = 256;
/// Lists of as many keys are made at once.
const AT_ONCE_KEYS: usize = 4096;
/// The lists are dropped when nobody has asked for this long. Unit: microseconds.
const KEPT_US: i64 = 60_000_000;

/// Asks for the lists. True: they are whole. Otherwise they are made in the next turns.
pub fn ask(core: &mut Core) -> bool {
    let lists = &mut core.state.cluster_work.lists;
    lists.asked_us = Some(core.state.now.boot_us);
    if !core.keyspace.are_slots_listed() && core.keyspace.keys_in_all() <= AT_ONCE_KEYS {
        core.keyspace.list_slots();
    }
    lists.are_under_way = !core.keyspace.are_slots_listed();
    !lists.are_under_way
}

/// Asks for the lists for a command, which must not run if the result is false: its client is
/// suspended until they are whole. For a command that cannot wait they are made at once.
pub fn ask_for_command(ctx: &mut Context<'_>) -> bool {
    if ask(ctx.core) {
        return true;
    }
    if ctx.origin == Origin::Client
        && let Some(id) = ctx.caller.client()
        && ctx.core.state.clients.suspend(id, Suspension::UntilRetry)
    {
        ctx.core.state.cluster_work.lists.waiting.push(id);
        return false;
    }
    ctx.core.keyspace.list_slots();
    ask(ctx.core)
}

/// Whether lists are being made.
pub fn has_work(state: &State) -> bool {
    state.cluster_work.lists.are_under_way
}

/// Continues the lists, or drops them.
pub fn go_on(core: &mut Core) {
    let Core { keyspace, state } = core;
    let Some(asked_us) = state.cluster_work.lists.asked_us else { return };
    let begun_us = state.clock.now().boot_us;
    let lists = &mut state.cluster_work.lists;
    while lists.are_under_way && state.clock.now().boot_us - begun_us < TURN_US {
        lists.are_under_way = !keyspace.list_slots_on(STEP_KEYS);
    }
    if lists.are_under_way {
        return;
    }
    state.net.pending.resumed.append(&mut lists.waiting);
    if begun_us - asked_us > KEPT_US {
        lists.asked_us = None;
        keyspace.forget_slot_lists();
    }
}
