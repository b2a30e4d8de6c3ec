//! The way in.
//!
//! One thread of the program is stopped for one system call: it makes another thread, which shares the memory and nothing
//! else, and goes on. That thread is made to map what the agent needs, while the program runs. What it does then is in
//! `entered`.

use super::detach::leave_others;
use super::entered::Entered;
use super::found::has_another;
use super::freeze::{Freezer, Late, begin_anew_in, has_ended, pass_on, threads};
use super::guard::Guard;
use super::image::{Damaged, Image, PAGE};
use super::leave::{Agent, Begun, LeaveError, Place, leave};
use super::loader::Objects;
use super::memory::Memory;
use super::native::{self, ADDRESSES_END, POINTER_AT, Registers};
use super::reaping::while_reaping;
use super::remedies::{NO_CODE, what_helps};
use super::rights::why_denied;
use super::target::{MapLine, Target, inner_thread, mappings, maps_text};
use super::tracee::{Stop, Tracee};
use super::working::{Borrowed, CODE_BYTES, Instructions, NAME, NAME_AT, Worker, is_on_own_stack};
use crate::opened::say;
use grapnel_trace::attached::{ENTRY_SYMBOL, LEDGER_SYMBOL, Ledger, Mapping, PATH_BYTES};
use grapnel_trace::shared::{HEADER_BYTES, SessionHeader};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

/// The longest that one thread may take to stop before another is asked.
const STOP_PATIENCE: Duration = Duration::from_millis(100);
/// The longest that is waited for one that stops.
const BORROW_PATIENCE: Duration = Duration::from_secs(5);

