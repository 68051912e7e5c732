//! Locks whose grants replicas have to acknowledge: LOCK commands with REPLICAS.

use crate::support::{Client, Reply, TestServer, wait_for};

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

fn shown(client: &mut Client, line: &str) -> String {
    client.call(&words(line)).show()
}

/// A primary with a replica that is in step, or not connected yet.
struct Pair {
    primary: TestServer,
    replica: TestServer,
    to_replica: Client,
}

impl Pair {
    fn new(lines: &[&str]) -> Self {
        let lines = ["shutdown-timeout 0"].iter().chain(lines);
        let lines: Vec<String> = lines.map(|line| (*line).to_owned()).collect();
        let primary = TestServer::start(&lines);
        let replica = TestServer::start(&[]);
        let to_replica = replica.connect();
        Pair { primary, replica, to_replica }
    }

    fn turn(&self) {
        self.primary.advance(1000);
        self.replica.advance(1000);
    }

    fn connect(&mut self) {
        let port = self.primary.address.port().to_string();
        self.to_replica.call(&["REPLICAOF", "127.0.0.1", &port]);
        wait_for("the replica", || {
            self.primary.advance(100_000);
            self.replica.advance(100_000);
            self.to_replica.call(&["ROLE"]).show().contains("connected").then_some(())
        });
        let mut client = self.primary.connect();
        wait_for("an acknowledgement", || {
            self.turn();
            client.call(&["INFO", "replication"]).show().contains("state=online").then_some(())
        });
    }

    fn disconnect(&mut self) {
        self.to_replica.call(&["REPLICAOF", "NO", "ONE"]);
        let mut client = self.primary.connect();
        wait_for("the end of the link", || {
            self.turn();
            client.call(&["ROLE"]).show().contains("(empty array)").then_some(())
        });
    }

    /// The next reply or push message of a client, while both servers go on.
    fn reply(&self, client: &mut Client) -> String {
        wait_for("a reply", || {
            self.turn();
            client.try_message().map(|reply| reply.show())
        })
    }
}

#[test]
fn a_grant_is_answered_when_a_replica_has_it() {
    let mut pair = Pair::new(&[]);
    pair.connect();
    let mut client = pair.primary.connect();
    client.send(&words("LOCK.ACQUIRE jobs alice PX 60000 REPLICAS 1 30000"));
    let reply = pair.reply(&mut client);
    // The lease began with the grant.
    assert!(
        reply.contains("\n2) (integer) 1\n3) (integer) 5") || reply.contains("60000"),
        "{reply}"
    );
    assert_eq!(shown(&mut pair.to_replica, "EXISTS jobs"), "(integer) 1");
    client.send(&words("LOCK.RENEW 1 jobs alice PX 90000 REPLICAS 1 30000"));
    assert!(pair.reply(&mut client).starts_with("1) (integer) 3"));
    client.send(&words("LOCK.MACQUIRE 2 jobs more alice PX 60000 REPLICAS 1 30000"));
    assert!(pair.reply(&mut client).contains("\n2) (integer) "));
    assert_eq!(shown(&mut pair.to_replica, "EXISTS jobs more"), "(integer) 2");
    assert_eq!(shown(&mut client, "LOCK.RELEASE jobs alice"), "(integer) 0");
}

#[test]
fn waiting_clients_keep_their_places_until_a_replica_is_there() {
    let mut pair = Pair::new(&["lock-min-replicas 1", "lock-ack-timeout 200"]);
    let [mut first, mut second, mut third, mut plain] = [(); 4].map(|()| pair.primary.connect());
    first.send(&words("LOCK.ACQUIRE jobs alice PX 60000"));
    pair.primary.settle();
    second.send(&words("LOCK.ACQUIRE jobs bob PX 60000 BLOCK 0"));
    pair.primary.settle();
    third.send(&words("LOCK.ACQUIRE jobs carol PX 60000 BLOCK 300"));
    pair.primary.settle();
    pair.primary.advance(201_000);
    assert!(first.reply().expect("an error").show().contains("NOREPLICAS"));
    // Nobody tries again in vain: neither those that wait, nor who comes now.
    assert_eq!(shown(&mut plain, "EXISTS jobs"), "(integer) 0");
    assert!(shown(&mut plain, "LOCK.ACQUIRE other dave PX 60000").contains("NOREPLICAS"));
    pair.primary.advance(101_000);
    assert_eq!(
        third.reply().expect("the end of BLOCK").show(),
        "1) (integer) 0\n2) (integer) -1\n3) (integer) 1\n4) \"\""
    );
    pair.connect();
    let reply = pair.reply(&mut second);
    assert!(reply.contains("\n2) (integer) 1\n"), "{reply}");
    assert_eq!(shown(&mut pair.to_replica, "HGET jobs bob"), "\"1\"");
    plain.send(&words("LOCK.ACQUIRE other dave PX 60000"));
    assert!(pair.reply(&mut plain).contains("\n2) (integer) 1\n"));
    let info = shown(&mut plain, "INFO locks");
    assert!(info.contains("lock_noreplicas_total:1"), "{info}");
}

