//! Lua patterns on long texts: `string.find`, `match`, `gmatch` and `gsub` where the interpreter's
//! own functions would run too long without a check for interrupts.
//!
//! Those check for interrupts when they recurse, but not in repetitions of a class, a long set
//! (`[...]`), or a pattern's plain characters: on megabytes that takes from tens of milliseconds to
//! hours. This is the same matcher (`lstrlib.cpp`) with a check once in a number of steps; a test
//! compares the two.

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

use super::text::{Text, text_argument};
use super::{bytes_at, push_bytes, raise_here};
use crate::resp::args::before_nul;
use crate::resp::number::is_space;
use crate::script::libraries::helpers::safepoint;

/// Steps between two checks for interrupts.
const STEPS: usize = 1 << 16;
/// Limits of recursion (`LUAI_MAXCCALLS`), and of a pattern's captures (`LUA_MAXCAPTURES`).
const DEPTH_MAX: u32 = 200;
const CAPTURES_MAX: usize = 32;

#[derive(Clone, Copy)]
enum Len {
    /// The capture's end has not been reached.
    Open,
    /// `()`: the position alone.
    Position,
    Bytes(usize),
}

#[derive(Clone, Copy)]
struct Capture {
    start: usize,
    len: Len,
}

/// A pattern and the text to match. Positions are in bytes; both end with a zero, as in C.
struct Matcher<'a> {
    state: *mut lua_State,
    text: &'a [u8],
    pattern: &'a [u8],
    /// Remaining recursion depth.
    depth: u32,
    steps: usize,
    captures: [Capture; CAPTURES_MAX],
    level: usize,
}

impl<'a> Matcher<'a> {
    /// # Safety
    /// `state` runs the calling function, which uses the matcher and has room for one value then.
    unsafe fn new(state: *mut lua_State, text: &'a [u8], pattern: &'a [u8]) -> Self {
        let captures = [Capture { start: 0, len: Len::Open }; CAPTURES_MAX];
        Matcher { state, text, pattern, depth: DEPTH_MAX, steps: 0, captures, level: 0 }
    }

    #[inline]
    fn letter(&self, place: usize) -> u8 {
        self.pattern.get(place).copied().unwrap_or(0)
    }

    #[inline]
    fn step(&mut self, count: usize) {
        self.steps += count;
        if self.steps >= STEPS {
            self.steps = 0;
            // SAFETY: the state runs the calling function, see `new`.
            unsafe { safepoint(self.state) };
        }
    }

    fn fail(&self, message: &str) -> ! {
        // SAFETY: the state runs the calling function, see `new`.
        unsafe { raise_here(self.state, message.as_bytes()) }
    }

    /// The end of the pattern's match at `start`, as the start of an attempt.
    fn begin(&mut self, start: usize, place: usize) -> Option<usize> {
        (self.level, self.depth) = (0, DEPTH_MAX);
        self.matches(start, place)
    }

    /// The end of the match of the pattern from `place` on, at `at`.
    fn matches(&mut self, at: usize, place: usize) -> Option<usize> {
        if self.depth == 0 {
            self.fail("pattern too complex");
        }
        self.depth -= 1;
        let end = self.matches_here(at, place);
        self.depth += 1;
        end
    }

    fn matches_here(&mut self, mut at: usize, mut place: usize) -> Option<usize> {
        loop {
            self.step(1);
            if place >= self.pattern.len() {
                return Some(at);
            }
            match (self.pattern[place], self.letter(place + 1)) {
                (b'(', b')') => return self.start_capture(at, place + 2, Len::Position),
                (b'(', _) => return self.start_capture(at, place + 1, Len::Open),
                (b')', _) => return self.end_capture(at, place + 1),
                (b'$', _) if place + 1 == self.pattern.len() => {
                    return (at == self.text.len()).then_some(at);
                }
                (b'%', b'b') => {
                    at = self.balance(at, place + 2)?;
                    place += 4;
                    continue;
                }
                (b'%', b'f') => {
                    place += 2;
                    if self.letter(place) != b'[' {
                        self.fail("missing '[' after '%f' in pattern");
                    }
                    let end = self.class_end(place);
                    let before = if at == 0 { 0 } else { self.text[at - 1] };
                    let behind = self.text.get(at).copied().unwrap_or(0);
                    if self.in_set(before, place, end - 1) || !self.in_set(behind, place, end - 1) {
                        return None;
                    }
                    place = end;
                    continue;
                }
                (b'%', digit @ b'0'..=b'9') => {
                    at = self.match_capture(at, digit)?;
                    place += 2;
                    continue;
                }
                _ => {}
            }
            let end = self.class_end(place);
            let suffix = self.letter(end);
            if !self.matches_one(at, place, end) {
                if !matches!(suffix, b'*' | b'?' | b'-') {
                    return None;
                }
                place = end + 1;
                continue;
            }
            match suffix {
                b'?' => {
                    if let Some(found) = self.matches(at + 1, end + 1) {
                        return Some(found);
                    }
                    place = end + 1;
                }
                b'+' => return self.as_many_as_possible(at + 1, place, end),
                b'*' => return self.as_many_as_possible(at, place, end),
                b'-' => return self.as_few_as_possible(at, place, end),
                _ => {
                    at += 1;
                    place = end;
                }
            }
        }
    }

