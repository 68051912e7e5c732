//! The globals of scripts: the harmless ones of Lua 5.1, all read-only.
//!
//! Luau has no input or output, no bytecode loading, and read-only tables. Here its additions are
//! removed (unknown globals raise an error), and missing functions are added: `loadstring`, `load`,
//! `collectgarbage` and a few old names.

use std::borrow::Cow;
use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

use super::api::push_function;
use super::text::text_argument;
use super::{Name, bytes_at, load, pieces, push_bytes, raise, raise_here, shared, upvalue};
use crate::resp::args::before_nul;
use crate::script::libraries::helpers::safepoint;
use crate::script::open_libraries;

/// The longest source that a script may compile: the compiler cannot be interrupted, and takes a
/// millisecond per ten thousand bytes.
const SOURCE_BYTES_MAX: usize = 64 << 10;

const LIBRARIES: &[(&CStr, lua_CFunction)] = &[
    (c"", luaopen_base),
    (c"table", luaopen_table),
    (c"string", luaopen_string),
    (c"math", luaopen_math),
    (c"coroutine", luaopen_coroutine),
    (c"os", luaopen_os),
];

/// The globals that scripts see; others are removed.
const GLOBALS: &[&CStr] = &[
    c"_G",
    c"_VERSION",
    c"assert",
    c"bit",
    c"cjson",
    c"cmsgpack",
    c"collectgarbage",
    c"coroutine",
    c"error",
    c"gcinfo",
    c"getmetatable",
    c"ipairs",
    c"load",
    c"loadstring",
    c"math",
    c"next",
    c"os",
    c"pairs",
    c"pcall",
    c"rawequal",
    c"rawget",
    c"rawset",
    c"redis",
    c"select",
    c"server",
    c"setmetatable",
    c"string",
    c"struct",
    c"table",
    c"tonumber",
    c"tostring",
    c"type",
    c"unpack",
    c"xpcall",
];

/// Kept if `lua-enable-deprecated-api` is on.
const DEPRECATED: &[&CStr] = &[c"getfenv", c"newproxy", c"setfenv"];

/// Globals of our own.
const SHIMS: &[(&CStr, lua_CFunction)] = &[
    (c"pcall", protected_call),
    (c"loadstring", loadstring),
    (c"load", load_chunk),
    (c"collectgarbage", collectgarbage),
    (c"setfenv", set_environment),
];

/// Builds a new state's globals. Leaves values on its stack.
pub(super) unsafe fn build(state: *mut lua_State, deprecated: bool) {
    // SAFETY: at most 14 values are on the stack at once, and ten in `open_libraries`.
    unsafe {
        for (name, open) in LIBRARIES {
            lua_pushcfunction(state, *open);
            lua_pushstring_(state, name.as_ptr());
            lua_call(state, 1, 0);
        }
        super::api::open(state);
        open_libraries(state);
        for (name, function) in SHIMS {
            push_function(state, name.as_ptr(), *function);
            lua_rawsetfield(state, LUA_GLOBALSINDEX, name.as_ptr());
        }
        lua_pushstring_(state, c"Lua 5.1".as_ptr());
        lua_rawsetfield(state, LUA_GLOBALSINDEX, c"_VERSION".as_ptr());
        patch_libraries(state);
        remove_other_globals(state, deprecated);
        seal(state);
    }
}

/// Adds old names, and limits.
unsafe fn patch_libraries(state: *mut lua_State) {
    // SAFETY: a library, and a function with its names: 14 values.
    unsafe {
        let alias = |library: &CStr, new: &CStr, old: &CStr| {
            lua_rawgetfield(state, LUA_GLOBALSINDEX, library.as_ptr());
            lua_rawgetfield(state, -1, old.as_ptr());
            lua_rawsetfield(state, -2, new.as_ptr());
            lua_settop(state, -2);
        };
        let put = |library: &CStr, name: &CStr, function: lua_CFunction| {
            lua_rawgetfield(state, LUA_GLOBALSINDEX, library.as_ptr());
            push_function(state, name.as_ptr(), function);
            lua_rawsetfield(state, -2, name.as_ptr());
            lua_settop(state, -2);
        };
        put(c"table", c"getn", getn);
        pieces::open(state);
        alias(c"math", c"mod", c"fmod");
        alias(c"string", c"gfind", c"gmatch");
        // Only the clock of `os` is kept.
        lua_rawgetfield(state, LUA_GLOBALSINDEX, c"os".as_ptr());
        lua_rawgetfield(state, -1, c"clock".as_ptr());
        lua_createtable(state, 0, 1);
        lua_insert(state, -2);
        lua_rawsetfield(state, -2, c"clock".as_ptr());
        lua_rawsetfield(state, LUA_GLOBALSINDEX, c"os".as_ptr());
        lua_settop(state, 0);
    }
}

