//! HyperLogLogs: estimates of the number of different elements added, with a standard error of
//! 0.81%.
//!
//! The value is a string in the format of `types::hyperloglog`. Here it is looked up, checked,
//! edited and stored.

use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::{Expiry, Key, Keyspace};
use crate::resp::args::before_nul;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, KeyFlags, key, keys, spec};
use crate::types::hyperloglog::{self, Corrupt, Encoding, REGISTERS, Registers};
use crate::types::string::StringView;

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("PFADD", pfadd).at_least(2).keys(&[key(1, KeyFlags::RW_INSERT)]).flags(Flags::WRITE_DENYOOM_FAST).group(Group::HyperLogLog).since("2.8.9")
        .docs("key [element [element ...]]", "Adds elements to a HyperLogLog, creating it if necessary.", "O(1) for each element"),
    spec("PFCOUNT", pfcount).at_least(2)
        .keys(&[keys(1, -1, 1, KeyFlags::RW_ACCESS).noted("The count is kept in the value, so that reading it may change the key")])
        .flags(Flags::READONLY.union(Flags::MAY_REPLICATE)).group(Group::HyperLogLog).since("2.8.9")
        .docs("key [key ...]", "Estimates the number of different elements in HyperLogLogs.", "O(1) for one key, O(N) with a large constant for N keys"),
    spec("PFMERGE", pfmerge).at_least(2).keys(&[key(1, KeyFlags::RW_ACCESS.union(KeyFlags::INSERT)), keys(2, -1, 1, KeyFlags::RO_ACCESS)])
        .flags(Flags::WRITE_DENYOOM).group(Group::HyperLogLog).since("2.8.9")
        .docs("destkey [sourcekey [sourcekey ...]]", "Merges HyperLogLogs into another one.", "O(N) with a large constant for N keys"),
    spec("PFDEBUG", pfdebug).exactly(3).keys(&[key(2, KeyFlags::RW_ACCESS)]).flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::ADMIN))
        .group(Group::HyperLogLog).since("2.8.9")
        .docs("subcommand key", "Shows or changes how a HyperLogLog is stored.", "N/A"),
    spec("PFSELFTEST", pfselftest).exactly(1).flags(Flags::ADMIN).group(Group::HyperLogLog).since("2.8.9")
        .docs("", "Tests HyperLogLogs with random elements.", "N/A"),
];

const NOT_A_HYPERLOGLOG: CommandError =
    CommandError::Text("WRONGTYPE Key is not a valid HyperLogLog string value.");
const CORRUPT: CommandError = CommandError::Text("INVALIDOBJ Corrupted HLL object detected");
const NO_KEY: CommandError = CommandError::Text("ERR The specified key does not exist");
const NOT_SPARSE: CommandError = CommandError::Text("ERR HLL encoding is not sparse");

/// The number of elements that PFSELFTEST adds, as Redis does. That takes a third of a second.
const SELF_TEST_ELEMENTS: u64 = 10_000_000;

impl From<Corrupt> for CommandError {
    fn from(_: Corrupt) -> Self {
        CORRUPT
    }
}

/// `PFADD key [element ...]`: 1 if the key was made or its estimate may have changed.
fn pfadd(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let args = ctx.args;
    let sparse_max_bytes = ctx.core.state.config.hll_sparse_max_bytes;
    let add_all = |hll: &mut Vec<u8>| -> Result<u64, Corrupt> {
        args.iter_from(2).try_fold(0, |raised, element| {
            Ok(raised + u64::from(hyperloglog::add(hll, element, sparse_max_bytes)?))
        })
    };
    let changes = match ctx.core.keyspace.string_slot(key)? {
        Some(slot) => {
            check(&ctx.core.keyspace.string_at(slot)?.whole())?;
            ctx.core.keyspace.edit_string(slot, add_all)?
        }
        None => {
            let mut hll = hyperloglog::new_sparse();
            let raised = add_all(&mut hll)?;
            hyperloglog::invalidate_cached_count(&mut hll);
            ctx.core.keyspace.set_computed_string_at(None, key, hll.into(), Expiry::Clear);
            raised + 1
        }
    };
    if changes > 0 {
        ctx.core.keyspace.changed_by(changes, KeyspaceEvents::STRING, "pfadd", key.bytes);
    }
    ctx.reply.integer((changes > 0).into());
    Ok(Outcome::Replied)
}

/// `PFCOUNT key [key ...]`. The count of one key is stored in its value.
fn pfcount(ctx: &mut Context<'_>) -> CommandResult {
    let count = if ctx.args.len() == 2 {
        count_one(ctx)?
    } else {
        let mut registers = [0; REGISTERS];
        for index in 1..ctx.args.len() {
            let key = ctx.key(index);
            merge_key(&mut ctx.core.keyspace, key, &mut registers)?;
        }
        hyperloglog::count_registers(&registers)
    };
    ctx.reply.integer(count as i64);
    Ok(Outcome::Replied)
}

