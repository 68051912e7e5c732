//! Nodes that answer anything, on the connections that a node of a cluster opens: to the bus of
//! other nodes, and to the target of a slot migration. No key and no slot is lost, and no loop runs
//! without a pause.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fastrand::Rng;

use crate::cluster::nodes::{Node, cluster_with, eventually};
use crate::cluster::slot_migration::field;
use crate::support::{Reply, encode};

/// A listener whose connections are played by `play`, one after the other.
struct Stranger {
    port: u16,
    /// Connections so far.
    count: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stranger {
    fn new(mut play: impl FnMut(TcpStream) + Send + 'static) -> Stranger {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let (count, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, ends) = (Arc::clone(&count), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                counted.fetch_add(1, Ordering::Relaxed);
                let stream = stream.expect("a connection");
                stream.set_read_timeout(Some(Duration::from_millis(60))).expect("an option");
                stream.set_write_timeout(Some(Duration::from_secs(20))).expect("an option");
                play(stream);
            }
        });
        Stranger { port, count, is_over, thread: Some(thread) }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Ok(()))), "the stranger panicked");
        }
    }
}

/// What is there within the time that a read may take.
fn read_once(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; 64 << 10];
    let count = stream.read(&mut bytes).unwrap_or(0);
    bytes.truncate(count);
    bytes
}

fn garbage(random: &mut Rng, most: usize) -> Vec<u8> {
    (0..random.usize(1..most)).map(|_| random.u8(..)).collect()
}

/// The header of a bus message: where things stand that a node believes whoever it has accepted.
const LENGTH: std::ops::Range<usize> = 4..8;
const TYPE: usize = 13;
const EPOCHS: std::ops::Range<usize> = 16..40;
const NAME: std::ops::Range<usize> = 40..80;
const SLOTS: std::ops::Range<usize> = 80..80 + 2048;
const FLAGS: usize = 2250;

/// An answer to `request`: foreign bytes, or the request as it came with something changed. Nobody
/// claims a slot or an epoch, which a node would have to believe.
fn bus_answer(random: &mut Rng, request: &[u8]) -> Vec<u8> {
    if request.len() < FLAGS + 6 || random.u8(0..8) == 0 {
        return match random.u8(0..3) {
            0 => b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            1 => [&b"RCmb"[..], &garbage(random, 3000)].concat(),
            _ => garbage(random, 3000),
        };
    }
    let mut bytes = request.to_vec();
    bytes[EPOCHS].fill(0);
    bytes[SLOTS].fill(0);
    // PONG, or any other type but UPDATE.
    bytes[TYPE] = match random.u8(0..3) {
        0 => random.u8(0..7),
        _ => 1,
    };
    if random.bool() {
        let name: String =
            (0..40).map(|_| char::from(b"0123456789abcdef"[random.usize(..16)])).collect();
        bytes[NAME].copy_from_slice(name.as_bytes());
    }
    for _ in 0..random.usize(0..4) {
        // Half of them where lengths, counts and addresses stand.
        let at = match random.u8(0..4) {
            0 => random.usize(LENGTH.end..EPOCHS.start),
            1 => random.usize(SLOTS.end..bytes.len()),
            _ => random.usize(..bytes.len()),
        };
        if !EPOCHS.contains(&at) && !SLOTS.contains(&at) && at != TYPE {
            bytes[at] ^= 1 << random.u8(0..8);
        }
    }
    match random.u8(0..8) {
        0 => bytes.truncate(random.usize(1..bytes.len())),
        1 => bytes.extend(garbage(random, 300)),
        _ => {}
    }
    bytes
}

fn bus_stranger(mut random: Rng) -> Stranger {
    Stranger::new(move |mut stream| {
        for _ in 0..random.usize(1..6) {
            let request = read_once(&mut stream);
            if stream.write_all(&bus_answer(&mut random, &request)).is_err() {
                return;
            }
        }
        let _ = stream.shutdown(Shutdown::Write);
        if random.bool() {
            read_once(&mut stream);
        }
    })
}

#[test]
fn a_node_that_answers_anything_on_the_bus_costs_no_key_and_no_slot() {
    const LINKS: usize = 400;
    let folder = tempfile::tempdir().expect("a folder");
    let node = Node::start_in(folder, "enable-debug-command yes");
    node.ok("CLUSTER ADDSLOTSRANGE 0 16383");
    node.ok("CLUSTER SET-CONFIG-EPOCH 5");
    eventually("the state to be ok", &[&node], || node.field("cluster_state") == "ok");
    (0..50).for_each(|number| node.ok(&format!("SET key:{number} {number}")));
    let before = (node.id(), node.text("DEBUG DIGEST"));
    // Several at once: a node calls each of them once in a tenth of a second.
    let strangers: Vec<Stranger> = (0..8).map(|seed| bus_stranger(Rng::with_seed(seed))).collect();
    let links = || strangers.iter().map(Stranger::count).sum::<usize>();
    let mut rounds = 0;
    while links() < LINKS {
        // A handshake that fails is not tried for ever.
        for Stranger { port, .. } in &strangers {
            node.ok(&format!("CLUSTER MEET 127.0.0.1 {port} {port}"));
        }
        std::thread::sleep(Duration::from_millis(100));
        rounds += 1;
        assert!(rounds < 1000, "{} connections", links());
        // Nodes that were believed: as many links in a tenth of a second as there are nodes.
        let nodes: usize = node.field("cluster_known_nodes").parse().expect("a number");
        for line in node.text("CLUSTER NODES").lines().filter(|line| !line.contains("myself")) {
            if nodes > 12 {
                node.call(&format!("CLUSTER FORGET {}", &line[..40]));
            }
        }
    }
    assert!(rounds >= LINKS / 200, "{rounds} rounds for {LINKS} links");
    assert_eq!((node.id(), node.text("DEBUG DIGEST")), before);
    assert_eq!(node.field("cluster_slots_assigned"), "16384");
    let nodes = node.text("CLUSTER NODES");
    let own = nodes.lines().find(|line| line.contains("myself")).expect("its own line");
    assert!(own.ends_with("connected 0-16383"), "{own}");
}

