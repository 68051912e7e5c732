//! `--check-system`: reports settings of the machine that are unfavourable for a server with this
//! configuration.
//!
//! A pure function judges each item by the contents of /proc and /sys, by a setting of the kernel,
//! or by a measurement. [`Machine`] reads these, so tests can use a machine of their own. Items
//! that a system does not have (no /proc) are left out. The thresholds are rules of thumb: a
//! warning is not a fault, and nothing is changed.

use std::path::{Path, PathBuf};

use super::open_files::{Allowed, allow_files};
use crate::clock::Clock;
use crate::config::{Config, Loaded, system_text};
use crate::http::json::Json;
use crate::sys::disk::{Disk, RealDisk, write_all};
use crate::sys::log::Level;
use crate::sys::system::{ACCEPT_QUEUE, ACCEPT_QUEUE_SYSCTL};
use crate::sys::{machine, system};

/// One item that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    name: &'static str,
    is_good: bool,
    value: String,
    why: &'static str,
    /// The command that changes the setting, if it should be changed.
    change: Option<String>,
}

/// The result of a check.
pub struct SystemReport {
    items: Vec<Item>,
}

/// Looks at the machine. Writes a small file in `dir` and removes it; raises this process' limit of
/// open files.
pub fn check_system(loaded: Loaded) -> SystemReport {
    let mut config = loaded.settings.config;
    let machine = Machine { read: Box::new(system::setting) };
    let mut items: Vec<Item> = [
        machine.clock_source(),
        machine.overcommit(),
        machine.huge_pages(),
        machine.accept_queue(config.tcp_backlog),
        machine.memory_limit(&config, machine::total_memory() as u64),
        machine.swap(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let asked = config.maxclients;
    let allowed = allow_files(&mut config);
    items.push(open_files(asked, config.maxclients, &allowed));
    items.push(disk_sync(&config.dir, &sync_times(&config.dir), system::is_in_memory(&config.dir)));
    if !loaded.faults.is_empty() {
        items.push(Item {
            name: "configuration",
            is_good: false,
            value: format!("{} faults", loaded.faults.len()),
            why: "Lines with a fault were left out here.",
            change: Some("latchkey --check-config, which reports them".to_owned()),
        });
    }
    SystemReport { items }
}

impl SystemReport {
    /// Whether all items are good.
    pub fn is_good(&self) -> bool {
        self.items.iter().all(|item| item.is_good)
    }

    /// A line for each item.
    pub fn text(&self) -> String {
        let line = |item: &Item| {
            let Item { name, is_good, value, why, change } = item;
            let mark = if *is_good { "ok     " } else { "warning" };
            let change = change.as_ref();
            let change = change.map_or_else(String::new, |change| format!(" Change: {change}"));
            format!("{mark} {name}: {value}. {why}{change}\n")
        };
        self.items.iter().map(line).collect()
    }

    /// The whole report as one document.
    pub fn json(&self) -> String {
        let mut json = Json::default();
        json.open('{');
        json.named("ok", self.is_good());
        json.name("items");
        json.open('[');
        for item in &self.items {
            json.open('{');
            json.named_text("name", item.name);
            json.named("ok", item.is_good);
            json.named_text("value", &item.value);
            json.named_text("why", item.why);
            match &item.change {
                Some(change) => json.named_text("change", change),
                None => json.named("change", "null"),
            }
            json.close('}');
        }
        json.close(']');
        json.close('}');
        json.finish()
    }
}

const CLOCK_SOURCES: &str = "/sys/devices/system/clocksource/clocksource0";
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Clock sources that are slow, or whose reading is a system call.
const SLOW_SOURCES: [&str; 6] = ["acpi_pm", "hpet", "jiffies", "refined-jiffies", "pit", "xen"];
/// Up to this swappiness, the kernel swaps only when it must.
const SWAPPINESS_MAX: u64 = 10;
/// The share of the memory limit that data may take: buffers, scripts and snapshots need the
/// remaining memory. Unit: percent.
const DATA_PERCENT_MAX: u64 = 90;
/// A sync that takes longer is a warning. Unit: microseconds.
const SYNC_US_MAX: i64 = 10_000;
const SYNCS: usize = 5;
/// The limit of a control group without a limit is a number near 2^63.
const NO_LIMIT: u64 = 1 << 60;

/// The text of a file or setting; None: it cannot be read.
type Reader = dyn Fn(&Path) -> Option<String>;

/// A machine as its files describe it.
struct Machine {
    read: Box<Reader>,
}

impl Machine {
    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        (self.read)(path.as_ref()).map(|text| text.trim().to_owned())
    }

    fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    fn clock_source(&self) -> Option<Item> {
        let current = self.read(format!("{CLOCK_SOURCES}/current_clocksource"))?;
        let available = self.read(format!("{CLOCK_SOURCES}/available_clocksource"));
        let available = available.unwrap_or_default();
        let is_good = !SLOW_SOURCES.contains(&&*current);
        let better =
            available.split_whitespace().find(|source| !SLOW_SOURCES.contains(source) && !is_good);
        Some(Item {
            name: "clock source",
            is_good,
            value: current,
            why: "The server reads the clock in every turn of its loop; of a slow source, each reading is a system call.",
            change: better
                .map(|source| format!("echo {source} > {CLOCK_SOURCES}/current_clocksource")),
        })
    }

    fn overcommit(&self) -> Option<Item> {
        let mode = self.number(OVERCOMMIT)?;
        let is_good = mode != 2;
        let what = match mode {
            0 => "0 (heuristic)",
            1 => "1 (always)",
            2 => "2 (never)",
            _ => "unknown",
        };
        Some(Item {
            name: "overcommit of memory",
            is_good,
            value: what.to_owned(),
            why: "Snapshots fork no process, so 0 is enough; with 2, allocations fail while memory is free.",
            change: (!is_good).then(|| "sysctl vm.overcommit_memory=1".to_owned()),
        })
    }

    fn huge_pages(&self) -> Option<Item> {
        let chosen = chosen(&self.read(HUGE_PAGES)?)?;
        let is_good = chosen != "always";
        Some(Item {
            name: "transparent huge pages",
            is_good,
            value: chosen,
            why: "With always, memory that was freed in small pieces stays resident in pages of 2 MB.",
            change: (!is_good).then(|| format!("echo madvise > {HUGE_PAGES}")),
        })
    }

    fn accept_queue(&self, backlog: u32) -> Option<Item> {
        let limit = self.number(ACCEPT_QUEUE)?;
        let is_good = limit >= u64::from(backlog);
        Some(Item {
            name: "queue of new connections",
            is_good,
            value: format!("{ACCEPT_QUEUE_SYSCTL} {limit}, tcp-backlog {backlog}"),
            why: "The lower of both is in force; when many clients connect at once, those above it wait for a second or more.",
            change: (!is_good).then(|| format!("sysctl {ACCEPT_QUEUE_SYSCTL}={backlog}")),
        })
    }

    /// `total`: bytes of the machine's memory.
    fn memory_limit(&self, config: &Config, total: u64) -> Option<Item> {
        let group = self.group_limit().filter(|limit| *limit < total || total == 0);
        let limit = group.unwrap_or(total);
        if limit == 0 {
            return None;
        }
        let megabytes = |bytes: u64| bytes >> 20;
        let most = limit / 100 * DATA_PERCENT_MAX;
        let is_good = match config.maxmemory {
            0 => group.is_none(),
            bytes => bytes <= most,
        };
        let whose = if group.is_some() { "the control group" } else { "the machine" };
        let data = match config.maxmemory {
            0 => "no maxmemory".to_owned(),
            bytes => format!("maxmemory {} MB", megabytes(bytes)),
        };
        Some(Item {
            name: "memory",
            is_good,
            value: format!("{data}, {} MB of {whose}", megabytes(limit)),
            why: "The kernel kills a server that needs more than there is; buffers, scripts and snapshots need some besides the data.",
            change: (!is_good).then(|| {
                format!("maxmemory {}mb in the configuration, or less", megabytes(limit / 100 * 75))
            }),
        })
    }

    /// The lowest memory limit of the process' control groups. Unit: bytes.
    fn group_limit(&self) -> Option<u64> {
        let groups = self.read("/proc/self/cgroup")?;
        let limits = limit_files(&groups).into_iter().filter_map(|path| self.number(path));
        limits.filter(|limit| *limit < NO_LIMIT).min()
    }

    fn swap(&self) -> Option<Item> {
        let kilobytes = swap_kilobytes(&self.read("/proc/swaps")?);
        let swappiness = self.number("/proc/sys/vm/swappiness").unwrap_or(0);
        let is_good = kilobytes == 0 || swappiness <= SWAPPINESS_MAX;
        let value = match kilobytes {
            0 => "none".to_owned(),
            _ => format!("{} MB, vm.swappiness {swappiness}", kilobytes >> 10),
        };
        Some(Item {
            name: "swap",
            is_good,
            value,
            why: "All clients wait while one command waits for data that was swapped out.",
            change: (!is_good).then(|| "sysctl vm.swappiness=1".to_owned()),
        })
    }
}

/// The word in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let word = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    word.map(str::to_owned)
}

