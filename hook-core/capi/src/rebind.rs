//! Functions that objects import, bound to others.
//!
//! # Safety
//! A rebinding is a box that C holds until it is undone.

use std::{
    ffi::{CStr, c_char, c_void},
    mem, ptr,
};

use engine::{
    module::Module,
    rebind::{Rebinding, Report},
    waiting::RebindingId,
};

use crate::{
    attach::{self, grapnel_liveness},
    error::{grapnel_error, grapnel_error_free},
    find,
    shared::{self, Generation},
    wait,
};

/// A function whose importers are bound to another. One thread at a time uses it.
#[derive(Debug)]
#[expect(non_camel_case_types, reason = "the name in C")]
pub struct grapnel_rebinding(Held);

#[derive(Debug)]
enum Held {
    Here(Rebinding),
    /// With the hooks that wait.
    CarriedOn(RebindingId, Generation),
    /// Between the two.
    Nowhere,
}

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
    if let Some((at, why)) = report.failed.first() {
        return grapnel_error::raise(
            &format!("the word at {at:#x} can't be written: {why}"),
            why.remedy(),
            *at as u64,
        );
    }
    if let Some(at) = report.foreign.first() {
        return grapnel_error::raise(
            &format!("the word at {at:#x} holds neither the function nor the replacement"),
            "the others are done; have whoever changed this one put it back first",
            *at as u64,
        );
    }
    match report.undecided.first() {
        Some(at) => grapnel_error::raise(
            &format!("the word at {at:#x} isn't bound yet, and several functions have the name"),
            "the others are done; call grapnel_rebind_again when it has been used, or load objects with RTLD_NOW",
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
/// If no object defines the name, or it or `replacement` is NULL: nothing has changed, and the out pointers are as they were. If a word holds something
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
    for (is_null, what) in [(name.is_null(), "the name"), (replacement.is_null(), "the replacement")] {
        if is_null {
            return grapnel_error::null(what).give();
        }
    }
    // SAFETY: the caller's promise.
    let (modules, name) = unsafe { (modules(), CStr::from_ptr(name)) };
    // SAFETY: the caller's promise.
    let found = unsafe { Rebinding::find(&modules, name.to_bytes(), replacement.cast_const().cast()) };
    let found = match found {
        Ok(found) => found,
        Err(error) => return grapnel_error::raise(&error.to_string(), "check the name", 0),
    };
    if !original.is_null() {
        // SAFETY: valid for writes (the caller's promise).
        unsafe { original.write(found.original().cast_mut().cast()) };
    }
    // SAFETY: the caller's promise.
    unsafe { begin(found, &modules, rebinding) }
}

/// Binds the importers of the function at an address to `replacement`, whatever else is called so. As grapnel_rebind.
///
/// # Errors
/// If the address is in no object's code, or `replacement` is NULL: nothing has changed, and `rebinding` is as it was. Otherwise as grapnel_rebind;
/// also if a word isn't bound yet and may be bound to another function of the name: it is left alone.
///
/// # Safety
/// `function` is the start of a function, `replacement` one of its type, which stays loaded; `rebinding` is NULL or may be
/// written. Any thread may call this, while no object is loaded or unloaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_rebind_function(
    function: *mut c_void,
    replacement: *mut c_void,
    rebinding: *mut *mut grapnel_rebinding,
) -> *mut grapnel_error {
    if replacement.is_null() {
        return grapnel_error::null("the replacement").give();
    }
    // SAFETY: the caller's promise.
    let modules = unsafe { modules() };
    let (function, replacement) = (function.cast_const().cast(), replacement.cast_const().cast());
    // SAFETY: the caller's promise.
    match unsafe { Rebinding::of(&modules, function, replacement) } {
        // SAFETY: the caller's promise.
        Ok(found) => unsafe { begin(found, &modules, rebinding) },
        Err(error) => {
            grapnel_error::raise(&error.to_string(), "pass the start of a function", error.address as u64)
        }
    }
}

/// # Safety
/// As [`grapnel_rebind`].
unsafe fn begin(
    mut found: Rebinding,
    modules: &[Module],
    rebinding: *mut *mut grapnel_rebinding,
) -> *mut grapnel_error {
    // SAFETY: the caller's promise.
    let report = unsafe { found.update(modules) };
    if !rebinding.is_null() {
        let handle = Box::new(grapnel_rebinding(Held::Here(found)));
        // SAFETY: valid for writes (the caller's promise).
        unsafe { rebinding.write(Box::into_raw(handle)) };
    }
    judge(&report)
}

