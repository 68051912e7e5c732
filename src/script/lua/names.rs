//! The variables that run-time errors name: `attempt to index local 'c' (a nil value)`.
//!
//! The interpreter's error has the line, the kind of operation and the types of its operands. Lua
//! 5.1's has the operand's variable too, if its value came straight from one. This parser looks for
//! it in the source, once an error needs it: for all operations of the kind in that line which can
//! have failed. If they have different variables, or one has none, the error names none.
//!
//! The parser knows the language as Lua 5.1 has it. A source with anything else has no names.

use std::collections::HashMap;
use std::ops::Range;

use memchr::{memchr2, memmem};

use crate::script::dialect::{is_part, line_end, long_end, long_level};

/// Longer sources have no names: parsing takes time. Unit: bytes.
const SOURCE_BYTES_MAX: usize = 64 << 10;
/// The deepest nesting of expressions and blocks.
const DEPTH_MAX: usize = 190;
/// The longest key in an error's text. Unit: bytes.
const SHOWN_KEY_MAX: usize = 64;
/// The most answers that are kept.
const FOUND_MAX: usize = 64;

/// The line of a place in a script or a library of functions, which an error's text begins with.
pub(super) fn line_of(place: &[u8]) -> Option<u32> {
    let place = str::from_utf8(place).ok()?.strip_suffix(": ")?;
    let (source, line) = place.rsplit_once(':')?;
    is_ours(source.as_bytes()).then(|| line.parse().ok())?
}

/// Whether this is the name of a script or a library, maybe after the place of a caller.
pub(super) fn is_ours(source: &[u8]) -> bool {
    source.ends_with(b"user_script") || source.ends_with(b"user_function")
}

/// An operation that has failed, with the types of its operands as the interpreter calls them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed<'a> {
    /// The key is a constant's text, or a type.
    Index {
        key: &'a str,
    },
    Call,
    Length,
    /// The operator as the interpreter calls it. `second`: the second operand is to blame.
    Arithmetic {
        operator: &'a str,
        second: bool,
    },
    Concatenation {
        second: bool,
    },
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    /// A number in the source.
    Number,
    /// A string in the source: the text between its quotation marks.
    Text(Range<usize>),
    Variable(Variable),
    /// A result of operations and calls.
    Result,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Variable {
    scope: &'static str,
    /// None: a field whose key is no string in the source, which Lua 5.1 calls `?`.
    name: Option<Range<usize>>,
    /// A global or a field of one: its whole path in the source, such as `string.find`.
    path: Option<Range<usize>>,
}

#[derive(Debug)]
enum Key {
    Constant(Range<usize>),
    Number,
    Any,
}

#[derive(Debug)]
enum Kind {
    Index(Key),
    Call,
    Length,
    Arithmetic { operator: &'static str, second: bool },
    Concatenation { second: bool },
}

#[derive(Debug)]
struct Operation {
    /// The first and the last line of what the interpreter may call its line.
    lines: (u32, u32),
    kind: Kind,
    operand: Value,
}

/// The operations of a source.
#[derive(Debug, Default)]
pub(super) struct Names {
    operations: Vec<Operation>,
    /// Variables that were found, or not: a script may catch the same error in a loop.
    found: HashMap<String, Option<String>>,
}

impl Names {
    /// None of a source that this parser does not understand.
    pub fn of(source: &[u8]) -> Self {
        if source.len() > SOURCE_BYTES_MAX {
            return Names::default();
        }
        let mut parser = Parser::new(source);
        match parser.chunk() {
            Ok(()) => Names { operations: parser.operations, ..Names::default() },
            Err(Unknown) => Names::default(),
        }
    }

