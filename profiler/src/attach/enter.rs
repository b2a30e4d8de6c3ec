//! The way in.
//!
//! One thread of the program is stopped for one system call: it makes another thread, which shares the memory and nothing
//! else, and goes on. That thread is made to map what the agent needs and to start it, while the program runs. Then all
//! other threads are stopped, the hooks go in, and threads that stand inside what changed are moved.

use super::book::Book;
use super::freeze::{FreezeError, Freezer, has_ended, threads};
use super::image::{Damaged, Image, PAGE};
use super::memory::Memory;
use super::native::THREAD_IDS;
use super::target::{MapLine, Target, mappings, why_denied};
use super::tracee::{Stop, Tracee, WORKING};
use super::working::{Borrowed, Worker, instruction};
use super::{leave, stacks};
use grapnel_trace::attached::{ENTRY_SYMBOL, LEDGER_SYMBOL, Ledger, order, state};
use grapnel_trace::shared::HEADER_BYTES;
use std::fs::{self, File};
use std::io;
use std::mem::offset_of;
use std::time::{Duration, Instant};

/// The longest that one thread may take to stop before another is asked.
const STOP_PATIENCE: Duration = Duration::from_millis(100);
/// The longest that the agent may take to prepare.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// The longest that is waited for a moment at which all threads can be stopped.
const FREEZE_PATIENCE: Duration = Duration::from_secs(5);

/// Why the agent did not come in. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnterError {
    #[error("process {pid} can't be traced: {why}")]
    Denied { pid: u32, why: String },
    #[error(
        "no thread of process {0} can be stopped: the kernel lets none stop that waits for its child of vfork or for a device; try again later"
    )]
    NoStop(u32),
    #[error(
        "a thread of process {pid}, {tid}, can't be stopped: it waits for its child of vfork or for a device; try again later"
    )]
    Busy { pid: u32, tid: i32 },
    #[error("process {0} has no instruction that makes system calls where one was looked for")]
    NoInstruction(u32),
    #[error("where process {0} keeps its threads' ids isn't known: its C library is neither glibc nor musl")]
    UnknownThreads(u32),
    #[error("process {0} has ended")]
    Gone(u32),
    #[error("the agent could not start in process {pid}: {why}")]
    Agent { pid: u32, why: String },
    #[error("{what} in process {pid}: {error}")]
    System { pid: u32, what: &'static str, error: io::Error },
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

/// The agent in a process: mapped, and not yet at work.
#[derive(Debug)]
pub(crate) struct Entered {
    pid: u32,
    worker: Worker,
    entry: u64,
    stack: (u64, u64),
    thread_at: u32,
    header: u64,
    image_len: u64,
    /// Where the ledger lies.
    pub(crate) ledger: u64,
    pub(crate) memory: Memory,
}

/// What stopping all threads cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stood {
    pub(crate) threads: usize,
    pub(crate) time: Duration,
}

const STACK_BYTES: u64 = 1 << 20;
/// At the end of the stack: what the thread pointer points to.
const BLOCK_BYTES: u64 = PAGE;

const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
const PRIVATE: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
const SHARED: u64 = (libc::MAP_SHARED | libc::MAP_NORESERVE) as u64;
const NO_FILE: u64 = u64::MAX;

