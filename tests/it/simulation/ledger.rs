//! What one client has written, and what of it must be there after an end.
//!
//! A unit is what happens together: one command, a transaction, a script. Units are sent in order
//! over one connection, so that what survives an end is all up to some unit, which is not before
//! those that were promised. Of units without an answer nobody knows whether they were refused.

use std::collections::BTreeMap;

/// One change. Values are never used twice.
#[derive(Clone, Debug)]
pub enum Change {
    Set(String, String),
    /// FLUSHALL.
    Clear,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Sent,
    Answered,
    Refused,
    /// It has failed, and nobody knows how much of it was done before.
    Partly,
}

#[derive(Clone, Debug)]
struct Unit {
    changes: Vec<Change>,
    state: State,
}

#[derive(Debug, Default)]
pub struct Ledger {
    /// What was there before all units.
    base: BTreeMap<String, String>,
    units: Vec<Unit>,
    /// So many units survive the end of the process, and one of the machine.
    after_kill: usize,
    after_power_loss: usize,
    /// All that was ever answered.
    pub answered: u64,
}

impl Ledger {
    /// A unit is sent. Returns its number.
    pub fn send(&mut self, changes: Vec<Change>) -> usize {
        self.units.push(Unit { changes, state: State::Sent });
        self.units.len() - 1
    }

    pub fn answer(&mut self, unit: usize, is_done: bool) {
        self.units[unit].state = if is_done { State::Answered } else { State::Refused };
        self.answered += u64::from(is_done);
    }

    /// A unit turns out to be this one of its changes alone.
    pub fn keep(&mut self, unit: usize, change: usize) {
        let changes = &mut self.units[unit].changes;
        *changes = vec![changes.swap_remove(change)];
    }

    /// A unit was answered with an error that may have come after any of its changes.
    pub fn leave_open(&mut self, unit: usize) {
        self.units[unit].state = State::Partly;
    }

    /// Units up to the last one that has its answer.
    pub fn count_answered(&self) -> usize {
        self.units.iter().rposition(|unit| unit.state != State::Sent).map_or(0, |last| last + 1)
    }

    /// So many units are promised to survive.
    pub fn promise(&mut self, units: usize, even_power_loss: bool) {
        self.after_kill = self.after_kill.max(units);
        if even_power_loss {
            self.after_power_loss = self.after_power_loss.max(units);
        }
    }

    /// Nothing is promised any more.
    pub fn forgive(&mut self) {
        (self.after_kill, self.after_power_loss) = (0, 0);
    }

    /// Whether what a server that runs has is what it has answered. None, or why not.
    pub fn differs_live(&self, found: &BTreeMap<String, String>, may_lack: bool) -> Option<String> {
        self.differs(found, self.count_answered(), may_lack)
    }

    /// The same of a server that has ended and is there again.
    pub fn differs_after(
        &self,
        found: &BTreeMap<String, String>,
        lost_power: bool,
        may_lack: bool,
    ) -> Option<String> {
        let promised = if lost_power { self.after_power_loss } else { self.after_kill };
        self.differs(found, promised, may_lack)
    }

    /// From now on this is what is there.
    pub fn begin_with(&mut self, found: BTreeMap<String, String>) {
        let answered = self.answered;
        *self = Ledger { base: found, answered, ..Ledger::default() };
    }

    /// `may_lack`: keys may have been evicted.
    fn differs(
        &self,
        found: &BTreeMap<String, String>,
        promised: usize,
        may_lack: bool,
    ) -> Option<String> {
        let mut keys: Vec<&String> = self.base.keys().chain(found.keys()).collect();
        for unit in &self.units {
            for change in &unit.changes {
                if let Change::Set(key, _) = change {
                    keys.push(key);
                }
            }
        }
        keys.sort();
        keys.dedup();
        // Where in the order each key is found.
        let mut places: BTreeMap<&String, Option<usize>> = BTreeMap::new();
        let mut last = promised;
        for &key in &keys {
            let place = match found.get(key) {
                Some(value) if self.base.get(key) == Some(value) => None,
                Some(value) => {
                    let writes = |unit: &Unit| {
                        unit.changes.iter().any(|change| {
                            matches!(change, Change::Set(at, set) if at == key && set == value)
                        })
                    };
                    let Some(place) = self.units.iter().position(writes) else {
                        return Some(format!("{key} is {value:?}, which nobody has written"));
                    };
                    if self.units[place].state == State::Refused {
                        return Some(format!("{key} is {value:?}, which was refused"));
                    }
                    last = last.max(place + 1);
                    Some(place)
                }
                None if may_lack => continue,
                None => {
                    let clears = |unit: &Unit| {
                        unit.state != State::Refused
                            && unit.changes.iter().any(|change| matches!(change, Change::Clear))
                    };
                    let cleared = self.units.iter().rposition(clears);
                    if cleared.is_none() && self.base.contains_key(key) {
                        return Some(format!("{key} is gone, and nobody has removed it"));
                    }
                    cleared
                }
            };
            places.insert(key, place);
        }
        for (number, unit) in self.units.iter().enumerate().take(last) {
            let is_seen = unit.changes.iter().any(|change| match change {
                Change::Set(key, _) => places.get(key) == Some(&Some(number)),
                Change::Clear => false,
            });
            if unit.state == State::Partly || unit.state != State::Answered && !is_seen {
                continue;
            }
            for change in &unit.changes {
                let touched: Vec<&String> = match change {
                    Change::Set(key, _) => vec![key],
                    Change::Clear => keys.clone(),
                };
                for key in touched {
                    let Some(place) = places.get(key) else { continue };
                    if place.is_none_or(|place| place < number) {
                        return Some(format!(
                            "unit {number} of {} ({change:?}) is missing, and {promised} are promised and {last} are there: {key} is {:?}",
                            self.units.len(),
                            found.get(key)
                        ));
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, value: &str) -> Vec<Change> {
        vec![Change::Set(key.into(), value.into())]
    }

    fn found(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn what_is_there_is_all_up_to_some_unit() {
        let mut ledger = Ledger::default();
        for (unit, changes) in
            [set("a", "1"), set("b", "2"), [set("a", "3"), set("b", "4")].concat(), set("a", "5")]
                .into_iter()
                .enumerate()
        {
            assert_eq!(ledger.send(changes), unit);
        }
        for unit in 0..3 {
            ledger.answer(unit, unit != 1);
        }
        ledger.promise(1, false);
        let fails = |pairs: &[(&str, &str)], lost_power| {
            ledger.differs_after(&found(pairs), lost_power, false).is_some()
        };
        assert!(!fails(&[("a", "1")], false) && !fails(&[("a", "3"), ("b", "4")], false));
        assert!(!fails(&[("a", "5"), ("b", "4")], false), "perhaps it was done");
        assert!(fails(&[], false) && !fails(&[], true), "promised, but for a power loss");
        assert!(fails(&[("a", "3")], true) && fails(&[("a", "1"), ("b", "4")], true), "half of it");
        assert!(fails(&[("a", "1"), ("b", "2")], true), "refused");
        assert!(fails(&[("a", "7")], true), "never written");
        ledger.keep(2, 1);
        let fails =
            |pairs: &[(&str, &str)]| ledger.differs_after(&found(pairs), true, false).is_some();
        assert!(!fails(&[("a", "1"), ("b", "4")]) && fails(&[("a", "3"), ("b", "4")]));
    }
}
