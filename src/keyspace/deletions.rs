//! What was deleted without a command's asking, for those who repeat elsewhere what happens here: keys that have expired or
//! were evicted, and fields that have expired.

/// One of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Deletion {
    pub database: usize,
    pub key: Box<[u8]>,
    pub what: Deleted,
}

/// What has gone.
#[derive(Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The key, past its deadline.
    Expired,
    /// The key, for want of memory.
    Evicted,
    /// Fields of the hash.
    Fields(Vec<Vec<u8>>),
}

/// Those that nobody has taken yet. Nothing is noted while nobody listens.
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
    pub(super) fn note_key(&mut self, database: usize, key: &[u8], what: Deleted) {
        if self.is_heard {
            self.list.push(Deletion { database, key: key.into(), what });
        }
    }

    pub(super) fn note_fields(&mut self, database: usize, key: &[u8], fields: Vec<Vec<u8>>) {
        if self.is_heard && !fields.is_empty() {
            let what = Deleted::Fields(fields);
            self.list.push(Deletion { database, key: key.into(), what });
        }
    }

    /// Takes them, in the order in which they happened.
    pub fn take(&mut self) -> Vec<Deletion> {
        std::mem::take(&mut self.list)
    }
}
