//! Verification of certificates.
//!
//! A chain must end at a trusted authority; host names are not compared, as in Redis. webpki
//! verifies chains of version 3 certificates. Two kinds that it refuses are accepted here, as
//! OpenSSL accepts them and they are in use: certificates of version 1 (as `openssl x509 -req`
//! makes them without an extensions file) signed directly by an authority, and certificates that
//! are themselves among the trusted ones.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::spki::SubjectPublicKeyInfoOwned;

use crate::config::Config;

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The trusted authorities, and whether clients must show a certificate.
#[derive(Debug)]
pub struct Authorities {
    trusted: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    /// Verifies clients' chains. None: there is no authority, and no client is accepted.
    client_chains: Option<Arc<dyn ClientCertVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
    is_mandatory: bool,
}

impl Authorities {
    pub fn new(
        trusted: Vec<CertificateDer<'static>>,
        config: &Config,
        provider: &Arc<CryptoProvider>,
    ) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(trusted.iter().cloned());
        let roots = Arc::new(roots);
        let client_chains =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
                .build()
                .ok();
        Authorities {
            trusted,
            roots,
            client_chains,
            algorithms: provider.signature_verification_algorithms,
            is_mandatory: config.tls_auth_clients != "optional",
        }
    }

    /// The same authorities, to which a client must show a certificate whatever `tls-auth-clients`
    /// says.
    pub fn mandatory(self: &Arc<Self>) -> Arc<dyn ClientCertVerifier> {
        Arc::new(Mandatory(self.clone()))
    }

    /// Accepts a certificate that webpki refused, if it is of one of the two kinds above. Error:
    /// `refused`, or that its time is wrong.
    fn accept_special(
        &self,
        end_entity: &CertificateDer<'_>,
        now: UnixTime,
        refused: Error,
    ) -> Result<(), Error> {
        let Ok(certificate) = Certificate::from_der(end_entity) else { return Err(refused) };
        let validity = certificate.tbs_certificate().validity();
        if now.as_secs() < validity.not_before.to_unix_duration().as_secs() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now.as_secs() > validity.not_after.to_unix_duration().as_secs() {
            return Err(CertificateError::Expired.into());
        }
        if self.trusted.iter().any(|trusted| **trusted == **end_entity)
            || (is_version_1(&certificate) && self.is_signed_by_authority(&certificate))
        {
            return Ok(());
        }
        Err(refused)
    }

    /// Whether an authority signed it directly.
    fn is_signed_by_authority(&self, certificate: &Certificate) -> bool {
        let issuers = self.trusted.iter().filter_map(|trusted| Certificate::from_der(trusted).ok());
        issuers
            .filter(|issuer| {
                issuer.tbs_certificate().subject() == certificate.tbs_certificate().issuer()
            })
            .any(|issuer| {
                let key = issuer.tbs_certificate().subject_public_key_info();
                self.is_signed_by(certificate, key).unwrap_or(false)
            })
    }

    /// Whether the certificate's signature is by this key. None: it cannot be checked.
    fn is_signed_by(
        &self,
        certificate: &Certificate,
        key: &SubjectPublicKeyInfoOwned,
    ) -> Option<bool> {
        let signed = certificate.tbs_certificate().to_der().ok()?;
        let signature = certificate.signature().as_bytes()?;
        let signature_kind =
            der_content(&certificate.signature_algorithm().to_der().ok()?)?.to_vec();
        let key_kind = key.algorithm.to_der().ok()?;
        let key_kind = der_content(&key_kind)?;
        let public = key.subject_public_key.as_bytes()?;
        let found = self.algorithms.all.iter().find(|algorithm| {
            *algorithm.signature_alg_id() == *signature_kind
                && *algorithm.public_key_alg_id() == *key_kind
        })?;
        Some(found.verify_signature(public, &signed, signature).is_ok())
    }

    /// Verifies the signature of a TLS 1.2 handshake by the key of a version 1 certificate.
    fn verify_by_key(
        &self,
        message: &[u8],
        key: &SubjectPublicKeyInfoOwned,
        dss: &DigitallySignedStruct,
    ) -> Option<HandshakeSignatureValid> {
        let key_kind = key.algorithm.to_der().ok()?;
        let key_kind = der_content(&key_kind)?;
        let public = key.subject_public_key.as_bytes()?;
        let (_, algorithms) =
            self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == dss.scheme)?;
        let mut algorithms =
            algorithms.iter().filter(|algorithm| *algorithm.public_key_alg_id() == *key_kind);
        let is_valid = algorithms
            .any(|algorithm| algorithm.verify_signature(public, message, dss.signature()).is_ok());
        is_valid.then(HandshakeSignatureValid::assertion)
    }
}