    /// The end of the class that begins at `place`.
    fn class_end(&mut self, place: usize) -> usize {
        let len = self.pattern.len();
        let mut next = place + 1;
        match self.letter(place) {
            b'%' if next >= len => self.fail("malformed pattern (ends with '%')"),
            b'%' => next + 1,
            b'[' => {
                if self.letter(next) == b'^' {
                    next += 1;
                }
                loop {
                    if next >= len {
                        self.fail("malformed pattern (missing ']')");
                    }
                    let is_escape = self.pattern[next] == b'%';
                    next += 1;
                    if is_escape && next < len {
                        next += 1;
                    }
                    self.step(1);
                    if self.letter(next) == b']' {
                        return next + 1;
                    }
                }
            }
            _ => next,
        }
    }

    /// Whether a byte is in the set between `[` at `place` and `]` at `end`.
    fn in_set(&mut self, byte: u8, mut place: usize, end: usize) -> bool {
        let is_in = self.letter(place + 1) != b'^';
        if !is_in {
            place += 1;
        }
        loop {
            place += 1;
            if place >= end {
                return !is_in;
            }
            self.step(1);
            let letter = self.letter(place);
            let is_found = if letter == b'%' {
                place += 1;
                in_class(byte, self.letter(place))
            } else if self.letter(place + 1) == b'-' && place + 2 < end {
                place += 2;
                (letter..=self.letter(place)).contains(&byte)
            } else {
                letter == byte
            };
            if is_found {
                return is_in;
            }
        }
    }

    /// Whether the class from `place` to `end` contains the byte at `at`.
    #[inline]
    fn matches_one(&mut self, at: usize, place: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(at) else { return false };
        match self.letter(place) {
            b'.' => true,
            b'%' => in_class(byte, self.letter(place + 1)),
            b'[' => self.in_set(byte, place, end - 1),
            letter => letter == byte,
        }
    }

