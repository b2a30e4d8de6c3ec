//! What listeners are shown.
//!
//! # Safety
//! A `grapnel_call` is what the engine passed to the listener, and good until the listener returns.

use std::ffi::{c_int, c_uint};

use engine::listen::{Entry, Exit, Hit, Registers, missed};

/// A call, or a probed instruction, as a listener sees it.
#[derive(Debug)]
#[repr(C)]
pub struct grapnel_call {
    opaque: [u8; 0],
}

// The three are views of one thing. SAFETY of all: the engine passed the call to the listener.
macro_rules! view {
    ($call:expr, $view:ty) => {
        &mut *$call.cast::<$view>()
    };
}

/// The registers.
///
/// # Safety
/// `call` is what the listener was passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_call_registers(call: *mut grapnel_call) -> *mut Registers {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Hit) }.registers_mut()
}

/// An argument, on entry.
///
/// # Safety
/// As [`grapnel_call_registers`]; the function has that many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_argument(call: *mut grapnel_call, index: c_uint) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Entry) }.argument(index as usize)
}

/// Changes an argument, on entry.
///
/// # Safety
/// As [`grapnel_argument`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_set_argument(call: *mut grapnel_call, index: c_uint, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Entry) }.set_argument(index as usize, value);
}

/// The result, on leaving.
///
/// # Safety
/// As [`grapnel_call_registers`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_result(call: *mut grapnel_call) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Exit) }.result()
}

/// Changes the result, on leaving.
///
/// # Safety
/// As [`grapnel_call_registers`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_set_result(call: *mut grapnel_call, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Exit) }.set_result(value);
}

/// Sets the call's word, on entry.
///
/// # Safety
/// As [`grapnel_call_registers`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_set_word(call: *mut grapnel_call, word: u64) {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Entry) }.set_word(word);
}

/// The call's word, on leaving.
///
/// # Safety
/// As [`grapnel_call_registers`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_word(call: *mut grapnel_call) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Exit) }.word()
}

/// The low 128 bits of a vector register.
///
/// # Safety
/// As [`grapnel_call_registers`]; `value` is valid for writes of two words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_vector(
    call: *mut grapnel_call,
    index: c_uint,
    value: *mut [u64; 2],
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { view!(call, Hit) }.vector(index as usize) {
        Some(found) => {
            // SAFETY: as above.
            unsafe { value.write(found) };
            1
        }
        None => 0,
    }
}

/// Changes the low 128 bits of a vector register.
///
/// # Safety
/// As [`grapnel_call_registers`]; `value` is valid for reads of two words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_set_vector(
    call: *mut grapnel_call,
    index: c_uint,
    value: *const [u64; 2],
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Hit).set_vector(index as usize, *value) }.into()
}

/// How many calls and returns no listener was told of.
#[unsafe(no_mangle)]
pub extern "C" fn grapnel_missed() -> u64 {
    missed()
}
