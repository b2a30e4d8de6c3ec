//! The stubs of 32-bit Arm, and what they save. They are A32 code, which T32 code calls as well: whoever is called returns by
//! the bit of the address that says which of the two its caller is.
//!
//! Above what a stub saves lie the caller's arguments that have no register; below it lies the frame of the call, or that of
//! [`kept`](super::kept).
//!
//! # Safety
//! The stubs keep to AAPCS32 on both sides. They change R12, which any call may change on its way.

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
    r0: [u32; 4],
    /// D8 to D15: nobody else brings them back where the agent's frames are left in the middle of their work.
    _d8: [[u32; 2]; 8],
    _pad: u32,
    /// R4 to R11.
    r4: [u32; 8],
    return_address: u32,
}

const _: () = assert!(size_of::<SavedRegisters>() == 128);

impl SavedRegisters {
    /// Where the hooked function returns to. Bit 0 says that there is T32 code.
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
        self.r0[number].into()
    }
}

/// The state of the caller just after its call returns.
impl Start for SavedRegisters {
    #[inline(always)]
    fn pc(&self) -> u64 {
        self.return_address.into()
    }

    #[inline(always)]
    fn sp(&self) -> u64 {
        (&raw const self.return_address).addr() as u64 + 4
    }

    #[inline(always)]
    fn fp(&self) -> u64 {
        let [_, _, _, r7, _, _, _, r11] = self.r4;
        u64::from(r7) | u64::from(r11) << 32
    }

    #[cold]
    fn registers(&self) -> Registers {
        Registers { pc: self.return_address, sp: self.sp() as u32, r4: self.r4 }
    }
}

/// Assembly that begins a function of A32 code.
macro_rules! begin {
    ($name:expr) => {
        concat!(
            ".balign 16\n.arm\n.fpu neon\n",
            ".globl ",
            $name,
            "\n.hidden ",
            $name,
            "\n.type ",
            $name,
            ",%function\n",
            $name,
            ":\n.fnstart\n"
        )
    };
}
pub(crate) use begin;

/// Assembly that ends it.
macro_rules! end {
    ($name:expr) => {
        concat!(".fnend\n.size ", $name, ", . - ", $name, "\n")
    };
}
pub(crate) use end;

/// Assembly that puts the address of a symbol, and so much more, into a register. The word that says how far it is lies in the
/// midst of the code.
macro_rules! address {
    ($register:literal, $symbol:literal) => {
        concat!(
            "ldr ",
            $register,
            ", 98f\n",
            "97: add ",
            $register,
            ", pc, ",
            $register,
            "\nb 99f\n",
            "98: .long ",
            $symbol,
            " - (97b + 8)\n",
            "99:\n"
        )
    };
}
pub(crate) use address;

/// Assembly that saves what is in [`SavedRegisters`].
macro_rules! save {
    () => {
        "push {{r4-r11, lr}}
        .save {{r4-r11, lr}}
        sub sp, sp, #4
        .pad #4
        vpush {{d8-d15}}
        .vsave {{d8-d15}}
        push {{r0-r3}}
        .pad #16
        sub sp, sp, #8
        .pad #8
        "
    };
}
pub(crate) use save;

/// Assembly that returns, with the [`SavedRegisters`] so many bytes above the stack pointer. What the called functions leave as
/// it is has not changed.
macro_rules! return_above {
    ($bytes:literal) => {
        concat!("ldr lr, [sp, #", $bytes, " + 124]\n", "add sp, sp, #", $bytes, " + 128\n", "bx lr\n")
    };
}
pub(crate) use return_above;

