//! Commands made up at random from the lines of a grammar.

/// Numbers of the keys `fill:...`, which let tables grow, split, shrink and merge where many of
/// them come and go.
pub const FILLERS: u32 = 1000;

/// How the replies to a command are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    Exact,
    /// The elements in any order.
    Any,
    /// Pairs of elements in any order.
    Pairs,
}

/// One line of the grammar.
pub struct Rule {
    pub order: Order,
    weight: u32,
    /// Never with arguments that are too many or odd: newer servers know some.
    is_strict: bool,
    pub words: Vec<String>,
}

/// A command, ready to be sent.
#[derive(Clone, Debug)]
pub struct Request {
    pub order: Order,
    pub args: Vec<Vec<u8>>,
}

/// The rules of `tests/differential/grammar.txt`.
pub fn rules() -> Vec<Rule> {
    parse(include_str!("../differential/grammar.txt"))
}

/// The rules of a text.
pub fn parse(text: &str) -> Vec<Rule> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned).peekable();
            let mut weight = 4;
            let mut order = Order::Exact;
            let mut is_strict = false;
            while let Some(word) = words.peek() {
                match word.as_str() {
                    "~" => order = Order::Any,
                    "~~" => order = Order::Pairs,
                    "=" => is_strict = true,
                    word if word.starts_with('*') => weight = word[1..].parse().expect("a weight"),
                    _ => break,
                }
                words.next();
            }
            Rule { order, weight, is_strict, words: words.collect() }
        })
        .collect()
}

/// Makes up commands.
pub struct Generator {
    pub random: fastrand::Rng,
    rules: Vec<Rule>,
    total: u32,
    /// Grows, so that stream IDs mostly do.
    pub stream_ms: u64,
    /// Keys of each type.
    pub keys: u32,
}

impl Generator {
    pub fn new(seed: u64, rules: Vec<Rule>) -> Self {
        let total = rules.iter().map(|rule| rule.weight).sum();
        Generator { random: fastrand::Rng::with_seed(seed), rules, total, stream_ms: 1, keys: 4 }
    }

    pub fn request(&mut self) -> Request {
        let mut at = self.random.u32(..self.total);
        let rule = self.rules.iter().position(|rule| {
            let here = at < rule.weight;
            at = at.wrapping_sub(rule.weight);
            here
        });
        let rule = &self.rules[rule.expect("the weights add up")];
        let (order, is_strict, words) = (rule.order, rule.is_strict, rule.words.clone());
        let mut args = Vec::new();
        self.expand(&words, &mut args);
        // Now and then an argument too few, too many, or an odd one.
        match self.random.u32(..150) {
            0 if args.len() > 1 => {
                args.pop();
            }
            1 if !is_strict => args.push(self.odd()),
            2 if !is_strict && args.len() > 2 => {
                let index = self.random.usize(1..args.len());
                args[index] = self.odd();
            }
            _ => {}
        }
        Request { order, args }
    }

    fn expand(&mut self, words: &[String], out: &mut Vec<Vec<u8>>) {
        let mut at = 0;
        while at < words.len() {
            match words[at].as_str() {
                "[" => {
                    let end = closing(words, at, "[", "]");
                    if self.random.u32(..5) < 2 {
                        self.expand(&words[at + 1..end], out);
                    }
                    at = end;
                }
                "<" => {
                    let end = closing(words, at, "<", ">");
                    let times = match self.random.u32(..40) {
                        0 => self.random.usize(20..150),
                        1..8 => self.random.usize(3..12),
                        _ => self.random.usize(1..3),
                    };
                    for _ in 0..times {
                        self.expand(&words[at + 1..end], out);
                    }
                    at = end;
                }
                // `#k` counts: a number of keys and so many of them.
                "#k" | "#l" | "#s" | "#z" => {
                    let kind = words[at][1..].to_owned();
                    let count = self.random.usize(1..4);
                    out.push(count.to_string().into_bytes());
                    for _ in 0..count {
                        let key = self.word(&kind);
                        out.push(key);
                    }
                }
                word => {
                    let choices: Vec<&str> = word.split('|').collect();
                    let choice = choices[self.random.usize(..choices.len())].to_owned();
                    let word = self.word(&choice);
                    out.push(word);
                }
            }
            at += 1;
        }
    }

