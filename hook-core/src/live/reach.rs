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

use alloc::{collections::BTreeSet, sync::Arc, vec::Vec};
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering::*},
};

use super::{
    PatchingRight,
    question::{PATIENCE, Question, begin_in_this_process, install, own_stack},
};
use crate::{
    Liveness, Refusal, listen,
    memory::maps::Maps,
    sys::{self, Errno, Thread},
};

/// Why it isn't known what threads may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doubt {
    /// The thread with this id didn't answer in time: it has the signal blocked or waits for signals, or is stopped.
    NoAnswer(i32),
    /// The thread with this id was not on its own stack, but on that of a coroutine or of a signal handler.
    OtherStack(i32),
    /// Threads began and ended all the while, so that none of the lists of them was sure to be whole.
    ComingAndGoing,
    /// Threads can't be asked.
    NotAsked(Refusal),
}

impl Doubt {
    /// What the caller could do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotAsked(Refusal::NoProc(_)) => "mount /proc, or ask while one thread runs",
            Self::NotAsked(Refusal::OtherNamespace) => "mount the /proc of this namespace of processes",
            Self::NotAsked(Refusal::NoSignal) => "leave one of the signals from 35 to 64 without a handler",
            Self::NotAsked(Refusal::NotSent(_)) => {
                "raise the limit of signals that wait (RLIMIT_SIGPENDING), or ask while one thread runs"
            }
            Self::NotAsked(Refusal::NoHandler(_)) => {
                "allow rt_sigaction in the security policy, or ask while one thread runs"
            }
            Self::NotAsked(Refusal::Kernel(_)) => {
                "allow membarrier in the security policy, or ask while one thread runs"
            }
            _ => "try again later",
        }
    }
}

impl core::fmt::Display for Doubt {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoAnswer(thread) => write!(f, "thread {thread} did not answer"),
            Self::OtherStack(thread) => write!(f, "thread {thread} was not on its own stack"),
            Self::ComingAndGoing => f.write_str("threads began and ended all the while"),
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
    /// Ranges that don't overlap, in any order. Shared with handlers, of which one may be stopped in the middle for good.
    pub(crate) fn new(ranges: impl Iterator<Item = Range<u64>>) -> Arc<Self> {
        let mut ranges: Vec<_> = ranges.map(|range| (!range.start, !range.end)).collect();
        ranges.sort_unstable_by_key(|range| !range.0);
        let reached = ranges.iter().map(|_| AtomicBool::new(false)).collect();
        Arc::new(Self { ranges, reached })
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
    pub(super) unsafe fn look_at(&self, stack: Range<usize>) {
        let start = stack.start.next_multiple_of(size_of::<usize>());
        for at in (start..stack.end).step_by(size_of::<usize>()) {
            // SAFETY: the caller's promise. Others may write the word meanwhile, hence volatile.
            self.look_at_word(unsafe { (at as *const usize).read_volatile() } as u64);
        }
    }

    /// Looks at where calls return to whose return address a listener has taken from the stack. Whoever calls this finds
    /// those of its own thread's calls.
    pub(super) fn look_at_returns(&self) {
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
    pub(crate) fn ask(self: &Arc<Self>, here: usize, liveness: Liveness) -> Result<(), Doubt> {
        let maps = Maps::read().map_err(unread)?;
        let stack = own_stack(&maps, here).ok_or(Doubt::OtherStack(sys::tid()))?;
        // SAFETY: this thread's own stack.
        unsafe { self.look_at(stack) };
        self.look_at_returns();
        match liveness {
            Liveness::SingleThreaded => Ok(()),
            Liveness::Live => {
                let right = PatchingRight::begin().map_err(Doubt::NotAsked)?;
                // Nobody runs bytes that were there before.
                right.synchronise().map_err(|errno| Doubt::NotAsked(Refusal::Kernel(errno)))?;
                install().map_err(Doubt::NotAsked)?;
                self.ask_others(&right)
            }
        }
    }

    /// Asks all others, until a list that is whole has no other to ask: one may lack a thread if another ends while it is
    /// read. Those that began since are outside: they have no frames of who began them.
    fn ask_others(self: &Arc<Self>, _: &PatchingRight) -> Result<(), Doubt> {
        if !sys::proc_has_our_numbers() {
            return Err(Doubt::NotAsked(Refusal::OtherNamespace));
        }
        begin_in_this_process();
        // Where no clock is to be had, all are asked that ever show.
        let start = sys::ticks().unwrap_or(u64::MAX);
        let mut known = BTreeSet::from([sys::tid()]);
        for _ in 0..PATIENCE {
            let (mut threads, all) = sys::threads().map_err(unread)?;
            threads.retain(|thread| known.insert(*thread));
            threads.retain(|thread| Thread::of(*thread).is_none_or(|t| !t.runs_nothing && t.began <= start));
            if !threads.is_empty() {
                let maps = Maps::read().map_err(unread)?;
                Question::new(self, maps, &threads).ask()?;
            } else if all {
                return Ok(());
            } else {
                sys::sleep_a_millisecond();
            }
        }
        Err(Doubt::ComingAndGoing)
    }
}

fn unread(errno: Errno) -> Doubt {
    Doubt::NotAsked(Refusal::NoProc(errno))
}

#[cfg(test)]
mod tests {
    use super::{
        super::question::tests::{busy, here, one_at_a_time},
        *,
    };
    use std::sync::mpsc;

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
        // An emulator has threads of its own, which never answer.
        if std::env::var_os("GRAPNEL_EMULATED").is_some() {
            return;
        }
        let _asking = one_at_a_time();
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
        assert_eq!(busy(), 0);
    }
}
