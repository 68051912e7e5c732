//! Lists of 10, 1,000 and 1,000,000 elements of 10 bytes: pushing and popping at both ends, reading
//! and inserting in the middle, and bytes an element.
//!
//! What a client's request costs besides (look-up of the key, the reply's way) is measured by
//! `make bench-peers`; here elements are only walked over.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group};
use latchkey::types::journal::Edit;
use latchkey::types::list::{End, Limits, List};

const SIZES: [usize; 3] = [10, 1_000, 1_000_000];
const ELEMENT: &[u8] = b"element:xx";

/// The default of `list-max-listpack-size`.
fn limits() -> Limits {
    Limits::from_setting(-2)
}

fn push(list: &mut List, end: End, element: &[u8]) {
    let limits = limits();
    Edit::unnoted(list).make_room(element.len(), 1, &limits);
    Edit::unnoted(list).push(end, element, &limits);
}

fn filled(end: End, size: usize) -> List {
    let mut list = List::default();
    (0..size).for_each(|_| push(&mut list, end, ELEMENT));
    list
}

fn ends(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ends");
    for size in SIZES {
        for (name, to, from) in [
            ("push_front_pop_back", End::Front, End::Back),
            ("push_back_pop_front", End::Back, End::Front),
            ("push_front_pop_front", End::Front, End::Front),
        ] {
            let mut list = filled(to, size);
            let limits = limits();
            group.bench_function(BenchmarkId::new(name, size), |bencher| {
                bencher.iter(|| {
                    push(&mut list, to, ELEMENT);
                    Edit::unnoted(&mut list).pop(from, |element| black_box(element).encoded_len());
                    Edit::unnoted(&mut list).settle(&limits);
                })
            });
        }
    }
    // Into a list that only grows: where runs begin and move.
    for (name, end) in [("grow_front", End::Front), ("grow_back", End::Back)] {
        group.bench_function(BenchmarkId::new(name, 10_000), |bencher| {
            bencher.iter_batched(|| (), |()| filled(end, 10_000), BatchSize::LargeInput)
        });
    }
    group.finish();
}

fn reads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reads");
    for size in SIZES {
        let list = filled(End::Back, size);
        let view = list.as_view();
        group.bench_function(BenchmarkId::new("index_middle", size), |bencher| {
            bencher.iter(|| black_box(view.get(black_box(size / 2))).is_some())
        });
        for count in [100, 600] {
            group.bench_function(BenchmarkId::new(format!("range_{count}"), size), |bencher| {
                bencher.iter(|| {
                    let elements = view.forwards(black_box(0)).take(count);
                    elements.map(|element| black_box(element).encoded_len()).sum::<usize>()
                })
            });
        }
    }
    group.finish();
}

fn changes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("changes");
    let limits = limits();
    for size in SIZES {
        let mut list = filled(End::Back, size);
        group.bench_function(BenchmarkId::new("set_middle", size), |bencher| {
            bencher.iter(|| Edit::unnoted(&mut list).set(black_box(size / 2), ELEMENT, &limits))
        });
        if size > 1_000 {
            // The pivot is looked for from the front: what is measured would be the walk.
            continue;
        }
        let mut list = filled(End::Back, size);
        Edit::unnoted(&mut list).set(size / 2, b"pivot", &limits);
        group.bench_function(BenchmarkId::new("insert_remove_middle", size), |bencher| {
            bencher.iter(|| {
                Edit::unnoted(&mut list).insert(b"pivot", false, b"inserted", &limits);
                Edit::unnoted(&mut list).remove(End::Front, b"inserted", 1, &limits)
            })
        });
    }
    group.finish();
}

fn bytes_an_element() {
    println!("\nbytes an element in a list of a million, besides its text:");
    for len in [2, 5, 10, 20, 50, 100, 1000] {
        let mut list = List::default();
        let element = vec![b'x'; len];
        (0..1_000_000).for_each(|_| push(&mut list, End::Back, &element));
        let bytes = list.heap_bytes() as f64 / 1e6;
        println!("{len:6} bytes: {:.2}", bytes - len as f64);
    }
}

criterion_group!(benches, ends, reads, changes);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test` runs each benchmark once; a filter asks for some of them.
    if arguments == ["--bench"] {
        bytes_an_element();
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
