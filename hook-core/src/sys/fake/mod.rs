//! A kernel of the tests' own: a few pages of memory with rights, the files by which a process sees itself, and actions of
//! signals. With it the crate runs under Miri, which knows hardly any system call, and finds out what becomes of code when any
//! call fails.
//!
//! A test asks for it for its own thread; Miri has no other.

mod memory;

mod tests;

use std::{
    cell::RefCell,
    ffi::{CStr, c_char},
    mem::ManuallyDrop,
    ops::Range,
};

use syscalls::{Errno, Sysno};

pub(crate) use memory::Memory;

type Answer = Result<usize, Errno>;

/// In place of the macro of the same name: asks this thread's kernel.
macro_rules! syscall {
    ($number:expr $(, $argument:expr)* $(,)?) => {{
        let arguments = [$($argument as usize),*];
        match $crate::sys::fake::answer($number, &arguments) {
            Some(answer) => answer,
            None => $crate::sys::fake::ask!($number, arguments),
        }
    }};
}

/// The real one.
macro_rules! ask {
    ($number:expr, $arguments:expr) => {{
        let mut all = [0; 6];
        all[..$arguments.len()].copy_from_slice(&$arguments);
        let [a, b, c, d, e, f] = all;
        syscalls::syscall!($number, a, b, c, d, e, f)
    }};
}

pub(crate) use {ask, syscall};

thread_local! {
    /// Without a destructor: one would be registered at the first look, which takes memory, and a signal's handler may be
    /// the first to look while its thread holds the allocator's lock.
    static KERNEL: RefCell<ManuallyDrop<Option<Kernel>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

#[derive(Debug)]
enum File {
    /// What is in it, and how far it was read.
    Text(Vec<u8>, usize),
    Memory,
}

/// What `/proc/self/mem` is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnMemory {
    Written,
    /// It can be opened and read alone.
    ReadOnly,
    Absent,
}

/// What one thread has in place of the system.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) memory: Memory,
    files: Vec<Option<File>>,
    actions: Vec<[usize; 4]>,
    /// How many calls could have failed so far, and which of them do.
    pub(crate) calls: usize,
    pub(crate) fails: Range<usize>,
    /// What `/proc/self/mem` is good for.
    pub(crate) file: OwnMemory,
    /// How often cores have synchronised.
    pub(crate) synchronised: usize,
}

impl Kernel {
    /// Begins with this memory, for this thread.
    pub(crate) fn begin(memory: Memory) {
        let kernel = Self {
            memory,
            files: Vec::new(),
            actions: vec![[0; 4]; 65],
            calls: 0,
            fails: 0..0,
            file: OwnMemory::Written,
            synchronised: 0,
        };
        KERNEL.with(|place| *place.borrow_mut() = ManuallyDrop::new(Some(kernel)));
    }

    /// Does something with it.
    pub(crate) fn with<T>(work: impl FnOnce(&mut Self) -> T) -> T {
        KERNEL.with(|place| work(place.borrow_mut().as_mut().expect("it has begun")))
    }

    /// What is left, for the real one to go on.
    pub(crate) fn end() -> Self {
        KERNEL.with(|place| place.borrow_mut().take()).expect("it has begun")
    }

    /// Opened and not closed.
    pub(crate) fn open_files(&self) -> usize {
        self.files.iter().flatten().count()
    }

    fn open(&mut self, path: &CStr) -> Answer {
        let file = match path.to_bytes() {
            b"/proc/self/maps" => File::Text(self.memory.listed().into_bytes(), 0),
            b"/proc/self/mem" if self.file != OwnMemory::Absent => File::Memory,
            _ => return Err(Errno::ENOENT),
        };
        let number = self.files.iter().position(Option::is_none).unwrap_or(self.files.len());
        self.files.resize_with(self.files.len().max(number + 1), || None);
        self.files[number] = Some(file);
        Ok(number)
    }

    fn file(&mut self, number: usize) -> Result<&mut File, Errno> {
        self.files.get_mut(number).and_then(Option::as_mut).ok_or(Errno::EBADF)
    }

    fn read(&mut self, file: usize, to: usize, len: usize) -> Answer {
        let File::Text(text, at) = self.file(file)? else { return Err(Errno::EIO) };
        let len = len.min(text.len() - *at);
        // SAFETY: the caller's buffer is so long.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr().add(*at), to as *mut u8, len) };
        *at += len;
        Ok(len)
    }

    /// A call of the system.
    ///
    /// # Safety
    /// As the call.
    unsafe fn call(&mut self, number: Sysno, arguments: &[usize]) -> Answer {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        let [a, b, c, d, ..] = all;
        // These never fail, or their failures are nobody's concern.
        match number {
            Sysno::getpid | Sysno::gettid => return Ok(1),
            Sysno::geteuid | Sysno::madvise | Sysno::prctl | Sysno::nanosleep => return Ok(0),
            Sysno::brk => return Ok(0x7000_0000_0000),
            Sysno::close => {
                self.file(a)?;
                self.files[a] = None;
                return Ok(0);
            }
            _ => {}
        }
        self.calls += 1;
        if self.fails.contains(&self.calls) {
            return Err(Errno::ENOMEM);
        }
        match number {
            Sysno::mmap => self.memory.map(a, b, c, d),
            Sysno::munmap => self.memory.unmap(a, b),
            Sysno::mprotect => self.memory.protect(a, b, c),
            Sysno::mremap => self.memory.move_to(a, b, all[4]),
            // SAFETY: a terminated string.
            Sysno::openat => self.open(unsafe { CStr::from_ptr(b as *const c_char) }),
            Sysno::read => self.read(a, b, c),
            Sysno::pread64 => match self.file(a)? {
                // SAFETY: the caller's buffer is so long.
                File::Memory => unsafe { self.memory.read(d, b as *mut u8, c) },
                File::Text(..) => Err(Errno::EINVAL),
            },
            Sysno::pwrite64 if self.file == OwnMemory::ReadOnly => Err(Errno::EIO),
            Sysno::pwrite64 => match self.file(a)? {
                // SAFETY: the caller's bytes are so many.
                File::Memory => unsafe { self.memory.write(d, b as *const u8, c) },
                File::Text(..) => Err(Errno::EINVAL),
            },
            Sysno::process_vm_readv => {
                // SAFETY: one piece each way.
                let (local, remote) = unsafe { (&*(b as *const libc::iovec), &*(d as *const libc::iovec)) };
                // SAFETY: the caller's buffer is so long.
                unsafe { self.memory.read(remote.iov_base as usize, local.iov_base.cast(), local.iov_len) }
            }
            Sysno::membarrier => {
                self.synchronised += 1;
                Ok(0)
            }
            Sysno::rt_sigaction => {
                let action = self.actions.get_mut(a).ok_or(Errno::EINVAL)?;
                let (new, old) = (b as *const [usize; 4], c as *mut [usize; 4]);
                // SAFETY: null, or a structure of four words.
                unsafe {
                    if !old.is_null() {
                        old.write(*action);
                    }
                    if !new.is_null() {
                        *action = new.read();
                    }
                }
                Ok(0)
            }
            _ => Err(Errno::ENOSYS),
        }
    }
}

/// What this thread's own kernel answers. `None` if it has none.
pub(crate) unsafe fn answer(number: Sysno, arguments: &[usize]) -> Option<Answer> {
    KERNEL.with(|place| {
        // Taken: this is a signal's handler, which looks while its thread does. It asks the real one.
        let mut place = place.try_borrow_mut().ok()?;
        // SAFETY: the caller's promise.
        place.as_mut().map(|kernel| unsafe { kernel.call(number, arguments) })
    })
}
