//! Any bytes given to what decodes: values or an error that a script can catch, and what was
//! decoded can be encoded again.

#![allow(unsafe_code)] // the interpreter's own interface

use latchkey::script::open_libraries;
use mlua::ffi;

use super::{at_line_end, split_first};

const SCRIPT: &str = "
    local choice, format, bytes = ...
    local function again(encode, ok, ...)
        if ok then pcall(encode, ...) end
    end
    if choice == 0 then again(cjson.encode, pcall(cjson.decode, bytes))
    elseif choice == 1 then again(cmsgpack.pack, pcall(cmsgpack.unpack, bytes))
    else again(function(...) return struct.pack(format, ...) end, pcall(struct.unpack, format, bytes)) end";

pub fn run(input: &[u8]) {
    let (&[choice], rest) = split_first(input);
    let (format, bytes) = at_line_end(rest);
    // SAFETY: a fresh state, whose stack has room for twenty values.
    unsafe {
        let state = ffi::luaL_newstate();
        ffi::luaL_openlibs(state);
        open_libraries(state);
        let name = c"=fuzz".as_ptr();
        let status = ffi::luaL_loadbuffer(state, SCRIPT.as_ptr().cast(), SCRIPT.len(), name);
        assert_eq!(status, ffi::LUA_OK, "the script is valid");
        ffi::lua_pushnumber(state, f64::from(choice % 3));
        ffi::lua_pushlstring_(state, format.as_ptr().cast(), format.len());
        ffi::lua_pushlstring_(state, bytes.as_ptr().cast(), bytes.len());
        assert_eq!(ffi::lua_pcall(state, 3, 0, 0), ffi::LUA_OK, "errors are caught");
        ffi::lua_close(state);
    }
}
