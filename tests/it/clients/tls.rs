//! TLS: handshakes, requests and replies, client certificates, changes of certificates, and
//! connections to other servers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned,
    SupportedProtocolVersion,
};

use crate::support::ports::free_port;
use crate::support::{Client, PATIENCE, Reply, TestServer, decode, encode, read_some, wait_for};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tls");

/// A folder with certificates, each a pair of files: `name.crt`, `name.key`.
struct Certificates {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Certificates {
    /// Creates an authority, `ca`, and a server's certificate, `server`.
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let key = KeyPair::generate().expect("a key");
        let mut params = params("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        write(dir.path(), "ca", &certificate.pem(), &key);
        let certificates = Certificates { dir, issuer: Issuer::new(params, key) };
        certificates.add("server", "server", None);
        certificates
    }

    /// Creates a certificate with a common name, and a URI if given.
    fn add(&self, file: &str, name: &str, uri: Option<&str>) {
        let key = KeyPair::generate().expect("a key");
        let mut params = params(name);
        params
            .subject_alt_names
            .extend(uri.map(|uri| SanType::URI(uri.try_into().expect("a valid URI"))));
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        write(self.dir.path(), file, &certificate.pem(), &key);
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn path_text(&self, file: &str) -> String {
        self.path(file).display().to_string()
    }

    /// A server's configuration. Clients need no certificate unless `lines` require one.
    fn config(&self, lines: &[&str]) -> Vec<String> {
        let mut config = vec![
            "tls-auth-clients no".to_owned(),
            format!("tls-cert-file {}", self.path_text("server.crt")),
            format!("tls-key-file {}", self.path_text("server.key")),
            format!("tls-ca-cert-file {}", self.path_text("ca.crt")),
        ];
        config.extend(lines.iter().map(|&line| line.to_owned()));
        config
    }

    fn start(&self, lines: &[&str]) -> TestServer {
        TestServer::start(&self.config(lines))
    }

    /// The settings of a client that trusts the authority, and shows the certificate `own` if
    /// given.
    fn client(&self, own: Option<&str>) -> Arc<ClientConfig> {
        let own = own.map(|name| self.path(name));
        client_config(&self.path("ca.crt"), own.as_deref(), rustls::ALL_VERSIONS)
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn write(dir: &Path, file: &str, certificate: &str, key: &KeyPair) {
    std::fs::write(dir.join(format!("{file}.crt")), certificate).expect("a file");
    std::fs::write(dir.join(format!("{file}.key")), key.serialize_pem()).expect("a file");
}

fn client_config(
    authority: &Path,
    own: Option<&Path>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).expect("PEM")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("supported versions")
        .with_root_certificates(roots);
    let mut config = builder.with_no_client_auth();
    if let Some(own) = own {
        let pair = certificate_and_key(&own.with_extension("crt"), &own.with_extension("key"));
        config.client_auth_cert_resolver = pair;
    }
    Arc::new(config)
}

/// A client's certificate and key, which need not match.
fn certificate_and_key(certificate: &Path, key: &Path) -> Arc<SingleCertAndKey> {
    let chain = vec![CertificateDer::from_pem_file(certificate).expect("PEM")];
    let key = PrivateKeyDer::from_pem_file(key).expect("a key");
    let key = rustls::crypto::ring::sign::any_supported_type(&key).expect("a key");
    Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key)))
}

/// A TLS client.
struct TlsClient {
    stream: StreamOwned<ClientConnection, TcpStream>,
    buffer: Vec<u8>,
}

impl TlsClient {
    fn connect(server: &TestServer, config: &Arc<ClientConfig>) -> Self {
        Self::connect_to(server.tls_address.expect("TLS is enabled"), config)
    }

    fn connect_to(address: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let socket = TcpStream::connect(address).expect("the server accepts connections");
        socket.set_nodelay(true).expect("an option of TCP");
        socket.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
        socket.set_write_timeout(Some(PATIENCE)).expect("an option of sockets");
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(config.clone(), name).expect("a connection");
        TlsClient { stream: StreamOwned::new(connection, socket), buffer: Vec::new() }
    }

    fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> std::io::Result<()> {
        self.stream.write_all(&encode(args))?;
        self.stream.flush()
    }

    fn reply(&mut self) -> std::io::Result<Reply> {
        loop {
            let mut at = 0;
            if let Some(reply) = decode(&self.buffer, &mut at) {
                self.buffer.drain(..at);
                return Ok(reply);
            }
            let mut bytes = [0; 64 * 1024];
            match read_some(&mut self.stream, &mut bytes)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.buffer.extend_from_slice(&bytes[..count]),
            }
        }
    }

    fn try_call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> std::io::Result<Reply> {
        self.send(args)?;
        self.reply()
    }

    fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.try_call(args).expect("the server answers")
    }

    /// The server's certificate.
    fn server_certificate(&self) -> CertificateDer<'static> {
        self.stream.conn.peer_certificates().expect("a certificate")[0].clone()
    }
}

fn pong() -> Reply {
    Reply::Simple(b"PONG".into())
}

fn ok() -> Reply {
    Reply::Simple(b"OK".into())
}

/// CONFIG SET from a client without TLS.
fn config_set(server: &TestServer, pairs: &[&str]) -> Reply {
    let mut args = vec!["CONFIG", "SET"];
    args.extend_from_slice(pairs);
    server.connect().call(&args)
}

fn refused(name: &str) -> Reply {
    let text = format!(
        "ERR CONFIG SET failed (possibly related to argument '{name}') - Unable to update TLS configuration. \
         Check server logs."
    );
    Reply::Error(text.into())
}

/// Whether a client with these settings is served.
fn is_served(server: &TestServer, config: &Arc<ClientConfig>) -> bool {
    TlsClient::connect(server, config).try_call(&["PING"]).is_ok_and(|reply| reply == pong())
}

fn info(server: &TestServer, section: &str, name: &str) -> String {
    let Reply::Bulk(text) = server.connect().call(&["INFO", section]) else {
        panic!("INFO is a text")
    };
    let text = String::from_utf8(text).expect("INFO is text");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

// ---- requests and replies -----------------------------------------------------------------------

#[test]
fn requests_and_pipelines_are_answered_in_both_versions() {
    let certificates = Certificates::new();
    let server = certificates.start(&[]);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = client_config(&certificates.path("ca.crt"), None, &[version]);
        let mut client = TlsClient::connect(&server, &config);
        assert_eq!(client.call(&["PING"]), pong());
        assert_eq!(client.stream.conn.protocol_version(), Some(version.version));
        let pings = b"PING\r\n".repeat(20_000);
        let mut writer = client.stream.sock.try_clone().expect("a second handle");
        // All in one write, so that more is decrypted than one read takes.
        client.stream.conn.set_buffer_limit(None);
        client.stream.conn.writer().write_all(&pings).expect("no limit");
        let mut bytes = Vec::new();
        while client.stream.conn.wants_write() {
            client.stream.conn.write_tls(&mut bytes).expect("a vector takes all");
        }
        let sender =
            std::thread::spawn(move || writer.write_all(&bytes).expect("the server reads"));
        for _ in 0..20_000 {
            assert_eq!(client.reply().expect("an answer"), pong());
        }
        sender.join().expect("all was sent");
    }
}

#[test]
fn values_of_megabytes_are_sent_and_received_while_others_are_served() {
    let certificates = Certificates::new();
    let server = certificates.start(&[]);
    let config = certificates.client(None);
    let mut client = TlsClient::connect(&server, &config);
    let value: Vec<u8> = (0..7_000_001u32).map(|at| ((at * 31) >> 3) as u8).collect();
    for repeat in 0..3 {
        assert_eq!(client.call(&[&b"SET"[..], b"large", &value]), ok());
        assert_eq!(client.call(&["GET", "large"]), Reply::Bulk(value.clone()), "{repeat}");
    }
    // A client that does not read its replies does not delay others.
    let mut slow = TlsClient::connect(&server, &config);
    for _ in 0..5 {
        slow.send(&["GET", "large"]).expect("the server reads");
    }
    let mut other = TlsClient::connect(&server, &config);
    for _ in 0..100 {
        assert_eq!(other.call(&["STRLEN", "large"]), Reply::Integer(7_000_001));
    }
    for _ in 0..5 {
        assert_eq!(slow.reply().expect("an answer"), Reply::Bulk(value.clone()));
    }
}

