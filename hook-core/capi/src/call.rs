//! What listeners are shown.
//!
//! # Safety
//! A `grapnel_call` is what the engine passed to the listener, and good until the listener returns.

use std::{
    ffi::{c_int, c_uint},
    ptr,
};

use engine::listen::{Entry, Exit, Hit, Registers, missed};

/// A call of a function, or a probed instruction, as a listener sees it. It is valid until the listener returns, in the
/// thread that the listener runs in. For NULL in its place the functions that take one answer 0 or NULL, and do nothing.
#[derive(Debug)]
#[expect(non_camel_case_types, reason = "the name in C")]
pub struct grapnel_call(());

// The three are views of one thing. SAFETY of all: the engine passed the call to the listener. For NULL there is another answer.
macro_rules! view {
    ($call:expr, $view:ty $(, $otherwise:expr)?) => {
        match $call.cast::<$view>().as_mut() {
            Some(view) => view,
            None => return $($otherwise)?,
        }
    };
}

/// The registers, to be read and changed.
///
/// # Errors
/// None.
///
/// # Safety
/// `call` is what the listener was passed. The registers are valid until it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_call_registers(call: *mut grapnel_call) -> *mut Registers {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Hit, ptr::null_mut()) }.registers_mut()
}

/// On entry: an integer or pointer argument by its number from 0, in registers or memory.
///
/// # Errors
/// None.
///
/// # Safety
/// `call` is what the listener was passed, on entry, and the function has that many arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_argument(call: *mut grapnel_call, index: c_uint) -> u64 {
    // SAFETY: the caller's promise.
    let call = unsafe { view!(call, Entry, 0) };
    // SAFETY: as above.
    unsafe { call.argument(index as usize) }
}

/// On entry: changes an argument.
///
/// # Errors
/// None.
///
/// # Safety
/// As grapnel_argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_set_argument(call: *mut grapnel_call, index: c_uint, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Entry).set_argument(index as usize, value) };
}

/// On leaving: the integer or pointer result.
///
/// # Errors
/// None.
///
/// # Safety
/// `call` is what the listener was passed, on leaving.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_result(call: *mut grapnel_call) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Exit, 0) }.result()
}

/// On leaving: changes the result.
///
/// # Errors
/// None.
///
/// # Safety
/// As grapnel_result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_set_result(call: *mut grapnel_call, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Exit) }.set_result(value);
}

/// On entry: sets a word that is kept until the same call leaves.
///
/// # Errors
/// None.
///
/// # Safety
/// `call` is what the listener was passed, on entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_set_word(call: *mut grapnel_call, word: u64) {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Entry) }.set_word(word);
}

/// On leaving: the word that was set on entry of the same call, else 0.
///
/// # Errors
/// None.
///
/// # Safety
/// `call` is what the listener was passed, on leaving.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_word(call: *mut grapnel_call) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { view!(call, Exit, 0) }.word()
}

/// The low 128 bits of a vector register, as two words, the lowest first.
///
/// # Errors
/// 0 if the register wasn't saved, else 1.
///
/// # Safety
/// `call` is what the listener was passed, and two words may be written at `value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_vector(call: *mut grapnel_call, index: c_uint, value: *mut u64) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { view!(call, Hit, 0) }.vector(index as usize) {
        Some(found) if !value.is_null() => {
            // SAFETY: as above.
            unsafe { value.cast::<[u64; 2]>().write(found) };
            1
        }
        _ => 0,
    }
}

/// Changes the low 128 bits of a vector register.
///
/// # Errors
/// 0 if the register wasn't saved, else 1.
///
/// # Safety
/// `call` is what the listener was passed, and two words can be read at `value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_set_vector(
    call: *mut grapnel_call,
    index: c_uint,
    value: *const u64,
) -> c_int {
    // SAFETY: null, or two words that can be read (the caller's promise).
    let Some(value) = (unsafe { value.cast::<[u64; 2]>().as_ref() }) else { return 0 };
    // SAFETY: as above.
    unsafe { view!(call, Hit, 0).set_vector(index as usize, *value) }.into()
}

/// How many calls and returns no listener was told of, in the whole process, for want of a place for what is kept about
/// calls under way.
///
/// # Errors
/// None.
///
/// # Safety
/// Any thread may ask, also a listener or a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn grapnel_missed() -> u64 {
    missed()
}