    fn word(&mut self, name: &str) -> Vec<u8> {
        let random = &mut self.random;
        let text = match name {
            // Keys of each type: a few of them, and rarely one of another type.
            "h" | "l" | "s" | "z" | "x" | "g" | "t" | "k" => {
                let any = name == "k" || random.u32(..25) == 0;
                let kind =
                    if any { ["h", "l", "s", "z", "x", "g", "t"][random.usize(..7)] } else { name };
                format!("{kind}{}", random.u32(..self.keys))
            }
            "fill" => format!("fill:{}", random.u32(..FILLERS)),
            "y" | "q" | "u" => format!("{name}{}", random.u32(..4)),
            "f" | "m" => return self.member(),
            "v" => return self.value(),
            "n" => random.i32(-12..12).to_string(),
            "N" => random.i32(-200..200).to_string(),
            "c" => random.i32(0..8).to_string(),
            "p" => random.i32(1..20).to_string(),
            "i" => match random.u32(..12) {
                0 => i64::MAX.to_string(),
                1 => i64::MIN.to_string(),
                2 => "x1".into(),
                _ => random.i32(-1000..1000).to_string(),
            },
            "d" => match random.u32(..14) {
                0 => "inf".into(),
                1 => "-inf".into(),
                2 => "nan".into(),
                3 => "abc".into(),
                4 => "1e3".into(),
                5 => "0.1".into(),
                6 => format!("{}", random.f64() * 100.0),
                _ => random.i32(-30..30).to_string(),
            },
            "sc" => match random.u32(..20) {
                0 => "+inf".into(),
                1 => "-inf".into(),
                2 => "bad".into(),
                3..6 => format!("{}", random.f64() * 10.0),
                _ => random.i32(-20..20).to_string(),
            },
            "min" | "max" => match random.u32(..8) {
                0 => "-inf".into(),
                1 => "+inf".into(),
                2 => format!("({}", random.i32(-20..20)),
                3 => "(x".into(),
                _ => random.i32(-20..20).to_string(),
            },
            "lmin" | "lmax" => match random.u32(..7) {
                0 => "-".into(),
                1 => "+".into(),
                2 => "bad".into(),
                3 => format!("({}", random.char('a'..='h')),
                _ => format!("[{}", random.char('a'..='h')),
            },
            "lm" => {
                let length = random.usize(1..4);
                (0..length).map(|_| random.char('a'..='h')).collect()
            }
            "lon" => format!("{:.4}", random.f64() * 20.0),
            "lat" => format!("{:.4}", random.f64() * 20.0 + 30.0),
            "r" => random.u32(1..800).to_string(),
            "id" => match random.u32(..8) {
                0 => "0".into(),
                1 => "0-1".into(),
                2 => format!("{}", random.u64(..self.stream_ms + 3)),
                _ => format!("{}-{}", random.u64(..self.stream_ms + 3), random.u32(..3)),
            },
            "newid" => {
                self.stream_ms += random.u64(..2);
                match random.u32(..12) {
                    0 => format!("{}", self.stream_ms),
                    1 => format!("{}-*", self.stream_ms),
                    _ => format!("{}-{}", self.stream_ms, random.u32(..6)),
                }
            }
            "grp" => format!("grp{}", random.u32(..2)),
            "con" => format!("con{}", random.u32(..3)),
            "pat" => ["*", "a*", "m1*", "*[0-9]", "m?", "zzz"][random.usize(..6)].into(),
            word => word.into(),
        };
        text.into_bytes()
    }

    /// Fields and members: often the same few, sometimes of many.
    fn member(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        match random.u32(..10) {
            0..4 => format!("m{}", random.u32(..6)).into_bytes(),
            4..6 => random.i32(-3..8).to_string().into_bytes(),
            6 => random.i32(0..200).to_string().into_bytes(),
            7 | 8 => format!("m{}", random.u32(..250)).into_bytes(),
            _ => self.value(),
        }
    }

    /// An argument where another was meant. Redis ends what it quotes of one at a NUL.
    fn odd(&mut self) -> Vec<u8> {
        let mut value = self.value();
        value.retain(|&byte| byte != 0);
        value
    }

    fn value(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        match random.u32(..24) {
            0 => Vec::new(),
            1 => vec![b'y'; random.usize(62..68)],
            // Not with a NUL in front: Redis sorts texts up to the first one.
            2 => b"\xff\x00\r\n \"".to_vec(),
            3 => random.i64(..).to_string().into_bytes(),
            4 => format!("{}", random.f64() * 1000.0 - 500.0).into_bytes(),
            5 if random.u32(..6) == 0 => vec![b'z'; random.usize(1000..9000)],
            5..12 => random.i32(-40..40).to_string().into_bytes(),
            12 => b"007".to_vec(),
            _ => {
                let length = random.usize(1..9);
                (0..length).map(|_| random.u8(b'a'..=b'e')).collect()
            }
        }
    }
}

fn closing(words: &[String], from: usize, open: &str, close: &str) -> usize {
    let mut depth = 0;
    for (index, word) in words.iter().enumerate().skip(from) {
        depth += (word == open) as i32 - (word == close) as i32;
        if depth == 0 {
            return index;
        }
    }
    panic!("unbalanced {open} in the grammar: {words:?}")
}
