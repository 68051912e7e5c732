//! `cjson`: JSON for scripts, as in lua-cjson 2.1.0, which scripts have in Redis.
//!
//! `encode` traverses a Luau value and writes its text to a buffer; `decode` parses a text and
//! builds values on Luau's stack, a table for each level. Neither is recursive: open levels are
//! kept in a second buffer, so that nested input does not use our stack. Bytes are not checked to
//! be UTF-8.
//!
//! The text ends at its first zero byte, as in the C library. Fields are written in iteration
//! order, which outside of the array part is Luau's, not Lua 5.1's.
#![allow(unsafe_code)] // Luau's C interface.

use std::ffi::{CStr, c_int, c_void};

use mlua::ffi::{self, lua_State, luaL_error};

use super::helpers::{
    Buffer, add_functions, add_texts, argument_error, has_room, publish, push_bytes, push_shared,
    safepoint, shared, string_argument, string_at,
};
use super::json_options::{
    ARRAY_METATABLE, IS_ARRAY, InvalidNumbers, Level, Options, SETTERS, Shared,
};
use crate::resp::args::before_nul;
use crate::script::number::{format_json, parse_prefix};

/// Bytes of a string written between two checks for interrupts.
const PIECE: usize = 1 << 20;
/// Items counted between two checks for interrupts.
const ITEMS: i32 = 100_000;
/// Sets the global table `cjson`.
///
/// # Safety
/// The state is valid, its stack has room for five values, and its globals may be set.
pub unsafe fn open(state: *mut lua_State) {
    // SAFETY: the caller's promise.
    unsafe {
        push_library(state);
        publish(state, c"cjson");
    }
}

/// Pushes a table of the functions, with options of their own.
///
/// # Safety
/// The stack has room for five values.
unsafe fn push_library(state: *mut lua_State) {
    unsafe extern "C" fn destroy(state: *mut lua_State, library: *mut c_void) {
        // SAFETY: Luau gives the userdata that `push_shared` has filled, once.
        unsafe {
            let library: &mut Shared = &mut *library.cast();
            library.text.free(state);
            library.levels.free(state);
        }
    }
    // SAFETY: the caller's promise; each function expects a `Shared`.
    unsafe {
        let library =
            Shared { options: Options::DEFAULT, text: Buffer::EMPTY, levels: Buffer::EMPTY };
        push_shared(state, library, destroy);
        ffi::lua_createtable(state, 0, 13);
        add_functions(state, &[(c"encode", encode), (c"decode", decode), (c"new", new)]);
        add_functions(state, SETTERS);
        add_texts(state, &[(c"_NAME", c"cjson"), (c"_VERSION", c"2.1.0")]);
        push_null(state);
        ffi::lua_rawsetfield(state, -2, c"null".as_ptr());
        ffi::lua_remove(state, -2);
    }
}

/// `cjson.null`, as a table cannot hold nil.
///
/// # Safety
/// There is room on the stack.
unsafe fn push_null(state: *mut lua_State) {
    // SAFETY: the caller's promise; the pointer is never followed.
    unsafe { ffi::lua_pushlightuserdatatagged(state, std::ptr::null_mut(), 0) };
}

/// `new()`: a table of the same functions whose options are not shared.
unsafe extern "C-unwind" fn new(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        ffi::luaL_checkstack_(state, 5, c"cjson.new".as_ptr());
        push_library(state);
    }
    1
}

/// Checks that there is exactly the argument of `encode` or `decode`.
///
/// # Safety
/// As for `helpers::argument_error`.
unsafe fn need_one_argument(state: *mut lua_State) {
    // SAFETY: the caller's promise.
    unsafe {
        if ffi::lua_gettop(state) != 1 {
            argument_error(state, 1, c"expected 1 argument");
        }
    }
}

/// `encode(value)`: the value's JSON.
unsafe extern "C-unwind" fn encode(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing. The upvalue is the library's.
    unsafe {
        let library: &mut Shared = shared(state);
        need_one_argument(state);
        library.text.clear(state);
        library.levels.clear(state);
        let mut encoder = Encoder { state, library };
        encoder.run();
        ffi::lua_settop(state, 1);
        library.text.push_string(state);
    }
    1
}

struct Encoder<'call> {
    state: *mut lua_State,
    library: &'call mut Shared,
}

