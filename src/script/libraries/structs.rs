//! `struct`: C structures for scripts, as in Roberto Ierusalimschy's library, which scripts have in
//! Redis.
//!
//! A format is a list of letters, some followed by a number: `>` and `<` set the byte order, `!N`
//! the greatest alignment (1 at first; 8 if N is missing), a space is ignored. An item is aligned
//! to its size, and is
//!
//! - `b B h H l L T`: an integer of 1, 1, 2, 2, 8, 8 and 8 bytes, `iN IN` one of N (4 if missing,
//!   32 at most); small letters are signed;
//! - `f d`: a float, a double; `x`: a zero byte;
//! - `cN`: N bytes (1 if missing); `c0` is a whole string to `pack`, and to `unpack` one of the
//!   length just read;
//! - `s`: a string and a zero byte.
#![allow(unsafe_code)] // Luau's C interface.

use std::ffi::{c_int, c_void};

use mlua::ffi::{self, lua_State, luaL_error};

use super::helpers::{
    Buffer, add_functions, argument_error, need_room, number_argument, optional_integer, publish,
    push_bytes, push_shared, safepoint, shared, string_argument, to_i64, to_u64,
};
use crate::resp::args::before_nul;

/// The bytes of the greatest integer.
const INTEGER_SIZE_MAX: c_int = 32;
/// The alignment that `!` asks for: a double's.
const NATURAL_ALIGNMENT: c_int = 8;

/// Sets the global table `struct`.
///
/// # Safety
/// The state is valid, its stack has room for five values, and its globals may be set.
pub unsafe fn open(state: *mut lua_State) {
    unsafe extern "C" fn destroy(state: *mut lua_State, bytes: *mut c_void) {
        // SAFETY: Luau gives the userdata that `push_shared` has filled, once.
        unsafe { (*bytes.cast::<Buffer<u8>>()).free(state) };
    }
    // SAFETY: the caller's promise; `pack` expects a buffer.
    unsafe {
        push_shared(state, Buffer::<u8>::EMPTY, destroy);
        ffi::lua_createtable(state, 0, 3);
        add_functions(state, &[(c"pack", pack), (c"unpack", unpack), (c"size", size)]);
        publish(state, c"struct");
        ffi::lua_pop(state, 1);
    }
}

/// A format being parsed. A zero byte ends it, as in the C library.
struct Format<'call> {
    state: *mut lua_State,
    rest: &'call [u8],
    big_endian: bool,
    alignment: c_int,
    /// Options parsed so far.
    options: usize,
}

/// Options parsed between two checks for interrupts.
const OPTIONS: usize = 1000;

/// An option and its size in bytes; 0 for options that are settings, and for `c0` and `s`.
struct Item {
    option: u8,
    size: usize,
}

