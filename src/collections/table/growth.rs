//! Growing, splitting, shrinking and merging segments; the directory.

use super::walk::Progress;
use super::*;

/// The way to shrink a sparse segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shrinking {
    None,
    /// To this many blocks.
    Resize(usize),
    /// These two siblings are merged.
    Merge(u32, u32),
}

/// Most entries of a segment in a table sized for expected keys: 90% of those at which it splits.
/// Uniform hashes fill segments so evenly that few of them will split.
const EXPECTED_MAX: usize = BLOCKS_MAX * BLOCK_FULL * 9 / 10;

impl<O> Table<O> {
    /// Gives an empty table its size for `keys` keys: rehashing on the way there would take a
    /// quarter of the time of filling it. Allocates some ten bytes a key at once: the caller must
    /// bound `keys`. [`Self::fit`] undoes too much.
    pub fn expect(&mut self, keys: usize) {
        if !self.directory.is_empty() || keys <= BLOCK_FULL {
            return;
        }
        let mut depth = 0;
        while keys >> depth > EXPECTED_MAX && depth < DEPTH_MAX {
            depth += 1;
        }
        let blocks = blocks_for(keys >> depth, BLOCK_FULL).min(BLOCKS_MAX);
        self.depth = depth;
        for prefix in 0..1 << depth {
            let id = self.add_segment(prefix, depth);
            self.directory.push(id);
            self.fill_segment(id, blocks, &[]);
        }
        self.outdate_slots();
    }

    /// Frees room reserved for keys that were not added. Not while the table is being iterated.
    pub fn fit(&mut self) {
        if self.is_walked() {
            return;
        }
        loop {
            let segments = self.segments;
            for id in (0..segments).rev() {
                // Merging moves the last segment to the freed number.
                if id < self.segments {
                    let plan = self.plan_fitting(id, self.segment(id).len as usize);
                    self.carry_out(id, plan);
                }
            }
            if self.segments == segments {
                break;
            }
        }
        self.outdate_slots();
    }

    /// The segment of a hash, with room for one more entry.
    pub(super) fn make_room(&mut self, hash: u64) -> u32 {
        loop {
            let Some(id) = self.segment_of(hash) else {
                let id = self.add_segment(0, 0);
                self.directory.push(id);
                self.rebuild(id, 1);
                return id;
            };
            let segment = self.segment(id);
            let (blocks, depth) = (segment.block_count(), segment.depth());
            if (segment.len as usize) < blocks * BLOCK_FULL {
                return id;
            }
            if blocks < BLOCKS_MAX {
                self.resize(id, blocks + 1);
            } else if self.may_split(depth) {
                self.split(id);
            } else {
                // In steps of a quarter, so that all rebuilding together is proportional to the
                // number of keys.
                self.resize(id, blocks + blocks / 4);
            }
        }
    }

    pub(super) fn may_split(&self, depth: u32) -> bool {
        let slots = self.directory.len();
        depth < self.depth || depth < DEPTH_MAX && slots <= DIRECTORY_SLACK * self.segments as usize
    }

    /// Moves the entries of a segment to another number of blocks.
    pub(super) fn resize(&mut self, id: u32, blocks: usize) {
        self.gather(id, |tag| tag);
        self.rebuild(id, blocks);
    }

    /// Appends a segment's entries to the buffer, with hints, converted tags and valid marks. The
    /// segment must then be rebuilt or released.
    pub(super) fn gather(&mut self, id: u32, convert: impl Fn(u16) -> u16) {
        let progress = self.progress(id);
        let (chunk, index) = (&self.chunks[id as usize / CHUNK], id as usize % CHUNK);
        let (segment, annex) = (&chunk.segments[index], &chunk.annexes[index]);
        let moving = &mut self.moving[0];
        moving.reserve_exact(segment.len as usize);
        let blocks = segment.blocks.iter().flatten().map(|block| &**block);
        let buckets = blocks.chain(&annex.extra).flat_map(|block| &block.0);
        let hints = annex.hints.iter().copied().chain(iter::repeat(NEVER));
        for (bucket, bucket_hint) in buckets.zip(hints) {
            for slot in bucket.occupied() {
                let (tag, link) = (convert(bucket.tag(slot)), bucket.link(slot));
                let link = link.marked(progress.has_shown(link));
                let hint = if link.is_volatile() { bucket_hint } else { NEVER };
                moving.push(Moving { link, tag, hint });
            }
        }
    }

