//! The agent in a process, until it is at work.
//!
//! The thread that was made runs the agent's start while the program runs. Then all other threads are stopped, those that
//! stand inside of what is to change are moved, and the hooks go in: from outside, each by one write of the kernel's, so that
//! nobody finds half a patch if grapnel is killed and all go on at once. What a moved thread runs does what was there, whether
//! the hook is in or not.

use super::before::{self, Heap, Pause, Unknown, Wanted};
use super::book::Book;
use super::enter::{BLOCK_BYTES, EnterError, maps_of, undo};
use super::freeze::{FreezeError, Freezer, Frozen, pass_on};
use super::leave::{self, Agent, Begun, LeaveError, Place};
use super::loader::Objects;
use super::memory::Memory;
use super::native::POINTER_AT;
use super::rights::why_denied;
use super::stacks;
use super::tracee::Stop;
use super::working::Worker;
use crate::priority::{self, Raised};
use crate::run::recording::{Before, Blocks};
use grapnel_trace::attached::{Ledger, order, state};
use std::io;
use std::mem::offset_of;
use std::time::{Duration, Instant};

/// Why it gives up where it can't even say so.
const NO_ROOM: &str = "it gave up, most likely for want of memory, of which it maps 16 MiB: see RLIMIT_AS, RLIMIT_DATA and RLIMIT_MEMLOCK in \
                       its /proc/PID/limits, and its control group";
/// The longest that the agent may take to prepare.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// The longest that is waited for a moment at which all threads can be stopped.
const FREEZE_PATIENCE: Duration = Duration::from_secs(5);
/// The longest that the agent may take to say that it goes on, while nobody else runs.
const COMMIT_PATIENCE: Duration = Duration::from_secs(2);
/// The longest that the agent's thread may take to stop.
const HOLD_PATIENCE: Duration = Duration::from_millis(100);

/// The agent in a process: mapped, and not yet at work.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(super) pid: u32,
    /// The thread of our making: it stands until [`Self::prepare`].
    pub(super) worker: Worker,
    pub(super) entry: u64,
    pub(super) stack: (u64, u64),
    pub(super) thread_at: u32,
    pub(super) header: u64,
    pub(crate) place: Place,
    pub(crate) memory: Memory,
    /// Where the program's headers lie, and how many there are.
    pub(super) program_headers: (u64, u64),
    /// What was loaded when the agent began to look at it.
    pub(super) listed: Option<Objects>,
    /// What the thread has mapped.
    pub(super) begun: Begun,
    /// Whether the agent was started.
    pub(super) runs: bool,
    /// Whether threads were in the middle of `malloc` when it was looked at what there was.
    pub(super) busy: bool,
}

/// Why the agent's start has not come to where it was to.
#[derive(Debug)]
struct NotReached {
    why: String,
    is_fault: bool,
}

impl From<&str> for NotReached {
    fn from(why: &str) -> Self {
        Self { why: why.into(), is_fault: false }
    }
}

/// What had been allocated before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Older {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    /// Blocks of which it isn't known how many of their bytes may be used.
    pub(crate) within: u64,
}

/// What stopping all threads cost.
#[derive(Clone, Debug)]
pub(crate) struct Stood {
    pub(crate) threads: usize,
    pub(crate) time: Duration,
    /// The part of it in which it was looked what had been allocated before.
    pub(crate) look: Duration,
    pub(crate) before: Result<Older, Unknown>,
    /// Whether threads were in the middle of `malloc` then.
    pub(crate) busy: bool,
}

