//! The set that all callers of this interface share, with the hooks that wait.
//!
//! A thread that doesn't exist in this process, because it was forked off while another had the set, may have left the set
//! in any state; it is then neither read nor freed, and a new one takes its place.

use std::sync::OnceLock;

use engine::waiting::{Hooks, WaitError, Waiting};

/// Which set it is, of those that a process has had.
pub(crate) type Generation = u32;

static WAITING: OnceLock<Waiting> = OnceLock::new();

/// Called as the library is loaded: see [`engine::prepare`].
#[used]
// SAFETY: the section holds addresses of functions that take nothing they want to see.
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = {
    extern "C" fn prepare() {
        engine::prepare();
        // Nor would who was forked off while this is made ever see it made.
        WAITING.get_or_init(Waiting::new);
    }
    prepare
};

/// The set, had by this thread. Another thread that has it is waited for, but not for ever.
///
/// # Errors
/// If another thread has it for seconds, or this one around this call.
pub(crate) fn lock() -> Result<Hooks<'static>, WaitError> {
    WAITING.get_or_init(Waiting::new).lock()
}
