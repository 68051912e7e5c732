//! Lists of clients for which the loop has something to do, and their spare output buffers.
//!
//! A method takes the client that its caller has looked up: the ID is not looked up again.

use super::{Client, ClientId};

/// The most empty output buffers kept for the next turn. A buffer that is not kept grows again from
/// nothing, and copies its bytes several times.
const SPARE_BUFFERS: usize = 64;
/// Larger ones, for pipelined replies of some KiB each, are few; still larger ones are not kept.
const LARGE_SPARE_BUFFERS: usize = 8;
const LARGE_BYTES: usize = 64 * 1024;
const SPARE_BYTES_MAX: usize = 256 * 1024;

/// Clients for which the loop has something to do.
#[derive(Default)]
pub struct Queues {
    /// Clients to be read in the next turn, as the system will not announce them again.
    pub to_read: Vec<ClientId>,
    /// Clients with new output in this turn.
    pub to_flush: Vec<ClientId>,
    /// Clients that exceeded their soft output limit. May hold duplicates.
    pub over_soft_limit: Vec<ClientId>,
    /// Clients to be closed at the end of the turn. May hold duplicates.
    pub to_close: Vec<ClientId>,
    /// Empty output buffers for reuse.
    spare_buffers: Vec<Vec<u8>>,
}

impl Queues {
    /// Queues a client to be read in the next turn.
    pub fn read_later(&mut self, client: &mut Client) {
        if !client.reading.is_queued && !client.is_closing() {
            client.reading.is_queued = true;
            self.to_read.push(client.id);
        }
    }

    /// Queues a client to be flushed at the end of this turn.
    #[inline]
    pub fn flush_later(&mut self, client: &mut Client) {
        if !client.is_flush_queued {
            client.is_flush_queued = true;
            self.to_flush.push(client.id);
        }
    }

    /// Gives a client a spare buffer for its output if it has none.
    #[inline]
    pub fn give_spare(&mut self, client: &mut Client) {
        if client.output.capacity() == 0
            && let Some(storage) = self.spare_buffers.pop()
        {
            client.output.give_storage(storage);
        }
    }

    /// Takes an idle client's empty buffer as a spare.
    pub fn keep_spare(&mut self, client: &mut Client) {
        let storage = client.output.take_storage();
        if is_worth_keeping(&self.spare_buffers, storage.capacity()) {
            self.spare_buffers.push(storage);
        }
    }

    /// Frees spare output buffers larger than `bytes`.
    pub fn drop_spare_buffers(&mut self, bytes: usize) {
        self.spare_buffers.retain(|buffer| buffer.capacity() <= bytes);
    }
}

/// Whether an empty buffer of this capacity is kept beside those that are kept already.
fn is_worth_keeping(kept: &[Vec<u8>], capacity: usize) -> bool {
    if kept.len() >= SPARE_BUFFERS {
        return false;
    }
    let is_large = |capacity: usize| capacity > LARGE_BYTES;
    let large = || kept.iter().filter(|other| is_large(other.capacity())).count();
    (1..=SPARE_BYTES_MAX).contains(&capacity)
        && (!is_large(capacity) || large() < LARGE_SPARE_BUFFERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_buffers_are_many_small_and_few_large_ones() {
        let keep = |sizes: &[usize]| {
            let mut kept = Vec::new();
            for &size in sizes {
                if is_worth_keeping(&kept, size) {
                    kept.push(Vec::with_capacity(size));
                }
            }
            kept.iter().map(Vec::capacity).sum::<usize>() >> 10
        };
        assert_eq!(keep(&[0, SPARE_BYTES_MAX + 1, usize::MAX]), 0);
        // Sixteen replies of 4 KB, for which a buffer has doubled.
        assert_eq!(keep(&[128 << 10]), 128);
        assert_eq!(keep(&[SPARE_BYTES_MAX; 20]), 8 * 256);
        assert_eq!(keep(&[LARGE_BYTES; 100]), 64 * 64);
        let mixed: Vec<_> = [SPARE_BYTES_MAX, 1024].into_iter().cycle().take(40).collect();
        assert_eq!(keep(&mixed), 8 * 256 + 20);
    }
}
