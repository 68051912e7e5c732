//! Publish and subscribe.
//!
//! Subscribers are in `State::pubsub`; messages are encoded and sent by `gate/publish.rs`, a large
//! payload without a copy. The executing client's output is with the gate while its command runs,
//! so messages to itself are appended after the reply by [`take_pushed`]: a push never comes inside
//! a reply.

use crate::client::{Client, ClientFlags};
use crate::collections::glob;
use crate::command::help::help_from_specs;
use crate::error::CommandError;
use crate::gate::limits;
use crate::gate::publish::{deliver, take_pushed};
use crate::pubsub::{Kind, Name, PubSub};
use crate::resp::reply::ReplyWriter;
use crate::state::State;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::spec::{
    CommandSpec, Flags, Group, KeyFlags, KeySpec, container, key, keys, spec,
};

const SUBSCRIBING: Flags =
    Flags::PUBSUB.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE);
const PUBLISHING: Flags = Flags::PUBSUB
    .union(Flags::LOADING)
    .union(Flags::STALE)
    .union(Flags::FAST)
    .union(Flags::MAY_REPLICATE);
const ASKING: Flags = Flags::PUBSUB.union(Flags::LOADING).union(Flags::STALE);

const SHARD_CHANNEL: &[KeySpec] = &[key(1, KeyFlags::NOT_KEY)];
const SHARD_CHANNELS: &[KeySpec] = &[keys(1, -1, 1, KeyFlags::NOT_KEY)];

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("PSUBSCRIBE", |ctx| subscribe(ctx, Kind::Pattern)).at_least(2).channel_patterns().flags(SUBSCRIBING)
        .with(Flags::WHILE_SUBSCRIBED.union(Flags::NEEDS_CLIENT)).group(Group::PubSub).since("2.0.0")
        .docs("pattern [pattern ...]", "Subscribes to the channels whose names match patterns.", "O(N log P), N patterns given, P known"),
    spec("PUBLISH", |ctx| publish(ctx, Kind::Channel)).exactly(3).channels(1, false).flags(PUBLISHING).group(Group::PubSub).since("2.0.0")
        .docs("channel message", "Sends a message to the subscribers of a channel.", "O(N+M), N listeners of the channel, M patterns"),
    container("PUBSUB", SUBCOMMANDS).group(Group::PubSub).since("2.8.0")
        .docs("", "Describes channels and their subscribers.", "Depends on the subcommand"),
    spec("PUNSUBSCRIBE", |ctx| unsubscribe(ctx, Kind::Pattern)).at_least(1).flags(SUBSCRIBING).with(Flags::WHILE_SUBSCRIBED.union(Flags::NEEDS_CLIENT))
        .group(Group::PubSub).since("2.0.0")
        .docs("[pattern [pattern ...]]", "Unsubscribes from these patterns, or from all.", "O(N log P), N patterns given, P known"),
    spec("SPUBLISH", |ctx| publish(ctx, Kind::Shard)).exactly(3).channels(1, false).flags(PUBLISHING).keys(SHARD_CHANNEL).group(Group::PubSub).since("7.0.0")
        .docs("shardchannel message", "Sends a message to the subscribers of a shard channel.", "O(N), N listeners of the shard channel"),
    spec("SSUBSCRIBE", |ctx| subscribe(ctx, Kind::Shard)).at_least(2).channels(1, true).flags(SUBSCRIBING).keys(SHARD_CHANNELS)
        .with(Flags::WHILE_SUBSCRIBED.union(Flags::NEEDS_CLIENT)).group(Group::PubSub).since("7.0.0")
        .docs("shardchannel [shardchannel ...]", "Subscribes to shard channels.", "O(N), N shard channels given"),
    spec("SUBSCRIBE", |ctx| subscribe(ctx, Kind::Channel)).at_least(2).channels(1, true).flags(SUBSCRIBING)
        .with(Flags::WHILE_SUBSCRIBED.union(Flags::NEEDS_CLIENT)).group(Group::PubSub).since("2.0.0")
        .docs("channel [channel ...]", "Subscribes to channels.", "O(N), N channels given"),
    spec("SUNSUBSCRIBE", |ctx| unsubscribe(ctx, Kind::Shard)).at_least(1).flags(SUBSCRIBING).keys(SHARD_CHANNELS)
        .with(Flags::WHILE_SUBSCRIBED.union(Flags::NEEDS_CLIENT)).group(Group::PubSub).since("7.0.0")
        .docs("[shardchannel [shardchannel ...]]", "Unsubscribes from these shard channels, or from all.", "O(N), N shard channels given"),
    spec("UNSUBSCRIBE", |ctx| unsubscribe(ctx, Kind::Channel)).at_least(1).flags(SUBSCRIBING).with(Flags::WHILE_SUBSCRIBED.union(Flags::NEEDS_CLIENT))
        .group(Group::PubSub).since("2.0.0")
        .docs("[channel [channel ...]]", "Unsubscribes from these channels, or from all.", "O(N), N channels given"),
];

