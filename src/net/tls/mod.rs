//! TLS: settings for connections, made from the configuration.
//!
//! Certificates, keys and ciphers are loaded from the configuration and its files at the start, and
//! again at each change. New connections (`stream.rs`) use the latest [`Tls`]; open connections
//! keep their negotiated settings. The protocol is rustls'. Error texts are for the log; as in
//! Redis, CONFIG SET replies only that it failed.

mod ciphers;
mod files;
mod sessions;
pub mod stream;
mod verify;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{NoServerSessionStorage, StoresServerSessions};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};

use crate::clock::Clock;
use crate::config::{Config, system_text};
use files::{FileStates, KeyFiles};
use verify::Authorities;

pub use verify::NameField;

/// Tickets for resuming sessions that a TLS 1.3 client gets. Each costs memory here, and few
/// clients use one.
const TICKETS_PER_CLIENT: usize = 1;

/// The settings for new connections.
pub struct Tls {
    pub server: Arc<ServerConfig>,
    /// For nodes of the cluster that connect: always with a certificate.
    pub bus: Arc<ServerConfig>,
    /// For connections to other servers.
    pub client: Arc<ClientConfig>,
    /// The state of the files when they were loaded.
    files: FileStates,
    certificates: Vec<CertificateFacts>,
}

/// The facts of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// As configured.
    pub file: Vec<u8>,
    /// Hexadecimal digits.
    pub serial: String,
    /// Unix seconds.
    pub ends_unix: i64,
}

/// Why TLS cannot be used.
#[derive(Debug, Default)]
pub struct Fault {
    pub directive: &'static str,
    /// For the log.
    pub text: String,
}

/// The server's clock for rustls.
#[derive(Debug)]
struct ServerTime(Clock);

impl TimeProvider for ServerTime {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.now().unix_seconds()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

impl Tls {
    /// Whether the configuration uses TLS anywhere.
    pub fn is_wanted(config: &Config) -> bool {
        config.tls_port != 0
            || config.tls_replication
            || config.tls_cluster
            || config.http_tls && config.http_port != 0
    }

    /// Loads the files. `notes`: warnings about ignored settings, for the log. Error: a text for
    /// the log.
    pub fn load(config: &Config, clock: &Clock, notes: &mut Vec<String>) -> Result<Self, String> {
        let files = FileStates::of(config);
        let first = |faults: Vec<Fault>| faults.into_iter().next().unwrap_or_default().text;
        Parts::load(config, notes).map_err(first)?.build(config, clock, files)
    }

    /// All faults that would prevent [`Tls::load`].
    pub fn faults(config: &Config, clock: &Clock, notes: &mut Vec<String>) -> Vec<Fault> {
        let built = Parts::load(config, notes).and_then(|parts| {
            let built = parts.build(config, clock, FileStates::of(config));
            built.map_err(|text| vec![Fault { directive: "tls-protocols", text }])
        });
        built.err().unwrap_or_default()
    }

    /// The first certificate of each file.
    pub fn certificates(&self) -> &[CertificateFacts] {
        &self.certificates
    }

    /// Whether a file has changed since they were loaded.
    pub fn is_stale(&self, config: &Config) -> bool {
        self.files != FileStates::of(config)
    }
}

/// The settings for connections of a program that serves nobody. Of the configuration, only the
/// authorities, `tls-client-cert-file` and its key, the versions and the ciphers matter. Errors: a
/// text.
pub fn client_only(config: &Config, clock: &Clock) -> Result<Arc<ClientConfig>, String> {
    let failed = |error: rustls::Error| format!("Failed to configure TLS: {error}");
    let mut notes = Vec::new();
    let versions = protocol_versions(&config.tls_protocols)?;
    let provider = provider(config, &mut notes).map_err(|fault| fault.text)?;
    let trusted = files::authorities(config).map_err(|fault| fault.text)?;
    let authorities = Arc::new(Authorities::new(trusted, config, &provider));
    let time: Arc<dyn TimeProvider> = Arc::new(ServerTime(clock.clone()));
    let builder = ClientConfig::builder_with_details(provider, time)
        .with_protocol_versions(&versions)
        .map_err(failed)?
        .dangerous() // `Authorities` verifies the chain, but not the name
        .with_custom_certificate_verifier(authorities);
    let mut client = if config.tls_client_cert_file.is_empty() {
        builder.with_no_client_auth()
    } else {
        let files = KeyFiles {
            certificate: ("tls-client-cert-file", &config.tls_client_cert_file),
            key: ("tls-client-key-file", &config.tls_client_key_file),
            passphrase: &config.tls_client_key_file_pass,
        };
        let key = files::certified_key(&files, &ring::default_provider());
        let first = |faults: Vec<Fault>| faults.into_iter().next().unwrap_or_default().text;
        builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key.map_err(first)?)))
    };
    client.enable_sni = false;
    client.resumption = Resumption::disabled();
    Ok(Arc::new(client))
}

