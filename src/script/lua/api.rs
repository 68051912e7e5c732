//! The global table `redis` (and `server`): the functions that scripts call.

use std::ffi::CStr;
use std::os::raw::{c_char, c_int};

use mlua::ffi::*;

use super::convert::{push_error, push_reply};
use super::{NAMES, Shared, bytes_at, lua_upvalueindex, push_bytes, shared, string_at};
use crate::config::VALKEY_VERSION;
use crate::error::{CommandError, WRONG_NUMBER};
use crate::resp::args::before_nul;
use crate::resp::number::{format_double_17g, format_shortest};
use crate::resp::reply::{OutputBuffer, Protocol};
use crate::resp::request::Range;
use crate::script::Called;
use crate::script::cache::{hex, sha1_of};
use crate::script::libraries::helpers::safepoint;
use crate::sys::log::Level;

/// The flags of `redis.set_repl`.
const REPL_AOF: u32 = 1;
const REPL_REPLICA: u32 = 2;
/// Capacity of a request's buffers that is kept for the next one.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// Arguments and bytes copied between two checks for interrupts.
const ARGUMENTS: c_int = 10_000;
const BYTES: usize = 1 << 20;
/// The longest line for the server's log in bytes, as in Redis.
const LOG_BYTES_MAX: usize = 1024;

const FUNCTIONS: &[(&CStr, lua_CFunction)] = &[
    (c"call", call),
    (c"pcall", pcall),
    (c"error_reply", error_reply),
    (c"status_reply", status_reply),
    (c"sha1hex", sha1hex),
    (c"log", log),
    (c"setresp", setresp),
    (c"set_repl", set_repl),
    (c"replicate_commands", replicate_commands),
    (c"acl_check_cmd", acl_check_cmd),
    (c"breakpoint", breakpoint),
    (c"debug", debug),
];

const CONSTANTS: &[(&CStr, u32)] = &[
    (c"LOG_DEBUG", 0),
    (c"LOG_VERBOSE", 1),
    (c"LOG_NOTICE", 2),
    (c"LOG_WARNING", 3),
    (c"REPL_NONE", 0),
    (c"REPL_AOF", REPL_AOF),
    (c"REPL_SLAVE", REPL_REPLICA),
    (c"REPL_REPLICA", REPL_REPLICA),
    (c"REPL_ALL", REPL_AOF | REPL_REPLICA),
];

/// Pushes a function of the API, with the names as its upvalues.
pub(super) unsafe fn push_function(
    state: *mut lua_State,
    name: *const c_char,
    function: lua_CFunction,
) {
    // SAFETY: 13 values; as many are taken as upvalues as were pushed.
    unsafe {
        for name in NAMES {
            lua_pushstring_(state, name.as_ptr());
        }
        lua_pushcclosurek(state, function, name, NAMES.len() as c_int, None);
    }
}

/// Makes the globals `redis` and `server`, which are one table.
pub(super) unsafe fn open(state: *mut lua_State) {
    // SAFETY: 14 values, with the names of a function.
    unsafe {
        lua_createtable(state, 0, 32);
        for (name, function) in FUNCTIONS {
            push_function(state, name.as_ptr(), *function);
            lua_rawsetfield(state, -2, name.as_ptr());
        }
        for (name, value) in CONSTANTS {
            lua_pushnumber(state, *value as f64);
            lua_rawsetfield(state, -2, name.as_ptr());
        }
        lua_pushvalue(state, -1);
        lua_rawsetfield(state, LUA_GLOBALSINDEX, c"server".as_ptr());
        lua_rawsetfield(state, LUA_GLOBALSINDEX, c"redis".as_ptr());
    }
}

