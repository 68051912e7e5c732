//! Tests of the rules against a model, and of the replies that a node's clients get while slots
//! move: those of two nodes of Redis 7.0.15.

use proptest::prelude::*;

use super::*;
use crate::client::ClientId;
use crate::clock::Clock;
use crate::cluster::node::{
    Address as NodeAddress, Announced, Node as NodeFacts, NodeFlags, NodeId,
};
use crate::cluster::settings::Settings;
use crate::collections::hash::KeyHasher;
use crate::command::TABLE;
use crate::gate::execute::{Gate, Request};
use crate::keyspace::Keyspace;
use crate::net::stream::Stream;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::resp::request::Range;
use crate::state::context::{Caller, Origin};
use crate::sys::log::Logger;

/// A node with one client. `bar` is in slot 5061, `foo` in 12182.
struct Node {
    core: Core,
    client: ClientId,
    /// The other node of its cluster.
    other: NodeIndex,
}

impl Node {
    /// A node that owns the first 12,000 slots; another one owns the rest.
    fn new(config: &str) -> Node {
        let config = Config::from_text(config.as_bytes()).expect("a good configuration");
        let poll = mio::Poll::new().expect("a poll");
        let mut state = State::new(&TABLE, config, Clock::System, Logger::silent(), poll);
        let id = |digit: u8| NodeId::from_bytes(&[digit; NodeId::BYTES]).expect("a name");
        let mut cluster = Cluster::new(id(b'0'), Settings::default(), 1);
        let other = cluster.add_for_test(id(b'1'), NodeFlags::PRIMARY);
        cluster.place_for_test(other, "127.0.0.1", 24002);
        let myself = cluster.my_index();
        HashSlot::all().for_each(|slot| {
            let owner = if slot.number() < 12_000 { myself } else { other };
            cluster.own_for_test(slot, Some(owner));
        });
        cluster.set_ok_for_test(true);
        state.node.cluster = Some(Box::new(cluster));
        state.refresh_fast_path();
        state.stats.timing.start();
        let (stream, _) = mio::net::UnixStream::pair().expect("a pair of sockets");
        let client = state.clients.insert(|id| {
            let flags = ClientFlags::AUTHENTICATED;
            Client::new(id, flags, Stream::Unix(stream), Address::Unknown, Address::Unknown, 0)
        });
        let keyspace = Keyspace::new(1, KeyHasher::new([1, 2]), state.now);
        Node { core: Core { keyspace, state }, client, other }
    }

    fn cluster(&mut self) -> &mut Cluster {
        self.core.state.node.cluster.as_deref_mut().expect("it is a node")
    }

    /// Runs a request written with spaces, in which `_` stands for a space within an argument.
    /// Returns its reply in RESP2, with spaces between the lines.
    fn ask(&mut self, request: &str) -> String {
        let ranges = Range::of_words(request);
        let text = request.replace('_', " ");
        let args = Args::new(text.as_bytes(), &ranges);
        let mut output = OutputBuffer::default();
        let command = TABLE.find(args.get(0)).unwrap_or(&TABLE.unknown);
        let request = Request::new(command, args, Origin::Client);
        let reply = ReplyWriter::new(&mut output, Protocol::Resp2);
        let Node { core, client, .. } = self;
        let flags = core.state.clients.get(*client).expect("a client").flags;
        let _ = Gate::new(core, Caller::Client(*client), reply).execute(&request, flags);
        String::from_utf8_lossy(&output.to_vec()).trim_end().replace("\r\n", " ")
    }

    /// Runs requests one after the other: `request => reply`, where `...` stands for any text.
    fn check(&mut self, lines: &str) {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (request, expected) = line.split_once(" => ").expect("a request and a reply");
            let reply = self.ask(request);
            let is_right = match expected.strip_suffix("...") {
                Some(beginning) => reply.starts_with(beginning),
                None => reply == expected,
            };
            assert!(is_right, "{request}\nexpected {expected}\ngot      {reply}");
        }
    }
}