/// The parts made from files and settings. Each may have a fault.
struct Parts {
    versions: Vec<&'static SupportedProtocolVersion>,
    provider: Arc<CryptoProvider>,
    trusted: Vec<CertificateDer<'static>>,
    server_key: CertifiedKey,
    client_key: Option<CertifiedKey>,
}

impl Parts {
    /// Errors: all faults, in the order of the checks.
    fn load(config: &Config, notes: &mut Vec<String>) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let fault = |directive, text: &str| Fault { directive, text: text.into() };
        if config.tls_cert_file.is_empty() {
            faults.push(fault("tls-cert-file", "No tls-cert-file configured!"));
        }
        if config.tls_key_file.is_empty() {
            faults.push(fault("tls-key-file", "No tls-key-file configured!"));
        }
        let has_authorities =
            !config.tls_ca_cert_file.is_empty() || !config.tls_ca_cert_dir.is_empty();
        let needs_authorities =
            config.tls_auth_clients != "no" || config.tls_cluster || config.tls_replication;
        if needs_authorities && !has_authorities {
            let text = "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, \
                 tls-replication or tls-auth-clients are enabled!";
            faults.push(fault("tls-ca-cert-file", text));
        }
        let keep_fault = |faults: &mut Vec<Fault>, directive, text| {
            faults.push(Fault { directive, text });
        };
        let versions = protocol_versions(&config.tls_protocols)
            .map_err(|text| keep_fault(&mut faults, "tls-protocols", text));
        let provider = provider(config, notes).map_err(|fault| faults.push(fault));
        let trusted = files::authorities(config).map_err(|fault| faults.push(fault));
        let _ = check_dh_params(&config.tls_dh_params_file, notes)
            .map_err(|text| keep_fault(&mut faults, "tls-dh-params-file", text));
        // Keys do not depend on the ciphers.
        let keys = ring::default_provider();
        let server_files = KeyFiles {
            certificate: ("tls-cert-file", &config.tls_cert_file),
            key: ("tls-key-file", &config.tls_key_file),
            passphrase: &config.tls_key_file_pass,
        };
        let client_files = KeyFiles {
            certificate: ("tls-client-cert-file", &config.tls_client_cert_file),
            key: ("tls-client-key-file", &config.tls_client_key_file),
            passphrase: &config.tls_client_key_file_pass,
        };
        let mut load = |files: KeyFiles<'_>| {
            let is_set = !files.certificate.1.is_empty() && !files.key.1.is_empty();
            let loaded = is_set.then(|| files::certified_key(&files, &keys))?;
            loaded.map_err(|found| faults.extend(found)).ok()
        };
        let (server_key, client_key) = (load(server_files), load(client_files));
        match (versions, provider, trusted, server_key) {
            (Ok(versions), Ok(provider), Ok(trusted), Some(server_key)) if faults.is_empty() => {
                Ok(Parts { versions, provider, trusted, server_key, client_key })
            }
            _ => Err(faults),
        }
    }

    fn build(self, config: &Config, clock: &Clock, files: FileStates) -> Result<Tls, String> {
        let Parts { versions, provider, trusted, server_key, client_key } = self;
        let failed = |error: rustls::Error| format!("Failed to configure TLS: {error}");
        let time: Arc<dyn TimeProvider> = Arc::new(ServerTime(clock.clone()));
        let authorities = Arc::new(Authorities::new(trusted, config, &provider));
        let server_key = Arc::new(SingleCertAndKey::from(server_key));
        let builder = ServerConfig::builder_with_details(provider.clone(), time.clone())
            .with_protocol_versions(&versions)
            .map_err(failed)?;
        let mut bus = builder
            .clone()
            .with_client_cert_verifier(authorities.mandatory())
            .with_cert_resolver(server_key.clone());
        bus.session_storage = Arc::new(NoServerSessionStorage {});
        bus.send_tls13_tickets = 0;
        let builder = match config.tls_auth_clients {
            "no" => builder.with_no_client_auth(),
            _ => builder.with_client_cert_verifier(authorities.clone()),
        };
        let mut server = builder.with_cert_resolver(server_key.clone());
        server.ignore_client_order = config.tls_prefer_server_ciphers;
        server.session_storage = session_storage(config, clock);
        server.send_tls13_tickets = if config.tls_session_caching { TICKETS_PER_CLIENT } else { 0 };

        let client_key = client_key.map_or(server_key, |key| Arc::new(SingleCertAndKey::from(key)));
        let mut client = ClientConfig::builder_with_details(provider, time)
            .with_protocol_versions(&versions)
            .map_err(failed)?
            .dangerous() // `Authorities` verifies the chain, but not the name
            .with_custom_certificate_verifier(authorities)
            .with_client_cert_resolver(client_key);
        client.enable_sni = false;
        client.resumption = Resumption::disabled();
        let names = [&config.tls_cert_file, &config.tls_client_cert_file, &config.tls_ca_cert_file];
        let names = names.into_iter().filter(|name| !name.is_empty());
        let certificates = names.filter_map(|name| files::facts(name)).collect();
        Ok(Tls {
            server: Arc::new(server),
            bus: Arc::new(bus),
            client: Arc::new(client),
            files,
            certificates,
        })
    }
}

