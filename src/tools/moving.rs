//! `--move`: from a running server to another one, while clients write.
//!
//! 1. Both servers are looked at (`checks`, with the facts of `facts`). Nothing is changed.
//! 2. TO follows FROM (`change`).
//! 3. Numbers of keys, functions, and values are compared (`compare`, which reads by `reader`).
//! 4. On a word, FROM hands its role to TO, and follows it.
//!
//! A step that fails before the word ends what this run has begun: TO stops following. A run that
//! was killed leaves TO following, or the roles changed; the next run continues from there.
//! `asking` is the connection.

mod asking;
mod change;
mod checks;
mod compare;
mod facts;
mod reader;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use self::asking::{Address, Server, Stop, Surroundings};
use self::checks::{Ends, Stage};
use self::compare::{Compared, Pair, SHOWN_MAX};
use self::facts::{Facts, Info, Keys, functions};
use self::reader::Abilities;
use super::access::{self, Access, Login, Options, no_address, parse_address, seconds, value};
use crate::clock::Clock;

/// The environment variable with the password of the server to move to, if it is another one.
pub const TO_PASSWORD_VARIABLE: &str = "LATCHKEY_TO_AUTH";

/// Keys compared by value, if no number is given.
const SAMPLES: u64 = 1000;
/// The longest time that writes wait, if none is given. Unit: seconds.
const PAUSE_SECONDS: u64 = 10;

/// The text of a wrong command line.
fn usage() -> String {
    format!(
        "\
Usage: latchkey --move <from host>:<port> <to host>:<port> [options]
       --user <name>       the user on both; without it the default one
       --pass <password>   the password; better in the environment, as REDISCLI_AUTH
       --to-user <name>    the user on the second server, if it is another one
       --to-pass <password> its password; better in the environment, as LATCHKEY_TO_AUTH
       --samples <number>  keys compared by value (1000); 0: all
       --pause <seconds>   the longest time that writes wait (10)
       --yes               says the word in advance
{}",
        access::USAGE
    )
}

/// Who waits for the move.
pub trait Operator {
    /// Shows a line.
    fn line(&mut self, text: &str);
    /// Shows progress; `total` is 0 if it is unknown.
    fn progress(&mut self, done: u64, total: u64);
    /// Asks for the word. False: it was not said.
    fn word(&mut self, prompt: &str) -> bool;
}

/// A move that was asked for.
#[derive(Debug)]
pub struct Move {
    from: Address,
    to: Address,
    to_login: Login,
    samples: u64,
    pause: Duration,
    is_agreed: bool,
    access: Arc<Access>,
}

