//! Libraries of functions in the Lua state.
//!
//! A library's chunk runs once, when loaded, to call `redis.register_function`; registered
//! functions are called later with keys and arguments. All chunks share one table of globals, empty
//! and read-only. Other names are looked up through its metatable: during loading in a table with
//! only `redis` (also as `server`), with few functions; afterwards in the scripts' globals. So
//! libraries cannot see or affect each other.

use std::ffi::{CStr, c_int};

use mlua::ffi::*;

use super::api::push_function;
use super::convert::push_error;
use super::sandbox::no_such_global;
use super::{Failure, Lent, Lua, Name, Returned, Run, base, bytes_at, push_bytes, shared};
use super::{LARGE_ARGUMENTS, STRING_MAX, TABLE_MAX};
use crate::script::shebang::ScriptFlags;
use crate::script::{Function, Host, Registered, is_name};

/// Registry names of the chunks' globals, their metatable, and the globals during loading.
const CHUNK_GLOBALS: &CStr = c"library globals";
const METATABLE: &CStr = c"library globals' metatable";
const LOADING_GLOBALS: &CStr = c"globals while a library is loaded";

/// The fields of `redis` during loading, besides `register_function`.
const WHILE_LOADING: &[&CStr] = &[
    c"log",
    c"LOG_DEBUG",
    c"LOG_VERBOSE",
    c"LOG_NOTICE",
    c"LOG_WARNING",
    c"REDIS_VERSION",
    c"REDIS_VERSION_NUM",
];

/// Stack slots needed: the names that are upvalues of an API function pass over the stack.
const SLOTS: c_int = 32;

/// Why a library failed to load.
#[derive(Debug)]
pub enum LibraryError {
    /// The compiler's message.
    Syntax(Vec<u8>),
    /// The error's text.
    Failed(Vec<u8>),
    /// A function cannot be registered, according to Valkey, which checks after the chunk has run.
    Refused(&'static str),
}

impl Lua {
    /// Runs a library's chunk. Its functions are kept until [`Lua::forget`].
    pub fn load_library(
        &mut self,
        source: &[u8],
        host: &mut dyn Host,
        memory_max: usize,
        time_max_ms: u64,
    ) -> Result<Vec<Registered>, LibraryError> {
        let state = self.state.as_ptr();
        // SAFETY: the stack is as before when this is done.
        unsafe {
            let top = lua_gettop(state);
            lua_rawcheckstack(state, SLOTS);
            prepare(state);
            lua_rawgetfield(state, LUA_REGISTRYINDEX, CHUNK_GLOBALS.as_ptr());
            if !super::load(state, c"@user_function", source, top + 1) {
                let words = bytes_at(state, -1).unwrap_or_default().to_vec();
                lua_settop(state, top);
                return Err(LibraryError::Syntax(words));
            }
            look_behind(state, Some(LOADING_GLOBALS));
            *self.shared().loading.borrow_mut() = Some(Vec::new());
            let result = self.call(0, Lent { host, source: &[] }, memory_max, time_max_ms, None);
            let registered = self.shared().loading.take().unwrap_or_default();
            look_behind(state, None);
            lua_settop(state, top);
            let error = match result {
                Ok(_) if !self.shared().is_valkey.get() => return Ok(registered),
                Ok(_) => match refusal(&registered) {
                    None => return Ok(registered),
                    Some(text) => LibraryError::Refused(text),
                },
                Err(Failure { text, .. }) => LibraryError::Failed(text),
            };
            for function in registered {
                self.forget(function.function);
            }
            Err(error)
        }
    }

    /// Runs a function with its keys and arguments, and writes its return value.
    pub fn run_function<'k, K, A>(
        &mut self,
        run: Run<'_, K, A>,
        reply: &mut crate::resp::reply::ReplyWriter<'_>,
    ) -> Result<Returned, Failure>
    where
        K: ExactSizeIterator<Item = &'k [u8]>,
        A: ExactSizeIterator<Item = &'k [u8]>,
    {
        let Run { function, source, keys, args, host, memory_max, busy_after_ms } = run;
        let state = self.state.as_ptr();
        // SAFETY: the stack is as before when this is done.
        unsafe {
            let top = lua_gettop(state);
            lua_rawcheckstack(state, SLOTS);
            // Functions must not see these globals of an earlier script.
            lua_setreadonly(state, LUA_GLOBALSINDEX, 0);
            for name in [Name::Keys, Name::Argv] {
                lua_pushvalue(state, base(name));
                lua_pushnil(state);
                lua_rawset(state, LUA_GLOBALSINDEX);
            }
            lua_setreadonly(state, LUA_GLOBALSINDEX, 1);
            lua_rawgeti_(state, LUA_REGISTRYINDEX, function.0);
            if !push_array(state, keys) || !push_array(state, args) {
                lua_settop(state, top);
                return Err(Failure::plain(LARGE_ARGUMENTS));
            }
            self.call(2, Lent { host, source }, memory_max, busy_after_ms, Some(reply))
        }
    }
}

