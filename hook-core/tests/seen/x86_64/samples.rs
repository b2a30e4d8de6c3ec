//! Functions that are hooked, with unwind entries that are right at each of their instructions.

use std::{
    arch::global_asm,
    sync::atomic::{AtomicPtr, Ordering::*},
};

pub(crate) type Function = unsafe extern "C" fn(u64) -> u64;

macro_rules! samples {
    ($($name:ident: $code:literal;)*) => {
        global_asm!(
            ".pushsection .text.seen_samples, \"ax\", @progbits",
            $(
                ".p2align 4",
                concat!("seen_", stringify!($name), ":"),
                ".cfi_startproc",
                $code,
                ".cfi_endproc",
                concat!("seen_", stringify!($name), "_end:"),
                concat!(".globl seen_", stringify!($name)),
                concat!(".globl seen_", stringify!($name), "_end"),
                concat!(".globl seen_", stringify!($name), "_probed"),
            )*
            ".p2align 4, 0xcc",
            ".popsection",
        );
        mod code {
            unsafe extern "C" {
                $(
                    #[link_name = concat!("seen_", stringify!($name))] pub(super) fn $name(x: u64) -> u64;
                )*
            }
            pub(super) mod end {
                unsafe extern "C" {
                    $(#[link_name = concat!("seen_", stringify!($name), "_end")] pub(in super::super) fn $name();)*
                }
            }
            pub(super) mod probed {
                unsafe extern "C" {
                    $(#[link_name = concat!("seen_", stringify!($name), "_probed")] pub(in super::super) fn $name();)*
                }
            }
        }
        pub(crate) fn all() -> Vec<Sample> {
            vec![$(Sample {
                function: code::$name,
                end: code::end::$name as *const () as usize,
                probed: code::probed::$name as *const (),
            }),*]
        }
    };
}

// A sample that has nothing to be probed has its label for it at its end.
samples! {
    frame: "push rbp; .cfi_def_cfa_offset 16; .cfi_offset rbp, -16; mov rbp, rsp; .cfi_def_cfa_register rbp
        sub rsp, 32; mov [rbp - 8], rdi; seen_frame_probed: mov rax, [rbp - 8]; add rax, 1; nop; leave
        .cfi_def_cfa rsp, 8; ret";
    landing_pad: "endbr64; push rbx; .cfi_def_cfa_offset 16; .cfi_offset rbx, -16; mov rbx, rdi; nop
        seen_landing_pad_probed: lea rax, [rbx + 1]; lea rcx, [rax + rbx]; pop rbx; .cfi_def_cfa_offset 8; ret";
    red_zone: "mov [rsp - 8], rdi; seen_red_zone_probed: mov rax, [rsp - 8]; add rax, 1; ret";
    rip_load: "mov rax, [rip + 9f]; add rax, rdi; seen_rip_load_probed: ret; .p2align 3; 9: .quad 1";
    early_branch: "test rdi, rdi; jne 8f; mov eax, 1; ret; 8: lea rax, [rdi + 1]; ret; seen_early_branch_probed:";
    call: "sub rsp, 8; .cfi_def_cfa_offset 16; call 8f; seen_call_probed: lea rax, [rdi + rax]; add rsp, 8
        .cfi_def_cfa_offset 8; ret; .cfi_endproc; .cfi_startproc; 8: mov eax, 1; ret";
    tail: "jmp [rip + 9f]; seen_tail_probed: .pushsection .data.rel.ro, \"aw\", @progbits; .p2align 3
        9: .quad seen_tail_to; .popsection; .cfi_endproc; .cfi_startproc; seen_tail_to: lea rax, [rdi + 1]; ret";
}

pub(crate) struct Sample {
    pub(crate) function: Function,
    end: usize,
    probed: *const (),
}

impl Sample {
    pub(crate) fn at(&self) -> *const () {
        self.function as *const ()
    }

    /// An instruction far enough from the start to have a patch of its own.
    pub(crate) fn probed(&self) -> Option<*const ()> {
        let distance = self.probed as usize - self.at() as usize;
        (distance >= 12 && self.end - self.probed as usize > 5).then_some(self.probed)
    }
}

/// Whether an address is in one of the samples.
pub(crate) fn around(at: usize) -> bool {
    let samples = [code::frame as *const () as usize, code::end::tail as *const () as usize];
    (samples[0]..=samples[1]).contains(&at)
}

const COUNT: usize = 7;

static ORIGINALS: [AtomicPtr<()>; COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];

pub(crate) fn set_original(i: usize, original: *const ()) {
    ORIGINALS[i].store(original.cast_mut(), Release);
}

unsafe extern "C" fn call_original<const I: usize>(x: u64) -> u64 {
    // SAFETY: the original of a sample.
    let original: Function = unsafe { std::mem::transmute(ORIGINALS[I].load(Acquire)) };
    // SAFETY: as above.
    unsafe { original(x) }
}

/// The replacement that calls the original of this sample.
pub(crate) fn through(i: usize) -> *const () {
    let all: [Function; COUNT] = [
        call_original::<0>,
        call_original::<1>,
        call_original::<2>,
        call_original::<3>,
        call_original::<4>,
        call_original::<5>,
        call_original::<6>,
    ];
    all[i] as *const ()
}
