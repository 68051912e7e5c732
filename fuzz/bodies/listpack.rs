//! Any bytes as entries: nothing panics, both walks agree, and what is written is read again.

use latchkey::collections::listpack;
use latchkey::collections::packed::Element;

use super::{split_first, split_len};

pub fn run(input: &[u8]) {
    let (&[index], rest) = split_first(input);
    let (text, bytes) = split_len(rest);
    listpack::seek(bytes, index.into(), 100);
    let (mut at, mut end, mut forwards, mut backwards) = (0, bytes.len(), Vec::new(), Vec::new());
    while let Some((element, len)) = listpack::first(&bytes[at..]) {
        forwards.push(element);
        at += len;
    }
    while let Some((element, len)) = listpack::last(&bytes[..end]) {
        backwards.push(element);
        end -= len;
    }
    if let Some(count) = listpack::count(bytes) {
        backwards.reverse();
        assert_eq!(forwards, backwards);
        assert_eq!(forwards.len(), count);
        let mut longer = bytes.to_vec();
        listpack::append(Element::new(text), &mut longer);
        assert_eq!(listpack::count(&longer), Some(count + 1));
        let (element, _) = listpack::last(&longer).expect("an entry was appended");
        assert_eq!(element.text().as_ref(), text);
    }
}
