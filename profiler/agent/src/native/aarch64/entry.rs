//! The stubs of AArch64, and what they save.
//!
//! Above what a stub saves lies nothing of it; below it lies the frame of the call, or that of [`kept`](super::kept).
//!
//! # Safety
//! The stubs keep to AAPCS64 on both sides. They change X16 and X17, which any call may change on its way.

use core::cell::Cell;
use grapnel_unwind::{Registers, Start};

/// What a stub saves, in the order in which it lies on the stack.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SavedRegisters {
    /// What the hooked function returns when the agent meets a fault of its own.
    rescue_result: Cell<usize>,
    /// Or else, when not 0, the original that is then called with the caller's arguments.
    rescue_call: Cell<usize>,
    /// X19 to X28.
    x19: [u64; 10],
    /// D8 to D15: nobody else brings them back where the agent's frames are left in the middle of their work.
    _d8: [u64; 8],
    /// X0 to X2.
    x0: [u64; 3],
    /// [`grapnel_agent_under_way`] while the call is under way, in an agent that is to be taken out again.
    _mark: u64,
    x29: u64,
    return_address: u64,
}

const _: () = assert!(size_of::<SavedRegisters>() == 208);

impl SavedRegisters {
    /// Where the hooked function returns to.
    #[inline(always)]
    pub(crate) fn return_address(&self) -> usize {
        self.return_address as usize
    }

    /// Says what comes of the call when the agent meets a fault of its own; see [`crate::entry::rescued`].
    #[inline(always)]
    pub(crate) fn set_rescue(&self, result: usize, call: usize) {
        self.rescue_result.set(result);
        self.rescue_call.set(call);
    }

    /// One of the first three arguments.
    #[inline(always)]
    pub(crate) fn argument(&self, number: usize) -> u64 {
        self.x0[number]
    }
}

/// The state of the caller just after its call returns.
impl Start for SavedRegisters {
    #[inline(always)]
    fn pc(&self) -> u64 {
        self.return_address
    }

    #[inline(always)]
    fn sp(&self) -> u64 {
        (&raw const self.return_address).addr() as u64 + 8
    }

    #[inline(always)]
    fn fp(&self) -> u64 {
        self.x29
    }

    #[cold]
    fn registers(&self) -> Registers {
        Registers { pc: self.pc(), sp: self.sp(), fp: self.fp(), x19: self.x19 }
    }
}

