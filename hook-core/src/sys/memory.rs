//! Mappings, memory that may not be there, and what all cores see of it.

use core::ffi::CStr;

use syscalls::Sysno;

use super::{EFAULT, Errno, Fd, PAGE, Result, may_be_as_large, pid, retry, syscall};
use crate::native;

/// Maps memory.
///
/// # Safety
/// With `MAP_FIXED` the caller owns what was mapped at that place.
pub(crate) unsafe fn mmap(addr: usize, len: usize, prot: i32, flags: i32, fd: Option<&Fd>) -> Result<usize> {
    // SAFETY: without MAP_FIXED a new mapping disturbs none that exists; with it, the caller owns the place.
    Ok(unsafe { native::mmap(addr, len, prot, flags, fd.map_or(-1, Fd::raw), 0) }?)
}

/// Maps pages of a file to be read and executed, at a place of the kernel's choice.
pub(crate) fn map_code(file: &Fd, offset: usize, len: usize) -> Result<usize> {
    let (rights, private) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE);
    // SAFETY: a new mapping disturbs none that exists.
    Ok(unsafe { native::mmap(0, len, rights, private, file.raw(), offset) }?)
}

/// Unmaps memory.
///
/// # Safety
/// The caller owns the range, and nothing uses it any more.
pub(crate) unsafe fn munmap(addr: usize, len: usize) -> Result<()> {
    // SAFETY: the caller owns the range.
    unsafe { syscall!(Sysno::munmap, addr, len) }?;
    Ok(())
}

/// Changes the protection of whole pages.
///
/// # Safety
/// Nothing that runs meanwhile needs the rights that are taken away.
pub(crate) unsafe fn mprotect(addr: usize, len: usize, prot: i32) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::mprotect, addr, len, prot) }?;
    Ok(())
}

/// Has pages take the place of what is mapped elsewhere, at once.
///
/// # Safety
/// The caller owns the pages, nothing uses them where they are, and what uses those in whose place they come finds the same
/// there, as far as it cares.
pub(crate) unsafe fn move_mapping(from: usize, len: usize, to: usize) -> Result<()> {
    const MREMAP_MAYMOVE: usize = 1;
    const MREMAP_FIXED: usize = 2;
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::mremap, from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) }?;
    Ok(())
}

/// Keeps a mapping out of children made by fork.
///
/// # Safety
/// No child made by fork uses the range.
pub(crate) unsafe fn keep_from_children(addr: usize, len: usize) -> Result<()> {
    // SAFETY: the caller's promise; the advice changes nothing in this process.
    unsafe { syscall!(Sysno::madvise, addr, len, libc::MADV_DONTFORK) }?;
    Ok(())
}

/// Gives an anonymous mapping a name in /proc/self/maps, where the kernel was built to keep one.
pub(crate) fn name_mapping(addr: usize, len: usize, name: &CStr) {
    // SAFETY: naming changes nothing but the text in /proc/self/maps; `name` outlives the call. Kernels without it
    // answer EINVAL, and the mapping simply has no name.
    let _ = unsafe {
        syscall!(Sysno::prctl, libc::PR_SET_VMA, libc::PR_SET_VMA_ANON_NAME, addr, len, name.as_ptr())
    };
}

/// Copies memory of this process, stopping at the first byte that can't be read.
pub(crate) fn copy_memory(from: usize, buf: &mut [u8]) -> Result<usize> {
    match copy_from_process(from, buf) {
        Err(Errno(libc::ENOSYS)) => copy_through_file(from, buf),
        other => other,
    }
}

