//! A parameter: its names and traits, and access to its field of [`Config`]. The table of all is in
//! `params.rs`.

use super::kind::{Kind, Origin, RewriteLine};
use super::params::{Config, PARAMS};
use super::reason::Reason;
use super::value::Compatibility;

/// The server's action after a change of a parameter. Parameters without an action are read when
/// they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Listen on another TCP port.
    Port,
    /// Listen on other addresses.
    Bind,
    /// Listen on another TLS port, with certificates loaded.
    TlsPort,
    /// Load certificates and TLS options again.
    Tls,
    /// Serve HTTP on other addresses, or stop serving it.
    Http,
    /// Change the process' working directory, if relative paths are used.
    Dir,
    /// Raise the limit of open files.
    MaxClients,
    /// Evict down to the new limit.
    MaxMemory,
    /// Apply the new limit to clients.
    MaxMemoryClients,
    /// Give the default user this password.
    RequirePass,
    /// Adjust timers.
    Hz,
    /// Start or stop the append-only file.
    AppendOnly,
    /// Delete the append-only files that were kept.
    AofHistory,
    /// Resize the backlog.
    ReplicationBacklog,
    /// Count the good replicas.
    GoodReplicas,
    /// Serve the clients that wait for locks by the new rule.
    Locks,
    /// Set the process' OOM score.
    OomScore,
    /// Install or remove the signal handlers of crash reports.
    CrashLog,
    /// Set the process' title.
    ProcessTitle,
    /// Start or stop the allocator's background thread.
    AllocatorThread,
    /// Announce the new value to the cluster.
    ClusterAnnounce,
    /// Start or stop the watchdog.
    Watchdog,
}

/// What CONFIG SET does with a parameter while data is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileLoading {
    Accepted,
    Refused,
    /// Refused by Redis 7 and Valkey, accepted by Redis 8.
    AcceptedByRedis8,
}

/// The allowed uses of a parameter.
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
    /// What CONFIG SET does with it while data is loaded.
    pub while_loading: WhileLoading,
    /// The value names a file, which may have changed: the action runs even if the value stays the
    /// same.
    pub names_file: bool,
    /// Accepted and stored, but without effect.
    pub only_stored: bool,
    /// The server's action after a change.
    pub action: Option<Action>,
}

pub(super) const MODIFIABLE: Traits = Traits {
    immutable: false,
    hidden: false,
    protected: false,
    sensitive: false,
    while_loading: WhileLoading::Accepted,
    names_file: false,
    only_stored: false,
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

    pub(super) const fn while_loading(self, while_loading: WhileLoading) -> Self {
        Traits { while_loading, ..self }
    }

    pub(super) const fn names_file(self) -> Self {
        Traits { names_file: true, ..self }
    }

    pub(super) const fn only_stored(self) -> Self {
        Traits { only_stored: true, ..self }
    }

    pub(super) const fn then(self, action: Action) -> Self {
        Traits { action: Some(action), ..self }
    }
}

/// One parameter.
pub struct Param {
    pub name: &'static str,
    /// Other names; CONFIG GET shows each of them.
    pub aliases: &'static [&'static str],
    /// Its documentation, line by line.
    pub doc: &'static [&'static str],
    /// Its section of the example file.
    pub section: &'static str,
    pub traits: Traits,
    pub(super) field: &'static (dyn AnyField + Sync),
}

impl Param {
    /// The parameter with this name or alias, in any case.
    pub fn find(name: &[u8]) -> Option<&'static Param> {
        PARAMS
            .iter()
            .find(|param| param.names().any(|known| name.eq_ignore_ascii_case(known.as_bytes())))
    }

    /// The allowed values, as text for the example file.
    pub fn describe(&self) -> String {
        self.field.describe()
    }

    /// The name, then the aliases.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

