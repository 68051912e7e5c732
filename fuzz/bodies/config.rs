//! Any text is a configuration or an error that can be told, and the arguments of a line written as
//! escapes are the same ones.

use latchkey::config::{Config, parse_line};

pub fn run(input: &[u8]) {
    for line in input.split(|byte| *byte == b'\n') {
        if let Ok(Some(args)) = parse_line(line)
            && !args.is_empty()
        {
            let escape = |arg: &Vec<u8>| {
                let escaped: String = arg.iter().map(|byte| format!("\\x{byte:02x}")).collect();
                format!("\"{escaped}\"")
            };
            let escaped = args.iter().map(escape).collect::<Vec<_>>().join(" ");
            assert_eq!(parse_line(escaped.as_bytes()).ok().flatten(), Some(args));
        }
    }
    match Config::from_text(input) {
        Ok(config) => assert!(config.get(&[b"*"]).len() > 100),
        Err(error) => assert!(!error.message().is_empty()),
    }
}
