//! The configuration: a table of parameters, and the file and command line that set them.
//!
//! `params.rs` is the table; `param.rs` defines an entry, `value.rs` has types of values, `kind.rs`
//! parses and formats them, or refuses them with a reason of `reason.rs`. `quoting.rs` splits
//! lines. At the start, `command_line.rs` turns the command line into text, and `file.rs` loads
//! that and the file into a [`Config`]. CONFIG GET and SET are [`Config::get`] and [`Config::set`];
//! CONFIG REWRITE is `rewrite.rs`. From the table, `example.rs` writes `redis.conf.example`,
//! `manual.rs` the manual page, and `completions.rs` the completions for shells. Error texts are
//! those of Redis 7.0.15.
//!
//! This module knows no server and no clients: a change is returned as a [`ChangeSet`], and the
//! server acts on it.

mod command_line;
mod completions;
mod example;
mod file;
mod kind;
mod manual;
mod param;
mod params;
mod quoting;
mod reason;
mod rewrite;
mod value;

pub use command_line::{Examined, Loaded, Settings, Startup, USAGE};
pub use completions::{SHELLS, completions};
pub use example::example_file;
pub use file::{ConfigError, Directive, Line, Refused, Source};
pub use kind::{expand_title, parse_memory};
pub use manual::manual_page;
pub use param::{Action, Param, Traits, WhileLoading};
pub use params::{Config, PARAMS};
pub use quoting::parse_line;
pub(crate) use quoting::{quoted, split_args};
pub use reason::{Reason, system_text};
pub use rewrite::{RewriteError, replace_file};
pub use value::*;

use crate::collections::glob;
use crate::error::CommandError;
use kind::Origin;

/// The circumstances of a CONFIG SET, on which some permissions depend.
#[derive(Clone, Copy, Debug)]
pub struct SetContext {
    /// The client's address is a Unix socket or a loopback address.
    pub local_client: bool,
    /// Data is being loaded.
    pub loading: bool,
}

/// A successful CONFIG SET: the [`Config`] has the new values, this has the old ones.
#[derive(Debug)]
#[must_use = "the server runs the actions, or rolls back"]
pub struct ChangeSet {
    /// The server's actions now, each once, with the name of the parameter, in the order of the
    /// command.
    pub actions: Vec<(Action, &'static str)>,
    previous: Box<Config>,
}

impl ChangeSet {
    /// The configuration before the change.
    pub fn previous(&self) -> &Config {
        &self.previous
    }
}

/// The reason why CONFIG SET changed nothing. Its `Display` is the reply, without the leading `-`.
#[derive(Debug, PartialEq)]
pub enum SetError {
    /// No parameter has this name.
    Unknown { name: Vec<u8> },
    /// Data is being loaded.
    Loading,
    /// A value was refused.
    Refused { name: Vec<u8>, reason: Reason },
    /// The server could not apply the new value.
    Failed { name: &'static str, reason: String },
}

impl SetError {
    /// The reply, without the leading `-` and the line end. It may contain any bytes, from the name
    /// that the client sent.
    pub fn reply(&self) -> Vec<u8> {
        let about = |name: &[u8], reason: String| {
            [
                b"ERR CONFIG SET failed (possibly related to argument '",
                name,
                b"') - ",
                reason.as_bytes(),
            ]
            .concat()
        };
        match self {
            SetError::Unknown { name } => {
                [b"ERR Unknown option or number of arguments for CONFIG SET - '", &name[..], b"'"]
                    .concat()
            }
            SetError::Loading => CommandError::LOADING.wire().into_owned(),
            SetError::Refused { name, reason } => about(name, reason.to_string()),
            SetError::Failed { name, reason } => about(name.as_bytes(), reason.clone()),
        }
    }
}

impl std::fmt::Display for SetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.reply()))
    }
}

impl std::error::Error for SetError {}

impl Config {
    /// The number of databases: in a cluster `cluster-databases`.
    pub fn database_count(&self) -> usize {
        if self.cluster_enabled { self.cluster_databases as usize } else { self.databases as usize }
    }