impl Move {
    /// Parses the arguments after `--move`. `passwords`: those of the environment, for both servers
    /// and for the second one. Errors: a text for standard error.
    pub fn parse(args: &[OsString], passwords: [Option<OsString>; 2]) -> Result<Self, String> {
        let [from, to, options @ ..] = args else { return Err(usage()) };
        let with_usage = |why: String| format!("{why}\n{}", usage());
        let address = |argument: &OsString| {
            let parsed = argument.to_str().and_then(parse_address);
            let (host, port) = parsed.ok_or_else(|| with_usage(no_address(argument)))?;
            Ok::<_, String>(Address { host, port })
        };
        let (from, to) = (address(from)?, address(to)?);
        let [password, to_password] = passwords;
        let mut common = Options::new(password);
        let mut of_to = Options::new(to_password).login();
        let (mut samples, mut pause, mut is_agreed) =
            (SAMPLES, Duration::from_secs(PAUSE_SECONDS), false);
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let name = option.to_str().unwrap_or_default();
            match name {
                "--yes" => is_agreed = true,
                "--pause" => pause = seconds(name, &mut options).map_err(with_usage)?,
                "--to-user" => of_to.user = Some(value(name, &mut options).map_err(with_usage)?),
                "--to-pass" => {
                    of_to.password = Some(value(name, &mut options).map_err(with_usage)?)
                }
                "--samples" => {
                    let text = value(name, &mut options).map_err(with_usage)?;
                    let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
                    let wrong = || with_usage("--samples is a number of keys, or 0".into());
                    samples = number.ok_or_else(wrong)?;
                }
                name => {
                    if !common.take(name, &mut options).map_err(with_usage)? {
                        return Err(with_usage(format!("Unknown option '{}'", option.display())));
                    }
                }
            }
        }
        let access = common.finish().map_err(with_usage)?;
        if of_to.user.is_some() && of_to.password.is_none() {
            let why = format!("--to-user needs a password, --to-pass or {TO_PASSWORD_VARIABLE}");
            return Err(with_usage(why));
        }
        let to_login = if of_to == Login::default() { access.login.clone() } else { of_to };
        Ok(Move { from, to, to_login, samples, pause, is_agreed, access: Arc::new(access) })
    }

    /// Runs it. `interrupted` is set by Ctrl-C. Errors: the reason, and the state it leaves.
    pub fn run(
        &self,
        clock: &Clock,
        interrupted: &Arc<AtomicBool>,
        operator: &mut dyn Operator,
    ) -> Result<(), String> {
        let around = Surroundings {
            access: self.access.clone(),
            clock: clock.clone(),
            interrupted: interrupted.clone(),
        };
        let mut has_attached = false;
        let stop = match self.steps(&around, operator, &mut has_attached) {
            Ok(()) => return Ok(()),
            Err(stop) => stop,
        };
        let why = match stop {
            Stop::Because(why) => why,
            Stop::Interrupted => "Interrupted".into(),
        };
        match has_attached {
            true => Err(format!("{why}\n{}", self.detach(&around))),
            false => Err(why),
        }
    }

    /// Ends what this run has begun. Returns a text about it.
    fn detach(&self, around: &Surroundings) -> String {
        let around = Surroundings { interrupted: Arc::default(), ..around.clone() };
        let (from, to) = (&self.from, &self.to);
        let detached = Server::open(to, &self.to_login, &around)
            .and_then(|mut server| server.order(&[b"REPLICAOF", b"NO", b"ONE"]));
        match detached {
            Ok(()) => format!(
                "{to} follows {from} no more, and keeps what it has copied: FLUSHALL and FUNCTION \
                 FLUSH there empty it. {from} is as it was."
            ),
            Err(_) => format!("{to} may still follow {from}: REPLICAOF NO ONE there ends that."),
        }
    }

    fn steps(
        &self,
        around: &Surroundings,
        operator: &mut dyn Operator,
        has_attached: &mut bool,
    ) -> Result<(), Stop> {
        let mut from = Server::open(&self.from, &self.access.login, around)?;
        let mut to = Server::open(&self.to, &self.to_login, around)?;
        change::await_end(&mut from, self.pause)?;
        let (from_facts, to_facts) = (Facts::of(&mut from)?, Facts::of(&mut to)?);
        for (name, server, facts) in [("From", &from, &from_facts), ("To", &to, &to_facts)] {
            let keys = facts.info.keys().values().copied().fold(0, u64::saturating_add);
            let bytes = facts.info.number("used_memory");
            let (address, product) = (&server.address, &facts.product);
            operator.line(&format!("{name} {address}: {product}, {keys} keys, {bytes} bytes used"));
        }
        let mut ends =
            Ends { from: &mut from, to: &mut to, from_facts: &from_facts, to_facts: &to_facts };
        let stage = ends.stage()?;
        if stage == Stage::Moved {
            operator.line(&format!("{} follows {} already", self.from, self.to));
            return self.finish(&mut from, &mut to, operator);
        }
        for warning in ends.look(stage)? {
            operator.line(&format!("Warning: {warning}"));
        }
        if stage == Stage::New {
            *has_attached = true;
            let (host, port) = (self.from.host.as_bytes(), self.from.port.to_string());
            to.order(&[b"REPLICAOF", host, port.as_bytes()])?;
        }
        let begun_us = around.now_us();
        change::await_sync(&mut from, &mut to, &mut |done, total| operator.progress(done, total))?;
        (Pair { primary: &mut from, replica: &mut to }).catch_up()?;
        let seconds = (around.now_us() - begun_us).max(0) as f64 / 1e6;
        let (here, there) = (&self.from, &self.to);
        operator.line(&format!("{there} follows {here}, and is in step after {seconds:.1} s"));
        self.compare(&mut from, &mut to, operator)?;
        let prompt = format!(
            "Type 'move' to make {there} the primary. Writes at {here} wait for it, {} s at most: ",
            self.pause.as_secs()
        );
        let is_agreed = self.is_agreed || operator.word(&prompt);
        around.look()?;
        if !is_agreed {
            return Err(Stop::Because("The word was not said".into()));
        }
        (Pair { primary: &mut from, replica: &mut to }).catch_up()?;
        // From here on the roles change, or the old ones stay: a stop would not make them.
        *has_attached = false;
        from.around.interrupted = Arc::default();
        to.around.interrupted = Arc::default();
        let target = change::replica_address(&mut from, &mut to)?;
        let taken = change::fail_over(&mut from, &mut to, &target, self.pause);
        let taken = taken.map_err(|stop| match stop {
            Stop::Because(why) => {
                Stop::Because(format!("{why}\nThe same command again continues from here."))
            }
            stop => stop,
        })?;
        let longest = taken.longest.map_or_else(String::new, |longest| {
            format!("; the longest pause of a write there was {:.3} s", longest.as_secs_f64())
        });
        let seconds = taken.total.as_secs_f64();
        operator.line(&format!("{there} is the primary after {seconds:.3} s{longest}"));
        self.finish(&mut from, &mut to, operator)
    }

    /// Compares TO with FROM. Errors: there is a difference.
    fn compare(
        &self,
        from: &mut Server,
        to: &mut Server,
        operator: &mut dyn Operator,
    ) -> Result<(), Stop> {
        let abilities = Abilities {
            tells_deadlines: both(from, to, "PEXPIRETIME latchkey:move:no-such-key")?,
            has_field_deadlines: both(
                from,
                to,
                "HPEXPIRETIME latchkey:move:no-such-key FIELDS 1 f",
            )?,
        };
        for server in [&mut *from, &mut *to] {
            // Reading does not make keys look used, where the server knows that.
            server.ask_words("CLIENT NO-TOUCH ON")?;
        }
        let mut pair = Pair { primary: from, replica: to };
        let counts = pair.counts()?;
        if functions(pair.primary)? != functions(pair.replica)? {
            return Err(pair.replica.stop("its functions differ"));
        }
        let compared = pair.values(&counts, self.samples, abilities, &mut |done, total| {
            operator.progress(done, total);
        })?;
        let Compared { keys, different, described, changing, skipped } = compared;
        operator.line(&format!("Equal numbers: {}", in_words(&counts)));
        let mut text = format!("Compared {keys} keys by value and deadline: {different} differ");
        if changing > 0 {
            text += &format!(", {changing} change too fast");
        }
        if skipped > 0 {
            text += &format!(", {skipped} are too large or of an unknown type");
        }
        operator.line(&text);
        for line in &described {
            operator.line(&format!("  {line}"));
        }
        match different {
            0 => Ok(()),
            more if more > SHOWN_MAX as u64 => {
                Err(pair.replica.stop(format_args!("{more} keys differ, the first are shown")))
            }
            more => Err(pair.replica.stop(format_args!("{more} keys differ"))),
        }
    }

    /// Checks the result of the change, and shows the way back.
    fn finish(
        &self,
        from: &mut Server,
        to: &mut Server,
        operator: &mut dyn Operator,
    ) -> Result<(), Stop> {
        change::await_link(from, to)?;
        let (id, there) = (Info::replication(to)?, Info::replication(from)?);
        if id.get("master_replid") != there.get("master_replid") {
            return Err(from.stop("it follows another history than that of its primary"));
        }
        let counts = Pair { primary: to, replica: from }.counts()?;
        let (here, there) = (&self.from, &self.to);
        operator.line(&format!("Equal numbers: {}", in_words(&counts)));
        operator.line(&format!(
            "{here} follows {there}. CONFIG REWRITE on both keeps the roles over a restart."
        ));
        operator.line(&format!("The way back: latchkey --move {there} {here}"));
        Ok(())
    }
}

/// Whether both servers have a command.
fn both(from: &mut Server, to: &mut Server, request: &str) -> Result<bool, Stop> {
    let has = |server: &mut Server| Ok::<_, Stop>(server.ask_words(request)?.error().is_none());
    Ok(has(from)? && has(to)?)
}

/// Numbers of keys as text.
fn in_words(counts: &Keys) -> String {
    let total = counts.values().copied().fold(0, u64::saturating_add);
    match counts.len() {
        1 => format!("{total} keys in 1 database"),
        databases => format!("{total} keys in {databases} databases"),
    }
}

#[cfg(test)]
mod tests;
