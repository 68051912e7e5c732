//! Shared by the libraries for scripts: registration, arguments, errors, and buffers.
//!
//! They are C functions written against Luau's C interface: mlua's safe interface costs 0.3 us a
//! call, and allocates. Luau raises an error as a C++ exception, which crosses our frames on its
//! way to the script's `pcall`. So no frame that calls into Luau may own memory: bytes are
//! collected in a [`Buffer`] inside a userdata, which the garbage collector frees in any case.
//! Script-controlled sizes (a string, a depth) are checked before memory is allocated for them.
//!
//! Messages are Lua 5.1's (`bad argument #1 to 'decode' (string expected, got nil)`), as in Redis;
//! Luau's own differ. Lua 5.1 names a function as its caller does; we use its own name.
#![allow(unsafe_code)] // Luau's C interface.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;

use mlua::ffi::{
    self, lua_CFunction, lua_Debug, lua_State, lua_callbacks, lua_checkstack, lua_getallocf,
    lua_getinfo, lua_gettop, lua_tolstring, lua_tonumberx, lua_type, lua_typename, luaL_error,
};

/// The stack slots that Lua 5.1 gives a C function. Luau would allow a million, but the libraries'
/// nesting limits depend on it, and replies would differ.
const STACK_SLOTS_MAX: c_int = 8000;
/// The largest result: the largest string that a script can make.
const BUFFER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Parsing a longer text as a number is preceded by a check for interrupts.
pub(in crate::script) const LONG_NUMBER: usize = 1000;
/// Capacity that a buffer keeps between calls.
const BUFFER_BYTES_KEPT: usize = 64 * 1024;

/// A library function and its name in messages.
pub(super) type Entry = (&'static CStr, lua_CFunction);

/// Adds functions to the table on top of the stack. Each has the value below the table as its
/// upvalue.
///
/// # Safety
/// There is such a table and such a value, and room for two more.
pub(super) unsafe fn add_functions(state: *mut lua_State, functions: &[Entry]) {
    for (name, function) in functions {
        // SAFETY: the caller's promise; names are constants.
        unsafe {
            ffi::lua_pushvalue(state, -2);
            ffi::lua_pushcclosurek(state, *function, name.as_ptr(), 1, None);
            ffi::lua_rawsetfield(state, -2, name.as_ptr());
        }
    }
}

/// Sets fields of the table on top of the stack to strings.
///
/// # Safety
/// There is such a table, and room for one more value.
pub(super) unsafe fn add_texts(state: *mut lua_State, texts: &[(&CStr, &CStr)]) {
    for (name, text) in texts {
        // SAFETY: the caller's promise; both are terminated strings.
        unsafe {
            ffi::lua_pushstring_(state, text.as_ptr());
            ffi::lua_rawsetfield(state, -2, name.as_ptr());
        }
    }
}

/// Makes the table on top of the stack read-only and a global variable, and pops it.
///
/// # Safety
/// There is such a table, and globals may be set.
pub(super) unsafe fn publish(state: *mut lua_State, name: &CStr) {
    // SAFETY: the caller's promise.
    unsafe {
        ffi::lua_setreadonly(state, -1, 1);
        ffi::lua_setfield(state, ffi::LUA_GLOBALSINDEX, name.as_ptr());
    }
}

/// Raises `bad argument #N to 'name' (message)`.
///
/// # Safety
/// Called by a C function that Luau runs; no frame up to it owns memory.
pub(super) unsafe fn argument_error(state: *mut lua_State, argument: c_int, message: &CStr) -> ! {
    // SAFETY: level 0 is the running function, level 1 its caller. The texts live as long as the
    // functions run.
    unsafe {
        let mut caller = MaybeUninit::<lua_Debug>::zeroed();
        let called_by_script = lua_getinfo(state, 1, c"s".as_ptr(), caller.as_mut_ptr()) != 0
            && *(*caller.as_ptr()).what != b'C' as c_char;
        let mut own = MaybeUninit::<lua_Debug>::zeroed();
        let named = called_by_script && lua_getinfo(state, 0, c"n".as_ptr(), own.as_mut_ptr()) != 0;
        let name = (*own.as_ptr()).name;
        // In a call by a C function, such as pcall, Lua 5.1 knows no name.
        let name = if named && !name.is_null() { name } else { c"?".as_ptr() };
        luaL_error(
            state,
            c"bad argument #%d to '%s' (%s)".as_ptr(),
            argument,
            name,
            message.as_ptr(),
        )
    }
}

/// Raises the error of a wrong argument type.
///
/// # Safety
/// As for [`argument_error`].
pub(super) unsafe fn type_error(state: *mut lua_State, argument: c_int, expected: &CStr) -> ! {
    // SAFETY: the text that is pushed stays on the stack until the error is raised.
    unsafe {
        let found = lua_typename(state, lua_type(state, argument));
        let format = c"%s expected, got %s".as_ptr();
        let message = ffi::lua_pushfstring(state, format, expected.as_ptr(), found);
        argument_error(state, argument, CStr::from_ptr(message))
    }
}

/// An argument's bytes: a string, or a number, which is converted.
///
/// # Safety
/// As for [`argument_error`]; the bytes live as long as the argument stays on the stack.
pub(super) unsafe fn string_argument<'stack>(
    state: *mut lua_State,
    argument: c_int,
) -> &'stack [u8] {
    // SAFETY: Luau's strings do not move.
    unsafe {
        match string_at(state, argument) {
            Some(bytes) => bytes,
            None => type_error(state, argument, c"string"),
        }
    }
}