/// Brings the agent into a process, and the session's memory, which is given back as a file.
pub(crate) fn enter(target: &Target, freezer: &mut Freezer) -> Result<(Entered, File), EnterError> {
    let pid = target.pid;
    let system = |what| move |error| EnterError::System { pid, what, error };
    let image = Image::new()?;
    let memory = Memory::open(pid).map_err(|_| EnterError::Denied { pid, why: why_denied(pid) })?;
    let instruction =
        instruction(&memory, &maps_of(pid)?, |_| true).map_err(|_| EnterError::NoInstruction(pid))?;
    let mut borrowed = borrow(pid, instruction, freezer)?;
    let thread_at = thread_at(pid, &borrowed, &memory);
    let made = thread_at.map(|_| borrowed.make_thread());
    borrowed.give_back().map_err(system("a thread can't be given back"))?;
    let (Some(thread_at), Some(made)) = (thread_at, made) else {
        return Err(EnterError::UnknownThreads(pid));
    };
    let worker = made.map_err(system("a thread can't be made"))?;
    let mut making = Making { pid, worker, memory, mapped: Vec::new() };
    let made = making.everything(target, &image, thread_at);
    let Making { worker, memory, mapped, .. } = making;
    match made {
        Ok(made) => {
            let entered = Entered {
                pid,
                worker,
                entry: made.image + image.symbol(ENTRY_SYMBOL)?,
                stack: made.stack,
                thread_at,
                header: made.header,
                image_len: image.len(),
                ledger: made.ledger,
                memory,
            };
            Ok((entered, made.session))
        }
        Err(error) => {
            undo(worker, &mapped);
            Err(error)
        }
    }
}

/// Unmaps what was mapped, and ends the thread.
fn undo(mut worker: Worker, mapped: &[(u64, u64)]) {
    for &(start, len) in mapped {
        let _ = worker.call(libc::SYS_munmap, [start, len, 0, 0, 0, 0]);
    }
    worker.end();
}

/// What the worker maps.
struct Made {
    stack: (u64, u64),
    header: u64,
    image: u64,
    ledger: u64,
    session: File,
}

struct Making {
    pid: u32,
    worker: Worker,
    memory: Memory,
    mapped: Vec<(u64, u64)>,
}

impl Making {
    fn map(&mut self, len: u64, protection: u64, flags: u64, file: u64) -> Result<u64, EnterError> {
        let (pid, what) = (self.pid, "memory can't be mapped");
        let start = self.worker.call(libc::SYS_mmap, [0, len, protection, flags, file, 0]);
        let start = start.map_err(|error| EnterError::System { pid, what, error })?;
        self.mapped.push((start, len));
        Ok(start)
    }

    fn everything(&mut self, target: &Target, image: &Image, thread_at: u32) -> Result<Made, EnterError> {
        let pid = self.pid;
        let system = |what| move |error| EnterError::System { pid, what, error };
        // The thread has a copy of the program's descriptors, which would keep files open that the program closes. Kernels
        // before 5.9 can't be asked this, and it keeps them for its short life.
        let _ = self.worker.call(libc::SYS_close_range, [0, u64::from(u32::MAX), 0, 0, 0, 0]);
        let stack = self.map(STACK_BYTES, READ_WRITE, PRIVATE, NO_FILE)?;
        self.write(stack, b"grapnel-session\0")?;
        let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        let session = self.worker.call(libc::SYS_memfd_create, [stack, flags, 0, 0, 0, 0]);
        let session = session.map_err(system("memory to share can't be made"))?;
        let path = format!("/proc/{pid}/task/{}/fd/{session}", self.worker.tracee.tid);
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(system("memory to share can't be opened from here"))?;
        let header = self.map(HEADER_BYTES, READ_WRITE, SHARED, session)?;
        let _ = self.worker.call(libc::SYS_close, [session, 0, 0, 0, 0, 0]);
        let base = self.map(image.len(), READ_WRITE, PRIVATE, NO_FILE)?;
        self.write(base, &image.at(base))?;
        for segment in &image.segments {
            let (start, len) = (base + segment.range.start, segment.range.end - segment.range.start);
            let protected =
                self.worker.call(libc::SYS_mprotect, [start, len, segment.protection as u64, 0, 0, 0]);
            protected.map_err(system("the agent's code can't be made executable"))?;
        }
        self.write(stack, b"grapnel-agent\0")?;
        let (option, what) = (libc::PR_SET_VMA as u64, libc::PR_SET_VMA_ANON_NAME as u64);
        // Kernels that keep no such names do without.
        let _ = self.worker.call(libc::SYS_prctl, [option, what, base, image.len(), stack, 0]);
        let ledger = base + image.symbol(LEDGER_SYMBOL)?;
        let (program_headers, count) = target.program_headers;
        for (offset, value) in [
            (offset_of!(Ledger, image), base),
            (offset_of!(Ledger, program_headers), program_headers),
            (offset_of!(Ledger, program_header_count), count),
        ] {
            self.write(ledger + offset as u64, &value.to_ne_bytes())?;
        }
        // As the ABI and the agent want it: the pointer to itself, and the thread's id, which is nobody else's.
        let block = stack + STACK_BYTES - BLOCK_BYTES;
        self.write(block, &block.to_ne_bytes())?;
        self.write(block + u64::from(thread_at), &u32::MAX.to_ne_bytes())?;
        Ok(Made { stack: (stack, STACK_BYTES), header, image: base, ledger, session: file })
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), EnterError> {
        let (pid, what) = (self.pid, "memory can't be written");
        self.memory.write(at, bytes).map_err(|error| EnterError::System { pid, what, error })
    }
}

