//! The set that all callers of this interface share, with the hooks that wait.
//!
//! A thread that doesn't exist in this process, because it was forked off while another had the set, may have left the set
//! in any state; it is then neither read nor freed, and a new one takes its place.

use std::sync::OnceLock;

use engine::waiting::{Hooks, WaitError, Waiting};

/// Which set it is, of those that a process has had.
pub(crate) type Generation = u32;

static WAITING: OnceLock<Waiting> = OnceLock::new();

/// The set, had by this thread. Another thread that has it is waited for, but not for ever.
///
/// # Errors
/// If another thread has it for seconds, or this one around this call.
pub(crate) fn lock() -> Result<Hooks<'static>, WaitError> {
    // The first call comes before there is any hook that could make it again.
    WAITING.get_or_init(Waiting::new).lock()
}
