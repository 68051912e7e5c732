//! Beside real servers of other makes: each file names the variable that says where they are.

mod acl;
mod cluster;
mod config;
mod differential;
pub(crate) mod effects;
mod files;
mod queues;
mod rdb;
mod scripts;
