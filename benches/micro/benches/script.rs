//! What a script costs from the gate to its reply: nanoseconds, in this process; sockets have no
//! part in it.

use latchkey::command::TABLE;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use latchkey::client::{Client, ClientFlags, ClientId};
use latchkey::clock::Clock;
use latchkey::collections::hash::KeyHasher;
use latchkey::config::Config;
use latchkey::gate::execute::{self as gate, Request};
use latchkey::keyspace::Keyspace;
use latchkey::net::stream::{Address, Stream};
use latchkey::resp::args::Args;
use latchkey::resp::request::Range;
use latchkey::resp::{OutputBuffer, Protocol, ReplyWriter};
use latchkey::state::context::{Caller, Origin};
use latchkey::state::{Core, State};
use latchkey::sys::log::Logger;

const FLAGS: ClientFlags = ClientFlags::AUTHENTICATED;

/// A keyspace, the rest of the server, one client.
struct Gate {
    core: Core,
    client: ClientId,
    output: OutputBuffer,
}

impl Gate {
    fn new() -> Self {
        let clock = Clock::System;
        let keyspace = Keyspace::new(16, KeyHasher::new([1, 2]), clock.now());
        let config = Config::from_text(b"").expect("an empty configuration is good");
        let poll = mio::Poll::new().expect("a poll");
        let mut state = State::new(&TABLE, config, clock, Logger::silent(), poll);
        let (stream, _) = mio::net::UnixStream::pair().expect("a pair of sockets");
        let client = state.clients.insert(|id| {
            Client::new(id, FLAGS, Stream::Unix(stream), Address::Unknown, Address::Unknown, 0)
        });
        state.refresh_fast_path();
        state.stats.timing.start();
        Gate { core: Core { keyspace, state }, client, output: OutputBuffer::default() }
    }

    /// Runs one request; returns its reply.
    fn run(&mut self, buffer: &[u8], ranges: &[Range]) -> Vec<u8> {
        self.output.clear();
        let args = Args::new(buffer, ranges);
        let command = self.core.state.find_command(args.get(0)).expect("a command");
        let request = Request::new(command, args, Origin::Client);
        let reply = ReplyWriter::new(&mut self.output, Protocol::Resp2);
        let caller = Caller::Client(self.client);
        // None of these requests waits.
        let _ = gate::Gate::new(&mut self.core, caller, reply).execute(&request, FLAGS);
        self.output.pieces().next().map(|piece| piece.to_vec()).unwrap_or_default()
    }

    fn call(&mut self, request: &[&str]) -> Vec<u8> {
        let (buffer, ranges) = encode(request);
        self.run(&buffer, &ranges)
    }
}

/// A request's arguments, one behind the other.
fn encode(request: &[&str]) -> (Vec<u8>, Vec<Range>) {
    let (mut buffer, mut ranges) = (Vec::new(), Vec::new());
    for argument in request {
        ranges.push(Range { start: buffer.len() as u32, len: argument.len() as u32 });
        buffer.extend_from_slice(argument.as_bytes());
    }
    (buffer, ranges)
}

const GET: &str = "return redis.call('get', KEYS[1])";
const COMPARE_AND_DELETE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) \
                                  else return 0 end";
const HUNDRED: &str = "for i = 1, 100 do redis.call('get', KEYS[1]) end";
const TEN: &str = "return {1, 2, 3, 4, 5, 'six', 'seven', 'eight', 'nine', 'ten'}";

fn scripts(criterion: &mut Criterion) {
    let mut gate = Gate::new();
    gate.call(&["SET", "key:000000000001", "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv"]);
    let loaded = gate.call(&["SCRIPT", "LOAD", GET]);
    let sha = String::from_utf8_lossy(&loaded[5..45]).into_owned();
    let key = "key:000000000001";
    let mut group = criterion.benchmark_group("script");
    for (name, request) in [
        ("plain GET", vec!["GET", key]),
        ("EVAL return 1", vec!["EVAL", "return 1", "0"]),
        ("EVAL of a GET", vec!["EVAL", GET, "1", key]),
        ("EVALSHA of a GET", vec!["EVALSHA", &sha, "1", key]),
        ("compare and delete, refused", vec!["EVAL", COMPARE_AND_DELETE, "1", key, "other"]),
        ("a reply of ten elements", vec!["EVAL", TEN, "0"]),
        ("a hundred calls", vec!["EVAL", HUNDRED, "1", key]),
        ("an error that is caught", vec!["EVAL", "return #redis.pcall('nosuch').err", "0"]),
        ("an error that is raised", vec!["EVAL", "redis.call('nosuch')", "0"]),
    ] {
        let (buffer, ranges) = encode(&request);
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(gate.run(&buffer, &ranges)));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = scripts
}
criterion_main!(benches);