impl Encoder<'_> {
    /// Writes the value on top of the stack.
    ///
    /// For each level the stack has its table, then the key (of an object) and the value being
    /// written.
    ///
    /// # Safety
    /// As for `helpers::argument_error`.
    unsafe fn run(&mut self) {
        // SAFETY: the caller's promise. There is always room: `begin` makes it for each level.
        unsafe {
            loop {
                self.begin();
                loop {
                    match self.library.levels.last_mut() {
                        None => return,
                        Some(Level::Array { len, next }) => {
                            if *next > 1 {
                                ffi::lua_pop(self.state, 1);
                            }
                            if next <= len {
                                let index = *next;
                                *next += 1;
                                if index > 1 {
                                    self.library.text.push(self.state, b',');
                                }
                                ffi::lua_rawgeti_(self.state, -1, index);
                                break;
                            }
                            self.library.text.push(self.state, b']');
                        }
                        Some(Level::Object { position }) => {
                            let is_first = *position == 0;
                            if !is_first {
                                ffi::lua_pop(self.state, 2);
                            }
                            *position = ffi::lua_rawiter(self.state, -1, *position);
                            if *position >= 0 {
                                if !is_first {
                                    self.library.text.push(self.state, b',');
                                }
                                self.key();
                                break;
                            }
                            self.library.text.push(self.state, b'}');
                        }
                    }
                    self.library.levels.remove_last();
                }
            }
        }
    }

    /// Writes the value on top of the stack, or the start of a table.
    ///
    /// # Safety
    /// As for [`Encoder::run`].
    unsafe fn begin(&mut self) {
        let state = self.state;
        // SAFETY: the caller's promise.
        unsafe {
            safepoint(state);
            match ffi::lua_type(state, -1) {
                ffi::LUA_TSTRING => self.string(-1),
                ffi::LUA_TNUMBER => self.number(-1),
                ffi::LUA_TBOOLEAN if ffi::lua_toboolean(state, -1) != 0 => {
                    self.library.text.extend(state, b"true")
                }
                ffi::LUA_TBOOLEAN => self.library.text.extend(state, b"false"),
                ffi::LUA_TNIL => self.library.text.extend(state, b"null"),
                ffi::LUA_TLIGHTUSERDATA if ffi::lua_touserdata(state, -1).is_null() => {
                    self.library.text.extend(state, b"null");
                }
                ffi::LUA_TTABLE => {
                    let depth = self.library.levels.len() as i32 + 1;
                    if depth > self.library.options.encode_max_depth || !has_room(state, 3) {
                        luaL_error(
                            state,
                            c"Cannot serialise, excessive nesting (%d)".as_ptr(),
                            depth,
                        );
                    }
                    let len = match self.marked_len() {
                        Some(len) => Some(len),
                        None => self.array_len(),
                    };
                    match len {
                        Some(len) => {
                            self.library.text.push(state, b'[');
                            self.library.levels.push(state, Level::Array { len, next: 1 });
                        }
                        None => {
                            self.library.text.push(state, b'{');
                            self.library.levels.push(state, Level::Object { position: 0 });
                        }
                    }
                }
                _ => self.refuse(-1, c"type not supported"),
            }
        }
    }

    /// The length of a table whose metatable says that it is an array.
    ///
    /// # Safety
    /// As for [`Encoder::run`].
    unsafe fn marked_len(&mut self) -> Option<i32> {
        let state = self.state;
        // SAFETY: the caller's promise; three values.
        unsafe {
            if ffi::lua_getmetatable(state, -1) == 0 {
                return None;
            }
            ffi::lua_rawgetfield(state, -1, IS_ARRAY.as_ptr());
            ffi::lua_rawgetfield(state, ffi::LUA_REGISTRYINDEX, ARRAY_METATABLE.as_ptr());
            let is_marked =
                ffi::lua_toboolean(state, -2) != 0 && ffi::lua_type(state, -1) == ffi::LUA_TTABLE;
            ffi::lua_pop(state, 3);
            is_marked.then(|| ffi::lua_objlen_(state, -1))
        }
    }

    /// The greatest index of a table with only positive integer keys; `None` if it must be an
    /// object.
    ///
    /// # Safety
    /// As for [`Encoder::run`].
    unsafe fn array_len(&mut self) -> Option<i32> {
        let (mut max, mut items, mut position) = (0i32, 0i32, 0);
        // SAFETY: the caller's promise.
        unsafe {
            loop {
                position = ffi::lua_rawiter(self.state, -1, position);
                if position < 0 {
                    break;
                }
                let key = match ffi::lua_type(self.state, -2) {
                    ffi::LUA_TNUMBER => ffi::lua_tonumberx(self.state, -2, std::ptr::null_mut()),
                    _ => 0.0,
                };
                ffi::lua_pop(self.state, 2);
                if key < 1.0 || key.floor() != key {
                    return None;
                }
                if key > f64::from(max) {
                    // Not saturating: an index beyond i32 makes the table an object.
                    max = if key <= f64::from(i32::MAX) { key as i32 } else { i32::MIN };
                }
                items = items.wrapping_add(1);
                if items % ITEMS == 0 {
                    safepoint(self.state);
                }
            }
            let Options { encode_sparse_ratio: ratio, encode_sparse_safe: safe, .. } =
                self.library.options;
            if ratio > 0 && max > items.wrapping_mul(ratio) && max > safe {
                if !self.library.options.encode_sparse_convert {
                    self.refuse(-1, c"excessively sparse array");
                }
                return None;
            }
        }
        (max > 0).then_some(max)
    }

    /// Writes the key below the top of the stack.
    ///
    /// # Safety
    /// As for [`Encoder::run`].
    unsafe fn key(&mut self) {
        // SAFETY: the caller's promise.
        unsafe {
            match ffi::lua_type(self.state, -2) {
                ffi::LUA_TSTRING => {
                    self.string(-2);
                    self.library.text.push(self.state, b':');
                }
                ffi::LUA_TNUMBER => {
                    self.library.text.push(self.state, b'"');
                    self.number(-2);
                    self.library.text.extend(self.state, b"\":");
                }
                _ => self.refuse(-2, c"table key must be a number or string"),
            }
        }
    }

    /// # Safety
    /// There is a string at the index; as for [`Encoder::run`].
    unsafe fn string(&mut self, index: c_int) {
        let (state, text) = (self.state, &mut self.library.text);
        // SAFETY: the caller's promise. Growing the buffer moves no string.
        unsafe {
            let given = string_at(state, index).unwrap_or_default();
            text.reserve(state, given.len() + 2);
            text.push(state, b'"');
            for mut rest in given.chunks(PIECE) {
                if given.len() > PIECE {
                    safepoint(state);
                }
                while let Some(at) = rest.iter().position(|byte| ESCAPES[usize::from(*byte)] != 0) {
                    text.extend(state, &rest[..at]);
                    let byte = rest[at];
                    match ESCAPES[usize::from(byte)] {
                        b'u' => {
                            let hex = |digit: u8| b"0123456789abcdef"[usize::from(digit & 15)];
                            text.extend(
                                state,
                                &[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte)],
                            );
                        }
                        letter => text.extend(state, &[b'\\', letter]),
                    }
                    rest = &rest[at + 1..];
                }
                text.extend(state, rest);
            }
            text.push(state, b'"');
        }
    }

    /// # Safety
    /// There is a number at the index; as for [`Encoder::run`].
    unsafe fn number(&mut self, index: c_int) {
        // SAFETY: the caller's promise.
        unsafe {
            let number = ffi::lua_tonumberx(self.state, index, std::ptr::null_mut());
            let Options {
                encode_invalid_numbers: invalid, encode_number_precision: precision, ..
            } = self.library.options;
            if !number.is_finite() {
                match invalid {
                    InvalidNumbers::Refused => self.refuse(index, c"must not be NaN or Inf"),
                    InvalidNumbers::AsText if number.is_nan() => {
                        return self.library.text.extend(self.state, b"nan");
                    }
                    InvalidNumbers::AsText => {}
                    InvalidNumbers::AsNull => return self.library.text.extend(self.state, b"null"),
                }
            }
            self.library.text.extend(self.state, &format_json(number, precision as usize));
        }
    }

    /// Raises the error that the value at an index cannot be encoded.
    ///
    /// # Safety
    /// As for `helpers::argument_error`.
    unsafe fn refuse(&mut self, index: c_int, reason: &CStr) -> ! {
        // SAFETY: the caller's promise.
        unsafe {
            let found = ffi::lua_typename(self.state, ffi::lua_type(self.state, index));
            luaL_error(self.state, c"Cannot serialise %s: %s".as_ptr(), found, reason.as_ptr())
        }
    }
}