/// Pushes an array of strings. False if it is too large for Lua.
unsafe fn push_array<'k>(
    state: *mut lua_State,
    values: impl ExactSizeIterator<Item = &'k [u8]>,
) -> bool {
    if values.len() > TABLE_MAX {
        return false;
    }
    // SAFETY: three values; the numbers of elements are limited.
    unsafe {
        lua_createtable(state, values.len() as c_int, 0);
        for (index, value) in values.enumerate() {
            if value.len() > STRING_MAX {
                return false;
            }
            push_bytes(state, value);
            lua_rawseti_(state, -2, index as c_int + 1);
        }
        true
    }
}

/// Creates the tables for loading libraries, once.
unsafe fn prepare(state: *mut lua_State) {
    // SAFETY: 16 values; `load_library` has asked for `SLOTS`.
    unsafe {
        let top = lua_gettop(state);
        if lua_rawgetfield(state, LUA_REGISTRYINDEX, CHUNK_GLOBALS.as_ptr()) != LUA_TNIL {
            lua_settop(state, top);
            return;
        }
        lua_createtable(state, 0, 0);
        lua_createtable(state, 0, 1);
        lua_pushvalue(state, -1);
        lua_rawsetfield(state, LUA_REGISTRYINDEX, METATABLE.as_ptr());
        lua_setmetatable(state, -2);
        lua_setreadonly(state, -1, 1);
        lua_rawsetfield(state, LUA_REGISTRYINDEX, CHUNK_GLOBALS.as_ptr());

        lua_createtable(state, 0, 2);
        lua_createtable(state, 0, 8);
        lua_rawgetfield(state, LUA_GLOBALSINDEX, c"redis".as_ptr());
        for name in WHILE_LOADING {
            lua_rawgetfield(state, -1, name.as_ptr());
            lua_rawsetfield(state, -3, name.as_ptr());
        }
        lua_settop(state, -2);
        let name = c"register_function".as_ptr();
        push_function(state, name, register_function);
        lua_rawsetfield(state, -2, name);
        seal(state);
        lua_pushvalue(state, -1);
        lua_rawsetfield(state, -3, c"server".as_ptr());
        lua_rawsetfield(state, -2, c"redis".as_ptr());
        seal(state);
        lua_rawsetfield(state, LUA_REGISTRYINDEX, LOADING_GLOBALS.as_ptr());
        look_behind(state, None);
        lua_settop(state, top);
    }
}

/// Sets the version that libraries see while loading, if any were loaded.
pub(super) unsafe fn set_version(state: *mut lua_State, version: &str) {
    // SAFETY: two values, and one more in `api::set_version`.
    unsafe {
        let top = lua_gettop(state);
        if lua_rawgetfield(state, LUA_REGISTRYINDEX, LOADING_GLOBALS.as_ptr()) == LUA_TTABLE {
            lua_rawgetfield(state, -1, c"redis".as_ptr());
            super::api::set_version(state, version);
        }
        lua_settop(state, top);
    }
}

/// Makes the table on top of the stack read-only; reading other names raises an error.
unsafe fn seal(state: *mut lua_State) {
    // SAFETY: two values above the table.
    unsafe {
        lua_createtable(state, 0, 1);
        lua_pushcfunction(state, no_such_global);
        lua_rawsetfield(state, -2, c"__index".as_ptr());
        lua_setreadonly(state, -1, 1);
        lua_setmetatable(state, -2);
        lua_setreadonly(state, -1, 1);
    }
}

/// Sets the table in which the chunks' globals look up other names: one in the registry, or the
/// scripts' globals.
unsafe fn look_behind(state: *mut lua_State, table: Option<&CStr>) {
    // SAFETY: two values; the registry has the tables, which `prepare` has made.
    unsafe {
        lua_rawgetfield(state, LUA_REGISTRYINDEX, METATABLE.as_ptr());
        lua_setreadonly(state, -1, 0);
        match table {
            Some(name) => {
                lua_rawgetfield(state, LUA_REGISTRYINDEX, name.as_ptr());
            }
            None => lua_pushvalue(state, LUA_GLOBALSINDEX),
        }
        lua_rawsetfield(state, -2, c"__index".as_ptr());
        lua_setreadonly(state, -1, 1);
        lua_settop(state, -2);
    }
}

/// `redis.register_function(name, function)`, or with a table of `function_name`, `callback`,
/// `description`, `flags`.
unsafe extern "C-unwind" fn register_function(state: *mut lua_State) -> c_int {
    // SAFETY: the interpreter runs this function, with the names as upvalues.
    unsafe {
        if let Err(text) = register(state) {
            match shared(state).is_valkey.get() {
                true => push_error(state, text.replace(" redis.", " server.").as_bytes(), false),
                false => push_error(state, text.as_bytes(), false),
            }
            lua_error(state);
        }
        0
    }
}

