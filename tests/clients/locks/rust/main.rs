//! The table of cases by latchkey-locks for Rust: each case over each kind of client.

use std::collections::HashMap;
use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use latchkey_locks::{Error, Grant, Lock, Locks, Options, Permits, Rate, ScopeError};
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{
    Client, ErrorKind, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError,
    ServerErrorKind, Value, cmd,
};
use serde_json::Value as Json;

const SOON: Duration = Duration::from_secs(20);

enum Failure {
    /// Not as the case says.
    Wrong(String),
    Own(Option<Error>),
    Lock(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Self::Lock(error.into())
    }
}

enum Held {
    Lock(Lock),
    Permits(Permits),
}

impl Held {
    fn grant(&self) -> &Grant {
        match self {
            Self::Lock(lock) => lock,
            Self::Permits(permits) => permits,
        }
    }

    fn lock(&self) -> &Lock {
        match self {
            Self::Lock(lock) => lock,
            Self::Permits(_) => panic!("the case means a lock"),
        }
    }
}

struct Running {
    tag: String,
    /// Of a cluster, one for each node.
    clients: Vec<Client>,
    locks: Locks,
    grants: Mutex<HashMap<String, Arc<Held>>>,
    begun: Mutex<HashMap<String, mpsc::Receiver<Result<(), String>>>>,
    told: Mutex<HashMap<String, Arc<AtomicBool>>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().expect("no step panics")
}

fn text<'a>(step: &'a Json, name: &str) -> &'a str {
    step[name].as_str().unwrap_or_default()
}

fn number(step: &Json, name: &str, otherwise: u32) -> u32 {
    step[name].as_u64().map_or(otherwise, |number| number.try_into().expect("a small number"))
}

fn time(step: &Json, name: &str) -> Option<Duration> {
    step[name].as_u64().map(Duration::from_millis)
}

fn right(is_right: bool, found: impl std::fmt::Debug) -> Result<(), Failure> {
    if is_right { Ok(()) } else { Err(Failure::Wrong(format!("{found:?}"))) }
}

impl Running {
    fn step(self: &Arc<Self>, step: &Json) -> Result<(), String> {
        let outcome = self.outcome(step);
        let (error, holder, besides) = match &outcome {
            Ok(_) => ("", None, None),
            Err(Failure::Wrong(found)) => return Err(format!("{step}: {found}")),
            Err(Failure::Own(besides)) => ("own", None, besides.as_ref()),
            Err(Failure::Lock(Error::NotGranted { holder, .. })) => {
                ("not granted", holder.clone(), None)
            }
            Err(Failure::Lock(Error::Lost { .. })) => ("lost", None, None),
            Err(Failure::Lock(_)) => ("server", None, None),
        };
        if error != text(step, "error") {
            let told = if let Err(Failure::Lock(error)) = &outcome {
                error.to_string()
            } else {
                String::new()
            };
            return Err(format!("{step}: {error}: {told}"));
        }
        if let Some(expected) = step.get("holder") {
            let expected =
                expected.as_str().map(|name| self.grant(name).grant().owner().to_owned());
            if holder != expected {
                return Err(format!("{step}: {holder:?}, {expected:?}"));
            }
        }
        if !step["besides"].is_null() && !matches!(besides, Some(Error::Lost { .. })) {
            return Err(format!("{step}: {besides:?}"));
        }
        let Ok(Some(held)) = outcome else { return Ok(()) };
        let fence = held.grant().fence();
        let is_above =
            step["above"].as_str().is_none_or(|name| fence > self.grant(name).grant().fence());
        let is_same =
            step["same"].as_str().is_none_or(|name| fence == self.grant(name).grant().fence());
        if !is_above || !is_same {
            return Err(format!("{step}: fence {fence}"));
        }
        if let (Held::Permits(permits), Some(free)) = (&held, step["free"].as_u64())
            && (permits.free() != free
                || permits.permits().len() != number(step, "count", 1) as usize)
        {
            return Err(format!("{step}: {} free, {:?}", permits.free(), permits.permits()));
        }
        let former = locked(&self.grants).insert(text(step, "as").to_owned(), Arc::new(held));
        drop(former); // It is released, for which the others need not wait.
        Ok(())
    }