/// Sets the versions in `redis`, on top of the stack, and makes that read-only.
pub(super) unsafe fn set_version(state: *mut lua_State, version: &str) {
    // SAFETY: one value above the table.
    unsafe {
        lua_setreadonly(state, -1, 0);
        shared(state).is_7_2.set(number_of(version) >= f64::from(0x0007_0200));
        push_bytes(state, version.as_bytes());
        lua_rawsetfield(state, -2, c"REDIS_VERSION".as_ptr());
        lua_pushnumber(state, number_of(version));
        lua_rawsetfield(state, -2, c"REDIS_VERSION_NUM".as_ptr());
        for (name, value) in [(c"VALKEY_VERSION", VALKEY_VERSION), (c"SERVER_NAME", "valkey")] {
            match shared(state).is_valkey.get() {
                true => push_bytes(state, value.as_bytes()),
                false => lua_pushnil(state),
            }
            lua_rawsetfield(state, -2, name.as_ptr());
        }
        match shared(state).is_valkey.get() {
            true => lua_pushnumber(state, number_of(VALKEY_VERSION)),
            false => lua_pushnil(state),
        }
        lua_rawsetfield(state, -2, c"VALKEY_VERSION_NUM".as_ptr());
        lua_setreadonly(state, -1, 1);
    }
}

/// A version as a number with a byte for each part.
pub(super) fn number_of(version: &str) -> f64 {
    let parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default() & 0xff);
    parts.take(3).fold(0, |number, part| number << 8 | part) as f64
}

/// Raises the error on top of the stack, a table.
unsafe fn raise_error(state: *mut lua_State, text: &[u8]) -> ! {
    // SAFETY: the error is on top; whoever calls this may raise it.
    unsafe {
        push_error(state, text, false);
        lua_error(state)
    }
}

/// As [`raise_error`], with the text of the server that scripts see.
unsafe fn raise_worded(state: *mut lua_State, redis: &'static str, valkey: &'static str) -> ! {
    // SAFETY: as for `raise_error`.
    unsafe { raise_error(state, shared(state).worded(redis, valkey).as_bytes()) }
}

/// `redis.call(name, ...)`: the reply as a value; errors are raised.
pub(super) unsafe extern "C-unwind" fn call(state: *mut lua_State) -> c_int {
    // SAFETY: the interpreter runs this function, with the names as upvalues.
    unsafe { run::<Nobody>(state, true) }
}

/// `redis.pcall(name, ...)`: the same, but errors are returned as tables.
pub(super) unsafe extern "C-unwind" fn pcall(state: *mut lua_State) -> c_int {
    // SAFETY: as for `call`.
    unsafe { run::<Nobody>(state, false) }
}

/// An observer of the commands that a script calls.
pub(super) trait Observer {
    fn request(_: &Shared, _: &[u8], _: &[Range]) {}
    fn refusal(_: &Shared, _: &[u8]) {}
    fn reply(_: &Shared, _: &OutputBuffer) {}
}

/// Nobody observes.
struct Nobody;

impl Observer for Nobody {}

/// Runs a command.
pub(super) unsafe fn run<O: Observer>(state: *mut lua_State, raises: bool) -> c_int {
    // SAFETY: the state is alive.
    let shared = unsafe { shared(state) };
    let mut exchange = shared.exchange.take().unwrap_or_default();
    let Exchange { buffer, ranges, output } = &mut *exchange;
    let refuse = |text: &[u8], is_counted| {
        // SAFETY: an error's values; the names are upvalues.
        unsafe { push_error(state, text, is_counted) };
        true
    };
    // SAFETY: the interpreter has called the function that called this one.
    let (is_error, known) = match unsafe { take_arguments(state, buffer, ranges) } {
        Err(text) => (refuse(text.as_bytes(), false), true),
        Ok(()) => {
            let protocol = shared.protocol.get();
            output.set_limit(shared.memory.left().saturating_sub(buffer.len()));
            O::request(shared, buffer, ranges);
            let called = shared.with_host(|host| host.call(buffer, ranges, protocol, output));
            match &called {
                Some(Called::Ran) => O::reply(shared, output),
                Some(Called::Refused(text)) => O::refusal(shared, text),
                None => {}
            }
            match called {
                // The reply was cut off: its values would not fit either.
                Some(Called::Ran) if output.is_cut() => {
                    (refuse(b"ERR not enough memory", false), true)
                }
                // SAFETY: the names are upvalues.
                Some(Called::Ran) => (unsafe { push_output(state, output) }, true),
                Some(Called::Refused(text)) => (refuse(&text, true), true),
                None => (true, false),
            }
        }
    };
    exchange.keep();
    shared.exchange.set(Some(exchange));
    // SAFETY: what is raised is on top of the stack.
    unsafe {
        if !known {
            raise_error(state, &CommandError::NO_INVOCATION.wire());
        }
        if is_error && raises {
            lua_error(state);
        }
    }
    1
}

