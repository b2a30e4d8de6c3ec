//! Another process's memory, through `/proc/PID/mem`: what the kernel lets a tracer read and write, pages of code too.
//!
//! The file stays that of the address space at which it was opened. After an exec it reads as empty, so that nothing of
//! what was known of the old program is ever done to the new one.

use super::freeze::{has_ended, threads};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A process's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
    /// What the kernel says of its pages, if it says anything. It stays that of the same address space.
    pages: Option<Arc<File>>,
}

impl Memory {
    /// Opens it, for whoever may trace the process. Its first thread may have ended before the others, and has none then.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let all = threads(pid)?;
        let alive = all.into_iter().find(|&tid| !has_ended(pid, tid)).unwrap_or(pid as i32);
        let path = |name: &str| format!("/proc/{pid}/task/{alive}/{name}");
        let file = File::options().read(true).write(true).open(path("mem"))?;
        Ok(Self { file, pages: File::open(path("pagemap")).ok().map(Arc::new) })
    }

    /// The same memory, for somebody else.
    pub(crate) fn again(&self) -> io::Result<Self> {
        Ok(Self { file: self.file.try_clone()?, pages: self.pages.clone() })
    }

    /// Fills `bytes` with what is at `at`.
    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }

    /// Reads what can be read of `bytes`, and says how much that is.
    pub(crate) fn read_some(&self, at: u64, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            match self.file.read_at(&mut bytes[done..], at + done as u64) {
                Ok(0) | Err(_) => break,
                Ok(len) => done += len,
            }
        }
        done
    }

    /// Of each of `count` private pages from the one with this number on, whether it was ever touched and may hold anything, in the
    /// process's memory or where it was swapped to. `None` if the kernel doesn't say.
    pub(crate) fn pages(&self, first: u64, count: u64) -> Option<Vec<bool>> {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        // It can't be read, and says to be swapped.
        const GUARD: u64 = 1 << 58;
        let mut words = vec![0; 8 * usize::try_from(count).ok()?];
        self.pages.as_ref()?.read_exact_at(&mut words, 8 * first).ok()?;
        let words = words.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        Some(words.map(|word| word & (PRESENT | SWAPPED) != 0 && word & GUARD == 0).collect())
    }

    /// The word at `at`.
    pub(crate) fn word(&self, at: u64) -> io::Result<u64> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Writes `bytes` to `at`.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The address of fresh memory of small pages, which stays.
    pub(in super::super) fn fresh(len: usize) -> u64 {
        // SAFETY: a fresh mapping, and the kernel is asked for small pages there.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let at = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            libc::madvise(at, len, libc::MADV_NOHUGEPAGE);
            at
        };
        assert_ne!(at, libc::MAP_FAILED);
        at.expose_provenance() as u64
    }

    #[test]
    fn pages_that_were_never_touched_are_known() {
        const PAGE: usize = 4096;
        let memory = Memory::open(std::process::id()).unwrap();
        let at = fresh(3 * PAGE);
        memory.write(at + PAGE as u64, &[1]).unwrap();
        assert_eq!(memory.pages(at / PAGE as u64, 3), Some(vec![false, true, false]));
    }
}
