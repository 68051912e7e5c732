//! Sources made up at random: calls of library functions with arguments from the edges, small
//! programs, odd spellings, and seeds with what follows.

use fastrand::Rng;

/// A source, and the name under which what differs is counted: the function that it calls, or the
/// form of the program.
#[derive(Clone)]
pub struct Case {
    pub group: &'static str,
    pub source: Vec<u8>,
}

/// The next case. Most are calls, since there are most of those to tell apart.
pub fn case(random: &mut Rng) -> Case {
    match random.u8(0..20) {
        0..10 => call(random),
        10..14 => program(random),
        14..19 => literal(random),
        _ => seeded(random),
    }
}

fn pick<'a>(random: &mut Rng, from: &[&'a str]) -> &'a str {
    from[random.usize(0..from.len())]
}

// --- Calls.

/// Functions and the kinds of their arguments: `n`umbers, `i`ndices (small numbers too), `c`ounts
/// (never large, as the result or the time is), `s`trings, `p`atterns, `r`eplacements, `t`ables,
/// `f`unctions, `b`ases, `F`ormats, `P`acking formats, `j`son, `m`essage pack, `R`edis's commands, `L`oaders, `x` anything.
/// A point ends those that must be there.
const FUNCTIONS: &[(&str, &str)] = &[
    ("string.byte", "s.ii"),
    ("string.char", ".ccc"),
    ("string.find", "sp.ix"),
    ("string.match", "sp.i"),
    ("string.gmatch", "sp."),
    ("string.gfind", "sp."),
    ("string.gsub", "spr.i"),
    ("string.format", "F.xxx"),
    ("string.len", "s."),
    ("string.lower", "s."),
    ("string.upper", "s."),
    ("string.rep", "sc."),
    ("string.reverse", "s."),
    ("string.sub", "si.i"),
    ("string.dump", "f."),
    ("table.concat", "t.sii"),
    ("table.insert", "tx."),
    ("table.insert", "tcx."),
    ("table.remove", "t.i"),
    ("table.getn", "t."),
    ("table.maxn", "t."),
    ("table.setn", "tn."),
    ("table.sort", "t.f"),
    ("table.foreach", "tf."),
    ("table.foreachi", "tf."),
    ("math.abs", "n."),
    ("math.acos", "n."),
    ("math.asin", "n."),
    ("math.atan", "n."),
    ("math.atan2", "nn."),
    ("math.ceil", "n."),
    ("math.cos", "n."),
    ("math.cosh", "n."),
    ("math.deg", "n."),
    ("math.exp", "n."),
    ("math.floor", "n."),
    ("math.fmod", "nn."),
    ("math.mod", "nn."),
    ("math.frexp", "n."),
    ("math.ldexp", "nn."),
    ("math.log", "n."),
    ("math.log10", "n."),
    ("math.max", "n.nn"),
    ("math.min", "n.nn"),
    ("math.modf", "n."),
    ("math.pow", "nn."),
    ("math.rad", "n."),
    ("math.sin", "n."),
    ("math.sinh", "n."),
    ("math.sqrt", "n."),
    ("math.tan", "n."),
    ("math.tanh", "n."),
    ("assert", "x.xx"),
    ("error", "x.i"),
    ("getmetatable", "x."),
    ("ipairs", "t."),
    ("load", "L.s"),
    ("loadstring", "s.s"),
    ("next", "t.x"),
    ("pairs", "t."),
    ("pcall", "f.xxx"),
    ("rawequal", "xx."),
    ("rawget", "tx."),
    ("rawset", "txx."),
    ("select", "i.xxx"),
    ("setmetatable", "tt."),
    ("tonumber", "x.b"),
    ("tonumber", "s.b"),
    ("tostring", "x."),
    ("type", "x."),
    ("unpack", "t.ii"),
    ("xpcall", "ff."),
    ("coroutine.create", "f."),
    ("coroutine.resume", "x.x"),
    ("coroutine.status", "x."),
    ("coroutine.wrap", "f."),
    ("coroutine.running", ".x"),
    ("coroutine.yield", ".x"),
    ("bit.tobit", "n."),
    ("bit.tohex", "n.n"),
    ("bit.bnot", "n."),
    ("bit.band", "n.nn"),
    ("bit.bor", "n.nn"),
    ("bit.bxor", "n.nn"),
    ("bit.lshift", "nn."),
    ("bit.rshift", "nn."),
    ("bit.arshift", "nn."),
    ("bit.rol", "nn."),
    ("bit.ror", "nn."),
    ("bit.bswap", "n."),
    ("cjson.encode", "x."),
    ("cjson.decode", "j."),
    ("cmsgpack.pack", "x.xx"),
    ("cmsgpack.unpack", "m."),
    ("cmsgpack.unpack_one", "m.i"),
    ("cmsgpack.unpack_limit", "mc.i"),
    ("struct.pack", "P.xxx"),
    ("struct.unpack", "Ps.i"),
    ("struct.size", "P."),
    ("redis.sha1hex", "s."),
    ("redis.error_reply", "s."),
    ("redis.status_reply", "s."),
    ("redis.call", "R.nx"),
    ("redis.pcall", "R.xx"),
];

