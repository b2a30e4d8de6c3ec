//! The agent, as the command carries it: an executable memory file that targets open through /proc.
//!
//! # Safety
//! System calls on descriptors of our own and on strings that end with a zero.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};

/// The shared library, built by `build.rs`.
static AGENT: &[u8] = include_bytes!(env!("GRAPNEL_AGENT"));

/// A file that lives as long as this process holds it, and its path for others.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    pub(crate) file: File,
    pub(crate) path: String,
}

/// Makes an empty memory file of this name (a name for /proc/PID/maps, nothing else).
pub(crate) fn memory_file(name: &std::ffi::CStr, flags: u32) -> io::Result<MemoryFile> {
    // SAFETY: the name is zero-terminated; the descriptor that comes back is new and ours alone.
    let file = unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | flags);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(fd)
    };
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    Ok(MemoryFile { file, path })
}

/// Forbids what `seals` say for the rest of the file's life.
pub(crate) fn seal(file: &File, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: changes nothing but what may be done with our own file.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals | libc::F_SEAL_SEAL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The library's bytes.
pub(crate) fn bytes() -> &'static [u8] {
    AGENT
}

/// The memory file that the agent is to come into, still empty.
pub(crate) fn empty() -> io::Result<MemoryFile> {
    const MFD_EXEC: u32 = 0x10;
    let sealable = libc::MFD_ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag, and allow execution without it.
    memory_file(c"libgrapnel_agent.so", sealable | MFD_EXEC)
        .or_else(|_| memory_file(c"libgrapnel_agent.so", sealable))
}

/// Puts the agent into it. Nobody can change it from then on.
///
/// Nobody maps it to write before it is sealed, so forbidding writes from now on (`F_SEAL_FUTURE_WRITE`) forbids them all.
/// `F_SEAL_WRITE` looks at each page for somebody who may still write to it, and where the kernel just moves one of them it
/// fails with EBUSY: seen once in some 1,000 starts. It is for kernels before 5.1 alone.
pub(crate) fn fill(mut file: &File) -> io::Result<()> {
    file.write_all(AGENT)?;
    let size = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    seal(file, libc::F_SEAL_FUTURE_WRITE | size).or_else(|_| seal(file, libc::F_SEAL_WRITE | size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_can_change_the_agent() {
        let mut made = empty().unwrap();
        fill(&made.file).unwrap();
        assert_eq!(made.file.metadata().unwrap().len(), AGENT.len() as u64);
        let mut other = File::options().write(true).open(&made.path).unwrap();
        for refused in
            [made.file.write_all(b"x"), other.write_all(b"x"), other.set_len(0), other.set_len(1 << 30)]
        {
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        // SAFETY: what is asked for doesn't come to be; were it mapped, nothing would lie there before.
        let mapped = unsafe {
            let shared = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), 4096, shared.0, shared.1, other.as_raw_fd(), 0)
        };
        assert_eq!(mapped, libc::MAP_FAILED);
        assert_eq!(std::fs::read(&made.path).unwrap(), AGENT);
    }
}
