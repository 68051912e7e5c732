//! The process: daemonizing, limits, supervisors, ignored signals.
//!
//! The server is not known here; failures are returned, and the caller logs them.
#![allow(unsafe_code)] // fork, dup2, signal and what a handler does have no safe form.

use std::cell::Cell;
use std::ffi::{CString, c_char};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal};

use super::system;

/// Lowers the calling thread's priority below the process' other threads, so that with few cores
/// commands do not wait for background work.
pub fn step_back() {
    system::step_back();
}

/// Whether background work would leave the loop's thread and its clients less than two cores.
pub fn has_few_cores() -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 3)
}

/// Files opened besides clients' connections.
pub const RESERVED_FILES: u64 = 32;

// ---- the end ------------------------------------------------------------------------------------

thread_local! {
    /// Set by a simulation.
    static IS_SIMULATED: Cell<bool> = const { Cell::new(false) };
}

/// The payload with which a simulated server's turn unwinds when the server ends its process.
#[derive(Clone, Copy, Debug)]
pub struct Ended(pub i32);

/// For simulations: from now on [`end`] ends the turn of a server of this thread, not the process.
pub fn simulate_ends() {
    IS_SIMULATED.set(true);
}

/// Ends the process at once.
pub fn end(code: i32) -> ! {
    if IS_SIMULATED.get() {
        std::panic::resume_unwind(Box::new(Ended(code)));
    }
    std::process::exit(code)
}

// ---- background ---------------------------------------------------------------------------------

/// Continues in the background: in a child process with a session of its own, and standard streams
/// to /dev/null. The parent exits with 0. Call this before any thread starts, as a fork only copies
/// the calling thread.
pub fn daemonize() -> io::Result<()> {
    // SAFETY: the caller has started no threads, so the child's memory holds no lock of a thread
    // that is gone.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        _ => std::process::exit(0),
    }
    rustix::process::setsid()?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    for stream in 0..=2 {
        // SAFETY: dup2 takes any numbers; 0 to 2 belong to the process as a whole, not to an owner
        // in Rust.
        if unsafe { libc::dup2(null.as_raw_fd(), stream) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    if null.as_raw_fd() <= 2 {
        // A standard stream was closed, and this file has taken its number: it stays open.
        std::mem::forget(null);
    }
    Ok(())
}

// ---- children -----------------------------------------------------------------------------------

/// The process in which a fork returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    Parent,
    Child,
}

/// Begins a child process that has only this descriptor open, besides the standard streams. Returns
/// its number, or None in the child. The child has none of this process' threads. It must take no
/// lock that another thread may have held at the fork, and end with [`end_child`]. It does not
/// survive this process, where the system can promise that.
pub fn fork_with(descriptor: RawFd) -> io::Result<Option<u32>> {
    // SAFETY: the allocator is prepared for a fork by its own handlers; see above for other locks.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: plain calls; the owner of a closed descriptor is never used again here.
            unsafe {
                libc::signal(libc::SIGTERM, libc::SIG_IGN);
                libc::signal(libc::SIGINT, libc::SIG_IGN);
                #[cfg(target_os = "linux")]
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let most = libc::sysconf(libc::_SC_OPEN_MAX).clamp(0, 1 << 20) as RawFd;
                for other in 3..most {
                    if other != descriptor {
                        libc::close(other);
                    }
                }
            }
            Ok(None)
        }
        child => Ok(Some(child as u32)),
    }
}

/// Ends a child process without running anything that belongs to its parent.
pub fn end_child() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

/// Removes the children that have ended.
pub fn reap(children: &mut Vec<u32>) {
    // SAFETY: the numbers are those of children that nobody else waits for.
    children.retain(|child| unsafe {
        libc::waitpid(*child as libc::pid_t, ptr::null_mut(), libc::WNOHANG) == 0
    });
}

/// Ends children.
pub fn kill_children(children: &mut Vec<u32>) {
    for child in children.drain(..) {
        // SAFETY: a child that was not waited for: its number is of no other process.
        unsafe {
            libc::kill(child as libc::pid_t, libc::SIGKILL);
            libc::waitpid(child as libc::pid_t, ptr::null_mut(), 0);
        }
    }
}

/// The directions in which a socket is, or is to become, ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    pub reads: bool,
    pub writes: bool,
}

impl Readiness {
    pub const READS: Self = Readiness { reads: true, writes: false };
    pub const WRITES: Self = Readiness { reads: false, writes: true };

    pub fn is_none(self) -> bool {
        !self.reads && !self.writes
    }
}

