//! Scripts: the code that EVAL, EVALSHA and FCALL run.
//!
//! A body is compiled once (`lua/`), and cached by its bytes and SHA1 (`cache.rs`). A run borrows a
//! [`Host`]: the script's calls to the server (above all `redis.call`) go through the host as
//! encoded requests, and return encoded replies, which become Lua values directly. The script's
//! result becomes the client's reply.
//!
//! This module runs no commands and knows neither clients nor the keyspace. While a script runs,
//! the engine is taken out of [`Scripts`]: a command inside it cannot start another script.
//!
//! A script that runs longer than `busy-reply-threshold` is interrupted at its next safepoint,
//! repeatedly (`watchdog.rs`); each time the host serves other clients, and decides whether the
//! script may continue.
//!
//! `dialect` makes Luau read a source as Lua 5.1 does, `shebang` parses a script's first line,
//! `functions` has libraries of functions and `payload` their dump; `libraries` has Redis's
//! libraries for scripts, and `number` parses JSON's numbers.

pub mod cache;
mod dialect;
pub mod functions;
mod libraries;
pub mod lua;
mod number;
pub mod payload;
pub mod shebang;
mod watchdog;

use std::sync::Arc;

use crate::collections::hash_slot::HashSlot;
use crate::ids::{ClientId, CommandId};
use crate::resp::reply::{OutputBuffer, Protocol};
use crate::resp::request::Range;
use crate::stats::timing::Mark;
use crate::sys::log::Level;
use cache::{Cache, Due, Sha, Source, Written};
use functions::Libraries;
pub use libraries::open_libraries;
use lua::{Failure, Lua};
use shebang::{BadShebang, ScriptFlags};

/// The result of a command called by a script.
pub enum Called {
    /// It ran: its reply is in the output.
    Ran,
    /// It did not run: the error's whole text.
    Refused(Vec<u8>),
}

/// Whether a script may continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    GoOn,
    /// It ends at once with this error.
    End(&'static str),
}

/// A script's access to the server.
pub trait Host {
    /// Runs a request, whose arguments are ranges of the buffer, with replies in this protocol.
    fn call(
        &mut self,
        buffer: &[u8],
        ranges: &[Range],
        protocol: Protocol,
        output: &mut OutputBuffer,
    ) -> Called;

    /// Whether the user may run this request; None if there is no such command.
    fn may_call(&mut self, buffer: &[u8], ranges: &[Range]) -> Option<bool>;

    /// Sets where further writes are repeated until the script ends: in the append-only file, by
    /// replicas, both, or nowhere.
    fn repeat_at(&mut self, log: bool, replicas: bool);

    /// Serves other clients for a moment: the script has been running for longer than
    /// `busy-reply-threshold`.
    fn serve_others(&mut self) -> Verdict;

    /// Writes a line to the server's log.
    fn log(&mut self, level: Level, text: &[u8]);

    /// Waits for input from the client that debugs the script. 0: it is gone.
    fn debug_read(&mut self, _: &mut [u8]) -> usize {
        0
    }

    /// Sends bytes to the client that debugs the script. If it is gone, the next read says so.
    fn debug_write(&mut self, _: &[u8]) {}

    /// The present time, for the debugger: boot-time clock, microseconds.
    fn debug_now_us(&self) -> i64 {
        0
    }
}

/// How a client's scripts are debugged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debugging {
    /// In a child process, which ends with the script: the server goes on, and keeps its data.
    Forked,
    /// The server stands still, and the script's changes stay.
    Synchronous,
}

/// The settings of a run.
pub struct Run<'a, K, A> {
    pub function: Function,
    /// The text in which errors look for names of variables.
    pub source: &'a [u8],
    /// The contents of `KEYS` and `ARGV`.
    pub keys: K,
    pub args: A,
    pub host: &'a mut dyn Host,
    /// The limit of Lua's memory in bytes.
    pub memory_max: usize,
    /// Milliseconds after which the server serves other clients; 0: never.
    pub busy_after_ms: u64,
}

/// A function that a library has registered.
#[derive(Debug)]
pub struct Registered {
    pub name: Box<[u8]>,
    pub description: Option<Box<[u8]>>,
    pub flags: ScriptFlags,
    pub function: Function,
}

