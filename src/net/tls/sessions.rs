//! Sessions that clients may resume, kept for a while.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use rustls::server::StoresServerSessions;

use crate::clock::Clock;

/// At most so many sessions, each for so long. With too many the oldest goes.
#[derive(Debug)]
pub struct SessionCache {
    /// 0: no limit.
    count_max: usize,
    keep_us: i64,
    clock: Clock,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// With the time each was put here; boot-time clock, microseconds.
    values: HashMap<Vec<u8>, (i64, Vec<u8>)>,
    /// The oldest first. What was taken out still stands here until its time has come.
    order: VecDeque<(i64, Vec<u8>)>,
}

impl SessionCache {
    pub fn new(count_max: usize, keep_seconds: u32, clock: Clock) -> Self {
        let keep_us = i64::from(keep_seconds) * 1_000_000;
        SessionCache { count_max, keep_us, clock, kept: Mutex::default() }
    }

    /// The sessions, without those whose time is over, and the time.
    fn kept(&self) -> (MutexGuard<'_, Kept>, i64) {
        let now_us = self.clock.now().boot_us;
        // A thread that panicked while it had this left nothing half done that matters.
        let mut kept = self.kept.lock().unwrap_or_else(|broken| broken.into_inner());
        while kept.order.front().is_some_and(|(put_us, _)| now_us - put_us > self.keep_us) {
            kept.drop_oldest();
        }
        (kept, now_us)
    }
}

impl Kept {
    fn drop_oldest(&mut self) {
        if let Some((put_us, key)) = self.order.pop_front()
            && self.values.get(&key).is_some_and(|(at, _)| *at == put_us)
        {
            self.values.remove(&key);
        }
    }
}

impl StoresServerSessions for SessionCache {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let (mut kept, now_us) = self.kept();
        while self.count_max > 0 && kept.order.len() >= self.count_max {
            kept.drop_oldest();
        }
        kept.order.push_back((now_us, key.clone()));
        kept.values.insert(key, (now_us, value));
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let (kept, _) = self.kept();
        kept.values.get(key).map(|(_, value)| value.clone())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let (mut kept, _) = self.kept();
        kept.values.remove(key).map(|(_, value)| value)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ManualClock, UnixMillis};

    #[test]
    fn sessions_go_with_time_and_with_number() {
        let hands = ManualClock::new(UnixMillis(1_700_000_000_000));
        let cache = SessionCache::new(2, 10, Clock::Manual(hands.clone()));
        for key in 1..=3u8 {
            assert!(cache.put(vec![key], vec![key, key]));
            hands.advance_us(4_000_000);
        }
        assert_eq!(cache.get(&[1]), None, "the third pushed it out");
        assert_eq!(cache.get(&[2]), Some(vec![2, 2]));
        assert_eq!(cache.take(&[2]), Some(vec![2, 2]));
        assert_eq!(cache.take(&[2]), None);
        hands.advance_us(6_000_000);
        assert_eq!(cache.get(&[3]), Some(vec![3, 3]));
        hands.advance_us(1);
        assert_eq!(cache.get(&[3]), None);
        assert!(cache.kept().0.order.is_empty());
    }
}
