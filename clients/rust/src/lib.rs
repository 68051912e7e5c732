//! Locks, permits of semaphores and rate limits of a Latchkey server through [`redis`].
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use latchkey_locks::{Locks, Options};
//!
//! let locks = Locks::new(redis::Client::open("redis://127.0.0.1")?);
//! let lock = locks.acquire("jobs", Options::default())?;
//! println!("held, with fence {}", lock.fence());
//! lock.release()?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod grant;
mod pool;

use std::error::Error as StdError;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Client, Pipeline, RedisError, RedisResult, cmd};

pub use grant::Grant;
use grant::{Inner, Kind, number};
use pool::Pool;

/// Options of an acquisition.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ends a grant that is not renewed; 30 seconds.
    pub lease: Duration,
    /// How long to wait in the server's queue; none: until it is granted. Zero asks once.
    pub wait: Option<Duration>,
    /// For reading, beside other readers. Permits have none.
    pub shared: bool,
    /// Makes a session: it ends so long after its connection has closed, and the lease counts from
    /// the last request over that connection.
    pub grace: Option<Duration>,
    /// Who asks. Whoever asks with the same name gets the same grant. None: a random name.
    pub owner: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { lease: Duration::from_secs(30), wait: None, shared: false, grace: None, owner: None }
    }
}

#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Others hold it, and the time to wait is over. No holder where others only stand in line
    /// before, and for permits.
    NotGranted { key: String, holder: Option<String> },
    /// The grant has ended, by its lease, its session, or somebody's hand.
    Lost { key: String },
    /// The client library's, among them those that the server answers.
    Redis(RedisError),
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotGranted { key, holder: Some(holder) } => {
                write!(to, "{key} is held by {holder}")
            }
            Self::NotGranted { key, holder: None } => write!(to, "{key} is not free"),
            Self::Lost { key } => write!(to, "{key} is no longer held"),
            Self::Redis(error) => error.fmt(to),
        }
    }
}

impl StdError for Error {}

/// How work under a lock failed.
#[derive(Debug)]
pub enum ScopeError<E> {
    /// The work did not begin.
    Acquire(Error),
    /// The work's own error, and that of the release after it.
    Work(E, Option<Error>),
    /// The work was done, and then the release failed. `Lost`: part of it may have been done
    /// without the lock.
    Release(Error),
}

impl<E: fmt::Display> fmt::Display for ScopeError<E> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(error) | Self::Release(error) => error.fmt(to),
            Self::Work(own, None) => own.fmt(to),
            Self::Work(own, Some(besides)) => write!(to, "{own}; besides, {besides}"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> StdError for ScopeError<E> {}

/// `count` actions in `period`, and `burst` more at once. `quantity` are asked for; zero counts
/// nothing.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub count: u32,
    /// In whole seconds.
    pub period: Duration,
    pub burst: u32,
    pub quantity: u32,
}

/// The answer to a [`Rate`].
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub allowed: bool,
    pub limit: i64,
    pub remaining: i64,
    /// None if it was allowed, or never will be.
    pub retry_after: Option<Duration>,
    pub reset_after: Duration,
}

/// Takes locks through a client. It may be used by several threads, and its clones share their
/// connections.
#[derive(Clone)]
pub struct Locks {
    pool: Arc<Pool>,
}

impl Locks {
    /// Over a server, or a cluster of which the client is for any node.
    pub fn new(client: Client) -> Self {
        Self::finding(move || Ok(client.clone()))
    }

    /// Over a server that is looked for whenever a connection is opened: the primary that sentinels
    /// know, or one node of several.
    pub fn finding(find: impl FnMut() -> RedisResult<Client> + Send + 'static) -> Self {
        Self { pool: Arc::new(Pool::new(Box::new(find))) }
    }

    /// Takes a lock. Errors: `NotGranted`, and redis's.
    pub fn acquire(&self, key: &str, options: Options) -> Result<Lock, Error> {
        self.acquire_all([key], options)
    }