    /// Whether the reported version is at least 7.2, in which some replies have changed.
    pub fn reports_7_2(&self) -> bool {
        let mut parts = self.redis_version.split(|byte| *byte == b'.').map(|part| {
            std::str::from_utf8(part).ok().and_then(|part| part.parse::<u64>().ok()).unwrap_or(0)
        });
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (7, 2)
    }

    /// CONFIG GET: names and values of the matching parameters, each name once, in the order of the
    /// patterns, then of the table. (Redis replies in random order.)
    ///
    /// A pattern without `*`, `?` and `[` is a name, and is returned as written. Aliases are
    /// returned like names. Hidden parameters match only their exact name.
    pub fn get(&self, patterns: &[&[u8]]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for pattern in patterns {
            // A pattern matches each name once, so duplicates come only from earlier patterns.
            let count_before = found.len();
            for (name, param) in names_matching(pattern) {
                let mut earlier = found[..count_before].iter().map(|(earlier, _)| earlier);
                if !earlier.any(|earlier| earlier.eq_ignore_ascii_case(name)) {
                    found.push((name.to_vec(), param.field.get(self)));
                }
            }
        }
        found
    }

    /// CONFIG SET: sets all pairs of name and value, or none.
    ///
    /// On success the new values are set, and the server must run [`ChangeSet::actions`]. If one of
    /// them fails, [`Config::rollback`] restores the old values and returns the error to reply; the
    /// actions before it must then run again.
    pub fn set(
        &mut self,
        pairs: &[(&[u8], &[u8])],
        context: SetContext,
    ) -> Result<ChangeSet, SetError> {
        let mut params = Vec::new();
        for (name, value) in pairs {
            let (param, canonical) =
                lookup(name).ok_or_else(|| SetError::Unknown { name: name.to_vec() })?;
            let refused = |reason| SetError::Refused { name: name.to_vec(), reason };
            if param.traits.immutable {
                if NEW_IMMUTABLE.contains(&canonical) && param.field.get(self) == *value {
                    continue;
                }
                return Err(refused(Reason::Immutable));
            }
            if param.traits.protected && !self.enable_protected_configs.allows(context.local_client)
            {
                return Err(refused(Reason::Protected));
            }
            let is_accepted = match param.traits.while_loading {
                WhileLoading::Accepted => true,
                WhileLoading::Refused => !context.loading,
                WhileLoading::AcceptedByRedis8 => {
                    !context.loading || self.compatible_with.is_redis_8()
                }
            };
            if !is_accepted {
                return Err(SetError::Loading);
            }
            // As in Redis, a name and its alias are no duplicates: the last one is used.
            if params.iter().any(|(_, known, _)| *known == canonical) {
                return Err(refused(Reason::Duplicate));
            }
            params.push((param, canonical, *value));
        }
        let mut next = self.clone();
        let mut actions: Vec<(Action, &'static str)> = Vec::new();
        for (param, name, value) in params {
            let args: Vec<&[u8]> = match value {
                b"" if param.field.is_multi() => Vec::new(),
                value if param.field.is_multi() => value.split(|byte| *byte == b' ').collect(),
                value => vec![value],
            };
            let changed = next.update(param, &args, Origin::Set);
            let changed =
                changed.map_err(|reason| SetError::Refused { name: name.into(), reason })?;
            if let Some(action) = param.traits.action
                && (changed || param.traits.names_file)
                && !actions.iter().any(|(known, _)| *known == action)
            {
                actions.push((action, name));
            }
        }
        let previous = Box::new(std::mem::replace(self, next));
        Ok(ChangeSet { actions, previous })
    }

    /// Restores the old values because an action failed. `name`: the parameter of that action.
    pub fn rollback(
        &mut self,
        changes: ChangeSet,
        name: &'static str,
        reason: impl Into<String>,
    ) -> SetError {
        *self = *changes.previous;
        SetError::Failed { name, reason: reason.into() }
    }
}

/// Whether the value of this parameter must not appear in logs, SLOWLOG and MONITOR.
pub fn is_sensitive(name: &[u8]) -> bool {
    Param::find(name).is_some_and(|param| param.traits.sensitive)
}

/// The names that match a pattern of CONFIG GET.
fn names_matching(pattern: &[u8]) -> Vec<(&[u8], &'static Param)> {
    if !pattern.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[')) {
        return Param::find(pattern).map(|param| (pattern, param)).into_iter().collect();
    }
    let visible = PARAMS.iter().filter(|param| !param.traits.hidden);
    let names = visible.flat_map(|param| param.names().map(move |name| (name.as_bytes(), param)));
    names.filter(|(name, _)| glob::matches(pattern, name, true)).collect()
}

/// Immutable parameters that Redis 7.0.15 does not have. Programs that copy a whole configuration
/// with CONFIG SET skip the immutable parameters that they know, but not these: setting them to
/// their current value is accepted.
const NEW_IMMUTABLE: &[&str] = &[
    "cluster-databases",
    "server-cpulist",
    "bio-cpulist",
    "aof-rewrite-cpulist",
    "bgsave-cpulist",
    "unixsocketgroup",
    "mptcp",
    "repl-mptcp",
    "rdma-rx-size",
    "rdma-completion-vector",
    "hash-seed",
];

/// The parameter with this name or alias, and that name in lower case.
fn lookup(name: &[u8]) -> Option<(&'static Param, &'static str)> {
    let param = Param::find(name)?;
    let known = param.names().find(|known| name.eq_ignore_ascii_case(known.as_bytes()))?;
    Some((param, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: SetContext = SetContext { local_client: false, loading: false };

    fn names(config: &Config, patterns: &[&str]) -> Vec<String> {
        let patterns: Vec<&[u8]> = patterns.iter().map(|pattern| pattern.as_bytes()).collect();
        config
            .get(&patterns)
            .into_iter()
            .map(|(name, _)| String::from_utf8(name).unwrap())
            .collect()
    }

    #[test]
    fn get_returns_each_name_once_and_a_plain_name_as_written() {
        let config = Config::default();
        assert_eq!(names(&config, &["HZ", "hz", "h?"]), ["HZ"]);
        assert_eq!(names(&config, &["nosuch", "maxmemory", "MAXMEMORY*"]).len(), 7);
        assert_eq!(names(&config, &["*-priority"]), ["replica-priority", "slave-priority"]);
        assert_eq!(names(&config, &["tim\\eout"]), [""; 0]);
        assert_eq!(names(&config, &["watchdog-p*", "watchdog-period"]), ["watchdog-period"]);
    }

    #[test]
    fn set_changes_all_or_nothing_and_returns_the_actions() {
        let mut config = Config::default();
        let error = config.set(&[(b"timeout", b"5"), (b"hz", b"x")], REMOTE).unwrap_err();
        assert_eq!(
            error.to_string(),
            "ERR CONFIG SET failed (possibly related to argument 'hz') - \
             argument couldn't be parsed into an integer"
        );
        assert!(config == Config::default());
        let pairs: [(&[u8], &[u8]); 4] = [
            (b"PORT", b"7"),
            (b"timeout", b"5"),
            (b"min-slaves-to-write", b"1"),
            (b"min-replicas-max-lag", b"2"),
        ];
        let changes = config.set(&pairs, REMOTE).unwrap();
        assert_eq!(
            changes.actions,
            [(Action::Port, "port"), (Action::GoodReplicas, "min-slaves-to-write")]
        );
        assert_eq!((config.port, changes.previous().port), (7, 6379));
    }

    #[test]
    fn new_immutable_parameters_may_be_set_to_their_current_value() {
        let mut config = Config::default();
        assert_eq!(config.set(&[(b"cluster-databases", b"1")], REMOTE).unwrap().actions, []);
        for name in NEW_IMMUTABLE {
            let (param, _) = lookup(name.as_bytes()).unwrap();
            assert!(param.traits.immutable, "{name}");
            let error = config.set(&[(name.as_bytes(), b"77")], REMOTE).unwrap_err();
            assert!(error.to_string().ends_with("can't set immutable config"), "{error}");
        }
        assert!(config.set(&[(b"server_cpulist", b"")], REMOTE).is_err());
    }

    #[test]
    fn an_unchanged_value_needs_no_action_unless_it_names_a_file() {
        let mut config = Config::default();
        assert_eq!(config.set(&[(b"port", b"6379")], REMOTE).unwrap().actions, []);
        assert_eq!(
            config.set(&[(b"tls-cert-file", b"")], REMOTE).unwrap().actions,
            [(Action::Tls, "tls-cert-file")]
        );
    }

    #[test]
    fn rollback_restores_the_old_values() {
        let mut config = Config::default();
        let changes = config.set(&[(b"port", b"7"), (b"save", b"")], REMOTE).unwrap();
        let error =
            config.rollback(changes, "port", "Unable to listen on this port. Check server logs.");
        assert_eq!(
            error.to_string(),
            "ERR CONFIG SET failed (possibly related to argument 'port') - \
             Unable to listen on this port. Check server logs."
        );
        assert!(config == Config::default());
    }

    #[test]
    fn whether_user_data_is_hidden_follows_compatible_with_unless_it_is_said() {
        let hides = |text: &str| {
            Config::from_text(text.as_bytes()).expect("directives").hide_user_data_from_log
        };
        assert!(!hides(""));
        assert!(!hides("compatible-with redis-8"));
        assert!(hides("compatible-with valkey-9"));
        assert!(hides("hide-user-data-from-log yes\ncompatible-with redis-8"));
        assert!(!hides("hide-user-data-from-log no\ncompatible-with valkey-9"));
        assert!(!hides("compatible-with valkey-9\nhide-user-data-from-log no"));
        let mut config = Config::default();
        let mut after = |name: &[u8], value: &[u8]| {
            let _ = config.set(&[(name, value)], REMOTE).unwrap();
            config.hide_user_data_from_log
        };
        assert!(after(b"compatible-with", b"valkey-9"));
        assert!(!after(b"compatible-with", b"redis-7.0"));
        assert!(after(b"hide-user-data-from-log", b"yes"));
        assert!(after(b"compatible-with", b"redis-8"));
        assert!(after(b"compatible-with", b"valkey-9"));
    }

    #[test]
    fn protected_parameters_need_the_permission() {
        let mut config = Config::default();
        let local = SetContext { local_client: true, ..REMOTE };
        assert!(config.set(&[(b"dbfilename", b"x")], local).is_err());
        config.enable_protected_configs = Permission::Local;
        assert!(config.set(&[(b"dbfilename", b"x")], REMOTE).is_err());
        assert!(config.set(&[(b"dbfilename", b"x")], local).is_ok());
    }

    #[test]
    fn some_parameters_cannot_be_set_while_data_is_loaded() {
        let loading = SetContext { loading: true, ..REMOTE };
        let set = |pairs: &[(&[u8], &[u8])]| Config::default().set(pairs, loading).unwrap_err();
        let diskless = (&b"repl-diskless-load"[..], &b"disabled"[..]);
        assert_eq!(set(&[diskless, (b"nosuch", b"")]), SetError::Loading);
        let unknown = SetError::Unknown { name: b"nosuch".to_vec() };
        assert_eq!(set(&[(b"nosuch", b""), diskless]), unknown);
    }

    #[test]
    fn secrets_are_known_by_every_name_and_omitted_from_debug_output() {
        assert!(
            is_sensitive(b"RequirePass") && is_sensitive(b"primaryauth") && !is_sensitive(b"port")
        );
        let config = Config { requirepass: b"hunter2".to_vec(), ..Config::default() };
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn names_and_aliases_are_unique_and_lower_case() {
        let mut names: Vec<_> = PARAMS.iter().flat_map(Param::names).collect();
        assert!(names.iter().all(|name| !name.bytes().any(|byte| byte.is_ascii_uppercase())));
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
