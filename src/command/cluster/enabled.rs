//! Access to the cluster if it is enabled, and to nodes named in arguments.

use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeIndex};
use crate::error::CommandError;
use crate::resp::args::before_nul;
use crate::state::State;
use crate::state::context::Context;

/// The cluster of which this server is a node. Errors: it is not a node of any.
pub fn cluster(state: &State) -> Result<&Cluster, CommandError> {
    state.node.cluster.as_deref().ok_or(CommandError::CLUSTER_DISABLED)
}

pub(super) use crate::command::key::scan::slot_of_text as slot;

/// The node in argument `index`. `unknown`: the error's words before the name, if no node has it.
pub fn node(ctx: &Context<'_>, index: usize, unknown: &str) -> Result<NodeIndex, CommandError> {
    let name = ctx.args.get(index);
    let found = NodeId::from_bytes(name).and_then(|id| cluster(&ctx.core.state).ok()?.find(&id));
    let shown = before_nul(name);
    let error = || CommandError::of_parts(&[b"ERR ", unknown.as_bytes(), b" ", shown]);
    found.ok_or_else(error)
}