    /// Takes several locks at once, or none. In a cluster their keys need one slot.
    pub fn acquire_all(
        &self,
        keys: impl IntoIterator<Item = impl Into<String>>,
        options: Options,
    ) -> Result<Lock, Error> {
        let keys: Vec<String> = keys.into_iter().map(Into::into).collect();
        let first = keys.first().cloned().unwrap_or_default();
        Inner::take(&self.pool, &first, options, Kind::Lock { keys }).map(Lock)
    }

    /// Takes `count` permits of a semaphore of which `limit` are held at most. Errors: as of
    /// `acquire`.
    pub fn permits(
        &self,
        key: &str,
        limit: u32,
        count: u32,
        options: Options,
    ) -> Result<Permits, Error> {
        let kind = Kind::Permits { limit, count, names: Vec::new(), free: 0 };
        Inner::take(&self.pool, key, options, kind).map(Permits)
    }

    /// Runs work under a lock, which is renewed and, after the work, released. Once it is lost, the
    /// lock's `left()` is zero.
    pub fn with<T, E>(
        &self,
        key: &str,
        options: Options,
        work: impl FnOnce(&Lock) -> Result<T, E>,
    ) -> Result<T, ScopeError<E>> {
        let lock = self.acquire(key, options).map_err(ScopeError::Acquire)?;
        lock.watch(drop).map_err(ScopeError::Acquire)?;
        let done = work(&lock);
        match (done, lock.release()) {
            (Ok(value), Ok(())) => Ok(value),
            (Ok(_), Err(error)) => Err(ScopeError::Release(error)),
            (Err(own), released) => Err(ScopeError::Work(own, released.err())),
        }
    }

    /// Tells whether actions are allowed, and counts them if they are. It is not repeated. Errors:
    /// redis's.
    pub fn throttle(&self, key: &str, rate: Rate) -> Result<Limit, Error> {
        let mut request = cmd("CL.THROTTLE");
        request
            .arg(key)
            .arg(rate.burst)
            .arg(rate.count)
            .arg(rate.period.as_secs())
            .arg(rate.quantity);
        let reply = self.pool.follow(&Mutex::default(), |node| {
            self.pool.ask(&request, node, Duration::ZERO, false)
        })?;
        let reply: [i64; 5] = redis::from_redis_value(reply).map_err(RedisError::from)?;
        let seconds = |count: i64| u64::try_from(count).ok().map(Duration::from_secs);
        Ok(Limit {
            allowed: reply[0] == 0,
            limit: reply[1],
            remaining: reply[2],
            retry_after: seconds(reply[3]),
            reset_after: seconds(reply[4]).unwrap_or_default(),
        })
    }
}

/// A lock that is held, several of them, or a reader's part of one.
#[derive(Debug)]
#[must_use = "it is released when it is dropped"]
pub struct Lock(Grant);

impl Lock {
    /// Whether the server still says so.
    pub fn held(&self) -> Result<bool, Error> {
        for guard in self.0.0.guards() {
            if number(&self.0.0.twice(&guard)?.0) == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds guards to an atomic pipeline: unless this grant is held then, it does nothing, and its
    /// reply is nil. In a cluster it needs a connection to the lock's own server, as of
    /// `connection`.
    pub fn guard(&self, pipeline: &mut Pipeline) {
        for guard in self.0.0.guards() {
            pipeline.add_command(guard).ignore();
        }
    }
}

impl Deref for Lock {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.0
    }
}

/// Permits of one request that are held.
#[derive(Debug)]
#[must_use = "it is released when it is dropped"]
pub struct Permits(Grant);

impl Permits {
    pub fn permits(&self) -> &[String] {
        if let Kind::Permits { names, .. } = &self.0.0.kind { names } else { &[] }
    }

    /// How many were free after the grant.
    pub fn free(&self) -> u64 {
        if let Kind::Permits { free, .. } = self.0.0.kind { free } else { 0 }
    }
}

impl Deref for Permits {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.0
    }
}

/// 128 bits of the system's random source, and the process, since one that is forked would go on
/// with the same bits.
fn random_name() -> String {
    let random = || RandomState::new().hash_one(std::thread::current().id());
    format!("{:x}-{:016x}{:016x}", std::process::id(), random(), random())
}
