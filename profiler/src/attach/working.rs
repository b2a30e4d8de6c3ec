//! Threads that make system calls for us: one of the program's, borrowed for a moment, and the one that it makes.
//!
//! What a borrowed thread was about, a system call that our stop interrupted included, goes on by the kernel's own rules:
//! before it is let go it is stopped once more where the kernel looks for signals, with the registers that it had there.
//!
//! Grapnel may be killed at any moment, and the kernel then lets all go that it traces, with the registers that they have.
//! So a borrowed thread never has others than such with which it comes back by itself: below its stack lies a signal's frame
//! that says what it was, and each call returns to where handlers return to. The one that it makes ends by itself: behind its
//! calls lies the end of a thread.

use super::freeze::begin_anew;
use super::memory::Memory;
use super::native::frame::{
    self, CALL_AND_EXIT, CALL_AND_RETURN, EXIT_AT, Frame, SIGNAL_RETURN, Vectors, WAYS_BACK,
};
use super::native::{Registers, SYSTEM_CALL_LEN};
use super::target::MapLine;
use super::tracee::{Stop, Tracee, WORKING};
use std::io;
use std::time::{Duration, Instant};

/// What is waited for takes microseconds, and longer only on a machine that has no time for it.
const PATIENCE: Duration = Duration::from_secs(5);

const ALL_SIGNALS: u64 = u64::MAX;

/// What a system call gives that the kernel begins anew (ERESTARTNOINTR, include/linux/errno.h).
const BEGIN_ANEW: i32 = 513;

/// Where in a thread's area for restartable sequences the address of the one stands that it is in (struct rseq).
const SECTION_AT: u64 = 8;

/// How much of a mapping is looked through.
const MOST_CODE: u64 = 16 << 20;

/// How much of a stack must be free for a frame.
const ROOM: u64 = 16 << 10;

/// Bytes of the code that a made thread runs between calls, and what it finds on its stack, where that ends.
pub(crate) const CODE_BYTES: u64 = 4096;
const STACK_AT: u64 = 256;
/// Where in that page stands what the session's memory is called.
pub(crate) const NAME_AT: u64 = 1024;
pub(crate) const NAME: &[u8] = b"grapnel-session\0";

/// Where in the program's code is what borrowed threads run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instructions {
    /// Makes a system call and returns.
    call: u64,
    /// Where handlers of signals return to; a static program may have no such place.
    back: Option<u64>,
}

impl Instructions {
    /// Looks for them in code that `may` be used, first of all in that which `stays`: C libraries have them.
    pub(crate) fn find(
        memory: &Memory,
        maps: &[MapLine],
        may: impl Fn(&MapLine) -> bool,
        stays: impl Fn(&MapLine) -> bool,
    ) -> io::Result<Self> {
        let mut maps: Vec<_> =
            maps.iter().filter(|line| line.executable && line.readable && may(line)).collect();
        maps.sort_by_cached_key(|line| (!stays(line), !line.name.contains("/libc")));
        let (mut call, mut back) = (None, None);
        for line in maps {
            let mut code = vec![0; (line.range.end - line.range.start).min(MOST_CODE) as usize];
            let read = memory.read_some(line.range.start, &mut code);
            let code = &code[..read];
            let at = |found: usize| line.range.start + found as u64;
            call = call.or_else(|| frame::find_call(code).map(at));
            back = back.or_else(|| frame::find_signal_return(code).map(at));
            if let (Some(call), Some(back)) = (call, back) {
                return Ok(Self { call, back: Some(back) });
            }
        }
        let none = || io::Error::other("no instruction that makes system calls was found");
        Ok(Self { call: call.ok_or_else(none)?, back: None })
    }
}

/// Whether the page at `code` is that of a made thread, written or still to be.
pub(crate) fn is_code(memory: &Memory, code: u64) -> bool {
    let mut page = vec![0; CODE_BYTES as usize];
    if memory.read(code, &mut page).is_err() {
        return false;
    }
    let back = (code + EXIT_AT).to_ne_bytes();
    let parts = [(0, CALL_AND_EXIT), (STACK_AT as usize, &back[..]), (NAME_AT as usize, NAME)];
    for (at, written) in parts {
        let found = &mut page[at..at + written.len()];
        if found == written {
            found.fill(0);
        }
    }
    page.iter().all(|&byte| byte == 0)
}

