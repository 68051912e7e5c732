use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use super::crash_tests::words;
use super::*;
use crate::clock::{Clock, ManualClock, UnixMillis};
use crate::config::system_text;
use crate::persist::aof::folder::BaseFormat;
use crate::sys::disk::model::{Death, Fault, ModelDisk};
use crate::sys::disk::{Disk, RealDisk, read_whole};

/// A log on a model's disk; the test acts as its thread.
struct Rig {
    disk: ModelDisk,
    clock: ManualClock,
    folder: Arc<Mutex<AofFolder>>,
    log: AppendLog,
}

impl Rig {
    fn new(policy: AppendFsync) -> Self {
        let disk = ModelDisk::new(1);
        let clock = ManualClock::new(UnixMillis(1_700_000_000_000));
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let mut folder = AofFolder::open(shared, Path::new("/"), b"aof", b"a").unwrap();
        let current = folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
        let folder = Arc::new(Mutex::new(folder));
        let log = AppendLog::new(folder.clone(), current, 0, 0, policy, Box::new(|| {}));
        Rig { disk, clock, folder, log }
    }

    fn now(&self) -> Now {
        Clock::Manual(self.clock.clone()).now()
    }

    fn append(&mut self) -> LogOffset {
        let now = self.now();
        self.log.append(&words(&["SET", "k", "v"]), 1, now)
    }

    fn write(&mut self) -> Result<(), Fatal> {
        let now = self.now();
        self.log.write(now)
    }

    fn step(&self) -> bool {
        self.log.syncer().step()
    }

    fn after_ms(&mut self, ms: i64) {
        self.clock.advance_us(ms * 1000);
        self.write().unwrap();
    }

    fn fail_next(&self, fault: Fault) {
        self.disk.fail_at(self.disk.operations() + 1, fault);
    }

    fn file(&self, name: &str) -> Vec<u8> {
        self.disk.bytes(&Path::new("/aof").join(name)).unwrap()
    }

    fn notices(&mut self) -> Vec<String> {
        self.log.take_notices().into_iter().map(|(_, text)| text).collect()
    }
}

#[test]
fn under_always_one_sync_serves_all_that_was_written_before_it() {
    let mut rig = Rig::new(AppendFsync::Always);
    let first = rig.append();
    rig.write().unwrap();
    let second = rig.append();
    rig.write().unwrap();
    assert!(first < second);
    assert_eq!(rig.log.acknowledged(), LogOffset(0));
    assert!(rig.step());
    assert_eq!(rig.log.acknowledged(), second);
    rig.write().unwrap();
    assert!(!rig.step(), "nothing is left to sync");
}

#[test]
fn under_everysec_a_sync_begins_once_a_second_and_the_last_bytes_get_theirs() {
    let mut rig = Rig::new(AppendFsync::EverySecond);
    let mut offset = rig.append();
    rig.write().unwrap();
    assert_eq!(rig.log.acknowledged(), offset, "a reply waits for the write alone");
    assert!(rig.step());
    for _ in 0..9 {
        offset = rig.append();
        rig.after_ms(100);
        assert!(!rig.step());
    }
    assert_eq!(rig.log.next_call_us(), Some(rig.now().boot_us + 100_000));
    rig.after_ms(100);
    assert!(rig.step());
    assert_eq!(rig.log.synced(), offset);
    assert_eq!(rig.log.next_call_us(), None);
}

#[test]
fn a_sync_that_takes_over_two_seconds_is_counted_once_and_nobody_waits() {
    let mut rig = Rig::new(AppendFsync::EverySecond);
    rig.append();
    rig.write().unwrap();
    for _ in 0..6 {
        let offset = rig.append();
        rig.after_ms(500);
        assert_eq!(rig.log.acknowledged(), offset);
    }
    assert_eq!((rig.log.delayed_fsync(), rig.log.pending_fsync()), (1, 1));
    assert!(rig.notices()[0].contains("fsync is taking too long"));
}

