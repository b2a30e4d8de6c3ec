//! `record_allocs`: each call, until a signal has all of them written to a file.
//!
//! ```text
//! THREAD: malloc POINTER SIZE BEGIN END
//! THREAD: calloc POINTER COUNT SIZE BEGIN END
//! THREAD: realloc POINTER OLD_POINTER SIZE BEGIN END
//! THREAD: memalign POINTER ALIGNMENT SIZE BEGIN END
//! THREAD: free POINTER BEGIN END
//! THREAD: thread_done 0x0 END
//! ```
//! The times are nanoseconds of the monotonic clock. Who reads a file from its start meets each address as a program that
//! has one thread: a block's allocation is noted after it was given, its end before it is given back, and what the
//! allocator's own `realloc` did before anybody notes the old block's address as another one's.
//!
//! # Safety
//! The entries are used under [`LOCK`], under which nothing waits for the target. The allocator works under no lock: it may
//! end the program there, and handlers of the program's allocate, or jump out.

use super::kernel::{File, reason};
use super::log::log;
use super::options::Options;
use crate::hooks;
use crate::lock::{Guard, Lock, Quiet};
use crate::sys;
use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_void};
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use syscalls::Errno;

/// What was called, with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Malloc { size: usize },
    Calloc { count: usize, size: usize },
    Realloc { old: usize, size: usize },
    Memalign { alignment: usize, size: usize },
    Free,
    ThreadDone,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    thread: u32,
    address: usize,
    call: Call,
    begin: u64,
    end: u64,
}

impl Entry {
    fn write(&self, to: &mut impl Write) -> core::fmt::Result {
        let Self { thread, address, call, begin, end } = *self;
        match call {
            Call::Malloc { size } => write!(to, "{thread}: malloc {address:#x} {size}")?,
            Call::Calloc { count, size } => write!(to, "{thread}: calloc {address:#x} {count} {size}")?,
            Call::Realloc { old, size } => write!(to, "{thread}: realloc {address:#x} {old:#x} {size}")?,
            Call::Memalign { alignment, size } => {
                write!(to, "{thread}: memalign {address:#x} {alignment} {size}")?;
            }
            Call::Free => write!(to, "{thread}: free {address:#x}")?,
            Call::ThreadDone => return writeln!(to, "{thread}: thread_done 0x0 {end}"),
        }
        writeln!(to, " {begin} {end}")
    }
}

/// Entries come in pieces of so many, so that memory is taken as it is needed.
const PIECE: usize = 1 << 12;

#[derive(Debug, Default)]
struct Entries {
    pieces: Vec<Vec<Entry>>,
    len: usize,
    exchanges: Vec<Exchange>,
}

/// A `realloc` that the allocator works at: it may have given the old block back already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exchange {
    thread: u32,
    old: usize,
    /// An address in the stack frame of the call.
    frame: usize,
}

struct All(UnsafeCell<Entries>);
// SAFETY: used under LOCK only.
unsafe impl Sync for All {}
static ALL: All = All(UnsafeCell::new(Entries { pieces: Vec::new(), len: 0, exchanges: Vec::new() }));
pub(super) static LOCK: Lock = Lock::whole_in_children();
/// How long a note waits for another thread's `realloc`, in nanoseconds. One that never comes to its end was left by a jump.
const PATIENCE: u64 = 1_000_000_000;

/// In the child of a fork, in its only thread.
pub(crate) fn forked() {
    // What the parent was asked for.
    ASKED.store(false, Ordering::Relaxed);
    let guard = LOCK.lock();
    // SAFETY: LOCK is held.
    unsafe { entries(&guard) }.exchanges.clear();
}

impl Entries {
    fn push(&mut self, options: &Options, entry: Entry) -> bool {
        if self.len >= options.records {
            return false;
        }
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            let mut piece = Vec::new();
            if piece.try_reserve_exact(PIECE).is_err() || self.pieces.try_reserve(1).is_err() {
                return false;
            }
            self.pieces.push(piece);
        }
        if let Some(piece) = self.pieces.last_mut() {
            piece.push(entry);
            self.len += 1;
        }
        true
    }

    /// Begins one. Those that the thread has left by a jump were deeper in its stack.
    fn begin(&mut self, exchange: Exchange) {
        self.exchanges.retain(|other| other.thread != exchange.thread || other.frame > exchange.frame);
        if self.exchanges.try_reserve(1).is_ok() {
            self.exchanges.push(exchange);
        }
    }

    /// Ends one, or what `end` is said of.
    fn end(&mut self, mut end: impl FnMut(&Exchange) -> bool) {
        self.exchanges.retain(|exchange| !end(exchange));
    }

    /// Whether another thread works at a `realloc` of a block that was here.
    fn is_exchanged(&self, address: usize, thread: u32) -> bool {
        self.exchanges.iter().any(|exchange| exchange.old == address && exchange.thread != thread)
    }
}