#[test]
fn who_waits_is_served_when_no_replica_is_asked_for_any_more() {
    let pair = Pair::new(&["lock-min-replicas 1", "lock-ack-timeout 200"]);
    let [mut first, mut second] = [(); 2].map(|()| pair.primary.connect());
    first.send(&words("LOCK.ACQUIRE jobs alice PX 60000"));
    pair.primary.settle();
    second.send(&words("LOCK.ACQUIRE jobs bob PX 60000 BLOCK 0"));
    pair.primary.advance(201_000);
    assert!(first.reply().expect("an error").show().contains("NOREPLICAS"));
    assert_eq!(shown(&mut first, "CONFIG SET lock-min-replicas 0"), "OK");
    // Its request was made under the old rule.
    let reply = second.reply().expect("the lock").show();
    assert!(reply.contains("\n2) (integer) 1\n"), "{reply}");
}

#[test]
fn a_grant_goes_with_the_client_that_waits_for_its_confirmation() {
    let mut pair = Pair::new(&[]);
    pair.connect();
    pair.disconnect();
    let [mut gone, mut killed, mut unblocked, mut next] = [(); 4].map(|()| pair.primary.connect());
    gone.send(&words("LOCK.ACQUIRE one alice PX 60000 REPLICAS 1 30000"));
    let id = shown(&mut killed, "CLIENT ID").replace("(integer) ", "");
    killed.send(&words("LOCK.ACQUIRE two bob PX 60000 REPLICAS 1 30000"));
    let other = shown(&mut unblocked, "CLIENT ID").replace("(integer) ", "");
    unblocked.send(&words("LOCK.ACQUIRE three carol PX 60000 REPLICAS 1 30000"));
    pair.primary.settle();
    assert_eq!(shown(&mut next, "EXISTS one two three"), "(integer) 3");
    drop(gone);
    assert_eq!(shown(&mut next, &format!("CLIENT KILL ID {id}")), "(integer) 1");
    assert_eq!(shown(&mut next, &format!("CLIENT UNBLOCK {other} ERROR")), "(integer) 1");
    assert!(unblocked.reply().expect("an error").show().contains("UNBLOCKED"));
    wait_for("the locks to be taken back", || {
        pair.turn();
        (shown(&mut next, "EXISTS one two three") == "(integer) 0").then_some(())
    });
    assert!(shown(&mut next, "LOCK.ACQUIRE one dave PX 1000").contains("\n2) (integer) 1\n"));
}

#[test]
fn a_hold_that_is_not_confirmed_is_taken_back_alone() {
    let pair = Pair::new(&[]);
    let mut client = pair.primary.connect();
    shown(&mut client, "LOCK.ACQUIRE jobs alice PX 60000 REENTRANT");
    client.send(&words("LOCK.ACQUIRE jobs alice PX 60000 REENTRANT REPLICAS 1 100"));
    pair.primary.settle();
    pair.primary.advance(101_000);
    assert!(client.reply().expect("an error").show().contains("NOREPLICAS"));
    assert_eq!(shown(&mut client, "HGET jobs alice"), "\"1\"");
    // A plain retry does not take the lock away from its owner either.
    client.send(&words("LOCK.ACQUIRE jobs alice PX 60000 REPLICAS 1 100"));
    pair.primary.settle();
    pair.primary.advance(101_000);
    assert!(client.reply().expect("an error").show().contains("NOREPLICAS"));
    assert_eq!(shown(&mut client, "HGET jobs alice"), "\"1\"");
}

#[test]
fn an_asynchronous_grant_is_pushed_when_a_replica_has_it() {
    let mut pair = Pair::new(&[]);
    pair.connect();
    let [mut holder, mut client] = [(); 2].map(|()| pair.primary.connect());
    client.call(&["HELLO", "3"]);
    let reply = shown(&mut client, "LOCK.ACQUIRE free bob PX 60000 ASYNC 0 REPLICAS 1 30000");
    assert_eq!(reply, "1) (integer) 0\n2) (integer) -1\n3) (integer) 0\n4) \"bob\"");
    let push = pair.reply(&mut client);
    assert!(push.starts_with("1) \"lock-granted\"\n2) \"free\"\n3) \"bob\"\n"), "{push}");
    shown(&mut holder, "LOCK.ACQUIRE jobs alice PX 60000");
    shown(&mut client, "LOCK.ACQUIRE jobs bob PX 60000 ASYNC 0 REPLICAS 1 30000");
    shown(&mut holder, "LOCK.RELEASE jobs alice");
    let push = pair.reply(&mut client);
    assert!(push.starts_with("1) \"lock-granted\"\n2) \"jobs\"\n3) \"bob\"\n"), "{push}");
    assert_eq!(shown(&mut pair.to_replica, "HGET jobs bob"), "\"1\"");
    pair.disconnect();
    shown(&mut holder, "LOCK.ACQUIRE late alice PX 60000");
    shown(&mut client, "LOCK.ACQUIRE late bob PX 60000 ASYNC 0 REPLICAS 1 50");
    shown(&mut holder, "LOCK.RELEASE late alice");
    let push = pair.reply(&mut client);
    assert!(
        push.starts_with("1) \"lock-failed\"\n2) \"late\"\n3) \"bob\"\n4) \"NOREPLICAS"),
        "{push}"
    );
    assert_eq!(shown(&mut holder, "EXISTS late"), "(integer) 0");
}

