//! Function libraries: loaded by FUNCTION LOAD, called by FCALL.
//!
//! A library is a text whose first line names it (`#!lua name=mylib`) and whose code registers
//! functions when run. Function names are global and case-insensitive; library names are
//! case-sensitive. A library is replaced as a whole or not at all. A dump has the libraries in the
//! form of an RDB file, with the footer of DUMP (`payload.rs`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::lua::Lua;
use super::lua::functions::LibraryError;
use super::payload;
use super::shebang::ScriptFlags;
use super::{Function, Host, Registered, SourceLimits, is_name};
use crate::collections::sparse::Sparse;
use crate::config::split_args;

/// The beginning of the text about a library that does not compile.
pub const COMPILING: &[u8] = b"Error compiling function: ";
/// Milliseconds that a library may take to register its functions.
pub const LOAD_TIME_MAX_MS: u64 = 500;

/// The name of the only engine, as clients see it.
pub const ENGINE: &str = "LUA";

/// A library that is loaded.
#[derive(Debug)]
pub struct Library {
    /// The whole text, first line included.
    pub code: Arc<[u8]>,
    /// In the order in which they were registered.
    pub functions: Vec<Registered>,
}

/// A function for FCALL.
#[derive(Clone, Debug)]
pub struct Callee {
    /// As it was registered.
    pub name: Box<[u8]>,
    pub flags: ScriptFlags,
    pub function: Function,
    /// The text of its library.
    pub code: Arc<[u8]>,
}

/// RESTORE's treatment of existing libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestorePolicy {
    /// Removes all first.
    Flush,
    /// Refuses if a name exists.
    Append,
    /// Replaces libraries of the same name.
    Replace,
}

/// Settings for loading libraries.
pub struct Loader<'a> {
    pub lua: &'a mut Lua,
    pub host: &'a mut dyn Host,
    pub limits: SourceLimits,
    /// 0: no limit.
    pub time_max_ms: u64,
}

/// All libraries that are loaded, by their names.
#[derive(Debug, Default)]
pub struct Libraries {
    libraries: BTreeMap<Box<[u8]>, Library>,
    /// By their names in lower case.
    functions: HashMap<Box<[u8]>, Callee>,
    /// Functions of all libraries, counting those whose names differ only in case.
    functions_len: usize,
    /// Bytes of names and texts.
    bytes: usize,
}

impl Libraries {
    pub fn len(&self) -> usize {
        self.libraries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.libraries.is_empty()
    }

    /// Bytes of all libraries' names and texts.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn functions_len(&self) -> usize {
        self.functions_len
    }

    /// Libraries in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Library)> {
        self.libraries.iter().map(|(name, library)| (&**name, library))
    }

    /// The function with a name, case-insensitive.
    pub fn find(&self, name: &[u8]) -> Option<&Callee> {
        if name.iter().any(u8::is_ascii_uppercase) {
            return self.functions.get(&*name.to_ascii_lowercase());
        }
        self.functions.get(name)
    }

    /// Loads a library; returns its name. Errors: a text after `ERR `; then nothing has changed.
    pub fn load(
        &mut self,
        code: &[u8],
        replace: bool,
        loader: &mut Loader<'_>,
    ) -> Result<Box<[u8]>, Vec<u8>> {
        let (name, program) = parse_header(code)?;
        let existing = self.libraries.contains_key(&name);
        if existing && !replace {
            return Err(quoted("Library '", &name, "' already exists"));
        }
        loader.limits.check(program)?;
        let functions = loader
            .lua
            .load_library(program, loader.host, loader.limits.memory_max, loader.time_max_ms)
            .map_err(|error| match error {
                LibraryError::Syntax(words) => [COMPILING, &words].concat(),
                LibraryError::Failed(text) => {
                    [&b"Error registering functions: "[..], &text].concat()
                }
                LibraryError::Refused(text) => text.into(),
            })?;
        let library = Library { code: code.into(), functions };
        if library.functions.is_empty() {
            return Err(b"No functions registered".to_vec());
        }
        let old = self.unlink(&name);
        if let Some(taken) =
            library.functions.iter().find(|function| self.find(&function.name).is_some())
        {
            let message = quoted("Function ", &taken.name, " already exists");
            if let Some(old) = old {
                self.link(name, old);
            }
            forget(library, loader.lua);
            return Err(message);
        }
        if let Some(old) = old {
            forget(old, loader.lua);
        }
        self.link(name.clone(), library);
        Ok(name)
    }

    /// Removes a library. False if there is none.
    pub fn delete(&mut self, name: &[u8], lua: &mut Lua) -> bool {
        let old = self.unlink(name);
        let existed = old.is_some();
        if let Some(old) = old {
            forget(old, lua);
        }
        existed
    }

    /// Removes all libraries.
    pub fn flush(&mut self, lua: &mut Lua) {
        let old = std::mem::take(self);
        for library in old.libraries.into_values() {
            forget(library, lua);
        }
        lua.collect();
    }

    /// All libraries as a payload for RESTORE, here and in Redis 7.0 and later.
    pub fn dump(&self) -> Vec<u8> {
        payload::write(self.libraries.values().map(|library| &*library.code))
    }

    /// Loads all libraries of a dump, or none. Errors: a text after `ERR `.
    pub fn restore(
        &mut self,
        dump: &[u8],
        policy: RestorePolicy,
        loader: &mut Loader<'_>,
    ) -> Result<(), Vec<u8>> {
        let content =
            payload::verify(dump).ok_or(&b"DUMP payload version or checksum are wrong"[..])?;
        let mut new = Libraries::default();
        let loaded = payload::read(content, |code| new.load(code, false, loader).map(|_| ()));
        let joined = loaded.and_then(|()| self.make_way(&new, policy));
        match joined {
            Ok(old) => {
                for library in old {
                    forget(library, loader.lua);
                }
                for (name, library) in new.libraries {
                    self.link(name, library);
                }
                Ok(())
            }
            Err(message) => {
                new.flush(loader.lua);
                Err(message)
            }
        }
    }

    /// Removes the libraries to be replaced. On an error nothing has changed.
    fn make_way(
        &mut self,
        new: &Libraries,
        policy: RestorePolicy,
    ) -> Result<Vec<Library>, Vec<u8>> {
        let names: Vec<Box<[u8]>> = match policy {
            RestorePolicy::Flush => self.libraries.keys().cloned().collect(),
            _ => self
                .libraries
                .keys()
                .filter(|name| new.libraries.contains_key(*name))
                .cloned()
                .collect(),
        };
        if let (RestorePolicy::Append, Some(name)) = (policy, names.first()) {
            return Err(quoted("Library ", name, " already exists"));
        }
        let old: Vec<Library> = names.iter().filter_map(|name| self.unlink(name)).collect();
        let taken = new.functions.values().find(|function| self.find(&function.name).is_some());
        if let Some(taken) = taken {
            let message = quoted("Function ", &taken.name, " already exists");
            for (name, library) in names.into_iter().zip(old) {
                self.link(name, library);
            }
            return Err(message);
        }
        Ok(old)
    }

    fn link(&mut self, name: Box<[u8]>, library: Library) {
        for function in &library.functions {
            let Registered { name, flags, function, .. } = function;
            let callee = Callee {
                name: name.clone(),
                flags: *flags,
                function: *function,
                code: library.code.clone(),
            };
            // Of names that differ only in case, the first one registered is called.
            self.functions.entry(name.to_ascii_lowercase().into()).or_insert(callee);
        }
        self.functions_len += library.functions.len();
        self.bytes += name.len() + library.code.len();
        self.libraries.insert(name, library);
    }

    fn unlink(&mut self, name: &[u8]) -> Option<Library> {
        let library = self.libraries.remove(name)?;
        self.functions_len -= library.functions.len();
        self.bytes -= name.len() + library.code.len();
        for function in &library.functions {
            self.functions.remove(&*function.name.to_ascii_lowercase());
            self.functions.shrink_if_sparse();
        }
        Some(library)
    }
}

