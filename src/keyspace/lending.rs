//! Lending stored bytes to outputs, instead of copying them.

use super::{Key, Keyspace};
use crate::collections::lent::Lender;
use crate::collections::table::{Slot, ValueRef};
use crate::error::CommandError;
use crate::types::{Collection, Value};

impl Keyspace {
    /// Calls `lend` with the value at `slot` and a lender: an output can refer to the value's bytes
    /// until the value changes or the turn ends, and copies them then if it still has to.
    pub fn lend<R>(
        &mut self,
        slot: Slot,
        lend: impl for<'x> FnOnce(ValueRef<'x, Value>, &mut Lender<'x, '_>) -> R,
    ) -> R {
        self.tables.lend(self.selected, slot, lend)
    }

    /// The same with a collection that a command reads. None: there is no key. Errors: WRONGTYPE.
    pub fn lend_read<C: Collection, R>(
        &mut self,
        key: Key<'_>,
        lend: impl for<'x> FnOnce(C::View<'x>, &mut Lender<'x, '_>) -> R,
    ) -> Result<Option<R>, CommandError> {
        let Some(slot) = self.find_for_read(key) else { return Ok(None) };
        self.lend(slot, |value, lender| C::view(value).map(|view| lend(view, lender)))
            .map(Some)
            .ok_or(CommandError::WrongType)
    }

    /// At the end of a turn, when the outputs have been written.
    pub fn end_loans(&mut self) {
        self.tables.end_loans();
    }
}