fn session_storage(config: &Config, clock: &Clock) -> Arc<dyn StoresServerSessions> {
    if !config.tls_session_caching {
        return Arc::new(NoServerSessionStorage {});
    }
    let count_max = config.tls_session_cache_size as usize;
    let seconds = config.tls_session_cache_timeout;
    Arc::new(sessions::SessionCache::new(count_max, seconds, clock.clone()))
}

/// The versions in `tls-protocols`; if it is empty, all.
fn protocol_versions(names: &[u8]) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let mut versions = Vec::new();
    let names = String::from_utf8_lossy(names);
    for name in names.split(' ').filter(|name| !name.is_empty()) {
        let version = match name.to_ascii_lowercase().as_str() {
            "tlsv1.2" => &rustls::version::TLS12,
            "tlsv1.3" => &rustls::version::TLS13,
            "tlsv1" | "tlsv1.1" => {
                return Err(format!("{name} is specified in tls-protocols but not supported."));
            }
            _ => {
                return Err(
                    "Invalid tls-protocols specified. Use a combination of 'TLSv1.2' and 'TLSv1.3'.".into()
                );
            }
        };
        versions.push(version);
    }
    if versions.is_empty() {
        versions.extend_from_slice(rustls::ALL_VERSIONS);
    }
    Ok(versions)
}

/// The provider with the ciphers that the configuration allows, the preferred ones first.
fn provider(config: &Config, notes: &mut Vec<String>) -> Result<Arc<CryptoProvider>, Fault> {
    let at = |directive| move |text| Fault { directive, text };
    let mut provider = ring::default_provider();
    let known = std::mem::take(&mut provider.cipher_suites);
    let suites = ciphers::tls13(&known, &config.tls_ciphersuites, notes);
    provider.cipher_suites = suites.map_err(at("tls-ciphersuites"))?;
    let ciphers = ciphers::tls12(&known, &config.tls_ciphers, notes);
    provider.cipher_suites.extend(ciphers.map_err(at("tls-ciphers"))?);
    Ok(Arc::new(provider))
}

/// Checks the file of Diffie-Hellman parameters, although no cipher here uses it.
fn check_dh_params(path: &[u8], notes: &mut Vec<String>) -> Result<(), String> {
    use std::os::unix::ffi::OsStrExt;
    if path.is_empty() {
        return Ok(());
    }
    let shown = String::from_utf8_lossy(path);
    let path: &Path = std::ffi::OsStr::from_bytes(path).as_ref();
    let text = std::fs::read(path)
        .map_err(|error| format!("Failed to load {shown}: {}", system_text(&error)))?;
    // Also matches `X9.42 DH PARAMETERS`.
    if memchr::memmem::find(&text, b"DH PARAMETERS-----").is_none() {
        return Err(format!("{shown}: failed to read DH params."));
    }
    notes.push(format!("tls-dh-params-file {shown} has no use: keys are agreed on over curves."));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_parsed_by_name() {
        assert_eq!(protocol_versions(b"").unwrap().len(), 2);
        assert_eq!(protocol_versions(b"TLSv1.3  tlsv1.2").unwrap().len(), 2);
        let only = protocol_versions(b"TLSv1.2").unwrap();
        assert_eq!(only, [&rustls::version::TLS12]);
        let refused = protocol_versions(b"TLSv1.2 TLSv1.1").unwrap_err();
        assert!(refused.starts_with("TLSv1.1 is specified"), "{refused}");
        assert!(protocol_versions(b"SSLv3").unwrap_err().starts_with("Invalid tls-protocols"));
    }
}
