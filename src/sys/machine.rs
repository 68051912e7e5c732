//! Statistics of the operating system: memory, processor time, kernel.
#![allow(unsafe_code)] // getrusage, sysconf, uname: C functions that fill in structures.

use super::system;

/// Processor time of the process, its children and the calling thread. Unit: seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTimes {
    pub system: f64,
    pub user: f64,
    pub system_children: f64,
    pub user_children: f64,
    pub system_thread: f64,
    pub user_thread: f64,
}

/// Processor time used so far. Costs three system calls.
pub fn cpu_times() -> CpuTimes {
    let (system, user) = usage(libc::RUSAGE_SELF);
    let (system_children, user_children) = usage(libc::RUSAGE_CHILDREN);
    let (system_thread, user_thread) = usage(system::USAGE_OF_THREAD);
    CpuTimes { system, user, system_children, user_children, system_thread, user_thread }
}

/// System and user time. Unit: seconds.
fn usage(whose: libc::c_int) -> (f64, f64) {
    // SAFETY: all-zero bytes are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live local. A failure leaves the zeros.
    unsafe { libc::getrusage(whose, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_stime), seconds(usage.ru_utime))
}

/// Resident memory. Unit: bytes; 0 if the system does not say.
pub fn resident_bytes() -> usize {
    system::resident_bytes()
}

/// Physical memory of the machine. Unit: bytes.
pub fn total_memory() -> usize {
    system_number(libc::_SC_PHYS_PAGES) * system_number(libc::_SC_PAGESIZE)
}

fn system_number(name: libc::c_int) -> usize {
    // SAFETY: `sysconf` only reads. An unknown name gives -1.
    usize::try_from(unsafe { libc::sysconf(name) }).unwrap_or(0)
}

fn uname() -> libc::utsname {
    // SAFETY: all-zero bytes are a valid `utsname`.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live local. A failure leaves empty strings.
    unsafe { libc::uname(&mut name) };
    name
}

fn text(field: &[libc::c_char]) -> String {
    let bytes: Vec<u8> =
        field.iter().map(|char| *char as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Name, release and machine of the operating system: `Linux 6.1.0 x86_64`.
pub fn system_name() -> String {
    let name = uname();
    format!("{} {} {}", text(&name.sysname), text(&name.release), text(&name.machine))
}

/// The machine's name in its network.
pub fn host_name() -> String {
    text(&uname().nodename)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_plausible_numbers() {
        assert!(resident_bytes() > 100_000);
        assert!(total_memory() > resident_bytes());
        let times = cpu_times();
        assert!(times.user + times.system > 0.0);
        assert_eq!(system_name().split(' ').count(), 3);
    }
}