#[test]
fn without_a_policy_of_syncs_there_is_none_until_the_end() {
    let mut rig = Rig::new(AppendFsync::No);
    let offset = rig.append();
    rig.after_ms(5000);
    assert_eq!(rig.log.acknowledged(), offset);
    assert!(!rig.step());
    rig.log.set_policy(AppendFsync::Always);
    assert_eq!(rig.log.acknowledged(), LogOffset(0));
    rig.write().unwrap();
    assert!(rig.step());
    assert_eq!(rig.log.acknowledged(), offset);
    let (disk, now) = (rig.disk.clone(), rig.now());
    rig.append();
    let Rig { log, .. } = rig;
    log.close(now).unwrap();
    disk.restart(Death::PowerLoss);
    let len = 2 * words(&["SET", "k", "v"]).len();
    assert_eq!(disk.bytes(Path::new("/aof/a.1.incr.aof")).unwrap().len(), len);
}

#[test]
fn always_asked_for_while_an_older_sync_runs_is_told_of_its_own() {
    let mut rig = Rig::new(AppendFsync::EverySecond);
    rig.append();
    rig.write().unwrap();
    rig.log.set_policy(AppendFsync::Always);
    rig.write().unwrap();
    assert!(rig.log.shared.lock().sync.as_ref().unwrap().wakes);
}

#[test]
fn a_full_disk_keeps_the_buffer_tells_it_every_thirty_seconds_and_heals() {
    let mut rig = Rig::new(AppendFsync::EverySecond);
    let offset = rig.append();
    rig.fail_next(Fault::Error(libc::ENOSPC));
    rig.write().unwrap();
    assert_eq!(rig.notices(), ["Error writing to the AOF file: No space left on device"]);
    assert_eq!(rig.log.disk_error().unwrap(), "No space left on device");
    assert_eq!(rig.log.acknowledged(), offset, "replies leave as in Redis");
    assert!(rig.log.next_call_us().is_some());
    for told in [0, 0, 1] {
        rig.fail_next(Fault::Error(libc::ENOSPC));
        rig.after_ms(11_000);
        assert_eq!(rig.notices().len(), told);
    }
    assert!(matches!(
        {
            let now = rig.now();
            rig.fail_next(Fault::Error(libc::ENOSPC));
            rig.log.begin_switch(now)
        },
        Err(SwitchError::Refused(_))
    ));
    rig.notices();
    rig.after_ms(100);
    assert_eq!(rig.notices(), ["AOF write error looks solved. The server can write again."]);
    assert_eq!(rig.log.disk_error(), None);
    assert_eq!(rig.file("a.1.incr.aof"), words(&["SET", "k", "v"]));
}

#[test]
fn a_short_write_is_taken_back() {
    let mut rig = Rig::new(AppendFsync::EverySecond);
    rig.append();
    rig.fail_next(Fault::Short(7));
    rig.disk.fail_at(rig.disk.operations() + 2, Fault::Error(libc::ENOSPC));
    rig.write().unwrap();
    let told = format!(
        "Short write while writing to the AOF file: (nwritten=7, expected={})",
        rig.log.buffer_length()
    );
    assert_eq!(rig.notices(), [told]);
    assert_eq!(rig.file("a.1.incr.aof"), b"");
    rig.write().unwrap();
    assert_eq!(rig.file("a.1.incr.aof"), words(&["SET", "k", "v"]));
    assert_eq!(rig.log.current_size(), words(&["SET", "k", "v"]).len() as u64);
}

#[test]
fn a_short_write_that_cannot_be_taken_back_is_gone_on_with() {
    let mut rig = Rig::new(AppendFsync::EverySecond);
    rig.append();
    let next = rig.disk.operations() + 1;
    rig.disk.fail_at(next, Fault::Short(7));
    rig.disk.fail_at(next + 1, Fault::Error(libc::ENOSPC));
    rig.disk.fail_at(next + 2, Fault::Error(libc::EIO));
    rig.write().unwrap();
    assert_eq!(rig.file("a.1.incr.aof").len(), 7);
    rig.write().unwrap();
    assert_eq!(rig.file("a.1.incr.aof"), words(&["SET", "k", "v"]));
}