/// Why the agent did not come in. What had come in was taken out, or [`super::leave`] has said why not.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnterError {
    #[error("process {pid} can't be traced: {why}")]
    Denied { pid: u32, why: String },
    #[error(
        "no thread of process {0} could be stopped in {seconds} seconds: the kernel lets none stop that waits for its child of vfork or for a \
         device, nor one that gets no processor; try again later",
        seconds = BORROW_PATIENCE.as_secs()
    )]
    NoStop(u32),
    #[error(
        "the threads of process {pid} could not be stopped together in {seconds} seconds: {late}; try again"
    )]
    Busy { pid: u32, late: Late, seconds: u64 },
    #[error(
        "no thread of process {0} was found in 64-bit code: it runs 32-bit code, as Wine's programs do, where none can be borrowed; try again"
    )]
    Foreign(u32),
    #[error("process {0} has just become another program; try again")]
    Changed(u32),
    #[error("process {0} has no instruction that makes system calls where one was looked for")]
    NoInstruction(u32),
    #[error("where process {0} keeps its threads' ids isn't known: its C library is neither glibc nor musl")]
    UnknownThreads(u32),
    #[error("another grapnel has begun to attach to process {0} at the same time; try again in a moment")]
    Another(u32),
    #[error("process {0} has ended")]
    Gone(u32),
    #[error(
        "process {0} opened or closed libraries each time that it was looked which it has; try again in a moment"
    )]
    Loading(u32),
    #[error("the agent could not start in process {pid}: {why}")]
    Agent { pid: u32, why: String },
    #[error("{what} in process {pid}: {error}{}", what_helps(*pid, what, error))]
    System { pid: u32, what: &'static str, error: io::Error },
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

const STACK_BYTES: u64 = 1 << 20;
/// At the end of the stack: what the thread pointer points into.
pub(super) const BLOCK_BYTES: u64 = PAGE;

const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
const PRIVATE: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
const SHARED: u64 = (libc::MAP_SHARED | libc::MAP_NORESERVE) as u64;
const FIXED: u64 = libc::MAP_FIXED as u64;
const NO_FILE: u64 = u64::MAX;

/// How far below the end of a large gap of the address space something is put so that nobody else puts anything there:
/// the kernel goes down from that end.
const APART: u64 = 1 << 30;
/// How many places there are for it, one of which is taken by chance.
const PLACES: u64 = 1 << 22;

/// Brings the agent into a process, and the session's memory, which is given back as a file.
pub(crate) fn enter(
    target: &Target,
    freezer: &mut Freezer,
    guard: &mut Guard,
) -> Result<(Entered, File), EnterError> {
    enter_program(target, freezer, guard).map_err(|error| match target.has_changed() {
        true => EnterError::Changed(target.pid),
        false => error,
    })
}

fn enter_program(
    target: &Target,
    freezer: &mut Freezer,
    guard: &mut Guard,
) -> Result<(Entered, File), EnterError> {
    let pid = target.pid;
    let system = |what| move |error| EnterError::System { pid, what, error };
    let image = Image::new()?;
    let entry = image.symbol(ENTRY_SYMBOL)?;
    let memory = target.memory.again().map_err(system("its memory can't be opened again"))?;
    let maps = maps_of(pid)?;
    let objects = Objects::read(&memory, target.program_headers);
    let stays =
        |line: &MapLine| objects.as_ref().is_none_or(|objects| objects.are_programs(line.range.start));
    let instructions =
        Instructions::find(&memory, &maps, |_| true, stays).map_err(|_| EnterError::NoInstruction(pid))?;
    let mut borrowed = borrow(pid, instructions, &memory, &maps, freezer)?;
    let thread_at = thread_at(pid, &borrowed, &memory);
    let made = thread_at.map(|_| make_thread(&mut borrowed, &memory, &maps, guard));
    let given_back = borrowed.give_back(&memory);
    let (Some(thread_at), Some(made)) = (thread_at, made) else {
        return Err(EnterError::UnknownThreads(pid));
    };
    let (made, code) = made.map_err(system("memory can't be mapped"))?;
    let begun = Begun { code: Some(code), session: None };
    let mut worker = match made {
        Ok(worker) => worker,
        Err(error) => {
            // If there is one after all, it is waited for.
            let _ = leave(pid, freezer, &memory, Agent::Begun(begun));
            return Err(system("a thread can't be made")(error));
        }
    };
    pass_on(pid, &mut worker.tracee);
    if let Err(error) = given_back {
        undo(pid, freezer, &memory, worker, begun);
        return Err(system("a thread can't be given back")(error));
    }
    let mut making = Making { pid, worker, memory, code, begun, guard };
    let made = making.everything(target, &image, thread_at);
    let Making { mut worker, memory, begun, .. } = making;
    pass_on(pid, &mut worker.tracee);
    match made {
        Ok(Made { stack, header, image, place, session }) => {
            let entry = image + entry;
            let entered = Entered {
                pid,
                worker,
                entry,
                stack,
                thread_at,
                header,
                place,
                memory,
                program_headers: target.program_headers,
                listed: None,
                begun,
                runs: false,
                busy: false,
            };
            Ok((entered, session))
        }
        Err(error) => {
            undo(pid, freezer, &memory, worker, begun);
            Err(error)
        }
    }
}

/// Has a borrowed thread map the code that another runs, which is told to the guard, and make that.
fn make_thread(
    borrowed: &mut Borrowed,
    memory: &Memory,
    maps: &[MapLine],
    guard: &mut Guard,
) -> io::Result<(io::Result<Worker>, u64)> {
    let apart = apart(maps, RandomState::new().build_hasher().finish());
    if let Some(at) = apart {
        guard.tell_code(at);
    }
    let code = match apart.map(|at| borrowed.map_code(memory, Some(at))) {
        Some(Ok(code)) => code,
        // Should we be killed right now, this page may stay.
        _ => borrowed.map_code(memory, None)?,
    };
    guard.tell_code(code);
    Ok((borrowed.make_thread(code), code))
}

/// A place for a page in the largest gap between mappings, if that is large enough for nobody else to come there.
fn apart(maps: &[MapLine], random: u64) -> Option<u64> {
    let ends = maps.iter().map(|line| &line.range).filter(|range| range.end <= ADDRESSES_END);
    let gaps = ends.clone().zip(ends.skip(1)).map(|(below, above)| below.end..above.start);
    let largest = gaps.max_by_key(|gap| gap.end.saturating_sub(gap.start))?;
    let at = largest.end.checked_sub(APART + random % PLACES * PAGE)?;
    at.checked_sub(APART).filter(|&start| start >= largest.start).map(|_| at)
}

/// Ends the thread, which runs code of what it has mapped, and has one of the program's unmap that.
pub(super) fn undo(pid: u32, freezer: &mut Freezer, memory: &Memory, worker: Worker, begun: Begun) {
    worker.end();
    // What can't be unmapped stays; nobody uses it.
    if let Err(error) = leave(pid, freezer, memory, Agent::Begun(begun))
        && !matches!(error, LeaveError::Gone(_))
    {
        say(&error.to_string());
    }
    leave_others(Agent::Begun(begun), Vec::new(), true);
}

/// What the worker maps.
struct Made {
    stack: (u64, u64),
    header: u64,
    image: u64,
    place: Place,
    session: File,
}

struct Making<'g> {
    pid: u32,
    worker: Worker,
    memory: Memory,
    /// Where the thread's code was mapped.
    code: u64,
    begun: Begun,
    guard: &'g mut Guard,
}

