//! A key with its value, deadline and access bits in a single heap allocation.
//!
//! All sizes are multiples of 8 and aligned to 8, to fit the allocator's 8-byte size classes
//! exactly. The first eight bytes, as a little-endian number, describe the rest:
//!
//! ```text
//!             bits 0-1  2         3       4-7   ..                                    header bytes
//!   tiny      0 or 1    deadline  3-8 key length  9-15 value length  16-39 access      5
//!   short     2         deadline  object  kind  8-31 access  32-47 key  48-63 value    8
//!   long      3         deadline  object  kind  8-31 access                           24 (two u64 lengths follow)
//!
//!   header | deadline (8 bytes, if any; always reserved in the long form) | key | value
//! ```
//!
//! The five bytes of the tiny form (0: bytes, 1: object) fit a 16-byte key with a 3-byte value into
//! 24 bytes. The long form reserves the deadline so that EXPIRE never moves a large value. An
//! object's value is its box's pointer.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ptr::{self, NonNull};
use std::slice;

use crate::clock::Deadline;

const TINY_BYTES: u64 = 0;
const TINY_OBJECT: u64 = 1;
const SHORT: u64 = 2;
const LONG: u64 = 3;

const DEADLINE: u64 = 1 << 2;
const OBJECT: u64 = 1 << 3;
const KIND_SHIFT: u32 = 4;
/// The largest kind of bytes that an entry can store.
pub const KIND_MAX: u8 = 15;

const ACCESS: u64 = 0xff_ffff;
const POINTER_BYTES: usize = size_of::<usize>();

/// A value to be added to the table.
pub enum NewValue<'v, O> {
    /// Bytes, copied into the entry. `kind` is the caller's, at most [`KIND_MAX`]; only kind 0 can
    /// have the tiny form.
    Bytes { bytes: &'v [u8], kind: u8 },
    /// Any other type, in a box.
    Object(Box<O>),
}

/// A value in the table.
pub enum ValueRef<'t, O> {
    /// Bytes and their kind.
    Bytes { bytes: &'t [u8], kind: u8 },
    /// Any other type.
    Object(&'t O),
}

impl<O> Clone for ValueRef<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for ValueRef<'_, O> {}

/// The decoded header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    form: u64,
    deadline: bool,
    kind: u8,
    object: bool,
    key_len: usize,
    value_len: usize,
}

impl Shape {
    fn new(key_len: usize, value_len: usize, object: bool, kind: u8, deadline: bool) -> Shape {
        debug_assert!(kind <= KIND_MAX);
        let form = if key_len < 1 << 6 && value_len < 1 << 7 && kind == 0 {
            if object { TINY_OBJECT } else { TINY_BYTES }
        } else if key_len < 1 << 16 && value_len < 1 << 16 {
            SHORT
        } else {
            LONG
        };
        Shape { form, deadline, kind, object, key_len, value_len }
    }

    #[inline]
    fn deadline_offset(self) -> usize {
        match self.form {
            TINY_BYTES | TINY_OBJECT => 5,
            SHORT => 8,
            _ => 24,
        }
    }

    #[inline]
    fn key_offset(self) -> usize {
        let reserved = self.deadline || self.form == LONG;
        self.deadline_offset() + if reserved { 8 } else { 0 }
    }

    #[inline]
    fn value_offset(self) -> usize {
        self.key_offset() + self.key_len
    }

    /// The size and alignment of the allocation.
    fn layout(self) -> Layout {
        let size = self
            .value_offset()
            .checked_add(self.value_len)
            .and_then(|size| size.checked_next_multiple_of(8))
            .expect("the lengths of a key and a value fit in the address space together");
        Layout::from_size_align(size, 8).expect("an entry is smaller than the address space")
    }

    /// The first eight bytes; in a tiny header those after the fifth are zero and belong to the key
    /// or value.
    fn header(self, access: u32) -> u64 {
        let access = u64::from(access) & ACCESS;
        let deadline = if self.deadline { DEADLINE } else { 0 };
        let (key, value) = (self.key_len as u64, self.value_len as u64);
        let object = if self.object { OBJECT } else { 0 };
        let flags = object | u64::from(self.kind) << KIND_SHIFT;
        match self.form {
            TINY_BYTES | TINY_OBJECT => self.form | deadline | key << 3 | value << 9 | access << 16,
            SHORT => SHORT | deadline | flags | access << 8 | key << 32 | value << 48,
            _ => LONG | deadline | flags | access << 8,
        }
    }
}

/// The address of an entry's allocation. Copies of it do not own the entry: the table's buckets and
/// [`Owned`] do.
///
/// Invariant: it came from [`RawEntry::new`] and was not freed since.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RawEntry(NonNull<u8>);

