//! What makes the crate a library of its own.
//!
//! # Safety
//! The constructor's entry is the one of [`crate::start`].

#[cfg(not(grapnel_attached))]
use crate::start::grapnel_agent_start;
use crate::{entry, life, session, sys};
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use grapnel_trace::shared::failure;

/// Called by the loader with the arguments and the environment.
#[cfg(not(grapnel_attached))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn() = grapnel_agent_start;

/// Text of limited length; what is beyond is left out.
struct Text {
    bytes: [u8; 400],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (to, from) in self.bytes.iter_mut().skip(self.len).zip(text.bytes()) {
            *to = from;
            self.len += 1;
        }
        Ok(())
    }
}

/// A fault of our own: recording ends, the target goes on as if we had never been there.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    life::end();
    // No memory is asked for: its lack may be the fault.
    let mut text = Text { bytes: [0; 400], len: 0 };
    let _ = write!(text, "a fault in the agent: {info}");
    session::report_failure(failure::PANIC, &text.bytes[..text.len]);
    #[cfg(not(grapnel_attached))]
    if crate::debug::is_on() {
        crate::debug::line(format_args!("a fault in the agent: {info}"));
    }
    entry::escape();
    #[cfg(grapnel_attached)]
    crate::attached::give_up_if_starting();
    sys::abort()
}

// The compiler's ready-made libraries are built to unwind and refer to these two. Nothing here unwinds: a panic
// ends in the handler above. Hidden, so that no other library is led to them.
core::arch::global_asm!(
    ".text",
    ".globl _Unwind_Resume",
    ".hidden _Unwind_Resume",
    ".type _Unwind_Resume,@function",
    "_Unwind_Resume:",
    "ud2",
    ".size _Unwind_Resume, . - _Unwind_Resume",
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    ".type rust_eh_personality,@function",
    "rust_eh_personality:",
    "ud2",
    ".size rust_eh_personality, . - rust_eh_personality",
);

// What the compiler calls for copies. Hidden and our own: libc's would be bound to the program's, if it has functions of
// these names, and those may allocate.
core::arch::global_asm!(
    ".macro grapnel_function name",
    ".balign 16",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name,@function",
    "\\name:",
    ".endm",
    ".text",
    "grapnel_function memcpy",
    "mov rax, rdi",
    "mov rcx, rdx",
    // `rep movsb` takes some 30 cycles to begin; most copies of the hot path are short, and all are words.
    "test rdx, ~0xf8",
    "jnz 3f",
    "add rdi, rdx",
    "add rsi, rdx",
    "neg rdx",
    "jz 4f",
    "2:",
    "mov rcx, [rsi + rdx]",
    "mov [rdi + rdx], rcx",
    "add rdx, 8",
    "jnz 2b",
    "4:",
    "ret",
    "3:",
    "rep movsb",
    "ret",
    ".size memcpy, . - memcpy",
    "grapnel_function memmove",
    "mov rax, rdi",
    "mov r8, rdi",
    "sub r8, rsi",
    "cmp r8, rdx",
    "jae memcpy",
    // The destination begins inside the source: from the end backwards.
    "test dl, 7",
    "jnz 3f",
    "2:",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi + rdx - 8], rcx",
    "sub rdx, 8",
    "jnz 2b",
    "ret",
    "3:",
    "mov rcx, rdx",
    "lea rsi, [rsi + rdx - 1]",
    "lea rdi, [rdi + rdx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    ".size memmove, . - memmove",
    "grapnel_function memset",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    ".size memset, . - memset",
    "grapnel_function bcmp",
    "grapnel_function memcmp",
    "xor eax, eax",
    "xor ecx, ecx",
    "2:",
    "cmp rcx, rdx",
    "je 3f",
    "movzx eax, byte ptr [rdi + rcx]",
    "movzx r8d, byte ptr [rsi + rcx]",
    "inc rcx",
    "sub eax, r8d",
    "jz 2b",
    "3:",
    "ret",
    ".size memcmp, . - memcmp",
    ".size bcmp, . - bcmp",
    "grapnel_function strlen",
    "xor eax, eax",
    "2:",
    "cmp byte ptr [rdi + rax], 0",
    "je 3f",
    "inc rax",
    "jmp 2b",
    "3:",
    "ret",
    ".size strlen, . - strlen",
);

// No libc is asked for anything by an agent that was put into a running process: that may be in any state, and may be none.
// What the hook library would ask is answered here: there is no auxiliary vector but the file's, and errno is nobody's.
#[cfg(grapnel_attached)]
core::arch::global_asm!(
    "grapnel_function getauxval",
    "xor eax, eax",
    "ret",
    ".size getauxval, . - getauxval",
    "grapnel_function __errno_location",
    "lea rax, [rip + grapnel_agent_no_errno]",
    "ret",
    ".size __errno_location, . - __errno_location",
    ".local grapnel_agent_no_errno",
    ".comm grapnel_agent_no_errno, 4, 4",
);
