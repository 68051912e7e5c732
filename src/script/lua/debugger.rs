//! The debugger of scripts (SCRIPT DEBUG), with the protocol and words of Redis 7.0.15 or Valkey 9
//! (`debugger/words.rs`).
//!
//! ```text
//!   debugged chunk -- each instruction --> `stepped` -- a line that stops --> lines to the client
//!                                             ^ the client's commands: step, print, break ...
//! ```
//!
//! A debugged chunk is compiled with the names of its variables and runs in Luau's single-step
//! mode. In that time `redis` has other functions `call`, `pcall`, `breakpoint`, `debug` and
//! `error_reply`, so that scripts that are not debugged pay nothing. The host reads from the client
//! and writes to it.

use std::ffi::CStr;
use std::os::raw::{c_char, c_int};

use mlua::ffi::*;

use super::api::{self, push_function};
use super::{Shared, bytes_at, push_bytes, shared};
use words::{REDIS, VALKEY, Words};

use crate::config::quoted;
use crate::resp::args::before_nul;
use crate::resp::number::parse_i64;
use crate::resp::reply::OutputBuffer;
use crate::resp::request::Range;

/// The most breakpoints.
const BREAKPOINTS_MAX: usize = 64;
/// Bytes of a shown value, unless `maxlen` says otherwise.
const SHOWN_BYTES: usize = 256;
/// The least that `maxlen` sets. Unit: bytes.
const SHOWN_BYTES_MIN: usize = 60;
/// Bytes of a command that is not complete.
const BUFFER_MAX: usize = 1 << 20;
/// Arguments of a command, and bytes of one.
const ARGUMENTS_MAX: i64 = 1024;
/// Depth of shown tables.
const DEPTH_MAX: usize = 10;
/// Instructions between two looks at the clock.
const INSTRUCTIONS: u32 = 100_000;
/// Arguments of a command of the script that are shown.
const SHOWN_ARGUMENTS: usize = 10;

const HINT: &str = "<hint> The above reply was trimmed. Use 'maxlen 0' to disable trimming.";
const FUNCTIONS: [(&CStr, lua_CFunction, lua_CFunction); 5] = [
    (c"error_reply", api::error_reply, error_reply),
    (c"call", api::call, call),
    (c"pcall", api::pcall, pcall),
    (c"breakpoint", api::breakpoint, breakpoint),
    (c"debug", api::debug, debug),
];

/// A session.
pub(super) struct Debugger {
    lines: Vec<Vec<u8>>,
    /// Lines for the client that were not sent.
    logs: Vec<Vec<u8>>,
    /// Stops at the next line; commands of the script are logged.
    steps: bool,
    breakpoints: Vec<i32>,
    /// `redis.breakpoint` was called.
    is_called: bool,
    current: i32,
    /// The line that each function being called has reached.
    reached: Vec<i32>,
    /// Instructions since the clock was looked at.
    instructions: u32,
    /// When the script began, or continued: microseconds.
    since_us: i64,
    /// The script is stopped if it runs for longer, unless a breakpoint stops it: microseconds.
    limit_us: i64,
    /// Bytes of a value or reply that are shown; 0: all.
    shown: usize,
    is_hinted: bool,
    words: &'static Words,
    /// Input that is no complete command.
    input: Vec<u8>,
}

impl Debugger {
    /// A session for a script with this source.
    pub fn new(source: &[u8], now_us: i64, limit_us: i64, is_valkey: bool) -> Self {
        let end = source.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n'));
        let source = &source[..end.map_or(0, |last| last + 1)];
        let lines = match source.is_empty() {
            true => Vec::new(),
            false => source.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(),
        };
        Debugger {
            lines,
            logs: Vec::new(),
            steps: true,
            breakpoints: Vec::new(),
            is_called: false,
            current: 0,
            reached: Vec::new(),
            instructions: 0,
            since_us: now_us,
            limit_us,
            shown: SHOWN_BYTES,
            is_hinted: false,
            words: if is_valkey { &VALKEY } else { &REDIS },
            input: Vec::new(),
        }
    }

    fn log(&mut self, text: impl Into<Vec<u8>>) {
        self.logs.push(text.into());
    }

    /// Logs a value or reply, cut off if it is long.
    fn log_shown(&mut self, mut text: Vec<u8>) {
        let is_cut = self.shown != 0 && text.len() > self.shown;
        if is_cut {
            text.truncate(self.shown);
            text.extend_from_slice(b" ...");
        }
        self.log(text);
        if is_cut && !std::mem::replace(&mut self.is_hinted, true) {
            self.log(HINT);
        }
    }

