//! Unwinding from the code that a signal has interrupted, where the C library is musl on x86-64: it
//! does not describe the frame through which a handler returns, so that unwinding from within the
//! handler ends there. The unwinder, which both Rust and zig link there, is LLVM's libunwind.

use std::ffi::{c_int, c_void};

/// The registers as libunwind has them at the head of its context.
const ORDER: [c_int; 17] = [
    libc::REG_RAX,
    libc::REG_RBX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RDI,
    libc::REG_RSI,
    libc::REG_RBP,
    libc::REG_RSP,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
    libc::REG_RIP,
];
/// UNW_REG_IP.
const INSTRUCTION: c_int = -1;

/// Room for libunwind's context (some 23 words) and cursor (some 35).
#[repr(C, align(16))]
struct Words([usize; 128]);

unsafe extern "C" {
    fn unw_init_local(cursor: *mut Words, context: *mut Words) -> c_int;
    fn unw_step(cursor: *mut Words) -> c_int;
    fn unw_get_reg(cursor: *mut Words, register: c_int, value: *mut usize) -> c_int;
}

/// Passes on the interrupted code's address and its return addresses, until `visit` returns false.
///
/// # Safety
/// `context` is the third argument of a signal handler, which still runs.
pub unsafe fn trace(context: *mut c_void, mut visit: impl FnMut(usize) -> bool) -> bool {
    let (mut registers, mut cursor) = (Words([0; 128]), Words([0; 128]));
    // SAFETY: the caller promises a context of this type.
    let values = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    for (word, place) in registers.0.iter_mut().zip(ORDER) {
        *word = values[place as usize] as usize;
    }
    // SAFETY: both places are larger than what libunwind has there, and outlive its use.
    unsafe {
        if unw_init_local(&mut cursor, &mut registers) != 0 {
            return false;
        }
        loop {
            let mut address = 0;
            unw_get_reg(&mut cursor, INSTRUCTION, &mut address);
            if address == 0 || !visit(address) || unw_step(&mut cursor) <= 0 {
                return true;
            }
        }
    }
}
