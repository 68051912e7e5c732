//! The arguments of a command as a tree, for `COMMAND DOCS`: parsed from the notation of the
//! command's page.
//!
//! Input: `key value [NX | XX] [GET] [EX seconds | PX milliseconds]`; output: [`Argument`]s.
//! Lower-case words are values, upper-case words and signs are tokens; `[]` is optional, `<>`
//! groups, `|` separates alternatives, `...` repeats: `key [key ...]`.

use crate::state::spec::{CommandSpec, Group};

/// The kind of an argument, with the names of `COMMAND DOCS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    String,
    Integer,
    Double,
    Key,
    Pattern,
    UnixTime,
    PureToken,
    OneOf,
    Block,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Double => "double",
            Kind::Key => "key",
            Kind::Pattern => "pattern",
            Kind::UnixTime => "unix-time",
            Kind::PureToken => "pure-token",
            Kind::OneOf => "oneof",
            Kind::Block => "block",
        }
    }
}

/// An argument, or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    pub name: String,
    pub kind: Kind,
    /// The token before the value, or the token itself.
    pub token: Option<String>,
    /// For keys: the index of the command's key specification.
    pub key_spec_index: Option<usize>,
    pub optional: bool,
    pub multiple: bool,
    /// The token is repeated with each value.
    pub multiple_token: bool,
    /// The arguments of a oneof or a block.
    pub arguments: Vec<Argument>,
}

/// The arguments of a command.
pub fn arguments_of(spec: &CommandSpec) -> Vec<Argument> {
    let mut tokens = tokenize(spec.syntax).into_iter().peekable();
    let alternatives = parse_alternatives(&mut tokens);
    let mut arguments = choice(&alternatives);
    let mut next = 0;
    number_keys(&mut arguments, spec.keys.len(), &mut next);
    settle_kinds(&mut arguments, spec);
    let mut ends = arguments.iter_mut().filter(|argument| argument.name == "where");
    if let (Some(from), Some(to)) = (ends.next(), ends.next()) {
        from.name = "wherefrom".into();
        to.name = "whereto".into();
    }
    arguments
}

/// Sets the kinds of values whose names stand for several kinds.
fn settle_kinds(arguments: &mut [Argument], spec: &CommandSpec) {
    for argument in arguments {
        let kind = match (argument.name.as_str(), spec.group) {
            ("increment", _) if spec.name.ends_with("FLOAT") => Some(Kind::Double),
            // The timeout of a blocking command may have a fraction.
            ("timeout", Group::List | Group::SortedSet) => Some(Kind::Double),
            ("min" | "max", _) if spec.name.ends_with("BYSCORE") || spec.name == "ZCOUNT" => {
                Some(Kind::Double)
            }
            // IDs, or ends of a range of any kind.
            ("start" | "end", Group::Stream) => Some(Kind::String),
            ("start" | "stop", _) if spec.name == "ZRANGE" => Some(Kind::String),
            ("value", Group::Bitmap) => Some(Kind::Integer),
            ("min-idle-time", _) if spec.name == "XPENDING" => Some(Kind::Integer),
            _ => None,
        };
        argument.kind = kind.unwrap_or(argument.kind);
        settle_kinds(&mut argument.arguments, spec);
    }
}

/// A node of the notation's syntax tree.
enum Node {
    Word(String),
    Group {
        optional: bool,
        alternatives: Vec<Vec<Node>>,
    },
    /// `...`
    Repeat,
}

fn tokenize(syntax: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    for part in syntax.split_whitespace() {
        let mut word = String::new();
        for char in part.chars() {
            if matches!(char, '[' | ']' | '<' | '>' | '|') {
                if !word.is_empty() {
                    tokens.push(std::mem::take(&mut word));
                }
                tokens.push(char.into());
            } else {
                word.push(char);
            }
        }
        if !word.is_empty() {
            tokens.push(word);
        }
    }
    tokens
}

type Tokens = std::iter::Peekable<std::vec::IntoIter<String>>;