const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "0/-1",
    "1",
    "-1",
    "2",
    "3",
    "-2",
    "7",
    "10",
    "16",
    "0.5",
    "-0.5",
    "1.5",
    "-1.5",
    "2.5",
    "1/3",
    "255",
    "256",
    "2^31",
    "2^31-1",
    "2^31+1",
    "-2^31",
    "-2^31-1",
    "-2^31+1",
    "2^32",
    "2^32+1",
    "-2^32",
    "2^53",
    "2^53+2",
    "-2^53",
    "2^62",
    "2^63",
    "-2^63",
    "2^64",
    "1e10",
    "1e14",
    "1e15",
    "1e16",
    "1e17",
    "123456789012345678",
    "1e100",
    "-1e100",
    "1e308",
    "5e-324",
    "1e-5",
    "1e-10",
    "0.1",
    "3.14159",
    "0/0",
    "1/0",
    "-1/0",
    "100",
    "1000",
];
const INDICES: &[&str] =
    &["0", "1", "2", "3", "4", "5", "6", "-1", "-2", "-3", "-5", "-7", "1.9", "'2'"];
const COUNTS: &[&str] = &[
    "0", "1", "2", "3", "5", "-1", "-2", "17", "65", "97", "255", "256", "-200", "1.7", "'3'", "-0",
];
const STRINGS: &[&str] = &[
    "''",
    "'a'",
    "'hello'",
    "'hello world'",
    "'a\\0b'",
    "'\\0'",
    "'10'",
    "' 10 '",
    "'-0'",
    "'0x10'",
    "'0x'",
    "'0xg'",
    "'0x1p4'",
    "'-0x10'",
    "' 0x10 '",
    "'0xffffffffffffffff'",
    "'1e3'",
    "'1e'",
    "'.5'",
    "'5.'",
    "'.'",
    "'1_000'",
    "'0b11'",
    "'nan'",
    "'inf'",
    "'infinity'",
    "'1\\0'",
    "'10\\0x'",
    "'1 2'",
    "'\\n1\\t'",
    "'1e400'",
    "'z'",
    "'ff'",
    "'777'",
    "'%d'",
    "'%'",
    "'\\255\\254'",
    "'AbC'",
    "'a,b,,c'",
    "'key=value'",
    "'\\r\\n'",
    "'\"\\\\'",
    "'{\"a\":[1,2]}'",
    "('xy'):rep(300)",
    "'return 1'",
    "'return ...'",
    "'error(1)'",
    "'x ='",
    "'err'",
    "'-ERR some text'",
    "'ERR a\\r\\nb'",
];
const TABLES: &[&str] = &[
    "{}",
    "{1}",
    "{1,2,3}",
    "{3,1,2}",
    "{'b','a','c'}",
    "{1,'2',3.5}",
    "{a=1}",
    "{a=1,b={c=2}}",
    "{[0]=0,1}",
    "{1,nil,3}",
    "{nil,2}",
    "{nil,nil,3}",
    "{1,2,nil}",
    "{n=3}",
    "{[1]=1,[2]=2,[4]=4}",
    "{[2^31]=1}",
    "{[1e15]=1}",
    "{[-1]=1,1}",
    "{[1.5]=1}",
    "{{1},{2}}",
    "{true,false}",
    "{1,2,x=3}",
    "{'a',1}",
    "{0/0}",
    "{1/0}",
    "{1e17,2^53}",
    "{ok='fine'}",
    "{err='bad'}",
    "setmetatable({1,2},{__index={5,6,7}})",
    "setmetatable({},{__len=function() return 7 end})",
    "setmetatable({},{__tostring=function() return 'shown' end})",
    "setmetatable({},{__tostring=function() return 1 end})",
    "setmetatable({},{__call=function(self, ...) return ... end})",
    "setmetatable({},{__metatable='locked'})",
    "setmetatable({},{__index=function(t,k) return k end})",
    "setmetatable({},{__newindex=function() end})",
    "setmetatable({},{__mode='k'})",
    "setmetatable({1,2,3},{__lt=function() return true end})",
    "setmetatable({},{__pairs=function() return next,{1},nil end})",
    "setmetatable({},{__iter=function() return next,{1},nil end})",
];
const FUNCTION_VALUES: &[&str] = &[
    "function(...) return ... end",
    "function() return 1 end",
    "function() return nil end",
    "function(a, b) return a > b end",
    "function(a, b) return a < b end",
    "function() error('x') end",
    "function() error('x', 0) end",
    "function() error({err='y'}) end",
    "function() error() end",
    "function() return 'return 2' end",
    "function(a) return a .. '!' end",
    "function(k, v) if v == 2 then return k end end",
    "function(...) return coroutine.yield(...) end",
    "tostring",
    "type",
    "next",
    "string.rep",
    "error",
    "pcall",
    "coroutine.create(function(a) return a, coroutine.yield(2) end)",
];
const OTHERS: &[&str] = &["nil", "true", "false"];

fn pattern(random: &mut Rng) -> String {
    const PARTS: &[&str] = &[
        "a",
        "l",
        ".",
        "%a",
        "%d",
        "%s",
        "%w",
        "%l",
        "%u",
        "%p",
        "%c",
        "%x",
        "%z",
        "%A",
        "%S",
        "%W",
        "%Z",
        "%%",
        "%.",
        "%-",
        "[abc]",
        "[^abc]",
        "[a-z]",
        "[%a_]",
        "[]]",
        "[^]]",
        "[a-]",
        "[-a]",
        "[%]]",
        "[",
        "]",
        "(",
        ")",
        "()",
        "(l+)",
        "(%w*)",
        "*",
        "+",
        "-",
        "?",
        "^",
        "$",
        "%b()",
        "%b",
        "%bxy",
        "%f[%w]",
        "%f",
        "%1",
        "%2",
        "%",
        "\\0",
        "\\255",
        " ",
        ",",
        "=",
        "h",
        "e",
        "[\\0]",
        "[^\\0]",
        "[a-\\255]",
        "%g",
        "[%g]",
        "o",
    ];
    let mut text = String::from("'");
    for _ in 0..random.u8(0..5) {
        text.push_str(pick(random, PARTS));
    }
    text + "'"
}

