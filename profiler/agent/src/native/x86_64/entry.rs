//! The stubs of x86-64, and what they save.
//!
//! Above what a stub saves lies the return address; below it two words for the way out of a fault.
//!
//! # Safety
//! The stubs keep to the System V ABI on both sides.

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
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    rbx: u64,
    rbp: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    return_address: u64,
}

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
        [self.rdi, self.rsi, self.rdx][number]
    }
}

/// The state of the caller just after its call returns. Read word by word, and only what is needed: the stub has just
/// written these words, and a load of two of them at once would wait until all stores before have left the processor.
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
        self.rbp
    }

    #[cold]
    fn registers(&self) -> Registers {
        Registers {
            pc: self.pc(),
            sp: self.sp(),
            bp: self.fp(),
            rbx: self.rbx,
            r12: self.r12,
            r13: self.r13,
            r14: self.r14,
            r15: self.r15,
        }
    }
}

/// Assembly that saves what is in [`SavedRegisters`], but for RDI, which is saved already.
macro_rules! push_saved {
    () => {
        "push rsi
        .cfi_adjust_cfa_offset 8
        push rdx
        .cfi_adjust_cfa_offset 8
        push rbp
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbp, 0
        push rbx
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbx, 0
        push r12
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r12, 0
        push r13
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r13, 0
        push r14
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r14, 0
        push r15
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r15, 0
        "
    };
}
pub(crate) use push_saved;

/// The register of an argument, by its number from 0.
macro_rules! argument {
    (0) => {
        "rdi"
    };
    (1) => {
        "rsi"
    };
    (2) => {
        "rdx"
    };
    (3) => {
        "rcx"
    };
    (4) => {
        "r8"
    };
    (5) => {
        "r9"
    };
}
pub(crate) use argument;

/// What follows a call in a stub: nothing, or the address that the call has left below the stack is wiped out.
#[cfg(not(grapnel_attached))]
macro_rules! stub_returned {
    () => {
        ""
    };
}
#[cfg(grapnel_attached)]
macro_rules! stub_returned {
    () => {
        "mov qword ptr [rsp - 8], 0\n"
    };
}
pub(crate) use stub_returned;

/// What follows a call in a stub that has aligned the stack for it, with what was saved at RBX: not all programs keep to the ABI there, and libc's functions
/// don't mind.
macro_rules! aligned_returned {
    () => {
        concat!(
            $crate::native::entry::stub_returned!(),
            "mov rsp, rbx
            .cfi_def_cfa_register rsp
            mov rbx, [rsp + 48]
            .cfi_restore rbx
            add rsp, 88
            .cfi_adjust_cfa_offset -88"
        )
    };
}
pub(crate) use aligned_returned;

#[cfg(grapnel_attached)]
unsafe extern "C" {
    #[link_name = "__start_grapnel_stubs"]
    static STUBS_START: u8;
    #[link_name = "__stop_grapnel_stubs"]
    static STUBS_STOP: u8;
}

/// An address in here that a stack holds is that of a call under way: all of the stubs, to which what they call returns.
#[cfg(grapnel_attached)]
pub(crate) fn marks() -> [u64; 2] {
    [&raw const STUBS_START, &raw const STUBS_STOP].map(|stub| stub.addr() as u64)
}

