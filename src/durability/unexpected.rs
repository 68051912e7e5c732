//! Errors of requests that succeeded earlier: those of a file being loaded, and of the primary. The
//! data here may differ from the original.

use crate::state::State;
use crate::state::context::Caller;
use crate::sys::log::warning;

/// Longer errors are cut in the log. Unit: bytes. Source: `afterErrorReply` of Redis 7.0.15.
const ERROR_BYTES_MAX: usize = 4096;

/// Logs and counts an error. `wire`: the error reply, as it would be sent. Some: the server must
/// end, by `propagation-error-behavior`, with this line in its log.
pub fn note(state: &mut State, caller: Caller, command: &str, wire: &[u8]) -> Option<String> {
    state.stats.counters.unexpected_error_replies += 1;
    let error = wire[..wire.len().min(ERROR_BYTES_MAX)].trim_ascii_end();
    let error = String::from_utf8_lossy(error);
    let (from, to) = match caller {
        Caller::Load => ("server", "AOF-loading-client"),
        Caller::Primary | Caller::Client(_) => ("replica", "master"),
    };
    warning!(
        state,
        "== CRITICAL == This {from} is sending an error to its {to}: '{error}' after processing the command '{command}'"
    );
    let behavior = state.config.propagation_error_behavior;
    let ends = match caller {
        Caller::Load => behavior == "panic",
        Caller::Primary | Caller::Client(_) => {
            behavior != "ignore" && state.config.replica_read_only
        }
    };
    ends.then(|| format!("This {from} panicked sending an error to its {to} after processing the command '{command}'"))
}
