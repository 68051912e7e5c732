//! CLUSTER INFO, NODES, LINKS and others that tell of this node and those it knows.

use super::enabled::cluster;
use crate::state::context::{CommandResult, Context, Outcome};

/// `CLUSTER MYID`: this node's name.
pub fn my_id(ctx: &mut Context<'_>) -> CommandResult {
    let id = cluster(ctx.state)?.myself().id;
    ctx.reply.bulk(id.as_bytes());
    Ok(Outcome::Replied)
}

/// `CLUSTER MYSHARDID`: the name of this node's shard.
pub fn my_shard_id(ctx: &mut Context<'_>) -> CommandResult {
    let id = cluster(ctx.state)?.myself().shard_id;
    ctx.reply.bulk(id.as_bytes());
    Ok(Outcome::Replied)
}
pub fn count_failure_reports(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn info(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn links(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn nodes(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn replicas(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
