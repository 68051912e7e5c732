//! Numbers as Lua 5.1 takes them where a whole number is wanted, and the functions that depend on
//! it.
//!
//! The interpreter makes 32 bits of every position and count, so that one of 2^31 becomes another
//! number. Lua 5.1 reads 64 bits, as a 64-bit C compiler converts a double, and keeps either these
//! (positions in strings) or the lower 32 (everything else).

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

use super::text::{call_original, look};
use super::{raise_here, shared};

/// Replacements of the interpreter's functions, by library; c"" are globals.
pub(super) const REPLACED: &[(&CStr, &[(&CStr, lua_CFunction)])] = &[
    (
        c"",
        &[
            (c"error", with_narrow_second),
            (c"select", with_narrow_first),
            (c"tonumber", with_narrow_second),
            (c"unpack", with_narrow_others),
        ],
    ),
    (c"string", &[(c"byte", with_positions), (c"sub", with_positions)]),
    (c"table", &[(c"insert", insert), (c"remove", with_narrow_others)]),
    (
        c"math",
        &[
            (c"ldexp", with_narrow_others),
            (c"log", log),
            (c"mod", under_old_name),
            (c"random", random),
            (c"randomseed", random_seed),
        ],
    ),
];

/// The whole part of a number, in 64 bits. The least integer stands for what does not fit, as on
/// x86-64.
pub(super) fn whole(number: f64) -> i64 {
    const END: f64 = 9_223_372_036_854_775_808.0;
    if (-END..END).contains(&number) { number as i64 } else { i64::MIN }
}

/// The lower 32 bits of a number's whole part.
pub(super) fn narrow(number: f64) -> i32 {
    whole(number) as i32
}

/// Where a search from a 1-based position begins, which counts from the end if it is negative.
/// Zero-based, and at most the text's length.
pub(super) fn start_of(position: i64, len: usize) -> usize {
    let from_end = if position < 0 { position.saturating_add(len as i64 + 1) } else { position };
    (from_end.max(1) as usize - 1).min(len)
}

/// The argument's number. None: it is none, for which the function has an error of its own.
unsafe fn number_at(state: *mut lua_State, index: c_int) -> Option<f64> {
    let mut is_number = 0;
    // SAFETY: a missing argument is no number.
    let number = unsafe { lua_tonumberx(state, index, &mut is_number) };
    (is_number != 0).then_some(number)
}

unsafe fn replace(state: *mut lua_State, index: c_int, number: f64) {
    // SAFETY: one value, which replaces an argument.
    unsafe {
        lua_pushnumber(state, number);
        lua_replace(state, index);
    }
}

/// Replaces an argument by the number that Lua 5.1 would make of it, if the interpreter would make
/// another.
pub(super) unsafe fn narrow_argument(state: *mut lua_State, index: c_int) {
    // SAFETY: see `replace`.
    unsafe {
        if let Some(number) = number_at(state, index)
            && i64::from(number as i32) != whole(number)
        {
            replace(state, index, f64::from(narrow(number)));
        }
    }
}

/// The same for a position in a string.
unsafe fn position_argument(state: *mut lua_State, index: c_int) {
    // SAFETY: see `replace`.
    unsafe {
        if let Some(number) = number_at(state, index)
            && i64::from(number as i32) != whole(number)
        {
            let most = i64::from(i32::MAX);
            replace(state, index, whole(number).clamp(-most, most) as f64);
        }
    }
}

/// The same for the position at which a search in a text of `len` bytes begins: one beyond the end
/// is the end.
pub(super) unsafe fn start_argument(state: *mut lua_State, index: c_int, len: usize) {
    // SAFETY: see `replace`.
    unsafe {
        if let Some(number) = number_at(state, index) {
            let position = whole(number);
            if position.unsigned_abs() > len as u64 {
                replace(state, index, (start_of(position, len) + 1) as f64);
            }
        }
    }
}

/// `select(n, ...)`
unsafe extern "C-unwind" fn with_narrow_first(state: *mut lua_State) -> c_int {
    // SAFETY: the interpreter runs this function, with the replaced one as upvalue.
    unsafe {
        narrow_argument(state, 1);
        call_original(state)
    }
}

/// A function that has a second name, which its errors shall have too.
unsafe extern "C-unwind" fn under_old_name(state: *mut lua_State) -> c_int {
    // SAFETY: as in `with_narrow_first`.
    unsafe { call_original(state) }
}