    /// Takes the logged lines as a reply: an array of simple strings.
    fn take_logs(&mut self) -> Vec<u8> {
        let mut reply = format!("*{}\r\n", self.logs.len()).into_bytes();
        for line in self.logs.drain(..) {
            reply.push(b'+');
            let plain = |byte: u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
            reply.extend(line.into_iter().map(plain));
            reply.extend_from_slice(b"\r\n");
        }
        reply
    }

    fn log_source(&mut self, number: i32) {
        let index = usize::try_from(number - 1).ok();
        let line = index.and_then(|index| self.lines.get(index)).map(Vec::as_slice);
        let line = before_nul(line.unwrap_or(b"<out of range source code line>"));
        let prefix = match (self.current == number, self.breakpoints.contains(&number)) {
            (true, true) => "->#",
            (true, false) => "-> ",
            (false, true) => "  #",
            (false, false) => "   ",
        };
        let mut text = format!("{prefix}{number:<3} ").into_bytes();
        text.extend_from_slice(line);
        self.log(text);
    }

    fn list(&mut self, around: i32, context: i32) {
        for number in 1..=self.lines.len() as i32 {
            let distance = i64::from(around) - i64::from(number);
            if around == 0 || distance.abs() <= i64::from(context) {
                self.log_source(number);
            }
        }
    }

    fn break_at(&mut self, argument: &[u8]) {
        let Some(line) = parse_i64(argument) else {
            return self.log([b"Invalid argument:'", before_nul(argument), b"'"].concat());
        };
        let in_source = i32::try_from(line.unsigned_abs()).unwrap_or(i32::MAX);
        match line {
            0 => {
                self.breakpoints.clear();
                self.log("All breakpoints removed.");
            }
            1.. if self.breakpoints.len() == BREAKPOINTS_MAX => {
                self.log("Too many breakpoints set.");
            }
            // Redis refuses a breakpoint that is set.
            1.. if in_source as usize > self.lines.len()
                || self.breakpoints.contains(&in_source) =>
            {
                self.log("Wrong line number.");
            }
            1.. => {
                self.breakpoints.push(in_source);
                self.list(in_source, 1);
            }
            _ => match self.breakpoints.iter().position(|set| *set == in_source) {
                Some(at) => {
                    self.breakpoints.remove(at);
                    self.log("Breakpoint removed.");
                }
                None => self.log("No breakpoint in the specified line."),
            },
        }
    }

    fn breakpoints(&mut self, arguments: &[Vec<u8>]) {
        if !arguments.is_empty() {
            arguments.iter().for_each(|argument| self.break_at(argument));
        } else if self.breakpoints.is_empty() {
            self.log("No breakpoints set. Use 'b <line>' to add one.");
        } else {
            self.log(format!("{} breakpoints set:", self.breakpoints.len()));
            self.breakpoints.clone().into_iter().for_each(|line| self.log_source(line));
        }
    }

    fn set_shown(&mut self, arguments: &[Vec<u8>]) {
        if let [length] = arguments {
            self.is_hinted = true;
            let length = usize::try_from(leading_number(length)).unwrap_or(SHOWN_BYTES_MIN);
            self.shown = if length == 0 { 0 } else { length.max(SHOWN_BYTES_MIN) };
        } else if let Some(current) = self.words.current_length {
            return self.log(format!("{current}{}", self.shown));
        }
        match self.shown {
            0 => self.log(self.words.unlimited),
            shown => self.log(format!("<value> replies are truncated at {shown} bytes.")),
        }
    }

    /// Takes a command from the input. None: it is not complete. Errors: it is no command.
    fn parse(&mut self) -> Result<Option<Vec<Vec<u8>>>, &'static str> {
        const ERROR: &str = "protocol error";
        let input = &self.input;
        if input.is_empty() {
            return Ok(None);
        }
        let line_end = |at: usize| memchr::memmem::find(&input[at..], b"\r\n").map(|end| at + end);
        let Some(star) = memchr::memchr(b'*', input) else { return Err(ERROR) };
        let Some(mut end) = line_end(star) else { return Ok(None) };
        let count = leading_number(&input[star + 1..end]);
        if !(1..=ARGUMENTS_MAX).contains(&count) {
            return Err(ERROR);
        }
        let mut arguments = Vec::new();
        for _ in 0..count {
            let at = end + 2;
            match input.get(at) {
                None => return Ok(None),
                Some(b'$') => {}
                Some(_) => return Err(ERROR),
            }
            let Some(length_end) = line_end(at) else { return Ok(None) };
            let length = leading_number(&input[at + 1..length_end]);
            if !(1..=ARGUMENTS_MAX).contains(&length) {
                return Err(ERROR);
            }
            let (start, length) = (length_end + 2, length as usize);
            let Some(argument) = input.get(start..start + length + 2) else { return Ok(None) };
            if !argument.ends_with(b"\r\n") {
                return Err(ERROR);
            }
            arguments.push(argument[..length].to_vec());
            end = start + length;
        }
        self.input.clear();
        Ok(Some(arguments))
    }
}

