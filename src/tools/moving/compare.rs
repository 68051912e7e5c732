//! Compares a replica with its primary while clients write: a difference is one that stays when the
//! replica has everything that the primary had before.

use std::collections::BTreeSet;
use std::time::Duration;

use super::asking::{Batch, Reply, Server, Stop, shown};
use super::facts::{Info, Keys, count_keys};
use super::reader::{Abilities, Seen, read};

/// Keys read side by side.
const KEYS: usize = 200;
/// A key is read again as often, while it changes.
const ATTEMPTS: u32 = 20;
/// A difference was seen as often before it is one.
const SEEN_AGAIN: u32 = 3;
/// Numbers of keys are read again as often.
const COUNTS: u32 = 100;
/// Differences that are shown.
pub const SHOWN_MAX: usize = 10;

/// Both servers.
#[derive(Debug)]
pub struct Pair<'a> {
    pub primary: &'a mut Server,
    pub replica: &'a mut Server,
}

/// The result of a comparison by value.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Compared {
    pub keys: u64,
    /// Keys that differ. The first ones are described.
    pub different: u64,
    pub described: Vec<String>,
    /// Keys that changed at each reading.
    pub changing: u64,
    /// Keys of which only type and size in keys were compared: of an unknown type, or too large.
    pub skipped: u64,
}

