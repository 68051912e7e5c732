//! The lines of MONITOR, and the secrets among arguments that are hidden.

use std::fmt::Write;

use crate::client::{Client, ClientId};
use crate::gate::limits;
use crate::gate::publish;
use crate::gate::request::Request;
use crate::keyspace::DbIndex;
use crate::resp::args::Args;
use crate::resp::reply::OutputBuffer;
use crate::state::context::{Caller, Context};
use crate::state::spec::{Flags, Secrets};
use crate::state::table::Command;
use crate::state::{Core, State};

/// Replaces a secret.
const REDACTED: &[u8] = b"(redacted)";

/// Sends a command that ran to monitoring clients. `output`: the output of the executing client,
/// which may be a monitoring client itself.
#[cold]
pub fn feed_monitors(
    state: &mut State,
    caller: Caller,
    request: &Request<'_>,
    output: &mut OutputBuffer,
) {
    if request.command.spec.flags.intersects(Flags::SKIP_MONITOR | Flags::ADMIN) {
        return;
    }
    let Some(client) = caller.client().and_then(|id| state.clients.get(id)) else { return };
    let (client, database, name) = (Some(client.id), client.database, address(state, client));
    let sender = Sender { client, database, name };
    show(state, &sender, request.command, request.args);
    publish::take_pushed(state, caller, output);
}

/// Sends a command of the primary, run in `database`, to monitoring clients.
#[cold]
pub fn feed_followed(state: &mut State, database: DbIndex, command: &Command, args: Args<'_>) {
    let following = state.replication.following.as_deref();
    if let Some(following) = following
        && !command.spec.flags.intersects(Flags::SKIP_MONITOR | Flags::ADMIN)
    {
        let sender = Sender { client: None, database, name: following.name() };
        show(state, &sender, command, args);
    }
}

/// Sends EVAL and its like to monitoring clients, before the commands that the script calls.
#[cold]
pub fn feed_script(ctx: &mut Context<'_>) {
    let Core { keyspace, state } = &mut *ctx.core;
    let client = ctx.caller.client().and_then(|id| state.clients.get(id));
    let Some(client) = client else { return };
    let name = address(state, client);
    let sender = Sender { client: Some(client.id), database: keyspace.selected(), name };
    show(state, &sender, ctx.command, ctx.args);
    publish::take_pushed(&mut ctx.core.state, ctx.caller, ctx.reply.output());
}

/// Sends a command called by a script to monitoring clients.
#[cold]
pub fn feed_scripted(state: &mut State, caller: Caller, command: &Command, args: Args<'_>) {
    if command.spec.flags.intersects(Flags::SKIP_MONITOR | Flags::ADMIN) {
        return;
    }
    let Some(client) = caller.client().and_then(|id| state.clients.get(id)) else { return };
    let name = "lua".to_owned();
    let sender = Sender { client: Some(client.id), database: client.database, name };
    show(state, &sender, command, args);
}

/// The address a client is connected from.
fn address(state: &State, client: &Client) -> String {
    match client.stream.is_unix() {
        true => format!("unix:{}", String::from_utf8_lossy(&state.config.unixsocket)),
        false => client.peer.to_string(),
    }
}

/// The sender of a command, as MONITOR shows it.
struct Sender {
    client: Option<ClientId>,
    database: DbIndex,
    /// An address, or "lua".
    name: String,
}

/// Sends a command's line to all monitoring clients; if its sender is one of them, in its own
/// output.
fn show(state: &mut State, sender: &Sender, command: &Command, args: Args<'_>) {
    let Sender { client: id, database, name } = sender;
    let now = state.clock.now();
    let (seconds, us) = (now.unix_seconds(), now.wall_us.rem_euclid(1_000_000));
    let mut line = format!("+{seconds}.{us:06} [{database} {name}]");
    for argument in shown_args(command, args) {
        line.push(' ');
        quote(argument, &mut line);
    }
    line.push_str("\r\n");
    for monitor in state.monitors().to_vec() {
        let Some(client) = state.clients.get_mut(monitor) else {
            continue;
        };
        if !client.replies().are_sent() || client.is_closing() {
            continue;
        }
        client.output.push(line.as_bytes());
        if Some(monitor) != *id {
            state.clients.flush_later(monitor);
            limits::check_output_limit(state, monitor);
        }
    }
}

