//! The end of the process, where a look for leaks is wanted: what ends it waits until that is done.
//!
//! Every orderly end leads to `_exit`: `exit` calls it when all handlers have run, and so do a return from `main`,
//! `quick_exit`, and the end of the last thread. What asks the kernel itself, or dies by a signal, ends without a look.
//!
//! # Safety
//! The hook is entered as `_exit` is, and ends as it does. It waits in system calls of its own, so a signal can be
//! handled meanwhile.

use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{Function, original, original_as};
use crate::{life, session, sys};
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::Ordering;
use grapnel_trace::shared::{scan, session_flags};

/// Between two looks whether the drain is still there.
const PATIENCE_NS: libc::c_long = 20_000_000;

stub!(grapnel_agent_exit, exit, 1);
unsafe extern "C" fn exit(status: c_int, saved: &SavedRegisters) {
    clear_room();
    rescued(saved, ptr::null_mut(), original(Function::Exit), wait_for_scan);
    // SAFETY: the caller's call, passed on.
    unsafe { original_as::<unsafe extern "C" fn(c_int)>(Function::Exit)(status) }
}

/// Clears what the frames of the wait will lie in. The program's calls of before, and our own frames in them, left
/// pointers there, and what a frame doesn't write to would still hold the blocks that they lead to.
#[inline(never)]
fn clear_room() {
    // A constant that is only borrowed would lie elsewhere.
    let mut room = [0_u64; 128];
    core::hint::black_box(&mut room);
}

/// The function to hook, if a look for leaks is wanted.
pub(crate) fn functions() -> Option<(&'static [u8], unsafe extern "C" fn(), Function)> {
    is_wanted().then_some((b"_exit", grapnel_agent_exit, Function::Exit))
}

fn is_wanted() -> bool {
    session::header().is_some_and(|header| header.flags.load(Ordering::Relaxed) & session_flags::LEAKS != 0)
}

/// Asks for the look and waits until it is done. Several threads may come here: none ends the process before.
pub(crate) fn wait_for_scan() {
    let (Some(header), Some(segment)) = (session::header(), session::segment()) else { return };
    // The child of a vfork has its parent's memory, and one of a fork that isn't followed has no life.
    let is_ours = segment.pid.load(Ordering::Relaxed) == sys::process_id();
    if !is_ours || life::current() == 0 || !is_wanted() {
        return;
    }
    let _ = segment.scan.compare_exchange(scan::NONE, scan::ASKED, Ordering::AcqRel, Ordering::Relaxed);
    session::wake_drain(true);
    while segment.scan.load(Ordering::Acquire) == scan::ASKED && !session::is_over(header) {
        sys::futex_wait(&segment.scan, scan::ASKED, PATIENCE_NS);
    }
}