impl Making<'_> {
    fn map(&mut self, at: u64, len: u64, flags: u64, file: u64) -> Result<u64, EnterError> {
        let (pid, what) = (self.pid, "memory can't be mapped");
        let start = self.worker.call(libc::SYS_mmap, [at, len, READ_WRITE, flags, file, 0]);
        start.map_err(|error| EnterError::System { pid, what, error })
    }

    fn everything(&mut self, target: &Target, image: &Image, thread_at: u32) -> Result<Made, EnterError> {
        let pid = self.pid;
        let system = |what| move |error| EnterError::System { pid, what, error };
        self.worker.unshare_descriptors().map_err(system("a thread can't have descriptors of its own"))?;
        let code = self.code;
        self.write(code + NAME_AT, NAME)?;
        let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        let session = self.worker.call(libc::SYS_memfd_create, [code + NAME_AT, flags, 0, 0, 0, 0]);
        let session = session.map_err(system("memory to share can't be made"))?;
        let path = format!("/proc/{pid}/task/{}/fd/{session}", self.worker.tracee.tid);
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(system("memory to share can't be opened from here"))?;
        let inode = file.metadata().map_err(system("memory to share can't be looked at"))?.ino();
        // All that follows lies where the session's memory was mapped, which the guard knows by this number from the start.
        self.begun.session = Some(inode);
        self.guard.tell_session(inode);
        let text = maps_text(pid, self.worker.tracee.tid).map_err(system("its mappings can't be read"))?;
        let text_len = (text.len() as u64).next_multiple_of(PAGE);
        let len = HEADER_BYTES + image.len() + STACK_BYTES + text_len;
        let note = |offset: usize, word: u64| {
            let noted = file.write_all_at(&word.to_ne_bytes(), offset as u64);
            noted.map_err(system("memory to share can't be written"))
        };
        // Should the guard be killed too, these say to others what is there.
        note(offset_of!(SessionHeader, reserved), len)?;
        note(offset_of!(SessionHeader, thread_code), code)?;
        let header = self.map(0, len, SHARED, session)?;
        let _ = self.worker.call(libc::SYS_close, [session, 0, 0, 0, 0, 0]);
        // Two that come at once both see each other, or the later one does.
        if has_another(&maps_of(pid)?, inode) {
            return Err(EnterError::Another(pid));
        }
        let base = self.map(header + HEADER_BYTES, image.len(), PRIVATE | FIXED, NO_FILE)?;
        let stack = self.map(base + image.len(), STACK_BYTES, PRIVATE | FIXED, NO_FILE)?;
        let text_at = self.map(stack + STACK_BYTES, text_len, PRIVATE | FIXED, NO_FILE)?;
        self.write(base, &image.at(base))?;
        self.write(text_at, &text)?;
        for segment in &image.segments {
            let (start, len) = (base + segment.range.start, segment.range.end - segment.range.start);
            let protected =
                self.worker.call(libc::SYS_mprotect, [start, len, segment.protection as u64, 0, 0, 0]);
            protected.map_err(system(NO_CODE))?;
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
            (offset_of!(Ledger, namespace), target.namespace),
            (offset_of!(Ledger, maps) + offset_of!(Mapping, start), text_at),
            (offset_of!(Ledger, maps) + offset_of!(Mapping, len), text.len() as u64),
        ] {
            self.write(ledger + offset as u64, &value.to_ne_bytes())?;
        }
        let path = target.executable.as_os_str().as_bytes();
        self.write(ledger + offset_of!(Ledger, executable) as u64, &path[..path.len().min(PATH_BYTES - 1)])?;
        if let Some(linked) = &target.linked {
            self.write(ledger + offset_of!(Ledger, linked) as u64, &linked.to_bytes())?;
        }
        let mapped = [
            (code, CODE_BYTES),
            (header, HEADER_BYTES),
            (base, image.len()),
            (stack, STACK_BYTES),
            (text_at, text_len),
        ];
        self.note(ledger, &mapped)?;
        // As the ABI and the agent want it: the pointer to itself, and the thread's id, which is nobody else's.
        let pointer = stack + STACK_BYTES - BLOCK_BYTES + POINTER_AT;
        self.write(pointer, &pointer.to_ne_bytes())?;
        self.write(native::id_at(pointer, thread_at), &u32::MAX.to_ne_bytes())?;
        note(offset_of!(SessionHeader, ledger), ledger)?;
        let place = Place { ledger, inode };
        Ok(Made { stack: (stack, STACK_BYTES), header, image: base, place, session: file })
    }

    /// Notes what was mapped, before the agent notes more: whoever undoes all needs nothing of what it does.
    fn note(&self, ledger: u64, mapped: &[(u64, u64)]) -> Result<(), EnterError> {
        for (index, (start, len)) in mapped.iter().enumerate() {
            let entry = ledger + (offset_of!(Ledger, mappings) + index * size_of::<Mapping>()) as u64;
            self.write(entry + offset_of!(Mapping, start) as u64, &start.to_ne_bytes())?;
            self.write(entry + offset_of!(Mapping, len) as u64, &len.to_ne_bytes())?;
        }
        let count = mapped.len() as u32;
        self.write(ledger + offset_of!(Ledger, mapping_count) as u64, &count.to_ne_bytes())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), EnterError> {
        let (pid, what) = (self.pid, "memory can't be written");
        self.memory.write(at, bytes).map_err(|error| EnterError::System { pid, what, error })
    }
}

