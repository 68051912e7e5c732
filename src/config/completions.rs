//! Completions of the command line for shells, from the table of parameters.

use super::command_line::TOOL_OPTIONS;
use super::param::Param;
use super::params::PARAMS;

/// Shells that have completions.
pub const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// The way in which a value is completed.
enum Values {
    Words(Vec<String>),
    Folder,
    /// A file's name, as no better completion is known.
    Any,
}

/// The completions for one of [`SHELLS`], else nothing.
pub fn completions(shell: &str) -> Option<String> {
    match shell {
        "bash" => Some(bash()),
        "zsh" => Some(zsh()),
        "fish" => Some(fish()),
        _ => None,
    }
}

const ORIGIN: &str = "Generated from the table of parameters, src/config/params.rs.";

fn shown() -> impl Iterator<Item = &'static Param> {
    PARAMS.iter().filter(|param| !param.traits.hidden)
}

/// The values, from their description in the example file.
fn values(param: &Param) -> Values {
    let described = param.describe();
    match &described[..] {
        "yes or no" => Values::Words(vec!["yes".into(), "no".into()]),
        "directory" => Values::Folder,
        _ => match described.strip_prefix("only ") {
            Some(value) => Values::Words(vec![value.into()]),
            None if described.contains(" | ") => {
                Values::Words(described.split(" | ").map(String::from).collect())
            }
            None => Values::Any,
        },
    }
}

/// The first sentence of the documentation, without its full stop.
fn summary(param: &Param) -> String {
    let doc = param.doc.concat();
    let doc = doc.trim();
    doc.split_once(". ").map_or(doc, |(first, _)| first).trim_end_matches('.').to_owned()
}

fn bash() -> String {
    let mut cases = String::new();
    for param in shown() {
        let names = param.names().map(|name| format!("--{name}")).collect::<Vec<_>>().join(" | ");
        let how = match values(param) {
            Values::Words(words) => format!("-W \"{}\"", words.join(" ")),
            Values::Folder => "-d".to_owned(),
            Values::Any => continue,
        };
        cases.push_str(&format!(
            "  {names}) mapfile -t COMPREPLY < <(compgen {how} -- \"$word\"); return ;;\n"
        ));
    }
    let tools = TOOL_OPTIONS.iter().map(|(name, _)| format!("--{name}"));
    let directives = shown().map(|param| format!("--{}", param.name));
    let options = tools.chain(directives).collect::<Vec<_>>().join("\n    ");
    format!(
        "# Completions of latchkey(1) for bash. {ORIGIN}
_latchkey() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
  case $before in
  --completions) mapfile -t COMPREPLY < <(compgen -W \"{}\" -- \"$word\"); return ;;
{cases}  esac
  case $word in
  -*) mapfile -t COMPREPLY < <(compgen -W \"$_latchkey_options\" -- \"$word\") ;;
  *) mapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;
  esac
}}
_latchkey_options=\"
    {options}
\"
complete -o filenames -F _latchkey latchkey
",
        SHELLS.join(" ")
    )
}

fn zsh() -> String {
    // Square brackets end a description, colons an argument.
    let told = |text: &str| {
        text.replace('\\', "\\\\")
            .replace(['[', ']'], "")
            .replace(':', "\\:")
            .replace('\'', "'\\''")
    };
    let mut text = format!(
        "#compdef latchkey\n# Completions of latchkey(1) for zsh. {ORIGIN}\n_arguments \\\n"
    );
    for (name, about) in TOOL_OPTIONS {
        let value = match name {
            "version" | "help" => String::new(),
            "completions" => format!(":shell:({})", SHELLS.join(" ")),
            _ => ":file:_files".to_owned(),
        };
        text.push_str(&format!("  '--{name}[{}]{value}' \\\n", told(about)));
    }
    for param in shown() {
        let value = match values(param) {
            Values::Words(words) => format!("({})", words.join(" ")),
            Values::Folder => "_files -/".to_owned(),
            Values::Any => "_files".to_owned(),
        };
        text.push_str(&format!(
            "  '*--{0}[{1}]:{0}:{value}' \\\n",
            param.name,
            told(&summary(param))
        ));
    }
    text + "  '*:file:_files'\n"
}

fn fish() -> String {
    let told = |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'");
    let mut text = format!("# Completions of latchkey(1) for fish. {ORIGIN}\n");
    for (name, about) in TOOL_OPTIONS {
        let value = match name {
            "version" | "help" => "-f".to_owned(),
            "completions" => format!("-x -a '{}'", SHELLS.join(" ")),
            _ => "-r".to_owned(),
        };
        text.push_str(&format!("complete -c latchkey -l {name} {value} -d '{}'\n", told(about)));
    }
    for param in shown() {
        let value = match values(param) {
            Values::Words(words) => format!("-x -a '{}'", words.join(" ")),
            Values::Folder => "-x -a '(__fish_complete_directories)'".to_owned(),
            Values::Any => "-r".to_owned(),
        };
        text.push_str(&format!(
            "complete -c latchkey -l {} {value} -d '{}'\n",
            param.name,
            told(&summary(param))
        ));
    }
    text
}
