//! All vector state, saved and loaded by plain moves.
//!
//! XSAVE and XRSTOR take some two hundred nanoseconds together, whatever is in use. What is in use the processor says in
//! thirteen (XGETBV of 1, SDM volume 1, 13.6), and only that is moved. Parts of AVX-512 that weren't in use before the listener
//! and are after it are zeroed. So neither does the code that goes on run with upper halves in use that it didn't use, which
//! costs where it mixes encodings (SDM volume 1, 14.1.2), nor does the listener.
//!
//! | state | kept |
//! |---|---|
//! | `zmm0` to `zmm31`, `k0` to `k7`, as far as the system has them switched on | always |
//! | MXCSR | always |
//! | x87 stack, control and status | always; of a stack that isn't empty the listener finds nothing, but the control word |
//! | AMX tiles, protection keys | never: only who knows of them changes them |
//!
//! Some processors take the x87 state for used for good once it was. It is looked at then, which takes twenty-five
//! nanoseconds, and loaded again only if the stack isn't empty or the listener has changed control or status: that takes a
//! hundred. A processor that doesn't say what is in use (before 2015) takes all for it but what is seen to be zero.
//!
//! # Safety
//! The macros run between those of [`super::save`]: all general registers are saved. `rbx` holds what is in use over the
//! calls.

use core::{
    arch::{
        asm,
        x86_64::{__cpuid, __cpuid_count},
    },
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// Parts of the state, as XCR0 and XGETBV number them (SDM volume 1, 13.1).
const X87: u32 = 1;
const SSE: u32 = 1 << 1;
const AVX: u32 = 1 << 2;
const AVX_512: u32 = 0b111 << 5;
/// In [`STATE`]: the mask registers have 64 bits.
pub(super) const WIDE_MASKS: u32 = 1 << 30;
/// In [`STATE`]: the processor says what is in use.
pub(super) const KNOWN: u32 = 1 << 31;

/// What the system has switched on.
pub(super) static STATE: AtomicU32 = AtomicU32::new(X87 | SSE);

/// What lies on the stack while a listener runs that is shown all vector registers.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct VectorArea {
    /// As much of each as is in use.
    registers: [[u64; 8]; 32],
    masks: [u64; 8],
    x87: [u64; 64],
    mxcsr: u32,
    scratch: u32,
}

pub(super) const ROOM: usize = size_of::<VectorArea>();
pub(super) const MASKS: usize = core::mem::offset_of!(VectorArea, masks);
pub(super) const X87_AREA: usize = core::mem::offset_of!(VectorArea, x87);
pub(super) const MXCSR: usize = core::mem::offset_of!(VectorArea, mxcsr);

impl VectorArea {
    /// The low 128 bits of one of the first sixteen, which are there in every case.
    pub(super) fn low(&self, index: usize) -> Option<[u64; 2]> {
        self.registers.get(index).filter(|_| index < 16).map(|register| [register[0], register[1]])
    }

    pub(super) fn set_low(&mut self, index: usize, [low, high]: [u64; 2]) -> bool {
        let register = self.registers.get_mut(index).filter(|_| index < 16);
        register.map(|register| (register[0], register[1]) = (low, high)).is_some()
    }
}

/// Finds out what there is to be saved, before the first stub that saves it.
pub(crate) fn vectors_can_be_saved() -> bool {
    STATE.store(state(), Relaxed);
    true
}

fn state() -> u32 {
    const OSXSAVE: u32 = 1 << 27;
    const XGETBV_1: u32 = 1 << 2;
    const AVX_512_BW: u32 = 1 << 30;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return X87 | SSE;
    }
    let enabled: u32;
    // SAFETY: the system has XSAVE switched on, so that the instruction is there.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") enabled, out("edx") _, options(nomem, nostack, preserves_flags))
    };
    let mut state = enabled & (X87 | SSE | AVX);
    if enabled & AVX_512 == AVX_512 {
        state |= AVX_512;
        if __cpuid_count(7, 0).ebx & AVX_512_BW != 0 {
            state |= WIDE_MASKS;
        }
    }
    if __cpuid_count(0xd, 1).eax & XGETBV_1 != 0 {
        state |= KNOWN;
    }
    state
}

