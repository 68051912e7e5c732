//! Bytes per key and per element of a collection: a fresh server for each shape of data, filled
//! over one connection so that buffers of clients stay out of the account; resident memory before
//! and after, once it stands still.

use crate::Result;
use crate::cases::{self, COLLECTION_CASES, Keys, MEMORY_CASES};
use crate::load::Load;
use crate::options::Options;
use crate::report::{self, Section, Table, maybe};
use crate::server::Server;

pub fn measure(options: &Options) -> Result<()> {
    let names: Vec<&str> = options.servers.iter().map(|server| server.name.as_str()).collect();
    let mut heading = vec!["keys and members of 16 bytes"];
    heading.extend(&names);
    let mut table = Table::new(&heading);
    let mut notes = Vec::new();
    let mut versions = Vec::new();
    let keys = MEMORY_CASES.iter().map(|&(name, template)| (name, options.keys, template));
    for (name, keys, template) in keys.chain(COLLECTION_CASES.iter().copied()) {
        if !options.wants(name) {
            continue;
        }
        let keys = keys.min(options.keys);
        let count = u64::from(keys);
        let fill = cases::encode(template, Keys::Once, keys, count, 64);
        let mut cells = vec![name.to_owned()];
        versions.clear();
        for spec in &options.servers {
            let server = Server::start(spec, &[])?;
            let mut load = Load::connect(server.address, 1)?;
            let before = server.settled_rss_bytes()?;
            let outcome = load.run(&fill, 0)?;
            let after = server.settled_rss_bytes()?;
            let per_key = (after as f64 - before as f64) / count as f64;
            cells.push(maybe(outcome.first_error.is_none().then_some(per_key)));
            if let Some(error) = outcome.first_error {
                notes.push(format!("{}, {name}: {error}", spec.name));
            }
            versions.push((server.name.clone(), server.version.clone()));
        }
        eprintln!("{}", cells.join("  "));
        table.row(cells);
    }
    let section = Section {
        title: "Bytes per key",
        method: format!(
            "Growth of resident memory divided by the number of keys or elements (at most {}; 200000 hashes), with a fresh \
             server for each line.",
            options.keys
        ),
        tables: vec![(String::new(), table)],
        notes,
    };
    section.print();
    match &options.out {
        Some(directory) => section.write(directory, &report::facts(options, &versions)),
        None => Ok(()),
    }
}
