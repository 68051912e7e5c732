//! Values of Lua become replies, and replies values, whatever they are.

use std::cell::RefCell;

use crate::support::{Reply, TestServer};
use proptest::prelude::*;

/// A value that a script returns.
#[derive(Clone, Debug)]
enum Value {
    Number(f64),
    Text(Vec<u8>),
    Boolean(bool),
    Double(f64),
    Status(String),
    Error(String),
    Array(Vec<Value>),
    Map(Vec<(u16, Value)>),
    Set(Vec<u16>),
}

fn value() -> impl Strategy<Value = Value> {
    let simple = prop_oneof![
        any::<i32>().prop_map(|number| Value::Number(number.into())),
        (-1e15..1e15).prop_map(Value::Number),
        any::<f64>().prop_map(Value::Number),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Text),
        any::<bool>().prop_map(Value::Boolean),
        any::<i32>().prop_map(|number| Value::Double(f64::from(number) / 8.0)),
        "[a-zA-Z ]{1,10}".prop_map(Value::Status),
        "[A-Z]{1,5} [a-z ]{1,10}".prop_map(Value::Error),
    ];
    simple.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::btree_map(any::<u16>(), inner, 0..6)
                .prop_map(|map| Value::Map(map.into_iter().collect())),
            prop::collection::btree_set(any::<u16>(), 0..6)
                .prop_map(|set| Value::Set(set.into_iter().collect())),
        ]
    })
}

fn escape(text: &[u8]) -> String {
    let bytes: Vec<String> = text.iter().map(|byte| format!("\\{byte:03}")).collect();
    format!("'{}'", bytes.concat())
}

fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "(0/0)".into(),
        value if value.is_infinite() => format!("({}1/0)", if value < 0.0 { "-" } else { "" }),
        value => format!("({value:e})"),
    }
}

impl Value {
    /// As Lua writes it.
    fn source(&self) -> String {
        let all = |items: Vec<String>| format!("{{{}}}", items.join(","));
        match self {
            Value::Number(value) => number(*value),
            Value::Text(text) => escape(text),
            Value::Boolean(value) => value.to_string(),
            Value::Double(value) => format!("{{double={}}}", number(*value)),
            Value::Status(text) => format!("{{ok={}}}", escape(text.as_bytes())),
            Value::Error(text) => format!("{{err={}}}", escape(text.as_bytes())),
            Value::Array(items) => all(items.iter().map(Value::source).collect()),
            Value::Map(pairs) => {
                let pair = |(key, value): &(u16, Value)| format!("k{key}={}", value.source());
                format!("{{map={}}}", all(pairs.iter().map(pair).collect()))
            }
            Value::Set(items) => {
                let item = |item: &u16| format!("k{item}=true");
                format!("{{set={}}}", all(items.iter().map(item).collect()))
            }
        }
    }

    /// As a client in RESP3 gets it, from a script in RESP3.
    fn reply(&self) -> Reply {
        let key = |key: &u16| Reply::Bulk(format!("k{key}").into_bytes());
        match self {
            Value::Number(value) => Reply::Integer(
                // What does not fit becomes the least integer.
                if (-(2f64.powi(63))..2f64.powi(63)).contains(value) {
                    *value as i64
                } else {
                    i64::MIN
                },
            ),
            Value::Text(text) => Reply::Bulk(text.clone()),
            Value::Boolean(value) => Reply::Boolean(*value),
            Value::Double(value) => Reply::Double(value.to_string()),
            Value::Status(text) => Reply::Simple(text.clone().into_bytes()),
            Value::Error(text) => Reply::Error(text.clone().into_bytes()),
            Value::Array(items) => Reply::Array(items.iter().map(Value::reply).collect()),
            Value::Map(pairs) => sorted(Reply::Map(
                pairs.iter().map(|(name, value)| (key(name), value.reply())).collect(),
            )),
            Value::Set(items) => sorted(Reply::Set(items.iter().map(key).collect())),
        }
    }
}

/// Maps and sets have no order.
fn sorted(reply: Reply) -> Reply {
    match reply {
        Reply::Array(items) => Reply::Array(items.into_iter().map(sorted).collect()),
        Reply::Set(mut items) => {
            items.sort_by_key(Reply::show);
            Reply::Set(items)
        }
        Reply::Map(pairs) => {
            let mut pairs: Vec<_> =
                pairs.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            pairs.sort_by_key(|(key, _)| key.show());
            Reply::Map(pairs)
        }
        reply => reply,
    }
}

#[test]
fn what_a_script_returns_arrives() {
    let server = TestServer::start(&[]);
    let client = RefCell::new(server.connect());
    client.borrow_mut().call(&["HELLO", "3"]);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(200));
    runner
        .run(&value(), |value| {
            let body = format!("redis.setresp(3) return {}", value.source());
            let shown = client.borrow_mut().call(&["EVAL", &body, "0"]);
            prop_assert_eq!(sorted(shown), value.reply(), "{}", body);
            Ok(())
        })
        .expect("values arrive");
}

#[test]
fn what_a_command_is_given_and_answers_stays_the_same() {
    let server = TestServer::start(&[]);
    let client = RefCell::new(server.connect());
    let texts = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..20);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(100));
    runner
        .run(&texts, |texts| {
            let body = "redis.call('del', KEYS[1]) redis.call('rpush', KEYS[1], unpack(ARGV)) \
                        return redis.call('lrange', KEYS[1], 0, -1)";
            let mut request: Vec<&[u8]> = vec![b"EVAL", body.as_bytes(), b"1", b"list"];
            request.extend(texts.iter().map(Vec::as_slice));
            let expected = Reply::Array(texts.iter().cloned().map(Reply::Bulk).collect());
            prop_assert_eq!(client.borrow_mut().call(&request), expected);
            Ok(())
        })
        .expect("texts stay the same");
}
