//! Signals: their actions, their stacks, and sending them.

use core::ops::Range;

use syscalls::Sysno;

use super::{Result, pid, syscall, tid};
use crate::native;

/// The kernel's own `struct sigaction`, which is not libc's.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SigAction {
    pub(crate) handler: usize,
    pub(crate) flags: usize,
    restorer: usize,
    mask: [usize; MASK_WORDS],
}

/// The kernel's set of 64 signals is made of words.
const MASK_WORDS: usize = 8 / size_of::<usize>();

impl SigAction {
    /// An action that blocks the signals of `mask` while it runs.
    pub(crate) fn new(handler: usize, flags: usize, mask: u64) -> Self {
        const SA_RESTORER: usize = 0x0400_0000;
        let mask = core::array::from_fn(|i| (mask >> (i as u32 * usize::BITS)) as usize);
        match native::RESTORER {
            Some(restorer) => Self { handler, flags: flags | SA_RESTORER, restorer: restorer as usize, mask },
            None => Self { handler, flags, restorer: 0, mask },
        }
    }
}

/// The action for a signal.
pub(crate) fn signal_action(signal: i32) -> Result<SigAction> {
    let mut old = SigAction::default();
    // SAFETY: the kernel writes one structure at `old`; its mask is 8 bytes long.
    unsafe { syscall!(Sysno::rt_sigaction, signal, 0, &raw mut old, 8) }?;
    Ok(old)
}

/// Sets the action for a signal.
///
/// # Safety
/// The handler fits its flags and is safe in a signal.
pub(crate) unsafe fn set_signal_action(signal: i32, action: &SigAction) -> Result<()> {
    // SAFETY: the kernel reads one structure; the rest is the caller's promise.
    unsafe { syscall!(Sysno::rt_sigaction, signal, core::ptr::from_ref(action), 0, 8) }?;
    Ok(())
}

/// This thread's stack for signal handlers, if it has one.
pub(crate) fn signal_stack() -> Option<Range<usize>> {
    let mut stack = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: the kernel writes one structure; nothing is changed.
    unsafe { syscall!(Sysno::sigaltstack, 0, &raw mut stack) }.ok()?;
    let start = stack.ss_sp as usize;
    (stack.ss_flags & libc::SS_DISABLE == 0).then(|| start..start.saturating_add(stack.ss_size))
}

/// Sends a signal to this thread alone.
pub(crate) fn signal_this_thread(signal: i32) {
    let _ = signal_thread(tid(), signal);
}

/// Sends a signal to a thread of this process; signal 0 only asks whether there is such a thread.
pub(crate) fn signal_thread(thread: i32, signal: i32) -> Result<()> {
    // SAFETY: a signal to one's own process; what it does was decided by its action.
    unsafe { syscall!(Sysno::tgkill, pid(), thread, signal) }?;
    Ok(())
}
