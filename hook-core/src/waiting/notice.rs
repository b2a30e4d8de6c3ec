//! What the dynamic linker tells about the objects that it loads and unloads.
//!
//! It calls an empty function before and after it changes its list, for debuggers (`r_brk` of `struct r_debug`). When it
//! does so after loading, the new objects are mapped and not yet relocated, and none of their code has run. glibc then
//! relocates them, and calls their constructors by `_dl_catch_exception (NULL, ...)`: with a first argument of null since
//! 2.31, so that errors in them are fatal. musl relocates before it calls the empty function.
//!
//! # Safety
//! The functions here run inside `dlopen` and `dlclose`, with the dynamic linker's lock held, which is recursive. They
//! call nothing that could wait for it.

use core::{ffi::c_void, sync::atomic::Ordering::*};

use super::{State, WaitError};
use crate::{
    HookSet, Listener, Liveness,
    listen::Entry,
    lock,
    memory::maps::Maps,
    module::{self, Module, RDebug},
    rebind, symbol,
};

/// Attaches to the dynamic linker's functions. Answers whether relocation is seen as well.
///
/// # Safety
/// `debug` is the dynamic linker's structure, and what `liveness` says of the other threads is so.
pub(super) unsafe fn attach(
    set: &mut HookSet,
    state: &'static State,
    debug: *const RDebug,
    liveness: Liveness,
) -> Result<bool, WaitError> {
    let data = core::ptr::from_ref(state).cast_mut().cast::<c_void>();
    // SAFETY: the structure stays.
    let changed = unsafe { module::breakpoint(debug) };
    let maps = Maps::read().unwrap_or_default();
    // SAFETY: the dynamic linker is never unloaded.
    let linker = unsafe { Module::around(&maps, changed as usize) };
    let relocated = linker.and_then(|linker| caller_of_constructors(&linker));
    let mut batch = set.begin();
    if liveness == Liveness::Live {
        batch = batch.live();
    }
    batch.listen(changed, Listener::new(data).on_enter(on_change));
    if let Some(function) = relocated {
        batch.listen(function, Listener::new(data).on_enter(on_call));
    }
    // SAFETY: the first is called by its address, and the second is a function of the dynamic linker, which stays loaded;
    // neither listener looks at the return. What `liveness` says is so.
    let mut results = unsafe { batch.commit(liveness) }.into_iter();
    if let Some(Err(source)) = results.next() {
        if let Some(Ok(attachment)) = results.next() {
            // SAFETY: as above.
            let _ = unsafe { set.remove(attachment, liveness) };
        }
        return Err(WaitError::NoNotice { source });
    }
    Ok(matches!(results.next(), Some(Ok(_))))
}

/// glibc's dynamic linker has the function itself, and up to some version calls that of libc instead.
fn caller_of_constructors(linker: &Module) -> Option<*const ()> {
    const NAME: &[u8] = b"_dl_catch_exception";
    let own = symbol::find(linker, NAME)?.pointer();
    Some(rebind::bound(linker, NAME).map_or(own, |function| function as *const ()))
}

/// The list is about to change, or has changed.
unsafe extern "C" fn on_change(_: &mut Entry, data: *mut c_void) {
    // SAFETY: what was attached with it, which is never freed.
    let state: &'static State = unsafe { &*data.cast::<State>() };
    let debug = state.debug.load(Acquire).cast_const();
    // SAFETY: the dynamic linker's structure.
    if unsafe { module::is_settled(debug) } {
        state.in_notice(|kept| {
            // SAFETY: the list is whole, and this thread has the dynamic linker's lock.
            let modules = unsafe { module::loaded_modules(debug) };
            // SAFETY: as above.
            unsafe { kept.changed(&modules) };
            // Before the lock is given back: until here, what is kept isn't true.
            state.changing.store(0, SeqCst);
        });
        // Also if nothing could be done about it.
        state.changing.store(0, SeqCst);
    } else {
        // Who reads the list has seen to it that it doesn't change, or sees now that it does; the former is waited for.
        state.changing.store(lock::this_thread(), SeqCst);
        state.in_notice(|_| {});
    }
}

/// Something is called under glibc's care. With null in place of a description of errors: constructors, or destructors.
unsafe extern "C" fn on_call(call: &mut Entry, data: *mut c_void) {
    // SAFETY: all functions that this listens to take it.
    if unsafe { call.argument(0) } != 0 {
        return;
    }
    // SAFETY: what was attached with it, which is never freed.
    let state: &'static State = unsafe { &*data.cast::<State>() };
    if !state.unrelocated.load(Acquire) {
        return;
    }
    let debug = state.debug.load(Acquire).cast_const();
    state.in_notice(|kept| {
        // SAFETY: this thread loads objects, and has the dynamic linker's lock.
        let modules = unsafe { module::loaded_modules(debug) };
        // SAFETY: as above; what was mapped has been relocated when constructors are called.
        unsafe { kept.relocated(&modules) };
    });
}
