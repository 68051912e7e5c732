//! Measures Latchkey beside other servers of the Redis protocol, on one machine and within one run.
//!
//! Arguments ([`options`]) -> servers started, each alone on a core ([`server`]) -> requests
//! encoded beforehand from the table of [`cases`] -> sent by a load generator on another core
//! ([`load`]) -> the kernel's accounts of the server read before and after ([`sys`]) -> tables and
//! a chart ([`report`], [`chart`]).
//!
//! One measurement a file: [`operations`], [`memory`], [`growth`], [`expiry`], [`idle`],
//! [`handover`], [`locks`], [`saving`], [`replication`], [`tls`]. Linux only.

mod cases;
mod chart;
mod client;
mod clock;
mod expiry;
mod growth;
mod handover;
mod idle;
mod load;
mod locks;
mod memory;
mod operations;
mod options;
mod replication;
mod report;
mod resp;
mod saving;
mod server;
mod sys;
mod tls;
mod wire;

use options::{Options, USAGE, What};
use std::error::Error;
use std::process::ExitCode;

/// Any failure ends the program with its message; nobody tells them apart.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let peers = std::env::var("PEERS").ok();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut options = Options::parse(arguments, peers.as_deref(), &path)?;
    let libraries = std::env::var("LOCK_CLIENTS").unwrap_or_default();
    options.libraries = libraries
        .split_whitespace()
        .filter_map(|library| library.split_once('='))
        .map(|(name, program)| (name.to_owned(), program.to_owned()))
        .collect();
    if options.servers.is_empty() {
        println!("bench-peers: skipped, there is no server to measure (see --help)");
        return Ok(());
    }
    if sys::cores() > server::GENERATOR_CORE {
        sys::pin_to_core(server::GENERATOR_CORE)?;
    } else {
        eprintln!("bench-peers: one core only, which server and generator share");
    }
    let _priority = match options.priority {
        true => Some(sys::Priority::raise().map_err(|error| format!("--priority: {error}"))?),
        false => None,
    };
    type Measurement = (What, fn(&Options) -> Result<()>);
    let measurements: [Measurement; 10] = [
        (What::Operations, operations::measure),
        (What::Memory, memory::measure),
        (What::Growth, growth::measure),
        (What::Expiry, expiry::measure),
        (What::Idle, idle::measure),
        (What::Handover, handover::measure),
        (What::Locks, locks::measure),
        (What::Saving, saving::measure),
        (What::Replication, replication::measure),
        (What::Tls, tls::measure),
    ];
    for (what, measure) in measurements {
        if options.what == what || options.what == What::All {
            measure(&options)?;
        }
    }
    Ok(())
}