#[rustfmt::skip]
const SUBCOMMANDS: &[CommandSpec] = &[
    spec("CHANNELS", |ctx| channels(ctx, Kind::Channel)).at_least(2).flags(ASKING).group(Group::PubSub).since("2.8.0")
        .docs("[pattern]", "Lists the channels that have subscribers.", "O(N), N channels"),
    spec("HELP", help_from_specs).exactly(2).flags(Flags::LOADING_STALE).group(Group::PubSub).since("6.2.0")
        .docs("", "Lists these subcommands.", "O(1)"),
    spec("NUMPAT", pattern_count).exactly(2).flags(ASKING).group(Group::PubSub).since("2.8.0")
        .docs("", "Counts the different patterns that have subscribers.", "O(1)"),
    spec("NUMSUB", |ctx| listener_counts(ctx, Kind::Channel)).at_least(2).flags(ASKING).group(Group::PubSub).since("2.8.0")
        .docs("[channel [channel ...]]", "Counts the subscribers of channels, except those by pattern.", "O(N), N channels given"),
    spec("SHARDCHANNELS", |ctx| channels(ctx, Kind::Shard)).at_least(2).flags(ASKING).group(Group::PubSub).since("7.0.0")
        .docs("[pattern]", "Lists the shard channels that have subscribers.", "O(N), N shard channels"),
    spec("SHARDNUMSUB", |ctx| listener_counts(ctx, Kind::Shard)).at_least(2).flags(ASKING).group(Group::PubSub).since("7.0.0")
        .docs("[shardchannel [shardchannel ...]]", "Counts the subscribers of shard channels.", "O(N), N shard channels given"),
];

// ---- subscriptions ------------------------------------------------------------------------------

/// `SUBSCRIBE channel [channel ...]` and its variants: a confirmation for each name, with the
/// number of subscriptions.
const NOT_IN_TRANSACTION: CommandError =
    CommandError::Text("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client");

fn subscribe(ctx: &mut Context<'_>, kind: Kind) -> CommandResult {
    let word = match kind {
        Kind::Channel => "subscribe",
        Kind::Pattern => "psubscribe",
        Kind::Shard => "ssubscribe",
    };
    // The other two kinds are allowed in transactions, for old clients.
    if kind == Kind::Shard && ctx.origin == Origin::Transaction {
        return Err(NOT_IN_TRANSACTION);
    }
    let names = ctx.args.iter_from(1);
    confirm(ctx, |pubsub, client, reply| {
        let own = client.subscriptions.get_or_insert_default();
        for name in names {
            pubsub.subscribe(kind, own, client.id, name);
            confirmation(reply, word, Some(name), own.count(kind));
        }
        client.flags |= ClientFlags::SUBSCRIBED;
    })
}

/// `UNSUBSCRIBE [channel [channel ...]]` and its variants: the same confirmations; without
/// arguments one for each subscription, or, if there is none, one without a name.
fn unsubscribe(ctx: &mut Context<'_>, kind: Kind) -> CommandResult {
    let word = match kind {
        Kind::Channel => "unsubscribe",
        Kind::Pattern => "punsubscribe",
        Kind::Shard => "sunsubscribe",
    };
    let names = ctx.args.iter_from(1);
    confirm(ctx, |pubsub, client, reply| {
        let own = client.subscriptions.get_or_insert_default();
        let mut all: Vec<Name> = Vec::new();
        if names.len() == 0 {
            all.extend(own.of(kind).iter().cloned());
            all.sort_unstable();
            if all.is_empty() {
                confirmation(reply, word, None, own.count(kind));
            }
        }
        let mut end = |name: &[u8]| {
            pubsub.unsubscribe(kind, own, client.id, name);
            confirmation(reply, word, Some(name), own.count(kind));
        };
        names.for_each(&mut end);
        all.iter().for_each(|name| end(name));
        if own.is_empty() {
            client.subscriptions = None;
            client.flags.remove(ClientFlags::SUBSCRIBED);
        }
    })
}

