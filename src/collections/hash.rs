//! The hash of keys: SipHash-1-3 with a random key, so that nobody can choose colliding keys.

use siphasher::sip::SipHasher13;

/// Hashes key bytes to 64 bits. Clones hash alike.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher(SipHasher13);

impl KeyHasher {
    /// A hasher with the given 128-bit secret.
    pub fn new(secret: [u64; 2]) -> Self {
        KeyHasher(SipHasher13::new_with_keys(secret[0], secret[1]))
    }

    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.0.hash(key)
    }
}