/// Whether a thread is on a stack that is surely its own, with room below: that of the process, or one that libc made,
/// which has the thread's variables at its end. Below others may lie what is somebody else's.
pub(crate) fn is_on_own_stack(registers: &Registers, maps: &[MapLine]) -> bool {
    let (sp, pointer) = (registers.sp(), registers.thread_pointer());
    maps.iter().find(|line| line.range.contains(&sp)).is_some_and(|line| {
        let is_libcs = sp < pointer && line.range.contains(&pointer);
        (is_libcs || line.name == "[stack]") && line.readable && sp - line.range.start >= ROOM
    })
}

fn lost() -> io::Error {
    io::Error::other("the thread ended in the middle of it")
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the thread did not answer in time")
}

/// Whether a thread was borrowed by one who is gone, and isn't back yet: it may still make its call. A thread at the end of
/// a handler of its own looks the same for a moment.
pub(crate) fn is_borrowed(registers: &Registers, memory: &Memory) -> bool {
    let has = |at: u64, wanted: &[u8]| {
        let mut found = vec![0; wanted.len()];
        memory.read(at, &mut found).is_ok() && found == wanted
    };
    let pc = registers.pc();
    let calls = has(pc, CALL_AND_RETURN) || has(pc.wrapping_sub(SYSTEM_CALL_LEN), CALL_AND_RETURN);
    let is_way_back = |at: u64| WAYS_BACK.iter().any(|code| has(at, code));
    let returns_to = || frame::returns_to(registers, |at| memory.word(at).ok());
    has(pc, SIGNAL_RETURN) || calls && returns_to().is_some_and(is_way_back)
}

/// Has a thread that stands in a restartable sequence (rseq(2)) go on where that is aborted, as the kernel does with one that
/// gets a signal: while it works for us the kernel sees it outside, and would not.
fn abort_section(tracee: &Tracee, memory: &Memory, registers: &mut Registers) -> io::Result<()> {
    let Some(area) = tracee.restartable() else { return Ok(()) };
    let Some(word_at) = area.checked_add(SECTION_AT) else { return Ok(()) };
    let section = memory.word(word_at).unwrap_or(0);
    let word = |at: u64| memory.word(section.checked_add(at)?).ok();
    if section == 0 {
        return Ok(());
    }
    // Version and flags, the section's start and length, where it is aborted (struct rseq_cs, linux/rseq.h).
    let (Some(start), Some(len), Some(abort)) = (word(8), word(16), word(24)) else { return Ok(()) };
    if registers.pc().wrapping_sub(start) < len {
        memory.write(word_at, &0u64.to_ne_bytes())?;
        registers.set_pc(abort);
    }
    Ok(())
}

/// Waits for one kind of stop, letting all others pass.
fn wait_for(tracee: &mut Tracee, wanted: Stop, go_on: fn(&mut Tracee) -> io::Result<()>) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match tracee.wait_until(deadline) {
            None => return Err(late()),
            Some(Stop::Ended) => return Err(lost()),
            Some(stop) if stop == wanted => return Ok(()),
            Some(_) => go_on(tracee)?,
        }
    }
}

/// A stopped thread that makes system calls.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) tracee: Tracee,
    registers: Registers,
    /// What it has between calls: should we be killed, it goes on with these.
    idle: Registers,
    /// Where its calls are made.
    instruction: u64,
    /// It was made by us, and has the program's own table of descriptors until [`Self::unshare_descriptors`].
    shares: bool,
}

impl Worker {
    /// Makes a system call, and says what it gave.
    pub(crate) fn call(&mut self, number: i64, arguments: [u64; 6]) -> io::Result<u64> {
        self.begin(number, arguments)?;
        self.tracee.go_to_system_call()?;
        wait_for(&mut self.tracee, Stop::SystemCall, Tracee::go_to_system_call)?;
        let result = self.result();
        self.tracee.set_registers(&self.idle)?;
        result
    }

    /// To the beginning of a system call.
    fn begin(&mut self, number: i64, arguments: [u64; 6]) -> io::Result<()> {
        let mut registers = self.registers;
        registers.call_system(self.instruction, number, arguments);
        self.tracee.set_registers(&registers)?;
        self.tracee.go_to_system_call()?;
        wait_for(&mut self.tracee, Stop::SystemCall, Tracee::go_to_system_call)
    }

    fn result(&self) -> io::Result<u64> {
        match self.tracee.registers()?.result() {
            error @ -4095..=-1 => Err(io::Error::from_raw_os_error(-error as i32)),
            value => Ok(value as u64),
        }
    }

