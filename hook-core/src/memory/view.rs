//! Reading and writing the process's memory through the kernel: an address that isn't mapped is an error, not a
//! fault, and code that may not be written through its own mapping can be written all the same.
//!
//! # Safety
//! The only unsafe act here is writing; every writer is `unsafe` and passes the promise on to its caller.

use core::ops::Range;

use grapnel_relocator::CodeAddr;

use super::{
    exchange::{self, Copy},
    rights, trial,
};
use crate::{
    Error, native,
    sys::{self, EFAULT, Errno, Fd, PAGE},
};

/// How bytes of live code were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PatchWay {
    /// Through `/proc/self/mem`: the code's protection never changes.
    ProcMem,
    /// Where they are, in pages that their owner may write, as those of a compiler at run time: their protection never
    /// changes.
    InPlace,
    /// The pages were made writable and not executable, written, and given their rights again.
    Protect,
    /// A changed copy took the place of the pages, at once and with the same rights. They are no longer those of their file.
    Exchange,
    /// The same pages of the same file, mapped anew and changed through `/proc/self/mem`, took the place of the pages at once.
    /// No thread met a trap at the patch's start.
    Remap,
}

impl core::fmt::Display for PatchWay {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::ProcMem => "through /proc/self/mem",
            Self::InPlace => "where it is",
            Self::Protect => "by a change of its pages' rights",
            Self::Exchange => "by an exchange of its pages",
            Self::Remap => "by mapping its pages anew",
        })
    }
}

/// Why code could not be written: the way that was tried last, and what was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unwritten {
    pub(crate) way: PatchWay,
    pub(crate) errno: Errno,
}

impl Unwritten {
    fn by(way: PatchWay) -> impl Fn(Errno) -> Self {
        move |errno| Self { way, errno }
    }

    /// The code that it is about.
    pub(crate) fn at(self, site: CodeAddr) -> Error {
        Error::Write { site, way: self.way, errno: self.errno }
    }
}

/// A window onto the memory of this process.
#[derive(Debug)]
pub(crate) struct MemoryView {
    /// `/proc/self/mem`; absent without /proc, or when the process isn't dumpable and isn't root.
    file: Result<Fd, Errno>,
}

impl MemoryView {
    pub(crate) fn open() -> Self {
        Self { file: Fd::own_memory().and_then(trial::passed) }
    }

    /// A view that has only `mprotect` to write with.
    #[cfg(test)]
    pub(crate) fn without_proc() -> Self {
        Self { file: Err(Errno(libc::EIO)) }
    }

