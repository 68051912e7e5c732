//! Commands that operate the server: SHUTDOWN, TIME and LOLWUT here; users (`acl`), configuration
//! (`config`), saving (`save`), modules (`module`), and for tests `debug`, with `reload`, `restart`
//! and `effects`.

pub(crate) mod acl;
pub(crate) mod config;
pub(crate) mod debug;
mod effects;
pub(crate) mod module;
pub(crate) mod reload;
pub(crate) mod restart;
pub(crate) mod save;

use crate::client::life::Suspension;
use crate::error::CommandError;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, spec};
use crate::state::{PauseCause, Shutdown, Task};
use crate::sys::log::notice;

const NONDETERMINISTIC: &[&str] = &["nondeterministic_output"];

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("TIME", time).exactly(1).flags(Flags::LOADING_STALE.union(Flags::FAST)).group(Group::Server).since("2.6.0").tips(NONDETERMINISTIC)
        .docs("", "Returns the time of the server's wall clock.", "O(1)"),
    spec("LOLWUT", lolwut).at_least(1).flags(Flags::READONLY_FAST).group(Group::Server).since("5.0.0")
        .docs("[VERSION version]", "Draws a picture and shows the version.", "O(1)"),
    spec("SHUTDOWN", shutdown).at_least(1)
        .flags(Flags::LOADING_STALE.union(Flags::ADMIN).union(Flags::NOSCRIPT).union(Flags::NO_MULTI).union(Flags::ALLOW_BUSY)).with(Flags::NEEDS_CLIENT)
        .group(Group::Server).since("1.0.0")
        .docs("[NOSAVE | SAVE] [NOW] [FORCE] [ABORT]", "Stops the server.", "O(N) when saving, N being the number of keys"),
];

/// `TIME`: an array of seconds since 1970 and the microseconds of the current one, both as bulk
/// strings.
fn time(ctx: &mut Context<'_>) -> CommandResult {
    // Since Redis 7.2 time stands still in a script until it is busy: it may be waiting for time to
    // pass.
    let stands_still = ctx.core.state.config.reports_7_2() && !ctx.core.state.scripts.is_busy();
    let now = match ctx.origin {
        Origin::Script if stands_still => ctx.core.state.now,
        _ => ctx.core.state.clock.now(),
    };
    ctx.reply.array(2);
    ctx.reply.bulk_integer(now.unix_seconds());
    ctx.reply.bulk_integer(now.wall_us.rem_euclid(1_000_000));
    Ok(Outcome::Replied)
}

/// LOLWUT's picture.
const PICTURE: &str = "
      .-\"\"-.
     /  ..  \\        every lock has a key,
     \\  ''  /______________
      '-..-'---------|_|_|_|   every key has its time
";

/// `LOLWUT [VERSION version]`: a bulk string (RESP3: verbatim). All versions have the same picture.
fn lolwut(ctx: &mut Context<'_>) -> CommandResult {
    let mut cursor = ctx.args.cursor(1);
    if cursor.remaining() >= 2 && cursor.take_word("VERSION") {
        cursor.take_integer()?;
    }
    let mut text = PICTURE.as_bytes().to_vec();
    text.extend_from_slice(b"\nRedis ver. ");
    text.extend_from_slice(&ctx.core.state.config.redis_version);
    text.push(b'\n');
    ctx.reply.verbatim(b"txt", &text);
    Ok(Outcome::Replied)
}

const NO_SHUTDOWN: CommandError = CommandError::Text("ERR No shutdown in progress.");

/// SHUTDOWN's options.
enum ShutdownOrder {
    End(Shutdown),
    /// Cancel an earlier SHUTDOWN.
    Abort,
}

impl ShutdownOrder {
    fn parse(ctx: &Context<'_>) -> Result<Self, CommandError> {
        let mut order = Shutdown {
            by_signal: false,
            save: None,
            now: false,
            force: false,
            safe: false,
            failover: false,
            waits_until_us: None,
            restart_ms: None,
        };
        let (mut abort, mut save, mut nosave) = (false, false, false);
        let mut failover = false;
        let mut cursor = ctx.args.cursor(1);
        while !cursor.is_at_end() {
            match () {
                () if cursor.take_word("NOSAVE") => nosave = true,
                () if cursor.take_word("SAVE") => save = true,
                () if cursor.take_word("NOW") => order.now = true,
                () if cursor.take_word("FORCE") => order.force = true,
                () if cursor.take_word("ABORT") => abort = true,
                () if cursor.take_word("SAFE") => order.safe = true,
                () if cursor.take_word("FAILOVER") => failover = true,
                () => return Err(CommandError::Syntax),
            }
        }
        let ends = save || nosave || order.now || order.force || order.safe || failover;
        if save && nosave || abort && ends {
            return Err(CommandError::Syntax);
        }
        if failover && ctx.core.state.node.cluster.is_none() {
            let text = "ERR SHUTDOWN FAILOVER is only supported in cluster mode.";
            return Err(CommandError::Text(text));
        }
        if abort {
            return Ok(ShutdownOrder::Abort);
        }
        order.failover = failover;
        if save || nosave {
            order.save = Some(save);
        }
        Ok(ShutdownOrder::End(order))
    }
}

/// `SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] [SAFE] [FAILOVER] [ABORT]`: no reply, the connection is
/// closed; OK to ABORT. SAFE: an error at a primary with slots.
fn shutdown(ctx: &mut Context<'_>) -> CommandResult {
    match ShutdownOrder::parse(ctx)? {
        // A running script is not waited for, and its partial changes are not saved.
        ShutdownOrder::End(order)
            if order.save != Some(false) && ctx.core.state.scripts.is_busy() =>
        {
            Err(crate::gate::admit::busy(&ctx.core.state))
        }
        ShutdownOrder::End(order) => {
            // A shutdown by a signal may be pending.
            let earlier = ctx.core.state.process.shutdown;
            let goes_on = |it: &Shutdown| !it.by_signal || it.waits_until_us.is_some();
            ctx.core.state.process.shutdown = earlier.filter(goes_on).or(Some(order));
            let id = ctx.client_id();
            ctx.core.state.clients.suspend(id, Suspension::UntilReply);
            Ok(Outcome::Suspended)
        }
        // An interrupted loading cannot continue.
        ShutdownOrder::Abort
            if ctx.core.state.persistence.loading.is_some_and(|loading| loading.is_interrupted) =>
        {
            Err(NO_SHUTDOWN)
        }
        ShutdownOrder::Abort => match ctx.core.state.process.shutdown.take() {
            Some(_) => {
                ctx.core.state.end_pause(PauseCause::Shutdown);
                ctx.core.state.tasks.push(Task::RefuseShutdown);
                notice!(ctx.core.state, "Shutdown manually aborted.");
                ctx.reply.ok();
                Ok(Outcome::Replied)
            }
            None => Err(NO_SHUTDOWN),
        },
    }
}
