//! Compiled scripts, found by their bytes and by their SHA1.
//!
//! EVAL finds its script by a hash of the body that costs a fraction of a SHA1, and compares the
//! bytes; the SHA1 is computed for a new script. The number of scripts sent only with EVAL is
//! limited: the least recently used one is evicted. Scripts of SCRIPT LOAD stay until SCRIPT FLUSH,
//! as clients rely on EVALSHA for them.

use std::collections::{BTreeMap, HashMap};

use sha1::{Digest, Sha1};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::shebang::ScriptFlags;
use super::{Function, Script};
use crate::collections::sparse::Sparse;
use crate::sys::random;

/// The most scripts kept that were sent only with EVAL.
const EVAL_SCRIPTS_MAX: usize = 500;

/// The bytes of a SHA1.
pub type Sha = [u8; 20];

/// The SHA1 of some bytes.
pub fn sha1(bytes: &[u8]) -> Sha {
    Sha1::digest(bytes).into()
}

/// The SHA1 of concatenated pieces.
pub fn sha1_of<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Sha {
    let mut sha = Sha1::new();
    pieces.for_each(|piece| sha.update(piece));
    sha.finalize().into()
}

/// A SHA1 as 40 hexadecimal digits.
pub fn hex(sha: &Sha) -> [u8; 40] {
    let mut text = [0; 40];
    base16ct::lower::encode(sha, &mut text).expect("a byte has two digits");
    text
}

/// Parses a SHA1 of 40 hexadecimal digits in any case.
fn parse_sha(text: &[u8]) -> Option<Sha> {
    let mut sha = [0; 20];
    (base16ct::mixed::decode(text, &mut sha).ok()?.len() == 20).then_some(sha)
}

struct Cached {
    script: Script,
    /// Its SHA1 in lower case.
    hex: [u8; 40],
    body: Box<[u8]>,
    /// Loaded by SCRIPT LOAD: not evicted.
    kept: bool,
    /// The number of its last use.
    used: u64,
}

/// All scripts that are compiled.
pub struct Cache {
    scripts: Vec<Option<Cached>>,
    free: Vec<u32>,
    by_sha: HashMap<Sha, u32>,
    /// By the body's hash; a script whose hash collides is only found by its SHA1.
    by_body: HashMap<u64, u32>,
    seed: u64,
    /// Scripts that may be evicted, the least recently used first.
    evictable: BTreeMap<u64, u32>,
    uses: u64,
    bodies_bytes: usize,
    evicted: u64,
    /// The last script: the same one often runs again.
    last: Option<u32>,
}

impl Default for Cache {
    fn default() -> Self {
        Cache {
            scripts: Vec::new(),
            free: Vec::new(),
            by_sha: HashMap::new(),
            by_body: HashMap::new(),
            // Random, so that nobody can construct collisions.
            seed: random::number(),
            evictable: BTreeMap::new(),
            uses: 0,
            bodies_bytes: 0,
            evicted: 0,
            last: None,
        }
    }
}

impl Cache {
    /// The script of a body. `keep`: for SCRIPT LOAD.
    pub fn find(&mut self, body: &[u8], keep: bool) -> Option<Script> {
        let last = self.last.filter(|&last| self.has_body(last, body));
        let index = match last {
            Some(index) => index,
            None => {
                let found = self.by_body.get(&xxh3_64_with_seed(body, self.seed)).copied();
                match found {
                    Some(index) if self.has_body(index, body) => index,
                    Some(_) => *self.by_sha.get(&sha1(body))?,
                    None => return None,
                }
            }
        };
        self.used(index, keep)
    }

    fn has_body(&self, index: u32, body: &[u8]) -> bool {
        self.scripts[index as usize].as_ref().is_some_and(|cached| *cached.body == *body)
    }

    /// The script of a SHA1 in hexadecimal digits.
    pub fn find_sha(&mut self, sha: &[u8]) -> Option<Script> {
        let index = self.index_of(sha)?;
        self.used(index, false)
    }

    fn index_of(&self, sha: &[u8]) -> Option<u32> {
        if let Some(last) = self.last
            && let Some(cached) = &self.scripts[last as usize]
            && cached.hex == *sha
        {
            return Some(last);
        }
        self.by_sha.get(&parse_sha(sha)?).copied()
    }

    fn used(&mut self, index: u32, keep: bool) -> Option<Script> {
        let cached = self.scripts[index as usize].as_mut()?;
        if keep && !cached.kept {
            cached.kept = true;
            self.evictable.remove(&cached.used);
        }
        if self.last != Some(index) && !cached.kept {
            self.uses += 1;
            self.evictable.remove(&cached.used);
            cached.used = self.uses;
            self.evictable.insert(cached.used, index);
        }
        self.last = Some(index);
        Some(cached.script)
    }

