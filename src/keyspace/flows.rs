//! Arrival and departure counts of queues that the page has shown within the last minute. Other
//! keys cost nothing.

use std::collections::HashMap;

use super::db_index::DbIndex;

/// The most keys counted at a time.
const KEYS_MAX: usize = 1000;
/// The time for which a key is counted after a look at it. Unit: microseconds.
const LOOKED_AT_US: i64 = 60_000_000;

/// Elements that have entered and left a queue since its counting began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    pub arrived: u64,
    pub left: u64,
}

/// Database and key.
type Name = (DbIndex, Box<[u8]>);

/// All counted keys.
#[derive(Default)]
pub struct Flows {
    /// Each flow with the time of the last look at it: boot-time clock, microseconds.
    counted: HashMap<Name, (Flow, i64)>,
}

impl Flows {
    /// A key's flow since the first look. None: this is the first look, or too many keys are
    /// counted.
    pub fn look(&mut self, database: DbIndex, key: &[u8], now_us: i64) -> Option<Flow> {
        let name = (database, key.into());
        if let Some((flow, looked_us)) = self.counted.get_mut(&name) {
            *looked_us = now_us;
            return Some(*flow);
        }
        if self.counted.len() < KEYS_MAX {
            self.counted.insert(name, (Flow::default(), now_us));
        }
        None
    }

    /// Stops counting keys at which nobody has looked lately.
    pub fn forget(&mut self, now_us: i64) {
        if !self.counted.is_empty() {
            self.counted.retain(|_, (_, looked_us)| now_us - *looked_us < LOOKED_AT_US);
        }
    }

    /// Records a change of a key by a keyspace event and its number of elements.
    #[inline]
    pub fn note(&mut self, database: DbIndex, key: &[u8], event: &str, elements: u64) {
        if !self.counted.is_empty() {
            self.note_counted(database, key, event, elements);
        }
    }

    #[cold]
    fn note_counted(&mut self, database: DbIndex, key: &[u8], event: &str, elements: u64) {
        let Some((flow, _)) = self.counted.get_mut(&(database, key.into())) else { return };
        match event {
            "lpush" | "rpush" | "linsert" | "zadd" | "zincr" | "xadd" => flow.arrived += elements,
            "lpop" | "rpop" | "lrem" | "ltrim" | "zrem" | "zpopmin" | "zpopmax"
            | "zremrangebyscore" | "zremrangebyrank" | "zremrangebylex" | "xdel" | "xtrim" => {
                flow.left += elements
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_counted_while_somebody_looks() {
        let mut flows = Flows::default();
        flows.note(DbIndex::ZERO, b"q", "rpush", 9);
        assert_eq!(flows.look(DbIndex::ZERO, b"q", 0), None);
        for (event, elements) in [("rpush", 3), ("lpop", 1), ("expire", 1), ("zadd", 2)] {
            flows.note(DbIndex::ZERO, b"q", event, elements);
        }
        flows.note(DbIndex::new(1), b"q", "rpush", 9);
        assert_eq!(flows.look(DbIndex::ZERO, b"q", 59_000_000), Some(Flow { arrived: 5, left: 1 }));
        flows.forget(118_000_000);
        assert!(flows.look(DbIndex::ZERO, b"q", 118_000_000).is_some());
        flows.forget(200_000_000);
        assert_eq!(flows.look(DbIndex::ZERO, b"q", 200_000_000), None);
        for number in 0..2 * KEYS_MAX {
            flows.look(DbIndex::ZERO, &number.to_be_bytes(), 0);
        }
        assert_eq!(flows.counted.len(), KEYS_MAX);
    }
}