fn maps_of(pid: u32) -> Result<Vec<MapLine>, EnterError> {
    mappings(pid).map_err(|_| EnterError::Gone(pid))
}

/// Stops one thread: the first that can be.
fn borrow(pid: u32, instruction: u64, freezer: &mut Freezer) -> Result<Borrowed, EnterError> {
    let all = threads(pid).map_err(|_| EnterError::Gone(pid))?;
    let mut ended = true;
    for tid in all {
        let mut tracee = match Tracee::seize(tid, WORKING) {
            Ok(tracee) => tracee,
            Err(_) if has_ended(pid, tid) => continue,
            Err(_) => return Err(EnterError::Denied { pid, why: why_denied(pid) }),
        };
        ended = false;
        let _ = tracee.interrupt();
        match tracee.wait_until(Instant::now() + STOP_PATIENCE) {
            None => freezer.expect(tracee),
            Some(Stop::Ended) => {}
            // A signal is about to be delivered: that goes first.
            Some(Stop::Signal(_)) => tracee.let_go(),
            Some(_) => {
                let system = |error| EnterError::System { pid, what: "a thread can't be borrowed", error };
                return Borrowed::new(tracee, instruction).map_err(system);
            }
        }
    }
    Err(if ended { EnterError::Gone(pid) } else { EnterError::NoStop(pid) })
}

/// Where threads keep their ids, from the thread pointer, as this one shows.
fn thread_at(pid: u32, borrowed: &Borrowed, memory: &Memory) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{}/status", borrowed.tid())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let id: u32 = line?.split_whitespace().last()?.parse().ok()?;
    let pointer = borrowed.registers().thread_pointer();
    let holds = |at: &u32| {
        let mut bytes = [0; 4];
        memory.read(pointer.checked_add(u64::from(*at)).unwrap_or(0), &mut bytes).is_ok()
            && u32::from_ne_bytes(bytes) == id
    };
    (pointer != 0 && memory.word(pointer).ok()? == pointer).then(|| THREAD_IDS.into_iter().find(holds))?
}

impl Entered {
    /// Has the agent prepare everything, while the program runs.
    pub(crate) fn prepare(&mut self, message: impl Fn() -> Option<String>) -> Result<(), EnterError> {
        let (pid, (stack, stack_len)) = (self.pid, self.stack);
        let block = stack + stack_len - BLOCK_BYTES;
        let arguments =
            [self.header, HEADER_BYTES, stack, stack_len, self.image_len, u64::from(self.thread_at)];
        let run = self.worker.run(self.entry, block, block, arguments);
        run.map_err(|error| EnterError::System { pid, what: "the agent can't be started", error })?;
        let reached = self.wait_for(state::PREPARED, START_PATIENCE, Duration::from_micros(200));
        reached.map_err(|why| EnterError::Agent { pid, why: message().unwrap_or(why) })
    }