/// Whether a text is a valid name of a library or function.
pub fn is_name(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// A compiled chunk, kept by its Lua state until it is released there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(i32);

impl Function {
    /// Of a script that is not compiled yet. Lua ignores its release.
    pub const NONE: Function = Function(0);
}

/// The running script, as commands see it.
#[derive(Debug)]
pub struct Running {
    /// The client that runs it. None: it comes from a file or the primary.
    pub client: Option<ClientId>,
    /// The command that runs it.
    pub command: CommandId,
    /// Started by EVAL or its variants, not by FCALL.
    pub by_eval: bool,
    /// It may not call commands that write.
    pub read_only: bool,
    /// It may write even if memory is short.
    pub allow_oom: bool,
    /// Memory was short when it began.
    pub out_of_memory: bool,
    pub wrote: bool,
    /// It must end with this error.
    pub killed: Option<&'static str>,
    /// Its writes are rolled back when it ends.
    pub rolls_back: bool,
    /// Its writes stay, but are not repeated elsewhere: the process ends.
    pub is_dropped: bool,
    /// It has run for `busy-reply-threshold`: other clients are served, mostly with a BUSY error.
    pub is_busy: bool,
    /// When it becomes busy in a cluster, where other nodes are answered earlier: boot-time clock,
    /// microseconds.
    pub busy_at_us: i64,
    /// Other clients have been served once.
    pub others_heard: bool,
    /// Its SHA1 or the function's name, once it is busy.
    pub name: Box<[u8]>,
    /// In a cluster: the slot of the keys that it has declared or used.
    pub slot: Option<HashSlot>,
    /// Its keys may be in several slots, if this node serves them.
    pub allows_cross_slot: bool,
}

impl Running {
    /// Whether it has run before, in an earlier process or at the primary: it is not refused,
    /// limited, or ended.
    pub fn is_repeated(&self) -> bool {
        self.client.is_none()
    }
}

/// Statistics for INFO.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Bytes held by Lua.
    pub lua_bytes: usize,
    pub scripts: usize,
    /// Bytes of the cached scripts' bodies and indices.
    pub scripts_bytes: usize,
    pub evicted: u64,
    /// Number of libraries, and of their functions.
    pub libraries: usize,
    pub functions: usize,
    /// Bytes of their texts.
    pub libraries_bytes: usize,
}

/// The function that keeps the server busy.
#[derive(Debug)]
pub struct FunctionRun {
    pub name: Box<[u8]>,
    /// The request that called it.
    pub request: Vec<Box<[u8]>>,
    /// Its start.
    pub begun: Mark,
}

/// The server's scripts.
#[derive(Default)]
pub struct Scripts {
    /// None before the first use, and while a script runs.
    engine: Option<Box<Engine>>,
    pub running: Option<Running>,
    /// Set once a running function has become busy.
    pub function: Option<FunctionRun>,
    pub stats: Stats,
    /// See [`Scripts::write`].
    writes: (Written, usize),
    /// Clients whose scripts are debugged.
    pub debugging: Vec<(ClientId, Debugging)>,
    /// Process IDs of debugged scripts.
    pub debugged: Vec<u32>,
    /// DEBUG SET-DISABLE-DENY-SCRIPTS: scripts may call commands denied to them.
    pub denies_nothing: bool,
}

impl Scripts {
    /// Takes the engine out, to run a script or change the cache. None while a script runs.
    /// `version`: for `redis.REDIS_VERSION`. `is_valkey`: whether scripts see Valkey's names and
    /// texts. `deprecated`: whether they see deprecated functions.
    #[inline]
    pub fn take_engine(
        &mut self,
        version: &[u8],
        is_valkey: bool,
        deprecated: bool,
    ) -> Option<Box<Engine>> {
        if self.running.is_some() {
            return None;
        }
        let mut engine = self.engine.take().unwrap_or_else(|| {
            let mut engine = Box::new(Engine::new(deprecated));
            engine.cache.write(self.writes.0, self.writes.1);
            engine
        });
        if engine.version != version || engine.is_valkey != is_valkey {
            engine.set_version(version, is_valkey);
        }
        Some(engine)
    }

    /// The flags that a cached script declares.
    pub fn flags_of_script(&self, sha: &[u8]) -> Option<ScriptFlags> {
        let body = self.engine.as_ref()?.body(sha)?;
        shebang::parse(body).ok().map(|(flags, _)| flags)
    }

    /// The flags that a function declares.
    pub fn flags_of_function(&self, name: &[u8]) -> Option<ScriptFlags> {
        self.engine.as_ref()?.libraries.find(name).map(|callee| callee.flags)
    }

