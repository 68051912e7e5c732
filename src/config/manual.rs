//! The manual page of the configuration, `man/latchkey.conf.5`: every parameter of the table, as in
//! the example file.

use super::example::notes;
use super::params::PARAMS;

const HEADER: &str = "\
.\\\" Generated from the table of parameters, src/config/params.rs.
.TH LATCHKEY.CONF 5 2026-11-25 \"Latchkey 0.2.0\" \"File Formats\"
.SH NAME
latchkey.conf \\- configuration of latchkey
.SH DESCRIPTION
A directive a line: a name in any case, and its values. Lines that begin with # are comments. The files of
.BR redis\\-server (1)
and
.BR valkey\\-server (1)
have the same format. Each directive can be an option of the command line too:
.B \\-\\-maxmemory 1gb
stands for
.BR \"maxmemory 1gb\" .
.PP
Within double quotes, values may have spaces, \\en, \\er, \\et, \\ea, \\eb, \\exHH, \\e\\(dq and \\e\\e; within single quotes,
spaces and \\e\\(aq. Memory is in bytes or has a unit: 1k is 1000 bytes, 1kb is 1024 bytes, and so for m, mb, g and gb.
.PP
Four directives are no parameters:
.TP
.BI include \" FILE\"
Reads another file, or all files that match a name with * ? [.
.TP
.BI user \" NAME RULE ...\"
Declares an ACL user.
.TP
.BI rename\\-command \" A B\"
Gives command A the name B; \\(dq\\(dq removes it.
.TP
.BI loadmodule \" FILE\"
Is refused: modules are not supported.
.PP
All others follow, each with its default.
";

const FOOTER: &str = "\
.SH SEE ALSO
.BR latchkey (1)
";

/// The text of the manual page.
pub fn manual_page() -> String {
    let mut text = HEADER.to_owned();
    let mut section = "";
    for param in PARAMS.iter().filter(|param| !param.traits.hidden) {
        if param.section != section {
            section = param.section;
            text.push_str(&format!(".SH {}\n", escaped(&section.to_uppercase())));
        }
        text.push_str(".TP\n");
        for (index, line) in param.field.example(param.name).iter().enumerate() {
            let line = String::from_utf8_lossy(line);
            let (name, value) = line.split_once(' ').unwrap_or((&line, ""));
            if index > 0 {
                text.push_str(".TQ\n");
            }
            text.push_str(&format!(".B {}\n", escaped(&format!("{name} {value}")).trim_end()));
        }
        for line in param.doc {
            text.push_str(&format!("{}\n", escaped(line.trim())));
        }
        for note in notes(param) {
            text.push_str(&format!(".br\n{}\n", escaped(&note)));
        }
    }
    text + FOOTER
}

/// A line of text as roff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}
