//! A hint to the processor that memory will soon be used.

/// Has no effect but on time: an address that can't be read is as good as any.
#[inline(always)]
pub(crate) fn prefetch<T>(item: *const T) {
    // SAFETY: PRFM never faults (Arm ARM, C6.2, "PRFM").
    unsafe {
        core::arch::asm!(
            "prfm pldl1keep, [{item}]",
            item = in(reg) item,
            options(nostack, preserves_flags, readonly)
        );
    }
}
