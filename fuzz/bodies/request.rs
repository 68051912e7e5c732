//! Any split of a client's bytes gives the same requests, and the same error, as the whole. The
//! first byte says how the rest is cut.

use latchkey::resp::{Limits, Parsed, Parser, ProtocolError};

type Requests = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// Parses bytes that come in pieces of `piece_len`, dropping what was consumed after each.
fn parse(bytes: &[u8], piece_len: usize, limits: &Limits) -> Requests {
    let (mut parser, mut buf, mut requests) = (Parser::default(), Vec::new(), Vec::new());
    for piece in bytes.chunks(piece_len) {
        buf.extend_from_slice(piece);
        let mut pos = 0;
        loop {
            let mut args = Vec::new();
            match parser.next(&mut buf, &mut pos, &mut args, limits) {
                Ok(Parsed::Request) => {
                    requests.push(args.iter().map(|arg| arg.of(&buf).to_vec()).collect());
                }
                Ok(Parsed::Empty) => {}
                Ok(Parsed::Incomplete) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
        buf.drain(..pos);
    }
    (requests, None)
}

pub fn run(input: &[u8]) {
    let [cut, bytes @ ..] = input else { return };
    let limits = Limits {
        authenticated: cut & 0x80 == 0,
        // Small enough for the fuzzer to reach.
        inline_max: 32,
        bulk_len_max: 20_000,
        ..Limits::default()
    };
    let whole = parse(bytes, usize::MAX, &limits);
    let cut = parse(bytes, usize::from(cut & 0x7f) + 1, &limits);
    assert_eq!(whole, cut);
}
