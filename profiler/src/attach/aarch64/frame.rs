//! A signal's frame of our own making: a thread that is let go in front of the system call at a handler's end becomes what the
//! frame says, its vectors and its mask too. The kernel does that by itself, whoever traces the thread or doesn't any more.
//!
//! The layout is the kernel's (`struct rt_sigframe`, arch/arm64/kernel/signal.c, and asm/sigcontext.h).

use super::super::tracee::Tracee;
use super::{Registers, SYSTEM_CALL};
use std::io;

/// `svc #0; ret`.
pub(crate) const CALL_AND_RETURN: &[u8] = &[0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6];
const RETURN: u32 = 0xd65f_03c0;
/// `mov x8, #0`, which has a number in the bits from 5 on.
const NUMBER: u32 = 0xd280_0008;
const NUMBER_BITS: u32 = 0xffff << 5;

/// Where in code a system call is made that is followed by a return: one that asks for something that the kernel knows, as
/// `getpid` does. In musl all that wait are made by one such instruction, but their number is not a constant there: a thread that
/// is stopped at it would be taken by the kernel for one that makes that call anew.
pub(crate) fn find_call(code: &[u8]) -> Option<usize> {
    let words: Vec<u32> = code.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let is_one =
        |words: &[u32]| words[0] & !NUMBER_BITS == NUMBER && (words[1], words[2]) == (SYSTEM_CALL, RETURN);
    words.windows(3).position(is_one).map(|index| 4 * index + 4)
}

/// Where in code [`SIGNAL_RETURN`] is.
pub(crate) fn find_signal_return(code: &[u8]) -> Option<usize> {
    let mut places = code.windows(SIGNAL_RETURN.len()).enumerate().step_by(4);
    places.find(|(_, bytes)| *bytes == SIGNAL_RETURN).map(|(at, _)| at)
}

/// What handlers return to, in the kernel's own object and in musl: `mov x8, #139; svc #0`.
pub(crate) const SIGNAL_RETURN: &[u8] = &[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

/// What a page for threads that we make begins with: the code by which such a thread makes the system call that is set up, and
/// then ends, and that to which a thread returns which makes one.
///
/// ```text
///     svc #0
/// end:
///     mov x8, #93
///     mov x0, #0
///     svc #0
/// both:
///     cbz x0, end
///     mov x8, #139
///     svc #0
/// ```
pub(crate) const CALL_AND_EXIT: &[u8] = &[
    0x01, 0x00, 0x00, 0xd4, 0xa8, 0x0b, 0x80, 0xd2, 0x00, 0x00, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4, 0xa0,
    0xff, 0xff, 0xb4, 0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4,
];
/// Where in it the end begins.
pub(crate) const EXIT_AT: u64 = 4;
/// Where the way of both begins.
const BOTH_AT: u64 = 16;

/// Code to which a borrowed thread returns from its calls.
pub(crate) const WAYS_BACK: [&[u8]; 2] = [SIGNAL_RETURN, CALL_AND_EXIT.split_at(BOTH_AT as usize).1];

/// What a thread has when it makes another one on the stack at the end of the page at `code`: both return from the call by the same
/// register, the one that was made to its end, and the other to where its frame is taken.
pub(crate) fn set_way_of_both(registers: &mut Registers, code: u64) {
    registers.set_link(code + BOTH_AT);
}

/// Where a thread returns to that stands at a system call of [`CALL_AND_RETURN`].
pub(crate) fn returns_to(registers: &Registers, _word: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    registers.link()
}

/// Sets of registers (elf.h): vectors of 128 bits, scalable ones, those of streaming mode, the stack of returns.
const VECTORS: u32 = 2;
const SCALABLE: u32 = 0x405;
const STREAMING: u32 = 0x40b;
const RETURNS: u32 = 0x410;

/// Whether returns of the thread are checked, so that none can be made up (GCS).
pub(crate) fn has_shadow_stack(tracee: &Tracee) -> bool {
    tracee.register_set(RETURNS).is_ok_and(|set| word(&set, 0) & 1 != 0)
}

/// In the head of a set of scalable registers (`struct user_sve_header`, asm/ptrace.h): the bytes of a vector, and flags, of which
/// this one says that more is in use than 128 bits of each.
const VECTOR_AT: usize = 8;
const FLAGS_AT: usize = 12;
const IN_USE: u64 = 1;
const HEAD: usize = 16;

/// Records of a signal's frame (asm/sigcontext.h): number and length of each.
const VECTORS_RECORD: u64 = 0x4650_8001;
const SCALABLE_RECORD: u64 = 0x5356_4501;
const MORE_RECORD: u64 = 0x4558_5401;
const VECTORS_LEN: usize = 528;
const MORE_LEN: usize = 32;
/// The first word of the record of vectors, by which frames are known.
pub(crate) const VECTORS_HEAD: u64 = VECTORS_RECORD | (VECTORS_LEN as u64) << 32;

/// Where in a frame is what; all in between is zero.
const STACK_FLAGS_AT: usize = 152;
const MASK_AT: usize = 168;
const REGISTERS_AT: usize = 312;
const RECORDS_AT: usize = 592;
/// How long it is at least: the kernel looks whether it may read so much.
const SHORTEST: usize = RECORDS_AT + 4096;
/// Flags of a stack for signals that there are none of: the kernel then leaves the thread's as it is.
const NO_STACK: u32 = 0x7;

/// A thread's vectors, in ptrace's form.
#[derive(Debug)]
pub(crate) struct Vectors {
    /// Of 128 bits.
    short: Option<Vec<u8>>,
    /// All of them, if more than that is in use. A system call clears that.
    scalable: Option<Vec<u8>>,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word))
}

