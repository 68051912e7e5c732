//! Access to lists, hashes, sets, sorted sets and streams: typed look-ups, and changes that keep
//! small collections packed inside their entries.
//!
//! No events here: the handler calls [`Keyspace::changed`] with the event's name, and then
//! [`Keyspace::delete_if_empty`] if it may have removed the last element.

use crate::clock::Deadline;
use crate::collections::table::{NewValue, Slot, ValueRef};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::types::journal::Edit;
use crate::types::stream::{Entries, Groups, ProducerLimits, Producers, Stream};
use crate::types::{Collection, Stored, Value};

use super::{Expiry, Key, Keyspace};

impl Keyspace {
    /// A key's collection, for reading; None if the key does not exist. Counts the hit or miss and
    /// updates the access bits.
    #[inline]
    pub fn read<C: Collection>(
        &mut self,
        key: Key<'_>,
    ) -> Result<Option<C::View<'_>>, CommandError> {
        match self.find_for_read(key) {
            Some(slot) => self.view::<C>(slot).map(Some),
            None => Ok(None),
        }
    }

    /// The slot of a collection to be changed; None if the key does not exist. Errors: WRONGTYPE.
    #[inline]
    pub fn slot_of<C: Collection>(&mut self, key: Key<'_>) -> Result<Option<Slot>, CommandError> {
        let Some(slot) = self.find_for_write(key) else { return Ok(None) };
        self.view::<C>(slot)?;
        Ok(self.settle_fields(slot, key))
    }

    /// The collection at `slot`, or WRONGTYPE.
    #[inline]
    pub fn view<C: Collection>(&self, slot: Slot) -> Result<C::View<'_>, CommandError> {
        C::view(self.table().entry(slot).value()).ok_or(CommandError::WrongType)
    }

    /// Calls `edit` with the collection at `slot`, whose type [`Self::slot_of`] has checked. The
    /// slot stays valid. An emptied collection stays until [`Self::delete_if_empty`].
    pub fn edit<C: Collection, R>(
        &mut self,
        slot: Slot,
        edit: impl FnOnce(&mut Edit<'_, C>) -> R,
    ) -> R {
        if let Some((value, journal)) = self.tables.elements_mut(self.selected, slot) {
            let collection = C::boxed(value).expect("the type was checked when the slot was found");
            let is_noted = journal.is_some();
            let result = edit(&mut Edit::new(collection, journal));
            if is_noted {
                self.tables.end_elements();
            }
            return result;
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        let entry = self.tables[self.selected].entry(slot);
        let deadline = entry.deadline();
        let ValueRef::Bytes { bytes: packed, kind } = entry.value() else {
            unreachable!("what is no object lies in the entry");
        };
        bytes.clear();
        bytes.extend_from_slice(packed);
        let mut collection = C::unpack(kind, bytes);
        let result = edit(&mut Edit::unnoted(&mut collection));
        self.put(slot, collection.store(), deadline);
        result
    }

    fn put(
        &mut self,
        slot: Slot,
        stored: Stored,
        deadline: Option<Deadline>,
    ) -> Option<Box<Value>> {
        match stored {
            Stored::Inline { kind, bytes } => {
                let value = NewValue::Bytes { bytes: &bytes, kind };
                let old = self.tables.replace(self.selected, slot, value, deadline);
                self.scratch = bytes;
                old
            }
            Stored::Boxed(value) => self.tables.replace(
                self.selected,
                slot,
                NewValue::Object(Box::new(value)),
                deadline,
            ),
        }
    }

    /// A buffer for the packed elements of a collection that is inserted next.
    pub fn take_scratch(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.scratch)
    }

    /// Adds a collection under an absent key. Announces `new`.
    pub fn insert_collection<C: Collection>(&mut self, key: Key<'_>, collection: C) -> Slot {
        self.insert_collection_until(key, collection, None)
    }

    /// Adds a collection under an absent key, with a deadline. Announces `new`.
    pub fn insert_collection_until<C: Collection>(
        &mut self,
        key: Key<'_>,
        collection: C,
        deadline: Option<Deadline>,
    ) -> Slot {
        self.note_own_deadline(key.bytes, deadline);
        let slot = match collection.store() {
            Stored::Inline { kind, bytes } => {
                let slot = self.insert(key, NewValue::Bytes { bytes: &bytes, kind }, deadline);
                self.scratch = bytes;
                slot
            }
            Stored::Boxed(value) => {
                let slot = self.insert(key, NewValue::Object(Box::new(value)), deadline);
                self.note_moved_field_deadlines(slot, key.bytes);
                slot
            }
        };
        self.notify(KeyspaceEvents::NEW, "new", key.bytes);
        slot
    }

    /// Replaces a key's value by a collection: `found` is the slot of a look-up, None if the key is
    /// absent.
    pub fn set_collection<C: Collection>(
        &mut self,
        found: Option<Slot>,
        key: Key<'_>,
        collection: C,
        expiry: Expiry,
    ) {
        let slot = match found {
            Some(slot) => {
                let deadline = expiry.replacing(|| self.entry(slot).deadline());
                let before = self.type_to_announce(found);
                if let Some(old) = self.put(slot, collection.store(), deadline) {
                    self.lazyfree.discard_value(old);
                }
                self.note_moved_field_deadlines(slot, key.bytes);
                self.mark_access(slot);
                self.announce_overwritten(key, before);
                return;
            }
            None => self.insert_collection(key, collection),
        };
        if let Expiry::At(deadline) = expiry {
            self.set_deadline(slot, Some(deadline));
        }
    }

    /// Deletes the collection at `slot` if it is empty, and announces `del`. Counts no change:
    /// removing the last element was counted.
    pub fn delete_if_empty<C: Collection>(&mut self, slot: Slot, key: Key<'_>) -> bool {
        let is_empty = match self.tables.unchanged_object_mut(self.selected, slot) {
            Some(value) => C::boxed(value).is_some_and(|collection| collection.is_empty()),
            None => matches!(self.entry(slot).value(), ValueRef::Bytes { bytes: [], .. }),
        };
        if is_empty {
            if let Some(owned) = self.tables.remove(self.selected, slot) {
                self.lazyfree.discard(owned);
            }
            self.notify(KeyspaceEvents::GENERIC, "del", key.bytes);
        }
        is_empty
    }

    // ---- streams --------------------------------------------------------------------------------

    /// The stream at `slot`, or WRONGTYPE.
    pub fn stream_at(&self, slot: Slot) -> Result<&Stream, CommandError> {
        match self.table().entry(slot).value() {
            ValueRef::Object(Value::Stream(stream)) => Ok(stream),
            _ => Err(CommandError::WrongType),
        }
    }

    /// The groups of the stream at `slot`, for changing, and its entries. Errors: WRONGTYPE.
    pub fn groups_mut(&mut self, slot: Slot) -> Result<(&Entries, &mut Groups), CommandError> {
        match self.tables.groups_mut(self.selected, slot) {
            Some(stream) => Ok(stream.entries_and_groups()),
            None => Err(CommandError::WrongType),
        }
    }

    /// The producers of the stream at `slot`, for changing. `limits`: those of a stream that had
    /// none. Errors: WRONGTYPE.
    pub fn producers_mut(
        &mut self,
        slot: Slot,
        limits: ProducerLimits,
    ) -> Result<&mut Producers, CommandError> {
        self.may_have_producers = true;
        let stream = self.tables.groups_mut(self.selected, slot).ok_or(CommandError::WrongType)?;
        Ok(stream.producers.get_or_insert_with(|| Box::new(Producers::new(limits))))
    }

    /// Whether any stream may remember producers.
    pub fn may_have_producers(&self) -> bool {
        self.may_have_producers && self.tables.iter().any(|table| !table.is_empty())
    }

    /// Notes a value that came from elsewhere, with its producers.
    pub(super) fn note_loaded_producers(&mut self, slot: Slot) {
        if let Ok(Stream { producers: Some(_), .. }) = self.stream_at(slot) {
            self.may_have_producers = true;
        }
    }

    /// Calls `edit` with the entries of the stream at `slot`. Errors: WRONGTYPE.
    pub fn edit_entries<R>(
        &mut self,
        slot: Slot,
        edit: impl FnOnce(&mut Edit<'_, Entries>) -> R,
    ) -> Result<R, CommandError> {
        self.stream_at(slot)?;
        let Some((Value::Stream(stream), journal)) = self.tables.elements_mut(self.selected, slot)
        else {
            unreachable!("a stream was found there");
        };
        let is_noted = journal.is_some();
        let result = edit(&mut Edit::new(stream.entries_mut(), journal));
        if is_noted {
            self.tables.end_elements();
        }
        Ok(result)
    }

    /// Adds a stream under an absent key. Announces `new`.
    pub fn insert_stream(&mut self, key: Key<'_>, stream: Stream) -> Slot {
        let value = NewValue::Object(Box::new(Value::Stream(stream)));
        let slot = self.insert(key, value, None);
        self.notify(KeyspaceEvents::NEW, "new", key.bytes);
        slot
    }
}