impl RawEntry {
    /// Allocates an entry. Key, value and deadline are copied; a box is moved in.
    pub(super) fn new<O>(
        key: &[u8],
        value: NewValue<'_, O>,
        deadline: Option<Deadline>,
        access: u32,
    ) -> RawEntry {
        let shape = shape_for(key.len(), &value, deadline);
        let entry = RawEntry::allocate(shape.layout());
        // SAFETY: freshly allocated for this shape; `key` cannot lie in it.
        unsafe {
            entry.write_header(shape, access);
            entry.write_deadline(shape, deadline);
            ptr::copy_nonoverlapping(key.as_ptr(), entry.at(shape.key_offset()), key.len());
            entry.write_value(shape, value);
        }
        entry
    }

    fn allocate(layout: Layout) -> RawEntry {
        // SAFETY: a layout of an entry is never of size zero: the header is part of it.
        let pointer = unsafe { alloc(layout) };
        NonNull::new(pointer).map_or_else(|| handle_alloc_error(layout), RawEntry)
    }

    /// The address as a number of 48 bits, divisible by 8.
    #[inline]
    pub(super) fn to_address(self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// # Safety
    /// `address` came from `to_address` of an entry that was not freed since.
    #[inline]
    pub(super) unsafe fn from_address(address: u64) -> RawEntry {
        let pointer = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the address of an allocation is never zero.
        RawEntry(unsafe { NonNull::new_unchecked(pointer) })
    }

    /// # Safety
    /// `offset` lies within the allocation.
    #[inline]
    unsafe fn at(self, offset: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.0.as_ptr().add(offset) }
    }

    #[inline]
    fn header(self) -> u64 {
        // SAFETY: every allocation has at least eight bytes, all of them written by `write_header`;
        // aligned to 8.
        u64::from_le(unsafe { self.0.cast::<u64>().read() })
    }

    #[inline]
    fn shape(self) -> Shape {
        let header = self.header();
        let form = header & 3;
        let deadline = header & DEADLINE != 0;
        let object = header & OBJECT != 0;
        let kind = (header >> KIND_SHIFT) as u8 & KIND_MAX;
        match form {
            TINY_BYTES | TINY_OBJECT => Shape {
                form,
                deadline,
                kind: 0,
                object: form == TINY_OBJECT,
                key_len: (header >> 3 & 0x3f) as usize,
                value_len: (header >> 9 & 0x7f) as usize,
            },
            SHORT => Shape {
                form,
                deadline,
                kind,
                object,
                key_len: (header >> 32 & 0xffff) as usize,
                value_len: (header >> 48) as usize,
            },
            _ => {
                // SAFETY: the long header has 24 bytes, written by `write_header`.
                let (key_len, value_len) = unsafe {
                    (
                        self.at(8).cast::<u64>().read() as usize,
                        self.at(16).cast::<u64>().read() as usize,
                    )
                };
                Shape { form, deadline, kind, object, key_len, value_len }
            }
        }
    }

    /// # Safety
    /// The allocation has the shape's layout. Overwrites the first 8 (long: 24) bytes: in the tiny
    /// form also three of the following bytes, which must be written afterwards.
    unsafe fn write_header(self, shape: Shape, access: u32) {
        // SAFETY: as the caller promises.
        unsafe {
            self.0.cast::<u64>().write(shape.header(access).to_le());
            if shape.form == LONG {
                self.at(8).cast::<u64>().write(shape.key_len as u64);
                self.at(16).cast::<u64>().write(shape.value_len as u64);
            }
        }
    }

    /// # Safety
    /// The allocation has the shape's layout, and the shape a deadline if there is one.
    unsafe fn write_deadline(self, shape: Shape, deadline: Option<Deadline>) {
        if let Some(deadline) = deadline {
            // SAFETY: as the caller promises.
            unsafe {
                self.at(shape.deadline_offset()).cast::<u64>().write_unaligned(deadline.to_bits())
            }
        }
    }

