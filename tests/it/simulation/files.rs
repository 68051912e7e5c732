//! One server whose append-only file is switched on and off, rewritten and saved at random moments of what its threads do, and that
//! is killed: it always starts again, and with all that was answered while the file was on.

use std::collections::BTreeMap;

use super::options;
use super::world::{Loss, MS, NODES, SECOND, World};

const SEEDS: u64 = 30;
const STEPS: usize = 400;
const KEYS: usize = 20;

struct Run {
    world: World,
    data: BTreeMap<String, String>,
    /// The append-only file has all data.
    is_safe: bool,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut world = World::new(options(seed));
        (0..NODES).for_each(|node| world.crash(node, Loss::Disk));
        world.configure(0, "appendonly yes");
        world.configure(0, "primary-restart-read-only 0");
        world.start(0, None);
        Run { world, data: BTreeMap::new(), is_safe: true }
    }

    fn ask(&mut self, text: &str) -> String {
        self.world.show(0, &text.split(' ').collect::<Vec<_>>())
    }

    fn background(&mut self) {
        self.world.nodes[0].server.as_mut().expect("it runs").do_background();
    }

    fn step(&mut self) {
        let is_on = self.ask("CONFIG GET appendonly").contains("yes");
        match self.world.random.usize(..20) {
            0..7 => {
                let (key, value) = (self.world.random.usize(..KEYS), self.world.random.u32(..1000));
                assert_eq!(self.ask(&format!("SET k{key} {value}")), "OK");
                self.data.insert(format!("k{key}"), value.to_string());
            }
            7 => _ = self.ask("BGREWRITEAOF"),
            8 => _ = self.ask("BGSAVE SCHEDULE"),
            9 if is_on => {
                self.ask("CONFIG SET appendonly no");
                self.is_safe = false;
            }
            9 | 10 => _ = self.ask("CONFIG SET appendonly yes"),
            11 => {
                let kept = ["yes", "no"][self.world.random.usize(..2)];
                self.ask(&format!("CONFIG SET aof-disable-auto-gc {kept}"));
            }
            12 if is_on => self.settle(),
            13 => {
                self.ask("FLUSHALL");
                self.data.clear();
            }
            14 => self.restart(),
            15 | 16 => self.background(),
            _ => {
                let us = self.world.random.i64(1..200) * MS;
                self.world.step(us);
            }
        }
    }

    /// Lets all that is under way end.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.world.step(SECOND / 2);
            self.background();
            let fields = self.world.section(0, "persistence");
            if ["aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress"]
                .iter()
                .all(|name| fields[*name] == "0")
            {
                self.is_safe = fields["aof_enabled"] == "1";
                return;
            }
        }
        self.world.fail("what is under way does not end");
    }

    fn restart(&mut self) {
        let loss = [Loss::Process, Loss::Power][self.world.random.usize(..2)];
        // None: the append-only file is off or not whole yet, or need not be on disk.
        let is_promised = self.is_safe && (loss == Loss::Process || self.world.keeps_all);
        let promised = is_promised.then(|| self.data.clone());
        self.world.crash(0, loss);
        self.world.start(0, None);
        self.is_safe = true;
        let mut found = BTreeMap::new();
        for key in (0..KEYS).map(|key| format!("k{key}")) {
            let value = self.ask(&format!("GET {key}"));
            if value != "(nil)" {
                found.insert(key, value.trim_matches('"').to_owned());
            }
        }
        if let Some(data) = promised
            && data != found
        {
            self.world.fail(&format!("{data:?} was promised, {found:?} is there"));
        }
        self.data = found;
    }
}

#[test]
fn a_server_starts_again_whatever_its_append_only_file_was_going_through() {
    for seed in 1..=SEEDS {
        let mut run = Run::new(seed);
        (0..STEPS).for_each(|_| run.step());
        run.restart();
    }
}
