//! Ports for servers in processes of their own.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// The system gives 32768 and above to clients and to listeners on any port: one of those can be
/// taken again before a server listens on it. The bus of a cluster listens 10000 above the port
/// for clients.
const FIRST: u16 = 12_000;
const COUNT: u16 = 10_000;

/// A port that nobody listens on now, and that this program has not been given before.
pub fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    // The process's number keeps programs that run side by side apart.
    let next = NEXT.get_or_init(|| AtomicU16::new((std::process::id() % 61 * 163) as u16));
    loop {
        let port = FIRST + next.fetch_add(1, Ordering::Relaxed) % COUNT;
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => return port,
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => panic!("no port can be had: {error}"),
        }
    }
}