unsafe fn remove_other_globals(state: *mut lua_State, deprecated: bool) {
    // SAFETY: two values; each key is a string, and copied while it is on the stack.
    unsafe {
        let mut others: Vec<Vec<u8>> = Vec::new();
        lua_pushnil(state);
        while lua_next(state, LUA_GLOBALSINDEX) != 0 {
            lua_settop(state, -2);
            let name = bytes_at(state, -1).unwrap_or_default();
            let is_known = |names: &[&CStr]| names.iter().any(|known| known.to_bytes() == name);
            if !(is_known(GLOBALS) || deprecated && is_known(DEPRECATED)) {
                others.push(name.to_vec());
            }
        }
        for name in others {
            push_bytes(state, &name);
            lua_pushnil(state);
            lua_rawset(state, LUA_GLOBALSINDEX);
        }
        lua_settop(state, 0);
    }
}

/// Makes everything shared by scripts read-only.
unsafe fn seal(state: *mut lua_State) {
    // SAFETY: three values; what is made read-only is a table.
    unsafe {
        lua_pushvalue(state, LUA_GLOBALSINDEX);
        lua_createtable(state, 0, 1);
        lua_pushcfunction(state, no_such_global);
        lua_rawsetfield(state, -2, c"__index".as_ptr());
        lua_setreadonly(state, -1, 1);
        lua_setmetatable(state, -2);
        lua_settop(state, 0);
        lua_pushnil(state);
        while lua_next(state, LUA_GLOBALSINDEX) != 0 {
            if lua_type(state, -1) == LUA_TTABLE {
                lua_setreadonly(state, -1, 1);
            }
            lua_settop(state, -2);
        }
        push_bytes(state, b"");
        if lua_getmetatable(state, -1) != 0 {
            lua_setreadonly(state, -1, 1);
        }
        lua_setreadonly(state, LUA_GLOBALSINDEX, 1);
        lua_settop(state, 0);
    }
}

/// Replaces those of Luau's error texts that clients may look for with Lua 5.1's.
pub(super) fn familiar(text: &[u8]) -> Cow<'_, [u8]> {
    const READ_ONLY: &[u8] = b"attempt to modify a readonly table";
    const INDEX_NIL: &[u8] = b"attempt to index nil with '__index'";
    if let Some(place) = text.strip_suffix(READ_ONLY) {
        return [place, b"Attempt to modify a readonly table"].concat().into();
    }
    match text.strip_suffix(INDEX_NIL) {
        // A type has no metatable.
        Some(place) => [place, b"attempt to index a nil value"].concat().into(),
        None => bad_argument(text).map_or(text.into(), Cow::from),
    }
}

/// `place: bad argument #1 to 'f' (number expected, got no value)`, for Luau's `invalid` or
/// `missing argument`. An error that a protected call of the function itself raises has no place.
fn bad_argument(text: &[u8]) -> Option<Vec<u8>> {
    const BAD: &[u8] = b"bad argument #";
    let from = memchr::memmem::find(text, b": ").map_or(0, |at| at + 2);
    let (place, rest) = text.split_at(from);
    if let Some(rest) = rest.strip_prefix(b"invalid argument #") {
        return Some([place, BAD, rest].concat());
    }
    let rest = rest.strip_prefix(b"missing argument #")?.strip_suffix(b" expected)")?;
    Some([place, BAD, rest, b" expected, got no value)"].concat())
}

/// `__index` of the globals.
pub(super) unsafe extern "C-unwind" fn no_such_global(state: *mut lua_State) -> c_int {
    // SAFETY: the interpreter gives the table and the key as arguments.
    unsafe {
        let mut text = b"Script attempted to access nonexistent global variable '".to_vec();
        match bytes_at(state, 2) {
            Some(name) => text.extend_from_slice(name),
            None => text.extend_from_slice(b"?"),
        }
        text.push(b'\'');
        raise_here(state, &text)
    }
}

/// `pcall(f, ...)`: an error that is a table with a field `err`, as `redis.call` raises it, is
/// returned as its text. This was the behaviour before errors were tables, and scripts rely on it.
unsafe extern "C-unwind" fn protected_call(state: *mut lua_State) -> c_int {
    // SAFETY: three values besides the arguments, which the called function replaces with its
    // results.
    unsafe {
        luaL_checkany(state, 1);
        let arguments = lua_gettop(state) - 1;
        lua_pushboolean(state, 1);
        lua_insert(state, 1);
        if lua_pcall(state, arguments, LUA_MULTRET, 0) == LUA_OK {
            return lua_gettop(state);
        }
        if shared(state).ending.get().is_some() {
            raise(state, b"script ended");
        }
        if lua_type(state, -1) == LUA_TTABLE {
            lua_pushvalue(state, upvalue(Name::Err));
            lua_rawget(state, -2);
            if lua_isstring(state, -1) != 0 {
                lua_replace(state, -2);
            } else {
                lua_settop(state, -2);
            }
        } else if lua_type(state, -1) == LUA_TSTRING
            && let Cow::Owned(text) = familiar(bytes_at(state, -1).unwrap_or_default())
        {
            push_bytes(state, &text);
            drop(text);
            lua_replace(state, -2);
        }
        lua_pushboolean(state, 0);
        lua_insert(state, -2);
        2
    }
}

