//! What attaching has to know of AArch64: registers, system calls, and what a signal leaves on a stack.
//!
//! A thread that is stopped in a system call has been seen to by the kernel already (`do_signal`, arch/arm64/kernel/signal.c): what
//! is begun anew stands in front of its instruction again, with its first argument. What ends with EINTR has that in the register
//! in which the argument was. So what a thread waits for is read before it is told to stop.
//!
//! # Safety
//! Requests of ptrace get live structures, of whose length the kernel is told.

pub(crate) mod frame;
#[cfg(all(test, target_arch = "aarch64"))]
pub(crate) mod turns;

use super::tracee::Tracee;
use crate::leaks::under_way::NONE;
pub(crate) use crate::leaks::under_way::UnderWay;
use object::elf;
use std::io;

/// Bytes of `svc`.
pub(crate) const SYSTEM_CALL_LEN: u64 = 4;
/// `svc #0`.
const SYSTEM_CALL: u32 = 0xd400_0001;

/// The machine's number in ELF headers (EM_AARCH64).
pub(crate) const MACHINE: u16 = 183;

/// Bytes below the stack pointer that belong to the function that runs: none (AAPCS64, 6.4.5.1).
pub(crate) const RED_ZONE: u64 = 0;

/// Where the addresses end that the kernel gives to those who ask for no higher ones.
pub(crate) const ADDRESSES_END: u64 = 1 << 48;

/// Relocations of the agent's image: a value that moves with it, and the address of a symbol.
pub(crate) const RELATIVE: elf::RelocationType = elf::R_AARCH64_RELATIVE;
pub(crate) const OF_SYMBOLS: [elf::RelocationType; 2] = [elf::R_AARCH64_GLOB_DAT, elf::R_AARCH64_JUMP_SLOT];
/// That of the offset of a variable of each thread's own from the thread pointer.
pub(crate) const THREAD_OFFSET: u32 = elf::R_AARCH64_TLS_TPREL.0;

/// Sets of registers (elf.h): the general ones, the thread pointer, the number of the system call.
const GENERAL: usize = 1;
const THREAD: usize = 0x401;
const CALL: usize = 0x404;

/// Bits of the processor's state: the conditions and modes that a program may set and that outlive a jump (asm/ptrace.h). Not among
/// them: that a landing pad must come next.
const KEPT_STATE: u64 = !(0b11 << 10 | 1 << 21);

/// `struct user_pt_regs`, asm/ptrace.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct General {
    x: [u64; 31],
    sp: u64,
    pc: u64,
    state: u64,
}

/// A thread's registers, as the kernel shows them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Registers {
    general: General,
    thread: u64,
    /// The system call that the kernel is to take for under way, or [`NONE`]; zero of nobody.
    call: i32,
    /// What it was waiting in.
    under_way: UnderWay,
}

/// What a system call gives that the kernel is to begin anew (include/linux/errno.h): ERESTARTSYS, unless a handler runs that wants
/// it told; ERESTARTNOHAND, unless any handler runs; ERESTART_RESTARTBLOCK, which the kernel remembers itself.
const BEGIN_ANEW: i64 = -512;
const BEGIN_ANEW_WITHOUT_HANDLER: i64 = -514;
const GO_ON_WITH: i64 = -516;

/// System calls that any handler ends.
const ENDED_BY_HANDLERS: [i64; 3] = [libc::SYS_rt_sigsuspend, libc::SYS_ppoll, libc::SYS_pselect6];
/// Those of which the kernel remembers until when they wait. So it does of a futex with a time limit.
const REMEMBERED: [i64; 3] = [libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_restart_syscall];

/// System calls that end with EINTR when their thread is stopped and goes on, although no handler ran: the kernel begins
/// them anew for nobody. Some do so only where a socket has a time limit (SO_RCVTIMEO, SO_SNDTIMEO: signal(7)).
const NOT_BEGUN_ANEW: [i64; 21] = [
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

/// Not in the crate of the system's numbers.
const IO_PGETEVENTS: i64 = 292;

/// Reads or writes a set of registers.
fn set(tracee: &Tracee, request: libc::c_uint, set: usize, start: *mut u8, len: usize) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: start.cast(), iov_len: len };
    tracee.request(request, set, (&raw mut part).addr()).map(drop)
}

impl Registers {
    /// Those of a thread that stands. `under_way`: what it waited in before.
    pub(crate) fn of(tracee: &Tracee, under_way: UnderWay) -> io::Result<Self> {
        let mut registers = Self { call: NONE, under_way, ..Self::default() };
        let get = libc::PTRACE_GETREGSET;
        let general = &raw mut registers.general;
        set(tracee, get, GENERAL, general.cast(), size_of::<General>())?;
        set(tracee, get, THREAD, (&raw mut registers.thread).cast(), 8)?;
        Ok(registers)
    }