    /// `%bxy`: the end of the balanced text that begins with x and ends with y.
    fn balance(&mut self, mut at: usize, place: usize) -> Option<usize> {
        if place + 1 >= self.pattern.len() {
            self.fail("unbalanced pattern");
        }
        let (open, close) = (self.pattern[place], self.pattern[place + 1]);
        if self.text.get(at).copied().unwrap_or(0) != open {
            return None;
        }
        let mut depth = 1_usize;
        loop {
            at += 1;
            self.step(1);
            let byte = *self.text.get(at)?;
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            } else if byte == open {
                depth += 1;
            }
        }
    }

    fn as_many_as_possible(&mut self, at: usize, place: usize, end: usize) -> Option<usize> {
        let mut count = 0;
        while self.matches_one(at + count, place, end) {
            count += 1;
            self.step(1);
        }
        loop {
            if let Some(found) = self.matches(at + count, end + 1) {
                return Some(found);
            }
            count = count.checked_sub(1)?;
        }
    }

    fn as_few_as_possible(&mut self, mut at: usize, place: usize, end: usize) -> Option<usize> {
        loop {
            if let Some(found) = self.matches(at, end + 1) {
                return Some(found);
            }
            if !self.matches_one(at, place, end) {
                return None;
            }
            at += 1;
        }
    }

    fn start_capture(&mut self, at: usize, place: usize, len: Len) -> Option<usize> {
        if self.level >= CAPTURES_MAX {
            self.fail("too many captures");
        }
        self.captures[self.level] = Capture { start: at, len };
        self.level += 1;
        let found = self.matches(at, place);
        if found.is_none() {
            self.level -= 1;
        }
        found
    }

    fn end_capture(&mut self, at: usize, place: usize) -> Option<usize> {
        let is_open = |capture: &Capture| matches!(capture.len, Len::Open);
        let Some(index) = self.captures[..self.level].iter().rposition(is_open) else {
            self.fail("invalid pattern capture");
        };
        self.captures[index].len = Len::Bytes(at - self.captures[index].start);
        let found = self.matches(at, place);
        if found.is_none() {
            self.captures[index].len = Len::Open;
        }
        found
    }

    /// `%1`: the end of a repetition of a capture's text.
    fn match_capture(&mut self, at: usize, digit: u8) -> Option<usize> {
        let number = usize::from(digit - b'0');
        let capture =
            number.checked_sub(1).and_then(|index| self.captures[..self.level].get(index));
        let (start, len) = match capture {
            Some(&Capture { start, len: Len::Bytes(len) }) => (start, len),
            Some(Capture { len: Len::Position, .. }) => return None,
            _ => self.fail(&format!("invalid capture index %{number}")),
        };
        self.step(len / 16);
        let behind = self.text.get(at..at + len)?;
        (*behind == self.text[start..start + len]).then_some(at + len)
    }

    /// Pushes a capture; the first one is the whole match if there are none.
    fn push_capture(&mut self, index: usize, whole: (usize, usize)) {
        self.step(1);
        let bytes = match self.captures[..self.level].get(index) {
            None if index == 0 => &self.text[whole.0..whole.1],
            None => self.fail("invalid capture index"),
            Some(Capture { len: Len::Open, .. }) => self.fail("unfinished capture"),
            Some(Capture { start, len: Len::Position }) => {
                // SAFETY: as below.
                return unsafe { lua_pushnumber(self.state, (start + 1) as f64) };
            }
            Some(&Capture { start, len: Len::Bytes(len) }) => &self.text[start..start + len],
        };
        // SAFETY: there is room for one value, says `new`'s caller; `push_captures` makes more.
        unsafe { push_bytes(self.state, bytes) }
    }

    /// Pushes all captures, or the whole match if there are none and it is given. Returns the
    /// number of values.
    fn push_captures(&mut self, whole: Option<(usize, usize)>) -> c_int {
        let count = if self.level == 0 && whole.is_some() { 1 } else { self.level };
        // SAFETY: the state runs the calling function, see `new`.
        unsafe { luaL_checkstack(self.state, count as c_int, c"too many captures".as_ptr()) };
        for index in 0..count {
            self.push_capture(index, whole.unwrap_or_default());
        }
        count as c_int
    }

    /// Appends a replacement text, in which `%0` to `%9` are captures.
    fn replace(&mut self, by: &[u8], whole: (usize, usize), to: &mut Text) {
        let mut rest = by;
        while let Some(at) = memchr::memchr(b'%', rest) {
            to.push(&rest[..at]);
            let escaped = rest.get(at + 1).copied().unwrap_or(0);
            rest = rest.get(at + 2..).unwrap_or_default();
            self.step(1);
            match escaped {
                b'0' => to.push(&self.text[whole.0..whole.1]),
                b'1'..=b'9' => {
                    self.push_capture(usize::from(escaped - b'1'), whole);
                    // SAFETY: the capture is on top of the stack until it has been copied.
                    unsafe {
                        to.push(bytes_at(self.state, -1).unwrap_or_default());
                        lua_settop(self.state, -2);
                    }
                }
                // As in Lua 5.1; a NUL at the end.
                other => to.push(&[other]),
            }
        }
        to.push(rest);
    }
}

/// Whether a byte is in the class of a letter after `%`.
fn in_class(byte: u8, letter: u8) -> bool {
    let is_in = match letter.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => is_space(byte),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return letter == byte,
    };
    is_in == letter.is_ascii_lowercase()
}

/// A pattern without a leading `^`, and whether it had one. As in Lua 5.1, a NUL ends it.
fn without_anchor(pattern: &[u8]) -> (&[u8], bool) {
    let pattern = before_nul(pattern);
    match pattern.strip_prefix(b"^") {
        Some(rest) => (rest, true),
        None => (pattern, false),
    }
}

/// `string.find` and `string.match` for a pattern with special characters.
pub(super) unsafe fn find_or_match(state: *mut lua_State, finds: bool) -> c_int {
    // SAFETY: the arguments stay on the stack, and the matcher is used by this function only.
    unsafe {
        let (text, pattern) = (text_argument(state, 1), text_argument(state, 2));
        let init = i64::from(luaL_optinteger_(state, 3, 1));
        let init = if init < 0 { init + text.len() as i64 + 1 } else { init };
        let mut start = init.max(1) as usize - 1;
        if start > text.len() {
            lua_pushnil(state);
            return 1;
        }
        let (pattern, is_anchored) = without_anchor(pattern);
        let mut matcher = Matcher::new(state, text, pattern);
        loop {
            if let Some(end) = matcher.begin(start, 0) {
                if !finds {
                    return matcher.push_captures(Some((start, end)));
                }
                lua_pushnumber(state, (start + 1) as f64);
                lua_pushnumber(state, end as f64);
                return matcher.push_captures(None) + 2;
            }
            if is_anchored || start >= text.len() {
                lua_pushnil(state);
                return 1;
            }
            start += 1;
        }
    }
}