fn forget(library: Library, lua: &mut Lua) {
    for function in library.functions {
        lua.forget(function.function);
    }
}

fn quoted(before: &str, name: &[u8], behind: &str) -> Vec<u8> {
    [before.as_bytes(), name, behind.as_bytes()].concat()
}

/// A library's name, and its code: from the end of the first line on, so that line numbers stay
/// correct.
type Header<'code> = (Box<[u8]>, &'code [u8]);

/// Parses a library's first line. Errors: a text after `ERR `.
fn parse_header(code: &[u8]) -> Result<Header<'_>, Vec<u8>> {
    if !code.starts_with(b"#!") {
        return Err(b"Missing library metadata".to_vec());
    }
    let end =
        code.iter().position(|byte| *byte == b'\n').ok_or(&b"Invalid library metadata"[..])?;
    let parts = split_args(&code[..end]).filter(|parts| !parts.is_empty());
    let parts = parts.ok_or(&b"Invalid library metadata"[..])?;
    let mut name: Option<&[u8]> = None;
    for part in &parts[1..] {
        match part.split_at_checked(b"name=".len()) {
            Some((key, value)) if key.eq_ignore_ascii_case(b"name=") => {
                if name.replace(value).is_some() {
                    return Err(
                        b"Invalid metadata value, name argument was given multiple times".to_vec()
                    );
                }
            }
            _ => return Err(quoted("Invalid metadata value given: ", part, "")),
        }
    }
    let name = name.ok_or(&b"Library name was not given"[..])?;
    if !is_name(name) {
        return Err(
            b"Library names can only contain letters, numbers, or underscores(_) and must be at least one character long"
                .to_vec(),
        );
    }
    let engine = parts[0].get(2..).unwrap_or_default();
    if !engine.eq_ignore_ascii_case(ENGINE.as_bytes()) {
        return Err(quoted("Engine '", engine, "' not found"));
    }
    Ok((name.into(), &code[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_names_a_library() {
        let name = |code: &str| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            parse_header(code.as_bytes())
                .map(|(name, _)| text(&name))
                .map_err(|message| text(&message))
        };
        assert_eq!(name("#!lua name=a_1\n"), Ok("a_1".to_owned()));
        assert_eq!(name("#!LUA  \"NAME=b\" \nx"), Ok("b".to_owned()));
        for (code, message) in [
            ("", "Missing library metadata"),
            ("#!lua name=a", "Invalid library metadata"),
            ("#!lua name=\"a\n", "Invalid library metadata"),
            ("#!lua\n", "Library name was not given"),
            ("#!lua a\n", "Invalid metadata value given: a"),
            (
                "#!lua name=\u{e9}\u{e9}\n",
                "Library names can only contain letters, numbers, or underscores(_) and must be \
              at least one character long",
            ),
            ("#!js name=a\n", "Engine 'js' not found"),
        ] {
            assert_eq!(name(code), Err(message.to_owned()));
        }
    }
}