/// The same where the kernel has no call for it: it is asked to write the memory into a file, page by page.
#[cold]
fn copy_through_file(from: usize, buf: &mut [u8]) -> Result<usize> {
    may_be_as_large(PAGE)?;
    let file = Fd::memory(c"grapnel-copy", 0)?;
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = from.wrapping_add(done);
        let len = rest.len().min(PAGE - at % PAGE);
        // SAFETY: the kernel checks the address itself and answers EFAULT for what isn't mapped; the file is ours alone.
        let copied = retry(|| unsafe { native::pwrite(file.raw(), at as *const u8, len, 0) })
            .and_then(|len| file.read_at(rest.get_mut(..len).unwrap_or(&mut []), 0));
        match copied {
            Ok(n) if n > 0 => done += n,
            Err(errno) if done == 0 => return Err(errno),
            _ => break,
        }
    }
    Ok(done)
}

fn copy_from_process(from: usize, buf: &mut [u8]) -> Result<usize> {
    let local = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let remote = libc::iovec { iov_base: from as *mut _, iov_len: buf.len() };
    // SAFETY: the kernel checks `remote` itself and answers EFAULT for what isn't mapped; `local` describes `buf`,
    // which is borrowed for the call.
    retry(|| unsafe {
        syscall!(Sysno::process_vm_readv, pid(), &raw const local, 1, &raw const remote, 1, 0)
    })
}

/// Writes memory of this process as far as its rights allow, and stops at the first byte that may not be written: where a store
/// would be a fault.
///
/// # Safety
/// The caller answers for what the memory then holds.
pub(crate) unsafe fn store_memory(to: usize, bytes: &[u8]) -> Result<usize> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: to as *mut _, iov_len: bytes.len() };
    // SAFETY: the kernel checks `remote` itself and answers EFAULT for what may not be written; it reads `bytes`, which
    // are borrowed for the call. The effect is the caller's promise.
    let stored = retry(|| unsafe {
        syscall!(Sysno::process_vm_writev, pid(), &raw const local, 1, &raw const remote, 1, 0)
    });
    match stored {
        // SAFETY: the caller's promise.
        Err(errno) if errno != EFAULT => unsafe { store_through_file(to, bytes) },
        other => other,
    }
}

/// The same where that call isn't to be had: the kernel is asked to read a file into the memory.
///
/// # Safety
/// As [`store_memory`].
#[cold]
unsafe fn store_through_file(to: usize, bytes: &[u8]) -> Result<usize> {
    may_be_as_large(bytes.len())?;
    let file = Fd::memory(c"grapnel-copy", 0)?;
    // SAFETY: the file is no view of memory.
    unsafe { file.write_at(bytes, 0) }?;
    // SAFETY: the kernel checks the address itself and answers EFAULT for what may not be written; the effect is the
    // caller's promise.
    retry(|| unsafe { native::pread(file.raw(), to as *mut u8, bytes.len(), 0) })
}

/// A word of this process's memory. Only [`EFAULT`] says that there is none at the address: sandboxes refuse the call with
/// other errors.
pub(crate) fn read_word(at: usize) -> Result<u64> {
    let mut word = [0; size_of::<u64>()];
    match copy_memory(at, &mut word)? {
        n if n == word.len() => Ok(u64::from_ne_bytes(word)),
        _ => Err(EFAULT),
    }
}

/// The end of the heap: where `brk` stands. Nothing is changed.
pub(crate) fn brk() -> usize {
    // SAFETY: 0 is below every valid end, so the kernel only answers where it is.
    unsafe { syscall!(Sysno::brk, 0) }.unwrap_or(0)
}

/// Prepares the process for [`sync_cores`].
pub(crate) fn register_core_sync() -> Result<()> {
    const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: usize = 1 << 6;
    // SAFETY: the command touches no memory.
    unsafe { syscall!(Sysno::membarrier, REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0) }?;
    Ok(())
}

/// Every core that runs a thread of this process executes a serialising instruction before it runs the thread on.
pub(crate) fn sync_cores() -> Result<()> {
    const PRIVATE_EXPEDITED_SYNC_CORE: usize = 1 << 5;
    // SAFETY: the command touches no memory.
    unsafe { syscall!(Sysno::membarrier, PRIVATE_EXPEDITED_SYNC_CORE, 0, 0) }?;
    Ok(())
}
