//! The keyspace's hash table with a million keys of 16 bytes: nanoseconds of each operation, and
//! bytes a key.
//!
//! `prefetched` is how the server works: batches of 64 hashes go through the prefetching stages
//! first. Without it, what is measured are cache misses. Time is the thread's own, so that other
//! programs on the machine disturb less.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group};
use latchkey::clock::{Deadline, Now};
use latchkey::collections::hash::KeyHasher;
use latchkey::collections::table::{NewValue, Table};

const KEYS: usize = 1_000_000;
const BATCH: usize = 64;
/// Keys between two looks at the clock, a system call.
const ROUND: usize = 64 * BATCH;
const NOW: Now =
    Now { wall_us: 1_700_000_000_000_000, boot_us: 3_600_000_000, ignores_deadlines: false };

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

type Keyspace = Table<Vec<u8>>;

fn hasher() -> KeyHasher {
    KeyHasher::new([1, 2])
}

fn key(number: usize) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// The numbers below a power of ten in an order without pattern.
fn shuffled(turn: usize, keys: usize) -> usize {
    (turn % keys) * 618_033 % keys
}

fn bytes(value: &[u8]) -> NewValue<'_, Vec<u8>> {
    NewValue::Bytes { bytes: value, kind: 0 }
}

fn put(table: &mut Keyspace, number: usize, value: &[u8], deadline: Option<Deadline>) {
    let key = key(number);
    table.insert(hasher().hash(&key), &key, bytes(value), deadline, 0);
}

fn filled(keys: usize, value: &[u8], deadline: impl Fn(usize) -> Option<Deadline>) -> Keyspace {
    let mut table = Keyspace::new(hasher(), NOW.wall_offset_ms());
    (0..keys).for_each(|number| put(&mut table, number, value, deadline(number)));
    table
}

/// Runs `work` on batches of prepared keys and measures it, prefetching included, hashing not.
fn batches(
    turns: u64,
    keys: usize,
    table: &mut Keyspace,
    prefetch: bool,
    mut work: impl FnMut(&mut Keyspace, u64, &[u8]),
) -> Duration {
    let mut elapsed = Duration::ZERO;
    let mut turn = fastrand::usize(0..keys);
    let mut left = turns;
    while left > 0 {
        let count = left.min(ROUND as u64) as usize;
        let round: Vec<(u64, [u8; 16])> = (turn..turn + count)
            .map(|turn| key(shuffled(turn, keys)))
            .map(|key| (hasher().hash(&key), key))
            .collect();
        let start = cpu_time();
        for batch in round.chunks(BATCH) {
            if prefetch {
                batch.iter().for_each(|(hash, _)| table.prefetch_directory(*hash));
                batch.iter().for_each(|(hash, _)| table.prefetch_segment(*hash));
                batch.iter().for_each(|(hash, _)| table.prefetch_bucket(*hash));
                batch.iter().for_each(|(hash, _)| table.prefetch_entry(*hash));
            }
            batch.iter().for_each(|(hash, key)| work(table, *hash, key));
        }
        elapsed += cpu_time() - start;
        turn += count;
        left -= count as u64;
    }
    elapsed
}

fn operations(criterion: &mut Criterion) {
    // Ten thousand fit in the second-level cache: what is left are instructions.
    operations_on(criterion, 10_000);
    operations_on(criterion, KEYS);
    growth_and_expiry(criterion);
}

fn operations_on(criterion: &mut Criterion, keys: usize) {
    let mut group = criterion.benchmark_group(format!("{keys} keys"));
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    let mut table = filled(keys, b"abc", |_| None);

    for (name, prefetch) in [("find", false), ("find, prefetched", true)] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|turns| {
                batches(turns, keys, &mut table, prefetch, |table, hash, key| {
                    black_box(table.find(hash, key).map(|slot| table.entry(slot).allocated()));
                })
            })
        });
    }
    group.bench_function("find what is absent, prefetched", |bencher| {
        bencher.iter_custom(|turns| {
            batches(turns, keys, &mut table, true, |table, hash, key| {
                black_box(table.find(hash ^ 0xffff_0000, key));
            })
        })
    });
    group.bench_function("replace with the same size, prefetched", |bencher| {
        bencher.iter_custom(|turns| {
            batches(turns, keys, &mut table, true, |table, hash, key| {
                let slot = table.find(hash, key).expect("the key was inserted");
                table.replace(slot, bytes(b"xyz"), None);
            })
        })
    });
    group.bench_function("remove and insert, prefetched", |bencher| {
        bencher.iter_custom(|turns| {
            batches(turns, keys, &mut table, true, |table, hash, key| {
                let slot = table.find(hash, key).expect("the key was inserted");
                drop(table.remove(slot));
                table.insert(hash, key, bytes(b"abc"), None, 0);
            })
        })
    });
    group.bench_function("remove and insert with deadline, prefetched", |bencher| {
        bencher.iter_custom(|turns| {
            batches(turns, keys, &mut table, true, |table, hash, key| {
                let slot = table.find(hash, key).expect("the key was inserted");
                drop(table.remove(slot));
                let deadline = Some(NOW.after(hash as i64 & 0xffff_ffff));
                table.insert(hash, key, bytes(b"abc"), deadline, 0);
            })
        })
    });
    group.bench_function("scan, a key", |bencher| {
        bencher.iter_custom(|turns| {
            let (mut cursor, mut seen) = (0, 0);
            let start = cpu_time();
            while seen < turns {
                cursor = table.scan(cursor, 10, |entry| {
                    black_box(entry.key());
                    seen += 1;
                });
            }
            cpu_time() - start
        })
    });
    group.bench_function("random", |bencher| bencher.iter(|| black_box(table.random())));
    group.finish();
}