/// Pushes the value of a command's reply. True if it is an error.
unsafe fn push_output(state: *mut lua_State, output: &OutputBuffer) -> bool {
    // SAFETY: one value, or those of `push_reply`; the names are upvalues.
    unsafe {
        let _any_size = shared(state).memory.any_size();
        let whole = output.whole();
        if whole.is_empty() {
            lua_pushnil(state);
            return false;
        }
        push_reply(state, &whole, &mut 0);
        whole[0] == b'-'
    }
}

/// Buffers for a request and its reply, reused.
#[derive(Default)]
pub(super) struct Exchange {
    buffer: Vec<u8>,
    ranges: Vec<Range>,
    output: OutputBuffer,
}

impl Exchange {
    /// Empties the buffers for the next request; frees large ones.
    fn keep(&mut self) {
        let Exchange { buffer, ranges, output } = self;
        buffer.clear();
        ranges.clear();
        output.clear();
        if buffer.capacity() > KEPT_BYTES_MAX {
            *buffer = Vec::new();
        }
        if ranges.capacity() > KEPT_BYTES_MAX / size_of::<Range>() {
            *ranges = Vec::new();
        }
        if output.capacity() > KEPT_BYTES_MAX || output.is_cut() {
            *output = OutputBuffer::default();
        }
    }
}

/// Copies the arguments from the stack: strings as they are, numbers as text. The copy counts
/// towards the script's memory: a string of megabytes may be passed a thousand times.
unsafe fn take_arguments(
    state: *mut lua_State,
    buffer: &mut Vec<u8>,
    ranges: &mut Vec<Range>,
) -> Result<(), &'static str> {
    // SAFETY: the arguments stay on the stack while they are copied.
    unsafe {
        let (shared, count) = (shared(state), lua_gettop(state));
        if count == 0 {
            return Err(shared.worded(
                "ERR Please specify at least one argument for this redis lib call",
                "ERR Please specify at least one argument for this call",
            ));
        }
        let bytes_max = shared.memory.left().min(u32::MAX as usize);
        let mut looked = 0;
        for index in 1..=count {
            let start = buffer.len() as u32;
            if buffer.len() - looked > BYTES || index % ARGUMENTS == 0 {
                looked = buffer.len();
                safepoint(state);
            }
            if let Some(bytes) = string_at(state, index) {
                if buffer.len() + bytes.len() + size_of_val(&**ranges) > bytes_max {
                    return Err("ERR not enough memory");
                }
                if bytes.len() <= BYTES {
                    buffer.extend_from_slice(bytes);
                } else {
                    // Reserved at once: moving megabytes as the buffer grows would take longer than
                    // copying them.
                    let rest: usize = (index..=count).map(|index| text_len(state, index)).sum();
                    buffer.reserve_exact(rest.min(bytes_max - buffer.len()));
                    for piece in bytes.chunks(BYTES) {
                        buffer.extend_from_slice(piece);
                        safepoint(state);
                    }
                }
            } else if lua_type(state, index) == LUA_TNUMBER {
                push_number(lua_tonumber(state, index), shared.is_7_2.get(), buffer);
            } else {
                return Err(shared.worded(
                    "ERR Lua redis lib command arguments must be strings or integers",
                    "ERR Command arguments must be strings or integers",
                ));
            }
            ranges.push(Range { start, len: buffer.len() as u32 - start });
        }
        Ok(())
    }
}

/// The length of a string at an index; 0 if there is something else.
unsafe fn text_len(state: *mut lua_State, index: c_int) -> usize {
    // SAFETY: a string has a length.
    unsafe { if lua_type(state, index) == LUA_TSTRING { lua_objlen(state, index) } else { 0 } }
}

