use std::sync::LazyLock;

use proptest::prelude::*;

use super::catalogue::Catalogue;
use super::*;
use crate::command::TABLE;
use crate::gate::keys::keys_of;
use crate::gate::users::{self, Databases};
use crate::keyspace::DbIndex;
use crate::resp::request::Range;

fn catalogue() -> Catalogue {
    TABLE.catalogue()
}

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(catalogue);

fn context(catalogue: &Catalogue) -> RuleContext<'_> {
    RuleContext { catalogue, all_channels: false }
}

/// A user made from rules separated by spaces.
fn user(catalogue: &Catalogue, text: &str) -> Result<User, RuleError> {
    let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
    let mut user = User::new(context(catalogue));
    for rule in join_selectors(&words).expect("parentheses are closed") {
        user.apply(&rule, context(catalogue))?;
    }
    Ok(user)
}

fn described(catalogue: &Catalogue, text: &str) -> String {
    let user = user(catalogue, text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    String::from_utf8(user.describe(catalogue, Format::Redis70)).expect("text")
}

/// Why a request is denied: `key 2`, `command 0`. Empty: it is permitted.
fn denied(user: &User, request: &str) -> String {
    let ranges = Range::of_words(request);
    let args = Args::new(request.as_bytes(), &ranges);
    let command = TABLE.find(args.get(0)).expect("a command");
    let sub = args.iter_from(1).next().and_then(|name| TABLE.find_subcommand(command, name));
    match users::check_user(
        user,
        sub.unwrap_or(command),
        args,
        Databases { selected: DbIndex::ZERO, count: 16 },
    ) {
        Ok(()) => String::new(),
        Err(denied) => format!("{} {}", denied.reason.word(), denied.argument),
    }
}

#[test]
fn rules_are_described_in_their_shortest_form() {
    let catalogue = catalogue();
    for (text, expected) in [
        ("", "off resetchannels -@all"),
        ("on nopass allkeys allchannels allcommands", "on nopass ~* &* +@all"),
        ("ON ~a ~b ~a %R~c %w~c %RW~d %wr~e", "on ~a ~b ~c ~d ~e resetchannels -@all"),
        ("%R~a %W~b", "off %R~a %W~b resetchannels -@all"),
        ("%R~* %W~*", "off ~* resetchannels -@all"),
        ("%RW~* ~a", "off %RW~* ~a resetchannels -@all"),
        ("~a resetkeys ~b", "off ~b resetchannels -@all"),
        ("&a &b &a", "off resetchannels &a &b -@all"),
        ("allchannels resetchannels &c", "off resetchannels &c -@all"),
        ("db=2,0,2 +get", "off resetchannels db=0,2 -@all +get"),
        ("db=1 db=3 DB=7", "off resetchannels db=7 -@all"),
        ("db=1 alldbs (resetdbs)", "off resetchannels -@all (resetchannels resetdbs -@all)"),
        ("db=2147483647 reset", "off sanitize-payload resetchannels -@all"),
        ("+get +GET -set", "off resetchannels -@all +get"),
        ("+@all -get", "off resetchannels +@all -get"),
        ("+@all -@dangerous", "off resetchannels +@all -@dangerous"),
        ("+@read +ping", "off resetchannels -@all +@read +ping"),
        ("+config|get", "off resetchannels -@all +config|get"),
        ("+config -config|set", "off resetchannels -@all +config -config|set"),
        ("+select|0 +select|1 +SELECT|0", "off resetchannels -@all +select|0 +select|1"),
        ("+select|0 +select", "off resetchannels -@all +select"),
        ("+select|0 +@connection", "off resetchannels -@all +@connection"),
        ("sanitize-payload skip-sanitize-payload", "off skip-sanitize-payload resetchannels -@all"),
        ("on ~a +get >x (~b +get) reset", "off sanitize-payload resetchannels -@all"),
        (
            "(~b +get) (%R~c &d +@all)",
            "off resetchannels -@all (~b resetchannels -@all +get) (%R~c resetchannels &d +@all)",
        ),
        ("(~b +get) clearselectors", "off resetchannels -@all"),
        ("(~a\"\\x29b\" +get)", "off resetchannels -@all (\"~a\\x29b\" resetchannels -@all +get)"),
        (
            ">secret",
            "off #2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b resetchannels -@all",
        ),
        (">secret >secret <secret", "off resetchannels -@all"),
        (">secret nopass", "off nopass resetchannels -@all"),
        ("nopass resetpass", "off resetchannels -@all"),
    ] {
        assert_eq!(described(&catalogue, text), expected, "{text}");
    }
}

#[test]
fn each_error_in_a_rule_has_its_kind() {
    let catalogue = catalogue();
    for (text, expected) in [
        ("+nosuch", RuleError::Unknown),
        ("-nosuch", RuleError::Unknown),
        ("+@nosuch", RuleError::Unknown),
        ("+config|nosuch", RuleError::Unknown),
        ("-select|0", RuleError::Unknown),
        ("+get|x|y", RuleError::Unknown),
        ("+", RuleError::Unknown),
        ("+config|get|x", RuleError::FirstArgumentOfSubcommand),
        ("+config|", RuleError::Syntax),
        ("db=", RuleError::Syntax),
        ("db=1,,2", RuleError::Syntax),
        ("db=1,", RuleError::Syntax),
        ("db=one", RuleError::Syntax),
        ("db=-", RuleError::Syntax),
        ("db=-1", RuleError::NoSuchDatabase),
        ("db=2147483648", RuleError::NoSuchDatabase),
        ("db=12345678987654321234567", RuleError::NoSuchDatabase),
        ("+select|a\tb", RuleError::Syntax),
        ("~a\tb", RuleError::Syntax),
        ("&a\0", RuleError::Syntax),
        ("%~a", RuleError::Syntax),
        ("%X~a", RuleError::Syntax),
        ("%RR~a", RuleError::Syntax),
        ("nosuch", RuleError::Syntax),
        ("(on)", RuleError::Syntax),
        ("(~a\"b)", RuleError::Syntax),
        ("~* ~a", RuleError::KeysAfterAll),
        ("&* &a", RuleError::ChannelsAfterAll),
        ("<x", RuleError::NoSuchPassword),
        ("#00", RuleError::BadHash),
        (&format!("#{}", "G".repeat(64)), RuleError::BadHash),
        (&format!("!{}", "0".repeat(64)), RuleError::NoSuchPassword),
    ] {
        assert_eq!(user(&catalogue, text).map(drop), Err(expected), "{text}");
    }
}

#[test]
fn selectors_split_at_spaces_are_joined() {
    let merged = |text: &str| -> Result<Vec<String>, String> {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        join_selectors(&words)
            .map(|rules| rules.iter().map(|rule| text(rule)).collect())
            .map_err(text)
    };
    let expected = |rules: &[&str]| Ok(rules.iter().map(|rule| (*rule).to_owned()).collect());
    assert_eq!(merged("on (~a +get) off"), expected(&["on", "(~a +get)", "off"]));
    assert_eq!(merged("(~a) (+get"), Err("(+get".into()));
    assert_eq!(merged("( ~a )"), expected(&["( ~a )"]));
    assert_eq!(merged(")"), expected(&[")"]));
}

#[test]
fn a_request_is_permitted_as_a_whole_by_one_selector() {
    let catalogue = catalogue();
    let user = |text: &str| user(&catalogue, text).expect("good rules");
    for (text, request, expected) in [
        ("+get ~a*", "GET abc", ""),
        ("+get ~a*", "GET b", "key 1"),
        ("+get ~a*", "SET abc v", "command 0"),
        ("", "AUTH pw", ""),
        ("+mget ~a ~b", "MGET a b c", "key 3"),
        ("+config|get", "CONFIG GET x", ""),
        ("+config|get", "CONFIG SET x y", "command 0"),
        ("+select|0", "SELECT 0", ""),
        ("+select|0", "SELECT 1", "command 0"),
        ("+@all %R~a", "GET a", ""),
        ("+@all %R~a", "SET a v", "key 1"),
        ("+@all %W~a", "SET a v", ""),
        ("+@all %W~a", "SET a v GET", "key 1"),
        ("+@all %W~a %R~b", "COPY b a", ""),
        ("+@all %W~a %R~b", "COPY a b", "key 1"),
        // EXISTS needs any access.
        ("+@all %W~a", "EXISTS a", ""),
        ("+@all ~* db=0", "GET a", ""),
        ("+@all ~* db=1", "GET a", "database 0"),
        ("+@all ~* db=1", "DBSIZE", "database 0"),
        ("+@all ~* db=1", "PING", ""),
        ("+@all ~* db=1", "SELECT 1", ""),
        ("+@all ~* db=1", "SELECT 0", "database 1"),
        ("+@all ~* db=1", "SELECT 16", ""),
        ("+@all ~* db=0,1", "SWAPDB 0 1", ""),
        ("+@all ~* db=0,1", "SWAPDB 0 2", "database 2"),
        ("+@all ~* db=0,1", "MOVE a 1", ""),
        ("+@all ~* db=1", "MOVE a 1", "database 0"),
        ("+@all ~* db=0,1", "COPY a b DB 1 DB 2", "database 6"),
        ("+@all ~* db=0,1", "COPY a b REPLACE DB 1", ""),
        ("+@all ~* db=0,1", "FLUSHALL", "database 0"),
        ("+@all ~* db=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "FLUSHALL", ""),
        ("+@all ~* resetdbs (+get ~a db=0)", "GET a", ""),
        ("+@all ~* resetdbs (+get ~a db=0)", "SET a v", "command 0"),
        ("+@all ~a", "SORT a STORE b", "key 3"),
        ("+@all ~a", "EVAL x 2 a b", "key 4"),
        ("+@all ~a", "BZPOPDUE a 0 UNIT MS", ""),
        ("+@all ~a", "BZPOPDUE a b 0 UNIT S", "key 2"),
        // GEORADIUS uses the last STORE.
        ("+@all ~a", "GEORADIUS a 1 1 1 km STORE a STORE b", "key 9"),
        ("+@all ~a", "MIGRATE h 1 b 0 9", "key 3"),
        ("+@all &c*", "PUBLISH ch m", ""),
        ("+@all &c*", "PUBLISH d m", "channel 1"),
        ("+@all &c*", "SUBSCRIBE c d", "channel 2"),
        ("+@all &c*", "PSUBSCRIBE c*", ""),
        ("+@all &c*", "PSUBSCRIBE ca*", "channel 1"),
        ("+@all", "UNSUBSCRIBE d", ""),
        ("+@all &s", "SPUBLISH s m", ""),
        ("+get ~a (+set ~b)", "SET b v", ""),
        ("+get ~a (+set ~b)", "SET a v", "key 1"),
        ("+get ~a (+set ~b)", "GET b", "key 1"),
        ("+get ~a (+set ~b)", "DEL a", "command 0"),
    ] {
        assert_eq!(denied(&user(text), request), expected, "{text}: {request}");
    }
}

#[test]
fn a_user_has_any_of_its_passwords() {
    let catalogue = catalogue();
    let user = |text: &str| user(&catalogue, text).expect("good rules");
    assert!(user("on >a >b").accepts(b"a") && user("on >a >b").accepts(b"b"));
    for other in [&b""[..], b"c", b"A", b"a\0"] {
        assert!(!user("on >a >b").accepts(other));
    }
    assert!(user("on nopass").accepts(b"anything"));
    assert!(!user("on").accepts(b"") && !user(">a").accepts(b"a") && !user("nopass").accepts(b""));
}

#[test]
fn a_file_is_loaded_completely_or_not_at_all() {
    let mut acl = Acl::new(catalogue());
    acl.set_user(b"old", &[b"on"], false).expect("good rules");
    let before = acl.to_file_text(Format::Redis70);
    let text = b"user a on nosuch +what\n\nnobody\nuser b (~x\nuser a off\nuser  c";
    let Err(error) = acl.load_file_text(text, b"f", false) else { panic!("loaded") };
    let expected = "f:1: Syntax error. f:1: Error in applying operation '+what': Unknown command or category name in ACL. \
                    f:3 should start with user keyword followed by the username. \
                    f:4: Unmatched parenthesis in selector definition.\
                    WARNING: Duplicate user 'a' found on line 5. f:6: Syntax error. \
                    WARNING: ACL errors detected, no change to the previously active ACL rules was performed";
    assert_eq!(String::from_utf8_lossy(&error), expected);
    assert_eq!(acl.to_file_text(Format::Redis70), before);
    let old = acl.find(b"old").expect("a user");
    let default = acl.find(b"default");
    let loaded = acl.load_file_text(b"user a on &x\r\n\n", b"f", false);
    let loaded = loaded.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!(loaded.deleted, [old]);
    assert_eq!(acl.find(b"default"), default, "the default user is never deleted");
    let text = acl.to_file_text(Format::Redis70);
    assert_eq!(text, b"user a on resetchannels &x -@all\nuser default on nopass ~* &* +@all\n");
    let again = acl.load_file_text(&text, b"f", false).unwrap_or_else(|error| panic!("{error:?}"));
    assert!(again.changed.iter().all(|changed| changed.remaining_channels.is_none()));
    assert_eq!(acl.to_file_text(Format::Redis70), text);
}

#[test]
fn a_file_of_many_users_is_loaded_in_one_pass() {
    // A loop over all users for each user would take minutes.
    const USERS: usize = 100_000;
    let mut acl = Acl::new(catalogue());
    let mut text = String::from("user default on nopass ~* &* +@all\n");
    text.extend((0..USERS).map(|number| format!("user u{number} on ~a +get\n")));
    for _ in 0..2 {
        let loaded = acl.load_file_text(text.as_bytes(), b"f", false).expect("a good file");
        assert_eq!((loaded.deleted.len(), loaded.changed.len()), (0, USERS + 1));
    }
    let loaded = acl.load_file_text(b"user a on", b"f", false).expect("a good file");
    assert_eq!(loaded.deleted.len(), USERS);
    let twice = acl.load_file_text(b"user a on\nuser a on", b"f", false);
    assert!(
        twice.is_err_and(|text| text.starts_with(b"WARNING: Duplicate user 'a' found on line 2"))
    );
}

#[test]
fn remaining_channels_are_returned_only_if_one_is_lost() {
    let catalogue = catalogue();
    let user = |text: &str| user(&catalogue, text).expect("good rules");
    let left = |old: &str, new: &str| {
        user(old).remaining_channels(&user(new)).map(|left| left.join(&b' '))
    };
    assert_eq!(left("&a", "&a &b"), None);
    assert_eq!(left("&a", "&*"), None);
    assert_eq!(left("&a", "(&a)"), None);
    assert_eq!(left("&a &b", "&b"), Some(b"b".to_vec()));
    assert_eq!(left("&*", "&b (&c)"), Some(b"b c".to_vec()));
}

#[test]
fn keys_are_found_only_for_restricted_keys() {
    let catalogue = catalogue();
    let command = TABLE.find(b"GET").expect("a command");
    let args = Args::new(b"GETk", &[Range { start: 0, len: 3 }, Range { start: 3, len: 1 }]);
    let calls = std::cell::Cell::new(0);
    let keys = || {
        calls.set(calls.get() + 1);
        keys_of(command.spec, args)
    };
    let request = Request {
        command: command.id,
        needs_no_permission: false,
        args,
        keys: &keys,
        channels: None,
        databases: DatabasesUsed {
            named: command.spec.databases,
            selected: DbIndex::ZERO,
            count: 16,
            has_keys: true,
            touches_keys: true,
        },
    };
    let user = |text: &str| user(&catalogue, text).expect("good rules");
    assert!(user("+get ~*").check(&request).is_ok());
    assert_eq!(calls.get(), 0);
    assert!(user("+get ~a (+get ~b) (+get ~c)").check(&request).is_err());
    assert_eq!(calls.get(), 1, "once for all selectors");
}

/// Random rules, valid and invalid.
fn rule() -> impl Strategy<Value = String> {
    let word =
        prop_oneof![Just("*".to_owned()), "[a-c*?\\[\\]()\"'\\\\|#>%~&+-]{0,4}", "[a-z]{1,3}",];
    let commands = TABLE.commands.iter().map(|command| command.full_name.to_string());
    let command = prop::sample::select(commands.collect::<Vec<_>>());
    let category = prop::sample::select(crate::facts::CATEGORY_NAMES.to_vec());
    let whole = prop::sample::select(vec![
        "on",
        "off",
        "nopass",
        "resetpass",
        "allkeys",
        "resetkeys",
        "allchannels",
        "resetchannels",
        "+@all",
        "-@all",
        "reset",
        "clearselectors",
        "alldbs",
        "resetdbs",
        "db=0,3",
        "sanitize-payload",
        "skip-sanitize-payload",
    ]);
    prop_oneof![
        1 => whole.prop_map(str::to_owned),
        2 => ("[+-]", command.clone()).prop_map(|(sign, name)| sign + &name),
        1 => (command, word.clone()).prop_map(|(name, word)| format!("+{name}|{word}")),
        2 => ("[+-]", category).prop_map(|(sign, (_, name))| format!("{sign}@{name}")),
        3 => ("~|%R~|%W~|%RW~|&|>|<", word.clone()).prop_map(|(sign, word)| sign + &word),
        1 => word,
    ]
}

fn any_rules() -> impl Strategy<Value = Vec<String>> {
    let selector = prop::collection::vec(rule(), 0..4).prop_map(|rules| {
        let quoted =
            |rule: &String| format!("{:?}", rule.replace('\\', "\\x5c").replace('\'', "x"));
        format!("({})", rules.iter().map(quoted).collect::<Vec<_>>().join(" "))
    });
    prop::collection::vec(prop_oneof![5 => rule(), 1 => selector], 0..12)
}

const REQUESTS: &[&str] = &[
    "GET a",
    "SET b c",
    "SET a b GET",
    "COPY a b",
    "DEL aa",
    "SELECT a",
    "CONFIG GET a",
    "PUBLISH a b",
    "PSUBSCRIBE a*",
    "EVAL x 1 ab",
    "SORT a STORE b",
    "XREAD STREAMS a 0",
    "ACL WHOAMI",
    "KEYS *",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("ACL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
    ))]

    /// The rules in ACL LIST make a user with the same permissions and the same rules; and so do
    /// the parts of ACL GETUSER.
    #[test]
    fn a_description_makes_the_same_user(
        texts in any_rules(),
        all_channels: bool,
        format in prop_oneof![Just(Format::Redis70), Just(Format::Redis72), Just(Format::Valkey9)],
    ) {
        let catalogue = &*CATALOGUE;
        let context = RuleContext { catalogue, all_channels };
        let mut user = User::new(context);
        for text in &texts {
            let mut changed = user.clone();
            if changed.apply(text.as_bytes(), context).is_ok() {
                user = changed;
            }
        }
        let line = user.describe(catalogue, format);
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let mut again = User::new(context);
        for rule in join_selectors(&words).expect("parentheses are closed") {
            let applied = again.apply(&rule, context);
            prop_assert_eq!(applied, Ok(()), "{}", String::from_utf8_lossy(&line));
        }
        let shown = |line: Vec<u8>| String::from_utf8_lossy(&line).into_owned();
        prop_assert_eq!(shown(again.describe(catalogue, format)), shown(line));
        let mut parts = User::new(context);
        parts.apply(b"reset", context).expect("a rule");
        parts.apply(b"resetchannels", context).expect("a rule");
        let root = user.root();
        let fields =
            [root.describe_commands(catalogue, format), root.describe_keys(), root.describe_channels()];
        for rule in fields.iter().flat_map(|field| field.split(|&byte| byte == b' ')) {
            prop_assert_eq!(parts.apply(rule, context), Ok(()));
        }
        prop_assert_eq!(parts.root().describe_commands(catalogue, format), &fields[0][..]);
        prop_assert_eq!(parts.root().describe_keys(), &fields[1][..]);
        for request in REQUESTS {
            prop_assert_eq!(denied(&again, request), denied(&user, request), "{}", request);
        }
    }
}
