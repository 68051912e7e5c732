//! Messages of an attacker, and damaged files: none may end the node or cause unbounded cost.

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;
use crate::cluster::wire::{Extension, Gossip, Header, Kind, Marks, Message};

const SENDER: u8 = 0xee;

fn outside(boot_ms: i64) -> Outside {
    Outside { boot_ms, unix_ms: boot_ms + 1_700_000_000_000, ..Outside::default() }
}

fn id(number: u32) -> NodeId {
    let mut bytes = [SENDER; 20];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    NodeId::from_random(bytes)
}

fn header(sender: NodeId) -> Header {
    Header {
        port: 7000,
        other_port: 0,
        bus_port: 17_000,
        current_epoch: 1,
        config_epoch: 1,
        offset: 0,
        sender,
        slots: SlotSet::default(),
        primary: None,
        ip: String::new(),
        flags: NodeFlags::PRIMARY,
        is_ok: true,
        marks: Marks::EXTENSIONS,
    }
}

fn gossip(id: NodeId) -> Gossip {
    Gossip {
        id,
        ping_sent_s: 0,
        pong_received_s: 0,
        ip: "10.1.1.1".into(),
        port: 7000,
        bus_port: 17_000,
        flags: NodeFlags::PRIMARY,
        other_port: 0,
    }
}

/// A node with one accepted connection, and the actions that it asks for.
struct Victim {
    cluster: Cluster,
    now: i64,
    actions: Vec<Action>,
}

const LINK: LinkId = LinkId(1);

impl Victim {
    fn new() -> Victim {
        let mut victim = Victim {
            cluster: Cluster::new(name(0), settings(0), 1),
            now: 1_000,
            actions: Vec::new(),
        };
        let (peer, local) = (IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9)), ip(0));
        victim.tell(Event::Accepted { link: LINK, peer, local });
        victim
    }

    fn tell(&mut self, event: Event<'_>) {
        let outside = outside(self.now);
        self.cluster.handle(&outside, event, &mut self.actions);
        self.cluster.before_sleep(&outside, &mut self.actions);
    }

    fn take(&mut self, link: LinkId, header: Header, body: Body) {
        let message = Message { header, body }.encode();
        self.tell(Event::Received { link, message: &message });
    }

    fn ping(&mut self, sender: NodeId, gossip: Vec<Gossip>, extensions: Vec<Extension>) {
        let body = Body::Ping { kind: Kind::Ping, gossip, extensions };
        self.take(LINK, header(sender), body);
    }

    fn tick(&mut self) -> Vec<Action> {
        self.now += 100;
        let outside = outside(self.now);
        self.actions.clear();
        self.cluster.tick(&outside, &mut self.actions);
        std::mem::take(&mut self.actions)
    }
}

#[test]
fn forgotten_nodes_cost_no_memory_without_end() {
    let mut victim = Victim::new();
    let friend = victim.cluster.add_for_test(id(0), NodeFlags::PRIMARY);
    for round in 0..20 {
        let ids: Vec<NodeId> = (1..=1_000).map(|number| id(round * 1_000 + number)).collect();
        let forgotten = ids.iter().map(|id| Extension::Forgotten { id: *id, ttl_s: u64::MAX });
        victim.ping(id(0), ids.iter().map(|id| gossip(*id)).collect(), Vec::new());
        victim.ping(id(0), Vec::new(), forgotten.collect());
    }
    assert_eq!(victim.cluster.nodes().count(), 2);
    assert!(victim.cluster.blacklist.len() <= 1_024, "{}", victim.cluster.blacklist.len());
    // Answers stay readable.
    assert!(victim.cluster.node(friend).flags.contains(NodeFlags::EXTENSIONS));
    victim.actions.clear();
    victim.ping(id(0), Vec::new(), Vec::new());
    let answer = victim.actions.iter().find_map(|action| match action {
        Action::Send { message, .. } => Some(message.clone()),
        _ => None,
    });
    assert!(wire::decode(&answer.expect("an answer")).is_ok());
}