#[test]
fn messages_are_pushed_to_subscribers() {
    let certificates = Certificates::new();
    let server = certificates.start(&[]);
    let mut subscriber = TlsClient::connect(&server, &certificates.client(None));
    subscriber.call(&["SUBSCRIBE", "news"]);
    let mut publisher = server.connect();
    let large = "x".repeat(300_000);
    for text in ["one", "two", &large] {
        assert_eq!(publisher.call(&["PUBLISH", "news", text]), Reply::Integer(1));
        let Reply::Array(message) = subscriber.reply().expect("a message") else {
            panic!("a list")
        };
        assert_eq!(message[2], Reply::Bulk(text.into()));
    }
}

#[test]
fn a_client_that_closes_its_side_gets_its_replies_and_the_end() {
    let certificates = Certificates::new();
    let server = certificates.start(&[]);
    for count in [1, 5000] {
        let mut client = TlsClient::connect(&server, &certificates.client(None));
        client.stream.write_all(&b"PING\r\n".repeat(count)).expect("the server reads");
        client.stream.conn.send_close_notify();
        client.stream.flush().expect("the server reads");
        let mut bytes = Vec::new();
        // Without close_notify from the server this would be an error.
        client.stream.read_to_end(&mut bytes).expect("a clean end");
        assert_eq!(bytes.len(), count * b"+PONG\r\n".len());
    }
    // The same without close_notify from the client.
    let mut client = TlsClient::connect(&server, &certificates.client(None));
    assert_eq!(client.call(&["PING"]), pong());
    client.stream.sock.shutdown(std::net::Shutdown::Write).expect("it is there");
    client.stream.read_to_end(&mut Vec::new()).expect("a clean end");
}

#[test]
fn keys_can_be_updated() {
    let certificates = Certificates::new();
    let server = certificates.start(&[]);
    let mut client = TlsClient::connect(&server, &certificates.client(None));
    for _ in 0..5 {
        assert_eq!(client.call(&["PING"]), pong());
        client.stream.conn.refresh_traffic_keys().expect("TLS 1.3");
    }
    assert_eq!(client.call(&["PING"]), pong());
}

// ---- handshakes ---------------------------------------------------------------------------------

#[test]
fn a_handshake_may_come_byte_by_byte_followed_by_requests() {
    let certificates = Certificates::new();
    let server = certificates.start(&[]);
    let mut client = TlsClient::connect(&server, &certificates.client(None));
    let TlsClient { stream, .. } = &mut client;
    stream.conn.writer().write_all(b"PING\r\nPING\r\n").expect("it is buffered");
    while stream.conn.is_handshaking() || stream.conn.wants_write() {
        let mut bytes = Vec::new();
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut bytes).expect("a vector takes all");
        }
        for byte in bytes {
            stream.sock.write_all(&[byte]).expect("the server reads");
        }
        if stream.conn.is_handshaking() {
            stream.conn.read_tls(&mut stream.sock).expect("the server answers");
            stream.conn.process_new_packets().expect("a handshake");
        }
    }
    assert_eq!(client.reply().expect("an answer"), pong());
    assert_eq!(client.reply().expect("an answer"), pong());
}

#[test]
fn an_invalid_handshake_closes_the_connection_and_is_logged() {
    let certificates = Certificates::new();
    let log = certificates.path("log");
    let server = certificates.start(&[&format!("logfile {}", log.display())]);
    let connections = info(&server, "stats", "total_connections_received");
    for garbage in
        [&b"PING\r\nPING\r\nPING\r\n"[..], b"GET / HTTP/1.1\r\n\r\n", &[0x16; 600], &[0xff; 70_000]]
    {
        let address = server.tls_address.expect("TLS is enabled");
        let mut socket = TcpStream::connect(address).expect("the server accepts connections");
        // The server may close it before all is sent.
        let _ = socket.write_all(garbage);
        socket.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
        let mut bytes = Vec::new();
        match socket.read_to_end(&mut bytes) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            // No alert is sent to a client that does not speak TLS.
            Ok(_) => assert!(bytes.is_empty(), "{bytes:?}"),
        }
    }
    let lines = std::fs::read_to_string(&log).expect("a log");
    let logged = lines.matches("# Error accepting a client connection: received corrupt message");
    assert_eq!(logged.count(), 4, "{lines}");
    // Only the connections of `info` are counted.
    let connections: u64 = connections.parse().expect("a number");
    assert_eq!(info(&server, "stats", "total_connections_received"), (connections + 1).to_string());
    assert!(is_served(&server, &certificates.client(None)));
}