/// Appends a number's text: as `%.17g` in Redis up to 7.0; later as an integer if it is one of at
/// most 2^62, otherwise with the fewest digits that distinguish it.
fn push_number(number: f64, is_7_2: bool, buffer: &mut Vec<u8>) {
    const LIMIT: f64 = (1_u64 << 62) as f64;
    if is_7_2 {
        let integer = number as i64;
        if (-LIMIT..=LIMIT).contains(&number) && integer as f64 == number {
            buffer.extend_from_slice(itoa::Buffer::new().format(integer).as_bytes());
        } else {
            buffer.extend_from_slice(&format_shortest(number));
        }
    } else {
        buffer.extend_from_slice(&format_double_17g(number));
    }
}

/// `redis.error_reply(text)`: an error as a table.
pub(super) unsafe extern "C-unwind" fn error_reply(state: *mut lua_State) -> c_int {
    // SAFETY: an error's values; the argument stays on the stack.
    unsafe {
        if lua_gettop(state) != 1 || lua_type(state, 1) != LUA_TSTRING {
            push_error(state, b"ERR wrong number or type of arguments", false);
            return 1;
        }
        let given = before_nul(bytes_at(state, 1).unwrap_or_default());
        let given = given.strip_prefix(b"-").unwrap_or(given);
        // The first word is the error's code, but a single word is not.
        let text = match given.iter().position(|&byte| byte == b' ') {
            Some(space) => [&given[..=space], trimmed(&given[space + 1..])].concat(),
            None => [b"ERR ", trimmed(given)].concat(),
        };
        push_error(state, &text, false);
        1
    }
}

/// A text without surrounding line ends.
fn trimmed(text: &[u8]) -> &[u8] {
    let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let Some(first) = text.iter().position(|byte| !is_line_end(byte)) else { return b"" };
    let last = text.iter().rposition(|byte| !is_line_end(byte)).unwrap_or(first);
    &text[first..=last]
}

/// `redis.status_reply(text)`: a status as a table.
unsafe extern "C-unwind" fn status_reply(state: *mut lua_State) -> c_int {
    // SAFETY: three values; the names are upvalues.
    unsafe {
        if lua_gettop(state) != 1 || lua_type(state, 1) != LUA_TSTRING {
            push_error(state, b"ERR wrong number or type of arguments", false);
            return 1;
        }
        lua_createtable(state, 0, 1);
        lua_pushvalue(state, lua_upvalueindex(super::Name::Ok as c_int));
        lua_pushvalue(state, 1);
        lua_rawset(state, -3);
        1
    }
}

/// `redis.sha1hex(text)`: its SHA1 in hexadecimal digits.
unsafe extern "C-unwind" fn sha1hex(state: *mut lua_State) -> c_int {
    // SAFETY: one value; the argument stays on the stack.
    unsafe {
        if lua_gettop(state) != 1 {
            raise_error(state, WRONG_NUMBER.as_bytes());
        }
        let text = bytes_at(state, 1).unwrap_or_default();
        let digits = hex(&sha1_of(text.chunks(1 << 20).inspect(|_| safepoint(state))));
        push_bytes(state, &digits);
        1
    }
}

/// `redis.log(level, text, ...)`: a line for the server's log.
unsafe extern "C-unwind" fn log(state: *mut lua_State) -> c_int {
    // SAFETY: the arguments stay on the stack, and each is copied before the next is looked at.
    unsafe {
        let count = lua_gettop(state);
        if count < 2 {
            raise_worded(
                state,
                "ERR redis.log() requires two arguments or more.",
                "ERR server.log() requires two arguments or more.",
            );
        }
        if lua_isnumber(state, 1) == 0 {
            raise_error(state, b"ERR First argument must be a number (log level).");
        }
        let level = match lua_tonumber(state, 1) as i64 {
            0 => Level::Debug,
            1 => Level::Verbose,
            2 => Level::Notice,
            3 => Level::Warning,
            _ => raise_worded(state, "ERR Invalid debug level.", "ERR Invalid log level."),
        };
        let mut line = Vec::new();
        for index in 2..=count {
            if lua_isstring(state, index) != 0 {
                if index > 2 {
                    line.push(b' ');
                }
                let text = bytes_at(state, index).unwrap_or_default();
                line.extend_from_slice(&text[..text.len().min(LOG_BYTES_MAX)]);
            }
            if line.len() >= LOG_BYTES_MAX {
                line.truncate(LOG_BYTES_MAX);
                break;
            }
        }
        shared(state).with_host(|host| host.log(level, &line));
        0
    }
}

