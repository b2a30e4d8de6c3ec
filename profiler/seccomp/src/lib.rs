//! What a filter for system calls (seccomp) answers, known without making the call.
//!
//! A filter is a program of the classic Berkeley Packet Filter that the kernel runs before each system call of a thread.
//! [`answer`] runs it as the kernel does, for one call with all that is known of it. [`always`] looks at all that it may
//! answer to a call of which only the number is known.
//!
//! What is known of filters is in the kernel's `Documentation/userspace-api/seccomp_filter.rst`, `seccomp(2)`, and the
//! rules that it checks a filter by when that is installed: words of the call at multiples of 4, no packets, no `MOD`,
//! jumps forward only, and a return at the end of each way. A filter that the kernel has taken keeps to them. Anything
//! else is answered by `None` here, never by a panic or an endless run.
#![no_std]

mod always;
mod run;

pub use always::always;
pub use run::answer;

/// One instruction, as the kernel lays it out (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// How many instructions are left out when its comparison holds.
    pub jt: u8,
    /// The same when it does not.
    pub jf: u8,
    /// A constant.
    pub k: u32,
}

/// A system call, as a filter sees it (`struct seccomp_data`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: u32,
    /// The machine and ABI (`AUDIT_ARCH_*`).
    pub arch: u32,
    /// The address behind the instruction that makes it, if that is known.
    pub instruction: Option<u64>,
    /// Its arguments. Those that it doesn't have are what the registers hold.
    pub arguments: [u64; 6],
}

/// The most instructions that the kernel takes for one filter (`BPF_MAXINSNS`).
pub const MOST_INSTRUCTIONS: usize = 4096;

/// `AUDIT_ARCH_X86_64`.
pub const ARCH_X86_64: u32 = 0xc000_003e;
/// `AUDIT_ARCH_AARCH64`.
pub const ARCH_AARCH64: u32 = 0xc000_00b7;
/// `AUDIT_ARCH_ARM`.
pub const ARCH_ARM: u32 = 0x4000_0028;

/// What a process of this machine is to a filter; 0 where nobody has looked.
pub const ARCH_NATIVE: u32 = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
    ARCH_X86_64
} else if cfg!(target_arch = "aarch64") {
    ARCH_AARCH64
} else if cfg!(target_arch = "arm") {
    ARCH_ARM
} else {
    0
};

/// The part of an answer that says what is done (`SECCOMP_RET_ACTION_FULL`).
const ACTION: u32 = 0xffff_0000;
const ERRNO: u32 = 0x0005_0000;
const LOG: u32 = 0x7ffc_0000;
const ALLOW: u32 = 0x7fff_0000;

/// Whether an answer lets the call be made as if there were no filter, but for a line in a log.
pub const fn lets_pass(answer: u32) -> bool {
    matches!(answer & ACTION, ALLOW | LOG)
}

/// Whether nobody but the caller learns of the call: it is made, or an error comes back from it. Other answers end the thread
/// or the process, send a signal, or tell a tracer or a supervisor.
pub const fn is_quiet(answer: u32) -> bool {
    lets_pass(answer) || answer & ACTION == ERRNO
}

impl Call {
    /// The word of `struct seccomp_data` at an offset; `None` for what isn't known or isn't there.
    fn word(&self, offset: u32) -> Option<u32> {
        let half = |value: u64| (if is_upper(offset) { value >> 32 } else { value }) as u32;
        match offset {
            0 => Some(self.number),
            4 => Some(self.arch),
            8 | 12 => self.instruction.map(half),
            16..64 if offset.is_multiple_of(4) => {
                self.arguments.get((offset as usize - 16) / 8).copied().map(half)
            }
            _ => None,
        }
    }
}

/// Whether the upper half of a word of 64 bits lies at this offset.
const fn is_upper(offset: u32) -> bool {
    let second = offset.is_multiple_of(8);
    if cfg!(target_endian = "little") { !second } else { second }
}
