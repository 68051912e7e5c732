//! The sources of readiness events. Each has a range of tokens: clients count up from 0, the others
//! down from the highest number.

use mio::Token;

use super::primary::PRIMARY;
use super::{bus, http, lines};

/// The token of wakes by other threads and by signals.
pub const WAKER: Token = Token(usize::MAX - 1);
/// The token of the clients' first listener; the next ones count down.
pub const FIRST_LISTENER: usize = usize::MAX - 2;
pub const LISTENERS_MAX: usize = 64;
const _: () = assert!(PRIMARY.0 == FIRST_LISTENER - LISTENERS_MAX);

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client in this slot.
    Client(usize),
    /// The listener of clients with this index.
    Listener(usize),
    /// The connection to the primary.
    Primary,
    /// HTTP, the cluster's bus and the connections to other servers tell theirs apart.
    Http,
    Bus,
    Lines,
    Waker,
}

impl Source {
    #[inline]
    pub fn of(token: Token) -> Self {
        match token.0 {
            number if number <= lines::LAST_TOKEN => Source::Client(number),
            number if number <= bus::LAST_TOKEN => Source::Lines,
            number if number <= http::LAST_TOKEN => Source::Bus,
            number if number < PRIMARY.0 => Source::Http,
            number if number == PRIMARY.0 => Source::Primary,
            number if number <= FIRST_LISTENER => Source::Listener(FIRST_LISTENER - number),
            _ => Source::Waker,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_has_its_source() {
        let of = |number| Source::of(Token(number));
        assert_eq!(
            (of(0), of(lines::LAST_TOKEN)),
            (Source::Client(0), Source::Client(lines::LAST_TOKEN))
        );
        assert_eq!(
            (of(lines::LAST_TOKEN + 1), of(bus::LAST_TOKEN)),
            (Source::Lines, Source::Lines)
        );
        assert_eq!((of(bus::LAST_TOKEN + 1), of(http::LAST_TOKEN)), (Source::Bus, Source::Bus));
        assert_eq!((of(http::LAST_TOKEN + 1), of(PRIMARY.0 - 1)), (Source::Http, Source::Http));
        assert_eq!((of(PRIMARY.0), of(WAKER.0)), (Source::Primary, Source::Waker));
        assert_eq!(of(PRIMARY.0 + 1), Source::Listener(LISTENERS_MAX - 1));
        assert_eq!(of(FIRST_LISTENER), Source::Listener(0));
    }
}