/// Answers what a target of a slot migration says, and what it never says, in any order.
fn target_answer(random: &mut Rng) -> Vec<u8> {
    let word = |word: &str| encode(&["CLUSTER", "SYNCSLOTS", word]);
    match random.u8(0..10) {
        0 => b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        1 => garbage(random, 200),
        2 => b"-ERR no\r\n".to_vec(),
        3 => word("REQUEST-PAUSE"),
        4 => word("REQUEST-FAILOVER"),
        5 => word("SNAPSHOT-EOF"),
        6 => encode(&["CLUSTER", "SYNCSLOTS", "FINISH", "STATE", "success", "NAME", "what"]),
        7 => encode(&["FLUSHALL"]),
        8 => b"*3\r\n$7\r\nCLUSTER\r\n$9\r\nSYNCSLOTS\r\n$999999999999\r\n".to_vec(),
        _ => b"+OK\r\n".to_vec(),
    }
}

/// Hands on bytes in both directions; those of the target with a flipped bit, or cut.
fn disturb(random: &mut Rng, source: TcpStream, target: TcpStream) {
    let clone = |stream: &TcpStream| stream.try_clone().expect("a second handle");
    let (mut from, mut to) = (clone(&source), clone(&target));
    let there = std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        // A time without bytes ends nothing while the other direction is open.
        loop {
            match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) if to.write_all(&bytes[..count]).is_err() => break,
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => break,
                _ => {}
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let (mut from, mut to) = (target, source);
    from.set_read_timeout(Some(Duration::from_secs(2))).expect("an option of sockets");
    let at = random.usize(0..200);
    let (cuts, mut passed, mut bytes) = (random.bool(), 0, vec![0; 4096]);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let bytes = &mut bytes[..count];
        if (passed..passed + count).contains(&at) {
            if cuts {
                break;
            }
            bytes[at - passed] ^= 1 << random.u8(0..8);
        }
        passed += count;
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
    there.join().expect("it ends");
}

#[test]
fn a_target_of_a_slot_migration_that_answers_anything_costs_no_key() {
    const MOVES: usize = 40;
    let mut nodes = cluster_with(2, 2, "enable-debug-command yes").into_iter();
    let [target, source] = [(); 2].map(|()| nodes.next().expect("two nodes"));
    // The target tells of another port, where a stranger listens.
    let mut random = Rng::with_seed(6);
    let address = target.address;
    let stranger = Stranger::new(move |mut stream| {
        if random.u8(0..3) == 0 {
            let target = TcpStream::connect(address).expect("the target listens");
            return disturb(&mut random, stream, target);
        }
        read_once(&mut stream);
        if random.bool() && stream.write_all(b"+OK\r\n").is_err() {
            return;
        }
        for _ in 0..random.usize(0..5) {
            if stream.write_all(&target_answer(&mut random)).is_err() {
                return;
            }
            if random.bool() {
                read_once(&mut stream);
            }
        }
    });
    target.ok(&format!("CONFIG SET cluster-announce-port {}", stranger.port));
    eventually("the source to know the port", &[&source, &target], || {
        source.text("CLUSTER NODES").contains(&format!(":{}@", stranger.port))
    });
    let mut ends = [0, 0];
    for number in 0..MOVES {
        // Slots from 8192 on are the source's.
        let tag = (0..).map(|more| format!("{number}:{more}")).find(|tag| {
            matches!(source.call(&format!("CLUSTER KEYSLOT {{{tag}}}")), Reply::Integer(8192..))
        });
        let tag = tag.expect("a slot of the source");
        let Reply::Integer(slot) = source.call(&format!("CLUSTER KEYSLOT {{{tag}}}")) else {
            panic!("a slot")
        };
        if source.call(&format!("SET {{{tag}}}string {number}")) != Reply::Simple(b"OK".to_vec()) {
            // An earlier move has taken this slot.
            continue;
        }
        source.call(&format!("RPUSH {{{tag}}}list a b c"));
        let names = format!("DEBUG DIGEST-VALUE {{{tag}}}string {{{tag}}}list");
        let digests = source.call(&names);
        let links = stranger.count();
        source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
        eventually("the end of the move", &[&source, &target], || {
            ["failed", "success", "cancelled"].contains(&&*field(&source, "state"))
        });
        assert!(stranger.count() <= links + 1, "move {number}: it is tried again and again");
        let has_moved = field(&source, "state") == "success";
        ends[usize::from(has_moved)] += 1;
        let owner = if has_moved { &target } else { &source };
        assert_eq!(owner.call(&names), digests, "move {number} of slot {slot} to {has_moved}");
        eventually("the slot to be served", &[&source, &target], || {
            owner.call(&format!("RPUSH {{{tag}}}other x")) == Reply::Integer(1)
        });
    }
    assert!(ends[0] >= MOVES / 2, "{ends:?}");
    println!("{} moves failed, {} succeeded", ends[0], ends[1]);
}