    /// # Safety
    /// The allocation has the shape's layout, which was made for this value.
    unsafe fn write_value<O>(self, shape: Shape, value: NewValue<'_, O>) {
        // SAFETY: as the caller promises; borrowed bytes never lie in an entry, for the table is
        // borrowed mutably.
        unsafe {
            let to = self.at(shape.value_offset());
            match value {
                NewValue::Bytes { bytes, .. } => {
                    ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len())
                }
                NewValue::Object(object) => {
                    let address = Box::into_raw(object).expose_provenance();
                    to.cast::<usize>().write_unaligned(address);
                }
            }
        }
    }

    /// # Safety
    /// The entry is not freed or changed while `'t` lasts.
    #[inline]
    pub(super) unsafe fn key<'t>(self) -> &'t [u8] {
        let header = self.header();
        // Fast path: nearly all keys are in the tiny form.
        let (offset, len) = if header & 3 <= TINY_OBJECT {
            let deadline_bytes = (header & DEADLINE) * 8 / DEADLINE;
            (5 + deadline_bytes as usize, (header >> 3 & 0x3f) as usize)
        } else {
            let shape = self.shape();
            (shape.key_offset(), shape.key_len)
        };
        // SAFETY: this is the key's place in the allocation; its bytes are initialised.
        unsafe { slice::from_raw_parts(self.at(offset), len) }
    }

    pub(super) fn deadline(self) -> Option<Deadline> {
        let shape = self.shape();
        if !shape.deadline {
            return None;
        }
        // SAFETY: the shape says that a deadline was written.
        let bits = unsafe { self.at(shape.deadline_offset()).cast::<u64>().read_unaligned() };
        Some(Deadline::from_bits(bits))
    }

    pub(super) fn access(self) -> u32 {
        let header = self.header();
        let shift = if header & 3 <= TINY_OBJECT { 16 } else { 8 };
        (header >> shift & ACCESS) as u32
    }

    #[inline]
    pub(super) fn update_access(self, update: impl FnOnce(u32) -> u32) {
        let header = self.header();
        let shift = if header & 3 <= TINY_OBJECT { 16 } else { 8 };
        let access = u64::from(update((header >> shift & ACCESS) as u32)) & ACCESS;
        let header = header & !(ACCESS << shift) | access << shift;
        // SAFETY: as in `header`; the other bits are kept.
        unsafe { self.0.cast::<u64>().write(header.to_le()) }
    }

    /// The object's address. Stored as a number, because in the tiny form some of its bytes may
    /// share a word with the header, which is accessed as a number.
    ///
    /// # Safety
    /// The shape is the entry's and says that there is an object.
    unsafe fn object_pointer<O>(self, shape: Shape) -> *mut O {
        // SAFETY: as the caller promises; `write_value` wrote it.
        let address = unsafe { self.at(shape.value_offset()).cast::<usize>().read_unaligned() };
        ptr::with_exposed_provenance_mut(address)
    }

    /// # Safety
    /// The entry was made with the same `O`, and is not freed or changed while `'t` lasts.
    pub(super) unsafe fn value<'t, O>(self) -> ValueRef<'t, O> {
        let shape = self.shape();
        // SAFETY: the shape is that of the allocation; an object's pointer came from a box of `O`
        // which the entry owns.
        unsafe {
            if shape.object {
                return ValueRef::Object(&*self.object_pointer(shape));
            }
            let at = self.at(shape.value_offset());
            ValueRef::Bytes { bytes: slice::from_raw_parts(at, shape.value_len), kind: shape.kind }
        }
    }

    /// # Safety
    /// As `value`, and nobody else looks at the value meanwhile.
    pub(super) unsafe fn object_mut<'t, O>(self) -> Option<&'t mut O> {
        let shape = self.shape();
        // SAFETY: as in `value`.
        shape.object.then(|| unsafe { &mut *self.object_pointer(shape) })
    }

    /// # Safety
    /// As `value`, and nobody else looks at the value meanwhile.
    pub(super) unsafe fn bytes_mut<'t>(self) -> Option<&'t mut [u8]> {
        let shape = self.shape();
        if shape.object {
            return None;
        }
        // SAFETY: the shape is that of the allocation.
        Some(unsafe { slice::from_raw_parts_mut(self.at(shape.value_offset()), shape.value_len) })
    }

    /// Takes the box out; the entry no longer owns it.
    ///
    /// # Safety
    /// The entry was made with the same `O`; afterwards its value is written anew or its memory
    /// freed.
    unsafe fn take_object<O>(self) -> Option<Box<O>> {
        let shape = self.shape();
        // SAFETY: the pointer came from `Box::into_raw`, and the caller does not take it twice.
        shape.object.then(|| unsafe { Box::from_raw(self.object_pointer(shape)) })
    }

    /// # Safety
    /// Frees the memory, not the object: the entry is not used again.
    unsafe fn deallocate(self) {
        let layout = self.shape().layout();
        // SAFETY: allocated with this layout: whoever changes the shape reallocates to match.
        unsafe { dealloc(self.0.as_ptr(), layout) }
    }

    /// # Safety
    /// Frees the memory and the object: the entry is not used again, and was made with the same
    /// `O`.
    pub(super) unsafe fn free<O>(self) {
        // SAFETY: as the caller promises.
        unsafe {
            drop(self.take_object::<O>());
            self.deallocate();
        }
    }

    /// Replaces value and deadline, keeping key and access bits. Returns the entry's new address,
    /// which may be the same, and the old object.
    ///
    /// # Safety
    /// The entry was made with the same `O`; only the returned place is used afterwards.
    pub(super) unsafe fn replace<O>(
        self,
        value: NewValue<'_, O>,
        deadline: Option<Deadline>,
    ) -> (RawEntry, Option<Box<O>>) {
        let old = self.shape();
        let new = shape_for(old.key_len, &value, deadline);
        let access = self.access();
        // SAFETY: the key is moved between two places that the two shapes' layouts give it, before
        // the new header may overwrite its first bytes in the tiny form (which it never does: the
        // header is merged with what is there).
        unsafe {
            let object = self.take_object::<O>();
            let to =
                if new.layout() == old.layout() { self } else { RawEntry::allocate(new.layout()) };
            if to == self && new.form <= TINY_OBJECT && new.key_offset() == old.key_offset() {
                // The most frequent case: only the lengths in the header change, the key stays in
                // place.
                let rest = self.header() & !((1 << 40) - 1);
                self.0.cast::<u64>().write((new.header(access) | rest).to_le());
            } else if to == self {
                let key = self.at(old.key_offset());
                ptr::copy(key, self.at(new.key_offset()), old.key_len);
                self.write_header_around(new, access);
            } else {
                to.write_header(new, access);
                let key = self.at(old.key_offset());
                ptr::copy_nonoverlapping(key, to.at(new.key_offset()), old.key_len);
                self.deallocate();
            }
            to.write_deadline(new, deadline);
            to.write_value(new, value);
            (to, object)
        }
    }

    /// Writes a header before an existing key.
    ///
    /// # Safety
    /// As `write_header`, and the first eight bytes are initialised.
    unsafe fn write_header_around(self, shape: Shape, access: u32) {
        // SAFETY: as the caller promises.
        unsafe {
            if shape.form <= TINY_OBJECT {
                let rest = self.header() & !((1 << 40) - 1);
                self.0.cast::<u64>().write((shape.header(access) | rest).to_le());
            } else {
                self.write_header(shape, access);
            }
        }
    }

    /// Sets, changes or removes the deadline. Returns the entry's new address.
    ///
    /// # Safety
    /// Only the returned place is used afterwards.
    pub(super) unsafe fn set_deadline(self, deadline: Option<Deadline>) -> RawEntry {
        let old = self.shape();
        let new = Shape { deadline: deadline.is_some(), ..old };
        let access = self.access();
        // SAFETY: key and value are moved as one run of bytes between the places that the two
        // shapes give them. The lengths and the form are the same.
        unsafe {
            if new.key_offset() == old.key_offset() {
                self.write_header_around(new, access);
                self.write_deadline(new, deadline);
                return self;
            }
            let len = old.key_len + old.value_len;
            let from = self.at(old.key_offset());
            if new.layout() == old.layout() {
                ptr::copy(from, self.at(new.key_offset()), len);
                self.write_header_around(new, access);
                self.write_deadline(new, deadline);
                return self;
            }
            let to = RawEntry::allocate(new.layout());
            to.write_header(new, access);
            to.write_deadline(new, deadline);
            ptr::copy_nonoverlapping(from, to.at(new.key_offset()), len);
            self.deallocate();
            to
        }
    }

    /// Changes the length of a string, truncating it or padding it with zeros. Returns the entry's
    /// new address.
    ///
    /// # Safety
    /// Only the returned place is used afterwards. The value is bytes.
    pub(super) unsafe fn resize_bytes(self, value_len: usize, kind: u8) -> RawEntry {
        let old = self.shape();
        let new = Shape::new(old.key_len, value_len, false, kind, old.deadline);
        let access = self.access();
        let kept = old.value_len.min(value_len);
        // SAFETY: either nothing but the end moves (same key offset), and the allocation is brought
        // to the new layout by `realloc`; or all parts are copied to a new one. Each byte of the
        // new value is written: copied or zeroed.
        unsafe {
            let to = if new.form == old.form {
                let (old_layout, new_layout) = (old.layout(), new.layout());
                let to = if old_layout == new_layout {
                    self
                } else {
                    let pointer = realloc(self.0.as_ptr(), old_layout, new_layout.size());
                    NonNull::new(pointer).map_or_else(|| handle_alloc_error(new_layout), RawEntry)
                };
                to.write_header_around(new, access);
                to
            } else {
                let to = RawEntry::allocate(new.layout());
                to.write_header(new, access);
                to.write_deadline(new, self.deadline());
                let (key, value) = (self.at(old.key_offset()), self.at(old.value_offset()));
                ptr::copy_nonoverlapping(key, to.at(new.key_offset()), old.key_len);
                ptr::copy_nonoverlapping(value, to.at(new.value_offset()), kept);
                self.deallocate();
                to
            };
            ptr::write_bytes(to.at(new.value_offset() + kept), 0, value_len - kept);
            to
        }
    }
}

