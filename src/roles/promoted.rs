//! A primary that sentinels have replaced steps down at once, instead of taking writes until they
//! make it a replica, some ten seconds later (`sentinel-step-down`).
//!
//! ```text
//! a replica leaves, sentinels are there -> writes wait, and it is asked for its role
//!     it is a primary that continues this one's history -> writes go on waiting, three seconds at most
//! a sentinel names a replica as the primary, in a later epoch -> it is asked for its role
//!     it is a primary that continues this one's history -> writes are refused, ordinary clients are closed: they ask sentinels
//!         -> REPLICAOF, or a minute in which nothing confirms it: writes are accepted again
//! ```
//!
//! Whoever may publish can imitate a sentinel. A message therefore only makes this server ask, and
//! only addresses that replicas of it have had, which get `masterauth` as any primary does.
//! Sources: Redis's Sentinel documentation, "Sentinels and replicas auto discovery" and
//! "Configuration epochs".

use crate::client::Client;
use crate::clock::Due;
use crate::gate::closing::close_client;
use crate::net::lines::Peer;
use crate::net::primary::ReadResult;
use crate::replication::promoted::{Cause, Place, Question};
use crate::resp::answer::Answer;
use crate::resp::request::{encode, encode_auth};
use crate::roles::moving::{Connecting, connect_line, make};
use crate::state::promoted::LEFT_US;
use crate::state::{Core, PauseCause, State};
use crate::sys::log::{notice, warning};

/// How long writes wait for the sentinels' word after a replica was promoted. Unit: microseconds.
const PROMOTED_US: i64 = 3_000_000;
/// How long a promotion counts without being confirmed. Unit: microseconds.
const CONFIRMED_US: i64 = 60_000_000;
/// The longest answer. Unit: bytes.
const ANSWER_MAX: usize = 64 << 10;

/// When [`turn`] has work without an event.
pub fn due(state: &State) -> Due {
    let promoted = &state.replication.promoted;
    let Some(question) = promoted.questions.front() else {
        let confirmed_us = promoted.by.as_ref().map(|(_, us)| us.saturating_add(CONFIRMED_US));
        return Due::at(confirmed_us);
    };
    match question.line.and_then(|line| state.net.lines.get(line)) {
        Some(line) if !line.socket.may_read() => Due::at(Some(question.until_us)),
        _ => Due::NOW,
    }
}

/// Continues to ask, and does what answers demand.
pub fn turn(core: &mut Core) {
    let state = &mut core.state;
    if state.replication.promoted.questions.is_empty() && state.replication.promoted.by.is_none() {
        return;
    }
    if !state.heeds_promotions() {
        return forget(state);
    }
    let now_us = state.now.boot_us;
    let Some((place, cause, answer)) = next_answer(state) else { return look_again(state, now_us) };
    let continues = answer.as_deref().is_some_and(|text| is_successor(state, text));
    match cause {
        Cause::Left if continues => {
            let (host, port) = &place;
            warning!(
                state,
                "The replica {host}:{port} has become a primary: writes wait for what sentinels say."
            );
            state.wait_for_promotion(now_us.saturating_add(PROMOTED_US));
        }
        Cause::Named if continues => step_down(core, place),
        Cause::Left => {
            let mut questions = state.replication.promoted.questions.iter();
            let awaits_other = questions.any(|question| question.cause == Cause::Left);
            // No pause for an answer lasts as long as one after a promotion.
            let pause = state.pauses.by(PauseCause::Promotion);
            let awaits_word =
                pause.is_some_and(|pause| pause.until_us > now_us.saturating_add(LEFT_US));
            if !awaits_other && !awaits_word {
                state.end_pause(PauseCause::Promotion);
            }
        }
        Cause::Named => {
            let (host, port) = place;
            notice!(
                state,
                "A message in the sentinels' channel names {host}:{port} as the primary, which does not confirm it."
            );
        }
    }
}

/// Accepts writes again if nothing has confirmed the promotion for a while.
fn look_again(state: &mut State, now_us: i64) {
    let confirmed_us = state.replication.promoted.by.as_ref().map(|(_, us)| *us);
    if confirmed_us.is_some_and(|us| now_us >= us.saturating_add(CONFIRMED_US)) {
        state.replication.promoted.by = None;
        warning!(
            state,
            "Nothing has confirmed the promotion of a replica for a minute: writes are accepted again."
        );
        state.refresh_fast_path();
    }
}

/// Forgets all promotions: this server has become a replica, or an operator has confirmed it as the
/// primary.
pub fn forget(state: &mut State) {
    let promoted = std::mem::take(&mut state.replication.promoted);
    promoted.questions.iter().filter_map(|question| question.line).for_each(|line| {
        state.net.lines.close(line);
    });
    state.end_pause(PauseCause::Promotion);
    state.refresh_fast_path();
}