/// See [`crate::entry`]. What is passed to the hook is words: those of the first four registers, and then on the stack.
macro_rules! stub {
    ($stub:ident, $hook:path, 4) => {
        $crate::native::entry::stub!(@stacked $stub, $hook, 8, "str ip, [sp]\n");
    };
    ($stub:ident, $hook:path, 5) => {
        $crate::native::entry::stub!(
            @stacked $stub, $hook, 8,
            "ldr lr, [ip, #128]\nstr lr, [sp]\nstr ip, [sp, #4]\n"
        );
    };
    ($stub:ident, $hook:path, 6) => {
        $crate::native::entry::stub!(
            @stacked $stub, $hook, 16,
            "ldr lr, [ip, #128]\nstr lr, [sp]\nldr lr, [ip, #132]\nstr lr, [sp, #4]\nstr ip, [sp, #8]\n"
        );
    };
    ($stub:ident, $hook:path, 8) => {
        $crate::native::entry::stub!(
            @stacked $stub, $hook, 24,
            "ldr lr, [ip, #128]\nstr lr, [sp]\nldr lr, [ip, #136]\nstr lr, [sp, #8]\nldr lr, [ip, #140]\nstr lr, [sp, #12]\nstr ip, [sp, #16]\n"
        );
    };
    ($stub:ident, $hook:path, 1, wide first) => {
        $crate::native::entry::stub!($stub, $hook, 2);
    };
    ($stub:ident, $hook:path, 2, wide first) => {
        $crate::native::entry::stub!($stub, $hook, 3);
    };
    ($stub:ident, $hook:path, 3, wide first) => {
        $crate::native::entry::stub!($stub, $hook, 4);
    };
    ($stub:ident, $hook:path, 4, wide first) => {
        $crate::native::entry::stub!($stub, $hook, 5);
    };
    ($stub:ident, $hook:path, 6, wide last) => {
        $crate::native::entry::stub!($stub, $hook, 8);
    };
    ($stub:ident, $hook:path, $number:tt) => {
        $crate::native::entry::stub!(
            @define $stub, $hook,
            concat!("mov r", $number, ", sp\n", "bl {hook}\n", $crate::native::entry::return_above!(0))
        );
    };
    ($stub:ident, $hook:path, $number:tt, beside $beside:ident) => {
        $crate::native::entry::stub!($stub, $hook, $number);
        $crate::native::entry::stub!(@keeping $beside, $hook, $number, "");
    };
    ($stub:ident, $hook:path, $number:tt, nothing, only beside) => {
        $crate::native::entry::stub!(@keeping $stub, $hook, $number, "ldr r0, [sp, #200]\n");
    };
    ($stub:ident, $hook:path, $number:tt, only beside) => {
        $crate::native::entry::stub!(@keeping $stub, $hook, $number, "");
    };
    ($stub:ident, $hook:path, $number:tt, nothing, beside $beside:ident) => {
        $crate::native::entry::stub!($stub, $hook, $number);
        $crate::native::entry::stub!(@keeping $beside, $hook, $number, "ldr r0, [sp, #200]\n");
    };
    (@stacked $stub:ident, $hook:path, $bytes:literal, $words:literal) => {
        $crate::native::entry::stub!(
            @define $stub, $hook,
            concat!(
                "mov ip, sp\n",
                "sub sp, sp, #", $bytes, "\n.pad #", $bytes, "\n",
                $words,
                "bl {hook}\n",
                $crate::native::entry::return_above!($bytes)
            )
        );
    };
    (@keeping $stub:ident, $hook:path, $number:tt, $result:literal) => {
        $crate::native::entry::stub!(
            @define $stub, $hook,
            concat!(
                "sub sp, sp, #192\n.pad #192\n",
                $crate::native::kept::keep!(0),
                "add r", $number, ", sp, #192\n",
                "bl {hook}\n",
                $result,
                $crate::native::kept::bring_back!(0),
                $crate::native::entry::return_above!(192)
            )
        );
    };
    (@define $stub:ident, $hook:path, $call:expr) => {
        unsafe extern "C" {
            pub(crate) fn $stub();
        }
        core::arch::global_asm!(
            $crate::entry::stub_section!(),
            $crate::native::entry::begin!(stringify!($stub)),
            $crate::native::entry::save!(),
            $call,
            $crate::native::entry::end!(stringify!($stub)),
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
    unsafe extern "C" {
        fn grapnel_agent_leave(saved: *const SavedRegisters) -> !;
    }
    // SAFETY: `saved` lies in the frame of a stub that has not returned; from there the routine does what the stub
    // does after its call, with the registers as they were saved. What lies below `saved` is the frame that keeps the
    // others ([`kept`](super::kept)), or, where the stub has none, anything in the frames of the call that ends here: then
    // they are such as any call may leave behind.
    unsafe { grapnel_agent_leave(saved) }
}

#[cfg(grapnel_cdylib)]
core::arch::global_asm!(
    ".text",
    begin!("grapnel_agent_leave"),
    ".cantunwind",
    "sub r1, r0, #192",
    "vldmia r1!, {{d0-d7}}",
    address!("r2", "grapnel_agent_vectors"),
    "ldrb r2, [r2]",
    "cmp r2, #0",
    "beq 2f",
    "vldmia r1, {{d16-d31}}",
    "2:",
    "add r1, r0, #24",
    "vldmia r1, {{d8-d15}}",
    "add r1, r0, #92",
    "ldm r1, {{r4-r11, lr}}",
    // From here on the stack begins at what was saved.
    "mov sp, r0",
    "ldr ip, [sp, #4]",
    "ldr r0, [sp, #8]",
    "ldr r1, [sp, #12]",
    "ldr r2, [sp, #16]",
    "ldr r3, [sp, #20]",
    "cmp ip, #0",
    "beq 3f",
    "add sp, sp, #128",
    "bx ip",
    "3:",
    "ldr r0, [sp]",
    "add sp, sp, #128",
    "bx lr",
    end!("grapnel_agent_leave"),
);
