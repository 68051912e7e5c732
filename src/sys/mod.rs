//! The operating system: allocator, process, log. The `unsafe` code for it is here.
//!
//! - The process: `process`, `restart`, `title`, `log`, `crash` (reports), `build` (the version),
//!   `machine` (statistics).
//! - Memory: `alloc`, and the `jemalloc` that it uses. Threads: `background`. Files: `disk`.
//!   Secrets: `random`.

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
pub mod restart;
pub mod title;
