//! What is to be attached and removed, and the handles of what is.
//!
//! # Safety
//! A batch is a box that C holds until it commits or abandons it. Its out pointers are written by the commit.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
};

use engine::{
    Attachment, BatchId, Listener, Liveness, Options, Probe,
    listen::{OnEnter, OnHit, OnLeave},
};

use crate::{
    call::grapnel_call,
    grapnel_error, liveness,
    shared::{Generation, Shared},
};

/// What was attached, and in which set.
#[derive(Debug)]
#[expect(non_camel_case_types, reason = "the name in C")]
pub struct grapnel_hook(Attachment, Generation);

type Function = unsafe extern "C" fn(*mut grapnel_call, *mut c_void);

const GUARDED: c_uint = 1;
const VECTORS: c_uint = 2;
const GENERAL_ONLY: c_uint = 4;

/// Requests that are not committed yet.
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
    Probe(*mut c_void, Option<std::ops::Range<u64>>, Probe),
    Remove(*mut grapnel_hook),
}

fn busy() -> *mut grapnel_error {
    grapnel_error::raise(
        "hooks are being changed at this moment, by another thread or around this call",
        "try again when that is done; a listener can't change hooks",
        0,
    )
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
        // SAFETY: valid for writes (the caller's promise).
        unsafe { self.clear() };
        let Some(mut shared) = Shared::lock() else { return busy() };
        let generation = shared.generation();
        let set = shared.set();
        let mut batch = if live == Liveness::Live { set.begin().live() } else { set.begin() };
        let mut ids: Vec<BatchId> = Vec::new();
        for request in &self.requests {
            ids.push(match &request.what {
                What::Replace(target, replacement) => {
                    batch.replace(target.cast_const().cast(), replacement.cast_const().cast())
                }
                What::Listen(target, listener) => batch.listen(target.cast_const().cast(), *listener),
                What::Probe(at, function, probe) => {
                    batch.probe_with(at.cast_const().cast(), function.clone(), *probe, Options::default())
                }
                What::Remove(hook) => {
                    // SAFETY: a handle that C holds (the caller's promise).
                    let hook = unsafe { &**hook };
                    // A number that no set gives stands for what a set had that is no more.
                    let lost = Attachment::from_number(u64::MAX);
                    batch.remove(if hook.1 == generation { hook.0 } else { lost })
                }
            });
        }
        let prepared = batch.prepare();
        for (request, id) in self.requests.iter().zip(ids) {
            if let (false, Ok(original)) = (request.original.is_null(), prepared.original(id)) {
                // SAFETY: valid for writes (the caller's promise).
                unsafe { request.original.write(original.cast_mut().cast()) };
            }
        }
        // SAFETY: the caller's promise.
        let results = unsafe { prepared.commit(live) };
        let mut first: *mut grapnel_error = ptr::null_mut();
        for (request, result) in self.requests.into_iter().zip(results) {
            let handle = match (&request.what, &result) {
                (What::Remove(hook), Ok(_)) => {
                    // SAFETY: it came from `Box::into_raw`, and C gives it back.
                    drop(unsafe { Box::from_raw(*hook) });
                    continue;
                }
                (_, Ok(_)) if request.hook.is_null() => continue,
                (_, Ok(attachment)) => Box::into_raw(Box::new(grapnel_hook(*attachment, generation))),
                (_, Err(error)) => {
                    if first.is_null() {
                        first = grapnel_error::of(error);
                    }
                    ptr::null_mut()
                }
            };
            if !request.hook.is_null() {
                // SAFETY: valid for writes (the caller's promise).
                unsafe { request.hook.write(handle) };
            }
        }
        first
    }
}

fn listener(enter: Option<Function>, leave: Option<Function>, data: *mut c_void, flags: c_uint) -> Listener {
    let mut listener = Listener::new(data);
    if let Some(enter) = enter {
        // SAFETY: `grapnel_call` stands for what the engine passes, behind a pointer.
        listener = listener.on_enter(unsafe { std::mem::transmute::<Function, OnEnter>(enter) });
    }
    if let Some(leave) = leave {
        // SAFETY: as above.
        listener = listener.on_leave(unsafe { std::mem::transmute::<Function, OnLeave>(leave) });
    }
    if flags & GUARDED != 0 {
        listener = listener.guarded();
    }
    if flags & VECTORS != 0 {
        listener = listener.with_vectors();
    }
    listener
}

/// Begins a batch.
#[unsafe(no_mangle)]
pub extern "C" fn grapnel_begin() -> *mut grapnel_batch {
    Box::into_raw(Box::default())
}

/// Frees a batch, and commits nothing.
///
/// # Safety
/// `batch` came from [`grapnel_begin`] and wasn't committed or abandoned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_abandon(batch: *mut grapnel_batch) {
    if !batch.is_null() {
        // SAFETY: it came from `Box::into_raw`, and C gives it back.
        drop(unsafe { Box::from_raw(batch) });
    }
}

/// Asks for a function to be replaced.
///
/// # Safety
/// `batch` came from [`grapnel_begin`]; `original` and `hook` are null or valid for writes until the commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_batch_replace(
    batch: *mut grapnel_batch,
    target: *mut c_void,
    replacement: *mut c_void,
    original: *mut *mut c_void,
    hook: *mut *mut grapnel_hook,
) {
    // SAFETY: a batch that C holds.
    let request = unsafe { &mut *batch }.ask(What::Replace(target, replacement));
    (request.original, request.hook) = (original, hook);
}