    /// Makes the buffer's entries the content of a segment.
    pub(super) fn rebuild(&mut self, id: u32, blocks: usize) {
        let moving = mem::take(&mut self.moving[0]);
        self.fill_segment(id, blocks, &moving);
        self.recycle(0, moving);
    }

    pub(super) fn recycle(&mut self, index: usize, mut moving: Vec<Moving>) {
        moving.clear();
        moving.shrink_to(2 * BLOCKS_MAX * BLOCK_FULL);
        self.moving[index] = moving;
    }

    pub(super) fn fill_segment(&mut self, id: u32, blocks: usize, moving: &[Moving]) {
        let mut fill = mem::take(&mut self.fill);
        let (chunk, index) = self.chunk_mut(id);
        let segment = &mut chunk.segments[index];
        let (old_blocks, old_hints) = (segment.block_count(), chunk.annexes[index].hints.len());
        for (number, block) in segment.blocks.iter_mut().enumerate() {
            match block {
                Some(_) if number >= blocks => *block = None,
                Some(block) => block.0.iter_mut().for_each(Bucket::clear),
                None if number < blocks => *block = Some(Box::new(Block::EMPTY)),
                None => {}
            }
        }
        let annex = &mut chunk.annexes[index];
        annex.extra.iter_mut().for_each(|block| block.0.iter_mut().for_each(Bucket::clear));
        annex.extra.resize_with(blocks.saturating_sub(BLOCKS_MAX), || Block::EMPTY);
        annex.extra.shrink_to(2 * annex.extra.len());
        segment.set_shape(segment.depth(), blocks);
        segment.len = moving.len() as u32;
        annex.volatile = moving.iter().map(|moving| u32::from(moving.link.is_volatile())).sum();
        let hints = if annex.volatile > 0 { segment.buckets() } else { 0 };
        if hints == old_hints {
            annex.hints.fill(NEVER);
        } else {
            annex.hints = vec![NEVER; hints].into_boxed_slice();
        }

        // Separate counters: searching for an empty slot in tags just written would take a third
        // longer.
        let buckets = segment.buckets();
        fill.clear();
        fill.resize(buckets, 0);
        let fill_of = &mut fill[..buckets];
        let hints_of = &mut annex.hints[..hints];
        let mut blocks_of: SmallVec<[&mut Block; BLOCKS_MAX]> = SmallVec::new();
        blocks_of.extend(segment.blocks.iter_mut().flatten().map(|block| &mut **block));
        blocks_of.extend(&mut annex.extra);
        for moving in moving {
            let mut at = (usize::from(moving.tag) * buckets) >> 16;
            while usize::from(fill_of[at]) == SLOTS {
                at = if at + 1 == buckets { 0 } else { at + 1 };
            }
            let slot = usize::from(fill_of[at]) % SLOTS;
            fill_of[at] += 1;
            let bucket = &mut blocks_of[at / BLOCK_BUCKETS].0[at % BLOCK_BUCKETS];
            bucket.set(slot, moving.tag, moving.link);
            if moving.hint != NEVER {
                hints_of[at] = moving.hint.min(hints_of[at]);
            }
        }
        drop(blocks_of);
        self.fill = fill;
        self.segment_bytes += blocks * size_of::<Block>() + hints * size_of::<u32>();
        self.segment_bytes -= old_blocks * size_of::<Block>() + old_hints * size_of::<u32>();
        let (chunk, index) = self.chunk_mut(id);
        chunk.minima[index] = NEVER;
        self.carry_up(id);
    }

    /// Updates the parents' hints from a segment's buckets.
    pub(super) fn carry_up(&mut self, id: u32) {
        let (chunk, index) = self.chunk_mut(id);
        let hint = earliest(&chunk.annexes[index].hints);
        self.lower(id, hint);
    }