    /// Gives them to a thread that stands.
    pub(crate) fn give(&self, tracee: &Tracee) -> io::Result<()> {
        let Self { mut general, mut thread, mut call, .. } = *self;
        let give = libc::PTRACE_SETREGSET;
        set(tracee, give, GENERAL, (&raw mut general).cast(), size_of::<General>())?;
        set(tracee, give, THREAD, (&raw mut thread).cast(), 8)?;
        set(tracee, give, CALL, (&raw mut call).cast(), 4)
    }

    /// Whether the thread runs code of the machine's own kind. All threads of a 64-bit process do.
    pub(crate) fn is_native(&self) -> bool {
        true
    }

    pub(crate) fn pc(&self) -> u64 {
        self.general.pc
    }

    pub(crate) fn set_pc(&mut self, pc: u64) {
        self.general.pc = pc;
        self.general.state &= KEPT_STATE;
    }

    pub(crate) fn sp(&self) -> u64 {
        self.general.sp
    }

    pub(crate) fn set_sp(&mut self, sp: u64) {
        self.general.sp = sp;
    }

    /// Where what is on the stack begins.
    pub(crate) fn stack_start(&self) -> u64 {
        self.general.sp - RED_ZONE
    }

    pub(crate) fn thread_pointer(&self) -> u64 {
        self.thread
    }

    pub(crate) fn set_thread_pointer(&mut self, pointer: u64) {
        self.thread = pointer;
    }

    /// What may hold an address.
    pub(crate) fn values(&self) -> [u64; 31] {
        self.general.x
    }

    /// Makes a system call by the instruction at `at`.
    pub(crate) fn call_system(&mut self, at: u64, number: i64, arguments: [u64; 6]) {
        self.set_pc(at);
        self.general.x[..6].copy_from_slice(&arguments);
        self.general.x[8] = number.cast_unsigned();
        self.call = NONE;
    }

    /// What the system call gave.
    pub(crate) fn result(&self) -> i64 {
        self.general.x[0].cast_signed()
    }

    /// Where the function that runs may return to, besides what its stack says.
    pub(crate) fn link(&self) -> Option<u64> {
        Some(self.general.x[30])
    }

    fn set_link(&mut self, link: u64) {
        self.general.x[30] = link;
    }

    /// Calls the function at `at` on a stack that ends at `stack`, whose return is nobody's.
    pub(crate) fn call(&mut self, at: u64, stack: u64, arguments: [u64; 6]) {
        self.general.x = [0; 31];
        self.general.x[..6].copy_from_slice(&arguments);
        (self.general.pc, self.general.sp, self.general.state) = (at, stack & !15, 0);
        self.call = NONE;
    }

    /// Whether it stands in front of the system call that it was waiting in: the kernel begins that anew.
    fn is_rewound(&self) -> bool {
        let Self { general: r, under_way, .. } = self;
        under_way.number != NONE
            && r.pc.wrapping_add(SYSTEM_CALL_LEN) == under_way.pc
            && (r.sp, r.x[8] as i32) == (under_way.sp, under_way.number)
    }

    /// Whether the system call under way was interrupted, and would tell the program so although no signal's handler ran.
    pub(crate) fn is_cut_short(&self) -> bool {
        let Self { general: r, under_way, .. } = self;
        self.result() == -i64::from(libc::EINTR)
            && NOT_BEGUN_ANEW.contains(&i64::from(under_way.number))
            && (r.pc, r.sp, r.x[8] as i32) == (under_way.pc, under_way.sp, under_way.number)
    }