/// The number at the beginning of a text, as `atoi` reads it.
fn leading_number(text: &[u8]) -> i64 {
    let text = text.trim_ascii_start();
    let (sign, digits) = match text {
        [b'-', rest @ ..] => (-1, rest),
        [b'+', rest @ ..] => (1, rest),
        _ => (1, text),
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit()).take(18);
    sign * digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// Calls `f` with the session, if there is one.
fn with<R>(shared: &Shared, f: impl FnOnce(&mut Debugger) -> R) -> Option<R> {
    let mut debugger = shared.debugger.take()?;
    let result = f(&mut debugger);
    shared.debugger.set(Some(debugger));
    Some(result)
}

/// Begins a session: the next function to be called is debugged.
pub(super) unsafe fn begin(state: *mut lua_State, debugger: Debugger) {
    // SAFETY: nothing runs in the state.
    unsafe {
        shared(state).debugger.set(Some(Box::new(debugger)));
        replace_functions(state, true);
        (*lua_callbacks(state)).debugstep = Some(stepped);
        lua_singlestep(state, 1);
    }
}

/// Ends the session. Returns the last lines for the client.
pub(super) unsafe fn end(state: *mut lua_State) -> Vec<u8> {
    // SAFETY: nothing runs in the state.
    unsafe {
        lua_singlestep(state, 0);
        (*lua_callbacks(state)).debugstep = None;
        replace_functions(state, false);
        let Some(mut debugger) = shared(state).debugger.take() else { return Vec::new() };
        debugger.log("<endsession>");
        debugger.take_logs()
    }
}

unsafe fn replace_functions(state: *mut lua_State, debugs: bool) {
    // SAFETY: the table, and a function with its upvalues, all taken away again.
    unsafe {
        let top = lua_gettop(state);
        lua_rawcheckstack(state, 20);
        lua_rawgetfield(state, LUA_GLOBALSINDEX, c"redis".as_ptr());
        lua_setreadonly(state, -1, 0);
        for (name, plain, debugged) in FUNCTIONS {
            push_function(state, name.as_ptr(), if debugs { debugged } else { plain });
            lua_rawsetfield(state, -2, name.as_ptr());
        }
        lua_setreadonly(state, -1, 1);
        lua_settop(state, top);
    }
}

/// Called by the interpreter before each instruction.
unsafe extern "C-unwind" fn stepped(state: *mut lua_State, at: *mut lua_Debug) {
    // SAFETY: the interpreter calls this with room on the stack, and errors may be raised.
    unsafe {
        let shared = shared(state);
        let (line, depth) = ((*at).currentline, lua_stackdepth(state));
        let is_new = with(shared, |debugger| {
            // A line that a call returns to is not new.
            let (depth, before) = (depth.max(1) as usize, debugger.reached.len());
            debugger.reached.resize(depth, -1);
            let reached = &mut debugger.reached[depth - 1];
            let is_new = before < depth || *reached != line;
            *reached = line;
            debugger.instructions += u32::from(!is_new);
            is_new || debugger.instructions >= INSTRUCTIONS
        });
        if is_new == Some(true) && line > 0 && is_of_script(state, 0) {
            reach_line(state, line);
        }
    }
}

/// Whether the function at a level is a part of the script.
unsafe fn is_of_script(state: *mut lua_State, level: c_int) -> bool {
    // SAFETY: plain data, which Lua fills in.
    unsafe {
        let mut at: lua_Debug = std::mem::zeroed();
        lua_getinfo(state, level, c"s".as_ptr(), &mut at) != 0
            && !at.short_src.is_null()
            && CStr::from_ptr(at.short_src).to_bytes() == b"user_script"
    }
}

/// Stops at a line, if there is a reason.
unsafe fn reach_line(state: *mut lua_State, line: i32) {
    // SAFETY: the state is alive.
    let shared = unsafe { shared(state) };
    let now_us = || shared.with_host(|host| host.debug_now_us()).unwrap_or_default();
    let stops = with(shared, |debugger| {
        debugger.current = line;
        let is_looking = debugger.instructions >= INSTRUCTIONS;
        if is_looking {
            debugger.instructions = 0;
        }
        let at_breakpoint = debugger.breakpoints.contains(&line);
        let is_late = is_looking
            && !debugger.steps
            && !at_breakpoint
            && !debugger.is_called
            && now_us() - debugger.since_us >= debugger.limit_us;
        let reason = if debugger.is_called {
            debugger.words.called
        } else if at_breakpoint && !is_looking {
            "break point"
        } else if is_late {
            "timeout reached, infinite loop?"
        } else if debugger.steps && !is_looking {
            "step over"
        } else {
            return None;
        };
        (debugger.steps, debugger.is_called) = (false, false);
        debugger.log(format!("* Stopped at {line}, stop reason = {reason}"));
        debugger.log_source(line);
        Some(is_late)
    });
    let Some(Some(is_late)) = stops else { return };
    // SAFETY: errors may be raised here.
    unsafe {
        send_logs(state);
        let is_alone = !converse(state);
        if is_alone && is_late {
            let text = b"ERR timeout during Lua debugging with client closing connection";
            raise_table(state, text);
        }
    }
    with(shared, |debugger| debugger.since_us = now_us());
}

unsafe fn send_logs(state: *mut lua_State) {
    // SAFETY: the state is alive.
    let shared = unsafe { shared(state) };
    if let Some(logs) = with(shared, Debugger::take_logs) {
        shared.with_host(|host| host.debug_write(&logs));
    }
}

/// Raises an error as a table.
unsafe fn raise_table(state: *mut lua_State, text: &[u8]) -> ! {
    // SAFETY: two values; whoever calls this may raise errors.
    unsafe {
        lua_rawcheckstack(state, 3);
        lua_createtable(state, 0, 1);
        push_bytes(state, text);
        lua_rawsetfield(state, -2, c"err".as_ptr());
        lua_error(state)
    }
}

/// Runs the client's commands until one continues the script. False: the client is gone.
unsafe fn converse(state: *mut lua_State) -> bool {
    // SAFETY: the state is alive.
    let shared = unsafe { shared(state) };
    loop {
        let parsed = with(shared, Debugger::parse).unwrap_or(Ok(None));
        let command = match parsed {
            Ok(Some(command)) => command,
            // SAFETY: errors may be raised here.
            Err(text) => unsafe { raise_table(state, &[b"ERR ", text.as_bytes()].concat()) },
            Ok(None) => {
                let mut bytes = [0; 1024];
                let count = shared.with_host(|host| host.debug_read(&mut bytes)).unwrap_or(0);
                let is_large = with(shared, |debugger| {
                    debugger.input.extend_from_slice(&bytes[..count]);
                    if count == 0 {
                        debugger.steps = false;
                        debugger.breakpoints.clear();
                    }
                    debugger.input.len() > BUFFER_MAX
                });
                if count == 0 {
                    return false;
                }
                if is_large == Some(true) {
                    // SAFETY: errors may be raised here.
                    unsafe { raise_table(state, b"ERR max client buffer reached") }
                }
                continue;
            }
        };
        // SAFETY: the interpreter has called the hook.
        if unsafe { obey(state, &command) } {
            return true;
        }
        // SAFETY: as above.
        unsafe { send_logs(state) };
    }
}

/// Runs a command of the client. True: the script continues.
unsafe fn obey(state: *mut lua_State, command: &[Vec<u8>]) -> bool {
    // SAFETY: the state is alive.
    let shared = unsafe { shared(state) };
    let (name, arguments) = (before_nul(&command[0]), &command[1..]);
    let find = |debugger: &mut Debugger| debugger.words.command(name, arguments.len());
    let name = with(shared, find).flatten().unwrap_or_default();
    // SAFETY: the interpreter has called the hook, errors may be raised.
    unsafe {
        match name {
            "step" | "next" => {
                with(shared, |debugger| debugger.steps = true);
                return true;
            }
            "continue" => return true,
            "abort" => raise_table(state, b"ERR script aborted for user request"),
            "trace" => trace(state),
            "eval" => evaluate(state, arguments),
            "redis" if !arguments.is_empty() => run_command(state, arguments),
            "print" => match arguments {
                [variable] => print(state, before_nul(variable)),
                _ => print_all(state),
            },
            _ => _ = with(shared, |debugger| obey_plain(debugger, name, arguments)),
        }
    }
    false
}

/// Runs a command that only concerns the session.
fn obey_plain(debugger: &mut Debugger, name: &str, arguments: &[Vec<u8>]) {
    match name {
        "help" => debugger.words.help.iter().for_each(|line| debugger.log(*line)),
        "maxlen" => debugger.set_shown(arguments),
        "break" => debugger.breakpoints(arguments),
        "whole" => debugger.list(1, 1_000_000),
        "list" => {
            let number = |index: usize| {
                let number = arguments.get(index).map(|text| leading_number(text));
                number.map(|number| number.clamp(i32::MIN.into(), i32::MAX.into()) as i32)
            };
            let around = number(0).filter(|line| *line > 0).unwrap_or(debugger.current);
            debugger.list(around, number(1).unwrap_or(5));
        }
        _ => debugger.log(debugger.words.unknown),
    }
}

fn log(shared: &Shared, text: impl Into<Vec<u8>>) {
    with(shared, |debugger| debugger.log(text));
}

/// Logs the value on top of the stack, and pops it.
unsafe fn log_top(state: *mut lua_State, mut text: Vec<u8>) {
    // SAFETY: the caller has pushed a value.
    unsafe {
        show(state, lua_gettop(state), 0, &mut text);
        lua_settop(state, -2);
        with(shared(state), |debugger| debugger.log_shown(text));
    }
}

/// Appends the value at an index, counted from the bottom.
unsafe fn show(state: *mut lua_State, index: c_int, depth: usize, text: &mut Vec<u8>) {
    if depth == DEPTH_MAX {
        return text.extend_from_slice(b"<max recursion level reached! Nested table?>");
    }
    // SAFETY: room for a key and a value at each depth is asked for.
    unsafe {
        let is_valkey = shared(state).is_valkey.get();
        match lua_type(state, index) {
            LUA_TSTRING if is_valkey => {
                text.extend_from_slice(bytes_at(state, index).unwrap_or_default());
            }
            LUA_TSTRING => text.extend(quoted(bytes_at(state, index).unwrap_or_default())),
            LUA_TBOOLEAN => {
                let is_true = lua_toboolean(state, index) != 0;
                text.extend_from_slice(if is_true { b"true" } else { b"false" });
            }
            LUA_TNUMBER => text.extend(general(lua_tonumber(state, index))),
            LUA_TNIL => text.extend_from_slice(b"nil"),
            LUA_TTABLE => {
                lua_rawcheckstack(state, 8);
                let (mut elements, mut fields) = (Vec::new(), Vec::new());
                let (mut expected, mut is_array) = (1.0, true);
                lua_pushnil(state);
                while lua_next(state, index) != 0 {
                    let value = lua_gettop(state);
                    is_array &= lua_type(state, value - 1) == LUA_TNUMBER
                        && lua_tonumber(state, value - 1) == expected;
                    expected += 1.0;
                    fields.push(b'[');
                    show(state, value - 1, depth + 1, &mut fields);
                    fields.extend_from_slice(b"]=");
                    let start = fields.len();
                    show(state, value, depth + 1, &mut fields);
                    elements.extend_from_slice(&fields[start..]);
                    fields.extend_from_slice(b"; ");
                    elements.extend_from_slice(b"; ");
                    lua_settop(state, -2);
                }
                let shown = if is_array { elements } else { fields };
                text.push(b'{');
                let without_last = shown.strip_suffix(b"; ").filter(|_| !is_valkey);
                text.extend_from_slice(without_last.unwrap_or(&shown));
                text.push(b'}');
            }
            kind => {
                let name = match kind {
                    LUA_TFUNCTION => "function",
                    LUA_TUSERDATA => "userdata",
                    LUA_TTHREAD => "thread",
                    LUA_TLIGHTUSERDATA => "light-userdata",
                    _ => return text.extend_from_slice(b"\"<unknown-lua-type>\""),
                };
                let address = lua_topointer(state, index);
                if is_valkey {
                    text.push(b' ');
                }
                text.extend_from_slice(format!("\"{name}@{address:p}\"").as_bytes());
            }
        }
    }
}

/// A number as `%g` writes it.
fn general(number: f64) -> Vec<u8> {
    let mut buffer = [0 as c_char; 64];
    // SAFETY: the buffer has this length, and six digits with an exponent fit.
    unsafe {
        libc::snprintf(buffer.as_mut_ptr(), buffer.len(), c"%g".as_ptr(), number);
        CStr::from_ptr(buffer.as_ptr()).to_bytes().to_vec()
    }
}

/// Names of Luau for variables that a source does not name.
fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(b"(")
}