#[test]
fn under_always_a_failed_write_or_sync_ends_the_process() {
    let mut rig = Rig::new(AppendFsync::Always);
    rig.append();
    rig.fail_next(Fault::Error(libc::EIO));
    let text = rig.write().unwrap_err().to_string();
    assert!(text.starts_with("Can't recover from AOF write error"), "{text}");

    let mut rig = Rig::new(AppendFsync::Always);
    rig.append();
    rig.write().unwrap();
    rig.fail_next(Fault::Error(libc::EIO));
    rig.step();
    assert_eq!(rig.log.acknowledged(), LogOffset(0));
    let why = system_text(&io::Error::from_raw_os_error(libc::EIO));
    let text = format!(
        "Can't persist AOF for fsync error when the AOF fsync policy is 'always': {why}. Exiting..."
    );
    assert_eq!(rig.write().unwrap_err().to_string(), text);
}

#[test]
fn an_error_of_a_sync_stays_until_a_rewrite_has_replaced_the_file() {
    let mut rig = Rig::new(AppendFsync::EverySecond);
    rig.append();
    rig.write().unwrap();
    rig.fail_next(Fault::Error(libc::EIO));
    rig.step();
    for _ in 0..3 {
        rig.append();
        rig.after_ms(2000);
        assert!(!rig.step(), "a second try would only seem to succeed");
        let why = system_text(&io::Error::from_raw_os_error(libc::EIO));
        assert_eq!(rig.log.disk_error().unwrap(), why);
    }
    let now = rig.now();
    rig.log.begin_switch(now).unwrap();
    assert!(rig.step());
    let offset = rig.append();
    rig.write().unwrap();
    assert_eq!(rig.log.take_switch_result(), Some(Ok(2)));
    assert!(rig.log.disk_error().is_some());
    assert_eq!(rig.log.synced(), LogOffset(0), "what the old file lost is not claimed");
    rig.log.rewrite_finished(0);
    assert_eq!(rig.log.disk_error(), None);
    rig.after_ms(2000);
    assert!(rig.step());
    assert_eq!(rig.log.synced(), offset);
}

#[test]
fn a_file_that_somebody_cuts_is_noticed_and_replaced() {
    for policy in [AppendFsync::Always, AppendFsync::EverySecond] {
        let mut rig = Rig::new(policy);
        rig.append();
        rig.after_ms(2000);
        assert!(rig.step());
        let synced = rig.log.synced();
        rig.disk.open_append(Path::new("/aof/a.1.incr.aof")).unwrap().set_len(5).unwrap();
        rig.append();
        rig.after_ms(2000);
        rig.step();
        rig.write().unwrap();
        assert!(rig.log.is_nameless());
        assert!(
            rig.log.disk_error().unwrap().contains("a.1.incr.aof was removed, replaced or cut")
        );
        assert_eq!(rig.log.synced(), synced, "nothing more is claimed");
        assert!(rig.notices().iter().any(|line| line.contains("would be lost")));
        let now = rig.now();
        rig.log.begin_switch(now).unwrap();
        assert!(rig.step());
        let offset = rig.append();
        rig.write().unwrap();
        assert_eq!(rig.log.take_switch_result(), Some(Ok(2)));
        rig.log.rewrite_finished(0);
        assert_eq!(rig.log.disk_error(), None);
        rig.after_ms(2000);
        rig.step();
        assert_eq!(rig.log.synced(), offset);
    }
}

#[test]
fn always_is_not_begun_behind_a_failed_sync() {
    let mut rig = Rig::new(AppendFsync::EverySecond);
    assert!(rig.log.allows(AppendFsync::Always));
    rig.append();
    rig.write().unwrap();
    rig.fail_next(Fault::Error(libc::EIO));
    assert!(rig.step());
    assert!(!rig.log.allows(AppendFsync::Always));
    assert!(rig.log.allows(AppendFsync::EverySecond) && rig.log.allows(AppendFsync::No));
}

#[test]
fn all_is_written_out_at_the_end_also_where_another_file_is_being_made() {
    for fails in [false, true] {
        let mut rig = Rig::new(AppendFsync::EverySecond);
        rig.append();
        rig.write().unwrap();
        let now = rig.now();
        rig.log.begin_switch(now).unwrap();
        rig.append();
        rig.write().unwrap();
        assert!(rig.log.is_switching());
        if fails {
            for operation in 1..100 {
                let fault = Fault::Error(libc::ENOSPC);
                rig.disk.fail_at(rig.disk.operations() + operation, fault);
            }
        }
        let written = rig.log.write_out(now);
        assert_eq!(written.is_err(), fails, "{written:?}");
        if !fails {
            assert_eq!(rig.file("a.2.incr.aof"), words(&["SET", "k", "v"]));
        }
    }
}