const FOREIGN: &str = "
    get foo => -MOVED 12182 127.0.0.1:24002
    mget foo {foo}x => -MOVED 12182 127.0.0.1:24002
    mget a foo => -CROSSSLOT Keys in request don't hash to the same slot
    eval return_redis.call('get','foo') 0 => -ERR Script attempted to access a non local key in a cluster node script: ...
    eval return_1 1 foo => -MOVED 12182 127.0.0.1:24002
    spublish foo m => -MOVED 12182 127.0.0.1:24002
    multi => +OK
    get foo => -MOVED 12182 127.0.0.1:24002
    exec => -EXECABORT Transaction discarded because of previous errors.
    multi => +OK
    get bar => +QUEUED
    get b => +QUEUED
    exec => -CROSSSLOT Keys in request don't hash to the same slot
    exec => -ERR EXEC without MULTI
";

#[test]
fn a_request_for_keys_of_another_node_is_sent_there() {
    Node::new("").check(FOREIGN);
}

#[test]
fn the_owner_of_a_slot_that_moves_serves_what_it_still_has() {
    let mut node = Node::new("");
    let other = node.other;
    node.check("set bar 1 => +OK");
    let slot = HashSlot::of(b"bar");
    node.cluster().open_for_test(slot, Some(other), None);
    node.check(
        "
        get bar => $1 1
        get {bar}x => -ASK 5061 127.0.0.1:24002
        set {bar}x 1 => -ASK 5061 127.0.0.1:24002
        mget bar {bar}x => -TRYAGAIN Multiple keys request during rehashing of slot
        mget {bar}x {bar}y => -ASK 5061 127.0.0.1:24002
        multi => +OK
        get bar => +QUEUED
        get {bar}x => -ASK 5061 127.0.0.1:24002
        exec => -EXECABORT Transaction discarded because of previous errors.
        multi => +OK
        get bar => +QUEUED
        del bar => +QUEUED
        exec => *2 $1 1 :1
        set bar 5 => -ASK 5061 127.0.0.1:24002
        eval return_redis.call('get','bar') 0 => -ERR Script attempted to access a non local key in a cluster node script: ...
        migrate 127.0.0.1 1 bar 0 10 => +NOKEY
        spublish bar m => :0
        get b => $-1
        ",
    );
    node.check(FOREIGN.split("multi =>").next().expect("the first lines"));
}

#[test]
fn a_slot_that_moves_to_where_it_is_is_served() {
    let mut node = Node::new("");
    let myself = node.cluster().my_index();
    node.cluster().open_for_test(HashSlot::of(b"bar"), Some(myself), None);
    assert!(!node.ask("GET bar").contains("ASK"), "{}", node.ask("GET bar"));
}

#[test]
fn the_target_of_a_slot_that_moves_serves_those_that_ask() {
    let mut node = Node::new("");
    let (other, slot) = (node.other, HashSlot::of(b"bar"));
    node.cluster().own_for_test(slot, Some(other));
    node.cluster().open_for_test(slot, None, Some(other));
    node.check(
        "
        get bar => -MOVED 5061 127.0.0.1:24002
        asking => +OK
        get bar => $-1
        get bar => -MOVED 5061 127.0.0.1:24002
        asking => +OK
        multi => +OK
        get bar => +QUEUED
        get {bar}x => +QUEUED
        exec => -TRYAGAIN Multiple keys request during rehashing of slot
        get bar => -MOVED 5061 127.0.0.1:24002
        asking => +OK
        multi => +OK
        get bar => +QUEUED
        exec => *1 $-1
        get bar => -MOVED 5061 127.0.0.1:24002
        asking => +OK
        mget bar {bar}x => -TRYAGAIN Multiple keys request during rehashing of slot
        asking => +OK
        mget bar bar => *2 $-1 $-1
        asking => +OK
        asking => +OK
        get bar => $-1
        asking => +OK
        nosuch => -ERR unknown command ...
        get bar => -MOVED 5061 127.0.0.1:24002
        asking => +OK
        eval return_redis.call('get','bar') 0 => $-1
        get bar => -MOVED 5061 127.0.0.1:24002
        restore-asking bar 0 x => -ERR DUMP payload version or checksum are wrong
        restore bar 0 x => -MOVED 5061 127.0.0.1:24002
        asking => +OK
        reset => +RESET
        get bar => -MOVED 5061 127.0.0.1:24002
        ",
    );
}