/// The numbers and names of the running function's variables, in the order of their declaration.
/// The interpreter lists those of an inner block first.
unsafe fn variables<'a>(state: *mut lua_State) -> Vec<(c_int, &'a [u8])> {
    static MARK: u8 = 0;
    let mark = (&raw const MARK).cast_mut().cast();
    let (mut found, mut number) = (Vec::new(), 1);
    // SAFETY: two values, popped again. The interpreter has called the hook, so indices of the
    // stack are the function's registers. Each variable has its value again. Names live as long as
    // functions.
    unsafe {
        let top = lua_gettop(state);
        loop {
            let name = lua_getlocal(state, 0, number);
            if name.is_null() {
                break;
            }
            lua_pushlightuserdata(state, mark);
            lua_setlocal(state, 0, number);
            let register = (1..=top).find(|&index| lua_touserdata(state, index) == mark);
            lua_setlocal(state, 0, number);
            found.push((register, number, CStr::from_ptr(name).to_bytes()));
            number += 1;
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, number, name)| (number, name)).collect()
}

unsafe fn print(state: *mut lua_State, wanted: &[u8]) {
    // SAFETY: a local variable's value, which is popped again.
    unsafe {
        // Of variables with one name the first, as in Redis.
        let own = variables(state).into_iter().find(|(_, name)| *name == wanted);
        if let Some((number, _)) = own {
            lua_getlocal(state, 0, number);
            return log_top(state, b"<value> ".to_vec());
        }
        for level in 1..lua_stackdepth(state) {
            let mut number = 1;
            loop {
                let name = lua_getlocal(state, level, number);
                if name.is_null() {
                    break;
                }
                if CStr::from_ptr(name).to_bytes() == wanted {
                    return log_top(state, b"<value> ".to_vec());
                }
                lua_settop(state, -2);
                number += 1;
            }
        }
        match wanted {
            b"KEYS" | b"ARGV" => {
                let name = if wanted == b"KEYS" { c"KEYS" } else { c"ARGV" };
                lua_rawgetfield(state, LUA_GLOBALSINDEX, name.as_ptr());
                log_top(state, b"<value> ".to_vec());
            }
            _ => log(shared(state), "No such variable."),
        }
    }
}

