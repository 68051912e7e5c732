//! The Lua interpreter: Luau through mlua's `ffi`. Only this folder calls it directly.
//!
//! There is one state: sandboxed (`sandbox.rs`), with the table `redis` (`api.rs`), counted memory
//! (`memory.rs`), and conversions between replies and values (`convert.rs`). A run sets KEYS and
//! ARGV, makes one protected call, and writes the return value. The field names for conversions are
//! kept on the main stack from [`base`] on, and as upvalues of the API functions.
//!
//! # Errors
//!
//! Lua errors are C++ exceptions. They unwind through the functions here, which are
//! `extern "C-unwind"`, running destructors; a Rust panic unwinds through Lua the other way, and no
//! script's `pcall` catches it, as Lua only catches its own exceptions.
//!
//! # Safety
//!
//! The interpreter checks neither the room on its stack nor the indices it is given. An `unsafe fn`
//! here without a section of its own takes a state, and relies on its caller for this:
//!
//! - The state is alive and nobody else uses it: the caller is a method of [`Lua`], which owns it,
//!   or the interpreter, which runs the function on it.
//! - The stack has room. A function that the interpreter calls has room for 20 values above its
//!   arguments (`LUA_MINSTACK`), the main stack for 64. None has more than ten there at once,
//!   unless it asks for room first or its comment counts them.
//! - Negative indices reach only what the function has pushed, or what its documentation says is
//!   on top. Positive ones may lie above the top: a missing argument has the type `LUA_TNONE`.
//!
//! The bytes of a string do not move. They are valid while it is on the stack or an upvalue, and
//! names are constants, which end with a zero.
//!
//! [`Shared`] is used by shared references only. The host is lent for a run and taken out of
//! [`Shared`] while in use, so that two `&mut` never coexist.
#![allow(unsafe_code)] // Luau's C interface.

mod api;
mod convert;
mod debugger;
pub mod functions;
mod memory;
mod messages;
mod names;
mod numbers;
mod patterns;
mod pieces;
mod positions;
mod sandbox;
mod text;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use mlua::ffi::*;

use super::libraries::set_has_arrays;
use super::watchdog::{Interrupt, Watchdog};
use super::{Function, Host, Registered, Run, Verdict, dialect};
use crate::resp::reply::{Protocol, ReplyWriter};
use crate::sys::random;
use api::Exchange;
use debugger::Debugger;
use memory::Memory;
use names::Names;
use positions::Random;

/// The longest string, and the most elements of a table, in Lua.
const STRING_MAX: usize = 1 << 30;
const TABLE_MAX: usize = 1 << 26;
const LARGE_ARGUMENTS: &str = "ERR arguments are too large for a script";

/// Names of fields and globals kept on the stack, in this order.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Name {
    Ok = 1,
    Err,
    Double,
    Map,
    Set,
    BigNumber,
    VerbatimString,
    String,
    Format,
    Ignore,
    Keys,
    Argv,
}

const NAMES: [&CStr; 12] = [
    c"ok",
    c"err",
    c"double",
    c"map",
    c"set",
    c"big_number",
    c"verbatim_string",
    c"string",
    c"format",
    c"ignore_error_stats_update",
    c"KEYS",
    c"ARGV",
];

/// Index of the error handler on the main stack; the names follow it.
const HANDLER: c_int = 1;

/// Index on the main stack of the function that writes a script's return value.
const WRITER: c_int = HANDLER + NAMES.len() as c_int + 1;

/// Index of a name on the main stack.
fn base(name: Name) -> c_int {
    HANDLER + name as c_int
}

/// Index of a name among an API function's upvalues.
fn upvalue(name: Name) -> c_int {
    lua_upvalueindex(name as c_int)
}

