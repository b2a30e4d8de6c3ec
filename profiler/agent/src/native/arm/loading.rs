//! The stubs of `dlopen` and its kin: see [`crate::bound`].
//!
//! # Safety
//! They change no register that may hold an argument, and go on in the function as if they weren't there.

use super::entry::{address, begin, end};
use crate::bound::{LOADING, loading};

macro_rules! loading_stub {
    ($stub:ident, $number:literal) => {
        unsafe extern "C" {
            pub(crate) fn $stub();
        }
        core::arch::global_asm!(
            ".text",
            begin!(stringify!($stub)),
            "push {{r0-r3, r4, lr}}",
            ".save {{r4, lr}}",
            ".pad #16",
            "mov r0, #{number}",
            "bl {loading}",
            "pop {{r0-r3, r4, lr}}",
            address!("ip", "{functions}"),
            "ldr ip, [ip, #4 * {number}]",
            "bx ip",
            end!(stringify!($stub)),
            loading = sym loading,
            functions = sym LOADING,
            number = const $number,
        );
    };
}
loading_stub!(grapnel_agent_dlopen, 0);
loading_stub!(grapnel_agent_dlmopen, 1);
loading_stub!(grapnel_agent_dlclose, 2);
loading_stub!(grapnel_agent_dlsym, 3);
