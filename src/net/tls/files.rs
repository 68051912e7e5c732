//! Loads certificates and keys from files.

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

use super::{CertificateFacts, Fault};
use crate::config::{Config, system_text};

fn path(name: &[u8]) -> &Path {
    OsStr::from_bytes(name).as_ref()
}

/// Inode, size and modification time of each file, to find out whether one was replaced.
#[derive(Debug, PartialEq, Eq)]
pub struct FileStates(Vec<Option<(u64, u64, i64, i64)>>);

impl FileStates {
    /// The states of all files in the configuration.
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
            let metadata = std::fs::metadata(path(name)).ok()?;
            Some((metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
        };
        FileStates(names.into_iter().map(state).collect())
    }
}

/// A certificate and its key: the directives and the files that they name.
pub struct KeyFiles<'a> {
    pub certificate: (&'static str, &'a [u8]),
    pub key: (&'static str, &'a [u8]),
    pub passphrase: &'a [u8],
}

/// A certificate chain and its private key. Errors: with the file and the reason.
pub fn certified_key(
    files: &KeyFiles<'_>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Vec<Fault>> {
    let (directive, file) = files.certificate;
    let chain = certificates(path(file)).and_then(|chain| match chain.is_empty() {
        true => Err("no certificate in it".into()),
        false => Ok(chain),
    });
    let shown = String::from_utf8_lossy(file);
    let chain = chain.map_err(|why| {
        let text = format!("Failed to load certificate: {shown}: {why}");
        Fault { directive, text }
    });
    let (directive, file) = files.key;
    let shown = String::from_utf8_lossy(file);
    let failed = |why: String| {
        let text = format!("Failed to load private key: {shown}: {why}");
        Fault { directive, text }
    };
    let key = private_key(path(file), files.passphrase).and_then(|key| {
        provider.key_provider.load_private_key(key).map_err(|error| error.to_string())
    });
    match (chain, key) {
        (Ok(chain), Ok(key)) => {
            let certified = CertifiedKey::new(chain, key);
            match keys_match(&certified) {
                true => Ok(certified),
                false => Err(vec![failed("key values mismatch".into())]),
            }
        }
        (chain, key) => Err(chain.err().into_iter().chain(key.err().map(failed)).collect()),
    }
}

/// Whether the private key belongs to the certificate.
fn keys_match(certified: &CertifiedKey) -> bool {
    let Some(key) = certified.key.public_key() else { return true };
    let public_key = certified.cert.first().and_then(|certificate| {
        let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
        certificate.tbs_certificate().subject_public_key_info().to_der().ok()
    });
    public_key.is_some_and(|public_key| public_key == key.as_ref())
}

/// All certificates in a PEM file.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = std::fs::read(path).map_err(|error| system_text(&error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    found.map_err(|error| error.to_string())
}

/// The facts in the first certificate of a file. None: it cannot be read.
pub fn facts(file: &[u8]) -> Option<CertificateFacts> {
    let first = certificates(path(file)).ok()?.into_iter().next()?;
    let certificate = x509_cert::Certificate::from_der(&first).ok()?;
    let certificate = certificate.tbs_certificate();
    let serial = certificate.serial_number().as_bytes();
    Some(CertificateFacts {
        file: file.to_vec(),
        serial: serial
            .iter()
            .skip_while(|byte| **byte == 0)
            .map(|byte| format!("{byte:02X}"))
            .collect(),
        ends_unix: certificate.validity().not_after.to_unix_duration().as_secs() as i64,
    })
}

/// The certificates of trusted authorities. Files without certificates in the directory are
/// ignored.
pub fn authorities(config: &Config) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let failed = |directive, why: String| {
        let text = format!("Failed to configure CA certificate(s) file/directory: {why}");
        Fault { directive, text }
    };
    let mut found = Vec::new();
    if !config.tls_ca_cert_file.is_empty() {
        let failed = |why: String| failed("tls-ca-cert-file", why);
        found = certificates(path(&config.tls_ca_cert_file)).map_err(failed)?;
        if found.is_empty() {
            return Err(failed("no certificate in the file".into()));
        }
    }
    if !config.tls_ca_cert_dir.is_empty() {
        let entries = std::fs::read_dir(path(&config.tls_ca_cert_dir))
            .map_err(|error| failed("tls-ca-cert-dir", system_text(&error)))?;
        for entry in entries.flatten() {
            // The directory may contain other files.
            found.extend(certificates(&entry.path()).unwrap_or_default());
        }
    }
    Ok(found)
}

/// A private key in PEM: PKCS#8 (also encrypted), PKCS#1 or SEC1.
fn private_key(path: &Path, passphrase: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let text = std::fs::read(path).map_err(|error| system_text(&error))?;
    let contains = |what: &[u8]| memchr::memmem::find(&text, what).is_some();
    if contains(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") {
        return decrypt(&text, passphrase);
    }
    if contains(b"Proc-Type: 4,ENCRYPTED") {
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
