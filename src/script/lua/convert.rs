//! Converts replies to Lua values, and Lua values to replies.
//!
//! A command's encoded reply is parsed once, and its values pushed on the way. It is well-formed
//! and shallow, as we wrote it. A script's result may be deeply nested, or contain itself: it is
//! traversed with a list of open tables, not by recursion, up to a depth. Its encoding may be huge,
//! so the traversal is part of the script: it checks for interrupts, and ends at the limits of the
//! client's output and of the script's memory.

use std::os::raw::c_int;

use mlua::ffi::*;

use super::{Name, Returned, bytes_at, push_bytes, raise, shared, upvalue};
use crate::resp::args::before_nul;
use crate::resp::reply::{Protocol, ReplyWriter};
use crate::script::libraries::helpers::safepoint;

/// The place of a script's result on the stack of Redis's interpreter, and the highest place that
/// Redis converts: the limit of the stack, less the places that a conversion needs. Nested values
/// are above the value that contains them ([`Open::inner`]).
const RETURNED_AT: usize = 2;
const HIGHEST: usize = 7996;
/// Values and bytes converted between two checks for interrupts.
const VALUES: usize = 1000;
const BYTES: usize = 1 << 20;

/// Pushes the value of the reply at `*at`, and advances `*at`. Called from a function of the API,
/// whose upvalues are the names.
pub(super) unsafe fn push_reply(state: *mut lua_State, reply: &[u8], at: &mut usize) {
    let kind = reply[*at];
    // Most lines are a few digits, so a simple search is fastest.
    let line_end = reply[*at..].iter().position(|&byte| byte == b'\r');
    let line_end = line_end.expect("a reply's line has an end") + *at;
    let line = &reply[*at + 1..line_end];
    *at = line_end + 2;
    // SAFETY: three values; an aggregate asks for the room of its items.
    unsafe {
        match kind {
            b'$' => match length(line) {
                Some(len) => {
                    push_bytes(state, &reply[*at..*at + len]);
                    *at += len + 2;
                }
                None => lua_pushboolean(state, 0),
            },
            b':' => lua_pushnumber(state, integer(line) as f64),
            b'+' => {
                lua_createtable(state, 0, 1);
                lua_pushvalue(state, upvalue(Name::Ok));
                push_bytes(state, line);
                lua_rawset(state, -3);
            }
            b'-' => push_error(state, line, true),
            b'*' | b'>' => match length(line) {
                Some(len) => push_array(state, len, reply, at),
                None => lua_pushboolean(state, 0),
            },
            b'_' => lua_pushnil(state),
            b'#' => lua_pushboolean(state, (line == b"t") as c_int),
            b',' => {
                let text = str::from_utf8(line).unwrap_or_default();
                push_field(state, Name::Double, |state| {
                    lua_pushnumber(state, text.parse().unwrap_or(f64::NAN));
                });
            }
            b'(' => push_field(state, Name::BigNumber, |state| push_bytes(state, line)),
            b'=' => push_verbatim(state, length(line).unwrap_or_default(), reply, at),
            b'%' => push_map(state, length(line).unwrap_or_default(), reply, at),
            b'~' => push_set(state, length(line).unwrap_or_default(), reply, at),
            b'|' => {
                // Attributes are skipped.
                for _ in 0..2 * length(line).unwrap_or_default() {
                    push_reply(state, reply, at);
                    lua_settop(state, -2);
                }
                push_reply(state, reply, at);
            }
            _ => raise(state, b"a reply of an unknown kind"),
        }
    }
}

unsafe fn push_array(state: *mut lua_State, len: usize, reply: &[u8], at: &mut usize) {
    // SAFETY: room is asked for: a table and an item's values.
    unsafe {
        luaL_checkstack(state, 4, c"reply".as_ptr());
        lua_createtable(state, len as c_int, 0);
        for index in 0..len {
            look(state, index);
            push_reply(state, reply, at);
            lua_rawseti_(state, -2, index as c_int + 1);
        }
    }
}

