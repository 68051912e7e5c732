//! Inline requests never panic; their arguments lie within the line, in order and apart; and
//! writing every byte as an escape gives the same arguments again.

use latchkey::resp::{Limits, Parsed, Parser};

fn parse(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut buf = line.to_vec();
    let (mut pos, mut args) = (0, Vec::new());
    let parsed = Parser::default().next(&mut buf, &mut pos, &mut args, &Limits::default());
    if parsed != Ok(Parsed::Request) {
        assert!(args.is_empty());
        return None;
    }
    let mut end = 0;
    for arg in &args {
        assert!(arg.start >= end);
        end = arg.start + arg.len;
    }
    assert!((end as usize) < pos && pos <= buf.len());
    Some(args.iter().map(|arg| arg.of(&buf).to_vec()).collect())
}

pub fn run(input: &[u8]) {
    if input.first() == Some(&b'*') {
        return;
    }
    let Some(args) = parse(&[input, b"\n"].concat()) else {
        return;
    };
    let escape = |arg: &Vec<u8>| {
        let escaped: String = arg.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        format!("\"{escaped}\"")
    };
    let line = args.iter().map(escape).collect::<Vec<_>>().join(" ") + "\r\n";
    // Escapes take four times the room; longer lines are refused.
    if line.len() <= 64 << 10 {
        assert_eq!(parse(line.as_bytes()), Some(args));
    }
}
