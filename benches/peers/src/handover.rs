//! How fast an element reaches who waits for it: one pushes, many wait with BLPOP on the same list
//! and come back for more.
//!
//! The time is taken from the push being sent to the first waiter's reply being read. Who was
//! served waits again, at the end of the queue, so that the number of waiters stays.

use crate::client::Client;
use crate::options::Options;
use crate::report::{self, Section, Table, duration, figure};
use crate::server::Server;
use crate::{Result, clock, sys};

/// Clients that wait.
const WAITERS: [usize; 3] = [1, 100, 10_000];
/// Elements handed over in a run.
const ROUNDS: usize = 5_000;
/// Descriptors that are no clients: ours and the server's log, epoll, timers.
const RESERVED: u64 = 100;

pub fn measure(options: &Options) -> Result<()> {
    let limit = sys::raise_open_files(WAITERS[2] as u64 + RESERVED);
    let clients_max = limit.saturating_sub(RESERVED / 2).to_string();
    let mut table =
        Table::new(&["waiters", "server", "p50", "p99", "longest", "server's CPU, µs each"]);
    let mut versions: Vec<(String, String)> = Vec::new();
    for waiters in WAITERS {
        let waiters = waiters.min(limit.saturating_sub(RESERVED) as usize);
        for spec in &options.servers {
            let server = Server::start(spec, &["--maxclients", &clients_max])?;
            if versions.len() < options.servers.len() {
                versions.push((server.name.clone(), server.version.clone()));
            }
            let mut clients = Vec::new();
            for _ in 0..waiters {
                let mut client = Client::connect(server.address)?;
                client.send(b"BLPOP list 0\r\n")?;
                clients.push(client);
            }
            let mut producer = Client::connect(server.address)?;
            server.wait_until_quiet()?;
            let rounds = if options.quick { ROUNDS / 10 } else { ROUNDS };
            let before = server.cpu()?;
            let mut times_ns = Vec::with_capacity(rounds);
            for round in 0..rounds {
                // They are served in the order they came, and come again in the order they were
                // served.
                let waiter = &mut clients[round % waiters];
                let begin = clock::now();
                producer.send(b"RPUSH list element\r\n")?;
                waiter.receive()?;
                times_ns.push((clock::now() - begin).as_nanos() as u64);
                producer.receive()?;
                waiter.send(b"BLPOP list 0\r\n")?;
            }
            let cpu = server.cpu()?.since(&before);
            times_ns.sort_unstable();
            let at = |share: f64| duration(times_ns[((rounds - 1) as f64 * share) as usize]);
            let row = vec![
                waiters.to_string(),
                spec.name.clone(),
                at(0.5),
                at(0.99),
                at(1.0),
                figure(cpu.run_ns as f64 / rounds as f64 / 1e3),
            ];
            eprintln!("handover: {}", row.join("  "));
            table.row(row);
        }
    }
    let section = Section {
        title: "Hand-over to blocked clients",
        method: "One client pushes; many wait with BLPOP on the same list, and wait again after they are served. The \
                 time from sending the push until the waiter's reply is read; each hand-over is two commands."
            .into(),
        tables: vec![(String::new(), table)],
        notes: Vec::new(),
    };
    section.print();
    match &options.out {
        Some(directory) => section.write(directory, &report::facts(options, &versions)),
        None => Ok(()),
    }
}
