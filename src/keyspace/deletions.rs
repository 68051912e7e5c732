//! Deletions that no command asked for, which the AOF and replicas must get: keys that expired
//! or were evicted, and fields that expired.

use super::db_index::DbIndex;

/// A deletion.
#[derive(Debug, PartialEq, Eq)]
pub struct Deletion {
    pub database: DbIndex,
    pub key: Box<[u8]>,
    pub what: Deleted,
}

/// The deleted key or fields, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The key: it expired.
    Expired,
    /// The key: it was evicted.
    Evicted,
    /// These fields of the hash: they expired.
    Fields(Vec<Vec<u8>>),
}

/// Deletions that were not taken yet. Recorded only while the AOF or replicas need them.
#[derive(Debug, Default)]
pub struct Deletions {
    is_heard: bool,
    list: Vec<Deletion>,
}

impl Deletions {
    pub fn listen(&mut self, is_heard: bool) {
        self.is_heard = is_heard;
        self.list.clear();
    }

    #[inline]
    pub fn is_heard(&self) -> bool {
        self.is_heard
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    #[inline]
    pub(super) fn note_key(&mut self, database: DbIndex, key: &[u8], what: Deleted) {
        if self.is_heard {
            self.list.push(Deletion { database, key: key.into(), what });
        }
    }

    pub(super) fn note_fields(&mut self, database: DbIndex, key: &[u8], fields: Vec<Vec<u8>>) {
        if self.is_heard && !fields.is_empty() {
            let what = Deleted::Fields(fields);
            self.list.push(Deletion { database, key: key.into(), what });
        }
    }

    /// Takes the deletions, in order.
    pub fn take(&mut self) -> Vec<Deletion> {
        std::mem::take(&mut self.list)
    }
}
