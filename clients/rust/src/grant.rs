//! What locks and permits have in common: asking, waiting, asking again after a break, and the
//! lease.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Cmd, Connection, ErrorKind, RedisResult, Value, cmd};

use crate::pool::{Node, Pool, ask, is_broken, is_moved, is_reply, lock};
use crate::{Error, Options};

/// Bounds one request, so that a server that vanished is noticed. Each further one begins at the
/// end of the queue.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How many connections may break one after the other, before an acquisition gives up.
const TRIES: u32 = 3;
/// A lease that no clock can add ends in a century.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What locks and permits differ in: their requests, and what the replies mean.
pub(crate) enum Kind {
    Lock { keys: Vec<String> },
    Permits { limit: u32, count: u32, names: Vec<String>, free: u64 },
}

/// What a lock and permits have in common. It is released when it is dropped, if it was not before:
/// that takes a request, and nobody hears of its error. It may be used by several threads.
pub struct Grant(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pool: Arc<Pool>,
    key: String,
    pub(crate) owner: String,
    pub(crate) fence: i64,
    pub(crate) kind: Kind,
    options: Options,
    node: Mutex<Node>,
    until: Mutex<Instant>,
    /// A session's.
    own: Mutex<Option<Connection>>,
    is_over: Mutex<bool>,
    ended: Condvar,
}

impl Grant {
    /// The number of this grant. Hand it to whatever is protected.
    pub fn fence(&self) -> i64 {
        self.0.fence
    }

    pub fn owner(&self) -> &str {
        &self.0.owner
    }

    /// For how long this is held at least: nothing when it is known to be lost. It counts from
    /// before the request, by a clock that nobody sets.
    pub fn left(&self) -> Duration {
        self.0.left()
    }

    /// Lets the lease last as long as at first from now on. Errors: `Lost`, and redis's.
    pub fn renew(&self) -> Result<(), Error> {
        self.renew_for(self.0.options.lease)
    }

    /// Lets the lease last so long from now on, at least.
    pub fn renew_for(&self, lease: Duration) -> Result<(), Error> {
        self.0.renew(lease)
    }

    /// Gives it back. Errors: `Lost` if it had ended before, and redis's, after which it ends with
    /// its lease.
    pub fn release(&self) -> Result<(), Error> {
        self.release_keeping(Duration::ZERO)
    }

    /// Gives a lock back that nobody gets for so long.
    pub fn release_keeping(&self, keep: Duration) -> Result<(), Error> {
        *lock(&self.0.is_over) = true;
        self.0.ended.notify_all();
        let released = self.0.release(keep);
        self.0.set_until(Instant::now());
        *lock(&self.0.own) = None;
        released
    }

    /// Binds the session to its connection, a new one if that broke; whether there was something to
    /// bind.
    pub fn attach(&self) -> Result<bool, Error> {
        // Whoever asks over a new connection has attached it already.
        let (reply, _) = self.0.twice(&words("LOCK.ATTACH", &[&self.0.owner]))?;
        Ok(number(&reply) > 0)
    }

    /// Renews in a thread of its own, three times in a lease, and calls `on_lost` once if this is
    /// lost, or if nothing was heard of the server until the lease was over. It ends with the
    /// release. Errors: the system's, if it has no thread to give.
    pub fn watch(&self, on_lost: impl FnOnce(Error) + Send + 'static) -> Result<(), Error> {
        let grant = Arc::clone(&self.0);
        let watching = move || {
            if grant.watch() {
                on_lost(grant.lost());
            }
        };
        let name = "latchkey-locks".to_owned();
        thread::Builder::new()
            .name(name)
            .spawn(watching)
            .map(drop)
            .map_err(|e| Error::Redis(e.into()))
    }

    /// A new connection to the server of this grant, which is one of several in a cluster.
    pub fn connection(&self) -> Result<Connection, Error> {
        let node = lock(&self.0.node).clone();
        Ok(self.0.pool.connect(&node)?)
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { key, owner, fence, .. } = &*self.0;
        write!(to, "Grant({key} {owner} {fence})")
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if !*lock(&self.0.is_over) {
            let _ = self.release();
        }
    }
}

impl Inner {
    pub(crate) fn take(
        pool: &Arc<Pool>,
        key: &str,
        options: Options,
        kind: Kind,
    ) -> Result<Grant, Error> {
        let mut grant = Self {
            pool: Arc::clone(pool),
            key: key.to_owned(),
            owner: options.owner.clone().unwrap_or_else(crate::random_name),
            fence: 0,
            kind,
            options,
            node: Mutex::default(),
            until: Mutex::new(Instant::now()),
            own: Mutex::default(),
            is_over: Mutex::default(),
            ended: Condvar::new(),
        };
        let taken = grant.acquire();
        if let Err(Error::Redis(failed)) = &taken
            && !is_reply(failed)
        {
            // Nobody will release what may have been granted. If this fails too, it ends with its
            // lease.
            grant.abandon();
        }
        taken.map(|()| Grant(Arc::new(grant)))
    }