/// The bytes of a string or number on the stack; `None` if it is neither.
///
/// # Safety
/// The bytes live as long as the value stays on the stack.
pub(super) unsafe fn string_at<'stack>(
    state: *mut lua_State,
    index: c_int,
) -> Option<&'stack [u8]> {
    let mut len = 0;
    // SAFETY: Luau gives a pointer to `len` bytes (and a zero after them) or null.
    unsafe {
        let bytes = lua_tolstring(state, index, &raw mut len);
        (!bytes.is_null()).then(|| std::slice::from_raw_parts(bytes.cast(), len))
    }
}

/// An argument that is a number or the text of one.
///
/// # Safety
/// As for [`argument_error`].
pub(super) unsafe fn number_argument(state: *mut lua_State, argument: c_int) -> f64 {
    let mut is_number = 0;
    // SAFETY: any index may be asked for.
    unsafe {
        // A text of megabytes takes milliseconds, and there may be a thousand such arguments.
        if lua_type(state, argument) == ffi::LUA_TSTRING
            && ffi::lua_objlen(state, argument) > LONG_NUMBER
        {
            safepoint(state);
        }
        let number = lua_tonumberx(state, argument, &raw mut is_number);
        if is_number == 0 {
            type_error(state, argument, c"number");
        }
        number
    }
}

/// An argument as an integer, truncated as by [`to_i64`].
///
/// # Safety
/// As for [`argument_error`].
pub(super) unsafe fn integer_argument(state: *mut lua_State, argument: c_int) -> i64 {
    // SAFETY: the caller's promise.
    to_i64(unsafe { number_argument(state, argument) })
}

/// An argument as an integer, or a default if it is missing or nil.
///
/// # Safety
/// As for [`argument_error`].
pub(super) unsafe fn optional_integer(
    state: *mut lua_State,
    argument: c_int,
    otherwise: i64,
) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        match lua_type(state, argument) {
            ffi::LUA_TNONE | ffi::LUA_TNIL => otherwise,
            _ => integer_argument(state, argument),
        }
    }
}

/// A double truncated to an integer as on x86: a number out of range becomes the smallest integer.
pub(super) fn to_i64(number: f64) -> i64 {
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    if (-BEYOND..BEYOND).contains(&number) { number as i64 } else { i64::MIN }
}

