//! Client tracking: CLIENT TRACKING, CACHING, GETREDIR and TRACKINGINFO. `gate/tracking.rs` sends
//! the messages.
//!
//! A client tracks the keys it reads, or all keys with certain prefixes; see
//! `keyspace/tracking.rs`.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::client::ClientFlags;
use crate::client::tracking::{Choice, ClientTracking, Mode};
use crate::error::CommandError;
use crate::gate::tracking::{receiver, stop};
use crate::resp::args::Args;
use crate::resp::number;
use crate::state::State;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, spec};

// Subcommands of CLIENT, which lists them in its table.

#[rustfmt::skip]
pub const CACHING: CommandSpec =
    spec("CACHING", caching).exactly(3).flags(Flags::OF_OWN_CLIENT).group(Group::Connection).since("6.0.0")
        .docs("<YES | NO>", "Chooses whether the keys of the next command are tracked.", "O(1)");

#[rustfmt::skip]
pub const GETREDIR: CommandSpec =
    spec("GETREDIR", get_redirection).exactly(2).flags(Flags::OF_OWN_CLIENT).group(Group::Connection).since("6.0.0")
        .docs("", "Returns the client to which invalidations are redirected.", "O(1)");

#[rustfmt::skip]
pub const TRACKING: CommandSpec =
    spec("TRACKING", tracking).at_least(3).flags(Flags::OF_OWN_CLIENT).group(Group::Connection).since("6.0.0")
        .docs("<ON | OFF> [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]",
            "Notifies the connection when keys that it has cached change.", "O(1) a prefix");

#[rustfmt::skip]
pub const TRACKINGINFO: CommandSpec =
    spec("TRACKINGINFO", tracking_info).exactly(2).flags(Flags::OF_OWN_CLIENT).group(Group::Connection).since("6.2.0")
        .docs("", "Describes how the connection tracks keys.", "O(N), N prefixes");

const ONE_REDIRECTION: CommandError =
    CommandError::Text("ERR A client can only redirect to a single other client");
const NO_REDIRECTION: CommandError =
    CommandError::Text("ERR The client ID you want redirect to does not exist");
const PREFIX_WITHOUT_BCAST: CommandError =
    CommandError::Text("ERR PREFIX option requires BCAST mode to be enabled");
const BCAST_SWITCHED: CommandError = CommandError::Text(
    "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a \
     different mode.",
);
const BCAST_WITH_CHOICE: CommandError =
    CommandError::Text("ERR OPTIN and OPTOUT are not compatible with BCAST");
const TWO_CHOICES: CommandError =
    CommandError::Text("ERR You can't specify both OPTIN mode and OPTOUT mode");
const CHOICE_SWITCHED: CommandError = CommandError::Text(
    "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a \
     different mode.",
);
const NOT_TRACKING: CommandError = CommandError::Text(
    "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
);
const NOT_OPTIN: CommandError = CommandError::Text(
    "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
);
const NOT_OPTOUT: CommandError = CommandError::Text(
    "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
);

// ---- subcommands of CLIENT ----------------------------------------------------------------------

/// Options of CLIENT TRACKING.
#[derive(Default)]
struct Options<'a> {
    redirect: Option<u64>,
    prefixes: Vec<&'a [u8]>,
    bcast: bool,
    opt_in: bool,
    opt_out: bool,
    no_loop: bool,
}

