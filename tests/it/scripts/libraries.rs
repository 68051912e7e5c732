//! What scripts' libraries answer, beside what Redis 7.0.15 answered.
//!
//! `tests/data/script-libraries-7.0.15.txt` holds expressions, and below each what it gave there:
//! whether it raised no error, then its values as `tests/data/show.lua` shows them.
#![allow(unsafe_code)] // Luau's C interface.

use std::collections::BTreeMap;

use latchkey::script::open_libraries;
use mlua::ffi;
use proptest::prelude::*;

const SHOW: &str = include_str!("../../data/show.lua");
const FACTS: &str = include_str!("../../data/script-libraries-7.0.15.txt");

/// Where we knowingly answer otherwise, and why.
const DIFFERENCES: &[(&str, &str)] = &[];

/// A state of Luau with its own libraries and ours.
struct Lua(*mut ffi::lua_State);

impl Lua {
    fn new() -> Lua {
        // SAFETY: a fresh state; its stack has room for twenty values.
        unsafe {
            let state = ffi::luaL_newstate();
            ffi::luaL_openlibs(state);
            open_libraries(state);
            assert_eq!(ffi::lua_gettop(state), 0, "the stack is as it was");
            Lua(state)
        }
    }

    /// Runs a script with one argument, `...`; its first result as a string, or its error's text.
    fn run(&self, script: &str, argument: &[u8]) -> Result<Vec<u8>, String> {
        // SAFETY: the state is valid; what is read off the stack is copied before it is popped.
        unsafe {
            let name = c"@user_script".as_ptr();
            let status = ffi::luaL_loadbuffer(self.0, script.as_ptr().cast(), script.len(), name);
            let status = if status == ffi::LUA_OK {
                ffi::lua_pushlstring_(self.0, argument.as_ptr().cast(), argument.len());
                ffi::lua_pcall(self.0, 1, 1, 0)
            } else {
                status
            };
            let mut len = 0;
            let text = ffi::lua_tolstring(self.0, -1, &raw mut len);
            let text =
                if text.is_null() { &[] } else { std::slice::from_raw_parts(text.cast(), len) };
            let text = text.to_vec();
            ffi::lua_settop(self.0, 0);
            match status {
                ffi::LUA_OK => Ok(text),
                _ => Err(String::from_utf8_lossy(&text).into_owned()),
            }
        }
    }

    fn show(&self, expression: &str) -> String {
        let statement = match expression.contains("return ") {
            true => expression.to_owned(),
            false => format!("return {expression}"),
        };
        let script = SHOW.replace('\n', " ").replace("EXPRESSION", &statement);
        match self.run(&script, b"") {
            Ok(text) => String::from_utf8(text).expect("what is shown is ASCII"),
            Err(message) => message,
        }
    }
}

impl Drop for Lua {
    fn drop(&mut self) {
        // SAFETY: the state is not used any more.
        unsafe { ffi::lua_close(self.0) };
    }
}

