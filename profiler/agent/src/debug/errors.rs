//! What is wrong with a block, in the words that readers of Android's log look for.

use super::log::{DIVIDER, log};
use super::names::Names;
use super::stacks::EMPTY;
use super::{options, walk};
use crate::entry::SavedRegisters;
use crate::lock::{self, Quiet};
use crate::sys;
use alloc::string::String;
use alloc::vec::Vec;

/// The most frames that are shown.
const FRAMES: usize = 256;

/// Writes the frames of a stack, `most` of them.
pub(crate) fn backtrace(names: &mut Names, stack: u32, most: usize) {
    let frames: Vec<usize> = walk::with_stacks(|stacks| stacks.frames(stack).take(most).collect());
    let thorough = options().is_some_and(|options| options.full);
    for (number, &pc) in frames.iter().enumerate() {
        let place = names.place(pc, thorough);
        let path =
            if place.path.is_empty() { "<unknown>".into() } else { String::from_utf8_lossy(&place.path) };
        let width = 2 * size_of::<usize>();
        match &place.function {
            Some((name, offset)) => log!(
                "          #{number:02}  pc {:0width$x}  {path} ({}+{offset})",
                place.relative,
                String::from_utf8_lossy(name)
            ),
            None => log!("          #{number:02}  pc {:0width$x}  {path}", place.relative),
        }
    }
    if frames.is_empty() {
        log!("  Backtrace failed to get any frames.");
    }
}

/// Says what is wrong: `what`, then `details`, then where the call comes from that noticed it; and aborts if that is
/// asked for.
pub(crate) fn report(
    saved: Option<&SavedRegisters>,
    quiet: &Quiet,
    what: core::fmt::Arguments<'_>,
    details: impl FnOnce(&mut Names),
) {
    let mut names = Names::new();
    log!("{DIVIDER}");
    log!("{what}");
    details(&mut names);
    if let Some(saved) = saved {
        log!("Backtrace at time of failure:");
        backtrace(&mut names, walk::stack(saved, quiet), FRAMES);
    }
    log!("{DIVIDER}");
    if options().is_some_and(|options| options.abort_on_error) {
        // The program may have a handler, which may never come back. No lock is held where a block is looked at.
        lock::let_signals_through();
        sys::abort();
    }
}

/// Where a block was allocated, if that is known.
pub(crate) fn allocated_at(names: &mut Names, stack: u32) {
    if stack != EMPTY {
        log!("Backtrace at time of allocation:");
        backtrace(names, stack, options().map_or(FRAMES, |options| options.frames));
    }
}
