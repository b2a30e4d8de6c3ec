//! What threads are asked by a signal, and how they answer.
//!
//! # Safety
//! The handler reads the stack that it interrupted, from what the code there uses upwards to where the thread's own stack
//! ends: at its control block, or at the end of the main thread's. It uses no lock and allocates nothing. What it is asked is
//! good while [`BUSY`] says that some handler may look at it; where one doesn't end, it is leaked.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{
    ffi::c_void,
    ops::Range,
    ptr,
    sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicUsize, Ordering::*, fence},
};

use super::reach::{Doubt, Suspects};
use crate::{
    Refusal,
    memory::maps::{Kind, Maps},
    native,
    sys::{self, Errno, SigAction, Thread},
};

/// How long threads have to answer, in milliseconds.
pub(super) const PATIENCE: usize = 200;
/// How long they have to let the signal through: libc blocks all signals for moments.
const PATIENCE_WITH_BLOCKED: usize = 20;

/// What lies below the stack pointer may be in use (System V ABI for x86-64, 3.2.2; others have less or none).
const RED_ZONE: usize = 128;
/// The general registers and the program counter lie within so many bytes of a context on every instruction set.
const REGISTERS: usize = 40 * size_of::<u64>();

const NONE: u8 = 0;
const ANSWERED: u8 = 1;
const ELSEWHERE: u8 = 2;

/// What the threads are asked.
pub(super) struct Question {
    suspects: Arc<Suspects>,
    maps: Maps,
    answers: Vec<(i32, AtomicU8)>,
}

static QUESTION: AtomicPtr<Question> = AtomicPtr::new(ptr::null_mut());
/// How many handlers may be looking at a question.
static BUSY: AtomicUsize = AtomicUsize::new(0);
/// The process that the two above are of.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// The signal; 0 while none was chosen.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// A thread that has yet to answer.
struct Awaited<'a> {
    thread: i32,
    answer: &'a AtomicU8,
    /// The signal was sent. It isn't to a thread that would leave it waiting, where it would outlive the question.
    sent: bool,
}

impl Awaited<'_> {
    /// Sends the signal if that is possible now. `Ok(false)` if there is nothing to wait for.
    fn press(&mut self, signal: i32, first: bool) -> Result<bool, Errno> {
        if self.answer.load(Acquire) != NONE {
            return Ok(false);
        }
        if !first && Thread::of(self.thread).is_some_and(|thread| thread.runs_nothing) {
            return Ok(false);
        }
        let send = !self.sent && !sys::leaves_waiting(self.thread, signal);
        match sys::signal_thread(self.thread, if send { signal } else { 0 }) {
            Ok(()) => {
                self.sent |= send;
                Ok(true)
            }
            Err(Errno(libc::ESRCH)) => Ok(false),
            // There may be no room for one more signal that waits (RLIMIT_SIGPENDING).
            Err(errno) => Err(errno),
        }
    }
}

impl Question {
    pub(super) fn new(suspects: &Arc<Suspects>, maps: Maps, threads: &[i32]) -> Self {
        let answers = threads.iter().map(|thread| (*thread, AtomicU8::new(NONE))).collect();
        Self { suspects: Arc::clone(suspects), maps, answers }
    }

    /// Asks, and waits for the answers. Only the holder of the patching right calls this.
    pub(super) fn ask(self) -> Result<(), Doubt> {
        let question = Box::into_raw(Box::new(self));
        // SAFETY: it is freed below only, and others only read it.
        let asked = unsafe { &*question };
        QUESTION.store(question, SeqCst);
        let doubt = asked.wait().err();
        QUESTION.store(ptr::null_mut(), SeqCst);
        // A handler that isn't seen below sees that there is none. The trap: QEMU lets a load go before a store to another place,
        // also where both are `SeqCst`.
        fence(SeqCst);
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

    fn wait(&self) -> Result<(), Doubt> {
        let signal = SIGNAL.load(Relaxed);
        let awaited = |(thread, answer)| Awaited { thread, answer, sent: false };
        let mut awaited: Vec<_> = self.answers.iter().map(|(id, answer)| awaited((*id, answer))).collect();
        for waited in 0..=PATIENCE {
            let mut refused = Ok(());
            awaited.retain_mut(|thread| match thread.press(signal, waited == 0) {
                Ok(waits) => waits,
                Err(errno) => {
                    refused = Err(Doubt::NotAsked(Refusal::NotSent(errno)));
                    true
                }
            });
            refused?;
            if awaited.is_empty() || waited >= PATIENCE_WITH_BLOCKED && awaited.iter().all(|one| !one.sent) {
                break;
            }
            sys::sleep_a_millisecond();
        }
        if let Some(silent) = awaited.first() {
            return Err(Doubt::NoAnswer(silent.thread));
        }
        let elsewhere = self.answers.iter().find(|(_, answer)| answer.load(Acquire) == ELSEWHERE);
        elsewhere.map_or(Ok(()), |(thread, _)| Err(Doubt::OtherStack(*thread)))
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
                // SAFETY: the stack is this thread's own, and the registers are part of the context.
                unsafe {
                    self.suspects.look_at(registers);
                    self.suspects.look_at(stack);
                }
                self.suspects.look_at_returns();
                ANSWERED
            }
            None => ELSEWHERE,
        };
        answer.store(said, Release);
    }
}

