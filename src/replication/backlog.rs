//! The end of the stream, kept once for all replicas, both connected ones and those that will
//! reconnect.
//!
//! Offsets count from 1, as in PSYNC. A backlog holds the bytes from [`Backlog::start`] up to
//! before [`Backlog::end`].

use std::collections::VecDeque;
use std::io::IoSlice;

/// Bytes of a block.
const BLOCK_BYTES: usize = 16 << 10;

/// A piece of the stream.
#[derive(Debug)]
struct Block {
    /// The offset of its first byte.
    start: u64,
    bytes: Vec<u8>,
}

impl Block {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

/// See the module.
#[derive(Debug)]
pub struct Backlog {
    /// Consecutive blocks. Each but the last has [`BLOCK_BYTES`] bytes, or was appended as a whole.
    blocks: VecDeque<Block>,
    end: u64,
    /// Bytes to keep at least.
    size: usize,
    /// Bytes of memory owned by the blocks.
    memory: usize,
}

impl Backlog {
    /// An empty backlog that keeps `size` bytes; the next byte has offset `start`.
    pub fn new(size: usize, start: u64) -> Self {
        Backlog { blocks: VecDeque::new(), end: start, size, memory: 0 }
    }

    /// The offset of the first byte held; [`Self::end`] if there is none.
    pub fn start(&self) -> u64 {
        self.blocks.front().map_or(self.end, |block| block.start)
    }

    /// The offset of the next byte to come.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes held.
    pub fn len(&self) -> u64 {
        self.end - self.start()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.memory + self.blocks.capacity() * size_of::<Block>()
    }

    /// Sets the number of bytes to keep, from the next [`Self::trim`] on.
    pub fn resize(&mut self, size: usize) {
        self.size = size;
    }

    /// Adds `by` to all offsets.
    pub fn rebase(&mut self, by: u64) {
        self.blocks.iter_mut().for_each(|block| block.start += by);
        self.end += by;
    }

    pub fn append(&mut self, mut bytes: &[u8]) {
        self.end += bytes.len() as u64;
        while !bytes.is_empty() {
            let space =
                self.blocks.back().map_or(0, |block| BLOCK_BYTES.saturating_sub(block.bytes.len()));
            if space == 0 {
                let start = self.end - bytes.len() as u64;
                self.push(Block { start, bytes: Vec::with_capacity(BLOCK_BYTES) });
                continue;
            }
            let (piece, rest) = bytes.split_at(space.min(bytes.len()));
            if let Some(block) = self.blocks.back_mut() {
                block.bytes.extend_from_slice(piece);
            }
            bytes = rest;
        }
    }

    /// Frees blocks beyond the size, except those from offset `needed` on, which some replica
    /// lacks.
    pub fn trim(&mut self, needed: Option<u64>) {
        let first = self.end.saturating_sub(self.size as u64).min(needed.unwrap_or(u64::MAX));
        while self.blocks.front().is_some_and(|block| block.end() <= first) {
            self.memory -= self.blocks.pop_front().map_or(0, |block| block.memory());
        }
        if self.blocks.capacity() > 4 * self.blocks.len().max(16) {
            self.blocks.shrink_to(2 * self.blocks.len());
        }
    }

    /// Appends bytes without copying them, as one block.
    pub fn append_owned(&mut self, bytes: Vec<u8>) {
        let start = self.end;
        self.end += bytes.len() as u64;
        if !bytes.is_empty() {
            self.push(Block { start, bytes });
        }
    }

    fn push(&mut self, block: Block) {
        self.memory += block.memory();
        self.blocks.push_back(block);
    }

    /// The bytes from offset `from` up to before `to`, as at most `pieces_max` pieces for a
    /// vectored write. None: they are not held.
    pub fn pieces(&self, from: u64, to: u64, pieces_max: usize) -> Option<Vec<IoSlice<'_>>> {
        if !(self.start()..=to).contains(&from) || to > self.end {
            return None;
        }
        let first = self.blocks.partition_point(|block| block.end() <= from);
        let blocks = self.blocks.range(first..).take_while(|block| block.start < to);
        let pieces = blocks.take(pieces_max).map(|block| {
            let skipped = from.saturating_sub(block.start) as usize;
            let last = (block.end().min(to) - block.start) as usize;
            IoSlice::new(&block.bytes[skipped..last])
        });
        Some(pieces.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(backlog: &Backlog, from: u64) -> Option<Vec<u8>> {
        let pieces = backlog.pieces(from, backlog.end(), usize::MAX)?;
        Some(pieces.iter().flat_map(|piece| piece.iter().copied()).collect())
    }

    proptest! {
        #[test]
        fn it_holds_the_end_of_the_appended_bytes(
            pieces in prop::collection::vec((0usize..40_000, any::<u8>()), 1..20),
            size in 1usize..100_000,
            needed in prop::option::of(1u64..200_000),
        ) {
            let (mut backlog, mut all) = (Backlog::new(size, 7), Vec::new());
            for (len, byte) in pieces {
                let piece = vec![byte; len];
                backlog.append(&piece);
                all.extend_from_slice(&piece);
                backlog.trim(needed);
                prop_assert_eq!(backlog.end(), 7 + all.len() as u64);
                let kept = backlog.len() as usize;
                prop_assert!(kept >= size.min(all.len()));
                let first_needed = needed.map_or(u64::MAX, |needed| needed.max(7));
                prop_assert!(first_needed > backlog.end() || first_needed >= backlog.start());
                if needed.is_none() {
                    prop_assert!(kept <= size + BLOCK_BYTES);
                }
                let tail = &all[all.len() - kept..];
                prop_assert_eq!(read(&backlog, backlog.start()), Some(tail.to_vec()));
                let held: usize = backlog.blocks.iter().map(Block::memory).sum();
                prop_assert_eq!(backlog.memory, held);
                let middle = backlog.start() + (kept / 2) as u64;
                prop_assert_eq!(read(&backlog, middle), Some(tail[kept / 2..].to_vec()));
                prop_assert_eq!(read(&backlog, backlog.end()), Some(Vec::new()));
                prop_assert_eq!(read(&backlog, backlog.end() + 1), None);
                prop_assert_eq!(read(&backlog, backlog.start() - 1), None);
                let part = backlog.pieces(backlog.start(), middle, usize::MAX);
                let part: Vec<u8> = part.iter().flatten().flat_map(|piece| piece.to_vec()).collect();
                prop_assert_eq!(part, tail[..kept / 2].to_vec());
            }
        }
    }
}