/// State shared between [`Lua`] and the interpreter's callbacks.
pub(super) struct Shared {
    host: Cell<Option<NonNull<dyn Host>>>,
    memory: Memory,
    /// The protocol of replies to the script: `redis.setresp`.
    protocol: Cell<Protocol>,
    /// Whether errors have Valkey's texts.
    is_valkey: Cell<bool>,
    /// Whether the version that scripts see is 7.2 or later.
    is_7_2: Cell<bool>,
    /// None while it is being used.
    exchange: Cell<Option<Box<Exchange>>>,
    /// The script must end with this error.
    ending: Cell<Option<&'static str>>,
    /// Source and line of the error that ended the script.
    place: RefCell<Option<(Vec<u8>, i32)>>,
    watchdog: RefCell<Option<Watchdog>>,
    /// The last script reached the memory limit: collect garbage before the next one.
    leaves_garbage: Cell<bool>,
    /// `math.random`.
    random: Cell<Random>,
    /// The source of the running script, and the variables in it, once an error needs them.
    source: Cell<Option<NonNull<[u8]>>>,
    names: RefCell<Option<Names>>,
    /// Functions registered so far by the library being loaded.
    loading: RefCell<Option<Vec<Registered>>>,
    /// The debugger's session. None while it is being used, too.
    debugger: Cell<Option<Box<Debugger>>>,
}

/// The shared state of a Lua state.
unsafe fn shared<'a>(state: *mut lua_State) -> &'a Shared {
    // SAFETY: set when the state was made, to what lives as long as the state.
    unsafe { &*(*lua_callbacks(state)).userdata.cast::<Shared>() }
}

impl Shared {
    fn new() -> Self {
        Shared {
            host: Cell::new(None),
            memory: Memory::new(),
            protocol: Cell::new(Protocol::Resp2),
            is_valkey: Cell::new(false),
            is_7_2: Cell::new(false),
            exchange: Cell::default(),
            ending: Cell::new(None),
            place: RefCell::new(None),
            watchdog: RefCell::new(None),
            leaves_garbage: Cell::new(false),
            // Scripts that name no seed draw other numbers after each start.
            random: Cell::new(Random::from_seed(random::number() as i32)),
            source: Cell::new(None),
            names: RefCell::new(None),
            loading: RefCell::new(None),
            debugger: Cell::new(None),
        }
    }

    /// The text of the server that scripts see.
    fn worded(&self, redis: &'static str, valkey: &'static str) -> &'static str {
        if self.is_valkey.get() { valkey } else { redis }
    }

    /// Calls `f` with the lent host, which is taken out for the call. None if there is no host: no
    /// script runs, or the host is in use.
    fn with_host<R>(&self, f: impl FnOnce(&mut dyn Host) -> R) -> Option<R> {
        let mut host = self.host.take()?;
        let _back = PutBack(&self.host, Some(host));
        // SAFETY: `lend` put the pointer here from a `&mut` that lives until `lend` takes it away,
        // and whoever uses it has taken it out of its place: no second reference exists.
        Some(f(unsafe { host.as_mut() }))
    }

    /// Lends a host while `f` runs.
    fn lend<R>(&self, host: &mut dyn Host, f: impl FnOnce() -> R) -> R {
        let host: NonNull<dyn Host + '_> = NonNull::from(host);
        // SAFETY: only the lifetime changes; the pointer is taken away again before `host` ends.
        let host = unsafe {
            std::mem::transmute::<NonNull<dyn Host + '_>, NonNull<dyn Host + 'static>>(host)
        };
        let _away = PutBack(&self.host, self.host.replace(Some(host)));
        f()
    }

    /// Lends a source for names of variables, until what is returned is dropped.
    fn lend_source<'s>(&'s self, source: &'s [u8]) -> SourceLent<'s> {
        self.source.set(Some(source.into()));
        SourceLent(self)
    }

    /// An error's text in Lua 5.1's words, with the names of variables of the running script.
    unsafe fn familiar<'t>(&self, state: *mut lua_State, text: &'t [u8]) -> Cow<'t, [u8]> {
        messages::familiar(text, &|place, failed, kind| {
            let line = names::line_of(place)?;
            // SAFETY: made of a reference that lives until `SourceLent` takes it away.
            let source = unsafe { self.source.get()?.as_ref() };
            let mut names = self.names.borrow_mut();
            let names = names.get_or_insert_with(|| Names::of(source));
            // SAFETY: the same is expected of the caller.
            let type_of = |path: &[u8]| unsafe { type_of_global(state, path) };
            names.find(source, (line, failed, kind), type_of)
        })
    }
}

/// Lent to the interpreter while it runs.
struct Lent<'a> {
    host: &'a mut dyn Host,
    /// See [`Run::source`].
    source: &'a [u8],
}

