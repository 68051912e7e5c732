//! Hashes of 5, 100 and a million fields: nanoseconds of each operation, and bytes a field.
//!
//! Five fields lie packed inside their key's entry, a hundred in one page that keeps their order, a
//! million in a table of pages. Fields and values have 16 bytes.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group};
use latchkey::clock::Expiry;
use latchkey::clock::Now;
use latchkey::collections::hash::KeyHasher;
use latchkey::collections::packed_table::{Form, PackedTable};
use latchkey::types::hash::{Hash, Limits};
use latchkey::types::journal::Edit;

const NOW: Now =
    Now { wall_us: 1_700_000_000_000_000, boot_us: 3_600_000_000, ignores_deadlines: false };

fn limits() -> Limits {
    Limits { entries_max: 128, bytes_max: 64, hasher: KeyHasher::new([1, 2]) }
}

fn text(prefix: &[u8; 6], number: usize) -> [u8; 16] {
    let mut text = *b"______0000000000";
    text[..6].copy_from_slice(prefix);
    let mut rest = number;
    for digit in text[6..].iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    text
}

fn field(number: usize) -> [u8; 16] {
    text(b"field:", number)
}

fn filled(fields: usize) -> Hash {
    let mut hash = Hash::default();
    for number in 0..fields {
        Edit::unnoted(&mut hash).set(
            &field(number),
            &text(b"value:", number),
            Expiry::Clear,
            &limits(),
            &NOW,
        );
    }
    hash
}

/// The numbers below `fields` in an order without pattern.
fn shuffled(turn: usize, fields: usize) -> usize {
    turn % fields * 618_033 % fields
}

fn operations(criterion: &mut Criterion) {
    for fields in [5, 100, 1_000_000] {
        let mut group = criterion.benchmark_group(format!("hash/{fields}"));
        group.throughput(Throughput::Elements(1));
        let mut hash = filled(fields);
        let mut turn = 0;
        group.bench_function("get", |bencher| {
            bencher.iter(|| {
                turn += 1;
                let found = hash.as_view().get(&field(shuffled(turn, fields)), &NOW);
                black_box(found.is_some())
            });
        });
        group.bench_function("get_absent", |bencher| {
            bencher.iter(|| {
                turn += 1;
                black_box(hash.as_view().get(&field(fields + turn), &NOW).is_some())
            });
        });
        group.bench_function("set_over", |bencher| {
            bencher.iter(|| {
                turn += 1;
                let value = text(b"other:", turn);
                let field = field(shuffled(turn, fields));
                black_box(Edit::unnoted(&mut hash).set(
                    &field,
                    &value,
                    Expiry::Clear,
                    &limits(),
                    &NOW,
                ))
            });
        });
        group.bench_function("remove_and_insert", |bencher| {
            bencher.iter(|| {
                turn += 1;
                let field = field(shuffled(turn, fields));
                Edit::unnoted(&mut hash).remove(&field, &NOW);
                black_box(Edit::unnoted(&mut hash).set(
                    &field,
                    b"0123456789abcdef",
                    Expiry::Clear,
                    &limits(),
                    &NOW,
                ))
            });
        });
        group.bench_function("random", |bencher| {
            bencher.iter(|| black_box(hash.as_view().random(&NOW).is_some()));
        });
        group.finish();
    }
}

fn whole(criterion: &mut Criterion) {
    for fields in [5, 100, 1_000_000] {
        let mut group = criterion.benchmark_group(format!("hash/{fields}"));
        group.throughput(Throughput::Elements(fields as u64)).sample_size(10);
        group.bench_function("fill", |bencher| bencher.iter(|| black_box(filled(fields))));
        let hash = filled(fields);
        group.bench_function("scan", |bencher| {
            bencher.iter(|| {
                let (mut cursor, mut seen) = (0, 0);
                loop {
                    cursor = hash.as_view().scan(cursor, usize::MAX, &NOW, |_, value| {
                        seen += value.len();
                    });
                    if cursor == 0 {
                        break;
                    }
                }
                black_box(seen)
            });
        });
        group.finish();
    }
}

criterion_group!(benches, operations, whole);

fn bytes_a_field() {
    for fields in [100_000, 500_000, 1_000_000, 1_500_000] {
        let pairs = filled(fields).heap_bytes() as f64 / fields as f64;
        let mut members = PackedTable::new(limits().hasher, Form::Members);
        members.spread();
        (0..fields).for_each(|number| _ = members.insert(&field(number)));
        let members = members.heap_bytes() as f64 / fields as f64;
        println!("{fields}: {pairs:.1} bytes a pair of 16 + 16, {members:.1} bytes a member of 16");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test` runs each benchmark once; a filter asks for some of them.
    if arguments == ["--bench"] {
        bytes_a_field();
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