#[test]
fn a_thousand_half_open_handshakes_do_not_delay_others_and_are_closed() {
    let certificates = Certificates::new();
    let server = certificates.start(&[]);
    let address = server.tls_address.expect("TLS is enabled");
    let config = certificates.client(None);
    let mut client = TlsClient::connect(&server, &config);
    assert_eq!(client.call(&["PING"]), pong());
    let mut half_open: Vec<TcpStream> = Vec::new();
    for at in 0..1000 {
        let mut socket = TcpStream::connect(address).expect("the server accepts connections");
        // Nothing, the header of a record, or half a ClientHello.
        let sent: &[u8] =
            [&b""[..], &[0x16, 3, 1, 1, 0], &[0x16, 3, 1, 1, 0, 1, 0, 0, 0xfc]][at % 3];
        socket.write_all(sent).expect("the server reads");
        half_open.push(socket);
        if at % 100 == 0 {
            assert_eq!(client.call(&["PING"]), pong());
            assert!(is_served(&server, &config));
        }
    }
    let clients =
        || info(&server, "clients", "connected_clients").parse::<u64>().expect("a number");
    wait_for("all to be accepted", || (clients() >= 1002).then_some(()));
    server.advance(9_000_000);
    assert!(clients() >= 1002);
    server.advance(1_100_000);
    wait_for("them to be closed", || (clients() == 2).then_some(()));
    for socket in &mut half_open {
        socket.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
        assert!(matches!(socket.read(&mut [0; 10]), Ok(0) | Err(_)));
    }
    assert_eq!(client.call(&["PING"]), pong());
}

#[test]
fn a_late_handshake_within_the_time_limit_succeeds() {
    let certificates = Certificates::new();
    let server = certificates.start(&[]);
    let mut client = TlsClient::connect(&server, &certificates.client(None));
    server.advance(9_900_000);
    assert_eq!(client.call(&["PING"]), pong());
    server.advance(60_000_000);
    assert_eq!(client.call(&["PING"]), pong());
}

#[test]
fn sessions_are_resumed_while_they_are_cached() {
    let certificates = Certificates::new();
    let server = certificates.start(&["tls-session-cache-timeout 100"]);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = client_config(&certificates.path("ca.crt"), None, &[version]);
        let kind = || {
            let mut client = TlsClient::connect(&server, &config);
            assert_eq!(client.call(&["PING"]), pong());
            client.stream.conn.handshake_kind()
        };
        assert_eq!(kind(), Some(HandshakeKind::Full));
        assert_eq!(kind(), Some(HandshakeKind::Resumed));
        server.advance(101_000_000);
        assert_eq!(kind(), Some(HandshakeKind::Full));
        assert_eq!(config_set(&server, &["tls-session-caching", "no"]), ok());
        assert_eq!(kind(), Some(HandshakeKind::Full));
        assert_eq!(kind(), Some(HandshakeKind::Full));
        assert_eq!(config_set(&server, &["tls-session-caching", "yes"]), ok());
    }
}

// ---- certificates of clients --------------------------------------------------------------------

