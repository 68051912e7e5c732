//! The operating system: allocator, process, log. The `unsafe` code for it is here.

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
pub mod title;