/// The type of a global or of a field in it, such as `string.find`. None: there is none.
unsafe fn type_of_global(state: *mut lua_State, path: &[u8]) -> Option<&'static str> {
    // SAFETY: two values, for which room is asked for; only tables are read, without metamethods.
    unsafe {
        let top = lua_gettop(state);
        lua_rawcheckstack(state, 2);
        lua_pushvalue(state, LUA_GLOBALSINDEX);
        for name in path.split(|byte| *byte == b'.') {
            if lua_type(state, -1) != LUA_TTABLE {
                lua_settop(state, top);
                return None;
            }
            push_bytes(state, name.trim_ascii());
            lua_rawget(state, -2);
            lua_remove(state, -2);
        }
        let name = CStr::from_ptr(lua_typename(state, lua_type(state, -1)));
        lua_settop(state, top);
        name.to_str().ok()
    }
}

/// Takes the source away, when dropped.
struct SourceLent<'a>(&'a Shared);

impl Drop for SourceLent<'_> {
    fn drop(&mut self) {
        self.0.source.set(None);
        self.0.names.take();
    }
}

/// Puts back the host, when dropped.
struct PutBack<'a>(&'a Cell<Option<NonNull<dyn Host>>>, Option<NonNull<dyn Host>>);

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Information about a script's return value.
#[derive(Debug, Default)]
pub struct Returned {
    /// Texts of its errors that were not counted yet.
    pub errors: Vec<Vec<u8>>,
    /// It contains errors.
    pub failed: bool,
    /// The approximate bytes of memory of the texts.
    errors_bytes: usize,
}

impl Returned {
    fn add(&mut self, text: Vec<u8>) {
        self.errors_bytes += text.len() + 2 * size_of::<Vec<u8>>();
        self.errors.push(text);
    }

    fn errors_bytes(&self) -> usize {
        self.errors_bytes
    }
}

/// The error that ended a script.
#[derive(Debug)]
pub struct Failure {
    /// The error's text with its code.
    pub text: Vec<u8>,
    /// Where it was raised: source and line.
    pub place: Option<(Vec<u8>, i32)>,
    /// It was counted already, when the command failed that raised it.
    pub is_counted: bool,
}

impl Failure {
    fn plain(text: &str) -> Self {
        Failure { text: text.into(), place: None, is_counted: false }
    }
}

/// Sets the flag that the interpreter checks at its safepoints.
struct InterruptFlag(*mut lua_Callbacks);

// SAFETY: the pointer is used for one atomic store; `Lua` ends the thread that has it before the
// state is closed.
unsafe impl Send for InterruptFlag {}

impl Interrupt for InterruptFlag {
    fn interrupt(&self) {
        // SAFETY: see above.
        unsafe { set_interrupt(self.0, true) }
    }
}

/// Sets or clears the interrupt of a state. `lua.h` promises that this pointer, alone of all
/// callbacks, may be set from any thread while the interpreter runs. The interpreter reads it once
/// at each safepoint, into a local variable, by a plain load of an aligned pointer, which is atomic
/// on every supported processor; the loop around a safepoint calls opaque functions, so the load
/// cannot be optimized away. A store seen late only costs one more interval of the watchdog. The
/// interrupted thread also reads [`Watchdog::meant_this`], an atomic of its own: this store
/// publishes no other data.
///
/// # Safety
/// The callbacks are those of a live state.
unsafe fn set_interrupt(callbacks: *mut lua_Callbacks, on: bool) {
    let pointer = if on { interrupted as *mut c_void } else { null_mut() };
    // SAFETY: the field is an aligned pointer; whoever else uses it only loads it, see above.
    unsafe {
        let field = &raw mut (*callbacks).interrupt;
        AtomicPtr::from_ptr(field.cast::<*mut c_void>()).store(pointer, Ordering::Release);
    }
}

/// Called by the interpreter at a safepoint, once the watchdog has set the flag.
unsafe extern "C-unwind" fn interrupted(state: *mut lua_State, gc: c_int) {
    // SAFETY: the interpreter has reached a safepoint, where errors may be raised.
    unsafe {
        if gc < 0 && must_end(state) {
            raise(state, b"script ended");
        }
    }
}

