//! Notes of what a structure's elements were, so that changes can be undone without a copy of the whole.
//!
//! A structure that is being noted writes down, before each change of an element, what it was. Notes are played back from their
//! end. They belong to the one structure they were made in: a copy of it has none.

/// The notes of one structure; nothing is noted until [`Noting::begin`].
#[derive(Debug)]
pub struct Notes<T>(Option<Box<Open<T>>>);

#[derive(Debug)]
struct Open<T> {
    items: Vec<T>,
    /// Texts of the items, in their order.
    bytes: Vec<u8>,
    /// What [`Noting::new_bytes`] has told.
    told: usize,
}

/// Notes of whatever kind.
pub trait Noting {
    fn are_on(&self) -> bool;
    /// From now on changes are noted.
    fn begin(&mut self);
    /// Ends noting; what was noted goes.
    fn end(&mut self);
    /// Bytes that notes take more than when this was last asked.
    fn new_bytes(&mut self) -> usize;
}

impl<T> Default for Notes<T> {
    fn default() -> Self {
        Notes(None)
    }
}

impl<T> Clone for Notes<T> {
    fn clone(&self) -> Self {
        Notes(None)
    }
}

impl<T> Notes<T> {
    pub const NONE: Notes<T> = Notes(None);

    #[inline]
    pub fn are_on(&self) -> bool {
        self.0.is_some()
    }

    /// Takes the notes away, to go on elsewhere.
    pub fn take(&mut self) -> Notes<T> {
        Notes(self.0.take())
    }

    /// Notes something, and texts that belong to it.
    pub fn note(&mut self, item: T, texts: &[&[u8]]) {
        let Some(open) = &mut self.0 else { return };
        texts.iter().for_each(|text| open.bytes.extend_from_slice(text));
        open.items.push(item);
    }

    /// Takes the last note. Its texts are the last ones: take them before the next note, in reverse order.
    pub fn pop(&mut self) -> Option<T> {
        self.0.as_mut()?.items.pop()
    }

    /// Takes the last `len` bytes of texts.
    pub fn pop_text(&mut self, len: usize) -> Vec<u8> {
        match &mut self.0 {
            Some(open) => open.bytes.split_off(open.bytes.len() - len),
            None => Vec::new(),
        }
    }
}

impl<T> Noting for Notes<T> {
    fn are_on(&self) -> bool {
        self.0.is_some()
    }

    fn begin(&mut self) {
        if self.0.is_none() {
            self.0 = Some(Box::new(Open { items: Vec::new(), bytes: Vec::new(), told: 0 }));
        }
    }

    fn end(&mut self) {
        self.0 = None;
    }

    fn new_bytes(&mut self) -> usize {
        let Some(open) = &mut self.0 else { return 0 };
        let bytes = open.bytes.capacity() + open.items.capacity() * size_of::<T>();
        bytes.saturating_sub(std::mem::replace(&mut open.told, bytes))
    }
}
