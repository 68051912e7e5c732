//! Changes of the cluster by commands: data and role change at once, other nodes are informed at
//! the end of the turn.

use crate::cluster::Cluster;
use crate::cluster::action::{Action, Outside};
use crate::collections::hash_slot::SlotSet;
use crate::keyspace::DbIndex;
use crate::roles;
use crate::roles::cluster::act;
use crate::state::context::Context;

/// Changes the cluster, if there is one. The client's reply waits until nodes.conf is on disk.
pub fn change<R>(
    ctx: &mut Context<'_>,
    f: impl FnOnce(&mut Cluster, &Outside, &mut Vec<Action>) -> R,
) -> Option<R> {
    let result = change_unconfirmed(ctx, f)?;
    // A client that was told of a slot's move relies on it, even after a crash.
    if let Some(client) = ctx.caller.client() {
        ctx.core.state.node.work.unconfirmed.push((client, None));
    }
    Some(result)
}

/// As [`change`], for a change that may be lost in a crash: the reply does not wait.
pub fn change_unconfirmed<R>(
    ctx: &mut Context<'_>,
    f: impl FnOnce(&mut Cluster, &Outside, &mut Vec<Action>) -> R,
) -> Option<R> {
    let before = ctx.core.keyspace.changes_by_commands();
    let outside = ctx.core.state.outside();
    let state = &mut ctx.core.state;
    let cluster = state.node.cluster.as_deref_mut()?;
    let result = f(cluster, &outside, &mut state.node.actions);
    // A script may be in the middle of its writes.
    if state.scripts.running.is_none() {
        act(ctx.core);
    }
    ctx.note_own_effects(before);
    Some(result)
}

/// Deletes the remaining old keys of slots that are about to come here.
pub fn finish_drops(ctx: &mut Context<'_>, slots: &SlotSet) {
    let before = ctx.core.keyspace.changes_by_commands();
    roles::cluster::finish_drops(ctx.core, slots);
    ctx.note_own_effects(before);
}

/// Whether any database has keys.
pub fn has_keys(ctx: &Context<'_>) -> bool {
    DbIndex::all(ctx.core.keyspace.databases())
        .any(|index| !ctx.core.keyspace.table_of(index).is_empty())
}