macro_rules! save_all {
    () => {
        "
        sub rsp, {room}
        and rsp, -64
        mov [rbp + 272], rsp
        stmxcsr [rsp + {mxcsr}]
        mov ebx, [rip + {state}]
        test ebx, ebx
        jns 20f
        mov ecx, 1
        xgetbv
        and ebx, eax
    20:
        test bl, 0xe0
        jnz 24f
        test bl, 4
        jnz 22f
    21:
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        movaps [rsp + 64 * \\i], xmm\\i
        .endr
        jmp 29f
    22:
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        vmovaps [rsp + 64 * \\i], ymm\\i
        .endr
        cmp dword ptr [rip + {state}], 0
        jl 23f
        .irp i,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        vorps ymm0, ymm0, ymm\\i
        .endr
        vextractf128 xmm0, ymm0, 1
        vptest xmm0, xmm0
        jnz 23f
        and ebx, -5
    23:
        vzeroupper
        jmp 29f
    24:
        test bl, 0x20
        jz 26f
        test dword ptr [rip + {state}], {wide}
        jz 25f
        .irp i,0,1,2,3,4,5,6,7
        kmovq [rsp + {masks} + 8 * \\i], k\\i
        .endr
        jmp 26f
    25:
        .irp i,0,1,2,3,4,5,6,7
        kmovw [rsp + {masks} + 8 * \\i], k\\i
        .endr
    26:
        test bl, 0x80
        jz 27f
        .irp i,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vmovaps [rsp + 64 * \\i], zmm\\i
        .endr
    27:
        test bl, 0x40
        jnz 28f
        test bl, 4
        jnz 22b
        jmp 21b
    28:
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        vmovaps [rsp + 64 * \\i], zmm\\i
        .endr
        vzeroupper
    29:
        mov dword ptr [rsp + {x87}], 0x37f
        test bl, 1
        jz 30f
        fxsave64 [rsp + {x87}]
        cmp byte ptr [rsp + {x87} + 4], 0
        je 30f
        or ebx, 0x100
        fninit
        fldcw [rsp + {x87}]
    30:
        "
    };
}

macro_rules! load_all {
    () => {
        "
        test ebx, 0x100
        jnz 35f
        fnstcw [rsp + {mxcsr} + 4]
        mov cx, [rsp + {mxcsr} + 4]
        cmp cx, [rsp + {x87}]
        jne 34f
        fnstsw ax
        cmp ax, [rsp + {x87} + 2]
        je 20f
    34:
        test bl, 1
        jnz 35f
        fninit
        jmp 20f
    35:
        fxrstor64 [rsp + {x87}]
    20:
        mov edi, [rip + {state}]
        test edi, edi
        jns 24f
        not ebx
        and edi, ebx
        not ebx
        test dil, 0xa0
        jz 24f
        mov ecx, 1
        xgetbv
        and eax, edi
        test al, 0x20
        jz 22f
        .irp i,0,1,2,3,4,5,6,7
        kxorw k\\i, k\\i, k\\i
        .endr
    22:
        test al, 0x80
        jz 24f
        .irp i,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vpxorq zmm\\i, zmm\\i, zmm\\i
        .endr
    24:
        test bl, 0xe0
        jnz 26f
        test bl, 4
        jnz 25f
    32:
        test byte ptr [rip + {state}], 4
        jz 23f
        vzeroupper
    23:
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        movaps xmm\\i, [rsp + 64 * \\i]
        .endr
        jmp 30f
    25:
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        vmovaps ymm\\i, [rsp + 64 * \\i]
        .endr
        jmp 30f
    26:
        test bl, 0x20
        jz 28f
        test dword ptr [rip + {state}], {wide}
        jz 27f
        .irp i,0,1,2,3,4,5,6,7
        kmovq k\\i, [rsp + {masks} + 8 * \\i]
        .endr
        jmp 28f
    27:
        .irp i,0,1,2,3,4,5,6,7
        kmovw k\\i, [rsp + {masks} + 8 * \\i]
        .endr
    28:
        test bl, 0x80
        jz 29f
        .irp i,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vmovaps zmm\\i, [rsp + 64 * \\i]
        .endr
    29:
        test bl, 0x40
        jnz 31f
        test bl, 4
        jnz 25b
        jmp 32b
    31:
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        vmovaps zmm\\i, [rsp + 64 * \\i]
        .endr
    30:
        ldmxcsr [rsp + {mxcsr}]
        "
    };
}

/// A routine with what the two name.
macro_rules! with_all_vectors {
    ($routine:ident!($($arguments:tt)*)) => {
        $routine!(
            $($arguments)*
            room = const crate::native::x86_64::vectors::ROOM,
            masks = const crate::native::x86_64::vectors::MASKS,
            x87 = const crate::native::x86_64::vectors::X87_AREA,
            mxcsr = const crate::native::x86_64::vectors::MXCSR,
            wide = const crate::native::x86_64::vectors::WIDE_MASKS,
            state = sym crate::native::x86_64::vectors::STATE,
        );
    };
}

pub(super) use {load_all, save_all, with_all_vectors};

#[cfg(test)]
mod tests;