#[test]
fn who_becomes_a_replica_tells_those_that_wait() {
    let pair = Pair::new(&[]);
    let [mut holder, mut client, mut waits] = [(); 3].map(|()| pair.primary.connect());
    client.call(&["HELLO", "3"]);
    shown(&mut holder, "LOCK.ACQUIRE jobs alice PX 60000");
    shown(&mut client, "LOCK.ACQUIRE jobs bob PX 60000 ASYNC 0");
    waits.send(&words("LOCK.ACQUIRE other bob PX 60000 REPLICAS 1 30000"));
    pair.primary.settle();
    let port = pair.replica.address.port().to_string();
    holder.call(&["REPLICAOF", "127.0.0.1", &port]);
    let push = pair.reply(&mut client);
    assert!(push.contains("lock-failed") && push.contains("UNBLOCKED"), "{push}");
    assert!(waits.reply().expect("an error").show().contains("UNBLOCKED"));
}

/// Reads like the contract: a client's replies in order.
#[test]
fn one_replica_does_not_confirm_for_two() {
    let mut pair = Pair::new(&[]);
    pair.connect();
    let mut client = pair.primary.connect();
    client.send(&words("LOCK.ACQUIRE jobs alice PX 60000 REPLICAS 2 300"));
    let reply = pair.reply(&mut client);
    assert!(reply.contains("NOREPLICAS"), "{reply}");
    // One is enough for others.
    client.send(&words("LOCK.ACQUIRE jobs alice PX 60000 REPLICAS 1 30000"));
    let reply = pair.reply(&mut client);
    assert!(matches!(reply.lines().nth(1), Some("2) (integer) 1")), "{reply}");
    let Reply::Integer(1) = client.call(&["EXISTS", "jobs"]) else { panic!("the lock is there") };
}

#[test]

fn subscribers_of_a_replica_are_told_of_locks_that_were_flushed() {
    let mut pair = Pair::new(&[]);
    pair.connect();
    let mut client = pair.primary.connect();
    for key in ["jobs", "more"] {
        shown(&mut client, &format!("LOCK.ACQUIRE {key} alice PX 60000"));
    }
    wait_for("both locks", || {
        pair.turn();
        (shown(&mut pair.to_replica, "DBSIZE") == "(integer) 2").then_some(())
    });
    let mut listener = pair.replica.connect();
    shown(&mut listener, "SUBSCRIBE redisson_lock__channel:{jobs}");
    // Not a message for each lock: there may be a million.
    let offset = |client: &mut Client| {
        let text = shown(client, "INFO replication");
        let (_, rest) = text.split_once("master_repl_offset:").expect("an offset");
        rest.split(|end: char| !end.is_ascii_digit()).next().map(str::to_owned)
    };
    let before = offset(&mut client).and_then(|offset| offset.parse::<u64>().ok());
    shown(&mut client, "FLUSHALL");
    let after = offset(&mut client).and_then(|offset| offset.parse::<u64>().ok());
    assert!(after.unwrap_or(u64::MAX) - before.unwrap_or(0) < 60);
    let told = pair.reply(&mut listener);
    assert!(told.contains("redisson_lock__channel:{jobs}"), "{told}");
    let info = shown(&mut pair.to_replica, "INFO locks");
    assert!(info.contains("locks_held:0"), "{info}");
}

#[test]
fn a_session_that_nobody_takes_up_after_a_promotion_ends_by_it() {
    let mut pair = Pair::new(&[]);
    pair.connect();
    let mut holder = pair.primary.connect();
    for key in ["left", "taken"] {
        shown(&mut holder, &format!("LOCK.ACQUIRE {key} {key} PX 60000 SESSION GRACE 500"));
    }
    shown(&mut holder, "SEM.ACQUIRE pool a LIMIT 2 PX 60000");
    wait_for("the grants", || {
        pair.turn();
        (shown(&mut pair.to_replica, "EXISTS left taken pool") == "(integer) 3").then_some(())
    });
    let figures = |client: &mut Client| client.call(&["INFO", "locks"]).show();
    assert!(figures(&mut pair.to_replica).contains("sem_permits_held:1"));
    pair.disconnect();
    assert_eq!(shown(&mut pair.to_replica, "LOCK.ATTACH taken"), "(integer) 1");
    pair.replica.advance(600_000);
    let info = shown(&mut pair.to_replica, "LOCK.INFO left");
    assert!(info.contains("\"left\"") && info.contains("\"promoted\""), "{info}");
    assert!(shown(&mut pair.to_replica, "LOCK.INFO taken").contains("exclusive"));
    assert!(figures(&mut pair.to_replica).contains("lock_session_ended_total:1"));
}