unsafe fn print_all(state: *mut lua_State) {
    // SAFETY: a local variable's value, which is popped again.
    unsafe {
        let mut shown = 0;
        for (number, name) in variables(state) {
            if !is_hidden(name) {
                lua_getlocal(state, 0, number);
                log_top(state, [b"<value> ", name, b" = "].concat());
                shown += 1;
            }
        }
        if shown == 0 {
            log(shared(state), "No local variables in the current context.");
        }
    }
}

/// The name of the caller's local variable that holds the function at a level.
unsafe fn name_in_caller<'a>(state: *mut lua_State, level: c_int) -> Option<&'a [u8]> {
    // SAFETY: a function and a variable's value, popped again; names live as long as functions.
    unsafe {
        if level + 1 >= lua_stackdepth(state) {
            return None;
        }
        let (top, mut number) = (lua_gettop(state), 1);
        let mut at: lua_Debug = std::mem::zeroed();
        let mut found = None;
        lua_getinfo(state, level, c"f".as_ptr(), &mut at);
        while found.is_none() {
            let name = lua_getlocal(state, level + 1, number);
            if name.is_null() {
                break;
            }
            if lua_rawequal(state, -1, top + 1) != 0 {
                found = Some(CStr::from_ptr(name).to_bytes());
            }
            lua_settop(state, top + 1);
            number += 1;
        }
        lua_settop(state, top);
        found
    }
}

