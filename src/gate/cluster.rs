//! Which node of a cluster serves a request: this one, or another to which the client is sent.
//!
//! A request is served by the node that owns the slot of its keys. [`Decision`] is the whole table of rules, in the order of
//! Redis 7.0: the first that applies is the answer. EXEC is decided over the keys of all its commands. Requests from the
//! primary and from files are never asked about: they have happened already.
//!
//! Source: the cluster specification of Redis, "Redirection and resharding".

use crate::client::transaction::Transaction;
use crate::client::{Client, ClientFlags};
use crate::cluster::Cluster;
use crate::cluster::node::{Node, NodeIndex};
use crate::collections::hash_slot::HashSlot;
use crate::config::Config;
use crate::error::CommandError;
use crate::gate::keys::placed_by;
use crate::keyspace::Keyspace;
use crate::net::stream::Address;
use crate::resp::args::Args;
use crate::state::State;
use crate::state::spec::{Begin, DatabaseUse, Find, Flags, KeyFlags, KeyRule};
use crate::state::table::Command;

/// Why a request is not served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// No node owns the slot.
    Unserved,
    /// The keys are in more than one slot.
    CrossSlot,
    /// The cluster's state is `fail`.
    Down,
    /// It is, and reads are served all the same.
    DownForWrites,
    /// Some of the keys are here, some are not.
    TryAgain,
    /// The slot is being moved, and the keys are at the target already.
    Ask(HashSlot, NodeIndex),
    Moved(HashSlot, NodeIndex),
}

/// A key or shard channel of a request.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    pub name: &'a [u8],
    pub database: usize,
    pub is_channel: bool,
}

/// A request as far as the choice of a node depends on it.
pub struct Decision<'a> {
    pub cluster: &'a Cluster,
    /// Of the client: ASKING and READS_HERE count.
    pub client: ClientFlags,
    /// Of the command, and of those that EXEC runs.
    pub flags: Flags,
    pub is_migrate: bool,
    /// MOVE, or COPY to another database: the key at the other end may have been moved already.
    pub leaves_database: bool,
    /// A command to be queued: EXEC looks for its keys.
    pub is_queued: bool,
    pub serves_reads_when_down: bool,
    pub serves_channels_when_down: bool,
    /// As Valkey decides, where it differs.
    pub as_valkey: bool,
}