    fn acquire(&mut self) -> Result<(), Error> {
        let mut question = self.question();
        if let Some(grace) = self.options.grace {
            question.arg("SESSION").arg("GRACE").arg(milliseconds(grace));
        }
        let started = Instant::now();
        let (mut block, mut broken) = (Duration::ZERO, 0);
        loop {
            let mut asked = question.clone();
            if !block.is_zero() {
                asked.arg("BLOCK").arg(milliseconds(block));
            }
            let began = Instant::now();
            let reply = match self.ask(&asked, block, broken > 0) {
                Ok(Value::Array(reply)) => reply,
                Ok(other) => return Err(unexpected(&other)),
                Err(failed) => {
                    // It may have been granted. The same owner that asks again finds its grant, or
                    // stands in the queue anew.
                    broken += 1;
                    if is_reply(&failed) || broken == TRIES {
                        return Err(failed.into());
                    }
                    block = Duration::ZERO;
                    continue;
                }
            };
            broken = 0;
            let is_granted = reply.first().is_some_and(|first| *first != Value::Int(0));
            if is_granted && began.elapsed() <= self.options.lease / 10 {
                let left = self.read(reply)?;
                self.set_until(began.checked_add(left).unwrap_or(began + CENTURY));
                return Ok(());
            }
            // A lease that began in a long wait is measured by asking again, which gets the same
            // grant.
            block = Duration::ZERO;
            if !is_granted {
                block = LONGEST_WAIT;
                if let Some(wait) = self.options.wait {
                    block = block.min(wait.saturating_sub(started.elapsed()));
                }
                if block.is_zero() {
                    return Err(Error::NotGranted {
                        key: self.key.clone(),
                        holder: self.holder(&reply),
                    });
                }
            }
        }
    }

