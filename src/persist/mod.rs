//! Values as bytes that outlive the process.

pub mod rdb;
