//! Redis's libraries for scripts: `bit`, `cjson`, `cmsgpack`, and `struct` in `structs`. `helpers`
//! has their shared parts.
#![allow(unsafe_code)] // Luau's C interface.

mod bit;
mod cjson;
mod cmsgpack;
pub(super) mod helpers;
mod json_options;
mod structs;

pub(super) use json_options::set_has_arrays;

use mlua::ffi::lua_State;

/// Adds the libraries.
///
/// # Safety
/// The state is valid, and its stack has room for ten values. It is left as it was.
pub unsafe fn open_libraries(state: *mut lua_State) {
    // SAFETY: the caller's promise.
    unsafe {
        bit::open(state);
        cjson::open(state);
        cmsgpack::open(state);
        structs::open(state);
    }
}