pub(super) fn maps_of(pid: u32) -> Result<Vec<MapLine>, EnterError> {
    mappings(pid).map_err(|_| EnterError::Gone(pid))
}

/// Stops one thread: the first that can be, and if there is one, on a stack that is surely its own.
fn borrow(
    pid: u32,
    instructions: Instructions,
    memory: &Memory,
    maps: &[MapLine],
    freezer: &mut Freezer,
) -> Result<Borrowed, EnterError> {
    let wanted = |registers: &Registers| is_on_own_stack(registers, maps) && !registers.is_resumed();
    let deadline = Instant::now() + BORROW_PATIENCE;
    loop {
        let found = match borrow_one(pid, instructions, memory, maps, freezer, &wanted) {
            Err(EnterError::NoStop(_) | EnterError::Foreign(_)) => {
                borrow_one(pid, instructions, memory, maps, freezer, &|_| true)
            }
            found => found,
        };
        match found {
            // One that gets no time to stop (a control group's quota) may later, another grapnel goes, and other code ends.
            Err(EnterError::NoStop(_) | EnterError::Denied { .. } | EnterError::Foreign(_))
                if Instant::now() < deadline =>
            {
                std::thread::sleep(STOP_PATIENCE / 5);
                freezer.tend();
            }
            found => return found,
        }
    }
}

