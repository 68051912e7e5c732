//! DEBUG EFFECTS: the stream of effects, for tests to read and to replay.

use crate::error::CommandError;
use crate::gate::execute::{Gate, Request};
use crate::resp::args::Args;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::resp::request::{Limits, Parsed, Parser};
use crate::state::context::{Caller, CommandResult, Context, Origin, Outcome};

const TAKEN: CommandError = CommandError::Text("ERR the append only file takes the stream");

/// `DEBUG EFFECTS <ON | OFF | TAKE | LOAD part [part ...] | FOLLOW part [part ...]>`: OK; for TAKE
/// the stream since the last TAKE; for LOAD and FOLLOW the number of requests run, as those of a
/// file or of a primary. A stream longer than `proto-max-bulk-len` is sent in parts.
pub(super) fn effects(ctx: &mut Context<'_>) -> CommandResult {
    let word = ctx.args.get(2).to_ascii_lowercase();
    match (word.as_slice(), ctx.args.len()) {
        (b"on" | b"off" | b"take", 3) if ctx.core.state.config.appendonly => return Err(TAKEN),
        (b"on" | b"off", 3) => {
            let heard = word == b"on";
            ctx.core.state.effects.listen(heard);
            ctx.core.keyspace.deletions.listen(heard);
            ctx.reply.ok();
        }
        (b"take", 3) => {
            let reply = &mut ctx.reply;
            ctx.core.state.effects.take(|stream| reply.bulk(stream));
        }
        (b"load", 4..) => repeat(ctx, Caller::Load, Origin::Client)?,
        (b"follow", 4..) => repeat(ctx, Caller::Primary, Origin::Stream)?,
        _ => return Err(CommandError::Syntax),
    }
    Ok(Outcome::Replied)
}

/// Runs a stream's requests, and replies with their number. Stops at the first error.
fn repeat(ctx: &mut Context<'_>, caller: Caller, origin: Origin) -> Result<(), CommandError> {
    let database = ctx.core.keyspace.selected();
    ctx.core.keyspace.begin_loading();
    let stream = ctx.args.iter_from(3).flatten().copied().collect();
    let result = run(ctx, stream, caller, origin);
    ctx.core.keyspace.end_loading();
    ctx.core.keyspace.select(database);
    ctx.reply.integer(result?);
    Ok(())
}

fn run(
    ctx: &mut Context<'_>,
    mut stream: Vec<u8>,
    caller: Caller,
    origin: Origin,
) -> Result<i64, CommandError> {
    let (mut parser, limits) = (Parser::default(), Limits::TRUSTED);
    let (mut at, mut requests) = (0, 0);
    let mut output = OutputBuffer::default();
    while at < stream.len() {
        let mut ranges = Vec::new();
        match parser.next(&mut stream, &mut at, &mut ranges, &limits) {
            Ok(Parsed::Request) => {}
            Ok(Parsed::Empty) => continue,
            Ok(Parsed::Incomplete) => return Err(CommandError::Text("ERR the stream is cut off")),
            Err(error) => return Err(CommandError::formatted(error.text())),
        }
        let args = Args::new(&stream, &ranges);
        let name = args.get(0);
        requests += 1;
        if name == b"MULTI" || name == b"EXEC" {
            continue;
        }
        let state = &ctx.core.state;
        let command = state.find_command(name).unwrap_or(&state.commands.unknown);
        let request = Request::new(command, args, origin);
        let reply = ReplyWriter::new(&mut output, Protocol::Resp2);
        let mut gate = Gate::new(ctx.core, caller, reply);
        gate.run_trusted(&request)?;
        if output.whole().starts_with(b"-") {
            let words: Vec<&[u8]> = args.iter_from(0).collect();
            let text = [&output.whole()[1..], b" at ", &words.join(&b' ')].concat();
            return Err(CommandError::formatted(text));
        }
        output.clear();
    }
    Ok(requests)
}
