//! Functions with many kinds of first instructions, as a compiler or a hand would write them.

/// A sample: `u64 -> u64`, or its refusal.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) at: *const (),
    /// What it returns for an argument; `None` if it isn't called.
    pub(crate) expected: Option<fn(u64) -> u64>,
}

macro_rules! samples {
    ($fill:literal, $($name:ident $(in $mode:literal)?: $expected:expr, $code:literal;)*) => {
        std::arch::global_asm!(
            ".pushsection .text.samples, \"ax\", %progbits",
            $(
                ".p2align 4",
                $($mode,)?
                concat!(".globl sample_", stringify!($name)),
                concat!(".type sample_", stringify!($name), ", %function"),
                concat!("sample_", stringify!($name), ":"),
                ".cfi_startproc",
                $code,
                ".cfi_endproc",
                concat!(".size sample_", stringify!($name), ", . - sample_", stringify!($name)),
            )*
            concat!(".p2align 4, ", $fill),
            ".popsection",
        );
        mod extern_samples {
            unsafe extern "C" {
                $(#[link_name = concat!("sample_", stringify!($name))] pub(super) fn $name(x: u64) -> u64;)*
            }
        }
        /// Every sample.
        pub(crate) fn all() -> Vec<Sample> {
            vec![$(Sample {
                name: stringify!($name),
                at: extern_samples::$name as *const (),
                expected: $expected,
            }),*]
        }
    };
}

#[cfg_attr(target_arch = "aarch64", path = "samples/aarch64.rs")]
#[cfg_attr(target_arch = "arm", path = "samples/arm.rs")]
#[cfg_attr(target_arch = "x86_64", path = "samples/x86_64.rs")]
mod list;
pub(crate) use list::all;