/// A chunk's name: the argument at an index or, as in Lua, the source itself.
unsafe fn chunk_name(state: *mut lua_State, index: c_int, source: &[u8]) -> std::ffi::CString {
    // SAFETY: the argument stays on the stack.
    unsafe {
        let given = match lua_type(state, index) {
            LUA_TSTRING => bytes_at(state, index).unwrap_or_default(),
            _ => source,
        };
        std::ffi::CString::new(before_nul(given)).unwrap_or_default()
    }
}

/// Compiles and pushes a function, or nil and the error.
unsafe fn push_chunk(state: *mut lua_State, name: &CStr, source: &[u8]) -> c_int {
    // SAFETY: two values.
    unsafe {
        if source.len() > SOURCE_BYTES_MAX {
            lua_pushnil(state);
            push_bytes(state, b"chunk is too large");
            return 2;
        }
        if load(state, name, source, 0) {
            return 1;
        }
        lua_pushnil(state);
        lua_insert(state, -2);
        2
    }
}

/// `loadstring(source [, name])`
unsafe extern "C-unwind" fn loadstring(state: *mut lua_State) -> c_int {
    // SAFETY: the arguments stay on the stack.
    unsafe {
        let source = text_argument(state, 1);
        let name = chunk_name(state, 2, source);
        push_chunk(state, &name, source)
    }
}

/// `load(f [, name])`: calls `f` for pieces until it returns nothing. Accepts a string too.
unsafe extern "C-unwind" fn load_chunk(state: *mut lua_State) -> c_int {
    // SAFETY: the function and one value above the arguments, copied while it is there.
    unsafe {
        if lua_type(state, 1) == LUA_TSTRING {
            return loadstring(state);
        }
        luaL_checktype(state, 1, LUA_TFUNCTION);
        let name = match lua_type(state, 2) {
            LUA_TSTRING => chunk_name(state, 2, b""),
            _ => c"=(load)".into(),
        };
        let mut source = Vec::new();
        loop {
            lua_pushvalue(state, 1);
            lua_call(state, 0, 1);
            match bytes_at(state, -1) {
                Some(piece) if !piece.is_empty() => source.extend_from_slice(piece),
                _ => break,
            }
            if source.len() > SOURCE_BYTES_MAX {
                break;
            }
            lua_settop(state, -2);
        }
        push_chunk(state, &name, &source)
    }
}

/// `setfenv(f, table)`, only for a function. With a level a script could change the next one's
/// environment.
unsafe extern "C-unwind" fn set_environment(state: *mut lua_State) -> c_int {
    // SAFETY: the arguments have these types.
    unsafe {
        luaL_checktype(state, 2, LUA_TTABLE);
        luaL_checktype(state, 1, LUA_TFUNCTION);
        lua_settop(state, 2);
        if lua_iscfunction(state, 1) != 0 || lua_setfenv(state, 1) == 0 {
            raise_here(state, b"'setfenv' cannot change environment of given object");
        }
        1
    }
}

/// `collectgarbage([what])`: returns the memory in use, or collects.
unsafe extern "C-unwind" fn collectgarbage(state: *mut lua_State) -> c_int {
    // SAFETY: one value; garbage may be collected in any function.
    unsafe {
        match bytes_at(state, 1).unwrap_or(b"collect") {
            b"count" => {
                let bytes = shared(state).memory.used();
                lua_pushnumber(state, bytes as f64 / 1024.0);
            }
            b"collect" | b"step" => {
                // In steps of some kilobytes: the first call may start within a cycle, the second
                // covers a whole one.
                for _ in 0..2 {
                    while lua_gc(state, LUA_GCSTEP, 256) == 0 {
                        safepoint(state);
                    }
                }
                lua_pushnumber(state, 0.0);
            }
            b"stop" | b"restart" | b"setpause" | b"setstepmul" => lua_pushnumber(state, 0.0),
            _ => raise_here(state, b"bad argument #1 to 'collectgarbage' (invalid option)"),
        }
        1
    }
}

/// `table.getn(t)`
unsafe extern "C-unwind" fn getn(state: *mut lua_State) -> c_int {
    // SAFETY: one value; the argument is a table.
    unsafe {
        luaL_checktype(state, 1, LUA_TTABLE);
        lua_pushnumber(state, lua_objlen(state, 1) as f64);
        1
    }
}