fn flags(set: &[u8]) -> u64 {
    word(set, VECTOR_AT) >> (8 * (FLAGS_AT - VECTOR_AT)) & 0xffff
}

impl Vectors {
    /// Those of a thread that stands. An error if it can't be borrowed with what is in them: a system call ends streaming mode.
    pub(crate) fn of(tracee: &Tracee) -> io::Result<Self> {
        let in_use = |set: u32| tracee.register_set(set).ok().filter(|set| flags(set) & IN_USE != 0);
        if in_use(STREAMING).is_some() {
            return Err(io::Error::other("the thread is in streaming mode (SME), which a system call ends"));
        }
        Ok(Self { short: tracee.register_set(VECTORS).ok(), scalable: in_use(SCALABLE) })
    }

    /// Gives back what system calls don't leave alone.
    pub(crate) fn give_back(&self, tracee: &Tracee) -> io::Result<()> {
        let Some(mut bytes) = self.scalable.clone() else { return Ok(()) };
        super::set(tracee, libc::PTRACE_SETREGSET, SCALABLE as usize, bytes.as_mut_ptr(), bytes.len())
    }

    /// The records of a signal's frame.
    fn records(&self, at: u64) -> Option<Vec<u8>> {
        let short = self.short.as_ref()?;
        let (registers, state) = (short.get(..512)?, word(short, 512));
        let mut records = Vec::new();
        let head = |number: u64, len: usize| (number | (len as u64) << 32).to_le_bytes();
        records.extend(head(VECTORS_RECORD, VECTORS_LEN));
        records.extend(state.to_le_bytes());
        records.extend(registers);
        if let Some(set) = &self.scalable {
            let vector = (word(set, VECTOR_AT) & 0xffff) as usize;
            // 32 vectors, 16 predicates and the one of first faults.
            let content = set.get(HEAD..)?.get(..32 * vector + 17 * (vector / 8))?;
            let len = (HEAD + content.len()).next_multiple_of(16);
            // They may be longer than what lies in the frame itself.
            let more_at = at + (records.len() + MORE_LEN + HEAD) as u64;
            records.extend(head(MORE_RECORD, MORE_LEN));
            records.extend(more_at.to_le_bytes());
            records.extend(((len + HEAD) as u64).to_le_bytes());
            records.resize(records.len() + 8 + HEAD, 0);
            let end = records.len() + len;
            records.extend(head(SCALABLE_RECORD, len));
            records.extend((vector as u64).to_le_bytes());
            records.extend(content);
            records.resize(end, 0);
        }
        // The last one is empty.
        records.resize(records.len() + HEAD, 0);
        Some(records)
    }
}

/// A frame, for the place that it is to lie at.
#[derive(Debug)]
pub(crate) struct Frame {
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
        let len = SHORTEST.max(RECORDS_AT + vectors.records(0)?.len());
        let at = registers.sp().checked_sub(len as u64)? & !15;
        let mut bytes = vec![0; len];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(STACK_FLAGS_AT, &NO_STACK.to_le_bytes());
        put(MASK_AT, &mask.to_le_bytes());
        let r = &registers.general;
        let words = r.x.into_iter().chain([r.sp, r.pc, r.state]);
        put(REGISTERS_AT, &words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>());
        put(RECORDS_AT, &vectors.records(at + RECORDS_AT as u64)?);
        Some(Self { at, bytes, signal_return })
    }

    /// Has a thread return from its calls to where the frame is taken.
    pub(crate) fn set_way_back(&self, registers: &mut Registers) {
        registers.set_sp(self.at);
        registers.set_link(self.signal_return);
    }

    /// Has a thread stand there, as if it had returned.
    pub(crate) fn stand(&self, registers: &mut Registers) {
        registers.stand(self.signal_return, self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(scalable: Option<Vec<u8>>) -> Vectors {
        let mut short = vec![3u8; 512];
        short.extend([1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        Vectors { short: Some(short), scalable }
    }

    #[test]
    fn a_call_is_one_that_the_kernel_takes_a_constant_for() {
        // musl's for all that wait, and getpid: mov x8, x1; svc; ret; mov x8, #172; svc; ret.
        let words = [0xaa01_03e8_u32, SYSTEM_CALL, RETURN, 0xd280_1588, SYSTEM_CALL, RETURN];
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(find_call(&code), Some(16));
        assert_eq!(find_call(&code[..16]), None);
        assert!(code[16..].starts_with(CALL_AND_RETURN));
        assert_eq!(find_signal_return(CALL_AND_EXIT), Some(20));
    }

    #[test]
    fn vectors_are_in_a_frame_as_the_kernel_reads_them() {
        let plain = vectors(None).records(0x1000).unwrap();
        assert_eq!((word(&plain, 0), word(&plain, 8), plain.len()), (VECTORS_HEAD, 1 | 2 << 32, 528 + 16));
        let mut set = vec![0u8; 16];
        set[VECTOR_AT] = 32;
        set.extend((0..32 * 32 + 17 * 4).map(|byte| byte as u8));
        set.extend([9; 40]);
        let records = vectors(Some(set)).records(0x1000).unwrap();
        let more = &records[528..];
        let len = (16 + 32 * 32 + 17 * 4_usize).next_multiple_of(16);
        assert_eq!(word(more, 0), MORE_RECORD | 32 << 32);
        // What it leads to follows the empty record that closes the list.
        assert_eq!((word(more, 8), word(more, 16)), (0x1000 + 528 + 48, len as u64 + 16));
        assert_eq!(word(more, 48), SCALABLE_RECORD | (len as u64) << 32);
        assert_eq!((more[48 + 8], more[48 + 16 + 5]), (32, 5));
        assert_eq!(records.len(), 528 + 48 + len + 16);
    }
}