    /// Gives a thread of our making a table of descriptors of its own, without any of the program's: those would keep files open that
    /// the program closes. As far as the kernel can do without, they are never in it, because closing one has effects: a queue of
    /// messages no longer tells the program of new ones (mq_notify(3)), a file system is asked to write. It copies the first 64.
    pub(crate) fn unshare_descriptors(&mut self) -> io::Result<()> {
        let flags = u64::from(libc::CLOSE_RANGE_UNSHARE);
        match self.call(libc::SYS_close_range, [0, u64::from(u32::MAX), flags, 0, 0, 0]) {
            // Kernels before 5.9 can't be asked this: it has copies, for its short life.
            Err(_) if self.shares => {
                self.call(libc::SYS_unshare, [libc::CLONE_FILES as u64, 0, 0, 0, 0, 0]).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Sets it to run a function on a stack of its own, with a thread pointer of its own, and lets it go there.
    pub(crate) fn run(
        &mut self,
        at: u64,
        stack: u64,
        thread_pointer: u64,
        arguments: [u64; 6],
    ) -> io::Result<()> {
        let mut registers = self.registers;
        registers.set_thread_pointer(thread_pointer);
        registers.call(at, stack, arguments);
        self.tracee.set_registers(&registers)?;
        self.tracee.go_on()
    }

    /// Ends it. It is a thread of our making, and stands.
    pub(crate) fn end(mut self) {
        if self.begin(libc::SYS_exit, [0; 6]).is_ok() && self.tracee.go_on().is_ok() {
            let _ = self.tracee.wait_until(Instant::now() + PATIENCE);
        }
    }
}

/// A thread of the program's, stopped, that makes system calls.
#[derive(Debug)]
pub(crate) struct Borrowed {
    worker: Worker,
    /// As it was.
    registers: Registers,
    mask: u64,
    vectors: Vectors,
    /// Where its frame lies, and what lay there.
    way_back: Option<(u64, Vec<u8>)>,
}

impl Borrowed {
    /// Borrows a thread that is stopped. It goes on if it can't be. With `room` on its stack it comes back by itself when we
    /// are killed.
    pub(crate) fn new(
        tracee: Tracee,
        instructions: Instructions,
        memory: &Memory,
        room: bool,
    ) -> io::Result<Self> {
        let borrowed = || {
            tracee.set_options(WORKING)?;
            let mut registers = tracee.registers()?;
            begin_anew(&tracee, &mut registers);
            abort_section(&tracee, memory, &mut registers)?;
            let mask = tracee.signal_mask()?;
            let vectors = Vectors::of(&tracee)?;
            let back = instructions.back.filter(|_| room && !frame::has_shadow_stack(&tracee));
            let frame = back.and_then(|back| Frame::new(&registers, mask, &vectors, back));
            let (mut calling, mut idle, mut way_back) = (registers, registers, None);
            if let Some(frame) = frame {
                let mut before = vec![0; frame.bytes.len()];
                memory.read(frame.at, &mut before)?;
                memory.write(frame.at, &frame.bytes)?;
                frame.set_way_back(&mut calling);
                frame.stand(&mut idle);
                way_back = Some((frame.at, before));
                tracee.set_registers(&idle)?;
            }
            // Only now, when it has them back by itself.
            tracee.set_signal_mask(ALL_SIGNALS)?;
            Ok((registers, mask, vectors, calling, idle, way_back))
        };
        match borrowed() {
            Ok((registers, mask, vectors, calling, idle, way_back)) => {
                let instruction = instructions.call;
                let worker = Worker { tracee, registers: calling, idle, instruction, shares: false };
                Ok(Self { worker, registers, mask, vectors, way_back })
            }
            Err(error) => {
                tracee.let_go();
                Err(error)
            }
        }
    }

    pub(crate) fn tid(&self) -> i32 {
        self.worker.tracee.tid
    }

    /// The registers that the thread had.
    pub(crate) fn registers(&self) -> &Registers {
        &self.registers
    }

    pub(crate) fn call(&mut self, number: i64, arguments: [u64; 6]) -> io::Result<u64> {
        self.worker.call(number, arguments)
    }

    /// Has it map the code that a made thread runs: at `at`, or where the kernel likes.
    pub(crate) fn map_code(&mut self, memory: &Memory, at: Option<u64>) -> io::Result<u64> {
        let protection = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let fixed = if at.is_some() { libc::MAP_FIXED_NOREPLACE } else { 0 };
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed) as u64;
        let code =
            self.call(libc::SYS_mmap, [at.unwrap_or(0), CODE_BYTES, protection, flags, u64::MAX, 0])?;
        let written = memory.write(code, CALL_AND_EXIT);
        // Where it returns to from the call that makes it.
        match written.and_then(|()| memory.write(code + STACK_AT, &(code + EXIT_AT).to_ne_bytes())) {
            Ok(()) => Ok(code),
            Err(error) => {
                let _ = self.call(libc::SYS_munmap, [code, CODE_BYTES, 0, 0, 0, 0]);
                Err(error)
            }
        }
    }

    /// Has it make a thread that shares its memory and, until [`Worker::unshare_descriptors`], mostly its descriptors, but not its
    /// signals. It stands at its first instruction, traced. `code`: as [`Self::map_code`] gave it.
    pub(crate) fn make_thread(&mut self, code: u64) -> io::Result<Worker> {
        let mut flags =
            libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;
        // Where a filter is against the call by which tables are parted, which does nothing here, it has copies from the start.
        let shares = self.call(libc::SYS_unshare, [0; 6]).is_ok();
        if shares {
            flags |= libc::CLONE_FILES;
        }
        let deadline = Instant::now() + PATIENCE;
        let one = self.worker.registers;
        frame::set_way_of_both(&mut self.worker.registers, code);
        let made = self.made_by_clone(flags, code, deadline);
        self.worker.registers = one;
        let mut tracee = Tracee::born(made?.ok_or_else(lost)?);
        match tracee.wait_until(deadline) {
            None => Err(late()),
            Some(Stop::Ended) => Err(lost()),
            Some(_) => {
                let registers = tracee.registers()?;
                let mut idle = registers;
                idle.stand(code + EXIT_AT, code + STACK_AT);
                tracee.set_registers(&idle)?;
                Ok(Worker { tracee, registers, idle, instruction: code, shares })
            }
        }
    }

    /// The call that makes the thread: its id.
    fn made_by_clone(&mut self, flags: libc::c_int, code: u64, deadline: Instant) -> io::Result<Option<i32>> {
        loop {
            self.worker.begin(libc::SYS_clone, [flags as u64, code + STACK_AT, 0, 0, 0, 0])?;
            let made = self.made(deadline)?;
            let result = self.worker.result();
            self.worker.tracee.set_registers(&self.worker.idle)?;
            match result {
                Ok(_) => return Ok(made),
                // The kernel makes none while a signal waits, SIGSTOP for one; on the way to the next attempt it comes.
                Err(error) if error.raw_os_error() == Some(BEGIN_ANEW) && Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// To the end of the system call, with the id of the thread that it makes.
    fn made(&mut self, deadline: Instant) -> io::Result<Option<i32>> {
        let mut made = None;
        loop {
            self.worker.tracee.go_to_system_call()?;
            match self.worker.tracee.wait_until(deadline) {
                None => return Err(late()),
                Some(Stop::Ended) => return Err(lost()),
                Some(Stop::Clone) => made = Some(self.worker.tracee.child()?),
                Some(Stop::SystemCall) => return Ok(made),
                Some(_) => {}
            }
        }
    }

    /// Lets the thread go on as if nothing had been.
    pub(crate) fn give_back(mut self, memory: &Memory) -> io::Result<()> {
        let stood = self.stand_before_signals(memory).and_then(|()| {
            let tracee = &mut self.worker.tracee;
            tracee.interrupt()?;
            // Its own stop comes before any signal, SIGSTOP too, which nobody can block.
            tracee.go_on_with_signal()?;
            wait_for(tracee, Stop::Asked, Tracee::go_on_with_signal)
        });
        let tracee = self.worker.tracee;
        // Whatever went wrong, it has a right to these. The mask first: until it has its registers, both come from the frame.
        let unblocked = tracee.set_signal_mask(self.mask);
        let restored = tracee.set_registers(&self.registers).and_then(|()| self.vectors.give_back(&tracee));
        // Without them it still has to come back by its frame.
        if let Some((at, before)) = self.way_back.as_ref().filter(|_| restored.is_ok()) {
            let _ = memory.write(*at, before);
        }
        tracee.let_go();
        stood.and(unblocked).and(restored)
    }

    /// Where the kernel makes of an interrupted call what is to be made of it before it is seen to stop, has it do so anew: the
    /// thread is given what it had before that.
    fn stand_before_signals(&mut self, memory: &Memory) -> io::Result<()> {
        let Some((first, before)) = self.registers.before_signals(|at| memory.word(at).ok()) else {
            return Ok(());
        };
        // What it gives is of no interest, but that it was made with this argument.
        self.worker.begin(libc::SYS_getpid, [first, 0, 0, 0, 0, 0])?;
        self.worker.tracee.go_to_system_call()?;
        wait_for(&mut self.worker.tracee, Stop::SystemCall, Tracee::go_to_system_call)?;
        self.worker.tracee.set_registers(&self.worker.idle)?;
        self.worker.tracee.set_signal_mask(self.mask)?;
        self.worker.tracee.set_registers(&before)
    }
}

#[cfg(test)]
mod tests;