/// Serves other clients, if the watchdog has set the flag. True if the script must end. Touches
/// nothing of Lua.
unsafe fn must_end(state: *mut lua_State) -> bool {
    // SAFETY: the callbacks belong to the state, which is alive.
    if unsafe { (*lua_callbacks(state)).interrupt.is_none() } {
        return false;
    }
    // SAFETY: as above.
    let set_interrupt = |on| unsafe { set_interrupt(lua_callbacks(state), on) };
    // SAFETY: the state is alive.
    let shared = unsafe { shared(state) };
    if shared.ending.get().is_none() {
        set_interrupt(false);
        let is_meant =
            shared.watchdog.borrow().as_ref().is_some_and(|watchdog| watchdog.meant_this());
        if !is_meant {
            return false;
        }
        match shared.with_host(|host| host.serve_others()) {
            Some(Verdict::End(error)) => shared.ending.set(Some(error)),
            _ => return false,
        }
        // Raised again at every safepoint: a script that catches the error only reaches the next
        // safepoint.
        set_interrupt(true);
    }
    true
}

/// Raises an error of this text.
unsafe fn raise(state: *mut lua_State, text: &[u8]) -> ! {
    // SAFETY: room for the text is asked for; whoever calls this may raise errors.
    unsafe {
        lua_rawcheckstack(state, 1);
        push_bytes(state, text);
        lua_error(state)
    }
}

/// Raises an error with the caller's position before its text.
unsafe fn raise_here(state: *mut lua_State, text: &[u8]) -> ! {
    // SAFETY: two values; whoever calls this may raise errors.
    unsafe {
        luaL_where(state, 1);
        push_bytes(state, text);
        lua_concat(state, 2);
        lua_error(state)
    }
}

/// Pushes a string.
#[inline]
unsafe fn push_bytes(state: *mut lua_State, bytes: &[u8]) {
    // SAFETY: one value; Lua copies the bytes.
    unsafe {
        lua_pushlstring_(state, bytes.as_ptr().cast::<c_char>(), bytes.len());
    }
}

/// The bytes of the string at an index; a number is converted. Valid while it stays on the stack.
unsafe fn bytes_at<'a>(state: *mut lua_State, index: c_int) -> Option<&'a [u8]> {
    let mut len = 0;
    // SAFETY: Lua says where its string is, if there is one, and how long; it does not move.
    unsafe {
        let bytes = lua_tolstring(state, index, &mut len);
        if bytes.is_null() {
            return None;
        }
        Some(std::slice::from_raw_parts(bytes.cast::<u8>(), len))
    }
}

/// The bytes of the string at an index; None for other types. Valid while it stays on the stack.
#[inline]
unsafe fn string_at<'a>(state: *mut lua_State, index: c_int) -> Option<&'a [u8]> {
    let mut len = 0;
    // SAFETY: Lua says where its string is, if there is one, and how long; it does not move.
    unsafe {
        let bytes = lua_tolstringatom(state, index, &mut len, null_mut());
        if bytes.is_null() {
            return None;
        }
        Some(std::slice::from_raw_parts(bytes.cast::<u8>(), len))
    }
}

/// Records where an error was raised, and passes it on.
unsafe extern "C-unwind" fn handle_error(state: *mut lua_State) -> c_int {
    // SAFETY: plain data.
    let mut at: lua_Debug = unsafe { std::mem::zeroed() };
    // SAFETY: Lua fills in `at`, and its texts live as long as the functions that are being called.
    unsafe {
        let is_c = |at: &lua_Debug| !at.what.is_null() && CStr::from_ptr(at.what) == c"C";
        let mut level = 1;
        let mut found = lua_getinfo(state, level, c"sln".as_ptr(), &mut at) != 0;
        // The comparison of `table.sort` is a part of it.
        if found && is_c(&at) && !at.name.is_null() && CStr::from_ptr(at.name) == pieces::LESS_THAN
        {
            level += 1;
            found = lua_getinfo(state, level, c"sl".as_ptr(), &mut at) != 0;
        }
        // An error raised by a function of ours has its caller's position.
        if found && is_c(&at) {
            found = lua_getinfo(state, level + 1, c"sl".as_ptr(), &mut at) != 0;
        }
        let place = (found && !at.source.is_null())
            .then(|| (CStr::from_ptr(at.source).to_bytes().to_vec(), at.currentline));
        *shared(state).place.borrow_mut() = place;
        1
    }
}

/// The only Lua state.
pub struct Lua {
    state: NonNull<lua_State>,
    shared: NonNull<Shared>,
}