impl<'call> Format<'call> {
    /// The format in the first argument.
    ///
    /// # Safety
    /// As for `helpers::argument_error`; the argument stays on the stack.
    unsafe fn argument(state: *mut lua_State) -> Format<'call> {
        // SAFETY: the caller's promise.
        let text = unsafe { string_argument(state, 1) };
        let rest = before_nul(text);
        Format { state, rest, big_endian: cfg!(target_endian = "big"), alignment: 1, options: 0 }
    }

    /// The next option with its size.
    ///
    /// # Safety
    /// As for `helpers::argument_error`.
    unsafe fn next(&mut self) -> Option<Item> {
        let (&option, rest) = self.rest.split_first()?;
        self.rest = rest;
        self.options += 1;
        // SAFETY: the caller's promise.
        let size = unsafe {
            if self.options.is_multiple_of(OPTIONS) {
                safepoint(self.state);
            }
            match option {
                b'b' | b'B' | b'x' => 1,
                b'h' | b'H' => 2,
                b'f' => 4,
                b'l' | b'L' | b'T' | b'd' => 8,
                b'c' => self.number(1),
                b'i' | b'I' => {
                    let size = self.number(4);
                    if size > INTEGER_SIZE_MAX {
                        let format = c"integral size %d is larger than limit of %d";
                        luaL_error(self.state, format.as_ptr(), size, INTEGER_SIZE_MAX);
                    }
                    size
                }
                _ => 0,
            }
        };
        Some(Item { option, size: size as usize })
    }

    /// Parses the number that follows.
    ///
    /// # Safety
    /// As for `helpers::argument_error`.
    unsafe fn number(&mut self, otherwise: c_int) -> c_int {
        let len = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.rest.split_at(len);
        if digits.is_empty() {
            return otherwise;
        }
        self.rest = rest;
        let number = digits.iter().try_fold(0 as c_int, |number, digit| {
            number.checked_mul(10)?.checked_add(c_int::from(digit - b'0'))
        });
        match number {
            Some(number) => number,
            // SAFETY: the caller's promise.
            None => unsafe {
                luaL_error(self.state, c"%s".as_ptr(), c"integral size overflow".as_ptr())
            },
        }
    }

    /// Bytes of padding between a position and an item to be aligned.
    fn padding(&self, position: usize, item: &Item) -> usize {
        if item.size == 0 || item.option == b'c' {
            return 0;
        }
        let unit = item.size.min(self.alignment as usize);
        // For sizes that are not powers of two this equals the C library's result, though it does
        // not align.
        unit.wrapping_sub(position & (unit - 1)) & (unit - 1)
    }

    /// Applies an option that is a setting.
    ///
    /// # Safety
    /// As for `helpers::argument_error`.
    unsafe fn set(&mut self, option: u8) {
        match option {
            b' ' => {}
            b'>' => self.big_endian = true,
            b'<' => self.big_endian = false,
            // SAFETY: the caller's promise; the text stays on the stack until the error is raised.
            b'!' => unsafe {
                let alignment = self.number(NATURAL_ALIGNMENT);
                if alignment <= 0 || alignment & (alignment - 1) != 0 {
                    luaL_error(self.state, c"alignment %d is not a power of 2".as_ptr(), alignment);
                }
                self.alignment = alignment;
            },
            // SAFETY: as above.
            _ => unsafe {
                let format = c"invalid format option '%c'";
                let message =
                    ffi::lua_pushfstring(self.state, format.as_ptr(), c_int::from(option));
                argument_error(self.state, 1, std::ffi::CStr::from_ptr(message))
            },
        }
    }

    /// Converts between the processor's and the format's byte order.
    fn in_order<const COUNT: usize>(&self, mut bytes: [u8; COUNT]) -> [u8; COUNT] {
        if self.big_endian != cfg!(target_endian = "big") {
            bytes.reverse();
        }
        bytes
    }
}

/// `pack(format, value...)`: the values as bytes.
unsafe extern "C-unwind" fn pack(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing. The upvalue is the library's buffer.
    unsafe {
        let mut format = Format::argument(state);
        let bytes: &mut Buffer<u8> = shared(state);
        bytes.clear(state);
        // As in the C library, a missing value is found to be nil.
        ffi::lua_pushnil(state);
        let mut argument = 2;
        while let Some(item) = format.next() {
            for _ in 0..format.padding(bytes.len(), &item) {
                bytes.push(state, 0);
            }
            match item.option {
                b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                    let number = number_argument(state, argument);
                    argument += 1;
                    let value = if number < 0.0 { to_i64(number) as u64 } else { to_u64(number) };
                    // Bytes beyond 8 are zero, even for a negative number.
                    let mut all = [0; INTEGER_SIZE_MAX as usize];
                    all[..8].copy_from_slice(&value.to_le_bytes());
                    let all = &mut all[..item.size];
                    if format.big_endian {
                        all.reverse();
                    }
                    bytes.extend(state, all);
                }
                b'x' => bytes.push(state, 0),
                b'f' => {
                    let number = number_argument(state, argument) as f32;
                    argument += 1;
                    bytes.extend(state, &format.in_order(number.to_ne_bytes()));
                }
                b'd' => {
                    let number = number_argument(state, argument);
                    argument += 1;
                    bytes.extend(state, &format.in_order(number.to_ne_bytes()));
                }
                b'c' | b's' => {
                    let string = string_argument(state, argument);
                    argument += 1;
                    let size = if item.size == 0 { string.len() } else { item.size };
                    let Some(string) = string.get(..size) else {
                        // The message has the next argument's number, as in the C library.
                        argument_error(state, argument, c"string too short");
                    };
                    bytes.extend(state, string);
                    if item.option == b's' {
                        bytes.push(state, 0);
                    }
                }
                option => format.set(option),
            }
        }
        bytes.push_string(state);
    }
    1
}