    /// Whether the thread was waiting in the kernel.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_rewound() || self.is_cut_short()
    }

    /// Whether what it waits for may be a lock.
    pub(crate) fn is_waiting_for_a_lock(&self) -> bool {
        self.is_waiting() && i64::from(self.under_way.number) == libc::SYS_futex
    }

    /// Begins the system call that was cut short anew.
    pub(crate) fn begin_anew(&mut self) {
        self.general.x[0] = self.under_way.first;
        self.general.pc -= SYSTEM_CALL_LEN;
        self.under_way = UnderWay::NOTHING;
    }

    /// Whether the system call under way was begun anew before, so that only the kernel knows which it is: in a frame it would
    /// end with EINTR.
    pub(crate) fn is_resumed(&self) -> bool {
        self.is_rewound() && i64::from(self.under_way.number) == libc::SYS_restart_syscall
    }

    /// Registers that become these when the kernel looks for signals the next time, with the first argument of the call after
    /// which that has to come. Nothing for a thread that isn't about to make a system call: of one that is nobody can tell that it
    /// didn't make it already, as far as it hasn't been remembered.
    pub(crate) fn before_signals(&self, word: impl Fn(u64) -> Option<u64>) -> Option<(u64, Self)> {
        let r = &self.general;
        let is_known = self.is_rewound();
        let instruction = || Some((word(r.pc & !7)? >> (8 * (r.pc & 7))) as u32);
        if !is_known && instruction()? != SYSTEM_CALL {
            return None;
        }
        let number = r.x[8] as i32;
        let call = i64::from(number);
        // FUTEX_WAIT and FUTEX_WAIT_BITSET.
        let waits = call == libc::SYS_futex && [0, 9].contains(&(r.x[1] & 0x7f)) && r.x[3] != 0;
        let gave = match () {
            () if is_known && (waits || REMEMBERED.contains(&call)) => GO_ON_WITH,
            () if !is_known || ENDED_BY_HANDLERS.contains(&call) => BEGIN_ANEW_WITHOUT_HANDLER,
            () => BEGIN_ANEW,
        };
        let mut before = *self;
        before.general.x[0] = gave.cast_unsigned();
        before.general.pc += SYSTEM_CALL_LEN;
        before.call = number;
        Some((r.x[0], before))
    }

    /// Has the thread stand at `at`, with its stack pointer at `sp`.
    pub(crate) fn stand(&mut self, at: u64, sp: u64) {
        self.set_pc(at);
        self.general.sp = sp;
        self.call = NONE;
    }
}

/// Words of a signal's frame (`struct sigcontext`, asm/sigcontext.h), from the head of the first record in it, which is that of the
/// vectors: stack pointer, program counter and state lie before it, and one word that fills up.
const PC_BEFORE: usize = 3;
const SP_BEFORE: usize = 4;

/// How many words of a signal's frame stand before the one that it is known by.
pub(crate) const FRAME_WORDS: usize = SP_BEFORE;

/// What a signal's frame says of the code that it interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted {
    /// Where in the words the program counter stands.
    pub(crate) index: usize,
    pub(crate) pc: u64,
    pub(crate) sp: u64,
}

/// Nothing before a mark tells it from other words.
pub(crate) const LONGEST_CALL: usize = 0;

/// Whether a word that leads into the agent's stubs may be what a call there left: it is a mark of its own, not an address that is come
/// back to.
pub(crate) fn is_left_by_stub(_before: &[u8; LONGEST_CALL]) -> bool {
    true
}

/// Signals' frames among the words of a stack. A few may only look like one.
pub(crate) fn interrupted(words: &[u64]) -> impl Iterator<Item = Interrupted> {
    let is_head = |&(index, &word): &(usize, &u64)| index >= SP_BEFORE && word == frame::VECTORS_HEAD;
    words.iter().enumerate().filter(is_head).map(|(index, _)| Interrupted {
        index: index - PC_BEFORE,
        pc: words[index - PC_BEFORE],
        sp: words[index - SP_BEFORE],
    })
}

/// An address as a word holds it, which may be signed, or have a tag, in the bits that addresses don't use.
pub(crate) fn address(word: u64) -> u64 {
    word & (ADDRESSES_END - 1)
}

/// How long descriptions of threads are, which end at the thread pointer, and where in them the id is: in glibc behind the links of
/// a list of all threads, in musl behind a pointer to the description itself, two links and a word.
const OF_GLIBC: std::ops::RangeInclusive<u64> = 1280..=3072;
const ID_OF_GLIBC: u64 = 208;
const LINKS_OF_GLIBC: u64 = ID_OF_GLIBC - 16;
const OF_MUSL: std::ops::RangeInclusive<u64> = 128..=512;
const ID_OF_MUSL: u64 = 32;

/// How far from the thread pointer the thread with this id has it: before it, at another place in each version of a C library.
pub(crate) fn thread_at(pointer: u64, id: u32, word: impl Fn(u64) -> Option<u64>) -> Option<u32> {
    let is_id = |at: u64| word(at & !7).is_some_and(|word| word as u32 == id);
    let is_link = |at: u64| word(at).is_some_and(|link| link != 0 && link.is_multiple_of(8));
    let is_musl = |size: &u64| {
        pointer.checked_sub(*size).is_some_and(|own| word(own) == Some(own) && is_id(own + ID_OF_MUSL))
    };
    let is_glibc = |size: &u64| {
        let links = |own: u64| is_link(own + LINKS_OF_GLIBC) && is_link(own + LINKS_OF_GLIBC + 8);
        pointer.checked_sub(*size).is_some_and(|own| is_id(own + ID_OF_GLIBC) && links(own))
    };
    let musl = OF_MUSL.step_by(8).find(is_musl).map(|size| size - ID_OF_MUSL);
    let distance = musl.or_else(|| OF_GLIBC.step_by(16).find(is_glibc).map(|size| size - ID_OF_GLIBC))?;
    u32::try_from(distance).ok()
}

