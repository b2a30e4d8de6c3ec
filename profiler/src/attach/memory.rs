//! Another process's memory, through `/proc/PID/mem`: what the kernel lets a tracer read and write, pages of code too.
//!
//! The file stays that of the address space at which it was opened. After an exec it reads as empty, so that nothing of
//! what was known of the old program is ever done to the new one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A process's memory.
#[derive(Debug)]
pub(crate) struct Memory(File);

impl Memory {
    /// Opens it, for whoever may trace the process.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).map(Self)
    }

    /// The same memory, for somebody else.
    pub(crate) fn again(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Fills `bytes` with what is at `at`.
    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, at)
    }

    /// Reads what can be read of `bytes`, and says how much that is.
    pub(crate) fn read_some(&self, at: u64, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            match self.0.read_at(&mut bytes[done..], at + done as u64) {
                Ok(0) | Err(_) => break,
                Ok(len) => done += len,
            }
        }
        done
    }

    /// The word at `at`.
    pub(crate) fn word(&self, at: u64) -> io::Result<u64> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Writes `bytes` to `at`.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }
}
