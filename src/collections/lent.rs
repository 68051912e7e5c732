//! Bytes that their owner lends to an output until they are written, instead of copying them.
//!
//! ```text
//!   owner: Loans -\
//!                  > the bytes' address; a copy of them once the owner has ended the loan
//!   reader: Lent -/
//! ```
//!
//! A reader keeps its [`Lent`] where and while it likes. The owner ends the loan before it changes
//! or frees the bytes: only then, and only if they are still wanted, they are copied. Short bytes
//! are cheaper to copy than to lend.

#![allow(unsafe_code)] // a reader outlives any borrow of the owner: the addresses of lent bytes are raw

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};

/// The fewest bytes that are lent. Unit: bytes.
pub const LENT_MIN: usize = 2048;

/// The most loans of an owner at a time. Ending one takes a search among all.
const LOANS_MAX: usize = 1024;

/// The most places of ended loans that are kept for the next ones.
const SPARE_MAX: usize = 256;

/// Where lent bytes are.
enum Held {
    /// With their owner, whose loan has not ended.
    Lent(*const [u8]),
    Own(Vec<u8>),
}

impl Default for Held {
    fn default() -> Self {
        Held::Own(Vec::new())
    }
}

// SAFETY: plain bytes, which nobody changes or frees before the loan has ended.
unsafe impl Send for Held {}

/// A server runs in one thread, but may be made in another one: so the lock and the counts work
/// between threads. Nobody ever waits for the lock.
type Place = Mutex<Held>;

fn lock(place: &Place) -> MutexGuard<'_, Held> {
    place.try_lock().expect("an owner does not end a loan while its bytes are used")
}

/// Lent bytes: the reader's end of a loan. Never empty.
pub struct Lent {
    place: Arc<Place>,
    len: usize,
}

impl Lent {
    #[inline]
    pub fn size(&self) -> usize {
        self.len
    }

    /// The bytes from an offset on. The loan must not end while they are used: the owner panics.
    #[inline]
    pub fn bytes(&self, from: usize) -> LentBytes<'_> {
        LentBytes { held: lock(&self.place), from }
    }
}

/// Lent bytes that are used.
pub struct LentBytes<'a> {
    held: MutexGuard<'a, Held>,
    from: usize,
}

impl Deref for LentBytes<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let bytes = match &*self.held {
            // SAFETY: the loan has not ended, so the bytes are where they were, and unchanged
            // (`Loans::lender`). It cannot end before the lock is given back.
            Held::Lent(bytes) => unsafe { &**bytes },
            Held::Own(bytes) => bytes,
        };
        &bytes[self.from..]
    }
}

impl fmt::Debug for LentBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentBytes").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Ends a loan. Returns its place if nobody needs the bytes.
///
/// # Safety
/// The bytes are still where they were when they were lent, and unchanged.
#[inline]
unsafe fn end(mut place: Arc<Place>) -> Option<Arc<Place>> {
    if Arc::get_mut(&mut place).is_some() {
        return Some(place);
    }
    let mut held = lock(&place);
    if let Held::Lent(bytes) = *held {
        // SAFETY: as the caller promises.
        *held = Held::Own(unsafe { &*bytes }.to_vec());
    }
    None
}

/// The loans of several owners, each of which is known by a number: the owners' end.
#[derive(Default)]
pub struct Loans {
    owners: Vec<u64>,
    /// As many, in the same order.
    places: Vec<Arc<Place>>,
    /// Of ended loans.
    spare: Vec<Arc<Place>>,
}

impl Loans {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// A lender of bytes that live for `'b`.
    ///
    /// # Safety
    /// Whatever lives for `'b` is neither changed nor freed before [`Self::end_of`] this owner or
    /// [`Self::end_all`].
    #[inline]
    pub unsafe fn lender<'b>(&mut self, owner: u64) -> Lender<'b, '_> {
        Lender { loans: self, owner, bytes: PhantomData }
    }

    /// Ends an owner's loans: its bytes may change afterwards.
    #[cold]
    pub fn end_of(&mut self, owner: u64) {
        while let Some(at) = self.owners.iter().position(|it| *it == owner) {
            self.owners.swap_remove(at);
            let place = self.places.swap_remove(at);
            // SAFETY: as `lender` demands.
            self.keep(unsafe { end(place) });
        }
    }

    /// Ends all loans.
    pub fn end_all(&mut self) {
        self.owners.clear();
        let mut places = std::mem::take(&mut self.places);
        for place in places.drain(..) {
            // SAFETY: as `lender` demands.
            self.keep(unsafe { end(place) });
        }
        self.places = places;
    }

    #[inline]
    fn keep(&mut self, place: Option<Arc<Place>>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.extend(place);
        }
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// Lends bytes of one owner, which live for `'b`.
pub struct Lender<'b, 'l> {
    loans: &'l mut Loans,
    owner: u64,
    /// Exactly `'b`: bytes that live longer or shorter are another owner's.
    bytes: PhantomData<Cell<&'b [u8]>>,
}