fn step_down(core: &mut Core, place: Place) {
    let now_us = core.state.now.boot_us;
    let is_new = core.state.replication.promoted.by.is_none();
    let (host, port) = &place;
    if is_new {
        warning!(
            core.state,
            "Sentinels have made {host}:{port} the primary: writes are refused here, and clients are closed so that they ask \
             for it."
        );
    }
    core.state.replication.promoted.by = Some((place, now_us));
    core.state.end_pause(PauseCause::Promotion);
    core.state.refresh_fast_path();
    if !is_new {
        return;
    }
    let is_ordinary =
        |client: &Client| client.replica.is_none() && !client.name.starts_with(b"sentinel-");
    let closing: Vec<_> =
        core.state.clients.iter().filter(|client| is_ordinary(client)).map(|it| it.id).collect();
    closing.into_iter().for_each(|id| close_client(core, id));
}

/// Whether a server's INFO says that it is a primary whose history continues this one's.
fn is_successor(state: &State, text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    field("role") == Some("master")
        && field("master_replid2").is_some_and(|id| id.eq_ignore_ascii_case(&state.replication.id))
}

/// Continues the present question. Some: it has ended, with the server's INFO if that has come.
fn next_answer(state: &mut State) -> Option<(Place, Cause, Option<Vec<u8>>)> {
    let mut question = state.replication.promoted.questions.pop_front()?;
    let answer = match progress(state, &mut question) {
        Ok(None) if state.now.boot_us < question.until_us => {
            state.replication.promoted.questions.push_front(question);
            return None;
        }
        Ok(answer) => answer,
        Err(Broken) => None,
    };
    if let Some(line) = question.line {
        state.net.lines.close(line);
    }
    Some((question.place, question.cause, answer))
}

/// The question will not be answered.
struct Broken;

/// Connects, asks and reads. The server's INFO, once it is there.
fn progress(state: &mut State, question: &mut Question) -> Result<Option<Vec<u8>>, Broken> {
    let Some(line) = question.line else {
        let (host, port) = question.place.clone();
        let is_tls = state.config.tls_replication;
        let peer = Peer { host: host.into_bytes().into(), port, is_tls };
        question.line = Some(make(state, peer).map_err(|_| Broken)?);
        return Ok(None);
    };
    if !matches!(connect_line(state, line).map_err(|_| Broken)?, Connecting::Stands) {
        return Ok(None);
    }
    if !question.is_sent {
        let mut request = Vec::new();
        encode_auth(&state.config.masteruser, &state.config.masterauth, &mut request);
        encode([&b"INFO"[..], b"replication"], &mut request);
        let socket = &mut state.net.lines.get_mut(line).ok_or(Broken)?.socket;
        socket.push(&mut request);
        socket.write().map_err(|_| Broken)?;
        question.is_sent = true;
    }
    let reading = state.net.lines.read(line);
    let input = &state.net.lines.get(line).ok_or(Broken)?.input;
    if input.len() > ANSWER_MAX {
        return Err(Broken);
    }
    match answer(input, !state.config.masterauth.is_empty()) {
        Ok(None) if matches!(reading, ReadResult::Ended(_)) => Err(Broken),
        other => other,
    }
}

/// The text of the reply to INFO, once it is complete.
fn answer(mut input: &[u8], asks_password: bool) -> Result<Option<Vec<u8>>, Broken> {
    let mut line = || {
        let end = memchr::memmem::find(input, b"\r\n")?;
        let (line, rest) = (&input[..end], &input[end + 2..]);
        input = rest;
        Some(line)
    };
    if asks_password {
        match line().map(Answer::of) {
            None => return Ok(None),
            Some(Answer::Done) => {}
            // A server without a password says so; its INFO follows.
            Some(Answer::Refused(text)) if text.starts_with(b"ERR") => {}
            Some(_) => return Err(Broken),
        }
    }
    let Some(head) = line() else { return Ok(None) };
    let len = head.strip_prefix(b"$").and_then(|len| str::from_utf8(len).ok()?.parse().ok());
    let len: usize = len.filter(|len| *len <= ANSWER_MAX).ok_or(Broken)?;
    Ok(input.get(..len).map(Vec::from))
}

#[cfg(test)]
mod tests {
    use super::answer;

    #[test]
    fn an_answer_is_whole_or_none() {
        let text = b"+OK\r\n$11\r\nrole:master\r\n";
        for end in 0..text.len() - 2 {
            assert!(matches!(answer(&text[..end], true), Ok(None)), "{end}");
        }
        assert!(matches!(answer(text, true), Ok(Some(info)) if info == b"role:master"));
        for text in [
            "-NOAUTH x\r\n",
            "$x\r\n",
            "$99999999999\r\n",
            "$-1\r\n",
            "HTTP/1.1 400\r\n",
            "+OK\r\n+OK\r\n",
        ] {
            assert!(answer(text.as_bytes(), text.starts_with('+')).is_err(), "{text}");
        }
    }
}
