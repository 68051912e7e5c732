//! The loop's own state for the cluster besides the state machine, and the facts about this server
//! that the state machine gets.

use bytes::Bytes;

use super::State;
use super::slot_moves::SlotMoves;
use crate::client::ClientId;
use crate::cluster::Cluster;
use crate::cluster::action::{Action, LinkId, Outside};
use crate::collections::hash_slot::SlotSet;
use crate::persist::nodes_file::NodesFile;
use crate::replication::following::{Following, Progress};
use crate::resp::reply::Protocol;
use crate::stats::slots::SlotStats;

/// The subcommands of CLUSTER whose replies are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Nodes,
    Slots,
    Shards,
}

/// The facts on which a reply depends, besides the cluster and the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub asked: Asked,
    pub protocol: Protocol,
    /// Whether the client uses TLS. None: the reply is for no client.
    pub is_tls: Option<bool>,
    /// Whether the client uses IPv6. None: it has no IP address.
    pub is_ipv6: Option<bool>,
    /// This node's replication offset, if the reply shows it.
    pub offset: u64,
}

/// A reply that is valid while [`crate::cluster::Cluster::changes`] stays the same.
#[derive(Clone, Debug)]
pub struct KeptReply {
    pub changes: u64,
    pub shown: Shown,
    pub bytes: Bytes,
}

/// The lists of the slots' keys, which are made when somebody asks for them.
#[derive(Default)]
pub struct SlotLists {
    /// When somebody last asked: boot-time clock, microseconds.
    pub asked_us: i64,
    /// Whether they are being made.
    pub are_under_way: bool,
    /// Clients that wait for them.
    pub waiting: Vec<ClientId>,
}

/// This server as a node of a cluster.
#[derive(Default)]
pub struct ThisNode {
    /// With `cluster-enabled yes`: the cluster as this node sees it.
    pub cluster: Option<Box<Cluster>>,
    /// Actions that the cluster asks for at the end of the turn, in order.
    pub actions: Vec<Action>,
    pub work: ClusterWork,
    pub moves: SlotMoves,
    /// Statistics of slots. None: `cluster-slot-stats-enabled` was never on.
    pub slot_stats: Option<Box<SlotStats>>,
}

/// See the module.
#[derive(Default)]
pub struct ClusterWork {
    /// nodes.conf, in which the cluster's state is saved.
    pub file: Option<NodesFile>,
    /// When the state machine learns the time next: boot-time clock, microseconds.
    pub next_tick_us: i64,
    /// When other nodes are answered next in a script: same clock and unit.
    pub next_in_script_us: i64,
    /// When a failed save is tried again, and when a failure was last logged: same clock and unit.
    pub next_save_us: i64,
    pub failure_logged_us: Option<i64>,
    /// Slots whose keys are being deleted; of a replica, by its primary. [`Self::is_announced`]:
    /// replicas and the AOF know them.
    pub slots_to_empty: Option<SlotSet>,
    pub is_announced: bool,
    pub lists: SlotLists,
    /// The cluster's number of slots gained when fences were last renewed.
    pub fenced: u64,
    /// Replies about nodes and slots; see `command/cluster/cached.rs`.
    pub replies: Vec<KeptReply>,
    /// Clients whose replies wait until their changes are in nodes.conf, each with the number of
    /// the save that does this. None: no save was asked for yet.
    pub unconfirmed: Vec<(ClientId, Option<u64>)>,
    /// Connections with a message that waits until no script runs.
    pub held: Vec<LinkId>,
}

impl State {
    /// The facts about this server that the state machine of the cluster needs. Reads the clocks,
    /// because the time of commands stands still during a script, in which other nodes are answered
    /// too.
    pub fn outside(&self) -> Outside {
        let now = self.clock.now();
        let following = self.replication.following.as_deref();
        let age_ms = |since_us: i64| (now.boot_us - since_us).max(0) / 1000;
        let data_age_ms = match following {
            Some(following) if following.is_connected() => age_ms(following.last_sign_us),
            Some(following) if following.down_since_us.is_some() => {
                age_ms(following.heard_before_us)
            }
            _ => i64::MAX,
        };
        Outside {
            boot_ms: now.boot_us / 1000,
            unix_ms: now.wall_us / 1000,
            offset: match following {
                None => self.stream_end(),
                // Its data is about to be replaced: others neither send clients to it nor rank it
                // by what it had.
                Some(following) if following.progress == Progress::Sync => 0,
                Some(_) => self.replication.offset,
            },
            is_link_up: following.is_some_and(Following::is_connected),
            data_age_ms,
            is_loading: self.persistence.loading.is_some(),
        }
    }
}
