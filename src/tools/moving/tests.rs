use super::facts::{Make, Product};
use super::*;

fn parse(words: &[&str]) -> Result<Move, String> {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    Move::parse(&words, [Some("s1".into()), None])
}

#[test]
fn the_command_line_names_two_servers_and_their_users() {
    let whole = parse(&["a:1", "[::1]:2", "--to-user", "u", "--to-pass", "s2", "--samples", "0"]);
    let whole = whole.expect("a move");
    assert_eq!((whole.from.to_string(), whole.to.to_string()), ("a:1".into(), "[::1]:2".into()));
    assert_eq!(whole.access.login.password.as_deref(), Some(&b"s1"[..]));
    assert_eq!(whole.to_login.password.as_deref(), Some(&b"s2"[..]));
    assert_eq!((whole.samples, whole.is_agreed), (0, false));
    assert_eq!(parse(&["a:1", "b:2"]).expect("a move").to_login, whole.access.login);
    for (words, why) in [
        (&["a:1"][..], "Usage: latchkey --move"),
        (&["a:1", "b"], "'b' is no address"),
        (&["a:1", "b:0"], "'b:0' is no address"),
        (&["a:1", "b:2", "--samples", "-1"], "--samples is a number"),
        (&["a:1", "b:2", "--samples"], "--samples needs a value"),
        (&["a:1", "b:2", "--pause", "0"], "--pause is between 1 and 86400 seconds"),
        (&["a:1", "b:2", "--to-user", "u"], "--to-user needs a password"),
        (&["a:1", "b:2", "--tls"], "--tls needs --cacert"),
        (&["a:1", "b:2", "--folder", "x"], "Unknown option '--folder'"),
    ] {
        let error = parse(words).expect_err("no move");
        assert!(error.starts_with(why), "{error}");
    }
}

#[test]
fn info_is_read_as_far_as_it_makes_sense() {
    let info = Info::parse(
        "# Replication\r\nrole:master\r\nslave0:ip=::1,port=7,state=online\r\nslave1:ip=x\r\n\
         slaves:ip=a,port=1\r\nslave_priority:1\r\nmaster_port:99999\r\n\
         db0:keys=3,expires=0\r\ndb7:keys=0\r\ndb2:keys=-1\r\ndbx:keys=1\r\nused_memory:x\r\n",
    );
    assert!(info.is_primary());
    assert_eq!(info.replicas(), [Address { host: "::1".into(), port: 7 }]);
    assert_eq!(info.primary(), None);
    assert_eq!(info.keys(), Keys::from([(0, 3)]));
    assert_eq!((info.number("used_memory"), info.get("none")), (0, ""));
}

#[test]
fn products_are_told_apart_by_their_fields() {
    let of = |text: &str| Product::of(&Info::parse(text));
    let latchkey = of("redis_version:7.2.4\nvalkey_version:9.1.2\nlatchkey_version:0.2.0\n");
    assert_eq!(latchkey.map(|product| product.make), Some(Make::Latchkey));
    assert_eq!(of("server:other\n"), None);
    let old = of("redis_version:6.0.16\n").expect("a Redis");
    assert!(!old.can_fail_over() && old.dialects() == ["redis-7.0"]);
    let new = of("redis_version:6.2.0\n").expect("a Redis");
    assert!(new.can_fail_over());
    let dialects = |text: &str| of(text).expect("a server").dialects()[0];
    assert_eq!(dialects("redis_version:7.0.15"), "redis-7.0");
    assert_eq!(dialects("redis_version:7.2.5"), "redis-7.2");
    assert_eq!(dialects("redis_version:7.4.0"), "redis-8");
    assert_eq!(dialects("redis_version:255.255.255"), "redis-8");
    assert_eq!(dialects("redis_version:7.2.4\nvalkey_version:9.1.2"), "valkey-9");
}