/// The character after the backslash for each byte; 0: no escape, `u`: hexadecimal.
const ESCAPES: [u8; 256] = {
    let mut escapes = [0; 256];
    let mut byte = 0;
    while byte < 0x20 {
        escapes[byte] = b'u';
        byte += 1;
    }
    escapes[0x7f] = b'u';
    escapes[0x08] = b'b';
    escapes[b'\t' as usize] = b't';
    escapes[b'\n' as usize] = b'n';
    escapes[0x0c] = b'f';
    escapes[b'\r' as usize] = b'r';
    escapes[b'"' as usize] = b'"';
    escapes[b'/' as usize] = b'/';
    escapes[b'\\' as usize] = b'\\';
    escapes
};

/// `decode(text)`: the value of a JSON text.
unsafe extern "C-unwind" fn decode(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing. The upvalue is the library's, the text
    // stays on the stack.
    unsafe {
        let library: &mut Shared = shared(state);
        need_one_argument(state);
        let bytes = string_argument(state, 1);
        if bytes.len() >= 2 && (bytes[0] == 0 || bytes[1] == 0) {
            luaL_error(
                state,
                c"%s".as_ptr(),
                c"JSON parser does not support UTF-16 or UTF-32".as_ptr(),
            );
        }
        library.levels.clear(state);
        Decoder { state, library, text: before_nul(bytes), at: 0, fields: 0, elements: 0 }.run();
    }
    1
}

