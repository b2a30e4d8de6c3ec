//! Many requests in one: what is to be attached and removed, and the handles of what is.
//!
//! # Safety
//! A batch is a box that C holds until it commits or abandons it. Its out pointers are written by the commit.

use std::{ffi::c_void, ops::Range, ptr};

use engine::{Attachment, Listener, Liveness, Options, Probe};

use crate::{
    attach::{self, grapnel_flags, grapnel_listener, grapnel_liveness},
    error::grapnel_error,
    shared::{self, Generation},
    wait,
};

/// Something that was attached: a replacement, a listener or a probe.
#[derive(Debug)]
#[expect(non_camel_case_types, reason = "the name in C")]
pub struct grapnel_hook(Attachment, Generation);

/// Requests that are not committed yet.
///
/// A batch does many with one synchronisation of all threads: the functions are patched, and what the out pointers point
/// to is written, by grapnel_commit.
#[derive(Debug, Default)]
#[expect(non_camel_case_types, reason = "the name in C")]
pub struct grapnel_batch {
    requests: Vec<Request>,
}

#[derive(Debug)]
struct Request {
    what: What,
    original: *mut *mut c_void,
    hook: *mut *mut grapnel_hook,
}

#[derive(Debug)]
enum What {
    Replace(*mut c_void, *mut c_void),
    Listen(*mut c_void, Listener),
    Probe(*mut c_void, Option<Range<u64>>, Probe),
    /// What can't be asked for, and why.
    Wrong(Box<grapnel_error>),
    Remove(*mut grapnel_hook),
}

impl grapnel_batch {
    fn ask(&mut self, what: What) -> &mut Request {
        self.requests.push(Request { what, original: ptr::null_mut(), hook: ptr::null_mut() });
        let last = self.requests.len() - 1;
        &mut self.requests[last]
    }

    /// Every handle is null until its request is met.
    ///
    /// # Safety
    /// The out pointers are null or valid for writes.
    unsafe fn clear(&self) {
        for request in self.requests.iter().filter(|request| !request.hook.is_null()) {
            // SAFETY: valid for writes (the caller's promise).
            unsafe { request.hook.write(ptr::null_mut()) };
        }
    }

    /// # Safety
    /// The out pointers are null or valid for writes; the rest is as for [`engine::PreparedBatch::commit`].
    unsafe fn commit(self, live: Liveness) -> *mut grapnel_error {
        let mut shared = match shared::lock() {
            Ok(shared) => shared,
            Err(error) => return wait::raise(&error),
        };
        let generation = shared.generation();
        let set = shared.set();
        let mut batch = if live == Liveness::Live { set.begin().live() } else { set.begin() };
        let mut ids = Vec::with_capacity(self.requests.len());
        for request in &self.requests {
            let id = match &request.what {
                What::Replace(target, replacement) => {
                    batch.replace(target.cast_const().cast(), replacement.cast_const().cast())
                }
                What::Listen(target, listener) => batch.listen(target.cast_const().cast(), *listener),
                What::Probe(at, function, probe) => {
                    batch.probe_with(at.cast_const().cast(), function.clone(), *probe, Options::default())
                }
                What::Wrong(_) => {
                    ids.push(None);
                    continue;
                }
                What::Remove(hook) => {
                    // SAFETY: a handle that C holds (the caller's promise).
                    let hook = unsafe { &**hook };
                    // A number that no set gives stands for what a set had that is no more.
                    let lost = Attachment::from_number(u64::MAX);
                    batch.remove(if hook.1 == generation { hook.0 } else { lost })
                }
            };
            ids.push(Some(id));
        }
        let prepared = batch.prepare();
        for (request, id) in self.requests.iter().zip(ids) {
            let Some(id) = id.filter(|_| !request.original.is_null()) else { continue };
            if let Ok(original) = prepared.original(id) {
                // SAFETY: valid for writes (the caller's promise).
                unsafe { request.original.write(original.cast_mut().cast()) };
            }
        }
        // SAFETY: the caller's promise.
        let mut results = unsafe { prepared.commit(live) }.into_iter();
        let mut first: *mut grapnel_error = ptr::null_mut();
        for request in self.requests {
            let what = match request.what {
                What::Wrong(error) => {
                    first = if first.is_null() { error.give() } else { first };
                    continue;
                }
                what => what,
            };
            match (what, results.next()) {
                (What::Remove(hook), Some(Ok(_))) => {
                    // SAFETY: it came from `Box::into_raw`, and C gives it back.
                    drop(unsafe { Box::from_raw(hook) });
                }
                (_, Some(Ok(attachment))) if !request.hook.is_null() => {
                    let handle = Box::new(grapnel_hook(attachment, generation));
                    // SAFETY: valid for writes (the caller's promise).
                    unsafe { request.hook.write(Box::into_raw(handle)) };
                }
                (_, Some(Err(error))) if first.is_null() => first = grapnel_error::of(&error),
                _ => {}
            }
        }
        first
    }
}

/// Begins a batch. It is freed by grapnel_commit or grapnel_abandon.
///
/// # Errors
/// None.
///
/// # Safety
/// Any thread may call this, and one thread at a time may use the batch.
#[unsafe(no_mangle)]
pub extern "C" fn grapnel_begin() -> *mut grapnel_batch {
    Box::into_raw(Box::default())
}

