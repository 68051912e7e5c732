//! Reading into memory that is not initialised.

#![allow(unsafe_code)] // the standard library has no safe way yet

use std::io;
use std::os::fd::BorrowedFd;

/// Reads at most this number of bytes to the end of a vector, which does not grow. Returns their
/// number; 0 also if there is no room.
pub fn append(file: BorrowedFd<'_>, buffer: &mut Vec<u8>, most: usize) -> io::Result<usize> {
    let spare = buffer.spare_capacity_mut();
    let most = most.min(spare.len());
    let (read, _) = rustix::io::read(file, &mut spare[..most])?;
    let count = read.len();
    // SAFETY: the system has written these bytes, and they are within the capacity.
    unsafe { buffer.set_len(buffer.len() + count) };
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_are_appended_within_the_room() {
        let (mut writer, reader) = UnixStream::pair().expect("the system has sockets");
        reader.set_nonblocking(true).expect("a socket can be set");
        let mut buffer = Vec::with_capacity(10);
        buffer.extend_from_slice(b"ab");
        let mut read =
            |most| append(reader.as_fd(), &mut buffer, most).map(|count| (count, buffer.clone()));
        assert_eq!(read(9).expect_err("nothing has come").kind(), io::ErrorKind::WouldBlock);
        writer.write_all(b"cdefghijkl").expect("there is room");
        assert_eq!(read(3).expect("bytes have come"), (3, b"abcde".to_vec()));
        assert_eq!(read(9).expect("bytes have come"), (5, b"abcdefghij".to_vec()));
        assert_eq!(read(9).expect("there is no room").0, 0);
    }
}