#[test]
fn nodes_that_are_not_there_do_not_hold_the_loop() {
    let mut victim = Victim::new();
    victim.cluster.add_for_test(id(0), NodeFlags::PRIMARY);
    victim.ping(id(0), (1..1_000).map(|number| gossip(id(number))).collect(), Vec::new());
    let mut tried = std::collections::BTreeSet::new();
    for _ in 0..10 {
        let actions = victim.tick();
        let links = actions.iter().filter_map(|action| match action {
            Action::Connect { link, .. } => Some(*link),
            _ => None,
        });
        let links: Vec<LinkId> = links.collect();
        assert!(links.len() <= 256, "{}", links.len());
        for link in links {
            tried.extend(victim.cluster.links.get(&link).and_then(|link| link.node));
            victim.tell(Event::Closed { link });
        }
    }
    assert_eq!(tried.len(), 1_000);
}

#[test]
fn a_node_that_answers_at_the_address_of_another_says_nothing_of_that_one() {
    let mut victim = Victim::new();
    let other = victim.cluster.add_for_test(id(1), NodeFlags::PRIMARY);
    victim.cluster.place_for_test(other, "10.0.0.2", 7001);
    let actions = victim.tick();
    let link = actions.iter().find_map(|action| match action {
        Action::Connect { link, .. } => Some(*link),
        _ => None,
    });
    let link = link.expect("it connects");
    victim.tell(Event::Connected { link, local: Some(ip(0)) });
    victim.now += 5_000;
    let mut theirs = header(id(2));
    (theirs.config_epoch, theirs.offset, theirs.current_epoch) = (99, 12_345, 99);
    victim.take(link, theirs.clone(), Body::Fail(name(0)));
    let body = Body::Ping { kind: Kind::Pong, gossip: Vec::new(), extensions: Vec::new() };
    victim.take(link, theirs, body);
    let node = victim.cluster.node(other);
    assert!(node.flags.contains(NodeFlags::NOADDR));
    assert_eq!((node.config_epoch, node.repl_offset, node.data_received_ms), (0, 0, 0));
}

#[test]
fn who_is_met_learns_of_the_strangers_cluster_at_once_but_counts_none_of_its_suspicions() {
    let mut victim = Victim::new();
    let known = victim.cluster.add_for_test(id(1), NodeFlags::PRIMARY);
    let gossip = || {
        let failed = Gossip { flags: NodeFlags::PRIMARY | NodeFlags::FAIL, ..gossip(id(1)) };
        vec![gossip(id(2)), failed]
    };
    let ping = Body::Ping { kind: Kind::Ping, gossip: gossip(), extensions: Vec::new() };
    victim.take(LINK, header(id(9)), ping);
    assert_eq!(victim.cluster.nodes().count(), 2);
    // A second time, while the handshake is under way, it may tell of further nodes.
    for _ in 0..2 {
        let meet = Body::Ping { kind: Kind::Meet, gossip: gossip(), extensions: Vec::new() };
        victim.take(LINK, header(id(9)), meet);
        assert_eq!(victim.cluster.nodes().count(), 4);
    }
    let learnt = victim.cluster.find(&id(2)).expect("the stranger has told of it");
    assert!(!victim.cluster.node(learnt).flags.contains(NodeFlags::HANDSHAKE));
    assert!(victim.cluster.node(known).reports.is_empty());
}

#[test]
fn a_known_node_that_asks_to_join_is_connected_to_again() {
    let mut victim = Victim::new();
    let other = victim.cluster.add_for_test(id(1), NodeFlags::PRIMARY);
    victim.cluster.place_for_test(other, "10.0.0.2", 7001);
    let connected = |actions: Vec<Action>| {
        actions.into_iter().find_map(|action| match action {
            Action::Connect { link, .. } => Some(link),
            _ => None,
        })
    };
    let first = connected(victim.tick()).expect("it connects");
    victim.tell(Event::Connected { link: first, local: Some(ip(0)) });
    // Only when the other end cannot be in handshake any more.
    for (wait_ms, is_closed) in [(100, false), (2 * TIMEOUT_MS, true)] {
        victim.now += wait_ms;
        victim.actions.clear();
        let meet = Body::Ping { kind: Kind::Meet, gossip: Vec::new(), extensions: Vec::new() };
        victim.take(LINK, header(id(1)), meet);
        assert_eq!(victim.actions.contains(&Action::Close { link: first }), is_closed);
    }
    assert_ne!(connected(victim.tick()), None);
}