#[test]
fn a_switch_holds_what_follows_until_the_old_file_and_the_manifest_are_durable() {
    let mut rig = Rig::new(AppendFsync::EverySecond);
    let before = rig.append();
    let now = rig.now();
    rig.log.begin_switch(now).unwrap();
    assert!(matches!(rig.log.begin_switch(now), Err(SwitchError::Refused(_))));
    let after = rig.append();
    rig.write().unwrap();
    assert_eq!(rig.log.acknowledged(), before);
    assert_eq!(rig.log.take_switch_result(), None);
    assert!(rig.step());
    rig.write().unwrap();
    assert_eq!(rig.log.acknowledged(), after);
    assert_eq!(rig.log.take_switch_result(), Some(Ok(2)));
    assert_eq!(rig.file("a.1.incr.aof").len(), before.0 as usize);
    assert_eq!(rig.file("a.2.incr.aof").len(), (after.0 - before.0) as usize);
    let manifest = "file a.1.base.rdb seq 1 type b\nfile a.1.incr.aof seq 1 type i\nfile a.2.incr.aof seq 2 type i\n";
    assert_eq!(rig.file("a.manifest"), manifest.as_bytes());
    assert_eq!(rig.log.current_size(), after.0);

    let written = Path::new("/aof/temp-rewriteaof-bg-1.aof");
    rig.disk.put(written, b"REDIS");
    let folder = &mut *rig.folder.lock().unwrap();
    let bytes = folder.finish_rewrite(written, BaseFormat::Rdb, 2).unwrap();
    rig.log.rewrite_finished(bytes);
    assert!(folder.remove_history().unwrap().is_empty());
    let size = 5 + after.0 - before.0;
    assert_eq!((rig.log.current_size(), rig.log.base_size()), (size, size));
    let mut names = rig.disk.list(Path::new("/aof")).unwrap();
    names.sort();
    assert_eq!(names, ["a.2.base.rdb", "a.2.incr.aof", "a.manifest"]);
}

#[test]
fn a_switch_that_fails_goes_on_in_the_old_file() {
    for fault in 1..8 {
        let mut rig = Rig::new(AppendFsync::EverySecond);
        rig.append();
        let now = rig.now();
        rig.log.begin_switch(now).unwrap();
        // Beyond the sync of the old file.
        rig.disk.fail_at(rig.disk.operations() + 1 + fault, Fault::Error(libc::ENOSPC));
        let offset = rig.append();
        rig.step();
        rig.write().unwrap();
        if let Some(Ok(seq)) = rig.log.take_switch_result() {
            assert_eq!((seq, fault), (2, 7));
            continue;
        }
        assert_eq!(rig.log.acknowledged(), offset);
        assert_eq!(rig.file("a.1.incr.aof").len() as u64, offset.0);
        assert_eq!(rig.log.current_seq(), 1);
    }
}

#[test]
fn switched_on_while_running_the_new_file_counts_when_a_rewrite_ends() {
    let mut rig = Rig::new(AppendFsync::EverySecond);
    let disk = rig.disk.clone();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut folder = AofFolder::open(shared, Path::new("/"), b"on", b"a").unwrap();
    let current = folder.increment_aside().unwrap();
    let folder = Arc::new(Mutex::new(folder));
    let policy = AppendFsync::EverySecond;
    rig.log = AppendLog::new(folder.clone(), current, 0, 0, policy, Box::new(|| {}));
    rig.append();
    rig.write().unwrap();
    // The first rewrite fails, a second one begins.
    let now = rig.now();
    rig.log.begin_switch(now).unwrap();
    rig.step();
    rig.append();
    rig.write().unwrap();
    assert_eq!(rig.log.take_switch_result(), Some(Ok(2)));
    let folder = &mut *folder.lock().unwrap();
    assert!(folder.manifest().is_empty());
    assert_eq!(disk.list(folder.path()).unwrap(), ["a.2.incr.aof", "a.beginning"]);
    let written = folder.path_of(b"temp");
    disk.put(&written, b"REDIS");
    folder.finish_rewrite(&written, BaseFormat::Rdb, 2).unwrap();
    let manifest = b"file a.1.base.rdb seq 1 type b\nfile a.2.incr.aof seq 2 type i\n";
    assert_eq!(disk.bytes(&folder.manifest_path()).unwrap(), manifest);
    assert!(!disk.list(folder.path()).unwrap().contains(&"a.beginning".into()));
    assert_eq!(disk.bytes(&folder.path_of(b"a.2.incr.aof")).unwrap(), words(&["SET", "k", "v"]));
    assert_eq!(folder.next_increment().unwrap().seq, 3);
    assert_eq!(folder.manifest().increments().len(), 2);
}