    fn grant(&self, name: &str) -> Arc<Held> {
        Arc::clone(&locked(&self.grants)[name])
    }

    fn options(&self, step: &Json) -> Options {
        let owner = step["owner"].as_str().map(|name| self.grant(name).grant().owner().to_owned());
        let shared = step["shared"] == true;
        let lease = time(step, "lease").unwrap_or(Options::default().lease);
        Options { lease, wait: time(step, "wait"), shared, grace: time(step, "grace"), owner }
    }

    fn key(&self, step: &Json) -> String {
        format!("{}{}", self.tag, text(step, "key"))
    }

    fn keys(&self, step: &Json) -> Vec<String> {
        let keys = step["keys"].as_array().expect("keys");
        keys.iter().map(|key| format!("{}{}", self.tag, key.as_str().expect("a key"))).collect()
    }

    fn outcome(self: &Arc<Self>, step: &Json) -> Result<Option<Held>, Failure> {
        let of = text(step, "of");
        let is = step["is"] == true;
        match text(step, "do") {
            "acquire" => {
                let keys = self.keys(step);
                return Ok(Some(Held::Lock(self.locks.acquire_all(keys, self.options(step))?)));
            }
            "permits" => {
                let (limit, count) = (number(step, "limit", 1), number(step, "count", 1));
                let permits =
                    self.locks.permits(&self.key(step), limit, count, self.options(step))?;
                return Ok(Some(Held::Permits(permits)));
            }
            "begin" => {
                let (outcome, begun) = mpsc::channel();
                let (running, step) = (Arc::clone(self), step["step"].clone());
                locked(&self.begun).insert(text(&step, "as").to_owned(), begun);
                thread::spawn(move || outcome.send(running.step(&step)));
            }
            "end" => {
                let begun = locked(&self.begun).remove(of).expect("it has begun");
                begun
                    .recv_timeout(SOON)
                    .unwrap_or_else(|_| Err(format!("{of} waits")))
                    .map_err(Failure::Wrong)?;
            }
            "renew" => match time(step, "lease") {
                Some(lease) => self.grant(of).grant().renew_for(lease)?,
                None => self.grant(of).grant().renew()?,
            },
            "release" => {
                let keep = time(step, "keep").unwrap_or_default();
                self.grant(of).grant().release_keeping(keep)?;
            }
            "held" => right(self.grant(of).lock().held()? == is, !is)?,
            "attach" => right(self.grant(of).grant().attach()? == is, !is)?,
            "left" => {
                let left = self.grant(of).grant().left();
                let above = time(step, "above").is_none_or(|above| left > above);
                let below = time(step, "below").is_none_or(|below| left < below);
                right(above && below, left)?;
            }
            "guarded" => {
                let held = self.grant(of);
                let mut transaction = redis::pipe();
                transaction.atomic();
                held.lock().guard(&mut transaction);
                transaction.cmd("SET").arg(self.key(step)).arg(text(step, "value"));
                let reply: Option<(String,)> =
                    transaction.query(&mut held.grant().connection()?)?;
                right(reply == is.then(|| ("OK".to_owned(),)), reply)?;
            }
            "watch" => {
                let told = Arc::new(AtomicBool::new(false));
                locked(&self.told).insert(of.to_owned(), Arc::clone(&told));
                self.grant(of).grant().watch(move |error| {
                    told.store(matches!(error, Error::Lost { .. }), Ordering::SeqCst);
                })?;
            }
            "told" => {
                let told = Arc::clone(&locked(&self.told)[of]);
                let began = Instant::now();
                while is && !told.load(Ordering::SeqCst) && began.elapsed() < SOON {
                    thread::sleep(Duration::from_millis(5));
                }
                right(told.load(Ordering::SeqCst) == is, !is)?;
            }
            "scope" => self.scope(step)?,
            "throttle" => {
                let period = Duration::from_secs(number(step, "period", 0).into());
                let (count, burst) = (number(step, "count", 0), number(step, "burst", 0));
                let rate = Rate { count, period, burst, quantity: number(step, "quantity", 1) };
                let limit = self.locks.throttle(&self.key(step), rate)?;
                let expected = (step["allowed"] == true, number(step, "remaining", 0).into());
                right((limit.allowed, limit.remaining) == expected, limit)?;
            }
            "kill" => {
                let mut connection = server("PORT", ProtocolVersion::RESP2).get_connection()?;
                let mut kill = cmd("CLIENT");
                kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
                kill.exec(&mut connection)?;
            }
            "pause" => thread::sleep(time(step, "ms").expect("ms")),
            "command" => self.command(step)?,
            unknown => return Err(Failure::Wrong(format!("{unknown} is no step"))),
        }
        Ok(None)
    }