/// A token. A string's value has been pushed.
#[derive(Clone, Copy)]
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    String,
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Error(&'static CStr),
}

impl Token {
    /// Its name in messages.
    fn name(self) -> &'static CStr {
        match self {
            Token::ObjectBegin => c"T_OBJ_BEGIN",
            Token::ObjectEnd => c"T_OBJ_END",
            Token::ArrayBegin => c"T_ARR_BEGIN",
            Token::ArrayEnd => c"T_ARR_END",
            Token::String => c"T_STRING",
            Token::Number(_) => c"T_NUMBER",
            Token::Boolean(_) => c"T_BOOLEAN",
            Token::Null => c"T_NULL",
            Token::Colon => c"T_COLON",
            Token::Comma => c"T_COMMA",
            Token::End => c"T_END",
            Token::Error(what) => what,
        }
    }
}

struct Decoder<'call> {
    state: *mut lua_State,
    library: &'call mut Shared,
    text: &'call [u8],
    at: usize,
    /// Sizes of the last object and array: the next one is often alike, and is created with this
    /// capacity.
    fields: c_int,
    elements: c_int,
}

/// The largest capacity reserved for an expected size.
const ROOM_MAX: c_int = 16;

impl Decoder<'_> {
    /// Pushes the value of the whole text.
    ///
    /// # Safety
    /// As for `helpers::argument_error`.
    unsafe fn run(&mut self) {
        let state = self.state;
        // SAFETY: the caller's promise. There is always room: `descend` makes it for each level.
        unsafe {
            let (mut begin, mut token) = self.next();
            'value: loop {
                safepoint(state);
                match token {
                    Token::String => {}
                    Token::Number(number) => ffi::lua_pushnumber(state, number),
                    Token::Boolean(value) => ffi::lua_pushboolean(state, value.into()),
                    Token::Null => push_null(state),
                    Token::ObjectBegin => {
                        self.descend(3, 0, self.fields);
                        (begin, token) = self.next();
                        if !matches!(token, Token::ObjectEnd) {
                            self.library.levels.push(state, Level::Object { position: 0 });
                            (begin, token) = self.key(begin, token);
                            continue;
                        }
                    }
                    Token::ArrayBegin => {
                        self.descend(2, self.elements, 0);
                        if self.library.options.decode_array_with_array_mt {
                            self.mark_array();
                        }
                        (begin, token) = self.next();
                        if !matches!(token, Token::ArrayEnd) {
                            self.library.levels.push(state, Level::Array { len: 0, next: 1 });
                            continue;
                        }
                    }
                    _ => self.refuse(c"value", begin, token),
                }
                // A value is complete, and possibly the tables around it.
                loop {
                    let Some(level) = self.library.levels.last_mut() else {
                        let (begin, token) = self.next();
                        if !matches!(token, Token::End) {
                            self.refuse(c"the end", begin, token);
                        }
                        return;
                    };
                    match level {
                        Level::Object { position } => {
                            *position = position.saturating_add(1);
                            let fields = *position;
                            ffi::lua_rawset(state, -3);
                            (begin, token) = self.next();
                            match token {
                                Token::ObjectEnd => self.fields = fields.min(ROOM_MAX),
                                Token::Comma => {
                                    (begin, token) = self.next();
                                    (begin, token) = self.key(begin, token);
                                    continue 'value;
                                }
                                _ => self.refuse(c"comma or object end", begin, token),
                            }
                        }
                        Level::Array { next, .. } => {
                            let element = *next;
                            *next += 1;
                            ffi::lua_rawseti_(state, -2, element);
                            (begin, token) = self.next();
                            match token {
                                Token::ArrayEnd => self.elements = element.min(ROOM_MAX),
                                Token::Comma => {
                                    (begin, token) = self.next();
                                    continue 'value;
                                }
                                _ => self.refuse(c"comma or array end", begin, token),
                            }
                        }
                    }
                    self.library.levels.remove_last();
                }
            }
        }
    }

    /// Pushes a table for a new level, with capacity for elements and fields.
    ///
    /// # Safety
    /// As for [`Decoder::run`].
    unsafe fn descend(&mut self, slots: c_int, elements: c_int, fields: c_int) {
        // SAFETY: the caller's promise.
        unsafe {
            let depth = self.library.levels.len() as i32 + 1;
            if depth > self.library.options.decode_max_depth || !has_room(self.state, slots) {
                let format = c"Found too many nested data structures (%d) at character %d";
                luaL_error(self.state, format.as_ptr(), depth, self.at as c_int);
            }
            ffi::lua_createtable(self.state, elements, fields);
        }
    }

    /// Marks the table on top of the stack as an array.
    ///
    /// # Safety
    /// As for [`Decoder::run`].
    #[cold]
    unsafe fn mark_array(&mut self) {
        // SAFETY: one value, which is a table or nil.
        unsafe {
            if !has_room(self.state, 2) {
                luaL_error(self.state, c"max lua stack reached".as_ptr());
            }
            let name = ARRAY_METATABLE.as_ptr();
            ffi::lua_rawgetfield(self.state, ffi::LUA_REGISTRYINDEX, name);
            ffi::lua_setmetatable(self.state, -2);
        }
    }

    /// Handles a field's key, which was pushed, and the colon; returns the first token of its
    /// value.
    ///
    /// # Safety
    /// As for [`Decoder::run`].
    unsafe fn key(&mut self, begin: usize, token: Token) -> (usize, Token) {
        // SAFETY: the caller's promise.
        unsafe {
            if !matches!(token, Token::String) {
                self.refuse(c"object key string", begin, token);
            }
            let (begin, token) = self.next();
            if !matches!(token, Token::Colon) {
                self.refuse(c"colon", begin, token);
            }
            self.next()
        }
    }

    /// Raises the error of an unexpected token.
    ///
    /// # Safety
    /// As for `helpers::argument_error`.
    unsafe fn refuse(&mut self, expected: &CStr, begin: usize, found: Token) -> ! {
        // SAFETY: the caller's promise.
        unsafe {
            let format = c"Expected %s but found %s at character %d";
            luaL_error(
                self.state,
                format.as_ptr(),
                expected.as_ptr(),
                found.name().as_ptr(),
                begin as c_int + 1,
            )
        }
    }

    /// The byte at a position; 0 after the end.
    fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(0)
    }

    /// The next token and its start, or for an error its position.
    ///
    /// # Safety
    /// As for [`Decoder::run`].
    unsafe fn next(&mut self) -> (usize, Token) {
        while matches!(self.byte(self.at), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
            if self.at.is_multiple_of(PIECE) {
                // SAFETY: the caller's promise.
                unsafe { safepoint(self.state) };
            }
        }
        let begin = self.at;
        let (len, token) = match self.byte(begin) {
            0 => (0, Token::End),
            b'{' => (1, Token::ObjectBegin),
            b'}' => (1, Token::ObjectEnd),
            b'[' => (1, Token::ArrayBegin),
            b']' => (1, Token::ArrayEnd),
            b':' => (1, Token::Colon),
            b',' => (1, Token::Comma),
            // SAFETY: the caller's promise.
            b'"' => return unsafe { self.string() },
            b'-' | b'0'..=b'9' => return self.number(),
            _ => {
                let rest = &self.text[begin..];
                let is_invalid_number = is_invalid_number(rest);
                match rest {
                    [b't', b'r', b'u', b'e', ..] => (4, Token::Boolean(true)),
                    [b'f', b'a', b'l', b's', b'e', ..] => (5, Token::Boolean(false)),
                    [b'n', b'u', b'l', b'l', ..] => (4, Token::Null),
                    [b'i' | b'I' | b'n' | b'N' | b'+', ..]
                        if self.library.options.decode_invalid_numbers && is_invalid_number =>
                    {
                        return self.number();
                    }
                    _ => (0, Token::Error(c"invalid token")),
                }
            }
        };
        self.at += len;
        (begin, token)
    }

    fn number(&mut self) -> (usize, Token) {
        let (begin, rest) = (self.at, &self.text[self.at..]);
        if !self.library.options.decode_invalid_numbers && is_invalid_number(rest) {
            return (begin, Token::Error(c"invalid number"));
        }
        match parse_prefix(rest) {
            Some((number, len)) => {
                self.at += len;
                (begin, Token::Number(number))
            }
            None => (begin, Token::Error(c"invalid number")),
        }
    }

    /// Pushes a string whose opening quotation mark is next.
    ///
    /// # Safety
    /// As for [`Decoder::run`].
    unsafe fn string(&mut self) -> (usize, Token) {
        let begin = self.at;
        let content = &self.text[begin + 1..];
        // SAFETY: the caller's promise.
        unsafe {
            let Some(end) = memchr::memchr2(b'"', b'\\', content) else {
                return (self.text.len(), Token::Error(c"unexpected end of string"));
            };
            if content[end] == b'"' {
                push_bytes(self.state, &content[..end]);
                self.at += end + 2;
                return (begin, Token::String);
            }
            self.library.text.clear(self.state);
            self.at += 1;
            let mut looked = self.at;
            loop {
                if self.at - looked > PIECE {
                    looked = self.at;
                    safepoint(self.state);
                }
                let rest = &self.text[self.at..];
                let Some(end) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) else {
                    return (self.text.len(), Token::Error(c"unexpected end of string"));
                };
                self.library.text.extend(self.state, &rest[..end]);
                self.at += end;
                if rest[end] == b'"' {
                    self.library.text.push_string(self.state);
                    self.at += 1;
                    return (begin, Token::String);
                }
                let character = match self.byte(self.at + 1) {
                    literal @ (b'"' | b'\\' | b'/') => literal,
                    b'b' => 0x08,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'f' => 0x0c,
                    b'r' => b'\r',
                    b'u' => {
                        let Some((character, len)) = unicode_escape(&self.text[self.at..]) else {
                            return (self.at, Token::Error(c"invalid unicode escape code"));
                        };
                        self.library
                            .text
                            .extend(self.state, character.encode_utf8(&mut [0; 4]).as_bytes());
                        self.at += len;
                        continue;
                    }
                    _ => return (self.at, Token::Error(c"invalid escape code")),
                };
                self.library.text.push(self.state, character);
                self.at += 2;
            }
        }
    }
}

