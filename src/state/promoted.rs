//! What the state notes of promotions by sentinels: see `roles/promoted.rs`.

use super::{Pause, PauseCause, State};
use crate::replication::promoted::{Cause, Hello, Place};

/// The channel in which sentinels speak.
const CHANNEL: &[u8] = b"__sentinel__:hello";

/// A sentinel speaks every two seconds. Those heard within this time are there. Unit:
/// microseconds.
const HEARD_US: i64 = 10_000_000;
/// How long writes wait for the answer of a replica that has left. Unit: microseconds.
pub const LEFT_US: i64 = 300_000;
/// How long an answer to a sentinel's word may take. Unit: microseconds.
const NAMED_US: i64 = 2_000_000;

impl State {
    /// Whether promotions of replicas by sentinels concern this server.
    pub fn heeds_promotions(&self) -> bool {
        self.config.sentinel_step_down
            && self.node.cluster.is_none()
            && !self.replication.is_replica()
            && self.replication.failover.is_none()
            && self.persistence.loading.is_none()
    }

    /// Notes a published message, if a sentinel may have sent it.
    #[inline]
    pub fn hear(&mut self, channel: &[u8], message: &[u8]) {
        if channel == CHANNEL && self.heeds_promotions() {
            self.hear_sentinel(message);
        }
    }

    /// Whether a message in this channel is not postponed, because writes wait for nothing but the
    /// sentinels' word. A postponed one would hold back the later ones of its connection, the word
    /// among them.
    pub fn lets_sentinels_speak(&self, channel: &[u8]) -> bool {
        let is_harmless =
            |cause: PauseCause| cause == PauseCause::Promotion || self.pauses.by(cause).is_none();
        channel == CHANNEL
            && self.heeds_promotions()
            && PauseCause::ALL.into_iter().all(is_harmless)
    }

    fn hear_sentinel(&mut self, message: &[u8]) {
        let Some(hello) = Hello::parse(message) else { return };
        let now_us = self.now.boot_us;
        let online = self.replicas().filter(|(_, replica)| replica.is_online());
        let places: Vec<Place> =
            online.map(|(client, replica)| (client.replica_address(), replica.port)).collect();
        let promoted = &mut self.replication.promoted;
        places.into_iter().for_each(|place| promoted.note_replica(place));
        if promoted.hear(&hello, now_us) {
            promoted.ask(hello.primary, Cause::Named, now_us.saturating_add(NAMED_US));
        }
    }

    /// Notes that a replica has left, which was online. If sentinels are there, it may have been
    /// promoted: it is asked, and writes wait for its answer.
    pub fn note_left(&mut self, place: Place) {
        let now_us = self.now.boot_us;
        let heard_us = self.replication.promoted.heard_us;
        let hears = heard_us.is_some_and(|heard_us| now_us - heard_us < HEARD_US);
        if hears && self.heeds_promotions() && self.process.shutdown.is_none() {
            let until_us = now_us.saturating_add(LEFT_US);
            self.replication.promoted.note_replica(place.clone());
            self.replication.promoted.ask(place, Cause::Left, until_us);
            self.wait_for_promotion(until_us);
        }
    }

    /// Lets writes wait until this time at least.
    pub fn wait_for_promotion(&mut self, until_us: i64) {
        let now = self.pauses.by(PauseCause::Promotion).map_or(0, |pause| pause.until_us);
        let pause = Pause { until_us: until_us.max(now), writes_only: true };
        self.set_pause(PauseCause::Promotion, Some(pause));
    }
}