#[test]
fn a_line_that_says_both_roles_is_a_replica() {
    let text = format!(
        "{} 10.0.0.1:7000@17000 myself,master,slave {} 0 0 3 connected\n{} 10.0.0.2:7001@17001 master - 0 0 2 connected 0-16383\n",
        name(0),
        name(1),
        name(1)
    );
    let conf = config_file::parse(text.as_bytes()).expect("a good file");
    let cluster = Cluster::restore(&conf, settings(0), 1).expect("it names this node");
    assert!(cluster.myself().is_replica() && !cluster.myself().is_primary());
}

/// A file of six nodes that know each other well.
fn good_file() -> Vec<u8> {
    let mut world = World::formed(3, 3, 1);
    world.command(0, |cluster, outside, actions| {
        let (other, slot) = (cluster.find(&name(1)).expect("known"), HashSlot::new(7));
        cluster.set_migrating(slot.expect("a slot"), other, outside, actions);
        let slot = HashSlot::new(9_000).expect("a slot");
        cluster.set_importing(slot, other, outside, actions);
    });
    world.run(1_000);
    world.machines[0].file.clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Words and lines are exchanged, doubled, left out and damaged: a node that starts with such a
    /// file survives.
    #[test]
    fn a_damaged_file_is_refused_or_lived_with(
        changes in proptest::collection::vec((0u8..8, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..6),
        event: Vec<u8>,
    ) {
        static FILE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let text = String::from_utf8(FILE.get_or_init(good_file).clone()).expect("a text");
        let mut lines: Vec<Vec<String>> =
            text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect();
        for (kind, one, other) in changes {
            if lines.is_empty() {
                break;
            }
            let (from, to) = (one.index(lines.len()), other.index(lines.len()));
            let word = other.index(lines[from].len().max(1));
            match kind {
                0 => lines.swap(from, to),
                1 => drop(lines.remove(from)),
                2 => lines.push(lines[from].clone()),
                3 if word < lines[from].len() => {
                    let at = one.index(lines[to].len() + 1);
                    let copy = lines[from][word].clone();
                    lines[to].insert(at, copy);
                }
                4 if word < lines[from].len() => {
                    let at = one.index(lines[to].len().max(1));
                    let copy = lines[from][word].clone();
                    if let Some(word) = lines[to].get_mut(at) {
                        *word = copy;
                    }
                }
                5 if word < lines[from].len() => drop(lines[from].remove(word)),
                6 if word < lines[from].len() => {
                    let number = [0, 1, 16_383, u64::MAX, i64::MAX as u64][one.index(5)];
                    lines[from][word] = number.to_string();
                }
                _ => {
                    if let Some(word) = lines[from].get_mut(2) {
                        *word = ["master", "myself,slave", "slave,fail", "handshake", "noaddr,master,fail?", "myself,master,slave", "noflags"][one.index(7)].into();
                    }
                }
            }
        }
        let text = lines.iter().map(|line| line.join(" ") + "\n").collect::<String>();
        let Ok(conf) = config_file::parse(text.as_bytes()) else { return Ok(()) };
        let Some(cluster) = Cluster::restore(&conf, settings(0), 1) else { return Ok(()) };
        let mut victim = Victim::new();
        victim.cluster = cluster;
        let (peer, local) = (IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9)), ip(0));
        victim.tell(Event::Accepted { link: LINK, peer, local });
        let senders: Vec<NodeId> = victim.cluster.nodes().map(|(_, node)| node.id).collect();
        for round in 0..20 {
            for action in victim.tick() {
                if let Action::Connect { link, .. } = action {
                    match round % 2 {
                        0 => victim.tell(Event::Connected { link, local: Some(local) }),
                        _ => victim.tell(Event::Closed { link }),
                    }
                }
            }
            victim.tell(Event::Received { link: LINK, message: &event });
            let mut said = header(senders[round % senders.len()]);
            said.primary = (round % 3 == 0).then(|| senders[(round + 1) % senders.len()]);
            said.slots = range(0, round * 800);
            said.config_epoch = round as u64;
            victim.take(LINK, said.clone(), Body::AuthRequest);
            victim.take(LINK, said.clone(), Body::Fail(senders[round % 2]));
            let body = Body::Ping { kind: Kind::Ping, gossip: Vec::new(), extensions: Vec::new() };
            victim.take(LINK, said, body);
            victim.now += 400;
        }
        let text = victim.cluster.file_text();
        let again = config_file::parse(&text);
        prop_assert!(again.is_ok(), "{:?}\n{}", again, String::from_utf8_lossy(&text));
        prop_assert!(victim.cluster.info().contains("cluster_state"));
    }
}

