//! The longest common subsequence of two strings, for LCS with its LEN and IDX.
//!
//! Two byte strings come in; out go the length, the subsequence, or the ranges it consists of. Many
//! subsequences may be longest; which one is found, and so the ranges, is observable. The rule is
//! Redis's: walk back from both ends, take a byte wherever both strings end with the same, and else
//! drop the last byte of `a` if that leaves a strictly longer common subsequence than dropping the
//! last byte of `b`, which is dropped otherwise.
//!
//! The textbook table L (Redis keeps it: 4 bytes a cell) has L(i, j) for the first i bytes of `a`
//! and j bytes of `b`. Along a row it rises by 0 or 1 a step, so a bit for each cell is enough, and
//! a row follows from the one before with one addition for 64 cells (Hyyrö, "Bit-parallel
//! LCS-length computation revisited", 2004). These bits are also enough for the walk: where the
//! bytes differ, dropping the last of `a` is strictly better than dropping the last of `b` exactly
//! if L rises at (i, j), because L(i, j) is the larger of the two.

/// Why the computation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LcsError {
    #[error("a string is longer than 4 GiB")]
    StringTooLong,
    /// The table would exceed the caller's limit.
    #[error("transient memory for LCS exceeds the limit")]
    TableTooLarge,
    #[error("failed allocating transient memory for LCS")]
    OutOfMemory,
}

/// A maximal run of bytes that follow each other in both strings: `a[a_start..][..len]` and
/// `b[b_start..][..len]`.
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

/// Length of the longest common subsequence: LCS with LEN. Refused if a table of 4 bytes a cell
/// were larger than `table_bytes_max`, as in [`subsequence`].
///
/// Time: product of the lengths, 64 cells a step. Memory: a bit for each byte of `b` and each
/// different byte.
pub fn length(a: &[u8], b: &[u8], table_bytes_max: u64) -> Result<usize, LcsError> {
    check_size(a, b, table_bytes_max)?;
    let masks = Masks::new(a, b)?;
    let mut row = vec![u64::MAX; masks.words];
    for byte in a {
        advance(&mut row, masks.of(*byte));
    }
    Ok(rises(&row, b.len()))
}

/// A longest common subsequence and its ranges: LCS without LEN, or with IDX (for MINMATCHLEN drop
/// the shorter matches).
///
/// Refused if a table of (a + 1)(b + 1) cells of 4 bytes were larger than `table_bytes_max`, though
/// less is used: clients get the same answer from any server of the protocol, and it bounds the
/// time on the one thread.
///
/// Time and memory: product of the lengths, 64 cells a step and a word.
pub fn subsequence(a: &[u8], b: &[u8], table_bytes_max: u64) -> Result<Subsequence, LcsError> {
    check_size(a, b, table_bytes_max)?;
    let masks = Masks::new(a, b)?;
    let words = masks.words;
    let mut rows = with_room(words * a.len())?;
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
                    *run = Match { a_start: i, b_start: j, len: run.len + 1 };
                }
                _ => matches.push(Match { a_start: i, b_start: j, len: 1 }),
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

fn check_size(a: &[u8], b: &[u8], table_bytes_max: u64) -> Result<(), LcsError> {
    if a.len().max(b.len()) as u64 >= u64::from(u32::MAX) - 1 {
        return Err(LcsError::StringTooLong);
    }
    let cells = (a.len() as u64 + 1) * (b.len() as u64 + 1);
    match cells.checked_mul(4) {
        None => Err(LcsError::OutOfMemory),
        Some(bytes) if bytes > table_bytes_max => Err(LcsError::TableTooLarge),
        Some(_) => Ok(()),
    }
}

/// An empty vector with room for `words` words. Errors: out of memory, as the configured limit may
/// exceed it.
fn with_room(words: usize) -> Result<Vec<u64>, LcsError> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(words).map_err(|_| LcsError::OutOfMemory)?;
    Ok(vec)
}

/// For each byte that occurs in `a`, a bit mask of its positions in `b`.
struct Masks {
    /// Words in a row: a bit for each byte of `b`.
    words: usize,
    /// Index of a byte's mask; 0 is an empty mask for bytes that do not occur in `a`.
    index: [u16; 256],
    masks: Vec<u64>,
}

