//! Functions that objects import, bound to others.
//!
//! # Safety
//! A rebinding is a box that C holds until it is undone.

use std::{
    ffi::{CStr, c_char, c_void},
    ptr,
};

use engine::{
    module::Module,
    rebind::{Rebinding, Report},
};

use crate::{
    error::{grapnel_error, grapnel_error_free},
    find,
};

/// A function whose importers are bound to another. One thread at a time uses it.
#[derive(Debug)]
#[expect(non_camel_case_types, reason = "the name in C")]
pub struct grapnel_rebinding(Rebinding);

/// # Safety
/// No object is loaded or unloaded while the list is used.
unsafe fn modules() -> Vec<Module> {
    // SAFETY: the caller's promise.
    unsafe { find::modules() }.unwrap_or_else(|error| {
        // SAFETY: it was raised just now. A program without a list has nothing to be rebound.
        unsafe { grapnel_error_free(error) };
        Vec::new()
    })
}

fn judge(report: &Report) -> *mut grapnel_error {
    if let Some((at, errno)) = report.failed.first() {
        return grapnel_error::raise(
            &format!("the word at {at:#x} can't be written: {errno}"),
            "hook the function itself",
            *at as u64,
        );
    }
    match report.foreign.first() {
        Some(at) => grapnel_error::raise(
            &format!("the word at {at:#x} holds neither the function nor the replacement"),
            "the others are done; have whoever changed this one put it back first",
            *at as u64,
        ),
        None => ptr::null_mut(),
    }
}

/// Binds all importers of a function to `replacement`: every word of the loaded objects that the dynamic linker filled
/// with the function's address is changed, and no code.
///
/// All objects that define the name count, also those that were loaded with RTLD_LOCAL or define a function of their own
/// by that name; `original` is that of the first. Calls that don't go through such a word aren't seen. The function is
/// stored in `original` first, and the handle in `rebinding`; either may be NULL.
///
/// # Errors
/// If no object defines the name: nothing has changed, and the out pointers are as they were. If a word holds something
/// else, or can't be written, it is left alone and the others are changed; `rebinding` is then stored all the same.
///
/// # Safety
/// `name` is a string and `replacement` a function of its type, which stays loaded; `original` and `rebinding` are NULL
/// or may be written. Any thread may call this, while no object is loaded or unloaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_rebind(
    name: *const c_char,
    replacement: *mut c_void,
    original: *mut *mut c_void,
    rebinding: *mut *mut grapnel_rebinding,
) -> *mut grapnel_error {
    // SAFETY: the caller's promise.
    let (modules, name) = unsafe { (modules(), CStr::from_ptr(name)) };
    // SAFETY: the caller's promise.
    let found = unsafe { Rebinding::find(&modules, name.to_bytes(), replacement.cast_const().cast()) };
    let mut found = match found {
        Ok(found) => found,
        Err(error) => return grapnel_error::raise(&error.to_string(), "check the name", 0),
    };
    if !original.is_null() {
        // SAFETY: valid for writes (the caller's promise).
        unsafe { original.write(found.original().cast_mut().cast()) };
    }
    // SAFETY: the caller's promise.
    let report = unsafe { found.update(&modules) };
    if !rebinding.is_null() {
        // SAFETY: valid for writes (the caller's promise).
        unsafe { rebinding.write(Box::into_raw(Box::new(grapnel_rebinding(found)))) };
    }
    judge(&report)
}

/// Binds the objects that were loaded since, to be called after dlopen.
///
/// # Errors
/// If a word holds something else, or can't be written: it is left alone and the others are changed.
///
/// # Safety
/// `rebinding` came from grapnel_rebind and wasn't undone. One thread at a time uses it, while no object is loaded or
/// unloaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_rebind_again(rebinding: *mut grapnel_rebinding) -> *mut grapnel_error {
    // SAFETY: the caller's promise.
    judge(&unsafe { (*rebinding).0.update(&modules()) })
}

/// How many words hold the replacement.
///
/// # Errors
/// None.
///
/// # Safety
/// As grapnel_rebind_again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_rebound(rebinding: *const grapnel_rebinding) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &(*rebinding).0 }.words()
}

/// Puts back what was in the words, and frees the handle.
///
/// # Errors
/// If a word holds something else by now, or can't be written: it is left alone and the others are put back. The handle
/// is freed all the same.
///
/// # Safety
/// As grapnel_rebind_again; the handle isn't used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_unbind(rebinding: *mut grapnel_rebinding) -> *mut grapnel_error {
    // SAFETY: it came from `Box::into_raw`, and C gives it back.
    let mut rebinding = unsafe { Box::from_raw(rebinding) };
    // SAFETY: the caller's promise.
    judge(&unsafe { rebinding.0.undo(&modules()) })
}
