use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const MARK: &str = "0123456789abcdef0123456789abcdef01234567";
const ID: &str = "abcdefabcdefabcdefabcdefabcdefabcdefabcd";

/// The output of a link.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    /// Without those that depend on how the bytes are split.
    events: Vec<Event>,
    snapshot: Vec<u8>,
    units: Vec<Vec<Vec<Vec<u8>>>>,
    raw: Vec<u8>,
    broken: Option<Broken>,
    sent: Vec<u8>,
}

/// Feeds a link with bytes in pieces.
fn feed(options: HandshakeOptions, pieces: &[&[u8]]) -> Outcome {
    let (mut link, mut outcome) = (Link::new(options), Outcome::default());
    for piece in pieces {
        link.receive(piece);
        while let Some(event) = link.next_event() {
            match event {
                Event::Snapshot(bytes) => outcome.snapshot.extend(bytes),
                Event::Log(..) | Event::Alive => {}
                event => outcome.events.push(event),
            }
        }
        let words = |request: &Request<'_>| -> Vec<Vec<u8>> {
            request.ranges.iter().map(|range| range.of(request.buffer).to_vec()).collect()
        };
        // Requests looked at ahead are found again in their places.
        let mut seen = VecDeque::new();
        while outcome.broken.is_none() {
            if seen.is_empty() {
                link.look_ahead(3, |request| seen.push_back((request.at, words(request))));
            }
            match link.next_unit() {
                Ok(Some(unit)) => {
                    outcome.raw.extend_from_slice(unit.raw());
                    let mut requests = Vec::new();
                    for request in unit {
                        // Places count from the request's start, so that no number of requests
                        // before it overflows them.
                        assert!(request.ranges[0].start < 16);
                        let (at, request) = (request.at, words(&request));
                        seen.retain(|(seen, _)| *seen >= at);
                        if seen.front().is_some_and(|front| front.0 == at) {
                            assert_eq!(
                                seen.pop_front().map(|front| front.1),
                                Some(request.clone())
                            );
                        }
                        requests.push(request);
                    }
                    outcome.units.push(requests);
                    link.applied();
                }
                Ok(None) => break,
                Err(broken) => outcome.broken = Some(broken),
            }
        }
        link.shrink();
    }
    outcome.sent = link.output;
    outcome
}

fn resuming() -> HandshakeOptions {
    let continues = Some((ID.to_owned(), 7));
    HandshakeOptions { port: 6380, continues, ..HandshakeOptions::default() }
}

const STREAM: &str = "*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n\r\n\n*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\n\r\n\r\n\
    *0\r\n*2\r\n$4\r\nINCR\r\n$1\r\nb\r\n*1\r\n$4\r\nexec\r\n*1\r\n$4\r\nPING\r\n*1\r\n$5\r\nmulti\r\n*1\r\n$4\r\nEXEC\r\n";

