//! Any bytes are the content of a FUNCTION DUMP or are refused, and what is read from one is read
//! again from what is written of it.

use latchkey::script::payload;

fn texts(content: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut texts = Vec::new();
    let read = payload::read(content, |text| {
        texts.push(text.to_vec());
        Ok(())
    });
    read.ok().map(|()| texts)
}

pub fn run(input: &[u8]) {
    if let Some(content) = payload::verify(input) {
        texts(content);
    }
    // No fuzzer finds a checksum: most of the bytes are content as they are.
    if let Some(found) = texts(input) {
        let written = payload::write(found.iter().map(Vec::as_slice));
        let content = payload::verify(&written).expect("what is written has its checksum");
        assert_eq!(texts(content), Some(found));
        let mut broken = written.clone();
        broken[0] ^= 1;
        assert!(payload::verify(&broken).is_none());
    }
}