#[test]
fn tls_auth_clients_decides_which_certificates_clients_need() {
    let certificates = Certificates::new();
    certificates.add("client", "somebody", None);
    let strangers = Certificates::new();
    strangers.add("client", "somebody", None);
    let server = certificates.start(&["tls-auth-clients yes"]);
    let nobody = certificates.client(None);
    let known = certificates.client(Some("client"));
    let stranger = client_config(
        &certificates.path("ca.crt"),
        Some(&strangers.path("client")),
        rustls::ALL_VERSIONS,
    );
    let served = || [&nobody, &known, &stranger].map(|config| is_served(&server, config));
    assert_eq!(served(), [false, true, false]);
    assert_eq!(config_set(&server, &["tls-auth-clients", "optional"]), ok());
    assert_eq!(served(), [true, true, false]);
    assert_eq!(config_set(&server, &["tls-auth-clients", "no"]), ok());
    assert_eq!(served(), [true, true, true]);
    let missing = ["tls-auth-clients", "yes", "tls-ca-cert-file", ""];
    assert_eq!(config_set(&server, &missing), refused("tls-auth-clients"));
    assert_eq!(served(), [true, true, true], "the settings stay");
}

#[test]
fn an_authority_may_be_a_file_in_a_directory() {
    let certificates = Certificates::new();
    certificates.add("client", "somebody", None);
    let folder = tempfile::tempdir().expect("a directory");
    std::fs::write(folder.path().join("readme"), "nothing").expect("a file");
    std::fs::copy(certificates.path("ca.crt"), folder.path().join("one.0")).expect("a file");
    let line = format!("tls-ca-cert-dir {}", folder.path().display());
    let server = certificates.start(&["tls-auth-clients yes", &line]);
    assert_eq!(config_set(&server, &["tls-ca-cert-file", ""]), ok());
    assert!(is_served(&server, &certificates.client(Some("client"))));
    std::fs::remove_file(folder.path().join("one.0")).expect("it is there");
    assert_eq!(
        config_set(&server, &["tls-ca-cert-dir", &folder.path().display().to_string()]),
        ok()
    );
    assert!(!is_served(&server, &certificates.client(Some("client"))));
}

/// `openssl x509 -req` makes certificates of version 1 if it gets no extensions; OpenSSL accepts
/// them.
#[test]
fn a_version_1_certificate_signed_by_an_authority_is_accepted() {
    let fixture = |name: &str| format!("{FIXTURES}/{name}");
    let lines = |authority: &str| {
        [
            "tls-auth-clients yes".to_owned(),
            format!("tls-cert-file {}", fixture("server.crt")),
            format!("tls-key-file {}", fixture("server.key")),
            format!("tls-ca-cert-file {authority}"),
        ]
    };
    let authority = fixture("authority.crt");
    let server = TestServer::start(&lines(&authority));
    let own = PathBuf::from(fixture("version-1"));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = client_config(Path::new(&authority), Some(&own), &[version]);
        assert!(is_served(&server, &config));
        // The same certificate with another key.
        let mut thief = ClientConfig::clone(&config);
        thief.client_auth_cert_resolver = certificate_and_key(
            Path::new(&fixture("version-1.crt")),
            Path::new(&fixture("server.key")),
        );
        assert!(!is_served(&server, &Arc::new(thief)));
    }
    let config = client_config(Path::new(&authority), Some(&own), rustls::ALL_VERSIONS);
    // The server may have such a certificate too. It is refused if its authority is not trusted.
    let pairs =
        ["tls-cert-file", &fixture("version-1.crt"), "tls-key-file", &fixture("version-1.key")];
    assert_eq!(config_set(&server, &pairs), ok());
    let strangers = Certificates::new();
    assert_eq!(
        config_set(
            &server,
            &[
                "tls-cert-file",
                &fixture("server.crt"),
                "tls-key-file",
                &fixture("server.key"),
                "tls-ca-cert-file",
                &strangers.path_text("ca.crt")
            ]
        ),
        ok()
    );
    assert!(!is_served(&server, &config));
    assert_eq!(config_set(&server, &["tls-ca-cert-file", &authority]), ok());
    assert!(is_served(&server, &config));
    server.advance(200 * 365 * 86_400_000_000);
    assert!(!is_served(&server, &config), "it has expired");
}

