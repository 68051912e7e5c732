//! TLS: settings for connections, made from the configuration.
//!
//! Certificates, keys and ciphers are loaded from the configuration and its files at the start, and again at each change.
//! New connections (`stream.rs`) use the latest [`Tls`]; open connections keep what was negotiated. The protocol is
//! rustls'. Error texts are for the log; as in Redis, CONFIG SET replies only that it failed.

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
use rustls::pki_types::UnixTime;
use rustls::server::{NoServerSessionStorage, StoresServerSessions};
use rustls::sign::SingleCertAndKey;
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};

use crate::clock::Clock;
use crate::config::{Config, system_text};
use files::FileStates;
use verify::Authorities;

pub use verify::NameField;

/// Tickets for resuming sessions that a TLS 1.3 client gets. Each costs memory here, and few clients use one.
const TICKETS_PER_CLIENT: usize = 1;

/// The settings for new connections.
pub struct Tls {
    pub server: Arc<ServerConfig>,
    /// For connections to other servers.
    pub client: Arc<ClientConfig>,
    /// The state of the files when they were loaded.
    files: FileStates,
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
        config.tls_port != 0 || config.tls_replication || config.tls_cluster
    }

    /// Loads the files. `notes`: warnings about ignored settings, for the log. Error: a text for the log.
    pub fn load(config: &Config, clock: &Clock, notes: &mut Vec<String>) -> Result<Self, String> {
        let files = FileStates::of(config);
        if config.tls_cert_file.is_empty() {
            return Err("No tls-cert-file configured!".into());
        }
        if config.tls_key_file.is_empty() {
            return Err("No tls-key-file configured!".into());
        }
        let has_authorities =
            !config.tls_ca_cert_file.is_empty() || !config.tls_ca_cert_dir.is_empty();
        let needs_authorities =
            config.tls_auth_clients != "no" || config.tls_cluster || config.tls_replication;
        if needs_authorities && !has_authorities {
            return Err(
                "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, \
                 tls-replication or tls-auth-clients are enabled!"
                    .into(),
            );
        }
        let versions = protocol_versions(&config.tls_protocols)?;
        let provider = provider(config, notes)?;
        let time: Arc<dyn TimeProvider> = Arc::new(ServerTime(clock.clone()));
        let trusted = files::authorities(config)?;
        let authorities = Arc::new(Authorities::new(trusted, config, &provider));
        check_dh_params(&config.tls_dh_params_file, notes)?;

        let failed = |error: rustls::Error| format!("Failed to configure TLS: {error}");
        let server_key = files::certified_key(
            &config.tls_cert_file,
            &config.tls_key_file,
            &config.tls_key_file_pass,
            &provider,
        )?;
        let server_key = Arc::new(SingleCertAndKey::from(server_key));
        let builder = ServerConfig::builder_with_details(provider.clone(), time.clone())
            .with_protocol_versions(&versions)
            .map_err(failed)?;
        let builder = match config.tls_auth_clients {
            "no" => builder.with_no_client_auth(),
            _ => builder.with_client_cert_verifier(authorities.clone()),
        };
        let mut server = builder.with_cert_resolver(server_key.clone());
        server.ignore_client_order = config.tls_prefer_server_ciphers;
        server.session_storage = session_storage(config, clock);
        server.send_tls13_tickets = if config.tls_session_caching { TICKETS_PER_CLIENT } else { 0 };

        let has_client_key =
            !config.tls_client_cert_file.is_empty() && !config.tls_client_key_file.is_empty();
        let client_key = if has_client_key {
            let key = files::certified_key(
                &config.tls_client_cert_file,
                &config.tls_client_key_file,
                &config.tls_client_key_file_pass,
                &provider,
            )?;
            Arc::new(SingleCertAndKey::from(key))
        } else {
            server_key
        };
        let mut client = ClientConfig::builder_with_details(provider, time)
            .with_protocol_versions(&versions)
            .map_err(failed)?
            .dangerous() // `Authorities` verifies the chain, but not the name
            .with_custom_certificate_verifier(authorities)
            .with_client_cert_resolver(client_key);
        client.enable_sni = false;
        client.resumption = Resumption::disabled();
        Ok(Tls { server: Arc::new(server), client: Arc::new(client), files })
    }

    /// Whether a file has changed since they were loaded.
    pub fn is_stale(&self, config: &Config) -> bool {
        self.files != FileStates::of(config)
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
fn provider(config: &Config, notes: &mut Vec<String>) -> Result<Arc<CryptoProvider>, String> {
    let mut provider = ring::default_provider();
    let known = std::mem::take(&mut provider.cipher_suites);
    provider.cipher_suites = ciphers::tls13(&known, &config.tls_ciphersuites, notes)?;
    provider.cipher_suites.extend(ciphers::tls12(&known, &config.tls_ciphers, notes)?);
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
