//! All threads of a process, stopped together.
//!
//! Threads that can't stop now (the kernel lets none stop that waits for its child of `vfork`) are waited for only so long
//! as the others may be held. They stay marked, and are let go when they stop after all. One that could and has no processor
//! yet is waited for longer: were the others let go, each would have to wait for one again, and all might never stand together.

use super::native::{Registers, UnderWay};
use super::reaping::while_reaping;
use super::tracee::{Stop, Tracee, send};
use crate::leaks::is_handled;
use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// The longest that threads are held for one that can't stop.
const PATIENCE: Duration = Duration::from_millis(25);

/// The longest that threads are held for those that stop as soon as they have a processor, where there are more to run than
/// processors.
const TURN_PATIENCE: Duration = Duration::from_secs(1);

/// How long a thread is waited for that has become another program's first.
const NEW_PATIENCE: Duration = Duration::from_millis(100);

/// Why a process can't be stopped.
#[derive(Debug)]
pub(crate) enum FreezeError {
    /// A thread doesn't stop.
    Busy(Late),
    /// The kernel refuses.
    Refused(io::Error),
    /// There is no process.
    Gone,
}

/// A thread that doesn't stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    tid: i32,
    /// The kernel's letter for what it does instead.
    state: Option<char>,
}

impl Late {
    fn of(pid: u32, tid: i32) -> Self {
        Self { tid, state: state(pid, tid) }
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.state {
            Some('R') => "got no processor in which to stop",
            Some('D') => "waits for its child of vfork, or for a device",
            _ => "didn't stop, and the kernel doesn't say why",
        };
        write!(f, "thread {} {why}", self.tid)
    }
}

/// Who stops a process's threads.
#[derive(Debug)]
pub(crate) struct Freezer {
    pid: u32,
    /// Threads that were told to stop and have not.
    late: Vec<Tracee>,
}

/// The process while its threads stand.
#[derive(Debug)]
pub(crate) struct Frozen {
    threads: Vec<(Tracee, Registers)>,
}

/// The threads of a process, with those that have ended and are not gone.
pub(crate) fn threads(pid: u32) -> io::Result<Vec<i32>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let Some(tid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        all.push(tid);
    }
    Ok(all)
}