impl<'a> Options<'a> {
    /// The redirection's target must exist now; it may leave later.
    fn parse(args: Args<'a>, state: &State) -> Result<Self, CommandError> {
        let mut options = Options::default();
        let mut args = args.cursor(3);
        while !args.is_at_end() {
            if args.remaining() > 1 && args.take_word("REDIRECT") {
                if options.redirect.is_some() {
                    return Err(ONE_REDIRECTION);
                }
                let number = number::parse_i64(args.take()?).ok_or(CommandError::NotInteger)?;
                let number = u64::try_from(number).map_err(|_| NO_REDIRECTION)?;
                receiver(state, number).ok_or(NO_REDIRECTION)?;
                options.redirect = Some(number);
            } else if args.take_word("BCAST") {
                options.bcast = true;
            } else if args.take_word("OPTIN") {
                options.opt_in = true;
            } else if args.take_word("OPTOUT") {
                options.opt_out = true;
            } else if args.take_word("NOLOOP") {
                options.no_loop = true;
            } else if args.remaining() > 1 && args.take_word("PREFIX") {
                options.prefixes.push(args.take()?);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }

    /// Checks the options against each other and the client's current tracking. Returns the
    /// requested mode, with the existing prefixes.
    fn mode(&self, current: Option<&ClientTracking>) -> Result<Mode, CommandError> {
        if !self.bcast && !self.prefixes.is_empty() {
            return Err(PREFIX_WITHOUT_BCAST);
        }
        if current.is_some_and(|current| current.prefixes().is_some() != self.bcast) {
            return Err(BCAST_SWITCHED);
        }
        if self.bcast && (self.opt_in || self.opt_out) {
            return Err(BCAST_WITH_CHOICE);
        }
        let choice = match (self.opt_in, self.opt_out) {
            (true, true) => return Err(TWO_CHOICES),
            (true, false) => Choice::OptIn,
            (false, true) => Choice::OptOut,
            (false, false) => Choice::All,
        };
        match current.map(|current| &current.mode) {
            Some(Mode::Reads(Choice::OptIn)) if choice == Choice::OptOut => Err(CHOICE_SWITCHED),
            Some(Mode::Reads(Choice::OptOut)) if choice == Choice::OptIn => Err(CHOICE_SWITCHED),
            Some(Mode::Prefixes(prefixes)) => self.with_prefixes(prefixes.clone()),
            None if self.bcast => self.with_prefixes(BTreeSet::new()),
            _ => Ok(Mode::Reads(choice)),
        }
    }

    /// Adds the requested prefixes to the existing ones. No prefix may begin another, or keys would
    /// be reported twice. Without any requested prefix, the empty one is added to the existing
    /// ones.
    fn with_prefixes(&self, mut prefixes: BTreeSet<Box<[u8]>>) -> Result<Mode, CommandError> {
        let overlapping = first_overlapping(&self.prefixes);
        for (index, prefix) in self.prefixes.iter().enumerate() {
            let error = |which: &str, other: &[u8]| {
                let overlaps = format!("' overlaps with {which} prefix '");
                let end = b"'. Prefixes for a single client must not overlap.";
                CommandError::of_parts(&[b"ERR Prefix '", prefix, overlaps.as_bytes(), other, end])
            };
            if let Some(other) = overlapping_with(&prefixes, prefix) {
                return Err(error("an existing", other));
            }
            if overlapping == Some(index) {
                let mut others = self.prefixes[index + 1..].iter();
                let other = others.find(|other| overlap(other, prefix));
                return Err(error("another provided", other.copied().unwrap_or_default()));
            }
        }
        prefixes.extend(self.prefixes.iter().map(|&prefix| prefix.into()));
        if self.prefixes.is_empty() {
            prefixes.insert(Box::default());
        }
        Ok(Mode::Prefixes(prefixes))
    }
}

/// Whether one of the prefixes begins with the other.
fn overlap(a: &[u8], b: &[u8]) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// The first of these prefixes, if any, that overlaps with a later one. O(n log n).
fn first_overlapping(prefixes: &[&[u8]]) -> Option<usize> {
    let mut sorted: Vec<(&[u8], usize)> =
        prefixes.iter().enumerate().map(|(index, prefix)| (*prefix, index)).collect();
    sorted.sort_unstable();
    // In sorted order, all texts that begin with a prefix follow it directly. So a prefix that
    // overlaps with any of them overlaps with the first.
    let (mut first, mut beginning) = (None::<usize>, *sorted.first()?);
    for &(prefix, index) in &sorted[1..] {
        if prefix.starts_with(beginning.0) {
            let earlier = index.min(beginning.1);
            first = Some(first.map_or(earlier, |first| first.min(earlier)));
        } else {
            beginning = (prefix, index);
        }
    }
    first
}

/// The first existing prefix that overlaps with a new one. Of the existing prefixes, only the empty
/// one may begin others. O(log n).
fn overlapping_with<'p>(prefixes: &'p BTreeSet<Box<[u8]>>, prefix: &[u8]) -> Option<&'p [u8]> {
    let names = |from, to| prefixes.range::<[u8], _>((from, to)).map(|found| &**found);
    let is_near = |other: &&[u8]| overlap(other, prefix);
    let empty = prefixes.first().map(|first| &**first).filter(|first| first.is_empty());
    let before = || names(Bound::Unbounded, Bound::Included(prefix)).next_back().filter(is_near);
    let behind = || names(Bound::Included(prefix), Bound::Unbounded).next().filter(is_near);
    empty.or_else(before).or_else(behind)
}