    /// Reads what can be read of `buf.len()` bytes at `address`, and says how much that is.
    pub(crate) fn read(&self, address: usize, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = address.wrapping_add(done);
            let n = match &self.file {
                Ok(file) => file.read_at(rest, at),
                Err(_) => sys::copy_memory(at, rest),
            };
            match n {
                Ok(n) if n > 0 => done += n,
                _ => break,
            }
        }
        done
    }

    /// Whether exactly these bytes are at `address`, and what is there instead.
    pub(crate) fn differs(&self, address: usize, expected: &[u8]) -> Option<Bytes> {
        let found = self.bytes(address, expected.len());
        (found.as_slice() != expected).then_some(found)
    }

    /// A few bytes at `address`; fewer where memory ends.
    pub(crate) fn bytes(&self, address: usize, len: usize) -> Bytes {
        let mut buf = [0; Bytes::MAX];
        let len = len.min(Bytes::MAX);
        let n = buf.get_mut(..len).map_or(0, |buf| self.read(address, buf));
        Bytes::new(buf.get(..n).unwrap_or(&[]))
    }

    /// Whether code can be written through `/proc/self/mem`.
    pub(crate) fn is_file(&self) -> Result<(), Errno> {
        self.file.as_ref().map(drop).map_err(|errno| *errno)
    }

    /// Whether code can be written without taking anyone the right to run it, as far as that is known before it is tried.
    ///
    /// `Err` if neither `/proc/self/mem` nor the list of mappings can be read.
    pub(crate) fn may_write_running(&self, address: usize, len: usize) -> Result<bool, Errno> {
        self.is_file().map(|()| true).or_else(|errno| {
            let pages = pages(address, len);
            let writable = || rights::are(&pages, |mapping| mapping.write);
            exchange::is_plain_code(&pages).and_then(|plain| Ok(plain || writable()?)).map_err(|_| errno)
        })
    }

    /// Whether such code begins or ends within a unit of [`native::STORE`] that others may write to.
    pub(crate) fn shares_unit(&self, address: usize, len: usize) -> Result<bool, Errno> {
        let whole = address.is_multiple_of(native::STORE) && len.is_multiple_of(native::STORE);
        Ok(!whole && !rights::are(&pages(address, len), |mapping| !mapping.write)?)
    }

    /// Writes code through `/proc/self/mem` and in no other way.
    ///
    /// # Safety
    /// As [`Self::write_running`].
    pub(crate) unsafe fn write_through_file(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        let file = self.file.as_ref().map_err(|errno| *errno)?;
        // SAFETY: the caller's promise.
        let write = |bytes: &[u8], at| unsafe { file.write_at(bytes, at) };
        by_units::<{ native::STORE }>(address, bytes, |buf, at| file.read_at(buf, at), write)
    }

    /// Writes code that nobody runs yet, through `/proc/self/mem` at once if it can be had.
    ///
    /// # Safety
    /// The bytes at `address` are the caller's, and nobody runs or writes them meanwhile; others may run what else is in their
    /// pages, and nobody else changes that, or the pages' rights.
    pub(crate) unsafe fn write_unrun(&self, address: usize, bytes: &[u8]) -> Result<PatchWay, Unwritten> {
        if let Ok(file) = &self.file
            // SAFETY: the caller's promise.
            && unsafe { file.write_at(bytes, address) } == Ok(bytes.len())
        {
            return Ok(PatchWay::ProcMem);
        }
        // SAFETY: as above.
        unsafe { self.write_running(address, bytes) }
    }

    /// Writes code that others may be running meanwhile, whose protection doesn't change, and says how.
    ///
    /// # Safety
    /// The bytes at `address` are code that the caller may change, and whoever runs them meanwhile finds either the old
    /// ones or the new ones, unit by unit of [`native::STORE`]. Nobody else changes code in their pages meanwhile, the pages'
    /// rights, or anything in the units that they begin and end in.
    pub(crate) unsafe fn write_running(&self, address: usize, bytes: &[u8]) -> Result<PatchWay, Unwritten> {
        // SAFETY: the caller's promise.
        let Err(refused) = (unsafe { self.write_through_file(address, bytes) }) else {
            return Ok(PatchWay::ProcMem);
        };
        // SAFETY: as above.
        if unsafe { store(address, bytes) }.is_ok() {
            return Ok(PatchWay::InPlace);
        }
        match exchange::is_plain_code(&pages(address, bytes.len())) {
            // SAFETY: as above. The pages were just seen to be ones that may be exchanged.
            Ok(true) => unsafe { exchange::exchange(address, bytes) }
                .map(|()| PatchWay::Exchange)
                .map_err(Unwritten::by(PatchWay::Exchange)),
            Ok(false) => Err(Unwritten { way: PatchWay::Exchange, errno: Errno(libc::EACCES) }),
            // Without a list of mappings there is no other way.
            Err(_) => Err(Unwritten { way: PatchWay::ProcMem, errno: refused }),
        }
    }

    /// Writes code, and says how.
    ///
    /// # Safety
    /// The bytes at `address` are code that the caller may change, and no other thread executes anything in the pages
    /// meanwhile.
    pub(crate) unsafe fn write_code(&self, address: usize, bytes: &[u8]) -> Result<PatchWay, Unwritten> {
        if let Ok(file) = &self.file {
            // SAFETY: the caller may change these bytes.
            match unsafe { file.write_at(bytes, address) } {
                Ok(n) if n == bytes.len() => return Ok(PatchWay::ProcMem),
                // A short write stops at a page that can't be written; below all is written from the start.
                Ok(_) | Err(_) => {}
            }
        }
        let (mut at, mut rest, mut used) = (address, bytes, PatchWay::InPlace);
        // Each page has its own rights.
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(PAGE - at % PAGE));
            // SAFETY: the caller's promise.
            if unsafe { store(at, part) }.is_err() {
                // SAFETY: as above.
                used = unsafe { write_by_protection(at, part) }?;
            }
            (at, rest) = (at + part.len(), behind);
        }
        Ok(used)
    }
}

/// Writes code where it is, by the rights that its pages have.
///
/// # Safety
/// As [`MemoryView::write_running`].
unsafe fn store(address: usize, bytes: &[u8]) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let write = |bytes: &[u8], at| unsafe { sys::store_memory(at, bytes) };
    by_units::<{ native::STORE }>(address, bytes, |buf, at| sys::copy_memory(at, buf), write)?;
    native::flush(address..address + bytes.len());
    Ok(())
}

