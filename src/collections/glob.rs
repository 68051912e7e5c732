//! Glob patterns as KEYS, SCAN, PSUBSCRIBE, CONFIG GET and ACL rules know them: `*`, `?`, `[a-z]`,
//! `[^x]`, `\x`.
//!
//! Every pattern element but `*` matches exactly one byte, so on a mismatch only the last `*` seen
//! must be retried: if the elements between two stars match somewhere, the first such position
//! leaves the most text for the rest. Hence a loop, no recursion, and at worst pattern x text
//! steps.
//!
//! These corner cases are observable and kept (taken from Redis 7.0.15 on x86-64, see the table in
//! the tests):
//! - the empty text is only matched by the empty pattern, not by `*`;
//! - an unclosed class ends with the pattern: `[ab` is `[ab]`, `[^` is any byte, `[` is none;
//! - `]` directly after `[` closes an empty class; in `[a-]` the bracket is the end of a range, and
//!   the class continues;
//! - a backslash at the end is literal; an escaped byte in a class is case-sensitive even if the
//!   rest is not;
//! - the bounds of a range may come in either order and are signed bytes: `[\x80-a]` holds 0x80 ..=
//!   0xff and 0 ..= b'a';
//! - more than 1000 stars match nothing.

/// Redis's limit of recursion. Not needed here, but patterns must match alike.
const STARS_MAX: usize = 1000;

/// Whether the whole of `text` fits `pattern`. With `ignore_case`, ASCII letters match in either
/// case.
///
/// Time: at worst the product of the lengths; linear where at most one `*` occurs.
pub fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    if text.is_empty() {
        return pattern.is_empty();
    }
    let (mut pattern, mut text) = (pattern, text);
    // The pattern after the last star, and the text where it was last tried.
    let mut retry: Option<(&[u8], &[u8])> = None;
    let mut stars = 0;
    loop {
        let Some((&byte, text_rest)) = text.split_first() else {
            // A later position for the last star would leave even less text.
            return pattern.iter().all(|&element| element == b'*');
        };
        if let [b'*', rest @ ..] = pattern {
            pattern = skip_stars(rest);
            if pattern.is_empty() {
                return true;
            }
            stars += 1;
            if stars > STARS_MAX {
                return false;
            }
            retry = Some((pattern, text));
        } else if let Some(rest) = match_element(pattern, byte, ignore_case) {
            pattern = rest;
            text = text_rest;
        } else if let Some((after_star, [_, shorter @ ..])) = retry {
            retry = Some((after_star, shorter));
            pattern = after_star;
            text = shorter;
        } else {
            return false;
        }
    }
}

fn skip_stars(mut pattern: &[u8]) -> &[u8] {
    while let [b'*', rest @ ..] = pattern {
        pattern = rest;
    }
    pattern
}

/// The pattern after its first element (not a star), if that element matches `byte`.
fn match_element(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<&[u8]> {
    let (literal, rest) = match pattern {
        [] => return None,
        [b'?', rest @ ..] => return Some(rest),
        [b'[', rest @ ..] => return match_class(rest, byte, ignore_case),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal, rest),
    };
    (literal == byte || ignore_case && literal.eq_ignore_ascii_case(&byte)).then_some(rest)
}

/// The pattern after the class in which `pattern` begins, if the class contains `byte`.
fn match_class(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<&[u8]> {
    let fold = |byte: u8| {
        if ignore_case { byte.to_ascii_lowercase() } else { byte }
    };
    let (negated, mut pattern) = match pattern {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, pattern),
    };
    let mut found = false;
    let rest = loop {
        match pattern {
            [b'\\', literal, rest @ ..] => {
                found |= *literal == byte;
                pattern = rest;
            }
            [b']', rest @ ..] => break rest,
            [] => break pattern,
            [from, b'-', to, rest @ ..] => {
                // Ordered before case folding, so that ignoring case may empty a range: `[Z-a]`.
                let (low, high) = (*from as i8, *to as i8);
                let (low, high) = (low.min(high) as u8, low.max(high) as u8);
                found |= (fold(low) as i8..=fold(high) as i8).contains(&(fold(byte) as i8));
                pattern = rest;
            }
            [literal, rest @ ..] => {
                found |= fold(*literal) == fold(byte);
                pattern = rest;
            }
        }
    };
    (found != negated).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Plain recursion over suffixes: exponential, and obviously right as long as the matching of
    /// single elements is.
    fn naive(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
        match (pattern, text) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => {
                (0..=text.len()).any(|skipped| naive(rest, &text[skipped..], ignore_case))
            }
            (_, []) => false,
            (_, [byte, tail @ ..]) => match_element(pattern, *byte, ignore_case)
                .is_some_and(|rest| naive(rest, tail, ignore_case)),
        }
    }

    /// The replies of KEYS in Redis 7.0.15: pattern | texts that match | texts that do not.
    const FACTS: &str = r"
