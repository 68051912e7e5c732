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
use super::text::{call_original, text_argument};
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
    (c"assert", assert),
    (c"pcall", protected_call),
    (c"xpcall", handled_call),
    (c"loadstring", loadstring),
    (c"load", load_chunk),
    (c"collectgarbage", collectgarbage),
    (c"setfenv", set_environment),
];

/// Replacements of the interpreter's functions that call them.
const REPLACED: &pieces::Functions = &[
    (c"", &[(c"tostring", to_string)]),
    (
        c"coroutine",
        &[(c"create", of_lua_function), (c"resume", resume), (c"wrap", of_lua_function)],
    ),
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
        put(c"table", c"setn", setn);
        alias(c"math", c"mod", c"fmod");
        alias(c"string", c"gfind", c"gmatch");
        pieces::open(state, REPLACED);
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
        let arguments = lua_gettop(state) - 1;
        if arguments < 0 {
            // Redis calls what it has put there for the result.
            lua_pushboolean(state, 0);
            push_bytes(state, b"attempt to call a boolean value");
            return 2;
        }
        lua_pushboolean(state, 1);
        lua_insert(state, 1);
        if lua_pcall(state, arguments, LUA_MULTRET, 0) == LUA_OK {
            return lua_gettop(state);
        }
        if shared(state).ending.get().is_some() {
            raise(state, b"script ended");
        }
        lua_remove(state, 1);
        if lua_type(state, -1) == LUA_TTABLE {
            lua_pushvalue(state, upvalue(Name::Err));
            lua_rawget(state, -2);
            // What is no text is returned after the error, as by Redis.
            if lua_isstring(state, -1) != 0 {
                lua_replace(state, -2);
            }
        } else {
            make_familiar(state);
        }
        lua_pushboolean(state, 0);
        lua_insert(state, 1);
        lua_gettop(state)
    }
}

/// Replaces an error's text on top of the stack.
unsafe fn make_familiar(state: *mut lua_State) {
    // SAFETY: one value; the text is copied while the error is there.
    unsafe {
        if lua_type(state, -1) == LUA_TSTRING
            && let Cow::Owned(text) =
                shared(state).familiar(state, bytes_at(state, -1).unwrap_or_default())
        {
            push_bytes(state, &text);
            drop(text);
            lua_replace(state, -2);
        }
    }
}

/// `xpcall(f, handler)`
unsafe extern "C-unwind" fn handled_call(state: *mut lua_State) -> c_int {
    // SAFETY: the function, the handler and one value.
    unsafe {
        if lua_type(state, 2) == LUA_TNONE {
            luaL_argerror(state, 2, c"value expected".as_ptr());
        }
        lua_settop(state, 2);
        // As in Lua 5.1, anything may stand there until there is an error.
        lua_pushcclosurek(state, handle, c"?".as_ptr(), 1, None);
        lua_insert(state, 1);
        let status = lua_pcall(state, 0, LUA_MULTRET, 1);
        if shared(state).ending.get().is_some() {
            raise(state, b"script ended");
        }
        lua_pushboolean(state, (status == LUA_OK) as c_int);
        lua_replace(state, 1);
        lua_gettop(state)
    }
}

/// How often a handler is called with an error of its own.
const HANDLED: usize = 100;

/// Calls a handler of `xpcall` with an error, and with its own if it fails, as Lua 5.1 does.
unsafe extern "C-unwind" fn handle(state: *mut lua_State) -> c_int {
    // SAFETY: two values; the upvalue is the handler.
    unsafe {
        lua_settop(state, 1);
        let handler = lua_upvalueindex(1);
        for _ in 0..HANDLED {
            make_familiar(state);
            lua_pushvalue(state, handler);
            lua_insert(state, 1);
            if lua_type(state, handler) != LUA_TFUNCTION {
                break;
            }
            if lua_pcall(state, 1, 1, 0) == LUA_OK {
                return 1;
            }
            if shared(state).ending.get().is_some() {
                break;
            }
        }
        raise(state, b"error in error handling")
    }
}