/// The extensions of the last message that a victim has sent.
fn told(victim: &mut Victim) -> Vec<Extension> {
    let sent = victim.actions.iter().rev().find_map(|action| match action {
        Action::Send { message, .. } => Some(message.clone()),
        _ => None,
    });
    match wire::decode(&sent.expect("a message")) {
        Ok(wire::Decoded::Full(message)) => match message.body {
            Body::Ping { extensions, .. } => extensions,
            other => panic!("{other:?}"),
        },
        _ => panic!("no message"),
    }
}

#[test]
fn a_node_of_redis_8_gets_its_secret_and_nothing_that_it_would_take_for_one() {
    let mut victim = Victim::new();
    let announced = Announced {
        hostname: "host".into(),
        client_ipv4: "10.0.0.1".into(),
        client_port: 7,
        ..Announced::default()
    };
    victim.cluster.set_settings(Settings { announced, ..settings(0) });
    for number in 0..3 {
        victim.cluster.add_for_test(id(number), NodeFlags::PRIMARY);
        let (peer, local) = (IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9)), ip(0));
        victim.tell(Event::Accepted { link: LinkId(10 + u64::from(number)), peer, local });
    }
    let ping = |victim: &mut Victim, number: u32, extensions: Vec<Extension>| {
        let body = Body::Ping { kind: Kind::Ping, gossip: Vec::new(), extensions };
        victim.take(LinkId(10 + u64::from(number)), header(id(number)), body);
    };
    let shard = |number| Extension::ShardId(id(number));
    let own_shard = Extension::ShardId(victim.cluster.myself().shard_id);
    let host = Extension::Hostname("host".into());
    let ipv4 = Extension::ClientIpv4("10.0.0.1".into());
    // Number 4 is an address for one and a secret for the other.
    ping(&mut victim, 0, vec![shard(0)]);
    ping(&mut victim, 0, vec![shard(0)]);
    let all = [host.clone(), ipv4, Extension::ClientPort(7), own_shard.clone()];
    assert_eq!(told(&mut victim), all);
    for (number, secret, least) in [(1, b'b', b'b'), (2, b'c', b'b'), (1, b'a', b'a')] {
        let secret = Extension::Secret([secret; 40]);
        ping(&mut victim, number, vec![shard(number), secret.clone()]);
        ping(&mut victim, number, vec![shard(number), secret]);
        let least = Extension::Secret([least; 40]);
        assert_eq!(told(&mut victim), [host.clone(), own_shard.clone(), least]);
    }
    // Of an extension that cannot be read nothing is taken, and from its neighbours everything.
    let unknown = |kind, data: &[u8]| Extension::Unknown { kind, data: data.to_vec() };
    for odd in
        [unknown(4, &[b'/'; 40]), unknown(1, &[0xff; 8]), unknown(3, &[b'x'; 8]), unknown(99, b"")]
    {
        let named = Extension::Hostname("other".into());
        ping(&mut victim, 0, vec![odd, named, shard(7)]);
        let index = victim.cluster.find(&id(0)).expect("it is known");
        let node = victim.cluster.node(index);
        assert_eq!((node.announced.hostname.as_str(), node.shard_id), ("other", id(7)));
        ping(&mut victim, 0, vec![shard(0)]);
    }
}