#[test]
fn times_stand_between_units_once_a_second() {
    let mut rig = Rig::new(AppendFsync::No);
    rig.log.set_timestamps(true);
    let unit = words(&["SET", "k", "v"]);
    rig.append();
    rig.append();
    rig.after_ms(1000);
    rig.append();
    rig.log.set_timestamps(false);
    rig.after_ms(1000);
    rig.append();
    rig.write().unwrap();
    let expected =
        [b"#TS:1700000000\r\n".as_slice(), &unit, &unit, b"#TS:1700000001\r\n", &unit, &unit];
    assert_eq!(rig.file("a.1.incr.aof"), expected.concat());
}

#[test]
fn paused_syncs_leave_always_to_the_writes() {
    let mut rig = Rig::new(AppendFsync::Always);
    rig.log.pause_syncs(true);
    let offset = rig.append();
    rig.write().unwrap();
    assert!(!rig.step());
    assert_eq!(rig.log.acknowledged(), offset);
    rig.log.pause_syncs(false);
    rig.write().unwrap();
    assert!(rig.step());
    assert_eq!(rig.log.acknowledged(), offset);
}

#[test]
fn the_thread_syncs_switches_and_ends_on_a_real_disk() {
    let scratch = tempfile::tempdir().unwrap();
    let mut folder = AofFolder::open(Arc::new(RealDisk), scratch.path(), b"aof", b"a").unwrap();
    let current = folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    let path = folder.path().to_path_buf();
    let (wake, woken) = mpsc::channel();
    let wake = Box::new(move || wake.send(()).unwrap());
    let folder = Arc::new(Mutex::new(folder));
    let mut log = AppendLog::new(folder, current, 0, 0, AppendFsync::Always, wake);
    log.spawn().unwrap();
    let now = Clock::System.now();
    let unit = words(&["INCR", "n"]);
    for round in 0..50 {
        if round == 25 {
            log.begin_switch(now).unwrap();
        }
        let offset = log.append(&unit, 1, now);
        loop {
            log.write(now).unwrap();
            if log.acknowledged() >= offset {
                break;
            }
            woken.recv_timeout(Duration::from_secs(60)).expect("the thread wakes the loop");
        }
    }
    log.append(&unit, 1, now);
    log.close(now).unwrap();
    for (name, units) in [("a.1.incr.aof", 25), ("a.2.incr.aof", 26)] {
        let bytes = read_whole(&RealDisk, &path.join(name), 10_000).unwrap();
        assert_eq!(bytes, unit.repeat(units));
    }
}

#[test]
fn what_waits_for_another_file_is_bounded() {
    let mut rig = Rig::new(AppendFsync::EverySecond);
    let now = rig.now();
    rig.append();
    rig.log.begin_switch(now).unwrap();
    rig.log.append(&vec![b'x'; WAITING_BYTES_MAX], 1, now);
    rig.write().unwrap();
    assert!(rig.log.is_switching() && rig.log.delayed_fsync() == 0);
    let end = rig.append();
    rig.log.spawn().unwrap();
    // The loop waits for the thread.
    rig.write().unwrap();
    assert!(!rig.log.is_switching());
    assert_eq!((rig.log.acknowledged(), rig.log.delayed_fsync()), (end, 1));
}
