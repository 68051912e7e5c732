//! Scripts: what EVAL, EVALSHA and FCALL run.
//!
//! A body comes in, is compiled once (`lua/`), and kept in the cache by its bytes and by its SHA1 (`cache.rs`). A run lends
//! the engine a [`Host`]: whatever the script asks of the server (`redis.call` above all) goes up through it as a request in
//! its wire form, and comes back as the bytes of the reply, which become Lua values without a detour. What the script
//! returns is written to the client's reply.
//!
//! This row runs no commands itself and knows neither clients nor the keyspace. While a script runs, the engine is out of
//! [`Scripts`]: a command that wanted to start another script from inside would find none, so nothing can be entered twice.
//!
//! A script that takes longer than `busy-reply-threshold` is interrupted at its next safepoint, again and again
//! (`watchdog.rs`); each time the host serves other clients, and says whether the script may go on.

mod bit;
pub mod cache;
mod cjson;
mod cmsgpack;
pub mod functions;
mod library;
pub mod lua;
mod number;
pub mod payload;
pub mod shebang;
mod structs;
mod watchdog;

use crate::ids::ClientId;
use crate::resp::reply::{OutputBuffer, Protocol};
use crate::resp::request::Range;
use crate::sys::log::Level;
use cache::{Cache, Sha};
use functions::Libraries;
pub use library::open_libraries;
use lua::{Failure, Lua};
use shebang::{BadShebang, ScriptFlags};

/// What became of a command that a script called.
pub enum Called {
    /// It ran: its reply is in the output.
    Ran,
    /// It was not run, for this reason: a whole error text.
    Refused(Vec<u8>),
}

/// Whether a script may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    GoOn,
    /// It ends at once, with this error.
    End(&'static str),
}

/// The server, as a script sees it.
pub trait Host {
    /// Runs a request, whose arguments are these ranges of the buffer, in a version of the protocol.
    fn call(
        &mut self,
        buffer: &[u8],
        ranges: &[Range],
        protocol: Protocol,
        output: &mut OutputBuffer,
    ) -> Called;

    /// Whether the user may run this request; None if there is no such command.
    fn may_call(&mut self, buffer: &[u8], ranges: &[Range]) -> Option<bool>;

    /// Has what is written from now on be repeated in the append-only log, by replicas, by both, or nowhere, until the script ends.
    fn repeat_at(&mut self, log: bool, replicas: bool);

    /// Serves other clients for a moment: the script has been running for longer than `busy-reply-threshold`.
    fn serve_others(&mut self) -> Verdict;

    /// Writes a line to the server's log.
    fn log(&mut self, level: Level, text: &[u8]);
}

/// How a script is run.
pub struct Run<'a, K, A> {
    pub function: Function,
    /// What `KEYS` and `ARGV` hold.
    pub keys: K,
    pub args: A,
    pub host: &'a mut dyn Host,
    /// Bytes that all of Lua may hold.
    pub memory_max: usize,
    /// Milliseconds after which the server serves others; 0: never.
    pub busy_after_ms: u64,
}

/// A compiled chunk, kept by the Lua state it came from until it is dropped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(i32);

/// The script that runs, as commands see it.
#[derive(Debug)]
pub struct Running {
    pub client: Option<ClientId>,
    /// It was begun by EVAL and its like, not by FCALL.
    pub by_eval: bool,
    /// It may call nothing that writes.
    pub read_only: bool,
    /// It may write whatever memory says.
    pub allow_oom: bool,
    /// There was no memory left when it began.
    pub out_of_memory: bool,
    pub wrote: bool,
    /// It is to end, with this error.
    pub killed: Option<&'static str>,
    /// What it has written is put back when it ends.
    pub rolls_back: bool,
    /// It has been running for so long that others are served meanwhile, and told so.
    pub is_busy: bool,
    /// They have been served once.
    pub others_heard: bool,
}

/// Figures of INFO.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Bytes held by Lua.
    pub lua_bytes: usize,
    pub scripts: usize,
    /// Bytes of the cached scripts' bodies and of what finds them.
    pub scripts_bytes: usize,
    pub evicted: u64,
    /// Libraries of functions, and the functions in them.
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
    /// When it began, as `Timing::mark` tells it.
    pub begun: u64,
}

/// The server's scripts.
#[derive(Default)]
pub struct Scripts {
    /// None before the first use, and while a script runs.
    engine: Option<Box<Engine>>,
    pub running: Option<Running>,
    /// Set once a function that runs has become busy.
    pub function: Option<FunctionRun>,
    pub stats: Stats,
    /// DEBUG SET-DISABLE-DENY-SCRIPTS: scripts may call commands that are denied to them.
    pub denies_nothing: bool,
}

impl Scripts {
    /// Takes the engine out, to run a script or to change the cache. None while a script runs. `version`: what scripts are
    /// told by `redis.REDIS_VERSION`. `deprecated`: they see the functions that Redis calls so.
    #[inline]
    pub fn take_engine(&mut self, version: &[u8], deprecated: bool) -> Option<Box<Engine>> {
        if self.running.is_some() {
            return None;
        }
        let mut engine = self.engine.take().unwrap_or_else(|| Box::new(Engine::new(deprecated)));
        if engine.version != version {
            engine.set_version(version);
        }
        Some(engine)
    }

