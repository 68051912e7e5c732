//! What sorted sets of a million 16-byte members cost: nanoseconds an operation, and bytes a
//! member, which are printed first.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use latchkey::collections::score_tree::{Place, ScoreTree};
use latchkey::types::journal::Edit;
use latchkey::types::sorted_set::{Limits, SortedSet};

const MEMBERS: u64 = 1_000_000;
const LIMITS: Limits = Limits { entries: 128, value: 64 };

fn member(number: u64) -> [u8; 16] {
    let mut text = *b"member:000000000";
    let digits = number.to_string();
    text[16 - digits.len()..].copy_from_slice(digits.as_bytes());
    text
}

/// Numbers in no order, each once.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % MEMBERS
}

fn million() -> ScoreTree {
    let mut tree = ScoreTree::new();
    for number in 0..MEMBERS {
        tree.insert(fastrand::f64() * 1e6, &member(number));
    }
    tree
}

fn large(criterion: &mut Criterion) {
    let mut tree = million();
    println!("{:.1} bytes a member", tree.heap_bytes() as f64 / MEMBERS as f64);
    let mut group = criterion.benchmark_group("sorted_set/million");
    let mut number = 0;
    let mut next = move || {
        number += 1;
        scattered(number)
    };
    group.bench_function("score", |bencher| {
        bencher.iter(|| black_box(tree.score(&member(next()))));
    });
    group.bench_function("rank", |bencher| {
        bencher.iter(|| {
            let position = tree.find(&member(next())).expect("it is there");
            black_box(tree.rank_at(position))
        });
    });
    group.bench_function("rank of a score", |bencher| {
        bencher.iter(|| black_box(tree.rank(Place::BeforeScore(next() as f64))));
    });
    group.bench_function("ten by rank", |bencher| {
        bencher.iter(|| {
            let start = next() as usize % (MEMBERS as usize - 10);
            tree.range(start..start + 10).for_each(|element| {
                black_box(element);
            });
        });
    });
    group.bench_function("move", |bencher| {
        bencher.iter(|| {
            let member = member(next());
            let position = tree.find(&member).expect("it is there");
            tree.set_score(position, fastrand::f64() * 1e6, &member);
        });
    });
    group.bench_function("remove and insert", |bencher| {
        bencher.iter(|| {
            let member = member(next());
            tree.remove(&member);
            tree.insert(fastrand::f64() * 1e6, &member);
        });
    });
    group.bench_function("pop the first, insert a last", |bencher| {
        let mut last = 1e6;
        bencher.iter(|| {
            let first = tree.get(0).map(|(_, member)| member.to_vec()).expect("it is not empty");
            tree.remove_ranks(0..1);
            last += 1.0;
            tree.insert(last, &first);
        });
    });
    group.finish();
}

fn small(criterion: &mut Criterion) {
    let mut set = SortedSet::new();
    for number in 0..16 {
        Edit::unnoted(&mut set).insert(number as f64, &member(number), LIMITS);
    }
    criterion.bench_function("sorted_set/packed of 16: score of the last", |bencher| {
        bencher.iter(|| black_box(set.as_view().score(&member(15))));
    });
    criterion.bench_function("sorted_set/packed of 16: move", |bencher| {
        let mut score = 0.0;
        bencher.iter(|| {
            score += 1.0;
            Edit::unnoted(&mut set).insert(score, &member(7), LIMITS)
        });
    });
}

criterion_group!(benches, large, small);
criterion_main!(benches);