// SAFETY: the state and what it shares belong to this value alone; whoever has it uses them from
// one thread at a time.
unsafe impl Send for Lua {}

impl Lua {
    /// A state with all globals of scripts; `deprecated`: including deprecated functions.
    pub fn new(deprecated: bool) -> Self {
        let shared = Box::new(Shared::new());
        let shared = NonNull::from(Box::leak(shared));
        // SAFETY: the memory's place is in `shared`, which outlives the state; the state is new and
        // the stack empty.
        let state = unsafe {
            let memory = &raw mut (*shared.as_ptr()).memory;
            let state = lua_newstate(memory::allocate, memory.cast());
            let state = NonNull::new(state).expect("there is memory for an interpreter");
            (*lua_callbacks(state.as_ptr())).userdata = shared.as_ptr().cast();
            shared.as_ref().memory.set_state(state.as_ptr());
            let watchdog = Watchdog::start(InterruptFlag(lua_callbacks(state.as_ptr())));
            *shared.as_ref().watchdog.borrow_mut() = Some(watchdog);
            sandbox::build(state.as_ptr(), deprecated);
            lua_settop(state.as_ptr(), 0);
            lua_rawcheckstack(state.as_ptr(), 64);
            lua_pushcfunction(state.as_ptr(), handle_error);
            for name in NAMES {
                lua_pushstring_(state.as_ptr(), name.as_ptr());
            }
            api::push_function(state.as_ptr(), c"reply".as_ptr(), convert::write_returned);
            debug_assert_eq!(lua_gettop(state.as_ptr()), WRITER);
            state
        };
        Lua { state, shared }
    }
}

impl Drop for Lua {
    fn drop(&mut self) {
        // The thread goes first: it has a pointer into the state.
        drop(self.shared().watchdog.take());
        // SAFETY: nothing else has the state; what it shares goes after it.
        unsafe {
            lua_close(self.state.as_ptr());
            drop(Box::from_raw(self.shared.as_ptr()));
        }
    }
}

impl Lua {
    fn shared(&self) -> &Shared {
        // SAFETY: it lives as long as this value, and only shared references are made of it.
        unsafe { self.shared.as_ref() }
    }

    /// Sets the Redis version that scripts and libraries see, and whether they see Valkey's names
    /// and texts.
    pub fn set_version(&mut self, version: &str, is_valkey: bool) {
        self.shared().is_valkey.set(is_valkey);
        let state = self.state.as_ptr();
        // SAFETY: the stack is as before when this is done.
        unsafe {
            let top = lua_gettop(state);
            lua_rawgetfield(state, LUA_GLOBALSINDEX, c"redis".as_ptr());
            api::set_version(state, version);
            lua_settop(state, top);
            functions::set_version(state, version);
            let is_redis_8 = api::number_of(version) >= f64::from(0x0008_0000) && !is_valkey;
            set_has_arrays(state, is_redis_8);
        }
    }

    /// Bytes held.
    pub fn memory(&self) -> usize {
        self.shared().memory.used()
    }

    /// Compiles a chunk. Errors: the compiler's message.
    pub fn compile(&mut self, name: &CStr, source: &[u8]) -> Result<Function, Vec<u8>> {
        let state = self.state.as_ptr();
        // SAFETY: the stack is as before when this is done.
        unsafe {
            let result = if load(state, name, source, 0) {
                Ok(Function(lua_ref(state, -1)))
            } else {
                Err(bytes_at(state, -1).unwrap_or_default().to_vec())
            };
            lua_settop(state, -2);
            result
        }
    }

    /// Releases a compiled chunk.
    pub fn forget(&mut self, function: Function) {
        // SAFETY: a reference that was made by `compile`.
        unsafe { lua_unref(self.state.as_ptr(), function.0) }
    }

    /// Collects garbage.
    pub fn collect(&mut self) {
        // SAFETY: nothing runs in the state.
        unsafe { lua_gc(self.state.as_ptr(), LUA_GCCOLLECT, 0) };
    }

