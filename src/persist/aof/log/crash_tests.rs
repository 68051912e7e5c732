//! The data that a crash loses, at every operation of the disk.
//!
//! The data is a sequence of units, counted from 1; a base records the number of units in it. A
//! start must find a prefix of the sequence without gaps or repetitions, at least as long as the
//! acknowledged part.

use std::path::{Path, PathBuf};

use super::*;
use crate::clock::{Clock, ManualClock, UnixMillis};
use crate::persist::aof::folder::BaseFormat;
use crate::persist::aof::load::{Cuts, Sink};
use crate::persist::aof::reader::Request;
use crate::sys::disk::model::{Death, Fault, ModelDisk};
use crate::sys::disk::{Disk, DiskReader, write_all};

pub(super) fn words(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

/// The unit of this number: every third is a transaction.
fn unit(number: u64) -> Vec<u8> {
    let text = number.to_string();
    if number.is_multiple_of(3) {
        let half = words(&["HALF", &text]);
        [words(&["MULTI"]), half.clone(), half, words(&["EXEC"])].concat()
    } else {
        words(&["UNIT", &text])
    }
}

fn base(units: u64) -> Vec<u8> {
    if units == 0 { Vec::new() } else { words(&["BASE", &units.to_string()]) }
}

/// Applies the loaded units.
#[derive(Default)]
struct Row {
    units: u64,
    halves: Option<Vec<u64>>,
}

impl Sink for Row {
    fn file_begins(&mut self, _name: &[u8], _bytes: u64) {
        assert_eq!(self.halves, None, "no file ends within a transaction");
    }

    fn rdb(&mut self, source: &mut dyn DiskReader, _bytes: u64) -> Result<u64, String> {
        let mut image = Vec::new();
        source.read_to_end(&mut image).map_err(|error| error.to_string())?;
        let len = image.iter().position(|byte| *byte == b'.').ok_or("no end")? + 1;
        let units = std::str::from_utf8(&image[5..len - 1]).map_err(|error| error.to_string())?;
        self.units = units.parse().map_err(|_| "no number")?;
        Ok(len as u64)
    }

    fn request(&mut self, request: &Request<'_>) -> Result<(), String> {
        let words: Vec<&[u8]> = request.arguments().collect();
        let number =
            words.get(1).map_or(0, |word| std::str::from_utf8(word).unwrap().parse().unwrap());
        match words[0] {
            b"BASE" => self.units = number,
            b"UNIT" if number == self.units + 1 => self.units = number,
            b"MULTI" => self.halves = Some(Vec::new()),
            b"HALF" => self.halves.as_mut().ok_or("a half alone")?.push(number),
            b"EXEC" if self.halves.take() == Some(vec![self.units + 1; 2]) => self.units += 1,
            _ => return Err(format!("{words:?} after unit {}", self.units)),
        }
        Ok(())
    }

    fn transaction_abandoned(&mut self) {
        self.halves = None;
    }
}

const NAME: &[u8] = b"appendonly.aof";

/// Values of `dir`, between which the log moves.
const DIRS: [&str; 2] = ["/", "/other"];

fn open_folder(disk: &ModelDisk, dir: &str) -> Result<AofFolder, FolderError> {
    AofFolder::open_locked(Arc::new(disk.clone()), Path::new(dir), b"appendonlydir", NAME)
}

/// Opens the folder of the last life, or the one to which that life has moved the log.
fn open_current(
    disk: &ModelDisk,
    dir: &'static str,
) -> Result<(AofFolder, &'static str), FolderError> {
    let folder = open_folder(disk, dir)?;
    if folder.check_not_moved().is_ok() {
        return Ok((folder, dir));
    }
    let [first, second] = DIRS;
    let other = if dir == first { second } else { first };
    let folder = open_folder(disk, other)?;
    folder.check_not_moved()?;
    assert!(!folder.manifest().is_empty(), "it has moved to nowhere");
    Ok((folder, other))
}

/// A move that has begun.
struct Move {
    folder: Arc<Mutex<AofFolder>>,
    dir: &'static str,
    first_kept: i64,
    /// Units in the snapshot.
    units: u64,
}

/// A server's life on a disk that may fail.
struct Life {
    clock: ManualClock,
    folder: Arc<Mutex<AofFolder>>,
    log: AppendLog,
    policy: AppendFsync,
    /// The number of each unit appended in this life, and the offset after it.
    appended: Vec<(LogOffset, u64)>,
    units: u64,
    acknowledged: u64,
    synced: u64,
    /// Units in the snapshot of the running rewrite.
    snapshot: Option<u64>,
    dir: &'static str,
    moving: Option<Move>,
    moves: usize,
}

/// The life is over: the disk ended the process, or the process ended by itself.
struct Over;

impl Life {
    /// Starts on the data on disk.
    fn begin(
        disk: &ModelDisk,
        policy: AppendFsync,
        dir: &'static str,
    ) -> Result<Self, FolderError> {
        let (mut folder, dir) = open_current(disk, dir)?;
        folder.take_over_single_file()?;
        let mut row = Row::default();
        let loaded = folder.load(Cuts { truncated: true, corrupt_bytes_max: 0 }, &mut row)?;
        let loaded_units = base(row.units);
        let current =
            folder.open_at_start(BaseFormat::Aof, |file| write_all(file, &loaded_units))?;
        let folder = Arc::new(Mutex::new(folder));
        let wake = Box::new(|| {});
        let log =
            AppendLog::new(folder.clone(), current, loaded.bytes, loaded.base_bytes, policy, wake);
        let clock = ManualClock::new(UnixMillis(1_700_000_000_000));
        let units = row.units;
        let (acknowledged, synced) = (units, units);
        let appended = Vec::new();
        Ok(Life {
            clock,
            folder,
            log,
            policy,
            appended,
            units,
            acknowledged,
            synced,
            snapshot: None,
            dir,
            moving: None,
            moves: 0,
        })
    }

    fn now(&self) -> Now {
        Clock::Manual(self.clock.clone()).now()
    }

    fn append(&mut self) {
        self.units += 1;
        let offset = self.log.append(&unit(self.units), 1, self.now());
        self.appended.push((offset, self.units));
    }

    fn units_before(&self, offset: LogOffset) -> u64 {
        let found = self.appended.iter().rev().find(|(end, _)| *end <= offset);
        found.map_or(0, |(_, number)| *number)
    }

    /// A turn's end.
    fn write(&mut self) -> Result<(), Over> {
        self.log.write(self.now()).map_err(|_| Over)?;
        // While writes fail, replies leave as in Redis, without a promise.
        if self.log.disk_error().is_none() {
            self.acknowledged = self.acknowledged.max(self.units_before(self.log.acknowledged()));
            self.synced = self.synced.max(self.units_before(self.log.synced()));
        }
        Ok(())
    }

    fn step(&mut self) {
        self.log.syncer().step();
        if let Some(successor) = &self.log.successor {
            successor.syncer().step();
        }
    }

    /// One step of a move, from beginning to end.
    fn follow_dir(&mut self, disk: &ModelDisk) -> Result<(), FolderError> {
        let Some(Move { folder, dir, first_kept, units }) = self.moving.take() else {
            let [first, second] = DIRS;
            let dir = if self.dir == first { second } else { first };
            let mut folder = open_folder(disk, dir)?;
            folder.check_free(&self.folder.lock().unwrap())?;
            let increment = folder.increment_aside()?;
            let (first_kept, units) = (increment.seq, self.units);
            let folder = Arc::new(Mutex::new(folder));
            self.log.begin_move(folder.clone(), increment, Box::new(|| {})).unwrap();
            self.moving = Some(Move { folder, dir, first_kept, units });
            return Ok(());
        };
        let mut there = folder.lock().unwrap();
        let written: PathBuf = there.path_of(b"temp-rewriteaof-bg-1.aof");
        let made = disk.create(&written).and_then(|file| {
            write_all(&*file, &base(units))?;
            file.sync_data()
        });
        let is_placed =
            made.is_ok() && there.finish_rewrite(&written, BaseFormat::Aof, first_kept).is_ok();
        let now = self.now();
        if !is_placed || self.log.complete_successor(now).is_err() {
            self.log.give_up_move();
            there.give_up();
            return Ok(());
        }
        let _ = there.remove_history();
        // If it fails, an operator has to know.
        let is_marked = self.folder.lock().unwrap().mark_moved(&there).is_ok();
        drop(there);
        self.log.end_move(now);
        (self.folder, self.dir) = (folder, dir);
        self.moves += usize::from(is_marked);
        Ok(())
    }

    /// One step of a rewrite, from beginning to end.
    fn rewrite(&mut self, disk: &ModelDisk) -> Result<(), Over> {
        let Some(units) = self.snapshot else {
            match self.log.begin_switch(self.now()) {
                Ok(()) => self.snapshot = Some(self.units),
                Err(SwitchError::Refused(_)) => {}
                Err(SwitchError::Fatal(_)) => return Err(Over),
            }
            return Ok(());
        };
        let Some(switched) = self.log.take_switch_result() else {
            return Ok(());
        };
        self.snapshot = None;
        let Ok(first_kept) = switched else {
            return Ok(());
        };
        let folder = &mut *self.folder.lock().unwrap();
        let written: PathBuf = folder.path_of(b"temp-rewriteaof-bg-1.aof");
        let made = disk.create(&written).and_then(|file| {
            write_all(&*file, &base(units))?;
            file.sync_data()
        });
        if made.is_ok()
            && let Ok(bytes) = folder.finish_rewrite(&written, BaseFormat::Aof, first_kept)
        {
            self.log.rewrite_finished(bytes);
            // Files that it does not remove are forgotten.
            let _ = folder.remove_history();
        }
        Ok(())
    }

    /// Performs random operations until the disk ends the life or it has lived long enough.
    fn go_on(&mut self, disk: &ModelDisk, random: &mut fastrand::Rng, steps: usize) {
        for _ in 0..steps {
            let result = match random.u8(..18) {
                0..6 => {
                    self.append();
                    Ok(())
                }
                6..10 => self.write(),
                10..13 => {
                    self.step();
                    Ok(())
                }
                13 => {
                    self.clock.advance_us(random.i64(0..2_000_000));
                    Ok(())
                }
                14 | 15 if self.moving.is_none() => self.rewrite(disk),
                _ if self.snapshot.is_none() => {
                    // A refusal changes nothing.
                    let _ = self.follow_dir(disk);
                    Ok(())
                }
                _ => Ok(()),
            };
            if result.is_err() || disk.has_ended() {
                return;
            }
        }
    }

    /// The number of units that a start after such a death must find.
    fn promised(&self, death: Death) -> u64 {
        match (self.policy, death) {
            (AppendFsync::Always, _) | (_, Death::Kill) => self.acknowledged,
            (_, Death::PowerLoss) => self.synced,
        }
    }
}

/// Runs a life that ends at the operation, then another, and checks the data. Returns whether the
/// first one ended there, and how often the log has moved.
fn live_and_die(
    seed: u64,
    policy: AppendFsync,
    death: Death,
    operation: u64,
    fault: bool,
) -> (bool, usize) {
    let disk = ModelDisk::new(seed);
    disk.create_folder(Path::new(DIRS[1])).unwrap();
    disk.sync_folder(Path::new("/")).unwrap();
    let operation = disk.operations() + operation;
    let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let context = format!("seed {seed}, {policy:?}, {death:?}, operation {operation}, {fault}");
    if fault {
        let kinds = [Fault::Error(libc::ENOSPC), Fault::Error(libc::EIO), Fault::Short(3)];
        let kind = kinds[random.usize(..kinds.len())];
        disk.fail_at(random.u64(8..40), kind);
    }
    disk.end_at(operation);
    let (mut promised, mut most, mut dir, mut moves) = (0, 0, DIRS[0], 0);
    if let Ok(mut life) = Life::begin(&disk, policy, dir) {
        life.go_on(&disk, &mut random, 120);
        (promised, most, dir) = (life.promised(death), life.units, life.dir);
        moves += life.moves;
    }
    let ended = disk.has_ended();
    for round in 0..2 {
        disk.restart(death);
        let mut life = match Life::begin(&disk, policy, dir) {
            Ok(life) => life,
            Err(error) => panic!("{context}, round {round}: a start refuses: {error}"),
        };
        assert!(life.units >= promised, "{context}, {round}: {} < {promised}", life.units);
        assert!(life.units <= most, "{context}, {round}: {} > {most}", life.units);
        disk.end_at(disk.operations() + random.u64(1..60));
        life.go_on(&disk, &mut random, 60);
        (promised, most, dir) = (life.promised(death), life.units, life.dir);
        moves += life.moves;
    }
    (ended, moves)
}

/// Each life dies at one operation in `LIVES`, each at others.
fn every_crash_point(policy: AppendFsync, death: Death) {
    const LIVES: u64 = 5;
    let mut moves = 0;
    for seed in 0..LIVES {
        let mut operation = 1 + seed;
        loop {
            let (has_ended, moved) = live_and_die(seed, policy, death, operation, false);
            moves += moved;
            if !has_ended {
                break;
            }
            moves += live_and_die(seed + 1000 * operation, policy, death, operation, false).1;
            operation += LIVES;
        }
        assert!(operation > 20, "only {operation} operations");
    }
    assert!(moves > 100, "only {moves} moves");
}

#[test]
fn nothing_acknowledged_is_lost_under_always_by_a_power_loss_at_any_operation() {
    every_crash_point(AppendFsync::Always, Death::PowerLoss);
}

#[test]
fn nothing_acknowledged_is_lost_under_always_by_a_kill_at_any_operation() {
    every_crash_point(AppendFsync::Always, Death::Kill);
}

#[test]
fn nothing_acknowledged_is_lost_under_everysec_by_a_kill_at_any_operation() {
    every_crash_point(AppendFsync::EverySecond, Death::Kill);
}

#[test]
fn nothing_synced_is_lost_under_everysec_by_a_power_loss_at_any_operation() {
    every_crash_point(AppendFsync::EverySecond, Death::PowerLoss);
}

#[test]
fn an_error_of_the_disk_before_the_crash_loses_nothing_more() {
    for seed in 0..1000 {
        let operation = 20 + seed % 60;
        live_and_die(seed, AppendFsync::Always, Death::Kill, operation, true);
        live_and_die(seed, AppendFsync::Always, Death::PowerLoss, operation, true);
        live_and_die(seed, AppendFsync::EverySecond, Death::Kill, operation, true);
    }
}
