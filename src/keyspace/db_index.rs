//! The number of a database.

use std::fmt;
use std::num::ParseIntError;
use std::ops::{Index, IndexMut};
use std::slice;
use std::str::FromStr;

/// The number of a database, as SELECT names it; not a count of databases. Code that reads a number
/// from outside (a request, a file) first checks it against [`super::Keyspace::databases`], because
/// the keyspace takes every index for a valid one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DbIndex(u32);

/// A key of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseKey<'a> {
    pub database: DbIndex,
    pub key: &'a [u8],
}

impl DbIndex {
    /// The database of a client that has selected none.
    pub const ZERO: DbIndex = DbIndex(0);

    /// `databases`, an `int` in the configuration, bounds every number, so that 32 bits are enough.
    #[inline]
    pub const fn new(number: usize) -> Self {
        debug_assert!(number <= u32::MAX as usize);
        DbIndex(number as u32)
    }

    /// The index of a number from outside; None if no server could have such a database.
    pub fn read(number: impl TryInto<u32>) -> Option<Self> {
        number.try_into().ok().map(DbIndex)
    }

    /// The index of a number from outside; None if it is not one of `databases`.
    pub fn checked(number: impl TryInto<u32>, databases: usize) -> Option<Self> {
        Self::read(number).filter(|database| database.get() < databases)
    }

    /// The indexes of `databases` databases, in order.
    pub fn all(databases: usize) -> impl DoubleEndedIterator<Item = DbIndex> + ExactSizeIterator {
        (0..databases).map(Self::new)
    }

    /// The next database, which need not exist.
    pub const fn next(self) -> Self {
        DbIndex(self.0 + 1)
    }

    /// The number, as an index for values kept by database, or to write it.
    #[inline]
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl FromStr for DbIndex {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(DbIndex)
    }
}

impl fmt::Display for DbIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value for each database, or for the first ones. [`Self::entry`] adds missing values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerDatabase<T>(Vec<T>);

impl<T> PerDatabase<T> {
    pub fn new(databases: usize, make: impl FnMut(DbIndex) -> T) -> Self {
        PerDatabase(DbIndex::all(databases).map(make).collect())
    }

    /// The number of databases that have a value.
    pub fn databases(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub fn get(&self, database: DbIndex) -> Option<&T> {
        self.0.get(database.get())
    }

    #[inline]
    pub fn get_mut(&mut self, database: DbIndex) -> Option<&mut T> {
        self.0.get_mut(database.get())
    }

    /// The value of a database, which is added if there is none yet.
    pub fn entry(&mut self, database: DbIndex) -> &mut T
    where
        T: Default,
    {
        if self.0.len() <= database.get() {
            self.0.resize_with(database.get() + 1, T::default);
        }
        &mut self[database]
    }

    pub fn swap(&mut self, a: DbIndex, b: DbIndex) {
        self.0.swap(a.get(), b.get());
    }

    pub fn iter(&self) -> slice::Iter<'_, T> {
        self.0.iter()
    }

    pub fn iter_mut(&mut self) -> slice::IterMut<'_, T> {
        self.0.iter_mut()
    }

    /// The values with their databases, in order.
    pub fn numbered(&self) -> impl DoubleEndedIterator<Item = (DbIndex, &T)> + ExactSizeIterator {
        DbIndex::all(self.0.len()).zip(&self.0)
    }
}

impl<T> Index<DbIndex> for PerDatabase<T> {
    type Output = T;

    #[inline]
    fn index(&self, database: DbIndex) -> &T {
        &self.0[database.get()]
    }
}

impl<T> IndexMut<DbIndex> for PerDatabase<T> {
    #[inline]
    fn index_mut(&mut self, database: DbIndex) -> &mut T {
        &mut self.0[database.get()]
    }
}
