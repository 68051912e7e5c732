//! What is repeated elsewhere is what Redis 7.0.15 puts into its replication stream for the same
//! commands.
//!
//! Needs a peer that runs already and may be emptied: `EFFECTS_PEER=host:port`, else nothing is
//! compared (`make peer` names one). Knowingly other (docs/differences.md): XREADGROUP also says
//! how many entries the group has read, so that the lag is known elsewhere too, counts deliveries
//! of pending entries once more, and tells of consumers that get nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use latchkey::clock::Clock;

use crate::support::grammar::{Generator, parse, rules};
use crate::support::{Client, Reply, TestServer, decode, number_from, quote, seed, split_args};

/// Commands one by one, and what only chance or the time decides.
const SESSION: &str = include_str!("../../data/effects.txt");

/// Besides the grammar. No odd arguments where they could be times that pass meanwhile.
pub const MORE: &str = "
*8 SET t v [ NX|XX ] [ GET ] [ KEEPTTL ]
= *8 SET t v [ XX ] [ GET ] EX|PX 3000|50000
= *4 SET t v EXAT 9900000001
*4 GETSET t v
*4 GETDEL t
*6 GETEX t [ PERSIST ]
*6 GETEX t EX 300|5000
= *4 PSETEX t 300000 v
*8 EXPIRE k 0|100|1000 [ NX|XX ]
= *4 PEXPIREAT k 1|9900000000000 [ GT|LT ]
*4 SPOP s 500
*4 MOVE k 1|2
*4 COPY k k DB 1|2 [ REPLACE ]
*2 SWAPDB 0 0
*4 XREADGROUP GROUP grp con [ COUNT p ] [ NOACK ] STREAMS x >
*4 XCLAIM x grp con 0 < id > [ RETRYCOUNT c ] [ FORCE ] [ JUSTID ] [ LASTID id ]
*4 PFADD t < m >
*4 PFCOUNT t
*4 BITFIELD t SET u8 c p INCRBY i5 p p
*2 GEORADIUS g 10 40 900 km STORE z
*2 EVAL return(redis.pcall(unpack(ARGV))) 0 SET t v EX 100
*2 EVAL redis.call('incr',KEYS[1])return(redis.pcall(unpack(ARGV))) 1 n1 INCRBYFLOAT t d
*2 EVAL redis.call('incr',KEYS[1])return(redis.pcall(unpack(ARGV))) 1 n1 HINCRBYFLOAT h f d
";

/// Those that wait elsewhere than in a transaction.
pub const BLOCKING: &str = "
BLPOP l l 0
BRPOP l l 0
BLMOVE l l LEFT|RIGHT LEFT|RIGHT 0
BRPOPLPUSH l l 0
BLMPOP 0 #l LEFT|RIGHT [ COUNT p ]
BZPOPMIN z z 0
BZPOPMAX z z 0
BZMPOP 0 #z MIN|MAX [ COUNT p ]
";

type Args = Vec<Vec<u8>>;

/// The peer's replication stream.
struct Stream {
    source: BufReader<TcpStream>,
    marks: u64,
}

impl Stream {
    fn open(peer: SocketAddr) -> Self {
        let mut socket = TcpStream::connect(peer).expect("the peer takes connections");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("an option of sockets");
        socket.write_all(b"SYNC\r\n").expect("the peer reads");
        let mut source = BufReader::new(socket);
        let mut line = String::new();
        while !line.starts_with('$') {
            line.clear();
            source.read_line(&mut line).expect("an image comes");
        }
        match line[1..].trim_end().strip_prefix("EOF:") {
            None => {
                let bytes = line[1..].trim_end().parse().expect("a length");
                let mut image = vec![0; bytes];
                source.read_exact(&mut image).expect("the image");
            }
            Some(end) => {
                let mut image = Vec::new();
                while !image.ends_with(end.as_bytes()) {
                    source.read_until(end.as_bytes()[39], &mut image).expect("the image");
                }
            }
        }
        Stream { source, marks: 0 }
    }

    fn request(&mut self) -> Args {
        let mut number = |marker: u8| {
            let mut line = String::new();
            self.source.read_line(&mut line).expect("the stream goes on");
            assert_eq!(line.as_bytes()[0], marker, "{line}");
            line[1..].trim_end().parse::<usize>().expect("a number")
        };
        let count = number(b'*');
        let mut args = Vec::new();
        for _ in 0..count {
            let mut line = String::new();
            self.source.read_line(&mut line).expect("the stream goes on");
            let len = line[1..].trim_end().parse::<usize>().expect("a length");
            let mut arg = vec![0; len + 2];
            self.source.read_exact(&mut arg).expect("the stream goes on");
            arg.truncate(len);
            args.push(arg);
        }
        args
    }

    /// The requests up to the next mark, which was published.
    fn up_to_mark(&mut self) -> Vec<Args> {
        self.marks += 1;
        let mark = format!("mark:{}", self.marks).into_bytes();
        let mut requests = Vec::new();
        loop {
            let request = self.request();
            match &request[..] {
                [name, _, text] if name == b"PUBLISH" && *text == mark => return requests,
                [name] if name.eq_ignore_ascii_case(b"PING") => {}
                _ => requests.push(request),
            }
        }
    }
}

fn parse_stream(bytes: &[u8]) -> Vec<Args> {
    let mut at = 0;
    let mut requests = Vec::new();
    while at < bytes.len() {
        let Some(Reply::Array(words)) = decode(bytes, &mut at) else { panic!("no request") };
        let words = words.into_iter().map(|word| match word {
            Reply::Bulk(bytes) => bytes,
            other => panic!("no word: {other:?}"),
        });
        requests.push(words.collect());
    }
    requests
}

