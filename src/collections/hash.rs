//! The hash of keys, fields and members: SipHash-1-3 with a random key, so that nobody can
//! construct collisions.

use siphasher::sip::SipHasher13;

/// Hashes bytes to 64 bits. Clones hash alike. Only the 16-byte secret is stored, because each
/// large collection has a copy; initializing the hash state from it takes four instructions.
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
