//! The cache of sessions that clients may resume.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use rustls::server::StoresServerSessions;

use crate::clock::Clock;

/// Sessions up to a number and an age. If there are too many, the oldest is removed.
#[derive(Debug)]
pub struct SessionCache {
    /// 0: no limit.
    count_max: usize,
    max_age_us: i64,
    clock: Clock,
    sessions: Mutex<Sessions>,
}

#[derive(Debug, Default)]
struct Sessions {
    /// Each with the time when it was added; boot-time clock, microseconds.
    values: HashMap<Vec<u8>, (i64, Vec<u8>)>,
    /// The keys and times, the oldest first. Taken sessions remain here until they expire.
    order: VecDeque<(i64, Vec<u8>)>,
}

impl SessionCache {
    pub fn new(count_max: usize, max_age_seconds: u32, clock: Clock) -> Self {
        let max_age_us = i64::from(max_age_seconds) * 1_000_000;
        SessionCache { count_max, max_age_us, clock, sessions: Mutex::default() }
    }

    /// The sessions, without expired ones, and the time.
    fn current(&self) -> (MutexGuard<'_, Sessions>, i64) {
        let now_us = self.clock.now().boot_us;
        // A panic of another thread leaves no invalid state here.
        let mut sessions = self.sessions.lock().unwrap_or_else(|broken| broken.into_inner());
        while sessions
            .order
            .front()
            .is_some_and(|(added_us, _)| now_us - added_us > self.max_age_us)
        {
            sessions.drop_oldest();
        }
        (sessions, now_us)
    }
}

impl Sessions {
    fn drop_oldest(&mut self) {
        if let Some((added_us, key)) = self.order.pop_front()
            && self.values.get(&key).is_some_and(|(at, _)| *at == added_us)
        {
            self.values.remove(&key);
        }
    }
}

impl StoresServerSessions for SessionCache {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let (mut sessions, now_us) = self.current();
        while self.count_max > 0 && sessions.order.len() >= self.count_max {
            sessions.drop_oldest();
        }
        sessions.order.push_back((now_us, key.clone()));
        sessions.values.insert(key, (now_us, value));
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let (sessions, _) = self.current();
        sessions.values.get(key).map(|(_, value)| value.clone())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let (mut sessions, _) = self.current();
        sessions.values.remove(key).map(|(_, value)| value)
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
    fn sessions_are_limited_in_age_and_number() {
        let clock = ManualClock::new(UnixMillis(1_700_000_000_000));
        let cache = SessionCache::new(2, 10, Clock::Manual(clock.clone()));
        for key in 1..=3u8 {
            assert!(cache.put(vec![key], vec![key, key]));
            clock.advance_us(4_000_000);
        }
        assert_eq!(cache.get(&[1]), None, "replaced by the third");
        assert_eq!(cache.get(&[2]), Some(vec![2, 2]));
        assert_eq!(cache.take(&[2]), Some(vec![2, 2]));
        assert_eq!(cache.take(&[2]), None);
        clock.advance_us(6_000_000);
        assert_eq!(cache.get(&[3]), Some(vec![3, 3]));
        clock.advance_us(1);
        assert_eq!(cache.get(&[3]), None);
        assert!(cache.current().0.order.is_empty());
    }
}