unsafe fn trace(state: *mut lua_State) {
    // SAFETY: plain data, which Lua fills in.
    unsafe {
        for level in 0..lua_stackdepth(state) {
            let mut at: lua_Debug = std::mem::zeroed();
            if lua_getinfo(state, level, c"sln".as_ptr(), &mut at) == 0 {
                break;
            }
            if !is_of_script(state, level) {
                continue;
            }
            let name = match at.name.is_null() {
                true => name_in_caller(state, level).unwrap_or(b"top level"),
                false => CStr::from_ptr(at.name).to_bytes(),
            };
            let word: &[u8] = if level == 0 { b"In " } else { b"From " };
            let line = at.currentline;
            let text = [word, name, b":"].concat();
            with(shared(state), |debugger| {
                debugger.log(text);
                debugger.log_source(line);
            });
        }
    }
}

/// Runs `f`, whose code is not debugged.
unsafe fn unwatched(state: *mut lua_State, f: impl FnOnce()) {
    // SAFETY: the flag concerns only functions that are called from now on.
    unsafe {
        lua_singlestep(state, 0);
        f();
        lua_singlestep(state, 1);
    }
}

unsafe fn evaluate(state: *mut lua_State, words: &[Vec<u8>]) {
    let code = words.join(&b' ');
    // SAFETY: a function, or its result or error, which is popped again.
    unsafe {
        lua_rawcheckstack(state, 8);
        let name = c"@ldb_eval";
        if !super::load(state, name, &[b"return ", &code[..]].concat(), 0) {
            lua_settop(state, -2);
            if !super::load(state, name, &code, 0) {
                let is_valkey = shared(state).is_valkey.get();
                let before = if is_valkey { &b"Error compiling code: "[..] } else { b"<error> " };
                return log_error(state, before);
            }
        }
        let mut status = LUA_OK;
        unwatched(state, || status = lua_pcall(state, 0, 1, 0));
        match status {
            LUA_OK => log_top(state, b"<retval> ".to_vec()),
            _ => log_error(state, b"<error> "),
        }
    }
}

