//! Reading a file's requests in a thread, ahead of the thread that runs them.

use std::io::{self, Read};
use std::ops::Range as Span;
use std::sync::mpsc::SyncSender;

use super::reader::{End, Item, Reader, Request};
use crate::resp::Range;

/// The most batches in the channel.
pub const BATCHES_AHEAD: usize = 4;
/// A batch is sent when it has this many bytes; a longer request gets its own batch, without a
/// copy.
const BATCH_BYTES: usize = 256 << 10;

/// Requests of a file, in order.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    args: Vec<Range>,
    heads: Vec<Head>,
    /// Set in the last batch: how the file ends, or why it cannot be read.
    pub end: Option<io::Result<End>>,
}

/// A request without its bytes. See [`Request`].
struct Head {
    args: Span<usize>,
    offset: u64,
    end: u64,
    in_transaction: bool,
}

impl Batch {
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// The request at an index, which must be below [`Batch::len`].
    pub fn get(&self, index: usize) -> Request<'_> {
        let Head { args, offset, end, in_transaction } = &self.heads[index];
        Request {
            buf: &self.bytes,
            args: &self.args[args.clone()],
            offset: *offset,
            end: *end,
            in_transaction: *in_transaction,
        }
    }

    fn push(&mut self, request: &Request<'_>) {
        let start = self.args.len();
        for argument in request.arguments() {
            // Batches and short requests are far below 4 GiB.
            let (at, len) = (self.bytes.len() as u32, argument.len() as u32);
            self.args.push(Range { start: at, len });
            self.bytes.extend_from_slice(argument);
        }
        self.heads.push(Head::of(request, start..self.args.len()));
    }
}

impl Head {
    fn of(request: &Request<'_>, args: Span<usize>) -> Head {
        let Request { offset, end, in_transaction, .. } = *request;
        Head { args, offset, end, in_transaction }
    }
}

/// Reads a file to its end, or until the receiver of the batches is gone.
pub fn read<R: Read>(mut reader: Reader<R>, batches: &SyncSender<Batch>) {
    let mut batch = Batch::default();
    loop {
        let mut long = None;
        match reader.next() {
            Ok(Item::Annotation(_)) => {}
            Ok(Item::Request(request)) if request.end - request.offset > BATCH_BYTES as u64 => {
                long = Some(Head::of(&request, 0..request.args.len()));
            }
            Ok(Item::Request(request)) => batch.push(&request),
            Ok(Item::End(end)) => batch.end = Some(Ok(end)),
            Err(error) => batch.end = Some(Err(error)),
        }
        let is_end = batch.end.is_some();
        let is_ready =
            is_end || batch.bytes.len() >= BATCH_BYTES || long.is_some() && !batch.is_empty();
        if is_ready && (batches.send(std::mem::take(&mut batch)).is_err() || is_end) {
            return;
        }
        if let Some(head) = long {
            let (bytes, args) = reader.take_last();
            if batches.send(Batch { bytes, args, heads: vec![head], end: None }).is_err() {
                return;
            }
        }
    }
}
