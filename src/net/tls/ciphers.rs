//! Cipher lists: `tls-ciphers` and `tls-ciphersuites` in OpenSSL's notation, applied to the ciphers
//! that rustls has.

use rustls::{CipherSuite, SupportedCipherSuite};

/// A cipher of TLS 1.2, its name in OpenSSL, and OpenSSL's words for groups that contain it.
struct Cipher {
    suite: CipherSuite,
    name: &'static str,
    words: &'static [&'static str],
}

/// Words for groups that contain all ciphers here.
const WORDS_FOR_ALL: &[&str] =
    &["DEFAULT", "ALL", "HIGH", "ECDHE", "EECDH", "kECDHE", "kEECDH", "TLSv1.2", "AEAD"];

/// Words of OpenSSL for groups that contain no cipher here.
const WORDS_FOR_NONE: &[&str] = &[
    "COMPLEMENTOFDEFAULT",
    "COMPLEMENTOFALL",
    "MEDIUM",
    "LOW",
    "EXP",
    "EXPORT",
    "aNULL",
    "eNULL",
    "NULL",
    "kRSA",
    "RSA",
    "kDHE",
    "kEDH",
    "DH",
    "DHE",
    "EDH",
    "ADH",
    "AECDH",
    "aDSS",
    "DSS",
    "kPSK",
    "PSK",
    "aPSK",
    "SRP",
    "AESCCM",
    "AESCCM8",
    "ARIA",
    "ARIAGCM",
    "ARIA128",
    "ARIA256",
    "CAMELLIA",
    "CAMELLIA128",
    "CAMELLIA256",
    "3DES",
    "DES",
    "RC4",
    "RC2",
    "IDEA",
    "SEED",
    "MD5",
    "SHA1",
    "SHA",
    "SHA256",
    "SHA384",
    "CBC",
    "GOST",
    "SSLv3",
    "TLSv1",
    "TLSv1.0",
];

/// The ciphers in order of preference.
const CIPHERS: &[Cipher] = &[
    Cipher {
        suite: CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        name: "ECDHE-ECDSA-AES256-GCM-SHA384",
        words: &["aECDSA", "ECDSA", "AES", "AES256", "AESGCM"],
    },
    Cipher {
        suite: CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        name: "ECDHE-ECDSA-AES128-GCM-SHA256",
        words: &["aECDSA", "ECDSA", "AES", "AES128", "AESGCM"],
    },
    Cipher {
        suite: CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        name: "ECDHE-ECDSA-CHACHA20-POLY1305",
        words: &["aECDSA", "ECDSA", "CHACHA20"],
    },
    Cipher {
        suite: CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        name: "ECDHE-RSA-AES256-GCM-SHA384",
        words: &["aRSA", "AES", "AES256", "AESGCM"],
    },
    Cipher {
        suite: CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        name: "ECDHE-RSA-AES128-GCM-SHA256",
        words: &["aRSA", "AES", "AES128", "AESGCM"],
    },
    Cipher {
        suite: CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        name: "ECDHE-RSA-CHACHA20-POLY1305",
        words: &["aRSA", "CHACHA20"],
    },
];

impl Cipher {
    /// Whether this is its name or a group that contains it.
    fn matches(&self, word: &str) -> bool {
        WORDS_FOR_ALL.contains(&word) || self.name == word || self.words.contains(&word)
    }
}

fn is_known(word: &str) -> bool {
    WORDS_FOR_NONE.contains(&word) || CIPHERS.iter().any(|cipher| cipher.matches(word))
}

/// The ciphers of TLS 1.2 in a list, in its order; all if the list is empty. Unknown ones are
/// ignored, with a note. Error: no cipher remains.
pub fn tls12(
    known: &[SupportedCipherSuite],
    list: &[u8],
    notes: &mut Vec<String>,
) -> Result<Vec<SupportedCipherSuite>, String> {
    let mut chosen: Vec<&Cipher> = Vec::new();
    let mut forbidden: Vec<&str> = Vec::new();
    let list = if list.is_empty() { "DEFAULT".into() } else { String::from_utf8_lossy(list) };
    for element in list.split([':', ',', ' ']).filter(|element| !element.is_empty()) {
        if element == "@STRENGTH" {
            chosen.sort_by_key(|cipher| cipher.matches("AES128"));
            continue;
        }
        if element.starts_with('@') {
            continue;
        }
        let (sign, words) = match element.as_bytes()[0] {
            sign @ (b'!' | b'-' | b'+') => (sign, &element[1..]),
            _ => (b' ', element),
        };
        let is_match = |cipher: &Cipher| words.split('+').all(|word| cipher.matches(word));
        let matching = CIPHERS.iter().filter(|cipher| is_match(cipher));
        match sign {
            b'!' => {
                forbidden.extend(matching.map(|cipher| cipher.name));
                chosen.retain(|cipher| !is_match(cipher));
            }
            b'-' => chosen.retain(|cipher| !is_match(cipher)),
            b'+' => chosen.sort_by_key(|cipher| is_match(cipher)),
            _ => {
                if !words.split('+').all(is_known) {
                    notes.push(format!("tls-ciphers: {element} is not supported."));
                }
                let is_new = |cipher: &&Cipher| {
                    !forbidden.contains(&cipher.name)
                        && !chosen.iter().any(|other| other.name == cipher.name)
                };
                let new: Vec<&Cipher> = matching.filter(is_new).collect();
                chosen.extend(new);
            }
        }
    }
    let find = |cipher: &Cipher| known.iter().find(|known| known.suite() == cipher.suite).copied();
    let found: Vec<SupportedCipherSuite> = chosen.into_iter().filter_map(find).collect();
    if found.is_empty() {
        return Err(format!("Failed to configure ciphers: {list}"));
    }
    Ok(found)
}

