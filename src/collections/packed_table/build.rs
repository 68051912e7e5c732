//! Building a table from all its entries: the pages get their final number and size before the
//! first entry is added, so that none is split or moved.

use super::page::{ENTRY_MAX, Page};
use super::{Entry, Form, LOAD_MAX, NUMBER, PackedTable, page_of};
use crate::collections::hash::KeyHasher;
use crate::collections::prefetch::prefetch;

/// Each step towards an entry's page begins this number of entries ahead: places of pages, pages,
/// room in them.
const AHEAD: usize = 8;

/// Receives entries one by one; false: the field exists already.
pub type Take<'a> = dyn FnMut(Entry<'_>) -> bool + 'a;

/// The content planned for a page.
#[derive(Clone, Copy, Default)]
struct Size {
    entries: usize,
    bytes: usize,
}

impl PackedTable {
    /// A spread table of `count` entries. `walk` is called twice and must pass the same entries
    /// each time; the second time, [`Take`] returns false for duplicate fields. Errors: those of
    /// `walk`.
    pub fn build<E>(
        hasher: KeyHasher,
        form: Form,
        count: usize,
        mut walk: impl FnMut(&mut Take<'_>) -> Result<(), E>,
    ) -> Result<PackedTable, E> {
        let mut sizes = vec![Size::default(); count.div_ceil(LOAD_MAX).max(1)];
        // Used only to look ahead.
        let mut pages: Vec<u32> = Vec::new();
        walk(&mut |entry| {
            let page = page_of(hasher.hash(entry.field), sizes.len());
            let size = &mut sizes[page];
            let len = form.len_of(entry);
            pages.push(page as u32);
            size.entries += 1;
            size.bytes += if len > ENTRY_MAX { NUMBER } else { len };
            true
        })?;
        let mut table = PackedTable::new(hasher, form);
        table.is_ordered = false;
        table.pages.pop();
        for size in sizes {
            let page = Page::with_room(size.entries, size.bytes);
            table.heap_bytes += page.heap_bytes();
            table.pages.push(page);
        }
        let mut number = 0;
        walk(&mut |entry| {
            table.look_ahead(&pages, number);
            number += 1;
            table.add(entry)
        })?;
        Ok(table)
    }

    /// Prefetches memory for the entries after `number`: alone each of them would wait for memory
    /// three times.
    #[inline]
    fn look_ahead(&self, pages: &[u32], number: usize) {
        let page = |ahead: usize| Some(&self.pages[*pages.get(number + ahead)? as usize]);
        if let Some(page) = page(3 * AHEAD) {
            prefetch(std::ptr::from_ref(page).addr());
        }
        if let Some(page) = page(2 * AHEAD) {
            page.prefetch_slots();
        }
        if let Some(page) = page(AHEAD) {
            page.prefetch_room();
        }
    }
}
