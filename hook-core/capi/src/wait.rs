//! Hooks on functions of objects that are not loaded yet.
//!
//! # Safety
//! What waits is a box that C holds until it ends it.

use std::{
    ffi::{CStr, c_char, c_uint, c_void},
    mem, ptr,
    sync::atomic::AtomicPtr,
};

use engine::{
    Listener, Liveness,
    waiting::{Hooks, Status, WaitError, WaitId},
};

use crate::{
    attach::{self, grapnel_flags, grapnel_listener, grapnel_liveness},
    error::grapnel_error,
    shared::{self, Generation},
};

/// A hook that waits for its object, or is in. One thread at a time uses it.
#[derive(Debug)]
#[expect(non_camel_case_types, reason = "the name in C")]
pub struct grapnel_wait(WaitId, Generation);

/// Where a hook that waits stands.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type grapnel_wait_state = c_uint;

/// No object of that name is loaded.
pub const GRAPNEL_WAITING: grapnel_wait_state = 0;
/// The hook is in.
pub const GRAPNEL_IN: grapnel_wait_state = 1;
/// The hook was in, and went when its object was unloaded. It waits for the next.
pub const GRAPNEL_UNLOADED: grapnel_wait_state = 2;
/// An object of that name is loaded, and the hook can't be put in. It waits for the object to be unloaded.
pub const GRAPNEL_FAILED: grapnel_wait_state = 3;

pub(crate) fn raise(error: &WaitError) -> *mut grapnel_error {
    match error {
        WaitError::Hook(error) => grapnel_error::of(error),
        other => grapnel_error::raise(&other.to_string(), other.remedy(), 0),
    }
}

/// # Safety
/// `object` and `function` are null or strings; `wait` is null or valid for writes.
unsafe fn begin(
    [object, function]: [*const c_char; 2],
    wrong: Option<Box<grapnel_error>>,
    liveness: grapnel_liveness,
    wait: *mut *mut grapnel_wait,
    work: impl FnOnce(&mut Hooks<'_>, [&[u8]; 2], Liveness) -> Result<WaitId, WaitError>,
) -> *mut grapnel_error {
    let text = |text: *const c_char, what| match text.is_null() {
        true => Err(grapnel_error::null(what).give()),
        // SAFETY: a string (the caller's promise).
        false => Ok(unsafe { CStr::from_ptr(text) }.to_bytes()),
    };
    let begun = wrong.map_or(Ok(()), |error| Err(error.give())).and_then(|()| {
        let names = [text(object, "the object's name")?, text(function, "the function's name")?];
        let live = attach::liveness(liveness)?;
        let mut hooks = shared::lock().map_err(|error| raise(&error))?;
        let id = work(&mut hooks, names, live).map_err(|error| raise(&error))?;
        Ok(grapnel_wait(id, hooks.generation()))
    });
    let (handle, error) = match begun {
        Ok(handle) => (Some(handle), ptr::null_mut()),
        Err(error) => (None, error),
    };
    if !wait.is_null() {
        let handle = handle.map_or(ptr::null_mut(), |handle| Box::into_raw(Box::new(handle)));
        // SAFETY: valid for writes (the caller's promise).
        unsafe { wait.write(handle) };
    }
    error
}

/// Replaces a function as soon as its object is loaded, before the object's constructors run; now, if it is loaded.
///
/// `object` is a soname ("libz.so.1") or the end of the object's path ("plugins/filter.so"). Of several such objects the
/// first that has the function counts. `function` is found as by grapnel_find. What `replacement` replaces, callable in its
/// place, is stored in `original` each time that the hook goes in, before the first call can reach the replacement. When the
/// object is unloaded the hook goes with it, and waits again. Handles of grapnel_replace and the like for functions of that
/// object are then answered as if they had been removed. If `wait` is NULL, the hook waits for good.
///
/// # Errors
/// If a name or `replacement` is NULL, the dynamic linker can't be followed, or the object is loaded and its function can't be found or hooked, or hooks
/// are being changed at this moment by another thread or around this call. Nothing waits then, and `wait` is NULL.
///
/// # Safety
/// As grapnel_replace, whenever an object of that name is loaded; `original` is NULL or may be written until the wait is
/// ended. What `liveness` says of other threads is so if the object is loaded now, and, the first time that anything waits,
/// for the dynamic linker's functions. Any thread may call this, not a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_wait_replace(
    object: *const c_char,
    function: *const c_char,
    replacement: *mut c_void,
    liveness: grapnel_liveness,
    original: *mut *mut c_void,
    wait: *mut *mut grapnel_wait,
) -> *mut grapnel_error {
    let wrong = replacement.is_null().then(|| grapnel_error::null("the replacement"));
    // SAFETY: the caller's promise: strings, and a word that may be written for as long as the hook waits.
    unsafe {
        let original = (!original.is_null()).then(|| AtomicPtr::from_ptr(original.cast::<*mut ()>()));
        begin([object, function], wrong, liveness, wait, |hooks, [object, function], live| {
            hooks.replace(object, function, replacement.cast_const().cast(), original, live)
        })
    }
}

