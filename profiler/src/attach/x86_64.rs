//! What attaching has to know of x86-64: registers, system calls, and what a signal leaves on a stack.
//!
//! # Safety
//! `user_regs_struct` is integers: zeroes are a value.

pub(crate) mod frame;
#[cfg(test)]
pub(crate) mod turns;

use super::tracee::Tracee;
use object::elf;
use std::io;

/// Bytes of `syscall`.
pub(crate) const SYSTEM_CALL_LEN: u64 = 2;

/// The machine's number in ELF headers (EM_X86_64).
pub(crate) const MACHINE: u16 = 62;

/// Bytes below the stack pointer that belong to the function that runs.
pub(crate) const RED_ZONE: u64 = 128;

/// Where the addresses end that the kernel gives to those who ask for no higher ones.
pub(crate) const ADDRESSES_END: u64 = 1 << 47;

/// Relocations of the agent's image: a value that moves with it, and the address of a symbol.
pub(crate) const RELATIVE: elf::RelocationType = elf::R_X86_64_RELATIVE;
pub(crate) const OF_SYMBOLS: [elf::RelocationType; 2] = [elf::R_X86_64_GLOB_DAT, elf::R_X86_64_JUMP_SLOT];
/// That of the offset of a variable of each thread's own from the thread pointer.
pub(crate) const THREAD_OFFSET: u32 = elf::R_X86_64_TPOFF64.0;

/// The selector of 64-bit code (__USER_CS, arch/x86/include/asm/segment.h).
const USER_CODE: u64 = 0x33;

/// A thread's registers, as the kernel shows them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers(libc::user_regs_struct);

impl Default for Registers {
    fn default() -> Self {
        // SAFETY: see the module's header.
        Self(unsafe { std::mem::zeroed() })
    }
}

/// Not in the crate of the system's numbers.
const IO_PGETEVENTS: i64 = 333;

/// What a system call gives that the kernel is to begin anew, before it has (ERESTARTSYS to ERESTARTNOHAND, and
/// ERESTART_RESTARTBLOCK, include/linux/errno.h).
const TO_BEGIN_ANEW: [i64; 4] = [-512, -513, -514, -516];

/// System calls that end with EINTR when their thread is stopped and goes on, although no handler ran: the kernel begins
/// them anew for nobody. Some do so only where a socket has a time limit (SO_RCVTIMEO, SO_SNDTIMEO: signal(7)).
const NOT_BEGUN_ANEW: [i64; 22] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_io_getevents,
    IO_PGETEVENTS,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_connect,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_io_uring_enter,
];

/// What the kernel says of a thread's system call while that waits: nothing that registers don't say later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnderWay;

impl UnderWay {
    /// That of a thread of which nothing is known.
    pub(crate) const NOTHING: Self = Self;

    pub(crate) fn of(_tid: i32) -> Self {
        Self
    }
}

impl Registers {
    /// Those of a thread that stands.
    pub(crate) fn of(tracee: &Tracee, _under_way: UnderWay) -> io::Result<Self> {
        let mut registers = Self::default();
        tracee.request(libc::PTRACE_GETREGS, 0, (&raw mut registers.0).addr())?;
        Ok(registers)
    }

    /// Gives them to a thread that stands.
    pub(crate) fn give(&self, tracee: &Tracee) -> io::Result<()> {
        tracee.request(libc::PTRACE_SETREGS, 0, (&raw const self.0).addr()).map(drop)
    }

    /// Whether the thread runs code of the machine's own kind. A 64-bit process may run 32-bit code too, as Wine's do: what is
    /// done with a thread there would be done by other rules.
    pub(crate) fn is_native(&self) -> bool {
        self.0.cs == USER_CODE
    }

    pub(crate) fn pc(&self) -> u64 {
        self.0.rip
    }

    pub(crate) fn set_pc(&mut self, pc: u64) {
        self.0.rip = pc;
    }

    pub(crate) fn sp(&self) -> u64 {
        self.0.rsp
    }

    /// Where what is on the stack begins.
    pub(crate) fn stack_start(&self) -> u64 {
        self.0.rsp.wrapping_sub(RED_ZONE)
    }

    pub(crate) fn thread_pointer(&self) -> u64 {
        self.0.fs_base
    }

    pub(crate) fn set_thread_pointer(&mut self, pointer: u64) {
        self.0.fs_base = pointer;
    }

    /// What may hold an address.
    pub(crate) fn values(&self) -> [u64; 15] {
        let r = &self.0;
        [
            r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14,
            r.r15,
        ]
    }

