//! The options with which a program of an operator reaches a server: user, password, TLS, and the
//! longest silence. They are called as in redis-cli.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::slice::Iter;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use crate::clock::Clock;
use crate::config::{Config, system_text};
use crate::net::tls;

/// The environment variable with the password, as redis-cli has it.
pub const PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";

/// The options' part of a usage text.
pub const USAGE: &str = "       --tls               over TLS, with one of the next two
       --cacert <file>     certificates of trusted authorities
       --cacertdir <dir>   a folder of them
       --cert <file>       the certificate of this client, with --key
       --key <file>        its key
       --timeout <seconds> the longest silence of a server (60)
";

/// The longest silence of a server, if none is given. Unit: seconds.
const TIMEOUT_SECONDS: u64 = 60;

/// A user's name and password. Neither: the default user, without a password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    pub user: Option<Vec<u8>>,
    pub password: Option<Vec<u8>>,
}

/// How servers are reached.
#[derive(Debug)]
pub struct Access {
    pub login: Login,
    /// The configuration with the files of TLS. None: without TLS.
    pub tls: Option<Box<Config>>,
    /// The longest silence of a server.
    pub timeout: Duration,
}

impl Access {
    /// The settings of TLS, read from their files. Errors: a text with the reason.
    pub fn tls_client(&self, clock: &Clock) -> Result<Option<Arc<ClientConfig>>, String> {
        self.tls.as_ref().map(|config| tls::client_only(config, clock)).transpose()
    }

    /// The text of a failed connection.
    pub fn told(&self, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("no answer within {} seconds", self.timeout.as_secs())
            }
            _ => system_text(error),
        }
    }
}

/// Collects the options of a command line.
#[derive(Debug)]
pub struct Options {
    login: Login,
    files: Config,
    wants_tls: bool,
    timeout: Duration,
}

impl Options {
    /// `password`: that of the environment.
    pub fn new(password: Option<OsString>) -> Self {
        let password = password.map(|password| password.as_bytes().to_vec());
        let password = password.filter(|text| !text.is_empty());
        Options {
            login: Login { user: None, password },
            files: Config::default(),
            wants_tls: false,
            timeout: Duration::from_secs(TIMEOUT_SECONDS),
        }
    }

    /// User and password so far.
    pub fn login(self) -> Login {
        self.login
    }

    /// Takes an option, and its value from `rest`. False: it is none of these. Errors: a text.
    pub fn take(&mut self, name: &str, rest: &mut Iter<'_, OsString>) -> Result<bool, String> {
        let files = &mut self.files;
        match name {
            "--tls" => self.wants_tls = true,
            "--cacert" => files.tls_ca_cert_file = value(name, rest)?,
            "--cacertdir" => files.tls_ca_cert_dir = value(name, rest)?,
            "--cert" => files.tls_client_cert_file = value(name, rest)?,
            "--key" => files.tls_client_key_file = value(name, rest)?,
            "--user" => self.login.user = Some(value(name, rest)?),
            "--pass" | "-a" => self.login.password = Some(value(name, rest)?),
            "--timeout" => self.timeout = seconds(name, rest)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Errors: options that do not belong together, as a text.
    pub fn finish(self) -> Result<Access, String> {
        let Options { login, files, wants_tls, timeout } = self;
        if login.user.is_some() && login.password.is_none() {
            return Err(format!("--user needs a password, --pass or {PASSWORD_VARIABLE}"));
        }
        if !wants_tls && files != Config::default() {
            return Err("options of TLS need --tls".into());
        }
        if wants_tls && files.tls_ca_cert_file.is_empty() && files.tls_ca_cert_dir.is_empty() {
            return Err("--tls needs --cacert or --cacertdir".into());
        }
        if files.tls_client_cert_file.is_empty() != files.tls_client_key_file.is_empty() {
            return Err("--cert and --key belong together".into());
        }
        Ok(Access { login, tls: wants_tls.then(|| Box::new(files)), timeout })
    }
}

/// The value after an option. Errors: there is none.
pub fn value(name: &str, rest: &mut Iter<'_, OsString>) -> Result<Vec<u8>, String> {
    let value = rest.next().ok_or_else(|| format!("{name} needs a value"))?;
    Ok(value.as_bytes().to_vec())
}

/// A value in seconds, up to a day. Errors: it is none.
pub fn seconds(name: &str, rest: &mut Iter<'_, OsString>) -> Result<Duration, String> {
    let value = value(name, rest)?;
    let seconds = OsStr::from_bytes(&value).to_str().and_then(|text| text.parse().ok());
    let seconds = seconds.filter(|seconds| (1..=86_400).contains(seconds));
    let seconds = seconds.ok_or_else(|| format!("{name} is between 1 and 86400 seconds"))?;
    Ok(Duration::from_secs(seconds))
}

/// Host and port. None: it is no address.
pub fn parse_address(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
    let host = match host.strip_prefix('[') {
        Some(host) => host.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// The text for an argument that is no address.
pub fn no_address(argument: &OsStr) -> String {
    let shown = argument.display();
    format!("'{shown}' is no address: it is <host>:<port>, or [<IPv6>]:<port>")
}