/// `assert(value [, message, ...])`: the message is not cut.
unsafe extern "C-unwind" fn assert(state: *mut lua_State) -> c_int {
    // SAFETY: errors may be raised here; the message stays on the stack.
    unsafe {
        if lua_toboolean(state, 1) != 0 {
            return lua_gettop(state);
        }
        if lua_type(state, 1) == LUA_TNONE {
            luaL_argerror(state, 1, c"value expected".as_ptr());
        }
        match lua_type(state, 2) {
            LUA_TNONE | LUA_TNIL => raise_here(state, b"assertion failed!"),
            _ => raise_here(state, before_nul(text_argument(state, 2))),
        }
    }
}

/// `tostring(value)`: what a metamethod returns need not be a string.
unsafe extern "C-unwind" fn to_string(state: *mut lua_State) -> c_int {
    // SAFETY: two values; the interpreter runs this function, with the replaced one as upvalue.
    unsafe {
        if lua_type(state, 1) == LUA_TTABLE
            && luaL_getmetafield(state, 1, c"__tostring".as_ptr()) != LUA_TNIL
        {
            lua_pushvalue(state, 1);
            lua_call(state, 1, 1);
            return 1;
        }
        // `cjson.null` as the C library of Linux shows it.
        if lua_type(state, 1) == LUA_TLIGHTUSERDATA && lua_touserdata(state, 1).is_null() {
            push_bytes(state, b"userdata: (nil)");
            return 1;
        }
        call_original(state)
    }
}

/// `coroutine.create(f)`, `coroutine.wrap(f)`: not for functions of the server.
unsafe extern "C-unwind" fn of_lua_function(state: *mut lua_State) -> c_int {
    // SAFETY: the interpreter runs this function, with the replaced one as upvalue.
    unsafe {
        if lua_type(state, 1) != LUA_TFUNCTION || lua_iscfunction(state, 1) != 0 {
            luaL_argerror(state, 1, c"Lua function expected".as_ptr());
        }
        call_original(state)
    }
}

/// `coroutine.resume(coroutine, ...)`
unsafe extern "C-unwind" fn resume(state: *mut lua_State) -> c_int {
    // SAFETY: as in `of_lua_function`; its two last results are false and the error.
    unsafe {
        let results = call_original(state);
        if results == 2 && lua_type(state, -2) == LUA_TBOOLEAN && lua_toboolean(state, -2) == 0 {
            make_familiar(state);
        }
        results
    }
}

/// A chunk's name: the argument at an index, or another one.
unsafe fn chunk_name(state: *mut lua_State, index: c_int, other: &[u8]) -> std::ffi::CString {
    // SAFETY: the argument stays on the stack.
    unsafe {
        let given = match lua_type(state, index) {
            LUA_TNONE | LUA_TNIL => other,
            _ => text_argument(state, index),
        };
        let name = std::ffi::CString::new(before_nul(given)).unwrap_or_default();
        // Errors of the chunk look like those of the script, but its variables are others.
        if super::names::is_ours(name.to_bytes()) {
            shared(state).source.set(None);
        }
        name
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
    // SAFETY: the function and three values above the arguments, copied while they are there.
    unsafe {
        if lua_type(state, 1) == LUA_TSTRING {
            return loadstring(state);
        }
        luaL_checktype(state, 1, LUA_TFUNCTION);
        let name = chunk_name(state, 2, b"=(load)");
        let mut source = Vec::new();
        loop {
            lua_pushvalue(state, 1);
            if lua_pcall(state, 0, 1, 0) != LUA_OK {
                if shared(state).ending.get().is_some() {
                    raise(state, b"script ended");
                }
                make_familiar(state);
                lua_pushnil(state);
                lua_insert(state, -2);
                return 2;
            }
            if lua_isstring(state, -1) == 0 && lua_type(state, -1) != LUA_TNIL {
                lua_pushnil(state);
                luaL_where(state, 1);
                push_bytes(state, b"reader function must return a string");
                lua_concat(state, 2);
                return 2;
            }
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

/// `table.setn(t, n)`
unsafe extern "C-unwind" fn setn(state: *mut lua_State) -> c_int {
    // SAFETY: errors may be raised here.
    unsafe {
        luaL_checktype(state, 1, LUA_TTABLE);
        raise_here(state, b"'setn' is obsolete")
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