/// Parses sequences separated by `|`, up to the group's end.
fn parse_alternatives(tokens: &mut Tokens) -> Vec<Vec<Node>> {
    let mut alternatives = vec![Vec::new()];
    while let Some(token) = tokens.next_if(|token| token != "]" && token != ">") {
        if token == "|" {
            alternatives.push(Vec::new());
            continue;
        }
        let node = match token.as_str() {
            "[" | "<" => {
                let inner = parse_alternatives(tokens);
                tokens.next();
                Node::Group { optional: token == "[", alternatives: inner }
            }
            "..." => Node::Repeat,
            _ => Node::Word(token),
        };
        alternatives.last_mut().expect("it begins with one").push(node);
    }
    alternatives
}

fn is_token(word: &str) -> bool {
    !word.chars().any(|char| char.is_ascii_lowercase())
}

/// Several alternatives are one argument; a single sequence is its arguments.
fn choice(alternatives: &[Vec<Node>]) -> Vec<Argument> {
    if let [sequence] = alternatives {
        return arguments(sequence);
    }
    let arguments: Vec<Argument> =
        alternatives.iter().filter_map(|sequence| one(arguments(sequence))).collect();
    vec![Argument { name: choice_name(&arguments), ..group(Kind::OneOf, arguments) }]
}

/// Combines several arguments into a block.
fn one(mut arguments: Vec<Argument>) -> Option<Argument> {
    if arguments.len() > 1 {
        let mut block = group(Kind::Block, arguments);
        // A count of random elements, with or without their values or scores.
        if matches!(block.name.as_str(), "count_withvalues" | "count_withscores") {
            block.name = "options".into();
        }
        return Some(block);
    }
    arguments.pop()
}

fn group(kind: Kind, arguments: Vec<Argument>) -> Argument {
    let names: Vec<&str> = arguments.iter().map(|argument| argument.name.as_str()).collect();
    Argument {
        name: names.join("_"),
        kind,
        token: None,
        key_spec_index: None,
        optional: false,
        multiple: false,
        multiple_token: false,
        arguments,
    }
}

fn choice_name(arguments: &[Argument]) -> String {
    let has =
        |token: &str| arguments.iter().any(|argument| argument.token.as_deref() == Some(token));
    let name = match () {
        () if has("EX") || has("PX") => "expiration",
        () if has("ASC") => "order",
        () if has("BYTE") || has("M") => "unit",
        () if has("=") || has("~") => "operator",
        () if has("NX") || has("XX") => "condition",
        () if has("GT") || has("LT") => "comparison",
        () if has("LEFT") || has("BEFORE") => "where",
        () if has("SUM") => "aggregate",
        () if has("SCHEDULE") => "operation",
        () if has("MIN") && has("MAX") => "where",
        () if has("BYSCORE") => "sortby",
        () if has("FROMMEMBER") => "from",
        () => return group(Kind::OneOf, arguments.to_vec()).name,
    };
    name.into()
}

fn value(name: &str, token: Option<&str>) -> Argument {
    let kind = match name {
        "sourcekey" | "srckey" | "key" | "newkey" | "key1" | "key2" | "destkey" | "destination"
        | "source" | "dst" | "src" => Kind::Key,
        "pattern" => Kind::Pattern,
        "unix-time-seconds" | "unix-time-milliseconds" => Kind::UnixTime,
        "seconds" | "milliseconds" | "count" | "offset" | "start" | "end" | "stop" | "index"
        | "cursor" | "numkeys" | "increment" | "decrement" | "db" | "index1" | "index2" | "len"
        | "bit" | "min-match-len" | "samples" | "client-id" | "version" | "protover"
        | "timeout" | "numreplicas" | "port" | "rank" | "destination-db" | "num-matches"
        | "weight" | "limit" | "slot" | "start-slot" | "end-slot" | "config-epoch"
        | "cluster_bus_port" | "ttl" | "frequency" | "bits" | "ms" | "entries-read"
        | "entries-added" => Kind::Integer,
        "score" | "longitude" | "latitude" | "radius" | "width" | "height" => Kind::Double,
        _ => Kind::String,
    };
    let name = name.trim_matches('"').into();
    Argument { name, kind, token: token.map(str::to_owned), ..group(kind, Vec::new()) }
}