/// `unpack(t [, first [, last]])`, `table.remove(t [, position])`, `math.ldexp(number, exponent)`
unsafe extern "C-unwind" fn with_narrow_others(state: *mut lua_State) -> c_int {
    // SAFETY: as in `with_narrow_first`.
    unsafe {
        narrow_argument(state, 2);
        narrow_argument(state, 3);
        call_original(state)
    }
}

/// `error(message [, level])`, `tonumber(value [, base])`
unsafe extern "C-unwind" fn with_narrow_second(state: *mut lua_State) -> c_int {
    // SAFETY: as in `with_narrow_first`.
    unsafe {
        if lua_gettop(state) > 1 {
            narrow_argument(state, 2);
        }
        call_original(state)
    }
}

/// `string.byte(s [, first [, last]])`, `string.sub(s, first [, last])`
unsafe extern "C-unwind" fn with_positions(state: *mut lua_State) -> c_int {
    // SAFETY: as in `with_narrow_first`.
    unsafe {
        position_argument(state, 2);
        position_argument(state, 3);
        call_original(state)
    }
}

/// `table.insert(t, [position,] value)`: at a position before the first element, all that stands
/// from there on moves up.
unsafe extern "C-unwind" fn insert(state: *mut lua_State) -> c_int {
    // SAFETY: one value; the first argument is a table there.
    unsafe {
        if lua_gettop(state) != 3 || lua_type(state, 1) != LUA_TTABLE {
            return call_original(state);
        }
        narrow_argument(state, 2);
        match number_at(state, 2).map(narrow) {
            Some(position) if position < 1 => {
                for index in (position + 1..=lua_objlen(state, 1) as c_int + 1).rev() {
                    look(state, index);
                    lua_rawgeti_(state, 1, index - 1);
                    lua_rawseti_(state, 1, index);
                }
                lua_rawseti_(state, 1, position);
                0
            }
            _ => call_original(state),
        }
    }
}

/// `math.log(number)`: there is no base.
unsafe extern "C-unwind" fn log(state: *mut lua_State) -> c_int {
    // SAFETY: fewer values than before.
    unsafe {
        if lua_gettop(state) > 1 {
            lua_settop(state, 1);
        }
        call_original(state)
    }
}

/// Redis's generator, that of `lrand48`: the same numbers for the same seed on every system.
#[derive(Clone, Copy)]
pub(super) struct Random(u64);

impl Random {
    pub fn from_seed(seed: i32) -> Self {
        Random(u64::from(seed as u32) << 16 | 0x330E)
    }

    /// From 0 to 1, without 1.
    fn next(&mut self) -> f64 {
        const MODULUS: u64 = 1 << 48;
        self.0 = (self.0.wrapping_mul(0x5_DEEC_E66D) + 0xB) % MODULUS;
        let most = i32::MAX as u64;
        ((self.0 >> 17) % most) as f64 / most as f64
    }
}

/// `math.random([[first,] last])`
unsafe extern "C-unwind" fn random(state: *mut lua_State) -> c_int {
    // SAFETY: one value; errors may be raised.
    unsafe {
        let state_of = &shared(state).random;
        let mut numbers = state_of.get();
        let drawn = numbers.next();
        state_of.set(numbers);
        let number = match lua_gettop(state) {
            0 => drawn,
            1 => {
                let last = narrow(luaL_checknumber(state, 1));
                if last < 1 {
                    luaL_argerror(state, 1, c"interval is empty".as_ptr());
                }
                (drawn * f64::from(last)).floor() + 1.0
            }
            2 => {
                let first = narrow(luaL_checknumber(state, 1));
                let last = narrow(luaL_checknumber(state, 2));
                if first > last {
                    luaL_argerror(state, 2, c"interval is empty".as_ptr());
                }
                let count = last.wrapping_sub(first).wrapping_add(1);
                (drawn * f64::from(count)).floor() + f64::from(first)
            }
            _ => raise_here(state, b"wrong number of arguments"),
        };
        lua_pushnumber(state, number);
        1
    }
}

/// `math.randomseed(seed)`
unsafe extern "C-unwind" fn random_seed(state: *mut lua_State) -> c_int {
    // SAFETY: errors may be raised.
    unsafe {
        let seed = narrow(luaL_checknumber(state, 1));
        shared(state).random.set(Random::from_seed(seed));
        0
    }
}
