//! Requests that can be sent again: an XADD whose producer gives the entry a name (IDMP), or has it
//! derived from the fields (IDMPAUTO), adds nothing if the stream remembers that name. XCFGSET sets
//! for how long it does.
//!
//! Files and replicas get XADD with these words and the entry's ID. Redis 7.0 and Valkey do not
//! know them: with `compatible-with redis-7.0` or `valkey-9` the entry is added there like any
//! other, and only this process remembers the name.

use std::borrow::Cow;

use xxhash_rust::xxh3::Xxh3Default;

use super::{parse_id, reply_id, stream_spec};
use crate::collections::table::Slot;
use crate::error::CommandError;
use crate::resp::args::Cursor;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, KeySpec};
use crate::types::stream::{NewId, ProducerLimits, StreamId};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    stream_spec("XCFGSET", xcfgset, "8.6.0", Flags::WRITE_FAST).at_least(2).keys(KeySpec::RW_UPDATE)
        .docs("key [IDMP-DURATION duration] [IDMP-MAXSIZE maxsize]",
            "Sets for how long and how many entries of each producer a stream remembers.", "O(1), and O(N) for N entries that it forgets"),
    stream_spec("XIDMPRECORD", xidmprecord, "8.6.2", Flags::WRITE_DENYOOM_FAST).exactly(5).keys(KeySpec::RW_UPDATE)
        .docs("key pid iid id", "Makes a stream remember that a producer has added an entry, when a file is loaded.", "O(log N) for N remembered entries"),
];

const TWICE: CommandError =
    CommandError::Text("ERR syntax error, IDMP/IDMPAUTO specified multiple times");
const NO_PRODUCER: CommandError =
    CommandError::Text("ERR syntax error, IDMP requires a non-empty producer ID");
const NO_NAME: CommandError =
    CommandError::Text("ERR syntax error, IDMP requires a non-empty idempotent ID");
const NO_PRODUCER_AUTO: CommandError =
    CommandError::Text("ERR syntax error, IDMPAUTO requires a non-empty producer ID");
pub(super) const GIVEN_ID: CommandError =
    CommandError::Text("ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs");

/// `IDMPAUTO pid` or `IDMP pid iid`: the producer of an entry, and the entry's name.
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    producer: &'a [u8],
    /// None: it is derived from the fields.
    name: Option<&'a [u8]>,
}

impl<'a> Named<'a> {
    /// Takes these words into `named`, if they come next.
    pub fn take(
        named: &mut Option<Named<'a>>,
        cursor: &mut Cursor<'a>,
    ) -> Result<bool, CommandError> {
        let remaining = cursor.remaining();
        let is_auto = remaining >= 2 && cursor.take_word("IDMPAUTO");
        if !(is_auto || remaining >= 3 && cursor.take_word("IDMP")) {
            return Ok(false);
        }
        if named.is_some() {
            return Err(TWICE);
        }
        let producer = cursor.take()?;
        if producer.is_empty() {
            return Err(if is_auto { NO_PRODUCER_AUTO } else { NO_PRODUCER });
        }
        let name = if is_auto { None } else { Some(cursor.take()?) };
        if name.is_some_and(<[u8]>::is_empty) {
            return Err(NO_NAME);
        }
        *named = Some(Named { producer, name });
        Ok(true)
    }

    /// The entry's name. `pieces`: its fields and values alternately.
    fn name(&self, pieces: impl Iterator<Item = &'a [u8]>) -> Cow<'a, [u8]> {
        match self.name {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(name_of_fields(pieces).to_vec()),
        }
    }
}

/// The name that Redis 8.6 gives an entry: the same in any order of the fields.
fn name_of_fields<'a>(mut pieces: impl Iterator<Item = &'a [u8]>) -> [u8; 16] {
    let (mut low_sum, mut low_xor, mut high_sum, mut high_xor) = (0u64, 0u64, 0u64, 0u64);
    while let (Some(field), Some(value)) = (pieces.next(), pieces.next()) {
        let mut hasher = Xxh3Default::new();
        hasher.update(field);
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(value);
        let digest = hasher.digest128();
        let (low, high) = (digest as u64, (digest >> 64) as u64);
        (low_sum, low_xor) = (low_sum.wrapping_add(low), low_xor ^ low);
        (high_sum, high_xor) = (high_sum.wrapping_add(high), high_xor ^ high);
    }
    let low = low_sum ^ high_xor.rotate_left(1);
    let high = high_sum ^ low_xor.rotate_left(1);
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}