/// Logs the error on top of the stack, and pops it.
unsafe fn log_error(state: *mut lua_State, before: &[u8]) {
    // SAFETY: the caller has an error on top; a table's text is popped with it.
    unsafe {
        let top = lua_gettop(state);
        if lua_type(state, -1) == LUA_TTABLE {
            lua_rawgetfield(state, -1, c"err".as_ptr());
        }
        let text = bytes_at(state, -1).unwrap_or_default();
        let text = shared(state).familiar(state, text);
        log(shared(state), [before, before_nul(&text)].concat());
        lua_settop(state, top - 1);
    }
}

/// Calls `redis.call`, which logs the command and its reply.
unsafe fn run_command(state: *mut lua_State, words: &[Vec<u8>]) {
    // SAFETY: room for the function and the words is asked for; its result is popped again.
    unsafe {
        let (top, shared) = (lua_gettop(state), shared(state));
        if lua_checkstack(state, words.len() as c_int + 20) == 0 {
            return with(shared, |debugger| {
                debugger.log_shown(b"<reply> max lua stack reached".into())
            })
            .unwrap_or_default();
        }
        lua_rawgetfield(state, LUA_GLOBALSINDEX, c"redis".as_ptr());
        lua_rawgetfield(state, -1, c"call".as_ptr());
        words.iter().for_each(|word| push_bytes(state, word));
        with(shared, |debugger| debugger.steps = true);
        unwatched(state, || _ = lua_pcall(state, words.len() as c_int, 1, 0));
        with(shared, |debugger| debugger.steps = false);
        lua_settop(state, top);
    }
}

/// `redis.call` in a session.
unsafe extern "C-unwind" fn call(state: *mut lua_State) -> c_int {
    // SAFETY: the interpreter runs this function, with the names as upvalues.
    unsafe { api::run::<Session>(state, true) }
}

/// `redis.pcall` in a session.
unsafe extern "C-unwind" fn pcall(state: *mut lua_State) -> c_int {
    // SAFETY: as for `call`.
    unsafe { api::run::<Session>(state, false) }
}

/// `redis.breakpoint()`: true; the script stops at its next line.
unsafe extern "C-unwind" fn breakpoint(state: *mut lua_State) -> c_int {
    // SAFETY: one value.
    unsafe {
        with(shared(state), |debugger| debugger.is_called = true);
        lua_pushboolean(state, 1);
    }
    1
}

/// `redis.error_reply(text)` in a session: the error is shown to the client.
unsafe extern "C-unwind" fn error_reply(state: *mut lua_State) -> c_int {
    // SAFETY: the table that the function has left on top, and its text.
    unsafe {
        let count = api::error_reply(state);
        let top = lua_gettop(state);
        lua_rawgetfield(state, top, c"err".as_ptr());
        let text = [b"-", bytes_at(state, -1).unwrap_or_default()].concat();
        lua_settop(state, top);
        log_error_text(shared(state), &text);
        count
    }
}