/// Writes bytes by whole aligned units. What else is in the first and the last of them is written as it was read: what somebody
/// else stores there in between is lost.
fn by_units<const UNIT: usize>(
    address: usize,
    bytes: &[u8],
    read: impl Fn(&mut [u8], usize) -> Result<usize, Errno>,
    write: impl Fn(&[u8], usize) -> Result<usize, Errno>,
) -> Result<(), Errno> {
    let whole = |done: usize, len: usize| if done == len { Ok(()) } else { Err(EFAULT) };
    if UNIT == 1 {
        return whole(write(bytes, address)?, bytes.len());
    }
    let (start, end) = (address - address % UNIT, address + bytes.len());
    for at in (start..end).step_by(UNIT) {
        let mut unit = [0; UNIT];
        whole(read(&mut unit, at)?, UNIT)?;
        for (byte, place) in unit.iter_mut().zip(at..) {
            if let Some(new) = place.checked_sub(address).and_then(|offset| bytes.get(offset)) {
                *byte = *new;
            }
        }
        whole(write(&unit, at)?, UNIT)?;
    }
    Ok(())
}

/// Writes bytes within a page, which has its rights again afterwards: if the kernel doesn't give them back, a copy that has
/// them takes its place.
///
/// # Safety
/// As [`MemoryView::write_code`] without `/proc/self/mem`.
unsafe fn write_by_protection(address: usize, bytes: &[u8]) -> Result<PatchWay, Unwritten> {
    let pages = pages(address, bytes.len());
    let refused = Unwritten::by(PatchWay::Protect);
    // The routine that takes the right to execute away can't lie in these pages itself.
    let routine = native::rewrite_range();
    if pages.start < routine.end && routine.start < pages.end {
        return Err(refused(Errno(libc::EDEADLK)));
    }
    let rights = match rights::of(pages.start) {
        Ok(rights) if rights & libc::PROT_WRITE == 0 => rights,
        // It may be written, and yet could not be. Its owner would lose that right for a moment.
        Ok(_) => return Err(Unwritten { way: PatchWay::InPlace, errno: Errno(libc::EACCES) }),
        Err(errno) => return Err(refused(errno)),
    };
    // Where what was written may not be run, this fails, and nothing has changed (`PR_SET_MDWE`, SELinux without `execmem`).
    let copy = Copy::of(address, bytes, rights).map_err(&refused)?;
    // SAFETY: no other thread runs code in these pages meanwhile (the caller's promise), and neither does this one: all
    // that runs in between is the routine, which lies elsewhere.
    let answer = unsafe { native::rewrite(&pages, address, bytes, rights) };
    if answer == 0 {
        native::flush(address..address + bytes.len());
        return Ok(PatchWay::Protect);
    }
    let errno = Errno(-answer as i32);
    // Pages of a file may have lost the right to run for good (SELinux without `execmod`): what could not be written before can be
    // now. Others have not changed, and only private ones are replaced.
    // SAFETY: the caller may change the bytes.
    let lost = unsafe { store(address, bytes) }.is_ok();
    if !lost && exchange::is_plain_code(&pages) != Ok(true) {
        return Err(refused(errno));
    }
    // SAFETY: no other thread runs code in these pages meanwhile, and the caller may change the bytes.
    match unsafe { copy.take_place() } {
        Ok(()) => Ok(PatchWay::Exchange),
        Err(_) => Err(refused(errno)),
    }
}

pub(super) fn pages(address: usize, len: usize) -> Range<usize> {
    let start = address & !(PAGE - 1);
    start..(address + len).next_multiple_of(PAGE)
}

/// A few bytes of code, held without an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bytes {
    buf: [u8; Self::MAX],
    len: u8,
}

impl Bytes {
    /// The most that is kept.
    ///
    /// cbindgen:ignore
    pub const MAX: usize = 24;

    /// The first bytes of a slice, at most [`Self::MAX`].
    pub fn new(bytes: &[u8]) -> Self {
        bytes.iter().copied().collect()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.buf.get(..usize::from(self.len)).unwrap_or(&[])
    }
}

impl FromIterator<u8> for Bytes {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Self {
        let mut out = Self::default();
        for (slot, byte) in out.buf.iter_mut().zip(bytes) {
            *slot = byte;
            out.len += 1;
        }
        out
    }
}

