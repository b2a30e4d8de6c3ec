//! The signals that Android's malloc_debug answers, counted down from the last one.
//!
//! # Safety
//! Handlers set flags; that of the records takes a lock if it is free, and leaves the work to the next call if it isn't.

use super::log::log;
use super::options::Options;
use super::{TRACING, dump, kernel, record, unreachable};
use crate::entry::SavedRegisters;
use crate::sys;
use core::sync::atomic::Ordering;

/// The last real-time signal, of Linux and of libc.
const LAST: i32 = 64;
const TOGGLE: i32 = LAST - 19;
const RECORDS: i32 = LAST - 18;
const DUMP: i32 = LAST - 17;
const UNREACHABLE: i32 = LAST - 16;

unsafe extern "C" fn toggle(_signal: i32, _info: *const libc::siginfo_t) {
    TRACING.fetch_xor(true, Ordering::Relaxed);
}

unsafe extern "C" fn dump(_signal: i32, _info: *const libc::siginfo_t) {
    dump::ask();
}

unsafe extern "C" fn records(_signal: i32, _info: *const libc::siginfo_t) {
    if let Some(options) = super::options() {
        record::write_on_signal(options);
    }
}

/// Has the signals handled that the options ask for.
pub(crate) fn prepare(options: &Options) {
    let process = sys::process_id();
    let all: [(bool, i32, kernel::Handler, &str); 4] = [
        (options.backtrace_on_signal, TOGGLE, toggle, "enable backtracing"),
        (options.backtrace, DUMP, dump, "dump the backtrace"),
        (options.records != 0, RECORDS, records, "dump the allocation records"),
        (options.check_unreachable, UNREACHABLE, unreachable::handler, "check for unreachable memory"),
    ];
    for (wanted, signal, handler, what) in all {
        if !wanted {
            continue;
        }
        // SAFETY: see the module's header.
        if let Err(errno) = unsafe { kernel::handle(signal, handler) } {
            log!("signal {signal}, to {what}, can't be handled: {}", kernel::reason(errno));
        } else if options.verbose {
            log!("Run: 'kill -{signal} {process}' to {what}.");
        }
    }
}

/// Does what signals have asked for since the last call.
#[inline]
pub(crate) fn look(options: &Options, saved: &SavedRegisters) {
    dump::look(options);
    record::look(options);
    unreachable::look(options, saved, UNREACHABLE);
}
