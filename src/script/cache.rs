//! Compiled scripts, found by their bytes and by their SHA1.
//!
//! EVAL finds its script by a hash of the body that costs a fraction of a SHA1, and compares the
//! bytes; the SHA1 is computed for a new script. The number of scripts sent only with EVAL is
//! limited: the least recently used one is evicted. Scripts of SCRIPT LOAD stay until SCRIPT FLUSH,
//! as clients rely on EVALSHA for them.
//!
//! If `script-cache-persist` is on, scripts that were loaded, or sent more than once, are written
//! to snapshots, the append-only file and replicas. The cache lists those that are due. Scripts
//! read from there are limited by the bytes of their bodies, and compiled when they are first used.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use sha1::{Digest, Sha1};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::shebang::ScriptFlags;
use super::{Function, Script};
use crate::collections::sparse::Sparse;
use crate::sys::random;

/// The most scripts kept that were sent only with EVAL.
const EVAL_SCRIPTS_MAX: usize = 500;

/// Shared scripts may take this multiple of `script-cache-persist-limit`. Other servers and files
/// know which scripts were written last, not which were used. A script that is used after `limit`
/// bytes of others were written is written again, and counts for them as the last one. Newer than a
/// script of the last `limit` bytes are then at most those of a snapshot, those written up to its
/// use, and those written since: the limit three times.
const SHARED_LIMITS: usize = 3;

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
    body: Arc<[u8]>,
    /// Loaded by a client's SCRIPT LOAD: not evicted.
    kept: bool,
    /// Used again since it came.
    again: bool,
    /// Other servers and files have it: it was written to the stream, or came from there or from a
    /// file.
    shared: bool,
    /// It is to be written: listed in [`Cache::due`].
    is_due: bool,
    /// [`Cache::written`] when it was last written, or became due. None: it must be written.
    written_at: Option<u64>,
    /// The number of its last use.
    used: u64,
}

impl Cached {
    /// Whether it is to survive a restart: it was loaded, or sent more than once.
    fn is_to_survive(&self) -> bool {
        self.kept || self.again || self.shared
    }
}

/// Where a new script comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// EVAL.
    Sent,
    /// A client's SCRIPT LOAD.
    Loaded,
    /// The primary's stream.
    Primary,
    /// A snapshot or the append-only file.
    File,
}

/// The scripts that are written to the append-only file and for replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Written {
    /// None: `script-cache-persist no`.
    #[default]
    Nothing,
    /// Those that came from the primary: this is a replica.
    OfPrimary,
    All,
}

/// Scripts that must be written now.
#[derive(Debug, Default)]
pub struct Due {
    /// The scripts written before are removed.
    pub flush: bool,
    pub bodies: Vec<Arc<[u8]>>,
}

/// All known scripts.
pub struct Cache {
    scripts: Vec<Option<Cached>>,
    free: Vec<u32>,
    by_sha: HashMap<Sha, u32>,
    /// By the body's hash; a script whose hash collides is only found by its SHA1.
    by_body: HashMap<u64, u32>,
    seed: u64,
    /// Scripts sent only with EVAL, the least recently used first.
    sent: BTreeMap<u64, u32>,
    /// Shared scripts that no client has loaded here, likewise, and the bytes of their bodies.
    shared: BTreeMap<u64, u32>,
    shared_bytes: usize,
    uses: u64,
    bodies_bytes: usize,
    evicted: u64,
    /// The last script: the same one often runs again.
    last: Option<u32>,
    writes: Written,
    /// The most bytes of bodies that survive a restart: `script-cache-persist-limit`.
    limit: usize,
    /// Bytes of all bodies that were written or are due.
    written: u64,
    /// Scripts to be written, the last used one last.
    due: VecDeque<u32>,
    /// Some scripts were written or read: SCRIPT FLUSH must be written too.
    is_shared: bool,
    /// SCRIPT FLUSH is to be written, before the scripts.
    flush_due: bool,
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
            sent: BTreeMap::new(),
            shared: BTreeMap::new(),
            shared_bytes: 0,
            uses: 0,
            bodies_bytes: 0,
            evicted: 0,
            last: None,
            writes: Written::Nothing,
            limit: 0,
            written: 0,
            due: VecDeque::new(),
            is_shared: false,
            flush_due: false,
        }
    }
}

