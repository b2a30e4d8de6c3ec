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
pub mod rebind;
mod shared;

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    ptr,
};

use engine::{Liveness, module, symbol};

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

/// Finds a function in a loaded object.
///
/// # Safety
/// `object` is null or a string, `name` is a string, `address` is valid for writes, `size` is so or null. No object is
/// loaded or unloaded meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_find(
    object: *const c_char,
    name: *const c_char,
    address: *mut *mut c_void,
    size: *mut usize,
) -> *mut grapnel_error {
    // SAFETY: null or a string (the caller's promise).
    let object = (!object.is_null()).then(|| unsafe { CStr::from_ptr(object) });
    // SAFETY: a string (the caller's promise).
    let name = unsafe { CStr::from_ptr(name) };
    let Some(debug) = module::r_debug_of_this_process() else {
        return grapnel_error::raise(
            "the dynamic linker's list of objects can't be found",
            "is the program linked statically?",
            0,
        );
    };
    // SAFETY: the dynamic linker's own structure; nothing is loaded or unloaded meanwhile (the caller's promise).
    let modules = unsafe { module::loaded_modules(debug) };
    let named = |m: &&module::Module| object.is_none_or(|o| m.file_name().starts_with(o.to_bytes()));
    let Some(found) = modules.iter().filter(named).find_map(|m| symbol::find(m, name.to_bytes())) else {
        let place = object.map_or("any object".into(), CStr::to_string_lossy);
        return grapnel_error::raise(
            &format!("{} isn't defined by {place}", name.to_string_lossy()),
            "check the names; a function that isn't exported can't be found yet",
            0,
        );
    };
    // SAFETY: the object is loaded; `address` and `size` are as promised.
    unsafe {
        address.write(found.resolve().cast_mut().cast());
        if !size.is_null() {
            size.write(found.size);
        }
    }
    ptr::null_mut()
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
