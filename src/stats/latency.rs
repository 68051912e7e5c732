//! The latency monitor: events that took at least `latency-monitor-threshold` milliseconds.

use std::collections::{BTreeMap, VecDeque};

/// Samples kept of each event.
const SAMPLES_MAX: usize = 160;

/// The samples of one event, oldest first, and the worst of all time.
#[derive(Debug, Default)]
pub struct LatencySeries {
    /// Unix time in seconds, and duration in milliseconds.
    pub samples: VecDeque<(i64, u64)>,
    pub max_ms: u64,
    /// Of all events, also those that have no sample of their own.
    pub sum_ms: u64,
    pub count: u64,
}

/// All series by their event's name.
#[derive(Debug, Default)]
pub struct LatencyMonitor {
    pub series: BTreeMap<&'static str, LatencySeries>,
}

impl LatencyMonitor {
    /// Adds a sample. Several within one second count as one, the worst.
    pub fn add(&mut self, event: &'static str, time: i64, ms: u64) {
        let series = self.series.entry(event).or_default();
        series.max_ms = series.max_ms.max(ms);
        series.sum_ms = series.sum_ms.saturating_add(ms);
        series.count += 1;
        if let Some(last) = series.samples.back_mut()
            && last.0 == time
        {
            last.1 = last.1.max(ms);
            return;
        }
        if series.samples.len() == SAMPLES_MAX {
            series.samples.pop_front();
        }
        series.samples.push_back((time, ms));
    }

    /// Removes an event's samples; false if there were none.
    pub fn reset(&mut self, event: &[u8]) -> bool {
        let Some(name) = self.series.keys().copied().find(|name| name.as_bytes() == event) else {
            return false;
        };
        self.series.remove(name).is_some()
    }
}