    /// Waits until the agent's start has come to `wanted`.
    fn wait_for(&mut self, wanted: u32, patience: Duration, nap: Duration) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        loop {
            let ended = match self.worker.tracee.stopped() {
                Some(Stop::Ended) => true,
                Some(Stop::Signal(signal)) => {
                    return Err(format!("a fault in the agent itself (signal {signal})"));
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
                Some(state::FAILED) => return Err("it gave up".into()),
                _ => return Err("its thread ended".into()),
            }
            if nap.is_zero() {
                std::thread::yield_now();
            } else {
                std::thread::sleep(nap);
            }
        }
    }

    fn state(&self) -> Option<u32> {
        let mut bytes = [0; 4];
        self.memory.read(self.ledger + offset_of!(Ledger, state) as u64, &mut bytes).ok()?;
        Some(u32::from_ne_bytes(bytes))
    }

    fn order(&self, order: u32) -> io::Result<()> {
        self.memory.write(self.ledger + offset_of!(Ledger, order) as u64, &order.to_ne_bytes())
    }

    /// Stops all threads, has the hooks go in, and lets all go on.
    pub(crate) fn commit(
        &mut self,
        freezer: &mut Freezer,
        message: impl Fn() -> Option<String>,
    ) -> Result<Stood, EnterError> {
        let pid = self.pid;
        let agent = |why| EnterError::Agent { pid, why: message().unwrap_or(why) };
        let deadline = Instant::now() + FREEZE_PATIENCE;
        let (mut frozen, since) = loop {
            let since = Instant::now();
            match freezer.freeze(Some(self.worker.tracee.tid)) {
                Ok(frozen) => break (frozen, since),
                Err(FreezeError::Gone) => return Err(EnterError::Gone(pid)),
                Err(FreezeError::Refused(_)) => {
                    return Err(EnterError::Denied { pid, why: why_denied(pid) });
                }
                Err(FreezeError::Busy(tid)) if Instant::now() > deadline => {
                    return Err(EnterError::Busy { pid, tid });
                }
                Err(FreezeError::Busy(_)) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let maps = maps_of(pid);
        let committed = maps.and_then(|maps| {
            self.order(order::COMMIT).map_err(|error| agent(error.to_string()))?;
            let reached = self.wait_for(state::COMMITTED, Duration::from_secs(2), Duration::ZERO);
            // Whatever was changed, threads must not stand inside of it.
            let moved = Book::read(&self.memory, self.ledger)
                .and_then(|book| stacks::move_out_of_edits(&mut frozen, &self.memory, &maps, &book));
            reached.map_err(agent)?;
            moved.map_err(|error| agent(error.to_string()))
        });
        let threads = frozen.len();
        frozen.let_go();
        committed.map(|()| Stood { threads, time: since.elapsed() })
    }

    /// After all went well: the agent's thread has ended, or is about to.
    pub(crate) fn finish(mut self) -> Memory {
        let deadline = Instant::now() + START_PATIENCE;
        while !matches!(self.worker.tracee.wait_until(deadline), None | Some(Stop::Ended)) {
            let _ = self.worker.tracee.go_on();
        }
        self.memory
    }

    /// After something went wrong: takes all of it out again.
    pub(crate) fn give_up(self, freezer: &mut Freezer) {
        let Self { pid, mut worker, ledger, memory, .. } = self;
        let _ = memory.write(ledger + offset_of!(Ledger, order) as u64, &order::LEAVE.to_ne_bytes());
        // It sees the order within a moment, or stands where a fault stopped it.
        if !matches!(worker.tracee.wait_until(Instant::now() + Duration::from_millis(200)), Some(Stop::Ended))
        {
            let _ = worker.tracee.interrupt();
            let stop = worker.tracee.wait_until(Instant::now() + STOP_PATIENCE);
            if stop.is_some_and(|stop| stop != Stop::Ended) || worker.tracee.gets_signal() {
                worker.end();
            }
        }
        let _ = leave::leave(pid, freezer, &memory, ledger);
    }
}
