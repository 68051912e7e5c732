//! What the scripts' libraries cost in the process: a text of 1 KB decoded and encoded, by cjson
//! and by cmsgpack. The aims are 5.3 us to decode JSON and 2.7 us to encode it. The script calls
//! the function 100 times: the times shown are for these.
#![allow(unsafe_code)] // Luau's C interface.

use criterion::{Criterion, criterion_group, criterion_main};
use latchkey::script::open_libraries;
use mlua::ffi;

/// An order with twelve items: 1 KB.
const BUILD: &str = r#"
    local items = {}
    for index = 1, 12 do
        items[index] = {id = index * 1000, name = 'item number ' .. index, price = index * 1.25, tags = {'a', 'b'}, sold = true}
    end
    order = {id = 'order:12345', customer = 'somebody@example.org', created = 1700000000, items = items, note = 'quoted "text"\n'}
    json, packed = cjson.encode(order), cmsgpack.pack(order)
    print(#json)
"#;

fn libraries(c: &mut Criterion) {
    // SAFETY: a fresh state, whose stack has room for twenty values; each function is called with
    // none, and leaves none.
    unsafe {
        let state = ffi::luaL_newstate();
        ffi::luaL_openlibs(state);
        open_libraries(state);
        let load = |script: &str| {
            let name = c"=bench".as_ptr();
            let status = ffi::luaL_loadbuffer(state, script.as_ptr().cast(), script.len(), name);
            assert_eq!(status, ffi::LUA_OK, "the script is valid");
        };
        load(BUILD);
        assert_eq!(ffi::lua_pcall(state, 0, 0, 0), ffi::LUA_OK);
        for (name, call) in [
            ("cjson_decode", "cjson.decode(json)"),
            ("cjson_encode", "cjson.encode(order)"),
            ("cmsgpack_unpack", "cmsgpack.unpack(packed)"),
            ("cmsgpack_pack", "cmsgpack.pack(order)"),
            ("struct_pack", "struct.pack('>iIhc4s', 1, 2, 3, 'abcd', 'text')"),
        ] {
            load(&format!("for turn = 1, 100 do local value = {call} end"));
            c.bench_function(name, |bencher| {
                bencher.iter(|| {
                    ffi::lua_pushvalue(state, -1);
                    assert_eq!(ffi::lua_pcall(state, 0, 0, 0), ffi::LUA_OK);
                });
            });
            ffi::lua_settop(state, 0);
        }
        ffi::lua_close(state);
    }
}

criterion_group!(benches, libraries);
criterion_main!(benches);
