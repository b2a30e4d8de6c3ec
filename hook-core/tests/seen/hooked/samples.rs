//! Functions that are hooked, with unwind entries that are right at each of their instructions. For an argument they return
//! one more.

use std::sync::atomic::{AtomicPtr, Ordering::*};

pub(crate) type Function = unsafe extern "C" fn(u64) -> u64;

macro_rules! samples {
    ($($name:ident: $code:literal;)*) => {
        std::arch::global_asm!(
            ".pushsection .text.seen_samples, \"ax\", %progbits",
            ".globl seen_samples",
            "seen_samples:",
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
            ".p2align 4",
            ".globl seen_samples_end",
            "seen_samples_end:",
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
        unsafe extern "C" {
            fn seen_samples();
            fn seen_samples_end();
        }
        /// Whether an address is in one of the samples.
        pub(crate) fn around(at: usize) -> bool {
            (seen_samples as *const () as usize..=seen_samples_end as *const () as usize).contains(&at)
        }
        pub(crate) const COUNT: usize = [$(stringify!($name)),*].len();
        pub(crate) fn all() -> Vec<Sample> {
            vec![$(Sample {
                function: code::$name,
                end: code::end::$name as *const () as usize,
                probed: code::probed::$name as *const (),
            }),*]
        }
    };
}

#[cfg_attr(target_arch = "aarch64", path = "aarch64/samples.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64/samples.rs")]
mod list;
use list::COUNT;
pub(crate) use list::{all, around};

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