/// A request's arguments with passwords replaced, for MONITOR and logs.
pub fn shown_args<'a>(command: &Command, args: Args<'a>) -> Vec<&'a [u8]> {
    let mut shown: Vec<&[u8]> = args.iter_from(0).collect();
    match command.spec.secrets {
        Secrets::None => {}
        Secrets::From(first) => shown.iter_mut().skip(first).for_each(|it| *it = REDACTED),
        // Also in requests that will be refused: a mistyped command must not reveal a password.
        Secrets::Behind { from, words, until } => {
            let is = |argument: &[u8], word: &str| argument.eq_ignore_ascii_case(word.as_bytes());
            let mut at = from;
            while at < shown.len() && (until.is_empty() || !is(shown[at], until)) {
                let word = words.iter().find(|(word, _)| is(shown[at], word));
                let end = shown.len().min(at + 1 + word.map_or(0, |(_, count)| *count));
                shown[at + 1..end].fill(REDACTED);
                at = end;
            }
        }
        Secrets::Parameters(first) => {
            for at in (first..shown.len().saturating_sub(1)).step_by(2) {
                if crate::config::is_sensitive(shown[at]) {
                    shown[at + 1] = REDACTED;
                }
            }
        }
    }
    shown
}

/// Appends an argument in quotes, with escapes for bytes that are not printable ASCII.
fn quote(argument: &[u8], line: &mut String) {
    line.push('"');
    for &byte in argument {
        match byte {
            b'\\' | b'"' => line.extend(['\\', byte as char]),
            b'\n' => line.push_str("\\n"),
            b'\r' => line.push_str("\\r"),
            b'\t' => line.push_str("\\t"),
            0x07 => line.push_str("\\a"),
            0x08 => line.push_str("\\b"),
            b' '..=b'~' => line.push(byte as char),
            _ => write!(line, "\\x{byte:02x}").expect("a String takes what is written to it"),
        }
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::TABLE;
    use crate::resp::request::Range;

    /// The request as monitors see it, its arguments divided by spaces.
    fn shown(request: &str) -> String {
        let mut ranges = Vec::new();
        let mut start = 0;
        for argument in request.split(' ') {
            ranges.push(Range { start, len: argument.len() as u32 });
            start += argument.len() as u32 + 1;
        }
        let args = Args::new(request.as_bytes(), &ranges);
        let command = TABLE.find(args.get(0)).expect("a command");
        let command =
            TABLE.find_subcommand(command, args.get(args.len().min(2) - 1)).unwrap_or(command);
        let shown = shown_args(command, args).join(&b' ');
        String::from_utf8(shown).expect("text")
    }

    #[test]
    fn passwords_are_hidden_and_nothing_else() {
        for (request, expected) in [
            ("AUTH pw", "AUTH (redacted)"),
            ("auth me pw", "auth (redacted) (redacted)"),
            ("AUTH me pw x", "AUTH (redacted) (redacted) (redacted)"),
            ("HELLO", "HELLO"),
            ("HELLO 3 AUTH me pw SETNAME x", "HELLO 3 AUTH (redacted) (redacted) SETNAME x"),
            ("HELLO 3 SETNAME x AUTH me pw", "HELLO 3 SETNAME x AUTH (redacted) (redacted)"),
            ("HELLO 3 auth me", "HELLO 3 auth (redacted)"),
            ("ECHO AUTH", "ECHO AUTH"),
            ("MIGRATE h 1 AUTH 0 9 AUTH pw", "MIGRATE h 1 AUTH 0 9 AUTH (redacted)"),
            ("MIGRATE h 1 k 0 9 COPY auth", "MIGRATE h 1 k 0 9 COPY auth"),
            (
                "MIGRATE h 1  0 9 auth2 me auth copy keys auth pw",
                "MIGRATE h 1  0 9 auth2 (redacted) (redacted) copy keys auth pw",
            ),
        ] {
            assert_eq!(shown(request), expected);
        }
    }

    #[test]
    fn bytes_that_are_not_printable_are_escaped() {
        let mut line = String::new();
        quote(b"a \"\\\n\r\t\x07\x08\0\xff", &mut line);
        assert_eq!(line, r#""a \"\\\n\r\t\a\b\x00\xff""#);
    }
}