/// Stops the first thread that suits.
fn borrow_one(
    pid: u32,
    instructions: Instructions,
    memory: &Memory,
    maps: &[MapLine],
    freezer: &mut Freezer,
    suits: &dyn Fn(&Registers) -> bool,
) -> Result<Borrowed, EnterError> {
    let all = threads(pid).map_err(|_| EnterError::Gone(pid))?;
    let (mut ended, mut is_foreign) = (true, false);
    for tid in all {
        if freezer.expects(tid) {
            ended = false;
            continue;
        }
        // Nothing is asked of it but to stop: a thread that is making another must be through with that before it is given anything
        // else to do.
        let seized = while_reaping(pid, || {
            let mut tracee = Tracee::seize(tid, 0)?;
            let _ = tracee.interrupt();
            Ok::<_, io::Error>(tracee)
        });
        let mut tracee = match seized {
            Ok(tracee) => tracee,
            Err(_) if has_ended(pid, tid) => continue,
            Err(_) => return Err(EnterError::Denied { pid, why: why_denied(pid) }),
        };
        ended = false;
        match tracee.wait_until(Instant::now() + STOP_PATIENCE) {
            None => freezer.expect(tracee),
            Some(Stop::Ended) => {}
            // A signal is about to be delivered: that goes first.
            Some(Stop::Signal(_)) => tracee.let_go(),
            Some(_) => {
                let registers = tracee.registers().ok();
                is_foreign |= registers.is_some_and(|registers| !registers.is_native());
                let suits = |registers: &Registers| registers.is_native() && suits(registers);
                let Some(registers) = registers.filter(suits) else {
                    begin_anew_in(&tracee);
                    tracee.let_go();
                    continue;
                };
                let system = |error| EnterError::System { pid, what: "a thread can't be borrowed", error };
                let room = is_on_own_stack(&registers, maps);
                return Borrowed::new(tracee, instructions, memory, room).map_err(system);
            }
        }
    }
    Err(match () {
        () if ended => EnterError::Gone(pid),
        () if is_foreign => EnterError::Foreign(pid),
        () => EnterError::NoStop(pid),
    })
}

/// How far from the thread pointer threads keep their ids, as this one shows.
fn thread_at(pid: u32, borrowed: &Borrowed, memory: &Memory) -> Option<u32> {
    let id = inner_thread(pid, borrowed.tid())?;
    let pointer = borrowed.registers().thread_pointer();
    native::thread_at(pointer, id, |at| memory.word(at).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_apart_is_in_the_largest_gap_and_far_from_its_ends() {
        let line =
            |range| MapLine { range, readable: true, executable: false, inode: 0, name: String::new() };
        let ends = 0x1000_0000_0000..0x7f00_0000_0000;
        let maps = [
            line(0x1000..0x2000),
            line(0x0fff_0000_0000..ends.start),
            line(ends.end..0x7f00_0000_1000),
            line(0x7fff_0000_0000..0x7fff_0001_0000),
            // The kernel's own, behind what is nobody's.
            line(0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000),
        ];
        for random in [0, 1, 12345, u64::MAX] {
            let at = apart(&maps, random).unwrap();
            assert!(at.is_multiple_of(PAGE) && at >= ends.start + APART && at <= ends.end - APART, "{at:#x}");
        }
        assert_ne!(apart(&maps, 1), apart(&maps, 2));
        assert_eq!(apart(&maps[..2], 0), Some(0x0fff_0000_0000 - APART));
        assert_eq!(apart(&[line(0..0x1000), line(0x4000_1000..0x4000_2000)], 0), None);
        assert_eq!(apart(&[], 0), None);
    }
}