/// Waits until a socket is ready in one of these directions; one that has ended is. None: not in
/// this time. Errors: Interrupted, by a signal.
pub fn await_ready(
    descriptor: RawFd,
    wanted: Readiness,
    timeout: Option<Duration>,
) -> io::Result<Readiness> {
    let event = |is_wanted: bool, event: i16| if is_wanted { event } else { 0 };
    let events = event(wanted.reads, libc::POLLIN) | event(wanted.writes, libc::POLLOUT);
    let mut poll = libc::pollfd { fd: descriptor, events, revents: 0 };
    let timeout_ms = timeout
        .map_or(-1, |timeout| timeout.as_micros().div_ceil(1000).try_into().unwrap_or(i32::MAX));
    // SAFETY: one descriptor's events.
    if unsafe { libc::poll(&mut poll, 1, timeout_ms) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let is = |event: i16| poll.revents & (event | libc::POLLERR | libc::POLLHUP) != 0;
    Ok(Readiness {
        reads: wanted.reads && is(libc::POLLIN),
        writes: wanted.writes && is(libc::POLLOUT),
    })
}

/// Ignores SIGHUP, which a closed terminal sends, and SIGPIPE, which a closed connection would.
pub fn ignore_signals() {
    for signal in [libc::SIGHUP, libc::SIGPIPE] {
        // SAFETY: SIG_IGN runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// The path of an unfinished file, worthless if incomplete; null: none. Swapping the pointer out
/// transfers ownership.
static UNFINISHED: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// Makes SIGINT end the process at once with code 1 while `when` is set, removing the unfinished
/// file.
pub fn end_at_interrupt(when: Arc<AtomicBool>) -> io::Result<()> {
    let end = move || {
        if !when.load(Ordering::SeqCst) {
            return;
        }
        let path = UNFINISHED.swap(ptr::null_mut(), Ordering::SeqCst);
        // SAFETY: the path came out of CString::into_raw and nobody else has it; it is not freed,
        // as a handler must not. Both calls may be made by a handler of signals.
        unsafe {
            if !path.is_null() {
                libc::unlink(path);
            }
            libc::_exit(1);
        }
    };
    // SAFETY: its calls are allowed in a handler: atomics, unlink and _exit.
    unsafe { signal_hook::low_level::register(libc::SIGINT, end) }.map(drop)
}

/// Makes SIGINT and SIGTERM set a flag, which is returned. The second one ends the process.
pub fn note_interrupts() -> io::Result<Arc<AtomicBool>> {
    let noted = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, noted.clone())?;
        signal_hook::flag::register(signal, noted.clone())?;
    }
    Ok(noted)
}

/// Sets the unfinished file that an interrupt removes; None: none.
pub fn remove_when_interrupted(path: Option<&Path>) {
    let path = path.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
    let path = path.map_or(ptr::null_mut(), CString::into_raw);
    let before = UNFINISHED.swap(path, Ordering::SeqCst);
    if !before.is_null() {
        // SAFETY: it came out of CString::into_raw, and after the swap nobody else has it.
        drop(unsafe { CString::from_raw(before) });
    }
}

/// Whether a process with this number exists, under any user.
pub fn is_running(number: u32) -> bool {
    let number = i32::try_from(number).ok().and_then(rustix::process::Pid::from_raw);
    number.is_some_and(|number| {
        rustix::process::test_kill_process(number) != Err(rustix::io::Errno::SRCH)
    })
}

// ---- limits -------------------------------------------------------------------------------------

/// The result of raising the limit of open files.
#[derive(Debug)]
pub struct OpenFiles {
    /// The limit now.
    pub limit: u64,
    /// The limit before.
    pub before: u64,
    /// The system's error, if the limit is lower than requested.
    pub error: Option<io::Error>,
}

/// Raises the limit of open files (RLIMIT_NOFILE) to `wanted`, or as far as allowed. Never lowers
/// it.
pub fn raise_open_files(wanted: u64) -> OpenFiles {
    let now = rustix::process::getrlimit(Resource::Nofile);
    let now_allowed = || rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // None is no limit.
    let before = now.current.unwrap_or(u64::MAX);
    let mut files = OpenFiles { limit: before, before, error: None };
    let maximum = now.maximum.unwrap_or(u64::MAX);
    // Only root may exceed the hard limit. Some systems have a limit below it for each process.
    let within = wanted.min(maximum);
    let attempts = [(wanted, wanted.max(maximum)), (within, maximum)];
    let last = (within.min(system::open_files_max()), maximum);
    for (current, maximum) in attempts.into_iter().chain([last]) {
        if current <= files.limit {
            break;
        }
        // A maximum of u64::MAX is no limit.
        let limit = Rlimit {
            current: Some(current),
            maximum: Some(maximum).filter(|maximum| *maximum != u64::MAX),
        };
        match rustix::process::setrlimit(Resource::Nofile, limit) {
            // A system may set less than was asked for.
            Ok(()) => files.limit = now_allowed(),
            Err(error) => files.error = Some(error.into()),
        }
    }
    widen_file_table(wanted.min(files.limit));
    files
}

/// Grows the kernel's table of the process' open files at once. Otherwise it doubles when it is
/// full, and a process with threads waits some 5 to 12 ms for that in `accept`: the grace period of
/// `expand_files` in Linux.
fn widen_file_table(files: u64) {
    /// A table of a megabyte.
    const MAX: u64 = 1 << 17;
    let last = files.min(MAX).saturating_sub(1) as i32;
    if let Ok(file) = std::fs::File::open("/") {
        // On failure the table grows later. The duplicate is closed at once.
        let _ = rustix::io::fcntl_dupfd_cloexec(&file, last);
    }
}

// ---- the kernel's OOM killer
// ---------------------------------------------------------------------------------------

const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// The process' OOM score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// As at the start.
    Untouched,
    /// Relative to the start.
    Added(i32),
    Absolute(i32),
}

