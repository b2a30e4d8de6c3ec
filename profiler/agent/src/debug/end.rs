//! What is done when the program has ended in an orderly way: by `exit`, or a return from `main`.
//!
//! The agent's own destructor would come before those of some libraries. So it only notes that the end has begun, and the
//! rest is done in `_exit`, to which `exit` leads when all destructors have run. A program that calls `_exit` itself ends
//! without, as on Android.
//!
//! # Safety
//! As in [`crate::ending`].

use super::options::Options;
use super::{dump, freed, options, record};
use crate::ending;
use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{Function, Hooked, original, original_as};
use crate::lock::Quiet;
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

/// The end has begun.
static ENDING: AtomicBool = AtomicBool::new(false);

#[cfg(grapnel_cdylib)]
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: unsafe extern "C" fn() = note;

#[cfg_attr(not(grapnel_cdylib), expect(dead_code, reason = "the destructor of the library form"))]
unsafe extern "C" fn note() {
    ENDING.store(true, Ordering::Relaxed);
}

stub!(grapnel_agent_debug_exit, exit, 1);
unsafe extern "C" fn exit(status: c_int, saved: &SavedRegisters) {
    rescued(saved, ptr::null_mut(), original(Function::Exit), || {
        if let Some(options) = options()
            && ENDING.swap(false, Ordering::Relaxed)
        {
            finish(options);
        }
        ending::wait_for_scan();
    });
    // SAFETY: the caller's call, passed on.
    unsafe { original_as::<unsafe extern "C" fn(c_int)>(Function::Exit)(status) }
}

fn finish(options: &Options) {
    if options.freed != 0 {
        freed::verify_all(options, &Quiet::new());
    }
    if options.leak_track {
        dump::leaks(options);
    }
    if options.records != 0 && options.record_on_exit {
        record::write_at_end(options);
    }
    if options.backtrace && options.dump_on_exit {
        dump::write(options, ".exit");
    }
}

/// Whether something is to be done at the end.
pub(crate) fn is_wanted(options: &Options) -> bool {
    options.freed != 0
        || options.leak_track
        || options.records != 0 && options.record_on_exit
        || options.backtrace && options.dump_on_exit
}

/// The function to hook, if something is to be done at the end.
pub(crate) fn functions() -> Option<Hooked> {
    options()
        .filter(|options| is_wanted(options))
        .map(|_| (&b"_exit"[..], grapnel_agent_debug_exit as _, Function::Exit))
}