/// # Safety
/// LOCK is held.
#[expect(clippy::mut_from_ref, reason = "the lock stands for the borrow")]
unsafe fn entries<'a>(_held: &'a Guard<'_>) -> &'a mut Entries {
    // SAFETY: the caller holds LOCK.
    unsafe { &mut *ALL.0.get() }
}

/// Where an entry lies: its piece, and how many entries there are with it. `None` if there was no room for it.
type Place = Option<(usize, usize)>;

fn push(options: &Options, entry: Entry) -> Place {
    let guard = LOCK.lock();
    // SAFETY: LOCK is held.
    push_under(options, unsafe { entries(&guard) }, entry)
}

fn push_under(options: &Options, entries: &mut Entries, entry: Entry) -> Place {
    entries.push(options, entry).then(|| (entries.pieces.len() - 1, entries.len))
}

/// Ends an exchange, and notes a block that was given, if any was, behind the `realloc` of another thread's by which its address became free.
fn push_given(options: &Options, entry: Entry, exchange: Option<Exchange>) {
    let mut is_patient = true;
    let place = loop {
        {
            let guard = LOCK.lock();
            // SAFETY: LOCK is held.
            let entries = unsafe { entries(&guard) };
            entries.end(|other| Some(*other) == exchange);
            if entry.address == 0 {
                return;
            }
            if !is_patient {
                entries.end(|other| other.old == entry.address);
            }
            if !entries.is_exchanged(entry.address, entry.thread) {
                break push_under(options, entries, entry);
            }
        }
        sys::sleep_briefly();
        is_patient = sys::monotonic_ns() - entry.end < PATIENCE;
    };
    say_if_last(options, place);
}

/// Says that an entry is the last that there is room for, if it is. Under no lock: who reads standard error may be a thread
/// of the program.
fn say_if_last(options: &Options, place: Place) {
    if place.is_some_and(|(_, len)| len == options.records) {
        log!("Maximum number of records added, all new operations will be dropped.");
    }
}

/// Notes a call that gives a block.
pub(crate) fn given(options: &Options, call: Call, work: impl FnOnce() -> *mut c_void) -> *mut c_void {
    if options.records == 0 {
        return work();
    }
    watch_thread();
    let begin = sys::monotonic_ns();
    let block = work();
    let end = sys::monotonic_ns();
    if !block.is_null() {
        push_given(
            options,
            Entry { thread: sys::thread_id(), address: block.addr(), call, begin, end },
            None,
        );
    }
    block
}

/// Notes a call that only gives a block back, and its time when it is over. `address` is what the note has.
pub(crate) fn freed(options: &Options, address: usize, call: Call, work: impl FnOnce()) {
    if options.records == 0 {
        return work();
    }
    watch_thread();
    let begin = sys::monotonic_ns();
    let thread = sys::thread_id();
    let place = push(options, Entry { thread, address, call, begin, end: begin });
    say_if_last(options, place);
    work();
    let end = sys::monotonic_ns();
    let guard = LOCK.lock();
    // SAFETY: LOCK is held.
    let entries = unsafe { entries(&guard) };
    // All may have been written meanwhile, and others be in their place.
    if let Some((piece, len)) = place
        && let Some(entry) = entries.pieces.get_mut(piece).and_then(|piece| piece.get_mut((len - 1) % PIECE))
        && (entry.thread, entry.begin, entry.address, entry.call) == (thread, begin, address, call)
    {
        entry.end = end;
    }
}

/// Notes a call in which the allocator takes the block at `old` and gives one.
pub(crate) fn exchanged(
    options: &Options,
    old: usize,
    size: usize,
    work: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    if options.records == 0 {
        return work();
    }
    watch_thread();
    let begin = sys::monotonic_ns();
    let thread = sys::thread_id();
    let exchange = Exchange { thread, old, frame: (&raw const begin).addr() };
    {
        let guard = LOCK.lock();
        // SAFETY: LOCK is held.
        unsafe { entries(&guard) }.begin(exchange);
    }
    let block = work();
    let call = Call::Realloc { old, size };
    let entry = Entry { thread, address: block.addr(), call, begin, end: sys::monotonic_ns() };
    push_given(options, entry, Some(exchange));
    block
}

/// Writes all entries to a file, and forgets them.
pub(crate) fn write(path: &[u8]) {
    write_under(path, || Some(LOCK.lock()));
}