impl Decision<'_> {
    /// The slot of the names if they are served here, None if there are none. `exists`: whether a key is here.
    pub fn place<'k>(
        &self,
        names: impl Iterator<Item = Named<'k>>,
        exists: impl Fn(Named<'k>) -> bool,
    ) -> Result<Option<HashSlot>, Elsewhere> {
        let cluster = self.cluster;
        let mut first: Option<(&[u8], HashSlot)> = None;
        let (mut is_migrating, mut is_importing) = (false, false);
        let (mut are_many, mut only_channels) = (false, true);
        let (mut missing, mut present) = (false, false);
        for named in names {
            let slot = HashSlot::of(named.name);
            match first {
                None => {
                    first = Some((named.name, slot));
                    if !self.as_valkey && cluster.owner(slot).is_none() {
                        return Err(Elsewhere::Unserved);
                    }
                    (is_migrating, is_importing) = self.is_open(slot);
                }
                Some((_, other)) if other != slot => return Err(Elsewhere::CrossSlot),
                Some((name, _)) => are_many |= name != named.name,
            }
            only_channels &= named.is_channel;
            let waits_for_exec = self.as_valkey && self.is_queued;
            let is_looked_up = !(named.is_channel || waits_for_exec);
            if (is_migrating || is_importing) && is_looked_up {
                match exists(named) {
                    true => present = true,
                    false => missing = true,
                }
            }
        }
        let Some((_, slot)) = first else { return Ok(None) };
        let owner = cluster.owner(slot).ok_or(Elsewhere::Unserved)?;
        if (is_migrating || is_importing) && self.leaves_database {
            return Err(Elsewhere::TryAgain);
        }
        if !cluster.is_ok() {
            self.check_when_down(only_channels)?;
        }
        if (is_migrating || is_importing) && self.is_migrate {
            return Ok(Some(slot));
        }
        if is_migrating && missing {
            return Err(match cluster.migrating_to(slot) {
                Some(target) if !present => Elsewhere::Ask(slot, target),
                _ => Elsewhere::TryAgain,
            });
        }
        let asks = self.client.contains(ClientFlags::ASKING) || self.flags.contains(Flags::ASKING);
        if is_importing && asks {
            return if are_many && missing { Err(Elsewhere::TryAgain) } else { Ok(Some(slot)) };
        }
        let may_read = self.client.contains(ClientFlags::READS_HERE) || only_channels;
        let reads_here = may_read && follows(cluster, owner) && !self.flags.contains(Flags::WRITE);
        match owner == cluster.my_index() || reads_here {
            true => Ok(Some(slot)),
            false => Err(Elsewhere::Moved(slot, owner)),
        }
    }

    /// Whether the slot is being moved from here, or to here.
    fn is_open(&self, slot: HashSlot) -> (bool, bool) {
        let cluster = self.cluster;
        if !cluster.has_open_slots() {
            return (false, false);
        }
        // A replica of Valkey has the open slots of its primary.
        let is_mine = match cluster.owner(slot) {
            Some(owner) if self.as_valkey && self.client.contains(ClientFlags::READS_HERE) => {
                owner == cluster.my_index() || follows(cluster, owner)
            }
            owner => owner == Some(cluster.my_index()),
        };
        let is_migrating = is_mine && cluster.migrating_to(slot).is_some();
        (is_migrating, !is_migrating && cluster.importing_from(slot).is_some())
    }

    fn check_when_down(&self, only_channels: bool) -> Result<(), Elsewhere> {
        match only_channels {
            true if self.serves_channels_when_down => Ok(()),
            true => Err(Elsewhere::Down),
            false if !self.serves_reads_when_down => Err(Elsewhere::Down),
            false if self.flags.contains(Flags::WRITE) => Err(Elsewhere::DownForWrites),
            false => Ok(()),
        }
    }
}

/// Whether this node is a replica of another one.
pub(super) fn follows(cluster: &Cluster, primary: NodeIndex) -> bool {
    let myself = cluster.myself();
    myself.is_replica() && myself.primary == Some(primary)
}

/// Whether what Valkey does applies where it differs from Redis 7.0.
pub fn is_as_valkey(config: &Config) -> bool {
    config.compatible_with.is_valkey() || config.cluster_databases > 1
}

