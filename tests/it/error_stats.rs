//! INFO errorstats: how many errors of each code there were, also of codes that scripts make up.

use std::collections::BTreeMap;

use crate::support::{Client, Reply, TestServer};

fn counts(client: &mut Client) -> BTreeMap<String, u64> {
    let (Reply::Bulk(text) | Reply::Verbatim(text)) = client.call(&["INFO", "errorstats"]) else {
        panic!("a text")
    };
    let lines = String::from_utf8(text).expect("codes that are text");
    let count = |line: &str| {
        let (code, count) = line.strip_prefix("errorstat_")?.split_once(":count=")?;
        Some((code.to_owned(), count.parse().expect("a number")))
    };
    lines.lines().filter_map(count).collect()
}

fn fail(client: &mut Client, script: &str, argument: &str) {
    let reply = client.call(&["EVAL", script, "0", argument]);
    assert!(matches!(reply, Reply::Error(_)), "{script}: {reply:?}");
}

#[test]
fn every_code_is_counted_and_in_valkey_many_of_scripts_together() {
    for (config, own, over) in [(&[][..], 1_100, 0), (&["compatible-with valkey-9"], 128, 972)] {
        let config: Vec<String> = config.iter().map(|&line: &&str| line.to_owned()).collect();
        let server = TestServer::start(&config);
        let mut client = server.connect();
        let made_up = "return redis.error_reply(ARGV[1] .. ' my error message')";
        for number in 1..=1_100 {
            fail(&mut client, made_up, &number.to_string());
        }
        client.call(&["SET", "a", "b", "c", "d"]);
        fail(&mut client, made_up, "1");
        fail(&mut client, "return {err = 'Mine is new'}", "");
        fail(&mut client, "return redis.call('GET', 'too', 'many')", "");
        let all = counts(&mut client);
        let overflow = all.get("ERRORSTATS_OVERFLOW").copied().unwrap_or_default();
        assert_eq!(overflow, if over > 0 { over + 1 } else { 0 });
        assert_eq!((all["ERR"], all["1"], all["2"]), (2, 2, 1));
        assert_eq!(all.contains_key("1100"), over == 0);
        assert_eq!(all.contains_key("Mine"), over == 0);
        let rest = ["ERR", "Mine", "ERRORSTATS_OVERFLOW"];
        assert_eq!(all.keys().filter(|code| !rest.contains(&&***code)).count(), own);
    }
}

#[test]
fn a_code_is_a_short_first_word() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    for (text, code) in [
        ("FOO", "ERR"),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZABCD x", "ABCDEFGHIJKLMNOPQRSTUVWXYZABCD"),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZABCDE x", "ERR"),
        ("a\0b c", "ERR"),
        (" c", ""),
        ("", "ERR"),
        ("FOO bar", "FOO"),
    ] {
        client.call(&["CONFIG", "RESETSTAT"]);
        fail(&mut client, "return {err = ARGV[1]}", text);
        assert_eq!(counts(&mut client), BTreeMap::from([(code.to_owned(), 1)]), "{text:?}");
    }
}
