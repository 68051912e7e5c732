//! Starting the program again in its own process: same number, same command line.
//!
//! The new program takes the process over at once. That ends all threads and closes all files,
//! which Rust opens so, and nothing in between can write to a file that has another's number. So a
//! delay comes after it: the new program waits before it does anything.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The variable that tells the new program how long to wait. Unit: milliseconds.
const DELAY: &str = "LATCHKEY_RESTART_DELAY";

/// How this process was started.
#[derive(Clone, Debug)]
pub struct Invocation {
    program: PathBuf,
    name: OsString,
    args: Vec<OsString>,
    /// The folder, by which relative paths of the command line are meant.
    dir: Option<PathBuf>,
}

impl Invocation {
    /// Call this before the process changes its folder. `name`: the program as it was called;
    /// `args`: what follows. None: the system does not tell which file is the program.
    pub fn new(name: OsString, args: Vec<OsString>) -> Option<Self> {
        let program = std::env::current_exe().ok()?;
        Some(Invocation { program, name, args, dir: std::env::current_dir().ok() })
    }

    /// Errors: the program may not be run, or the folder is gone.
    pub fn check(&self) -> Result<(), String> {
        let told = |what: &str, path: &PathBuf, error: io::Error| {
            format!("this process has no permissions to {what} {}: {error}", path.display())
        };
        rustix::fs::access(&self.program, rustix::fs::Access::EXEC_OK)
            .map_err(|error| told("execute", &self.program, error.into()))?;
        match &self.dir {
            Some(dir) => rustix::fs::access(dir, rustix::fs::Access::EXEC_OK)
                .map_err(|error| told("enter", dir, error.into())),
            None => Ok(()),
        }
    }

    /// Starts the program in the place of this one. Returns only if that fails.
    pub fn start_again(&self, delay: Duration) -> io::Error {
        let mut command = Command::new(&self.program);
        command.arg0(&self.name).args(&self.args);
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        match delay.as_millis() {
            0 => command.env_remove(DELAY),
            ms => command.env(DELAY, ms.to_string()),
        };
        // Upstart has seen this process stop already: it would not wake it a second time.
        command.env_remove("UPSTART_JOB").exec()
    }
}

/// How long a program that has replaced another is to wait before it starts.
pub fn delay() -> Duration {
    let ms = std::env::var(DELAY).ok().and_then(|ms| ms.parse().ok());
    Duration::from_millis(ms.unwrap_or(0))
}