?-[* | --* a-* | baA \aa
-*a[-a[a | -aa -zza[ | [Ab a\aza
] | ] | \ ^
*z | Ab-z *Az | bAz* *b]
[^ | A ] |
[[?-\ | A [ | * z
a?a] | aAa] aaa] | ^Azb -aa\
[\]z | z ] | [ \
^? | ^b ^A | -^ A^
a[b | ab | \* z-
*- | Aa- -A\*- | A]AA\ A\*b
[z*z-]\] | ^ b | A -
[b^ | b ^ | ] a
z\?\[\zb |  | b^*a- b^-Aa
azzza? |  | bAzaz ^bAA
a[^aa-] | a\ ab | -* [b
*[[[ | \zza[ ^A[ | \b^aA A]bz
^?\] | ^b] ^z] | AAA \ba
z]?[\[-\ | z]b\ | ^\b\ zAab
a[^aaa] | aA ab | -b \b
b[\??\ | b\ | az -\
[*?\ | \ * | [ z
[az[[-] | [ z | ^ A
a[*z**a] | aa az | z* ]a
\^[^-b | ^* ^z | a\ A]
?[[??[?[ | -[ b[ | z- *]
\]a^[bz | ]a^z ]a^b | b\Ab b^b]
*]]ab^[ |  | zbzaa aa]]
?[z^^a | ]z *z | \A \]
b | b | z \
[[b[??z^^ | ^ [ | A \
][[[b | ]b ][ | A- a^
]\[z | ][z | *^b za-
[bza[ | a z | * -
[?^ | ^ | b a
a\b | ab | *b [b
][bb | ]b | z^ ]z
\ | \ | z a
z[?a\a[^ | za z^ | ^* \z
[a | a | * -
[?[-b[[ | \ a | - z
][^? | ]^ ]b | [] zA
a^[-\b | a^b | bA- A]b
?^[b | b^b \^b | ^aa ]b-
[b-] | ^ a | \ -
? | \ b |
[?^] | ^ | a ]
[a]\b | ab | -b \A
^[]*a*[^ |  | b*Ab^ ]]aA
-[[a-][ | -a -[ | ab a\
^] | ^] | [z [a
*[?az-] | abazb ^-zA] | z]A ]b*
\][z\* | ]* ]z | A\ ^*
^[^a][[ | ^A[ | a\^ b-A
**[b*[a] | Aa]^a -z-ab | aAb-^ Az^
a][\^??\z | a]^ a]z | bAb aaa
- | - | ^ *
aa | aa | -^ ^]
-z?[^] | -zAb -za- | -bA\ ^ba\
[ba**?ba[ | a [ | A ^
*[[z\?\az | ]-Az z\^]a | a]aab \z]
*? | bz-za -b]aa |
a[a* | aa a* | -] A[
[z[ | z [ | - *
a[\[] | a[ | z\ A-
*bb[[ | b-bb[ | Aab-A -bazz
[ |  | aAAz ^AA
*]^[b[\]? | b-]^b ]]^] | -az\a aaba
[-az[[] | - z | ^ A
za[bz][\^ | zaz^ | az^b az]z
z]^ | z]^ | AA\ aaA
a[^ | a] az | z^ Ab
[?a^zz^? | a ^ | \ A
*[aaz\za | b]]Az z]-za | A-* a]\
[z | z | A b
z*\b[-^z | zbz zzAbz | \AaA AA^^z
^-[\]^^z- | ^-] ^-- | aa[ Aaa
[^\zb]?] | -b] -a] | aAA -aa
\\][\\]] |  | a\a^ \Aaaa
z] | z] | zb ]\
\-?[z\??a | -az -Aa | b]\ \-*
[**\] | * ] | \ z
][*][aba | ]*b | -]z a\]
-z][aa[] | -z]a | z]zA b^*z
az[\*b^aa | az^ azb | ]^\ ]^]
[^z | - ] | z
z?\* | za* zb* | az^ \a]
[][[]bb |  | Abb b\bb
*[b]aa- | baa- Abaa- | ]bzA aa*^
a[* | a* | aA Az
\\* | \aba] \zAzb | Ab]b^ a*z
[za]* | z^^* zAba | ]* -bb
-^[[z[a |  | Abba ^z]
a-][?? |  | ]aaza ]]z-
?[a\zb | *b *z | zA a-
-\ | -\ | Az z]
][-z | ]- ]z | \z bb
?[aa^[^b[ | zb \^ | z- b]
]a[b[ | ]ab | ^Az ^]A
[]zb\a |  | ^b]b aaaA^
][[^-a | ]^ ][ | *[ b^
]* | ]ab*^ ]a]bA | ba\ aaAbb
a*- | aA^a- aA]- | b^]] Aa\a
]][zz | ]]z | **A -b^
][ab[\[* | ][ ]a | A\ \*
[^?a | ^ [ | a
[ba^ | b a | ] *
a?[[- | ab- aa[ | -zb ^\]
--a*[^?a |  | AAaA -\-a
[a[z\[ | z [ | \ *
";

    #[test]
    fn agrees_with_what_a_peer_answered() {
        let mut asked = 0;
        for line in FACTS.lines().filter(|line| !line.is_empty()) {
            let mut columns = line.split('|').map(str::trim);
            let pattern = columns.next().expect("a pattern");
            for (texts, expected) in columns.zip([true, false]) {
                for text in texts.split_whitespace() {
                    let found = matches(pattern.as_bytes(), text.as_bytes(), false);
                    assert_eq!(found, expected, "{pattern} on {text}");
                    asked += 1;
                }
            }
        }
        assert!(asked > 300);
    }

    #[test]
    fn ranges_hold_signed_bytes() {
        let held = |class: &[u8]| -> Vec<u8> {
            (0..=255).filter(|byte| matches(class, &[*byte], false)).collect()
        };
        assert_eq!(held(b"[\x80-a]").len(), 226);
        assert_eq!(held(b"[\x7f-\x80]").len(), 256);
        assert_eq!(held(b"[a-\xff]"), [(0..=b'a').collect(), vec![0xff]].concat());
    }

    #[test]
    fn ignoring_case_folds_the_bounds_of_a_range_but_no_escaped_byte_of_a_class() {
        // The answers of FUNCTION LIST LIBRARYNAME in Redis 7.0.15.
        let names = ["aZ_b", "Ab0", "zzYY", "Q_9a", "mNoP"];
        for (pattern, expected) in [
            (r"AZ_B", "aZ_b"),
            (r"[a-z]z_b", "aZ_b"),
            (r"[A-Z]Z_B", "aZ_b"),
            (r"[Z-a]b0", ""),
            (r"[\a]b0", ""),
            (r"[\A]b0", "Ab0"),
            (r"[^\a]b0", "Ab0"),
            (r"q_9[Y-b]", ""),
            (r"[^z]*", "aZ_b Ab0 Q_9a mNoP"),
            (r"z*[y]", "zzYY"),
            (r"M[N]O?", "mNoP"),
            (r"[a-]", ""),
            (r"\ab0", "Ab0"),
        ] {
            let found: Vec<_> = names
                .into_iter()
                .filter(|name| matches(pattern.as_bytes(), name.as_bytes(), true))
                .collect();
            assert_eq!(found.join(" "), expected, "{pattern}");
        }
    }

    #[test]
    fn more_than_a_thousand_stars_match_nothing() {
        let text = b"a".repeat(1100);
        assert!(matches(&b"*a".repeat(1000), &text, false));
        assert!(!matches(&b"*a".repeat(1001), &text, false));
        assert!(matches(&b"a*".repeat(1001), &text, false));
        assert!(!matches(&[b"*a".repeat(1001), b"**".to_vec()].concat(), &text, false));
    }

    #[test]
    fn the_empty_text_is_matched_by_the_empty_pattern_alone() {
        assert!(matches(b"", b"", false));
        assert!(!matches(b"*", b"", false));
        assert!(matches(b"a**", b"a", false));
    }

    #[test]
    fn many_stars_take_no_more_than_the_product_of_the_lengths() {
        let pattern = b"a*".repeat(900);
        assert!(matches(&pattern, &b"a".repeat(20_000), false));
        let pattern = [b"*a".repeat(900), b"b".to_vec()].concat();
        assert!(!matches(&pattern, &b"a".repeat(20_000), false));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn agrees_with_plain_recursion(
            pattern in "[ab*?\\[\\]^\\\\-]{0,10}",
            text in "[abAB\\]^\\\\-]{1,8}",
            ignore_case: bool,
        ) {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(matches(pattern, text, ignore_case), naive(pattern, text, ignore_case));
        }

        #[test]
        fn any_bytes_are_a_pattern(pattern: Vec<u8>, text: Vec<u8>, ignore_case: bool) {
            matches(&pattern, &text, ignore_case);
        }
    }
}