    /// Gives back what may have been granted although nobody got to know.
    fn abandon(&mut self) {
        if let Kind::Permits { .. } = self.kind {
            // The permits' names are known by asking again.
            match self.twice(&self.question()) {
                Ok((Value::Array(reply), _)) if reply.first() != Some(&Value::Int(0)) => {
                    if self.read(reply).is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
        let _ = self.release(Duration::ZERO);
    }

    fn left(&self) -> Duration {
        lock(&self.until).saturating_duration_since(Instant::now())
    }

    fn set_until(&self, until: Instant) {
        *lock(&self.until) = until;
    }

    fn lost(&self) -> Error {
        self.set_until(Instant::now());
        Error::Lost { key: self.key.clone() }
    }

    fn renew(&self, lease: Duration) -> Result<(), Error> {
        let began = Instant::now();
        let (requests, expected) = self.renewals(lease);
        for request in requests {
            if self.twice(&request)?.0 != expected {
                return Err(self.lost());
            }
        }
        let renewed = began.checked_add(lease).unwrap_or(began + CENTURY);
        // Of a release meanwhile, nothing is left.
        let is_over = lock(&self.is_over);
        if !*is_over {
            let mut until = lock(&self.until);
            *until = renewed.max(*until);
        }
        Ok(())
    }

    fn release(&self, keep: Duration) -> Result<(), Error> {
        let mut outcome = Ok(());
        let (requests, least) = self.releases(keep);
        for request in requests {
            match self.twice(&request) {
                Err(failed) => outcome = Err(failed.into()),
                // Where it was repeated, the first may have done it, and what the second says of a
                // loss means nothing.
                Ok((left, false)) if number(&left) < least => outcome = Err(self.lost()),
                Ok(_) => {}
            }
        }
        outcome
    }

    /// Renews until the release, or until it is lost: which of both.
    fn watch(&self) -> bool {
        loop {
            let pause = (self.options.lease / 3).min(self.left().max(Duration::from_millis(1)));
            let is_over = lock(&self.is_over);
            let waited = self.ended.wait_timeout_while(is_over, pause, |is_over| !*is_over);
            if *waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0 {
                return false;
            }
            if let Err(failed) = self.renew(self.options.lease)
                && (matches!(failed, Error::Lost { .. }) || self.left().is_zero())
            {
                return !*lock(&self.is_over);
            }
        }
    }

    /// Asks again if the connection breaks: requests of locks may be repeated. It gives the reply,
    /// and whether it is the second.
    pub(crate) fn twice(&self, request: &Cmd) -> RedisResult<(Value, bool)> {
        match self.ask(request, Duration::ZERO, false) {
            Err(failed) if !is_reply(&failed) => {
                self.ask(request, Duration::ZERO, true).map(|reply| (reply, true))
            }
            reply => reply.map(|reply| (reply, false)),
        }
    }

    /// One request, which nothing repeats unseen.
    fn ask(&self, request: &Cmd, wait: Duration, is_new: bool) -> RedisResult<Value> {
        self.pool.follow(&self.node, |node| match self.options.grace {
            None => self.pool.ask(request, node, wait, is_new),
            Some(_) => self.ask_session(request, node, wait),
        })
    }

    /// A session ends with its connection, so it has one of its own.
    fn ask_session(&self, request: &Cmd, node: &Node, wait: Duration) -> RedisResult<Value> {
        let mut own = lock(&self.own);
        let mut connection = match own.take() {
            Some(connection) => connection,
            None => {
                let mut connection = self.pool.connect(node)?;
                if self.fence != 0 {
                    let attach = words("LOCK.ATTACH", &[&self.owner]);
                    ask(&mut connection, &attach, Duration::ZERO)?;
                }
                connection
            }
        };
        let reply = ask(&mut connection, request, wait);
        if !reply.as_ref().is_err_and(|failed| is_broken(failed) || is_moved(failed)) {
            *own = Some(connection);
        }
        reply
    }

    fn question(&self) -> Cmd {
        let (key, lease) = (&self.key, milliseconds(self.options.lease));
        match &self.kind {
            Kind::Lock { keys } => {
                let mut request = if let [key] = &keys[..] {
                    words("LOCK.ACQUIRE", &[key, &self.owner])
                } else {
                    self.keys_after("LOCK.MACQUIRE", keys)
                };
                request.arg("PX").arg(lease);
                if self.options.shared {
                    request.arg("SHARED");
                }
                request
            }
            Kind::Permits { limit, count, .. } => {
                let mut request = words("SEM.ACQUIRE", &[key, &self.owner, "LIMIT"]);
                request.arg(limit).arg("PX").arg(lease).arg("COUNT").arg(count);
                request
            }
        }
    }

    /// Takes over a grant, and gives the time that is left of it.
    fn read(&mut self, reply: Vec<Value>) -> Result<Duration, Error> {
        match &mut self.kind {
            Kind::Lock { .. } => {
                self.fence = reply.first().map_or(0, number);
                let left = reply.last().map_or(0, number);
                Ok(Duration::from_millis(u64::try_from(left).unwrap_or(0)))
            }
            Kind::Permits { names, free, .. } => {
                (*names, self.fence, *free) = redis::from_redis_value(Value::Array(reply))
                    .map_err(|failed| Error::Redis(failed.into()))?;
                Ok(self.options.lease)
            }
        }
    }

    fn holder(&self, reply: &[Value]) -> Option<String> {
        let Kind::Lock { .. } = self.kind else { return None };
        redis::from_redis_value_ref(reply.get(3)?).ok().filter(|holder: &String| !holder.is_empty())
    }

    fn renewals(&self, lease: Duration) -> (Vec<Cmd>, Value) {
        let renewal = |mut request: Cmd| {
            request.arg("PX").arg(milliseconds(lease));
            request
        };
        match &self.kind {
            Kind::Lock { keys } => {
                let request = renewal(self.keys_after("LOCK.RENEW", keys));
                (vec![request], Value::Array(vec![Value::Int(self.fence); keys.len()]))
            }
            Kind::Permits { names, .. } => {
                let each = names.iter().map(|name| renewal(words("SEM.RENEW", &[&self.key, name])));
                (each.collect(), Value::Int(1))
            }
        }
    }

    fn releases(&self, keep: Duration) -> (Vec<Cmd>, i64) {
        match &self.kind {
            Kind::Lock { keys } => {
                let release = |key: &String| {
                    let mut request = words("LOCK.RELEASE", &[key, &self.owner]);
                    if self.fence != 0 {
                        request.arg("FENCE").arg(self.fence);
                    }
                    if !keep.is_zero() {
                        request.arg("KEEP").arg(milliseconds(keep));
                    }
                    request
                };
                (keys.iter().map(release).collect(), 0)
            }
            Kind::Permits { names, .. } => {
                let mut request = words("SEM.RELEASE", &[&self.key]);
                request.arg(names);
                (vec![request], names.len() as i64)
            }
        }
    }

    pub(crate) fn guards(&self) -> Vec<Cmd> {
        let Kind::Lock { keys } = &self.kind else { return Vec::new() };
        let guard = |key: &String| {
            let mut request = words("LOCK.GUARD", &[key, &self.owner, "FENCE"]);
            request.arg(self.fence);
            request
        };
        keys.iter().map(guard).collect()
    }

    fn keys_after(&self, name: &str, keys: &[String]) -> Cmd {
        let mut request = cmd(name);
        request.arg(keys.len()).arg(keys).arg(&self.owner);
        request
    }
}

fn words(name: &str, words: &[&str]) -> Cmd {
    let mut request = cmd(name);
    request.arg(words);
    request
}

/// Rounded up: a wait is no shorter than it was told, and no lease is none.
fn milliseconds(of: Duration) -> u64 {
    u64::try_from(of.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

pub(crate) fn number(reply: &Value) -> i64 {
    if let Value::Int(number) = reply { *number } else { 0 }
}

fn unexpected(reply: &Value) -> Error {
    let what = format!("{reply:?}");
    Error::Redis((ErrorKind::UnexpectedReturnType, "a reply of another kind", what).into())
}