/// A thread's state, in the kernel's letter. `None` if it is gone.
fn state(pid: u32, tid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

/// Whether a thread has ended: the first thread of a process stays until all others have.
pub(crate) fn has_ended(pid: u32, tid: i32) -> bool {
    matches!(state(pid, tid), None | Some('Z' | 'X'))
}

impl Freezer {
    pub(crate) fn new(pid: u32) -> Self {
        Self { pid, late: Vec::new() }
    }

    /// Takes over a thread that was told to stop and has not.
    pub(crate) fn expect(&mut self, tracee: Tracee) {
        self.late.push(tracee);
    }

    /// Whether a thread was told to stop and has not.
    pub(crate) fn expects(&self, tid: i32) -> bool {
        self.late.iter().any(|late| late.tid == tid)
    }

    /// Stops all threads but `except`.
    pub(crate) fn freeze(&mut self, except: Option<i32>) -> Result<Frozen, FreezeError> {
        let mut frozen = Frozen { threads: Vec::new() };
        match while_reaping(self.pid, || self.stop_all(except, &mut frozen)) {
            Ok(()) => Ok(frozen),
            Err(error) => {
                frozen.let_go();
                Err(error)
            }
        }
    }

    fn stop_all(&mut self, except: Option<i32>, frozen: &mut Frozen) -> Result<(), FreezeError> {
        let begun = Instant::now();
        let mut deadline = begun + PATIENCE;
        let stand = frozen.threads.iter().map(|(tracee, _)| tracee.tid);
        let mut known: HashSet<i32> =
            except.into_iter().chain(self.late.iter().map(|late| late.tid)).chain(stand).collect();
        let mut asked = std::mem::take(&mut self.late);
        loop {
            let mut refused = None;
            for tid in threads(self.pid).map_err(|_| FreezeError::Gone)? {
                if !known.insert(tid) {
                    continue;
                }
                match Tracee::seize(tid, 0) {
                    Ok(mut tracee) => {
                        // One that has gone meanwhile says so when it is waited for.
                        let _ = tracee.interrupt();
                        asked.push(tracee);
                    }
                    Err(_) if has_ended(self.pid, tid) => {}
                    Err(error) => refused = Some(error),
                }
            }
            if asked.is_empty() && refused.is_none() {
                break;
            }
            let mut late = Vec::new();
            for mut tracee in asked.drain(..) {
                match tracee.wait_until(deadline) {
                    None => late.push(tracee),
                    Some(Stop::Ended) => {}
                    Some(_) => match tracee.registers() {
                        Ok(registers) => frozen.threads.push((tracee, registers)),
                        // Killed just now.
                        Err(_) => late.push(tracee),
                    },
                }
            }
            if let Some(error) = refused {
                self.late = late;
                return Err(FreezeError::Refused(error));
            }
            let Some(first) = late.first().map(|late| late.tid) else { continue };
            // Who waits for nothing but a processor may hold what another waits for.
            let runs = late.iter().any(|late| state(self.pid, late.tid) == Some('R'));
            if !runs || begun.elapsed() > TURN_PATIENCE {
                self.late = late;
                return Err(FreezeError::Busy(Late::of(self.pid, first)));
            }
            asked = late;
            deadline = Instant::now() + PATIENCE;
        }
        if frozen.threads.is_empty() { Err(FreezeError::Gone) } else { Ok(()) }
    }

    /// Lets threads run for a moment while all others stand, then stops them again, with those that they have made. Those whose
    /// process is stopped stay where they are.
    pub(crate) fn let_run(
        &mut self,
        frozen: &mut Frozen,
        wanted: impl Fn(i32) -> bool,
        time: Duration,
        except: i32,
    ) -> Result<(), FreezeError> {
        let is_one = |(tracee, _): &mut (Tracee, Registers)| wanted(tracee.tid) && !tracee.is_stopped();
        let threads: Vec<_> = frozen.threads.extract_if(.., is_one).collect();
        let run = |(mut tracee, mut registers): (Tracee, Registers)| {
            if begin_anew(&tracee, &mut registers) {
                let _ = tracee.set_registers(&registers);
            }
            // One that is gone says so when it is waited for.
            let _ = tracee.go_on_with_signal();
            tracee
        };
        let mut running: Vec<Tracee> = threads.into_iter().map(run).collect();
        std::thread::sleep(time);
        for tracee in &mut running {
            let _ = tracee.interrupt();
        }
        self.late.extend(running);
        while_reaping(self.pid, || self.stop_all(Some(except), frozen))
    }

    /// Lets those go that have stopped late. To be called now and then.
    pub(crate) fn tend(&mut self) {
        for mut tracee in std::mem::take(&mut self.late) {
            match tracee.stopped() {
                None => self.late.push(tracee),
                Some(Stop::Ended) => {}
                Some(_) => {
                    if let Ok(registers) = tracee.registers() {
                        let_go(tracee, registers);
                    }
                }
            }
        }
    }
}

impl Frozen {
    /// Each thread's id and registers.
    pub(crate) fn registers(&self) -> impl Iterator<Item = (i32, &Registers)> {
        self.threads.iter().map(|(tracee, registers)| (tracee.tid, registers))
    }

    /// How many threads stand.
    pub(crate) fn len(&self) -> usize {
        self.threads.len()
    }

    /// Has a thread go on elsewhere.
    pub(crate) fn move_to(&mut self, tid: i32, pc: u64) -> io::Result<()> {
        for (tracee, registers) in self.threads.iter_mut().filter(|(tracee, _)| tracee.tid == tid) {
            registers.set_pc(pc);
            tracee.set_registers(registers)?;
        }
        Ok(())
    }

    /// Lets all threads go on.
    pub(crate) fn let_go(self) {
        self.threads.into_iter().for_each(|(tracee, registers)| let_go(tracee, registers));
    }

    /// Whether there is a thread that can work.
    pub(crate) fn has_worker(&self) -> bool {
        self.registers().any(|(_, registers)| registers.is_native())
    }

    /// Takes out one that is to work while the others stand: one that `suits`, if there is any.
    pub(crate) fn take(&mut self, suits: impl Fn(&Registers) -> bool) -> Option<Tracee> {
        // One that is about to get a signal would get it late.
        let worth = |(tracee, registers): &(Tracee, Registers)| (suits(registers), !tracee.gets_signal());
        let can_work = |&at: &usize| self.threads[at].1.is_native();
        let best = (0..self.threads.len()).filter(can_work).max_by_key(|&at| worth(&self.threads[at]))?;
        let (worker, mut registers) = self.threads.swap_remove(best);
        if begin_anew(&worker, &mut registers) {
            let _ = worker.set_registers(&registers);
        }
        Some(worker)
    }
}

fn let_go(tracee: Tracee, mut registers: Registers) {
    if begin_anew(&tracee, &mut registers) {
        let _ = tracee.set_registers(&registers);
    }
    tracee.let_go();
}

/// Has a system call that our stop has cut short begin anew, unless a signal waits whose handler will run: then it was cut
/// short by right.
pub(crate) fn begin_anew(tracee: &Tracee, registers: &mut Registers) -> bool {
    let cut_short = registers.is_cut_short() && !is_handled(tracee.tid, tracee.next_signal());
    if cut_short {
        registers.begin_anew();
    }
    cut_short
}

/// The same for a thread that another part of grapnel has stopped, and is about to let go. `under_way`: what it waited in when it
/// was told to stop.
pub(crate) fn begin_call_anew(thread: u32, under_way: UnderWay) {
    begin_anew_in(&Tracee::born(thread.cast_signed()).waiting_in(under_way));
}

/// The same for a thread that is about to be let go.
pub(crate) fn begin_anew_in(tracee: &Tracee) {
    let Ok(mut registers) = tracee.registers() else { return };
    if begin_anew(tracee, &mut registers) {
        let _ = tracee.set_registers(&registers);
    }
}

/// Lets a process go whose first thread this thread traces, and nobody knows of: another one that was traced has become another
/// program, and the first by that.
pub(crate) fn let_new_first_go(pid: u32) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    if tracer.and_then(|tracer| tracer.trim().parse().ok()) != Some(std::process::id()) {
        return;
    }
    let mut tracee = Tracee::born(pid.cast_signed());
    if tracee.wait_until(Instant::now() + NEW_PATIENCE).is_some_and(|stop| stop != Stop::Ended) {
        begin_anew_in(&tracee);
        tracee.let_go();
    }
}

/// Has SIGSTOP, if it came to a thread of our making, come to one of the program's. Nothing else that such a thread gets is
/// for the program: it blocks all that can be blocked.
pub(crate) fn pass_on(pid: u32, tracee: &mut Tracee) {
    if tracee.take_signal() == libc::SIGSTOP {
        let mut others = threads(pid).unwrap_or_default().into_iter();
        if let Some(tid) = others.find(|&tid| tid != tracee.tid && !has_ended(pid, tid)) {
            send(pid, tid, libc::SIGSTOP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_stop_is_said_to_do_what_it_does() {
        let said = |state| Late { tid: 7, state }.to_string();
        assert_eq!(said(Some('R')), "thread 7 got no processor in which to stop");
        assert_eq!(said(Some('D')), "thread 7 waits for its child of vfork, or for a device");
        assert!(!said(Some('S')).contains("vfork") && !said(None).contains("vfork"));
    }
}