    /// The texts of all libraries of functions.
    pub fn library_texts(&self) -> Vec<Vec<u8>> {
        let libraries = self.engine.iter().flat_map(|engine| engine.libraries.iter());
        libraries.map(|(_, library)| library.code.to_vec()).collect()
    }

    /// Sets which scripts are written to the append-only file and for replicas, and the limit of
    /// their bytes.
    pub fn write(&mut self, writes: Written, limit: usize) {
        self.writes = (writes, limit);
        if let Some(engine) = &mut self.engine {
            engine.cache.write(writes, limit);
        }
    }

    /// Whether scripts must be written.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.cache.is_due())
    }

    /// Takes scripts that must be written, about this number of bytes.
    pub fn take_due(&mut self, bytes_max: usize) -> Due {
        self.engine.as_mut().map(|engine| engine.cache.take_due(bytes_max)).unwrap_or_default()
    }

    /// The scripts for a snapshot.
    pub fn bodies_to_save(&mut self) -> Vec<Arc<[u8]>> {
        self.engine.as_mut().map(|engine| engine.cache.bodies_to_save()).unwrap_or_default()
    }

    /// Puts the engine back.
    pub fn put_engine(&mut self, mut engine: Box<Engine>) {
        self.stats.lua_bytes = engine.lua.memory();
        self.stats.scripts = engine.cache.len();
        self.stats.scripts_bytes = engine.cache.bytes();
        self.stats.evicted += engine.cache.take_evicted();
        self.stats.libraries = engine.libraries.len();
        self.stats.functions = engine.libraries.functions_len();
        self.stats.libraries_bytes = engine.libraries.bytes();
        self.engine = Some(engine);
    }

    /// Whether other clients get a BUSY error.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_busy)
    }
}

/// Limits of compiling, which cannot be interrupted and uses memory outside of Lua.
#[derive(Clone, Copy, Debug)]
pub struct SourceLimits {
    /// Bytes of the source: `script-source-limit`.
    pub source_max: usize,
    /// The limit of Lua's memory including the compiler's: `script-memory-limit`. Unit: bytes.
    pub memory_max: usize,
}

/// The compiler's memory for each byte of source, at most: 94 were measured for `a=a `.
const COMPILER_BYTES: usize = 128;

/// Sources up to this size are compiled under any memory limit; `loadstring` accepts no larger
/// ones.
const SMALL_SOURCE: usize = 64 << 10;

impl SourceLimits {
    /// Checks a source before it is compiled. Errors: a text after `ERR `.
    pub fn check(&self, source: &[u8]) -> Result<(), &'static str> {
        if source.len() > self.source_max {
            return Err("The source is larger than script-source-limit");
        }
        if source.len() > SMALL_SOURCE
            && source.len().saturating_mul(COMPILER_BYTES) > self.memory_max
        {
            return Err("Compiling the source could take more memory than script-memory-limit");
        }
        Ok(())
    }
}

/// Why a body cannot be loaded.
#[derive(Debug, PartialEq, Eq)]
pub enum LoadError {
    Shebang(BadShebang),
    /// It is too large, for this reason.
    Limit(&'static str),
    /// The compiler's message.
    Syntax(Vec<u8>),
}

/// Whether the compiler's message names a limit of Luau's own, which Lua 5.1 does not have or sets
/// elsewhere: the registers of a function, the depth of expressions, jumps.
pub fn is_compiler_limit(message: &[u8]) -> bool {
    let has = |words: &[u8]| memchr::memmem::find(message, words).is_some();
    has(b": Out of ") || has(b": Exceeded ")
}

/// A script to be run.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub function: Function,
    pub flags: ScriptFlags,
    pub sha: Sha,
}

impl Script {
    #[inline]
    pub fn is_compiled(&self) -> bool {
        self.function != Function::NONE
    }
}

/// The Lua state and its compiled scripts.
pub struct Engine {
    lua: Lua,
    version: Vec<u8>,
    is_valkey: bool,
    cache: Cache,
    libraries: Libraries,
}

impl Engine {
    fn new(deprecated: bool) -> Self {
        Engine {
            lua: Lua::new(deprecated),
            version: Vec::new(),
            is_valkey: false,
            cache: Cache::default(),
            libraries: Libraries::default(),
        }
    }

    fn set_version(&mut self, version: &[u8], is_valkey: bool) {
        self.version = version.to_vec();
        self.is_valkey = is_valkey;
        self.lua.set_version(&String::from_utf8_lossy(version), is_valkey);
    }