    /// Splits a segment by the next bit of the hashes, which must be computed again: tags have no
    /// spare bit.
    pub(super) fn split(&mut self, id: u32) {
        self.gather(id, |tag| tag);
        let gathered = mem::take(&mut self.moving[0]);
        let mut upper = mem::take(&mut self.moving[1]);
        let mut lower = Vec::with_capacity(gathered.len());
        let depth = self.segment(id).depth() + 1;
        // The keys are all over the memory: prefetch some.
        const AHEAD: usize = 16;
        gathered.iter().take(AHEAD).for_each(|moving| moving.link.prefetch());
        for (number, &Moving { link, hint, .. }) in gathered.iter().enumerate() {
            if let Some(later) = gathered.get(number + AHEAD) {
                later.link.prefetch();
            }
            // SAFETY: the entry is alive; the borrow ends here.
            let hash = self.hash(unsafe { link.entry().key() });
            // The entry was just read, so its exact deadline replaces the bucket's hint.
            let hint = link.entry().deadline().map_or(hint, |deadline| self.hint_of(deadline));
            let half = if prefix_of(hash, depth) & 1 == 0 { &mut lower } else { &mut upper };
            half.push(Moving { link, tag: tag_of(hash, depth), hint });
        }
        self.recycle(0, gathered);

        let (chunk, index) = self.chunk_mut(id);
        let shown = chunk.annexes[index].shown;
        let prefix = chunk.annexes[index].prefix << 1;
        chunk.annexes[index].prefix = prefix;
        let blocks = chunk.segments[index].block_count();
        chunk.segments[index].set_shape(depth, blocks);
        self.depth_counts[depth as usize - 1] -= 1;
        self.depth_counts[depth as usize] += 1;
        if depth > self.depth {
            self.double_directory();
        }
        let new = self.add_segment(prefix | 1, depth);
        let (chunk, index) = self.chunk_mut(new);
        chunk.annexes[index].shown = shown;
        self.fill_segment(id, blocks_for(lower.len(), BLOCK_FULL), &lower);
        self.fill_segment(new, blocks_for(upper.len(), BLOCK_FULL), &upper);
        self.recycle(1, upper);
        self.direct(new);
    }

    /// Shrinks a sparse segment.
    pub(super) fn shrink(&mut self, id: u32) {
        let plan = self.plan_shrinking(id, self.segment(id).len as usize);
        self.carry_out(id, plan);
    }

    fn carry_out(&mut self, id: u32, plan: Shrinking) {
        match plan {
            Shrinking::None => {}
            Shrinking::Resize(blocks) => self.resize(id, blocks),
            Shrinking::Merge(lower, upper) => self.merge(lower, upper),
        }
    }

    /// The way to shrink a segment with `len` entries left.
    #[inline]
    pub(super) fn plan_shrinking(&self, id: u32, len: usize) -> Shrinking {
        // For a segment of one block only at every 16th removal, because the sibling is a cache
        // miss.
        if self.segment(id).block_count() == 1 && !len.is_multiple_of(16) {
            return Shrinking::None;
        }
        self.plan_fitting(id, len)
    }

    /// As [`Self::plan_shrinking`], at any cost.
    #[inline]
    fn plan_fitting(&self, id: u32, len: usize) -> Shrinking {
        let (chunk, index) = self.chunk(id);
        let segment = &chunk.segments[index];
        let (blocks, depth) = (segment.block_count(), segment.depth());
        if len > blocks * BLOCK_SPARSE {
            return Shrinking::None;
        }
        if depth > 0 {
            let prefix = chunk.annexes[index].prefix;
            let sibling = self.directory[((prefix ^ 1) as usize) << (self.depth - depth)];
            let other = self.segment(sibling);
            if other.depth() == depth && len + other.len as usize <= MERGE_MAX {
                return match prefix & 1 {
                    0 => Shrinking::Merge(id, sibling),
                    _ => Shrinking::Merge(sibling, id),
                };
            }
        }
        let wanted = blocks_for(len, BLOCK_EASY);
        if wanted < blocks { Shrinking::Resize(wanted) } else { Shrinking::None }
    }

