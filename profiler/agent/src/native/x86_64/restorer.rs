//! What a handler of a signal returns to: see [`crate::debug`].

/// The flag of an action that names one.
pub(crate) const SA_RESTORER: usize = 0x0400_0000;

pub(crate) const RESTORER: Option<unsafe extern "C" fn()> = Some(grapnel_agent_debug_restorer);

core::arch::global_asm!(
    ".text",
    ".balign 16",
    // Unwinders know the code by its bytes.
    "nop",
    ".globl grapnel_agent_debug_restorer",
    ".hidden grapnel_agent_debug_restorer",
    ".type grapnel_agent_debug_restorer,@function",
    "grapnel_agent_debug_restorer:",
    "mov rax, 15",
    "syscall",
    ".size grapnel_agent_debug_restorer, . - grapnel_agent_debug_restorer",
);

unsafe extern "C" {
    fn grapnel_agent_debug_restorer();
}
