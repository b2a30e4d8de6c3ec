//! Patching code that other threads may be running.
//!
//! The protocol, for all patches of a transaction together:
//!
//! 1. A trap goes over the first byte of each patch. One byte is written at once; whoever runs it traps, and the
//!    handler sends it to the trampoline, where it does what the function did. Every core synchronises. In T32 it is a halfword,
//!    which is written by a store of the word around it.
//! 2. The other bytes of the patches are written, which nobody can reach from the first byte. Every core synchronises.
//! 3. The first bytes are written. Every core synchronises.
//!
//! A thread may have been stopped inside the window before step 1, in front of its second instruction, say, and go on
//! much later; it may even be in a signal handler meanwhile, so that no look at its registers would find it. So the
//! redirect is chosen such that each of its bytes at which an instruction of the window started is a trap as well: the
//! island that it jumps to is put at an address whose displacement has these bytes. The late thread traps there, and
//! the handler sends it to the copy of that instruction. On x86-64 a trap in the displacement's highest byte puts the island
//! 0.8 GiB below, where a program that is linked for low addresses has no memory. Prefixes ahead of the jump move its displacement
//! to other bytes then, or a short jump leads to one in padding. Where neither does, the highest byte is an instruction that
//! doesn't exist: that puts the island above, and the late thread gets `SIGILL` for `SIGTRAP`, with the same handler.
//!
//! Where the patch lies in private code of a file and `/proc/self/mem` can be written, it doesn't take the steps: the file's pages
//! are mapped anew, changed, and take the place of those that are run, in one system call (`memory/remap.rs`). Nobody traps at the
//! start then, only a late thread inside the window, of which a window of one instruction has none. That counts where glibc
//! blocks all signals for moments (starting and ending a thread, `posix_spawn` and its child, `abort`): a thread that has the trap
//! signal blocked when it meets a trap is killed by the kernel, with the process.
//!
//! Code is written through `/proc/self/mem`. A store of our own, which on x86-64 could replace the whole redirect
//! at once where it fits an aligned word, would need a mapping of the text that is writable; the kernel's copy makes no
//! promise about the size of its stores, and `mprotect` would take the right to execute away from the other threads.
//! Where that file can't be had, or an emulator doesn't notice what is written there, whole pages are exchanged for changed
//! copies, by the same steps (`memory/exchange.rs`).
//!
//! What remains: late threads with the trap signal blocked, and traps at the start of code that is of no file, that is shared, or
//! whose file can't be opened by its path any more.

mod handler;
mod question;
mod reach;
mod table;
#[cfg(test)]
mod tests;

use core::{
    ptr,
    sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering::*},
};

use crate::{
    native,
    sys::{self, Errno},
};

pub use reach::Doubt;
pub(crate) use reach::Suspects;
pub(crate) use table::{POSITIONS, Ways, forget_ways, leave};

/// What the caller knows about the other threads while code is patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Liveness {
    /// No other thread runs, and no signal handler of this thread runs the functions meanwhile. Every patch is one
    /// write. Calls of the functions may be under way on this thread's stack and on those of coroutines; where such a
    /// call may return into the bytes that are overwritten, traps and their handler catch it as with [`Self::Live`].
    SingleThreaded,
    /// Other threads may be running the code. A handler for `SIGTRAP` is installed and stays; traps that are not of
    /// this crate's making go to the handler that was there before. The same holds for `SIGBUS` on 32-bit Arm, by which some
    /// kernels tell of breakpoints, and on x86-64 for `SIGILL`, from the first function on whose patch has an
    /// instruction in it that doesn't exist, as some have in programs that are linked for addresses below 0.8 GiB.
    ///
    /// Where a patch is put in at once ([`PatchWay::Remap`](crate::PatchWay::Remap)), a thread traps only if it was between the
    /// first instructions of the function at that moment. Else, for a moment, everybody does who comes to the function. A thread
    /// that traps with such a signal blocked is killed with its process. glibc blocks all signals where it ends a thread (where
    /// it runs `madvise`, `munmap` and `sigprocmask`), and in `posix_spawn`, `system` and `popen`, also in their child, which has
    /// no handlers either (`sigprocmask`, `sigaction`, `dup2`, `open`, `close`, `execve`, `munmap`). Handlers that were installed
    /// with `SIGTRAP` in their `sa_mask` block it, too. Where patches can't be put in at once, hook what they run before other
    /// threads begin, or while none of this goes on. A debugger must pass these signals on, and `gdb` takes some for its own.
    Live,
}

/// The table that is in use now. It is apart from what is done with it, of which there is a model with other atomics.
static TABLE: AtomicPtr<table::Table> = AtomicPtr::new(ptr::null_mut());
/// How many entries of it are taken. Only the holder of the patching right writes it.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// How many the first has.
const SMALLEST: usize = 64;

/// The process id of who patches at the moment; 0 if nobody does. In a child made by fork a holder of the parent's
/// doesn't count.
static HOLDER: AtomicI32 = AtomicI32::new(0);

/// The right to patch live code, held by one thread of the process at a time.
pub(crate) struct PatchingRight(());