/// The cipher suites of TLS 1.3 in a list, which has only names; all if it is empty.
pub fn tls13(
    known: &[SupportedCipherSuite],
    list: &[u8],
    notes: &mut Vec<String>,
) -> Result<Vec<SupportedCipherSuite>, String> {
    let all = known.iter().filter(|suite| suite.tls13().is_some());
    if list.is_empty() {
        return Ok(all.copied().collect());
    }
    let list = String::from_utf8_lossy(list);
    let mut found = Vec::new();
    for name in list.split(':').filter(|name| !name.is_empty()) {
        let suite = match name {
            "TLS_AES_256_GCM_SHA384" => CipherSuite::TLS13_AES_256_GCM_SHA384,
            "TLS_AES_128_GCM_SHA256" => CipherSuite::TLS13_AES_128_GCM_SHA256,
            "TLS_CHACHA20_POLY1305_SHA256" => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
            "TLS_AES_128_CCM_SHA256" | "TLS_AES_128_CCM_8_SHA256" => {
                notes.push(format!("tls-ciphersuites: {name} is not supported."));
                continue;
            }
            _ => return Err(format!("Failed to configure ciphersuites: {list}")),
        };
        found.extend(all.clone().find(|known| known.suite() == suite));
    }
    if found.is_empty() {
        return Err(format!("Failed to configure ciphersuites: {list}"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> (Vec<&'static str>, Vec<String>) {
        let known = rustls::crypto::ring::default_provider().cipher_suites;
        let mut notes = Vec::new();
        let found = tls12(&known, list.as_bytes(), &mut notes).unwrap_or_default();
        let name = |suite: &SupportedCipherSuite| {
            CIPHERS.iter().find(|cipher| cipher.suite == suite.suite()).unwrap().name
        };
        (found.iter().map(name).collect(), notes)
    }

    #[test]
    fn lists_are_parsed_as_by_openssl() {
        assert_eq!(names("").0.len(), 6);
        assert_eq!(names("DEFAULT:!MEDIUM").0.len(), 6);
        assert_eq!(names("ECDHE+AESGCM:-AES256:!aECDSA").0, ["ECDHE-RSA-AES128-GCM-SHA256"]);
        assert_eq!(names("!aRSA:ALL:+AES256:@SECLEVEL=2").0[2], "ECDHE-ECDSA-AES256-GCM-SHA384");
        assert_eq!(names("AES128 CHACHA20 AES256").0.len(), 6);
        assert_eq!(
            names("AES128:AES256:@STRENGTH").0[..2],
            ["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"]
        );
        let (found, notes) = names("ECDHE-RSA-AES128-GCM-SHA256:AES128-SHA256");
        assert_eq!(found, ["ECDHE-RSA-AES128-GCM-SHA256"]);
        assert_eq!(notes, ["tls-ciphers: AES128-SHA256 is not supported."]);
        assert_eq!(names("DEFAULT:-AES128-SHA256").1, [""; 0]);
        assert!(names("AES128-SHA256").0.is_empty());
    }

    #[test]
    fn suites_of_tls_1_3_are_named() {
        let known = rustls::crypto::ring::default_provider().cipher_suites;
        let mut notes = Vec::new();
        assert_eq!(tls13(&known, b"", &mut notes).unwrap().len(), 3);
        let list = b"TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_CCM_SHA256";
        assert_eq!(tls13(&known, list, &mut notes).unwrap().len(), 1);
        assert_eq!(notes, ["tls-ciphersuites: TLS_AES_128_CCM_SHA256 is not supported."]);
        let refused = tls13(&known, b"TLS_NULL", &mut notes).unwrap_err();
        assert_eq!(refused, "Failed to configure ciphersuites: TLS_NULL");
    }
}
