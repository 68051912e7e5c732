//! A file of commands read in pieces gives the same as read whole; what is valid up to some offset
//! is valid when the rest is gone; and the check tool's cut leaves a file that it finds whole. The
//! first byte says how the rest is cut.

use std::io::Read;

use latchkey::persist::aof::reader::{End, Item, Reader, Tail};

struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = out.len().min(self.0.len()).min(self.1);
        out[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

/// A request: where it begins and ends, and its arguments.
type Request = (u64, u64, Vec<Vec<u8>>);

/// The requests and the end.
fn read(bytes: &[u8], piece: usize) -> (Vec<Request>, End) {
    let mut reader = Reader::new(Pieces(bytes, piece), 0, bytes.len() as u64);
    let mut requests = Vec::new();
    loop {
        match reader.next().expect("memory can be read") {
            Item::Request(request) => {
                let arguments = request.arguments().map(<[u8]>::to_vec).collect();
                requests.push((request.offset, request.end, arguments));
            }
            Item::Annotation(_) => {}
            Item::End(end) => return (requests, end),
        }
    }
}

pub fn run(input: &[u8]) {
    let [piece, bytes @ ..] = input else { return };
    let (requests, end) = read(bytes, usize::MAX);
    assert_eq!(read(bytes, usize::from(*piece) + 1), (requests.clone(), end.clone()));
    let kept = &bytes[..end.valid_up_to as usize];
    let (again, whole) = read(kept, usize::MAX);
    assert_eq!(whole.tail, Tail::Clean);
    assert!(requests.starts_with(&again));
}
