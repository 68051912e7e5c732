//! See `bodies/cluster_message.rs`.
#![no_main]

#[path = "../bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|input: &[u8]| bodies::cluster_message::run(input));
