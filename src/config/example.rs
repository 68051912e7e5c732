//! The example file, `redis.conf.example`: the documentation and default of every parameter in the
//! table.

use super::param::Param;
use super::params::PARAMS;

const HEADER: &str = "\
# Configuration of Latchkey. Generated from the table of parameters, src/config/params.rs.
#
# Each directive is listed with its default, commented out. The format is that of redis-server:
#
#   name value ...          one directive a line, names in any case
#   # text                  a comment, on a line of its own
#   name \"a b\\n\\xff\"        in double quotes: spaces, and \\n \\r \\t \\a \\b \\xHH \\\" \\\\
#   name 'a b'              in single quotes: spaces, and \\'
#
# Memory is in bytes, or with a unit in any case:
#
#   1k is 1000 bytes, 1m is 1000000 bytes, 1g is 1000000000 bytes
#   1kb is 1024 bytes, 1mb is 1048576 bytes, 1gb is 1073741824 bytes
#
# These four directives are not parameters:
#
#   include FILE            reads another file, or all files that match a name with * ? [
#   user NAME RULE ...      declares an ACL user
#   rename-command A B      gives command A the name B; \"\" removes it
#   loadmodule FILE         is refused: modules are not supported
#
# The same directives are options of the command line, which override the file:
#
#   latchkey redis.conf --maxmemory 1gb --save \"\"
";

/// The text of the example file. Uncommenting all its directives changes nothing.
pub fn example_file() -> Vec<u8> {
    let mut text = HEADER.as_bytes().to_vec();
    let mut section = "";
    for param in PARAMS.iter().filter(|param| !param.traits.hidden) {
        if param.section != section {
            section = param.section;
            let bar = "#".repeat(section.len() + 4);
            text.extend(format!("\n\n{bar}\n# {section} #\n{bar}\n").into_bytes());
        }
        text.extend(entry(param));
    }
    text
}

/// The entry of a parameter: documentation, allowed values, aliases, traits and default.
fn entry(param: &Param) -> Vec<u8> {
    let mut text = b"\n".to_vec();
    for line in param.doc {
        text.extend(format!("#{line}\n").into_bytes());
    }
    for note in notes(param) {
        text.extend(format!("# {note}\n").into_bytes());
    }
    for line in param.field.example(param.name) {
        text.push(b'#');
        text.extend_from_slice(&line);
        text.push(b'\n');
    }
    text
}

/// Allowed values, aliases and traits, with a sentence for each.
pub(super) fn notes(param: &Param) -> Vec<String> {
    let mut notes = vec![format!("Value: {}.", param.field.describe())];
    if !param.aliases.is_empty() {
        notes.push(format!("Other names: {}.", param.aliases.join(", ")));
    }
    let traits = param.traits;
    for (applies, sentence) in [
        (traits.immutable, "Fixed while the server runs."),
        (traits.protected, "CONFIG SET needs enable-protected-configs."),
        (traits.only_stored, "Accepted, but without effect."),
    ] {
        if applies {
            notes.push(sentence.to_owned());
        }
    }
    notes
}