#[test]
fn a_certificate_can_authenticate_a_user() {
    let certificates = Certificates::new();
    certificates.add("default", "default", None);
    certificates.add("other", "other", Some("default"));
    let server = certificates.start(&["requirepass secret", "tls-auth-clients optional"]);
    let mut admin = server.connect();
    assert_eq!(admin.call(&["AUTH", "secret"]), ok());
    let mut served = |field: &str| {
        assert_eq!(admin.call(&["CONFIG", "SET", "tls-auth-clients-user", field]), ok());
        [None, Some("default"), Some("other")]
            .map(|name| is_served(&server, &certificates.client(name)))
    };
    assert_eq!(served("off"), [false, false, false]);
    assert_eq!(served("CN"), [false, true, false]);
    assert_eq!(served("URI"), [false, false, true]);
}

// ---- changes of settings ------------------------------------------------------------------------

#[test]
fn certificates_change_without_closing_connections() {
    let certificates = Certificates::new();
    certificates.add("second", "server", None);
    let server = certificates.start(&[]);
    let config = certificates.client(None);
    let mut old = TlsClient::connect(&server, &config);
    assert_eq!(old.call(&["PING"]), pong());
    let (certificate, key) =
        (certificates.path_text("second.crt"), certificates.path_text("second.key"));
    let second = CertificateDer::from_pem_file(&certificate).expect("PEM");
    assert_eq!(config_set(&server, &["tls-cert-file", &certificate]), refused("tls-cert-file"));
    assert_eq!(
        config_set(&server, &["tls-cert-file", "/nowhere", "tls-key-file", &key]),
        refused("tls-cert-file")
    );
    assert_eq!(config_set(&server, &["tls-cert-file", ""]), refused("tls-cert-file"));
    let mut new = TlsClient::connect(&server, &config);
    assert_eq!(new.call(&["PING"]), pong());
    assert_ne!(new.server_certificate(), second);
    assert_eq!(config_set(&server, &["tls-cert-file", &certificate, "tls-key-file", &key]), ok());
    let mut newest = TlsClient::connect(&server, &config);
    assert_eq!(newest.call(&["PING"]), pong());
    assert_eq!(newest.server_certificate(), second);
    assert_eq!(old.call(&["PING"]), pong());
    assert_eq!(new.call(&["PING"]), pong());
}

#[test]
fn replaced_files_are_loaded_again_if_that_is_configured() {
    let certificates = Certificates::new();
    let server = certificates.start(&[]);
    let certificate = || {
        let mut client = TlsClient::connect(&server, &certificates.client(None));
        assert_eq!(client.call(&["PING"]), pong());
        client.server_certificate()
    };
    let first = certificate();
    certificates.add("server", "server", None);
    server.advance(5_000_000);
    assert_eq!(certificate(), first);
    assert_eq!(config_set(&server, &["tls-auto-reload-interval", "2"]), ok());
    server.advance(2_100_000);
    let second = certificate();
    assert_ne!(second, first);
    // An invalid file changes nothing.
    std::fs::write(certificates.path("server.crt"), "no certificate").expect("a file");
    server.advance(2_100_000);
    assert_eq!(certificate(), second);
}

#[test]
fn encrypted_keys_are_loaded_with_their_passphrase() {
    let fixture = |name: &str| format!("{FIXTURES}/{name}");
    let (certificate, key) = (fixture("server.crt"), fixture("server.key"));
    let lines = [
        "tls-auth-clients no".to_owned(),
        format!("tls-cert-file {certificate}"),
        format!("tls-key-file {key}"),
    ];
    let server = TestServer::start(&lines);
    let encrypted = fixture("server-encrypted.key");
    assert_eq!(config_set(&server, &["tls-key-file", &encrypted]), refused("tls-key-file"));
    let wrong = ["tls-key-file", &encrypted, "tls-key-file-pass", "12345"];
    assert_eq!(config_set(&server, &wrong), refused("tls-key-file"));
    let right = ["tls-key-file-pass", "1234", "tls-key-file", &encrypted];
    assert_eq!(config_set(&server, &right), ok());
    let old = fixture("server-encrypted-old.key");
    assert_eq!(config_set(&server, &["tls-key-file", &old]), refused("tls-key-file"));
    let config = client_config(Path::new(&fixture("authority.crt")), None, rustls::ALL_VERSIONS);
    assert!(is_served(&server, &config));
}