/// Whether a text begins with a number that C's `strtod` accepts but JSON does not.
fn is_invalid_number(text: &[u8]) -> bool {
    let unsigned = match text {
        [b'+', ..] => return true,
        [b'-', rest @ ..] => rest,
        rest => rest,
    };
    match unsigned {
        [b'0', second, ..] => matches!(second, b'x' | b'X' | b'0'..=b'9'),
        [first, ..] if *first <= b'9' => false,
        [first, second, third, ..] => {
            let word = [*first, *second, *third].map(|byte| byte.to_ascii_lowercase());
            matches!(&word, b"inf" | b"nan")
        }
        _ => false,
    }
}

/// The character of an escape `\uXXXX` or of a pair of surrogates, and the length of its text.
fn unicode_escape(text: &[u8]) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = text.get(at + 2..at + 6)?;
        digits
            .iter()
            .try_fold(0u32, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?))
    };
    let first = unit(0)?;
    if !(0xd800..0xe000).contains(&first) {
        return Some((char::from_u32(first)?, 6));
    }
    let is_pair = first < 0xdc00 && text.get(6..8)? == br"\u";
    let second =
        is_pair.then(|| unit(6)).flatten().filter(|second| (0xdc00..0xe000).contains(second))?;
    Some((char::from_u32(0x10000 + ((first & 0x3ff) << 10 | second & 0x3ff))?, 12))
}
