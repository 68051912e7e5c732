//! `cmsgpack`: MessagePack for scripts, as in lua-cmsgpack 0.4.0, which scripts have in Redis.
//!
//! Functions, and tables nested more than 16 deep, are written as nil. A table is an array if its
//! keys are exactly 1 to their number, so the empty table is one. Integers are written in the
//! fewest bytes, other numbers as a float if that is exact. Extension and binary types are not
//! supported.
#![allow(unsafe_code)] // Luau's C interface.

use std::ffi::{CStr, c_int, c_void};

use mlua::ffi::{self, lua_State, luaL_error};

use super::helpers::{
    Buffer, add_functions, add_texts, argument_error, has_room, integer_argument, need_room,
    optional_integer, publish, push_bytes, push_shared, safepoint, shared, string_argument,
    string_at, to_i64,
};

/// Tables nested deeper are written as nil.
const NESTING_MAX: u32 = 16;
/// Items counted between two checks for interrupts.
const ITEMS: c_int = 100_000;

/// State shared by the functions.
struct Shared {
    bytes: Buffer<u8>,
    levels: Buffer<Level>,
}

/// A table being decoded.
#[derive(Clone, Copy)]
enum Level {
    /// The number of missing elements, and the index of the next one.
    Array { missing: u32, next: u32 },
    /// The number of missing values (keys and fields).
    Map { missing: u64 },
}

/// Sets the global table `cmsgpack`.
///
/// # Safety
/// The state is valid, its stack has room for five values, and its globals may be set.
pub unsafe fn open(state: *mut lua_State) {
    unsafe extern "C" fn destroy(state: *mut lua_State, library: *mut c_void) {
        // SAFETY: Luau gives the userdata that `push_shared` has filled, once.
        unsafe {
            let library: &mut Shared = &mut *library.cast();
            library.bytes.free(state);
            library.levels.free(state);
        }
    }
    // SAFETY: the caller's promise; each function expects a `Shared`.
    unsafe {
        push_shared(state, Shared { bytes: Buffer::EMPTY, levels: Buffer::EMPTY }, destroy);
        ffi::lua_createtable(state, 0, 8);
        add_functions(
            state,
            &[
                (c"pack", pack),
                (c"unpack", unpack),
                (c"unpack_one", unpack_one),
                (c"unpack_limit", unpack_limit),
            ],
        );
        add_texts(
            state,
            &[
                (c"_NAME", c"cmsgpack"),
                (c"_VERSION", c"lua-cmsgpack 0.4.0"),
                (c"_COPYRIGHT", c"Copyright (C) 2012, Salvatore Sanfilippo"),
                (c"_DESCRIPTION", c"MessagePack C implementation for Lua"),
            ],
        );
        publish(state, c"cmsgpack");
        ffi::lua_pop(state, 1);
    }
}

/// `pack(value...)`: the values one after the other.
unsafe extern "C-unwind" fn pack(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing. The upvalue is the library's.
    unsafe {
        let arguments = ffi::lua_gettop(state);
        if arguments == 0 {
            argument_error(state, 0, c"MessagePack pack needs input.");
        }
        // The C library copies the arguments.
        if !has_room(state, arguments) {
            argument_error(state, 0, c"Too many arguments for MessagePack pack.");
        }
        let library: &mut Shared = shared(state);
        library.bytes.clear(state);
        let mut packer = Packer { state, bytes: &mut library.bytes };
        for argument in 1..=arguments {
            packer.value(argument, 0);
        }
        library.bytes.push_string(state);
    }
    1
}

struct Packer<'call> {
    state: *mut lua_State,
    bytes: &'call mut Buffer<u8>,
}