/// Assembly that makes a frame record and saves what is in [`SavedRegisters`] below it.
macro_rules! save {
    () => {
        "stp x29, x30, [sp, #-16]!
        .cfi_adjust_cfa_offset 16
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        mov x29, sp
        sub sp, sp, #192
        .cfi_adjust_cfa_offset 192
        stp x19, x20, [sp, #16]
        stp x21, x22, [sp, #32]
        stp x23, x24, [sp, #48]
        stp x25, x26, [sp, #64]
        stp x27, x28, [sp, #80]
        stp d8, d9, [sp, #96]
        stp d10, d11, [sp, #112]
        stp d12, d13, [sp, #128]
        stp d14, d15, [sp, #144]
        stp x0, x1, [sp, #160]
        str x2, [sp, #176]
        "
    };
}

/// In an agent that is to be taken out again the stubs mark the stack that they are on: the return address of what they call stays
/// in memory when that is over, wherever the called function has put it, and may come to lie in frames of others.
#[cfg(grapnel_attached)]
macro_rules! set_mark {
    () => {
        "adr x16, grapnel_agent_under_way
        str x16, [sp, #184]
        "
    };
}
#[cfg(not(grapnel_attached))]
macro_rules! set_mark {
    () => {
        ""
    };
}

/// Takes the mark away again, with the [`SavedRegisters`] so many bytes above the stack pointer.
#[cfg(grapnel_attached)]
macro_rules! clear_mark {
    ($bytes:literal) => {
        concat!("str xzr, [sp, #", $bytes, " + 184]\n")
    };
}
#[cfg(not(grapnel_attached))]
macro_rules! clear_mark {
    ($bytes:literal) => {
        ""
    };
}
pub(crate) use {clear_mark, save, set_mark};

#[cfg(grapnel_attached)]
core::arch::global_asm!(
    crate::entry::stub_section!(),
    ".balign 16",
    ".globl grapnel_agent_under_way",
    ".hidden grapnel_agent_under_way",
    "grapnel_agent_under_way:",
    // Nobody runs this, or returns to it.
    "udf #0",
    "udf #0",
    ".text",
);

#[cfg(grapnel_attached)]
unsafe extern "C" {
    static grapnel_agent_under_way: [u32; 2];
}

/// An address in here that a stack holds is that of a call under way.
#[cfg(grapnel_attached)]
pub(crate) fn marks() -> [u64; 2] {
    let start = (&raw const grapnel_agent_under_way).addr() as u64;
    [start, start + 4]
}

/// Assembly that returns, with the [`SavedRegisters`] so many bytes above the stack pointer. What the called functions leave as
/// it is has not changed.
macro_rules! return_above {
    ($bytes:literal) => {
        concat!(
            $crate::native::entry::clear_mark!($bytes),
            "add sp, sp, #",
            $bytes,
            " + 192\n",
            ".cfi_adjust_cfa_offset -(",
            $bytes,
            " + 192)\n",
            "ldp x29, x30, [sp], #16\n",
            ".cfi_adjust_cfa_offset -16\n.cfi_restore x29\n.cfi_restore x30\n",
            "ret"
        )
    };
}
pub(crate) use return_above;

/// See [`crate::entry`].
macro_rules! stub {
    // Arguments of 64 bits have a register like all others.
    ($stub:ident, $hook:path, 6, wide last) => {
        $crate::native::entry::stub!($stub, $hook, 6);
    };
    ($stub:ident, $hook:path, $number:tt, wide first) => {
        $crate::native::entry::stub!($stub, $hook, $number);
    };
    ($stub:ident, $hook:path, $number:tt) => {
        $crate::native::entry::stub!(
            @define $stub, $hook,
            concat!("mov x", $number, ", sp\n", "bl {hook}\n", $crate::native::entry::return_above!(0))
        );
    };
    ($stub:ident, $hook:path, $number:tt, beside $beside:ident) => {
        $crate::native::entry::stub!($stub, $hook, $number);
        $crate::native::entry::stub!(@keeping $beside, $hook, $number, "");
    };
    ($stub:ident, $hook:path, $number:tt, nothing, beside $beside:ident) => {
        $crate::native::entry::stub!($stub, $hook, $number);
        $crate::native::entry::stub!(@keeping $beside, $hook, $number, "ldr x0, [sp, #800]\n");
    };
    ($stub:ident, $hook:path, $number:tt, nothing, only beside) => {
        $crate::native::entry::stub!(@keeping $stub, $hook, $number, "ldr x0, [sp, #800]\n");
    };
    ($stub:ident, $hook:path, $number:tt, only beside) => {
        $crate::native::entry::stub!(@keeping $stub, $hook, $number, "");
    };
    (@keeping $stub:ident, $hook:path, $number:tt, $result:literal) => {
        $crate::native::entry::stub!(
            @define $stub, $hook,
            concat!(
                "sub sp, sp, #640\n.cfi_adjust_cfa_offset 640\n",
                $crate::native::kept::keep!(),
                "add x", $number, ", sp, #640\n",
                "bl {hook}\n",
                $result,
                $crate::native::kept::bring_back!(),
                $crate::native::entry::return_above!(640)
            )
        );
    };
    (@define $stub:ident, $hook:path, $call:expr) => {
        unsafe extern "C" {
            pub(crate) fn $stub();
        }
        core::arch::global_asm!(
            $crate::entry::stub_section!(),
            ".balign 16",
            concat!(".globl ", stringify!($stub)),
            concat!(".hidden ", stringify!($stub)),
            concat!(".type ", stringify!($stub), ",@function"),
            concat!(stringify!($stub), ":"),
            ".cfi_startproc",
            // BTI C.
            "hint #34",
            $crate::native::entry::save!(),
            $crate::native::entry::set_mark!(),
            $call,
            ".cfi_endproc",
            concat!(".size ", stringify!($stub), ", . - ", stringify!($stub)),
            ".text",
            hook = sym $hook,
        );
    };
}
pub(crate) use stub;

/// Leaves the agent's frames by the way that [`crate::entry::rescued`] laid: returns from the stub that saved these registers,
/// or calls the function that was named in its place.
///
/// # Safety
/// The stub has not returned, and nobody needs the frames below it any more.
#[cfg(grapnel_cdylib)]
pub(crate) unsafe fn leave(saved: *const SavedRegisters) -> ! {
    // SAFETY: `saved` lies in the frame of a stub that has not returned; from there this does what the stub
    // does after its call, with the registers as they were saved. What lies below `saved` is the frame that keeps the
    // others ([`kept`](super::kept)), or, where the stub has none, anything in the frames of the call that ends here: then
    // they are such as any call may leave behind, but for the lower halves of V8 to V15, which come from `saved`.
    unsafe {
        core::arch::asm!(
            "sub x17, x16, #640",
            "ldp x3, x4, [x17, #16]",
            "ldp x5, x6, [x17, #32]",
            "ldp x7, x8, [x17, #48]",
            "ldp x9, x10, [x17, #64]",
            "ldp x11, x12, [x17, #80]",
            "ldp x13, x14, [x17, #96]",
            "ldp x15, x18, [x17, #112]",
            "ldp q0, q1, [x17, #128]",
            "ldp q2, q3, [x17, #160]",
            "ldp q4, q5, [x17, #192]",
            "ldp q6, q7, [x17, #224]",
            "ldp q8, q9, [x17, #256]",
            "ldp q10, q11, [x17, #288]",
            "ldp q12, q13, [x17, #320]",
            "ldp q14, q15, [x17, #352]",
            "ldp q16, q17, [x17, #384]",
            "ldp q18, q19, [x17, #416]",
            "ldp q20, q21, [x17, #448]",
            "ldp q22, q23, [x17, #480]",
            "ldp q24, q25, [x17, #512]",
            "ldp q26, q27, [x17, #544]",
            "ldp q28, q29, [x17, #576]",
            "ldp q30, q31, [x17, #608]",
            "add x17, x16, #96",
            "ld1 {{v8.d}}[0], [x17], #8",
            "ld1 {{v9.d}}[0], [x17], #8",
            "ld1 {{v10.d}}[0], [x17], #8",
            "ld1 {{v11.d}}[0], [x17], #8",
            "ld1 {{v12.d}}[0], [x17], #8",
            "ld1 {{v13.d}}[0], [x17], #8",
            "ld1 {{v14.d}}[0], [x17], #8",
            "ld1 {{v15.d}}[0], [x17], #8",
            "ldp x19, x20, [x16, #16]",
            "ldp x21, x22, [x16, #32]",
            "ldp x23, x24, [x16, #48]",
            "ldp x25, x26, [x16, #64]",
            "ldp x27, x28, [x16, #80]",
            "ldp x0, x1, [x16, #160]",
            "ldr x2, [x16, #176]",
            "ldp x29, x30, [x16, #192]",
            // The mark.
            "str xzr, [x16, #184]",
            "ldr x17, [x16, #8]",
            "cbz x17, 2f",
            // Last: what lies below the stack pointer is anybody's.
            "add sp, x16, #208",
            "br x17",
            "2:",
            "ldr x0, [x16]",
            "add sp, x16, #208",
            "ret",
            in("x16") saved,
            options(noreturn),
        );
    }
}