/// A line for each request, with times near to `now_ms` replaced; SELECT left out, which the marks
/// cause.
fn lines(requests: &[Args], now_ms: i64) -> Vec<String> {
    let near = |text: &str| {
        text.parse::<i64>().is_ok_and(|time| time.abs_diff(now_ms) < 100_000_000 && time > 1 << 40)
    };
    let word = |word: &Vec<u8>| {
        let text = String::from_utf8_lossy(word).into_owned();
        match text.split_once('-') {
            _ if near(&text) => "<time>".into(),
            Some((ms, _)) if near(ms) => "<time>-<number>".into(),
            _ => quote(word),
        }
    };
    let shown = requests.iter().filter(|request| request[0] != b"SELECT");
    let shown = shown.map(|request| {
        let mut words: Vec<String> = request.iter().map(word).collect();
        // Redis repeats an ID as the client wrote it, here it is whole.
        if words[0] == "\"XCLAIM\"" && !words[5].contains('-') {
            words[5] = words[5].replace("\"", "") + "-0";
            words[5] = format!("\"{}\"", words[5]);
        }
        words.join(" ")
    });
    shown.collect()
}

/// Of XREADGROUP, what both say.
fn without_exceptions(lines: Vec<String>, reads_group: bool) -> Vec<String> {
    let is_said = |line: &String| line.starts_with("\"XCLAIM\"");
    if reads_group { lines.into_iter().filter(is_said).collect() } else { lines }
}

#[test]
#[ignore = "needs a peer: EFFECTS_PEER=host:port"]
fn the_stream_is_that_of_redis() {
    let peer = std::env::var("EFFECTS_PEER").expect("EFFECTS_PEER names no server");
    let peer: SocketAddr = peer.parse().expect("host:port");
    let seed = seed("EFFECTS_SEED");
    let commands = number_from("EFFECTS_COMMANDS", 20_000) as usize;
    println!("EFFECTS_SEED={seed} EFFECTS_COMMANDS={commands}");
    let server = TestServer::start(&["redis-version 7.0.15".into()]);
    let (mut ours, mut theirs) = (server.connect(), Client::connect(peer));
    let now_ms = Clock::System.now().unix().0;
    server.step_wall((now_ms - server.clock_ms()) * 1000);
    theirs.call(&["FLUSHALL"]);
    theirs.call(&["FUNCTION", "FLUSH"]);
    let mut stream = Stream::open(peer);
    ours.call(&["DEBUG", "EFFECTS", "ON"]);

    let mut all_rules = rules();
    // Members of a set come in no order.
    all_rules
        .retain(|rule| rule.words[0] != "XREADGROUP" || !rule.words.iter().any(|it| it == "id"));
    all_rules.extend(parse(MORE));
    let mut generator = Generator::new(seed, all_rules);
    let mut waits = Generator::new(seed, parse(BLOCKING));
    let mut steps: Vec<Vec<Args>> = Vec::new();
    let mut transaction: Option<Vec<Args>> = None;
    for line in SESSION.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let args = split_args(line);
        match (&args[0][..], &mut transaction) {
            (b"MULTI", _) => transaction = Some(vec![args]),
            (b"EXEC", Some(commands)) => {
                commands.push(args);
                steps.extend(transaction.take());
            }
            (_, Some(commands)) => commands.push(args),
            (_, None) => steps.push(vec![args]),
        }
    }
    while steps.len() < commands {
        if steps.len().is_multiple_of(1000) {
            generator.stream_ms = 1;
            steps.push(vec![split_args("FLUSHALL")]);
        }
        match generator.random.u32(..20) {
            0 => {
                let mut all = vec![split_args("MULTI")];
                for _ in 0..generator.random.usize(..5) {
                    all.push(match generator.random.bool() {
                        true => generator.request().args,
                        false => waits.request().args,
                    });
                }
                all.push(split_args("EXEC"));
                steps.push(all);
            }
            _ => {
                let args = generator.request().args;
                // Which members go is chance, unless all do.
                if args[0] != b"SPOP" || args.len() == 3 {
                    steps.push(vec![args]);
                }
            }
        }
    }

    let (mut faults, mut requests) = (0, 0);
    for step in &steps {
        for args in step {
            ours.call(args);
            theirs.call(args);
        }
        let taken = match ours.call(&["DEBUG", "EFFECTS", "TAKE"]) {
            Reply::Bulk(bytes) => parse_stream(&bytes),
            other => panic!("no stream: {}", other.show()),
        };
        theirs.call(&["PUBLISH", "mark", &format!("mark:{}", stream.marks + 1)]);
        let reads_group = step.iter().any(|args| args[0].eq_ignore_ascii_case(b"XREADGROUP"));
        let ours = without_exceptions(lines(&taken, now_ms), reads_group);
        let theirs = without_exceptions(lines(&stream.up_to_mark(), now_ms), reads_group);
        requests += ours.len();
        if ours != theirs {
            faults += 1;
            let shown =
                step.iter().map(|args| args.iter().map(|arg| quote(arg)).collect::<Vec<_>>());
            let shown: Vec<String> = shown.map(|words| words.join(" ")).collect();
            println!(
                "{}\n  here:  {}\n  Redis: {}",
                shown.join("\n"),
                ours.join("\n         "),
                theirs.join("\n         ")
            );
        }
        assert!(faults < 40, "too much differs, see above");
    }
    assert_eq!(faults, 0, "differences, see above");
    println!("{} commands compared by {requests} requests", steps.len());
}