/// Access to a field of [`Config`] of any type.
pub(super) trait AnyField {
    /// Whether the value is a list of arguments.
    fn is_multi(&self) -> bool;
    /// Parses the arguments and sets the field. True: its value changed.
    fn update(&self, config: &mut Config, args: &[&[u8]], origin: Origin) -> Result<bool, Reason>;
    /// The value as in CONFIG GET.
    fn get(&self, config: &Config) -> Vec<u8>;
    /// The value as lines of CONFIG REWRITE. `defaults`: see [`Config::defaults`].
    fn lines(&self, name: &str, config: &Config, defaults: &Config) -> Vec<RewriteLine>;
    /// The default as lines of the example file.
    fn example(&self, name: &str) -> Vec<Vec<u8>>;
    /// The allowed values, for the example file.
    fn describe(&self) -> String;
}

/// A field of type `T`, and the kind that parses and formats its values.
pub(super) struct Field<T, K> {
    pub get: fn(&Config) -> &T,
    pub get_mut: fn(&mut Config) -> &mut T,
    pub default: fn() -> T,
    pub kind: K,
}

impl<T: Clone + PartialEq, K: Kind<T>> AnyField for Field<T, K> {
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

    fn lines(&self, name: &str, config: &Config, defaults: &Config) -> Vec<RewriteLine> {
        self.kind.lines(name, (self.get)(config), (self.get)(defaults))
    }

    fn example(&self, name: &str) -> Vec<Vec<u8>> {
        self.kind.example(name, &(self.default)())
    }

    fn describe(&self) -> String {
        self.kind.describe()
    }
}

/// Parameters that are off by default, but on with `compatible-with valkey-9`.
#[allow(clippy::type_complexity)]
pub(super) const ON_FOR_VALKEY: [(&str, fn(&mut Config) -> &mut bool); 7] = [
    ("hide-user-data-from-log", |config| &mut config.hide_user_data_from_log),
    ("lazyfree-lazy-eviction", |config| &mut config.lazyfree_lazy_eviction),
    ("lazyfree-lazy-expire", |config| &mut config.lazyfree_lazy_expire),
    ("lazyfree-lazy-server-del", |config| &mut config.lazyfree_lazy_server_del),
    ("lazyfree-lazy-user-del", |config| &mut config.lazyfree_lazy_user_del),
    ("lazyfree-lazy-user-flush", |config| &mut config.lazyfree_lazy_user_flush),
    ("replica-lazy-flush", |config| &mut config.replica_lazy_flush),
];

impl Config {
    /// Sets a parameter, and those that depend on it. True: its value changed.
    pub(super) fn update(
        &mut self,
        param: &Param,
        args: &[&[u8]],
        origin: Origin,
    ) -> Result<bool, Reason> {
        let before = self.compatible_with;
        let changed = param.field.update(self, args, origin)?;
        if param.name == "compatible-with" {
            self.follow_compatibility(before);
        }
        Ok(changed)
    }

    /// Sets the parameters that depend on `compatible-with`, which was `before`.
    fn follow_compatibility(&mut self, before: Compatibility) {
        self.redis_version = self.compatible_with.redis_version().into();
        let is_valkey = self.compatible_with.is_valkey();
        for (_, field) in ON_FOR_VALKEY {
            // A value that differs from the default was set on purpose, and stays.
            if *field(self) == before.is_valkey() {
                *field(self) = is_valkey;
            }
        }
    }

    /// The values without any directive except this configuration's `compatible-with`.
    pub(super) fn defaults(&self) -> Config {
        let mut defaults = Config { compatible_with: self.compatible_with, ..Config::default() };
        defaults.follow_compatibility(Config::default().compatible_with);
        // `compatible-with` is a directive itself.
        defaults.compatible_with = Config::default().compatible_with;
        defaults
    }
}

/// The output of CONFIG GET, without secrets.
impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut map = f.debug_map();
        for param in PARAMS.iter().filter(|param| !param.traits.sensitive) {
            map.entry(&param.name, &String::from_utf8_lossy(&param.field.get(self)));
        }
        map.entry(&"config_file", &self.config_file).finish()
    }
}