fn replacement(random: &mut Rng) -> String {
    const PARTS: &[&str] =
        &["a", "%0", "%1", "%2", "%%", "%", "%-", "%a", "\\0", "x", "%9", "", " ", "%\\0"];
    match random.u8(0..4) {
        0 => pick(random, &["{l='L',hello='H'}", "{}", "{l=false}", "{l=1}", "{l={}}"]).into(),
        1 => pick(
            random,
            &[
                "function(a) return a end",
                "function() return nil end",
                "function() return false end",
                "function() return 5 end",
                "function() return {} end",
                "function() return true end",
                "string.upper",
            ],
        )
        .into(),
        _ => {
            let parts: String = (0..random.u8(0..4)).map(|_| pick(random, PARTS)).collect();
            format!("'{parts}'")
        }
    }
}

fn format_string(random: &mut Rng) -> String {
    let mut text = String::from("'");
    for _ in 0..random.u8(0..4) {
        match random.u8(0..5) {
            0 => text.push_str(pick(random, &["a", " ", "%%", "\\0", "x=", "\\255"])),
            _ => {
                text.push('%');
                text.push_str(pick(
                    random,
                    &[
                        "", "", "", "", "-", "+", " ", "#", "0", "-0", "+ ", "00000", "-+ #0",
                        "-+ #00",
                    ],
                ));
                text.push_str(pick(random, &["", "", "", "5", "10", "99", "100", "20"]));
                text.push_str(pick(
                    random,
                    &["", "", "", ".0", ".1", ".3", ".20", ".99", ".100", "."],
                ));
                text.push_str(pick(
                    random,
                    &[
                        "d", "d", "i", "u", "c", "x", "X", "o", "e", "E", "f", "g", "G", "q", "s",
                        "s", "s", "s", "a", "A", "p", "n", "h", "ld", "*", "F", "", "%", "5",
                    ],
                ));
            }
        }
    }
    text + "'"
}

fn packing(random: &mut Rng) -> String {
    const PARTS: &[&str] = &[
        "b", "B", "h", "H", "i", "I", "l", "L", "i1", "i3", "I4", "i8", "i9", "I33", "f", "d", "s",
        "c0", "c1", "c3", "x", ">", "<", "=", "!", "!4", "!3", " ", "z", "T", "0", "c",
    ];
    let parts: String = (0..random.u8(0..5)).map(|_| pick(random, PARTS)).collect();
    format!("'{parts}'")
}

fn json(random: &mut Rng) -> String {
    const PARTS: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "1",
        "-1",
        "0",
        "01",
        "1e3",
        "1E+5",
        "1.5",
        "0x10",
        "nan",
        "NaN",
        "-nan",
        "Infinity",
        "-inf",
        "null",
        "true",
        "false",
        "nul",
        "\"a\"",
        "\"\\\\u0041\"",
        "\"\\\\ud83d\\\\ude00\"",
        "\"\\\\ud83d\"",
        "\"\\\\x\"",
        "\"",
        " ",
        "\\n",
        "[1,2]",
        "{\"a\":1}",
        "[]",
        "{}",
        "\\0",
        "\"a\\0b\"",
        "123456789012345678901",
        "1e400",
        "//",
        "'",
        "[[1],{}]",
    ];
    let parts: String = (0..random.u8(1..5)).map(|_| pick(random, PARTS)).collect();
    format!("'{}'", parts.replace("'", "\\'"))
}

fn message_pack(random: &mut Rng) -> String {
    const BYTES: &[u8] = &[
        0, 1, 127, 128, 129, 144, 145, 147, 160, 161, 165, 192, 193, 194, 195, 196, 199, 202, 203,
        204, 205, 206, 207, 208, 209, 210, 211, 212, 217, 218, 219, 220, 221, 222, 223, 224, 255,
        97,
    ];
    if random.bool() {
        return format!("cmsgpack.pack({})", any(random));
    }
    let bytes =
        (0..random.u8(0..10)).map(|_| format!("\\{:03}", BYTES[random.usize(0..BYTES.len())]));
    format!("'{}'", bytes.collect::<String>())
}

/// Commands that show their arguments.
fn command(random: &mut Rng) -> String {
    pick(
        random,
        &[
            "'echo'",
            "'echo'",
            "'echo'",
            "'set','k'",
            "'append','k'",
            "'incrby','n'",
            "'incrbyfloat','f'",
            "'hset','h'",
            "'ping'",
            "'nosuch'",
            "'get'",
            "'get','k'",
            "'setex','k'",
            "'zadd','z'",
            "'lpush','l'",
            "'lrange','l'",
            "'type'",
            "'GET','h'",
        ],
    )
    .into()
}

/// A value of any kind.
fn any(random: &mut Rng) -> String {
    let kinds = b"nnsstfioo";
    let kind = kinds[random.usize(0..kinds.len())];
    match kind {
        b'o' => pick(random, OTHERS).into(),
        _ => argument(random, kind),
    }
}

