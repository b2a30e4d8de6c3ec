//! What went wrong, for C.
//!
//! # Safety
//! An error is a box that C holds and gives back once.

use std::ffi::{CString, c_char};

/// Why something failed. Any thread may read it; it is freed with grapnel_error_free.
#[derive(Debug)]
#[expect(non_camel_case_types, reason = "the name in C")]
pub struct grapnel_error {
    message: CString,
    remedy: CString,
    address: u64,
}

impl grapnel_error {
    fn new(message: &str, remedy: &str, address: u64) -> Box<Self> {
        let text = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
        Box::new(Self { message: text(message), remedy: text(remedy), address })
    }

    /// A pointer is NULL that must not be.
    pub(crate) fn null(what: &str) -> Box<Self> {
        Self::new(&format!("{what} is NULL"), "pass what the header asks for", 0)
    }

    /// Bits are set that stand for nothing.
    pub(crate) fn unknown(what: &str, bits: u32) -> Box<Self> {
        Self::new(&format!("{bits:#x} stands for no {what}"), "use those of the header, joined by |, or 0", 0)
    }

    pub(crate) fn about(mut self: Box<Self>, address: u64) -> Box<Self> {
        self.address = address;
        self
    }

    /// C has it from now on.
    pub(crate) fn give(self: Box<Self>) -> *mut Self {
        Box::into_raw(self)
    }

    pub(crate) fn raise(message: &str, remedy: &str, address: u64) -> *mut Self {
        Self::new(message, remedy, address).give()
    }

    pub(crate) fn of(error: &engine::Error) -> *mut Self {
        Self::raise(&error.to_string(), error.remedy(), error.address().0)
    }
}

/// What went wrong, as one sentence. Valid until the error is freed. "no error" for NULL.
///
/// # Errors
/// None.
///
/// # Safety
/// `error` is NULL or came from a function of this library and wasn't freed. Any thread may ask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_error_message(error: *const grapnel_error) -> *const c_char {
    // SAFETY: null or an error that C holds (the caller's promise).
    unsafe { error.as_ref() }.map_or(c"no error".as_ptr(), |error| error.message.as_ptr())
}

/// What could be done instead. Valid until the error is freed. Empty for NULL.
///
/// # Errors
/// None.
///
/// # Safety
/// As grapnel_error_message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_error_remedy(error: *const grapnel_error) -> *const c_char {
    // SAFETY: null or an error that C holds (the caller's promise).
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.remedy.as_ptr())
}

/// The address that the error is about: of the offending instruction, if there is one. 0 if there is none.
///
/// # Errors
/// None.
///
/// # Safety
/// As grapnel_error_message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_error_address(error: *const grapnel_error) -> u64 {
    // SAFETY: null or an error that C holds (the caller's promise).
    unsafe { error.as_ref() }.map_or(0, |error| error.address)
}

/// Frees an error. NULL is allowed.
///
/// # Errors
/// None.
///
/// # Safety
/// As grapnel_error_message; no thread uses the error afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_error_free(error: *mut grapnel_error) {
    if !error.is_null() {
        // SAFETY: it came from `Box::into_raw`, and C gives it back.
        drop(unsafe { Box::from_raw(error) });
    }
}
