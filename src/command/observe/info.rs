//! INFO: the server's state as text, in sections of `field:value` lines, from the table of figures
//! (`crate::figures`).
//!
//! Sections, fields and their order are those of Redis 7.0, for monitoring tools;
//! `latchkey_version` is ours. Fields of features that do not exist here have the value of a server
//! that does not use them.

use crate::figures::{Reading, SECTIONS};
use crate::keyspace::KeyspaceStats;
use crate::keyspace::locks::LockStats;
use crate::state::Core;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{Categories, CommandSpec, Flags, Group, spec};
use crate::stats::commands::CommandStats;
use crate::stats::{Counters, Durations, Rate};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("INFO", info).at_least(1).flags(Flags::LOADING_STALE).categories(Categories::DANGEROUS).group(Group::Server).since("1.0.0")
        .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
        .docs("[section [section ...]]", "Returns facts and statistics about the server.", "O(1)"),
];

/// `INFO [section ...]`: text as a bulk string (RESP3: verbatim).
fn info(ctx: &mut Context<'_>) -> CommandResult {
    let asked = |word: &str| {
        ctx.args.iter_from(1).any(|argument| argument.eq_ignore_ascii_case(word.as_bytes()))
    };
    let all = asked("all") || asked("everything");
    let default = ctx.args.len() == 1 || asked("default");
    let mut text = String::new();
    ctx.core.keyspace.review_semaphores();
    let reading = Reading::new(ctx.core);
    let compatibility = ctx.core.state.config.compatible_with;
    for section in SECTIONS.iter().filter(|section| !section.name.is_empty()) {
        let in_all = all && (section.in_all)(compatibility);
        if in_all || (default && section.by_default) || asked(section.name) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            section.write_info(&reading, &mut text);
        }
    }
    ctx.reply.verbatim(b"txt", text.as_bytes());
    Ok(Outcome::Replied)
}

/// `CONFIG RESETSTAT`: resets all counters.
pub fn reset_stats(core: &mut Core) {
    core.state.stats.counters = Counters::default();
    core.state.stats.command_stats.fill_with(CommandStats::default);
    core.state.stats.error_stats.clear();
    core.state.stats.commands_rate = Rate::default();
    core.state.stats.input_rate = Rate::default();
    core.state.stats.output_rate = Rate::default();
    core.state.stats.turns_rate = Rate::default();
    core.state.stats.turn_time = Rate::default();
    core.state.stats.timing.reset();
    core.state.stats.durations = Durations::default();
    core.keyspace.stats = KeyspaceStats::default();
    core.keyspace.locks.stats = LockStats::default();
    (core.keyspace.eviction.over_us, core.keyspace.eviction.over_since_us) = (0, None);
    core.keyspace.lazyfree.reset_freed();
    core.state.scripts.stats.evicted = 0;
    if let Some(cluster) = &mut core.state.node.cluster
        && core.state.config.compatible_with.is_valkey()
    {
        cluster.reset_counts();
        core.state.net.bus.limit_exceeded = 0;
    }
    if let Some(stats) = &mut core.state.node.slot_stats {
        stats.reset();
    }
}
