//! What scripts find in the state: the globals of Lua 5.1 as far as they are harmless, all of them read-only.
//!
//! Luau brings no input or output, no bytecode, and tables that can be made read-only. Here its own additions are taken away
//! (what is no global of Lua 5.1 raises an error, as ever), and what it lacks is added: `loadstring`, `load`,
//! `collectgarbage` and a few old names.

use std::borrow::Cow;
use std::ffi::CStr;
use std::os::raw::{c_char, c_int};

use mlua::ffi::*;

use super::api::push_function;
use super::{NAMES, Name, bytes_at, load, push_bytes, raise, shared, upvalue};
use crate::script::open_libraries;

/// Bytes that one call of `string.rep` makes at most: no call into the interpreter can be interrupted in its midst.
const REP_BYTES_MAX: usize = 16 << 20;

const LIBRARIES: &[(&CStr, lua_CFunction)] = &[
    (c"", luaopen_base),
    (c"table", luaopen_table),
    (c"string", luaopen_string),
    (c"math", luaopen_math),
    (c"coroutine", luaopen_coroutine),
    (c"os", luaopen_os),
];

/// The globals that scripts see; others that the libraries bring are taken away.
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

/// Globals of our own.
const SHIMS: &[(&CStr, lua_CFunction)] = &[
    (c"pcall", protected_call),
    (c"loadstring", loadstring),
    (c"load", load_chunk),
    (c"collectgarbage", collectgarbage),
];

/// Fills a new state. Its stack is left in any order.
pub(super) unsafe fn build(state: *mut lua_State, version: &str) {
    for (name, open) in LIBRARIES {
        lua_pushcfunction(state, *open);
        lua_pushstring_(state, name.as_ptr());
        lua_call(state, 1, 0);
    }
    super::api::open(state, version);
    open_libraries(state);
    for (name, function) in SHIMS {
        push_function(state, name.as_ptr(), *function);
        lua_rawsetfield(state, LUA_GLOBALSINDEX, name.as_ptr());
    }
    lua_pushstring_(state, c"Lua 5.1".as_ptr());
    lua_rawsetfield(state, LUA_GLOBALSINDEX, c"_VERSION".as_ptr());
    patch_libraries(state);
    remove_other_globals(state);
    seal(state);
}

/// Old names, and limits.
unsafe fn patch_libraries(state: *mut lua_State) {
    let alias = |library: &CStr, new: &CStr, old: &CStr| {
        lua_rawgetfield(state, LUA_GLOBALSINDEX, library.as_ptr());
        lua_rawgetfield(state, -1, old.as_ptr());
        lua_rawsetfield(state, -2, new.as_ptr());
        lua_settop(state, -2);
    };
    alias(c"math", c"mod", c"fmod");
    alias(c"string", c"gfind", c"gmatch");
    let put = |library: &CStr, name: &CStr, function: lua_CFunction| {
        lua_rawgetfield(state, LUA_GLOBALSINDEX, library.as_ptr());
        push_function(state, name.as_ptr(), function);
        lua_rawsetfield(state, -2, name.as_ptr());
        lua_settop(state, -2);
    };
    put(c"string", c"rep", rep);
    put(c"table", c"getn", getn);
    lua_rawgetfield(state, LUA_GLOBALSINDEX, c"string".as_ptr());
    for name in NAMES {
        lua_pushstring_(state, name.as_ptr());
    }
    lua_rawgetfield(state, -1 - NAMES.len() as c_int, c"find".as_ptr());
    lua_pushcclosurek(state, find, c"find".as_ptr(), NAMES.len() as c_int + 1, None);
    lua_rawsetfield(state, -2, c"find".as_ptr());
    lua_settop(state, -2);
    // Of `os` there is the clock alone.
    lua_rawgetfield(state, LUA_GLOBALSINDEX, c"os".as_ptr());
    lua_rawgetfield(state, -1, c"clock".as_ptr());
    lua_createtable(state, 0, 1);
    lua_insert(state, -2);
    lua_rawsetfield(state, -2, c"clock".as_ptr());
    lua_rawsetfield(state, LUA_GLOBALSINDEX, c"os".as_ptr());
    lua_settop(state, 0);
}