    /// Runs a chunk with KEYS and ARGV, and writes its return value.
    #[inline(always)]
    pub fn run<'k, K, A>(
        &mut self,
        run: Run<'_, K, A>,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<Returned, Failure>
    where
        K: ExactSizeIterator<Item = &'k [u8]>,
        A: ExactSizeIterator<Item = &'k [u8]>,
    {
        let Run { function, source, keys, args, host, memory_max, busy_after_ms } = run;
        let state = self.state.as_ptr();
        // SAFETY: the stack is as before when this is done.
        unsafe {
            lua_setreadonly(state, LUA_GLOBALSINDEX, 0);
            let fits = set_global(state, Name::Keys, keys) && set_global(state, Name::Argv, args);
            lua_setreadonly(state, LUA_GLOBALSINDEX, 1);
            if !fits {
                return Err(Failure::plain(LARGE_ARGUMENTS));
            }
            lua_rawgeti_(state, LUA_REGISTRYINDEX, function.0);
            self.call(0, Lent { host, source }, memory_max, busy_after_ms, Some(reply))
        }
    }

    /// Runs a source in the debugger, with KEYS and ARGV. `whole`: the source with its first line.
    /// `limit_us`: microseconds after which it is stopped if it does not stop. Returns the last
    /// lines for the client too.
    pub fn debug<'k, K, A>(
        &mut self,
        (whole, source): (&[u8], &[u8]),
        limit_us: i64,
        run: Run<'_, K, A>,
        reply: &mut ReplyWriter<'_>,
    ) -> (Result<Returned, Failure>, Vec<u8>)
    where
        K: ExactSizeIterator<Item = &'k [u8]>,
        A: ExactSizeIterator<Item = &'k [u8]>,
    {
        let state = self.state.as_ptr();
        let is_valkey = self.shared().is_valkey.get();
        let session = Debugger::new(whole, run.host.debug_now_us(), limit_us, is_valkey);
        // SAFETY: the stack is as before when this is done.
        unsafe {
            let function = match load_with(state, c"@user_script", source, 0, DEBUG_LEVEL) {
                true => Function(lua_ref(state, -1)),
                false => Function::NONE,
            };
            lua_settop(state, -2);
            debugger::begin(state, session);
            let result = self.run(Run { function, ..run }, reply);
            let last = debugger::end(state);
            self.forget(function);
            (result, last)
        }
    }

    /// Calls the function below `arguments` arguments, with a host, and writes its return value,
    /// with the watchdog and the memory limit. Writes nothing on an error.
    unsafe fn call(
        &mut self,
        arguments: c_int,
        lent: Lent<'_>,
        memory_max: usize,
        busy_after_ms: u64,
        reply: Option<&mut ReplyWriter<'_>>,
    ) -> Result<Returned, Failure> {
        let state = self.state.as_ptr();
        let shared = self.shared();
        let mut returned = Returned::default();
        shared.protocol.set(Protocol::Resp2);
        // SAFETY: nothing runs in the state when this is called.
        let collect = || unsafe {
            lua_gc(state, LUA_GCCOLLECT, 0);
        };
        if shared.leaves_garbage.take() {
            collect();
        }
        let Lent { host, source } = lent;
        let _source = shared.lend_source(source);
        let status = shared.lend(host, || {
            if let Some(watchdog) = shared.watchdog.borrow_mut().as_mut() {
                watchdog.begin(busy_after_ms);
            }
            // Memory left by other scripts does not count towards this script's limit.
            shared.memory.set_limit(memory_max.max(shared.memory.used() + (1 << 20)));
            // SAFETY: the caller has pushed the function and its arguments.
            let status = unsafe { lua_pcall(state, arguments, 1, HANDLER) };
            // A script that must end has ended, even if it returned normally.
            if status != LUA_OK || shared.ending.get().is_some() {
                return status;
            }
            // SAFETY: the function's value is on top.
            unsafe {
                match reply {
                    Some(reply) => write_top(state, reply, shared.protocol.get(), &mut returned),
                    None => {
                        lua_settop(state, -2);
                        LUA_OK
                    }
                }
            }
        });
        let met_limit = shared.memory.lift_limit();
        if let Some(watchdog) = shared.watchdog.borrow_mut().as_mut() {
            watchdog.end();
        }
        let ending = shared.ending.take();
        if busy_after_ms != 0 {
            // SAFETY: the callbacks are those of the state, which is alive.
            unsafe { set_interrupt(lua_callbacks(state), false) };
        }
        if status == LUA_OK && ending.is_none() {
            return Ok(returned);
        }
        // SAFETY: the error is on top, or the value of a script that must end.
        let failure = unsafe { take_failure(state, shared, ending) };
        match ending {
            None if met_limit => collect(),
            None => {}
            // Not now: clients may be waiting for the end of a killed script.
            Some(_) => shared.leaves_garbage.set(met_limit),
        }
        Err(failure)
    }
}

