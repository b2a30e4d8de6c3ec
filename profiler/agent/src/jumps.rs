//! Jumps out of what is being recorded: a `new_handler` may leave the program's own `operator new` by `longjmp`.
//!
//! The operator's call is over then, and what the program calls from now on is no part of it, wherever on the stack it is
//! called. So libc's `longjmp`, which is `siglongjmp` too, and its checked form are hooked: where the frame that
//! [`inside`](crate::tls::Tls::inside) names lies between here and where the jump goes, it is given up, and so are those
//! [around](crate::slots::around) it that lie there too. A jump to another stack leaves nothing. Jumps that aren't libc's are not seen.
//!
//! On x86-64 a handler that jumps out of a malloc may leave what is left of the thread's gap below 0, where no malloc would be recorded
//! any more: that is put right there too ([`mend`](crate::sampling::mend)).
//!
//! # Safety
//! The stubs, which are in [`native`](crate::native::jumps), read what libc is about to read, change registers that a call may
//! change, and go on to libc's own code with the caller's arguments and stack. The buffer has the stack pointer in the place and
//! in the form in which glibc has kept it since version 2.4; were it another, a frame would be given up that lives, or kept
//! that is dead, and no more.

use crate::hooks::{Function, Hooked};
use crate::native::jumps::{grapnel_agent_longjmp, grapnel_agent_longjmp_checked, prepare};

/// The functions to hook, as [`crate::hooks::allocation_functions`] lists its: none, where it isn't known how libc writes its
/// buffers.
pub(crate) fn jump_functions() -> impl Iterator<Item = Hooked> {
    let functions: [Hooked; 2] = [
        (b"longjmp", grapnel_agent_longjmp, Function::Longjmp),
        (b"__longjmp_chk", grapnel_agent_longjmp_checked, Function::LongjmpChecked),
    ];
    let is_known = prepare();
    functions.into_iter().filter(move |_| is_known)
}