fn argument(random: &mut Rng, kind: u8) -> String {
    match kind {
        b'n' => pick(random, NUMBERS).into(),
        b'i' if random.u8(0..3) > 0 => pick(random, INDICES).into(),
        b'i' => pick(random, NUMBERS).into(),
        b'c' => pick(random, COUNTS).into(),
        b's' => pick(random, STRINGS).into(),
        b'p' => pattern(random),
        b'r' => replacement(random),
        b't' => pick(random, TABLES).into(),
        b'f' => pick(random, FUNCTION_VALUES).into(),
        b'b' => pick(
            random,
            &["2", "8", "10", "16", "36", "1", "37", "0", "-1", "nil", "'16'", "10.9", "2^32+16"],
        )
        .into(),
        b'F' => format_string(random),
        b'P' => packing(random),
        b'j' => json(random),
        b'm' => message_pack(random),
        b'R' => command(random),
        // What never ends is read for ever.
        b'L' => pick(
            random,
            &[
                "function() return nil end",
                "function() error('x') end",
                "function() error({err='y'}) end",
                "function() return 'return 2' end",
                "function() return {} end",
                "coroutine.wrap(function() coroutine.yield('return ') coroutine.yield('...') end)",
                "coroutine.wrap(function() coroutine.yield('return 1') coroutine.yield('') end)",
                "coroutine.wrap(function() coroutine.yield('return a\\0') return '\\0' end)",
                "next",
            ],
        )
        .into(),
        _ => any(random),
    }
}

fn call(random: &mut Rng) -> Case {
    let (name, kinds) = FUNCTIONS[random.usize(0..FUNCTIONS.len())];
    let mut args = Vec::new();
    let mut is_needed = true;
    for kind in kinds.bytes() {
        if kind == b'.' {
            is_needed = false;
            continue;
        }
        if random.u8(0..if is_needed { 30 } else { 2 }) == 0 {
            break;
        }
        // Of another kind, unless a number could be too large.
        let takes_any = !b"cL".contains(&kind) && random.u8(0..10) == 0;
        args.push(if takes_any { any(random) } else { argument(random, kind) });
    }
    if random.u8(0..40) == 0 && name != "table.insert" && name != "cmsgpack.unpack_limit" {
        args.push(any(random));
    }
    let args = args.join(", ");
    let source = match name {
        // What they return is only seen in use.
        "string.gmatch" | "string.gfind" => {
            format!(
                "local all = {{}} for a, b in {name}({args}) do all[#all + 1] = {{a, b}} if #all > 20 then break end end return all"
            )
        }
        "ipairs" | "pairs" => format!(
            "local f, t, start = {name}({args}) local all, n = {{}}, 0 for k, v in f, t, start do all[k] = v n = n + 1 if n > 20 then break end end return n, all, start"
        ),
        "load" | "loadstring" => {
            format!(
                "local f, message = {name}({args}) if not f then error(message, 0) end return f('given')"
            )
        }
        "coroutine.wrap" => format!("local f = {name}({args}) return f(1), f(2)"),
        "coroutine.create" => format!("return coroutine.resume({name}({args}), 1, 2)"),
        "string.dump" => format!("return type({name}({args}))"),
        // They change their first argument.
        "table.insert" | "table.remove" | "table.sort" | "rawset" | "setmetatable"
        | "table.setn"
            if args.starts_with(['{', 's']) =>
        {
            let (first, rest) = split_first(&args);
            format!("local t = {first} local all = {{{name}(t{rest})}} return t, all")
        }
        _ if random.u8(0..20) == 0 && name.starts_with("string.") && args.starts_with('\'') => {
            let (first, rest) = split_first(&args);
            let rest = rest.strip_prefix(", ").unwrap_or_default();
            format!("return ({first}):{}({rest})", &name["string.".len()..])
        }
        _ => format!("return {name}({args})"),
    };
    Case { group: name, source: source.into_bytes() }
}

/// The first argument, and the rest with the comma before it.
fn split_first(args: &str) -> (&str, &str) {
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for (at, letter) in args.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\'' => quoted = !quoted,
            _ if quoted => {}
            '{' | '(' => depth += 1,
            '}' | ')' => depth -= 1,
            ',' if depth == 0 && !args[..at].ends_with(" end function(a") => {
                return args.split_at(at);
            }
            _ => {}
        }
    }
    (args, "")
}

// --- Programs.

fn program(random: &mut Rng) -> Case {
    let mut maker = Program { random, text: String::new(), names: 0, budget: 14 };
    maker.text.push_str(
        "local out = {} local function add(...) out[#out + 1] = {select('#', ...), ...} end ",
    );
    let group = maker.body();
    maker.text.push_str(" return out");
    Case { group, source: maker.text.into_bytes() }
}

struct Program<'a> {
    random: &'a mut Rng,
    text: String,
    /// Local variables `v1`, `v2`, ... of any type that are in scope.
    names: usize,
    budget: usize,
}

