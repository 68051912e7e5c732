//! A table made of all its entries at once: the pages have their final number and size before the first entry comes, so that none
//! of them is split or moved.

use super::page::{ENTRY_MAX, Page};
use super::{Entry, Form, LOAD_MAX, NUMBER, PackedTable, page_of};
use crate::collections::hash::KeyHasher;

/// What takes entries one by one; false: it has an entry with this field already.
pub type Take<'a> = dyn FnMut(Entry<'_>) -> bool + 'a;

/// What a page will hold.
#[derive(Clone, Copy, Default)]
struct Size {
    entries: u32,
    bytes: u32,
}

impl PackedTable {
    /// A spread table of `count` entries. `walk` shows them, all and in the same way each of the two times that it is called; that a
    /// field comes twice it is told the second time. Errors: those of `walk`.
    pub fn build<E>(
        hasher: KeyHasher,
        form: Form,
        count: usize,
        mut walk: impl FnMut(&mut Take<'_>) -> Result<(), E>,
    ) -> Result<PackedTable, E> {
        let mut sizes = vec![Size::default(); count.div_ceil(LOAD_MAX).max(1)];
        walk(&mut |entry| {
            let page = page_of(hasher.hash(entry.field), sizes.len());
            let size = &mut sizes[page];
            let len = form.len_of(entry);
            size.entries += 1;
            size.bytes += if len > ENTRY_MAX { NUMBER } else { len } as u32;
            true
        })?;
        let mut table = PackedTable::new(hasher, form);
        table.is_ordered = false;
        table.pages.pop();
        for size in sizes {
            let page = Page::with_room(size.entries as usize, size.bytes as usize);
            table.heap_bytes += page.heap_bytes();
            table.pages.push(page);
        }
        walk(&mut |entry| table.add(entry))?;
        Ok(table)
    }
}
