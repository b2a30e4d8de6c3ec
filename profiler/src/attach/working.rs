//! Threads that make system calls for us: one of the program's, borrowed for a moment, and the one that it makes.
//!
//! What a borrowed thread was about, a system call that our stop interrupted included, goes on by the kernel's own rules:
//! before it is let go it is stopped once more where the kernel looks for signals, with the registers that it had there.

use super::freeze::begin_anew;
use super::memory::Memory;
use super::native::{Registers, SYSTEM_CALL};
use super::target::MapLine;
use super::tracee::{Stop, Tracee};
use std::io;
use std::time::{Duration, Instant};

/// What is waited for takes microseconds, and longer only on a machine that has no time for it.
const PATIENCE: Duration = Duration::from_secs(5);

const ALL_SIGNALS: u64 = u64::MAX;

/// How much of a mapping is looked through.
const MOST_CODE: u64 = 16 << 20;

fn lost() -> io::Error {
    io::Error::other("the thread ended in the middle of it")
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the thread did not answer in time")
}

/// Waits for one kind of stop, letting all others pass.
fn wait_for(tracee: &mut Tracee, wanted: Stop, go_on: fn(&Tracee) -> io::Result<()>) -> io::Result<()> {
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
    /// Where an instruction is that makes system calls.
    instruction: u64,
}

impl Worker {
    /// Makes a system call, and says what it gave.
    pub(crate) fn call(&mut self, number: i64, arguments: [u64; 6]) -> io::Result<u64> {
        self.begin(number, arguments)?;
        self.tracee.go_to_system_call()?;
        wait_for(&mut self.tracee, Stop::SystemCall, Tracee::go_to_system_call)?;
        self.result()
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

    /// Ends it. It is a thread of our making.
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
}

impl Borrowed {
    /// Borrows a thread that is stopped.
    pub(crate) fn new(tracee: Tracee, instruction: u64) -> io::Result<Self> {
        let mut registers = tracee.registers()?;
        begin_anew(&tracee, &mut registers);
        let mask = tracee.signal_mask()?;
        tracee.set_signal_mask(ALL_SIGNALS)?;
        Ok(Self { worker: Worker { tracee, registers, instruction }, registers, mask })
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

    /// Has it make a thread that shares its memory, and neither its descriptors nor its signals. It stands at its first
    /// instruction, traced.
    pub(crate) fn make_thread(&mut self) -> io::Result<Worker> {
        let flags =
            libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;
        self.worker.begin(libc::SYS_clone, [flags as u64, 0, 0, 0, 0, 0])?;
        let mut made = None;
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.worker.tracee.go_to_system_call()?;
            match self.worker.tracee.wait_until(deadline) {
                None => return Err(late()),
                Some(Stop::Ended) => return Err(lost()),
                Some(Stop::Clone) => made = Some(self.worker.tracee.child()?),
                Some(Stop::SystemCall) => break,
                Some(_) => {}
            }
        }
        self.worker.result()?;
        let mut tracee = Tracee::born(made.ok_or_else(lost)?);
        match tracee.wait_until(deadline) {
            None => Err(late()),
            Some(Stop::Ended) => Err(lost()),
            Some(_) => {
                let registers = tracee.registers()?;
                Ok(Worker { tracee, registers, instruction: self.worker.instruction })
            }
        }
    }

    /// Lets the thread go on as if nothing had been.
    pub(crate) fn give_back(self) -> io::Result<()> {
        let Worker { mut tracee, .. } = self.worker;
        tracee.interrupt()?;
        tracee.go_on()?;
        wait_for(&mut tracee, Stop::Asked, Tracee::go_on)?;
        tracee.set_registers(&self.registers)?;
        tracee.set_signal_mask(self.mask)?;
        tracee.let_go();
        Ok(())
    }
}

/// Where an instruction lies that makes system calls, in code that `may` be used: the vDSO has some, and C libraries many.
pub(crate) fn instruction(
    memory: &Memory,
    maps: &[MapLine],
    may: impl Fn(&MapLine) -> bool,
) -> io::Result<u64> {
    let mut maps: Vec<_> = maps.iter().filter(|line| line.executable && line.readable && may(line)).collect();
    maps.sort_by_key(|line| line.name != "[vdso]");
    for line in maps {
        let mut code = vec![0; (line.range.end - line.range.start).min(MOST_CODE) as usize];
        let read = memory.read_some(line.range.start, &mut code);
        let found = code[..read].windows(SYSTEM_CALL.len()).position(|bytes| bytes == SYSTEM_CALL);
        if let Some(at) = found {
            return Ok(line.range.start + at as u64);
        }
    }
    Err(io::Error::other("no instruction that makes system calls was found"))
}
