//! What a parameter is: its name, its traits, and access to its field of [`Config`]. `params.rs` lists all of them.

use super::kind::{Kind, Origin, RewriteLine};
use super::params::{Config, PARAMS};
use super::reason::Reason;

/// What the server must do when a parameter changed. Parameters without one are read where they
/// matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Listen on another TCP port.
    Port,
    /// Listen on other addresses.
    Bind,
    /// Listen on another TLS port, with certificates loaded.
    TlsPort,
    /// Load certificates and TLS options anew.
    Tls,
    /// Change the process' working directory, if relative paths are used.
    Dir,
    /// Raise the limit of open files.
    MaxClients,
    /// Evict down to the new limit.
    MaxMemory,
    /// Measure clients against the new limit.
    MaxMemoryClients,
    /// Give the default user this password.
    RequirePass,
    /// Adapt timers.
    Hz,
    /// Start or stop the append-only file.
    AppendOnly,
    /// Delete the append-only files kept so far.
    AofHistory,
    /// Resize the backlog.
    ReplicationBacklog,
    /// Count the replicas that are good enough.
    GoodReplicas,
    /// Write the process' OOM score.
    OomScore,
    /// Install or remove the signal handlers of crash reports.
    CrashLog,
    /// Set the process' title.
    ProcessTitle,
    /// Start or stop the allocator's background thread.
    AllocatorThread,
    /// Tell the cluster.
    ClusterAnnounce,
    /// Start or stop the watchdog.
    Watchdog,
}

/// How a parameter may be used.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// CONFIG SET refuses it.
    pub immutable: bool,
    /// CONFIG GET shows it by its exact name only.
    pub hidden: bool,
    /// CONFIG SET needs the permission `enable-protected-configs`.
    pub protected: bool,
    /// The value must not appear in logs, SLOWLOG or MONITOR.
    pub sensitive: bool,
    /// CONFIG SET refuses it while data is loaded.
    pub deny_loading: bool,
    /// The action follows even if the value stays the same: a file behind it may have changed.
    pub volatile: bool,
    /// Accepted and kept, but without effect so far.
    pub stored: bool,
    /// What follows a change.
    pub action: Option<Action>,
}

pub(super) const MODIFIABLE: Traits = Traits {
    immutable: false,
    hidden: false,
    protected: false,
    sensitive: false,
    deny_loading: false,
    volatile: false,
    stored: false,
    action: None,
};
pub(super) const IMMUTABLE: Traits = Traits { immutable: true, ..MODIFIABLE };

impl Traits {
    pub(super) const fn hidden(self) -> Self {
        Traits { hidden: true, ..self }
    }

    pub(super) const fn protected(self) -> Self {
        Traits { protected: true, ..self }
    }

    pub(super) const fn sensitive(self) -> Self {
        Traits { sensitive: true, ..self }
    }

    pub(super) const fn deny_loading(self) -> Self {
        Traits { deny_loading: true, ..self }
    }

    pub(super) const fn volatile(self) -> Self {
        Traits { volatile: true, ..self }
    }

    pub(super) const fn stored(self) -> Self {
        Traits { stored: true, ..self }
    }

    pub(super) const fn then(self, action: Action) -> Self {
        Traits { action: Some(action), ..self }
    }
}

/// One parameter.
pub struct Param {
    pub name: &'static str,
    /// Other names, each of which CONFIG GET shows too.
    pub aliases: &'static [&'static str],
    /// What it does, one line of the source an item.
    pub doc: &'static [&'static str],
    /// The heading in the example file.
    pub section: &'static str,
    pub traits: Traits,
    pub(super) slot: &'static (dyn Slot + Sync),
}

impl Param {
    /// The parameter of this name or alias, in any case of letters.
    pub fn find(name: &[u8]) -> Option<&'static Param> {
        PARAMS
            .iter()
            .find(|param| param.names().any(|known| name.eq_ignore_ascii_case(known.as_bytes())))
    }

    /// The name, then the aliases.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

/// A field of [`Config`] together with its kind, whatever its type.
pub(super) trait Slot {
    /// Whether the value is a list of arguments.
    fn is_multi(&self) -> bool;
    /// Reads the arguments into the field. Tells whether its value changed.
    fn update(&self, config: &mut Config, args: &[&[u8]], origin: Origin) -> Result<bool, Reason>;
    /// The value as CONFIG GET tells it.
    fn get(&self, config: &Config) -> Vec<u8>;
    /// The value as CONFIG REWRITE writes it.
    fn lines(&self, name: &str, config: &Config) -> Vec<RewriteLine>;
    /// The default as lines of the example file.
    fn example(&self, name: &str) -> Vec<Vec<u8>>;
    /// What may stand there.
    fn describe(&self) -> String;
}

pub(super) struct Field<T, K> {
    pub get: fn(&Config) -> &T,
    pub get_mut: fn(&mut Config) -> &mut T,
    pub default: fn() -> T,
    pub kind: K,
}

impl<T: Clone + PartialEq, K: Kind<T>> Slot for Field<T, K> {
    fn is_multi(&self) -> bool {
        K::MULTI
    }

    fn update(&self, config: &mut Config, args: &[&[u8]], origin: Origin) -> Result<bool, Reason> {
        let value = self.kind.parse(args, (self.get)(config), origin)?;
        let changed = value != *(self.get)(config);
        *(self.get_mut)(config) = value;
        Ok(changed)
    }

    fn get(&self, config: &Config) -> Vec<u8> {
        self.kind.format((self.get)(config))
    }

    fn lines(&self, name: &str, config: &Config) -> Vec<RewriteLine> {
        self.kind.lines(name, (self.get)(config), &(self.default)())
    }

    fn example(&self, name: &str) -> Vec<Vec<u8>> {
        self.kind.example(name, &(self.default)())
    }

    fn describe(&self) -> String {
        self.kind.describe()
    }
}
