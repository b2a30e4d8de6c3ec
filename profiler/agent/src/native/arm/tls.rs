//! The thread-local block of an agent that the dynamic linker loaded: initial-exec. See [`crate::tls`].
//!
//! # Safety
//! Nothing but the place of the variable is read, and the word in which libc keeps a thread's id.

use crate::tls::Tls;
use crate::{guests, sys};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

// The word says how far from itself the one lies in which the loader has put the block's offset from the thread pointer
// (ELF for the Arm Architecture, R_ARM_TLS_IE32).
core::arch::global_asm!(
    ".section .tbss.grapnel_agent_tls,\"awT\",%nobits",
    ".balign 64",
    ".globl grapnel_agent_tls",
    ".hidden grapnel_agent_tls",
    ".type grapnel_agent_tls,%object",
    ".size grapnel_agent_tls,{size}",
    "grapnel_agent_tls:",
    ".zero {size}",
    ".section .rodata.grapnel_agent_tls_at,\"a\",%progbits",
    ".balign 4",
    ".globl grapnel_agent_tls_at",
    ".hidden grapnel_agent_tls_at",
    ".type grapnel_agent_tls_at,%object",
    ".size grapnel_agent_tls_at,4",
    "grapnel_agent_tls_at:",
    ".long grapnel_agent_tls(GOTTPOFF)",
    ".text",
    size = const size_of::<Tls>(),
);

unsafe extern "C" {
    safe static grapnel_agent_tls_at: usize;
}

/// Assembly that puts the address of this thread's block into a register, with the help of another.
macro_rules! put_block {
    ($to:literal, $other:literal) => {
        concat!(
            $crate::native::entry::address!($to, "grapnel_agent_tls_at"),
            "ldr ",
            $other,
            ", [",
            $to,
            "]\nldr ",
            $to,
            ", [",
            $to,
            ", ",
            $other,
            "]\nmrc p15, 0, ",
            $other,
            ", c13, c0, 3\nadd ",
            $to,
            ", ",
            $to,
            ", ",
            $other,
            "\n"
        )
    };
}
pub(crate) use put_block;

/// The block of this task, which may be a guest.
#[inline(always)]
pub(crate) fn block_of_task() -> usize {
    let own = block();
    if !guests::may_be() {
        return own;
    }
    // SAFETY: the thread's block.
    ptr::from_ref(guests::block(unsafe { &*ptr::with_exposed_provenance::<Tls>(own) })).expose_provenance()
}

/// Where this thread's block is.
#[inline(always)]
pub(crate) fn block() -> usize {
    let at = (&raw const grapnel_agent_tls_at).expose_provenance();
    let offset: *const usize = ptr::with_exposed_provenance(at.wrapping_add(grapnel_agent_tls_at));
    // SAFETY: the word is in the object's own table, and the loader filled it in.
    thread_pointer().wrapping_add(unsafe { *offset })
}

/// Where glibc keeps a thread's id, in bytes before the thread pointer: see [`find_kept_id`].
static THREAD_BEFORE: AtomicUsize = AtomicUsize::new(0);

/// glibc's description of a thread ends at the thread pointer. How large it is depends on the version: some 1,200 bytes.
const SMALLEST: usize = 512;
const LARGEST: usize = 3072;
/// Where the id is in the description, behind the links of a list of all threads.
const ID_AT: usize = 104;
const LINKS_AT: usize = ID_AT - 8;

/// Finds where libc keeps the id of this thread, which is `thread`. False if it isn't where any version has it.
pub(crate) fn find_kept_id(thread: u32) -> bool {
    let pointer = thread_pointer();
    // Small ones first: what lies before the description need not be there.
    for size in (SMALLEST..=LARGEST).step_by(8) {
        let links = pointer - size + LINKS_AT;
        // The kernel looks at 8 bytes from each.
        if !sys::is_readable(links) || !sys::is_readable(links + 4) {
            return false;
        }
        let found = ptr::with_exposed_provenance::<[u32; 3]>(links);
        // SAFETY: all three words can be read, as the kernel has just done.
        let [next, previous, id] = unsafe { found.read() };
        let is_link = |link: u32| link != 0 && link.is_multiple_of(4);
        if id == thread && is_link(next) && is_link(previous) {
            THREAD_BEFORE.store(size - ID_AT, Ordering::Relaxed);
            return true;
        }
    }
    false
}

/// The id of this thread that libc keeps.
///
/// # Safety
/// [`find_kept_id`] has found it.
pub(crate) unsafe fn kept_id() -> u32 {
    let at = thread_pointer() - THREAD_BEFORE.load(Ordering::Relaxed);
    // SAFETY: it lies in the description of this thread, as it does in those of others. A fork changes it.
    unsafe { ptr::with_exposed_provenance::<u32>(at).read_volatile() }
}

/// The thread pointer.
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register (TPIDRURO) that is the same as long as the thread lives.
    unsafe {
        core::arch::asm!(
            "mrc p15, 0, {}, c13, c0, 3",
            out(reg) pointer,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    pointer
}