/// See [`crate::entry`]. Six arguments take all registers: the seventh lies on the stack.
macro_rules! stub {
    // Arguments of 64 bits have a register like all others.
    ($stub:ident, $hook:path, 6, wide last) => {
        $crate::native::entry::stub!($stub, $hook, 6);
    };
    ($stub:ident, $hook:path, $number:tt, wide first) => {
        $crate::native::entry::stub!($stub, $hook, $number);
    };
    ($stub:ident, $hook:path, 6) => {
        $crate::native::entry::stub!(
            @define $stub, $hook,
            concat!(
                "mov rbx, rsp\n.cfi_def_cfa_register rbx\n",
                "sub rsp, 8\n",
                "and rsp, -16\n",
                "mov [rsp], rbx\n",
                "call {hook}\n",
                $crate::native::entry::aligned_returned!()
            )
        );
    };
    ($stub:ident, $hook:path, $number:tt) => {
        $crate::native::entry::stub!(
            @define $stub, $hook,
            concat!(
                "mov ", $crate::native::entry::argument!($number), ", rsp\n",
                "mov rbx, rsp\n.cfi_def_cfa_register rbx\n",
                "and rsp, -16\n",
                "call {hook}\n",
                $crate::native::entry::aligned_returned!()
            )
        );
    };
    ($stub:ident, $hook:path, $number:tt, beside $beside:ident) => {
        $crate::native::entry::stub!($stub, $hook, $number);
        $crate::native::entry::stub!(@keeping $beside, $hook, $number, "");
    };
    ($stub:ident, $hook:path, $number:tt, nothing, beside $beside:ident) => {
        $crate::native::entry::stub!($stub, $hook, $number);
        $crate::native::entry::stub!(@keeping $beside, $hook, $number, "mov rax, [rsp + 280]\n");
    };
    ($stub:ident, $hook:path, $number:tt, nothing, only beside) => {
        $crate::native::entry::stub!(@keeping $stub, $hook, $number, "mov rax, [rsp + 280]\n");
    };
    ($stub:ident, $hook:path, $number:tt, only beside) => {
        $crate::native::entry::stub!(@keeping $stub, $hook, $number, "");
    };
    (@keeping $stub:ident, $hook:path, $number:tt, $result:literal) => {
        $crate::native::entry::stub!(
            @define $stub, $hook,
            concat!(
                "sub rsp, 320\n.cfi_adjust_cfa_offset 320\n",
                "mov [rsp + 280], rax\n",
                $crate::native::kept::keep!(),
                "lea ", $crate::native::entry::argument!($number), ", [rsp + 320]\n",
                $crate::native::kept::call_aligned!("{hook}", 376),
                $result,
                $crate::native::kept::bring_back!(),
                "add rsp, 408\n.cfi_adjust_cfa_offset -408"
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
            "endbr64",
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            $crate::native::entry::push_saved!(),
            "sub rsp, 16",
            ".cfi_adjust_cfa_offset 16",
            $call,
            "ret",
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
    // they are such as any call may leave behind.
    unsafe {
        core::arch::asm!(
            "mov rbx, rax",
            "mov r11, [rbx - 48]",
            "mov r10, [rbx - 32]",
            "mov r9, [rbx - 24]",
            "mov r8, [rbx - 16]",
            "mov rcx, [rbx - 8]",
            "movups xmm0, [rbx - 304]",
            "movups xmm1, [rbx - 288]",
            "movups xmm2, [rbx - 272]",
            "movups xmm3, [rbx - 256]",
            "movups xmm4, [rbx - 240]",
            "movups xmm5, [rbx - 224]",
            "movups xmm6, [rbx - 208]",
            "movups xmm7, [rbx - 192]",
            "movups xmm8, [rbx - 176]",
            "movups xmm9, [rbx - 160]",
            "movups xmm10, [rbx - 144]",
            "movups xmm11, [rbx - 128]",
            "movups xmm12, [rbx - 112]",
            "movups xmm13, [rbx - 96]",
            "movups xmm14, [rbx - 80]",
            "movups xmm15, [rbx - 64]",
            "mov r15, [rbx + 16]",
            "mov r14, [rbx + 24]",
            "mov r13, [rbx + 32]",
            "mov r12, [rbx + 40]",
            "mov rdx, [rbx + 64]",
            "mov rsi, [rbx + 72]",
            "mov rdi, [rbx + 80]",
            "mov rbp, [rbx + 56]",
            "mov rax, [rbx]",
            "cmp qword ptr [rbx + 8], 0",
            "je 2f",
            "mov rax, [rbx - 40]",
            "lea rsp, [rbx + 88]",
            "mov rbx, [rbx + 48]",
            "jmp qword ptr [rsp - 80]",
            "2:",
            "lea rsp, [rbx + 88]",
            "mov rbx, [rbx + 48]",
            "ret",
            in("rax") saved,
            options(noreturn),
        );
    }
}
