//! A request that is kept: in one piece, because there may be many.

use smallvec::SmallVec;

use super::args::Args;
use super::request::Range;

/// The length of a longer argument takes four more bytes.
const SHORT_MAX: usize = 254;

/// A request in one piece: each argument after its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedRequest(Box<[u8]>);

/// The places of an [`OwnedRequest`]'s arguments.
pub type Ranges = SmallVec<[Range; 8]>;

impl OwnedRequest {
    /// `arguments`: with the command's name.
    pub fn new<'a>(arguments: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let mut bytes = Vec::with_capacity(arguments.clone().map(|one| one.len() + 1).sum());
        for argument in arguments {
            match argument.len() {
                short @ ..=SHORT_MAX => bytes.push(short as u8),
                long => {
                    bytes.push(u8::MAX);
                    bytes.extend((long as u32).to_le_bytes());
                }
            }
            bytes.extend_from_slice(argument);
        }
        OwnedRequest(bytes.into_boxed_slice())
    }

    /// The places of the arguments.
    pub fn ranges(&self) -> Ranges {
        Places { bytes: &self.0, at: 0 }.collect()
    }

    /// The request, with its [`Self::ranges`].
    pub fn args<'a>(&'a self, ranges: &'a Ranges) -> Args<'a> {
        Args::new(&self.0, ranges)
    }

    /// The arguments.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let places = Places { bytes: &self.0, at: 0 };
        places.map(|range| &self.0[range.start as usize..][..range.len as usize])
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        self.0.len()
    }
}

struct Places<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Iterator for Places<'_> {
    type Item = Range;

    fn next(&mut self) -> Option<Range> {
        let mut len = usize::from(*self.bytes.get(self.at)?);
        self.at += 1;
        if len > SHORT_MAX {
            len = u32::from_le_bytes(*self.bytes[self.at..].first_chunk()?) as usize;
            self.at += 4;
        }
        let range = Range { start: self.at as u32, len: len as u32 };
        self.at += len;
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_unpacked_as_it_was() {
        let long = vec![b'x'; 70_000];
        let arguments: [&[u8]; 5] = [b"LOCK.ACQUIRE", b"", &long[..254], &long[..255], &long];
        let owned = OwnedRequest::new(arguments.into_iter());
        assert_eq!(owned.iter().collect::<Vec<_>>(), arguments);
        let ranges = owned.ranges();
        assert_eq!(owned.args(&ranges).iter_from(0).collect::<Vec<_>>(), arguments);
        assert_eq!(OwnedRequest::default().iter().next(), None);
    }
}