/// Why code can't be patched while it runs.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another thread is patching.
    Busy,
    /// The kernel doesn't offer what it takes: core synchronisation by `membarrier` (Linux 4.16).
    Kernel(Errno),
    /// The kernel refuses a handler for a signal.
    NoHandler(Errno),
    /// `/proc/self` can't be read. Without `mem` and `maps` in it code can't be written while it runs, without `maps` and
    /// `task` threads can't be asked.
    NoProc(Errno),
    /// `/proc/self/maps` can't be read, so no place can be chosen for the island that the patch needs.
    NoMaps(Errno),
    /// The hook wasn't prepared for it ([`Transaction::live`](crate::Transaction::live)).
    NotPrepared,
    /// `/proc` numbers threads as another namespace does, so those that it shows can't be asked.
    OtherNamespace,
    /// The patch begins or ends in the middle of a word of pages that may be written. On AArch64 and Arm code is written by
    /// whole words, so what another thread stores into the rest of it at that moment would be lost.
    SharedWord,
    /// All signals by which threads could be asked have handlers of the program's.
    NoSignal,
    /// The kernel refuses to send a thread a signal.
    NotSent(Errno),
    /// No place could be had for the island whose address makes traps of the bytes at which a thread may still be.
    NoIsland,
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Busy => f.write_str("another thread is patching code"),
            Self::Kernel(errno) => write!(f, "the kernel refuses core synchronisation: {errno}"),
            Self::NoHandler(errno) => write!(f, "the kernel refuses a signal's handler: {errno}"),
            Self::NoProc(errno) => write!(f, "/proc/self can't be read: {errno}"),
            Self::NoMaps(errno) => {
                write!(f, "no place can be chosen for its island: /proc/self/maps can't be read: {errno}")
            }
            Self::NoSignal => f.write_str("no real-time signal is free to ask them by"),
            Self::NotSent(errno) => write!(f, "the kernel refuses to send a signal: {errno}"),
            Self::NotPrepared => f.write_str("the hook was not prepared for it"),
            Self::OtherNamespace => f.write_str("/proc is that of another namespace of processes"),
            Self::SharedWord => {
                f.write_str("it shares a word with what may be written, and words are written as wholes")
            }
            Self::NoIsland => f.write_str("no place for its island is free"),
        }
    }
}

impl Refusal {
    /// What the caller could do instead, when code was to be patched.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Busy => "try again when the other thread is done",
            Self::NotPrepared => "prepare the transaction for live code",
            Self::NoProc(_) | Self::NoMaps(_) => {
                "mount /proc, or patch while one thread runs: before main, or with the others stopped"
            }
            Self::Kernel(_) => {
                "allow membarrier in the security policy, or patch while one thread runs: before main, or with the others stopped"
            }
            Self::NoHandler(_) => {
                "allow rt_sigaction in the security policy, or patch while one thread runs: before main, or with the others stopped"
            }
            _ => "patch while one thread runs: before main, or with the others stopped",
        }
    }
}

impl PatchingRight {
    pub(crate) fn begin() -> Result<Self, Refusal> {
        let right = Self::for_traps()?;
        sys::register_core_sync().map_err(Refusal::Kernel)?;
        Ok(right)
    }

    /// The same where nothing has to be synchronised.
    pub(crate) fn for_traps() -> Result<Self, Refusal> {
        let right = Self::for_the_table()?;
        right.hear(handler::is_usual)?;
        Ok(right)
    }

    /// Sees to it that the handler is called for these signals, too.
    pub(crate) fn hear(&self, signals: impl Fn(i32) -> bool) -> Result<(), Refusal> {
        handler::install(signals).map_err(Refusal::NoHandler)
    }

    /// The same where no code is patched.
    pub(crate) fn for_the_table() -> Result<Self, Refusal> {
        let pid = sys::pid();
        let free = |holder: i32| (holder != pid).then_some(pid);
        HOLDER.fetch_update(Acquire, Relaxed, free).map_err(|_| Refusal::Busy)?;
        Ok(Self(()))
    }

    /// Forgets the ways from a patch that lead into this code, which is about to be freed.
    pub(crate) fn forget_ways_into(&self, site: u64, into: &core::ops::Range<u64>) {
        table::forget_ways_into(site, into);
    }

    /// Sees to it that so many entries take no allocation.
    pub(crate) fn expect(&self, entries: usize) {
        table::make_room(entries);
    }

    /// Says where a thread goes on that traps in a patch. Entered before the trap is written.
    pub(crate) fn enter(&self, site: u64, ways: Ways) {
        table::enter(site, ways);
    }

    /// Every thread of the process sees all code that was written before, from its next instruction on.
    pub(crate) fn synchronise(&self) -> Result<(), Errno> {
        sys::sync_cores()
    }
}

/// Sees to it that no core has decoded what was in memory before code was written there that any thread may come to.
pub(crate) fn drop_old_code(live: bool) -> Result<(), Errno> {
    native::synchronise_this_core();
    match sys::register_core_sync().and_then(|()| sys::sync_cores()) {
        Err(errno) if live => Err(errno),
        _ => Ok(()),
    }
}

/// Where a thread goes on that has met one of our traps.
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) fn table_way_on(pc: u64) -> Option<u64> {
    table::way_on(pc, || false)
}

/// Forgets the patches in memory that was unmapped: what is loaded there later is not theirs.
pub(crate) fn forget(range: &core::ops::Range<u64>) {
    table::forget(range);
}

impl Drop for PatchingRight {
    fn drop(&mut self) {
        HOLDER.store(0, Release);
    }
}
