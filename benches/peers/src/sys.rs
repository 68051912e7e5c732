//! What the kernel is asked for: cores, limits, children that die with us, and its own accounts of
//! a process under `/proc`. Linux only.
#![allow(unsafe_code)] // `pre_exec` is unsafe by signature; it is the one place that acts between fork and exec.

use crate::Result;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

/// How many cores this process was offered when it first asked. What the standard library answers
/// sinks to 1 once a thread is pinned, and the servers then inherited the generator's core.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get()))
}

/// Keeps the calling thread on one core.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Lets the calling thread run on any core.
fn allow_all_cores() -> io::Result<()> {
    let mut set = CpuSet::new();
    // The kernel leaves out what is not there.
    (0..CpuSet::MAX_CPU).for_each(|core| set.set(core));
    Ok(sched_setaffinity(None, &set)?)
}

/// While it lives, this process and those it starts come before all others that compete for the
/// cores by time slices. On a machine with other work this keeps that work's cache misses and time
/// slices out of the figures.
pub struct Priority(());

const HIGHEST: i32 = -19;
/// The nice value of a whole session against other sessions. Where the kernel groups by session, a
/// process' own nice value counts only within its session, and raising it alone changes nothing.
const SESSION_NICE: &str = "/proc/self/autogroup";

impl Priority {
    /// # Errors
    /// The user may not do so.
    pub fn raise() -> io::Result<Priority> {
        rustix::process::setpriority_process(None, HIGHEST)?;
        if fs::exists(SESSION_NICE)? {
            fs::write(SESSION_NICE, HIGHEST.to_string())?;
        }
        Ok(Priority(()))
    }
}

/// Lowers the priority of all threads of a process below ours.
pub fn step_behind(pid: u32) -> Result<()> {
    const STEP: i32 = 10;
    let ours = rustix::process::getpriority_process(None)?;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = task?.file_name().to_string_lossy().parse()?;
        rustix::process::setpriority_process(rustix::process::Pid::from_raw(thread), ours + STEP)?;
    }
    Ok(())
}

impl Drop for Priority {
    fn drop(&mut self) {
        // The session outlives us, and with it its nice value; ours ends with the process. It can
        // only fail where the kernel does not group by session.
        let _ = fs::write(SESSION_NICE, "0");
    }
}

/// Has the child run on `core` only, or on any, and be killed when this process ends in whatever
/// way.
pub fn tie_child(command: &mut Command, core: Option<usize>) {
    let in_child = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // A child has the cores of the thread that starts it, which is the generator's.
        core.map_or_else(allow_all_cores, pin_to_core)
    };
    // SAFETY: the closure runs in the child between fork and exec, where only async-signal-safe
    // calls are allowed. It makes two raw system calls on values it owns; it neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(in_child) };
}

/// Raises the limit of open files to `wanted` or as near as we may come; returns the limit then in
/// force.
pub fn raise_open_files(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    if limit.current.unwrap_or(u64::MAX) >= wanted {
        return wanted;
    }
    // The hard limit can be raised by root only; else the soft limit goes up to the hard one.
    for (current, maximum) in [(wanted, wanted.max(maximum)), (wanted.min(maximum), maximum)] {
        let raised = Rlimit { current: Some(current), maximum: Some(maximum) };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            return current;
        }
    }
    limit.current.unwrap_or(u64::MAX)
}

/// CPU accounts of all threads of a process since it began.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// Time on a core, ns, as the scheduler counts it. Source: `/proc/PID/task/*/schedstat`.
    pub run_ns: u64,
    /// Time ready but waiting for a core, ns: how much others disturbed. Source: the same.
    pub wait_ns: u64,
    /// Time in user mode, ticks of 10 ms. Source: `/proc/PID/stat`.
    pub user_ticks: u64,
    /// Time in the kernel, ticks of 10 ms. Source: `/proc/PID/stat`.
    pub system_ticks: u64,
}

impl CpuTime {
    /// Reads the accounts of process `pid`.
    ///
    /// # Errors
    /// The process is gone, or the kernel keeps no such accounts.
    pub fn of(pid: u32) -> Result<CpuTime> {
        let mut sum = CpuTime::default();
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            // A thread may end between the listing and this.
            let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else {
                continue;
            };
            let mut fields = text.split_whitespace().map(|field| field.parse().unwrap_or(0));
            sum.run_ns += fields.next().unwrap_or(0);
            sum.wait_ns += fields.next().unwrap_or(0);
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The second field is the program's name in parentheses and may hold spaces.
        let after_name = stat.rsplit_once(')').ok_or("no name in /proc/PID/stat")?.1;
        let mut times = after_name.split_whitespace().skip(11).map(|field| field.parse());
        sum.user_ticks = times.next().ok_or("no user time")??;
        sum.system_ticks = times.next().ok_or("no system time")??;
        Ok(sum)
    }

    /// What was added since `earlier`.
    pub fn since(&self, earlier: &CpuTime) -> CpuTime {
        CpuTime {
            run_ns: self.run_ns.saturating_sub(earlier.run_ns),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
            user_ticks: self.user_ticks.saturating_sub(earlier.user_ticks),
            system_ticks: self.system_ticks.saturating_sub(earlier.system_ticks),
        }
    }

    /// The share of user mode, 0 to 1; `None` below 10 ticks, where it would be a guess.
    pub fn user_share(&self) -> Option<f64> {
        let all = self.user_ticks + self.system_ticks;
        (all >= 10).then(|| self.user_ticks as f64 / all as f64)
    }
}

/// Resident memory of a process in bytes. Source: `/proc/PID/smaps_rollup`, which counts pages; the
/// cheaper `statm` lags behind by the kernel's per-core counters.
pub fn rss_bytes(pid: u32) -> Result<u64> {
    rollup_bytes(pid, "Rss:")
}

/// Its memory with a share of what it has in common with others, bytes. Source: the same.
pub fn pss_bytes(pid: u32) -> Result<u64> {
    rollup_bytes(pid, "Pss:")
}

fn rollup_bytes(pid: u32, field: &str) -> Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .ok_or_else(|| format!("no {field} line"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}

/// Processes that it has started and that have not ended.
pub fn children(pid: u32) -> Result<Vec<u32>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}