/// An XADD with a name, whose fields begin at `fields_at`.
pub(super) struct NamedEntry<'a> {
    producer: &'a [u8],
    name: Cow<'a, [u8]>,
    fields_at: usize,
}

impl<'a> NamedEntry<'a> {
    pub fn new(ctx: &Context<'a>, named: Named<'a>, fields_at: usize) -> Self {
        let name = named.name(ctx.args.iter_from(fields_at));
        NamedEntry { producer: named.producer, name, fields_at }
    }

    /// Answers the request if the stream remembers the name. `slot`: the stream, if there is one.
    /// `wanted`: the entry's ID.
    pub fn answer(
        &self,
        ctx: &mut Context<'_>,
        slot: Option<Slot>,
        wanted: NewId,
    ) -> Result<bool, CommandError> {
        let Some(slot) = slot else { return Ok(false) };
        let Some(producers) = &ctx.core.keyspace.stream_at(slot)?.producers else {
            return Ok(false);
        };
        // What was known where the request ran first is known here, however late it is: it has the
        // known ID, or from Redis none.
        let known = match (ctx.is_repeated(), wanted) {
            (true, NewId::Given(id)) => {
                producers.find(self.producer, &self.name).filter(|known| *known == id)
            }
            (true, _) => producers.find(self.producer, &self.name),
            (false, _) => {
                let now_ms = ctx.core.state.now.unix().0.max(0) as u64;
                producers.find_at(self.producer, &self.name, now_ms)
            }
        };
        let Some(id) = known else {
            let was_known = ctx.is_repeated() && !matches!(wanted, NewId::Given(_));
            return Ok(was_known);
        };
        let limits = limits(ctx);
        ctx.core.keyspace.producers_mut(slot, limits)?.repeated += 1;
        if ctx.core.state.repeats_names() {
            ctx.core.keyspace.changed_aside(ctx.args.get(1), 1);
            self.repeat(ctx, id);
        }
        reply_id(&mut ctx.reply, id);
        Ok(true)
    }

    /// Remembers the entry.
    pub fn remember(
        &self,
        ctx: &mut Context<'_>,
        slot: Slot,
        id: StreamId,
    ) -> Result<(), CommandError> {
        let limits = limits(ctx);
        ctx.core.keyspace.producers_mut(slot, limits)?.add(self.producer, &self.name, id);
        Ok(())
    }

    /// Repeats the request without trimming.
    pub fn repeat(&self, ctx: &mut Context<'_>, id: StreamId) {
        let key = ctx.args.get(1);
        let is_told = ctx.core.state.repeats_names();
        ctx.instead_gathered(|ctx, request| {
            request.extend([b"XADD".to_vec(), key.to_vec()]);
            if is_told {
                request.extend([b"IDMP".to_vec(), self.producer.to_vec(), self.name.to_vec()]);
            }
            request.push(id.text().as_ref().to_vec());
            request.extend(ctx.args.iter_from(self.fields_at).map(<[u8]>::to_vec));
        });
    }
}

/// The limits of streams that have none of their own.
pub(super) fn limits(ctx: &Context<'_>) -> ProducerLimits {
    let config = &ctx.core.state.config;
    ProducerLimits { duration: config.stream_idmp_duration, names: config.stream_idmp_maxsize }
}

/// A limit that can be given once.
struct Limit {
    max: i64,
    twice: CommandError,
    out_of_range: CommandError,
}

const DURATION: Limit = Limit {
    max: 86_400,
    twice: CommandError::Text("ERR IDMP-DURATION specified multiple times"),
    out_of_range: CommandError::Text("ERR IDMP-DURATION must be between 1 and 86400 seconds"),
};
const MAXSIZE: Limit = Limit {
    max: 10_000,
    twice: CommandError::Text("ERR IDMP-MAXSIZE specified multiple times"),
    out_of_range: CommandError::Text("ERR IDMP-MAXSIZE must be between 1 and 10000 entries"),
};

