//! FreeBSD.

use std::ffi::{CString, c_int, c_void};
use std::fs::File;
use std::io;

/// The name for sysctl(8) of the limit of the accept queue.
pub const ACCEPT_QUEUE_SYSCTL: &str = "kern.ipc.soacceptqueue";

// ---- time ---------------------------------------------------------------------------------------

/// Time since the machine was started. Unit: microseconds. The system has no clock that promises to
/// count the time in which the machine is asleep.
#[inline]
pub fn boot_us() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

// ---- the process --------------------------------------------------------------------------------

/// Whose times getrusage(2) gives for the calling thread.
pub const USAGE_OF_THREAD: c_int = libc::RUSAGE_THREAD;

/// Resident memory. Unit: bytes; 0 if the system does not say.
pub fn resident_bytes() -> usize {
    // SAFETY: all-zero bytes are a valid `kinfo_proc`.
    let mut info: libc::kinfo_proc = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::kinfo_proc>();
    // SAFETY: getpid takes nothing.
    let pid = unsafe { libc::getpid() };
    let name = [libc::CTL_KERN, libc::KERN_PROC, libc::KERN_PROC_PID, pid];
    let place = (&raw mut info).cast();
    // SAFETY: the name has four numbers, the place is a live local of `len` bytes. Nothing is set,
    // and a failure leaves the zeros.
    unsafe { libc::sysctl(name.as_ptr(), 4, place, &mut len, std::ptr::null_mut(), 0) };
    // SAFETY: `sysconf` only reads.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    usize::try_from(info.ki_rssize).unwrap_or(0) * page
}

/// The process title, set by the C library.
#[derive(Debug)]
pub struct Title(());

impl Title {
    pub fn claim() -> Option<Self> {
        Some(Title(()))
    }

    pub fn set(&mut self, title: &[u8]) {
        let Ok(title) = CString::new(title) else { return };
        // SAFETY: the format takes one text, which ends with a NUL. The dash leaves out the
        // program's name, which the title contains.
        unsafe { libc::setproctitle(c"-%s".as_ptr(), title.as_ptr()) };
    }
}

// ---- files --------------------------------------------------------------------------------------

/// Makes a file's bytes and length durable: fdatasync(2).
pub fn sync_data(file: &File) -> io::Result<()> {
    file.sync_data()
}

/// Makes a file or a folder durable.
pub fn sync_all(file: &File) -> io::Result<()> {
    file.sync_all()
}

// ---- crashes ------------------------------------------------------------------------------------

/// Names and values of the interrupted code's registers, the instruction pointer first.
///
/// # Safety
/// `context` is the third argument of a signal handler, which still runs.
pub unsafe fn registers(context: *mut c_void) -> impl Iterator<Item = (&'static str, usize)> {
    // SAFETY: the caller promises a context of this type.
    let machine = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let values = [
        ("RIP", machine.mc_rip),
        ("RSP", machine.mc_rsp),
        ("RBP", machine.mc_rbp),
        ("RAX", machine.mc_rax),
        ("RBX", machine.mc_rbx),
        ("RCX", machine.mc_rcx),
        ("RDX", machine.mc_rdx),
        ("RSI", machine.mc_rsi),
        ("RDI", machine.mc_rdi),
        ("R8", machine.mc_r8),
        ("R9", machine.mc_r9),
        ("R10", machine.mc_r10),
        ("R11", machine.mc_r11),
        ("R12", machine.mc_r12),
        ("R13", machine.mc_r13),
        ("R14", machine.mc_r14),
        ("R15", machine.mc_r15),
    ];
    #[cfg(target_arch = "aarch64")]
    let values = [
        ("PC", machine.mc_gpregs.gp_elr),
        ("SP", machine.mc_gpregs.gp_sp),
        ("LR", machine.mc_gpregs.gp_lr),
    ];
    values.into_iter().map(|(name, value)| (name, value as usize))
}
