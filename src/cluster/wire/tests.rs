use super::*;
use proptest::prelude::*;

/// Messages of real nodes of Redis 7.0.15 and Valkey 9.1.2: a name and hexadecimal digits a line.
const SAMPLES: &str = include_str!("../../../tests/data/cluster/messages.hex");

fn samples() -> Vec<(String, Vec<u8>)> {
    let lines = SAMPLES.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let sample = |line: &str| {
        let (name, digits) = line.rsplit_once(' ').expect("a name and digits");
        let digit =
            |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
        (name.to_owned(), (0..digits.len()).step_by(2).map(digit).collect())
    };
    lines.map(sample).collect()
}

#[test]
fn messages_of_real_nodes_are_read_and_written_to_the_byte() {
    let samples = samples();
    assert!(samples.len() > 40);
    for (name, bytes) in samples {
        assert_eq!(frame_length(&bytes, 1 << 20), Ok(Some(bytes.len())), "{name}");
        let written = match decode(&bytes).unwrap_or_else(|error| panic!("{name}: {error:?}")) {
            Decoded::Full(message) => message.encode(),
            Decoded::Light(body) => encode_light(&body),
            Decoded::Ignored => panic!("{name} is ignored"),
        };
        let differ: Vec<usize> = (0..bytes.len().max(written.len()))
            .filter(|at| bytes.get(*at) != written.get(*at))
            .collect();
        assert!(differ.is_empty(), "{name} differs at {differ:?}");
    }
}

#[test]
fn a_length_is_believed_within_bounds_alone() {
    let (_, bytes) = samples().swap_remove(0);
    assert_eq!(frame_length(&bytes[..PREFIX - 1], 1 << 20), Ok(None));
    assert_eq!(frame_length(&bytes, HEADER - 1), Err(BadFrame));
    let mut other = bytes.clone();
    other[0] = b'X';
    assert_eq!(frame_length(&other[..1], 1 << 20), Err(BadFrame));
    let mut short = bytes;
    short[4..8].copy_from_slice(&100u32.to_be_bytes());
    assert_eq!(frame_length(&short, 1 << 20), Err(BadFrame));
}

proptest! {
    #[test]
    fn no_bytes_are_a_crash(
        bytes: Vec<u8>, which in 0usize..40, at in 0usize..2600, with: Vec<u8>, cut in 0usize..2600,
    ) {
        let _ = decode(&bytes);
        let (_, mut sample) = samples().swap_remove(which);
        let at = at.min(sample.len());
        let end = (at + with.len()).min(sample.len());
        sample.splice(at..end, with);
        let _ = decode(&sample);
        sample.truncate(sample.len().saturating_sub(cut));
        if let Ok(Decoded::Full(message)) = decode(&sample) {
            prop_assert!(decode(&message.encode()).is_ok());
        }
    }
}