impl Entered {
    /// Stops all threads while nothing is being opened or closed. With them comes since when they stand.
    pub(crate) fn stand(&self, freezer: &mut Freezer) -> Result<(Frozen, Instant), EnterError> {
        let deadline = Instant::now() + FREEZE_PATIENCE;
        loop {
            let since = Instant::now();
            match freezer.freeze(Some(self.worker.tracee.tid)) {
                Ok(frozen) if self.objects().is_none_or(|objects| objects.are_at_rest) => {
                    return Ok((frozen, since));
                }
                Ok(frozen) => {
                    frozen.let_go();
                    if Instant::now() > deadline {
                        return Err(EnterError::Loading(self.pid));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => self.wait_after(error, deadline)?,
            }
        }
    }

    /// Waits before threads that could not be stopped are tried again, unless there is no sense in that.
    fn wait_after(&self, error: FreezeError, deadline: Instant) -> Result<(), EnterError> {
        let pid = self.pid;
        let is_over = Instant::now() > deadline;
        match error {
            FreezeError::Gone => return Err(EnterError::Gone(pid)),
            FreezeError::Refused(_) if is_over => {
                return Err(EnterError::Denied { pid, why: why_denied(pid) });
            }
            FreezeError::Busy(late) if is_over => {
                return Err(EnterError::Busy { pid, late, seconds: FREEZE_PATIENCE.as_secs() });
            }
            // Another grapnel that holds some of them needs a moment.
            FreezeError::Busy(_) | FreezeError::Refused(_) => std::thread::sleep(Duration::from_millis(20)),
        }
        Ok(())
    }

    fn objects(&self) -> Option<Objects> {
        Objects::read(&self.memory, self.program_headers)
    }

    /// Whether the program has opened or closed libraries since the agent began to look at them.
    fn has_others(&self) -> bool {
        self.objects() != self.listed
    }

    /// Has the agent prepare everything, while the program runs, or stands.
    pub(crate) fn prepare(
        &mut self,
        freezer: &mut Freezer,
        stands: bool,
        message: impl Fn() -> Option<String>,
    ) -> Result<(), EnterError> {
        let (pid, (stack, stack_len)) = (self.pid, self.stack);
        let block = stack + stack_len - BLOCK_BYTES;
        let arguments = [self.header, u64::from(self.thread_at), 0, 0, 0, 0];
        // Before the agent looks: what changes then is seen to have.
        self.listed = self.objects();
        let run = self.worker.run(self.entry, block, block + POINTER_AT, arguments);
        run.map_err(|error| EnterError::System { pid, what: "the agent can't be started", error })?;
        self.runs = true;
        let reached = self.wait_for(state::PREPARED, START_PATIENCE, |worker| {
            // Who stops late doesn't stand for as long as this takes.
            freezer.tend();
            pass_on(pid, &mut worker.tracee);
            std::thread::sleep(Duration::from_micros(200));
        });
        reached.map_err(|NotReached { why, is_fault }| {
            // It has read what went just then.
            let has_gone = is_fault && !stands && self.listed.is_some();
            if has_gone || self.has_others() {
                EnterError::Loading(pid)
            } else {
                EnterError::Agent { pid, why: message().unwrap_or(why) }
            }
        })
    }

    /// Waits until the agent's start has come to `wanted`.
    fn wait_for(
        &mut self,
        wanted: u32,
        patience: Duration,
        mut nap: impl FnMut(&mut Worker),
    ) -> Result<(), NotReached> {
        let deadline = Instant::now() + patience;
        loop {
            let ended = match self.worker.tracee.stopped() {
                Some(Stop::Ended) => true,
                // Nobody can block it, and it is the program's: passed on later.
                Some(Stop::Signal(libc::SIGSTOP)) => {
                    let _ = self.worker.tracee.go_on();
                    false
                }
                Some(Stop::Signal(signal)) => {
                    return Err(NotReached {
                        why: format!("a fault in the agent itself (signal {signal})"),
                        is_fault: true,
                    });
                }
                Some(_) => {
                    let _ = self.worker.tracee.go_on();
                    false
                }
                None => false,
            };
            match self.state() {
                Some(found) if found == wanted => return Ok(()),
                Some(state::NONE | state::PREPARED) if !ended && Instant::now() < deadline => {}
                Some(state::NONE | state::PREPARED) if !ended => return Err("it took too long".into()),
                Some(state::FAILED) => return Err(NO_ROOM.into()),
                _ => return Err("its thread ended".into()),
            }
            nap(&mut self.worker);
        }
    }

    fn state(&self) -> Option<u32> {
        let mut bytes = [0; 4];
        self.memory.read(self.place.ledger + offset_of!(Ledger, state) as u64, &mut bytes).ok()?;
        Some(u32::from_ne_bytes(bytes))
    }

    fn order(&self, order: u32) -> io::Result<()> {
        self.memory.write(self.place.ledger + offset_of!(Ledger, order) as u64, &order.to_ne_bytes())
    }

    /// Stops all threads that don't stand, puts the hooks in, has the agent begin, and lets all go on.
    pub(crate) fn commit(
        &mut self,
        freezer: &mut Freezer,
        mut standing: Option<(Frozen, Instant)>,
        wanted: Wanted,
        message: impl Fn() -> Option<String>,
        found: impl FnOnce(Before),
    ) -> Result<Stood, EnterError> {
        let pid = self.pid;
        let mut heap = maps_of(pid)
            .map_err(|_| Unknown::Memory)
            .and_then(|maps| Heap::find(pid, &self.memory, &maps, wanted));
        let mut looks = 1;
        let agent = |why| EnterError::Agent { pid, why: message().unwrap_or(why) };
        let deadline = Instant::now() + FREEZE_PATIENCE;
        // As far as it may: from -20 to 19 there are so many steps.
        let hurry = Raised::by(19 - priority::FIRST);
        let (mut frozen, since, blocks, look) = loop {
            // These are not let go and stopped again.
            let stood = standing.is_some();
            let (stopped, since) = match standing.take() {
                Some((frozen, since)) => (Ok(frozen), since),
                None => {
                    let since = Instant::now();
                    (freezer.freeze(Some(self.worker.tracee.tid)), since)
                }
            };
            let frozen = stopped.and_then(|mut frozen| {
                let look = Instant::now();
                // On a machine where threads hardly come to stop, those that stand are not let go again.
                let is_last =
                    stood || looks == Unknown::Busy.looks() || since + FREEZE_PATIENCE / 2 > deadline;
                match self.blocks(&mut heap, freezer, &mut frozen, is_last) {
                    Ok(blocks) => Ok((frozen, since, blocks, look.elapsed())),
                    Err(error) => {
                        frozen.let_go();
                        Err(error)
                    }
                }
            });
            match frozen {
                Ok((frozen, _, Err(unknown), _)) if looks < unknown.looks() => {
                    looks += 1;
                    frozen.let_go();
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(frozen) => break frozen,
                Err(error) => self.wait_after(error, deadline)?,
            }
        };
        if self.has_others() {
            frozen.let_go();
            return Err(EnterError::Loading(pid));
        }
        let sum = |blocks: &Blocks| Older {
            blocks: blocks.iter().count() as u64,
            bytes: blocks.iter().map(|(_, size)| size).sum(),
            within: blocks.within.len() as u64,
        };
        let before = blocks.as_ref().map(sum).map_err(Unknown::clone);
        let maps = maps_of(pid);
        let committed = maps.and_then(|maps| {
            let changed = Book::read(&self.memory, self.place.ledger).and_then(|book| {
                stacks::move_out_of_edits(&mut frozen, &self.memory, &maps, &book)?;
                book.make_edits(&self.memory)
            });
            // Before any event can come.
            found(blocks.map_err(|unknown| unknown.to_string()));
            let ordered = changed.and_then(|()| self.order(order::COMMIT));
            ordered.map_err(|error| agent(error.to_string()))?;
            let reached = self.wait_for(state::COMMITTED, COMMIT_PATIENCE, |_| std::thread::yield_now());
            reached.map_err(|NotReached { why, .. }| agent(why))
        });
        let threads = frozen.len();
        frozen.let_go();
        drop(hurry);
        pass_on(pid, &mut self.worker.tracee);
        committed.map(|()| Stood { threads, time: since.elapsed(), look, before, busy: self.busy })
    }

    /// What the process had allocated before, while it stands, and no thread is in the middle of `malloc`.
    /// At the last look also if there is one: of each a block may be counted wrongly.
    fn blocks(
        &mut self,
        heap: &mut Result<Heap, Unknown>,
        freezer: &mut Freezer,
        frozen: &mut Frozen,
        is_last: bool,
    ) -> Result<Result<Blocks, Unknown>, FreezeError> {
        let heap = match heap {
            Ok(heap) => heap,
            Err(unknown) => return Ok(Err(unknown.clone())),
        };
        let how = (self.worker.tracee.tid, !is_last);
        let paused = before::settle(heap, &self.memory, self.pid, freezer, frozen, how)?;
        if paused == Pause::Busy && !is_last {
            return Ok(Err(Unknown::Busy));
        }
        let maps = maps_of(self.pid).map_err(|_| Unknown::Memory);
        let blocks = maps.and_then(|maps| heap.blocks(self.pid, &self.memory, &maps, frozen));
        // What looks broken may be half done.
        self.busy = paused == Pause::Busy;
        Ok(if self.busy { blocks.map_err(|_| Unknown::Busy) } else { blocks })
    }

    /// Has the agent's thread stand, if it is still there.
    fn hold(&mut self) {
        let tracee = &mut self.worker.tracee;
        if !tracee.stands() {
            let _ = tracee.interrupt();
            let _ = tracee.wait_until(Instant::now() + HOLD_PATIENCE);
        }
    }

    /// After all went well: the agent's thread has ended, or is about to.
    pub(crate) fn finish(mut self) -> Memory {
        let deadline = Instant::now() + START_PATIENCE;
        while !matches!(self.worker.tracee.wait_until(deadline), None | Some(Stop::Ended)) {
            let _ = self.worker.tracee.go_on();
        }
        pass_on(self.pid, &mut self.worker.tracee);
        self.memory
    }

    /// After something went wrong: takes all of it out again.
    pub(crate) fn give_up(mut self, freezer: &mut Freezer) -> Result<(), LeaveError> {
        if !self.runs {
            undo(self.pid, freezer, &self.memory, self.worker, self.begun);
            return Ok(());
        }
        let _ = self.order(order::LEAVE);
        // It sees the order within a moment, or stands where a fault or we have stopped it.
        let deadline = Instant::now() + Duration::from_millis(200);
        while !self.worker.tracee.stands() {
            match self.worker.tracee.wait_until(deadline) {
                None => self.hold(),
                Some(Stop::Ended) => break,
                Some(Stop::Signal(signal)) if signal != libc::SIGSTOP => {}
                Some(_) => drop(self.worker.tracee.go_on()),
            }
            if Instant::now() > deadline {
                break;
            }
        }
        let Self { pid, mut worker, place, memory, .. } = self;
        pass_on(pid, &mut worker.tracee);
        if worker.tracee.stands() {
            worker.end();
        } else {
            // It hasn't had a processor yet: it is waited for with all others, and ends when it goes on.
            freezer.expect(worker.tracee);
        }
        match leave::leave(pid, freezer, &memory, Agent::Whole(place)) {
            Ok(_) | Err(LeaveError::Gone(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
