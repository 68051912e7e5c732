//! Bug reports in the log: for fatal signals, panics, and a loop that hangs.
//!
//! A signal handler may interrupt anything, even the allocator while it holds locks. So handlers
//! here allocate nothing: they write with plain write(2) calls to a file they open themselves, and
//! store the stack's return addresses in a static array. Finding the functions' names allocates;
//! this is done by a reporter thread that waits for requests. After a crash the handler waits for
//! the reporter, though not for ever (the crash may have left a lock taken that it needs): by then
//! the addresses are in the log with the program's base address, so that `addr2line` can find the
//! names later. After a watchdog's report the process continues.
//!
//! Only the program calls [`install`]; a server inside another program's process leaves its signals
//! alone. Signals belong to the process, and so does all state here.
#![allow(unsafe_code)] // sigaction, sigaltstack, setitimer; unwinding from within a handler.

use std::backtrace::Backtrace;
use std::ffi::{CString, c_int, c_void};
use std::fmt::Write as _;
use std::io::{self, Read};
use std::os::fd::IntoRawFd;
use std::panic::PanicHookInfo;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::clock::Clock;
use crate::sys::log::{Level, Logger};
use crate::sys::system;

/// The most stack frames stored.
const FRAMES_MAX: usize = 100;
/// The longest time that a handler waits for the functions' names. Unit: milliseconds.
const NAMES_WAIT_MS: u32 = 5000;
/// Size of the main thread's signal stack: handlers must work when its stack has overflowed.
const SIGNAL_STACK_BYTES: usize = 64 << 10;

const START: &str = "=== LATCHKEY BUG REPORT START: copy from here ===";
const END: &str = "=== LATCHKEY BUG REPORT END: copy up to here ===";
const STACK: &str = "------ STACK TRACE ------";

/// Signals by which a faulty program ends.
const FATAL: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT];

// ---- data for handlers --------------------------------------------------------------------------

/// Prepared data for handlers.
struct Ready {
    logger: Logger,
    /// The log's file; None: standard output.
    log_path: Option<CString>,
    /// The program's base address.
    base: usize,
    main_thread: ThreadHandle,
    /// The pipe that wakes the reporter: one byte a request.
    requests: c_int,
}

/// A number or a pointer, depending on the C library.
struct ThreadHandle(libc::pthread_t);

// SAFETY: it is only passed back to the system, which accepts it from any thread.
unsafe impl Send for ThreadHandle {}
// SAFETY: the same.
unsafe impl Sync for ThreadHandle {}

static READY: OnceLock<Ready> = OnceLock::new();
/// Whether crashes are reported: `crash-log-enabled`.
static ENABLED: AtomicBool = AtomicBool::new(true);
/// The stack stored last by a handler.
static FRAMES: [AtomicUsize; FRAMES_MAX] = [const { AtomicUsize::new(0) }; FRAMES_MAX];
static FRAMES_LEN: AtomicUsize = AtomicUsize::new(0);
/// The stored stack has not been reported yet.
static IS_PENDING: AtomicBool = AtomicBool::new(false);
/// The watchdog's period in milliseconds; 0: off.
static WATCHDOG_MS: AtomicU32 = AtomicU32::new(0);

/// Requests to the reporter.
const CRASH: u8 = b'c';
const WATCHDOG: u8 = b'w';

// ---- setting up ---------------------------------------------------------------------------------

/// Starts to report crashes of this process to a log. The main thread calls this once. Errors: the
/// reporter thread cannot be created.
pub fn install(logger: Logger) -> io::Result<()> {
    let (mut reader, writer) = io::pipe()?;
    let ready = Ready {
        log_path: logger.path().map(|path| CString::new(path).unwrap_or_default()),
        logger,
        base: system::program_base(),
        // SAFETY: pthread_self takes nothing.
        main_thread: ThreadHandle(unsafe { libc::pthread_self() }),
        requests: writer.into_raw_fd(),
    };
    let ready = READY.get_or_init(|| ready);
    std::thread::Builder::new().name("crash-report".into()).spawn(move || {
        let mut request = [0];
        while reader.read_exact(&mut request).is_ok() {
            report_stack(ready, request[0]);
        }
    })?;
    use_own_signal_stack()?;
    // The first unwinding allocates.
    keep_stack(ptr::null_mut());
    std::panic::set_hook(Box::new(report_panic));
    set_fatal_handlers(ENABLED.load(Ordering::Relaxed));
    Ok(())
}

