//! HyperLogLog: estimates the number of different elements added, with a standard error of 0.81%,
//! in at most 12304 bytes.
//!
//! The value of PFADD, PFCOUNT and PFMERGE is a string whose bytes GET, SET, DUMP and replicas see;
//! they equal Redis's, bit for bit. The functions here work on these bytes; the caller looks up the
//! key, stores the bytes and words the errors.
//!
//! ```text
//! header   "HYLL" | encoding: 0 dense, 1 sparse | 3 bytes unused | cardinality, u64 little-endian, valid if its top bit is 0
//! dense    16384 registers of 6 bits, least significant bits first: 12288 bytes
//! sparse   opcodes from register 0 to 16383
//!            00llllll            ZERO   l+1 registers are 0
//!            01llllll llllllll   XZERO  l+1 registers are 0
//!            1vvvvvll            VAL    l+1 registers are v+1
//! ```
//!
//! An element is hashed (MurmurHash64A); 14 bits choose the register, which keeps the longest run
//! of zeros seen in the other 50, plus one. A value that outgrows `hll-sparse-max-bytes`, or needs
//! a register above 32, becomes dense and stays so. Which opcodes a sparse value consists of
//! depends on its history (runs are merged only near the register set), and that history is
//! reproduced too: otherwise a replica that runs the other server would hold different bytes.
//!
//! SET can write anything under a valid header. Dense bytes are always meaningful; opcodes that do
//! not cover exactly the 16384 registers are [`Corrupt`] where this is noticed (adding looks only
//! as far as its register, as in Redis).
//!
//! The estimator: Otmar Ertl, "New cardinality estimation algorithms for HyperLogLog sketches",
//! arXiv:1702.01284.

use std::fmt::Write as _;

/// Number of registers of a HyperLogLog.
pub const REGISTERS: usize = 1 << INDEX_BITS;

/// Registers unpacked to a byte each, for merging and counting.
pub type Registers = [u8; REGISTERS];

const INDEX_BITS: u32 = 14;
/// Bits of the hash that are searched for a run of zeros.
const RUN_BITS: u32 = u64::BITS - INDEX_BITS;
const HEADER_LEN: usize = 16;
/// Registers merged at a time.
const BLOCK: usize = 128;
const DENSE_LEN: usize = HEADER_LEN + REGISTERS * 6 / 8;
const MAGIC: &[u8] = b"HYLL";
const ENCODING_AT: usize = 4;
const CARDINALITY_AT: usize = 8;
const CACHE_INVALID: u8 = 0x80;
/// The largest register that VAL can hold.
const SPARSE_VALUE_MAX: u8 = 32;
const SPARSE_VALUE_RUN_MAX: usize = 4;
const ZERO_RUN_MAX: usize = 64;

/// The opcodes of a sparse value do not describe 16384 registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Corrupted HLL object detected")]
pub struct Corrupt;

/// The layout of the registers in the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Dense,
    Sparse,
}

/// An empty sparse value, its cached cardinality valid.
pub fn new_sparse() -> Vec<u8> {
    let mut hll = Vec::with_capacity(HEADER_LEN + 2);
    hll.extend_from_slice(MAGIC);
    hll.resize(HEADER_LEN, 0);
    hll[ENCODING_AT] = 1;
    hll.extend_from_slice(Sequence::default().zeros(REGISTERS).as_bytes());
    hll
}

/// The encoding of a value, or `None` if the bytes are no HyperLogLog: wrong magic, unknown
/// encoding, dense of the wrong length. Sparse opcodes are not looked at.
pub fn encoding(bytes: &[u8]) -> Option<Encoding> {
    if bytes.len() < HEADER_LEN || !bytes.starts_with(MAGIC) {
        return None;
    }
    match bytes[ENCODING_AT] {
        0 if bytes.len() == DENSE_LEN => Some(Encoding::Dense),
        1 => Some(Encoding::Sparse),
        _ => None,
    }
}

/// Adds an element; true if a register rose, and then the cached cardinality is marked invalid. A
/// sparse value that would grow beyond `sparse_max_bytes` (header included) becomes dense.
///
/// After an error the value is as before.
pub fn add(hll: &mut Vec<u8>, element: &[u8], sparse_max_bytes: usize) -> Result<bool, Corrupt> {
    let (index, value) = register_of(element);
    let changed = match encoding(hll).ok_or(Corrupt)? {
        Encoding::Dense => dense_raise(hll, index, value),
        Encoding::Sparse => {
            let mut start = Boundary::START;
            sparse_raise(hll, index, value, sparse_max_bytes, &mut start)? != Raised::No
        }
    };
    if changed {
        invalidate_cached_count(hll);
    }
    Ok(changed)
}

/// The cardinality stored in the header, if it is valid.
pub fn cached_count(hll: &[u8]) -> Option<u64> {
    let bytes = hll.get(CARDINALITY_AT..)?.first_chunk::<8>()?;
    (bytes[7] & CACHE_INVALID == 0).then(|| u64::from_le_bytes(*bytes))
}