#[test]
fn a_replica_serves_reads_of_those_that_have_said_so() {
    let mut node = Node::new("");
    let other = node.other;
    node.cluster().follow_for_test(other);
    node.check(
        "
        get foo => -MOVED 12182 127.0.0.1:24002
        spublish foo m => :0
        readonly => +OK
        get foo => $-1
        set foo 1 => -MOVED 12182 127.0.0.1:24002
        eval return_redis.call('get','foo') 1 foo => $-1
        eval return_redis.call('set','foo',1) 1 foo => -ERR Script attempted to access a non local key in a cluster node script: ...
        multi => +OK
        get foo => +QUEUED
        exec => *1 $-1
        readwrite => +OK
        get foo => -MOVED 12182 127.0.0.1:24002
        ",
    );
}

#[test]
fn a_cluster_that_is_down_serves_what_it_is_told_to() {
    let mut node = Node::new("");
    node.cluster().set_ok_for_test(false);
    node.check(
        "
        get bar => -CLUSTERDOWN The cluster is down
        get foo => -CLUSTERDOWN The cluster is down
        spublish bar m => :0
        eval return_redis.call('get','bar') 0 => -ERR Script attempted to execute a command while the cluster is down script: ...
        ping => +PONG
        ",
    );
    let mut node =
        Node::new("cluster-allow-reads-when-down yes\ncluster-allow-pubsubshard-when-down no\n");
    node.cluster().set_ok_for_test(false);
    node.check(
        "
        get bar => $-1
        get foo => -MOVED 12182 127.0.0.1:24002
        set bar 1 => -CLUSTERDOWN The cluster is down and only accepts read commands
        spublish bar m => -CLUSTERDOWN The cluster is down
        eval return_redis.call('set','bar',1) 0 => -ERR Script attempted to execute a write command while the cluster is down and readonly script: ...
        ",
    );
}

// ---- the rules ----------------------------------------------------------------------------------

/// Everything on which the answer depends.
#[derive(Clone, Debug)]
struct Case {
    /// The owners of the two slots: no node, this node, its primary if it is a replica, or another
    /// node.
    owners: [Option<usize>; 2],
    migrating: [bool; 2],
    importing: [bool; 2],
    is_replica: bool,
    is_ok: bool,
    /// The client has sent ASKING, READONLY. The command writes, is RESTORE-ASKING, is MIGRATE.
    client: (bool, bool),
    command: (bool, bool, bool),
    reads_when_down: bool,
    channels_when_down: bool,
    are_channels: bool,
    /// For each key: its slot, one of two names in the slot, and whether the key exists.
    keys: Vec<(usize, usize)>,
    exists: [[bool; 2]; 2],
}

const NAMES: [[&str; 2]; 2] = [["{a}1", "{a}2"], ["{b}1", "{b}2"]];
const ME: usize = 0;
const PRIMARY: usize = 1;
const OTHER: usize = 2;

fn case() -> impl Strategy<Value = Case> {
    let owner = || prop_oneof![1 => Just(None), 5 => (0..3usize).prop_map(Some)];
    let pair = || (any::<bool>(), any::<bool>());
    let mostly = || prop::bool::weighted(0.8);
    let keys = prop_oneof![
        3 => prop::collection::vec((Just(0), 0..2usize), 0..4),
        1 => prop::collection::vec((0..2usize, 0..2usize), 0..4),
    ];
    let slots = ([owner(), owner()], [any::<bool>(); 2], [any::<bool>(); 2]);
    let node = (any::<bool>(), mostly());
    let asked = (pair(), (any::<bool>(), any::<bool>(), prop::bool::weighted(0.1)));
    let rules = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.2));
    let data = (keys, [[any::<bool>(); 2], [any::<bool>(); 2]]);
    (slots, node, asked, rules, data).prop_map(|(slots, node, asked, rules, data)| Case {
        owners: slots.0,
        migrating: slots.1,
        importing: slots.2,
        is_replica: node.0,
        is_ok: node.1,
        client: asked.0,
        command: asked.1,
        reads_when_down: rules.0,
        channels_when_down: rules.1,
        are_channels: rules.2,
        keys: data.0,
        exists: data.1,
    })
}