/// Carries a rebinding on to the objects that were loaded since, and to every object that is loaded from now on, before
/// its constructors run. With glibc that is so from version 2.31 on, and with musl; with others an object is rebound when
/// another is loaded or unloaded after it. What is found wrong with words of objects that are loaded later isn't told.
///
/// # Errors
/// If the dynamic linker can't be followed, or hooks are being changed at this moment by another thread or around this
/// call: the rebinding stays as it was. If a word holds something else, or can't be written, it is left alone.
///
/// # Safety
/// As grapnel_rebind_again. What `liveness` says of other threads is so, the first time that anything waits, for the
/// dynamic linker's functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_rebind_later(
    rebinding: *mut grapnel_rebinding,
    liveness: grapnel_liveness,
) -> *mut grapnel_error {
    let live = match attach::liveness(liveness) {
        Ok(live) => live,
        Err(error) => return error,
    };
    // SAFETY: null or a handle that C holds (the caller's promise).
    let Some(grapnel_rebinding(held)) = (unsafe { rebinding.as_mut() }) else {
        return grapnel_error::null("the rebinding").give();
    };
    let mut hooks = match shared::lock() {
        Ok(hooks) => hooks,
        Err(error) => return wait::raise(&error),
    };
    let found = match mem::replace(held, Held::Nowhere) {
        Held::Here(found) => found,
        other => {
            *held = other;
            return ptr::null_mut();
        }
    };
    // SAFETY: the caller's promise.
    match unsafe { hooks.rebind(found, live) } {
        Ok((id, report)) => {
            *held = Held::CarriedOn(id, hooks.generation());
            judge(&report)
        }
        Err(refused) => {
            let error = wait::raise(&refused.source);
            *held = Held::Here(refused.rebinding);
            error
        }
    }
}

/// Binds the objects that were loaded since, to be called after dlopen. With grapnel_rebind_later there is nothing to do.
///
/// # Errors
/// If a word holds something else, or can't be written: it is left alone and the others are changed.
///
/// # Safety
/// `rebinding` came from grapnel_rebind and wasn't undone. One thread at a time uses it, while no object is loaded or
/// unloaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_rebind_again(rebinding: *mut grapnel_rebinding) -> *mut grapnel_error {
    // SAFETY: null or a handle that C holds (the caller's promise).
    let Some(grapnel_rebinding(held)) = (unsafe { rebinding.as_mut() }) else {
        return grapnel_error::null("the rebinding").give();
    };
    match held {
        // SAFETY: the caller's promise.
        Held::Here(rebinding) => judge(&unsafe { rebinding.update(&modules()) }),
        Held::CarriedOn(..) | Held::Nowhere => ptr::null_mut(),
    }
}

/// How many words hold the replacement. 0 for NULL.
///
/// # Errors
/// None. With grapnel_rebind_later, 0 if hooks are being changed at this moment by another thread or around this call.
///
/// # Safety
/// As grapnel_rebind_again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_rebound(rebinding: *const grapnel_rebinding) -> usize {
    // SAFETY: null or a handle that C holds (the caller's promise).
    let Some(grapnel_rebinding(held)) = (unsafe { rebinding.as_ref() }) else { return 0 };
    match held {
        Held::Here(rebinding) => rebinding.words(),
        Held::CarriedOn(id, generation) => shared::lock().map_or(0, |hooks| {
            let here = (hooks.generation() == *generation).then(|| hooks.rebinding(*id)).flatten();
            here.map_or(0, Rebinding::words)
        }),
        Held::Nowhere => 0,
    }
}

/// Puts back what was in the words, and frees the handle. Of several rebindings of one function the newest is undone first: an
/// older one's replacement is what the newer found in the words, and puts back.
///
/// # Errors
/// If a word holds something else by now, or can't be written: it is left alone and the others are put back. The handle
/// is freed all the same. With grapnel_rebind_later also if hooks are being changed at this moment by another thread or
/// around this call: nothing has changed then, and the handle stays valid.
///
/// # Safety
/// As grapnel_rebind_again; the handle isn't used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_unbind(rebinding: *mut grapnel_rebinding) -> *mut grapnel_error {
    if rebinding.is_null() {
        return grapnel_error::null("the rebinding").give();
    }
    // SAFETY: it came from `Box::into_raw`, and C gives it back.
    let mut rebinding = unsafe { Box::from_raw(rebinding) };
    match &mut rebinding.0 {
        // SAFETY: the caller's promise.
        Held::Here(rebinding) => judge(&unsafe { rebinding.undo(&modules()) }),
        &mut Held::CarriedOn(id, generation) => {
            let mut hooks = match shared::lock() {
                Ok(hooks) => hooks,
                Err(error) => {
                    // It stays C's.
                    mem::forget(rebinding);
                    return wait::raise(&error);
                }
            };
            let ours = hooks.generation() == generation;
            // SAFETY: the list doesn't change while the hooks are held.
            let report = if ours { unsafe { hooks.unbind(id) } } else { None };
            report.map_or(ptr::null_mut(), |report| judge(&report))
        }
        Held::Nowhere => ptr::null_mut(),
    }
}