impl Program<'_> {
    fn body(&mut self) -> &'static str {
        match self.random.u8(0..6) {
            0 => {
                self.metatables();
                "metatables"
            }
            1 => {
                self.coroutines();
                "coroutines"
            }
            2 => {
                self.varargs();
                "varargs"
            }
            _ => {
                while self.budget > 0 {
                    self.statement(0);
                }
                "statements"
            }
        }
    }

    fn expression(&mut self, depth: u8) -> String {
        if depth > 2 || self.random.u8(0..3) == 0 {
            return match self.random.u8(0..8) {
                0..4 if self.names > 0 => format!("v{}", self.random.usize(1..=self.names)),
                4 => pick(self.random, STRINGS).into(),
                5 => pick(self.random, OTHERS).into(),
                6 => pick(self.random, NUMBERS).into(),
                _ => self.random.u8(0..20).to_string(),
            };
        }
        let part = |maker: &mut Self| maker.expression(depth + 1);
        match self.random.u8(0..18) {
            0..5 => {
                let sign = pick(self.random, &["+", "-", "*", "/", "%", "^", ".."]);
                format!("({} {sign} {})", part(self), part(self))
            }
            5..8 => {
                let sign = pick(self.random, &["==", "~=", "<", "<=", ">", ">="]);
                format!("({} {sign} {})", part(self), part(self))
            }
            8 | 9 => {
                let sign = pick(self.random, &["and", "or"]);
                format!("({} {sign} {})", part(self), part(self))
            }
            10 => format!("(not {})", part(self)),
            11 => format!("(-{})", part(self)),
            12 => format!("(#{})", part(self)),
            13 => format!("{{{}, {}, k = {}}}", part(self), part(self), part(self)),
            14 => format!("({}).k", part(self)),
            15 => format!("({})[{}]", part(self), part(self)),
            16 => format!("(function(...) return {} end)({})", part(self), part(self)),
            _ => {
                let name = pick(
                    self.random,
                    &["tostring", "type", "tonumber", "select", "string.sub", "string.len"],
                );
                format!("{name}({}, {})", part(self), part(self))
            }
        }
    }

    /// A local variable, which may be a number more often than not.
    fn declare(&mut self) {
        let value = match self.random.u8(0..3) {
            0 => self.random.i32(-10..100).to_string(),
            1 => pick(self.random, TABLES).into(),
            _ => self.expression(1),
        };
        self.names += 1;
        self.text.push_str(&format!("local v{} = {value} ", self.names));
    }

    fn statement(&mut self, depth: u8) {
        self.budget = self.budget.saturating_sub(1);
        let names = self.names;
        match self.random.u8(0..if depth < 3 { 16 } else { 7 }) {
            0 | 1 => self.declare(),
            2 => {
                let value = self.expression(0);
                if self.names > 0 {
                    let name = self.random.usize(1..=self.names);
                    self.text.push_str(&format!("v{name} = {value} "));
                }
            }
            3 if self.names > 0 => {
                let (key, value) = (self.expression(2), self.expression(1));
                let name = self.random.usize(1..=self.names);
                self.text.push_str(&format!("v{name}[{key}] = {value} "));
            }
            4 if depth > 0 && self.random.u8(0..4) == 0 => {
                let value = self.expression(1);
                self.text.push_str(&format!("if {value} then error({value}) end "));
            }
            3..7 => {
                let (first, second) = (self.expression(0), self.expression(1));
                // Most errors end only this statement.
                self.text.push_str(&match self.random.u8(0..6) {
                    0 => format!("add({first}, {second}) "),
                    _ => format!("add(pcall(function() return {first}, {second} end)) "),
                });
            }
            7 | 8 => {
                let condition = self.expression(0);
                self.text.push_str(&format!("if {condition} then "));
                self.block(depth, names);
                if self.random.bool() {
                    let condition = self.expression(1);
                    self.text.push_str(&format!("elseif {condition} then "));
                    self.block(depth, names);
                }
                if self.random.bool() {
                    self.text.push_str("else ");
                    self.block(depth, names);
                }
                self.text.push_str("end ");
            }
            9 => {
                let (from, to) = (self.random.i8(-3..4), self.random.i8(-3..6));
                let step = pick(
                    self.random,
                    &["", ", 1", ", -1", ", 2", ", 0.5", ", '1'", ", nil", ", 1e15", ", -0.5"],
                );
                self.names += 1;
                self.text.push_str(&format!("for v{} = {from}, {to}{step} do ", self.names));
                let name = self.names;
                self.text.push_str(&format!("add(v{name}) "));
                if self.random.u8(0..4) == 0 {
                    let condition = self.expression(1);
                    self.text.push_str(&format!("if {condition} then break end "));
                }
                self.block(depth + 1, name);
                self.text.push_str("end ");
                self.names = names;
            }
            10 => {
                let table = pick(self.random, &["{1, 2, 3}", "{1, nil, 3}", "{}", "{'a', 'b'}"]);
                self.names += 2;
                let name = self.names;
                self.text.push_str(&format!("for v{}, v{name} in ipairs({table}) do ", name - 1));
                self.block(depth + 1, name);
                self.text.push_str("end ");
                self.names = names;
            }
            11 => {
                self.text.push_str("do local c = 0 ");
                match self.random.bool() {
                    true => {
                        let condition = self.expression(1);
                        self.text.push_str(&format!("while c < 3 and {condition} do c = c + 1 "));
                        self.block(depth + 1, names);
                        self.text.push_str("end end ");
                    }
                    false => {
                        self.text.push_str("repeat c = c + 1 ");
                        self.block(depth + 1, names);
                        self.names = names;
                        let condition = self.expression(1);
                        self.text.push_str(&format!("until c > 2 or {condition} end "));
                    }
                }
            }
            12 | 13 => {
                self.text.push_str("add(pcall(function(...) ");
                self.block(depth + 1, names);
                let value = self.expression(1);
                self.text.push_str(&format!("return {value}, ... end, 1, nil)) "));
            }
            14 => {
                let value = self.expression(1);
                self.text.push_str(&format!("add(pcall(error, {value})) "));
            }
            _ => {
                self.names += 1;
                let name = self.names;
                self.text.push_str(&format!("local function v{name}(v{}, ...) ", name + 1));
                self.names += 1;
                let top = self.names;
                self.block(depth + 1, top);
                let value = self.expression(1);
                self.names = name;
                let arg = self.expression(1);
                self.text.push_str(&format!("return {value} end add(pcall(v{name}, {arg}, 2)) "));
            }
        }
    }

    /// One or two statements, after which `names` variables are in scope.
    fn block(&mut self, depth: u8, names: usize) {
        for _ in 0..self.random.u8(1..3) {
            self.statement(depth + 1);
        }
        self.names = names;
    }

    fn metatables(&mut self) {
        const EVENTS: &[&str] = &[
            "__add",
            "__sub",
            "__mul",
            "__div",
            "__mod",
            "__pow",
            "__unm",
            "__concat",
            "__eq",
            "__lt",
            "__le",
            "__index",
            "__newindex",
            "__call",
            "__tostring",
            "__len",
            "__gc",
            "__idiv",
        ];
        let results = &["1", "'s'", "nil", "true", "false", "a", "b", "error('event')", "{}"];
        for name in ["m", "n"] {
            self.text.push_str(&format!("local {name} = {{}} "));
            for _ in 0..self.random.u8(1..4) {
                let (event, result) = (pick(self.random, EVENTS), pick(self.random, results));
                self.text
                    .push_str(&format!("{name}.{event} = function(a, b) return {result} end "));
            }
        }
        let second = pick(self.random, &["m", "m", "n"]);
        if self.random.u8(0..4) == 0 {
            self.text.push_str(&format!("{second}.__eq = m.__eq {second}.__lt = m.__lt "));
        }
        self.text.push_str(&format!(
            "local x, y = setmetatable({{1, 2}}, m), setmetatable({{1}}, {second}) "
        ));
        const USES: &[&str] = &[
            "x + y",
            "x - 1",
            "2 * y",
            "x / y",
            "x % 2",
            "2 ^ x",
            "-x",
            "x .. 'a'",
            "1 .. y",
            "x .. y",
            "x == y",
            "x ~= y",
            "x < y",
            "x <= y",
            "x > 1",
            "x >= y",
            "x.field",
            "x[1]",
            "x[3]",
            "#x",
            "x(1, 2)",
            "tostring(x)",
            "x.a.b",
            "'s' .. x",
            "x == x",
            "x < 'a'",
            "rawequal(x, y)",
            "rawget(x, 3)",
            "next(y)",
            "unpack(x)",
            "table.concat(x, ',')",
            "x:method(1)",
            "getmetatable(x) == m",
            "tostring(-x)",
            "string.format('%s', x)",
            "(function() x.new = 5 return rawget(x, 'new') end)()",
            "select('#', x(1))",
            "cjson.encode(x)",
            "pcall(x)",
            "table.getn(x)",
            "table.sort({x, y, x})",
            "ipairs(x)(x, 2)",
        ];
        for _ in 0..6 {
            let used = pick(self.random, USES);
            self.text.push_str(&format!("add(pcall(function() return {used} end)) "));
        }
    }

    fn coroutines(&mut self) {
        let yields = |maker: &mut Self| {
            let value = maker.expression(2);
            pick(
                maker.random,
                &[
                    "add(coroutine.yield(VALUE)) ",
                    "a, b = coroutine.yield(a, VALUE) ",
                    "for i = 1, 2 do coroutine.yield(i) end ",
                    "add(coroutine.status(c)) ",
                    "add(coroutine.running() == c) ",
                    "add(coroutine.resume(c)) ",
                    "add(pcall(error, VALUE)) ",
                    "if a == nil then error(VALUE) end ",
                    "do local inner = coroutine.wrap(function() coroutine.yield(1) end) add(inner(), inner()) end ",
                    "for v in coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end) do add(v) end ",
                    "table.foreach({1}, function() coroutine.yield(VALUE) end) ",
                    "table.sort({2, 1}, function(x, y) coroutine.yield(VALUE) return x < y end) ",
                    "string.gsub('ab', '.', function(l) coroutine.yield(l) end) ",
                    "add(pcall(coroutine.yield, 3)) ",
                    "add(pcall(function() return coroutine.yield(VALUE) end)) ",
                ],
            )
            .replace("VALUE", &value)
        };
        self.text.push_str("local c c = coroutine.create(function(a, b, ...) ");
        for _ in 0..self.random.u8(1..4) {
            let step = yields(self);
            self.text.push_str(&step);
        }
        self.text.push_str("return a, b, ... end) ");
        for _ in 0..5 {
            let value = self.expression(2);
            let used = pick(
                self.random,
                &[
                    "coroutine.resume(c, VALUE, 2)",
                    "coroutine.resume(c)",
                    "coroutine.status(c)",
                    "coroutine.resume(c, 1, 2, VALUE)",
                ],
            );
            self.text.push_str(&format!("add({}) ", used.replace("VALUE", &value)));
        }
        let last = pick(
            self.random,
            &[
                "add(pcall(coroutine.wrap(function() error('inside') end)))",
                "add(pcall(coroutine.wrap(function() error({1}) end)))",
                "add(pcall(coroutine.yield, 1))",
                "add(coroutine.running())",
                "local w = coroutine.wrap(function() end) w() add(pcall(w))",
            ],
        );
        self.text.push_str(last);
    }

    fn varargs(&mut self) {
        const BODIES: &[&str] = &[
            "return ...",
            "return (...)",
            "return select('#', ...)",
            "return select(-1, ...)",
            "return {...}, ...",
            "return arg",
            "return arg.n, arg[1]",
            "return arg, ...",
            "local a, b = ... return b, a",
            "return unpack({...})",
            "return unpack(arg)",
            "return unpack(arg, 1, arg.n)",
            "for i, v in ipairs(arg) do add(i, v) end return #arg",
            "local t = {..., ...} return #t, t",
            "local t = {n = select('#', ...), ...} return t",
            "return ..., 'end'",
            "arg = 5 return arg",
            "return (function() return arg end)()",
            "return (function(...) return arg end)(1, ...)",
            "return (function(arg) return arg end)(7)",
            "local arg = 3 return arg",
            "if arg then return arg.n end",
            "return pcall(select, 0, ...)",
            "return string.format('%s %s', ...)",
            "return math.max(...)",
            "return a",
            "local x <const> = 1 return x",
        ];
        for _ in 0..3 {
            let body = pick(self.random, BODIES);
            let parameters = pick(self.random, &["...", "a, ...", "a, b, ...", "", "a"]);
            let args: Vec<String> = (0..self.random.u8(0..4)).map(|_| self.expression(2)).collect();
            self.text.push_str(&format!("add(pcall(function({parameters}) {body} end"));
            for arg in args {
                self.text.push_str(", ");
                self.text.push_str(&arg);
            }
            self.text.push_str(")) ");
        }
    }
}