/// Switches crash reports on or off: `crash-log-enabled`.
pub fn enable(enabled: bool) {
    if ENABLED.swap(enabled, Ordering::Relaxed) != enabled && READY.get().is_some() {
        set_fatal_handlers(enabled);
    }
}

/// Gives the calling thread a signal stack that is never freed.
fn use_own_signal_stack() -> io::Result<()> {
    let stack: &'static mut [u8] = Vec::leak(vec![0; SIGNAL_STACK_BYTES]);
    let stack =
        libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    // SAFETY: the memory is never freed or used for anything else.
    match unsafe { libc::sigaltstack(&stack, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_fatal_handlers(enabled: bool) {
    for signal in FATAL {
        // A second fault, inside the handler, ends the process at once.
        let flags = libc::SA_NODEFER | libc::SA_RESETHAND | libc::SA_ONSTACK;
        set_handler(signal, enabled.then_some(on_fatal_signal as Handler), flags);
    }
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Sets a signal's handler; None: the default.
fn set_handler(signal: c_int, handler: Option<Handler>, flags: c_int) {
    // SAFETY: all-zero bytes are a valid `sigaction`: the default action, no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    if let Some(handler) = handler {
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags | libc::SA_SIGINFO;
    }
    // SAFETY: the handlers below do only what a handler may do, see the module.
    unsafe { libc::sigaction(signal, &action, ptr::null_mut()) };
}

// ---- inside a handler: no allocation, no locks --------------------------------------------------

/// A line in a fixed buffer.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Line {
    /// A line with the same prefix as Redis's lines from handlers: the time without a date.
    fn new() -> Self {
        let mut line = Line { bytes: [0; 512], len: 0 };
        let (pid, seconds) = (std::process::id(), Clock::System.now().unix_seconds());
        let _ = write!(line, "{pid}:signal-handler ({seconds}) ");
        line
    }
}

impl std::fmt::Write for Line {
    /// Truncates a longer text.
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.len..];
        let taken = text.len().min(room.len());
        room[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        Ok(())
    }
}

/// The log file, opened by a handler. Never closed, as the process ends.
struct RawLog(c_int);

impl RawLog {
    fn open(ready: &Ready) -> Self {
        let Some(path) = &ready.log_path else { return RawLog(libc::STDOUT_FILENO) };
        let flags = libc::O_APPEND | libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC;
        // SAFETY: the path ends with a NUL and lives as long as the process.
        RawLog(unsafe { libc::open(path.as_ptr(), flags, 0o644) })
    }

    fn line(&self, text: std::fmt::Arguments<'_>) {
        let mut line = Line::new();
        let _ = line.write_fmt(text);
        line.len = line.len.min(line.bytes.len() - 1);
        line.bytes[line.len] = b'\n';
        // SAFETY: the bytes are initialised and as many as said. A failure cannot be reported.
        unsafe { libc::write(self.0, line.bytes.as_ptr().cast(), line.len + 1) };
    }
}

/// Stores the calling thread's stack, from the code on that a handler with this `context` has
/// interrupted, or wholly if that is not found. After a stack overflow these are the innermost
/// frames.
fn keep_stack(context: *mut c_void) {
    let mut len = 0;
    let kept = |address| {
        FRAMES[len].store(address, Ordering::Relaxed);
        len += 1;
        len < FRAMES_MAX
    };
    // SAFETY: a context that is not null is the handler's.
    if !context.is_null() && unsafe { system::trace(context, kept) } {
        FRAMES_LEN.store(len, Ordering::Release);
        return;
    }
    let interrupted = if context.is_null() { 0 } else { instruction_pointer(context) };
    len = 0;
    // SAFETY: several threads at once are kept apart by `IS_PENDING`, or the process is ending;
    // unwinding itself takes no lock that a handler could have interrupted.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            let address = frame.ip() as usize;
            if address == 0 {
                return false;
            }
            if address == interrupted {
                len = 0;
            }
            FRAMES[len].store(address, Ordering::Relaxed);
            len += 1;
            len < FRAMES_MAX
        });
    }
    FRAMES_LEN.store(len, Ordering::Release);
}

