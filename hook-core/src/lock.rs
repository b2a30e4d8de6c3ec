//! A lock that a signal handler, a child made by fork and a thread that was stopped can't wait for without end, and that serves
//! those who wait in the order in which they came.
//!
//! Who finds it taken, or others waiting, takes a ticket and notes it in a place of the queue. The lock is for the earliest
//! ticket. A thread that has one may have been stopped, have left the wait by a jump out of a signal's handler, or be of the
//! process that this one was forked off. So those behind it wait for it for a moment only while the lock is free, and a ticket of
//! another process doesn't count.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use crate::sys::{self, Errno};

/// How many milliseconds are waited for another thread.
const PATIENCE: usize = 5000;
/// How many of them for one that could have the lock and doesn't take it.
const TURN: usize = 20;
/// How many wait in order. Further ones wait until there is a place.
const PLACES: usize = 32;

/// Held by one thread of the process at a time.
#[derive(Debug, Default)]
pub(crate) struct Lock {
    /// The ids of the process and the thread that hold it; 0 if nobody does. In a child made by fork a holder of the
    /// parent's doesn't count.
    holder: AtomicU64,
    /// How many tickets were given out.
    tickets: AtomicU32,
    /// The process and the ticket of each that waits; 0 where none does.
    queue: [AtomicU64; PLACES],
    /// How often it was given back, which is what is waited for.
    turns: AtomicU32,
}

/// The lock, held by this thread.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    lock: &'a Lock,
    /// A thread held it that isn't in this process: it was forked off in the middle of what that thread did.
    pub(crate) torn: bool,
}

/// A place in the queue, which is given up with the value.
struct Place<'a> {
    place: &'a AtomicU64,
    entry: u64,
}

impl Place<'_> {
    /// Whether the ticket came before another; they begin anew when all numbers are used.
    fn is_before(&self, other: u64) -> bool {
        (other as u32).wrapping_sub(self.entry as u32).cast_signed() > 0
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // In a child made by fork meanwhile another may have it.
        let _ = self.place.compare_exchange(self.entry, 0, Release, Relaxed);
    }
}

/// This thread, as no other thread of this process or of a child is known.
pub(crate) fn this_thread() -> u64 {
    u64::from(sys::pid() as u32) << 32 | u64::from(sys::tid() as u32)
}

/// Whether that thread is one of this process.
pub(crate) fn is_of_this_process(thread: u64) -> bool {
    (thread >> 32) as i32 == sys::pid()
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self {
            holder: AtomicU64::new(0),
            tickets: AtomicU32::new(0),
            queue: [const { AtomicU64::new(0) }; PLACES],
            turns: AtomicU32::new(0),
        }
    }

    /// Waits for the lock, but not for ever: its holder may be a thread that this one has interrupted or stopped.
    ///
    /// `EDEADLK` if this thread holds it, and a signal handler or a listener came between; `EBUSY` if another did for
    /// seconds.
    pub(crate) fn hold(&self) -> Result<Held<'_>, Errno> {
        let mut place: Option<Place<'_>> = None;
        let (mut waited, mut passed) = (0, 0);
        while waited < PATIENCE {
            let turns = self.turns.load(Acquire);
            // Asked for each time: a signal's handler may have forked.
            let me = this_thread();
            let holder = self.holder.load(Relaxed);
            if holder == me {
                return Err(Errno(libc::EDEADLK));
            }
            let free = !is_of_this_process(holder);
            if free && (passed >= TURN || !self.has_before(place.as_ref())) {
                if self.holder.compare_exchange(holder, me, Acquire, Relaxed).is_ok() {
                    return Ok(Held { lock: self, torn: holder != 0 });
                }
                continue;
            }
            if place.as_ref().is_none_or(|place| !is_of_this_process(place.entry)) {
                place = self.line_up();
            }
            // Where it is free there is somebody before, who may not take it.
            let most = if free { 1 } else { 10 };
            let woken = sys::wait_for_change(&self.turns, turns, most);
            waited += if woken { 1 } else { most };
            passed = if free && !woken { passed + most } else { 0 };
        }
        Err(Errno(libc::EBUSY))
    }

    /// Takes a ticket, and a place in the queue if there is one.
    fn line_up(&self) -> Option<Place<'_>> {
        let ticket = self.tickets.fetch_add(1, Relaxed);
        let entry = u64::from(sys::pid() as u32) << 32 | u64::from(ticket);
        self.queue.iter().find_map(|place| {
            let free = |found| (!is_of_this_process(found)).then_some(entry);
            place.fetch_update(SeqCst, Relaxed, free).ok().map(|_| Place { place, entry })
        })
    }

    /// Whether somebody of this process waits who came before; before one without a place, all did.
    fn has_before(&self, own: Option<&Place<'_>>) -> bool {
        let mut waiting = self.queue.iter().map(|place| place.load(Acquire));
        waiting.any(|other| {
            is_of_this_process(other) && own.is_none_or(|own| other != own.entry && !own.is_before(other))
        })
    }

    /// Whether this thread holds it.
    pub(crate) fn is_held_here(&self) -> bool {
        self.holder.load(Relaxed) == this_thread()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.holder.store(0, Release);
        // Whoever isn't seen in the queue sees this before it waits.
        self.lock.turns.fetch_add(1, SeqCst);
        if self.lock.queue.iter().any(|place| place.load(SeqCst) != 0) {
            sys::wake_all(&self.lock.turns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicBool, AtomicUsize},
        thread,
        time::{Duration, Instant},
    };

    /// Threads that take it and give it back without a pause.
    #[test]
    fn who_waits_has_a_turn() {
        let (lock, done) = (Lock::new(), AtomicBool::new(false));
        let times = [const { AtomicUsize::new(0) }; 3];
        thread::scope(|scope| {
            for times in &times {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        let held = lock.hold().unwrap();
                        times.fetch_add(1, Relaxed);
                        let begun = Instant::now();
                        while begun.elapsed() < Duration::from_micros(200) {}
                        drop(held);
                    }
                });
            }
            thread::sleep(Duration::from_millis(600));
            done.store(true, Relaxed);
        });
        let times = times.map(AtomicUsize::into_inner);
        let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        // On a busy machine one may not come to run when it is its turn.
        assert!(*least > 10 && most / 3 <= *least, "{times:?}");
    }

    #[test]
    fn who_has_gone_away_is_not_waited_for() {
        let lock = Lock::new();
        // A place that nobody will give up, as of a thread that has left the wait.
        core::mem::forget(lock.line_up());
        let begun = Instant::now();
        let held = lock.hold().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(lock.hold().map(drop), Err(Errno(libc::EDEADLK)));
        drop(held);
    }

    #[test]
    fn a_child_waits_for_nobody_of_its_parent() {
        let lock = Lock::new();
        core::mem::forget(lock.line_up());
        core::mem::forget(lock.hold().unwrap());
        // SAFETY: the child calls what a child of a process with threads may call.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let torn = lock.hold().map(|held| held.torn);
            let again = lock.hold().map(|held| held.torn);
            // SAFETY: it ends without any destructor.
            unsafe { libc::_exit(i32::from(torn == Ok(true)) + i32::from(again == Ok(false))) };
        }
        let mut status = 0;
        // SAFETY: the child is this test's own.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 2, "{status:#x}");
    }
}
