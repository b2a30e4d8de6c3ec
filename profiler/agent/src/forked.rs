//! Forks amid a recording.
//!
//! The handler of a signal may fork while its thread writes a record, and the child returns from the handler into the middle of that. The
//! record is the parent's: what the child would write of it must not reach the parent's ring. So the function by which libc forks
//! is hooked, and in a child that comes of such a fork its own life begins, or recording ends, before the handler goes on.
//!
//! # Safety
//! The hook is entered as the function is, and returns what it does.

use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{Function, Hooked, original_as};
use crate::record::under_way;
use crate::{context, tls};
use core::ptr;
use libc::pid_t;

stub!(grapnel_agent_fork, fork, 0);
unsafe extern "C" fn fork(saved: &SavedRegisters) -> pid_t {
    // SAFETY: the caller's call, passed on.
    let child = unsafe { original_as::<unsafe extern "C" fn() -> pid_t>(Function::Fork)() };
    if child == 0 {
        rescued(saved, ptr::null_mut(), 0, || {
            if under_way(tls::get().level.get(), Some(saved)) != 0 {
                context::forked(Some(saved));
            }
        });
    }
    child
}

/// The function to hook: that in which all forks of libc's end, by its names from the newest to the oldest. The first that there is.
pub(crate) fn functions() -> [Hooked; 2] {
    [&b"_Fork"[..], b"fork"].map(|name| (name, grapnel_agent_fork as _, Function::Fork))
}
