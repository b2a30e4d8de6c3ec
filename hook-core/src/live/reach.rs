//! Which code threads may still come to: by their registers, and by what is on their stacks.
//!
//! Code that nothing leads to any more is reached by who is in it, or by who returns to it. Each thread is asked by a
//! signal, and looks at its own registers and through its own stack for words that are addresses in the code, and at the
//! return addresses that listeners have taken from stacks. So each
//! answer is about one moment of one thread; and it holds from then on, because a thread that is outside doesn't come
//! back. No thread waits for another, and a thread that begins meanwhile begins outside.
//!
//! A word that only looks like such an address counts as one. A thread that doesn't answer, or that is on a stack whose
//! end isn't known (that of a coroutine, or one for signals), may reach everything.
//!
//! # Safety
//! The handler reads the stack that it runs on, from what the interrupted code uses upwards to where the thread's own stack ends:
//! at its control block, or at the end of the main thread's. It uses no lock and allocates nothing. What it is asked is
//! good while [`BUSY`] says that some handler may look at it.

use alloc::{boxed::Box, vec::Vec};
use core::{
    ffi::c_void,
    ops::Range,
    ptr,
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicUsize, Ordering::*},
};

use super::PatchingRight;
use crate::{
    Liveness, Refusal, listen,
    memory::maps::{Kind, Maps},
    native,
    sys::{self, Errno, SigAction},
};

/// Why it isn't known what threads may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doubt {
    /// The thread with this id didn't answer in time: it has the signal blocked, or is stopped.
    NoAnswer(i32),
    /// The thread with this id was not on its own stack, but on that of a coroutine or of a signal handler.
    OtherStack(i32),
    /// Threads can't be asked.
    NotAsked(Refusal),
}

impl core::fmt::Display for Doubt {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoAnswer(thread) => write!(f, "thread {thread} did not answer"),
            Self::OtherStack(thread) => write!(f, "thread {thread} was not on its own stack"),
            Self::NotAsked(refusal) => write!(f, "threads can't be asked: {refusal}"),
        }
    }
}

/// Memory that threads may or may not reach.
#[derive(Debug)]
pub(crate) struct Suspects {
    /// Start and end, ascending and apart from each other, with every bit turned over: the list itself is no reference.
    ranges: Vec<(u64, u64)>,
    reached: Vec<AtomicBool>,
}

impl Suspects {
    /// Ranges that don't overlap, in any order.
    pub(crate) fn new(ranges: impl Iterator<Item = Range<u64>>) -> Self {
        let mut ranges: Vec<_> = ranges.map(|range| (!range.start, !range.end)).collect();
        ranges.sort_unstable_by_key(|range| !range.0);
        let reached = ranges.iter().map(|_| AtomicBool::new(false)).collect();
        Self { ranges, reached }
    }

    fn index(&self, address: u64) -> Option<usize> {
        let index = self.ranges.partition_point(|range| !range.0 <= address).checked_sub(1)?;
        self.ranges.get(index).filter(|range| address < !range.1).map(|_| index)
    }

    /// Whether some thread was found to reach the range that begins here.
    pub(crate) fn is_reached(&self, start: u64) -> bool {
        let reached = self.index(start).and_then(|index| self.reached.get(index));
        reached.is_none_or(|reached| reached.load(Relaxed))
    }

    /// Looks at words of memory.
    ///
    /// # Safety
    /// The range is mapped and readable.
    unsafe fn look_at(&self, stack: Range<usize>) {
        let start = stack.start.next_multiple_of(size_of::<usize>());
        for at in (start..stack.end).step_by(size_of::<usize>()) {
            // SAFETY: the caller's promise. Others may write the word meanwhile, hence volatile.
            self.look_at_word(unsafe { (at as *const usize).read_volatile() } as u64);
        }
    }

