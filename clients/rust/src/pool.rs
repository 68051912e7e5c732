//! Connections that wait for the next request. A request takes one out, or a new one, and puts it
//! back after its reply.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{
    Client, Cmd, Connection, ConnectionAddr, ConnectionLike, ErrorKind, RedisError, RedisResult,
    ServerErrorKind, Value,
};

/// How much longer than the server a client waits for the reply.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
const REDIRECTIONS: u32 = 16;
const MOST_IDLE: usize = 16;
/// The server may have closed a connection that rested for longer: it is tried first.
const FRESH: Duration = Duration::from_secs(1);

pub(crate) type Find = Box<dyn FnMut() -> RedisResult<Client> + Send>;
/// A node of a cluster that a request was sent on to; none: whichever `find` finds.
pub(crate) type Node = Option<ConnectionAddr>;

pub(crate) struct Pool {
    find: Mutex<Find>,
    idle: Mutex<Vec<(Node, Connection, Instant)>>,
}

impl Pool {
    pub(crate) fn new(find: Find) -> Self {
        Self { find: Mutex::new(find), idle: Mutex::default() }
    }

    /// A new connection.
    pub(crate) fn connect(&self, node: &Node) -> RedisResult<Connection> {
        let found = lock(&self.find)()?;
        let client = match node {
            None => found,
            Some(node) => Client::open(found.get_connection_info().clone().set_addr(node.clone()))?,
        };
        client.get_connection_with_timeout(PATIENCE)
    }

    /// A request that follows its key to another node of a cluster. One that broke is looked for
    /// anew next time.
    pub(crate) fn follow(
        &self,
        node: &Mutex<Node>,
        mut ask: impl FnMut(&Node) -> RedisResult<Value>,
    ) -> RedisResult<Value> {
        let mut redirections = 0;
        loop {
            let asked = lock(node).clone();
            let reply = ask(&asked);
            let Err(failed) = &reply else { return reply };
            if is_moved(failed) || is_broken(failed) {
                *lock(node) = self.moved(failed, asked)?;
            }
            redirections += 1;
            if !is_moved(failed) || redirections > REDIRECTIONS {
                return reply;
            }
        }
    }

    /// Where `MOVED host:port` leads to, from the server that said so.
    fn moved(&self, error: &RedisError, asked: Node) -> RedisResult<Node> {
        let Some((host, port)) = error.redirect_node().and_then(|(node, _)| node.rsplit_once(':'))
        else {
            return Ok(None);
        };
        let port =
            port.parse().map_err(|_| RedisError::from((ErrorKind::Parse, "MOVED to no port")))?;
        let mut node = match asked {
            Some(node) => node,
            None => lock(&self.find)()?.get_connection_info().addr().clone(),
        };
        match &mut node {
            ConnectionAddr::TcpTls { host: of_host, port: of_port, .. }
            | ConnectionAddr::Tcp(of_host, of_port) => {
                // A node that does not know its own address leaves it out.
                if !host.is_empty() && host != "?" {
                    *of_host = host.to_owned();
                }
                *of_port = port;
            }
            _ => node = ConnectionAddr::Tcp(host.to_owned(), port),
        }
        Ok(Some(node))
    }

    /// One request, which nothing repeats. `is_new`: over a new connection, for those here may all
    /// have broken together.
    pub(crate) fn ask(
        &self,
        request: &Cmd,
        node: &Node,
        wait: Duration,
        is_new: bool,
    ) -> RedisResult<Value> {
        let mut connection = match self.rested(node).filter(|_| !is_new) {
            Some(connection) => connection,
            None => self.connect(node)?,
        };
        let reply = ask(&mut connection, request, wait);
        let mut idle = lock(&self.idle);
        if reply.as_ref().is_err_and(is_broken) {
            idle.clear();
        } else if idle.len() < MOST_IDLE {
            idle.push((node.clone(), connection, Instant::now()));
        }
        reply
    }

    fn rested(&self, node: &Node) -> Option<Connection> {
        let (_, mut connection, since) = {
            let mut idle = lock(&self.idle);
            let at = idle.iter().rposition(|(of, ..)| of == node)?;
            idle.remove(at)
        };
        let answers = since.elapsed() < FRESH
            || connection.set_read_timeout(Some(PATIENCE)).is_ok() && connection.check_connection();
        answers.then_some(connection)
    }
}

pub(crate) fn ask(
    connection: &mut Connection,
    request: &Cmd,
    wait: Duration,
) -> RedisResult<Value> {
    connection.set_read_timeout(Some(wait + PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    request.query(connection)
}

/// The server has answered, and did nothing.
pub(crate) fn is_reply(error: &RedisError) -> bool {
    error.code().is_some()
}

pub(crate) fn is_moved(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::Moved)
}

/// Its connection is of no more use: closed, or to a server that is no longer the primary.
pub(crate) fn is_broken(error: &RedisError) -> bool {
    !is_reply(error) || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// What a thread that panicked has left is whole: nothing here panics between two steps.
pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