/// Does that if `lock` gives the lock. Whether it did.
fn write_under(path: &[u8], lock: impl FnOnce() -> Option<Guard<'static>>) -> bool {
    let _quiet = Quiet::new();
    let Ok(path) = CString::new(path) else { return true };
    let shown = String::from_utf8_lossy(path.to_bytes());
    // Nothing is said under the lock: who reads standard error may be a thread of the program.
    let written = {
        let Some(guard) = lock() else { return false };
        // SAFETY: LOCK is held.
        write_entries(unsafe { entries(&guard) }, &path)
    };
    match written {
        Written::Nothing => log!("No alloc entries to write."),
        Written::NoFile(errno) => {
            log!("Cannot create record alloc file {shown}: {}", reason(errno));
        }
        Written::File(Err(errno)) => {
            log!("Failed to write record alloc information: {}", reason(errno));
        }
        Written::File(Ok(())) => {}
    }
    true
}

enum Written {
    Nothing,
    NoFile(Errno),
    File(Result<(), Errno>),
}

fn write_entries(entries: &mut Entries, path: &CStr) -> Written {
    if entries.len == 0 {
        return Written::Nothing;
    }
    let mut file = match File::create(path) {
        Ok(file) => file,
        Err(errno) => return Written::NoFile(errno),
    };
    for entry in entries.pieces.iter().flatten() {
        // What goes wrong is kept until the end.
        let _ = entry.write(&mut file);
    }
    (entries.pieces, entries.len) = (Vec::new(), 0);
    Written::File(file.finish())
}

/// A file is asked for that couldn't be written at once.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Writes all to the file that a signal asks for, in its handler. The thread that it interrupts may hold what another
/// thread waits for that has the lock: then the next call writes.
pub(crate) fn write_on_signal(options: &Options) {
    if !write_under(&options.record_file, || LOCK.try_lock()) {
        ASKED.store(true, Ordering::Relaxed);
    }
}

/// Writes what a handler couldn't.
#[inline]
pub(crate) fn look(options: &Options) {
    if ASKED.load(Ordering::Relaxed) && ASKED.swap(false, Ordering::Relaxed) {
        write(&options.record_file);
    }
}

/// Writes all to a file of this process's own.
pub(crate) fn write_at_end(options: &Options) {
    let mut path = options.record_file.clone();
    path.extend_from_slice(format!(".{}", sys::process_id()).as_bytes());
    write(&path);
}

/// The key whose destructor tells that a thread ends, plus 1.
static KEY: AtomicU32 = AtomicU32::new(0);
/// How often a thread's destructors are called, by `PTHREAD_DESTRUCTOR_ITERATIONS` of glibc.
const ROUNDS: usize = 4;

/// Makes the key. At the start.
pub(crate) fn prepare() {
    let mut key = 0;
    // SAFETY: the key is stored in a live word; the destructor is this library's, which is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(done)) } == 0 {
        // A number with a sign in bionic.
        let key: u32 = key as _;
        KEY.store(key + 1, Ordering::Release);
    }
}

/// Has this thread's end noted.
fn watch_thread() {
    let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) else { return };
    // SAFETY: the key exists. For one of the first 32, which one of a library that is loaded first is, nothing is
    // allocated; and what is allocated is libc's own business.
    unsafe {
        if libc::pthread_getspecific(key as _).is_null() {
            hooks::inside(|| libc::pthread_setspecific(key as _, core::ptr::without_provenance(1)));
        }
    }
}

/// Comes again until the last round, behind whatever other destructors free.
unsafe extern "C" fn done(round: *mut c_void) {
    let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) else { return };
    let round = round.addr();
    if round < ROUNDS {
        // SAFETY: as above.
        unsafe { libc::pthread_setspecific(key as _, core::ptr::without_provenance(round + 1)) };
        return;
    }
    if let Some(options) = super::options() {
        let end = sys::monotonic_ns();
        let entry = Entry { thread: sys::thread_id(), address: 0, call: Call::ThreadDone, begin: 0, end };
        say_if_last(options, push(options, entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_androids_readers_take_them() {
        let line = |call, address| {
            let mut text = String::new();
            let entry = Entry { thread: 186, address, call, begin: 5, end: 7 };
            entry.write(&mut text).expect("strings take all");
            text
        };
        assert_eq!(line(Call::Malloc { size: 20 }, 0xb603_8060), "186: malloc 0xb6038060 20 5 7\n");
        assert_eq!(line(Call::Calloc { count: 32, size: 4 }, 16), "186: calloc 0x10 32 4 5 7\n");
        assert_eq!(line(Call::Realloc { old: 0, size: 12 }, 16), "186: realloc 0x10 0x0 12 5 7\n");
        assert_eq!(line(Call::Memalign { alignment: 64, size: 9 }, 16), "186: memalign 0x10 64 9 5 7\n");
        assert_eq!(line(Call::Free, 0xb6), "186: free 0xb6 5 7\n");
        assert_eq!(line(Call::ThreadDone, 0), "186: thread_done 0x0 7\n");
    }
}
