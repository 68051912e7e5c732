//! What is repeated elsewhere of deliveries and claims, which depend on the time and on who asks: XCLAIM with all it came to,
//! the making of consumers, and how far a group has read.

use crate::gate::context::Context;
use crate::gate::effect::Effect;
use crate::types::stream::{Group, Pending, StreamId};

/// The requests that stand for one command on one stream's group.
pub(crate) struct Claims<'a> {
    key: &'a [u8],
    group: &'a [u8],
    /// None while nobody listens.
    requests: Option<Vec<Vec<Vec<u8>>>>,
    /// Replicas listen, who are told of consumers that were seen and did nothing. A log need not know: what is loaded is seen when
    /// it is.
    tells_seen: bool,
}

impl<'a> Claims<'a> {
    pub fn new(ctx: &Context<'_>, key: &'a [u8], group: &'a [u8]) -> Self {
        let requests = ctx.is_heard().then(Vec::new);
        let tells_seen = requests.is_some() && ctx.server.replication.backlog.is_some();
        Claims { key, group, requests, tells_seen }
    }

    fn add(&mut self, request: &[&[u8]]) {
        if let Some(requests) = &mut self.requests {
            requests.push(request.iter().map(|word| word.to_vec()).collect());
        }
    }

    /// An entry is pending at a consumer now. `last`: the group's last ID, which goes with it.
    pub fn assigned(&mut self, consumer: &[u8], id: StreamId, pending: Pending, last: StreamId) {
        self.claim(consumer, id, pending, last, true);
    }

    /// An entry was delivered once more to the consumer it is pending at. Without FORCE, as none need be: that tells replicas
    /// that the consumer was not active for it.
    pub fn redelivered(&mut self, consumer: &[u8], id: StreamId, pending: Pending, last: StreamId) {
        self.claim(consumer, id, pending, last, false);
    }

    fn claim(
        &mut self,
        consumer: &[u8],
        id: StreamId,
        pending: Pending,
        last: StreamId,
        forces: bool,
    ) {
        if self.requests.is_none() {
            return;
        }
        let (id, last) = (id.text(), last.text());
        let time = pending.delivered_ms.to_string();
        let deliveries = pending.deliveries.to_string();
        let mut request: Vec<&[u8]> =
            vec![b"XCLAIM", self.key, self.group, consumer, b"0", id.as_ref()];
        request.extend([&b"TIME"[..], time.as_bytes(), b"RETRYCOUNT", deliveries.as_bytes()]);
        request.extend(forces.then_some(&b"FORCE"[..]));
        request.extend([&b"JUSTID"[..], b"LASTID", last.as_ref()]);
        self.add(&request);
    }

    /// A consumer was made that has no entry assigned.
    pub fn created(&mut self, consumer: &[u8]) {
        self.add(&[b"XGROUP", b"CREATECONSUMER", self.key, self.group, consumer]);
    }

    /// When a consumer was last seen, if replicas are to be told of its being seen again.
    pub fn last_seen(&self, group: &Group, consumer: &[u8]) -> Option<i64> {
        let consumer = self.tells_seen.then(|| group.find_consumer(consumer))??;
        Some(group.consumer(consumer).seen_ms)
    }

    /// A consumer that was there was seen again, and got nothing that would tell so. It is told once a second at most, by
    /// what does nothing on a Redis.
    pub fn seen(&mut self, consumer: &[u8], last_ms: Option<i64>, now_ms: i64) {
        if last_ms.is_some_and(|last_ms| last_ms.div_euclid(1000) != now_ms.div_euclid(1000)) {
            self.created(consumer);
        }
    }

    /// The group has read up to an ID, and so many entries.
    pub fn read(&mut self, last: StreamId, read: Option<i64>) {
        let (last, read) = (last.text(), read.unwrap_or(-1).to_string());
        let read = read.as_bytes();
        self.add(&[b"XGROUP", b"SETID", self.key, self.group, last.as_ref(), b"ENTRIESREAD", read]);
    }

    /// Has them be repeated instead of the command, which has changed something that counts, or has not.
    pub fn repeat(self, ctx: &mut Context<'_>, has_changed: bool) {
        let (db, has_changed) = (ctx.db.selected(), has_changed || ctx.effect == Effect::Instead);
        for request in self.requests.iter().flatten() {
            ctx.instead_of(db, request.iter().map(Vec::as_slice));
        }
        ctx.effect = if has_changed { Effect::Instead } else { Effect::Hint };
    }
}
