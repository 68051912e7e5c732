//! Bytes per idle connection: resident memory of a server before and after many clients connected,
//! sent one PING each and fell silent. The kernel's socket buffers are not part of it.

use crate::client::Client;
use crate::options::Options;
use crate::report::{self, Section, Table, figure};
use crate::server::Server;
use crate::{Result, sys};

/// Descriptors that are no clients: ours and the server's log, epoll, timers.
const RESERVED: u64 = 100;

pub fn measure(options: &Options) -> Result<()> {
    let wanted = options.idle as u64;
    // The servers inherit the limit, which some of them take as their own limit of clients.
    let limit = sys::raise_open_files(wanted + RESERVED);
    let count = wanted.min(limit.saturating_sub(RESERVED));
    let mut notes = Vec::new();
    if count < wanted {
        notes.push(format!("Open files are limited to {limit} here, hence fewer connections than the {wanted} asked for."));
    }
    let clients_max = (count + RESERVED / 2).to_string();
    let mut versions = Vec::new();
    let mut table = Table::new(&[
        "server",
        "connections",
        "bytes per connection",
        "server's CPU, ms per idle second",
    ]);
    for spec in &options.servers {
        let server = Server::start(spec, &["--maxclients", &clients_max])?;
        versions.push((server.name.clone(), server.version.clone()));
        let first = Client::connect(server.address)?;
        let before = server.settled_rss_bytes()?;
        let mut clients = vec![first];
        for _ in 0..count {
            let mut client = Client::connect(server.address)?;
            client.must(&["PING"]).map_err(|error| format!("{}: {error}", spec.name))?;
            clients.push(client);
        }
        let after = server.settled_rss_bytes()?;
        let cpu = server.cpu()?;
        std::thread::sleep(std::time::Duration::from_secs(1));
        let cpu = server.cpu()?.since(&cpu);
        let row = vec![
            spec.name.clone(),
            count.to_string(),
            figure((after as f64 - before as f64) / count as f64),
            figure(cpu.run_ns as f64 / 1e6),
        ];
        eprintln!("idle: {}", row.join("  "));
        table.row(row);
    }
    let section = Section {
        title: "Idle connections",
        method: "Growth of resident memory divided by the number of connections, each of which sent one PING and fell \
                 silent; and the server's CPU time in a second with all of them idle."
            .into(),
        tables: vec![(String::new(), table)],
        notes,
    };
    section.print();
    match &options.out {
        Some(directory) => section.write(directory, &report::facts(options, &versions)),
        None => Ok(()),
    }
}