/// The bytes that store a cardinality in the header, and their offset.
pub fn cached_count_bytes(cardinality: u64) -> (usize, [u8; 8]) {
    (CARDINALITY_AT, cardinality.to_le_bytes())
}

/// Marks the stored cardinality as out of date. [`add`] and [`raise_all`] do so themselves; PFADD
/// also does when it created the value.
///
/// # Panics
/// If `hll` is shorter than a header; see [`encoding`].
pub fn invalidate_cached_count(hll: &mut [u8]) {
    hll[HEADER_LEN - 1] |= CACHE_INVALID;
}

/// The estimated cardinality, computed from the registers without the header's stored value.
pub fn count(hll: &[u8]) -> Result<u64, Corrupt> {
    let mut histogram = Histogram::new();
    match encoding(hll).ok_or(Corrupt)? {
        Encoding::Dense => {
            for group in packed(hll) {
                histogram.add_eight(unpack_eight(*group));
            }
        }
        Encoding::Sparse => {
            for run in runs(hll) {
                let (value, range) = run?;
                histogram.add_run(value, range.len());
            }
        }
    }
    Ok(histogram.estimate())
}

/// The estimated cardinality of unpacked registers: PFCOUNT of several keys.
pub fn count_registers(registers: &Registers) -> u64 {
    let mut histogram = Histogram::new();
    for eight in registers.as_chunks::<8>().0 {
        histogram.add_eight(*eight);
    }
    histogram.estimate()
}