    /// What a known script says of itself.
    pub fn flags_of_script(&self, sha: &[u8]) -> Option<ScriptFlags> {
        let body = self.engine.as_ref()?.body(sha)?;
        shebang::parse(body).ok().map(|(flags, _)| flags)
    }

    /// What a function says of itself.
    pub fn flags_of_function(&self, name: &[u8]) -> Option<ScriptFlags> {
        self.engine.as_ref()?.libraries.find(name).map(|callee| callee.flags)
    }

    /// The texts of all libraries of functions.
    pub fn library_texts(&self) -> Vec<Vec<u8>> {
        let libraries = self.engine.iter().flat_map(|engine| engine.libraries.iter());
        libraries.map(|(_, library)| library.code.to_vec()).collect()
    }

    /// Puts the engine back.
    pub fn put_engine(&mut self, engine: Box<Engine>) {
        self.stats.lua_bytes = engine.lua.memory();
        self.stats.scripts = engine.cache.len();
        self.stats.scripts_bytes = engine.cache.bytes();
        self.stats.evicted = engine.cache.evicted();
        self.stats.libraries = engine.libraries.len();
        self.stats.functions = engine.libraries.functions_len();
        self.stats.libraries_bytes = engine.libraries.bytes();
        self.engine = Some(engine);
    }

    /// Whether others are to be told that a script keeps the server busy.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_busy)
    }
}

/// What compiling a source may cost. It cannot be interrupted, and its memory is not Lua's.
#[derive(Clone, Copy, Debug)]
pub struct SourceLimits {
    /// Bytes of the source: `script-source-limit`.
    pub source_max: usize,
    /// Bytes that all of Lua may hold, the compiler's memory included: `script-memory-limit`.
    pub memory_max: usize,
}

/// Bytes of memory that the compiler takes for a byte of the source, at most: measured are 94 for `a=a `.
const COMPILER_BYTES: usize = 128;

/// Sources that are compiled whatever the limit of memory is; `loadstring` takes no others.
const SMALL_SOURCE: usize = 64 << 10;

impl SourceLimits {
    /// Refuses a source before it is compiled. Errors are texts behind `ERR `.
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

/// Why a body makes no script.
#[derive(Debug, PartialEq, Eq)]
pub enum LoadError {
    Shebang(BadShebang),
    /// It is too large, for this reason.
    Limit(&'static str),
    /// The compiler's words.
    Syntax(Vec<u8>),
}

/// A script to be run.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub function: Function,
    pub flags: ScriptFlags,
    pub sha: Sha,
}

/// The Lua state and the scripts that were compiled in it.
pub struct Engine {
    lua: Lua,
    version: Vec<u8>,
    cache: Cache,
    libraries: Libraries,
}

impl Engine {
    fn new(deprecated: bool) -> Self {
        Engine {
            lua: Lua::new(deprecated),
            version: Vec::new(),
            cache: Cache::default(),
            libraries: Libraries::default(),
        }
    }

    fn set_version(&mut self, version: &[u8]) {
        self.version = version.to_vec();
        self.lua.set_version(&String::from_utf8_lossy(version));
    }

    /// The script of this body, compiled if it is new. `keep`: it was loaded, and stays until SCRIPT FLUSH.
    pub fn load(
        &mut self,
        body: &[u8],
        keep: bool,
        limits: SourceLimits,
    ) -> Result<Script, LoadError> {
        if let Some(script) = self.cache.find(body, keep) {
            return Ok(script);
        }
        let (flags, start) = shebang::parse(body).map_err(LoadError::Shebang)?;
        limits.check(&body[start..]).map_err(LoadError::Limit)?;
        let function =
            self.lua.compile(c"@user_script", &body[start..]).map_err(LoadError::Syntax)?;
        let script = self.cache.insert(body, function, flags, keep);
        if let Some(forgotten) = self.cache.evict() {
            self.lua.forget(forgotten);
        }
        Ok(script)
    }

    /// The script of this SHA1, 40 hexadecimal digits in any case.
    pub fn find(&mut self, sha: &[u8]) -> Option<Script> {
        self.cache.find_sha(sha)
    }

    /// Whether a SHA1 is known.
    pub fn contains(&self, sha: &[u8]) -> bool {
        self.cache.body(sha).is_some()
    }

    /// A script's body.
    pub fn body(&self, sha: &[u8]) -> Option<&[u8]> {
        self.cache.body(sha)
    }

    /// Forgets all scripts, and all that Lua remembers of them.
    pub fn flush(&mut self) {
        for function in self.cache.clear() {
            self.lua.forget(function);
        }
        self.lua.collect();
    }

    /// Runs a script and writes what it returns.
    pub fn run<'k, K, A>(
        &mut self,
        run: Run<'_, K, A>,
        reply: &mut crate::resp::reply::ReplyWriter<'_>,
    ) -> Result<lua::Returned, Failure>
    where
        K: ExactSizeIterator<Item = &'k [u8]>,
        A: ExactSizeIterator<Item = &'k [u8]>,
    {
        self.lua.run(run, reply)
    }

    /// The Lua state and the libraries of functions.
    pub fn functions(&mut self) -> (&mut Lua, &mut Libraries) {
        (&mut self.lua, &mut self.libraries)
    }
}
