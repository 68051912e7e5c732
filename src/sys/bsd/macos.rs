//! macOS.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The name for sysctl(8) of the limit of the accept queue.
pub const ACCEPT_QUEUE_SYSCTL: &str = "kern.ipc.somaxconn";

// ---- time ---------------------------------------------------------------------------------------

/// Time since the machine was started, including the time in which it was asleep. Unit:
/// microseconds. Of the clocks with this property only this one does not follow the wall clock.
#[inline]
pub fn boot_us() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live local. Every version has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut time) };
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

// ---- the process --------------------------------------------------------------------------------

/// Whose times getrusage(2) gives for the calling thread: the process', as it knows no threads.
pub const USAGE_OF_THREAD: c_int = libc::RUSAGE_SELF;

/// Resident memory. Unit: bytes; 0 if the system does not say.
pub fn resident_bytes() -> usize {
    // SAFETY: all-zero bytes are a valid `proc_taskinfo`.
    let mut info: libc::proc_taskinfo = unsafe { std::mem::zeroed() };
    let len = size_of::<libc::proc_taskinfo>() as c_int;
    let place = (&raw mut info).cast();
    // SAFETY: the place is a live local of `len` bytes. A failure leaves the zeros.
    unsafe { libc::proc_pidinfo(libc::getpid(), libc::PROC_PIDTASKINFO, 0, place, len) };
    info.pti_resident_size as usize
}

/// Titles are not changed: the system has no call for it.
#[derive(Debug)]
pub enum Title {}

impl Title {
    pub fn claim() -> Option<Self> {
        None
    }

    pub fn set(&mut self, _title: &[u8]) {
        match *self {}
    }
}

// ---- files --------------------------------------------------------------------------------------

/// Makes a file's bytes and length durable.
pub fn sync_data(file: &File) -> io::Result<()> {
    sync_all(file)
}

/// Makes a file or a folder durable: empties the disk's own buffer too, which fsync(2) does not do
/// here. File systems without that (of other machines, of other systems) get an fsync.
pub fn sync_all(file: &File) -> io::Result<()> {
    loop {
        // SAFETY: the calls take numbers alone, and the descriptor is open as long as `file`.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_FULLFSYNC) } != -1 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ENOTSUP | libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL) => {
                return rustix::fs::fsync(file).map_err(io::Error::from);
            }
            _ => return Err(error),
        }
    }
}

// ---- crashes ------------------------------------------------------------------------------------

/// Names and values of the interrupted code's registers, the instruction pointer first.
///
/// # Safety
/// `context` is the third argument of a signal handler, which still runs.
pub unsafe fn registers(context: *mut c_void) -> impl Iterator<Item = (&'static str, usize)> {
    // SAFETY: the caller promises a context of this type; it points to the registers.
    let state = unsafe { &(*(*context.cast::<libc::ucontext_t>()).uc_mcontext).__ss };
    #[cfg(target_arch = "x86_64")]
    let values = [
        ("RIP", state.__rip),
        ("RSP", state.__rsp),
        ("RBP", state.__rbp),
        ("RAX", state.__rax),
        ("RBX", state.__rbx),
        ("RCX", state.__rcx),
        ("RDX", state.__rdx),
        ("RSI", state.__rsi),
        ("RDI", state.__rdi),
        ("R8", state.__r8),
        ("R9", state.__r9),
        ("R10", state.__r10),
        ("R11", state.__r11),
        ("R12", state.__r12),
        ("R13", state.__r13),
        ("R14", state.__r14),
        ("R15", state.__r15),
    ];
    #[cfg(target_arch = "aarch64")]
    let values = [("PC", state.__pc), ("SP", state.__sp), ("LR", state.__lr)];
    values.into_iter().map(|(name, value)| (name, value as usize))
}
