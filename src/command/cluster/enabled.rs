//! Whether there is a cluster, and nodes and slots in arguments.

use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeIndex};
use crate::collections::hash_slot::HashSlot;
use crate::error::CommandError;
use crate::resp::number::parse_i64;
use crate::state::State;
use crate::state::context::Context;

const DISABLED: CommandError = CommandError::Text("ERR This instance has cluster support disabled");
const BAD_SLOT: CommandError = CommandError::Text("ERR Invalid or out of range slot");

/// The cluster of which this server is a node. Errors: it is none.
pub fn cluster(state: &State) -> Result<&Cluster, CommandError> {
    state.cluster.as_deref().ok_or(DISABLED)
}

/// The slot in an argument.
pub fn slot(text: &[u8]) -> Result<HashSlot, CommandError> {
    let number = parse_i64(text).and_then(|number| usize::try_from(number).ok());
    number.and_then(HashSlot::new).ok_or(BAD_SLOT)
}

/// The node in argument `index`. `unknown`: the error's words before the name, if there is none.
pub fn node(ctx: &Context<'_>, index: usize, unknown: &str) -> Result<NodeIndex, CommandError> {
    let name = ctx.args.get(index);
    let found = NodeId::from_bytes(name).and_then(|id| cluster(ctx.state).ok()?.find(&id));
    // As in C, the name ends at a NUL.
    let shown = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let error = || CommandError::formatted([b"ERR ", unknown.as_bytes(), b" ", shown].concat());
    found.ok_or_else(error)
}
