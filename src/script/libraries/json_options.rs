//! The options of `cjson`, and the functions that set them.

use std::ffi::{CStr, c_int};

use mlua::ffi::{self, lua_State};

use super::helpers::{Buffer, argument_error, integer_argument, shared, string_argument};
use crate::resp::args::before_nul;

/// State shared by the functions of one `cjson` table. `cjson.new()` makes another.
pub(super) struct Shared {
    pub options: Options,
    /// The text being written, or a string being parsed.
    pub text: Buffer<u8>,
    /// The open tables, the outermost first.
    pub levels: Buffer<Level>,
}

/// Set by the functions with these names.
#[derive(Clone, Copy)]
pub(super) struct Options {
    pub encode_sparse_convert: bool,
    pub encode_sparse_ratio: i32,
    pub encode_sparse_safe: i32,
    pub encode_max_depth: i32,
    pub encode_number_precision: i32,
    pub encode_invalid_numbers: InvalidNumbers,
    pub encode_keep_buffer: bool,
    pub decode_max_depth: i32,
    pub decode_invalid_numbers: bool,
    pub decode_array_with_array_mt: bool,
}

impl Options {
    pub const DEFAULT: Options = Options {
        encode_sparse_convert: false,
        encode_sparse_ratio: 2,
        encode_sparse_safe: 10,
        encode_max_depth: 1000,
        encode_number_precision: 14,
        encode_invalid_numbers: InvalidNumbers::Refused,
        encode_keep_buffer: true,
        decode_max_depth: 1000,
        decode_invalid_numbers: true,
        decode_array_with_array_mt: false,
    };
}

/// The treatment of infinities and NaN, which JSON lacks, by `encode`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum InvalidNumbers {
    Refused,
    AsText,
    AsNull,
}

/// A table being written or parsed.
#[derive(Clone, Copy)]
pub(super) enum Level {
    /// The array's length (unknown while parsing: 0) and the index of its next element.
    Array { len: i32, next: i32 },
    /// The position for `lua_rawiter`; while parsing, the number of fields.
    Object { position: c_int },
}

/// The functions that set options.
pub(super) const SETTERS: &[(&CStr, ffi::lua_CFunction)] = &[
    (c"encode_sparse_array", encode_sparse_array),
    (c"encode_max_depth", encode_max_depth),
    (c"decode_max_depth", decode_max_depth),
    (c"encode_number_precision", encode_number_precision),
    (c"encode_keep_buffer", encode_keep_buffer),
    (c"encode_invalid_numbers", encode_invalid_numbers),
    (c"decode_invalid_numbers", decode_invalid_numbers),
];

/// The field of a metatable that makes an array of a table.
pub(super) const IS_ARRAY: &CStr = c"__is_cjson_array";
/// The metatable of decoded arrays, in the registry if the version that scripts see has it.
pub(super) const ARRAY_METATABLE: &CStr = c"cjson array";

/// Shows or hides what Redis 8.4 has added, in the table that is global.
///
/// # Safety
/// The state is valid, and its stack has room for three values.
pub unsafe fn set_has_arrays(state: *mut lua_State, has_arrays: bool) {
    // SAFETY: the caller's promise; the function has the upvalue of the others.
    unsafe {
        let top = ffi::lua_gettop(state);
        ffi::lua_rawgetfield(state, ffi::LUA_GLOBALSINDEX, c"cjson".as_ptr());
        ffi::lua_setreadonly(state, -1, 0);
        let name = c"decode_array_with_array_mt";
        if has_arrays {
            ffi::lua_rawgetfield(state, -1, c"decode".as_ptr());
            ffi::lua_getupvalue(state, -1, 1);
            ffi::lua_remove(state, -2);
            ffi::lua_pushcclosurek(state, decode_array_with_array_mt, name.as_ptr(), 1, None);
        } else {
            ffi::lua_pushnil(state);
        }
        ffi::lua_rawsetfield(state, -2, name.as_ptr());
        ffi::lua_setreadonly(state, -1, 1);
        if has_arrays {
            ffi::lua_createtable(state, 0, 1);
            ffi::lua_pushboolean(state, 1);
            ffi::lua_rawsetfield(state, -2, IS_ARRAY.as_ptr());
            ffi::lua_setreadonly(state, -1, 1);
        } else {
            ffi::lua_pushnil(state);
        }
        ffi::lua_rawsetfield(state, ffi::LUA_REGISTRYINDEX, ARRAY_METATABLE.as_ptr());
        ffi::lua_settop(state, top);
    }
}

/// Checks the number of a setter's arguments and fills up with nil.
///
/// # Safety
/// As for `helpers::argument_error`.
unsafe fn need_at_most(state: *mut lua_State, arguments: c_int) {
    // SAFETY: the caller's promise.
    unsafe {
        if ffi::lua_gettop(state) > arguments {
            argument_error(state, arguments + 1, c"found too many arguments");
        }
        ffi::lua_settop(state, arguments);
    }
}

