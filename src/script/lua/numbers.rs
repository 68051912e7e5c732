//! Lua's text of numbers, as Lua 5.1 writes it (`%.14g`): `tostring(10/3)` is `3.3333333333333`,
//! `1e15 .. ""` is `1e+15`.
//!
//! Luau writes the shortest digits that distinguish a double, up to 17, and scripts written for
//! Redis would store other texts. All its conversions of a number to text (`tostring`, `..`,
//! `table.concat`, numbers in place of strings) call one C++ function, `luai_num2str`, which is
//! alone in its object file. The linker takes an object file out of a library only for a symbol
//! that is missing, so this definition, which comes before that library, is used instead. A test
//! below fails if that ever changes.

use std::os::raw::c_char;

use crate::script::number::format_json;

/// Digits that Lua 5.1 shows at most.
const DIGITS: usize = 14;
/// Bytes from the buffer's start that the interpreter permits to write (`LUAI_MAXNUM2STR`).
const BUFFER_BYTES: usize = 48;

/// `char* luai_num2str(char* buf, double n)`, declared in `lnumutils.h`: writes a number's text,
/// without a zero after it, and returns its end.
///
/// # Safety
/// The buffer has room for [`BUFFER_BYTES`].
#[unsafe(export_name = "_Z12luai_num2strPcd")]
unsafe extern "C" fn write_number(buffer: *mut c_char, number: f64) -> *mut c_char {
    let text = format_json(number, DIGITS);
    let len = text.len().min(BUFFER_BYTES);
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), len);
        buffer.add(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(number: f64) -> Vec<u8> {
        let mut buffer = [0; BUFFER_BYTES];
        // SAFETY: the buffer has that room, and the end lies in it.
        let len = unsafe {
            let end = write_number(buffer.as_mut_ptr(), number);
            end.offset_from(buffer.as_ptr()) as usize
        };
        buffer[..len].iter().map(|&byte| byte as u8).collect()
    }

    /// The text that C's printf writes for a number.
    fn printed(number: f64) -> Vec<u8> {
        let mut buffer = [0 as c_char; 64];
        // SAFETY: the length is the buffer's, and the format takes a double.
        let len =
            unsafe { libc::snprintf(buffer.as_mut_ptr(), buffer.len(), c"%.14g".as_ptr(), number) };
        buffer[..len as usize].iter().map(|&byte| byte as u8).collect()
    }

    #[test]
    fn numbers_are_written_as_printf_writes_them() {
        let mut numbers = vec![0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN];
        numbers.extend([f64::MAX, f64::MIN_POSITIVE, 5e-324, 0.1, 1e14, 1e15, 1e16, 1e-5, 1e100]);
        // Numbers halfway between two texts.
        numbers.extend([100_000_000_000_005.0, 100_000_000_000_015.0, 1_234_567_890_123.25]);
        let mut random = fastrand::Rng::with_seed(14);
        for _ in 0..200_000 {
            numbers.push(f64::from_bits(random.u64(..)));
            numbers.push(random.i64(-1 << 53..1 << 53) as f64 / f64::from(1 << random.u8(0..30)));
            let decimal = format!("{}e{}", random.i64(..) >> random.u8(0..63), random.i32(-30..30));
            numbers.push(decimal.parse().unwrap());
        }
        for number in numbers {
            let (ours, wanted) = (written(number), printed(number));
            assert_eq!(ours, wanted, "{number:?}: {}", wanted.escape_ascii());
        }
    }
}
