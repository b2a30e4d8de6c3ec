//! Android's malloc_debug: what `LIBC_DEBUG_MALLOC_OPTIONS` asks for, in the process itself and with nobody outside.
//!
//! At the start the variable is read. If it asks for something, the allocation functions get the hooks of this module
//! instead of those of the recorder, which stay as they are and as fast. A block then has an entry in a table of live
//! blocks, and what the options add: a backtrace, guards around it, bytes that it is filled with.
//!
//! - `options`: what is asked for
//! - `hooks`: what each function does; `work`: what becomes of a block in a call; `allocator`: the functions' own code; `recorded`: a recording beside; `blocks`: what a block goes through between its allocation and its end; `old`: what was given out before the hooks
//! - `table`: live blocks; `stacks`, `walk`: where they were allocated; `live`: both as records
//! - `freed`: blocks that were freed and are kept for a while
//! - `interface`: what a program calls; `signals`: what it is asked from outside; `end`: what is done at the end
//! - `dump`: the live blocks as a file; `record`: all calls as one; `unreachable`: blocks that nothing leads to
//! - `errors`, `names`: what is said of a block that is wrong
//! - `fork`: children; `kernel`, `log`: files, signals, and lines for the user
//!
//! # Safety
//! All that is shared lies behind locks, under which signals are blocked, the program's functions aren't called, and
//! nothing waits for the target. They are taken in the order of [`fork::locks`].

mod allocator;
mod blocks;
mod dump;
mod end;
mod errors;
mod fork;
mod freed;
mod hooks;
mod interface;
mod kernel;
mod live;
mod log;
mod names;
mod old;
mod options;
pub(crate) mod own;
mod record;
mod recorded;
mod signals;
mod stacks;
mod table;
mod unreachable;
mod walk;
mod work;

pub(crate) use end::functions as end_functions;
pub(crate) use fork::locks;
pub(crate) use hooks::{allocation_functions, allocation_functions_beside};
pub(crate) use log::line;
pub(crate) use walk::Walking;

use crate::start::variable;
use crate::{listing, modules, stack};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::c_char;
use core::fmt;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use log::log;
use options::Options;

/// The variable. bionic has options of the same form and its own way to do what they ask for: it would be done twice.
const VARIABLE: &str =
    if cfg!(target_os = "android") { "GRAPNEL_DEBUG_MALLOC_OPTIONS" } else { "LIBC_DEBUG_MALLOC_OPTIONS" };

static OPTIONS: AtomicPtr<Options> = AtomicPtr::new(ptr::null_mut());
/// Whether blocks that are allocated have backtraces now.
static TRACING: AtomicBool = AtomicBool::new(false);
/// The agent's own code.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// What is asked for, if anything is.
pub(crate) fn options() -> Option<&'static Options> {
    // SAFETY: null, or leaked by `wanted`.
    unsafe { OPTIONS.load(Ordering::Acquire).as_ref() }
}

/// Whether the hooks of this module are in.
pub(crate) fn is_on() -> bool {
    !OPTIONS.load(Ordering::Relaxed).is_null()
}

/// Where the agent's own code lies.
fn own_code() -> Range<usize> {
    let [start, end] = OWN.each_ref().map(|word| word.load(Ordering::Relaxed));
    start..end
}

/// Reads the variable. Whether something is asked for; what is wrong is said.
///
/// # Safety
/// `environment` is a null-terminated array of strings.
pub(crate) unsafe fn wanted(environment: *mut *mut c_char) -> bool {
    log::prepare();
    // SAFETY: the caller's promise.
    let Some(text) = (unsafe { variable(environment, VARIABLE.as_bytes()) }) else { return false };
    // Programs write over their environment.
    let text: &'static [u8] = Vec::leak(text.to_bytes().to_vec());
    match Options::parse(text) {
        Ok(options) if options == Options::none() => false,
        Ok(options) => {
            TRACING.store(options.backtrace_at_start, Ordering::Relaxed);
            OPTIONS.store(Box::leak(Box::new(options)), Ordering::Release);
            true
        }
        Err(error) => {
            log!("{VARIABLE}: {error}. Nothing is done");
            false
        }
    }
}

/// Begins, with nobody outside.
pub(crate) fn begin(install: impl FnOnce() -> Result<(), String>) {
    listing::prepare();
    modules::update(None);
    if !stack::prepare() {
        return leave(format_args!("there is no memory"));
    }
    prepare();
    if let Err(message) = install() {
        leave(format_args!("{message}"));
    }
}

/// Does nothing of what is asked for, and says why.
pub(crate) fn leave(why: fmt::Arguments<'_>) {
    OPTIONS.store(ptr::null_mut(), Ordering::Release);
    log!("{VARIABLE}: {why}. Nothing is done");
}

/// What has to be there before a hook is in.
pub(crate) fn prepare() {
    let here = (&raw const OPTIONS).addr() as u64;
    if let Some(range) = modules::range_around(here) {
        OWN[0].store(range.start as usize, Ordering::Relaxed);
        OWN[1].store(range.end as usize, Ordering::Relaxed);
    }
    old::remember_heap();
    fork::prepare();
    let Some(options) = options() else { return };
    if options.records != 0 {
        record::prepare();
    }
    signals::prepare(options);
    if end::is_wanted(options) {
        log::keep();
    }
    if options.verbose {
        log!("malloc debug enabled");
    }
}
