//! Streams with a hundred thousand entries of one field: nanoseconds of adding and reading, and
//! bytes an entry.

use std::hint::black_box;

use criterion::{Criterion, criterion_group};
use latchkey::types::journal::Edit;
use latchkey::types::stream::{
    Entries, Group, Keep, NewId, NodeLimits, Pending, Stream, StreamId, Trim,
};

const ENTRIES: u64 = 100_000;
const LIMITS: NodeLimits = NodeLimits { bytes: 4096, entries: 100 };

fn piece(index: usize) -> &'static [u8] {
    [&b"field"[..], b"abcdefghij"][index]
}

/// A hundred entries a millisecond.
fn add(entries: &mut Entries, number: u64) {
    let id = NewId::Now(1_700_000_000_000 + number / 100);
    Edit::unnoted(entries).add(id, 1, piece, LIMITS).expect("IDs grow");
}

fn filled() -> Stream {
    let mut stream = Stream::default();
    (0..ENTRIES).for_each(|number| add(stream.entries_mut(), number));
    stream
}

/// Reads entries as a reply would.
fn read(entries: &Entries, start: StreamId, count: usize) -> usize {
    let mut bytes = 0;
    for entry in entries.range(start, StreamId::MAX).take(count) {
        for (field, value) in entry {
            bytes += field.text().as_ref().len() + value.text().as_ref().len();
        }
    }
    bytes
}

fn operations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("stream");
    group.bench_function("add", |bench| {
        let (mut entries, mut number) = (Entries::default(), 0);
        bench.iter(|| {
            number += 1;
            add(&mut entries, number);
        });
    });
    group.bench_function("add to a thousand, trimmed exactly", |bench| {
        let (mut entries, mut number) = (Entries::default(), 0);
        let trim = Trim { keep: Keep::Newest(1000), is_approximate: false, limit: 0 };
        bench.iter(|| {
            number += 1;
            add(&mut entries, number);
            Edit::unnoted(&mut entries).trim(trim);
        });
    });
    let stream = filled();
    let entries = stream.entries();
    group.bench_function("read the last ten", |bench| {
        let start = StreamId { seq: entries.last.seq - 9, ..entries.last };
        bench.iter(|| read(entries, black_box(start), 10));
    });
    group.bench_function("read the first hundred", |bench| {
        bench.iter(|| read(entries, black_box(StreamId::MIN), 100));
    });
    group.bench_function("read the last one backwards", |bench| {
        bench.iter(|| {
            let last = entries.backwards(StreamId::MIN, black_box(StreamId::MAX)).next();
            last.map(|entry| entry.id)
        });
    });
    group.bench_function("find one in the middle", |bench| {
        let id = StreamId { ms: 1_700_000_000_500, seq: 50 };
        bench.iter(|| entries.get(black_box(id)).map(|entry| entry.id));
    });
    group.bench_function("deliver and acknowledge", |bench| {
        let mut group = Group::default();
        let (consumer, _) = group.meet_consumer(b"consumer", 0);
        let pending = Pending { consumer, delivered_ms: 0, deliveries: 1 };
        let mut seq = 0;
        bench.iter(|| {
            seq += 1;
            group.assign(StreamId { ms: 1, seq }, pending);
            seq <= 100 || group.acknowledge(StreamId { ms: 1, seq: seq - 100 })
        });
    });
    group.finish();
}

fn bytes_an_entry() {
    let stream = filled();
    let bytes = stream.heap_bytes() as f64 / ENTRIES as f64;
    println!(
        "\n{ENTRIES} entries with a field of 5 and a value of 10 bytes: {bytes:.1} bytes each"
    );
}

criterion_group!(benches, operations);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test` runs each benchmark once; a filter asks for some of them.
    if arguments == ["--bench"] {
        bytes_an_entry();
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