/// `unpack(format, bytes [, position])`: the values, and the position of the next one, counted from
/// 1.
unsafe extern "C-unwind" fn unpack(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing. The arguments stay on the stack.
    unsafe {
        let mut format = Format::argument(state);
        let data = string_argument(state, 2);
        let mut position = optional_integer(state, 3, 1) as usize;
        if position == 0 {
            argument_error(state, 3, c"offset must be 1 or greater");
        }
        position -= 1;
        let mut values = 0;
        while let Some(Item { option, mut size }) = format.next() {
            position = position.wrapping_add(format.padding(position, &Item { option, size }));
            let Some(mut bytes) =
                position.checked_add(size).and_then(|end| data.get(position..end))
            else {
                argument_error(state, 2, c"data string too short");
            };
            need_room(state, 2, c"too many results");
            match option {
                b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                    ffi::lua_pushnumber(
                        state,
                        integer(bytes, format.big_endian, option.is_ascii_lowercase()),
                    );
                    values += 1;
                }
                b'x' => {}
                b'f' => {
                    let bytes = bytes.try_into().map_or([0; 4], |bytes| format.in_order(bytes));
                    ffi::lua_pushnumber(state, f32::from_ne_bytes(bytes).into());
                    values += 1;
                }
                b'd' => {
                    let bytes = bytes.try_into().map_or([0; 8], |bytes| format.in_order(bytes));
                    ffi::lua_pushnumber(state, f64::from_ne_bytes(bytes));
                    values += 1;
                }
                b'c' => {
                    if size == 0 {
                        size = pop_size(state, values);
                        values -= 1;
                        match position.checked_add(size).and_then(|end| data.get(position..end)) {
                            Some(counted) => bytes = counted,
                            None => argument_error(state, 2, c"data string too short"),
                        }
                    }
                    push_bytes(state, bytes);
                    values += 1;
                }
                b's' => {
                    let Some(len) = memchr::memchr(0, &data[position..]) else {
                        luaL_error(state, c"%s".as_ptr(), c"unfinished string in data".as_ptr());
                    };
                    push_bytes(state, &data[position..position + len]);
                    size = len + 1;
                    values += 1;
                }
                option => format.set(option),
            }
            position += size;
        }
        // Signed: a position beyond the end is refused only where something is read there.
        ffi::lua_pushnumber(state, position.wrapping_add(1) as isize as f64);
        values + 1
    }
}

/// Pops the size for `c0`: the last of the `values` unpacked so far.
///
/// # Safety
/// As for `helpers::argument_error`.
unsafe fn pop_size(state: *mut lua_State, values: c_int) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        if values == 0 || ffi::lua_isnumber(state, -1) == 0 {
            luaL_error(state, c"%s".as_ptr(), c"format 'c0' needs a previous size".as_ptr());
        }
        let size = to_u64(ffi::lua_tonumberx(state, -1, std::ptr::null_mut())) as usize;
        ffi::lua_pop(state, 1);
        size
    }
}

/// An integer's value, of the lowest 8 bytes.
fn integer(bytes: &[u8], big_endian: bool, signed: bool) -> f64 {
    let add = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    let mut value =
        if big_endian { bytes.iter().fold(0, add) } else { bytes.iter().rev().fold(0, add) };
    if !signed {
        return value as f64;
    }
    // The shift wraps beyond 64 bits, as on x86.
    let mask = u64::MAX.wrapping_shl((bytes.len() as u32).wrapping_mul(8).wrapping_sub(1));
    if value & mask != 0 {
        value |= mask;
    }
    value as i64 as f64
}

/// `size(format)`: the size of its items.
unsafe extern "C-unwind" fn size(state: *mut lua_State) -> c_int {
    // SAFETY: Luau runs this function; it owns nothing.
    unsafe {
        let mut format = Format::argument(state);
        let mut position = 0usize;
        while let Some(item) = format.next() {
            position = position.wrapping_add(format.padding(position, &item));
            match item.option {
                b's' => argument_error(state, 1, c"option 's' has no fixed size"),
                b'c' if item.size == 0 => {
                    argument_error(state, 1, c"option 'c0' has no fixed size")
                }
                // Unknown letters are ignored here.
                option if option.is_ascii_alphanumeric() => {}
                option => format.set(option),
            }
            position = position.wrapping_add(item.size);
        }
        ffi::lua_pushnumber(state, position as f64);
    }
    1
}
