//! A hint to the processor that memory will soon be used.

/// Has no effect but on time: an address that can't be read is as good as any.
#[inline(always)]
pub(crate) fn prefetch<T>(item: *const T) {
    // SAFETY: PLD never faults (Arm ARM, F5.1, "PLD").
    unsafe {
        core::arch::asm!("pld [{item}]", item = in(reg) item, options(nostack, preserves_flags, readonly));
    }
}
