//! Effects of deliveries and claims, which depend on time and caller: XCLAIM with the exact result,
//! XGROUP CREATECONSUMER, and XGROUP SETID.

use crate::state::context::{Context, Effect};
use crate::types::stream::{Group, Pending, StreamId, shifted};

/// The effect of one command on one stream's group.
pub(crate) struct Claims<'a> {
    key: &'a [u8],
    group: &'a [u8],
    /// None while effects are not recorded.
    requests: Option<Vec<Vec<Vec<u8>>>>,
    /// Whether replicas are informed about consumers that were only seen. A log is not informed,
    /// because loading sets that time.
    tells_seen: bool,
    /// How far Unix times are ahead of those of pending entries.
    shift_ms: i64,
}

impl<'a> Claims<'a> {
    pub fn new(ctx: &Context<'_>, key: &'a [u8], group: &'a [u8]) -> Self {
        let requests = ctx.is_heard().then(Vec::new);
        let tells_seen = requests.is_some() && ctx.core.state.replication.backlog.is_some();
        let shift_ms = ctx.core.keyspace.lease_shift_ms();
        Claims { key, group, requests, tells_seen, shift_ms }
    }

    fn add(&mut self, request: &[&[u8]]) {
        if let Some(requests) = &mut self.requests {
            requests.push(request.iter().map(|word| word.to_vec()).collect());
        }
    }

    /// An entry is now pending for a consumer. `last`: the group's last ID.
    pub fn assigned(&mut self, consumer: &[u8], id: StreamId, pending: Pending, last: StreamId) {
        self.claim(consumer, id, pending, last, true);
    }

    /// An entry was delivered again to its consumer. The request omits FORCE, which is not needed:
    /// from that, replicas know that the consumer was not active.
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
        let time = shifted(pending.delivered_ms, self.shift_ms).to_string();
        let deliveries = pending.deliveries.to_string();
        let mut request: Vec<&[u8]> =
            vec![b"XCLAIM", self.key, self.group, consumer, b"0", id.as_ref()];
        request.extend([&b"TIME"[..], time.as_bytes(), b"RETRYCOUNT", deliveries.as_bytes()]);
        request.extend(forces.then_some(&b"FORCE"[..]));
        request.extend([&b"JUSTID"[..], b"LASTID", last.as_ref()]);
        self.add(&request);
    }

    /// A consumer was created without entries.
    pub fn created(&mut self, consumer: &[u8]) {
        self.add(&[b"XGROUP", b"CREATECONSUMER", self.key, self.group, consumer]);
    }

    /// A consumer was deleted.
    pub fn deleted(&mut self, consumer: &[u8]) {
        self.add(&[b"XGROUP", b"DELCONSUMER", self.key, self.group, consumer]);
    }

    /// The last time a consumer was seen, if replicas are informed about it.
    pub fn last_seen(&self, group: &Group, consumer: &[u8]) -> Option<i64> {
        let consumer = self.tells_seen.then(|| group.find_consumer(consumer))??;
        Some(group.consumer(consumer).seen_ms)
    }

    /// Notes that an existing consumer was seen again without getting an entry. Replicas are
    /// informed at most once a second, by a request without effect on Redis.
    pub fn seen(&mut self, consumer: &[u8], last_ms: Option<i64>, now_ms: i64) {
        if last_ms.is_some_and(|last_ms| last_ms.div_euclid(1000) != now_ms.div_euclid(1000)) {
            self.created(consumer);
        }
    }

    /// The group has read up to an ID, and this number of entries.
    pub fn read(&mut self, last: StreamId, read: Option<i64>) {
        let (last, read) = (last.text(), read.unwrap_or(-1).to_string());
        let read = read.as_bytes();
        self.add(&[b"XGROUP", b"SETID", self.key, self.group, last.as_ref(), b"ENTRIESREAD", read]);
    }

    /// Sets the effect, whether or not the command has changed something that counts.
    pub fn repeat(self, ctx: &mut Context<'_>, has_changed: bool) {
        let (keyspace, has_changed) =
            (ctx.core.keyspace.selected(), has_changed || ctx.effect == Effect::Instead);
        for request in self.requests.iter().flatten() {
            ctx.instead_of(keyspace, request.iter().map(Vec::as_slice));
        }
        ctx.effect = if has_changed { Effect::Instead } else { Effect::Hint };
    }
}
