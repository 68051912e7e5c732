//! The kinds of misfortune that a run may have beside those of every run. Each seed draws its own:
//! so no fault hides all others.

/// A set of kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u32);

const NAMES: [&str; 10] = [
    "memory",
    "disk",
    "parameters",
    "endings",
    "kills",
    "limits",
    "stalls",
    "large",
    "options",
    "locks",
];

impl Kinds {
    pub const NONE: Kinds = Kinds(0);
    /// `maxmemory`, with snapshots at the same time.
    pub const MEMORY: Kinds = Kinds(1);
    /// A disk that fills and empties, fails single calls, and is slow.
    pub const DISK: Kinds = Kinds(2);
    /// CONFIG SET of any parameter, at any time.
    pub const PARAMETERS: Kinds = Kinds(4);
    /// SHUTDOWN in all its forms, signals, DEBUG RELOAD and the like.
    pub const ENDINGS: Kinds = Kinds(8);
    /// Clients that are killed in the turn in which they are served.
    pub const KILLS: Kinds = Kinds(16);
    /// Other limits after a restart.
    pub const LIMITS: Kinds = Kinds(32);
    /// Pauses, long scripts and long loads.
    pub const STALLS: Kinds = Kinds(64);
    /// Values of megabytes, collections of thousands.
    pub const LARGE: Kinds = Kinds(128);

    /// Options of commands that change other keys on other servers.
    pub const OPTIONS: Kinds = Kinds(256);

    /// Clients that take locks and permits, wait for them, and are killed while they do.
    pub const LOCKS: Kinds = Kinds(512);

    pub const ALL: Kinds = Kinds(1023);

    /// What the run of a seed has: each kind in one of three.
    pub fn draw(seed: u64) -> Kinds {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x6b69_6e64);
        let bits = (0..NAMES.len()).filter(|_| random.u32(..3) == 0).map(|bit| 1 << bit);
        Kinds(bits.sum())
    }

    /// The kinds that a list of names has, between commas. None: one of them is unknown.
    pub fn parse(text: &str) -> Option<Kinds> {
        let mut kinds = Kinds::NONE;
        for name in text.split(',').filter(|name| !name.is_empty()) {
            match NAMES.iter().position(|known| *known == name) {
                Some(bit) => kinds.0 |= 1 << bit,
                None if name == "all" => kinds = Kinds::ALL,
                None if name == "none" => kinds = Kinds::NONE,
                None => return None,
            }
        }
        Some(kinds)
    }

    pub fn without(self, other: Kinds) -> Kinds {
        Kinds(self.0 & !other.0)
    }

    pub fn contains(self, other: Kinds) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::fmt::Display for Kinds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> =
            (0..NAMES.len()).filter(|bit| self.0 >> bit & 1 == 1).map(|bit| NAMES[bit]).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(","))
    }
}