    /// Makes a system call by the instruction at `at`.
    pub(crate) fn call_system(&mut self, at: u64, number: i64, arguments: [u64; 6]) {
        let r = &mut self.0;
        r.rip = at;
        r.rax = number as u64;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = arguments;
        // No system call that was interrupted is to be begun anew now.
        r.orig_rax = u64::MAX;
    }

    /// What the system call gave.
    pub(crate) fn result(&self) -> i64 {
        self.0.rax as i64
    }

    /// Where the function that runs may return to, besides what its stack says.
    pub(crate) fn link(&self) -> Option<u64> {
        None
    }

    /// Calls the function at `at` on a stack that ends at `stack`, whose return is nobody's.
    pub(crate) fn call(&mut self, at: u64, stack: u64, arguments: [u64; 6]) {
        let r = &mut self.0;
        r.rip = at;
        // As after a call: the return address would lie at a multiple of 16, less 8.
        r.rsp = (stack & !15) - 8;
        [r.rdi, r.rsi, r.rdx, r.rcx, r.r8, r.r9] = arguments;
        r.rbp = 0;
        r.eflags = 0x202;
        r.orig_rax = u64::MAX;
    }

    /// Whether the system call under way was interrupted, and would tell the program so although no signal's handler ran.
    pub(crate) fn is_cut_short(&self) -> bool {
        let number = self.0.orig_rax as i64;
        self.result() == -i64::from(libc::EINTR) && NOT_BEGUN_ANEW.contains(&number)
    }

    /// Whether the thread was waiting in the kernel.
    pub(crate) fn is_waiting(&self) -> bool {
        let is_begun_anew = self.0.orig_rax.cast_signed() >= 0 && TO_BEGIN_ANEW.contains(&self.result());
        is_begun_anew || self.is_cut_short()
    }

    /// Whether what it waits for may be a lock.
    pub(crate) fn is_waiting_for_a_lock(&self) -> bool {
        self.is_waiting() && self.0.orig_rax.cast_signed() == libc::SYS_futex
    }

    /// Begins the system call under way anew.
    pub(crate) fn begin_anew(&mut self) {
        self.0.rax = self.0.orig_rax;
        self.0.rip -= SYSTEM_CALL_LEN;
        self.0.orig_rax = u64::MAX;
    }

    /// The same for a thread that nothing more will be seen to by the kernel: where that would begin the system call anew, it
    /// is.
    fn begun_anew(mut self) -> Self {
        if self.0.orig_rax.cast_signed() >= 0 && TO_BEGIN_ANEW.contains(&self.result()) {
            self.begin_anew();
        }
        self
    }

    /// Whether the system call under way was begun anew before, so that only the kernel knows which it is: in a frame it would
    /// end with EINTR.
    pub(crate) fn is_resumed(&self) -> bool {
        self.0.orig_rax.cast_signed() == libc::SYS_restart_syscall && TO_BEGIN_ANEW.contains(&self.result())
    }

    /// Registers that become these when the kernel looks for signals the next time, with the first argument of the call after
    /// which that has to come. Nothing: it makes of an interrupted call what is to be made of it when it has looked.
    pub(crate) fn before_signals(&self, _word: impl Fn(u64) -> Option<u64>) -> Option<(u64, Self)> {
        None
    }

    /// Has the thread stand at `at`, with its stack pointer at `sp`.
    pub(crate) fn stand(&mut self, at: u64, sp: u64) {
        self.0.rip = at;
        self.0.rsp = sp;
        self.0.orig_rax = u64::MAX;
    }

    pub(crate) fn set_sp(&mut self, sp: u64) {
        self.0.rsp = sp;
    }
}

/// Words of a signal's frame, from the one that holds the selectors (arch/x86/include/uapi/asm/sigcontext.h): flags,
/// program counter, stack pointer lie before it.
const PC_BEFORE: usize = 2;
const SP_BEFORE: usize = 3;

/// How many words of a signal's frame stand before the one that it is known by.
pub(crate) const FRAME_WORDS: usize = SP_BEFORE;

/// Whether a word is the selectors of a thread that runs 64-bit code: CS, GS, FS, and SS, which old kernels leave 0.
fn are_selectors(word: u64) -> bool {
    word == 0x002b_0000_0000_0033 || word == 0x33
}

/// What a signal's frame says of the code that it interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted {
    /// Where in the words the program counter stands.
    pub(crate) index: usize,
    pub(crate) pc: u64,
    pub(crate) sp: u64,
}

/// Bytes of the longest call.
pub(crate) const LONGEST_CALL: usize = 7;

