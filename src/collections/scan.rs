//! Ends a scan's step within a page that has more entries than requested.

/// The cursor after the first `most` of `places`, or after a few more if they share a cursor; None
/// if there are no more. A place is an entry's position in the order of the scan, and
/// `place >> shift` the first cursor that still includes it. Cost: O(n).
pub fn cut(places: &mut [u64], most: usize, shift: u32) -> Option<u64> {
    let most = most.max(1);
    if places.len() <= most {
        return None;
    }
    let (_, last, behind) = places.select_nth_unstable(most - 1);
    let last = *last >> shift;
    behind.iter().map(|place| place >> shift).filter(|&cursor| cursor > last).min()
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn a_page_ends_between_two_cursors() {
        let places = [0x50, 0x10, 0x40, 0x22, 0x21, 0x20];
        for (most, shift, cursor) in [
            (0, 0, Some(0x20)),
            (1, 0, Some(0x20)),
            (2, 0, Some(0x21)),
            // Three of them have one cursor.
            (1, 4, Some(2)),
            (2, 4, Some(4)),
            (4, 4, Some(4)),
            (5, 4, Some(5)),
            (6, 4, None),
            (usize::MAX, 0, None),
        ] {
            assert_eq!(cut(&mut places.clone(), most, shift), cursor, "{most} {shift}");
        }
        assert_eq!(cut(&mut [7, 7, 7], 1, 0), None);
        assert_eq!(cut(&mut [], 1, 0), None);
    }
}