/// Frees a batch, and commits nothing. NULL is allowed.
///
/// # Errors
/// None.
///
/// # Safety
/// `batch` came from grapnel_begin and wasn't committed or abandoned; no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_abandon(batch: *mut grapnel_batch) {
    if !batch.is_null() {
        // SAFETY: it came from `Box::into_raw`, and C gives it back.
        drop(unsafe { Box::from_raw(batch) });
    }
}

/// Asks for what grapnel_replace does. Nothing if `batch` is NULL, for which grapnel_commit has an error.
///
/// # Errors
/// grapnel_commit answers for it.
///
/// # Safety
/// As grapnel_replace, at the commit; until then, one thread at a time uses the batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_batch_replace(
    batch: *mut grapnel_batch,
    target: *mut c_void,
    replacement: *mut c_void,
    original: *mut *mut c_void,
    hook: *mut *mut grapnel_hook,
) {
    let what = match replacement.is_null() {
        true => What::Wrong(grapnel_error::null("the replacement")),
        false => What::Replace(target, replacement),
    };
    // SAFETY: null or a batch that C holds (the caller's promise).
    if let Some(batch) = unsafe { batch.as_mut() } {
        let request = batch.ask(what);
        (request.original, request.hook) = (original, hook);
    }
}

/// Asks for what grapnel_attach does. Nothing if `batch` is NULL.
///
/// # Errors
/// grapnel_commit answers for it.
///
/// # Safety
/// As grapnel_attach, at the commit; until then, one thread at a time uses the batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_batch_attach(
    batch: *mut grapnel_batch,
    target: *mut c_void,
    enter: grapnel_listener,
    leave: grapnel_listener,
    data: *mut c_void,
    flags: grapnel_flags,
    hook: *mut *mut grapnel_hook,
) {
    let what = match attach::listener(enter, leave, data, flags) {
        Ok(listener) => What::Listen(target, listener),
        Err(error) => What::Wrong(error),
    };
    // SAFETY: null or a batch that C holds (the caller's promise).
    if let Some(batch) = unsafe { batch.as_mut() } {
        batch.ask(what).hook = hook;
    }
}

/// Asks for what grapnel_probe does. Nothing if `batch` is NULL.
///
/// # Errors
/// grapnel_commit answers for it.
///
/// # Safety
/// As grapnel_probe, at the commit; until then, one thread at a time uses the batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_batch_probe(
    batch: *mut grapnel_batch,
    at: *mut c_void,
    function: *mut c_void,
    size: usize,
    hit: grapnel_listener,
    data: *mut c_void,
    flags: grapnel_flags,
    hook: *mut *mut grapnel_hook,
) {
    let start = function as usize as u64;
    let function = (!function.is_null()).then(|| start..start.saturating_add(size as u64));
    // SAFETY: the caller's promise.
    let what = match unsafe { attach::probe(at, hit, data, flags) } {
        Ok(probe) => What::Probe(at, function, probe),
        Err(error) => What::Wrong(error),
    };
    // SAFETY: null or a batch that C holds (the caller's promise).
    if let Some(batch) = unsafe { batch.as_mut() } {
        batch.ask(what).hook = hook;
    }
}

/// Asks for what grapnel_remove does. Nothing if `batch` is NULL. A `hook` that is NULL is passed over.
///
/// # Errors
/// grapnel_commit answers for it.
///
/// # Safety
/// As grapnel_remove, at the commit; until then, one thread at a time uses the batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_batch_remove(batch: *mut grapnel_batch, hook: *mut grapnel_hook) {
    // SAFETY: null or a batch that C holds (the caller's promise).
    if let Some(batch) = unsafe { batch.as_mut() }.filter(|_| !hook.is_null()) {
        batch.ask(What::Remove(hook));
    }
}

/// Does all that a batch asks for, and frees the batch.
///
/// One request that fails doesn't keep the others out.
///
/// Hooks work on in a child made by fork. If another thread was just changing hooks then, the child can't take out what was
/// in before: handles from before the fork are answered with an error.
///
/// # Errors
/// That of the first request that failed. For each that failed, its handle is NULL, or stays valid if it was to be removed,
/// and its `original` is as it was, unless the patching itself failed; then it was stored, and is good to call. If hooks are being
/// changed at this moment by another thread or around this call, all have failed. If `batch` is NULL, there is none.
///
/// # Safety
/// `batch` came from grapnel_begin and wasn't committed or abandoned. What each request says of its functions and out pointers
/// is so, and what `liveness` says of other threads. Any thread may call this, not a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_commit(
    batch: *mut grapnel_batch,
    liveness: grapnel_liveness,
) -> *mut grapnel_error {
    if batch.is_null() {
        return grapnel_error::null("the batch").give();
    }
    // SAFETY: it came from `Box::into_raw`, and C gives it back.
    let batch = unsafe { Box::from_raw(batch) };
    // SAFETY: the out pointers are valid for writes (the caller's promise).
    unsafe { batch.clear() };
    match attach::liveness(liveness) {
        // SAFETY: the caller's promise.
        Ok(live) => unsafe { batch.commit(live) },
        Err(error) => error,
    }
}
