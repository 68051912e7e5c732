//! Which ciphers are used: OpenSSL's notation of `tls-ciphers` and `tls-ciphersuites`, over those that rustls has.

use rustls::{CipherSuite, SupportedCipherSuite};

/// A cipher of TLS 1.2 as OpenSSL names it, and the words that stand for it among others.
struct Named {
    suite: CipherSuite,
    name: &'static str,
    words: &'static [&'static str],
}

/// Words that stand for all of them.
const ALL: &[&str] =
    &["DEFAULT", "ALL", "HIGH", "ECDHE", "EECDH", "kECDHE", "kEECDH", "TLSv1.2", "AEAD"];

/// Words that OpenSSL knows and that stand for none of them.
const NONE: &[&str] = &[
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

const NAMED: &[Named] = &[
    Named {
        suite: CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        name: "ECDHE-ECDSA-AES256-GCM-SHA384",
        words: &["aECDSA", "ECDSA", "AES", "AES256", "AESGCM"],
    },
    Named {
        suite: CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        name: "ECDHE-ECDSA-AES128-GCM-SHA256",
        words: &["aECDSA", "ECDSA", "AES", "AES128", "AESGCM"],
    },
    Named {
        suite: CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        name: "ECDHE-ECDSA-CHACHA20-POLY1305",
        words: &["aECDSA", "ECDSA", "CHACHA20"],
    },
    Named {
        suite: CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        name: "ECDHE-RSA-AES256-GCM-SHA384",
        words: &["aRSA", "AES", "AES256", "AESGCM"],
    },
    Named {
        suite: CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        name: "ECDHE-RSA-AES128-GCM-SHA256",
        words: &["aRSA", "AES", "AES128", "AESGCM"],
    },
    Named {
        suite: CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        name: "ECDHE-RSA-CHACHA20-POLY1305",
        words: &["aRSA", "CHACHA20"],
    },
];

impl Named {
    fn is(&self, word: &str) -> bool {
        ALL.contains(&word) || self.name == word || self.words.contains(&word)
    }
}

fn is_word(word: &str) -> bool {
    NONE.contains(&word) || NAMED.iter().any(|named| named.is(word))
}

/// The ciphers of TLS 1.2 that a list allows, in its order; without a list all. What it names and is not there is passed over
/// with a note. Errors: nothing is left.
pub fn tls12(
    known: &[SupportedCipherSuite],
    list: &[u8],
    notes: &mut Vec<String>,
) -> Result<Vec<SupportedCipherSuite>, String> {
    let mut chosen: Vec<&Named> = Vec::new();
    let mut forbidden: Vec<&str> = Vec::new();
    let list = if list.is_empty() { "DEFAULT".into() } else { String::from_utf8_lossy(list) };
    for element in list.split([':', ',', ' ']).filter(|element| !element.is_empty()) {
        if element == "@STRENGTH" {
            chosen.sort_by_key(|named| named.is("AES128"));
            continue;
        }
        if element.starts_with('@') {
            continue;
        }
        let (sign, words) = match element.as_bytes()[0] {
            sign @ (b'!' | b'-' | b'+') => (sign, &element[1..]),
            _ => (b' ', element),
        };
        let is_meant = |named: &Named| words.split('+').all(|word| named.is(word));
        let meant = NAMED.iter().filter(|named| is_meant(named));
        match sign {
            b'!' => {
                forbidden.extend(meant.map(|named| named.name));
                chosen.retain(|named| !is_meant(named));
            }
            b'-' => chosen.retain(|named| !is_meant(named)),
            b'+' => chosen.sort_by_key(|named| is_meant(named)),
            _ => {
                if !words.split('+').all(is_word) {
                    notes.push(format!("tls-ciphers: {element} is not supported."));
                }
                let is_new = |named: &&Named| {
                    !forbidden.contains(&named.name)
                        && !chosen.iter().any(|other| other.name == named.name)
                };
                let new: Vec<&Named> = meant.filter(is_new).collect();
                chosen.extend(new);
            }
        }
    }
    let find = |named: &Named| known.iter().find(|known| known.suite() == named.suite).copied();
    let found: Vec<SupportedCipherSuite> = chosen.into_iter().filter_map(find).collect();
    if found.is_empty() {
        return Err(format!("Failed to configure ciphers: {list}"));
    }
    Ok(found)
}

/// The same of TLS 1.3, whose ciphers have names alone.
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
            NAMED.iter().find(|named| named.suite == suite.suite()).unwrap().name
        };
        (found.iter().map(name).collect(), notes)
    }

    #[test]
    fn lists_are_read_as_openssl_reads_them() {
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
    fn suites_of_tls_1_3_have_names() {
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