/// Raises each register to that of `hll` where it is lower: the union of both sets. From all zeros:
/// unpacks `hll`.
///
/// After an error the registers may be raised in part.
pub fn merge(registers: &mut Registers, hll: &[u8]) -> Result<(), Corrupt> {
    match encoding(hll).ok_or(Corrupt)? {
        Encoding::Dense => {
            let blocks = registers.as_chunks_mut::<BLOCK>().0;
            for (block, groups) in blocks.iter_mut().zip(packed(hll).chunks(BLOCK / 8)) {
                // First unpacked, then compared: the second loop becomes vectors.
                let mut others = [0; BLOCK];
                for (other, group) in others.as_chunks_mut().0.iter_mut().zip(groups) {
                    *other = unpack_eight(*group);
                }
                for (register, other) in block.iter_mut().zip(others) {
                    *register = other.max(*register);
                }
            }
        }
        Encoding::Sparse => {
            for run in runs(hll) {
                let (value, range) = run?;
                if value > 0 {
                    for register in &mut registers[range] {
                        *register = value.max(*register);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Raises the registers of `hll` to those given, and marks the cached cardinality invalid: the last
/// step of PFMERGE. The value stays sparse if it can, as with [`add`]; PFMERGE calls [`make_dense`]
/// first if one of its sources is dense.
///
/// After an error the registers may be raised in part.
pub fn raise_all(
    hll: &mut Vec<u8>,
    registers: &Registers,
    sparse_max_bytes: usize,
) -> Result<(), Corrupt> {
    let mut is_dense = encoding(hll).ok_or(Corrupt)? == Encoding::Dense;
    if !is_dense {
        // Register after register, each continuing where the last one was found: one pass over the
        // opcodes.
        let mut near = Boundary::START;
        for (index, &value) in registers.iter().enumerate().filter(|(_, value)| **value > 0) {
            if sparse_raise(hll, index, value, sparse_max_bytes, &mut near)? == Raised::MadeDense {
                is_dense = true;
                break;
            }
        }
    }
    if is_dense {
        let mut raised = *registers;
        merge(&mut raised, hll)?;
        for (group, eight) in packed_mut(hll).iter_mut().zip(raised.as_chunks().0) {
            *group = pack_eight(*eight);
        }
    }
    invalidate_cached_count(hll);
    Ok(())
}

/// Makes a sparse value dense; true if it was sparse. The header's cardinality is kept.
///
/// After an error the value is as before.
pub fn make_dense(hll: &mut Vec<u8>) -> Result<bool, Corrupt> {
    if encoding(hll).ok_or(Corrupt)? == Encoding::Dense {
        return Ok(false);
    }
    let mut registers = [0; REGISTERS];
    merge(&mut registers, hll)?;
    hll.truncate(HEADER_LEN);
    hll[ENCODING_AT] = 0;
    hll.reserve_exact(DENSE_LEN - HEADER_LEN);
    hll.extend(registers.as_chunks::<8>().0.iter().flat_map(|eight| pack_eight(*eight)));
    Ok(true)
}

/// The opcodes of a sparse value as PFDEBUG DECODE shows them, `Z:16383 v:1,1`: `z` for ZERO, `Z`
/// for XZERO, and value and run for VAL. `None` unless sparse. Corrupt values are shown too.
pub fn decode(hll: &[u8]) -> Option<String> {
    if encoding(hll)? != Encoding::Sparse {
        return None;
    }
    let mut text = String::new();
    let mut at = HEADER_LEN;
    while let Some(opcode) = Opcode::read(hll, at) {
        if !text.is_empty() {
            text.push(' ');
        }
        let run = opcode.run;
        let written = match (opcode.value, opcode.width) {
            (0, 1) => write!(text, "z:{run}"),
            (0, _) => write!(text, "Z:{run}"),
            (value, _) => write!(text, "v:{value},{run}"),
        };
        written.expect("a String takes everything");
        at += opcode.width;
    }
    Some(text)
}

/// A fault found by PFSELFTEST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelfTestFailure {
    #[error("TESTFAILED Register {index} should be {expected} but is {found}")]
    Register { index: usize, expected: u8, found: u8 },
    #[error("TESTFAILED sparse encoding not used")]
    NotSparse,
    #[error("TESTFAILED dense/sparse disagree")]
    Disagree,
    #[error("TESTFAILED Too big error. card:{cardinality} abserr:{error}")]
    Error { cardinality: u64, error: u64 },
}

/// PFSELFTEST: random registers are packed and read back; up to `elements` elements are counted, at
/// each power of ten within six standard errors, alike when dense and when they began sparse. Time:
/// 30 ns an element; Redis takes 10,000,000.
pub fn self_test(seed: u64, elements: u64, sparse_max_bytes: usize) -> Result<(), SelfTestFailure> {
    let mut dense = new_sparse();
    make_dense(&mut dense).map_err(|Corrupt| SelfTestFailure::Disagree)?;
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..1000 {
        let mut written = [0; REGISTERS];
        for (index, value) in written.iter_mut().enumerate() {
            *value = random.u8(..64);
            dense_set(&mut dense, index, *value);
        }
        for (index, &expected) in written.iter().enumerate() {
            let found = dense_get(&dense, index);
            if found != expected {
                return Err(SelfTestFailure::Register { index, expected, found });
            }
        }
    }
    dense[HEADER_LEN..].fill(0);
    let mut sparse = new_sparse();
    let mut checkpoint = 1;
    for number in 1..=elements {
        let element = (number ^ seed).to_le_bytes();
        let (index, value) = register_of(&element);
        dense_raise(&mut dense, index, value);
        add(&mut sparse, &element, sparse_max_bytes)
            .map_err(|Corrupt| SelfTestFailure::Disagree)?;
        if number < checkpoint {
            continue;
        }
        if number < sparse_max_bytes as u64 / 2 && encoding(&sparse) != Some(Encoding::Sparse) {
            return Err(SelfTestFailure::NotSparse);
        }
        let counted = count(&dense);
        if counted != count(&sparse) {
            return Err(SelfTestFailure::Disagree);
        }
        let error = counted.unwrap_or(0).abs_diff(checkpoint);
        let standard_error = 1.04 / (REGISTERS as f64).sqrt();
        if error > (standard_error * 6.0 * checkpoint as f64).ceil() as u64 {
            return Err(SelfTestFailure::Error { cardinality: checkpoint, error });
        }
        checkpoint *= 10;
    }
    Ok(())
}

/// MurmurHash64A with the bytes taken as little-endian.
fn murmur_hash_64a(bytes: &[u8], seed: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let mut word = u64::from_le_bytes(*word).wrapping_mul(M);
        word ^= word >> R;
        hash = (hash ^ word.wrapping_mul(M)).wrapping_mul(M);
    }
    if !tail.is_empty() {
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> R)).wrapping_mul(M);
    hash ^ (hash >> R)
}

/// The register of an element, and its value: 1 ..= 51.
fn register_of(element: &[u8]) -> (usize, u8) {
    let hash = murmur_hash_64a(element, 0xadc8_3b19);
    let index = hash as usize & (REGISTERS - 1);
    let run = (hash >> INDEX_BITS | 1 << RUN_BITS).trailing_zeros() as u8;
    (index, run + 1)
}

// Dense: 4 registers lie in 3 bytes, 8 in 6.

fn packed(hll: &[u8]) -> &[[u8; 6]] {
    hll[HEADER_LEN..].as_chunks().0
}

fn packed_mut(hll: &mut [u8]) -> &mut [[u8; 6]] {
    hll[HEADER_LEN..].as_chunks_mut().0
}

/// Spreads 48 bits over 8 bytes by halves: 24 bits in 32, 12 in 16, 6 in 8.
#[inline]
fn unpack_eight(group: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = group;
    let bits = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    let bits = (bits & 0xff_ffff) | (bits & 0xffff_ff00_0000) << 8;
    let bits = (bits & 0x0000_0fff_0000_0fff) | (bits & 0x00ff_f000_00ff_f000) << 4;
    let bits = (bits & 0x003f_003f_003f_003f) | (bits & 0x0fc0_0fc0_0fc0_0fc0) << 2;
    bits.to_le_bytes()
}

/// The reverse of [`unpack_eight`]; the registers are at most 63.
#[inline]
fn pack_eight(registers: [u8; 8]) -> [u8; 6] {
    let bits = u64::from_le_bytes(registers);
    let bits = (bits & 0x003f_003f_003f_003f) | (bits >> 2 & 0x0fc0_0fc0_0fc0_0fc0);
    let bits = (bits & 0x0000_0fff_0000_0fff) | (bits >> 4 & 0x00ff_f000_00ff_f000);
    let bits = (bits & 0xff_ffff) | (bits >> 8 & 0xffff_ff00_0000);
    let [a, b, c, d, e, f, _, _] = bits.to_le_bytes();
    [a, b, c, d, e, f]
}

fn dense_get(hll: &[u8], index: usize) -> u8 {
    let [a, b, c] = hll[HEADER_LEN..].as_chunks().0[index / 4];
    (u32::from_le_bytes([a, b, c, 0]) >> (6 * (index % 4)) & 63) as u8
}

fn dense_set(hll: &mut [u8], index: usize, value: u8) {
    let group: &mut [u8; 3] = &mut hll[HEADER_LEN..].as_chunks_mut().0[index / 4];
    let shift = 6 * (index % 4);
    let bits = u32::from_le_bytes([group[0], group[1], group[2], 0]) & !(63 << shift);
    let [a, b, c, _] = (bits | u32::from(value) << shift).to_le_bytes();
    *group = [a, b, c];
}

fn dense_raise(hll: &mut [u8], index: usize, value: u8) -> bool {
    let rises = value > dense_get(hll, index);
    if rises {
        dense_set(hll, index, value);
    }
    rises
}

/// One opcode of the sparse encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Opcode {
    /// 0 for ZERO and XZERO.
    value: u8,
    /// Number of registers.
    run: usize,
    /// Number of bytes.
    width: usize,
}

impl Opcode {
    /// The opcode at an offset; `None` at the end, also if its second byte is missing.
    #[inline]
    fn read(hll: &[u8], at: usize) -> Option<Opcode> {
        let byte = *hll.get(at)?;
        let low = usize::from(byte & 0x3f);
        Some(match byte >> 6 {
            0 => Opcode { value: 0, run: low + 1, width: 1 },
            1 => {
                Opcode { value: 0, run: (low << 8 | usize::from(*hll.get(at + 1)?)) + 1, width: 2 }
            }
            _ => Opcode { value: (byte >> 2 & 0x1f) + 1, run: usize::from(byte & 3) + 1, width: 1 },
        })
    }
}

/// Up to three opcodes that replace one: at most XZERO VAL XZERO.
#[derive(Default)]
struct Sequence {
    bytes: [u8; 5],
    len: usize,
}

impl Sequence {
    fn zeros(mut self, run: usize) -> Self {
        if run > ZERO_RUN_MAX {
            let [high, low] = ((run - 1) as u16).to_be_bytes();
            self.bytes[self.len..self.len + 2].copy_from_slice(&[0x40 | high, low]);
            self.len += 2;
        } else if run > 0 {
            self.bytes[self.len] = (run - 1) as u8;
            self.len += 1;
        }
        self
    }

    fn values(mut self, value: u8, run: usize) -> Self {
        if run > 0 {
            self.bytes[self.len] = val_opcode(value, run);
            self.len += 1;
        }
        self
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn val_opcode(value: u8, run: usize) -> u8 {
    0x80 | (value - 1) << 2 | (run - 1) as u8
}

/// The runs of a sparse value, (value, registers), which must end exactly at the last register.
fn runs(
    hll: &[u8],
) -> impl Iterator<Item = Result<(u8, std::ops::Range<usize>), Corrupt>> + use<'_> {
    let mut at = HEADER_LEN;
    let mut first = 0;
    std::iter::from_fn(move || {
        if at >= hll.len() {
            // The end is reported once, as an error if it came too early.
            return (std::mem::replace(&mut first, REGISTERS) != REGISTERS).then_some(Err(Corrupt));
        }
        let Some(opcode) = Opcode::read(hll, at).filter(|it| it.run <= REGISTERS - first) else {
            (at, first) = (hll.len(), REGISTERS);
            return Some(Err(Corrupt));
        };
        let range = first..first + opcode.run;
        (at, first) = (at + opcode.width, range.end);
        Some(Ok((opcode.value, range)))
    })
}

/// An opcode's offset in a sparse value, and its first register.
#[derive(Clone, Copy, Debug)]
struct Boundary {
    at: usize,
    first: usize,
}

impl Boundary {
    const START: Boundary = Boundary { at: HEADER_LEN, first: 0 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Raised {
    No,
    Sparse,
    MadeDense,
}

/// Raises one register of a sparse value. `near`: where the search begins: the start, or the result
/// of an earlier call for a lower register.
fn sparse_raise(
    hll: &mut Vec<u8>,
    index: usize,
    value: u8,
    sparse_max_bytes: usize,
    near: &mut Boundary,
) -> Result<Raised, Corrupt> {
    if value > SPARSE_VALUE_MAX {
        return raise_as_dense(hll, index, value);
    }
    let Found { boundary: Boundary { at, first }, opcode, previous_at, search_next } =
        find_opcode(hll, index, *near).ok_or(Corrupt)?;
    *near = search_next;
    if opcode.value >= value {
        return Ok(Raised::No);
    }
    let (before, after) = (index - first, first + opcode.run - 1 - index);
    let sequence = Sequence::default();
    let sequence = match opcode.value {
        0 => sequence.zeros(before).values(value, 1).zeros(after),
        old => sequence.values(old, before).values(value, 1).values(old, after),
    };
    let grown = sequence.len.saturating_sub(opcode.width);
    if grown > 0 && hll.len() + grown > sparse_max_bytes {
        return raise_as_dense(hll, index, value);
    }
    replace(hll, at, opcode.width, sequence.as_bytes());
    join_equal_runs(hll, previous_at.unwrap_or(HEADER_LEN));
    Ok(Raised::Sparse)
}

/// Replaces `old_len` bytes at an offset. `Vec::splice` would work byte by byte.
fn replace(bytes: &mut Vec<u8>, at: usize, old_len: usize, new: &[u8]) {
    let (len, tail) = (bytes.len(), at + old_len);
    if new.len() > old_len {
        bytes.resize(len + new.len() - old_len, 0);
    }
    bytes.copy_within(tail..len, at + new.len());
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes.truncate(len - old_len + new.len());
}

fn raise_as_dense(hll: &mut Vec<u8>, index: usize, value: u8) -> Result<Raised, Corrupt> {
    make_dense(hll)?;
    dense_raise(hll, index, value);
    Ok(Raised::MadeDense)
}

struct Found {
    boundary: Boundary,
    opcode: Opcode,
    /// Offset of the previous opcode; `None` if it is the first.
    previous_at: Option<usize>,
    /// Where to start the search for a higher register, valid even after the opcodes from
    /// `previous_at` on have changed.
    search_next: Boundary,
}

/// The opcode that holds a register. Eight opcodes are skipped at a time: with up to 3000 opcodes
/// this search is the main cost of PFADD of a sparse value.
fn find_opcode(hll: &[u8], index: usize, from: Boundary) -> Option<Found> {
    let mut here = from;
    let mut previous_at = None;
    // `search_next` lies at least one opcode before the previous one, because that may be joined
    // with the one found here, and then a search for the next register finds it and needs its
    // previous one.
    let (mut search_next, mut last_step) = (from, from);
    loop {
        if let Some(eight) = hll.get(here.at..).and_then(|rest| rest.first_chunk())
            && let Some(run) = run_of_eight(*eight)
            && here.first + run <= index
        {
            (search_next, last_step) = (here, here);
            here = Boundary { at: here.at + 8, first: here.first + run };
            previous_at = Some(here.at - 1);
            continue;
        }
        let opcode = Opcode::read(hll, here.at)?;
        if index < here.first + opcode.run {
            return Some(Found { boundary: here, opcode, previous_at, search_next });
        }
        (search_next, last_step) = (last_step, here);
        previous_at = Some(here.at);
        here = Boundary { at: here.at + opcode.width, first: here.first + opcode.run };
    }
}

/// The number of registers that eight opcodes of one byte hold; `None` if there is an XZERO among
/// the bytes.
#[inline]
fn run_of_eight(opcodes: [u8; 8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let bytes = u64::from_le_bytes(opcodes);
    let values = bytes >> 7 & ONES;
    if bytes >> 6 & ONES & !values != 0 {
        return None;
    }
    // The run is in the low six bits of ZERO, the low two of VAL.
    let runs = bytes & ((0x3f * ONES) ^ (0x3c * values));
    let pairs = (runs & 0x00ff_00ff_00ff_00ff) + (runs >> 8 & 0x00ff_00ff_00ff_00ff);
    Some((pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48) as usize + 8)
}

/// Joins adjacent VALs of the same value among the five opcodes from `at` on. Not more: Redis
/// leaves later ones alone.
fn join_equal_runs(hll: &mut Vec<u8>, mut at: usize) {
    for _ in 0..5 {
        let Some(opcode) = Opcode::read(hll, at) else {
            return;
        };
        if opcode.value > 0
            && let Some(next) = Opcode::read(hll, at + 1).filter(|it| it.value == opcode.value)
            && opcode.run + next.run <= SPARSE_VALUE_RUN_MAX
        {
            hll[at + 1] = val_opcode(opcode.value, opcode.run + next.run);
            hll.remove(at);
        } else {
            at += opcode.width;
        }
    }
}

/// The number of registers with each value. Four tables in turn, because most registers are equal,
/// and each increment of one counter waits for the previous one.
struct Histogram {
    lanes: [[u32; 64]; 4],
}

impl Histogram {
    fn new() -> Self {
        Histogram { lanes: [[0; 64]; 4] }
    }

    /// Counts eight registers; the two bits above six are ignored.
    #[inline]
    fn add_eight(&mut self, registers: [u8; 8]) {
        for (position, register) in registers.into_iter().enumerate() {
            self.lanes[position % 4][usize::from(register & 63)] += 1;
        }
    }

    fn add_run(&mut self, value: u8, run: usize) {
        self.lanes[0][usize::from(value & 63)] += run as u32;
    }

    /// Ertl's estimator. The order of the floating-point operations is part of the result.
    fn estimate(&self) -> u64 {
        let of = |value: usize| f64::from(self.lanes.iter().map(|lane| lane[value]).sum::<u32>());
        let m = REGISTERS as f64;
        let mut z = m * tau((m - of(RUN_BITS as usize + 1)) / m);
        for value in (1..=RUN_BITS as usize).rev() {
            z = (z + of(value)) * 0.5;
        }
        z += m * sigma(of(0) / m);
        // The factor is 1 / (2 ln 2).
        let estimate = (0.721_347_520_444_481_7 * m * m / z).round();
        // Registers that no elements produce (SET wrote them) may give an estimate beyond i64;
        // x86-64 then converts to its "invalid" value.
        if estimate < i64::MAX as f64 { estimate as u64 } else { 1 << 63 }
    }
}

/// The sum over x^(2^k) 2^(k-1), plus x: infinite at 1.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// A third of 1 - x less the sum over (1 - x^(2^-k))^2 2^-k.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn add_numbered(hll: &mut Vec<u8>, numbers: std::ops::Range<usize>, sparse_max_bytes: usize) {
        for number in numbers {
            add(hll, format!("element:{number}").as_bytes(), sparse_max_bytes).expect("valid");
        }
    }

    /// PFCOUNT of one key, header included.
    fn count_and_cache(hll: &mut [u8]) -> Result<u64, Corrupt> {
        if let Some(cardinality) = cached_count(hll) {
            return Ok(cardinality);
        }
        let cardinality = count(hll)?;
        hll[CARDINALITY_AT..HEADER_LEN].copy_from_slice(&cardinality.to_le_bytes());
        Ok(cardinality)
    }

    fn unpacked(hll: &[u8]) -> Result<Registers, Corrupt> {
        let mut registers = [0; REGISTERS];
        merge(&mut registers, hll).map(|()| registers)
    }

    fn fnv_1a(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        })
    }

    /// From Redis 7.0.15: hll-sparse-max-bytes, number of elements, then of GET before the PFCOUNT
    /// the length and FNV-1a, and PFCOUNT. PFCOUNT was asked at each line, so older cardinalities
    /// remain in the header below the invalid bit.
    const FACTS: [(usize, usize, usize, u64, u64); 23] = [
        (0, 1, 12304, 0x0a72_9531_e698_93ca, 1),
        (0, 3, 12304, 0x6c41_5032_5726_dc37, 3),
        (40, 1, 21, 0x5db2_e01c_3370_7b73, 1),
        (40, 3, 27, 0x18f3_ec62_21e8_6519, 3),
        (40, 20, 12304, 0xffcd_c793_a130_1bed, 20),
        (40, 150, 12304, 0xffa1_5399_1498_e6fd, 150),
        (40, 1000, 12304, 0xccc7_450e_6173_b7d3, 997),
        (300, 1, 21, 0x5db2_e01c_3370_7b73, 1),
        (300, 3, 27, 0x18f3_ec62_21e8_6519, 3),
        (300, 20, 76, 0x26bb_c8e6_e078_82e4, 20),
        (300, 150, 12304, 0xffa1_5399_1498_e6fd, 150),
        (3000, 1, 21, 0x5db2_e01c_3370_7b73, 1),
        (3000, 3, 27, 0x18f3_ec62_21e8_6519, 3),
        (3000, 20, 76, 0x26bb_c8e6_e078_82e4, 20),
        (3000, 150, 395, 0x6d6d_0023_ede2_df25, 150),
        (3000, 1000, 1897, 0x50d5_bc49_4e8c_91a7, 997),
        (3000, 4000, 12304, 0xdf96_f6f1_dcc1_7206, 4002),
        (3000, 20000, 12304, 0x1590_92fb_e01a_2dd8, 19986),
        (16000, 20, 76, 0x26bb_c8e6_e078_82e4, 20),
        (16000, 150, 395, 0x6d6d_0023_ede2_df25, 150),
        (16000, 1000, 1897, 0x50d5_bc49_4e8c_91a7, 997),
        (16000, 4000, 6125, 0x34d9_55ec_b20c_1b0a, 4002),
        (16000, 20000, 13093, 0xfa80_648d_8a9a_246d, 19986),
    ];

    #[test]
    fn stored_bytes_and_counts_are_those_of_a_peer() {
        let mut hll = Vec::new();
        let mut before = (usize::MAX, 0);
        for (sparse_max_bytes, elements, len, hash, cardinality) in FACTS {
            if before.0 != sparse_max_bytes {
                (hll, before) = (new_sparse(), (sparse_max_bytes, 0));
                // The peer was asked at these numbers too.
                for asked in [1, 3].into_iter().filter(|asked| *asked < elements) {
                    add_numbered(&mut hll, before.1..asked, sparse_max_bytes);
                    count_and_cache(&mut hll).expect("valid");
                    before.1 = asked;
                }
            }
            add_numbered(&mut hll, before.1..elements, sparse_max_bytes);
            before.1 = elements;
            assert_eq!((hll.len(), fnv_1a(&hll)), (len, hash), "{sparse_max_bytes} {elements}");
            assert_eq!(count_and_cache(&mut hll), Ok(cardinality));
            assert_eq!(count_and_cache(&mut hll), Ok(cardinality));
        }
    }

    #[test]
    fn merging_gives_the_bytes_of_a_peer() {
        let filled = |numbers| {
            let mut hll = new_sparse();
            add_numbered(&mut hll, numbers, 3000);
            hll
        };
        let (a, b, d) = (filled(0..400), filled(300..700), filled(5000..12000));
        let union = |sources: &[&[u8]]| {
            let mut registers = [0; REGISTERS];
            sources.iter().for_each(|hll| merge(&mut registers, hll).expect("valid"));
            registers
        };
        assert_eq!(count_registers(&union(&[&a, &b])), 703);
        assert_eq!(count_registers(&union(&[&a, &b, &d])), 7739);

        for destination in [&new_sparse(), &a] {
            let mut merged = destination.clone();
            raise_all(&mut merged, &union(&[destination, &a, &b]), 3000).expect("valid");
            assert_eq!((merged.len(), fnv_1a(&merged)), (1401, 0x1ee1_e7db_4c44_da07));
        }
        let mut merged = b.clone();
        assert_eq!(make_dense(&mut merged), Ok(true));
        raise_all(&mut merged, &union(&[&b, &d]), 3000).expect("valid");
        assert_eq!((merged.len(), fnv_1a(&merged)), (12304, 0x439c_b819_ee81_9612));
        assert_eq!(count(&merged), Ok(7436));

        let mut empty = new_sparse();
        assert_eq!(cached_count(&empty), Some(0));
        raise_all(&mut empty, &union(&[]), 3000).expect("valid");
        assert_eq!((empty.len(), fnv_1a(&empty)), (18, 0x524b_c36d_036c_0579));
    }

    #[test]
    fn decoding_shows_the_opcodes() {
        let mut hll = new_sparse();
        add_numbered(&mut hll, 0..6, 3000);
        let expected =
            "Z:1167 v:1,1 Z:1340 v:2,1 Z:1673 v:5,1 Z:1282 v:1,1 Z:2856 v:1,1 Z:7470 v:2,1 Z:590";
        assert_eq!(decode(&hll).as_deref(), Some(expected));
        assert_eq!(make_dense(&mut hll), Ok(true));
        assert_eq!(make_dense(&mut hll), Ok(false));
        assert_eq!(decode(&hll), None);
    }

    #[test]
    fn registers_that_no_elements_make_count_as_an_invalid_integer() {
        let mut hll = new_sparse();
        make_dense(&mut hll).expect("valid");
        hll[HEADER_LEN..].fill(0xff);
        assert_eq!(count(&hll), Ok(1 << 63));
    }

    #[test]
    fn what_is_no_hyperloglog_is_told_from_what_is_corrupt() {
        let valid = new_sparse();
        assert!(encoding(&valid).is_some());
        assert!(encoding(&valid[..15]).is_none());
        assert!(encoding(b"HYLx\x01___________").is_none());
        assert!(encoding(b"HYLL\x02___________").is_none());
        assert!(encoding(b"HYLL\x00___________").is_none());
        for opcodes in [&b""[..], b"\x7f", b"\x7f\xfe", b"\x7f\xff\x00", b"\x7f\xff\x80"] {
            let mut hll = [&valid[..HEADER_LEN], opcodes].concat();
            assert!(encoding(&hll).is_some());
            assert_eq!(count(&hll), Err(Corrupt));
            assert_eq!(unpacked(&hll), Err(Corrupt));
            assert_eq!(make_dense(&mut hll), Err(Corrupt));
        }
    }

    #[test]
    fn the_self_test_passes() {
        assert_eq!(self_test(1, 10_000, 3000), Ok(()));
    }

    /// Opcodes likely to be of interest: short runs, few values, XZERO at any distance.
    fn opcodes() -> impl Strategy<Value = Vec<u8>> {
        let opcode = prop_oneof![
            4 => (0u8..64).prop_map(|byte| vec![byte]),
            8 => (0x80u8..0x90).prop_map(|byte| vec![byte]),
            1 => (0x40u8..0x48, any::<u8>()).prop_map(|(high, low)| vec![high, low]),
            1 => any::<u8>().prop_map(|byte| vec![byte]),
        ];
        prop::collection::vec(opcode, 0..600).prop_map(|opcodes| opcodes.concat())
    }

    /// A sparse value which begins with these opcodes, as far as they fit, and is then filled with
    /// zeros to be valid.
    fn completed(opcodes: &[u8]) -> Vec<u8> {
        let mut hll = [&new_sparse()[..HEADER_LEN], opcodes].concat();
        let (mut at, mut left) = (HEADER_LEN, REGISTERS);
        while let Some(opcode) = Opcode::read(&hll, at).filter(|it| it.run <= left) {
            at += opcode.width;
            left -= opcode.run;
        }
        hll.truncate(at);
        hll.extend_from_slice(Sequence::default().zeros(left).as_bytes());
        hll
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn sparse_and_dense_hold_the_same_registers(
            numbers in prop::collection::vec(any::<u32>(), 0..800),
            sparse_max_bytes in prop::sample::select(vec![0, 40, 400, 3000]),
        ) {
            let mut hll = new_sparse();
            let mut model = [0; REGISTERS];
            for number in numbers {
                let element = number.to_le_bytes();
                let (index, value) = register_of(&element);
                let rises = value > model[index];
                model[index] = value.max(model[index]);
                prop_assert_eq!(add(&mut hll, &element, sparse_max_bytes), Ok(rises));
                prop_assert!(encoding(&hll) == Some(Encoding::Dense) || hll.len() <= sparse_max_bytes.max(18));
            }
            prop_assert_eq!(unpacked(&hll), Ok(model));
            prop_assert_eq!(count(&hll), Ok(count_registers(&model)));
            make_dense(&mut hll).expect("valid");
            prop_assert_eq!(unpacked(&hll), Ok(model));
            prop_assert_eq!(count(&hll), Ok(count_registers(&model)));
        }

        #[test]
        fn raising_all_registers_is_raising_one_after_the_other(
            opcodes in opcodes(),
            other in opcodes(),
            sparse_max_bytes in prop::sample::select(vec![300, 1000, 3000]),
        ) {
            let mut hll = completed(&opcodes);
            let mut registers = unpacked(&hll).expect("valid");
            merge(&mut registers, &completed(&other)).expect("valid");
            let mut expected = hll.clone();
            for (index, &value) in registers.iter().enumerate() {
                if encoding(&expected) == Some(Encoding::Dense) {
                    dense_raise(&mut expected, index, value);
                } else if value > 0 {
                    let mut start = Boundary::START;
                    sparse_raise(&mut expected, index, value, sparse_max_bytes, &mut start).expect("valid");
                }
            }
            invalidate_cached_count(&mut expected);
            raise_all(&mut hll, &registers, sparse_max_bytes).expect("valid");
            prop_assert_eq!(decode(&hll), decode(&expected));
            prop_assert!(hll == expected);
            prop_assert_eq!(unpacked(&hll), Ok(registers));
        }

        #[test]
        fn no_bytes_behind_a_valid_header_do_harm(
            opcodes in opcodes(),
            elements in prop::collection::vec(any::<u32>(), 0..20),
            sparse_max_bytes in prop::sample::select(vec![0, 300, 3000]),
        ) {
            let mut hll = [&new_sparse()[..HEADER_LEN], &opcodes].concat();
            let is_valid = unpacked(&hll).is_ok();
            prop_assert_eq!(count(&hll).is_ok(), is_valid);
            prop_assert_eq!(make_dense(&mut hll.clone()).is_ok(), is_valid);
            decode(&hll);
            raise_all(&mut hll.clone(), &[3; REGISTERS], sparse_max_bytes).ok();
            for element in elements {
                let before = hll.clone();
                let added = add(&mut hll, &element.to_le_bytes(), sparse_max_bytes);
                prop_assert!(added == Ok(true) || hll == before);
                prop_assert_eq!(unpacked(&hll).is_ok(), is_valid);
            }
        }

        #[test]
        fn eight_opcodes_are_measured_like_one_by_one(opcodes: [u8; 8]) {
            let one_by_one: Option<usize> = opcodes
                .iter()
                .map(|byte| Opcode::read(&[*byte], 0).map(|opcode| opcode.run))
                .sum();
            prop_assert_eq!(run_of_eight(opcodes), one_by_one);
        }

        #[test]
        fn packing_and_unpacking_are_inverse(group: [u8; 6], index in 0..8usize) {
            let registers = unpack_eight(group);
            prop_assert_eq!(pack_eight(registers), group);
            let hll = [&[0; HEADER_LEN][..], &group].concat();
            prop_assert_eq!(dense_get(&hll, index), registers[index]);
        }
    }
}
