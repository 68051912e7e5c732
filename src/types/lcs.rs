//! The longest common subsequence of two strings, for LCS with its LEN and IDX.
//!
//! Two byte strings come in; out go the length, the subsequence, or the ranges it consists of. Many subsequences may be
//! longest; which one is found, and so the ranges, is observable. The rule is Redis's: walk back from both ends, take a
//! byte wherever both strings end with the same, and else drop the last byte of `a` if that leaves a strictly longer
//! common subsequence than dropping the last byte of `b`, which is dropped otherwise.
//!
//! The textbook table L (Redis keeps it: 4 bytes a cell) has L(i, j) for the first i bytes of `a` and j bytes of `b`. Along a
//! row it rises by 0 or 1 a step, so a bit a cell tells all, and a row follows from the one before with one addition for 64
//! cells (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004). These bits are also enough for the walk: where the
//! bytes differ, dropping the last of `a` is strictly better than dropping the last of `b` exactly if L rises at (i, j),
//! because L(i, j) is the larger of the two.

/// The strings are so long that the table would exceed the caller's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("transient memory for LCS exceeds the limit")]
pub struct TooLarge;

/// A maximal run of bytes that follow each other in both strings: `a[a_start..][..len]` and `b[b_start..][..len]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    pub a_start: usize,
    pub b_start: usize,
    pub len: usize,
}

/// One longest common subsequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsequence {
    pub bytes: Vec<u8>,
    /// The runs it consists of, from the ends of the strings to their beginnings.
    pub matches: Vec<Match>,
}

/// Length of the longest common subsequence: LCS with LEN. Refused if a table of 4 bytes a cell were larger than
/// `table_bytes_max`, as in [`subsequence`].
///
/// Time: product of the lengths, 64 cells a step. Memory: a bit for each byte of `b` and each different byte.
pub fn length(a: &[u8], b: &[u8], table_bytes_max: u64) -> Result<usize, TooLarge> {
    check_size(a, b, table_bytes_max)?;
    let masks = Masks::new(a, b);
    let mut row = vec![u64::MAX; masks.words];
    for byte in a {
        advance(&mut row, masks.of(*byte));
    }
    Ok(rises(&row, b.len()))
}

/// A longest common subsequence and where it lies: LCS without LEN, or with IDX (for MINMATCHLEN drop the shorter
/// matches).
///
/// Refused if a table of (a + 1)(b + 1) cells of 4 bytes were larger than `table_bytes_max`, though less is used: clients get
/// the same answer from any server of the protocol, and it bounds the time on the one thread.
///
/// Time and memory: product of the lengths, 64 cells a step and a word.
pub fn subsequence(a: &[u8], b: &[u8], table_bytes_max: u64) -> Result<Subsequence, TooLarge> {
    check_size(a, b, table_bytes_max)?;
    let masks = Masks::new(a, b);
    let words = masks.words;
    let mut rows = Vec::with_capacity(words * a.len());
    let mut row = vec![u64::MAX; words];
    for byte in a {
        advance(&mut row, masks.of(*byte));
        rows.extend_from_slice(&row);
    }
    let mut bytes = Vec::with_capacity(rises(&row, b.len()));
    let mut matches: Vec<Match> = Vec::new();
    let (mut i, mut j) = (a.len(), b.len());
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            (i, j) = (i - 1, j - 1);
            bytes.push(a[i]);
            match matches.last_mut() {
                Some(run) if (run.a_start, run.b_start) == (i + 1, j + 1) => {
                    *run = Match {
                        a_start: i,
                        b_start: j,
                        len: run.len + 1,
                    };
                }
                _ => matches.push(Match {
                    a_start: i,
                    b_start: j,
                    len: 1,
                }),
            }
        } else if rows[(i - 1) * words + (j - 1) / 64] >> ((j - 1) % 64) & 1 == 0 {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    bytes.reverse();
    Ok(Subsequence { bytes, matches })
}

fn check_size(a: &[u8], b: &[u8], table_bytes_max: u64) -> Result<(), TooLarge> {
    let cells = (a.len() as u128 + 1) * (b.len() as u128 + 1);
    if cells * 4 > u128::from(table_bytes_max) {
        Err(TooLarge)
    } else {
        Ok(())
    }
}

/// For each byte that occurs in `a`, the places where it occurs in `b`, a bit each.
struct Masks {
    /// Words in a row: a bit for each byte of `b`.
    words: usize,
    /// Index of a byte's mask; 0 is an empty mask for bytes that do not occur in `a`.
    index: [u16; 256],
    masks: Vec<u64>,
}

impl Masks {
    fn new(a: &[u8], b: &[u8]) -> Self {
        let words = b.len().div_ceil(64);
        let mut index = [0; 256];
        let mut different = 0;
        for byte in a {
            let index = &mut index[usize::from(*byte)];
            if *index == 0 {
                different += 1;
                *index = different;
            }
        }
        let mut masks = vec![0; words * (usize::from(different) + 1)];
        for (place, byte) in b.iter().enumerate() {
            masks[usize::from(index[usize::from(*byte)]) * words + place / 64] |= 1 << (place % 64);
        }
        // Bytes of `b` alone were collected under 0.
        masks[..words].fill(0);
        Masks {
            words,
            index,
            masks,
        }
    }

    fn of(&self, byte: u8) -> &[u64] {
        let from = usize::from(self.index[usize::from(byte)]) * self.words;
        &self.masks[from..from + self.words]
    }
}

/// One row of L to the next. Bit j is 0 where the row rises from j to j + 1.
fn advance(row: &mut [u64], mask: &[u64]) {
    let mut carry = false;
    for (word, mask) in row.iter_mut().zip(mask) {
        let matching = *word & mask;
        let (sum, first) = word.overflowing_add(matching);
        let (sum, second) = sum.overflowing_add(u64::from(carry));
        carry = first | second;
        *word = sum | (*word & !mask);
    }
}

/// Number of rises in the first `columns` of a row: the last cell of L.
fn rises(row: &[u64], columns: usize) -> usize {
    // Bits behind the columns have no mask and so stay 1.
    debug_assert!(row.len() == columns.div_ceil(64));
    row.iter().map(|word| word.count_zeros() as usize).sum()
}
