//! All tests of the server from outside, in one program: each program of its own would link the
//! whole server once more.
//!
//! `cargo test --test it robustness::` runs those of one file.

#[path = "../support/mod.rs"]
mod support;

mod clients;
mod cluster;
mod command_pages;
mod crossings;
mod error_stats;
mod expired_keys;
mod fuzz_corpus;
mod get_keys;
mod http;
mod info;
mod locks;
mod peers;
mod persistence;
mod process;
mod queues;
mod replication;
mod scripts;
mod simulation;
mod transcripts;
