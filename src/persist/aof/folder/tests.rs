use super::*;
use crate::sys::disk::RealDisk;
use crate::sys::disk::model::{Death, Fault, ModelDisk};

const OLD: &[u8] = b"*1\r\n$4\r\nPING\r\n";

fn open(disk: &ModelDisk) -> Result<AofFolder, FolderError> {
    AofFolder::open(Arc::new(disk.clone()), Path::new("/"), b"dir", b"a.aof")
}

/// The bytes that a start would load, of all files in order.
fn content(disk: &ModelDisk, folder: &AofFolder) -> Vec<u8> {
    let files = folder.manifest().files();
    files.flat_map(|file| disk.bytes(&folder.path_of(&file.name)).unwrap()).collect()
}

#[test]
fn a_single_file_is_taken_over_completely_whenever_a_crash_comes() {
    for death in [Death::Kill, Death::PowerLoss] {
        for seed in 0..40 {
            for operation in 1.. {
                let disk = ModelDisk::new(seed);
                disk.put(Path::new("/a.aof"), OLD);
                disk.end_at(operation);
                let first = open(&disk).and_then(|mut folder| folder.take_over_single_file());
                let ended = disk.has_ended();
                assert_eq!(first.is_err(), ended);
                disk.restart(death);
                let mut folder = open(&disk).unwrap();
                folder.take_over_single_file().unwrap();
                assert_eq!(content(&disk, &folder), OLD, "{death:?}, {seed}, {operation}");
                assert_eq!(folder.manifest().text(), b"file a.aof seq 1 type b\n");
                if !ended {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_file_beside_a_folder_in_use_is_left_alone() {
    let disk = ModelDisk::new(1);
    let mut folder = open(&disk).unwrap();
    folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    disk.put(Path::new("/a.aof"), OLD);
    assert!(!open(&disk).unwrap().take_over_single_file().unwrap());
    assert!(disk.bytes(Path::new("/a.aof")).is_some());
}

#[test]
fn a_single_file_does_not_replace_one_of_its_name_in_the_folder() {
    let disk = ModelDisk::new(1);
    disk.put(Path::new("/a.aof"), OLD);
    disk.create_folder(Path::new("/dir")).unwrap();
    disk.put(Path::new("/dir/a.aof"), b"foreign");
    let error = open(&disk).unwrap().take_over_single_file().unwrap_err().to_string();
    assert!(error.contains("/a.aof into dir /dir: a file of this name is there"), "{error}");
    assert_eq!(disk.bytes(Path::new("/dir/a.aof")).unwrap(), b"foreign");
    assert_eq!(disk.bytes(Path::new("/a.aof")).unwrap(), OLD);
    assert!(disk.size(Path::new("/dir/a.aof.manifest")).is_err());
}

#[test]
fn a_first_start_creates_base_increment_and_manifest_and_a_second_one_appends() {
    let disk = ModelDisk::new(1);
    let mut folder = open(&disk).unwrap();
    let first = folder
        .open_at_start(BaseFormat::Rdb, |file| crate::sys::disk::write_all(file, b"REDIS"))
        .unwrap();
    crate::sys::disk::write_all(&*first.file, OLD).unwrap();
    disk.restart(Death::Kill);
    let mut folder = open(&disk).unwrap();
    let second = folder.open_at_start(BaseFormat::Rdb, |_| panic!("there is a base")).unwrap();
    assert_eq!((&second.name, second.len), (&first.name, OLD.len() as u64));
    // Bytes that the first process wrote without syncing are durable now, since clients see them.
    disk.restart(Death::PowerLoss);
    let folder = open(&disk).unwrap();
    assert_eq!(content(&disk, &folder), [b"REDIS", OLD].concat());
    let text = b"file a.aof.1.base.rdb seq 1 type b\nfile a.aof.1.incr.aof seq 1 type i\n";
    assert_eq!(folder.manifest().text(), text);
}

#[test]
fn history_that_cannot_be_removed_is_reported_and_no_longer_listed() {
    let disk = ModelDisk::new(1);
    let mut folder = open(&disk).unwrap();
    folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    let next = folder.next_increment().unwrap();
    let written = folder.path_of(b"temp");
    disk.put(&written, b"REDIS");
    folder.finish_rewrite(&written, BaseFormat::Aof, next.seq).unwrap();
    let history: Vec<_> = folder.manifest().history().to_vec();
    assert_eq!(history.len(), 2);
    disk.fail_at(disk.operations() + 1, Fault::Error(libc::EIO));
    let left = folder.remove_history().unwrap();
    assert_eq!(left[0].0, history[0].name);
    assert_eq!(left.len(), 1);
    assert!(folder.manifest().history().is_empty());
    assert_eq!(open(&disk).unwrap().manifest().text(), folder.manifest().text());
}

#[test]
fn an_invalid_manifest_is_refused_with_its_line() {
    let disk = ModelDisk::new(1);
    disk.create_folder(Path::new("/dir")).unwrap();
    disk.put(Path::new("/dir/a.aof.manifest"), b"file a seq 1 type x\n");
    let error = open(&disk).unwrap_err().to_string();
    let expected = "FATAL AOF MANIFEST FILE ERROR /dir/a.aof.manifest: Reading the manifest file, at line 1 >>> 'file a seq 1 type x' \
                Unknown AOF file type";
    assert_eq!(error, expected);
}

#[test]
fn an_increment_does_not_get_the_name_of_one_in_the_history() {
    let disk = ModelDisk::new(1);
    let mut folder = open(&disk).unwrap();
    folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    // All increments become history, as by BGREWRITEAOF while the append-only file is off.
    let written = Path::new("/dir/temp");
    disk.put(written, b"REDIS");
    folder.finish_rewrite(written, BaseFormat::Rdb, i64::MAX).unwrap();
    let mut folder = open(&disk).unwrap();
    let aside = folder.increment_aside().unwrap();
    crate::sys::disk::write_all(&*aside.file, OLD).unwrap();
    assert!(folder.manifest().history().iter().all(|file| file.name != aside.name));
    folder.remove_history().unwrap();
    disk.put(written, b"REDIS");
    folder.finish_rewrite(written, BaseFormat::Rdb, aside.seq).unwrap();
    assert_eq!(content(&disk, &folder), [b"REDIS", OLD].concat());
}

#[test]
fn a_start_does_not_append_to_an_increment_left_aside() {
    let disk = ModelDisk::new(1);
    let mut folder = open(&disk).unwrap();
    let written = Path::new("/dir/temp");
    folder.create().unwrap();
    disk.put(written, b"REDIS");
    folder.finish_rewrite(written, BaseFormat::Rdb, i64::MAX).unwrap();
    let aside = folder.increment_aside().unwrap();
    crate::sys::disk::write_all(&*aside.file, OLD).unwrap();
    disk.restart(Death::Kill);
    let mut folder = open(&disk).unwrap();
    folder.open_at_start(BaseFormat::Rdb, |_| panic!("there is a base")).unwrap();
    assert_eq!(content(&disk, &folder), b"REDIS");
}

/// Puts files where the folder's next ones would be. Returns the paths.
fn put_in_the_way(disk: &ModelDisk) -> [&'static Path; 4] {
    let names = [
        "/dir/a.aof.1.base.rdb",
        "/dir/a.aof.2.base.rdb",
        "/dir/a.aof.2.incr.aof",
        "/dir/a.aof.3.incr.aof",
    ];
    let paths = names.map(Path::new);
    for path in paths.into_iter().filter(|path| disk.size(path).is_err()) {
        disk.put(path, b"foreign");
    }
    paths
}

/// Runs all that makes files, on a folder in use or on a new one, whose manifest does not name the
/// files that are in the way.
#[test]
fn a_file_that_no_manifest_names_is_neither_emptied_nor_replaced() {
    for is_in_use in [true, false] {
        let disk = ModelDisk::new(1);
        let mut folder = open(&disk).unwrap();
        if is_in_use {
            folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
        } else {
            // As an attempt leaves it that did not end.
            disk.create_folder(Path::new("/dir")).unwrap();
            disk.put(Path::new("/dir/a.aof.beginning"), b"");
        }
        let in_the_way = put_in_the_way(&disk).map(|path| (path, disk.bytes(path).unwrap()));
        let untouched = || {
            for (path, bytes) in in_the_way.iter().filter(|(_, bytes)| !bytes.is_empty()) {
                assert_eq!(disk.bytes(path).as_ref(), Some(bytes), "{}", path.display());
            }
        };
        let mut folder = open(&disk).unwrap();
        folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
        untouched();
        for round in 0..6 {
            let increment = match round % 2 {
                0 => folder.next_increment().unwrap(),
                _ => folder.increment_aside().unwrap(),
            };
            untouched();
            crate::sys::disk::write_all(&*increment.file, OLD).unwrap();
            let written = folder.path_of(b"temp");
            disk.put(&written, b"REDIS");
            folder.finish_rewrite(&written, BaseFormat::Rdb, increment.seq).unwrap();
            folder.remove_history().unwrap();
            untouched();
            assert_eq!(content(&disk, &folder), [b"REDIS", OLD].concat());
            assert_eq!(open(&disk).unwrap().manifest().text(), folder.manifest().text());
        }
    }
}

/// Each operation of a start and of a rewrite fails once: the attempt after it makes the same files
/// again, and none is left that no manifest names.
#[test]
fn a_failed_step_leaves_no_file_that_no_manifest_names() {
    let mut failures = 0;
    for operation in 1.. {
        let disk = ModelDisk::new(1);
        let mut folder = open(&disk).unwrap();
        let write = |file: &dyn DiskFile| crate::sys::disk::write_all(file, OLD);
        disk.fail_at(operation, Fault::Error(libc::ENOSPC));
        let mut steps = || -> Result<(), FolderError> {
            if folder.manifest().is_empty() {
                folder.open_at_start(BaseFormat::Rdb, write)?;
            }
            let next = folder.next_increment()?;
            let written = folder.path_of(b"temp");
            disk.put(&written, b"REDIS");
            folder.finish_rewrite(&written, BaseFormat::Rdb, next.seq)?;
            Ok(())
        };
        let failed = steps().is_err();
        failures += usize::from(failed);
        if failed {
            steps().unwrap();
        }
        let listed: Vec<_> = folder.manifest().files().chain(folder.manifest().history()).collect();
        for name in disk.list(Path::new("/dir")).unwrap() {
            let is_listed = listed.iter().any(|file| file.name == name.as_bytes());
            assert!(is_listed || !is_data_file(name.as_bytes(), b"a.aof"), "{operation}: {name:?}");
        }
        if disk.operations() < operation {
            break;
        }
    }
    assert!(failures > 15, "{failures}");
}

#[test]
fn data_whose_manifest_is_lost_is_neither_used_nor_touched() {
    let disk = ModelDisk::new(1);
    let mut folder = open(&disk).unwrap();
    let first = folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    crate::sys::disk::write_all(&*first.file, OLD).unwrap();
    disk.remove(&folder.manifest_path()).unwrap();
    let error = open(&disk).unwrap_err().to_string();
    assert!(error.contains("/dir/a.aof.manifest is missing"), "{error}");
    assert!(error.contains("a.aof.1.incr.aof"), "{error}");
    assert_eq!(disk.bytes(Path::new("/dir/a.aof.1.incr.aof")).unwrap(), OLD);
    // Files of other servers do not matter, nor do empty ones.
    disk.rename(Path::new("/dir/a.aof.1.incr.aof"), Path::new("/dir/b.aof.1.incr.aof")).unwrap();
    disk.put(Path::new("/dir/a.aof.7.base.rdb"), b"");
    disk.put(Path::new("/dir/a.aof.x.incr.aof"), OLD);
    open(&disk).unwrap().open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
}

#[test]
fn a_first_start_that_is_cut_short_anywhere_is_begun_again() {
    for death in [Death::Kill, Death::PowerLoss] {
        for seed in 0..40 {
            for operation in 1.. {
                let disk = ModelDisk::new(seed);
                disk.end_at(operation);
                let write = |file: &dyn DiskFile| crate::sys::disk::write_all(file, OLD);
                let _ = open(&disk).and_then(|mut folder| {
                    folder.increment_aside().and_then(|aside| {
                        write(&*aside.file).map_err(|error| FolderError::system("write", error))
                    })?;
                    folder.drop_aside();
                    folder.open_at_start(BaseFormat::Aof, write)
                });
                let ended = disk.has_ended();
                disk.restart(death);
                let mut folder = open(&disk).unwrap();
                folder.open_at_start(BaseFormat::Aof, write).unwrap();
                assert_eq!(content(&disk, &folder), OLD, "{death:?}, {seed}, {operation}");
                assert!(disk.size(Path::new("/dir/a.aof.beginning")).is_err());
                if !ended {
                    break;
                }
            }
        }
    }
}

#[test]
fn the_mark_of_a_first_manifest_goes_when_a_later_one_is_durable() {
    let mut not_durable = 0;
    for operation in 1.. {
        let disk = ModelDisk::new(1);
        let mut folder = open(&disk).unwrap();
        folder.increment_aside().unwrap();
        let written = folder.path_of(b"temp");
        disk.put(&written, OLD);
        disk.fail_at(disk.operations() + operation, Fault::Error(libc::EIO));
        let finished = folder.finish_rewrite(&written, BaseFormat::Aof, 1);
        if finished.is_ok() {
            break;
        }
        if !folder.manifest().is_empty() {
            not_durable += 1;
            assert!(disk.size(Path::new("/dir/a.aof.beginning")).is_ok());
            folder.next_increment().unwrap();
            assert!(disk.size(Path::new("/dir/a.aof.beginning")).is_err());
        }
    }
    assert_eq!(not_durable, 1);
}

fn open_locked(disk: &ModelDisk, name: &[u8]) -> Result<AofFolder, FolderError> {
    AofFolder::open_locked(Arc::new(disk.clone()), Path::new("/"), b"dir", name)
}

#[test]
fn a_folder_that_is_written_to_is_locked_until_it_is_closed() {
    let disk = ModelDisk::new(1);
    let mut first = open_locked(&disk, b"a.aof").unwrap();
    first.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    let error = open_locked(&disk, b"a.aof").unwrap_err().to_string();
    assert!(error.contains("/dir/a.aof.lock locked"), "{error}");
    // Reading needs no lock, nor do files of other names.
    assert_eq!(open(&disk).unwrap().manifest().text(), first.manifest().text());
    open_locked(&disk, b"b.aof").unwrap();
    drop(first);
    drop(open_locked(&disk, b"a.aof").unwrap());
    // A killed server has no lock.
    let killed = open_locked(&disk, b"a.aof").unwrap();
    disk.restart(Death::Kill);
    let next = open_locked(&disk, b"a.aof").unwrap();
    drop(killed);
    assert!(open_locked(&disk, b"a.aof").is_err());
    drop(next);
}

#[test]
fn a_folder_whose_lock_was_removed_is_still_locked() {
    let disk = ModelDisk::new(1);
    let mut first = open_locked(&disk, b"a.aof").unwrap();
    first.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    let is_refused = || {
        disk.remove(Path::new("/dir/a.aof.lock")).unwrap();
        let error = open_locked(&disk, b"a.aof").unwrap_err().to_string();
        assert!(error.contains("/dir/a.aof.manifest locked"), "{error}");
    };
    is_refused();
    // So it is by each later manifest, and by one that was there at the start.
    first.next_increment().unwrap();
    is_refused();
    let mut failed = 0;
    for number in 1..20 {
        disk.fail_at(disk.operations() + number, Fault::Error(libc::EIO));
        failed += usize::from(first.next_increment().is_err());
        disk.heal();
        is_refused();
    }
    assert!(failed > 5, "{failed}");
    drop(first);
    let mut next = open_locked(&disk, b"a.aof").unwrap();
    is_refused();
    next.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    is_refused();
    assert!(next.is_complete());
}

#[test]
fn a_folder_that_was_removed_is_locked_again() {
    let disk = ModelDisk::new(1);
    let mut first = open_locked(&disk, b"a.aof").unwrap();
    first.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    let remove_lock = || disk.remove(Path::new("/dir/a.aof.lock")).unwrap();
    remove_lock();
    assert!(!first.has_losses());
    first.next_increment().unwrap();
    assert!(first.has_losses());
    assert!(open_locked(&disk, b"a.aof").is_err());
    // Another server was faster.
    remove_lock();
    disk.remove(&first.manifest_path()).unwrap();
    let other = open_locked(&disk, b"a.aof").unwrap();
    assert!(first.next_increment().unwrap_err().to_string().contains("Another server"));
    drop(other);
    let next = first.next_increment().unwrap();
    let written = first.path_of(b"temp");
    disk.put(&written, OLD);
    first.finish_rewrite(&written, BaseFormat::Aof, next.seq).unwrap();
    assert!(!first.has_losses());
}

/// A folder in `/` or `/new`.
fn open_in(disk: &ModelDisk, parent: &str) -> AofFolder {
    AofFolder::open_locked(Arc::new(disk.clone()), Path::new(parent), b"dir", b"a.aof").unwrap()
}

#[test]
fn a_folder_that_was_moved_is_not_started_in_and_may_be_moved_back_to() {
    let disk = ModelDisk::new(1);
    disk.create_folder(Path::new("/new")).unwrap();
    let (mut old, mut new) = (open_in(&disk, "/"), open_in(&disk, "/new"));
    old.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    let manifest = disk.bytes(&old.manifest_path());
    new.check_free(&old).unwrap();
    let error = old.check_free(&new).unwrap_err().to_string();
    assert!(error.contains("/dir/a.aof.manifest. Move it away"), "{error}");
    // A move that fails leaves nothing in the new folder.
    let written = new.path_of(b"temp");
    for is_placed in [false, true] {
        let aside = new.increment_aside().unwrap();
        if is_placed {
            disk.put(&written, OLD);
            new.finish_rewrite(&written, BaseFormat::Aof, aside.seq).unwrap();
        }
        new.give_up();
        assert_eq!(disk.list(new.path()).unwrap(), ["a.aof.lock"]);
        new = {
            drop(new);
            open_in(&disk, "/new")
        };
    }
    let aside = new.increment_aside().unwrap();
    disk.put(&written, OLD);
    new.finish_rewrite(&written, BaseFormat::Aof, aside.seq).unwrap();
    old.mark_moved(&new).unwrap();
    drop(old);
    assert_eq!(disk.bytes(Path::new("/dir/a.aof.manifest")), manifest);
    let mut old = open_in(&disk, "/");
    let error = old.check_not_moved().unwrap_err().to_string();
    assert!(
        error.contains("has moved to /new/dir") && error.contains("/dir/a.aof.moved"),
        "{error}"
    );
    new.check_not_moved().unwrap();
    // Back.
    old.check_free(&new).unwrap();
    let aside = old.increment_aside().unwrap();
    disk.put(&written, OLD);
    old.finish_rewrite(&written, BaseFormat::Aof, aside.seq).unwrap();
    drop(old);
    open_in(&disk, "/").check_not_moved().unwrap();
    assert!(disk.size(Path::new("/dir/a.aof.moved")).is_err());
}

/// How another manifest is put into place: of another text, the same one in another file, or
/// another text in the same file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Foreign {
    Other,
    Same,
    InPlace,
}

/// A folder with a base and an increment, after whose start another manifest is put into place.
fn with_foreign_manifest(disk: &ModelDisk, how: Foreign) -> (AofFolder, Vec<u8>) {
    let mut folder = open_locked(disk, b"a.aof").unwrap();
    folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    assert!(folder.is_complete());
    let other = b"file a.aof.1.base.rdb seq 1 type b\nfile a.aof.7.incr.aof seq 7 type i\n";
    let text = if how == Foreign::Same { folder.manifest().text() } else { other.to_vec() };
    if how == Foreign::InPlace {
        let file = disk.create(&folder.manifest_path()).unwrap();
        crate::sys::disk::write_all(&*file, &text).unwrap();
    } else {
        disk.put(Path::new("/dir/put"), &text);
        disk.rename(Path::new("/dir/put"), &folder.manifest_path()).unwrap();
    }
    assert!(!folder.is_complete());
    (folder, text)
}

#[test]
fn a_manifest_that_somebody_else_has_put_into_place_is_left_alone_with_its_files() {
    for how in [Foreign::Other, Foreign::Same, Foreign::InPlace] {
        let disk = ModelDisk::new(1);
        let (mut folder, text) = with_foreign_manifest(&disk, how);
        let before = disk.list(Path::new("/dir")).unwrap().len();
        let is_refused = |result: Result<(), FolderError>| {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("was replaced by another one"), "{text}");
        };
        is_refused(folder.next_increment().map(|_| ()));
        is_refused(folder.increment_aside().map(|_| ()));
        let written = folder.path_of(b"temp");
        disk.put(&written, b"REDIS");
        is_refused(folder.finish_rewrite(&written, BaseFormat::Rdb, 9).map(|_| ()));
        disk.remove(&written).unwrap();
        assert_eq!(disk.list(Path::new("/dir")).unwrap().len(), before);
        assert_eq!(disk.bytes(&folder.manifest_path()).unwrap(), text);
        // Once it is away, this server's data is written.
        disk.remove(&folder.manifest_path()).unwrap();
        let next = folder.next_increment().unwrap();
        disk.put(&written, b"REDIS");
        folder.finish_rewrite(&written, BaseFormat::Rdb, next.seq).unwrap();
        // Files of the same name may be those of the other manifest.
        assert!(folder.manifest().history().is_empty() && folder.is_complete());
        assert!(disk.size(Path::new("/dir/a.aof.1.base.rdb")).is_ok());
    }
}

#[test]
fn a_manifest_or_a_base_that_is_gone_is_noticed() {
    for name in ["/dir/a.aof.manifest", "/dir/a.aof.1.base.rdb"] {
        let disk = ModelDisk::new(1);
        let mut folder = open_locked(&disk, b"a.aof").unwrap();
        folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
        assert!(folder.is_complete());
        disk.remove(Path::new(name)).unwrap();
        assert!(!folder.is_complete(), "{name}");
    }
}

#[test]
fn a_file_that_was_cut_is_noticed() {
    let disk = ModelDisk::new(1);
    let mut folder = open_locked(&disk, b"a.aof").unwrap();
    let base = |file: &dyn DiskFile| crate::sys::disk::write_all(file, b"REDIS");
    let first = folder.open_at_start(BaseFormat::Rdb, base).unwrap();
    crate::sys::disk::write_all(&*first.file, OLD).unwrap();
    folder.next_increment().unwrap();
    for name in ["a.aof.manifest", "a.aof.1.base.rdb", "a.aof.1.incr.aof"] {
        assert!(folder.is_complete(), "{name}");
        let path = Path::new("/dir").join(name);
        let whole = disk.bytes(&path).unwrap();
        let file = disk.open_append(&path).unwrap();
        file.set_len(whole.len() as u64 - 1).unwrap();
        assert!(!folder.is_complete(), "{name}");
        file.set_len(0).unwrap();
        assert!(!folder.is_complete(), "{name}");
        crate::sys::disk::write_all(&*file, &whole).unwrap();
    }
    // A start that was begun with these files knows them too.
    drop(folder);
    let mut folder = open_locked(&disk, b"a.aof").unwrap();
    folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    disk.open_append(Path::new("/dir/a.aof.1.base.rdb")).unwrap().set_len(0).unwrap();
    assert!(!folder.is_complete());
}

#[test]
fn later_files_with_data_that_the_manifest_does_not_name_are_told() {
    let disk = ModelDisk::new(1);
    let mut folder = open_locked(&disk, b"a.aof").unwrap();
    folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
    assert_eq!(folder.unlisted(), [""; 0]);
    disk.put(Path::new("/dir/a.aof.2.incr.aof"), OLD);
    disk.put(Path::new("/dir/a.aof.3.incr.aof"), b"");
    disk.put(Path::new("/dir/b.aof.2.incr.aof"), OLD);
    assert_eq!(folder.unlisted(), ["a.aof.2.incr.aof"]);
    let huge = "a.aof.99999999999999999999.base.rdb";
    disk.put(&Path::new("/dir").join(huge), OLD);
    assert_eq!(folder.unlisted(), ["a.aof.2.incr.aof", huge]);
}

#[test]
fn a_manifest_that_is_overwritten_in_place_is_noticed_on_a_real_disk() {
    let scratch = tempfile::tempdir().unwrap();
    let open = || AofFolder::open_locked(Arc::new(RealDisk), scratch.path(), b"dir", b"a.aof");
    for round in ["the first start", "the second start"] {
        let mut folder = open().unwrap();
        folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
        let path = folder.manifest_path();
        let text = std::fs::read(&path).unwrap();
        let mut other = text.clone();
        other[text.len() - 3] ^= 1;
        let longer = [&text[..], b"#"].concat();
        for bytes in [&other[..], &longer, &text[1..], b""] {
            assert!(folder.is_complete(), "{round}");
            std::fs::write(&path, bytes).unwrap();
            assert!(!folder.is_complete(), "{round}, {} bytes", bytes.len());
            std::fs::write(&path, &text).unwrap();
        }
        // A file with the same text is another one.
        std::fs::rename(&path, scratch.path().join("away")).unwrap();
        std::fs::write(&path, &text).unwrap();
        assert!(!folder.is_complete(), "{round}");
    }
}