unsafe fn push_map(state: *mut lua_State, len: usize, reply: &[u8], at: &mut usize) {
    // SAFETY: `push_field` has room for a table, a key and a value's values.
    unsafe {
        push_field(state, Name::Map, |state| {
            lua_createtable(state, 0, len as c_int);
            for index in 0..len {
                look(state, index);
                push_reply(state, reply, at);
                push_reply(state, reply, at);
                lua_rawset(state, -3);
            }
        });
    }
}

/// A set is a table whose keys are the members, and whose values are true.
unsafe fn push_set(state: *mut lua_State, len: usize, reply: &[u8], at: &mut usize) {
    // SAFETY: as in `push_map`.
    unsafe {
        push_field(state, Name::Set, |state| {
            lua_createtable(state, 0, len as c_int);
            for index in 0..len {
                look(state, index);
                push_reply(state, reply, at);
                lua_pushboolean(state, 1);
                lua_rawset(state, -3);
            }
        });
    }
}

/// A verbatim string: three bytes of format, a colon, and the text.
unsafe fn push_verbatim(state: *mut lua_State, len: usize, reply: &[u8], at: &mut usize) {
    let text = &reply[*at..*at + len];
    *at += len + 2;
    // SAFETY: `push_field` has room for three values.
    unsafe {
        push_field(state, Name::VerbatimString, |state| {
            lua_createtable(state, 0, 2);
            lua_pushvalue(state, upvalue(Name::String));
            push_bytes(state, text.get(4..).unwrap_or_default());
            lua_rawset(state, -3);
            lua_pushvalue(state, upvalue(Name::Format));
            push_bytes(state, text.get(..3).unwrap_or_default());
            lua_rawset(state, -3);
        });
    }
}

/// Checks for interrupts once every `VALUES` values; `number` counts them.
#[inline]
unsafe fn look(state: *mut lua_State, number: usize) {
    if number % VALUES == VALUES - 1 {
        // SAFETY: errors may be raised here.
        unsafe { safepoint(state) };
    }
}

fn integer(line: &[u8]) -> i64 {
    crate::resp::number::parse_i64(line).unwrap_or_default()
}

/// A length; None: a null value.
fn length(line: &[u8]) -> Option<usize> {
    usize::try_from(integer(line)).ok()
}

/// Pushes a table with one field, whose value is pushed by `push`.
unsafe fn push_field(state: *mut lua_State, name: Name, push: impl FnOnce(*mut lua_State)) {
    // SAFETY: room is asked for: two values, and those of `push`.
    unsafe {
        luaL_checkstack(state, 8, c"reply".as_ptr());
        lua_createtable(state, 0, 1);
        lua_pushvalue(state, upvalue(name));
        push(state);
        lua_rawset(state, -3);
    }
}

/// Pushes an error's table. `text` begins with its code. Called from a function of the API.
pub(super) unsafe fn push_error(state: *mut lua_State, text: &[u8], is_counted: bool) {
    // SAFETY: three values; the names are upvalues.
    unsafe {
        lua_createtable(state, 0, 1 + is_counted as c_int);
        lua_pushvalue(state, upvalue(Name::Err));
        push_bytes(state, text);
        lua_rawset(state, -3);
        if is_counted {
            lua_pushvalue(state, upvalue(Name::Ignore));
            lua_pushboolean(state, 1);
            lua_rawset(state, -3);
        }
    }
}

/// The text of any value as `tostring` shows it, but without calling metamethods.
pub(super) unsafe fn describe(state: *mut lua_State, index: c_int) -> Vec<u8> {
    // SAFETY: the caller's index; names of types are constants.
    unsafe {
        match lua_type(state, index) {
            LUA_TSTRING | LUA_TNUMBER => bytes_at(state, index).unwrap_or_default().to_vec(),
            LUA_TNIL | LUA_TNONE => b"nil".to_vec(),
            LUA_TBOOLEAN if lua_toboolean(state, index) != 0 => b"true".to_vec(),
            LUA_TBOOLEAN => b"false".to_vec(),
            kind => {
                let name = std::ffi::CStr::from_ptr(lua_typename(state, kind));
                name.to_bytes().to_vec()
            }
        }
    }
}