/// Writes the value on top of the main stack and pops it; an error is left in its place. Returns
/// Lua's status.
unsafe fn write_top(
    state: *mut lua_State,
    reply: &mut ReplyWriter<'_>,
    protocol: Protocol,
    returned: &mut Returned,
) -> c_int {
    // SAFETY: two values; `writing` outlives the call of the function that uses it.
    unsafe {
        let kind = lua_type(state, -1);
        if kind != LUA_TTABLE {
            convert::write_simple(state, kind, reply, protocol);
            lua_settop(state, -2);
            return LUA_OK;
        }
        let begun = reply.begin();
        let mut writing = convert::Writing { reply, protocol, returned };
        lua_pushvalue(state, WRITER);
        lua_insert(state, -2);
        lua_pushlightuserdata(state, (&raw mut writing).cast());
        let status = lua_pcall(state, 2, 0, HANDLER);
        if status != LUA_OK {
            reply.take_back(begun);
        }
        status
    }
}

/// Pops the error on top of the stack.
unsafe fn take_failure(
    state: *mut lua_State,
    shared: &Shared,
    ending: Option<&'static str>,
) -> Failure {
    // SAFETY: one value above the error; the names are on the main stack.
    unsafe {
        let place = shared.place.take();
        let mut is_counted = false;
        let text = if let Some(ending) = ending {
            ending.as_bytes().to_vec()
        } else if lua_type(state, -1) == LUA_TTABLE {
            let (text, counted) =
                convert::error_of_table(state, base(Name::Err), base(Name::Ignore));
            is_counted = counted;
            text
        } else {
            // The text of any value, without metamethods, which could raise errors.
            let mut text = b"ERR ".to_vec();
            let described = convert::describe(state, -1);
            text.extend_from_slice(&shared.familiar(state, &described));
            text
        };
        lua_settop(state, -2);
        Failure { text, place, is_counted }
    }
}

/// Sets a global to an array of strings. False if it is too large for Lua.
unsafe fn set_global<'k>(
    state: *mut lua_State,
    name: Name,
    values: impl ExactSizeIterator<Item = &'k [u8]>,
) -> bool {
    if values.len() > TABLE_MAX {
        return false;
    }
    // SAFETY: three values; the names are on the main stack. Numbers of elements are limited.
    unsafe {
        lua_pushvalue(state, base(name));
        lua_createtable(state, values.len() as c_int, 0);
        for (index, value) in values.enumerate() {
            if value.len() > STRING_MAX {
                lua_settop(state, -3);
                return false;
            }
            push_bytes(state, value);
            lua_rawseti_(state, -2, index as c_int + 1);
        }
        lua_rawset(state, LUA_GLOBALSINDEX);
        true
    }
}

/// Compiles a source and pushes its function, or the error's text. True if it is a function.
/// Bytecode is treated as source, and does not compile. `globals`: index of the function's table of
/// globals; 0: the state's.
pub(super) unsafe fn load(
    state: *mut lua_State,
    name: &CStr,
    source: &[u8],
    globals: c_int,
) -> bool {
    let level = lua_CompileOptions::default().debugLevel;
    // SAFETY: the same is expected of the caller.
    unsafe { load_with(state, name, source, globals, level) }
}

/// The compiler's level of debugging at which local variables have names.
const DEBUG_LEVEL: c_int = 2;

/// As [`load`], with a level of debugging.
unsafe fn load_with(
    state: *mut lua_State,
    name: &CStr,
    source: &[u8],
    globals: c_int,
    level: c_int,
) -> bool {
    // At higher levels a closure without upvalues is created once and kept, with all it references.
    let mut options = lua_CompileOptions::default();
    options.optimizationLevel = 0;
    options.debugLevel = level;
    // SAFETY: one value; the name ends with a zero, and the code has this length.
    unsafe {
        let code = luau_compile(&dialect::adapted(source), options);
        luau_load(state, name.as_ptr(), code.as_ptr().cast(), code.len(), globals) == 0
    }
}
