//! While a server sleeps in its turn, as a slow load or DEBUG SLEEP does, the others take theirs.
#![allow(unsafe_code)] // A clock that sleeps leads to the world whose turn calls it.

use std::cell::Cell;
use std::ptr::null_mut;

use latchkey::clock::ManualClock;

use super::world::World;

thread_local! {
    /// The world in which a server takes a turn that it shares.
    static WORLD: Cell<*mut World> = const { Cell::new(null_mut()) };
}

/// Has the world's other servers take turns while `turn` sleeps.
pub fn share<T>(world: &mut World, turn: impl FnOnce() -> T) -> T {
    WORLD.set(world);
    let value = turn();
    WORLD.set(null_mut());
    value
}

/// A server sleeps in its turn. Unit: microseconds.
pub fn sleep(clock: &ManualClock, us: i64) {
    let world = WORLD.replace(null_mut());
    if world.is_null() {
        // Nobody shares this turn, or it is one of those that another one's sleep has room for.
        clock.advance_us(us);
        return;
    }
    // SAFETY: the pointer is that of `share`, which has the world for itself until `turn` returns,
    // and this is called by `turn`. Calls within this one find no pointer.
    unsafe { (*world).pass(clock, us) };
    WORLD.set(world);
}