impl Packer<'_> {
    /// Writes the value at an index, counted from the bottom of the stack. Recursive up to
    /// [`NESTING_MAX`].
    ///
    /// # Safety
    /// As for `helpers::argument_error`.
    unsafe fn value(&mut self, index: c_int, nesting: u32) {
        let state = self.state;
        // SAFETY: the caller's promise.
        unsafe {
            safepoint(state);
            match ffi::lua_type(state, index) {
                ffi::LUA_TSTRING => {
                    let bytes = string_at(state, index).unwrap_or_default();
                    self.bytes.reserve(state, bytes.len() + 5);
                    match bytes.len() {
                        len @ ..32 => self.bytes.push(state, 0xa0 | len as u8),
                        len @ ..0x100 => self.bytes.extend(state, &[0xd9, len as u8]),
                        len @ ..0x1_0000 => self.header(0xda, &(len as u16).to_be_bytes()),
                        len => self.header(0xdb, &(len as u32).to_be_bytes()),
                    }
                    self.bytes.extend(state, bytes);
                }
                ffi::LUA_TBOOLEAN => {
                    self.bytes.push(state, 0xc2 | ffi::lua_toboolean(state, index) as u8)
                }
                ffi::LUA_TNUMBER => {
                    self.number(ffi::lua_tonumberx(state, index, std::ptr::null_mut()))
                }
                ffi::LUA_TTABLE if nesting < NESTING_MAX => self.table(index, nesting),
                _ => self.bytes.push(state, 0xc0),
            }
        }
    }

    /// # Safety
    /// As for [`Packer::value`].
    unsafe fn header(&mut self, first: u8, rest: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe {
            self.bytes.push(self.state, first);
            self.bytes.extend(self.state, rest);
        }
    }

    /// # Safety
    /// As for [`Packer::value`].
    unsafe fn number(&mut self, number: f64) {
        let integer = to_i64(number);
        // SAFETY: the caller's promise.
        unsafe {
            if integer as f64 == number && number.is_finite() {
                match integer {
                    -32..=0x7f => self.bytes.push(self.state, integer as u8),
                    0x80..=0xff => self.header(0xcc, &[integer as u8]),
                    0x100..=0xffff => self.header(0xcd, &(integer as u16).to_be_bytes()),
                    0x1_0000..=0xffff_ffff => self.header(0xce, &(integer as u32).to_be_bytes()),
                    0x1_0000_0000.. => self.header(0xcf, &integer.to_be_bytes()),
                    -0x80..=-33 => self.header(0xd0, &[integer as u8]),
                    -0x8000..=-0x81 => self.header(0xd1, &(integer as i16).to_be_bytes()),
                    -0x8000_0000..=-0x8001 => self.header(0xd2, &(integer as i32).to_be_bytes()),
                    _ => self.header(0xd3, &integer.to_be_bytes()),
                }
            } else if f64::from(number as f32) == number {
                self.header(0xca, &(number as f32).to_be_bytes());
            } else {
                self.header(0xcb, &number.to_be_bytes());
            }
        }
    }

    /// # Safety
    /// As for [`Packer::value`].
    unsafe fn table(&mut self, index: c_int, nesting: u32) {
        let state = self.state;
        // SAFETY: the caller's promise. The table does not change while it is walked: nothing of a
        // script runs.
        unsafe {
            need_room(state, 3, c"in function table_is_an_array");
            let (mut count, is_array) = self.count(index);
            if is_array {
                match count {
                    0..16 => self.bytes.push(state, 0x90 | count as u8),
                    16..0x1_0000 => self.header(0xdc, &(count as u16).to_be_bytes()),
                    _ => self.header(0xdd, &(count as u32).to_be_bytes()),
                }
                for element in 1..=count {
                    ffi::lua_rawgeti_(state, index, element);
                    self.value(ffi::lua_gettop(state), nesting + 1);
                    ffi::lua_pop(state, 1);
                }
                return;
            }
            let mut position = 0;
            if count < 0 {
                count = 0;
                loop {
                    position = ffi::lua_rawiter(state, index, position);
                    if position < 0 {
                        break;
                    }
                    ffi::lua_pop(state, 2);
                    count += 1;
                    if count % ITEMS == 0 {
                        safepoint(state);
                    }
                }
            }
            match count {
                0..16 => self.bytes.push(state, 0x80 | count as u8),
                16..0x1_0000 => self.header(0xde, &(count as u16).to_be_bytes()),
                _ => self.header(0xdf, &(count as u32).to_be_bytes()),
            }
            position = 0;
            loop {
                position = ffi::lua_rawiter(state, index, position);
                if position < 0 {
                    break;
                }
                let top = ffi::lua_gettop(state);
                self.value(top - 1, nesting + 1);
                self.value(top, nesting + 1);
                ffi::lua_pop(state, 2);
            }
        }
    }

    /// The number of a table's items, if all keys are positive integers (else -1), and whether the
    /// keys are exactly 1 to that number.
    ///
    /// # Safety
    /// As for [`Packer::value`].
    unsafe fn count(&mut self, index: c_int) -> (c_int, bool) {
        let (mut count, mut max, mut position) = (0, 0.0, 0);
        // SAFETY: the caller's promise.
        unsafe {
            loop {
                position = ffi::lua_rawiter(self.state, index, position);
                if position < 0 {
                    return (count, f64::from(count) == max);
                }
                let key = match ffi::lua_type(self.state, -2) {
                    ffi::LUA_TNUMBER => ffi::lua_tonumberx(self.state, -2, std::ptr::null_mut()),
                    _ => 0.0,
                };
                ffi::lua_pop(self.state, 2);
                if key <= 0.0 || f64::from(key as i32) != key {
                    return (-1, false);
                }
                max = key.max(max);
                count += 1;
                if count % ITEMS == 0 {
                    safepoint(self.state);
                }
            }
        }
    }
}

