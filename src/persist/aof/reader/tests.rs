use proptest::prelude::*;

use super::*;

/// The arguments of a request.
type Arguments = Vec<Vec<u8>>;

/// A source that returns at most this many bytes at once.
struct Drip<'a>(&'a [u8], usize);

impl Read for Drip<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = out.len().min(self.0.len()).min(self.1);
        out[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

/// Reads everything: the requests, without those of an open transaction, and the end.
fn read(bytes: &[u8], step: usize) -> (Vec<Arguments>, End) {
    let mut reader = Reader::new(Drip(bytes, step), 0, bytes.len() as u64);
    let (mut requests, mut transaction) = (Vec::new(), Vec::new());
    loop {
        match reader.next().unwrap() {
            Item::Request(request) => {
                let words: Arguments = request.arguments().map(<[u8]>::to_vec).collect();
                assert_eq!(encode(&words), bytes[request.offset as usize..request.end as usize]);
                let ends = words[0].eq_ignore_ascii_case(b"EXEC");
                transaction.push(words);
                if !request.in_transaction || ends {
                    requests.append(&mut transaction);
                }
            }
            Item::Annotation(_) => {}
            Item::End(end) => return (requests, end),
        }
    }
}

fn encode(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn command(text: &str) -> Vec<u8> {
    encode(&text.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>())
}

/// A unit of a log (request, transaction or annotation): its bytes and its requests.
fn unit() -> impl Strategy<Value = (Vec<u8>, Vec<Arguments>)> {
    let words = prop::collection::vec(
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..12),
            Just(b"\r\n*1\r\n$1\r\na\r\n".to_vec()),
            Just(vec![0; 5]),
        ],
        0..4,
    )
    .prop_map(|mut words| {
        words.insert(0, b"SET".to_vec());
        words
    });
    let single = words.clone().prop_map(|words| (encode(&words), vec![words]));
    let transaction = prop::collection::vec(words, 0..4).prop_map(|mut requests| {
        requests.insert(0, vec![b"multi".to_vec()]);
        requests.push(vec![b"EXEC".to_vec()]);
        (requests.iter().flat_map(|words| encode(words)).collect(), requests)
    });
    let annotation = any::<i64>().prop_map(|time| (timestamp_annotation(time), Vec::new()));
    prop_oneof![4 => single, 2 => transaction, 1 => annotation]
}

/// The bytes of the units; and for each end of a unit, its offset and the requests before it.
fn log_of(units: &[(Vec<u8>, Vec<Arguments>)]) -> (Vec<u8>, Vec<(usize, Vec<Arguments>)>) {
    let (mut bytes, mut requests) = (Vec::new(), Vec::new());
    let mut ends = vec![(0, Vec::new())];
    for (text, inside) in units {
        bytes.extend_from_slice(text);
        requests.extend(inside.iter().cloned());
        ends.push((bytes.len(), requests.clone()));
    }
    (bytes, ends)
}

