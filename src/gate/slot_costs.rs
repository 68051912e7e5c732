//! The costs of requests for their hash slots, for CLUSTER SLOT-STATS. All of this runs only with
//! `cluster-slot-stats-enabled yes`: the thresholds of `stats/timing.rs` then make every command
//! take the slow path.
//!
//! A transaction or script is charged once, with the costs of all its commands, to the slot of its
//! keys. If its keys may be in several slots, it is charged to none. A blocked request is charged
//! when it ends.

use crate::collections::hash_slot::HashSlot;
use crate::gate::cluster::slot_of;
use crate::gate::request::Request;
use crate::resp::args::Args;
use crate::resp::request::encoded_len;
use crate::state::State;
use crate::state::context::{Caller, Origin};
use crate::state::spec::Flags;
use crate::stats::hot_keys::Costs;
use crate::stats::slots::SlotCosts;

/// Bytes of MULTI as clients send it, charged with EXEC.
const MULTI_BYTES: u64 = b"*1\r\n$5\r\nMULTI\r\n".len() as u64;
const QUEUED_BYTES: u64 = b"+QUEUED\r\n".len() as u64;

/// Whether costs are counted.
pub fn are_counted(state: &State) -> bool {
    state.config.cluster_slot_stats_enabled && state.node.cluster.is_some()
}

/// Charges a command that has run and been counted. `costs`: without the bytes of its request.
#[cold]
pub fn charge(state: &mut State, caller: Caller, request: &Request<'_>, costs: Costs) {
    let &Request { command, args, origin, .. } = request;
    if !are_counted(state) || matches!(origin, Origin::Transaction | Origin::Script) {
        return;
    }
    follow_owners(state);
    let replicas = state.replication.replicas.len() as u64;
    let added = state.effects.added();
    let stats = state.node.slot_stats.get_or_insert_default();
    // Loading begins the count anew.
    let effects = added.saturating_sub(std::mem::replace(&mut stats.effects_seen, added));
    let group = stats.of_group.take();
    if caller == Caller::Load {
        return;
    }
    let runs_others = command.is(Flags::RUNS_SCRIPT | Flags::RUNS_QUEUED);
    let slot = if runs_others { group } else { slot_of(command, args) };
    let Some(slot) = slot else { return };
    // The whole microseconds by which the command's sum has grown: the slots' sums then agree with
    // INFO commandstats.
    let sum = state.stats.command_stats[command.id.index()].nanoseconds;
    let before = if command.is(Flags::RUNS_QUEUED) { MULTI_BYTES } else { 0 };
    let costs = SlotCosts {
        cpu_us: sum / 1000 - sum.saturating_sub(costs.nanoseconds) / 1000,
        bytes_in: before + sent(args, origin),
        bytes_out: match caller {
            Caller::Client(_) => costs.bytes + effects * replicas,
            Caller::Load | Caller::Primary => 0,
        },
    };
    stats.add(slot, costs);
}

/// Charges the bytes of a command that was queued. EXEC is charged with its other costs.
#[cold]
pub fn charge_queued(state: &mut State, request: &Request<'_>) {
    let costs = SlotCosts {
        cpu_us: 0,
        bytes_in: sent(request.args, request.origin),
        bytes_out: QUEUED_BYTES,
    };
    if let Some(slot) = slot_of(request.command, request.args) {
        follow_owners(state);
        state.node.slot_stats.get_or_insert_default().add(slot, costs);
    }
}

/// Charges the messages to subscribers of a shard channel.
#[cold]
pub fn charge_messages(state: &mut State, channel: &[u8], message: &[u8], receivers: usize) {
    let length = encoded_len([&b"smessage"[..], channel, message]) as u64;
    let costs = SlotCosts { bytes_out: length * receivers as u64, ..SlotCosts::default() };
    state.node.slot_stats.get_or_insert_default().add(HashSlot::of(channel), costs);
}

/// Notes the slot of the keys of the transaction or script that ends.
pub fn note_group(state: &mut State, slot: Option<HashSlot>) {
    if are_counted(state) {
        state.node.slot_stats.get_or_insert_default().of_group = slot;
    }
}

/// Forgets the costs of slots that have another owner.
pub fn follow_owners(state: &mut State) {
    let Some(cluster) = state.node.cluster.as_deref() else { return };
    let owner = |slot| cluster.owner(slot).map(|owner| owner.get() as u16);
    state.node.slot_stats.get_or_insert_default().follow_owners(cluster.version(), owner);
}

/// The bytes in which a request was sent. An inline request has only a line end in addition. A
/// woken client's request is kept in another form, so its bytes are computed.
fn sent(args: Args<'_>, origin: Origin) -> u64 {
    let is_inline = origin == Origin::Client && args.sent_as_bulks().is_none();
    match is_inline {
        true => args.span() as u64 + 2,
        false => encoded_len(args.iter_from(0)) as u64,
    }
}