/// Changes subscriptions. Confirmations are pushes, which CLIENT REPLY OFF and SKIP do not
/// suppress.
fn confirm(
    ctx: &mut Context<'_>,
    change: impl FnOnce(&mut PubSub, &mut Client, &mut ReplyWriter<'_>),
) -> CommandResult {
    let id = ctx.client_id();
    let State { pubsub, clients, config, .. } = &mut ctx.core.state;
    let client = clients.get_mut(id).expect("a client outlives the command it runs");
    if !client.replies().are_sent() {
        let mut output = std::mem::take(&mut client.output);
        change(pubsub, client, &mut ReplyWriter::new(&mut output, ctx.reply.protocol()));
        client.output = output;
        clients.flush_later(id);
    } else {
        // The client's class, and so its output limit, changes here. Confirmations are no longer
        // than the request.
        ctx.reply.output().set_limit(usize::MAX);
        change(pubsub, client, &mut ctx.reply);
        let limit = limits::output_limit(config, client.flags);
        ctx.reply.output().set_limit(limit);
    }
    Ok(Outcome::Replied)
}

fn confirmation(reply: &mut ReplyWriter<'_>, word: &str, name: Option<&[u8]>, count: usize) {
    reply.push(3);
    reply.bulk(word.as_bytes());
    match name {
        Some(name) => reply.bulk(name),
        None => reply.null(),
    }
    reply.integer(count as i64);
}

// ---- messages -----------------------------------------------------------------------------------

/// `PUBLISH channel message`, `SPUBLISH shardchannel message`: the number of deliveries.
fn publish(ctx: &mut Context<'_>, kind: Kind) -> CommandResult {
    let receivers = deliver(&mut ctx.core.state, kind, ctx.args.get(1), ctx.args.get(2));
    ctx.core.state.hear(ctx.args.get(1), ctx.args.get(2));
    match &mut ctx.core.state.node.cluster {
        None => ctx.repeat_message(),
        // The other nodes, this node's replicas among them, get the message over the bus.
        Some(cluster) => {
            let (channel, message) = (ctx.args.get(1), ctx.args.get(2));
            let is_shard = kind == Kind::Shard;
            cluster.publish(channel, message, is_shard, &mut ctx.core.state.node.actions);
        }
    }
    ctx.reply.integer(receivers as i64);
    // A push cannot come inside the reply of EXEC or a reply that a script reads: it follows at the
    // end.
    if !matches!(ctx.origin, Origin::Transaction | Origin::Script | Origin::Stream) {
        take_pushed(&mut ctx.core.state, ctx.caller, ctx.reply.output());
    }
    Ok(Outcome::Replied)
}

// ---- PUBSUB -------------------------------------------------------------------------------------

/// `PUBSUB CHANNELS [pattern]`, `PUBSUB SHARDCHANNELS [pattern]`: an array of names.
fn channels(ctx: &mut Context<'_>, kind: Kind) -> CommandResult {
    if ctx.args.len() > 3 {
        return Err(ctx.wrong_subcommand());
    }
    let pattern = (ctx.args.len() == 3).then(|| ctx.args.get(2));
    let reply = ctx.reply.defer_array();
    let mut count = 0;
    for name in ctx.core.state.pubsub.names(kind) {
        if pattern.is_none_or(|pattern| glob::matches(pattern, name, false)) {
            ctx.reply.bulk(name);
            count += 1;
        }
    }
    ctx.reply.finish(reply, count);
    Ok(Outcome::Replied)
}

/// `PUBSUB NUMSUB [channel ...]`, `PUBSUB SHARDNUMSUB [shardchannel ...]`: names and numbers
/// alternately.
fn listener_counts(ctx: &mut Context<'_>, kind: Kind) -> CommandResult {
    let names = ctx.args.iter_from(2);
    ctx.reply.array(2 * names.len());
    for name in names {
        ctx.reply.bulk(name);
        ctx.reply.integer(ctx.core.state.pubsub.listeners(kind, name).len() as i64);
    }
    Ok(Outcome::Replied)
}

/// `PUBSUB NUMPAT`: a number.
fn pattern_count(ctx: &mut Context<'_>) -> CommandResult {
    ctx.reply.integer(ctx.core.state.pubsub.count(Kind::Pattern) as i64);
    Ok(Outcome::Replied)
}
