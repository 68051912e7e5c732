//! Lists the keys of each slot while somebody needs their names: some of them in each turn. The
//! lists are dropped when nobody has asked for a while, because they take memory for each key.

use crate::state::context::Context;
use crate::state::{Core, State};

/// Time for listing in a turn. Unit: microseconds.
const TURN_US: i64 = 500;
/// Keys listed between two readings of the clock.
const STEP_KEYS: usize = 256;
/// Lists of as many keys are made at once.
const AT_ONCE_KEYS: usize = 4096;
/// The lists are dropped when nobody has asked for this long. Unit: microseconds.
const KEPT_US: i64 = 60_000_000;

/// Asks for the lists. True: they are whole. Otherwise they are made in the next turns.
pub fn ask(core: &mut Core) -> bool {
    let lists = &mut core.state.node.work.lists;
    lists.asked_us = core.state.now.boot_us;
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
    if let Some(id) = ctx.suspend_until_retry() {
        ctx.core.state.node.work.lists.waiting.push(id);
        return false;
    }
    make(ctx.core);
    true
}

/// Makes the lists whole. Other nodes are answered meanwhile, as in a script.
pub fn make(core: &mut Core) {
    if ask(core) {
        return;
    }
    while !core.keyspace.list_slots_on(STEP_KEYS) {
        super::turn_in_script(&mut core.state);
    }
    core.state.node.work.lists.are_under_way = false;
}

/// Whether lists are being made, or clients wait for them.
pub fn has_work(state: &State) -> bool {
    let lists = &state.node.work.lists;
    lists.are_under_way || !lists.waiting.is_empty()
}

/// Continues the lists, or drops them.
pub fn go_on(core: &mut Core) {
    if !has_work(&core.state) && core.keyspace.slot_lists_bytes() == 0 {
        return;
    }
    let Core { keyspace, state } = core;
    let begun_us = state.clock.now().boot_us;
    let lists = &mut state.node.work.lists;
    while lists.are_under_way && state.clock.now().boot_us - begun_us < TURN_US {
        lists.are_under_way = !keyspace.list_slots_on(STEP_KEYS);
        // However long it takes, they are kept for those who have waited.
        lists.asked_us = begun_us;
    }
    if lists.are_under_way {
        return;
    }
    state.net.pending.resumed.append(&mut lists.waiting);
    if begun_us - lists.asked_us > KEPT_US {
        keyspace.forget_slot_lists();
    }
}