/// As [`to_i64`], to an unsigned integer: negative numbers wrap, a number that is too large becomes
/// zero.
pub(super) fn to_u64(number: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    if number >= HALF { (to_i64(number - HALF) as u64) ^ (1 << 63) } else { to_i64(number) as u64 }
}

/// Reserves stack slots; false beyond Lua 5.1's limit.
///
/// # Safety
/// Called by a C function that Luau runs.
pub(super) unsafe fn has_room(state: *mut lua_State, slots: c_int) -> bool {
    // SAFETY: as above. Two more than counted: libraries push the text of an error.
    unsafe { lua_gettop(state) + slots <= STACK_SLOTS_MAX && lua_checkstack(state, slots + 2) != 0 }
}

/// Reserves stack slots, or raises `stack overflow (message)`.
///
/// # Safety
/// As for [`argument_error`].
pub(super) unsafe fn need_room(state: *mut lua_State, slots: c_int, message: &CStr) {
    // SAFETY: the caller's promise.
    unsafe {
        if !has_room(state, slots) {
            luaL_error(state, c"stack overflow (%s)".as_ptr(), message.as_ptr());
        }
    }
}

/// Lets the engine interrupt the script here, as Luau does at the end of each loop iteration: a
/// table of tables, each twice in the one above, is small in memory but takes for ever to traverse.
///
/// # Safety
/// As for [`argument_error`]: the interrupt may raise an error.
pub(in crate::script) unsafe fn safepoint(state: *mut lua_State) {
    // SAFETY: the callbacks belong to the state and live as long; -1 says that this is not the
    // collector.
    unsafe {
        if let Some(interrupt) = (*lua_callbacks(state)).interrupt {
            interrupt(state, -1);
        }
    }
}

/// Items in memory from Luau's allocator, which counts towards the scripts' limit. Stored in a
/// userdata whose destructor calls [`Buffer::free`]; dropping a buffer frees nothing.
pub(super) struct Buffer<T> {
    items: *mut T,
    len: usize,
    capacity: usize,
}

impl<T: Copy> Buffer<T> {
    pub(super) const EMPTY: Buffer<T> = Buffer { items: std::ptr::null_mut(), len: 0, capacity: 0 };