/// Tells a listener of the calls of a function as soon as its object is loaded, before the object's constructors run; now,
/// if it is loaded. As grapnel_attach and grapnel_wait_replace.
///
/// # Errors
/// As grapnel_wait_replace.
///
/// # Safety
/// As grapnel_attach and grapnel_wait_replace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_wait_attach(
    object: *const c_char,
    function: *const c_char,
    enter: grapnel_listener,
    leave: grapnel_listener,
    data: *mut c_void,
    flags: grapnel_flags,
    liveness: grapnel_liveness,
    wait: *mut *mut grapnel_wait,
) -> *mut grapnel_error {
    let (listener, wrong) = match attach::listener(enter, leave, data, flags) {
        Ok(listener) => (listener, None),
        // Nothing waits with it.
        Err(error) => (Listener::new(data), Some(error)),
    };
    // SAFETY: the caller's promise: strings, and a listener for all threads.
    unsafe {
        begin([object, function], wrong, liveness, wait, |hooks, [object, function], live| {
            hooks.listen(object, function, listener, live)
        })
    }
}

/// Says where a hook that waits stands, in `state`: GRAPNEL_WAITING, GRAPNEL_IN, GRAPNEL_UNLOADED or GRAPNEL_FAILED. With
/// GRAPNEL_IN and GRAPNEL_UNLOADED, `function` is where its function is or was, else NULL. Either may be NULL.
///
/// # Errors
/// With GRAPNEL_FAILED, the reason. Otherwise, if hooks are being changed at this moment by another thread or around this
/// call, or were when this process was forked: `state` and `function` are as they were.
///
/// # Safety
/// `wait` came from grapnel_wait_replace or grapnel_wait_attach and wasn't ended; `state` and `function` are NULL or may be
/// written. Any thread may call this, not a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_wait_status(
    wait: *const grapnel_wait,
    state: *mut grapnel_wait_state,
    function: *mut *mut c_void,
) -> *mut grapnel_error {
    // SAFETY: null or a handle that C holds (the caller's promise).
    let Some(&grapnel_wait(id, generation)) = (unsafe { wait.as_ref() }) else {
        return grapnel_error::null("the hook that waits").give();
    };
    let status = shared::lock().and_then(|hooks| match hooks.generation() == generation {
        true => hooks.status(id),
        false => Err(WaitError::NoSuchWait { number: id.number() }),
    });
    let (number, at, error) = match status {
        Ok(Status::In { function, .. }) => (GRAPNEL_IN, function, ptr::null_mut()),
        Ok(Status::Unloaded { function }) => (GRAPNEL_UNLOADED, function, ptr::null_mut()),
        Ok(Status::Failed(error)) => (GRAPNEL_FAILED, ptr::null(), raise(&error)),
        Ok(_) => (GRAPNEL_WAITING, ptr::null(), ptr::null_mut()),
        Err(error) => return raise(&error),
    };
    // SAFETY: null or valid for writes (the caller's promise).
    unsafe {
        if !state.is_null() {
            state.write(number);
        }
        if !function.is_null() {
            function.write(at.cast_mut().cast());
        }
    }
    error
}

/// Takes the hook out if it is in, has it wait no more, and frees the handle.
///
/// # Errors
/// If the hook can't be taken out, as with grapnel_remove: nothing has changed, and the handle stays valid.
///
/// # Safety
/// `wait` came from grapnel_wait_replace or grapnel_wait_attach and wasn't ended. What `liveness` says of other threads is
/// so. Any thread may call this, not a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_wait_end(
    wait: *mut grapnel_wait,
    liveness: grapnel_liveness,
) -> *mut grapnel_error {
    if wait.is_null() {
        return grapnel_error::null("the hook that waits").give();
    }
    let live = match attach::liveness(liveness) {
        Ok(live) => live,
        Err(error) => return error,
    };
    // SAFETY: it came from `Box::into_raw`, and C gives it back.
    let handle = unsafe { Box::from_raw(wait) };
    let ended = shared::lock().and_then(|mut hooks| match hooks.generation() == handle.1 {
        // SAFETY: the caller's promise.
        true => unsafe { hooks.remove(handle.0, live) },
        false => Err(WaitError::NoSuchWait { number: handle.0.number() }),
    });
    match ended {
        Ok(()) => ptr::null_mut(),
        Err(error) => {
            // It stays C's.
            mem::forget(handle);
            raise(&error)
        }
    }
}
