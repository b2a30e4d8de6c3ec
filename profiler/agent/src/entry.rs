//! The stubs that the hooks lead to, and the way out of a fault of our own.
//!
//! A stub saves the registers that the caller counts on (they say where its frames lie), its first three
//! arguments, and calls the hook's Rust function with the caller's arguments and a pointer to what was saved
//! ([`SavedRegisters`]), with which lie two words for the way out.
//!
//! `stub!(STUB, HOOK, N)` defines the stub STUB, which calls HOOK with the caller's N arguments and that pointer. With
//! `beside BESIDE` it defines another stub for the same hook, for functions whose callers may lie beside them: it keeps what
//! [`kept`](crate::native::kept) says, and of a function without a result, `nothing`, the result's register too. Arguments are
//! words, but for the first or the last of 64 bits where it says `wide first` or `wide last`.
//!
//! # Safety
//! The stubs keep to the machine's ABI on both sides: entered as the hooked function is, they return as it
//! does. [`escape`] leaves the agent's frames in the middle of their work; nothing in them needs a destructor
//! to run but locks, and after an escape recording is off, so nobody takes one again.

use crate::tls;
use core::ffi::c_void;

pub(crate) use crate::native::entry::{SavedRegisters, stub};

/// What a hook leads to.
pub(crate) type Stub = unsafe extern "C" fn();

/// The section of the stubs. An agent that was put into a running process has them in one of their own: an address in it
/// that a stack holds is that of a call under way.
#[cfg(not(grapnel_attached))]
macro_rules! stub_section {
    () => {
        ".text"
    };
}
#[cfg(grapnel_attached)]
macro_rules! stub_section {
    () => {
        ".section grapnel_stubs,\"ax\",@progbits"
    };
}
pub(crate) use stub_section;

/// Runs `work` with a way out: should it meet a fault of our own, the hooked function returns `result`, or,
/// where `call` is not 0, the function there is called with the caller's arguments in our place.
#[inline(always)]
pub(crate) fn rescued<T>(
    saved: &SavedRegisters,
    result: *mut c_void,
    call: usize,
    work: impl FnOnce() -> T,
) -> T {
    let tls = tls::get();
    saved.set_rescue(result.addr(), call);
    let outer = tls.rescue.replace(saved);
    let value = work();
    tls.rescue.set(outer);
    value
}

/// Leaves the agent by the way that [`rescued`] laid. Returns only if there is none.
#[cfg(grapnel_cdylib)]
pub(crate) fn escape() {
    let tls = tls::get();
    let saved = tls.rescue.get();
    if saved.is_null() {
        return;
    }
    tls.rescue.set(core::ptr::null());
    tls.level.set(0);
    crate::lock::let_signals_through();
    // SAFETY: the stub is that of the call under way, whose frames end here; nothing in them needs a destructor to run.
    unsafe { crate::native::entry::leave(saved) }
}