    pub(super) fn as_slice(&self) -> &[T] {
        if self.items.is_null() {
            return &[];
        }
        // SAFETY: the first `len` of `capacity` items have been written.
        unsafe { std::slice::from_raw_parts(self.items, self.len) }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut T> {
        // SAFETY: the item has been written, and the borrow is exclusive.
        (self.len > 0).then(|| unsafe { &mut *self.items.add(self.len - 1) })
    }

    pub(super) fn remove_last(&mut self) {
        self.len = self.len.saturating_sub(1);
    }

    /// Empties the buffer, and frees its memory if that is unusually large.
    ///
    /// # Safety
    /// `state` is of the Luau instance that the buffer has always been used with.
    pub(super) unsafe fn clear(&mut self, state: *mut lua_State) {
        self.len = 0;
        if self.capacity * size_of::<T>() > BUFFER_BYTES_KEPT {
            // SAFETY: the caller's promise.
            unsafe { self.free(state) };
        }
    }

    /// # Safety
    /// As for [`Buffer::clear`].
    pub(super) unsafe fn free(&mut self, state: *mut lua_State) {
        // SAFETY: the memory came from this allocator with this size, or is null with size zero.
        unsafe {
            let mut data = std::ptr::null_mut();
            let allocate = lua_getallocf(state, &raw mut data);
            allocate(data, self.items.cast(), self.capacity * size_of::<T>(), 0);
        }
        *self = Self::EMPTY;
    }

    /// Reserves room for `more` items. Raises an error if memory is short.
    ///
    /// # Safety
    /// As for [`Buffer::clear`] and [`argument_error`].
    #[inline]
    pub(super) unsafe fn reserve(&mut self, state: *mut lua_State, more: usize) {
        if self.capacity - self.len < more {
            // SAFETY: the caller's promise.
            unsafe { self.grow(state, more) };
        }
    }

    #[cold]
    unsafe fn grow(&mut self, state: *mut lua_State, more: usize) {
        let size = size_of::<T>();
        // SAFETY: the memory came from this allocator with this size, or is null with size zero.
        // The new size is less than twice the greatest, so nothing overflows.
        unsafe {
            if more > BUFFER_BYTES_MAX / size || self.len + more > BUFFER_BYTES_MAX / size {
                luaL_error(state, c"%s".as_ptr(), c"not enough memory".as_ptr());
            }
            let doubled = (self.capacity * 2).min(BUFFER_BYTES_MAX / size);
            let capacity = (self.len + more).max(doubled).max(256 / size);
            let mut data = std::ptr::null_mut();
            let allocate = lua_getallocf(state, &raw mut data);
            let items: *mut c_void =
                allocate(data, self.items.cast(), self.capacity * size, capacity * size);
            if items.is_null() {
                luaL_error(state, c"%s".as_ptr(), c"not enough memory".as_ptr());
            }
            self.items = items.cast();
            self.capacity = capacity;
        }
    }

    /// # Safety
    /// As for [`Buffer::reserve`].
    #[inline]
    pub(super) unsafe fn push(&mut self, state: *mut lua_State, item: T) {
        // SAFETY: there is room for one item after the last.
        unsafe {
            self.reserve(state, 1);
            self.items.add(self.len).write(item);
        }
        self.len += 1;
    }

    /// # Safety
    /// As for [`Buffer::reserve`].
    #[inline]
    pub(super) unsafe fn extend(&mut self, state: *mut lua_State, items: &[T]) {
        // SAFETY: there is room for the items, and a borrowed slice does not lie in our memory.
        unsafe {
            self.reserve(state, items.len());
            self.items.add(self.len).copy_from_nonoverlapping(items.as_ptr(), items.len());
        }
        self.len += items.len();
    }
}

impl Buffer<u8> {
    /// Pushes the bytes as a string.
    ///
    /// # Safety
    /// There is room on the stack; as for [`argument_error`].
    pub(super) unsafe fn push_string(&self, state: *mut lua_State) {
        // SAFETY: the caller's promise.
        unsafe { push_bytes(state, self.as_slice()) };
    }
}

/// Pushes a string.
///
/// # Safety
/// There is room on the stack; as for [`argument_error`].
#[inline]
pub(super) unsafe fn push_bytes(state: *mut lua_State, bytes: &[u8]) {
    // SAFETY: Luau copies the bytes.
    unsafe { ffi::lua_pushlstring_(state, bytes.as_ptr().cast(), bytes.len()) };
}

/// The value shared by a library's functions: their upvalue, a userdata.
///
/// # Safety
/// The running function has been registered with a `T` as its upvalue, and no other borrow of it is
/// in use.
pub(super) unsafe fn shared<'call, T>(state: *mut lua_State) -> &'call mut T {
    // SAFETY: the caller's promise. The running function keeps its upvalue alive.
    unsafe { &mut *ffi::lua_touserdata(state, ffi::lua_upvalueindex(1)).cast() }
}

/// Pushes a userdata with a value; `destroy` frees it.
///
/// # Safety
/// There is room on the stack. `T` needs an alignment of 8 at most.
pub(super) unsafe fn push_shared<T>(state: *mut lua_State, value: T, destroy: ffi::lua_Destructor) {
    const { assert!(align_of::<T>() <= 8 && !std::mem::needs_drop::<T>()) };
    // SAFETY: Luau gives `size_of::<T>()` bytes, aligned at least for a double.
    unsafe { ffi::lua_newuserdatadtor(state, size_of::<T>(), destroy).cast::<T>().write(value) };
}
