//! The process title, as shown by `ps`: written over the program's arguments and environment, as
//! setproctitle(3) does.
//!
//! The kernel reads a title from where it placed the program's arguments, followed by the
//! environment. Linux shows both addresses in /proc/self/stat. The data there is moved first: the
//! environment is copied, and the arguments have been read before.
#![allow(unsafe_code)] // Memory that the kernel laid out, and the environment.

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

/// Field numbers in /proc/self/stat, counted from 1.
const FIRST_FIELD_BEHIND_NAME: usize = 3;
const ARGUMENTS_START: usize = 48;

/// The memory for the title. There is one per process.
#[derive(Debug)]
pub struct Title {
    room: Range<usize>,
}

impl Title {
    /// Takes over the memory of arguments and environment. Call this once, before any thread
    /// starts, and after the arguments were read: `std::env::args` shows the title afterwards.
    /// None: the system does not show the addresses.
    pub fn claim() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let room = room(&stat)?;
        let variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        // SAFETY: the caller has started no threads, so nobody reads the environment now.
        unsafe { libc::clearenv() };
        for (name, value) in variables {
            if !name.is_empty() && !name.as_bytes().contains(&b'=') {
                // SAFETY: the same.
                unsafe { std::env::set_var(name, value) };
            }
        }
        Some(Title { room })
    }

    /// Sets the title, truncated to the memory.
    pub fn set(&mut self, title: &[u8]) {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.room.start);
        // The last byte stays zero: it ends the title for the kernel too.
        let title = &title[..title.len().min(self.room.len() - 1)];
        for offset in 0..self.room.len() {
            let byte = title.get(offset).copied().unwrap_or(0);
            // SAFETY: the kernel says that these bytes of the stack are the process' arguments and
            // environment. They are writable and stay as long as the process; `claim` has moved all
            // away that is read there.
            unsafe { start.add(offset).write_volatile(byte) };
        }
    }
}

/// The addresses of arguments and environment, from /proc/self/stat.
fn room(stat: &str) -> Option<Range<usize>> {
    // The name, in parentheses, may contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut places = fields
        .split_ascii_whitespace()
        .skip(ARGUMENTS_START - FIRST_FIELD_BEHIND_NAME)
        .map_while(|field| field.parse::<usize>().ok());
    let (arguments, arguments_end) = (places.next()?, places.next()?);
    let (environment, environment_end) = (places.next()?, places.next()?);
    let end = if arguments_end == environment { environment_end } else { arguments_end };
    // Zeros: no permission.
    (arguments != 0 && arguments < end).then_some(arguments..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_arguments_and_environment_if_they_touch() {
        let line = |places: &str| format!("7 (a ) b) S {}{places} 0", "1 ".repeat(44));
        assert_eq!(room(&line("100 120 120 200")), Some(100..200));
        assert_eq!(room(&line("100 120 128 200")), Some(100..120));
        assert_eq!(room(&line("0 0 0 0")), None);
        assert_eq!(room("7 (a) S 1 2 3"), None);
    }

    #[test]
    fn this_process_has_a_room() {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(room(&stat).unwrap().len() > 1);
    }
}
