//! The right to change words, held by one thread of the process at a time.
//!
//! Two threads that change words of one page at once would take the right to write from each other: one makes the page
//! writable, finds that the other has, and stores when that has protected it again.

use crate::{
    lock::{Held, Lock},
    sys::Errno,
};

static LOCK: Lock = Lock::new();

pub(super) struct Right(#[expect(dead_code, reason = "held, not looked at")] Held<'static>);

impl Right {
    pub(super) fn begin() -> Result<Self, Errno> {
        LOCK.hold().map(Self)
    }
}