    /// Looks at where calls return to whose return address a listener has taken from the stack. Whoever calls this finds
    /// those of its own thread's calls.
    fn look_at_returns(&self) {
        listen::each_return(|word| self.look_at_word(word));
    }

    fn look_at_word(&self, word: u64) {
        // Return addresses may be signed in the bits that addresses don't use.
        const ADDRESS: u64 = (1 << 48) - 1;
        let (Some(first), Some(last)) = (self.ranges.first(), self.ranges.last()) else { return };
        let word = word & ADDRESS;
        if !first.0 <= word
            && word < !last.1
            && let Some(reached) = self.index(word).and_then(|index| self.reached.get(index))
        {
            reached.store(true, Relaxed);
        }
    }

    /// Has each thread look whether it reaches any of it. `here` is an address in the caller's frame: what lies below it
    /// on this thread's stack doesn't count.
    pub(crate) fn ask(&self, here: usize, liveness: Liveness) -> Result<(), Doubt> {
        let refused = |errno| Doubt::NotAsked(Refusal::Kernel(errno));
        let maps = Maps::read().map_err(refused)?;
        let stack = own_stack(&maps, here).ok_or(Doubt::OtherStack(sys::tid()))?;
        // SAFETY: this thread's own stack.
        unsafe { self.look_at(stack) };
        self.look_at_returns();
        match liveness {
            Liveness::SingleThreaded => Ok(()),
            Liveness::Live => {
                let right = PatchingRight::begin().map_err(Doubt::NotAsked)?;
                // Nobody runs bytes that were there before.
                right.synchronise().map_err(refused)?;
                install().map_err(refused)?;
                self.ask_others(&right)
            }
        }
    }

    fn ask_others(&self, _: &PatchingRight) -> Result<(), Doubt> {
        let refused = |errno| Doubt::NotAsked(Refusal::Kernel(errno));
        let mut asked = alloc::vec![sys::tid()];
        // A list may lack a thread, if another ends while it is read.
        for _ in 0..ROUNDS {
            let threads = sys::threads().map_err(refused)?;
            let mut new: Vec<i32> = threads.into_iter().filter(|thread| !asked.contains(thread)).collect();
            new.retain(|thread| !sys::is_kernel_worker(*thread));
            if new.is_empty() {
                return Ok(());
            }
            let maps = Maps::read().map_err(refused)?;
            let question = Question {
                suspects: ptr::from_ref(self),
                maps,
                answers: new.iter().map(|thread| (*thread, AtomicU8::new(NONE))).collect(),
            };
            question.ask()?;
            asked.extend(new);
        }
        let last = asked.last().copied().unwrap_or_default();
        Err(Doubt::NoAnswer(last))
    }
}

const ROUNDS: usize = 8;
/// How long threads have to answer, in milliseconds.
const PATIENCE: usize = 200;

/// What lies below the stack pointer may be in use (System V ABI for x86-64, 3.2.2; others have less or none).
const RED_ZONE: usize = 128;
/// The general registers and the program counter lie within so many bytes of a context on every instruction set.
const REGISTERS: usize = 40 * size_of::<u64>();

const NONE: u8 = 0;
const ANSWERED: u8 = 1;
const ELSEWHERE: u8 = 2;
const ENDED: u8 = 3;

/// What the threads are asked.
struct Question {
    suspects: *const Suspects,
    maps: Maps,
    answers: Vec<(i32, AtomicU8)>,
}

static QUESTION: AtomicPtr<Question> = AtomicPtr::new(ptr::null_mut());
/// How many handlers may be looking at a question.
static BUSY: AtomicUsize = AtomicUsize::new(0);
/// The signal; 0 while none was chosen.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