/// The files with the memory limits of the groups in `/proc/self/cgroup`, from the innermost
/// outwards. In a container the groups may have the host's names, whose folders do not exist in the
/// container: then the outermost folder belongs to the container.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let inner = Path::new(path.trim_start_matches('/'));
        files.extend(inner.ancestors().map(|part| Path::new(root).join(part).join(file)));
    }
    files
}

/// The sum of the sizes in `/proc/swaps`.
fn swap_kilobytes(text: &str) -> u64 {
    let size = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    text.lines().skip(1).filter_map(size).sum()
}

/// `asked`, `left`: `maxclients` before and after.
fn open_files(asked: u32, left: u32, allowed: &Allowed) -> Item {
    let lines = allowed.lines.iter().filter(|(level, _)| *level == Level::Warning);
    let is_good = lines.count() == 0;
    let wanted = u64::from(asked) + crate::sys::process::RESERVED_FILES;
    Item {
        name: "open files",
        is_good,
        value: match is_good {
            true => format!("enough for maxclients {asked}"),
            false if allowed.is_enough => format!("maxclients {asked} is reduced to {left}"),
            false => "too few for a start".to_owned(),
        },
        why: "Each client is an open file.",
        change: (!is_good)
            .then(|| format!("ulimit -n {wanted}, or LimitNOFILE={wanted} in systemd's unit")),
    }
}

