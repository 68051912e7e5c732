//! The sample file, `redis.conf.example`: every parameter with its documentation and default, from
//! the table.

use super::param::Param;
use super::params::PARAMS;

const HEADER: &str = "\
# Configuration of Latchkey. Written from the table of parameters (src/config/params.rs): edit that.
#
# Each directive stands here with its default, commented out. The file is that of redis-server:
#
#   name value ...          one directive a line, names in any case of letters
#   # text                  a comment, on a line of its own
#   name \"a b\\n\\xff\"        double quotes hold blanks and \\n \\r \\t \\a \\b \\xHH; \\ before others
#   name 'a b'              single quotes hold blanks; \\' is a quote
#
# Memory is in bytes, or with a unit in any case of letters:
#
#   1k is 1000 bytes, 1m is 1000000 bytes, 1g is 1000000000 bytes
#   1kb is 1024 bytes, 1mb is 1048576 bytes, 1gb is 1073741824 bytes
#
# Four directives are no parameters:
#
#   include FILE            reads another file here; * ? [ in its name read all that match, or none
#   user NAME RULE ...      declares an ACL user
#   rename-command A B      gives command A the name B; \"\" removes it
#   loadmodule FILE         is refused: there are no modules
#
# The same directives are options of the command line, and win over the file:
#
#   latchkey redis.conf --maxmemory 1gb --save \"\"
";

/// The text of the sample file. Uncommenting all its directives changes nothing.
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

/// One parameter: what it does, what it takes, how it may be used, its default.
fn entry(param: &Param) -> Vec<u8> {
    let mut text = b"\n".to_vec();
    for line in param.doc {
        text.extend(format!("#{line}\n").into_bytes());
    }
    text.extend(format!("# Value: {}.\n", param.slot.describe()).into_bytes());
    if !param.aliases.is_empty() {
        text.extend(format!("# Other names: {}.\n", param.aliases.join(", ")).into_bytes());
    }
    let traits = param.traits;
    for (holds, sentence) in [
        (traits.immutable, "# Fixed while the server runs.\n"),
        (traits.protected, "# CONFIG SET needs enable-protected-configs.\n"),
        (traits.stored, "# Accepted and kept, without effect so far.\n"),
    ] {
        if holds {
            text.extend_from_slice(sentence.as_bytes());
        }
    }
    for line in param.slot.example(param.name) {
        text.push(b'#');
        text.extend_from_slice(&line);
        text.push(b'\n');
    }
    text
}
