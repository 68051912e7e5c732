//! Provisional table over the standard library's map.

use std::collections::HashMap;

use super::hash::KeyHasher;
use crate::clock::{Deadline, Now};

pub struct Table<O> {
    map: HashMap<Box<[u8]>, usize>,
    slab: Vec<Option<Data<O>>>,
    free: Vec<usize>,
    volatile: usize,
    wall_offset_ms: i64,
}
#[derive(Clone, Copy)]
pub struct Slot(usize);
enum Payload<O> {
    Bytes(Vec<u8>, bool),
    Object(Box<O>),
}
struct Data<O> {
    key: Box<[u8]>,
    payload: Payload<O>,
    deadline: Option<Deadline>,
    access: u32,
}
pub enum NewValue<'v, O> {
    Bytes { bytes: &'v [u8], mark: bool },
    Object(Box<O>),
}
pub enum ValueRef<'t, O> {
    Bytes { bytes: &'t [u8], mark: bool },
    Object(&'t O),
}
pub struct Entry<'t, O>(&'t Data<O>);
pub struct Owned<O>(Data<O>);
pub struct Drained<O>(#[allow(dead_code)] Vec<Option<Data<O>>>);

impl<O> Data<O> {
    fn value(&self) -> ValueRef<'_, O> {
        match &self.payload {
            Payload::Bytes(bytes, mark) => ValueRef::Bytes { bytes, mark: *mark },
            Payload::Object(object) => ValueRef::Object(object),
        }
    }
}
impl<'t, O> Entry<'t, O> {
    pub fn key(&self) -> &'t [u8] {
        &self.0.key
    }
    pub fn value(&self) -> ValueRef<'t, O> {
        self.0.value()
    }
    pub fn deadline(&self) -> Option<Deadline> {
        self.0.deadline
    }
    pub fn access(&self) -> u32 {
        self.0.access
    }
    pub fn allocated(&self) -> usize {
        self.0.key.len() + 16
    }
}
impl<O> Owned<O> {
    pub fn key(&self) -> &[u8] {
        &self.0.key
    }
    pub fn value(&self) -> ValueRef<'_, O> {
        self.0.value()
    }
    pub fn deadline(&self) -> Option<Deadline> {
        self.0.deadline
    }
    pub fn into_object(self) -> Option<Box<O>> {
        match self.0.payload {
            Payload::Object(object) => Some(object),
            Payload::Bytes(..) => None,
        }
    }
}
impl<O> Table<O> {
    pub fn new(_: KeyHasher, wall_offset_ms: i64) -> Self {
        Table { map: HashMap::new(), slab: Vec::new(), free: Vec::new(), volatile: 0, wall_offset_ms }
    }
    pub fn len(&self) -> usize {
        self.map.len()
    }
    pub fn volatile_len(&self) -> usize {
        self.volatile
    }
    pub fn find(&self, _: u64, key: &[u8]) -> Option<Slot> {
        self.map.get(key).map(|at| Slot(*at))
    }
    fn data(&mut self, slot: Slot) -> &mut Data<O> {
        self.slab[slot.0].as_mut().unwrap()
    }
    pub fn entry(&self, slot: Slot) -> Entry<'_, O> {
        Entry(self.slab[slot.0].as_ref().unwrap())
    }
    pub fn insert(&mut self, _: u64, key: &[u8], value: NewValue<'_, O>, deadline: Option<Deadline>, access: u32) -> Slot {
        let payload = match value {
            NewValue::Bytes { bytes, mark } => Payload::Bytes(bytes.to_vec(), mark),
            NewValue::Object(object) => Payload::Object(object),
        };
        self.volatile += deadline.is_some() as usize;
        let data = Data { key: key.into(), payload, deadline, access };
        let at = self.free.pop().unwrap_or_else(|| {
            self.slab.push(None);
            self.slab.len() - 1
        });
        self.slab[at] = Some(data);
        self.map.insert(key.into(), at);
        Slot(at)
    }
    pub fn replace(&mut self, slot: Slot, value: NewValue<'_, O>, deadline: Option<Deadline>) -> Option<Box<O>> {
        self.set_deadline(slot, deadline);
        let payload = match value {
            NewValue::Bytes { bytes, mark } => Payload::Bytes(bytes.to_vec(), mark),
            NewValue::Object(object) => Payload::Object(object),
        };
        match std::mem::replace(&mut self.data(slot).payload, payload) {
            Payload::Object(object) => Some(object),
            _ => None,
        }
    }
    pub fn resize_bytes(&mut self, slot: Slot, new_len: usize, new_mark: bool) -> &mut [u8] {
        match &mut self.data(slot).payload {
            Payload::Bytes(bytes, mark) => {
                bytes.resize(new_len, 0);
                *mark = new_mark;
                bytes
            }
            _ => &mut [],
        }
    }
    pub fn object_mut(&mut self, slot: Slot) -> Option<&mut O> {
        match &mut self.data(slot).payload {
            Payload::Object(object) => Some(object),
            _ => None,
        }
    }
    pub fn set_deadline(&mut self, slot: Slot, deadline: Option<Deadline>) {
        let old = std::mem::replace(&mut self.data(slot).deadline, deadline);
        self.volatile = self.volatile + deadline.is_some() as usize - old.is_some() as usize;
    }
    pub fn set_access(&mut self, slot: Slot, access: u32) {
        self.data(slot).access = access;
    }
    pub fn remove(&mut self, slot: Slot) -> Owned<O> {
        let data = self.slab[slot.0].take().unwrap();
        self.map.remove(&data.key);
        self.free.push(slot.0);
        self.volatile -= data.deadline.is_some() as usize;
        Owned(data)
    }
    pub fn prefetch_directory(&self, _: u64) {}
    pub fn prefetch_segment(&self, _: u64) {}
    pub fn prefetch_bucket(&self, _: u64) {}
    pub fn prefetch_entry(&self, _: u64) {}
    pub fn scan(&self, cursor: u64, mut f: impl FnMut(Entry<'_, O>)) -> u64 {
        let from = cursor as usize;
        for data in self.slab.iter().skip(from).take(8).flatten() {
            f(Entry(data));
        }
        if from + 8 >= self.slab.len() { 0 } else { cursor + 8 }
    }
    pub fn random(&self) -> Option<Slot> {
        if self.map.is_empty() {
            return None;
        }
        loop {
            let at = fastrand::usize(..self.slab.len());
            if self.slab[at].is_some() {
                return Some(Slot(at));
            }
        }
    }
    pub fn set_wall_offset(&mut self, wall_offset_ms: i64) {
        self.wall_offset_ms = wall_offset_ms;
    }
    pub fn next_due_boot_ms(&self) -> Option<i64> {
        self.slab.iter().flatten().filter_map(|data| data.deadline).map(|d| d.boot_ms(self.wall_offset_ms)).min()
    }
    pub fn pop_due(&mut self, now: &Now, _: &mut usize) -> Option<Owned<O>> {
        let at = self.slab.iter().position(|data| {
            data.as_ref().and_then(|data| data.deadline).is_some_and(|deadline| now.is_past(deadline))
        })?;
        Some(self.remove(Slot(at)))
    }
    pub fn take(&mut self) -> Drained<O> {
        self.map.clear();
        self.free.clear();
        self.volatile = 0;
        Drained(std::mem::take(&mut self.slab))
    }
    pub fn iter(&self) -> impl Iterator<Item = Entry<'_, O>> {
        self.slab.iter().flatten().map(Entry)
    }
    pub fn memory(&self) -> usize {
        self.slab.len() * 16
    }
}