fn shape_for<O>(key_len: usize, value: &NewValue<'_, O>, deadline: Option<Deadline>) -> Shape {
    match value {
        NewValue::Bytes { bytes, kind } => {
            Shape::new(key_len, bytes.len(), false, *kind, deadline.is_some())
        }
        NewValue::Object(_) => Shape::new(key_len, POINTER_BYTES, true, 0, deadline.is_some()),
    }
}

/// An entry of the table, for reading.
pub struct Entry<'t, O> {
    raw: RawEntry,
    table: PhantomData<&'t O>,
}

impl<O> Clone for Entry<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for Entry<'_, O> {}

impl<'t, O> Entry<'t, O> {
    /// # Safety
    /// The entry was made with the same `O` and is neither freed nor changed while `'t` lasts.
    pub(super) unsafe fn new(raw: RawEntry) -> Self {
        Entry { raw, table: PhantomData }
    }

    /// The key's bytes.
    pub fn key(&self) -> &'t [u8] {
        // SAFETY: `'t` is as `new` demands.
        unsafe { self.raw.key() }
    }

    /// The string or the object.
    pub fn value(&self) -> ValueRef<'t, O> {
        // SAFETY: `'t` and `O` are as `new` demands.
        unsafe { self.raw.value() }
    }

    /// When the key expires; `None`: never.
    pub fn deadline(&self) -> Option<Deadline> {
        self.raw.deadline()
    }

    /// The caller's 24 bits: an LRU clock or an LFU counter.
    pub fn access(&self) -> u32 {
        self.raw.access()
    }

    /// Bytes of the entry's allocation, without memory owned by an object and without the table's
    /// share.
    pub fn allocated(&self) -> usize {
        self.raw.shape().layout().size()
    }
}