/// The text of an error that is a table, and whether it was counted when raised. `err` and
/// `ignore`: positions of these fields' names.
pub(super) unsafe fn error_of_table(
    state: *mut lua_State,
    err: c_int,
    ignore: c_int,
) -> (Vec<u8>, bool) {
    // SAFETY: one value above the table; the caller knows where the names are.
    unsafe {
        lua_pushvalue(state, err);
        lua_rawget(state, -2);
        let text = match lua_type(state, -1) {
            LUA_TSTRING | LUA_TNUMBER => {
                before_nul(bytes_at(state, -1).unwrap_or_default()).to_vec()
            }
            _ => b"ERR unknown error".to_vec(),
        };
        lua_settop(state, -2);
        lua_pushvalue(state, ignore);
        lua_rawget(state, -2);
        let is_counted = lua_type(state, -1) == LUA_TBOOLEAN && lua_toboolean(state, -1) != 0;
        lua_settop(state, -2);
        (text, is_counted)
    }
}

/// A table being written; it is on the stack, above the ones that contain it.
enum Open {
    Array {
        next: c_int,
        len: c_int,
    },
    /// Above the table is the last written key.
    Set,
    /// The same; `value`: above that is its value, which is written next.
    Map {
        value: bool,
    },
}

impl Open {
    /// The distance of the last pushed item above the table, on the stack of Redis's interpreter.
    fn inner(&self) -> usize {
        match self {
            Open::Array { .. } => 1,
            // A copy of the key, then the value.
            Open::Map { value: true } => 4,
            Open::Map { value: false } | Open::Set => 3,
        }
    }
}

/// Parameters of [`write_returned`].
pub(super) struct Writing<'a, 'b> {
    pub reply: &'a mut ReplyWriter<'b>,
    /// The protocol of the script's client.
    pub protocol: Protocol,
    /// Collects the errors in the value.
    pub returned: &'a mut Returned,
}

/// A function of the API, called with a value and a [`Writing`] as light userdata: writes the value
/// as a reply.
pub(super) unsafe extern "C-unwind" fn write_returned(state: *mut lua_State) -> c_int {
    // SAFETY: the pointer is the caller's, who does not touch the value until this function
    // returns.
    unsafe {
        let writing = &mut *lua_touserdata(state, 2).cast::<Writing<'_, '_>>();
        lua_settop(state, 1);
        write_value(state, writing);
    }
    0
}

/// The amount written, in total and at the last check for interrupts.
struct Progress {
    begun: usize,
    values: usize,
    bytes: usize,
}

impl Progress {
    /// Counts a value of a type. Ends the script if its return value exceeds its memory, or its
    /// client's output limit.
    #[inline]
    unsafe fn count(&mut self, state: *mut lua_State, kind: c_int, writing: &mut Writing<'_, '_>) {
        self.values += 1;
        // `VALUES` values of the other types have few bytes.
        if self.values >= VALUES || matches!(kind, LUA_TSTRING | LUA_TTABLE) {
            // SAFETY: the caller's promise.
            unsafe { self.check(state, writing) };
        }
    }

    unsafe fn check(&mut self, state: *mut lua_State, writing: &mut Writing<'_, '_>) {
        let written = writing.reply.output().len() - self.begun;
        if self.values < VALUES && written - self.bytes < BYTES {
            return;
        }
        (self.values, self.bytes) = (0, written);
        // SAFETY: errors may be raised here.
        unsafe {
            safepoint(state);
            let errors = writing.returned.errors_bytes();
            if writing.reply.is_cut() || written + errors > shared(state).memory.left() {
                raise(state, b"not enough memory");
            }
        }
    }
}

/// Stack slots that a table and its items need.
const TABLE_SLOTS: c_int = 8 + COUNTED as c_int;
/// Elements that are counted together.
const COUNTED: usize = 8;

