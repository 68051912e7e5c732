//! Decides which node of a cluster serves a request: this one, or another to which the client is
//! sent.
//!
//! A request is served by the node that owns the slot of its keys. [`Decision`] is the whole table
//! of rules, in the order of Redis 7.0: the first rule that applies decides. EXEC is decided over
//! the keys of all its commands. Requests from the primary and from files are not checked, because
//! they have run before.
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
use crate::keyspace::DbIndex;
use crate::net::stream::Address;
use crate::resp::args::Args;
use crate::state::spec::{Begin, DatabaseUse, Find, Flags, Group, KeyFlags, KeyRule};
use crate::state::table::Command;
use crate::state::{Core, State};

/// Why a request is not served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// No node owns the slot.
    Unserved,
    /// The keys are in more than one slot.
    CrossSlot,
    /// The cluster's state is `fail`.
    Down,
    /// The cluster's state is `fail`, and only reads are served.
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
    pub database: DbIndex,
    pub is_channel: bool,
}

/// The parts of a request on which the choice of a node depends.
pub struct Decision<'a> {
    pub cluster: &'a Cluster,
    /// The client's flags: ASKING and READS_HERE count.
    pub client: ClientFlags,
    /// The flags of the command, and of the commands that EXEC runs.
    pub flags: Flags,
    pub is_migrate: bool,
    /// MOVE, or COPY to another database: the key at the other end may have been moved already.
    pub leaves_database: bool,
    /// The command is only queued: EXEC will look for its keys.
    pub is_queued: bool,
    pub serves_reads_when_down: bool,
    pub serves_channels_when_down: bool,
    /// Whether to decide as Valkey does, where it differs from Redis.
    pub as_valkey: bool,
}

impl Decision<'_> {
    /// The slot of the names if they are served here, None if there are none. `exists`: whether a
    /// key is here.
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
                // A move of a slot to its own node has no effect.
                Some(target) if !present && target == cluster.my_index() => return Ok(Some(slot)),
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

    /// Whether the slot is being moved away from this node, and whether to this node.
    fn is_open(&self, slot: HashSlot) -> (bool, bool) {
        let cluster = self.cluster;
        if !cluster.has_open_slots() {
            return (false, false);
        }
        // A replica of Valkey shares the open slots of its primary.
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
pub fn follows(cluster: &Cluster, primary: NodeIndex) -> bool {
    let myself = cluster.myself();
    myself.is_replica() && myself.primary == Some(primary)
}

/// Whether Valkey's rules apply where they differ from those of Redis 7.0.
pub fn is_as_valkey(config: &Config) -> bool {
    config.compatible_with.is_valkey() || config.cluster_databases > 1
}

/// Checks where a client's command is served; for EXEC, where all its commands
/// are. Errors: the redirection.
pub fn check(
    core: &Core,
    client: &Client,
    command: &'static Command,
    args: Args<'_>,
) -> Result<(), CommandError> {
    let placed = place(core, client, command, args);
    placed.map(drop).map_err(|elsewhere| error(&core.state, Some(client), elsewhere))
}

fn place(
    core: &Core,
    client: &Client,
    command: &'static Command,
    args: Args<'_>,
) -> Result<Option<HashSlot>, Elsewhere> {
    let Some(cluster) = core.state.node.cluster.as_deref() else { return Ok(None) };
    let transaction = client.transaction.as_deref();
    let queued = transaction.filter(|_| command.is(Flags::RUNS_QUEUED));
    if command.spec.keys.is_empty() && queued.is_none() {
        return Ok(None);
    }
    let selected = core.keyspace.selected();
    let exists = |key: Named<'_>| core.keyspace.entry_quietly(key.database, key.name).is_some();
    let mut decision = Decision {
        cluster,
        client: client.flags,
        flags: core.state.flags_of(command, args),
        is_migrate: command.spec.key_rule == KeyRule::Migrated,
        leaves_database: false,
        is_queued: transaction.is_some() && queued.is_none() && !command.is(Flags::NEVER_QUEUED),
        serves_reads_when_down: core.state.config.cluster_allow_reads_when_down,
        serves_channels_when_down: core.state.config.cluster_allow_pubsubshard_when_down,
        as_valkey: is_as_valkey(&core.state.config),
    };
    let Some(queued) = queued else {
        decision.leaves_database = decision.as_valkey && leaves_database(command, args, selected);
        return decision.place(names(command, args, selected), exists);
    };
    decision.flags |= queued.flags() - Flags::ASKING;
    decision.leaves_database = decision.as_valkey
        && queued.requests().any(|(command, args, _)| {
            leaves_database(core.state.commands.get(command), args, selected)
        });
    decision.place(names_queued(&core.state, queued, selected), exists)
}

/// Whether a request is certainly served here: all its names have fixed positions and are in one
/// slot, which this node owns, the cluster is ok, and no slot is being moved. O(names), without an
/// allocation.
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
    database: DbIndex,
) -> impl Iterator<Item = Named<'a>> {
    placed_by(command.spec, args).into_iter().map(move |place| Named {
        name: args.get(place.index),
        database,
        // A cursor is treated as a key, as in Valkey.
        is_channel: place.flags.contains(KeyFlags::NOT_KEY) && command.spec.group == Group::PubSub,
    })
}