/// Whether a word that leads into the agent's stubs may be what a call there left, by the bytes before where it leads: others may
/// be of something that lay in that place before, as a block whose mapping the program has given back.
pub(crate) fn is_left_by_stub(before: &[u8; LONGEST_CALL]) -> bool {
    const DIRECT: u8 = 0xe8;
    const DIRECT_LEN: usize = 5;
    // By a register or by memory: 0xff, and 2 in the middle of the next byte.
    let is_indirect = |bytes: &[u8]| bytes[0] == 0xff && bytes[1] >> 3 & 7 == 2;
    before[LONGEST_CALL - DIRECT_LEN] == DIRECT || before.windows(2).any(is_indirect)
}

/// Signals' frames among the words of a stack. A few may only look like one.
pub(crate) fn interrupted(words: &[u64]) -> impl Iterator<Item = Interrupted> {
    let frames = words.iter().enumerate().filter(|&(index, &word)| index >= SP_BEFORE && are_selectors(word));
    frames.map(|(index, _)| Interrupted {
        index: index - PC_BEFORE,
        pc: words[index - PC_BEFORE],
        sp: words[index - SP_BEFORE],
    })
}

/// An address as a word holds it.
pub(crate) fn address(word: u64) -> u64 {
    word
}

/// Offsets from the thread pointer at which C libraries keep a thread's id: glibc's `struct pthread` since 2.10, musl's, that of
/// musl before 1.2.
const THREAD_IDS: [u32; 3] = [0x2d0, 0x30, 0x38];

/// How far from the thread pointer the thread with this id has it.
pub(crate) fn thread_at(pointer: u64, id: u32, word: impl Fn(u64) -> Option<u64>) -> Option<u32> {
    let holds = |at: &u32| word(id_at(pointer, *at)).is_some_and(|word| word as u32 == id);
    (pointer != 0 && word(pointer)? == pointer).then(|| THREAD_IDS.into_iter().find(holds))?
}

/// Where the id is that is so far from a thread pointer.
pub(crate) fn id_at(pointer: u64, thread_at: u32) -> u64 {
    pointer.wrapping_add(u64::from(thread_at))
}

/// Where in the block of a thread that we make its thread pointer points to.
pub(crate) const POINTER_AT: u64 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_found_by_its_selectors() {
        let mut words = [7u64; 40];
        assert_eq!(interrupted(&words).count(), 0);
        words[1] = 0x33;
        (words[20], words[21], words[23]) = (0x7ffe_0000, 0x40_1000, 0x002b_0000_0000_0033);
        let found: Vec<_> = interrupted(&words).collect();
        assert_eq!(found, [Interrupted { index: 21, pc: 0x40_1000, sp: 0x7ffe_0000 }]);
    }

    #[test]
    fn a_stub_is_come_back_to_behind_a_call() {
        let calls: [&[u8]; 5] = [
            &[0xe8, 1, 2, 3, 4],
            &[0xff, 0xd0],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0xff, 0x94, 0x24, 0x88, 0, 0, 0],
            &[0xff, 0x54, 0x24, 0x20],
        ];
        let before = |code: &[u8]| {
            let mut bytes = [0x90; LONGEST_CALL];
            bytes[LONGEST_CALL - code.len()..].copy_from_slice(code);
            is_left_by_stub(&bytes)
        };
        assert!(calls.iter().all(|call| before(call)));
        // endbr64; a jump; one by memory; a call that ends before or behind.
        let others: [&[u8]; 5] = [
            &[0xf3, 0x0f, 0x1e, 0xfa],
            &[0xe9, 1, 2, 3, 4],
            &[0xff, 0x25, 1, 2, 3, 4],
            &[0xe8, 1, 2, 3, 4, 0x90],
            &[0xe8, 1, 2, 3],
        ];
        assert!(!others.iter().any(|code| before(code)));
    }

    #[test]
    fn a_call_that_was_cut_short_is_begun_anew_at_its_instruction() {
        let mut registers = Registers::default();
        registers.0.orig_rax = libc::SYS_epoll_wait as u64;
        registers.0.rax = (-i64::from(libc::EINTR)) as u64;
        registers.0.rip = 0x1002;
        assert!(registers.is_cut_short());
        registers.begin_anew();
        assert_eq!((registers.pc(), registers.result()), (0x1000, libc::SYS_epoll_wait));
        registers.0.orig_rax = libc::SYS_pause as u64;
        registers.0.rax = (-i64::from(libc::EINTR)) as u64;
        assert!(!registers.is_cut_short());
    }
}