impl Masks {
    fn new(a: &[u8], b: &[u8]) -> Result<Self, LcsError> {
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
        let masks_words = words * (usize::from(different) + 1);
        let mut masks = with_room(masks_words)?;
        masks.resize(masks_words, 0);
        for (place, byte) in b.iter().enumerate() {
            masks[usize::from(index[usize::from(*byte)]) * words + place / 64] |= 1 << (place % 64);
        }
        // Bytes of `b` alone were collected under 0.
        masks[..words].fill(0);
        Ok(Masks { words, index, masks })
    }

    fn of(&self, byte: u8) -> &[u64] {
        let from = usize::from(self.index[usize::from(byte)]) * self.words;
        &self.masks[from..from + self.words]
    }
}

/// Computes the next row of L. Bit j is 0 where the row rises from j to j + 1.
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
    // Bits after the columns have no mask and so stay 1.
    debug_assert!(row.len() == columns.div_ceil(64));
    row.iter().map(|word| word.count_zeros() as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: u64 = 512 << 20;

    /// The textbook table and the same walk.
    fn naive(a: &[u8], b: &[u8]) -> Subsequence {
        let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
        for i in 1..=a.len() {
            for j in 1..=b.len() {
                table[i][j] = if a[i - 1] == b[j - 1] {
                    table[i - 1][j - 1] + 1
                } else {
                    table[i - 1][j].max(table[i][j - 1])
                };
            }
        }
        let (mut i, mut j) = (a.len(), b.len());
        let mut pairs = Vec::new();
        while i > 0 && j > 0 {
            if a[i - 1] == b[j - 1] {
                (i, j) = (i - 1, j - 1);
                pairs.push((i, j));
            } else if table[i - 1][j] > table[i][j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        let runs = pairs.chunk_by(|later, earlier| *later == (earlier.0 + 1, earlier.1 + 1));
        let matches = runs
            .map(|run| {
                let (a_start, b_start) = run[run.len() - 1];
                Match { a_start, b_start, len: run.len() }
            })
            .collect();
        Subsequence { bytes: pairs.iter().rev().map(|(i, _)| a[*i]).collect(), matches }
    }

    fn found(a: &str, b: &str) -> (String, Vec<(usize, usize, usize)>) {
        let found = subsequence(a.as_bytes(), b.as_bytes(), LIMIT).unwrap();
        let matches = found.matches.iter().map(|it| (it.a_start, it.b_start, it.len)).collect();
        (String::from_utf8(found.bytes).unwrap(), matches)
    }

    #[test]
    fn subsequences_are_those_of_a_peer() {
        let expected = ("mytext".into(), vec![(4, 5, 4), (2, 0, 2)]);
        assert_eq!(found("ohmytext", "mynewtext"), expected);
        let expected = ("acgtacgtbb".into(), vec![(11, 11, 1), (6, 5, 5), (2, 0, 4)]);
        assert_eq!(found("rnacgtacgtbb", "acgtzacgtbrb"), expected);
        assert_eq!(found("", "x"), (String::new(), vec![]));
    }

    #[test]
    fn the_limit_is_on_a_table_of_four_bytes_a_cell() {
        let (a, b) = ([b'a'; 511], [b'a'; 512]);
        assert_eq!(length(&a, &a, 1 << 20), Ok(511));
        assert_eq!(length(&a, &b, 1 << 20), Err(LcsError::TableTooLarge));
        assert_eq!(subsequence(&b, &a, 1 << 20), Err(LcsError::TableTooLarge));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn agrees_with_the_textbook_table(a in "[abcd]{0,200}|[ab]{0,20}", b in "[abce]{0,200}|[ab]{0,20}") {
            let (a, b) = (a.as_bytes(), b.as_bytes());
            let expected = naive(a, b);
            prop_assert_eq!(length(a, b, LIMIT), Ok(expected.bytes.len()));
            prop_assert_eq!(subsequence(a, b, LIMIT), Ok(expected));
        }
    }
}