/// The names of all queued commands.
fn names_queued<'a>(
    state: &'a State,
    queued: &'a Transaction,
    mut database: DbIndex,
) -> impl Iterator<Item = Named<'a>> {
    queued.requests().flat_map(move |(command, args, _)| {
        let command = state.commands.get(command);
        if command.spec.databases == DatabaseUse::Selects
            && let Ok(selected) = args.integer(1)
            && let Some(selected) = DbIndex::checked(selected, state.database_count())
        {
            database = selected;
        }
        names(command, args, database)
    })
}

/// Whether a command takes a key to another database.
fn leaves_database(command: &Command, args: Args<'_>, selected: DbIndex) -> bool {
    match command.spec.databases {
        DatabaseUse::Named(_) => command.is(Flags::WRITE) && !command.spec.keys.is_empty(),
        databases @ DatabaseUse::Options(_) => databases
            .arguments(args)
            .into_iter()
            .any(|index| args.integer(index) != Ok(selected.get() as i64)),
        DatabaseUse::Selected | DatabaseUse::Selects | DatabaseUse::All => false,
    }
}

// ---- scripts ------------------------------------------------------------------------------------

/// Checks where a script's call is served, and that all its calls are in one slot unless the script
/// allows several. Errors: the whole text.
pub fn check_scripted(
    core: &mut Core,
    command: &'static Command,
    args: Args<'_>,
) -> Result<(), String> {
    let Some(cluster) = core.state.node.cluster.as_deref() else { return Ok(()) };
    let running = core.state.scripts.running.as_ref();
    let client = running.and_then(|running| running.client);
    // Requests of the primary or a file have no client.
    let Some(client) = client.and_then(|id| core.state.clients.get(id)) else { return Ok(()) };
    let decision = Decision {
        cluster,
        client: client.flags,
        flags: command.spec.flags,
        is_migrate: command.spec.key_rule == KeyRule::Migrated,
        leaves_database: false,
        is_queued: false,
        serves_reads_when_down: core.state.config.cluster_allow_reads_when_down,
        serves_channels_when_down: core.state.config.cluster_allow_pubsubshard_when_down,
        as_valkey: is_as_valkey(&core.state.config),
    };
    let exists = |key: Named<'_>| core.keyspace.entry_quietly(key.database, key.name).is_some();
    let placed = decision.place(names(command, args, core.keyspace.selected()), exists);
    let as_valkey = decision.as_valkey;
    let slot = placed.map_err(|elsewhere| scripted_text(&elsewhere, command, as_valkey))?;
    if let (Some(slot), Some(running)) = (slot, &mut core.state.scripts.running)
        && !running.allows_cross_slot
        && *running.slot.get_or_insert(slot) != slot
    {
        let text = "ERR Script attempted to access keys that do not hash to the same slot";
        return Err(text.to_owned());
    }
    Ok(())
}

/// The error of a script's call that is not served here.
fn scripted_text(elsewhere: &Elsewhere, command: &Command, as_valkey: bool) -> String {
    let name = &command.full_name;
    match (elsewhere, as_valkey) {
        (Elsewhere::Down, true) => {
            format!("ERR Can not execute a command '{name}' while the cluster is down")
        }
        (Elsewhere::DownForWrites, true) => format!(
            "ERR Can not execute a write command '{name}' while the cluster is down and readonly"
        ),
        (_, true) => "ERR Attempted to access a non local key in a cluster node".into(),
        (Elsewhere::Down, false) => {
            "ERR Script attempted to execute a command while the cluster is down".into()
        }
        (Elsewhere::DownForWrites, false) => {
            "ERR Script attempted to execute a write command while the cluster is down and readonly"
                .into()
        }
        (_, false) => "ERR Script attempted to access a non local key in a cluster node".into(),
    }
}

/// The slot of a request's first key.
pub fn slot_of(command: &'static Command, args: Args<'_>) -> Option<HashSlot> {
    names(command, args, DbIndex::ZERO).next().map(|first| HashSlot::of(first.name))
}

// ---- texts --------------------------------------------------------------------------------------

/// The error that directs a client to the node that serves its request.
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
    let Some(cluster) = state.node.cluster.as_deref() else {
        return CommandError::Cluster("CLUSTERDOWN The cluster is down");
    };
    let node = cluster.node(node);
    let endpoint = endpoint(&state.config, node, client).unwrap_or_default();
    let port = port(&state.config, node, client);
    let text = format!("{word} {} {endpoint}:{port}", slot.number());
    CommandError::Moved(text.into_bytes().into_boxed_slice())
}

/// Where a client should connect to a node, by `cluster-preferred-endpoint-type`. None: the host to
/// which it is connected.
pub fn endpoint<'a>(config: &Config, node: &'a Node, client: Option<&Client>) -> Option<&'a str> {
    match config.cluster_preferred_endpoint_type {
        "hostname" if node.announced.hostname.is_empty() => Some("?"),
        "hostname" => Some(&node.announced.hostname),
        "unknown-endpoint" => None,
        _ => Some(ip(node, client)),
    }
}

/// A node's address for a client: the one that the node announces for the client's address family,
/// if it announces one.
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

/// A node's port for a client: with TLS, if the client uses it and the cluster does. In Valkey the
/// client decides alone.
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
mod tests;
