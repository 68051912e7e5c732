//! A message of the cluster bus that is read can be written, and what was written is read as the
//! same. A text of nodes.conf that is read likewise.

use latchkey::cluster::config_file;
use latchkey::cluster::wire::{Decoded, decode, encode_light, frame_length};

/// The longest message that is taken.
const LENGTH_MAX: usize = 1 << 20;

pub fn run(bytes: &[u8]) {
    if let Ok(conf) = config_file::parse(bytes) {
        let again = conf.write(true);
        assert_eq!(config_file::parse(again.as_bytes()).map(|conf| conf.write(true)), Ok(again));
    }
    let whole = match frame_length(bytes, LENGTH_MAX) {
        Ok(Some(length)) if length <= bytes.len() => &bytes[..length],
        _ => return,
    };
    let Ok(decoded) = decode(whole) else { return };
    let again = match &decoded {
        Decoded::Full(message) => message.encode(),
        Decoded::Light(body) => encode_light(body),
        Decoded::Ignored => return,
    };
    assert_eq!(decode(&again).as_ref(), Ok(&decoded), "what was written can be read");
    assert_eq!(frame_length(&again, usize::MAX), Ok(Some(again.len())));
}