/// Checks where a client's command with these flags is served; for EXEC, where all its commands are. Errors: the redirection.
pub fn check(
    keyspace: &Keyspace,
    state: &State,
    client: &Client,
    (command, flags): (&'static Command, Flags),
    args: Args<'_>,
) -> Result<(), CommandError> {
    let Some(cluster) = state.cluster.as_deref() else { return Ok(()) };
    let placed = place(keyspace, state, cluster, client, (command, flags), args);
    placed.map(drop).map_err(|elsewhere| error(state, Some(client), elsewhere))
}

fn place(
    keyspace: &Keyspace,
    state: &State,
    cluster: &Cluster,
    client: &Client,
    (command, flags): (&'static Command, Flags),
    args: Args<'_>,
) -> Result<Option<HashSlot>, Elsewhere> {
    let transaction = client.transaction.as_deref();
    let queued = transaction.filter(|_| command.is(Flags::RUNS_QUEUED));
    if command.spec.keys.is_empty() && queued.is_none() {
        return Ok(None);
    }
    let selected = keyspace.selected();
    let exists = |key: Named<'_>| keyspace.entry_quietly(key.database, key.name).is_some();
    let mut decision = Decision {
        cluster,
        client: client.flags,
        flags,
        is_migrate: command.spec.key_rule == KeyRule::Migrated,
        leaves_database: false,
        is_queued: transaction.is_some() && queued.is_none() && !command.is(Flags::NEVER_QUEUED),
        serves_reads_when_down: state.config.cluster_allow_reads_when_down,
        serves_channels_when_down: state.config.cluster_allow_pubsubshard_when_down,
        as_valkey: is_as_valkey(&state.config),
    };
    let Some(queued) = queued else {
        decision.leaves_database = decision.as_valkey && leaves_database(command, args, selected);
        return decision.place(names(command, args, selected), exists);
    };
    decision.flags |= queued.flags() - Flags::ASKING;
    decision.leaves_database = decision.as_valkey
        && queued
            .requests()
            .any(|(command, args, _)| leaves_database(state.commands.get(command), args, selected));
    decision.place(names_queued(state, queued, selected), exists)
}

/// Whether a request is certainly served here: all its names have fixed positions and are in one slot, which this node owns,
/// and nothing is in the way. O(names), without an allocation.
pub fn owns(cluster: &Cluster, command: &Command, args: Args<'_>) -> bool {
    if !command.has_fixed_places || !cluster.is_ok() || cluster.has_open_slots() {
        return false;
    }
    let mut first = None;
    for keys in command.spec.keys {
        let (Begin::Index(at), Find::Range { last, step, .. }) = (keys.begin, keys.find) else {
            return false;
        };
        let at = at as usize;
        let end = match last {
            0.. => Some(at + last as usize),
            _ => args.len().checked_sub(last.unsigned_abs() as usize),
        };
        let Some(end) = end.filter(|end| (at..args.len()).contains(end)) else { return false };
        for index in (at..=end).step_by(usize::from(step.max(1))) {
            let slot = HashSlot::of(args.get(index));
            if *first.get_or_insert(slot) != slot || !cluster.owns(slot) {
                return false;
            }
        }
    }
    true
}

/// The names by which a request's slot is chosen.
fn names<'a>(
    command: &'static Command,
    args: Args<'a>,
    database: usize,
) -> impl Iterator<Item = Named<'a>> {
    placed_by(command.spec, args).into_iter().map(move |place| Named {
        name: args.get(place.index),
        database,
        is_channel: place.flags.contains(KeyFlags::NOT_KEY),
    })
}

/// Those of all queued commands.
fn names_queued<'a>(
    state: &'a State,
    queued: &'a Transaction,
    mut database: usize,
) -> impl Iterator<Item = Named<'a>> {
    queued.requests().flat_map(move |(command, args, _)| {
        let command = state.commands.get(command);
        if command.spec.databases == DatabaseUse::Selects
            && let Ok(selected) = args.integer(1)
            && let Ok(selected) = usize::try_from(selected)
            && selected < state.database_count()
        {
            database = selected;
        }
        names(command, args, database)
    })
}

/// Whether a command takes a key to another database.
fn leaves_database(command: &Command, args: Args<'_>, selected: usize) -> bool {
    match command.spec.databases {
        DatabaseUse::Named(_) => command.is(Flags::WRITE) && !command.spec.keys.is_empty(),
        databases @ DatabaseUse::Options(_) => databases
            .arguments(args)
            .into_iter()
            .any(|index| args.integer(index) != Ok(selected as i64)),
        DatabaseUse::Selected | DatabaseUse::Selects | DatabaseUse::All => false,
    }
}

// ---- scripts ---------------------------------------------------------------------------------------------------------

