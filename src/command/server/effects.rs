//! DEBUG EFFECTS: the stream of effects, for tests to read and to replay.

use crate::error::CommandError;
use crate::gate::context::{Caller, CommandResult, Context, Outcome};
use crate::gate::execute::{Gate, Request};
use crate::resp::args::Args;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::resp::request::{Limits, Parsed, Parser};

const TAKEN: CommandError = CommandError::Text("ERR the append only file takes the stream");

/// `DEBUG EFFECTS <ON | OFF | TAKE | LOAD stream>`: OK, the stream since it was last taken, or how many requests were run.
pub(super) fn effects(ctx: &mut Context<'_>) -> CommandResult {
    let word = ctx.args.get(2).to_ascii_lowercase();
    match (word.as_slice(), ctx.args.len()) {
        (b"on" | b"off" | b"take", 3) if ctx.server.config.appendonly => return Err(TAKEN),
        (b"on" | b"off", 3) => {
            let heard = word == b"on";
            ctx.server.effects.listen(heard);
            ctx.db.deletions.listen(heard);
            ctx.reply.ok();
        }
        (b"take", 3) if ctx.server.effects.is_between_units() => {
            let reply = &mut ctx.reply;
            ctx.server.effects.take(|stream| reply.bulk(stream));
        }
        (b"load", 4) => {
            let requests = load(ctx, ctx.args.get(3))?;
            ctx.reply.integer(requests);
        }
        _ => return Err(CommandError::Syntax),
    }
    Ok(Outcome::Replied)
}

/// Runs a stream's requests like a file's. Stops at the first error.
fn load(ctx: &mut Context<'_>, stream: &[u8]) -> Result<i64, CommandError> {
    let database = ctx.db.selected();
    ctx.db.begin_loading();
    let result = run(ctx, stream.to_vec());
    ctx.db.end_loading();
    ctx.db.select(database);
    result
}

fn run(ctx: &mut Context<'_>, mut stream: Vec<u8>) -> Result<i64, CommandError> {
    let (mut parser, limits) = (Parser::default(), Limits::default());
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
        let command = ctx.server.find_command(name);
        let request = Request { args, command, prehashed: Default::default() };
        let reply = ReplyWriter::new(&mut output, Protocol::Resp2);
        let mut gate = Gate { db: ctx.db, server: ctx.server, caller: Caller::Load, reply };
        gate.run_loaded(&request)?;
        if output.whole().starts_with(b"-") {
            let words: Vec<&[u8]> = args.iter_from(0).collect();
            let text = [&output.whole()[1..], b" at ", &words.join(&b' ')].concat();
            return Err(CommandError::formatted(text));
        }
        output.clear();
    }
    Ok(requests)
}