    fn scope(self: &Arc<Self>, step: &Json) -> Result<(), Failure> {
        let work = |lock: &Lock| {
            for one in step["inside"].as_array().expect("steps") {
                if text(one, "do") == "held" {
                    // The scope lends the lock to its work alone.
                    right(lock.held()?, "lost")?;
                } else {
                    self.step(one).map_err(Failure::Wrong)?;
                }
            }
            if step["raise"] == true { Err(Failure::Own(None)) } else { Ok(()) }
        };
        match self.locks.with(&self.keys(step)[0], self.options(step), work) {
            Ok(()) => Ok(()),
            Err(ScopeError::Acquire(error) | ScopeError::Release(error)) => Err(error.into()),
            Err(ScopeError::Work(Failure::Own(_), besides)) => Err(Failure::Own(besides)),
            Err(ScopeError::Work(failed, _)) => Err(failed),
        }
    }

    fn command(&self, step: &Json) -> Result<(), Failure> {
        let mut words = step["words"].as_array().expect("words").iter();
        let mut request = cmd(words.next().and_then(Json::as_str).expect("a command"));
        for word in words {
            request.arg(word.as_str().expect("a word").replace('$', &self.tag));
        }
        let began = Instant::now();
        loop {
            let mut reply = json(self.ask(&request)?);
            if let Some(item) = step["item"].as_u64() {
                reply = reply[item as usize].clone();
            }
            let is_right = if let Some(above) = step["above"].as_i64() {
                reply.as_i64().is_some_and(|reply| reply > above)
            } else if let Some(count) = step["count"].as_u64() {
                reply.as_array().is_some_and(|reply| reply.len() as u64 == count)
            } else {
                reply == step["reply"]
            };
            if is_right || step["until"] != true || began.elapsed() > SOON {
                return right(is_right, reply);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn ask(&self, request: &redis::Cmd) -> Result<Value, RedisError> {
        let mut reply = Ok(Value::Nil);
        for client in &self.clients {
            reply = request.query(&mut client.get_connection()?);
            let moved = ErrorKind::Server(ServerErrorKind::Moved);
            if !reply.as_ref().is_err_and(|error: &RedisError| error.kind() == moved) {
                break;
            }
        }
        reply
    }
}

fn json(reply: Value) -> Json {
    match reply {
        Value::Nil => Json::Null,
        Value::Int(number) => number.into(),
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into(),
        Value::SimpleString(text) => text.into(),
        Value::Okay => "OK".into(),
        Value::Array(items) => items.into_iter().map(json).collect(),
        other => format!("{other:?}").into(), // maps and the like, which the cases only count
    }
}

fn settings(protocol: ProtocolVersion) -> RedisConnectionInfo {
    RedisConnectionInfo::default().set_protocol(protocol)
}

fn at(port: &str, protocol: ProtocolVersion) -> Client {
    let port = port.parse::<u16>().expect("a port");
    let info = ("127.0.0.1", port).into_connection_info().expect("an address");
    Client::open(info.set_redis_settings(settings(protocol))).expect("a client")
}

fn server(port: &str, protocol: ProtocolVersion) -> Client {
    at(&env::var(port).expect(port), protocol)
}

fn clients_of(over: &str, protocol: ProtocolVersion) -> (Vec<Client>, Locks) {
    match over {
        "cluster" => {
            let ports = env::var("CLUSTER").expect("CLUSTER");
            let clients: Vec<_> = ports.split_whitespace().map(|port| at(port, protocol)).collect();
            let locks = Locks::new(clients[0].clone());
            (clients, locks)
        }
        "sentinel" => {
            let sentinel = format!("redis://127.0.0.1:{}", env::var("SENTINEL").expect("SENTINEL"));
            let node =
                SentinelNodeConnectionInfo::default().set_redis_connection_info(settings(protocol));
            let mut client = SentinelClient::build(
                vec![sentinel],
                "primary".to_owned(),
                Some(node),
                SentinelServerType::Master,
            )
            .expect("sentinels");
            let primary = client.get_client().expect("a primary");
            (vec![primary], Locks::finding(move || client.get_client()))
        }
        // A client of redis has no timeouts to be short: those of its connections are set by
        // whoever opens them.
        _ => {
            let client = server(if over == "relay" { "RELAY" } else { "PORT" }, protocol);
            (vec![client.clone()], Locks::new(client))
        }
    }
}

/// Languages without a drop have no case for it.
fn dropped_is_released() {
    let (_, locks) = clients_of("server", ProtocolVersion::RESP3);
    let once = Options { wait: Some(Duration::ZERO), ..Options::default() };
    let lock = locks.acquire("dropped", once.clone()).expect("it is free");
    let refused = locks.acquire("dropped", once.clone()).expect_err("it is held");
    assert!(matches!(refused, Error::NotGranted { .. }), "{refused}");
    drop(lock);
    locks.acquire("dropped", once).expect("it is free again").release().expect("it is held");
}

fn main() {
    dropped_is_released();
    let path = env::args().nth(1).expect("a file of cases");
    let cases = std::fs::read_to_string(path).expect("cases");
    let cases: Vec<Json> = serde_json::from_str(&cases).expect("cases");
    let has_sentinel = env::var("SENTINEL").is_ok_and(|port| !port.is_empty());
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let began = Instant::now();
    for case in &cases {
        let everywhere = ["server", "cluster", "sentinel"].map(Json::from).to_vec();
        for over in case["over"].as_array().unwrap_or(&everywhere) {
            let over = over.as_str().expect("a name");
            for protocol in [ProtocolVersion::RESP2, ProtocolVersion::RESP3] {
                // Nothing cancels a wait in Rust.
                if over == "sentinel" && !has_sentinel || !case["needs"].is_null() {
                    skipped += 1;
                    continue;
                }
                let (clients, locks) = clients_of(over, protocol);
                let running = Arc::new(Running {
                    tag: format!("{{{over} {protocol:?} {}}}", began.elapsed().as_nanos()),
                    clients,
                    locks,
                    grants: Mutex::default(),
                    begun: Mutex::default(),
                    told: Mutex::default(),
                });
                let steps = case["steps"].as_array().expect("steps");
                match steps.iter().try_for_each(|step| running.step(step)) {
                    Ok(()) => passed += 1,
                    Err(wrong) => {
                        failed += 1;
                        println!("FAILED {}, over {over}, {protocol:?}: {wrong}", case["name"]);
                    }
                }
            }
        }
    }
    println!("rust: {passed} passed, {failed} failed, {skipped} skipped");
    std::process::exit((failed > 0).into());
}