    /// A script's body.
    pub fn body(&self, sha: &[u8]) -> Option<&[u8]> {
        let cached = self.scripts[self.index_of(sha)? as usize].as_ref()?;
        Some(&cached.body)
    }

    /// Adds a new script.
    pub fn insert(
        &mut self,
        body: &[u8],
        function: Function,
        flags: ScriptFlags,
        keep: bool,
    ) -> Script {
        let script = Script { function, flags, sha: sha1(body) };
        self.uses += 1;
        let hex = hex(&script.sha);
        let cached = Cached { script, hex, body: body.into(), kept: keep, used: self.uses };
        let index = match self.free.pop() {
            Some(index) => {
                self.scripts[index as usize] = Some(cached);
                index
            }
            None => {
                self.scripts.push(Some(cached));
                self.scripts.len() as u32 - 1
            }
        };
        self.by_sha.insert(script.sha, index);
        self.by_body.entry(xxh3_64_with_seed(body, self.seed)).or_insert(index);
        if !keep {
            self.evictable.insert(self.uses, index);
        }
        self.bodies_bytes += body.len();
        self.last = Some(index);
        script
    }

    /// Evicts a script if there are too many. Returns its function.
    pub fn evict(&mut self) -> Option<Function> {
        if self.evictable.len() <= EVAL_SCRIPTS_MAX {
            return None;
        }
        let (_, index) = self.evictable.pop_first()?;
        let cached = self.scripts[index as usize].take()?;
        self.free.push(index);
        self.by_sha.remove(&cached.script.sha);
        self.by_sha.shrink_if_sparse();
        let hash = xxh3_64_with_seed(&cached.body, self.seed);
        if self.by_body.get(&hash) == Some(&index) {
            self.by_body.remove(&hash);
        }
        self.bodies_bytes -= cached.body.len();
        self.evicted += 1;
        Some(cached.script.function)
    }

    /// Removes all scripts. Returns their functions.
    pub fn clear(&mut self) -> Vec<Function> {
        let old = std::mem::take(&mut self.scripts);
        let (seed, evicted) = (self.seed, self.evicted);
        *self = Cache { seed, evicted, ..Cache::default() };
        old.into_iter().flatten().map(|cached| cached.script.function).collect()
    }

    pub fn len(&self) -> usize {
        self.by_sha.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_sha.is_empty()
    }

    /// Scripts evicted since the last call.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    /// Bytes of the bodies and indices.
    pub fn bytes(&self) -> usize {
        let entry = size_of::<Option<Cached>>() + size_of::<(Sha, u32)>() + size_of::<(u64, u32)>();
        self.bodies_bytes + self.len() * entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(cache: &mut Cache, number: usize, keep: bool) -> Option<Function> {
        let body = number.to_string();
        if cache.find(body.as_bytes(), keep).is_none() {
            cache.insert(body.as_bytes(), Function(number as i32), ScriptFlags::empty(), keep);
        }
        cache.evict()
    }

    #[test]
    fn a_script_is_found_by_its_body_and_by_its_sha_in_any_case() {
        let mut cache = Cache::default();
        assert!(cache.find(b"return 1", false).is_none());
        cache.insert(b"return 1", Function(7), ScriptFlags::empty(), false);
        cache.insert(b"return 2", Function(8), ScriptFlags::empty(), false);
        let found = cache.find(b"return 1", false).map(|script| script.function);
        assert_eq!(found, Some(Function(7)));
        let sha = b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        assert_eq!(hex(&sha1(b"return 1")), *sha);
        let upper = sha.to_ascii_uppercase();
        assert_eq!(cache.find_sha(&upper).map(|script| script.function), Some(Function(7)));
        assert_eq!(cache.body(sha), Some(&b"return 1"[..]));
        assert!(cache.find_sha(b"e0e1").is_none() && cache.find_sha(&[b'g'; 40]).is_none());
        assert_eq!(cache.clear().len(), 2);
        assert!(cache.find_sha(sha).is_none() && cache.is_empty() && cache.bytes() == 0);
    }

    #[test]
    fn the_script_unused_for_longest_goes_but_never_a_loaded_one() {
        let mut cache = Cache::default();
        add(&mut cache, 0, true);
        for number in 1..=EVAL_SCRIPTS_MAX {
            assert_eq!(add(&mut cache, number, false), None);
        }
        // 1 is used again, 2 is loaded later: 3 is evicted first, then 4.
        add(&mut cache, 1, false);
        add(&mut cache, 2, true);
        assert_eq!(add(&mut cache, 1000, false), None);
        assert_eq!(add(&mut cache, 1001, false), Some(Function(3)));
        assert_eq!(add(&mut cache, 1002, false), Some(Function(4)));
        assert_eq!((cache.len(), cache.take_evicted()), (EVAL_SCRIPTS_MAX + 2, 2));
        assert!(cache.find(b"3", false).is_none());
        assert!(cache.find(b"0", false).is_some() && cache.find(b"2", false).is_some());
    }
}