impl core::fmt::Display for Bytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (i, byte) in self.as_slice().iter().enumerate() {
            write!(f, "{}{byte:02x}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl core::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "[{self}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stop_at_the_end_of_memory() {
        for view in [MemoryView::open(), MemoryView::without_proc()] {
            let value = [1u8, 2, 3, 4];
            assert_eq!(view.bytes(value.as_ptr() as usize, 4).as_slice(), &value);
            assert_eq!(view.bytes(8, 4).as_slice(), &[]);
            assert!(view.differs(value.as_ptr() as usize, &[1, 2, 3, 4]).is_none());
            assert!(view.differs(value.as_ptr() as usize, &[1, 2, 3, 5]).is_some());
        }
    }

    #[test]
    fn units_are_written_whole() {
        let Ok(file) = MemoryView::open().file else { return };
        #[repr(align(8))]
        struct Aligned([u8; 16]);
        for (from, len) in [(2, 4), (4, 4), (6, 2), (2, 2), (1, 9), (0, 16)] {
            let memory = Aligned(core::array::from_fn(|i| i as u8));
            let address = memory.0.as_ptr() as usize;
            // SAFETY: bytes of this test's own.
            let write = |bytes: &[u8], at| unsafe { file.write_at(bytes, at) };
            by_units::<4>(address + from, &[0xff; 16][..len], |buf, at| file.read_at(buf, at), write)
                .unwrap();
            let mut found = [0; 16];
            assert_eq!(file.read_at(&mut found, address), Ok(16));
            let expected: [u8; 16] =
                core::array::from_fn(|i| if (from..from + len).contains(&i) { 0xff } else { i as u8 });
            assert_eq!(found, expected);
        }
        let nowhere = by_units::<4>(0x12, &[1, 2], |buf, at| file.read_at(buf, at), |_, _| Ok(4));
        assert_eq!(nowhere, Err(Errno(libc::EIO)));
    }

    #[test]
    fn units_that_others_write_to_are_known() {
        for (rights, writable) in
            [(libc::PROT_READ | libc::PROT_EXEC, false), (libc::PROT_READ | libc::PROT_WRITE, true)]
        {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a fresh mapping that nothing else knows.
            let page = unsafe { sys::mmap(0, PAGE, rights, flags, None) }.unwrap();
            for (offset, len) in [(0, 4), (8, 8), (2, 4), (4, 2), (6, 2)] {
                let whole = native::STORE == 1 || offset % 4 == 0 && len % 4 == 0;
                let shares = MemoryView::open().shares_unit(page + offset, len);
                assert_eq!(shares, Ok(writable && !whole), "{offset} {len}");
            }
            // SAFETY: the page is ours and unused from here on.
            unsafe { sys::munmap(page, PAGE) }.unwrap();
        }
    }

    /// The kernel counts this process's system calls that write.
    fn writes() -> Option<u64> {
        let text = std::fs::read_to_string("/proc/self/io").ok()?;
        text.lines().find_map(|line| line.strip_prefix("syscw: "))?.parse().ok()
    }

    #[test]
    fn what_nobody_runs_is_written_at_once() {
        let view = MemoryView::open();
        let (Ok(()), Some(before)) = (view.is_file(), writes()) else { return };
        let memory = vec![0u8; 64 << 10];
        // SAFETY: bytes of this test's own.
        let way = unsafe { view.write_unrun(memory.as_ptr() as usize, &vec![7; memory.len()]) };
        assert_eq!(way, Ok(PatchWay::ProcMem));
        // Other tests write at the same time, but not that much.
        assert!(writes().unwrap() - before < 8000);
        assert!(core::hint::black_box(&memory).iter().all(|&byte| byte == 7));
    }

    #[test]
    fn code_is_written_both_ways_and_ends_executable() {
        for view in [MemoryView::open(), MemoryView::without_proc()] {
            // SAFETY: a fresh mapping that nothing else knows.
            let page = unsafe {
                sys::mmap(
                    0,
                    PAGE,
                    libc::PROT_READ | libc::PROT_EXEC,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    None,
                )
            }
            .unwrap();
            // SAFETY: a function into a page that nothing runs.
            let used = unsafe { view.write_code(page, native::ANSWER_5) }.unwrap();
            // An emulator may not see the one way.
            let way = if view.is_file().is_ok() { PatchWay::ProcMem } else { PatchWay::Protect };
            assert_eq!(used, way);
            // SAFETY: the code just written is a function of this type.
            let f: extern "C" fn() -> i32 = unsafe { core::mem::transmute(page) };
            assert_eq!(f(), 5);
            // SAFETY: the page is ours and unused from here on.
            unsafe { sys::munmap(page, PAGE) }.unwrap();
        }
    }
}