fn count_one(ctx: &mut Context<'_>) -> Result<u64, CommandError> {
    let key = ctx.key(1);
    let Some(slot) = ctx.core.keyspace.find_for_read(key) else {
        return Ok(0);
    };
    let hll = ctx.core.keyspace.string_at(slot)?.whole();
    check(&hll)?;
    if let Some(count) = hyperloglog::cached_count(&hll) {
        return Ok(count);
    }
    let count = hyperloglog::count(&hll)?;
    drop(hll);
    let (at, bytes) = hyperloglog::cached_count_bytes(count);
    ctx.core.keyspace.write_string(slot, at, &bytes);
    count_change(&mut ctx.core.keyspace, key);
    Ok(count)
}

/// `PFMERGE destkey [sourcekey ...]`: OK. The destination is one of the sources.
fn pfmerge(ctx: &mut Context<'_>) -> CommandResult {
    let mut registers = [0; REGISTERS];
    let mut any_dense = false;
    for index in 1..ctx.args.len() {
        let key = ctx.key(index);
        let encoding = merge_key(&mut ctx.core.keyspace, key, &mut registers)?;
        any_dense |= encoding == Some(Encoding::Dense);
    }
    let sparse_max_bytes = ctx.core.state.config.hll_sparse_max_bytes;
    let raise = |hll: &mut Vec<u8>| -> Result<(), Corrupt> {
        if any_dense {
            hyperloglog::make_dense(hll)?;
        }
        hyperloglog::raise_all(hll, &registers, sparse_max_bytes)
    };
    let destination = ctx.key(1);
    match ctx.core.keyspace.string_slot(destination)? {
        Some(slot) => ctx.core.keyspace.edit_string(slot, raise)?,
        None => {
            let mut hll = hyperloglog::new_sparse();
            raise(&mut hll)?;
            ctx.core.keyspace.set_computed_string_at(None, destination, hll.into(), Expiry::Clear);
        }
    }
    // Redis announces PFMERGE as `pfadd`.
    ctx.core.keyspace.changed(KeyspaceEvents::STRING, "pfadd", destination.bytes);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// Raises the registers to those of a key; returns its encoding, or None if there is no such key.
fn merge_key(
    keyspace: &mut Keyspace,
    key: Key<'_>,
    registers: &mut Registers,
) -> Result<Option<Encoding>, CommandError> {
    let Some(hll) = keyspace.string(key)?.map(StringView::whole) else {
        return Ok(None);
    };
    let encoding = check(&hll)?;
    hyperloglog::merge(registers, &hll)?;
    Ok(Some(encoding))
}

/// `PFDEBUG <GETREG | DECODE | ENCODING | TODENSE> key`. The key is checked before the subcommand.
fn pfdebug(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(2);
    let slot = ctx.core.keyspace.string_slot(key)?.ok_or(NO_KEY)?;
    let hll = ctx.core.keyspace.string_at(slot)?.whole();
    let encoding = check(&hll)?;
    let subcommand = ctx.args.get(1);
    let is = |word: &str| subcommand.eq_ignore_ascii_case(word.as_bytes());
    if is("GETREG") {
        if ctx.core.keyspace.edit_string(slot, hyperloglog::make_dense)? {
            count_change(&mut ctx.core.keyspace, key);
        }
        let mut registers = [0; REGISTERS];
        hyperloglog::merge(&mut registers, &ctx.core.keyspace.string_at(slot)?.whole())?;
        ctx.reply.array(REGISTERS);
        for register in registers {
            ctx.reply.integer(register.into());
        }
    } else if is("DECODE") {
        let decoded = hyperloglog::decode(&hll).ok_or(NOT_SPARSE)?;
        ctx.reply.bulk(decoded.as_bytes());
    } else if is("ENCODING") {
        ctx.reply.simple(if encoding == Encoding::Dense { "dense" } else { "sparse" });
    } else if is("TODENSE") {
        let was_sparse = ctx.core.keyspace.edit_string(slot, hyperloglog::make_dense)?;
        if was_sparse {
            count_change(&mut ctx.core.keyspace, key);
        }
        ctx.reply.integer(was_sparse.into());
    } else {
        // In Redis a NUL ends the text.
        let shown = before_nul(subcommand);
        return Err(CommandError::of_parts(&[b"ERR Unknown PFDEBUG subcommand '", shown, b"'"]));
    }
    Ok(Outcome::Replied)
}

/// `PFSELFTEST`: OK, or the failed check.
fn pfselftest(ctx: &mut Context<'_>) -> CommandResult {
    let sparse_max_bytes = ctx.core.state.config.hll_sparse_max_bytes;
    hyperloglog::self_test(fastrand::u64(..), SELF_TEST_ELEMENTS, sparse_max_bytes)
        .map_err(|failure| CommandError::formatted(format!("ERR {failure}")))?;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// The encoding of a string that is a HyperLogLog.
fn check(bytes: &[u8]) -> Result<Encoding, CommandError> {
    hyperloglog::encoding(bytes).ok_or(NOT_A_HYPERLOGLOG)
}

/// Counts a change of a key without an event.
fn count_change(keyspace: &mut Keyspace, key: Key<'_>) {
    keyspace.changed(KeyspaceEvents::empty(), "", key.bytes);
}
