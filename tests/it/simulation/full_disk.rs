//! One server whose disk is full at random moments, while its append-only file is switched,
//! rewritten and ended: whatever ends the server, it starts again with all that was answered while
//! the file was whole and the disk had room. What WAITAOF counts is there after a power loss too.
//!
//! `FULL_DISK_LOGS` names a folder for the servers' logs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use latchkey::sys::disk::model::Fault;

use super::options;
use super::world::{Loss, MS, NODES, Options, SECOND, World};

const SEEDS: u64 = 30;
const STEPS: usize = 300;
const KEYS: usize = 10;

struct Run {
    world: World,
    data: BTreeMap<String, String>,
    /// A change that was not answered: it may be there or not.
    unanswered: Option<(String, String)>,
    /// The append-only file has all data.
    is_safe: bool,
    /// The disk is full at times.
    fills: bool,
    /// WAITAOF that have counted the server's own disk.
    counted: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        let logs = std::env::var("FULL_DISK_LOGS").ok().map(PathBuf::from);
        let mut world = World::new(Options { logs, ..options(seed) });
        (0..NODES).for_each(|node| world.crash(node, Loss::Disk));
        for line in
            ["appendonly yes", "primary-restart-read-only 0", "repl-protect-empty-primary no"]
        {
            world.configure(0, line);
        }
        world.start(0, None);
        Run {
            world,
            data: BTreeMap::new(),
            unanswered: None,
            is_safe: true,
            fills: !seed.is_multiple_of(3),
            counted: 0,
        }
    }

    /// What the server answers; None: it has ended.
    fn ask(&mut self, text: &str) -> Option<String> {
        let words: Vec<&str> = text.split(' ').collect();
        Some(self.world.ask(0, &words)?.show())
    }

    fn set(&mut self) {
        let (key, value) = (self.world.random.usize(..KEYS), self.world.random.u32(..1000));
        let (key, value) = (format!("k{key}"), value.to_string());
        match self.ask(&format!("SET {key} {value}")).as_deref() {
            Some("OK") => _ = self.data.insert(key, value),
            Some(refused) => assert!(refused.contains("MISCONF"), "{refused}"),
            None => self.unanswered = Some((key, value)),
        }
    }

    /// The next operations fail, some after a part.
    fn fill_disk(&mut self) {
        let disk = self.world.nodes[0].disk.clone();
        let from = disk.operations() + 1;
        for operation in from..=from + self.world.random.u64(..12) {
            let fault = match self.world.random.u32(..3) {
                0 => Fault::Short(self.world.random.usize(..30)),
                _ => Fault::Error(libc::ENOSPC),
            };
            disk.fail_at(operation, fault);
        }
    }

    fn free_disk(&mut self) {
        self.world.nodes[0].disk.heal();
    }

    fn step(&mut self) {
        let is_on = self.ask("CONFIG GET appendonly").is_some_and(|it| it.contains("yes"));
        match self.world.random.usize(..25) {
            0..8 => self.set(),
            8 => _ = self.ask("BGREWRITEAOF"),
            9 => _ = self.ask("BGSAVE SCHEDULE"),
            10 if is_on => {
                self.is_safe = false;
                self.ask("CONFIG SET appendonly no");
            }
            10 | 11 => _ = self.ask("CONFIG SET appendonly yes"),
            12 => {
                let policy = ["always", "everysec", "no"][self.world.random.usize(..3)];
                self.ask(&format!("CONFIG SET appendfsync {policy}"));
            }
            13..16 if self.fills => self.fill_disk(),
            16..18 => self.free_disk(),
            18 => {
                let how = ["", " NOSAVE", " SAVE"][self.world.random.usize(..3)];
                self.ask(&format!("SHUTDOWN{how}"));
            }
            19 if is_on => self.settle(),
            // A failed sync of which a full disk could keep no mark is unknown to the next start.
            22 if is_on && !self.fills => {
                if self.ask("WAITAOF 1 0 50").is_some_and(|it| it.starts_with("1) (integer) 1")) {
                    self.counted += 1;
                    self.restart(Loss::Power, true);
                }
            }
            20 | 21 => {
                if let Some(server) = &mut self.world.nodes[0].server {
                    server.do_background();
                }
            }
            _ => {
                let us = self.world.random.i64(1..200) * MS;
                self.world.step(us);
            }
        }
        if !self.world.is_up(0) {
            // Nobody forced it: what was answered is there.
            self.restart(Loss::Process, self.is_safe);
        } else if self.world.random.u32(..30) == 0 {
            let fields = self.world.section(0, "persistence");
            let has_all = fields.get("aof_last_write_status").is_some_and(|status| status == "ok");
            self.restart(Loss::Process, self.is_safe && has_all && self.world.is_up(0));
        }
    }

    /// Lets all that is under way end, with room on the disk.
    fn settle(&mut self) {
        self.free_disk();
        for _ in 0..400 {
            self.world.step(SECOND / 2);
            if let Some(server) = &mut self.world.nodes[0].server {
                server.do_background();
            }
            if !self.world.is_up(0) {
                return;
            }
            let fields = self.world.section(0, "persistence");
            let is = |name: &str, value: &str| fields.get(name).is_some_and(|it| it == value);
            let is_idle =
                ["aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress"]
                    .iter()
                    .all(|name| is(name, "0"));
            if !is_idle {
                continue;
            }
            if is("aof_last_write_status", "ok") && is("aof_last_bgrewrite_status", "ok") {
                self.is_safe = is("aof_enabled", "1");
                return;
            }
            self.ask("BGREWRITEAOF");
        }
        let fields = self.world.section(0, "persistence");
        self.world.fail(&format!("what is under way does not end: {fields:?}"));
    }

    fn restart(&mut self, loss: Loss, is_promised: bool) {
        let promised = is_promised.then(|| self.data.clone());
        self.world.crash(0, loss);
        self.world.start(0, None);
        self.is_safe = true;
        let mut found = BTreeMap::new();
        for key in (0..KEYS).map(|key| format!("k{key}")) {
            let value = self.ask(&format!("GET {key}")).expect("the server has just started");
            if value != "(nil)" {
                found.insert(key, value.trim_matches('"').to_owned());
            }
        }
        if let Some(mut data) = promised {
            if let Some((key, value)) = self.unanswered.take()
                && found.get(&key) == Some(&value)
            {
                data.insert(key, value);
            }
            if data != found {
                self.world.fail(&format!("{data:?} was promised, {found:?} is there"));
            }
        }
        self.unanswered = None;
        self.data = found;
    }
}

#[test]
fn a_server_on_a_full_disk_keeps_what_it_answered_whatever_ends_it() {
    let mut counted = 0;
    for seed in 1..=SEEDS {
        let mut run = Run::new(seed);
        (0..STEPS).for_each(|_| run.step());
        counted += run.counted;
    }
    println!("{counted} answers of WAITAOF, and a power loss after each");
    assert!(counted > 0);
}
