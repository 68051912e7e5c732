//! What the protocol costs: nanoseconds a request parsed, nanoseconds a reply written. The aim is 6
//! ns for a GET of a pipeline that lies in the buffer. Means mislead on a machine that does other
//! work: compare the least of several runs.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use latchkey::resp::request::encode;
use latchkey::resp::{
    Float80, Limits, OutputBuffer, Parsed, Parser, Protocol, ReplyWriter, number,
};
use std::hint::black_box;

const DEPTH: usize = 64;

fn parse_pipeline(c: &mut Criterion) {
    let key = b"key:000000123456";
    let pipelines: [(&str, Vec<&[u8]>); 5] = [
        ("get", vec![b"GET", key]),
        ("set_32", vec![b"SET", key, &[b'v'; 32]]),
        ("set_200", vec![b"SET", key, &[b'v'; 200]]),
        ("set_nx_ex", vec![b"SET", key, b"token-of-16bytes", b"NX", b"EX", b"30"]),
        ("ping", vec![b"PING"]),
    ];
    let mut group = c.benchmark_group("parse");
    group.throughput(Throughput::Elements(DEPTH as u64));
    for (name, request) in pipelines {
        let mut buf = Vec::new();
        for _ in 0..DEPTH {
            encode(request.iter().copied(), &mut buf);
        }
        let (mut parser, limits, mut args) = (Parser::default(), Limits::default(), Vec::new());
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                args.clear();
                let mut pos = 0;
                while parser.next(&mut buf, &mut pos, &mut args, &limits) == Ok(Parsed::Request) {}
                assert_eq!(pos, buf.len());
                black_box(args.len())
            })
        });
    }
    group.finish();

    let mut group = c.benchmark_group("parse_inline");
    group.throughput(Throughput::Elements(DEPTH as u64));
    let original = b"SET key:000000123456 \"a value\"\r\n".repeat(DEPTH);
    let (mut parser, limits, mut args) = (Parser::default(), Limits::default(), Vec::new());
    group.bench_function("set", |bencher| {
        bencher.iter_batched_ref(
            || original.clone(),
            |buf| {
                args.clear();
                let mut pos = 0;
                while parser.next(buf, &mut pos, &mut args, &limits) == Ok(Parsed::Request) {}
                black_box(args.len())
            },
            BatchSize::SmallInput,
        )
    });
    group.finish();
}

fn write_replies(c: &mut Criterion) {
    let mut group = c.benchmark_group("reply");
    group.throughput(Throughput::Elements(DEPTH as u64));
    let mut run = |name: &str, write: &dyn Fn(&mut ReplyWriter, usize)| {
        let mut out = OutputBuffer::default();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                out.clear();
                let mut reply = ReplyWriter::new(&mut out, Protocol::Resp2);
                for index in 0..DEPTH {
                    write(&mut reply, index);
                }
                black_box(out.len())
            })
        });
    };
    let value = black_box(vec![b'v'; 32]);
    let long = black_box(vec![b'v'; 200]);
    run("ok", &|reply, _| reply.ok());
    run("bulk_3", &|reply, _| reply.bulk(black_box(b"abc")));
    run("bulk_32", &|reply, _| reply.bulk(&value));
    run("bulk_200", &|reply, _| reply.bulk(&long));
    run("null", &|reply, _| reply.null());
    run("integer_small", &|reply, _| reply.integer(black_box(1)));
    run("integer_large", &|reply, index| reply.integer(black_box(123_456_789 + index as i64)));
    run("double", &|reply, index| reply.double(black_box(0.1 + index as f64)));
    run("deferred_3", &|reply, _| {
        let deferred = reply.defer_array();
        reply.integer(1);
        reply.integer(2);
        reply.integer(3);
        reply.finish(deferred, 3);
    });
    group.finish();
}

fn numbers(c: &mut Criterion) {
    let mut group = c.benchmark_group("number");
    group.bench_function("parse_i64", |bencher| {
        bencher.iter(|| number::parse_i64(black_box(b"1234567890")))
    });
    group.bench_function("parse_f64", |bencher| {
        bencher.iter(|| number::parse_f64(black_box(b"1234.5678")))
    });
    group.bench_function("format_double_17g", |bencher| {
        bencher.iter(|| number::format_double_17g(black_box(1234.5678)))
    });
    group.bench_function("format_double_17g_tiny", |bencher| {
        bencher.iter(|| number::format_double_17g(black_box(1.2345e-100)))
    });
    group.bench_function("increment_by_float", |bencher| {
        bencher.iter(|| {
            let value = Float80::parse(black_box(b"10.5"))?;
            let by = Float80::parse(black_box(b"0.1"))?;
            Some((value + by).to_text())
        })
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_millis(800));
    targets = parse_pipeline, write_replies, numbers
}
criterion_main!(benches);
