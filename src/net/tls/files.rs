//! Certificates and keys in files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pkcs8::{EncryptedPrivateKeyInfoRef, SecretDocument};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use x509_cert::der::{Decode, Encode};

use crate::config::{Config, system_text};

fn path(name: &[u8]) -> &Path {
    OsStr::from_bytes(name).as_ref()
}

/// What tells that a file was replaced.
#[derive(Debug, PartialEq, Eq)]
pub struct Stamp(Vec<Option<(u64, u64, i64, i64)>>);

impl Stamp {
    /// The state of all files that the configuration names.
    pub fn of(config: &Config) -> Self {
        let names = [
            &config.tls_cert_file,
            &config.tls_key_file,
            &config.tls_client_cert_file,
            &config.tls_client_key_file,
            &config.tls_ca_cert_file,
            &config.tls_ca_cert_dir,
        ];
        let state = |name: &Vec<u8>| {
            let found = std::fs::metadata(path(name)).ok()?;
            Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
        };
        Stamp(names.into_iter().map(state).collect())
    }
}

/// A certificate with those between it and its authority, and its key. Errors: which file, and why.
pub fn certified_key(
    certificate_file: &[u8],
    key_file: &[u8],
    passphrase: &[u8],
    provider: &CryptoProvider,
) -> Result<CertifiedKey, String> {
    let chain = certificates(path(certificate_file)).and_then(|chain| match chain.is_empty() {
        true => Err("no certificate in it".into()),
        false => Ok(chain),
    });
    let shown = String::from_utf8_lossy(certificate_file);
    let chain = chain.map_err(|why| format!("Failed to load certificate: {shown}: {why}"))?;
    let shown = String::from_utf8_lossy(key_file);
    let about = |why: String| format!("Failed to load private key: {shown}: {why}");
    let key = private_key(path(key_file), passphrase).map_err(about)?;
    let key =
        provider.key_provider.load_private_key(key).map_err(|error| about(error.to_string()))?;
    let certified = CertifiedKey::new(chain, key);
    if !is_key_of(&certified) {
        return Err(about("key values mismatch".into()));
    }
    Ok(certified)
}

/// Whether the key is the one that the certificate names.
fn is_key_of(certified: &CertifiedKey) -> bool {
    let Some(key) = certified.key.public_key() else { return true };
    let named = certified.cert.first().and_then(|certificate| {
        let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
        certificate.tbs_certificate().subject_public_key_info().to_der().ok()
    });
    named.is_some_and(|named| named == key.as_ref())
}

/// All certificates in a file of PEM.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = std::fs::read(path).map_err(|error| system_text(&error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    found.map_err(|error| error.to_string())
}

/// The certificates of the authorities that are trusted. Of a directory's files those count that have some.
pub fn authorities(config: &Config) -> Result<Vec<CertificateDer<'static>>, String> {
    let about =
        |why: String| format!("Failed to configure CA certificate(s) file/directory: {why}");
    let mut found = Vec::new();
    if !config.tls_ca_cert_file.is_empty() {
        found = certificates(path(&config.tls_ca_cert_file)).map_err(about)?;
        if found.is_empty() {
            return Err(about("no certificate in the file".into()));
        }
    }
    if !config.tls_ca_cert_dir.is_empty() {
        let entries = std::fs::read_dir(path(&config.tls_ca_cert_dir))
            .map_err(|error| about(system_text(&error)))?;
        for entry in entries.flatten() {
            // Other things may lie there too.
            found.extend(certificates(&entry.path()).unwrap_or_default());
        }
    }
    Ok(found)
}

/// A key in PEM: PKCS#8, also behind a passphrase, PKCS#1 or SEC1.
fn private_key(path: &Path, passphrase: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let text = std::fs::read(path).map_err(|error| system_text(&error))?;
    let has = |what: &[u8]| memchr::memmem::find(&text, what).is_some();
    if has(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") {
        return decrypt(&text, passphrase);
    }
    if has(b"Proc-Type: 4,ENCRYPTED") {
        return Err("the old form of encrypted keys is not supported; `openssl pkcs8 -topk8` \
                    writes the new one"
            .into());
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| error.to_string())
}

fn decrypt(text: &[u8], passphrase: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    if passphrase.is_empty() {
        return Err("it is encrypted, and no passphrase is set".into());
    }
    let text = std::str::from_utf8(text).map_err(|_| "not a text".to_owned())?;
    let (_, encrypted) =
        SecretDocument::from_pem(text).map_err(|error| format!("not a key: {error}"))?;
    let info = EncryptedPrivateKeyInfoRef::try_from(encrypted.as_bytes())
        .map_err(|error| format!("not a key: {error}"))?;
    let key = info.decrypt(passphrase).map_err(|error| format!("bad decrypt: {error}"))?;
    Ok(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into())
}