#[test]
fn only_allowed_versions_and_ciphers_are_used() {
    let certificates = Certificates::new();
    let server = certificates.start(&[]);
    let [old, new] = [&rustls::version::TLS12, &rustls::version::TLS13]
        .map(|version| client_config(&certificates.path("ca.crt"), None, &[version]));
    let served = || [&old, &new].map(|config| is_served(&server, config));
    assert_eq!(served(), [true, true]);
    assert_eq!(config_set(&server, &["tls-protocols", "TLSv1.2"]), ok());
    assert_eq!(served(), [true, false]);
    assert_eq!(config_set(&server, &["tls-protocols", "TLSv1.3"]), ok());
    assert_eq!(served(), [false, true]);
    for protocols in ["TLSv1.1 TLSv1.2", "SSLv3"] {
        assert_eq!(config_set(&server, &["tls-protocols", protocols]), refused("tls-protocols"));
    }
    assert_eq!(config_set(&server, &["tls-protocols", ""]), ok());
    assert_eq!(config_set(&server, &["tls-ciphers", "AES128-SHA256"]), refused("tls-ciphers"));
    assert_eq!(config_set(&server, &["tls-ciphers", "ECDHE+AES128"]), ok());
    assert_eq!(config_set(&server, &["tls-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"]), ok());
    for (config, expected) in [
        (&old, rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        (&new, rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
    ] {
        let mut client = TlsClient::connect(&server, config);
        assert_eq!(client.call(&["PING"]), pong());
        let suite = client.stream.conn.negotiated_cipher_suite().expect("a negotiated suite");
        assert_eq!(suite.suite(), expected);
    }
}

#[test]
fn a_port_can_change_between_tls_and_plain() {
    let certificates = Certificates::new();
    let server = certificates.start(&[]);
    let config = certificates.client(None);
    let port = free_port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut admin = server.connect();
    assert_eq!(admin.call(&["CONFIG", "SET", "tls-port", &port.to_string()]), ok());
    let mut client = TlsClient::connect_to(address, &config);
    let Reply::Bulk(text) = client.call(&["INFO", "server"]) else { panic!("INFO is a text") };
    let text = String::from_utf8(text).expect("INFO is text");
    assert!(
        text.contains(&format!("\r\nlistener2:name=tls,bind=127.0.0.1,port={port}\r\n")),
        "{text}"
    );
    assert!(text.contains(&format!("\r\ntcp_port:{port}\r\n")), "{text}");
    assert!(!text.contains("listener0"), "{text}");
    let swap = ["CONFIG", "SET", "tls-port", "0", "port", &port.to_string()];
    assert_eq!(client.call(&swap), ok());
    assert_eq!(Client::connect(address).call(&["PING"]), pong());
    let swap = ["CONFIG", "SET", "port", "0", "tls-port", &port.to_string()];
    assert_eq!(admin.call(&swap), ok());
    assert_eq!(TlsClient::connect_to(address, &config).call(&["PING"]), pong());
    assert_eq!(client.call(&["PING"]), pong(), "the connection stays open");
}

#[test]
fn a_tls_port_needs_a_certificate() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    let port = free_port().to_string();
    assert_eq!(client.call(&["CONFIG", "SET", "tls-port", &port]), refused("tls-port"));
    let set = ["CONFIG", "SET", "tls-cert-file", "/nowhere"];
    assert_eq!(client.call(&set), ok(), "no port uses it yet");
}

// ---- other servers ------------------------------------------------------------------------------

#[test]
fn keys_migrate_over_tls_if_tls_cluster_is_set() {
    let certificates = Certificates::new();
    certificates.add("client", "somebody", None);
    let to = certificates.start(&["tls-auth-clients yes"]);
    let lines = [
        "tls-cluster yes".to_owned(),
        format!("tls-client-cert-file {}", certificates.path_text("client.crt")),
        format!("tls-client-key-file {}", certificates.path_text("client.key")),
    ];
    let from = certificates.start(&lines.each_ref().map(String::as_str));
    let mut client = from.connect();
    let port = to.tls_address.expect("TLS is enabled").port().to_string();
    let large = "x".repeat(200_000);
    for (key, value) in [("one", "1"), ("large", &large)] {
        client.call(&["SET", key, value]);
        let migrate = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        assert_eq!(client.call(&migrate), ok());
        assert_eq!(to.connect().call(&["GET", key]), Reply::Bulk(value.into()));
        assert_eq!(client.call(&["EXISTS", key]), Reply::Integer(0));
    }
    // Not to a server with an untrusted certificate, nor to one without TLS.
    let strangers = Certificates::new();
    let stranger = strangers.start(&[]);
    client.call(&["SET", "one", "1"]);
    let ports = [stranger.tls_address.expect("TLS is enabled").port(), to.address.port()];
    for port in ports {
        let migrate = ["MIGRATE", "127.0.0.1", &port.to_string(), "one", "0", "300"];
        client.send(&migrate);
        // The one without TLS waits for the end of a line.
        let text = wait_for("the end of its patience", || {
            from.advance(100_000);
            client.try_message()
        });
        let Reply::Error(text) = text else { panic!("migrated") };
        assert!(text.starts_with(b"IOERR error or timeout"), "{}", String::from_utf8_lossy(&text));
    }
    assert_eq!(client.call(&["EXISTS", "one"]), Reply::Integer(1));
}

#[test]
fn a_replica_follows_its_primary_over_tls() {
    let certificates = Certificates::new();
    certificates.add("client", "somebody", None);
    let primary = certificates.start(&["tls-auth-clients yes", "repl-diskless-sync-delay 0"]);
    let lines = [
        "tls-replication yes".to_owned(),
        format!("tls-client-cert-file {}", certificates.path_text("client.crt")),
        format!("tls-client-key-file {}", certificates.path_text("client.key")),
    ];
    let replica = certificates.start(&lines.each_ref().map(String::as_str));
    let mut writer = primary.connect();
    // More than the sockets' buffers hold.
    let large = "0123456789".repeat(400_000);
    for key in ["a", "b", "c", "d"] {
        assert_eq!(writer.call(&["SET", key, &large]), ok());
    }
    let port = primary.tls_address.expect("TLS is enabled").port().to_string();
    assert_eq!(replica.connect().call(&["REPLICAOF", "127.0.0.1", &port]), ok());
    let is_up = || {
        primary.advance(100_000);
        replica.advance(100_000);
        (info(&replica, "replication", "master_link_status") == "up").then_some(())
    };
    wait_for("the snapshot", is_up);
    let mut reader = replica.connect();
    assert_eq!(reader.call(&["GET", "d"]), Reply::Bulk(large.clone().into()));
    for at in 0..20 {
        assert_eq!(writer.call(&["SET", &format!("more:{at}"), &large]), ok());
    }
    assert_eq!(writer.call(&["SET", "last", "one"]), ok());
    wait_for("the stream", || {
        (reader.call(&["GET", "last"]) == Reply::Bulk("one".into())).then_some(())
    });
    assert_eq!(reader.call(&["GET", "more:19"]), Reply::Bulk(large.into()));
}

#[test]
fn http_is_served_over_tls_and_asks_for_the_same_certificates() {
    let certificates = Certificates::new();
    certificates.add("client", "client", None);
    let server = certificates.start(&["tls-auth-clients yes", "http-tls yes"]);
    let address = server.http_address.expect("HTTP is on");
    let ask = |config: &Arc<ClientConfig>| -> std::io::Result<String> {
        let mut client = TlsClient::connect_to(address, config);
        let mut answer = String::new();
        let request = "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        client.stream.write_all(request.as_bytes())?;
        client.stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask(&certificates.client(Some("client"))).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer:.100}");
    let line = "\nlatchkey_tls_certificate_expiry_timestamp_seconds{file=\"";
    assert!(answer.contains(line), "{answer}");
    assert!(ask(&certificates.client(None)).is_err());
    // Whoever speaks no TLS is told nothing, and is closed.
    let mut plain = TcpStream::connect(address).expect("the server takes connections");
    plain.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
    plain.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
}