unsafe fn register(state: *mut lua_State) -> Result<(), &'static str> {
    // SAFETY: the arguments stay on the stack, and a function is at index 2 when it is kept.
    unsafe {
        let shared = shared(state);
        if shared.loading.borrow().is_none() {
            return Err("ERR redis.register_function can only be called on FUNCTION LOAD command");
        }
        let mut function = match lua_gettop(state) {
            1 => named_arguments(state)?,
            2 => {
                let name = bytes_at(state, 1)
                    .ok_or("ERR first argument to redis.register_function must be a string")?;
                if lua_type(state, 2) != LUA_TFUNCTION {
                    return Err(
                        "ERR second argument to redis.register_function must be a function",
                    );
                }
                let flags = ScriptFlags::empty();
                Registered {
                    name: name.into(),
                    description: None,
                    flags,
                    function: Function(LUA_NOREF),
                }
            }
            _ => return Err("ERR wrong number of arguments to redis.register_function"),
        };
        let is_valkey = shared.is_valkey.get();
        if !is_valkey && !is_name(&function.name) {
            return Err(
                "ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one character \
                 long",
            );
        }
        let mut loading = shared.loading.borrow_mut();
        let Some(registered) = loading.as_mut() else { return Ok(()) };
        if !is_valkey && registered.iter().any(|other| other.name == function.name) {
            return Err("ERR Function already exists in the library");
        }
        function.function = Function(lua_ref(state, 2));
        registered.push(function);
        Ok(())
    }
}

/// Why Valkey refuses a library with these functions.
fn refusal(registered: &[Registered]) -> Option<&'static str> {
    registered.iter().enumerate().find_map(|(index, function)| {
        if !is_name(&function.name) {
            return Some(
                "Function names can only contain letters, numbers, or underscores(_) and must be at least one character \
                 long",
            );
        }
        let is_taken = registered[..index].iter().any(|other| other.name == function.name);
        is_taken.then_some("Function already exists in the library")
    })
}

/// Reads named arguments from a table. The callback is left at index 2.
unsafe fn named_arguments(state: *mut lua_State) -> Result<Registered, &'static str> {
    // SAFETY: the argument is a table once that has been checked; strings are copied while they are
    // on the stack.
    unsafe {
        if lua_type(state, 1) != LUA_TTABLE {
            return Err(
                "ERR calling redis.register_function with a single argument is only applicable to Lua table \
                        (representing named arguments).",
            );
        }
        let (mut name, mut description, mut flags) = (None, None, ScriptFlags::empty());
        lua_pushnil(state);
        let mut position = 0;
        loop {
            position = lua_rawiter(state, 1, position);
            if position < 0 {
                break;
            }
            let key = match lua_type(state, -2) {
                LUA_TSTRING => bytes_at(state, -2).unwrap_or_default(),
                LUA_TNUMBER => b"",
                _ => {
                    return Err(
                        "ERR named argument key given to redis.register_function is not a string",
                    );
                }
            };
            if key.eq_ignore_ascii_case(b"function_name") {
                let text = bytes_at(state, -1).ok_or(
                    "ERR function_name argument given to redis.register_function must be a string",
                )?;
                name = Some(text.into());
            } else if key.eq_ignore_ascii_case(b"description") {
                let text = bytes_at(state, -1).ok_or(
                    "ERR description argument given to redis.register_function must be a string",
                )?;
                description = Some(text.into());
            } else if key.eq_ignore_ascii_case(b"callback") {
                if lua_type(state, -1) != LUA_TFUNCTION {
                    return Err(
                        "ERR callback argument given to redis.register_function must be a function",
                    );
                }
                lua_pushvalue(state, -1);
                lua_replace(state, 2);
            } else if key.eq_ignore_ascii_case(b"flags") {
                if lua_type(state, -1) != LUA_TTABLE {
                    return Err(
                        "ERR flags argument to redis.register_function must be a table representing function flags",
                    );
                }
                flags = read_flags(state)?;
            } else {
                return Err("ERR unknown argument given to redis.register_function");
            }
            lua_settop(state, 2);
        }
        let name = name.ok_or("ERR redis.register_function must get a function name argument")?;
        if lua_type(state, 2) != LUA_TFUNCTION {
            return Err("ERR redis.register_function must get a callback argument");
        }
        Ok(Registered { name, description, flags, function: Function(LUA_NOREF) })
    }
}

/// Reads the flags in the array on top of the stack.
unsafe fn read_flags(state: *mut lua_State) -> Result<ScriptFlags, &'static str> {
    // SAFETY: one value above the array.
    unsafe {
        let mut flags = ScriptFlags::empty();
        for index in 1.. {
            lua_rawgeti_(state, -1, index);
            if lua_type(state, -1) == LUA_TNIL {
                lua_settop(state, -2);
                break;
            }
            let name = bytes_at(state, -1).map(<[u8]>::to_ascii_lowercase);
            let flag = name.and_then(|name| ScriptFlags::named(&name));
            flags |= flag.ok_or("ERR unknown flag given")?;
            lua_settop(state, -2);
        }
        Ok(flags)
    }
}