/// `unpack(bytes)`: all values that were packed.
unsafe extern "C-unwind" fn unpack(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe { unpack_some(state, 0, 0) }
}

/// `unpack_one(bytes [, offset])`: the offset of the next value or -1, and the value at the offset.
unsafe extern "C-unwind" fn unpack_one(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        let offset = optional_integer(state, 2, 0);
        unpack_some(state, 1, offset)
    }
}

/// `unpack_limit(bytes, limit [, offset])`: the offset of the next value or -1, and up to `limit`
/// values from the offset on.
unsafe extern "C-unwind" fn unpack_limit(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        let limit = integer_argument(state, 2);
        let offset = optional_integer(state, 3, 0);
        unpack_some(state, limit, offset)
    }
}

/// Decodes values; with neither limit nor offset all of them, without the next offset.
///
/// # Safety
/// Called by a C function that Luau runs; no frame up to it owns memory.
unsafe fn unpack_some(state: *mut lua_State, limit: i64, offset: i64) -> c_int {
    // SAFETY: the caller's promise; the argument stays on the stack while it is read.
    unsafe {
        if ffi::lua_gettop(state) > 1 {
            ffi::lua_settop(state, 1);
        }
        let bytes = string_argument(state, 1);
        let (int_offset, int_len) = (offset as c_int, bytes.len() as c_int);
        if offset < 0 || limit < 0 {
            // The message shows the length as limit, as in the C library.
            let format = c"Invalid request to unpack with offset of %d and limit of %d.";
            luaL_error(state, format.as_ptr(), int_offset, int_len);
        }
        let Some(rest) = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)) else {
            luaL_error(
                state,
                c"Start offset %d greater than input length %d.".as_ptr(),
                int_offset,
                int_len,
            );
        };
        let all = limit == 0 && offset == 0;
        let library: &mut Shared = shared(state);
        library.levels.clear(state);
        let mut unpacker = Unpacker { state, levels: &mut library.levels, rest, indexes: 0 };
        let mut values = 0;
        while !unpacker.rest.is_empty() && (all || values < limit) {
            if let Err(message) = unpacker.value() {
                luaL_error(state, c"%s".as_ptr(), message.as_ptr());
            }
            values += 1;
        }
        if all {
            return values as c_int;
        }
        need_room(state, 1, c"in function mp_unpack_full");
        let end = match unpacker.rest.len() {
            0 => -1.0,
            left => (bytes.len() - left) as f64,
        };
        ffi::lua_pushnumber(state, end);
        ffi::lua_insert(state, 2);
        values as c_int + 1
    }
}

const MISSING: &CStr = c"Missing bytes in input.";
const BAD_FORMAT: &CStr = c"Bad data format in input.";
const TOO_MANY: &CStr = c"too many return values at once; use unpack_one or unpack_limit instead.";

struct Unpacker<'call> {
    state: *mut lua_State,
    levels: &'call mut Buffer<Level>,
    rest: &'call [u8],
    /// Stack slots that the C library would use for array indices: they count towards its limit.
    indexes: c_int,
}

