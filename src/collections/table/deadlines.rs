//! The tree of minima over the buckets: recording deadlines, and finding passed ones.

use super::*;

/// The time after which a due key that is kept is checked again. Unit: milliseconds.
pub const KEPT_MS: u32 = 1_000;

impl<O> Table<O> {
    /// A deadline's hint. One on the wall clock is a millisecond early, because the difference of
    /// the clocks, rounded to milliseconds, varies by one.
    pub(super) fn hint_of(&self, deadline: Deadline) -> u32 {
        let boot_ms = deadline.boot_ms(self.wall_offset_ms);
        let early =
            if boot_ms == deadline.boot_ms(self.wall_offset_ms.saturating_add(1)) { 0 } else { 1 };
        self.relative(boot_ms.saturating_sub(early))
    }

    pub(super) fn relative(&self, boot_ms: i64) -> u32 {
        boot_ms.saturating_sub(self.base_ms).clamp(0, i64::from(FAR)) as u32
    }

    /// Lowers the hints of a bucket and its parents.
    pub(super) fn note(&mut self, id: u32, bucket: usize, hint: u32) {
        let (chunk, index) = self.chunk_mut(id);
        let buckets = chunk.segments[index].buckets();
        let hints = &mut chunk.annexes[index].hints;
        let fresh = hints.is_empty();
        if fresh {
            *hints = vec![NEVER; buckets].into_boxed_slice();
        }
        let lowered = hint < hints[bucket];
        if lowered {
            hints[bucket] = hint;
        }
        if fresh {
            self.segment_bytes += buckets * size_of::<u32>();
        }
        if lowered {
            self.lower(id, hint);
        }
    }

    /// Lowers the hints of a segment and its parents.
    pub(super) fn lower(&mut self, id: u32, hint: u32) {
        let (chunk, index) = self.chunk_mut(id);
        if hint < chunk.minima[index] {
            chunk.minima[index] = hint;
            let chunk_minimum = &mut self.chunk_minima[id as usize / CHUNK];
            *chunk_minimum = hint.min(*chunk_minimum);
            self.minimum = hint.min(self.minimum);
        }
    }

    /// The boot-time millisecond that must pass before any key is due: possibly too early (then
    /// `find_due` corrects it), too late only for keys that are kept. `None`: no key has a
    /// deadline.
    pub fn next_due_boot_ms(&self) -> Option<i64> {
        (self.volatile > 0 && self.minimum != NEVER).then(|| self.base_ms + i64::from(self.minimum))
    }

    /// Finds a key whose deadline has passed, to be removed. `budget`: how many buckets may be
    /// visited; deducted. `None` with budget left: no key is to be removed at `now`; without: there
    /// may be more. Moves no entry. `is_kept`: keys that stay though due; they are checked again
    /// after [`KEPT_MS`].
    pub fn find_due(
        &mut self,
        now: &Now,
        budget: &mut usize,
        is_kept: impl Fn(&[u8]) -> bool,
    ) -> Option<Slot> {
        self.set_wall_offset(now.wall_offset_ms());
        if now.boot_ms().saturating_sub(self.base_ms) > BASE_AGE_MAX_MS {
            let moved = now.boot_ms() - self.base_ms;
            self.base_ms = now.boot_ms();
            self.lower_all(moved);
        }
        if self.volatile == 0 {
            return None;
        }
        let now_hint = self.relative(now.boot_ms());
        loop {
            if self.minimum >= now_hint {
                return None;
            }
            let (before, from) =
                self.chunk_minima.split_at(self.due_chunk.min(self.chunk_minima.len()));
            let number = first_below(from, now_hint).map(|number| before.len() + number);
            let Some(number) = number.or_else(|| first_below(before, now_hint)) else {
                self.minimum = earliest(&self.chunk_minima);
                continue;
            };
            self.due_chunk = number;
            let chunk = &mut self.chunks[number];
            let Some(index) = first_below(&chunk.minima, now_hint) else {
                self.chunk_minima[number] = earliest(&chunk.minima);
                continue;
            };
            let Some(at) = first_below(&chunk.annexes[index].hints, now_hint) else {
                chunk.minima[index] = earliest(&chunk.annexes[index].hints);
                continue;
            };
            if *budget == 0 {
                return None;
            }
            *budget -= 1;
            let id = (number * CHUNK + index) as u32;
            match self.check_bucket(id, at, now, &is_kept) {
                Ok(slot) => return Some(slot),
                // A deadline that has not passed is not before now, despite the clocks' rounding.
                Err(NEVER) => self.set_hint(id, at, NEVER),
                Err(hint) => self.set_hint(id, at, hint.max(now_hint)),
            }
        }
    }

    /// A due key of a bucket, or otherwise the bucket's exact hint.
    pub(super) fn check_bucket(
        &self,
        id: u32,
        at: usize,
        now: &Now,
        is_kept: impl Fn(&[u8]) -> bool,
    ) -> Result<Slot, u32> {
        let (chunk, index) = self.chunk(id);
        let bucket = chunk.bucket(index, at);
        let volatile = || {
            bucket
                .occupied()
                .map(|slot| (slot, bucket.link(slot)))
                .filter(|(_, link)| link.is_volatile())
        };
        volatile().for_each(|(_, link)| link.prefetch());
        let mut hint = NEVER;
        for (slot, link) in volatile() {
            let entry = link.entry();
            let deadline = entry.deadline().expect("a volatile entry has a deadline");
            if !now.is_past(deadline) {
                hint = hint.min(self.hint_of(deadline));
                continue;
            }
            let slot = self.slot(id, at, slot);
            if !is_kept(self.entry(slot).key()) {
                return Ok(slot);
            }
            hint = hint.min(self.relative(now.boot_ms().saturating_add(KEPT_MS.into())));
        }
        Err(hint)
    }

    pub(super) fn set_hint(&mut self, id: u32, at: usize, hint: u32) {
        let (chunk, index) = self.chunk_mut(id);
        chunk.annexes[index].hints[at] = hint;
    }

    /// Sets how far the wall clock is ahead of the boot-time clock. If it was set forward, lowers
    /// all hints in one pass over about half a byte per key with a deadline.
    pub fn set_wall_offset(&mut self, wall_offset_ms: i64) {
        let ahead = wall_offset_ms.saturating_sub(self.wall_offset_ms);
        // `hint_of` allows for one millisecond of rounding.
        if ahead > 1 {
            self.lower_all(ahead);
        }
        if ahead != 1 {
            self.wall_offset_ms = wall_offset_ms;
        }
    }

    pub(super) fn lower_all(&mut self, ms: i64) {
        let ms = u32::try_from(ms).unwrap_or(u32::MAX);
        let lower = |hints: &mut [u32]| {
            for hint in hints {
                *hint = if *hint == NEVER { NEVER } else { hint.saturating_sub(ms) };
            }
        };
        for chunk in &mut self.chunks {
            lower(&mut chunk.minima);
            chunk.annexes.iter_mut().for_each(|annex| lower(&mut annex.hints));
        }
        lower(&mut self.chunk_minima);
        lower(std::slice::from_mut(&mut self.minimum));
    }
}