unsafe fn remove_other_globals(state: *mut lua_State) {
    let mut others: Vec<Vec<u8>> = Vec::new();
    lua_pushnil(state);
    while lua_next(state, LUA_GLOBALSINDEX) != 0 {
        lua_settop(state, -2);
        let name = bytes_at(state, -1).unwrap_or_default();
        if !GLOBALS.iter().any(|known| known.to_bytes() == name) {
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

/// Makes everything read-only that scripts share.
unsafe fn seal(state: *mut lua_State) {
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

/// An error's text in the words that clients know, where ours differ and somebody may look for them.
pub(super) fn familiar(text: &[u8]) -> Cow<'_, [u8]> {
    const OURS: &[u8] = b"attempt to modify a readonly table";
    match text.strip_suffix(OURS) {
        Some(place) => [place, b"Attempt to modify a readonly table"].concat().into(),
        None => text.into(),
    }
}

/// Raises an error with the place of the caller before its text.
unsafe fn raise_here(state: *mut lua_State, text: &[u8]) -> ! {
    luaL_where(state, 1);
    push_bytes(state, text);
    lua_concat(state, 2);
    lua_error(state)
}

/// `__index` of the globals.
pub(super) unsafe extern "C-unwind" fn no_such_global(state: *mut lua_State) -> c_int {
    let mut text = b"Script attempted to access nonexistent global variable '".to_vec();
    match bytes_at(state, 2) {
        Some(name) => text.extend_from_slice(name),
        None => text.extend_from_slice(b"?"),
    }
    text.push(b'\'');
    raise_here(state, &text)
}

/// `pcall(f, ...)`: an error that is a table with a field `err`, as `redis.call` raises it, comes back as its text. That is how
/// it was before errors were tables, and scripts rely on it.
unsafe extern "C-unwind" fn protected_call(state: *mut lua_State) -> c_int {
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

/// The name of a chunk: the argument at an index, or else the source itself, as Lua has it.
unsafe fn chunk_name(state: *mut lua_State, index: c_int, source: &[u8]) -> std::ffi::CString {
    let given = match lua_type(state, index) {
        LUA_TSTRING => bytes_at(state, index).unwrap_or_default(),
        _ => source,
    };
    let end = given.iter().position(|&byte| byte == 0).unwrap_or(given.len());
    std::ffi::CString::new(&given[..end]).unwrap_or_default()
}

/// Compiles and pushes a function, or nil and why not.
unsafe fn push_chunk(state: *mut lua_State, name: &CStr, source: &[u8]) -> c_int {
    if load(state, name, source) {
        return 1;
    }
    lua_pushnil(state);
    lua_insert(state, -2);
    2
}

/// `loadstring(source [, name])`
unsafe extern "C-unwind" fn loadstring(state: *mut lua_State) -> c_int {
    let mut len = 0;
    let source: *const c_char = luaL_checklstring(state, 1, &mut len);
    // SAFETY: Lua says where its string is and how long; it stays on the stack.
    let source = std::slice::from_raw_parts(source.cast::<u8>(), len);
    let name = chunk_name(state, 2, source);
    push_chunk(state, &name, source)
}

/// `load(f [, name])`: `f` is called for one piece after the other, until it returns nothing. A string is taken too.
unsafe extern "C-unwind" fn load_chunk(state: *mut lua_State) -> c_int {
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
        if source.len() > REP_BYTES_MAX {
            raise_here(state, b"chunk is too large");
        }
        lua_settop(state, -2);
    }
    push_chunk(state, &name, &source)
}

/// `collectgarbage([what])`: counts, or collects.
unsafe extern "C-unwind" fn collectgarbage(state: *mut lua_State) -> c_int {
    match bytes_at(state, 1).unwrap_or(b"collect") {
        b"count" => {
            let bytes = shared(state).memory.used();
            lua_pushnumber(state, bytes as f64 / 1024.0);
        }
        b"collect" | b"step" => {
            lua_gc(state, LUA_GCCOLLECT, 0);
            lua_pushnumber(state, 0.0);
        }
        b"stop" | b"restart" | b"setpause" | b"setstepmul" => lua_pushnumber(state, 0.0),
        _ => raise_here(state, b"bad argument #1 to 'collectgarbage' (invalid option)"),
    }
    1
}

/// `string.rep(s, n)`
unsafe extern "C-unwind" fn rep(state: *mut lua_State) -> c_int {
    let mut len = 0;
    let text: *const c_char = luaL_checklstring(state, 1, &mut len);
    let times = luaL_checknumber(state, 2);
    let times = if times >= 1.0 { times as usize } else { 0 };
    let total = len.saturating_mul(times);
    if total > REP_BYTES_MAX {
        raise_here(state, b"resulting string too large");
    }
    if total == 0 {
        push_bytes(state, b"");
        return 1;
    }
    // Into the new string's own memory: a copy of many megabytes takes milliseconds.
    let mut buffer = std::mem::MaybeUninit::<luaL_Strbuf>::uninit();
    let target = luaL_buffinitsize(state, buffer.as_mut_ptr(), total).cast::<u8>();
    std::ptr::copy_nonoverlapping(text.cast::<u8>(), target, len);
    let mut filled = len;
    while filled < total {
        let count = filled.min(total - filled);
        std::ptr::copy_nonoverlapping(target, target.add(filled), count);
        filled += count;
    }
    luaL_pushresultsize(buffer.as_mut_ptr(), total);
    1
}

/// `string.find(s, pattern [, init [, plain]])`: plain text is looked for in linear time, as no call into the interpreter can
/// be interrupted in its midst; patterns go the usual way, which looks for interrupts.
unsafe extern "C-unwind" fn find(state: *mut lua_State) -> c_int {
    let (mut len, mut wanted_len) = (0, 0);
    let text: *const c_char = luaL_checklstring(state, 1, &mut len);
    let wanted: *const c_char = luaL_checklstring(state, 2, &mut wanted_len);
    let init = luaL_optnumber(state, 3, 1.0);
    // SAFETY: Lua says where its strings are and how long; they stay on the stack.
    let text = std::slice::from_raw_parts(text.cast::<u8>(), len);
    let wanted = std::slice::from_raw_parts(wanted.cast::<u8>(), wanted_len);
    let is_special = |byte: &u8| b"^$*+?.([%-".contains(byte);
    if lua_toboolean(state, 4) == 0 && wanted.iter().any(is_special) {
        lua_pushvalue(state, lua_upvalueindex(NAMES.len() as c_int + 1));
        lua_insert(state, 1);
        if lua_pcall(state, lua_gettop(state) - 1, LUA_MULTRET, 0) != LUA_OK {
            // It told its caller's place, which is here: the script's is meant.
            if shared(state).ending.get().is_none() && lua_type(state, -1) == LUA_TSTRING {
                luaL_where(state, 1);
                lua_insert(state, -2);
                lua_concat(state, 2);
            }
            lua_error(state);
        }
        return lua_gettop(state);
    }
    let from_end = if init < 0.0 { len as f64 + init } else { init - 1.0 };
    let start = from_end.max(0.0).min(len as f64) as usize;
    match memchr::memmem::find(&text[start..], wanted) {
        Some(at) => {
            lua_pushnumber(state, (start + at + 1) as f64);
            lua_pushnumber(state, (start + at + wanted_len) as f64);
            2
        }
        None => {
            lua_pushnil(state);
            1
        }
    }
}

/// `table.getn(t)`
unsafe extern "C-unwind" fn getn(state: *mut lua_State) -> c_int {
    luaL_checktype(state, 1, LUA_TTABLE);
    lua_pushnumber(state, lua_objlen(state, 1) as f64);
    1
}