/// The rules as a list: the first one that applies decides.
fn model(case: &Case) -> Result<Option<usize>, &'static str> {
    let (asking, read_only) = case.client;
    let (writes, command_asks, is_migrate) = case.command;
    let Some(&(slot, first)) = case.keys.first() else { return Ok(None) };
    let Some(owner) = case.owners[slot] else { return Err("unserved") };
    let migrating = owner == ME && case.migrating[slot];
    let importing = !migrating && case.importing[slot];
    if case.keys.iter().any(|key| key.0 != slot) {
        return Err("cross slot");
    }
    let multiple = case.keys.iter().any(|key| key.1 != first);
    let counted = if case.are_channels { &[][..] } else { &case.keys };
    let existing = counted.iter().filter(|key| case.exists[slot][key.1]).count();
    let missing = counted.len() - existing;
    let down = !case.is_ok;
    let rules = [
        (down && case.are_channels && !case.channels_when_down, Err("down")),
        (down && !case.are_channels && !case.reads_when_down, Err("down")),
        (down && !case.are_channels && writes, Err("down for writes")),
        ((migrating || importing) && is_migrate, Ok(())),
        (migrating && missing > 0 && existing > 0, Err("try again")),
        (migrating && missing > 0, Err("ask")),
        (importing && (asking || command_asks) && multiple && missing > 0, Err("try again")),
        (importing && (asking || command_asks), Ok(())),
        (
            case.is_replica && owner == PRIMARY && !writes && (read_only || case.are_channels),
            Ok(()),
        ),
        (owner == ME, Ok(())),
        (true, Err("moved")),
    ];
    let (_, answer) = rules.into_iter().find(|rule| rule.0).expect("the last one fits");
    answer.map(|()| Some(slot))
}