/// `CLIENT TRACKING <ON | OFF> [option ...]`: `OK`.
fn tracking(ctx: &mut Context<'_>) -> CommandResult {
    let id = ctx.client_id();
    let options = Options::parse(ctx.args, &ctx.core.state)?;
    let mut switch = ctx.args.cursor(2);
    if switch.take_word("OFF") {
        stop(ctx.core, id);
    } else if switch.take_word("ON") {
        let client = ctx.core.state.clients.get_mut(id).expect("a client outlives its command");
        let mode = options.mode(client.tracking.as_deref())?;
        if client.tracking.is_none() {
            ctx.core.keyspace.tracking.enter();
        }
        let Options { redirect, no_loop, .. } = options;
        let tracking = ClientTracking::new(mode, redirect, no_loop);
        for prefix in tracking.prefixes().into_iter().flatten() {
            ctx.core.keyspace.tracking.add_prefix(id, prefix);
        }
        client.tracking = Some(Box::new(tracking));
    } else {
        return Err(CommandError::Syntax);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLIENT CACHING <YES | NO>`: `OK`.
fn caching(ctx: &mut Context<'_>) -> CommandResult {
    let mut answer = ctx.args.cursor(2);
    let client =
        ctx.core.state.clients.get_mut(ctx.client_id()).expect("a client outlives its command");
    let mode = &client.tracking.as_deref().ok_or(NOT_TRACKING)?.mode;
    if answer.take_word("YES") {
        if !matches!(mode, Mode::Reads(Choice::OptIn)) {
            return Err(NOT_OPTIN);
        }
    } else if answer.take_word("NO") {
        if !matches!(mode, Mode::Reads(Choice::OptOut)) {
            return Err(NOT_OPTOUT);
        }
    } else {
        return Err(CommandError::Syntax);
    }
    client.flags |= ClientFlags::CACHING;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLIENT GETREDIR`: a client's number, 0 without redirection, -1 without tracking.
fn get_redirection(ctx: &mut Context<'_>) -> CommandResult {
    let redirection = ClientTracking::redirection(ctx.client());
    ctx.reply.integer(redirection);
    Ok(Outcome::Replied)
}

/// `CLIENT TRACKINGINFO`: a map of `flags`, `redirect` (as CLIENT GETREDIR) and `prefixes`.
fn tracking_info(ctx: &mut Context<'_>) -> CommandResult {
    let client =
        ctx.core.state.clients.get_mut(ctx.client_id()).expect("a client outlives its command");
    let caching = client.flags.contains(ClientFlags::CACHING);
    let mut flags = Vec::new();
    let mut prefixes = None;
    match client.tracking.as_deref() {
        None => flags.push("off"),
        Some(tracking) => {
            flags.push("on");
            match &tracking.mode {
                Mode::Reads(Choice::All) => {}
                Mode::Reads(Choice::OptIn) => {
                    flags.push("optin");
                    flags.extend(caching.then_some("caching-yes"));
                }
                Mode::Reads(Choice::OptOut) => {
                    flags.push("optout");
                    flags.extend(caching.then_some("caching-no"));
                }
                Mode::Prefixes(all) => {
                    flags.push("bcast");
                    prefixes = Some(all);
                }
            }
            flags.extend(tracking.no_loop.then_some("noloop"));
            flags.extend(tracking.is_broken.then_some("broken_redirect"));
        }
    }
    let reply = &mut ctx.reply;
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"redirect");
    reply.integer(ClientTracking::redirection(client));
    reply.bulk(b"prefixes");
    reply.array(prefixes.map_or(0, BTreeSet::len));
    prefixes.into_iter().flatten().for_each(|prefix| reply.bulk(prefix));
    Ok(Outcome::Replied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefixes() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(b'a'..b'd', 1..5), 0..8)
    }

    proptest! {
        #[test]
        fn overlapping_prefixes_are_found_as_by_comparing_each_with_each(
            known in prefixes(),
            asked in prefixes(),
            has_empty: bool,
        ) {
            let asked: Vec<&[u8]> = asked.iter().map(Vec::as_slice).collect();
            let overlaps = |index: usize| {
                asked[index + 1..].iter().any(|other| overlap(other, asked[index]))
            };
            prop_assert_eq!(first_overlapping(&asked), (0..asked.len()).find(|&index| overlaps(index)));
            let mut there = BTreeSet::<Box<[u8]>>::new();
            for prefix in known {
                if !there.iter().any(|other| overlap(other, &prefix)) {
                    there.insert(prefix.into());
                }
            }
            if has_empty {
                there.insert(Box::default());
            }
            for prefix in asked {
                let expected = there.iter().find(|other| overlap(other, prefix)).map(|found| &**found);
                prop_assert_eq!(overlapping_with(&there, prefix), expected);
            }
        }
    }
}