proptest! {
    #[test]
    fn a_log_cut_anywhere_gives_all_complete_units_before_the_cut(
        units in prop::collection::vec(unit(), 0..6),
        step in 1usize..40,
    ) {
        let (bytes, ends) = log_of(&units);
        for cut in 0..=bytes.len() {
            let (at, requests) = ends.iter().rev().find(|(at, _)| *at <= cut).unwrap();
            let (read, end) = read(&bytes[..cut], step);
            prop_assert_eq!(&read, requests);
            prop_assert_eq!(end.valid_up_to, *at as u64);
            let is_clean = end.tail == Tail::Clean;
            prop_assert_eq!(is_clean, *at == cut);
            prop_assert!(!matches!(end.tail, Tail::Damage(_) | Tail::Nuls(_)), "{:?}", end);
        }
    }

    #[test]
    fn nuls_instead_of_a_tail_give_all_complete_units_before_them(
        units in prop::collection::vec(unit(), 1..5),
        more in 1usize..3000,
    ) {
        let (bytes, ends) = log_of(&units);
        for cut in 0..=bytes.len() {
            let mut torn = bytes[..cut].to_vec();
            torn.resize(cut + more, 0);
            let (read, end) = read(&torn, 4096);
            // The NULs may be the right bytes: the end of an argument of NULs.
            let (at, requests) = ends.iter().rev().find(|(at, _)| {
                *at <= cut || bytes.len() >= *at && torn.len() >= *at && bytes[..*at] == torn[..*at]
            }).unwrap();
            prop_assert_eq!(&read, requests);
            prop_assert_eq!(end.valid_up_to, *at as u64);
            prop_assert!(!matches!(end.tail, Tail::Damage(_) | Tail::Clean), "{:?}", end);
        }
    }

    #[test]
    fn damage_in_the_middle_is_never_skipped(
        units in prop::collection::vec(unit(), 2..6),
        place in any::<prop::sample::Index>(),
    ) {
        // The first byte of a unit, not the last one, becomes `x`.
        let (mut bytes, ends) = log_of(&units);
        let unit = place.index(units.len() - 1);
        let (begin, requests) = &ends[unit];
        bytes[*begin] = b'x';
        let (read, end) = read(&bytes, 4096);
        prop_assert_eq!(&read, requests);
        prop_assert_eq!(end.valid_up_to, *begin as u64);
        let fault = Fault {
            kind: FaultKind::NotARequest(b'x'), field_at: *begin as u64, at: *begin as u64,
        };
        prop_assert_eq!(end.tail, Tail::Damage(fault));
    }

    #[test]
    fn any_bytes_are_read_without_panic_and_alike_in_any_pieces(
        bytes in prop::collection::vec(
            prop_oneof![any::<u8>(), Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1')],
            0..60,
        ),
        step in 1usize..9,
    ) {
        prop_assert_eq!(read(&bytes, step), read(&bytes, usize::MAX));
    }
}

#[test]
fn large_requests_and_many_arguments_are_read_in_pieces() {
    let words: Arguments = (0..70_000).map(|number: u32| number.to_string().into_bytes()).collect();
    let large: Arguments = vec![b"SET".to_vec(), vec![7; 3 << 20]];
    let bytes = [command("SET a b"), encode(&words), encode(&large), command("DEL a")].concat();
    let (requests, end) = read(&bytes, 10_000);
    assert_eq!(requests.len(), 4);
    assert_eq!(requests[1], words);
    assert_eq!(requests[2], large);
    assert_eq!(end.tail, Tail::Clean);
}

#[test]
fn little_is_read_ahead_of_a_large_request() {
    let large = encode(&[b"SET".to_vec(), b"large".to_vec(), vec![b'x'; 3_000_000]]);
    let bytes = [&large[..], &large, &large].concat();
    let mut reader = Reader::new(Drip(&bytes, usize::MAX), 0, bytes.len() as u64);
    for _ in 0..3 {
        assert!(matches!(reader.next(), Ok(Item::Request(_))));
        let (taken, _) = reader.take_last();
        assert!(taken.len() >= 3_000_000 && taken.capacity() < 3_600_000, "{}", taken.capacity());
        assert!(reader.buf.len() <= CHUNK_BYTES, "{} bytes are moved", reader.buf.len());
    }
}

#[test]
fn a_declared_length_reserves_nothing() {
    for text in ["*2\r\n$3\r\nSET\r\n$999999999999999\r\nab", "*9999999999999999\r\n$1\r\na\r\n"] {
        let (_, end) = read(text.as_bytes(), 4096);
        assert!(matches!(end.tail, Tail::Cut(_)), "{end:?}");
        assert_eq!(end.valid_up_to, 0);
    }
}

#[test]
fn damage_is_reported_with_its_offset() {
    let good = command("SET a b");
    let at = good.len() as u64;
    let check = |text: &str, kind, field_at, wrong| {
        let bytes = [&good[..], text.as_bytes(), &good].concat();
        let (requests, end) = read(&bytes, 4096);
        assert_eq!(requests.len(), 1, "{text:?}");
        assert_eq!(end.valid_up_to, at, "{text:?}");
        let fault = Fault { kind, field_at: at + field_at, at: at + wrong };
        assert_eq!(end.tail, Tail::Damage(fault), "{text:?}");
    };
    check("junk", FaultKind::NotARequest(b'j'), 0, 0);
    check("\0\0\0", FaultKind::NotARequest(0), 0, 0);
    check("*x\r\n", FaultKind::Number, 0, 1);
    check("*0\r\n", FaultKind::Number, 0, 1);
    check("*-1\r\n", FaultKind::Number, 0, 1);
    check("*1x\r\n", FaultKind::LineEnd(*b"x\r"), 0, 2);
    check("*1\rx", FaultKind::LineEnd(*b"\rx"), 0, 3);
    check("*1\n$1\r\na\r\n", FaultKind::LineEnd(*b"\n$"), 0, 2);
    check("*1\r\n:1\r\n", FaultKind::Prefix { expected: b'$', got: b':' }, 4, 4);
    check("*1\r\n$1\r\nab\r\n", FaultKind::LineEnd(*b"b\r"), 8, 9);
    check("*1\r\n$1\r\na\0\0", FaultKind::LineEnd(*b"\0\0"), 8, 9);
    check("*1\r\n$4\r\nEXEC\r\n", FaultKind::ExecWithoutMulti, 0, 0);
    check(&format!("#{}\r\n", "x".repeat(2000)), FaultKind::LongAnnotation, 0, 1023);
}

#[test]
fn a_transaction_within_another_is_damage_from_the_first_on() {
    let bytes = ["SET a b", "MULTI", "SET c d", "MULTI", "EXEC"].map(command).concat();
    let (requests, end) = read(&bytes, 4096);
    assert_eq!(requests.len(), 1);
    assert_eq!(end.valid_up_to, command("SET a b").len() as u64);
    assert!(matches!(end.tail, Tail::Damage(Fault { kind: FaultKind::NestedMulti, .. })));
}