/// `redis.debug(...)`: shows the values to the client.
unsafe extern "C-unwind" fn debug(state: *mut lua_State) -> c_int {
    // SAFETY: the arguments stay on the stack.
    unsafe {
        let shared = shared(state);
        let line = with(shared, |debugger| debugger.current).unwrap_or_default();
        let mut text = format!("<debug> line {line}: ").into_bytes();
        for index in 1..=lua_gettop(state) {
            if index > 1 {
                text.extend_from_slice(b", ");
            }
            show(state, index, 0, &mut text);
        }
        log(shared, text);
    }
    0
}

/// The session observes the commands of its script.
struct Session;

impl api::Observer for Session {
    fn request(shared: &Shared, buffer: &[u8], ranges: &[Range]) {
        log_request(shared, buffer, ranges);
    }

    fn refusal(shared: &Shared, error: &[u8]) {
        log_refusal(shared, error);
    }

    fn reply(shared: &Shared, output: &OutputBuffer) {
        log_reply(shared, &output.whole());
    }
}

/// Logs a command that the script calls.
fn log_request(shared: &Shared, buffer: &[u8], ranges: &[Range]) {
    with(shared, |debugger| {
        if !debugger.steps {
            return;
        }
        let mut text = debugger.words.request.as_bytes().to_vec();
        for (index, range) in ranges.iter().enumerate() {
            if index == SHOWN_ARGUMENTS {
                let more = ranges.len() - index - 1;
                text.extend_from_slice(format!(" ... ({more} more)").as_bytes());
                break;
            }
            text.push(b' ');
            text.extend_from_slice(range.of(buffer));
        }
        debugger.log(text);
    });
}

/// Logs the refusal of a command.
fn log_refusal(shared: &Shared, error: &[u8]) {
    match error.strip_prefix(b"ERR ") {
        Some(text) => log_error_text(shared, text),
        None => log_error_text(shared, &[b"-", error].concat()),
    }
}

/// Logs an error that is pushed while the client steps.
fn log_error_text(shared: &Shared, text: &[u8]) {
    with(shared, |debugger| {
        if debugger.steps {
            debugger.log([b"<error> ", before_nul(text)].concat());
        }
    });
}

/// Logs a command's reply.
fn log_reply(shared: &Shared, reply: &[u8]) {
    with(shared, |debugger| {
        if !debugger.steps {
            return;
        }
        if reply.first() == Some(&b'-') {
            let end = memchr::memchr(b'\r', reply).unwrap_or(reply.len());
            debugger.log([b"<error> ", &reply[..end]].concat());
        }
        let mut text = b"<reply> ".to_vec();
        show_reply(reply, &mut 0, &mut text);
        debugger.log_shown(text);
    });
}

/// Appends a reply for people.
fn show_reply(reply: &[u8], at: &mut usize, text: &mut Vec<u8>) {
    let Some(kind) = reply.get(*at).copied() else { return };
    let rest = &reply[*at + 1..];
    let line = &rest[..memchr::memchr(b'\r', rest).unwrap_or(rest.len())];
    *at = (*at + line.len() + 3).min(reply.len());
    let count = leading_number(line);
    let mut list = |begin: &str, between: [&str; 2], end: &str, count: i64| {
        text.extend_from_slice(begin.as_bytes());
        for index in 0..count.max(0) {
            if index > 0 {
                text.extend_from_slice(between[(index % 2) as usize].as_bytes());
            }
            show_reply(reply, at, text);
        }
        text.extend_from_slice(end.as_bytes());
    };
    match kind {
        b'$' | b'*' if count == -1 => text.extend_from_slice(b"NULL"),
        b'*' => list("[", [",", ","], "]", count),
        b'~' => list("~(", [",", ","], ")", count),
        b'%' => list("{", [",", " => "], "}", count * 2),
        b':' => text.extend_from_slice(line),
        b'$' => {
            let start = *at;
            let end = (start + count.max(0) as usize).min(reply.len());
            text.extend(quoted(&reply[start..end]));
            *at = (end + 2).min(reply.len());
        }
        b'+' | b'-' => text.extend(quoted(&[&[kind], line].concat())),
        b'_' => text.extend_from_slice(b"(null)"),
        b'#' => text.extend_from_slice(if line == b"t" { b"#true" } else { b"#false" }),
        b',' => text.extend_from_slice(&[b"(double) ", line].concat()),
        _ => {}
    }
}

mod words;