impl Cache {
    /// The script of a body. `keep`: for SCRIPT LOAD.
    pub fn find(&mut self, body: &[u8], keep: bool) -> Option<Script> {
        let index = self.index_of_body(body)?;
        self.used(index, keep)
    }

    fn index_of_body(&self, body: &[u8]) -> Option<u32> {
        if let Some(last) = self.last.filter(|&last| self.has_body(last, body)) {
            return Some(last);
        }
        match self.by_body.get(&xxh3_64_with_seed(body, self.seed)).copied()? {
            index if self.has_body(index, body) => Some(index),
            _ => self.by_sha.get(&sha1(body)).copied(),
        }
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
        let cached = self.scripts[index as usize].as_ref()?;
        let script = cached.script;
        if self.last != Some(index) || !cached.again || (keep && !cached.kept) {
            self.note_use(index, keep);
        }
        Some(script)
    }

    /// Makes a script the last used one.
    fn note_use(&mut self, index: u32, keep: bool) {
        let Some(mut cached) = self.scripts[index as usize].take() else { return };
        self.leave_queue(&cached);
        self.uses += 1;
        cached.used = self.uses;
        cached.again = true;
        cached.kept |= keep;
        self.enter_queue(&cached, index);
        self.note_due(&mut cached, index);
        self.scripts[index as usize] = Some(cached);
        self.last = Some(index);
    }

    /// Adds a script to those that may be evicted, unless it is kept.
    fn enter_queue(&mut self, cached: &Cached, index: u32) {
        if cached.kept {
            return;
        }
        match cached.shared {
            false => _ = self.sent.insert(cached.used, index),
            true => {
                self.shared.insert(cached.used, index);
                self.shared_bytes += cached.body.len();
            }
        }
    }

    fn leave_queue(&mut self, cached: &Cached) {
        if cached.kept {
            return;
        }
        match cached.shared {
            false => _ = self.sent.remove(&cached.used),
            true => {
                self.shared.remove(&cached.used);
                self.shared_bytes -= cached.body.len();
            }
        }
    }

    /// Lists a script that must be written: one that never was, or that other servers may have
    /// evicted, since they know which scripts came last, but not which were used.
    fn note_due(&mut self, cached: &mut Cached, index: u32) {
        let is_written = match self.writes {
            Written::Nothing => false,
            Written::OfPrimary => cached.shared,
            Written::All => cached.is_to_survive(),
        };
        let is_fresh = cached.written_at.is_some_and(|at| self.written - at <= self.limit as u64);
        if is_written && !is_fresh && !cached.is_due && cached.body.len() <= self.limit {
            cached.is_due = true;
            self.written += cached.body.len() as u64;
            cached.written_at = Some(self.written);
            self.due.push_back(index);
        }
    }

    /// Sets which scripts are written, and the limit of their bytes.
    pub fn write(&mut self, writes: Written, limit: usize) {
        if self.writes == writes && self.limit == limit {
            return;
        }
        // Scripts that were used in that time count as newer for others than they are.
        let begins = self.writes == Written::Nothing;
        (self.writes, self.limit) = (writes, limit);
        self.due.clear();
        let mut indices: Vec<u32> = (0..self.scripts.len() as u32).collect();
        let used = |index: &u32| self.scripts[*index as usize].as_ref().map(|cached| cached.used);
        indices.sort_by_cached_key(|index| std::cmp::Reverse(used(index)));
        let mut room = limit;
        for index in indices {
            let Some(mut cached) = self.scripts[index as usize].take() else { continue };
            if std::mem::take(&mut cached.is_due) || begins {
                cached.written_at = None;
            }
            let rest = cached.is_to_survive().then(|| room.checked_sub(cached.body.len()));
            if let Some(Some(rest)) = rest {
                room = rest;
                self.note_due(&mut cached, index);
            }
            self.scripts[index as usize] = Some(cached);
        }
    }