impl Question {
    fn ask(self) -> Result<(), Doubt> {
        let question = Box::into_raw(Box::new(self));
        // SAFETY: it is freed below only, and others only read it.
        let asked = unsafe { &*question };
        QUESTION.store(question, SeqCst);
        let signal = SIGNAL.load(Relaxed);
        let mut refused = None;
        for (thread, answer) in &asked.answers {
            match sys::signal_thread(*thread, signal) {
                Ok(()) => {}
                Err(Errno(libc::ESRCH)) => answer.store(ENDED, Relaxed),
                // There may be no room for one more signal that waits (RLIMIT_SIGPENDING).
                Err(errno) => refused = Some(Doubt::NotAsked(Refusal::Kernel(errno))),
            }
        }
        let missing = |(thread, answer): &(i32, AtomicU8)| {
            let gone = || sys::signal_thread(*thread, 0) == Err(Errno(libc::ESRCH));
            answer.load(Acquire) == NONE && !gone()
        };
        let mut patience = if refused.is_none() { PATIENCE } else { 0 };
        while patience > 0 && asked.answers.iter().any(missing) {
            sys::sleep_a_millisecond();
            patience -= 1;
        }
        let doubts = asked.answers.iter().filter_map(|entry| match entry.1.load(Acquire) {
            NONE if missing(entry) => Some(Doubt::NoAnswer(entry.0)),
            ELSEWHERE => Some(Doubt::OtherStack(entry.0)),
            _ => None,
        });
        let doubt = refused.or(doubts.into_iter().next());
        QUESTION.store(ptr::null_mut(), SeqCst);
        for _ in 0..PATIENCE {
            if BUSY.load(SeqCst) == 0 {
                // SAFETY: nobody else has it: a handler that begins now finds none.
                drop(unsafe { Box::from_raw(question) });
                return doubt.map_or(Ok(()), Err);
            }
            sys::sleep_a_millisecond();
        }
        // Some handler was stopped in the middle; the question stays for it.
        Err(doubt.unwrap_or(Doubt::NoAnswer(0)))
    }

    /// What this thread answers, which was interrupted so.
    ///
    /// Of the kernel's frame only the general registers are looked at: what it leaves unwritten are words of frames that are
    /// gone.
    fn answer(&self, context: &libc::ucontext_t) {
        let here = native::stack_pointer(context).saturating_sub(RED_ZONE);
        let registers = ptr::from_ref(&context.uc_mcontext) as usize;
        let registers = registers..registers + size_of_val(&context.uc_mcontext).min(REGISTERS);
        let thread = sys::tid();
        let Some((_, answer)) = self.answers.iter().find(|(id, _)| *id == thread) else { return };
        let said = match own_stack(&self.maps, here) {
            Some(stack) => {
                // SAFETY: the asker holds the list until no handler is busy, the stack is this thread's own, and the
                // registers are part of the context.
                unsafe {
                    (*self.suspects).look_at(registers);
                    (*self.suspects).look_at(stack);
                    (*self.suspects).look_at_returns();
                }
                ANSWERED
            }
            None => ELSEWHERE,
        };
        answer.store(said, Release);
    }
}

/// From an address on this thread's stack to the stack's end, if it is its own.
fn own_stack(maps: &Maps, here: usize) -> Option<Range<usize>> {
    if sys::signal_stack().is_some_and(|stack| stack.contains(&here)) {
        return None;
    }
    let mapping = maps.find(here)?;
    if mapping.kind == Kind::Stack {
        return Some(here..mapping.range.end);
    }
    // The control block lies above the stack in the same memory (glibc, musl and bionic put it there). The first thread's is
    // elsewhere, and what lies below that is another stack: perhaps one for signals, which the kernel doesn't name while
    // a handler is on it, if SS_AUTODISARM was asked for.
    let block = native::thread_pointer();
    let own = sys::tid() != sys::pid() && mapping.read && mapping.write && here <= block;
    (own && mapping.range.contains(&block)).then_some(here..block)
}