impl Pair<'_> {
    /// Waits until the replica has all that the primary has now. Errors: also if it does not
    /// within the longest silence.
    pub fn catch_up(&mut self) -> Result<(), Stop> {
        let around = self.replica.around.clone();
        let timeout = around.access.timeout;
        let wanted = Info::replication(self.primary)?.number("master_repl_offset");
        let begun_us = around.now_us();
        let mut pause = Duration::from_micros(200);
        loop {
            let info = Info::replication(self.replica)?;
            let has = info.number("slave_repl_offset");
            if info.link_is_up() && has >= wanted {
                return Ok(());
            }
            if (around.now_us() - begun_us).max(0) as u128 > timeout.as_micros() {
                let link = if info.link_is_up() { "up" } else { "down" };
                let less = wanted.saturating_sub(has);
                let seconds = timeout.as_secs();
                return Err(self.replica.stop(format_args!(
                    "it lacks {less} bytes of the stream after {seconds} seconds, its link is {link}"
                )));
            }
            self.replica.around.pause(pause)?;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Compares the numbers of keys. Returns them. Errors: they differ.
    pub fn counts(&mut self) -> Result<Keys, Stop> {
        let mut told = String::new();
        for _ in 0..COUNTS {
            let before = count_keys(self.primary)?;
            self.catch_up()?;
            let there = count_keys(self.replica)?;
            let after = count_keys(self.primary)?;
            match counts_differ(&before, &there, &after) {
                None => return Ok(there),
                Some(text) => told = text,
            }
            self.replica.around.pause(Duration::from_millis(20))?;
        }
        Err(self.replica.stop(told))
    }

    /// Compares a page of keys.
    fn page(
        &mut self,
        database: u32,
        keys: &[Vec<u8>],
        abilities: Abilities,
        result: &mut Compared,
    ) -> Result<(), Stop> {
        let here = read(self.primary, database, keys, abilities)?;
        let there = read(self.replica, database, keys, abilities)?;
        for ((key, here), there) in keys.iter().zip(here).zip(there) {
            result.keys += 1;
            let outcome = match there_differs(&here, &there) {
                None => Outcome::Equal(here.is_skipped()),
                Some(_) => self.again(database, key, abilities)?,
            };
            match outcome {
                Outcome::Equal(is_skipped) => result.skipped += u64::from(is_skipped),
                Outcome::Changing => result.changing += 1,
                Outcome::Different(why) => {
                    result.different += 1;
                    if result.described.len() < SHOWN_MAX {
                        let key = shown(key);
                        result.described.push(format!("{key} (database {database}): {why}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Compares a key that was different once.
    fn again(&mut self, database: u32, key: &[u8], abilities: Abilities) -> Result<Outcome, Stop> {
        let keys = [key.to_vec()];
        let one = |server: &mut Server| -> Result<Seen, Stop> {
            Ok(read(server, database, &keys, abilities)?.pop().unwrap_or_default())
        };
        let mut seen = 0;
        for attempt in 0..ATTEMPTS {
            let before = one(self.primary)?;
            self.catch_up()?;
            let there = one(self.replica)?;
            let after = one(self.primary)?;
            let (first, second) = (there_differs(&before, &there), there_differs(&after, &there));
            let (Some(_), Some(why)) = (first, second) else {
                return Ok(Outcome::Equal(there.is_skipped()));
            };
            if before.difference(&after).is_none() {
                seen += 1;
                if seen == SEEN_AGAIN {
                    return Ok(Outcome::Different(why));
                }
            }
            self.replica.around.pause(Duration::from_millis(u64::from(attempt) * 5))?;
        }
        Ok(Outcome::Changing)
    }

    /// Compares keys by value: `samples` of them, or all if that is 0.
    pub fn values(
        &mut self,
        counts: &Keys,
        samples: u64,
        abilities: Abilities,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Compared, Stop> {
        let mut result = Compared::default();
        let total: u64 = counts.values().fold(0, |sum, keys| sum.saturating_add(*keys));
        let wanted = if samples == 0 { total } else { samples.min(total) };
        for (&database, &keys) in counts {
            let share = u128::from(wanted) * u128::from(keys) / u128::from(total.max(1));
            let share = u64::try_from(share).unwrap_or(u64::MAX).max(1);
            if share >= keys {
                self.all(database, keys, abilities, &mut result, &mut |done| {
                    progress(done.min(wanted), wanted);
                })?;
                continue;
            }
            let mut left = share;
            while left > 0 {
                let count = left.min(KEYS as u64);
                left -= count;
                let mut batch = Batch::default();
                (0..count).for_each(|_| batch.add(&[b"RANDOMKEY"]));
                self.primary.select(database)?;
                let replies = self.primary.ask_all(batch)?;
                if let Some(error) = replies.iter().find(|reply| reply.error().is_some()) {
                    return Err(self.primary.unexpected("RANDOMKEY", error));
                }
                let names: BTreeSet<Vec<u8>> =
                    replies.iter().filter_map(|reply| Some(reply.bytes()?.to_vec())).collect();
                let names: Vec<Vec<u8>> = names.into_iter().collect();
                self.page(database, &names, abilities, &mut result)?;
                progress(result.keys.min(wanted), wanted);
            }
        }
        Ok(result)
    }

    fn all(
        &mut self,
        database: u32,
        keys: u64,
        abilities: Abilities,
        result: &mut Compared,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Stop> {
        let mut scan = Scan::new(database, keys);
        while let Some(names) = scan.page(self.primary, None)? {
            for names in names.chunks(KEYS) {
                self.page(database, names, abilities, result)?;
                progress(result.keys);
            }
        }
        Ok(())
    }
}

enum Outcome {
    /// And whether its value was left out.
    Equal(bool),
    Changing,
    Different(&'static str),
}

/// The difference, as said of the replica's key.
fn there_differs(primary: &Seen, replica: &Seen) -> Option<&'static str> {
    primary.difference(replica)
}

/// Numbers of keys between two readings of the primary. None: they agree.
pub fn counts_differ(before: &Keys, there: &Keys, after: &Keys) -> Option<String> {
    let databases: BTreeSet<u32> =
        before.keys().chain(there.keys()).chain(after.keys()).copied().collect();
    databases.into_iter().find_map(|database| {
        let of = |keys: &Keys| keys.get(&database).copied().unwrap_or(0);
        let (before, there, after) = (of(before), of(there), of(after));
        let is_between = (before.min(after)..=before.max(after)).contains(&there);
        let text = || format!("database {database} has {there} keys, its primary has {after}");
        (!is_between).then(text)
    })
}

/// The keys of a database, a page at a time.
#[derive(Debug)]
pub struct Scan {
    database: u32,
    /// None: the end.
    cursor: Option<Vec<u8>>,
    /// A server that sends more does not end.
    pages_left: u64,
}

impl Scan {
    /// `keys`: about as many there are.
    pub fn new(database: u32, keys: u64) -> Self {
        let pages_left = keys.saturating_mul(4).saturating_add(1 << 16);
        Scan { database, cursor: Some(b"0".to_vec()), pages_left }
    }

    /// The next keys, of a type if one is given. None: there are no more.
    pub fn page(
        &mut self,
        server: &mut Server,
        kind: Option<&str>,
    ) -> Result<Option<Vec<Vec<u8>>>, Stop> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        if self.pages_left == 0 {
            return Err(server.stop("SCAN does not end"));
        }
        self.pages_left -= 1;
        server.select(self.database)?;
        let reply = match kind {
            Some(kind) => {
                let kind = kind.as_bytes();
                server.ask(&[b"SCAN", &cursor, b"COUNT", b"1000", b"TYPE", kind])?
            }
            None => server.ask(&[b"SCAN", &cursor, b"COUNT", b"500"])?,
        };
        let Some([next, Reply::List(names)]) = reply.list() else {
            return Err(server.unexpected("SCAN", &reply));
        };
        let next = next.bytes().unwrap_or(b"0").to_vec();
        self.cursor = (next != b"0").then_some(next);
        Ok(Some(names.iter().filter_map(|name| Some(name.bytes()?.to_vec())).collect()))
    }
}

#[cfg(test)]
mod tests;
