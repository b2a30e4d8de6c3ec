//! The thread-local block of an agent that the dynamic linker loaded: initial-exec. See [`crate::tls`].
//!
//! # Safety
//! Nothing but the place of the variable is read, and the word in which libc keeps a thread's id.

use crate::tls::Tls;
use crate::{guests, sys};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

core::arch::global_asm!(
    ".section .tbss.grapnel_agent_tls,\"awT\",@nobits",
    ".balign 64",
    ".globl grapnel_agent_tls",
    ".hidden grapnel_agent_tls",
    ".type grapnel_agent_tls,@object",
    ".size grapnel_agent_tls,{size}",
    "grapnel_agent_tls:",
    ".zero {size}",
    ".text",
    size = const size_of::<Tls>(),
);

/// Assembly that puts the address of this thread's block into a register, with the help of another.
macro_rules! put_block {
    ($to:literal, $other:literal) => {
        concat!(
            "adrp ",
            $to,
            ", :gottprel:grapnel_agent_tls\n",
            "ldr ",
            $to,
            ", [",
            $to,
            ", :gottprel_lo12:grapnel_agent_tls]\n",
            "mrs ",
            $other,
            ", tpidr_el0\n",
            "add ",
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
    let address: usize;
    // SAFETY: reads the thread pointer and the variable's offset from it, which the loader filled in. Both are the same
    // as long as the thread lives, so that memory is none of the compiler's concern: one look per call is enough.
    unsafe {
        core::arch::asm!(
            put_block!("{address}", "{pointer}"),
            address = out(reg) address,
            pointer = out(reg) _,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    address
}

/// Where glibc keeps a thread's id, in bytes before the thread pointer: see [`find_kept_id`].
static THREAD_BEFORE: AtomicUsize = AtomicUsize::new(0);

/// glibc's description of a thread ends at the thread pointer. How large it is depends on the version: some 1,800 bytes.
const SMALLEST: usize = 1280;
const LARGEST: usize = 3072;
/// Where the id is in the description, behind the links of a list of all threads.
const ID_AT: usize = 208;
const LINKS_AT: usize = ID_AT - 16;

/// Finds where libc keeps the id of this thread, which is `thread`. False if it isn't where any version has it.
pub(crate) fn find_kept_id(thread: u32) -> bool {
    let pointer = thread_pointer();
    // Small ones first: what lies before the description need not be there.
    for size in (SMALLEST..=LARGEST).step_by(16) {
        let links = pointer - size + LINKS_AT;
        if !sys::is_readable(links) || !sys::is_readable(links + 16) {
            return false;
        }
        let found = ptr::with_exposed_provenance::<u64>(links);
        // SAFETY: all three words can be read, as the kernel has just done: it reads 8 bytes from an address, these are aligned to 8,
        // and the middle one is in the page of one of the others.
        let ([next, previous], id) = unsafe { (found.cast::<[u64; 2]>().read(), found.add(2).read() as u32) };
        let is_link = |link: u64| link != 0 && link.is_multiple_of(8);
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
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register that is the same as long as the thread lives.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags));
    }
    pointer
}
