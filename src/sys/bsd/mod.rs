//! What macOS and FreeBSD have in common; the rest is in `macos` and `freebsd`. Each of the two
//! also has all that `linux/` has.
#![allow(unsafe_code)] // sysctl, dladdr, and the name in `statfs`.

use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr;
use std::path::Path;

#[cfg(target_os = "freebsd")]
mod freebsd;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "freebsd")]
pub use freebsd::*;
#[cfg(target_os = "macos")]
pub use macos::*;

/// The interface by which the loop waits, as INFO names it.
pub const POLLER: &str = "kqueue";

/// The limit of the accept queue, for [`setting`].
pub const ACCEPT_QUEUE: &str = ACCEPT_QUEUE_SYSCTL;

/// `si_code` of a signal that a process has sent: SI_USER.
pub const SENT_BY_PROCESS: c_int = 0x10001;

/// A setting of the kernel, by its name for sysctl(8). Only numbers of 32 bits.
pub fn setting(name: &Path) -> Option<String> {
    let name = CString::new(name.as_os_str().as_bytes()).ok()?;
    let (mut value, mut len): (c_int, _) = (0, size_of::<c_int>());
    let place = (&raw mut value).cast();
    // SAFETY: the name ends with a NUL, and the place has `len` bytes. Nothing is set.
    let result =
        unsafe { libc::sysctlbyname(name.as_ptr(), place, &mut len, std::ptr::null_mut(), 0) };
    (result == 0 && len == size_of::<c_int>()).then(|| value.to_string())
}

/// The most files that the system allows one process, besides its limits.
pub fn open_files_max() -> u64 {
    let text = setting(Path::new("kern.maxfilesperproc"));
    text.and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
}

/// The running servers that work in a folder. Not known here.
pub fn servers_in(_folder: &Path) -> Vec<u32> {
    Vec::new()
}

/// Priorities belong to processes here: the thread's stays.
pub fn step_back() {}

/// There is no such call: the system decides.
pub fn start_writeback(_file: &File, _from: u64, _len: u64) {}

/// Whether a folder is in memory only. None: unknown.
pub fn is_in_memory(folder: &Path) -> Option<bool> {
    let found = rustix::fs::statfs(folder).ok()?;
    // SAFETY: the system ends the name with a NUL, in a live local.
    let kind = unsafe { CStr::from_ptr(found.f_fstypename.as_ptr()) };
    Some(kind == c"tmpfs")
}

/// No socket has a name without a file here.
pub fn abstract_address(_name: &[u8]) -> Option<SocketAddr> {
    None
}

/// The program's base address. 0 if the system does not say.
pub fn program_base() -> usize {
    // SAFETY: all-zero bytes are a valid `Dl_info`.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is one of the program's, and the pointer is to a live local. A failure
    // leaves the zeros.
    unsafe { libc::dladdr(program_base as *const c_void, &mut found) };
    found.dli_fbase as usize
}

/// The unwinder passes through the frame of a handler: nothing is visited here.
///
/// # Safety
/// None is needed.
pub unsafe fn trace(_context: *mut c_void, _visit: impl FnMut(usize) -> bool) -> bool {
    false
}
