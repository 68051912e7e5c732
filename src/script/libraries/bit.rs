//! `bit`: operations on 32-bit integers, as in LuaBitOp 1.0.2, which scripts have in Redis.
//!
//! Numbers are taken modulo 2^32 (adding 2^52 + 2^51 puts them into a double's low 32 bits);
//! results are signed.
#![allow(unsafe_code)] // Luau's C interface.

use std::ffi::c_int;

use mlua::ffi::{self, lua_State};

use super::helpers::{add_functions, number_argument, publish, push_bytes};

/// Sets the global table `bit`.
///
/// # Safety
/// The state is valid, its stack has room for four values, and its globals may be set.
pub unsafe fn open(state: *mut lua_State) {
    // SAFETY: the caller's promise. The functions share nothing: their upvalue is nil.
    unsafe {
        ffi::lua_pushnil(state);
        ffi::lua_createtable(state, 0, 12);
        add_functions(
            state,
            &[
                (c"tobit", tobit),
                (c"bnot", bnot),
                (c"band", band),
                (c"bor", bor),
                (c"bxor", bxor),
                (c"lshift", lshift),
                (c"rshift", rshift),
                (c"arshift", arshift),
                (c"rol", rol),
                (c"ror", ror),
                (c"bswap", bswap),
                (c"tohex", tohex),
            ],
        );
        publish(state, c"bit");
        ffi::lua_pop(state, 1);
    }
}

/// # Safety
/// As for `helpers::argument_error`.
unsafe fn bits_argument(state: *mut lua_State, argument: c_int) -> u32 {
    // SAFETY: the caller's promise.
    let number = unsafe { number_argument(state, argument) };
    (number + 6_755_399_441_055_744.0).to_bits() as u32
}

/// Returns bits as a signed number.
///
/// # Safety
/// A C function that Luau runs has room for 20 values.
unsafe fn reply(state: *mut lua_State, bits: u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ffi::lua_pushnumber(state, f64::from(bits as i32)) };
    1
}

unsafe extern "C-unwind" fn tobit(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe { reply(state, bits_argument(state, 1)) }
}

unsafe extern "C-unwind" fn bnot(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe { reply(state, !bits_argument(state, 1)) }
}

/// Combines all arguments, starting with the last: the order decides which error is found first.
///
/// # Safety
/// As for `helpers::argument_error`.
unsafe fn join(state: *mut lua_State, operation: fn(u32, u32) -> u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let mut bits = bits_argument(state, 1);
        for argument in (2..=ffi::lua_gettop(state)).rev() {
            bits = operation(bits, bits_argument(state, argument));
        }
        reply(state, bits)
    }
}

unsafe extern "C-unwind" fn band(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe { join(state, |left, right| left & right) }
}

unsafe extern "C-unwind" fn bor(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe { join(state, |left, right| left | right) }
}

unsafe extern "C-unwind" fn bxor(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe { join(state, |left, right| left ^ right) }
}

/// Shifts the first argument by the low five bits of the second.
///
/// # Safety
/// As for `helpers::argument_error`.
unsafe fn shift(state: *mut lua_State, operation: fn(u32, u32) -> u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = bits_argument(state, 1);
        let places = bits_argument(state, 2) & 31;
        reply(state, operation(bits, places))
    }
}

unsafe extern "C-unwind" fn lshift(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe { shift(state, |bits, places| bits << places) }
}

unsafe extern "C-unwind" fn rshift(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe { shift(state, |bits, places| bits >> places) }
}

unsafe extern "C-unwind" fn arshift(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe { shift(state, |bits, places| (bits as i32 >> places) as u32) }
}

unsafe extern "C-unwind" fn rol(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe { shift(state, u32::rotate_left) }
}

unsafe extern "C-unwind" fn ror(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe { shift(state, u32::rotate_right) }
}

unsafe extern "C-unwind" fn bswap(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe { reply(state, bits_argument(state, 1).swap_bytes()) }
}

/// `tohex(number [, digits])`: the last 8 digits or fewer; a negative count means upper case.
unsafe extern "C-unwind" fn tohex(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        let mut bits = bits_argument(state, 1);
        let wanted = match ffi::lua_type(state, 2) {
            ffi::LUA_TNONE => 8,
            _ => bits_argument(state, 2) as i32,
        };
        let digits = if wanted < 0 { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
        let mut text = [0; 8];
        let count = wanted.unsigned_abs().min(8) as usize;
        for digit in text[..count].iter_mut().rev() {
            *digit = digits[(bits & 15) as usize];
            bits >>= 4;
        }
        push_bytes(state, &text[..count]);
    }
    1
}