/// Sends a request to the reporter.
fn request(ready: &Ready, what: u8) {
    IS_PENDING.store(true, Ordering::Release);
    // SAFETY: one initialised byte. The pipe is never full: there is no second request before the
    // first is done.
    unsafe { libc::write(ready.requests, (&raw const what).cast(), 1) };
}

/// Waits until the reporter is done, with a timeout.
fn wait_for_names() {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    for _ in 0..NAMES_WAIT_MS {
        if !IS_PENDING.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the pointer is to a live local.
        unsafe { libc::nanosleep(&pause, ptr::null_mut()) };
    }
}

/// Handler of the fatal signals.
extern "C" fn on_fatal_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if let Some(ready) = READY.get() {
        // SAFETY: the system passes it, valid for the time of the handler.
        report_signal(ready, signal, unsafe { &*info }, context);
    }
    // The action is the default again: this ends the process, with a core dump where that is
    // wanted. SAFETY: raise touches no memory of ours.
    unsafe { libc::raise(signal) };
}

fn report_signal(ready: &Ready, signal: c_int, info: &libc::siginfo_t, context: *mut c_void) {
    let log = RawLog::open(ready);
    let code = info.si_code;
    log.line(format_args!("{START}"));
    log.line(format_args!(
        "Latchkey {} crashed by signal: {signal}, si_code: {code}",
        env!("CARGO_PKG_VERSION")
    ));
    // SAFETY: these signals carry an address.
    let address = unsafe { info.si_addr() } as usize;
    let is_access = matches!(signal, libc::SIGSEGV | libc::SIGBUS);
    if is_access {
        log.line(format_args!("Accessing address: {address:#x}"));
    }
    if code == system::SENT_BY_PROCESS {
        // SAFETY: a signal sent by a process carries the sender's IDs.
        let (pid, uid) = unsafe { (info.si_pid(), info.si_uid()) };
        log.line(format_args!("Killed by PID: {pid}, UID: {uid}"));
    }
    let instruction = instruction_pointer(context);
    if instruction != 0 {
        log.line(format_args!("Running the instruction at: {instruction:#x}"));
    }
    log.line(format_args!("{STACK}"));
    if is_access && instruction == address {
        // The program jumped to an invalid address: reading it to unwind would fault again.
        log.line(format_args!("The program has jumped to an address that it may not run."));
    } else {
        keep_stack(context);
        log.line(format_args!("The program lies at {:#x}. Return addresses:", ready.base));
        for frame in &FRAMES[..FRAMES_LEN.load(Ordering::Acquire)] {
            log.line(format_args!("{:#x}", frame.load(Ordering::Relaxed)));
        }
        request(ready, CRASH);
        wait_for_names();
    }
    log.line(format_args!("------ REGISTERS ------"));
    for (name, value) in registers(context) {
        log.line(format_args!("{name:3} {value:016x}"));
    }
    log.line(format_args!("{END}"));
}

/// Names and values of the interrupted code's registers. `context`: the handler's argument.
fn registers(context: *mut c_void) -> impl Iterator<Item = (&'static str, usize)> {
    // SAFETY: the system passes the context, which lives as long as the handler runs.
    unsafe { system::registers(context) }
}

/// The interrupted code's address; 0 if unknown.
fn instruction_pointer(context: *mut c_void) -> usize {
    registers(context).next().map_or(0, |(_, address)| address)
}

// ---- outside of handlers: the reporter, and panics ----------------------------------------------

/// Reports the stored stack, with names.
fn report_stack(ready: &Ready, what: u8) {
    let stack = &FRAMES[..FRAMES_LEN.load(Ordering::Acquire)];
    let write = |text: std::fmt::Arguments<'_>| {
        ready.logger.write(Clock::System.now(), Level::Warning, text);
    };
    if what == WATCHDOG {
        write(format_args!("--- WATCHDOG TIMER EXPIRED ---"));
        write(format_args!("{STACK}"));
    }
    for (number, frame) in stack.iter().enumerate() {
        let address = frame.load(Ordering::Relaxed);
        // The interrupted frame's address is exact; those of its callers are return addresses,
        // after the call.
        let looked_up = if number == 0 { address + 1 } else { address };
        let mut is_known = false;
        backtrace::resolve(looked_up as *mut c_void, |symbol| {
            is_known = true;
            let name = symbol.name().map_or("?".to_owned(), |name| format!("{name:#}"));
            match (symbol.filename(), symbol.lineno()) {
                (Some(file), Some(line)) => {
                    write(format_args!("{number:3}: {name} at {}:{line}", file.display()));
                }
                _ => write(format_args!("{number:3}: {name}")),
            }
        });
        if !is_known {
            write(format_args!("{number:3}: {address:#x}"));
        }
    }
    if what == WATCHDOG {
        write(format_args!("--------"));
    }
    IS_PENDING.store(false, Ordering::Release);
}

