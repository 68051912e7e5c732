//! jemalloc's statistics, report, and settings by name.
#![allow(unsafe_code)] // mallctl takes raw memory by a name's type.

use std::ffi::{CStr, CString, c_char, c_void};
use std::hint::black_box;

use tikv_jemalloc_ctl::{epoch, stats};
use tikv_jemalloc_sys::{mallctl, malloc_stats_print};

/// Bytes by jemalloc's own count: used by the program, in active pages, resident.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocatorStats {
    pub allocated: usize,
    pub active: usize,
    pub resident: usize,
}

/// The size from which blocks have an arena of their own: jemalloc's `oversize_threshold`.
const LARGEST_BYTES: usize = 8 << 20;

/// jemalloc's current statistics; zeros if it was built without them.
pub fn stats() -> AllocatorStats {
    // Advancing the epoch only fails without statistics.
    let _ = epoch::advance();
    AllocatorStats {
        allocated: stats::allocated::read().unwrap_or(0),
        active: stats::active::read().unwrap_or(0),
        resident: stats::resident::read().unwrap_or(0),
    }
}

/// jemalloc's report for humans.
pub fn report() -> Vec<u8> {
    let mut report: Vec<u8> = Vec::new();
    // SAFETY: `append` gets the pointer to `report` back, which lives and is not touched otherwise
    // during the call.
    unsafe { malloc_stats_print(Some(append), (&raw mut report).cast(), std::ptr::null()) };
    report
}

/// Receives a piece of the report. `report` points to a `Vec<u8>`, `text` ends with a zero.
unsafe extern "C" fn append(report: *mut c_void, text: *const c_char) {
    // SAFETY: `report` is the pointer that `malloc_stats_print` was given, and jemalloc's text is
    // valid during the call.
    let (report, text) = unsafe { (&mut *report.cast::<Vec<u8>>(), CStr::from_ptr(text)) };
    report.extend_from_slice(text.to_bytes());
}

/// The calling thread's arena. None: jemalloc does not say.
pub fn arena() -> Option<u64> {
    number("thread.arena", None).ok()
}

/// Makes the calling thread allocate from an arena: another thread's, for which it allocates, and
/// which will free the memory.
pub fn use_arena(arena: Option<u64>) {
    if let Some(arena) = arena {
        // On failure another arena is used, which works too.
        let _ = number("thread.arena", Some(arena));
    }
}

/// Returns unused pages to the system. False on failure.
pub fn purge() -> bool {
    // MALLCTL_ARENAS_ALL.
    run("arena.4096.purge").is_ok()
}

/// Starts or ends the thread that returns unused pages to the system. Without it, threads that use
/// the allocator do so now and then, and so they always do where jemalloc has no such thread.
/// False on failure. Call this after the process has gone to the background: a fork would end the
/// thread.
pub fn purge_beside(is_wanted: bool) -> bool {
    // jemalloc returns the largest blocks to the system as soon as they are freed, but only if
    // their arena was made before the thread.
    drop(black_box(Vec::<u8>::with_capacity(LARGEST_BYTES)));
    let is_done =
        matches!(number("background_thread", Some(is_wanted.into())), Ok(_) | Err(libc::ENOENT));
    if !is_done {
        // Otherwise jemalloc leaves the pages to the thread that it could not start.
        let _ = number("background_thread", Some(0));
    }
    is_done
}

/// Reads a number of any width by its mallctl name, and sets it first if `value` is given. Errors:
/// the system's error number.
pub fn number(name: &str, value: Option<u64>) -> Result<u64, i32> {
    let name = CString::new(name).map_err(|_| libc::ENOENT)?;
    let mut error = libc::EINVAL;
    // The name's type is unknown: only the right width is accepted.
    for width in [8usize, 4, 2, 1] {
        let mut old = [0u8; 8];
        let mut old_len = width;
        let mut new = value.unwrap_or(0).to_le_bytes();
        let (new_pointer, new_len) = match value {
            Some(_) => (new.as_mut_ptr(), width),
            None => (std::ptr::null_mut(), 0),
        };
        // SAFETY: `old` and `new` hold at least `width` bytes, and jemalloc refuses a width that is
        // not its own.
        error = unsafe {
            mallctl(
                name.as_ptr(),
                old.as_mut_ptr().cast(),
                &mut old_len,
                new_pointer.cast(),
                new_len,
            )
        };
        // A name that can only be set has nothing to read.
        if error == libc::EPERM && value.is_some() {
            // SAFETY: as above, and nothing is read.
            error = unsafe {
                mallctl(
                    name.as_ptr(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    new_pointer.cast(),
                    new_len,
                )
            };
        }
        if error == 0 {
            return Ok(u64::from_le_bytes(old));
        }
        if error != libc::EINVAL {
            return Err(error);
        }
    }
    Err(error)
}

/// Runs an action by its mallctl name, such as `thread.tcache.flush`. Errors: the system's error
/// number.
pub fn run(name: &str) -> Result<(), i32> {
    let name = CString::new(name).map_err(|_| libc::ENOENT)?;
    let (old, old_len, new) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: nothing is read or set. jemalloc refuses null pointers where a value is needed.
    match unsafe { mallctl(name.as_ptr(), old, old_len, new, 0) } {
        0 => Ok(()),
        error => Err(error),
    }
}

/// Reads a text by its mallctl name. Errors: the system's error number; EINVAL for names not known
/// to be texts, as jemalloc would return anything of a pointer's width.
pub fn text(name: &str) -> Result<String, i32> {
    let is_text = ["version", "config.malloc_conf", "opt.dss", "opt.metadata_thp", "opt.junk"]
        .into_iter()
        .chain(["opt.percpu_arena", "opt.thp", "opt.zero_realloc", "opt.stats_print_opts"])
        .any(|known| name == known);
    if !is_text {
        return Err(libc::EINVAL);
    }
    let name = CString::new(name).map_err(|_| libc::ENOENT)?;
    let mut text: *const c_char = std::ptr::null();
    let mut len = size_of::<*const c_char>();
    // SAFETY: the name's value is a `const char *`, which fits.
    let error = unsafe {
        mallctl(name.as_ptr(), (&raw mut text).cast(), &mut len, std::ptr::null_mut(), 0)
    };
    if error != 0 {
        return Err(error);
    }
    if text.is_null() {
        return Ok(String::new());
    }
    // SAFETY: jemalloc's texts live as long as the process and end with a zero.
    Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_by_their_types() {
        assert_eq!(number("arenas.quantum", None), Ok(8));
        assert_eq!(number("nosuch", None), Err(libc::ENOENT));
        assert!(text("version").expect("it has a version").starts_with("5."));
        assert_eq!(text("arenas.quantum"), Err(libc::EINVAL));
        assert_eq!(run("thread.tcache.flush"), Ok(()));
        assert!(purge());
    }

    #[test]
    fn resident_memory_holds_what_is_allocated() {
        let stats = stats();
        assert!(stats.allocated > 0 && stats.allocated <= stats.active);
        assert!(stats.active <= stats.resident);
        assert!(!report().is_empty());
    }
}