// --- Spellings.

fn literal(random: &mut Rng) -> Case {
    let (group, source) = match random.u8(0..8) {
        0 | 1 => ("quoted", quoted(random)),
        2 => ("long string", long_string(random)),
        3 => ("comment", comment(random)),
        4 | 5 => ("numeral", numeral(random)),
        6 => ("tokens", tokens(random)),
        _ => ("line ends", line_ends(random)),
    };
    Case { group, source }
}

fn bytes(random: &mut Rng, from: &[&[u8]], most: u8) -> Vec<u8> {
    (0..random.u8(0..most)).flat_map(|_| from[random.usize(0..from.len())].to_vec()).collect()
}

fn quoted(random: &mut Rng) -> Vec<u8> {
    let quote: &[u8] = if random.bool() { b"'" } else { b"\"" };
    let parts: &[&[u8]] = &[
        b"a",
        b"\\n",
        b"\\t",
        b"\\r",
        b"\\a",
        b"\\b",
        b"\\f",
        b"\\v",
        b"\\\\",
        b"\\'",
        b"\\\"",
        b"\\x48",
        b"\\xg",
        b"\\u{48}",
        b"\\u",
        b"\\z",
        b"\\z  \n ",
        b"\\0",
        b"\\1",
        b"\\65",
        b"\\065",
        b"\\255",
        b"\\256",
        b"\\999",
        b"\\2555",
        b"\\\n",
        b"\\\r\n",
        b"\\\r",
        b"\\\n\r",
        b"\\\0",
        b"\0",
        b"\n",
        b"\r",
        b"\\q",
        b"\\-",
        b"\\[",
        b"'",
        b"\"",
        b"\xff",
        b"\\\xff",
        b"--",
        b"[[",
        b"]]",
        b"\\8",
        b"\x01",
        b"\t",
        b"{",
        b"`",
        b"\\`",
        b"\\{",
        b"\\e",
        b"\\d",
    ];
    let mut source = b"return ".to_vec();
    source.extend_from_slice(quote);
    source.extend(bytes(random, parts, 6));
    if random.u8(0..15) > 0 {
        source.extend_from_slice(quote);
    }
    source
}