/// The process' score by which the kernel chooses processes to kill (`oom_score_adj`).
#[derive(Debug, Default)]
pub struct OomScore {
    /// The original score; None while it is unchanged.
    before: Option<i32>,
}

impl OomScore {
    /// Sets the score, within -1000 to 1000. Errors: lowering needs privileges; only Linux has it.
    pub fn set(&mut self, score: Score) -> io::Result<()> {
        let before = match (self.before, score) {
            (None, Score::Untouched) => return Ok(()),
            (Some(before), _) => before,
            (None, _) => {
                let text = std::fs::read_to_string(OOM_SCORE_FILE)?;
                text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?
            }
        };
        let wanted = match score {
            Score::Untouched => before,
            Score::Added(more) => before.saturating_add(more),
            Score::Absolute(score) => score,
        };
        self.before = (score != Score::Untouched).then_some(before);
        std::fs::write(OOM_SCORE_FILE, format!("{}\n", wanted.clamp(-1000, 1000)))
    }
}

// ---- supervisors --------------------------------------------------------------------------------

/// The process supervisor to be notified.
#[derive(Debug)]
pub enum Supervisor {
    Nobody,
    /// Waits until the process stops itself.
    Upstart,
    /// The socket in NOTIFY_SOCKET.
    Systemd(UnixDatagram),
}

impl Supervisor {
    /// Upstart, if it started the process.
    pub fn upstart() -> Option<Self> {
        std::env::var_os("UPSTART_JOB").map(|_| Supervisor::Upstart)
    }

    /// systemd, if NOTIFY_SOCKET is set. An unreachable socket counts as none.
    pub fn systemd() -> Option<Self> {
        let path = std::env::var_os("NOTIFY_SOCKET")?;
        let socket = UnixDatagram::unbound().ok()?;
        match path.as_bytes() {
            [b'@', name @ ..] => socket.connect_addr(&system::abstract_address(name)?).ok()?,
            [b'/', ..] => socket.connect(&path).ok()?,
            _ => return None,
        }
        Some(Supervisor::Systemd(socket))
    }

    /// Notifies that data is being loaded.
    pub fn loading(&self) {
        self.tell("STATUS=Latchkey is loading...\n");
    }

    /// Notifies that data is being saved before the shutdown.
    pub fn saving(&self) {
        self.tell("STATUS=Saving the final RDB snapshot\n");
    }

    /// Notifies that clients are served from now on.
    pub fn ready(&self) {
        self.tell("STATUS=Ready to accept connections\nREADY=1\n");
    }

    /// Notifies that the process is about to end.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\n");
    }

    /// Stops the process, which signals to Upstart that it is ready; Upstart resumes it.
    pub fn stop_for_upstart(&self) -> io::Result<()> {
        if let Supervisor::Upstart = self {
            rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
        }
        Ok(())
    }

    fn tell(&self, state: &str) {
        if let Supervisor::Systemd(socket) = self {
            // Errors are ignored: the supervisor may be gone.
            let _ = socket.send(state.as_bytes());
        }
    }
}

/// A group's number, by its name or that number. Errors: no such group.
pub fn group_id(name: &[u8]) -> io::Result<u32> {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
    if let Some(number) = number(name) {
        return Ok(number);
    }
    let groups = std::fs::read("/etc/group")?;
    let find = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        (fields.next()? == name).then(|| fields.nth(1)).flatten().and_then(number)
    };
    groups.split(|byte| *byte == b'\n').find_map(find).ok_or_else(|| {
        let name = String::from_utf8_lossy(name);
        io::Error::new(io::ErrorKind::NotFound, format!("no group named {name}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_names_and_numbers() {
        assert_eq!(group_id(b"17").unwrap(), 17);
        let zero = ["root", "wheel"].map(|name| group_id(name.as_bytes()).ok());
        assert!(zero.contains(&Some(0)), "{zero:?}");
        assert_eq!(group_id(b"no such group").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