/// The times of several syncs of a few bytes in a folder. Unit: microseconds. Errors: a text.
fn sync_times(folder: &Path) -> Result<Vec<i64>, String> {
    let path = folder.join(format!("latchkey-check-{}", std::process::id()));
    let measure = || {
        let file = RealDisk.create(&path)?;
        (0..SYNCS)
            .map(|_| {
                write_all(&*file, b"to be synced")?;
                let before_us = Clock::System.now().boot_us;
                file.sync_data()?;
                Ok(Clock::System.now().boot_us - before_us)
            })
            .collect()
    };
    let times: std::io::Result<Vec<i64>> = measure();
    // The file may not have been created.
    let _ = std::fs::remove_file(&path);
    times.map_err(|error| system_text(&error))
}

fn disk_sync(folder: &Path, times: &Result<Vec<i64>, String>, in_memory: Option<bool>) -> Item {
    let name = "disk sync";
    let why = "With appendfsync always, a write is answered after a sync; with everysec, a slow one delays writes.";
    let shown = folder.display();
    let mut times = match times {
        Ok(times) => times.clone(),
        Err(text) => {
            let value = format!("no file can be written in {shown}: {text}");
            return Item { name, is_good: false, value, why, change: None };
        }
    };
    times.sort_unstable();
    let (median, last) = (times[times.len() / 2], times[times.len() - 1]);
    let ms = |us: i64| us as f64 / 1000.0;
    let value =
        format!("{:.2} ms in {shown} (the longest of {SYNCS}: {:.2} ms)", ms(median), ms(last));
    if in_memory == Some(true) {
        let value = format!("{value}, which is in memory");
        let change = Some("dir in the configuration: a folder on a disk".to_owned());
        let why = "What is there is lost when the machine restarts.";
        return Item { name, is_good: false, value, why, change };
    }
    let is_good = median <= SYNC_US_MAX;
    let change =
        (!is_good).then(|| "dir in the configuration: a folder on a faster disk".to_owned());
    Item { name, is_good, value, why, change }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Judges with these files only.
    fn with<T>(files: &[(&str, &str)], judge: impl Fn(&Machine) -> T) -> T {
        let owned = |(name, text): &(&str, &str)| (PathBuf::from(name), format!("{text}\n"));
        let files: HashMap<PathBuf, String> = files.iter().map(owned).collect();
        judge(&Machine { read: Box::new(move |path| files.get(path).cloned()) })
    }

    fn told(item: Option<Item>) -> (bool, String, String) {
        let item = item.expect("an item");
        (item.is_good, item.value, item.change.unwrap_or_default())
    }

    #[test]
    fn a_slow_clock_is_told_with_a_better_one() {
        let current = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let available = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
        let clock = |now, all| with(&[(current, now), (available, all)], Machine::clock_source);
        assert_eq!(told(clock("tsc", "tsc hpet")), (true, "tsc".into(), "".into()));
        let change = format!("echo tsc > {current}");
        assert_eq!(told(clock("hpet", "hpet tsc acpi_pm")), (false, "hpet".into(), change));
        assert_eq!(told(clock("xen", "xen")), (false, "xen".into(), "".into()));
        assert_eq!(with(&[], Machine::clock_source), None);
    }

    #[test]
    fn overcommit_matters_only_if_it_is_forbidden() {
        let mode = |text| told(with(&[(OVERCOMMIT, text)], Machine::overcommit));
        assert!(mode("0").0 && mode("1").0);
        assert_eq!(mode("2"), (false, "2 (never)".into(), "sysctl vm.overcommit_memory=1".into()));
        assert_eq!(with(&[(OVERCOMMIT, "x")], Machine::overcommit), None);
    }

    #[test]
    fn the_choice_of_huge_pages_is_in_brackets() {
        let pages = |text| with(&[(HUGE_PAGES, text)], Machine::huge_pages);
        assert_eq!(told(pages("always [madvise] never")), (true, "madvise".into(), "".into()));
        let (is_good, value, change) = told(pages("[always] madvise never"));
        assert_eq!((is_good, &*value), (false, "always"));
        assert_eq!(change, format!("echo madvise > {HUGE_PAGES}"));
        assert_eq!(pages("always madvise never"), None);
    }

    #[test]
    fn the_accept_queue_is_limited_by_the_kernel() {
        let queue =
            |backlog| told(with(&[(ACCEPT_QUEUE, "128")], |machine| machine.accept_queue(backlog)));
        assert!(queue(128).0);
        let (is_good, value, change) = queue(511);
        assert_eq!(
            (is_good, &*value),
            (false, &*format!("{ACCEPT_QUEUE_SYSCTL} 128, tcp-backlog 511"))
        );
        assert_eq!(change, format!("sysctl {ACCEPT_QUEUE_SYSCTL}=511"));
    }

    #[test]
    fn the_least_limit_of_all_groups_counts() {
        let memory = |files: &[(&str, &str)], maxmemory: u64| {
            let config = Config { maxmemory, ..Config::default() };
            told(with(files, |machine| machine.memory_limit(&config, 8 << 30)))
        };
        let (is_good, value, _) = memory(&[], 0);
        assert_eq!((is_good, &*value), (true, "no maxmemory, 8192 MB of the machine"));
        assert!(memory(&[], 4 << 30).0 && !memory(&[], 8 << 30).0);
        let second = [
            ("/proc/self/cgroup", "0::/pod/box"),
            ("/sys/fs/cgroup/pod/box/memory.max", "max"),
            ("/sys/fs/cgroup/pod/memory.max", "1073741824"),
        ];
        let (is_good, value, change) = memory(&second, 0);
        assert_eq!((is_good, &*value), (false, "no maxmemory, 1024 MB of the control group"));
        assert_eq!(change, "maxmemory 767mb in the configuration, or less");
        assert!(memory(&second, 512 << 20).0 && !memory(&second, 1 << 30).0);
        let first = [
            ("/proc/self/cgroup", "5:cpu:/a\n4:memory:/a\n0::/"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648"),
        ];
        assert!(!memory(&first, 3 << 30).0 && memory(&first, 1 << 30).0);
        assert!(limit_files("nonsense\n1:\n").is_empty());
    }

    #[test]
    fn swap_stands_out_if_the_kernel_uses_it_readily() {
        let head = "Filename\tType\tSize\tUsed\tPriority";
        let swap = |lines: &str, swappiness: &str| {
            let text = format!("{head}\n{lines}");
            let files = [("/proc/swaps", &*text), ("/proc/sys/vm/swappiness", swappiness)];
            told(with(&files, Machine::swap))
        };
        assert_eq!(swap("", "60"), (true, "none".into(), "".into()));
        let two = "/dev/sda2 partition 1048572 0 -2\n/swap file 1048572 12 -3";
        assert!(swap(two, "1").0);
        let (is_good, value, change) = swap(two, "60");
        assert_eq!((is_good, &*value), (false, "2047 MB, vm.swappiness 60"));
        assert_eq!(change, "sysctl vm.swappiness=1");
    }

    #[test]
    fn a_sync_is_judged_by_its_median_and_by_where_it_is() {
        let sync = |times: Result<Vec<i64>, String>, on| {
            let item = disk_sync(Path::new("/data"), &times, on);
            (item.is_good, item.value)
        };
        let (is_good, value) = sync(Ok(vec![50_000, 400, 300, 500, 200]), None);
        assert_eq!((is_good, &*value), (true, "0.40 ms in /data (the longest of 5: 50.00 ms)"));
        assert!(!sync(Ok(vec![20_000; 5]), Some(false)).0);
        assert!(!sync(Ok(vec![1; 5]), Some(true)).0);
        let (is_good, value) = sync(Err("No space left on device".into()), None);
        assert_eq!(
            (is_good, &*value),
            (false, "no file can be written in /data: No space left on device")
        );
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(sync_times(folder.path()).expect("times").len(), SYNCS);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
        assert!(sync_times(&folder.path().join("gone")).is_err());
    }

    #[test]
    fn open_files_stand_out_if_clients_are_left_without() {
        let lines = vec![(Level::Notice, "Increased".to_owned())];
        assert!(open_files(100, 100, &Allowed { lines, is_enough: true }).is_good);
        let lines = vec![(Level::Warning, "reduced".to_owned())];
        let item = open_files(100, 60, &Allowed { lines, is_enough: true });
        assert_eq!((item.is_good, &*item.value), (false, "maxclients 100 is reduced to 60"));
        let change = "ulimit -n 132, or LimitNOFILE=132 in systemd's unit";
        assert_eq!(item.change.as_deref(), Some(change));
    }

    #[test]
    fn both_forms_tell_the_same() {
        let item = |is_good, change: Option<&str>| Item {
            name: "swap",
            is_good,
            value: "none".into(),
            why: "Why.",
            change: change.map(str::to_owned),
        };
        let report = SystemReport { items: vec![item(true, None), item(false, Some("do \"it\""))] };
        assert!(!report.is_good());
        let text = "ok      swap: none. Why.\nwarning swap: none. Why. Change: do \"it\"\n";
        assert_eq!(report.text(), text);
        let json = "{\"ok\":false,\"items\":[\
            {\"name\":\"swap\",\"ok\":true,\"value\":\"none\",\"why\":\"Why.\",\"change\":null},\
            {\"name\":\"swap\",\"ok\":false,\"value\":\"none\",\"why\":\"Why.\",\"change\":\"do \\\"it\\\"\"}]}";
        assert_eq!(report.json(), json);
    }
}