fn decide(case: &Case) -> Result<Option<usize>, &'static str> {
    let id = |digit: u8| NodeId::from_bytes(&[digit; NodeId::BYTES]).expect("a name");
    let mut cluster = Cluster::new(id(b'0'), Settings::default(), 1);
    let slots = NAMES.map(|names| HashSlot::of(names[0].as_bytes()));
    let mut nodes = vec![cluster.my_index()];
    for digit in [b'1', b'2'] {
        nodes.push(cluster.add_for_test(id(digit), NodeFlags::PRIMARY));
    }
    if case.is_replica {
        cluster.follow_for_test(nodes[PRIMARY]);
    }
    for (index, &slot) in slots.iter().enumerate() {
        cluster.own_for_test(slot, case.owners[index].map(|owner| nodes[owner]));
        cluster.open_for_test(
            slot,
            case.migrating[index].then_some(nodes[OTHER]),
            case.importing[index].then_some(nodes[OTHER]),
        );
    }
    cluster.set_ok_for_test(case.is_ok);
    let mut client = ClientFlags::empty();
    client.set(ClientFlags::ASKING, case.client.0);
    client.set(ClientFlags::READS_HERE, case.client.1);
    let mut flags = Flags::empty();
    flags.set(Flags::WRITE, case.command.0);
    flags.set(Flags::ASKING, case.command.1);
    let decision = Decision {
        cluster: &cluster,
        client,
        flags,
        is_migrate: case.command.2,
        leaves_database: false,
        is_queued: false,
        serves_reads_when_down: case.reads_when_down,
        serves_channels_when_down: case.channels_when_down,
        as_valkey: false,
    };
    let names = case.keys.iter().map(|&(slot, name)| Named {
        name: NAMES[slot][name].as_bytes(),
        database: DbIndex::ZERO,
        is_channel: case.are_channels,
    });
    let exists = |key: Named<'_>| {
        let places = (0..4).map(|at| (at / 2, at % 2));
        let mut places = places.filter(|&(slot, name)| NAMES[slot][name].as_bytes() == key.name);
        places.any(|(slot, name)| case.exists[slot][name])
    };
    let index_of = |slot: HashSlot| slots.iter().position(|&other| other == slot);
    decision.place(names, exists).map(|slot| slot.and_then(index_of)).map_err(|elsewhere| {
        match elsewhere {
            Elsewhere::Unserved => "unserved",
            Elsewhere::CrossSlot => "cross slot",
            Elsewhere::Down => "down",
            Elsewhere::DownForWrites => "down for writes",
            Elsewhere::TryAgain => "try again",
            Elsewhere::Ask(_, node) if node == nodes[OTHER] => "ask",
            Elsewhere::Moved(slot, node) if cluster.owner(slot) == Some(node) => "moved",
            Elsewhere::Ask(..) | Elsewhere::Moved(..) => "the wrong node",
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    #[test]
    fn a_request_is_placed_by_the_first_rule_that_fits(case in case()) {
        prop_assert_eq!(decide(&case), model(&case));
    }
}

/// A node that owns all slots but that of `foreign`, in a cluster that is ok.
fn owner_of_all_but(foreign: &str) -> (Cluster, NodeIndex) {
    let id = |digit: u8| NodeId::from_bytes(&[digit; NodeId::BYTES]).expect("a name");
    let mut cluster = Cluster::new(id(b'0'), Settings::default(), 1);
    let (myself, other) = (cluster.my_index(), cluster.add_for_test(id(b'1'), NodeFlags::PRIMARY));
    HashSlot::all().for_each(|slot| cluster.own_for_test(slot, Some(myself)));
    cluster.own_for_test(HashSlot::of(foreign.as_bytes()), Some(other));
    cluster.set_ok_for_test(true);
    (cluster, other)
}

#[test]
fn the_fast_path_takes_what_is_certainly_here() {
    let (mut cluster, other) = owner_of_all_but("foreign");
    let owns = |cluster: &Cluster, request: &str| {
        let ranges = Range::of_words(request);
        let args = Args::new(request.as_bytes(), &ranges);
        owns(cluster, TABLE.find(args.get(0)).expect("a command"), args)
    };
    let here = [
        "get a",
        "mget {a}1 {a}2",
        "mset {a}1 foreign {a}2 foreign",
        "blpop {a}1 {a}2 0",
        "rename {a}1 {a}2",
        "ping",
        "spublish a m",
        "set foreig n",
    ];
    let perhaps_not = [
        "get foreign",
        "mget a b",
        "mget a foreign",
        "mset a 1 b 1",
        "rename a b",
        "copy a foreign",
        "blpop foreign 0",
        "spublish foreign m",
        "ssubscribe a b",
        "zunionstore a 1 foreign",
        "xread streams foreign 0",
        "sort a store foreign",
        "migrate host 1 foreign 0 1",
        "eval x 1 foreign",
        "georadius a 1 1 1 m store foreign",
    ];
    for request in here {
        assert!(owns(&cluster, request), "{request}");
    }
    for request in perhaps_not {
        assert!(!owns(&cluster, request), "{request}");
    }
    cluster.open_for_test(HashSlot::of(b"b"), Some(other), None);
    assert!(!owns(&cluster, "get a"), "a slot is open");
    let (mut cluster, _) = owner_of_all_but("foreign");
    cluster.set_ok_for_test(false);
    assert!(!owns(&cluster, "get a"), "the cluster is down");
}

#[test]
fn a_redirection_names_the_endpoint_that_is_preferred() {
    let told = |config: &str, announced: Announced, address: NodeAddress| {
        let config = Config::from_text(config.as_bytes()).expect("a good configuration");
        let mut node = NodeFacts::new(NodeId::from_bytes(&[b'0'; 40]).expect("a name"));
        (node.announced, node.address) = (announced, address);
        let port = port(&config, &node, None);
        format!("{}:{port}", endpoint(&config, &node, None).unwrap_or_default())
    };
    let address = || NodeAddress { ip: "::1".into(), tcp_port: 7000, tls_port: 7001, bus_port: 1 };
    let named = || Announced { hostname: "here".into(), ..Default::default() };
    let by = |kind: &str| format!("cluster-preferred-endpoint-type {kind}\n");
    assert_eq!(told("", named(), address()), "::1:7000");
    assert_eq!(told(&by("hostname"), named(), address()), "here:7000");
    assert_eq!(told(&by("hostname"), Announced::default(), address()), "?:7000");
    assert_eq!(told(&by("unknown-endpoint"), named(), address()), ":7000");
    // The port for TLS: without a client, it is used if the cluster uses TLS.
    assert_eq!(told("tls-cluster yes\n", named(), address()), "::1:7001");
    let only_tls = NodeAddress { tcp_port: 0, ..address() };
    assert_eq!(told("", named(), only_tls), "::1:7001");
    let announced = Announced { client_port: 80, ..named() };
    assert_eq!(told("", announced, address()), "::1:80");
}