/// `string.gmatch(s, pattern)`: an iterator over all matches.
pub(super) unsafe fn gmatch(state: *mut lua_State) -> c_int {
    // SAFETY: three values, as many as upvalues are taken.
    unsafe {
        text_argument(state, 1);
        text_argument(state, 2);
        lua_settop(state, 2);
        lua_pushnumber(state, 0.0);
        lua_pushcclosurek(state, next_match, c"gmatch".as_ptr(), 3, None);
        1
    }
}

/// The iterator: its upvalues are the text, the pattern, and the next position.
unsafe extern "C-unwind" fn next_match(state: *mut lua_State) -> c_int {
    // SAFETY: the upvalues stay while this function runs; one value at a time, and the captures,
    // for which the matcher asks for room.
    unsafe {
        let text = bytes_at(state, lua_upvalueindex(1)).unwrap_or_default();
        let pattern = bytes_at(state, lua_upvalueindex(2)).unwrap_or_default();
        let start = lua_tonumber(state, lua_upvalueindex(3)) as usize;
        let mut matcher = Matcher::new(state, text, before_nul(pattern));
        for start in start..=text.len() {
            if let Some(end) = matcher.begin(start, 0) {
                let next = if end == start { end + 1 } else { end };
                lua_pushnumber(state, next as f64);
                lua_replace(state, lua_upvalueindex(3));
                return matcher.push_captures(Some((start, end)));
            }
        }
        0
    }
}

/// `string.gsub(s, pattern, replacement [, n])`, with a string, a number, a table or a function as
/// replacement.
pub(super) unsafe fn gsub(state: *mut lua_State) -> c_int {
    // SAFETY: room is asked for; the arguments stay on the stack, and matcher and text are used by
    // this function only.
    unsafe {
        let (text, pattern) = (text_argument(state, 1), text_argument(state, 2));
        let kind = lua_type(state, 3);
        let count_max = i64::from(luaL_optinteger_(state, 4, text.len() as c_int + 1));
        let by = match kind {
            LUA_TSTRING | LUA_TNUMBER => bytes_at(state, 3).unwrap_or_default(),
            _ => b"",
        };
        luaL_checkstack(state, 8, c"gsub".as_ptr());
        let (pattern, is_anchored) = without_anchor(pattern);
        let mut matcher = Matcher::new(state, text, pattern);
        let (mut made, mut at, mut count) = (Text::new(state), 0, 0_i64);
        while count < count_max {
            let found = matcher.begin(at, 0);
            if let Some(end) = found {
                count += 1;
                match kind {
                    LUA_TFUNCTION => {
                        lua_pushvalue(state, 3);
                        let captures = matcher.push_captures(Some((at, end)));
                        lua_call(state, captures, 1);
                    }
                    LUA_TTABLE => {
                        matcher.push_capture(0, (at, end));
                        lua_gettable(state, 3);
                    }
                    _ => matcher.replace(by, (at, end), &mut made),
                }
                if matches!(kind, LUA_TFUNCTION | LUA_TTABLE) {
                    push_replaced(state, &mut made, &text[at..end]);
                }
            }
            match found {
                Some(end) if end > at => at = end,
                _ if at < text.len() => {
                    made.push(&text[at..at + 1]);
                    at += 1;
                }
                _ => break,
            }
            if is_anchored {
                break;
            }
        }
        made.push(&text[at..]);
        made.push_string();
        lua_pushnumber(state, count as f64);
        2
    }
}

