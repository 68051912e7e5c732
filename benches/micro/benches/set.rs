//! Sets of integers and of words with 10, 100 and a million members: time of each operation, and
//! bytes a member.
//!
//! Means mislead on a machine that does other work: compare the least of several runs.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group};
use latchkey::collections::hash::KeyHasher;
use latchkey::collections::intset::Intset;
use latchkey::types::journal::Edit;
use latchkey::types::set::{Limits, Set, SetView};

const SIZES: [usize; 3] = [10, 100, 1_000_000];

fn limits() -> Limits {
    let hasher = KeyHasher::new([1, 2]);
    Limits { intset_entries: 512, listpack_entries: 128, listpack_value: 64, hasher }
}

/// The numbers below `size` in an order without pattern.
fn shuffled(turn: usize, size: usize) -> usize {
    (turn % size) * 618_033 % size
}

/// Every other one is a member.
fn member(form: &str, number: usize) -> String {
    match form {
        "integers" => (number * 2).to_string(),
        _ => format!("member:{:09}", number * 2),
    }
}

fn filled(form: &str, size: usize) -> Set {
    let mut set = Set::with_hint(member(form, 0).as_bytes(), 1, &limits());
    for number in 0..size {
        Edit::unnoted(&mut set).add(member(form, number).as_bytes(), &limits());
    }
    set
}

fn operations(c: &mut Criterion) {
    let limits = limits();
    for form in ["integers", "words"] {
        for size in SIZES {
            let mut group = c.benchmark_group(format!("set/{form}/{size}"));
            let members: Vec<String> =
                (0..size).map(|turn| member(form, shuffled(turn, size))).collect();
            let mut set = filled(form, size);
            println!(
                "set/{form}/{size}: {:.1} bytes a member",
                set.heap_bytes() as f64 / size as f64
            );
            let mut turn = 0;
            group.bench_function("contains", |bencher| {
                bencher.iter(|| {
                    turn = (turn + 1) % size;
                    black_box(set.as_view().contains(members[turn].as_bytes()))
                })
            });
            group.bench_function("remove and add", |bencher| {
                bencher.iter(|| {
                    turn = (turn + 1) % size;
                    Edit::unnoted(&mut set).remove(members[turn].as_bytes());
                    black_box(Edit::unnoted(&mut set).add(members[turn].as_bytes(), &limits))
                })
            });
            group.bench_function("pop and add", |bencher| {
                let mut popped = Vec::new();
                bencher.iter(|| {
                    popped.clear();
                    Edit::unnoted(&mut set).pop(&mut Default::default(), |member| {
                        popped.extend_from_slice(member.text().as_ref())
                    });
                    black_box(Edit::unnoted(&mut set).add(&popped, &limits))
                })
            });
            if size <= 100 {
                group.bench_function("build", |bencher| {
                    bencher.iter_batched(
                        || (),
                        |()| {
                            let mut set = Set::with_hint(members[0].as_bytes(), 1, &limits);
                            for member in &members {
                                Edit::unnoted(&mut set).add(member.as_bytes(), &limits);
                            }
                            set
                        },
                        BatchSize::SmallInput,
                    )
                });
            }
            let other = filled(form, size * 2);
            group.bench_function("intersect", |bencher| {
                bencher.iter(|| {
                    let mut common = 0;
                    match (set.as_view(), other.as_view()) {
                        (SetView::Ints(a), SetView::Ints(b)) => a.intersect(&b, |_| {
                            common += 1;
                            true
                        }),
                        (a, b) => a.for_each(|member| {
                            common += usize::from(b.contains_element(member));
                        }),
                    }
                    black_box(common)
                })
            });
            group.finish();
        }
    }
}

/// Which ratio of lengths makes searching better than walking: `intset.rs`'s SEARCH_RATIO.
fn ratios(c: &mut Criterion) {
    let mut group = c.benchmark_group("set/intersect by ratio");
    let Set::Ints(large) = filled("integers", 512) else { unreachable!("512 are an intset") };
    for ratio in [2, 4, 8, 16, 32] {
        let mut small = Vec::new();
        for number in 0..512 / ratio {
            latchkey::collections::intset::insert(&mut small, (number * ratio * 2) as i64);
        }
        group.bench_function(ratio.to_string(), |bencher| {
            bencher.iter(|| {
                let mut common = 0;
                Intset::new(&small).intersect(&Intset::new(&large), |_| {
                    common += 1;
                    true
                });
                black_box(common)
            })
        });
    }
    group.finish();
}

criterion_group! {
    name = sets;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(500));
    targets = operations, ratios
}

fn main() {
    sets();
}
