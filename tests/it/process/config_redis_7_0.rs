//! The configuration behaves as Redis 7.0.15 does: `tests/data/config-*-7.0.15.tsv` record what
//! that server answered.

use std::collections::BTreeMap;

use latchkey::config::{Config, ConfigError, PARAMS, SetContext, parse_line};

const GET: &str = include_str!("../../data/config-get-7.0.15.tsv");
const SET: &str = include_str!("../../data/config-set-7.0.15.tsv");
const SET_VALUES: &str = include_str!("../../data/config-set-values-7.0.15.tsv");
const FILES: &str = include_str!("../../data/config-file-7.0.15.tsv");

const LOCAL: SetContext = SetContext { local_client: true, loading: false };

fn rows(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table
        .lines()
        .enumerate()
        .filter(|(index, line)| *index > 1 || !line.starts_with("# "))
        .filter_map(|(_, line)| {
            let row: Vec<&str> = line.split('\t').collect();
            (row.len() > 1).then_some(row)
        })
}

fn value(config: &Config, name: &str) -> Option<String> {
    config
        .get(&[name.as_bytes()])
        .pop()
        .map(|(_, value)| String::from_utf8_lossy(&value).into_owned())
}

/// CONFIG SET with arguments written as on a line of the file. Gives the reply.
fn set(config: &mut Config, arguments: &str) -> String {
    let arguments =
        parse_line(arguments.as_bytes()).expect("quotes are balanced").expect("arguments");
    let pairs: Vec<(&[u8], &[u8])> =
        arguments.chunks(2).map(|pair| (&pair[0][..], &pair[1][..])).collect();
    match config.set(&pairs, LOCAL) {
        Ok(_) => "OK".into(),
        Err(error) => String::from_utf8_lossy(&error.reply()).into_owned(),
    }
}

/// Defaults that differ from the recorded ones.
fn exception(name: &str) -> bool {
    match name {
        // The peer ran elsewhere, and was told to listen on a Unix socket only.
        "dir" | "port" | "unixsocket" => true,
        _ => false,
    }
}

#[test]
fn every_name_is_known_and_has_the_same_default() {
    let config = Config::default();
    let mut count = 0;
    for row in rows(GET) {
        let ours = value(&config, row[0]).unwrap_or_else(|| panic!("{} is unknown", row[0]));
        assert!(ours == row[1] || exception(row[0]), "{}: {ours:?}, Redis {:?}", row[0], row[1]);
        count += 1;
    }
    assert_eq!(count, 198);
}

#[test]
fn config_get_of_everything_has_every_name_but_the_hidden_ones() {
    let names: Vec<_> = Config::default().get(&[b"*"]).into_iter().map(|(name, _)| name).collect();
    for row in rows(GET) {
        let param = PARAMS
            .iter()
            .find(|param| param.names().any(|name| name == row[0]))
            .expect("a known name");
        assert_eq!(names.contains(&row[0].as_bytes().to_vec()), !param.traits.hidden, "{}", row[0]);
    }
}

#[test]
fn config_set_replies_and_changes_alike() {
    let mut config = Config::default();
    // A level of the log that Redis 7.2 knows.
    for row in rows(SET).filter(|row| row[0] != "loglevel nothing") {
        assert_eq!(set(&mut config, row[0]), row[1], "{}", row[0]);
        let name = row[0].split(' ').next().unwrap_or_default();
        assert_eq!(value(&config, name).unwrap_or("-".into()), row[2], "after {}", row[0]);
    }
}

#[test]
fn config_set_takes_and_refuses_the_same_values() {
    for row in rows(SET_VALUES) {
        assert_eq!(set(&mut Config::default(), row[0]), row[1], "{}", row[0]);
    }
}

#[test]
fn every_parameter_can_be_set_to_its_own_value() {
    let mut config = Config {
        enable_protected_configs: latchkey::config::Permission::Local,
        ..Config::default()
    };
    let before = config.clone();
    for param in PARAMS.iter().filter(|param| !param.traits.immutable) {
        for name in param.names() {
            let value = config.get(&[name.as_bytes()]).remove(0).1;
            let result = config.set(&[(name.as_bytes(), &value)], LOCAL);
            assert!(result.is_ok(), "{name} {:?}", String::from_utf8_lossy(&value));
            assert!(config == before, "{name}");
        }
    }
}

#[test]
fn files_are_read_alike() {
    // Taken without effect, so that no start fails for it.
    for row in rows(FILES).filter(|row| row[0] != "activedefrag yes") {
        let mut text = b"port 0\nunixsocket /tmp/unused.sock\n".to_vec();
        let mut escaped = row[0].chars();
        while let Some(char) = escaped.next() {
            text.push(match char {
                '\\' => match escaped.next() {
                    Some('n') => b'\n',
                    Some('t') => b'\t',
                    Some('r') => b'\r',
                    Some('v') => 0x0b,
                    _ => b'\\',
                },
                other => other as u8,
            });
        }
        match (Config::from_text(&text), row[1]) {
            (Ok(config), "ok") => assert_eq!(changed(&config), row[2], "{}", row[0]),
            (Err(error), "error") => {
                let (number, reason) = match error {
                    ConfigError::Line { line, reason } => {
                        (line.number.to_string(), reason.to_string())
                    }
                    ConfigError::Whole(reason) => ("-".into(), reason.to_string()),
                    ConfigError::File { .. } => panic!("{}: no file is read", row[0]),
                };
                assert_eq!((number.as_str(), reason.as_str()), (row[2], row[3]), "{}", row[0]);
            }
            (result, wanted) => panic!("{}: {wanted}, but {result:?}", row[0]),
        }
    }
}

/// The values that are no defaults, as the recordings tell them: of names that Redis has.
fn changed(config: &Config) -> String {
    let defaults: BTreeMap<&str, &str> = rows(GET).map(|row| (row[0], row[1])).collect();
    let hidden = |name: &str| PARAMS.iter().any(|param| param.traits.hidden && param.name == name);
    let changes = defaults.iter().filter(|(name, _)| !exception(name) && !hidden(name)).filter_map(
        |(name, default)| {
            let ours = value(config, name)?;
            (ours != *default).then(|| format!("{name}={ours}"))
        },
    );
    changes.collect::<Vec<_>>().join("; ")
}
