//! Lending values: an output may refer to an entry's value until the entry changes.
//!
//! Whatever changes or frees an entry ends its loans first. Moving an entry to another bucket does
//! not: its allocation stays.

use super::{RawEntry, Slot, Table, ValueRef};
use crate::collections::lent::{LENT_MIN, Lender};

impl<O> Table<O> {
    /// Calls `lend` with the value at a position and a lender of its bytes.
    pub fn lend<R>(
        &mut self,
        slot: Slot,
        lend: impl for<'x> FnOnce(ValueRef<'x, O>, &mut Lender<'x, '_>) -> R,
    ) -> R {
        let entry = self.link(slot).entry();
        // SAFETY: an occupied slot's entry is alive, has this table's `O`, and is not changed while
        // `lend` runs. What lives for `'x` is the value's or lives for ever, because `lend` must
        // work for all lifetimes. Every change of the entry ends its loans before.
        unsafe {
            let mut lender = self.loans.lender(entry.to_address());
            lend(entry.value(), &mut lender)
        }
    }

    #[inline]
    pub fn has_loans(&self) -> bool {
        !self.loans.is_empty()
    }

    /// Ends all loans: the outputs copy what they still need.
    pub fn end_loans(&mut self) {
        self.loans.end_all();
    }

    /// Ends the loans of an entry that is about to change.
    #[inline]
    pub(super) fn end_loans_of(&mut self, entry: RawEntry) {
        if self.has_loans() && may_be_lent::<O>(entry) {
            self.loans.end_of(entry.to_address());
        }
    }
}

/// Whether an entry's value is long enough to be lent.
#[cold]
fn may_be_lent<O>(entry: RawEntry) -> bool {
    // SAFETY: the caller found the entry in its table, which has this `O`, and has not changed it.
    match unsafe { entry.value::<O>() } {
        ValueRef::Bytes { bytes, .. } => bytes.len() >= LENT_MIN,
        ValueRef::Object(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Deadline;
    use crate::collections::hash::KeyHasher;
    use crate::collections::lent::Lent;
    use crate::collections::table::{NewValue, Owned};

    type Strings = Table<Vec<u8>>;

    fn lent(table: &mut Strings, slot: Slot) -> Lent {
        let lent = table.lend(slot, |value, lender| {
            lender.lend(match value {
                ValueRef::Bytes { bytes, .. } => bytes,
                ValueRef::Object(object) => object,
            })
        });
        lent.expect("it is long")
    }

    #[test]
    fn whatever_changes_an_entry_ends_its_loans_first() {
        let old = vec![1; LENT_MIN];
        let new = vec![2; LENT_MIN];
        type Change = fn(&mut Strings, Slot, &[u8]);
        let changes: [Change; 10] = [
            |table, slot, new| {
                if let Some(bytes) = table.bytes_mut(slot) {
                    bytes.copy_from_slice(new);
                }
            },
            |table, slot, new| {
                if let Some(object) = table.object_mut(slot) {
                    object.copy_from_slice(new);
                }
            },
            |table, slot, _| table.resize_bytes(slot, 4 * LENT_MIN, 1).fill(2),
            |table, slot, new| {
                table.replace(slot, NewValue::Bytes { bytes: new, kind: 0 }, None);
            },
            |table, slot, new| {
                let new = NewValue::Bytes { bytes: new, kind: 0 };
                drop(table.exchange(slot, Owned::make(b"key", new, None, 0)));
            },
            |table, slot, _| {
                table.set_deadline(slot, Some(Deadline::from_bits(8)));
            },
            |table, slot, _| drop(table.remove(slot)),
            |table, _, _| drop(table.clear()),
            |table, _, _| drop(table.take()),
            |table, _, _| *table = Table::new(KeyHasher::new([1, 2]), 0),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            for is_object in [false, true] {
                let mut table = Strings::new(KeyHasher::new([1, 2]), 0);
                let value = match is_object {
                    true => NewValue::Object(Box::new(old.clone())),
                    false => NewValue::Bytes { bytes: &old, kind: 0 },
                };
                let slot = table.insert(table.hash(b"key"), b"key", value, None, 0);
                let shown = lent(&mut table, slot);
                change(&mut table, slot, &new);
                assert!(!table.has_loans(), "change {number}");
                // Freed memory is used again.
                let fillers: Vec<_> = (0..8).map(|_| vec![3u8; LENT_MIN + 24]).collect();
                assert!(*shown.bytes(0) == old, "change {number}, object: {is_object}");
                drop(fillers);
            }
        }
    }
}
