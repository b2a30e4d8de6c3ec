//! The hook engine as a C library. `include/grapnel_hook.h` documents the functions.
//!
//! The Rust interface has no state of its own; this one keeps one set for the whole library, so that hooks of different
//! callers on one function have an order.
//!
//! # Safety
//! Pointers come from C: each function says what it takes them for. Handles and errors are boxes that C holds and gives
//! back once.

pub mod batch;
pub mod call;
pub mod find;
pub mod rebind;
mod shared;

use std::ffi::{CString, c_char, c_int};

use engine::Liveness;

/// Why something failed.
#[derive(Debug)]
#[expect(non_camel_case_types, reason = "the name in C")]
pub struct grapnel_error {
    message: CString,
    remedy: CString,
    address: u64,
}

impl grapnel_error {
    fn raise(message: &str, remedy: &str, address: u64) -> *mut Self {
        let text = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
        Box::into_raw(Box::new(Self { message: text(message), remedy: text(remedy), address }))
    }

    fn of(error: &engine::Error) -> *mut Self {
        Self::raise(&error.to_string(), error.remedy(), error.address().0)
    }
}

fn liveness(number: c_int) -> Result<Liveness, *mut grapnel_error> {
    match number {
        0 => Ok(Liveness::SingleThreaded),
        1 => Ok(Liveness::Live),
        other => Err(grapnel_error::raise(
            &format!("{other} is no liveness"),
            "use GRAPNEL_SINGLE_THREADED or GRAPNEL_LIVE",
            0,
        )),
    }
}

/// What went wrong.
///
/// # Safety
/// `error` came from a function of this library and wasn't freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_error_message(error: *const grapnel_error) -> *const c_char {
    // SAFETY: null or an error that C holds (the caller's promise).
    unsafe { error.as_ref() }.map_or(c"no error".as_ptr(), |error| error.message.as_ptr())
}

/// What could be done instead.
///
/// # Safety
/// As [`grapnel_error_message`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_error_remedy(error: *const grapnel_error) -> *const c_char {
    // SAFETY: null or an error that C holds (the caller's promise).
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.remedy.as_ptr())
}

/// The address that the error is about.
///
/// # Safety
/// As [`grapnel_error_message`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_error_address(error: *const grapnel_error) -> u64 {
    // SAFETY: null or an error that C holds (the caller's promise).
    unsafe { error.as_ref() }.map_or(0, |error| error.address)
}

/// Frees an error.
///
/// # Safety
/// As [`grapnel_error_message`], and it isn't used afterwards. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_error_free(error: *mut grapnel_error) {
    if !error.is_null() {
        // SAFETY: it came from `Box::into_raw`, and C gives it back.
        drop(unsafe { Box::from_raw(error) });
    }
}
