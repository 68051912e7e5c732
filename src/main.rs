//! The `latchkey` program: arguments and configuration file to a running server.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use latchkey::clock::Clock;
use latchkey::config::{Config, Settings, Startup, USAGE};
use latchkey::server::Server;
use latchkey::sys::log::{Level, Logger};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match Config::load(&args) {
        Ok(Startup::Serve(settings)) => serve(*settings),
        Ok(Startup::Version) => {
            println!("Latchkey server v={} bits={}", env!("CARGO_PKG_VERSION"), usize::BITS);
            ExitCode::SUCCESS
        }
        Ok(Startup::Help) => {
            eprint!("{USAGE}");
            ExitCode::FAILURE
        }
        Err(error) => {
            // Nobody to tell if standard error is closed.
            let _ = std::io::stderr().write_all(&error.message());
            ExitCode::FAILURE
        }
    }
}

fn serve(settings: Settings) -> ExitCode {
    let logger = Logger::new(Level::Notice, &settings.config.logfile);
    let mut server = match Server::start(settings.config, Clock::System, logger) {
        Ok(server) => server,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = server.catch_signals().and_then(|()| server.run()) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
