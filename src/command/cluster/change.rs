//! How commands change the cluster: what follows from a change is carried out at the end of the turn.

use crate::cluster::Cluster;
use crate::cluster::action::{Action, Outside};
use crate::state::context::Context;

/// Changes the cluster, if there is one.
pub fn change<R>(
    ctx: &mut Context<'_>,
    f: impl FnOnce(&mut Cluster, &Outside, &mut Vec<Action>) -> R,
) -> Option<R> {
    let outside = ctx.state.outside();
    let state = &mut *ctx.state;
    let cluster = state.cluster.as_deref_mut()?;
    Some(f(cluster, &outside, &mut state.cluster_actions))
}

/// Whether any database has keys.
pub fn has_keys(ctx: &Context<'_>) -> bool {
    (0..ctx.keyspace.databases()).any(|index| !ctx.keyspace.table_of(index).is_empty())
}