/// Asks for a function's calls to be told to a listener.
///
/// # Safety
/// As [`grapnel_batch_replace`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_batch_attach(
    batch: *mut grapnel_batch,
    target: *mut c_void,
    enter: Option<Function>,
    leave: Option<Function>,
    data: *mut c_void,
    flags: c_uint,
    hook: *mut *mut grapnel_hook,
) {
    // SAFETY: a batch that C holds.
    let request = unsafe { &mut *batch }.ask(What::Listen(target, listener(enter, leave, data, flags)));
    request.hook = hook;
}

/// Asks for a probe at an instruction.
///
/// # Safety
/// As [`grapnel_batch_replace`]; with `GRAPNEL_GENERAL_ONLY` the listener leaves the vector registers alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_batch_probe(
    batch: *mut grapnel_batch,
    at: *mut c_void,
    function: *mut c_void,
    size: usize,
    hit: Function,
    data: *mut c_void,
    flags: c_uint,
    hook: *mut *mut grapnel_hook,
) {
    // SAFETY: `grapnel_call` stands for what the engine passes, behind a pointer.
    let mut probe = Probe::new(unsafe { std::mem::transmute::<Function, OnHit>(hit) }, data);
    if flags & GUARDED != 0 {
        probe = probe.guarded();
    }
    if flags & GENERAL_ONLY != 0 {
        // SAFETY: the caller's promise.
        probe = unsafe { probe.general_only() };
    }
    let start = function as usize as u64;
    let function = (!function.is_null()).then(|| start..start.saturating_add(size as u64));
    // SAFETY: a batch that C holds.
    unsafe { &mut *batch }.ask(What::Probe(at, function, probe)).hook = hook;
}

/// Asks for something to be removed.
///
/// # Safety
/// `batch` came from [`grapnel_begin`], and `hook` is a handle that wasn't removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_batch_remove(batch: *mut grapnel_batch, hook: *mut grapnel_hook) {
    if !hook.is_null() {
        // SAFETY: a batch that C holds.
        unsafe { &mut *batch }.ask(What::Remove(hook));
    }
}

/// Does all that a batch asks for, and frees it.
///
/// # Safety
/// `batch` came from [`grapnel_begin`]; the functions are what the requests say; what `live` says of the other threads
/// is so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_commit(batch: *mut grapnel_batch, live: c_int) -> *mut grapnel_error {
    // SAFETY: it came from `Box::into_raw`, and C gives it back.
    let batch = unsafe { Box::from_raw(batch) };
    match liveness(live) {
        // SAFETY: the caller's promise.
        Ok(live) => unsafe { batch.commit(live) },
        Err(error) => {
            // SAFETY: the out pointers are valid for writes (the caller's promise).
            unsafe { batch.clear() };
            error
        }
    }
}

/// Replaces a function.
///
/// # Safety
/// As [`grapnel_batch_replace`] and [`grapnel_commit`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_replace(
    target: *mut c_void,
    replacement: *mut c_void,
    live: c_int,
    original: *mut *mut c_void,
    hook: *mut *mut grapnel_hook,
) -> *mut grapnel_error {
    let batch = grapnel_begin();
    // SAFETY: the caller's promise.
    unsafe {
        grapnel_batch_replace(batch, target, replacement, original, hook);
        grapnel_commit(batch, live)
    }
}

/// Attaches a listener.
///
/// # Safety
/// As [`grapnel_batch_attach`] and [`grapnel_commit`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_attach(
    target: *mut c_void,
    enter: Option<Function>,
    leave: Option<Function>,
    data: *mut c_void,
    flags: c_uint,
    live: c_int,
    hook: *mut *mut grapnel_hook,
) -> *mut grapnel_error {
    let batch = grapnel_begin();
    // SAFETY: the caller's promise.
    unsafe {
        grapnel_batch_attach(batch, target, enter, leave, data, flags, hook);
        grapnel_commit(batch, live)
    }
}

/// Attaches a probe.
///
/// # Safety
/// As [`grapnel_batch_probe`] and [`grapnel_commit`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_probe(
    at: *mut c_void,
    function: *mut c_void,
    size: usize,
    hit: Function,
    data: *mut c_void,
    flags: c_uint,
    live: c_int,
    hook: *mut *mut grapnel_hook,
) -> *mut grapnel_error {
    let batch = grapnel_begin();
    // SAFETY: the caller's promise.
    unsafe {
        grapnel_batch_probe(batch, at, function, size, hit, data, flags, hook);
        grapnel_commit(batch, live)
    }
}

/// Takes a hook out and frees its handle.
///
/// # Safety
/// `hook` is a handle that wasn't removed; what `live` says of the other threads is so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_remove(hook: *mut grapnel_hook, live: c_int) -> *mut grapnel_error {
    if hook.is_null() {
        return grapnel_error::raise("the hook is NULL", "pass what was stored when it was attached", 0);
    }
    let batch = grapnel_begin();
    // SAFETY: the caller's promise.
    unsafe {
        grapnel_batch_remove(batch, hook);
        grapnel_commit(batch, live)
    }
}