impl Limit {
    fn take(self, cursor: &mut Cursor<'_>, into: &mut Option<u32>) -> Result<(), CommandError> {
        if into.is_some() {
            return Err(self.twice);
        }
        let value = cursor.take_integer()?;
        if !(1..=self.max).contains(&value) {
            return Err(self.out_of_range);
        }
        *into = Some(value as u32);
        Ok(())
    }
}

/// `XCFGSET key [IDMP-DURATION seconds] [IDMP-MAXSIZE names]`: OK. A new value makes the stream
/// forget all names.
fn xcfgset(ctx: &mut Context<'_>) -> CommandResult {
    let slot = ctx.core.keyspace.find_for_write(ctx.key(1)).ok_or(CommandError::NoSuchKey)?;
    let stream = ctx.core.keyspace.stream_at(slot)?;
    let before = stream.producers.as_ref().map_or_else(|| limits(ctx), |known| known.limits);
    let (mut duration, mut names) = (None, None);
    let mut cursor = ctx.args.cursor(2);
    while !cursor.is_at_end() {
        if cursor.take_word("IDMP-DURATION") {
            DURATION.take(&mut cursor, &mut duration)?;
        } else if cursor.take_word("IDMP-MAXSIZE") {
            MAXSIZE.take(&mut cursor, &mut names)?;
        } else {
            return Err(CommandError::Syntax);
        }
    }
    if duration.is_none() && names.is_none() {
        return Err(CommandError::Text("ERR At least one parameter must be specified"));
    }
    let after = ProducerLimits {
        duration: duration.unwrap_or(before.duration),
        names: names.unwrap_or(before.names),
    };
    if after != before {
        let producers = ctx.core.keyspace.producers_mut(slot, after)?;
        producers.limits = after;
        producers.forget_all();
        conclude(ctx);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `XIDMPRECORD key producer name id`: OK. The entry must exist.
fn xidmprecord(ctx: &mut Context<'_>) -> CommandResult {
    let (producer, name) = (ctx.args.get(2), ctx.args.get(3));
    let id = parse_id(ctx.args.get(4), 0)?;
    if producer.is_empty() {
        return Err(CommandError::Text("ERR producer ID must be non-empty"));
    }
    if name.is_empty() {
        return Err(CommandError::Text("ERR idempotent ID must be non-empty"));
    }
    let slot = ctx.core.keyspace.find_for_write(ctx.key(1)).ok_or(CommandError::NoSuchKey)?;
    let stream = ctx.core.keyspace.stream_at(slot)?;
    if !stream.entries().contains(id) {
        return Err(CommandError::Text("ERR No such message in stream"));
    }
    match stream.producers.as_ref().and_then(|producers| producers.find(producer, name)) {
        Some(known) if known == id => {}
        Some(_) => {
            return Err(CommandError::Text(
                "ERR IID already exists for this producer with a different stream ID",
            ));
        }
        None => {
            let limits = limits(ctx);
            ctx.core.keyspace.producers_mut(slot, limits)?.add(producer, name, id);
            conclude(ctx);
        }
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// Counts a change of what a stream remembers, which concerns nobody that watches the key. It is no
/// change of data where no file has it.
fn conclude(ctx: &mut Context<'_>) {
    if ctx.core.state.repeats_names() {
        ctx.core.keyspace.changed_aside(ctx.args.get(1), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_fields_are_those_of_redis_8_6_3() {
        // As DUMP shows them there.
        let cases: [(&[&str], &str); 6] = [
            (&["f", "v", "a", "b"], "b83475fd9025a5f78deb50986b4e3fa2"),
            (&["a", "b", "f", "v"], "b83475fd9025a5f78deb50986b4e3fa2"),
            (&["f", "v", "a", "c"], "77d5a4699b0b81dd4b31b3749d57c374"),
            (&["f", "", "", "c"], "90187b2d3659a35a21ae1166cdc40d79"),
            (&["f", "v", "f", "v"], "9a79073b2d2a35cba229f103f1b26a64"),
            (&["a", "b", "a", "b"], "242e89abe84b3bb5c44ecc0d6bacf753"),
        ];
        for (pieces, expected) in cases {
            let name = name_of_fields(pieces.iter().map(|piece| piece.as_bytes()));
            assert_eq!(base16ct::lower::encode_string(&name), expected, "{pieces:?}");
        }
    }
}