/// Reports a panic. The process continues if it is caught.
fn report_panic(panic: &PanicHookInfo<'_>) {
    report_bug(format_args!("{panic}"));
    // For the terminal from which the program was started.
    eprintln!("{panic}");
}

/// Reports a bug, with the caller's stack.
pub fn report_bug(what: std::fmt::Arguments<'_>) {
    let Some(ready) = READY.get() else { return };
    let write = |text: std::fmt::Arguments<'_>| {
        ready.logger.write(Clock::System.now(), Level::Warning, text);
    };
    write(format_args!("{START}"));
    write(format_args!("Latchkey {} has met a bug of its own: {what}", env!("CARGO_PKG_VERSION")));
    if ENABLED.load(Ordering::Relaxed) {
        write(format_args!("{STACK}\n{}", Backtrace::force_capture()));
    }
    write(format_args!("{END}"));
}

/// Ends the process after a report: by SIGABRT, which leaves a core dump where that is wanted, or
/// with exit code 1.
pub fn end_process(by_exit: bool) -> ! {
    if by_exit {
        std::process::exit(1);
    }
    // The report is written already.
    set_handler(libc::SIGABRT, None, 0);
    std::process::abort()
}

/// Reads an invalid address, as through a bad pointer.
pub fn access_bad_memory() -> ! {
    // SAFETY: the system reserves a page that nobody may read. The read is intended: it ends the
    // process.
    unsafe {
        let (anywhere, flags) = (ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let page = libc::mmap(anywhere, 4096, libc::PROT_NONE, flags, -1, 0);
        if page != libc::MAP_FAILED {
            page.cast::<u8>().read_volatile();
        }
    }
    std::process::abort()
}

// ---- the watchdog -------------------------------------------------------------------------------

/// Sets the watchdog's period in milliseconds: it reports when [`tell_watchdog`] is not called for
/// this long; 0: off.
pub fn watch(period_ms: u32) {
    if READY.get().is_none() || WATCHDOG_MS.swap(period_ms, Ordering::Relaxed) == period_ms {
        return;
    }
    if period_ms > 0 {
        set_handler(libc::SIGALRM, Some(on_watchdog), libc::SA_RESTART | libc::SA_ONSTACK);
    }
    set_timer(period_ms);
    if period_ms == 0 {
        // SAFETY: SIG_IGN runs no code of ours. A signal that is under way does no harm then.
        unsafe { libc::signal(libc::SIGALRM, libc::SIG_IGN) };
    }
}

/// Whether the watchdog runs: it takes a silence for a blocked loop.
pub fn has_watchdog() -> bool {
    WATCHDOG_MS.load(Ordering::Relaxed) > 0
}

/// Notifies the watchdog that the loop runs. Costs a system call while the watchdog is on.
#[inline]
pub fn tell_watchdog() {
    let period_ms = WATCHDOG_MS.load(Ordering::Relaxed);
    if period_ms > 0 {
        set_timer(period_ms);
    }
}

/// Schedules one SIGALRM after this many milliseconds; 0: none.
fn set_timer(ms: u32) {
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let timer = libc::itimerval {
        it_interval: never,
        it_value: libc::timeval {
            tv_sec: (ms / 1000).into(),
            tv_usec: (ms % 1000 * 1000) as _, // 32 bits on some systems
        },
    };
    // SAFETY: the pointer is to a live local.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()) };
}

/// Handler of SIGALRM: makes the reporter report the main thread's stack.
extern "C" fn on_watchdog(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(ready) = READY.get() else { return };
    // SAFETY: the main thread lives as long as the process, and the signal has a handler.
    unsafe {
        if libc::pthread_equal(libc::pthread_self(), ready.main_thread.0) == 0 {
            // The system may deliver the signal to any thread.
            libc::pthread_kill(ready.main_thread.0, libc::SIGALRM);
            return;
        }
    }
    if !IS_PENDING.load(Ordering::Acquire) {
        keep_stack(context);
        request(ready, WATCHDOG);
    }
}