fn growth_and_expiry(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a million keys");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    group.bench_function("insert while growing, a key", |bencher| {
        bencher.iter_custom(|turns| {
            let mut elapsed = Duration::ZERO;
            let mut done = 0;
            while done < turns {
                let mut table = Keyspace::new(hasher(), 0);
                let count = (turns - done).min(KEYS as u64);
                elapsed += batches(count, KEYS, &mut table, true, |table, hash, key| {
                    table.insert(hash, key, bytes(b"abc"), None, 0);
                });
                done += count;
            }
            elapsed
        })
    });
    group.bench_function("pop_due when a million are due, a key", |bencher| {
        bencher.iter_custom(|turns| {
            let mut elapsed = Duration::ZERO;
            let mut done = 0;
            while done < turns {
                let count = (turns - done).min(KEYS as u64);
                let mut table =
                    filled(count as usize, b"abc", |number| Some(NOW.after(number as i64 % 1000)));
                let now = Now {
                    wall_us: NOW.wall_us + 2_000_000,
                    boot_us: NOW.boot_us + 2_000_000,
                    ignores_deadlines: false,
                };
                let start = cpu_time();
                let mut budget = usize::MAX;
                while let Some(slot) = table.find_due(&now, &mut budget, |_| false) {
                    let owned = table.remove(slot);
                    drop(owned);
                }
                elapsed += cpu_time() - start;
                assert!(table.is_empty());
                done += count;
            }
            elapsed
        })
    });
    let mut table = filled(KEYS, b"abc", |_| Some(NOW.after(1 << 40)));
    group.bench_function("insert one that is due, pop_due it, among a million others", |bencher| {
        bencher.iter_custom(|turns| {
            let start = cpu_time();
            for turn in 0..turns {
                let number = KEYS + shuffled(turn as usize, KEYS);
                put(&mut table, number, b"abc", Some(NOW.after(5)));
                let now = Now {
                    wall_us: NOW.wall_us + 6_000,
                    boot_us: NOW.boot_us + 6_000,
                    ignores_deadlines: false,
                };
                let mut budget = usize::MAX;
                while let Some(slot) = table.find_due(&now, &mut budget, |_| false) {
                    let owned = table.remove(slot);
                    drop(owned);
                }
            }
            cpu_time() - start
        });
    });
    group.finish();
}

fn allocated() -> usize {
    tikv_jemalloc_ctl::epoch::advance().expect("jemalloc has statistics");
    tikv_jemalloc_ctl::stats::allocated::read().expect("jemalloc has statistics")
}

/// Bytes a key at several numbers of keys, since the load of the segments swings with it.
fn bytes_a_key() {
    println!("\nbytes a key, 16-byte keys (allocated)");
    for (name, len, deadline) in [
        ("3", 3, None),
        ("32", 32, None),
        ("32 and deadline", 32, Some(NOW.after(99_999))),
        ("200", 200, None),
    ] {
        print!("value {name:>15}:");
        for keys in [400_000, 600_000, 800_000, 1_000_000, 1_400_000] {
            let before = allocated();
            let table = filled(keys, &vec![b'v'; len], |_| deadline);
            let bytes = (allocated() - before) as f64 / keys as f64;
            print!("  {keys}: {bytes:.1}");
            black_box(&table);
        }
        println!();
    }
}

/// The longest single inserts while growing to ten million keys: splits and the directory's
/// doubling.
fn stalls() {
    let mut table = Keyspace::new(hasher(), 0);
    let mut times: Vec<(Duration, usize)> = Vec::new();
    let mut doublings: Vec<(Duration, usize)> = Vec::new();
    for number in 0..10_000_000 {
        let key = key(number);
        let hash = hasher().hash(&key);
        let memory = table.memory();
        let start = cpu_time();
        table.insert(hash, &key, bytes(b"abc"), None, 0);
        let elapsed = cpu_time() - start;
        // Blocks come by the kilobyte and chunks by eight: more at once is the directory.
        if table.memory() > memory + 15_000 {
            doublings.push((elapsed, number));
        }
        if elapsed > Duration::from_micros(10) {
            times.push((elapsed, number));
        }
    }
    times.sort();
    println!(
        "\ngrowing to {} keys: {} inserts over 10 us, median of them {:?}, longest {:?}",
        table.len(),
        times.len(),
        times[times.len() / 2].0,
        &times[times.len() - 8..]
    );
    println!("inserts that doubled the directory: {doublings:?}");
    drop(table);
    let mut table = filled(10_000_000, b"abc", |number| Some(NOW.after(number as i64)));
    let start = cpu_time();
    table.set_wall_offset(NOW.wall_offset_ms() + 1000);
    println!("set_wall_offset for {} deadlines: {:?}", table.len(), cpu_time() - start);
}

criterion_group!(benches, operations);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test` runs each benchmark once; a filter asks for some of them.
    if arguments == ["--bench"] {
        bytes_a_key();
        stalls();
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