/// Changes an integer setting if the argument is not nil, and pushes it.
///
/// # Safety
/// As for `helpers::argument_error`.
unsafe fn integer_setting(
    state: *mut lua_State,
    argument: c_int,
    setting: &mut i32,
    min: i32,
    max: i32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if ffi::lua_type(state, argument) != ffi::LUA_TNIL {
            // The C library truncates to the lower half.
            let value = integer_argument(state, argument) as i32;
            if !(min..=max).contains(&value) {
                let format = c"expected integer between %d and %d";
                let message = ffi::lua_pushfstring(state, format.as_ptr(), min, max);
                argument_error(state, 1, CStr::from_ptr(message));
            }
            *setting = value;
        }
        ffi::lua_pushnumber(state, f64::from(*setting));
    }
}

/// The index of the name in an argument, or a boolean for `off` and `on`. `None` if it is nil.
///
/// # Safety
/// As for `helpers::argument_error`.
unsafe fn choice(state: *mut lua_State, argument: c_int, names: &[&CStr]) -> Option<usize> {
    // SAFETY: the caller's promise.
    unsafe {
        match ffi::lua_type(state, argument) {
            ffi::LUA_TNIL => None,
            ffi::LUA_TBOOLEAN => Some(ffi::lua_toboolean(state, argument) as usize),
            _ => {
                let given = before_nul(string_argument(state, argument));
                let found = names.iter().position(|name| name.to_bytes() == given);
                if found.is_none() {
                    let text = ffi::lua_tolstring(state, argument, std::ptr::null_mut());
                    let message =
                        ffi::lua_pushfstring(state, c"invalid option '%s'".as_ptr(), text);
                    argument_error(state, argument, CStr::from_ptr(message));
                }
                found
            }
        }
    }
}

/// Changes a boolean setting if the argument is not nil, and pushes it.
///
/// # Safety
/// As for `helpers::argument_error`.
unsafe fn boolean_setting(state: *mut lua_State, argument: c_int, setting: &mut bool) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(index) = choice(state, argument, &[c"off", c"on"]) {
            *setting = index == 1;
        }
        ffi::lua_pushboolean(state, (*setting).into());
    }
}

/// `encode_sparse_array([convert [, ratio [, safe]])`: an array of which fewer than one in `ratio`
/// elements exist, and with an index beyond `safe`, is refused or becomes an object.
unsafe extern "C-unwind" fn encode_sparse_array(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        need_at_most(state, 3);
        let options = &mut shared::<Shared>(state).options;
        boolean_setting(state, 1, &mut options.encode_sparse_convert);
        integer_setting(state, 2, &mut options.encode_sparse_ratio, 0, i32::MAX);
        integer_setting(state, 3, &mut options.encode_sparse_safe, 0, i32::MAX);
    }
    3
}

unsafe extern "C-unwind" fn encode_max_depth(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        need_at_most(state, 1);
        integer_setting(
            state,
            1,
            &mut shared::<Shared>(state).options.encode_max_depth,
            1,
            i32::MAX,
        );
    }
    1
}

unsafe extern "C-unwind" fn decode_max_depth(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        need_at_most(state, 1);
        integer_setting(
            state,
            1,
            &mut shared::<Shared>(state).options.decode_max_depth,
            1,
            i32::MAX,
        );
    }
    1
}

unsafe extern "C-unwind" fn encode_number_precision(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        need_at_most(state, 1);
        integer_setting(
            state,
            1,
            &mut shared::<Shared>(state).options.encode_number_precision,
            1,
            14,
        );
    }
    1
}

/// `encode_keep_buffer([on])`: stored and returned, without effect: small buffers are always kept.
unsafe extern "C-unwind" fn encode_keep_buffer(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        need_at_most(state, 1);
        boolean_setting(state, 1, &mut shared::<Shared>(state).options.encode_keep_buffer);
    }
    1
}

/// `encode_invalid_numbers([off|on|null])`
unsafe extern "C-unwind" fn encode_invalid_numbers(state: *mut lua_State) -> c_int {
    const CHOICES: [InvalidNumbers; 3] =
        [InvalidNumbers::Refused, InvalidNumbers::AsText, InvalidNumbers::AsNull];
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        need_at_most(state, 1);
        let setting = &mut shared::<Shared>(state).options.encode_invalid_numbers;
        if let Some(index) = choice(state, 1, &[c"off", c"on", c"null"]) {
            *setting = CHOICES[index];
        }
        match setting {
            InvalidNumbers::AsNull => ffi::lua_pushstring_(state, c"null".as_ptr()),
            other => ffi::lua_pushboolean(state, (*other == InvalidNumbers::AsText).into()),
        }
    }
    1
}

unsafe extern "C-unwind" fn decode_invalid_numbers(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        need_at_most(state, 1);
        boolean_setting(state, 1, &mut shared::<Shared>(state).options.decode_invalid_numbers);
    }
    1
}

/// `decode_array_with_array_mt([on])`: whether decoded arrays are encoded as arrays, even if they
/// are empty.
unsafe extern "C-unwind" fn decode_array_with_array_mt(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        need_at_most(state, 1);
        boolean_setting(state, 1, &mut shared::<Shared>(state).options.decode_array_with_array_mt);
    }
    1
}
