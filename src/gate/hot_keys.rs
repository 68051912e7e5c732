//! The costs of commands for their keys, for HOTKEYS. All of this runs only in the time for which
//! somebody has started it: the thresholds of `stats/timing.rs` then make every command take the
//! slow path.
//!
//! Commands in a transaction are charged one by one, a script with all it does to the keys that it
//! was given.

use crate::gate::keys::keys_of;
use crate::gate::request::Request;
use crate::resp::request::encoded_len;
use crate::state::State;
use crate::state::context::Origin;
use crate::stats::hot_keys::Costs;
use crate::sys::machine::cpu_times;

/// Charges a command that has run. `costs`: without the bytes of its request.
#[cold]
pub fn charge(state: &mut State, request: &Request<'_>, mut costs: Costs) {
    let &Request { command, args, origin, .. } = request;
    let now_us = state.now.boot_us;
    let Some(hot) = &mut state.stats.hot_keys else { return };
    if !hot.is_active(now_us) {
        return end(state);
    }
    if origin == Origin::Script {
        return;
    }
    let keys = keys_of(command.spec, args);
    if !keys.is_empty() {
        costs.bytes += encoded_len(args.iter_from(0)) as u64;
        hot.add(costs, keys.iter().map(|key| args.get(key.index)));
    }
}

/// Ends the time for which the server looks at its keys.
pub fn end(state: &mut State) {
    let now_us = state.now.boot_us;
    if let Some(hot) = &mut state.stats.hot_keys {
        hot.end(now_us, cpu_times());
    }
    state.stats.timing.watch_all(false, &state.config);
}
