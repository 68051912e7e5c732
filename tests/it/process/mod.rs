//! The program and what is installed with it, from outside.

mod check_config;
mod config_example;
mod config_redis_7_0;
mod eviction;
mod logs;
mod packaging;
pub(crate) mod program;
