//! DEBUG RESTART and DEBUG CRASH-AND-RECOVER: the program starts again in the same process.

use std::time::Duration;

use crate::client::life::Suspension;
use crate::error::CommandError;
use crate::gate::users;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::{Shutdown, State};
use crate::sys::log::warning;
use crate::sys::restart::Invocation;

/// The reply to the client whose restart has failed.
pub const FAILED: &str = "ERR failed to restart the server. Check server logs.";

/// `DEBUG RESTART [milliseconds]`: no reply, the connection is closed. In a transaction OK comes
/// before. The configuration is written to its file and the data are saved, if `save` says so.
pub fn restart(ctx: &mut Context<'_>) -> CommandResult {
    let delay_ms = delay_ms(ctx)?;
    invocation(&ctx.core.state)?;
    if ctx.core.state.config.config_file.is_some() {
        let format = users::rule_format(&ctx.core.state);
        let lines: Vec<Vec<u8>> = ctx.core.state.acl.lines(format).collect();
        if let Err(error) = ctx.core.state.config.rewrite(&lines) {
            return Err(failed(&ctx.core.state, &format!("configuration rewrite: {error}")));
        }
    }
    let earlier = ctx.core.state.process.shutdown;
    if earlier.is_some_and(|order| order.waits_until_us.is_some()) {
        return Err(failed(&ctx.core.state, "a shutdown waits for replicas"));
    }
    ctx.core.state.process.shutdown = Some(Shutdown {
        by_signal: false,
        save: None,
        now: true,
        force: false,
        safe: false,
        failover: false,
        waits_until_us: None,
        restart_ms: Some(delay_ms),
    });
    if ctx.origin == Origin::Transaction {
        ctx.reply.ok();
        return Ok(Outcome::Replied);
    }
    let id = ctx.client_id();
    ctx.core.state.clients.suspend(id, Suspension::UntilReply);
    Ok(Outcome::Suspended)
}

/// `DEBUG CRASH-AND-RECOVER [milliseconds]`: no reply, all connections are closed. Nothing is saved
/// or sent any more.
pub fn crash_and_recover(ctx: &mut Context<'_>) -> CommandResult {
    let delay_ms = delay_ms(ctx)?;
    let invocation = invocation(&ctx.core.state)?.clone();
    let error = invocation.start_again(Duration::from_millis(delay_ms));
    Err(failed(&ctx.core.state, &error.to_string()))
}

/// A negative delay is none.
fn delay_ms(ctx: &Context<'_>) -> Result<u64, CommandError> {
    if ctx.args.len() < 3 {
        return Ok(0);
    }
    Ok(u64::try_from(ctx.args.integer(2)?).unwrap_or(0))
}

/// How to start the program again, if that is possible.
fn invocation(state: &State) -> Result<&Invocation, CommandError> {
    if state.config.is_from_stdin {
        let text = "the configuration came from standard input, which cannot be read again";
        return Err(failed(state, text));
    }
    let Some(invocation) = &state.process.invocation else {
        return Err(failed(state, "it is not known how this process was started"));
    };
    invocation.check().map_err(|text| failed(state, &text))?;
    Ok(invocation)
}

fn failed(state: &State, why: &str) -> CommandError {
    warning!(state, "Can't restart: {why}");
    CommandError::Text(FAILED)
}