/// Chooses a signal that nobody else uses, and installs its handler, which stays: a thread may answer late.
fn install() -> Result<(), Errno> {
    const FIRST: i32 = 35;
    const LAST: i32 = 64;
    let ours = on_question as *const () as usize;
    let is_ours = |signal: i32| sys::signal_action(signal).is_ok_and(|action| action.handler == ours);
    let chosen = SIGNAL.load(Relaxed);
    if chosen != 0 && is_ours(chosen) {
        return Ok(());
    }
    let free = |signal: &i32| {
        sys::signal_action(*signal)
            .is_ok_and(|action| action.handler == libc::SIG_DFL || action.handler == ours)
    };
    let signal = (FIRST..=LAST).rev().find(free).ok_or(Errno(libc::EBUSY))?;
    // On the stack that the thread is on, which is what it is asked about. Other signals wait.
    let flags = (libc::SA_SIGINFO | libc::SA_RESTART) as usize;
    let synchronous = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
    let mask = synchronous.iter().fold(!0, |mask, signal| mask & !(1u64 << (signal - 1)));
    let action = SigAction::new(ours, flags, mask);
    // SAFETY: `on_question` is a handler of the kind that SA_SIGINFO asks for, and safe in a signal (module
    // documentation).
    unsafe { sys::set_signal_action(signal, &action) }?;
    SIGNAL.store(signal, Relaxed);
    Ok(())
}

extern "C" fn on_question(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    BUSY.fetch_add(1, SeqCst);
    let question = QUESTION.load(SeqCst);
    // SAFETY: the asker frees it when it is no longer to be had and nobody is busy.
    if let Some(question) = unsafe { question.as_ref() } {
        // SAFETY: the kernel passes a valid structure, which is this handler's alone until it returns.
        question.answer(unsafe { &*context.cast::<libc::ucontext_t>() });
    }
    BUSY.fetch_sub(1, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// An address on this stack.
    #[inline(never)]
    fn here() -> usize {
        let mut local = 0usize;
        core::hint::black_box(ptr::from_mut(&mut local)) as usize
    }

    /// An address that is on no stack but where a test puts it.
    fn base() -> u64 {
        !core::hint::black_box(!0x4242_4242_0000u64) & usize::MAX as u64
    }

    #[inline(never)]
    fn ask(here: usize, liveness: Liveness) -> [bool; 4] {
        let ranges = [0, 0x10, 0x100].map(|offset| base() + offset..base() + offset + 0x10);
        let suspects = Suspects::new(ranges.into_iter());
        assert_eq!(suspects.ask(here, liveness), Ok(()));
        // What wasn't asked about may be reached.
        [0, 0x10, 0x100, 0x20].map(|offset| suspects.is_reached(base() + offset))
    }

    #[test]
    fn words_are_found_on_the_stacks_of_other_threads_only_while_they_are_there() {
        let (to_main, from_thread) = mpsc::channel();
        let (to_thread, from_main) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut held = [base() + 0x1f, 1, 2];
            core::hint::black_box(&mut held);
            to_main.send(()).unwrap();
            from_main.recv().unwrap();
            held = [0; 3];
            core::hint::black_box(&mut held);
            to_main.send(()).unwrap();
            from_main.recv().unwrap();
        });
        from_thread.recv().unwrap();
        assert_eq!(ask(here(), Liveness::Live), [false, true, false, true]);
        assert_eq!(ask(here(), Liveness::SingleThreaded), [false, false, false, true]);
        to_thread.send(()).unwrap();
        from_thread.recv().unwrap();
        assert_eq!(ask(here(), Liveness::Live), [false, false, false, true]);
        to_thread.send(()).unwrap();
        thread.join().unwrap();
        assert_eq!(BUSY.load(SeqCst), 0);
    }

    #[test]
    fn a_stack_without_a_known_end_is_no_answer() {
        let maps = Maps::read().unwrap();
        assert!(own_stack(&maps, here()).is_some());
        let heap = vec![0usize; 1 << 20];
        assert_eq!(own_stack(&maps, heap.as_ptr() as usize), None);
    }
}