    /// Merges two siblings, by tags alone.
    pub(super) fn merge(&mut self, lower: u32, upper: u32) {
        self.gather(lower, |tag| (tag >> 1).max(1));
        self.gather(upper, |tag| tag >> 1 | 1 << 15);
        let progress = (self.progress(lower), self.progress(upper));
        if progress.0 != progress.1 {
            self.set_progress(lower, Progress::Marked);
        }
        let depth = self.segment(lower).depth() - 1;
        let (chunk, index) = self.chunk_mut(lower);
        chunk.annexes[index].prefix >>= 1;
        let blocks = chunk.segments[index].block_count();
        chunk.segments[index].set_shape(depth, blocks);
        self.depth_counts[depth as usize + 1] -= 1;
        self.depth_counts[depth as usize] += 1;
        self.direct(lower);
        self.rebuild(lower, blocks_for(self.moving[0].len(), BLOCK_EASY));
        self.release_segment(upper);
        // One level of slack, so that splitting and merging the same segment does not resize the
        // directory.
        let deepest = self.depth as usize;
        if deepest >= 2 && self.depth_counts[deepest] == 0 && self.depth_counts[deepest - 1] == 0 {
            self.directory = self.directory.iter().step_by(2).copied().collect();
            self.depth -= 1;
        }
    }

    pub(super) fn double_directory(&mut self) {
        let mut directory = Vec::with_capacity(self.directory.len() * 2);
        directory.extend(self.directory.iter().flat_map(|&id| [id, id]));
        self.directory = directory;
        self.depth += 1;
    }

    /// Sets the directory's slots of a segment's prefix.
    pub(super) fn direct(&mut self, id: u32) {
        let (chunk, index) = self.chunk(id);
        let shift = self.depth - chunk.segments[index].depth();
        let first = (chunk.annexes[index].prefix as usize) << shift;
        self.directory[first..first + (1 << shift)].fill(id);
    }

    /// Adds a segment without blocks, which is not in the directory yet.
    pub(super) fn add_segment(&mut self, prefix: u32, depth: u32) -> u32 {
        let id = self.segments;
        if id as usize / CHUNK == self.chunks.len() {
            self.chunks.push(Chunk::new());
            self.chunk_minima.push(NEVER);
        }
        self.segments += 1;
        self.depth_counts[depth as usize] += 1;
        let (chunk, index) = self.chunk_mut(id);
        chunk.segments[index].set_shape(depth, 0);
        chunk.annexes[index].prefix = prefix;
        // A table's first segment only gets entries newer than the iteration.
        self.set_progress(id, Progress::All);
        id
    }

    /// Frees a segment whose entries were moved. The last one gets its number, so that numbers have
    /// no gaps.
    pub(super) fn release_segment(&mut self, id: u32) {
        let (chunk, index) = self.chunk_mut(id);
        let segment = mem::replace(&mut chunk.segments[index], Segment::new());
        let annex = &mut chunk.annexes[index];
        let hints = mem::take(&mut annex.hints);
        annex.extra = Vec::new();
        annex.volatile = 0;
        chunk.minima[index] = NEVER;
        self.depth_counts[segment.depth() as usize] -= 1;
        self.segment_bytes -= segment.block_count() * size_of::<Block>() + size_of_val(&*hints);

        self.segments -= 1;
        let last = self.segments;
        if last != id {
            let (chunk, index) = self.chunk_mut(last);
            let segment = mem::replace(&mut chunk.segments[index], Segment::new());
            let annex = Annex {
                prefix: chunk.annexes[index].prefix,
                volatile: mem::take(&mut chunk.annexes[index].volatile),
                hints: mem::take(&mut chunk.annexes[index].hints),
                extra: mem::take(&mut chunk.annexes[index].extra),
                shown: mem::take(&mut chunk.annexes[index].shown),
            };
            let minimum = mem::replace(&mut chunk.minima[index], NEVER);
            let (chunk, index) = self.chunk_mut(id);
            chunk.segments[index] = segment;
            chunk.annexes[index] = annex;
            self.lower(id, minimum);
            self.direct(id);
        }
        // One chunk is kept for the next split.
        if self.chunks.len() > self.segments.div_ceil(CHUNK as u32) as usize + 1 {
            self.chunks.pop();
            self.chunk_minima.pop();
        }
    }
}