/// Writes the value on top of the stack as a reply, and pops it. Called from a function of the API.
unsafe fn write_value(state: *mut lua_State, writing: &mut Writing<'_, '_>) {
    let mut progress = Progress { begun: writing.reply.output().len(), values: 0, bytes: 0 };
    let mut open: Vec<(Open, usize)> = Vec::new();
    // SAFETY: each open table and the item above it have `TABLE_SLOTS`, which are asked for.
    unsafe {
        let (mut kind, mut place) = (lua_type(state, -1), RETURNED_AT);
        loop {
            progress.count(state, kind, writing);
            let Writing { reply, protocol, returned } = writing;
            let is_table = kind == LUA_TTABLE;
            if place > HIGHEST || is_table && lua_checkstack(state, TABLE_SLOTS) == 0 {
                reply.error("ERR reached lua stack limit");
                returned.failed = true;
                returned.add(b"ERR reached lua stack limit".to_vec());
                lua_settop(state, -2);
            } else if is_table {
                open.extend(begin_table(state, reply, returned).map(|table| (table, place)));
            } else {
                write_simple(state, kind, reply, *protocol);
                lua_settop(state, -2);
            }
            kind = loop {
                let Some((table, table_place)) = open.last_mut() else { return };
                if let Some(kind) = push_next(state, table) {
                    place = *table_place + table.inner();
                    break kind;
                }
                lua_settop(state, -2);
                open.pop();
            };
        }
    }
}

/// Pushes the next item of a table, and returns its type. None at the end: only the table is left
/// on the stack.
#[inline]
unsafe fn push_next(state: *mut lua_State, table: &mut Open) -> Option<c_int> {
    // SAFETY: as in `begin_table`; above the table is what `Open` says.
    unsafe {
        match table {
            Open::Array { next, len } => {
                if next == len {
                    return None;
                }
                *next += 1;
                return Some(lua_rawgeti_(state, -1, *next));
            }
            Open::Map { value: value @ true } => *value = false,
            Open::Map { value } => {
                if lua_next(state, -2) == 0 {
                    return None;
                }
                *value = true;
                lua_pushvalue(state, -2);
            }
            Open::Set => {
                if lua_next(state, -2) == 0 {
                    return None;
                }
                lua_settop(state, -2);
                lua_pushvalue(state, -1);
            }
        }
        Some(lua_type(state, -1))
    }
}

/// Replaces the table on top with one of its fields, if the field has this type.
unsafe fn enter(state: *mut lua_State, name: Name, wanted: c_int) -> bool {
    // SAFETY: as in `begin_table`.
    unsafe {
        lua_pushvalue(state, upvalue(name));
        lua_rawget(state, -2);
        let is_wanted = lua_type(state, -1) == wanted;
        if is_wanted {
            lua_remove(state, -2);
        } else {
            lua_settop(state, -2);
        }
        is_wanted
    }
}

/// Writes the start of the table on top. None: the table was completely written and popped.
unsafe fn begin_table(
    state: *mut lua_State,
    reply: &mut ReplyWriter<'_>,
    returned: &mut Returned,
) -> Option<Open> {
    // SAFETY: the table's room, which `write_value` has asked for.
    unsafe {
        // Most tables are arrays, which need no look-up of the special fields.
        let has_elements = lua_rawgeti_(state, -1, 1) != LUA_TNIL;
        lua_settop(state, -2);
        if !has_elements || has_fields(state) {
            lua_pushvalue(state, upvalue(Name::Err));
            lua_rawget(state, -2);
            let is_error = lua_type(state, -1) == LUA_TSTRING;
            lua_settop(state, -2);
            if is_error {
                let (text, is_counted) =
                    error_of_table(state, upvalue(Name::Err), upvalue(Name::Ignore));
                reply.error(&text);
                returned.failed = true;
                if !is_counted {
                    returned.add(text);
                }
                lua_settop(state, -2);
                return None;
            }
            if enter(state, Name::Ok, LUA_TSTRING) {
                reply.simple(before_nul(bytes_at(state, -1).unwrap_or_default()));
                lua_settop(state, -2);
                return None;
            }
            if enter(state, Name::Double, LUA_TNUMBER) {
                reply.double(lua_tonumber(state, -1));
                lua_settop(state, -2);
                return None;
            }
            if enter(state, Name::BigNumber, LUA_TSTRING) {
                reply.big_number(bytes_at(state, -1).unwrap_or_default());
                lua_settop(state, -2);
                return None;
            }
            if write_verbatim(state, reply) {
                return None;
            }
            if enter(state, Name::Map, LUA_TTABLE) {
                reply.map(count_pairs(state));
                lua_pushnil(state);
                return Some(Open::Map { value: false });
            }
            if enter(state, Name::Set, LUA_TTABLE) {
                reply.set(count_pairs(state));
                lua_pushnil(state);
                return Some(Open::Set);
            }
        }
        let len = if has_elements { count_elements(state) } else { 0 };
        reply.array(len as usize);
        Some(Open::Array { next: 0, len })
    }
}