impl Unpacker<'_> {
    /// Pushes the next value. Not recursive, as the sender chooses the nesting.
    ///
    /// # Safety
    /// As for `helpers::argument_error`.
    unsafe fn value(&mut self) -> Result<(), &'static CStr> {
        // SAFETY: the caller's promise.
        unsafe {
            loop {
                safepoint(self.state);
                self.begin()?;
                // A value is complete, unless it is a table with missing items, and possibly the
                // tables around it.
                loop {
                    let Some(level) = self.levels.last_mut() else {
                        return Ok(());
                    };
                    let is_complete = match level {
                        Level::Array { missing, .. } => *missing == 0,
                        Level::Map { missing } => *missing == 0,
                    };
                    if !is_complete {
                        break;
                    }
                    if matches!(level, Level::Array { .. }) {
                        self.indexes -= 1;
                    }
                    self.levels.remove_last();
                    self.store();
                }
            }
        }
    }

    /// Stores the value on top of the stack in the table below it, if that has missing items.
    ///
    /// # Safety
    /// As for [`Unpacker::value`].
    unsafe fn store(&mut self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.levels.last_mut() {
                None => {}
                Some(Level::Array { missing, next }) => {
                    ffi::lua_rawseti_(self.state, -2, *next as c_int);
                    *next += 1;
                    *missing -= 1;
                }
                Some(Level::Map { missing }) => {
                    *missing -= 1;
                    if *missing % 2 == 0 {
                        // Not raw, so that a nil or NaN key raises an error.
                        ffi::lua_settable(self.state, -3);
                    }
                }
            }
        }
    }

    /// Takes bytes off the rest.
    fn take<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], &'static CStr> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(MISSING)?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// Pushes the next value and stores it, or pushes an empty table to be filled.
    ///
    /// # Safety
    /// As for [`Unpacker::value`].
    unsafe fn begin(&mut self) -> Result<(), &'static CStr> {
        let state = self.state;
        let [first] = self.take()?;
        // SAFETY: the caller's promise.
        unsafe {
            need_room(state, self.indexes + 1, TOO_MANY);
            let number = match first {
                0x00..=0x7f => f64::from(first),
                0xe0..=0xff => f64::from(first as i8),
                0xcc => f64::from(u8::from_be_bytes(self.take()?)),
                0xcd => f64::from(u16::from_be_bytes(self.take()?)),
                0xce => f64::from(u32::from_be_bytes(self.take()?)),
                // The C library converts unsigned integers to signed ones.
                0xcf | 0xd3 => i64::from_be_bytes(self.take()?) as f64,
                0xd0 => f64::from(i8::from_be_bytes(self.take()?)),
                0xd1 => f64::from(i16::from_be_bytes(self.take()?)),
                0xd2 => f64::from(i32::from_be_bytes(self.take()?)),
                0xca => f64::from(f32::from_be_bytes(self.take()?)),
                0xcb => f64::from_be_bytes(self.take()?),
                0x80..=0x8f => return self.map(u32::from(first & 15)),
                0xde => {
                    let len = u16::from_be_bytes(self.take()?);
                    return self.map(len.into());
                }
                0xdf => {
                    let len = u32::from_be_bytes(self.take()?);
                    return self.map(len);
                }
                0x90..=0x9f => return self.array(u32::from(first & 15)),
                0xdc => {
                    let len = u16::from_be_bytes(self.take()?);
                    return self.array(len.into());
                }
                0xdd => {
                    let len = u32::from_be_bytes(self.take()?);
                    return self.array(len);
                }
                0xa0..=0xbf => return self.string(u32::from(first & 31)),
                0xd9 => {
                    let len = u8::from_be_bytes(self.take()?);
                    return self.string(len.into());
                }
                0xda => {
                    let len = u16::from_be_bytes(self.take()?);
                    return self.string(len.into());
                }
                0xdb => {
                    let len = u32::from_be_bytes(self.take()?);
                    return self.string(len);
                }
                0xc0 => {
                    ffi::lua_pushnil(state);
                    self.store();
                    return Ok(());
                }
                0xc2 | 0xc3 => {
                    ffi::lua_pushboolean(state, c_int::from(first & 1));
                    self.store();
                    return Ok(());
                }
                0xc1 | 0xc4..=0xc9 | 0xd4..=0xd8 => return Err(BAD_FORMAT),
            };
            ffi::lua_pushnumber(state, number);
            self.store();
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Unpacker::value`].
    unsafe fn string(&mut self, len: u32) -> Result<(), &'static CStr> {
        let (bytes, rest) = self.rest.split_at_checked(len as usize).ok_or(MISSING)?;
        self.rest = rest;
        // SAFETY: the caller's promise.
        unsafe {
            push_bytes(self.state, bytes);
            self.store();
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Unpacker::value`].
    unsafe fn array(&mut self, len: u32) -> Result<(), &'static CStr> {
        // SAFETY: the caller's promise. The declared length is not reserved: the elements may be
        // missing.
        unsafe {
            ffi::lua_createtable(self.state, 0, 0);
            need_room(self.state, self.indexes + 1, c"in function mp_decode_to_lua_array");
            self.levels.push(self.state, Level::Array { missing: len, next: 1 });
        }
        self.indexes += 1;
        Ok(())
    }

    /// # Safety
    /// As for [`Unpacker::value`].
    unsafe fn map(&mut self, len: u32) -> Result<(), &'static CStr> {
        // SAFETY: the caller's promise.
        unsafe {
            ffi::lua_createtable(self.state, 0, 0);
            self.levels.push(self.state, Level::Map { missing: u64::from(len) * 2 });
        }
        Ok(())
    }
}
