//! What a command costs from the gate to its reply: nanoseconds, in this process, over a million
//! keys with 16-byte names and 32-byte values. Requests are parsed beforehand; sockets have no part
//! in it. As in the server, a batch of 64 is prefetched, then run. Counted is the CPU time of the
//! thread, so that other programs disturb it less.

use latchkey::command::TABLE;
use std::hint::black_box;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use latchkey::client::{Client, ClientFlags, ClientId};
use latchkey::clock::Clock;
use latchkey::collections::hash::KeyHasher;
use latchkey::collections::table::Table;
use latchkey::config::Config;
use latchkey::gate::execute::{self as gate, Request};
use latchkey::keyspace::{Expiry, Keyspace};
use latchkey::net::stream::{Address, Stream};
use latchkey::resp::args::Args;
use latchkey::resp::request::Range;
use latchkey::resp::{OutputBuffer, Protocol, ReplyWriter};
use latchkey::state::context::{Caller, Origin};
use latchkey::state::{Core, State};
use latchkey::sys::log::Logger;
use rustix::time::{ClockId, clock_gettime};

const KEYS: usize = 1_000_000;
const BATCH: usize = 64;
const VALUE: [u8; 32] = [b'v'; 32];
const FLAGS: ClientFlags = ClientFlags::AUTHENTICATED;

/// A keyspace, the rest of the server, one client.
struct Gate {
    core: Core,
    client: ClientId,
    output: OutputBuffer,
    hashes: Vec<u64>,
}

/// Requests in one buffer, as they lie in the server's when they are run.
struct Batch {
    buffer: Vec<u8>,
    ranges: Vec<Range>,
    /// Arguments of each request, and how many keys there are among them, behind the command's
    /// name.
    width: usize,
    keys: usize,
}

fn key(number: usize) -> String {
    format!("key:{number:012}")
}

impl Gate {
    fn new() -> Self {
        let clock = Clock::System;
        let hasher = KeyHasher::new([1, 2]);
        let mut keyspace = Keyspace::new(16, hasher, clock.now());
        for number in 0..KEYS {
            let name = key(number);
            let key = keyspace.key(name.as_bytes());
            keyspace.set_string(key, &VALUE, Expiry::Clear);
        }
        let config = Config::from_text(b"").expect("an empty configuration is good");
        let mut state =
            State::new(&TABLE, config, clock, Logger::silent(), mio::Poll::new().expect("a poll"));
        let (stream, _) = mio::net::UnixStream::pair().expect("a pair of sockets");
        let client = state.clients.insert(|id| {
            Client::new(id, FLAGS, Stream::Unix(stream), Address::Unknown, Address::Unknown, 0)
        });
        state.refresh_fast_path();
        state.stats.timing.start();
        Gate {
            core: Core { keyspace, state },
            client,
            output: OutputBuffer::default(),
            hashes: Vec::new(),
        }
    }

    /// Runs a batch as the server does; returns the bytes of the replies.
    fn run(&mut self, batch: &Batch) -> usize {
        let table = self.core.keyspace.table();
        self.hashes.clear();
        for ranges in batch.ranges.chunks_exact(batch.width) {
            for key in &ranges[1..=batch.keys] {
                self.hashes.push(self.core.keyspace.hash(key.of(&batch.buffer)));
            }
        }
        for stage in [
            Table::prefetch_directory,
            Table::prefetch_segment,
            Table::prefetch_bucket,
            Table::prefetch_entry,
        ] {
            self.hashes.iter().for_each(|hash| stage(table, *hash));
        }
        let requests = batch.ranges.chunks_exact(batch.width);
        for (ranges, hashes) in requests.zip(self.hashes.chunks_exact(batch.keys)) {
            let args = Args::new(&batch.buffer, ranges);
            let command = self.core.state.find_command(args.get(0)).expect("a command");
            let request = Request { args, command, hashes, origin: Origin::Client };
            let reply = ReplyWriter::new(&mut self.output, Protocol::Resp2);
            let caller = Caller::Client(self.client);
            // None of these requests waits.
            let _ = gate::Gate::new(&mut self.core, caller, reply).execute(&request, FLAGS);
        }
        let replied = self.output.len();
        self.output.clear();
        replied
    }
}

impl Batch {
    /// Batches of a command over random keys; `%` in an argument stands for a key's name.
    fn many(request: &[&str], keys: usize) -> Vec<Batch> {
        let mut random = fastrand::Rng::with_seed(7);
        let mut make = || {
            let mut batch = Batch {
                buffer: Vec::new(),
                ranges: Vec::new(),
                width: request.len(),
                keys: request.iter().filter(|argument| argument.contains('%')).count(),
            };
            for _ in 0..BATCH {
                for argument in request {
                    let argument = match argument.contains('%') {
                        true => argument.replace('%', &key(random.usize(..keys))),
                        false => (*argument).to_owned(),
                    };
                    let start = batch.buffer.len() as u32;
                    batch.ranges.push(Range { start, len: argument.len() as u32 });
                    batch.buffer.extend_from_slice(argument.as_bytes());
                }
            }
            batch
        };
        (0..2048).map(|_| make()).collect()
    }
}

/// The thread's CPU time, in nanoseconds.
struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = u64;
    type Value = u64;

    fn start(&self) -> u64 {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    fn end(&self, start: u64) -> u64 {
        self.start() - start
    }

    fn add(&self, a: &u64, b: &u64) -> u64 {
        a + b
    }

    fn zero(&self) -> u64 {
        0
    }

    fn to_f64(&self, value: &u64) -> f64 {
        *value as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

fn gate(c: &mut Criterion<CpuTime>) {
    let mut gate = Gate::new();
    let mut group = c.benchmark_group("gate");
    group.throughput(Throughput::Elements(BATCH as u64));
    let value = str::from_utf8(&VALUE).expect("text");
    let requests: &[(&str, &[&str])] = &[
        ("get", &["GET", "%"]),
        ("get_absent", &["GET", "no%"]),
        ("set", &["SET", "%", value]),
        ("set_nx_ex_refused", &["SET", "%", value, "NX", "EX", "30"]),
        ("set_ex", &["SET", "ex:%", value, "EX", "3000"]),
        ("incr", &["INCR", "n:%"]),
        ("strlen", &["STRLEN", "%"]),
        ("mget_4", &["MGET", "%", "%", "%", "%"]),
    ];
    for (name, request) in requests {
        let batches = Batch::many(request, KEYS);
        let mut next = batches.iter().cycle();
        group.bench_function(*name, |bencher| {
            bencher.iter(|| {
                let batch = next.next().expect("a cycle has no end");
                black_box(gate.run(batch))
            });
        });
    }
    // A lock taken and released: each pair of batches leaves the keyspace as it was.
    let acquire = Batch::many(&["SET", "lock:%", "token-of-16bytes", "NX", "EX", "30"], KEYS);
    let release = Batch::many(&["DELIFEQ", "lock:%", "token-of-16bytes"], KEYS);
    let mut pairs = acquire.iter().zip(&release).cycle();
    group.throughput(Throughput::Elements(2 * BATCH as u64));
    group.bench_function("set_nx_ex_then_delifeq", |bencher| {
        bencher.iter(|| {
            let (acquire, release) = pairs.next().expect("a cycle has no end");
            black_box(gate.run(acquire) + gate.run(release))
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = gate
}
criterion_main!(benches);