    /// The variable whose value, of this type, an operation in a line could not use, as Lua 5.1
    /// names it. `type_of`: the type of a global or a field of one, if that is known.
    pub fn find(
        &mut self,
        source: &[u8],
        (line, failed, kind): (u32, Failed<'_>, &str),
        type_of: impl Fn(&[u8]) -> Option<&'static str>,
    ) -> Option<String> {
        let question = format!("{line} {failed:?} {kind}");
        if let Some(found) = self.found.get(&question) {
            return found.clone();
        }
        let found = self.look(source, (line, failed, kind), type_of);
        if self.found.len() == FOUND_MAX {
            self.found.clear();
        }
        self.found.insert(question, found.clone());
        found
    }

    fn look(
        &self,
        source: &[u8],
        (line, failed, kind): (u32, Failed<'_>, &str),
        type_of: impl Fn(&[u8]) -> Option<&'static str>,
    ) -> Option<String> {
        // The value to blame may be a field of a metatable, which stands in no operation: one that
        // takes a function's place there, or a table's. It is not nil.
        let hidden: &[&str] = match failed {
            _ if kind == "nil" => &[],
            Failed::Call => &["__"],
            Failed::Index { .. } => &["__index", "__newindex"],
            _ => &[],
        };
        if hidden.iter().any(|name| memmem::find(source, name.as_bytes()).is_some()) {
            return None;
        }
        let mut found: Option<(&Variable, &[u8])> = None;
        for operation in &self.operations {
            let (first, last) = operation.lines;
            if !(first..=last).contains(&line) || !operation.kind.fits(source, failed) {
                continue;
            }
            let variable = match &operation.operand {
                Value::Number if kind != "number" => continue,
                Value::Text(_) if kind != "string" => continue,
                Value::Number | Value::Text(_) | Value::Result => return None,
                Value::Variable(variable) => variable,
            };
            let path = variable.path.as_ref().map(|path| &source[path.clone()]);
            if path.and_then(&type_of).is_some_and(|found| found != kind) {
                continue;
            }
            let name = variable.name.as_ref().map_or(&b"?"[..], |name| &source[name.clone()]);
            if !is_literal(name) {
                return None;
            }
            match found {
                Some((other, its)) if other.scope != variable.scope || its != name => return None,
                _ => found = Some((variable, name)),
            }
        }
        let (variable, name) = found?;
        Some(format!("{} '{}'", variable.scope, str::from_utf8(name).ok()?))
    }
}

impl Kind {
    fn fits(&self, source: &[u8], failed: Failed<'_>) -> bool {
        match (self, failed) {
            (Kind::Index(Key::Constant(name)), Failed::Index { key }) => {
                let name = &source[name.clone()];
                name == key.as_bytes() || !is_literal(name) || is_shown_otherwise(name)
            }
            (Kind::Index(Key::Number), Failed::Index { key }) => key == "number",
            (Kind::Index(Key::Any), Failed::Index { .. })
            | (Kind::Call, Failed::Call)
            | (Kind::Length, Failed::Length) => true,
            (
                Kind::Arithmetic { operator, second },
                Failed::Arithmetic { operator: wanted, second: is_second },
            ) => *operator == wanted && *second == is_second,
            (Kind::Concatenation { second }, Failed::Concatenation { second: is_second }) => {
                *second == is_second
            }
            _ => false,
        }
    }
}

/// Whether a string is the text between its quotation marks or long brackets. Escapes are not
/// resolved, nor ends of lines.
fn is_literal(text: &[u8]) -> bool {
    !text.iter().any(|byte| matches!(byte, b'\\' | b'\r' | b'\n' | 0))
}

/// Whether the interpreter's errors may show a key otherwise than it is: by its type if it is long,
/// and not in full if it is no UTF-8. `__len` has another name there.
fn is_shown_otherwise(key: &[u8]) -> bool {
    key.len() > SHOWN_KEY_MAX || !key.is_ascii() || key == b"__len"
}

/// The source has something that is not Lua 5.1, or is nested too deeply.
struct Unknown;

type Parsed<T> = Result<T, Unknown>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    End,
    Name,
    Number,
    Text,
    /// A keyword or a symbol.
    Symbol(&'static str),
}

const KEYWORDS: &[&str] = &[
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// The longer before the shorter.
const SYMBOLS: &[&str] = &[
    "...", "..", "==", "~=", "<=", ">=", "+", "-", "*", "/", "%", "^", "#", "<", ">", "=", "(",
    ")", "{", "}", "[", "]", ";", ":", ",", ".",
];

/// The priority of a binary operator towards the operands on its left and right, and the
/// interpreter's name for an arithmetic one.
fn binary(token: Token) -> Option<(u8, u8, Option<&'static str>)> {
    let Token::Symbol(symbol) = token else { return None };
    Some(match symbol {
        "or" => (1, 1, None),
        "and" => (2, 2, None),
        "<" | ">" | "<=" | ">=" | "~=" | "==" => (3, 3, None),
        ".." => (JOINED, JOINED - 1, None),
        "+" => (6, 6, Some("add")),
        "-" => (6, 6, Some("sub")),
        "*" => (7, 7, Some("mul")),
        "/" => (7, 7, Some("div")),
        "%" => (7, 7, Some("mod")),
        "^" => (10, 9, Some("pow")),
        _ => return None,
    })
}

const UNARY: u8 = 8;
const JOINED: u8 = 5;

struct Parser<'a> {
    source: &'a [u8],
    /// The end of the token, and the line there.
    at: usize,
    line: u32,
    token: Token,
    /// The token's place; a string's without quotation marks. And the line in which it begins.
    range: Range<usize>,
    token_line: u32,
    /// The line of the token before.
    last_line: u32,
    /// Local variables, each with the number of functions around it.
    locals: Vec<(&'a [u8], usize)>,
    functions: usize,
    depth: usize,
    operations: Vec<Operation>,
}

impl<'a> Parser<'a> {
    fn new(source: &'a [u8]) -> Self {
        Parser {
            source,
            at: 0,
            line: 1,
            token: Token::End,
            range: 0..0,
            token_line: 1,
            last_line: 1,
            locals: Vec::new(),
            functions: 0,
            depth: 0,
            operations: Vec::new(),
        }
    }

    fn chunk(&mut self) -> Parsed<()> {
        if self.source.starts_with(b"#") {
            self.at = memchr::memchr(b'\n', self.source).unwrap_or(self.source.len());
        }
        self.next()?;
        self.block()?;
        self.must_be(Token::End)
    }

    // Tokens.

    fn next(&mut self) -> Parsed<()> {
        self.last_line = self.token_line;
        self.skip_space()?;
        let (start, rest) = (self.at, &self.source[self.at..]);
        self.token_line = self.line;
        let Some(&first) = rest.first() else {
            (self.token, self.range) = (Token::End, start..start);
            return Ok(());
        };
        match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let len = rest.iter().take_while(|byte| is_part(byte)).count();
                self.at += len;
                let keyword = KEYWORDS.iter().find(|word| word.as_bytes() == &rest[..len]);
                self.token = keyword.map_or(Token::Name, |word| Token::Symbol(word));
                self.range = start..self.at;
            }
            b'0'..=b'9' => self.number(),
            b'.' if rest.get(1).is_some_and(u8::is_ascii_digit) => self.number(),
            b'\'' | b'"' => self.quoted(first)?,
            b'[' if self.long_level().is_some() => {
                (self.token, self.range) = (Token::Text, self.long_text()?);
            }
            _ => {
                let symbol = SYMBOLS.iter().find(|symbol| rest.starts_with(symbol.as_bytes()));
                let symbol = symbol.ok_or(Unknown)?;
                self.at += symbol.len();
                (self.token, self.range) = (Token::Symbol(symbol), start..self.at);
            }
        }
        Ok(())
    }

    fn skip_space(&mut self) -> Parsed<()> {
        while let Some(&byte) = self.source.get(self.at) {
            match byte {
                b'\n' | b'\r' => self.line_end(),
                b' ' | b'\t' | 0x0B | 0x0C => self.at += 1,
                b'-' if self.source[self.at..].starts_with(b"--") => {
                    self.at += 2;
                    if self.long_level().is_some() {
                        self.long_text()?;
                    } else {
                        let rest = &self.source[self.at..];
                        self.at += memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
                    }
                }
                _ => break,
            }
        }
        Ok(())
    }

    fn line_end(&mut self) {
        if let Some(behind) = line_end(&self.source[self.at..]) {
            self.at = self.source.len() - behind.len();
            self.line += 1;
        }
    }

    fn number(&mut self) {
        let start = self.at;
        while let Some(&byte) = self.source.get(self.at) {
            let is_sign =
                matches!(byte, b'+' | b'-') && matches!(self.source[self.at - 1], b'e' | b'E');
            if !(byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'_' || is_sign) {
                break;
            }
            self.at += 1;
        }
        (self.token, self.range) = (Token::Number, start..self.at);
    }

    fn quoted(&mut self, quote: u8) -> Parsed<()> {
        self.at += 1;
        let start = self.at;
        loop {
            match *self.source.get(self.at).ok_or(Unknown)? {
                byte if byte == quote => break,
                b'\\' => {
                    self.at += 1;
                    match self.source.get(self.at) {
                        Some(b'\n' | b'\r') => self.line_end(),
                        _ => self.at += 1,
                    }
                }
                _ => self.at += 1,
            }
        }
        (self.token, self.range) = (Token::Text, start..self.at);
        self.at += 1;
        Ok(())
    }

    fn long_level(&self) -> Option<usize> {
        long_level(&self.source[self.at..])
    }

    fn long_text(&mut self) -> Parsed<Range<usize>> {
        let level = self.long_level().unwrap_or(0);
        let start = self.at + level + 2;
        let end = long_end(self.source, start, level).ok_or(Unknown)?;
        while self.at < end {
            match memchr2(b'\n', b'\r', &self.source[self.at..end]) {
                Some(len) => {
                    self.at += len;
                    self.line_end();
                }
                None => break,
            }
        }
        self.at = end + level + 2;
        Ok(start..end)
    }

    fn is(&self, symbol: &str) -> bool {
        matches!(self.token, Token::Symbol(found) if found == symbol)
    }

    /// Goes on if the token is this symbol.
    fn takes(&mut self, symbol: &str) -> Parsed<bool> {
        let is_symbol = self.is(symbol);
        if is_symbol {
            self.next()?;
        }
        Ok(is_symbol)
    }

    fn must_take(&mut self, symbol: &str) -> Parsed<()> {
        if self.takes(symbol)? { Ok(()) } else { Err(Unknown) }
    }

    fn must_be(&self, token: Token) -> Parsed<()> {
        if self.token == token { Ok(()) } else { Err(Unknown) }
    }

    fn name(&mut self) -> Parsed<Range<usize>> {
        self.must_be(Token::Name)?;
        let range = self.range.clone();
        self.next()?;
        Ok(range)
    }

    fn deeper(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > DEPTH_MAX { Err(Unknown) } else { Ok(()) }
    }

    // Statements.

    /// Statements up to the end of their block, whose local variables end with it.
    fn block(&mut self) -> Parsed<()> {
        let locals = self.locals.len();
        self.statements()?;
        self.locals.truncate(locals);
        Ok(())
    }

    fn statements(&mut self) -> Parsed<()> {
        self.deeper()?;
        loop {
            match self.token {
                Token::End | Token::Symbol("end" | "else" | "elseif" | "until") => break,
                _ => self.statement()?,
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn statement(&mut self) -> Parsed<()> {
        let Token::Symbol(symbol) = self.token else { return self.assignment_or_call() };
        match symbol {
            "(" => return self.assignment_or_call(),
            ";" | "break" => return self.next(),
            _ => self.next()?,
        }
        match symbol {
            "if" => self.if_statement(),
            "while" => {
                self.expression()?;
                self.must_take("do")?;
                self.block()?;
                self.must_take("end")
            }
            "do" => {
                self.block()?;
                self.must_take("end")
            }
            "for" => self.for_statement(),
            "repeat" => {
                // The condition knows the block's variables.
                let locals = self.locals.len();
                self.statements()?;
                self.must_take("until")?;
                self.expression()?;
                self.locals.truncate(locals);
                Ok(())
            }
            "function" => self.function_statement(),
            "local" if self.takes("function")? => {
                let name = self.name()?;
                self.declare(&name);
                self.function(false)
            }
            "local" => self.local_statement(),
            "return" => match self.token {
                Token::End | Token::Symbol("end" | "else" | "elseif" | "until" | ";") => Ok(()),
                _ => self.expressions(),
            },
            _ => Err(Unknown),
        }
    }

    fn if_statement(&mut self) -> Parsed<()> {
        loop {
            self.expression()?;
            self.must_take("then")?;
            self.block()?;
            if self.takes("elseif")? {
                continue;
            }
            if self.takes("else")? {
                self.block()?;
            }
            return self.must_take("end");
        }
    }

    fn for_statement(&mut self) -> Parsed<()> {
        let mut names = vec![self.name()?];
        while self.takes(",")? {
            names.push(self.name()?);
        }
        if !self.takes("=")? {
            self.must_take("in")?;
        }
        self.expressions()?;
        self.must_take("do")?;
        let locals = self.locals.len();
        names.iter().for_each(|name| self.declare(name));
        self.block()?;
        self.locals.truncate(locals);
        self.must_take("end")
    }

    fn function_statement(&mut self) -> Parsed<()> {
        let (line, name) = (self.token_line, self.name()?);
        let mut value = self.variable(name);
        while self.takes(".")? {
            value = self.field(line, value)?;
        }
        let is_method = self.takes(":")?;
        if is_method {
            self.field(line, value)?;
        }
        self.function(is_method)
    }

    fn local_statement(&mut self) -> Parsed<()> {
        let mut names = vec![self.name()?];
        while self.takes(",")? {
            names.push(self.name()?);
        }
        if self.takes("=")? {
            self.expressions()?;
        }
        names.iter().for_each(|name| self.declare(name));
        Ok(())
    }

    fn assignment_or_call(&mut self) -> Parsed<()> {
        self.suffixed()?;
        while self.takes(",")? {
            self.suffixed()?;
        }
        if self.takes("=")? {
            self.expressions()?;
        }
        Ok(())
    }

    fn declare(&mut self, name: &Range<usize>) {
        self.locals.push((&self.source[name.clone()], self.functions));
    }

    /// A function from its parameters on.
    fn function(&mut self, is_method: bool) -> Parsed<()> {
        let locals = self.locals.len();
        self.functions += 1;
        if is_method {
            self.locals.push((b"self", self.functions));
        }
        self.must_take("(")?;
        while !self.is(")") {
            if self.takes("...")? {
                self.locals.push((b"arg", self.functions));
                break;
            }
            let name = self.name()?;
            self.declare(&name);
            if !self.takes(",")? {
                break;
            }
        }
        self.must_take(")")?;
        self.block()?;
        self.functions -= 1;
        self.locals.truncate(locals);
        self.must_take("end")
    }

    // Expressions.

    fn expressions(&mut self) -> Parsed<()> {
        self.expression()?;
        while self.takes(",")? {
            self.expression()?;
        }
        Ok(())
    }

    fn expression(&mut self) -> Parsed<Value> {
        self.operand(0)
    }

    /// An expression of operators with a higher priority than this.
    fn operand(&mut self, priority: u8) -> Parsed<Value> {
        self.deeper()?;
        let first = self.token_line;
        let mut value = self.unary(first)?;
        while let Some((left, right, name)) = binary(self.token)
            && left > priority
        {
            if self.is("..") {
                value = self.concatenation(first, value)?;
                continue;
            }
            self.next()?;
            let second = self.operand(right)?;
            if let Some(operator) = name {
                for (operand, second) in [(value, false), (second, true)] {
                    self.add(first, Kind::Arithmetic { operator, second }, operand);
                }
            }
            value = Value::Result;
        }
        self.depth -= 1;
        Ok(value)
    }

    fn unary(&mut self, first: u32) -> Parsed<Value> {
        let kind = match self.token {
            Token::Symbol("-") => Some(Kind::Arithmetic { operator: "unm", second: false }),
            Token::Symbol("#") => Some(Kind::Length),
            Token::Symbol("not") => None,
            _ => return self.simple(),
        };
        self.next()?;
        let value = self.operand(UNARY)?;
        if let Some(kind) = kind {
            self.add(first, kind, value);
        }
        Ok(Value::Result)
    }

    /// `a .. b .. c`, which is joined from its end on: once that has begun, the second operand is a
    /// string.
    fn concatenation(&mut self, first: u32, value: Value) -> Parsed<Value> {
        let mut operands = vec![value];
        while self.takes("..")? {
            operands.push(self.operand(JOINED)?);
        }
        let last = operands.pop();
        for (second, operand) in
            operands.into_iter().map(|it| (false, it)).chain(last.map(|it| (true, it)))
        {
            self.add(first, Kind::Concatenation { second }, operand);
        }
        Ok(Value::Result)
    }

    fn simple(&mut self) -> Parsed<Value> {
        let value = match self.token {
            Token::Number => Value::Number,
            Token::Text => Value::Text(self.range.clone()),
            Token::Symbol("nil" | "true" | "false" | "...") => Value::Result,
            Token::Symbol("{") => {
                self.table()?;
                return Ok(Value::Result);
            }
            Token::Symbol("function") => {
                self.next()?;
                self.function(false)?;
                return Ok(Value::Result);
            }
            _ => return self.suffixed(),
        };
        self.next()?;
        Ok(value)
    }

    fn table(&mut self) -> Parsed<()> {
        self.must_take("{")?;
        while !self.is("}") {
            if self.takes("[")? {
                self.expression()?;
                self.must_take("]")?;
                self.must_take("=")?;
                self.expression()?;
            } else {
                // Of `name = value` the name is taken for a variable, which does no harm.
                self.expression()?;
                if self.takes("=")? {
                    self.expression()?;
                }
            }
            if !self.takes(",")? && !self.takes(";")? {
                break;
            }
        }
        self.must_take("}")
    }

    /// A variable or an expression in brackets, and the fields and calls after it.
    fn suffixed(&mut self) -> Parsed<Value> {
        let line = self.token_line;
        let mut value = if self.takes("(")? {
            let value = self.expression()?;
            self.must_take(")")?;
            value
        } else {
            let name = self.name()?;
            self.variable(name)
        };
        loop {
            match self.token {
                Token::Symbol(".") => {
                    self.next()?;
                    value = self.field(line, value)?;
                }
                Token::Symbol("[") => {
                    self.next()?;
                    let key = self.expression()?;
                    self.must_take("]")?;
                    let (key, name) = match key {
                        Value::Text(text) => (Key::Constant(text.clone()), Some(text)),
                        Value::Number => (Key::Number, None),
                        _ => (Key::Any, None),
                    };
                    self.add(line, Kind::Index(key), value);
                    value = Value::Variable(Variable { scope: "field", name, path: None });
                }
                Token::Symbol(":") => {
                    self.next()?;
                    let name = self.name()?;
                    self.add(line, Kind::Index(Key::Constant(name.clone())), value);
                    let method = Variable { scope: "method", name: Some(name), path: None };
                    self.call(line, Value::Variable(method))?;
                    value = Value::Result;
                }
                Token::Symbol("(" | "{") | Token::Text => {
                    self.call(line, value)?;
                    value = Value::Result;
                }
                _ => return Ok(value),
            }
        }
    }

    /// The field whose name is here.
    fn field(&mut self, line: u32, of: Value) -> Parsed<Value> {
        let name = self.name()?;
        let path = match &of {
            Value::Variable(Variable { path: Some(path), .. }) => Some(path.start..name.end),
            _ => None,
        };
        self.add(line, Kind::Index(Key::Constant(name.clone())), of);
        Ok(Value::Variable(Variable { scope: "field", name: Some(name), path }))
    }

    /// A call from its arguments on.
    fn call(&mut self, line: u32, function: Value) -> Parsed<()> {
        self.add(line, Kind::Call, function);
        match self.token {
            Token::Text => self.next(),
            Token::Symbol("{") => self.table(),
            _ => {
                self.must_take("(")?;
                if !self.is(")") {
                    self.expressions()?;
                }
                self.must_take(")")
            }
        }
    }

    fn variable(&self, name: Range<usize>) -> Value {
        let text = &self.source[name.clone()];
        let local = self.locals.iter().rev().find(|(local, _)| *local == text);
        let scope = match local {
            Some((_, functions)) if *functions == self.functions => "local",
            Some(_) => "upvalue",
            None => "global",
        };
        let path = local.is_none().then(|| name.clone());
        Value::Variable(Variable { scope, name: Some(name), path })
    }

    /// Adds an operation that begins in a line and ends before the token.
    fn add(&mut self, first: u32, kind: Kind, operand: Value) {
        self.operations.push(Operation { lines: (first, self.last_line), kind, operand });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(source: &str, line: u32, failed: Failed<'_>, kind: &str) -> Option<String> {
        let type_of = |path: &[u8]| match path {
            b"redis" | b"string" | b"KEYS" => Some("table"),
            b"redis.call" | b"setmetatable" | b"tonumber" => Some("function"),
            b"string.nothing" => Some("nil"),
            _ => None,
        };
        Names::of(source.as_bytes()).find(source.as_bytes(), (line, failed, kind), type_of)
    }

    #[test]
    fn variables_are_named_as_lua_5_1_names_them() {
        let index = |key| Failed::Index { key };
        let add = |second| Failed::Arithmetic { operator: "add", second };
        let unm = Failed::Arithmetic { operator: "unm", second: false };
        let join = |second| Failed::Concatenation { second };
        for (source, line, failed, wanted) in [
            ("local c; return c.x", 1, index("x"), Some("local 'c'")),
            ("local c; return c['x']", 1, index("x"), Some("local 'c'")),
            ("local c; return c[1]", 1, index("number"), Some("local 'c'")),
            ("local c, d; return c.x + d.y", 1, index("y"), Some("local 'd'")),
            ("local c, d; return c[KEYS[1]], d.x", 1, index("x"), None),
            ("local c; c.x = 1", 1, index("x"), Some("local 'c'")),
            ("local c = {}; c.d.e = 1", 1, index("e"), Some("field 'd'")),
            ("return KEYS[1].x", 1, index("x"), Some("field '?'")),
            ("return f().x", 1, index("x"), None),
            (
                "local c\nlocal function f()\n  return c.x\nend f()",
                3,
                index("x"),
                Some("upvalue 'c'"),
            ),
            ("local c; c:get(1)", 1, index("get"), Some("local 'c'")),
            (
                "-- a\n--[[ b\n]] local c = redis.call('get', KEYS[1])\nreturn c.x",
                4,
                index("x"),
                Some("local 'c'"),
            ),
            ("local c\ndo local c = {} end return c.x", 2, index("x"), Some("local 'c'")),
            ("function f(a, ...) return arg.x end", 1, index("x"), Some("local 'arg'")),
            (
                "local t = {}\nt.f(redis.call('get', tonumber(1)))",
                2,
                Failed::Call,
                Some("field 'f'"),
            ),
            ("string.nothing('x')", 1, Failed::Call, Some("field 'nothing'")),
            ("local f f('x')", 1, Failed::Call, Some("local 'f'")),
            ("local f f'x'", 1, Failed::Call, Some("local 'f'")),
            ("local f f{}()", 1, Failed::Call, None),
            ("local a, b; a(b())", 1, Failed::Call, None),
            ("local a = 1; return #a", 1, Failed::Length, Some("local 'a'")),
            ("local a; return a + 1", 1, add(false), Some("local 'a'")),
            ("local a; return 1 + a", 1, add(true), Some("local 'a'")),
            ("local a; return 1 - a, a + 2", 1, add(false), Some("local 'a'")),
            ("local a; return -a", 1, unm, Some("local 'a'")),
            ("local a; return a * 2 + 1", 1, add(false), None),
            ("local t = {} return t.a + 1", 1, add(false), Some("field 'a'")),
            ("local a; return 'x' .. a", 1, join(true), Some("local 'a'")),
            ("local a; return 'x' .. a .. 'y'", 1, join(false), Some("local 'a'")),
            ("local a, b; return a .. b .. 'y'", 1, join(false), None),
            ("local a\nlocal b = 'x' ..\n a .. 'z'", 2, join(false), Some("local 'a'")),
            ("for i = 1, 2 do local x; x.y = i end", 1, index("y"), Some("local 'x'")),
            ("repeat local x until x.y", 1, index("y"), Some("local 'x'")),
            (
                "while true do if a then elseif b then else local x = 0x1p4 x.y = 1 end end",
                1,
                index("y"),
                Some("local 'x'"),
            ),
            ("local c, d; return c['\\120'], d.x", 1, index("x"), None),
            ("local c, d; return c[ [[\nx]] ], d.x", 2, index("x"), None),
            ("local c, d; return c['x\0'], d.x", 1, index("x"), None),
            ("local c, d; return c['\u{e9}'], d.x", 1, index("x"), None),
            ("local c, d; return c.__len, d.__Len", 1, index("__Len"), None),
            ("local t = {} return t['a\\65'].x", 1, index("x"), None),
            ("local t = {} return t['a\\65']()", 1, Failed::Call, None),
            ("local t = {} return t[ [[\na]] ]()", 2, Failed::Call, None),
            ("local a.b", 1, index("b"), None),
            ("a += 1", 1, add(false), None),
            ("#!lua name=x\nlocal c; return c.x", 2, index("x"), Some("local 'c'")),
        ] {
            assert_eq!(find(source, line, failed, "nil").as_deref(), wanted, "{source}");
        }
    }

    #[test]
    fn a_number_is_to_blame_as_a_variable_is() {
        let (index, add) =
            (Failed::Index { key: "x" }, Failed::Arithmetic { operator: "add", second: false });
        for (source, failed, kind, wanted) in [
            ("local n = 5 return (5).x + n.x", index, "number", None),
            ("local n; return (5).x + n.x", index, "nil", Some("local 'n'")),
            ("local n = 5 return #5 + #n", Failed::Length, "number", None),
            ("local n = 5 return (5)(n())", Failed::Call, "number", None),
            ("local n; return 5 + 1, n + 1", add, "nil", Some("local 'n'")),
            ("local n = setmetatable({}, {__index = 5}) return n.x", index, "number", None),
            ("local n = setmetatable({}, {__newindex = 5}) n.x = 1", index, "number", None),
            ("local n; setmetatable({}, {__index = 5}).y = n.x", index, "nil", Some("local 'n'")),
            (
                "local n = 5 setmetatable({}, {__add = 5}).y = n.x",
                index,
                "number",
                Some("local 'n'"),
            ),
            ("local f; return f(setmetatable({}, {__add = 5}) + 1)", Failed::Call, "number", None),
            (
                "local f; return f(setmetatable({}, {__add = 5}))",
                Failed::Call,
                "nil",
                Some("local 'f'"),
            ),
        ] {
            assert_eq!(find(source, 1, failed, kind).as_deref(), wanted, "{source}");
        }
        let long = "k".repeat(SHOWN_KEY_MAX + 1);
        let source = format!("local c, d; return c.{long}, d['string']");
        assert_eq!(find(&source, 1, Failed::Index { key: "string" }, "nil"), None);
    }

    #[test]
    fn a_source_of_another_language_or_cut_anywhere_has_no_names() {
        let source = "local a = {[1] = 'x\\'', b = [[y]], --[==[ z ]==] function(...) return ... end}\n\
            for i, j in pairs(a) do goto = i ^ -j .. 'z' if not a[i].b:c(1)() then return end end";
        for end in 0..source.len() {
            for byte in ["", "@", "\"", "[[", "--[[", "(", "end", "!"] {
                Names::of([&source[..end], byte, &source[end..]].concat().as_bytes());
                Names::of([&source[..end], byte].concat().as_bytes());
            }
        }
        let deep =
            ["(", "{", "-", "function() ", "f(", "a[", "do ", "a.."].map(|it| it.repeat(9000));
        for source in deep {
            assert!(Names::of(source.as_bytes()).operations.is_empty(), "{}", &source[..5]);
        }
    }
}