#[test]
fn libraries_answer_as_redis_does() {
    let differences: BTreeMap<_, _> = DIFFERENCES.iter().copied().collect();
    let lua = Lua::new();
    let lines: Vec<&str> = FACTS.lines().collect();
    let mut faults = Vec::new();
    let mut count = 0;
    for fact in lines.chunks_exact(2) {
        let [expression, expected] = fact else { unreachable!("chunks have two lines") };
        let expected = expected.strip_prefix("    ").expect("a reply is indented");
        let expected = differences.get(expression).copied().unwrap_or(expected);
        let shown = lua.show(expression);
        if shown != expected {
            faults
                .push(format!("{expression}\n  expected {expected:.300}\n  shown    {shown:.300}"));
        }
        count += 1;
    }
    assert!(count > 500, "the facts are there");
    assert!(faults.is_empty(), "{} of {count} differ:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn libraries_cannot_be_changed() {
    let lua = Lua::new();
    for library in ["bit", "cjson", "cmsgpack", "struct"] {
        let message =
            lua.run(&format!("{library}.more = 1"), b"").expect_err("the table is read-only");
        assert!(message.contains("readonly"), "{message}");
    }
}

#[test]
fn what_a_script_collects_is_freed_when_it_fails() {
    let lua = Lua::new();
    let script = "
        local big, result = {}, {}
        for index = 1, 64 do big[index] = string.rep('x', 100000) end
        big[65] = print
        for attempt = 1, 20 do result[attempt] = pcall(cjson.encode, big) end
        return tostring(result[20]) .. cjson.encode({1}) .. cjson.decode('\"\\\\u0041\"')";
    assert_eq!(lua.run(script, b"").as_deref(), Ok(&b"false[1]A"[..]));
}

#[test]
fn a_text_that_grows_beyond_all_bounds_is_refused() {
    let lua = Lua::new();
    let nested = "local t = {string.rep('x', 1000)} for level = 1, 30 do t = {t, t, t, t} end";
    for call in ["cjson.encode", "cmsgpack.pack"] {
        let levels =
            if call == "cmsgpack.pack" { nested.replace("30", "13") } else { nested.to_owned() };
        let message = lua.run(&format!("{levels} return {call}(t)"), b"").expect_err("too much");
        assert!(message.ends_with("not enough memory"), "{message}");
        assert_eq!(
            lua.run(&format!("return {call}('')"), b"").map(|text| text.len() < 3),
            Ok(true)
        );
    }
}

#[test]
fn an_interrupt_ends_a_walk() {
    unsafe extern "C-unwind" fn interrupt(state: *mut ffi::lua_State, collector: i32) {
        if collector < 0 {
            // SAFETY: Luau calls this where a script may fail.
            unsafe { ffi::luaL_error(state, c"%s".as_ptr(), c"killed".as_ptr()) };
        }
    }
    let lua = Lua::new();
    let build = "t = {} for level = 1, 15 do t = {t, t} end text = string.rep('[', 50)";
    lua.run(build, b"").expect("globals may be set");
    for call in ["return cjson.encode(t)", "return cmsgpack.pack(t)"] {
        // Compiled first: calls are safepoints of Luau too, so the function is called by Rust.
        // SAFETY: the state is valid, and the function is taken off again.
        unsafe {
            let (library, function) =
                call["return ".len()..].split_once('.').expect("a library's function");
            let library = std::ffi::CString::new(library).expect("no zero byte");
            let function =
                std::ffi::CString::new(function.trim_end_matches("(t)")).expect("no zero byte");
            ffi::lua_getfield(lua.0, ffi::LUA_GLOBALSINDEX, library.as_ptr());
            ffi::lua_getfield(lua.0, -1, function.as_ptr());
            ffi::lua_getfield(lua.0, ffi::LUA_GLOBALSINDEX, c"t".as_ptr());
            (*ffi::lua_callbacks(lua.0)).interrupt = Some(interrupt);
            assert_eq!(ffi::lua_pcall(lua.0, 1, 1, 0), ffi::LUA_ERRRUN);
            (*ffi::lua_callbacks(lua.0)).interrupt = None;
            let message =
                std::ffi::CStr::from_ptr(ffi::lua_tolstring(lua.0, -1, std::ptr::null_mut()));
            assert_eq!(message, c"killed");
            ffi::lua_settop(lua.0, 0);
        }
    }
}

/// Texts of values that survive being encoded and decoded: no nil, and no table that is empty or
/// sparse.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        any::<i32>().prop_map(|number| number.to_string()),
        (-1_000_000i64..1_000_000).prop_map(|number| format!("{}", number as f64 / 64.0)),
        any::<bool>().prop_map(|value| value.to_string()),
        prop::collection::vec(any::<u8>(), 0..12).prop_map(|bytes| {
            let escaped: String = bytes.iter().map(|byte| format!("\\{byte:03}")).collect();
            format!("\"{escaped}\"")
        }),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..6)
                .prop_map(|items| format!("{{{}}}", items.join(","))),
            prop::collection::btree_map("[a-z/\"]{0,4}", inner, 1..6).prop_map(|fields| {
                let fields: Vec<_> = fields
                    .iter()
                    .map(|(key, value)| format!("['{}']={value}", key.replace('"', "\\\"")))
                    .collect();
                format!("{{{}}}", fields.join(","))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_encoded_is_decoded_to_the_same(value in value()) {
        let lua = Lua::new();
        let plain = lua.show(&value);
        prop_assert!(plain.starts_with("true "), "{plain}");
        for (decode, encode) in [("cjson.decode", "cjson.encode"), ("cmsgpack.unpack", "cmsgpack.pack")] {
            let shown = lua.show(&format!("{decode}({encode}({value}))"));
            prop_assert_eq!(&shown, &plain);
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        json in "[\\[\\]{}:,\"\\\\a-fu0-9xeE.+\\- ntrs]{0,40}",
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        format in "[<>!bBhHlLTiIfdscx0-9 ]{0,12}",
    ) {
        let lua = Lua::new();
        lua.run("pcall(cjson.decode, ...)", json.as_bytes()).expect("errors are caught");
        lua.run("pcall(cjson.decode, ...)", &bytes).expect("errors are caught");
        lua.run("pcall(cmsgpack.unpack, ...)", &bytes).expect("errors are caught");
        let script = format!("pcall(struct.unpack, '{format}', ...) pcall(struct.size, '{format}')");
        lua.run(&script, &bytes).expect("errors are caught");
        let repacked = "
            local function again(ok, ...) if ok then return struct.pack(FORMAT, ...) end end
            pcall(again, pcall(struct.unpack, FORMAT, ...))";
        lua.run(&repacked.replace("FORMAT", &format!("'{format}'")), &bytes).expect("errors are caught");
    }
}
