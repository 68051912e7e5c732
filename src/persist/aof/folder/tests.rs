use super::*;
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

#[test]
fn what_a_file_held_that_was_left_does_not_come_back_with_its_name() {
    for seed in 0..8 {
        let disk = ModelDisk::new(seed);
        let mut folder = open(&disk).unwrap();
        folder.open_at_start(BaseFormat::Rdb, |_| Ok(())).unwrap();
        disk.put(Path::new("/dir/a.aof.2.incr.aof"), OLD);
        assert_eq!(folder.next_increment().unwrap().seq, 2);
        disk.restart(Death::PowerLoss);
        let folder = open(&disk).unwrap();
        assert_eq!(folder.manifest().increments().len(), 2);
        assert_eq!(content(&disk, &folder), b"");
    }
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
