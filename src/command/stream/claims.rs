//! What is repeated elsewhere of deliveries and claims, which depend on the time and on who asks: XCLAIM with all it came to,
//! the making of consumers, and how far a group has read.

use crate::gate::context::Context;
use crate::gate::effect::Effect;
use crate::types::stream::{Pending, StreamId};

/// The requests that stand for one command on one stream's group.
pub(crate) struct Claims<'a> {
    key: &'a [u8],
    group: &'a [u8],
    /// None while nobody listens.
    requests: Option<Vec<Vec<Vec<u8>>>>,
}

impl<'a> Claims<'a> {
    pub fn new(ctx: &Context<'_>, key: &'a [u8], group: &'a [u8]) -> Self {
        Claims { key, group, requests: ctx.is_heard().then(Vec::new) }
    }

    fn add(&mut self, request: &[&[u8]]) {
        if let Some(requests) = &mut self.requests {
            requests.push(request.iter().map(|word| word.to_vec()).collect());
        }
    }

    /// An entry is pending at a consumer now. `last`: the group's last ID, which goes with it.
    pub fn assigned(&mut self, consumer: &[u8], id: StreamId, pending: Pending, last: StreamId) {
        if self.requests.is_none() {
            return;
        }
        let (id, last) = (id.text(), last.text());
        let time = pending.delivered_ms.to_string();
        let deliveries = pending.deliveries.to_string();
        self.add(&[
            b"XCLAIM",
            self.key,
            self.group,
            consumer,
            b"0",
            id.as_ref(),
            b"TIME",
            time.as_bytes(),
            b"RETRYCOUNT",
            deliveries.as_bytes(),
            b"FORCE",
            b"JUSTID",
            b"LASTID",
            last.as_ref(),
        ]);
    }

    /// A consumer was made that has no entry assigned.
    pub fn created(&mut self, consumer: &[u8]) {
        self.add(&[b"XGROUP", b"CREATECONSUMER", self.key, self.group, consumer]);
    }

    /// The group has read up to an ID, and so many entries.
    pub fn read(&mut self, last: StreamId, read: Option<i64>) {
        let (last, read) = (last.text(), read.unwrap_or(-1).to_string());
        let read = read.as_bytes();
        self.add(&[b"XGROUP", b"SETID", self.key, self.group, last.as_ref(), b"ENTRIESREAD", read]);
    }

    /// Has them be repeated instead of the command.
    pub fn repeat(self, ctx: &mut Context<'_>) {
        ctx.effect = Effect::Instead;
        let db = ctx.db.selected();
        for request in self.requests.iter().flatten() {
            ctx.instead_of(db, request.iter().map(Vec::as_slice));
        }
    }
}