fn pure_token(token: &str) -> Argument {
    let token = token.trim_matches('"');
    let name = match token {
        "=" => "equal".into(),
        "~" => "approximately".into(),
        "*" => "auto_id".into(),
        "$" => "last_id".into(),
        "" => "empty_string".into(),
        "CH" => "change".into(),
        "INCR" => "increment".into(),
        _ => token.to_ascii_lowercase(),
    };
    Argument { name, token: Some(token.into()), ..group(Kind::PureToken, Vec::new()) }
}

fn arguments(sequence: &[Node]) -> Vec<Argument> {
    let mut found: Vec<Argument> = Vec::new();
    let mut rest = sequence;
    while let [node, behind @ ..] = rest {
        rest = behind;
        match node {
            Node::Word(word) if !is_token(word) => found.push(value(word, None)),
            Node::Word(token) => {
                let (argument, taken) = token_argument(token, behind, found.is_empty());
                found.push(argument);
                rest = &behind[taken..];
            }
            Node::Group { optional: true, alternatives } if repeats(alternatives) => {
                let body = arguments(&alternatives[0][..alternatives[0].len() - 1]);
                repeat(&mut found, body);
            }
            Node::Group { optional, alternatives } => {
                let inner = choice(alternatives);
                if *optional {
                    found.extend(one(inner).map(|inner| Argument { optional: true, ..inner }));
                } else {
                    found.extend(inner);
                }
            }
            Node::Repeat => {
                if let Some(last) = found.last_mut() {
                    last.multiple = true;
                }
            }
        }
    }
    found
}

/// Whether a group is `[something ...]`.
fn repeats(alternatives: &[Vec<Node>]) -> bool {
    matches!(alternatives, [sequence] if matches!(sequence.last(), Some(Node::Repeat)))
}

/// Whether nothing follows but `[TOKEN ... ...]` with the same token.
fn is_end_or_repeat(token: &str, behind: &[Node]) -> bool {
    match behind {
        [] => true,
        [Node::Group { optional: true, alternatives }] if repeats(alternatives) => {
            matches!(alternatives[0].first(), Some(Node::Word(word)) if word == token)
        }
        _ => false,
    }
}

/// A token with its values or choice; and the number of nodes used.
fn token_argument(token: &str, behind: &[Node], is_first: bool) -> (Argument, usize) {
    let is_value = |node: &&Node| matches!(node, Node::Word(word) if !is_token(word));
    let values = behind.iter().take_while(is_value).count();
    match behind {
        // `LIMIT offset count` alone in its group, or with its own repetition.
        [..] if is_first && values > 1 && is_end_or_repeat(token, &behind[values..]) => {
            let block = group(Kind::Block, arguments(&behind[..values]));
            (Argument { token: Some(token.into()), ..block }, values)
        }
        [Node::Word(word), ..] if values > 0 => (value(word, Some(token)), 1),
        [Node::Group { optional: false, alternatives }, ..] => {
            let argument = one(choice(alternatives)).unwrap_or_else(|| pure_token(token));
            (Argument { token: Some(token.into()), ..argument }, 1)
        }
        _ => (pure_token(token), 0),
    }
}

/// `[body ...]`: the preceding arguments repeat, if they are the same; otherwise the body itself
/// repeats.
fn repeat(found: &mut Vec<Argument>, body: Vec<Argument>) {
    let Some(start) = found.len().checked_sub(body.len()).filter(|_| !body.is_empty()) else {
        if let Some(last) = found.last_mut().filter(|_| body.is_empty()) {
            last.multiple = true;
        } else if let Some(argument) = one(body) {
            found.push(Argument { optional: true, multiple: true, ..argument });
        }
        return;
    };
    // `ID client-id [client-id ...]` repeats without the token.
    let is_again = |before: &Argument, again: &Argument| {
        before.name == again.name && (again.token.is_none() || before.token == again.token)
    };
    let same = found[start..].iter().zip(&body).all(|(before, again)| is_again(before, again));
    let repeats_token = matches!(&body[..], [again] if again.token.is_some());
    if same {
        let repeated = one(found.split_off(start));
        found.extend(repeated.map(|argument| {
            let multiple_token = repeats_token && argument.kind != Kind::PureToken;
            Argument { multiple: true, multiple_token, ..argument }
        }));
    } else {
        let repeated = one(body);
        found.extend(repeated.map(|argument| Argument {
            optional: true,
            multiple: true,
            ..argument
        }));
    }
}