fn long_string(random: &mut Rng) -> Vec<u8> {
    let parts: &[&[u8]] = &[
        b"a", b"\n", b"\r", b"\r\n", b"\n\r", b"\0", b"]", b"]]", b"]=]", b"[[", b"[=[", b"\\n",
        b"\\", b"\"", b"'", b"--", b"=", b"\xff", b" ", b"\\x41", b"\r\r", b"\n\n",
    ];
    let level = b"=".repeat(random.usize(0..3));
    let mut source = [b"return [", level.as_slice(), b"["].concat();
    source.extend(bytes(random, parts, 6));
    if random.u8(0..15) > 0 {
        source.extend([b"]", level.as_slice(), b"]"].concat());
    }
    source.extend(bytes(
        random,
        &[b", 1", b" .. 'x'", b" --", b"\0", b"", b" -- [[", b":len()"],
        2,
    ));
    source
}

fn comment(random: &mut Rng) -> Vec<u8> {
    let parts: &[&[u8]] = &[
        b"-- a",
        b"--[[ a ]]",
        b"--[=[ ]] ]=]",
        b"--[==[",
        b"--[",
        b"--[=",
        b"--\0",
        b"-- a\0b",
        b"--[[\0]]",
        b"--!optimize 2",
        b"--!strict",
        b"--!",
        b"\n",
        b"\r",
        b"\r\n",
        b"--[[\n]]",
        b"local x = 1 ",
        b" ",
        b"--]]",
        b"]]",
        b"\t",
        b"\x0b",
        b"\x0c",
        b"#!lua",
        b"# a",
        b"-",
        b";",
        b"--nonstrict",
        b"---[[ a ]]",
        b"--[[ [[ ]] ]]",
        b"--[[ a",
        b"-- return 5",
    ];
    let mut source = bytes(random, parts, 5);
    source.extend_from_slice(
        pick(
            random,
            &[
                "return 1",
                "\nreturn 1",
                "\rreturn 1",
                " return x",
                "return 2 -- x",
                "return 3 --[[ x ]]",
            ],
        )
        .as_bytes(),
    );
    source.extend(bytes(random, parts, 2));
    source
}