/// The number of elements of the table on top, up to the first nil.
unsafe fn count_elements(state: *mut lua_State) -> c_int {
    // SAFETY: as in `begin_table`: up to `COUNTED` elements.
    unsafe {
        let mut len = 0;
        loop {
            // Popping several at once is cheaper.
            for held in 1..=COUNTED as c_int {
                if lua_rawgeti_(state, -held, len + 1) == LUA_TNIL {
                    lua_settop(state, -held - 1);
                    return len;
                }
                len += 1;
                look(state, len as usize);
            }
            lua_settop(state, -(COUNTED as c_int) - 1);
        }
    }
}

/// Whether the table on top has more than its array elements.
unsafe fn has_fields(state: *mut lua_State) -> bool {
    // SAFETY: as in `begin_table`; the top is a table.
    unsafe {
        // Iteration continues after the array part with the hash part, which a list does not have.
        let len = lua_objlen(state, -1) as c_int;
        lua_rawiter(state, -1, len) >= 0 && {
            lua_settop(state, -3);
            true
        }
    }
}

unsafe fn count_pairs(state: *mut lua_State) -> usize {
    // SAFETY: as in `begin_table`; each key that iteration continues from is the last one's.
    unsafe {
        let mut count = 0;
        lua_pushnil(state);
        while lua_next(state, -2) != 0 {
            lua_settop(state, -2);
            count += 1;
            look(state, count);
        }
        count
    }
}

/// Writes and pops the table on top if it is `{verbatim_string = {string = .., format = ..}}`.
unsafe fn write_verbatim(state: *mut lua_State, reply: &mut ReplyWriter<'_>) -> bool {
    // SAFETY: as in `begin_table`.
    unsafe {
        lua_pushvalue(state, upvalue(Name::VerbatimString));
        lua_rawget(state, -2);
        if lua_type(state, -1) == LUA_TTABLE {
            lua_pushvalue(state, upvalue(Name::Format));
            lua_rawget(state, -2);
            lua_pushvalue(state, upvalue(Name::String));
            lua_rawget(state, -3);
            if lua_type(state, -1) == LUA_TSTRING && lua_type(state, -2) == LUA_TSTRING {
                let mut format = *b"   ";
                let given = before_nul(bytes_at(state, -2).unwrap_or_default());
                let len = given.len().min(3);
                format[..len].copy_from_slice(&given[..len]);
                reply.verbatim(&format, bytes_at(state, -1).unwrap_or_default());
                lua_settop(state, -5);
                return true;
            }
            lua_settop(state, -3);
        }
        lua_settop(state, -2);
        false
    }
}

/// Writes the value on top, which has this type and is no table.
#[inline]
pub(super) unsafe fn write_simple(
    state: *mut lua_State,
    kind: c_int,
    reply: &mut ReplyWriter<'_>,
    protocol: Protocol,
) {
    // SAFETY: there is a value on top, and its bytes are copied while it is there.
    unsafe {
        match kind {
            LUA_TSTRING => reply.bulk(bytes_at(state, -1).unwrap_or_default()),
            LUA_TNUMBER => reply.integer(truncated(lua_tonumber(state, -1))),
            LUA_TBOOLEAN => match (lua_toboolean(state, -1) != 0, protocol) {
                (value, Protocol::Resp3) => reply.boolean(value),
                (true, Protocol::Resp2) => reply.integer(1),
                (false, Protocol::Resp2) => reply.null(),
            },
            _ => reply.null(),
        }
    }
}

/// Converts a number to an integer as x86 does: a number out of range becomes the smallest integer.
fn truncated(number: f64) -> i64 {
    let limit = -(i64::MIN as f64);
    if (-limit..limit).contains(&number) { number as i64 } else { i64::MIN }
}