    /// Whether something must be written.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.flush_due || !self.due.is_empty()
    }

    /// Takes the scripts that must be written, up to this number of bytes, but at least one.
    pub fn take_due(&mut self, bytes_max: usize) -> Due {
        let mut due = Due { flush: std::mem::take(&mut self.flush_due), bodies: Vec::new() };
        let used = |index: &u32| self.scripts[*index as usize].as_ref().map(|cached| cached.used);
        self.due.make_contiguous().sort_by_key(used);
        let mut bytes = 0;
        while bytes < bytes_max
            && let Some(index) = self.due.pop_front()
        {
            let Some(mut cached) = self.scripts[index as usize].take() else { continue };
            bytes += cached.body.len();
            self.leave_queue(&cached);
            cached.is_due = false;
            cached.shared = true;
            self.is_shared = true;
            self.enter_queue(&cached, index);
            due.bodies.push(cached.body.clone());
            self.scripts[index as usize] = Some(cached);
        }
        due
    }

    /// The bodies for a snapshot, up to the limit, the last used one last. One that is left out
    /// is written when it is used again.
    pub fn bodies_to_save(&mut self) -> Vec<Arc<[u8]>> {
        if self.writes == Written::Nothing {
            if self.is_shared {
                self.scripts.iter_mut().flatten().for_each(|cached| cached.written_at = None);
            }
            return Vec::new();
        }
        let candidates = self.scripts.iter_mut().flatten();
        let mut candidates: Vec<&mut Cached> =
            candidates.filter(|cached| cached.is_to_survive()).collect();
        candidates.sort_unstable_by_key(|cached| std::cmp::Reverse(cached.used));
        let (mut bodies, mut room) = (Vec::new(), self.limit);
        for cached in candidates {
            match room.checked_sub(cached.body.len()) {
                Some(rest) => {
                    room = rest;
                    bodies.push(cached.body.clone());
                }
                None => cached.written_at = None,
            }
        }
        bodies.reverse();
        bodies
    }

    /// A script's body.
    pub fn body(&self, sha: &[u8]) -> Option<&[u8]> {
        let cached = self.scripts[self.index_of(sha)? as usize].as_ref()?;
        Some(&cached.body)
    }

    /// The body of a script that was just found, to compile it.
    pub fn body_of_last(&self) -> Option<Arc<[u8]>> {
        self.scripts[self.last? as usize].as_ref().map(|cached| cached.body.clone())
    }

    /// The same, while nothing changes the cache.
    #[inline]
    pub fn last_body(&self) -> &[u8] {
        let last = self.last.and_then(|last| self.scripts[last as usize].as_ref());
        last.map_or(&[], |cached| &cached.body)
    }

    /// Sets the function of the script that was just found.
    pub fn set_function_of_last(&mut self, function: Function) {
        if let Some(last) = self.last
            && let Some(cached) = &mut self.scripts[last as usize]
        {
            cached.script.function = function;
        }
    }

    /// Adds a new script.
    pub fn insert(
        &mut self,
        body: &[u8],
        function: Function,
        flags: ScriptFlags,
        source: Source,
    ) -> Script {
        let script = Script { function, flags, sha: sha1(body) };
        self.uses += 1;
        let shared = matches!(source, Source::Primary | Source::File);
        self.is_shared |= shared;
        let mut cached = Cached {
            script,
            hex: hex(&script.sha),
            body: body.into(),
            kept: source == Source::Loaded,
            again: false,
            shared,
            is_due: false,
            written_at: (source == Source::File).then_some(self.written),
            used: self.uses,
        };
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.scripts.push(None);
                self.scripts.len() as u32 - 1
            }
        };
        self.by_sha.insert(script.sha, index);
        self.by_body.entry(xxh3_64_with_seed(body, self.seed)).or_insert(index);
        self.bodies_bytes += body.len();
        self.enter_queue(&cached, index);
        self.note_due(&mut cached, index);
        self.scripts[index as usize] = Some(cached);
        self.last = Some(index);
        script
    }

    /// Adds a script from the primary or a file, to be compiled when it is used.
    pub fn restore(&mut self, body: &[u8], flags: ScriptFlags, source: Source) {
        let Some(index) = self.index_of_body(body) else {
            self.insert(body, Function::NONE, flags, source);
            return;
        };
        let Some(mut cached) = self.scripts[index as usize].take() else { return };
        self.leave_queue(&cached);
        self.is_shared = true;
        cached.shared = true;
        if source == Source::File {
            cached.written_at = Some(self.written);
        }
        self.enter_queue(&cached, index);
        self.scripts[index as usize] = Some(cached);
        self.note_use(index, false);
    }

    /// Evicts a script if there are too many. Returns its function.
    pub fn evict(&mut self) -> Option<Function> {
        let queue = if self.sent.len() > EVAL_SCRIPTS_MAX {
            &mut self.sent
        } else if self.shared_bytes > self.limit.saturating_mul(SHARED_LIMITS)
            && self.shared.len() > 1
        {
            &mut self.shared
        } else {
            return None;
        };
        let (used, index) = queue.pop_first()?;
        let cached = self.scripts[index as usize].take()?;
        debug_assert_eq!(cached.used, used, "a queue has the number of the last use");
        if cached.shared {
            self.shared_bytes -= cached.body.len();
        }
        if cached.is_due {
            self.due.retain(|due| *due != index);
        }
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

    /// Removes all scripts. Returns their functions. `writes`: this is written too.
    pub fn clear(&mut self, writes: bool) -> Vec<Function> {
        let old = std::mem::take(&mut self.scripts);
        let flush_due =
            self.flush_due || (writes && (self.is_shared || self.writes != Written::Nothing));
        *self = Cache {
            seed: self.seed,
            evicted: self.evicted,
            writes: self.writes,
            limit: self.limit,
            flush_due,
            // Until it is written, the others have the scripts.
            is_shared: self.is_shared && !flush_due,
            ..Cache::default()
        };
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
            let source = if keep { Source::Loaded } else { Source::Sent };
            cache.insert(body.as_bytes(), Function(number as i32), ScriptFlags::empty(), source);
        }
        cache.evict()
    }

    #[test]
    fn a_script_is_found_by_its_body_and_by_its_sha_in_any_case() {
        let mut cache = Cache::default();
        assert!(cache.find(b"return 1", false).is_none());
        cache.insert(b"return 1", Function(7), ScriptFlags::empty(), Source::Sent);
        cache.insert(b"return 2", Function(8), ScriptFlags::empty(), Source::Sent);
        let found = cache.find(b"return 1", false).map(|script| script.function);
        assert_eq!(found, Some(Function(7)));
        let sha = b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        assert_eq!(hex(&sha1(b"return 1")), *sha);
        let upper = sha.to_ascii_uppercase();
        assert_eq!(cache.find_sha(&upper).map(|script| script.function), Some(Function(7)));
        assert_eq!(cache.body(sha), Some(&b"return 1"[..]));
        assert!(cache.find_sha(b"e0e1").is_none() && cache.find_sha(&[b'g'; 40]).is_none());
        assert_eq!(cache.clear(true).len(), 2);
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

    /// A server that is told what another one writes: a replica, or the next process.
    fn tell(follower: &mut Cache, due: &Due, source: Source) {
        if due.flush {
            follower.clear(false);
        }
        for body in &due.bodies {
            follower.restore(body, ScriptFlags::empty(), source);
            while follower.evict().is_some() {}
        }
    }

    /// The bodies that must survive: those loaded or used again, the last used ones up to the
    /// limit.
    fn surviving(model: &[(Vec<u8>, bool)], limit: usize) -> Vec<Vec<u8>> {
        let mut room = limit;
        let surviving = model.iter().rev().filter(|(_, is_to_survive)| *is_to_survive);
        surviving
            .map(|(body, _)| body)
            .take_while(|body| {
                let fits = body.len() <= room;
                room = room.saturating_sub(body.len());
                fits
            })
            .cloned()
            .collect()
    }

    #[test]
    fn the_last_used_scripts_survive_in_replicas_snapshots_and_logs() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let limit = random.usize(20..400);
            let (mut cache, mut replica) = (Cache::default(), Cache::default());
            let writes = |is_on| if is_on { Written::All } else { Written::Nothing };
            let mut is_on = random.bool();
            cache.write(writes(is_on), limit);
            replica.write(Written::OfPrimary, limit);
            // The next process: the last snapshot, then what was written since.
            let (mut snapshot, mut log) = (Vec::<Arc<[u8]>>::new(), Vec::<Due>::new());
            // Each body in the order of last uses, and whether it was loaded or used again.
            let mut model: Vec<(Vec<u8>, bool)> = Vec::new();
            let different = random.usize(2..60);
            for _ in 0..300 {
                match random.u32(..20) {
                    0 => {
                        cache.clear(true);
                        model.clear();
                    }
                    1 => {
                        snapshot = cache.bodies_to_save();
                        log.clear();
                        // What is due is written after it, though it has that already.
                        replica.take_due(usize::MAX);
                    }
                    2 if random.u32(..4) == 0 => {
                        is_on = !is_on;
                        cache.write(writes(is_on), limit);
                    }
                    kind => {
                        let number = random.usize(..different).min(random.usize(..different));
                        let mut body = format!("return {number}").into_bytes();
                        body.resize(body.len() + number * 7 % 30, b' ');
                        let keep = kind < 5;
                        model.retain(|(other, _)| *other != body);
                        let found = match kind % 2 {
                            1 if !keep => cache.find_sha(&hex(&sha1(&body))),
                            _ => cache.find(&body, keep),
                        };
                        model.push((body.clone(), keep || found.is_some()));
                        if found.is_none() {
                            let source = if keep { Source::Loaded } else { Source::Sent };
                            cache.insert(&body, Function(1), ScriptFlags::empty(), source);
                        }
                        while cache.evict().is_some() {}
                    }
                }
                if random.u32(..4) != 0 {
                    continue;
                }
                let due = cache.take_due(usize::MAX);
                tell(&mut replica, &due, Source::Primary);
                log.push(due);
                if !is_on {
                    continue;
                }
                let mut next = Cache::default();
                next.write(Written::All, limit);
                tell(&mut next, &Due { flush: false, bodies: snapshot.clone() }, Source::File);
                log.iter().for_each(|due| tell(&mut next, due, Source::File));
                for body in surviving(&model, limit) {
                    let sha = hex(&sha1(&body));
                    let text = String::from_utf8_lossy(&body).into_owned();
                    assert!(replica.body(&sha).is_some(), "seed {seed}, replica: {text}");
                    assert!(next.body(&sha).is_some(), "seed {seed}, log: {text}");
                }
                for other in [&replica, &next] {
                    assert!(other.shared_bytes <= limit * SHARED_LIMITS + 60, "seed {seed}");
                }
                // Nothing is written twice without need.
                assert!(!cache.is_due());
            }
        }
    }

    #[test]
    fn sources_sent_once_are_never_written() {
        let mut cache = Cache::default();
        cache.write(Written::All, 1 << 20);
        for number in 0..3000 {
            add(&mut cache, number, false);
        }
        assert!(!cache.is_due() && cache.bodies_to_save().is_empty());
        add(&mut cache, 2999, false);
        add(&mut cache, 2999, false);
        let due = cache.take_due(usize::MAX);
        assert_eq!((due.flush, due.bodies), (false, vec![(*b"2999").into()]));
        // On a replica those of its own clients are not written, until it is promoted.
        cache.write(Written::OfPrimary, 1 << 20);
        add(&mut cache, 3000, true);
        cache.restore(b"4000", ScriptFlags::empty(), Source::Primary);
        assert_eq!(cache.take_due(usize::MAX).bodies, [(*b"4000").into()]);
        cache.write(Written::All, 1 << 20);
        assert_eq!(cache.take_due(usize::MAX).bodies, [(*b"3000").into()]);
        // One that is larger than the limit is not written.
        cache.write(Written::All, 3);
        add(&mut cache, 5000, true);
        assert!(!cache.is_due());
        // What was written is removed, though nothing more is written.
        cache.write(Written::Nothing, 3);
        cache.clear(true);
        assert!(cache.take_due(usize::MAX).flush && !cache.is_due());
        cache.clear(true);
        assert!(!cache.is_due());
    }
}
