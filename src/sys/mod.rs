//! The operating system: allocator, process, log. The `unsafe` code for it is here.
//!
//! - The process: `process`, `restart`, `log`, `crash` (reports), `build` (the version), `machine`
//!   (statistics).
//! - Memory: `alloc`, and the `jemalloc` that it uses. Threads: `background`. Files: `disk`.
//!   Secrets: `random`. `read` reads into memory that is not initialised.
//! - What differs between systems, under the same names: `linux/`, and `bsd/` for macOS and
//!   FreeBSD. The one that is compiled is called `system`. No other room asks for the system.

pub mod alloc;
pub mod background;
pub mod build;
pub mod crash;
pub mod disk;
pub mod jemalloc;
pub mod log;
pub mod machine;
pub mod process;
pub mod random;
pub mod read;
pub mod restart;

#[cfg(not(target_os = "linux"))]
#[path = "bsd/mod.rs"]
pub mod system;
#[cfg(target_os = "linux")]
#[path = "linux/mod.rs"]
pub mod system;

#[cfg(not(any(target_os = "linux", target_os = "macos", target_os = "freebsd")))]
compile_error!("Latchkey knows Linux, macOS and FreeBSD; another system needs a file in src/sys");
