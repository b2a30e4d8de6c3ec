//! A signal's frame of our own making: a thread that is let go in front of the system call at a handler's end becomes what the
//! frame says, its vectors and its mask too. The kernel does that by itself, whoever traces the thread or doesn't any more.
//!
//! The layout is the kernel's (`struct rt_sigframe`, arch/x86/include/asm/sigframe.h).

use super::super::tracee::Tracee;
use super::{RED_ZONE, Registers};
use std::{fs, io};

/// `syscall; ret`, of which C libraries have many.
pub(crate) const CALL_AND_RETURN: &[u8] = &[0x0f, 0x05, 0xc3];

/// Where in code such a place is.
pub(crate) fn find_call(code: &[u8]) -> Option<usize> {
    find(code, CALL_AND_RETURN)
}

/// Where in code [`SIGNAL_RETURN`] is.
pub(crate) fn find_signal_return(code: &[u8]) -> Option<usize> {
    find(code, SIGNAL_RETURN)
}

fn find(code: &[u8], wanted: &[u8]) -> Option<usize> {
    code.windows(wanted.len()).position(|bytes| bytes == wanted)
}

/// What handlers return to, in glibc as in musl: `mov $15, %rax; syscall`.
pub(crate) const SIGNAL_RETURN: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05];

/// Makes the system call that is set up, then ends the thread: `syscall; mov $60, %eax; xor %edi, %edi; syscall`.
pub(crate) const CALL_AND_EXIT: &[u8] = &[0x0f, 0x05, 0xb8, 0x3c, 0x00, 0x00, 0x00, 0x31, 0xff, 0x0f, 0x05];
/// Where in it the end begins.
pub(crate) const EXIT_AT: u64 = 2;

/// Code to which a borrowed thread returns from its calls.
pub(crate) const WAYS_BACK: [&[u8]; 1] = [SIGNAL_RETURN];

/// Where a thread returns to that stands at a system call of [`CALL_AND_RETURN`].
pub(crate) fn returns_to(registers: &Registers, word: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    word(registers.sp())
}

/// Whether returns of the thread are checked, so that none can be made up (CET).
pub(crate) fn has_shadow_stack(tracee: &Tracee) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", tracee.tid)).unwrap_or_default();
    status.lines().any(|line| line.starts_with("x86_Thread_features:") && line.contains("shstk"))
}

/// The register set with the vectors (NT_X86_XSTATE).
const VECTORS: u32 = 0x202;

/// A thread's vectors, in ptrace's form.
#[derive(Debug)]
pub(crate) struct Vectors(Option<Vec<u8>>);

impl Vectors {
    /// Those of a thread that stands. An error if it can't be borrowed with what is in them.
    pub(crate) fn of(tracee: &Tracee) -> io::Result<Self> {
        Ok(Self(tracee.register_set(VECTORS).ok()))
    }

    /// Gives back what system calls don't leave alone: nothing.
    pub(crate) fn give_back(&self, _tracee: &Tracee) -> io::Result<()> {
        Ok(())
    }
}

/// The frame has vectors in the long form, and a stack selector that is to be taken as it is (asm/ucontext.h).
const FLAGS: u64 = 0b111;
/// Flags of a stack for signals that there are none of: the kernel then leaves the thread's as it is.
const NO_STACK: u64 = 0x7;

/// Offsets in the vectors' area: what the kernel keeps for programs, and the states that are in it.
const KEPT_AT: usize = 464;
const STATES_AT: usize = 512;
const SHORTEST: usize = 576;
/// Bytes of all states but the matrices, which only threads have in their frames that asked for them.
const LONGEST: usize = 2696;
/// States that lie in these.
const STATES: u64 = (1 << 10) - 1;
/// The kernel knows its own form by these (FP_XSTATE_MAGIC1, FP_XSTATE_MAGIC2).
const MAGIC: [u32; 2] = [0x4650_5853, 0x4650_5845];

/// A frame, for the place that it is to lie at.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Its first word is where the handler returns to, so that a return with the stack pointer here goes there.
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
    signal_return: u64,
}

impl Frame {
    /// That of a thread with these registers, signals blocked and vectors, below its stack pointer. `signal_return`: where
    /// [`SIGNAL_RETURN`] is. `None` if the vectors are of a kind that isn't known.
    pub(crate) fn new(
        registers: &Registers,
        mask: u64,
        vectors: &Vectors,
        signal_return: u64,
    ) -> Option<Self> {
        let vectors = in_signals_form(vectors.0.clone()?)?;
        let end = registers.sp().checked_sub(RED_ZONE)?;
        let vectors_at = end.checked_sub(vectors.len() as u64)? & !63;
        let r = &registers.begun_anew().0;
        let selectors = r.cs & 0xffff | (r.ss & 0xffff) << 48;
        let head = [signal_return, FLAGS, 0, 0, NO_STACK, 0];
        let general = [
            r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax,
            r.rcx, r.rsp, r.rip, r.eflags,
        ];
        let rest = [selectors, 0, 0, 0, 0, vectors_at, 0, 0, 0, 0, 0, 0, 0, 0, mask];
        let words = head.into_iter().chain(general).chain(rest);
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let at = vectors_at.checked_sub(bytes.len() as u64)? & !15;
        bytes.resize((vectors_at - at) as usize, 0);
        bytes.extend(vectors);
        Some(Self { at, bytes, signal_return })
    }

    /// Has a thread return from its calls to where the frame is taken.
    pub(crate) fn set_way_back(&self, registers: &mut Registers) {
        registers.set_sp(self.at);
    }

    /// Has a thread stand there, as if it had returned.
    pub(crate) fn stand(&self, registers: &mut Registers) {
        registers.stand(self.signal_return, self.at + 8);
    }
}

/// What a thread has when it makes another one on the stack at the end of the page at `code`, where that finds the way to its end:
/// nothing else than at other calls.
pub(crate) fn set_way_of_both(_registers: &mut Registers, _code: u64) {}

/// Vectors as ptrace shows them, in the form of signals' frames.
fn in_signals_form(mut vectors: Vec<u8>) -> Option<Vec<u8>> {
    let word = |at: usize| vectors.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word));
    let (known, used) = (word(KEPT_AT)?, word(STATES_AT)?);
    if vectors.len() < SHORTEST || used & !STATES != 0 {
        return None;
    }
    vectors.truncate(LONGEST);
    let size = vectors.len() as u32;
    let mut kept = Vec::new();
    kept.extend(MAGIC[0].to_le_bytes());
    kept.extend((size + 4).to_le_bytes());
    kept.extend((known & STATES).to_le_bytes());
    kept.extend(size.to_le_bytes());
    kept.resize(STATES_AT - KEPT_AT, 0);
    vectors[KEPT_AT..STATES_AT].copy_from_slice(&kept);
    vectors.extend(MAGIC[1].to_le_bytes());
    Some(vectors)
}