impl<'b> Lender<'b, '_> {
    /// Lends bytes; None if it is better to copy them.
    #[inline]
    pub fn lend(&mut self, bytes: &'b [u8]) -> Option<Lent> {
        if bytes.len() < LENT_MIN || self.loans.owners.len() >= LOANS_MAX {
            return None;
        }
        let held = Held::Lent(bytes);
        let mut place = self.loans.spare.pop().unwrap_or_default();
        match Arc::get_mut(&mut place) {
            Some(spare) => *spare.get_mut().expect("nobody panics with the lock") = held,
            None => place = Arc::new(Mutex::new(held)),
        }
        self.loans.owners.push(self.owner);
        self.loans.places.push(place.clone());
        Some(Lent { place, len: bytes.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lends what boxes hold, as a table does.
    fn lend(loans: &mut Loans, owner: usize, bytes: &[u8]) -> Option<Lent> {
        // SAFETY: the tests end the loans before they change or drop their boxes.
        unsafe { loans.lender(owner as u64) }.lend(bytes)
    }

    #[test]
    fn lent_bytes_outlive_their_owner() {
        let mut owners: Vec<Box<[u8]>> = (0..4).map(|at| vec![at; LENT_MIN].into()).collect();
        let mut loans = Loans::default();
        let lent: Vec<Lent> = (0..8)
            .map(|at| lend(&mut loans, at % 4, &owners[at % 4]).expect("they are long"))
            .collect();
        assert!(lend(&mut loans, 0, &owners[0][1..]).is_none());
        assert_eq!(lent[1].bytes(0).as_ptr(), owners[1].as_ptr());
        loans.end_of(1);
        loans.end_of(9);
        owners[1].fill(77);
        owners[1] = Box::default();
        assert!(!loans.is_empty());
        for (at, lent) in lent.iter().enumerate() {
            assert!(lent.size() == LENT_MIN && *lent.bytes(0) == vec![at as u8 % 4; LENT_MIN]);
            assert_eq!(lent.bytes(LENT_MIN - 3).len(), 3);
        }
        drop(loans);
        drop(owners);
        assert!(lent.iter().enumerate().all(|(at, lent)| lent.bytes(0)[5] == at as u8 % 4));
    }

    #[test]
    fn nothing_is_copied_that_nobody_needs_and_places_are_used_again() {
        let bytes = vec![1; LENT_MIN];
        let mut loans = Loans::default();
        let first = lend(&mut loans, 1, &bytes).expect("they are long");
        let place = Arc::as_ptr(&first.place);
        drop(first);
        loans.end_of(1);
        assert_eq!((loans.spare.len(), loans.is_empty()), (1, true));
        let second = lend(&mut loans, 2, &bytes).expect("they are long");
        assert_eq!(Arc::as_ptr(&second.place), place);
        loans.end_all();
        assert!(loans.spare.is_empty() && matches!(*lock(&second.place), Held::Own(_)));
        let many: Vec<Lent> =
            (0..2 * LOANS_MAX).map_while(|_| lend(&mut loans, 3, &bytes)).collect();
        assert_eq!(many.len(), LOANS_MAX);
        drop(many);
        loans.end_all();
        assert_eq!(loans.spare.len(), SPARE_MAX);
    }

    #[test]
    #[should_panic(expected = "an owner does not end a loan")]
    fn a_loan_does_not_end_while_its_bytes_are_read() {
        let bytes = vec![1; LENT_MIN];
        let mut loans = Loans::default();
        let lent = lend(&mut loans, 1, &bytes).expect("they are long");
        let read = lent.bytes(0);
        loans.end_all();
        drop(read);
    }
}