/// Where the id is that is so far from a thread pointer.
pub(crate) fn id_at(pointer: u64, thread_at: u32) -> u64 {
    pointer.wrapping_sub(u64::from(thread_at))
}

/// Where in the block of a thread that we make its thread pointer points to: near its end, the id lies before it.
pub(crate) const POINTER_AT: u64 = super::image::PAGE - 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(number: i64) -> Registers {
        let mut registers = Registers { call: NONE, ..Registers::default() };
        let under_way = format!("{number} 0x7 0x1 0x2 0x3 0x4 0x5 0x7ff0 0x1004");
        registers.under_way = UnderWay::parsed(&under_way).unwrap();
        (registers.general.sp, registers.general.x[8]) = (0x7ff0, number as u64);
        registers
    }

    #[test]
    fn a_frame_is_found_by_the_head_of_its_vectors() {
        let mut words = [7u64; 40];
        assert_eq!(interrupted(&words).count(), 0);
        words[3] = frame::VECTORS_HEAD;
        (words[20], words[21], words[24]) = (0x7ffe_0000, 0x40_1000, frame::VECTORS_HEAD);
        let found: Vec<_> = interrupted(&words).collect();
        assert_eq!(found, [Interrupted { index: 21, pc: 0x40_1000, sp: 0x7ffe_0000 }]);
    }

    #[test]
    fn a_call_that_was_cut_short_is_begun_anew_at_its_instruction() {
        let mut registers = waiting(libc::SYS_epoll_pwait);
        (registers.general.x[0], registers.general.pc) = ((-i64::from(libc::EINTR)) as u64, 0x1004);
        assert!(registers.is_cut_short() && registers.is_waiting());
        // Elsewhere it is another call, that a handler has interrupted.
        assert!(
            !Registers { general: General { pc: 0x2004, ..registers.general }, ..registers }.is_cut_short()
        );
        registers.begin_anew();
        assert_eq!((registers.pc(), registers.result()), (0x1000, 7));
        assert!(!registers.is_waiting());
    }

    #[test]
    fn the_kernel_is_given_what_it_made_these_registers_of() {
        let before = |number: i64, pc: u64| {
            let mut registers = waiting(number);
            (registers.general.x[0], registers.general.pc) = (7, pc);
            let (first, before) = registers.before_signals(|_| Some(u64::from(SYSTEM_CALL) << 32))?;
            assert_eq!((first, i64::from(before.call)), (7, number));
            assert_eq!(before.pc(), pc + 4);
            Some(before.result())
        };
        assert_eq!(before(libc::SYS_ppoll, 0x1000), Some(BEGIN_ANEW_WITHOUT_HANDLER));
        assert_eq!(before(libc::SYS_nanosleep, 0x1000), Some(GO_ON_WITH));
        assert_eq!(before(libc::SYS_wait4, 0x1000), Some(BEGIN_ANEW));
        // It may not have been made yet.
        assert_eq!(before(libc::SYS_nanosleep, 0x2004), Some(BEGIN_ANEW_WITHOUT_HANDLER));
        assert_eq!(before(libc::SYS_nanosleep, 0x2000), None);
    }

    #[test]
    fn the_id_of_a_thread_is_found_before_its_pointer() {
        let mut words = vec![0u64; 1024];
        let read = |words: &[u64], at: u64| words.get((at / 8) as usize).copied();
        let pointer = 8 * 1000;
        let id = (pointer - 1776 + ID_OF_GLIBC) as usize / 8;
        words[id] = 7 << 32 | 1234;
        assert_eq!(thread_at(pointer, 1234, |at| read(&words, at)), None);
        (words[id - 1], words[id - 2]) = (0x7000, 0x8000);
        assert_eq!(thread_at(pointer, 1234, |at| read(&words, at)), Some(1776 - 208));
        let own = pointer - 200;
        (words[own as usize / 8], words[own as usize / 8 + 4]) = (own, 99);
        assert_eq!(thread_at(pointer, 99, |at| read(&words, at)), Some(168));
        assert_eq!(id_at(pointer, 168), own + 32);
    }
}
