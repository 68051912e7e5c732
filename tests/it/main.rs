//! All tests of the server from outside, in one program: each program of its own would link the
//! whole server once more.
//!
//! `cargo test --test it robustness::` runs those of one file.

#[path = "../support/mod.rs"]
mod support;

mod acl_peer;
mod backward_compatibility;
mod check_config;
mod clients;
mod cluster;
mod cluster_faults;
mod cluster_keys;
mod cluster_locks;
mod cluster_moves;
mod cluster_peer;
mod cluster_setslot;
mod config_example;
mod config_peers;
mod config_redis_7_0;
mod costs;
mod crossings;
mod data_folder;
mod deadlines;
mod differential;
mod dump;
mod effect_forms;
mod effects;
mod effects_peer;
mod error_stats;
mod eviction;
mod expired_keys;
mod files_peer;
mod following;
mod foreign_peers;
mod fuzz_corpus;
mod get_keys;
mod hostile_scripts;
mod http;
mod info;
mod integration_redis_rs;
mod lock_replicas;
mod locks;
mod locks_model;
mod logs;
mod memory_after_use;
mod moving;
mod packaging;
mod pairs;
mod persistence;
mod process;
mod rdb_grammar;
mod rdb_peer;
mod reload;
mod replica_safety;
mod replicas;
mod robustness;
mod rollback;
mod run_times;
mod script_conversions;
mod script_libraries;
mod scripts_peer;
mod shared_values;
mod simulation;
mod stream_replicas;
mod tls;
mod transcripts;
mod units;
mod waits;