/// `redis.setresp(2 or 3)`: sets the protocol of the replies to the script.
unsafe extern "C-unwind" fn setresp(state: *mut lua_State) -> c_int {
    // SAFETY: errors may be raised here; any argument may be asked for its number.
    unsafe {
        if lua_gettop(state) != 1 {
            raise_worded(
                state,
                "ERR redis.setresp() requires one argument.",
                "ERR server.setresp() requires one argument.",
            );
        }
        let protocol = match lua_tonumber(state, 1) as i64 {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => raise_error(state, b"ERR RESP version must be 2 or 3."),
        };
        shared(state).protocol.set(protocol);
        0
    }
}

/// `redis.set_repl(flags)`: sets where further writes are repeated.
unsafe extern "C-unwind" fn set_repl(state: *mut lua_State) -> c_int {
    // SAFETY: as in `setresp`.
    unsafe {
        if lua_gettop(state) != 1 {
            raise_worded(
                state,
                "ERR redis.set_repl() requires two arguments.",
                "ERR server.set_repl() requires one argument.",
            );
        }
        let flags = lua_tonumber(state, 1) as i64 as u32;
        if flags & !(REPL_AOF | REPL_REPLICA) != 0 {
            raise_error(
                state,
                b"ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.",
            );
        }
        let (log, replicas) = (flags & REPL_AOF != 0, flags & REPL_REPLICA != 0);
        // Without a host nothing is written.
        let _ = shared(state).with_host(|host| host.repeat_at(log, replicas));
        0
    }
}

/// `redis.replicate_commands()`: true, as effects are always replicated.
unsafe extern "C-unwind" fn replicate_commands(state: *mut lua_State) -> c_int {
    // SAFETY: one value.
    unsafe {
        lua_pushboolean(state, 1);
    }
    1
}

/// `redis.acl_check_cmd(name, ...)`: whether the user may run this command.
unsafe extern "C-unwind" fn acl_check_cmd(state: *mut lua_State) -> c_int {
    // SAFETY: the state is alive.
    let shared = unsafe { shared(state) };
    let mut exchange = shared.exchange.take().unwrap_or_default();
    let Exchange { buffer, ranges, .. } = &mut *exchange;
    // SAFETY: the interpreter runs this function.
    let result = match unsafe { take_arguments(state, buffer, ranges) } {
        Ok(()) => match shared.with_host(|host| host.may_call(buffer, ranges)) {
            Some(Some(may)) => Ok(may),
            Some(None) => Err(shared.worded(
                "ERR Invalid command passed to redis.acl_check_cmd()",
                "ERR Invalid command passed to server.acl_check_cmd()",
            )),
            None => Err("ERR redis.acl_check_cmd can only be called inside a script invocation"),
        },
        Err(text) => Err(text),
    };
    exchange.keep();
    shared.exchange.set(Some(exchange));
    // SAFETY: one value, or an error that may be raised here.
    unsafe {
        match result {
            Ok(may) => lua_pushboolean(state, may as c_int),
            Err(text) => raise_error(state, text.as_bytes()),
        }
    }
    1
}

/// `redis.breakpoint()`: false, as this script is not debugged.
pub(super) unsafe extern "C-unwind" fn breakpoint(state: *mut lua_State) -> c_int {
    // SAFETY: one value.
    unsafe {
        lua_pushboolean(state, 0);
    }
    1
}

/// `redis.debug(...)`: nothing, as this script is not debugged.
pub(super) unsafe extern "C-unwind" fn debug(_: *mut lua_State) -> c_int {
    0
}
