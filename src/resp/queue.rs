//! Requests that are kept until they run: those of a transaction in a file, until its EXEC comes.
//!
//! A transaction may be longer than 4 GiB, as its requests are limited one by one. So they are kept
//! in segments, within which positions have 32 bits.

use super::args::Args;
use super::request::{REQUEST_BYTES_MAX, Range};

/// A segment that has this many bytes takes no further request.
const SEGMENT_BYTES: usize = 64 << 20;

/// Requests in their order.
#[derive(Debug)]
pub struct RequestQueue {
    segments: Vec<Segment>,
    segment_bytes: usize,
}

#[derive(Debug, Default)]
struct Segment {
    bytes: Vec<u8>,
    ranges: Vec<Range>,
    /// Where each request ends among the ranges.
    ends: Vec<usize>,
}

impl Default for RequestQueue {
    fn default() -> Self {
        RequestQueue { segments: Vec::new(), segment_bytes: SEGMENT_BYTES }
    }
}

impl RequestQueue {
    /// Adds a request of at most [`REQUEST_BYTES_MAX`] bytes.
    pub fn push(&mut self, request: Args<'_>) {
        let bytes = request.bytes();
        debug_assert!(bytes as u64 <= REQUEST_BYTES_MAX);
        let has_room = |segment: &Segment| segment.bytes.len() + bytes <= self.segment_bytes;
        if !self.segments.last().is_some_and(has_room) {
            self.segments.push(Segment::default());
        }
        let Some(segment) = self.segments.last_mut() else { return };
        for argument in request.iter_from(0) {
            let range = Range { start: segment.bytes.len() as u32, len: argument.len() as u32 };
            segment.ranges.push(range);
            segment.bytes.extend_from_slice(argument);
        }
        segment.ends.push(segment.ranges.len());
    }

    /// The requests.
    pub fn iter(&self) -> impl Iterator<Item = Args<'_>> {
        self.segments.iter().flat_map(|segment| {
            let mut start = 0;
            segment.ends.iter().map(move |end| {
                let args = Args::new(&segment.bytes, &segment.ranges[start..*end]);
                start = *end;
                args
            })
        })
    }

    /// Drops all requests.
    pub fn clear(&mut self) {
        match &mut self.segments[..] {
            // Nearly all transactions are small.
            [only] if only.bytes.capacity() <= 1 << 20 => {
                only.bytes.clear();
                only.ranges.clear();
                only.ends.clear();
            }
            _ => self.segments.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_stay_whole_whatever_the_segments_size() {
        for segment_bytes in [1, 5, 7, 1 << 20] {
            let mut queue = RequestQueue { segment_bytes, ..RequestQueue::default() };
            for _ in 0..2 {
                let requests = ["SET a 1", "DEL b", "RPUSH somewhat longer 2 3", "X"];
                for request in requests {
                    let ranges = Range::of_words(request);
                    queue.push(Args::new(request.as_bytes(), &ranges));
                }
                let words = |args: Args<'_>| args.iter_from(0).collect::<Vec<_>>().join(&b' ');
                let kept: Vec<Vec<u8>> = queue.iter().map(words).collect();
                assert_eq!(kept, requests.map(|request| request.as_bytes().to_vec()));
                assert!(queue.segments.iter().all(|segment| {
                    segment.ends.len() == 1 || segment.bytes.len() <= segment_bytes
                }));
                queue.clear();
                assert_eq!(queue.iter().count(), 0);
            }
        }
    }
}