/// Checks where a script's call is served, and that all its calls are in one slot if the script did not allow others.
/// Errors: the whole text.
pub fn check_scripted(
    keyspace: &Keyspace,
    state: &mut State,
    command: &'static Command,
    args: Args<'_>,
) -> Result<(), &'static str> {
    let Some(cluster) = state.cluster.as_deref() else { return Ok(()) };
    let running = state.scripts.running.as_ref();
    let client = running.and_then(|running| running.client);
    // What is repeated has no client.
    let Some(client) = client.and_then(|id| state.clients.get(id)) else { return Ok(()) };
    let decision = Decision {
        cluster,
        client: client.flags,
        flags: command.spec.flags,
        is_migrate: command.spec.key_rule == KeyRule::Migrated,
        leaves_database: false,
        is_queued: false,
        serves_reads_when_down: state.config.cluster_allow_reads_when_down,
        serves_channels_when_down: state.config.cluster_allow_pubsubshard_when_down,
        as_valkey: is_as_valkey(&state.config),
    };
    let exists = |key: Named<'_>| keyspace.entry_quietly(key.database, key.name).is_some();
    let placed = decision.place(names(command, args, keyspace.selected()), exists);
    let slot = placed.map_err(|elsewhere| match elsewhere {
        Elsewhere::Down => "ERR Script attempted to execute a command while the cluster is down",
        Elsewhere::DownForWrites => {
            "ERR Script attempted to execute a write command while the cluster is down and readonly"
        }
        _ => "ERR Script attempted to access a non local key in a cluster node",
    })?;
    if let (Some(slot), Some(running)) = (slot, &mut state.scripts.running)
        && !running.allows_cross_slot
        && *running.slot.get_or_insert(slot) != slot
    {
        return Err("ERR Script attempted to access keys that do not hash to the same slot");
    }
    Ok(())
}

/// The slot of a request's first key.
pub fn slot_of(command: &'static Command, args: Args<'_>) -> Option<HashSlot> {
    names(command, args, 0).next().map(|first| HashSlot::of(first.name))
}

// ---- texts -----------------------------------------------------------------------------------------------------------

/// The error that tells a client where its request is served.
pub fn error(state: &State, client: Option<&Client>, elsewhere: Elsewhere) -> CommandError {
    let (word, slot, node) = match elsewhere {
        Elsewhere::Unserved => return CommandError::Cluster("CLUSTERDOWN Hash slot not served"),
        Elsewhere::CrossSlot => {
            let text = "CROSSSLOT Keys in request don't hash to the same slot";
            return CommandError::Cluster(text);
        }
        Elsewhere::Down => return CommandError::Cluster("CLUSTERDOWN The cluster is down"),
        Elsewhere::DownForWrites => {
            let text = "CLUSTERDOWN The cluster is down and only accepts read commands";
            return CommandError::Cluster(text);
        }
        Elsewhere::TryAgain => {
            let text = "TRYAGAIN Multiple keys request during rehashing of slot";
            return CommandError::Cluster(text);
        }
        Elsewhere::Ask(slot, node) => ("ASK", slot, node),
        Elsewhere::Moved(slot, node) => ("MOVED", slot, node),
    };
    let Some(cluster) = state.cluster.as_deref() else {
        return CommandError::Cluster("CLUSTERDOWN The cluster is down");
    };
    let node = cluster.node(node);
    let endpoint = endpoint(&state.config, node, client).unwrap_or_default();
    let port = port(&state.config, node, client);
    let text = format!("{word} {} {endpoint}:{port}", slot.number());
    CommandError::Moved(text.into_bytes().into_boxed_slice())
}

/// Where a client should connect to a node, by `cluster-preferred-endpoint-type`. None: the host to which it is connected.
pub fn endpoint<'a>(config: &Config, node: &'a Node, client: Option<&Client>) -> Option<&'a str> {
    match config.cluster_preferred_endpoint_type {
        "hostname" if node.announced.hostname.is_empty() => Some("?"),
        "hostname" => Some(&node.announced.hostname),
        "unknown-endpoint" => None,
        _ => Some(ip(node, client)),
    }
}

