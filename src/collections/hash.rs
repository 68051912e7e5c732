//! The hash of keys, and of the fields and members of collections: SipHash-1-3 with a random key, so that nobody can choose
//! colliding ones.

use siphasher::sip::SipHasher13;

/// Hashes bytes to 64 bits. Clones hash alike. It is kept as its secret alone, 16 bytes, because each large collection has
/// one; setting the hash's state up from it takes four instructions.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher([u64; 2]);

impl KeyHasher {
    /// A hasher with the given 128-bit secret.
    pub fn new(secret: [u64; 2]) -> Self {
        KeyHasher(secret)
    }

    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        SipHasher13::new_with_keys(self.0[0], self.0[1]).hash(key)
    }
}