/// An entry removed from the table. Dropping it frees key and value, in any thread.
pub struct Owned<O> {
    raw: RawEntry,
    object: PhantomData<Box<O>>,
}

// SAFETY: an owned entry is the only way to its memory, which holds plain bytes and perhaps a
// `Box<O>`.
unsafe impl<O: Send> Send for Owned<O> {}

impl<O> Owned<O> {
    /// # Safety
    /// The entry was made with the same `O`, and nobody else uses it from now on.
    pub(super) unsafe fn new(raw: RawEntry) -> Self {
        Owned { raw, object: PhantomData }
    }

    /// A new entry that is in no table.
    pub fn make(
        key: &[u8],
        value: NewValue<'_, O>,
        deadline: Option<Deadline>,
        access: u32,
    ) -> Self {
        let raw = RawEntry::new(key, value, deadline, access);
        // SAFETY: it was made here, of this `O`.
        unsafe { Owned::new(raw) }
    }

    /// Gives up ownership.
    pub(super) fn into_raw(self) -> RawEntry {
        let raw = self.raw;
        mem::forget(self);
        raw
    }

    /// A view for reading.
    pub fn entry(&self) -> Entry<'_, O> {
        // SAFETY: borrowed from its owner.
        unsafe { Entry::new(self.raw) }
    }

    /// The key's bytes.
    pub fn key(&self) -> &[u8] {
        self.entry().key()
    }

    /// The string or the object.
    pub fn value(&self) -> ValueRef<'_, O> {
        self.entry().value()
    }

    /// When the key was to expire.
    pub fn deadline(&self) -> Option<Deadline> {
        self.raw.deadline()
    }

    /// The object, if the value was one; frees the rest.
    pub fn into_object(self) -> Option<Box<O>> {
        let raw = self.raw;
        mem::forget(self);
        // SAFETY: this was the owner, and it forgot the entry.
        unsafe {
            let object = raw.take_object();
            raw.deallocate();
            object
        }
    }
}

impl<O> Drop for Owned<O> {
    fn drop(&mut self) {
        // SAFETY: this is the owner.
        unsafe { self.raw.free::<O>() }
    }
}

impl<O> fmt::Debug for Owned<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned")
            .field("key", &self.key().escape_ascii().to_string())
            .finish_non_exhaustive()
    }
}