/// A node's address for a client: the one it announces for the client's family, if it does.
pub fn ip<'a>(node: &'a Node, client: Option<&Client>) -> &'a str {
    let announced = match client.map(|client| &client.peer) {
        Some(Address::Tcp(peer)) if peer.ip().to_canonical().is_ipv6() => {
            &node.announced.client_ipv6
        }
        Some(Address::Tcp(_)) => &node.announced.client_ipv4,
        _ => return &node.address.ip,
    };
    if announced.is_empty() { &node.address.ip } else { announced }
}

/// A node's port for a client: with TLS, if the client uses it and the cluster does. In Valkey the client decides alone.
pub fn port(config: &Config, node: &Node, client: Option<&Client>) -> u16 {
    let is_tls = client.map_or(config.tls_cluster, |client| client.stream.is_tls());
    let is_tls = is_tls && (config.tls_cluster || config.compatible_with.is_valkey());
    let announced = match is_tls {
        true => node.announced.client_tls_port,
        false => node.announced.client_port,
    };
    let (preferred, other) = match is_tls {
        true => (node.address.tls_port, node.address.tcp_port),
        false => (node.address.tcp_port, node.address.tls_port),
    };
    [announced, preferred, other].into_iter().find(|&port| port != 0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::node::{Address, Announced, NodeFlags, NodeId};
    use crate::cluster::settings::Settings;
    use crate::command::TABLE;
    use crate::resp::request::Range;
    use proptest::prelude::*;

    /// All that the answer depends on.
    #[derive(Clone, Debug)]
    struct Case {
        /// The owners of the two slots: none, this node, its primary if it is a replica, another one.
        owners: [Option<usize>; 2],
        migrating: [bool; 2],
        importing: [bool; 2],
        is_replica: bool,
        is_ok: bool,
        /// ASKING, READONLY; the command writes, is RESTORE-ASKING, is MIGRATE.
        client: (bool, bool),
        command: (bool, bool, bool),
        reads_when_down: bool,
        channels_when_down: bool,
        are_channels: bool,
        /// Each a slot, one of two names in it, and whether it exists.
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

    /// The rules as a list, of which the first that fits is the answer.
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
            database: 0,
            is_channel: case.are_channels,
        });
        let exists = |key: Named<'_>| {
            let places = (0..4).map(|at| (at / 2, at % 2));
            let mut places =
                places.filter(|&(slot, name)| NAMES[slot][name].as_bytes() == key.name);
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
        let (myself, other) =
            (cluster.my_index(), cluster.add_for_test(id(b'1'), NodeFlags::PRIMARY));
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
        let told = |config: &str, announced: Announced, address: Address| {
            let config = Config::from_text(config.as_bytes()).expect("a good configuration");
            let mut node = Node::new(NodeId::from_bytes(&[b'0'; 40]).expect("a name"));
            (node.announced, node.address) = (announced, address);
            let port = port(&config, &node, None);
            format!("{}:{port}", endpoint(&config, &node, None).unwrap_or_default())
        };
        let address = || Address { ip: "::1".into(), tcp_port: 7000, tls_port: 7001, bus_port: 1 };
        let named = || Announced { hostname: "here".into(), ..Default::default() };
        let by = |kind: &str| format!("cluster-preferred-endpoint-type {kind}\n");
        assert_eq!(told("", named(), address()), "::1:7000");
        assert_eq!(told(&by("hostname"), named(), address()), "here:7000");
        assert_eq!(told(&by("hostname"), Announced::default(), address()), "?:7000");
        assert_eq!(told(&by("unknown-endpoint"), named(), address()), ":7000");
        // For those that use TLS: without a client, all in a cluster with TLS.
        assert_eq!(told("tls-cluster yes\n", named(), address()), "::1:7001");
        let only_tls = Address { tcp_port: 0, ..address() };
        assert_eq!(told("", named(), only_tls), "::1:7001");
        let announced = Announced { client_port: 80, ..named() };
        assert_eq!(told("", announced, address()), "::1:80");
    }
}