/// The content of a DER value, after its tag and length.
fn der_content(der: &[u8]) -> Option<&[u8]> {
    let first = usize::from(*der.get(1)?);
    let more_length_bytes = if first < 0x80 { 0 } else { first & 0x7f };
    der.get(2 + more_length_bytes..)
}

fn is_version_1(certificate: &Certificate) -> bool {
    certificate.tbs_certificate().version() == Version::V1
}

/// The certificate, if it has version 1.
fn as_version_1(certificate: &CertificateDer<'_>) -> Option<Certificate> {
    Certificate::from_der(certificate).ok().filter(is_version_1)
}

const BAD_SIGNATURE: Error = Error::InvalidCertificate(CertificateError::BadSignature);

impl Authorities {
    fn verify_signature_12(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(old) = as_version_1(certificate) else {
            return verify_tls12_signature(message, certificate, dss, &self.algorithms);
        };
        let key = old.tbs_certificate().subject_public_key_info();
        self.verify_by_key(message, key, dss).ok_or(BAD_SIGNATURE)
    }

    fn verify_signature_13(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(old) = as_version_1(certificate) else {
            return verify_tls13_signature(message, certificate, dss, &self.algorithms);
        };
        let key = old.tbs_certificate().subject_public_key_info();
        let key = SubjectPublicKeyInfoDer::from(key.to_der().map_err(|_| BAD_SIGNATURE)?);
        verify_tls13_signature_with_raw_key(message, &key, dss, &self.algorithms)
    }
}

impl ClientCertVerifier for Authorities {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    /// Empty: with hints, some clients would not send a certificate that has intermediate ones.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = match &self.client_chains {
            Some(chains) => chains.verify_client_cert(end_entity, intermediates, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        };
        verified.or_else(|refused| {
            self.accept_special(end_entity, now, refused).map(|()| ClientCertVerified::assertion())
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature_12(message, certificate, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature_13(message, certificate, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// See [`Authorities::mandatory`].
#[derive(Debug)]
struct Mandatory(Arc<Authorities>);

impl ClientCertVerifier for Mandatory {
    fn client_auth_mandatory(&self) -> bool {
        true
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        ClientCertVerifier::root_hint_subjects(&*self.0)
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_signature_12(message, certificate, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_signature_13(message, certificate, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for Authorities {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = ParsedCertificate::try_from(end_entity).and_then(|parsed| {
            let algorithms = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &self.roots,
                intermediates,
                now,
                algorithms,
            )
        });
        verified.or_else(|refused| self.accept_special(end_entity, now, refused))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature_12(message, certificate, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature_13(message, certificate, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The names in a certificate that may be users: the first common name, or all URIs of the subject
/// alternative name.
pub fn names(certificate: &CertificateDer<'_>, field: NameField) -> Vec<Vec<u8>> {
    let Ok(certificate) = Certificate::from_der(certificate) else { return Vec::new() };
    let certificate = certificate.tbs_certificate();
    match field {
        NameField::CommonName => {
            let mut attributes = certificate.subject().iter();
            let name = attributes.find(|attribute| attribute.oid == COMMON_NAME);
            name.map(|name| name.value.value().to_vec()).into_iter().collect()
        }
        NameField::Uri => {
            let Ok(Some((_, names))) = certificate.get_extension::<SubjectAltName>() else {
                return Vec::new();
            };
            let uri = |name: &GeneralName| match name {
                GeneralName::UniformResourceIdentifier(uri) => Some(uri.as_bytes().to_vec()),
                _ => None,
            };
            names.0.iter().filter_map(uri).collect()
        }
    }
}

/// A field of a certificate with names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameField {
    CommonName,
    Uri,
}
