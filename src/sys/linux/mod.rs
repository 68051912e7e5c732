//! Linux, with any C library. `title`: the process title. `trace`: the stack below a signal.
#![allow(unsafe_code)] // sync_file_range and sysconf have no safe form; the context of a signal.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

mod title;
#[cfg(all(target_env = "musl", target_arch = "x86_64"))]
mod trace;

pub use title::Title;
#[cfg(all(target_env = "musl", target_arch = "x86_64"))]
pub use trace::trace;

/// The interface by which the loop waits, as INFO names it.
pub const POLLER: &str = "epoll";

/// The limit of the accept queue, for [`setting`], and its name for sysctl(8).
pub const ACCEPT_QUEUE: &str = "/proc/sys/net/core/somaxconn";
pub const ACCEPT_QUEUE_SYSCTL: &str = "net.core.somaxconn";

/// The running servers, of this protocol, that work in a folder: process IDs. Those of other users
/// are seen by root alone.
pub fn servers_in(folder: &Path) -> Vec<u32> {
    const NAMES: [&str; 3] = ["latchkey", "redis-server", "valkey-server"];
    let Ok(folder) = folder.canonicalize() else { return Vec::new() };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let works_there = |number: &u32| {
        let process = Path::new("/proc").join(number.to_string());
        let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
        *number != std::process::id()
            && NAMES.contains(&name.trim_end())
            && std::fs::read_link(process.join("cwd")).is_ok_and(|place| place == folder)
    };
    numbers.filter(works_there).collect()
}

/// A setting of the kernel, as its file under /proc or /sys has it.
pub fn setting(name: &Path) -> Option<String> {
    std::fs::read_to_string(name).ok()
}

// ---- time ---------------------------------------------------------------------------------------

/// Time since the machine was started, including the time in which it was asleep. Unit:
/// microseconds.
#[inline]
pub fn boot_us() -> i64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec * 1_000_000 + time.tv_nsec as i64 / 1000
}

// ---- threads, memory and limits -----------------------------------------------------------------

/// Lowers the calling thread's priority below the process' other threads.
pub fn step_back() {
    const STEP: i32 = 5;
    // On failure the priority stays the same.
    let _ = rustix::process::nice(STEP);
}

/// Whose times getrusage(2) gives for the calling thread.
pub const USAGE_OF_THREAD: c_int = libc::RUSAGE_THREAD;

/// Resident memory. Unit: bytes; 0 without /proc.
pub fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    // SAFETY: `sysconf` only reads.
    pages.unwrap_or(0) * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize
}

/// The most files that the system allows one process, besides its limits.
pub fn open_files_max() -> u64 {
    u64::MAX
}

// ---- files and sockets --------------------------------------------------------------------------

/// Makes a file's bytes and length durable.
pub fn sync_data(file: &File) -> io::Result<()> {
    file.sync_data()
}

/// Makes a file or a folder durable.
pub fn sync_all(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Asks the system to start writing a range out.
pub fn start_writeback(file: &File, from: u64, len: u64) {
    let (Ok(from), Ok(len)) = (i64::try_from(from), i64::try_from(len)) else { return };
    // SAFETY: the call takes numbers alone, and the descriptor is open as long as `file`.
    unsafe { libc::sync_file_range(file.as_raw_fd(), from, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Whether a folder is in memory only. None: unknown.
pub fn is_in_memory(folder: &Path) -> Option<bool> {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    #[allow(clippy::unnecessary_cast)] // its type differs between C libraries
    let kind = rustix::fs::statfs(folder).ok()?.f_type as i64;
    Some([TMPFS, RAMFS].contains(&kind))
}

/// The address of a socket that has a name but no file.
pub fn abstract_address(name: &[u8]) -> Option<SocketAddr> {
    SocketAddr::from_abstract_name(name).ok()
}

// ---- crashes ------------------------------------------------------------------------------------

/// `si_code` of a signal that a process has sent.
pub const SENT_BY_PROCESS: c_int = libc::SI_USER;

/// The program's base address: the first mapping. 0 without /proc.
pub fn program_base() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let base = maps.split('-').next().and_then(|start| usize::from_str_radix(start, 16).ok());
    base.unwrap_or(0)
}

/// The unwinder passes through the frame of a handler: nothing is visited here.
///
/// # Safety
/// None is needed.
#[cfg(not(all(target_env = "musl", target_arch = "x86_64")))]
pub unsafe fn trace(_context: *mut c_void, _visit: impl FnMut(usize) -> bool) -> bool {
    false
}

/// Names and values of the interrupted code's registers, the instruction pointer first.
///
/// # Safety
/// `context` is the third argument of a signal handler, which still runs.
#[cfg(target_arch = "x86_64")]
pub unsafe fn registers(context: *mut c_void) -> impl Iterator<Item = (&'static str, usize)> {
    const PLACES: [(&str, c_int); 17] = [
        ("RIP", libc::REG_RIP),
        ("RSP", libc::REG_RSP),
        ("RBP", libc::REG_RBP),
        ("RAX", libc::REG_RAX),
        ("RBX", libc::REG_RBX),
        ("RCX", libc::REG_RCX),
        ("RDX", libc::REG_RDX),
        ("RSI", libc::REG_RSI),
        ("RDI", libc::REG_RDI),
        ("R8", libc::REG_R8),
        ("R9", libc::REG_R9),
        ("R10", libc::REG_R10),
        ("R11", libc::REG_R11),
        ("R12", libc::REG_R12),
        ("R13", libc::REG_R13),
        ("R14", libc::REG_R14),
        ("R15", libc::REG_R15),
    ];
    // SAFETY: the caller promises a context of this type.
    let values = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    PLACES.into_iter().map(move |(name, place)| (name, values[place as usize] as usize))
}

/// Names and values of the interrupted code's registers, the instruction pointer first.
///
/// # Safety
/// `context` is the third argument of a signal handler, which still runs.
#[cfg(target_arch = "aarch64")]
pub unsafe fn registers(context: *mut c_void) -> impl Iterator<Item = (&'static str, usize)> {
    // SAFETY: the caller promises a context of this type.
    let machine = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let (pc, sp, lr) = (machine.pc, machine.sp, machine.regs[30]);
    [("PC", pc as usize), ("SP", sp as usize), ("LR", lr as usize)].into_iter()
}

/// The registers' names are not known.
///
/// # Safety
/// None is needed.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub unsafe fn registers(_context: *mut c_void) -> impl Iterator<Item = (&'static str, usize)> {
    std::iter::empty()
}