fn numeral(random: &mut Rng) -> Vec<u8> {
    const PARTS: &[&str] = &[
        "0",
        "1",
        "9",
        "10",
        "0x",
        "0X",
        "x",
        "a",
        "F",
        ".",
        ".",
        "e",
        "E",
        "e+",
        "e-",
        "p",
        "p4",
        "_",
        "0b",
        "0b1",
        "b",
        "L",
        "u",
        "i",
        "f",
        "..",
        "1e5",
        "308",
        "400",
        "0x1p4",
        "0xA",
        "000",
        "5e-324",
        "ffffffff",
        "1234567890abcdef1",
        "12345678901234567890",
        "inf",
        "nan",
        "0x.8",
        "08",
        "1e1",
    ];
    let mut text: String = (0..random.u8(1..4)).map(|_| pick(random, PARTS)).collect();
    if random.u8(0..3) > 0 {
        text.insert_str(0, pick(random, &["1", "0x", "0", "3.", ".5", "1e"]));
    }
    let text = match random.u8(0..8) {
        0 => format!("-{text}"),
        1 => format!("{text} .. ''"),
        2 => format!("{text}..'a'"),
        3 => format!("tonumber('{text}')"),
        4 => format!("'{text}' + 0"),
        5 => format!("{{{text}}}"),
        _ => text,
    };
    format!("return {text}").into_bytes()
}

fn tokens(random: &mut Rng) -> Vec<u8> {
    const PARTS: &[&str] = &[
        "return",
        "local",
        "a",
        "b",
        "=",
        "==",
        "~=",
        "!=",
        "<",
        "<=",
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "^",
        "#",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        ";",
        ":",
        ",",
        ".",
        "..",
        "...",
        "1",
        "'s'",
        "nil",
        "true",
        "not",
        "and",
        "or",
        "function",
        "end",
        "if",
        "then",
        "else",
        "elseif",
        "do",
        "while",
        "for",
        "in",
        "repeat",
        "until",
        "break",
        "continue",
        "goto",
        "::",
        "&",
        "|",
        "~",
        "!",
        "@",
        "$",
        "?",
        "\\",
        "`s`",
        "+=",
        "..=",
        "type",
        "export",
        "->",
        "=>",
        "tostring",
        "redis",
        "KEYS",
        "_G",
        "[[s]]",
        "\0",
        "\x01",
        "\u{e9}",
        "x.y",
        "f()",
        "f'x'",
        "f{}",
        "\n",
        "<<",
        ">>",
        "as",
        "self",
        "if 1 then",
        "local a = 1",
        "a = 2",
        "do end",
        "return 1",
        "local function b() end",
    ];
    let mut source = match random.u8(0..3) {
        0 => "",
        1 => "return ",
        _ => "local a, b = 1, 2 ",
    }
    .as_bytes()
    .to_vec();
    for _ in 0..random.u8(1..6) {
        source.extend_from_slice(pick(random, PARTS).as_bytes());
        if random.u8(0..4) > 0 {
            source.push(b' ');
        }
    }
    source
}

/// The line of an error, after line ends of any kind.
fn line_ends(random: &mut Rng) -> Vec<u8> {
    let parts: &[&[u8]] = &[
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\r",
        b" ",
        b"--x\n",
        b"--x\r\n",
        b"--[[\n\n]]",
        b"local s = [[\n]]",
        b"local s = [[\r\n\r]]",
        b"local s = 'a\\\nb' ",
        b"local s = [==[\n\n]==] ",
        b"local function f(...) return arg end\n",
        b"local s = 'a\\z\n'",
        b"local s = [[\0\r\n]]",
        b"--[[\r\r\n]]",
        b"--\0\n",
    ];
    let mut source = bytes(random, parts, 7);
    source.extend_from_slice(
        pick(
            random,
            &["error('here')", "return a.b", "return nil + 1", "local x = ='", "return 1"],
        )
        .as_bytes(),
    );
    source
}

// --- Seeds.

fn seeded(random: &mut Rng) -> Case {
    let seed = match random.u8(0..3) {
        0 => pick(random, NUMBERS).to_owned(),
        1 => random.u32(..).to_string(),
        _ => (1_700_000_000_000 + random.u64(0..1 << 40)).to_string(),
    };
    let mut calls = Vec::new();
    for _ in 0..random.u8(1..6) {
        calls.push(match random.u8(0..4) {
            0 => "math.random()".to_owned(),
            1 => format!(
                "math.random({})",
                pick(
                    random,
                    &["1", "2", "10", "100", "2^31-1", "1.9", "'7'", "2^32+5", "0", "2^31"]
                )
            ),
            2 => {
                let low = pick(random, &["0", "-1", "1", "-100", "-2^31", "1.5", "5", "2^31"]);
                format!(
                    "math.random({low}, {})",
                    pick(random, &["5", "10", "2^31-1", "1e6", "2^31", "1e10", "4"])
                )
            }
            _ => format!("math.random({})", random.u32(1..1 << 20)),
        });
    }
    if random.u8(0..20) == 0 {
        calls.push("math.random(1, 2, 3)".to_owned());
    }
    let source = format!("math.randomseed({seed}) return {}", calls.join(", "));
    Case { group: "math.random", source: source.into_bytes() }
}