/// A child made by fork has a copy of what its parent's handlers were doing, and none of these.
pub(super) fn begin_in_this_process() {
    let process = sys::pid();
    if PROCESS.swap(process, Relaxed) != process {
        QUESTION.store(ptr::null_mut(), SeqCst);
        BUSY.store(0, SeqCst);
    }
}

/// From an address on this thread's stack to the stack's end, if it is its own.
pub(super) fn own_stack(maps: &Maps, here: usize) -> Option<Range<usize>> {
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
pub(super) fn install() -> Result<(), Refusal> {
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
    let signal = (FIRST..=LAST).rev().find(free).ok_or(Refusal::NoSignal)?;
    // On the alternate stack, since the interrupted one may be small; which that is, the context tells. Other signals wait.
    let flags = (libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK) as usize;
    let synchronous = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
    let mask = synchronous.iter().fold(!0, |mask, signal| mask & !(1u64 << (signal - 1)));
    let action = SigAction::new(ours, flags, mask);
    // SAFETY: `on_question` is a handler of the kind that SA_SIGINFO asks for, and safe in a signal (module
    // documentation).
    unsafe { sys::set_signal_action(signal, &action) }.map_err(Refusal::NoHandler)?;
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
pub(super) mod tests {
    use super::*;
    use std::sync::{Mutex, PoisonError};

    /// Tests that ask, one at a time: what is asked is the process's.
    static ASKING: Mutex<()> = Mutex::new(());

    pub(in super::super) fn one_at_a_time() -> std::sync::MutexGuard<'static, ()> {
        ASKING.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in super::super) fn busy() -> usize {
        BUSY.load(SeqCst)
    }

    /// An address on this stack.
    #[inline(never)]
    pub(in super::super) fn here() -> usize {
        let mut local = 0usize;
        core::hint::black_box(ptr::from_mut(&mut local)) as usize
    }

    #[test]
    fn a_child_does_not_wait_for_its_parents_handlers() {
        let _asking = one_at_a_time();
        begin_in_this_process();
        BUSY.fetch_add(1, SeqCst);
        // SAFETY: the child calls what a child of a process with threads may call.
        let child = unsafe { libc::fork() };
        if child == 0 {
            begin_in_this_process();
            // SAFETY: it ends without any destructor.
            unsafe { libc::_exit(BUSY.load(SeqCst) as i32) };
        }
        begin_in_this_process();
        let busy = BUSY.fetch_sub(1, SeqCst);
        let mut status = 0;
        // SAFETY: the child is this test's own.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, busy), (0, 1), "and the parent does");
    }

    #[test]
    fn a_late_handler_finds_what_it_was_asked() {
        let suspects = Suspects::new(core::iter::once(0x1000..0x2000));
        let question = Question::new(&suspects, Maps::read().unwrap(), &[]);
        let weak = Arc::downgrade(&suspects);
        drop(suspects);
        assert!(weak.upgrade().is_some(), "the question has it, too");
        drop(question);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn a_stack_without_a_known_end_is_no_answer() {
        let maps = Maps::read().unwrap();
        assert!(own_stack(&maps, here()).is_some());
        let heap = vec![0usize; 1 << 20];
        assert_eq!(own_stack(&maps, heap.as_ptr() as usize), None);
    }
}