    /// The script with this body, compiled if new. `keep`: for SCRIPT LOAD, until SCRIPT FLUSH.
    pub fn load(
        &mut self,
        body: &[u8],
        keep: bool,
        limits: SourceLimits,
    ) -> Result<Script, LoadError> {
        if let Some(script) = self.cache.find(body, keep) {
            return self.compiled(script, limits);
        }
        let (function, flags) = self.compile(body, limits)?;
        let source = if keep { Source::Loaded } else { Source::Sent };
        let script = self.cache.insert(body, function, flags, source);
        self.evict();
        Ok(script)
    }

    fn compile(
        &mut self,
        body: &[u8],
        limits: SourceLimits,
    ) -> Result<(Function, ScriptFlags), LoadError> {
        let (flags, start) = shebang::parse(body).map_err(LoadError::Shebang)?;
        limits.check(&body[start..]).map_err(LoadError::Limit)?;
        let compiled = self.lua.compile(c"@user_script", &body[start..]);
        Ok((compiled.map_err(LoadError::Syntax)?, flags))
    }

    fn evict(&mut self) {
        while let Some(forgotten) = self.cache.evict() {
            self.lua.forget(forgotten);
        }
    }

    /// A script that was just found, compiled if it came from a file or the primary and was not
    /// used since.
    #[inline]
    pub fn compiled(&mut self, script: Script, limits: SourceLimits) -> Result<Script, LoadError> {
        match script.is_compiled() {
            true => Ok(script),
            false => self.compile_found(script, limits),
        }
    }

    #[cold]
    fn compile_found(&mut self, script: Script, limits: SourceLimits) -> Result<Script, LoadError> {
        let body = self.cache.body_of_last().unwrap_or_default();
        let (function, _) = self.compile(&body, limits)?;
        self.cache.set_function_of_last(function);
        Ok(Script { function, ..script })
    }

    /// Adds a script from the primary or a file, to be compiled when it is used.
    pub fn restore(&mut self, body: &[u8], source: Source) -> Result<(), LoadError> {
        let (flags, _) = shebang::parse(body).map_err(LoadError::Shebang)?;
        self.cache.restore(body, flags, source);
        self.evict();
        Ok(())
    }

    /// The script with this SHA1, 40 hexadecimal digits in any case.
    pub fn find(&mut self, sha: &[u8]) -> Option<Script> {
        self.cache.find_sha(sha)
    }

    /// Whether a SHA1 is cached.
    pub fn contains(&self, sha: &[u8]) -> bool {
        self.cache.body(sha).is_some()
    }

    /// A script's body.
    pub fn body(&self, sha: &[u8]) -> Option<&[u8]> {
        self.cache.body(sha)
    }

    /// Removes all scripts, and resets Lua's state. `writes`: this is written like the scripts.
    pub fn flush(&mut self, writes: bool) {
        for function in self.cache.clear(writes) {
            self.lua.forget(function);
        }
        self.lua.collect();
    }

    /// Runs the script that was just found and writes its return value. `run`: without its source.
    pub fn run<'k, K, A>(
        &mut self,
        run: Run<'_, K, A>,
        reply: &mut crate::resp::reply::ReplyWriter<'_>,
    ) -> Result<lua::Returned, Failure>
    where
        K: ExactSizeIterator<Item = &'k [u8]>,
        A: ExactSizeIterator<Item = &'k [u8]>,
    {
        let Run { function, keys, args, host, memory_max, busy_after_ms, .. } = run;
        let source = self.cache.last_body();
        self.lua.run(Run { function, source, keys, args, host, memory_max, busy_after_ms }, reply)
    }

    /// Runs a script in the debugger. See [`Lua::debug`].
    pub fn debug<'k, K, A>(
        &mut self,
        body: &[u8],
        limit_us: i64,
        run: Run<'_, K, A>,
        reply: &mut crate::resp::reply::ReplyWriter<'_>,
    ) -> (Result<lua::Returned, Failure>, Vec<u8>)
    where
        K: ExactSizeIterator<Item = &'k [u8]>,
        A: ExactSizeIterator<Item = &'k [u8]>,
    {
        let start = shebang::parse(body).map_or(0, |(_, start)| start);
        self.lua.debug((body, &body[start..]), limit_us, run, reply)
    }

    /// The Lua state and the libraries of functions.
    pub fn functions(&mut self) -> (&mut Lua, &mut Libraries) {
        (&mut self.lua, &mut self.libraries)
    }
}