/// Appends the value on top of the stack, or the text itself if that is nil or false, and pops it.
unsafe fn push_replaced(state: *mut lua_State, made: &mut Text, text: &[u8]) {
    // SAFETY: the value is copied while it is on top; names of types are constants.
    unsafe {
        if lua_toboolean(state, -1) == 0 {
            made.push(text);
        } else if lua_isstring(state, -1) == 0 {
            let kind = CStr::from_ptr(luaL_typename(state, -1)).to_string_lossy();
            raise_here(state, format!("invalid replacement value (a {kind})").as_bytes());
        } else {
            made.push(bytes_at(state, -1).unwrap_or_default());
        }
        lua_settop(state, -2);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shared;
    use super::*;

    unsafe extern "C-unwind" fn our_find(state: *mut lua_State) -> c_int {
        // SAFETY: the interpreter runs this function.
        unsafe { find_or_match(state, true) }
    }

    unsafe extern "C-unwind" fn our_match(state: *mut lua_State) -> c_int {
        // SAFETY: the interpreter runs this function.
        unsafe { find_or_match(state, false) }
    }

    unsafe extern "C-unwind" fn our_gmatch(state: *mut lua_State) -> c_int {
        // SAFETY: the interpreter runs this function.
        unsafe { gmatch(state) }
    }

    unsafe extern "C-unwind" fn our_gsub(state: *mut lua_State) -> c_int {
        // SAFETY: the interpreter runs this function.
        unsafe { gsub(state) }
    }

    /// Compares our functions, which are globals, with the interpreter's over random texts and
    /// patterns.
    const COMPARES: &str = r#"
        local parts = {'a', 'b', '.', '%a', '%d', '%S', '%w', '%p', '%x', '[ab]', '[^a]', '[a-b1]', '[%d_]', '(', ')', '()', '$',
            '^', '*', '+', '-', '?', '%1', '%2', '%0', '%b()', '%bab', '%f[%a]', '%f[^b]', '%', '[', ']', '[]', '[^]', '%z'}
        local letters = {'a', 'b', 'a', 'b', '(', ')', '1', ' ', '_', '\0', 'A', '\255'}
        local replacements = {'x', '%0', '%1', '<%2>', '%%', '%9', {a = 1, b = false, ab = 'q'},
            function(...) return select('#', ...) end, function() return nil end, {a = {}}, 5, ''}
        local function any(list, most)
            local text = ''
            for i = 1, math.random(0, most) do text = text .. list[math.random(#list)] end
            return text
        end
        local function all(f, s, p)
            local found = {}
            for a, b in f(s, p) do
                found[#found + 1] = tostring(a) .. '|' .. tostring(b)
                if #found > 100 then break end
            end
            return table.concat(found, ',')
        end
        local function show(...)
            -- The errors' texts are those of Lua 5.1.
            if not ... then return 'false' end
            local shown = {}
            for i = 1, select('#', ...) do shown[i] = tostring((select(i, ...))) end
            return table.concat(shown, ',')
        end
        local matched = 0
        for i = 1, ROUNDS do
            local s, p = any(letters, 12), any(parts, 6)
            local r, init, n = replacements[math.random(#replacements)], math.random(-14, 14), math.random(-1, 4)
            for _, case in ipairs({
                {string.match, match, s, p, init}, {string.find, find, s, p .. '.', init},
                {string.gsub, gsub, s, p, r}, {string.gsub, gsub, s, p, r, n},
            }) do
                local theirs, ours = show(pcall(case[1], unpack(case, 3))), show(pcall(case[2], unpack(case, 3)))
                if theirs ~= ours then
                    error(string.format('%q %q %s: %s, not %s', s, p, tostring(r), ours, theirs))
                end
                if string.sub(theirs, 1, 8) ~= 'true,nil' and string.sub(theirs, 1, 5) == 'true,' then matched = matched + 1 end
            end
            local theirs, ours = show(pcall(all, string.gmatch, s, p)), show(pcall(all, gmatch, s, p))
            if theirs ~= ours then error(string.format('%q %q: %s, not %s', s, p, ours, theirs)) end
        end
        return matched
    "#;

    #[test]
    fn patterns_match_as_the_interpreters_own_functions_do() {
        let shared = Shared::new();
        // SAFETY: a state of its own, whose stack is used as Lua says, and which ends before
        // `shared`.
        unsafe {
            let state = luaL_newstate();
            (*lua_callbacks(state)).userdata = (&raw const shared).cast_mut().cast();
            luaL_openlibs(state);
            let functions: [(&CStr, lua_CFunction); 4] = [
                (c"find", our_find),
                (c"match", our_match),
                (c"gmatch", our_gmatch),
                (c"gsub", our_gsub),
            ];
            for (name, function) in functions {
                lua_pushcfunctiond(state, function, name.as_ptr());
                lua_setglobal(state, name.as_ptr());
            }
            let source = COMPARES.replace("ROUNDS", "100000");
            assert!(super::super::load(state, c"@test", source.as_bytes(), 0));
            let status = lua_pcall(state, 0, 1, 0);
            let shown =
                String::from_utf8_lossy(bytes_at(state, -1).unwrap_or_default()).into_owned();
            lua_close(state);
            assert_eq!(status, LUA_OK, "{shown}");
            assert!(shown.parse::<f64>().unwrap() > 50_000.0, "{shown}");
        }
    }
}