fn words(text: &str) -> Vec<Vec<u8>> {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn a_snapshot_and_the_stream_after_it_are_separated() {
    let snapshot = format!("REDIS0010 {} not the mark", &MARK[..39]);
    let ways = [
        (format!("$EOF:{MARK}\r\n{snapshot}{MARK}"), None),
        (format!("${}\r\n{snapshot}", snapshot.len()), Some(snapshot.len() as u64)),
    ];
    for (transfer, bytes) in ways {
        let text = format!(
            "+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n\n\n+FULLRESYNC {ID} 1234\r\n\n{transfer}{STREAM}"
        );
        let outcome = feed(
            HandshakeOptions { port: 6380, ..HandshakeOptions::default() },
            &[text.as_bytes()],
        );
        let history = Some((ID.to_owned(), 1234));
        assert_eq!(
            outcome.events,
            [
                Event::FullSync { history },
                Event::Begins { bytes },
                Event::Ends { by_mark: bytes.is_none() }
            ]
        );
        assert_eq!(outcome.snapshot, snapshot.as_bytes());
        assert_eq!(outcome.raw, STREAM.replace("\r\n\r\n\n*", "\r\n*").as_bytes());
        let units = [
            vec![words("SELECT 3")],
            vec![vec![b"SET".to_vec(), b"a".to_vec(), b"\r\n".to_vec()], words("INCR b")],
            vec![words("PING")],
            vec![],
        ];
        assert_eq!(outcome.units, units);
        let sent = String::from_utf8(outcome.sent).expect("text");
        let asked = "*3\r\n$5\r\nPSYNC\r\n$1\r\n?\r\n$2\r\n-1\r\n";
        assert!(sent.starts_with("*1\r\n$4\r\nPING\r\n") && sent.ends_with(asked), "{sent}");
    }
}

#[test]
fn a_known_history_is_requested_and_continues() {
    let options = HandshakeOptions {
        password: Some(b"secret".to_vec()),
        user: Some(b"me".to_vec()),
        address: Some(b"10.0.0.2".to_vec()),
        run_id: "me".into(),
        is_failover: true,
        ..resuming()
    };
    let text = format!(
        "-NOAUTH first\r\n+OK\r\n-ERR what\r\n-ERR what\r\n-ERR what\r\n-ERR what\r\n+CONTINUE {MARK}\r\n{STREAM}"
    );
    let outcome = feed(options, &[text.as_bytes()]);
    assert_eq!(outcome.events, [Event::Continues { id: Some(MARK.to_owned()) }]);
    assert_eq!(outcome.units.len(), 4);
    let sent = String::from_utf8(outcome.sent).expect("text");
    let sent: Vec<&str> = sent.split("\r\n").filter(|word| !word.starts_with(['*', '$'])).collect();
    let expected = format!(
        "PING AUTH me secret REPLCONF listening-port 6380 REPLCONF ip-address 10.0.0.2 REPLCONF capa eof capa psync2 capa run-id=me REPLCONF version 9.0.0 PSYNC {ID} 7 \
         FAILOVER "
    );
    assert_eq!(sent.join(" "), expected);
}

#[test]
fn a_snapshot_alone_is_requested_before_psync() {
    let options = HandshakeOptions { snapshot_only: true, ..HandshakeOptions::default() };
    let head = "+PONG\r\n+OK\r\n+OK\r\n+OK\r\n";
    let asked = |text: &str| {
        let sent = feed(options.clone(), &[text.as_bytes()]).sent;
        let sent = String::from_utf8(sent).expect("text");
        let words: Vec<&str> =
            sent.split("\r\n").filter(|word| !word.starts_with(['*', '$'])).collect();
        words.join(" ")
    };
    assert!(asked(head).ends_with("REPLCONF rdb-only 1 "), "{}", asked(head));
    let refused = format!("{head}-ERR Unrecognized REPLCONF option: rdb-only\r\n");
    assert!(asked(&refused).ends_with("REPLCONF rdb-only 1 PSYNC ? -1 "), "{}", asked(&refused));
}

#[test]
fn a_refusal_ends_the_link_or_leads_to_sync() {
    let failed = |later| [Event::Failed { later }];
    let ends = [
        ("-ERR no\r\n", failed(false)),
        (
            "+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n-NOMASTERLINK Can't\r\n",
            failed(true),
        ),
        (
            "+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n-LOADING wait\r\n",
            failed(true),
        ),
        (
            "+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n-MASTERDOWN Link\r\n",
            failed(true),
        ),
    ];
    for (text, events) in ends {
        assert_eq!(feed(resuming(), &[text.as_bytes()]).events, events, "{text}");
    }
    let old = "+PONG\r\n-ERR\r\n-ERR\r\n-ERR\r\n-ERR unknown command\r\n";
    for (answer, bytes) in [("$3\r\nabc", Some(3)), ("-ERR no\r\n", None), ("hello\r\n", None)] {
        let outcome = feed(resuming(), &[old.as_bytes(), answer.as_bytes()]);
        let mut expected = vec![Event::FullSync { history: None }];
        match bytes {
            Some(_) => expected.extend([Event::Begins { bytes }, Event::Ends { by_mark: false }]),
            None => expected.extend(failed(false)),
        }
        assert_eq!(outcome.events, expected, "{answer}");
        assert!(outcome.sent.ends_with(b"SYNC\r\n"));
    }
    let long = "x".repeat(LINE_MAX + 1);
    assert_eq!(feed(resuming(), &[long.as_bytes()]).events, failed(false));
}

#[test]
fn a_discarded_unit_is_empty() {
    let request = |word: &str| format!("*1\r\n${}\r\n{word}\r\n", word.len());
    let words = ["MULTI", "FIRST", "SECOND", "discard", "THIRD", "MULTI", "FOURTH", "EXEC"];
    let stream: String = words.iter().map(|word| request(word)).collect();
    let greeting =
        "+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n+CONTINUE\r\n";
    let outcome = feed(resuming(), &[greeting.as_bytes(), stream.as_bytes()]);
    assert_eq!(
        outcome.units,
        [vec![], vec![vec![b"THIRD".to_vec()]], vec![vec![b"FOURTH".to_vec()]]]
    );
    assert_eq!((outcome.raw, outcome.broken), (stream.into_bytes(), None));
}

#[test]
fn invalid_bytes_break_the_stream() {
    for rest in ["PING\r\n", "*1\r\n+1\r\n", "*x\r\n", "\r\r\n", "\r\n \r\n"] {
        let text = format!(
            "+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n+CONTINUE\r\n{STREAM}{rest}"
        );
        let outcome = feed(resuming(), &[text.as_bytes()]);
        assert_eq!(outcome.units.len(), 4);
        assert!(outcome.broken.is_some(), "{rest}");
    }
}

proptest! {
    #[test]
    fn it_does_not_matter_how_the_bytes_are_split(
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        by_mark in any::<bool>(),
        snapshot in prop::collection::vec(prop::sample::select(b"0123\r\n$*".to_vec()), 0..200),
        goes_on in any::<bool>(),
    ) {
        let transfer = match (goes_on, by_mark) {
            (true, _) => format!("+CONTINUE {MARK}\r\n").into_bytes(),
            (false, true) => [
                format!("+FULLRESYNC {ID} 1\r\n$EOF:{MARK}\r\n").as_bytes(), &snapshot, MARK.as_bytes(),
            ].concat(),
            (false, false) => {
                let head = format!("+FULLRESYNC {ID} 1\r\n${}\r\n", snapshot.len());
                [head.as_bytes(), &snapshot].concat()
            }
        };
        let all = [b"+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n", &transfer[..], STREAM.as_bytes()].concat();
        let whole = feed(resuming(), &[&all]);
        prop_assert!(whole.broken.is_none() && whole.units.len() == 4);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(all.len() + 1)).collect();
        cuts.extend([0, all.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|ends| &all[ends[0]..ends[1]]).collect();
        prop_assert_eq!(feed(resuming(), &pieces), whole);
        let bytes: Vec<&[u8]> = all.chunks(1).collect();
        prop_assert_eq!(feed(resuming(), &bytes), feed(resuming(), &[&all]));
    }

    #[test]
    fn any_bytes_are_handled_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), goes_on in any::<bool>()) {
        let start: &[u8] = if goes_on { b"+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n+CONTINUE\r\n" } else { b"" };
        feed(resuming(), &[start, &bytes]);
    }
}