/// Assigns the specifications' indices to the keys, in order.
fn number_keys(arguments: &mut [Argument], specs: usize, next: &mut usize) {
    for argument in arguments {
        if argument.kind == Kind::Key {
            if specs == 0 {
                argument.kind = Kind::String;
            } else {
                argument.key_spec_index = Some((*next).min(specs - 1));
                *next += 1;
            }
        }
        number_keys(&mut argument.arguments, specs, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::spec::{KeyFlags, key, spec};

    /// The tree in one line: name:kind, `=TOKEN`, `?` optional, `+` multiple, `++` with its token,
    /// `#n` key.
    fn show(arguments: &[Argument]) -> String {
        let shown = arguments.iter().map(|argument| {
            let mut text = format!("{}:{}", argument.name, argument.kind.name());
            if let Some(token) = &argument.token {
                text.push_str(&format!("={token}"));
            }
            if let Some(index) = argument.key_spec_index {
                text.push_str(&format!("#{index}"));
            }
            for (is, mark) in
                [(argument.optional, "?"), (argument.multiple, "+"), (argument.multiple_token, "+")]
            {
                text.push_str(if is { mark } else { "" });
            }
            if !argument.arguments.is_empty() {
                text.push_str(&format!("({})", show(&argument.arguments)));
            }
            text
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    fn check(syntax: &'static str, expected: &str) {
        const KEYS: &[crate::state::spec::KeySpec] = &[key(1, KeyFlags::RO), key(2, KeyFlags::OW)];
        let spec = spec("X", |_| unreachable!("only described")).keys(KEYS).docs(syntax, "", "");
        assert_eq!(show(&arguments_of(&spec)), expected, "{syntax}");
    }

    #[test]
    fn the_notation_of_the_pages_becomes_the_tree_of_command_docs() {
        check("", "");
        check("key", "key:key#0");
        check("key [key ...]", "key:key#0+");
        check("key value [key value ...]", "key_value:block+(key:key#0 value:string)");
        check(
            "key value [NX | XX] [GET] [EX seconds | KEEPTTL]",
            "key:key#0 value:string condition:oneof?(nx:pure-token=NX xx:pure-token=XX) \
             get:pure-token=GET? \
             expiration:oneof?(seconds:integer=EX keepttl:pure-token=KEEPTTL)",
        );
        check(
            "key [LIMIT offset count] [GET pattern [GET pattern ...]] [STORE destination]",
            "key:key#0 offset_count:block=LIMIT?(offset:integer count:integer) \
             pattern:pattern=GET?++ destination:key=STORE#1?",
        );
        check(
            "key [<MAXLEN | MINID> [= | ~] threshold [LIMIT count]] <* | id> field value [field value ...]",
            "key:key#0 maxlen_minid_operator_threshold_count:block?(\
             maxlen_minid:oneof(maxlen:pure-token=MAXLEN minid:pure-token=MINID) \
             operator:oneof?(equal:pure-token== approximately:pure-token=~) \
             threshold:string count:integer=LIMIT?) \
             auto_id_id:oneof(auto_id:pure-token=* id:string) \
             field_value:block+(field:string value:string)",
        );
        check(
            "[GET encoding offset [GET encoding offset ...]]",
            "encoding_offset:block=GET?++(encoding:string offset:integer)",
        );
        check("[ID client-id [client-id ...]]", "client-id:integer=ID?+");
        check("ON | OFF", "on_off:oneof(on:pure-token=ON off:pure-token=OFF)");
        check("[section [section ...]]", "section:string?+");
    }

    #[test]
    fn every_command_s_syntax_can_be_parsed() {
        for command in &crate::command::TABLE.commands {
            let syntax = command.spec.syntax;
            let opened = syntax.matches(['[', '<']).count();
            let closed = syntax.matches([']', '>']).count();
            assert_eq!(opened, closed, "{}: {syntax}", command.full_name);
            let arguments = arguments_of(command.spec);
            assert_eq!(arguments.is_empty(), syntax.is_empty(), "{}: {syntax}", command.full_name);
        }
    }
}
