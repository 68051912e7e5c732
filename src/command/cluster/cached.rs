//! Replies of CLUSTER NODES, SLOTS and SHARDS, kept until something that they show changes: when a
//! node has failed, all clients of a large cluster ask for them at once.
//!
//! A reply depends on the cluster, on this node's own offset, on the client's protocol, and on
//! where the client comes from. Every message of another node may change them, so in a large
//! cluster replies are kept for only some hundredths of a second. In debug builds each kept reply
//! is compared with a new one.

use bytes::Bytes;

use super::enabled::cluster;
use crate::client::Client;
use crate::net::stream::Address;
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::state::State;
use crate::state::cluster_work::{Asked, KeptReply, Shown};
use crate::state::context::{CommandResult, Context, Outcome};

/// The most replies kept: one for each kind of client.
const KEPT_MAX: usize = 24;
/// Longer replies are not kept. Unit: bytes.
const BYTES_MAX: usize = 4 << 20;

type Write = fn(&State, Option<&Client>, &mut ReplyWriter<'_>);

/// Replies with the output of `write`, or with a kept reply that is still valid.
pub(super) fn reply(ctx: &mut Context<'_>, asked: Asked, write: Write) -> CommandResult {
    let changes = cluster(&ctx.core.state)?.changes();
    let client = ctx.caller.client().and_then(|id| ctx.core.state.clients.get(id));
    let offset = ctx.core.state.outside().offset;
    let shown = Shown {
        asked,
        protocol: ctx.reply.protocol(),
        is_tls: client.map(|client| client.stream.is_tls()),
        is_ipv6: match client.map(|client| &client.peer) {
            Some(Address::Tcp(peer)) => Some(peer.ip().to_canonical().is_ipv6()),
            _ => None,
        },
        offset: match asked {
            Asked::Nodes => 0,
            // SLOTS only depends on whether this node has any data.
            Asked::Slots => offset.min(1),
            Asked::Shards => offset,
        },
    };
    let anew = || {
        let mut output = OutputBuffer::default();
        write(&ctx.core.state, client, &mut ReplyWriter::new(&mut output, shown.protocol));
        Bytes::from(output.into_vec())
    };
    let kept = &ctx.core.state.node.work.replies;
    let kept = kept.iter().find(|kept| kept.changes == changes && kept.shown == shown);
    let bytes = match kept {
        Some(kept) => {
            debug_assert!(kept.bytes == anew(), "a reply is kept that does not hold: {shown:?}");
            kept.bytes.clone()
        }
        None => {
            let bytes = anew();
            let replies = &mut ctx.core.state.node.work.replies;
            // Replaces replies that differ only in the offset, which may change often.
            replies.retain(|kept| {
                let is_same = Shown { offset, ..kept.shown } == Shown { offset, ..shown };
                kept.changes == changes && !is_same
            });
            if bytes.len() <= BYTES_MAX && replies.len() < KEPT_MAX {
                replies.push(KeptReply { changes, shown, bytes: bytes.clone() });
            }
            bytes
        }
    };
    ctx.reply.output().push_shared(bytes);
    Ok(Outcome::Replied)
}
