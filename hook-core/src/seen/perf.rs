//! The map that `perf` reads for code that is in no file: `/tmp/perf-PID.map`, a line for each piece of code with its
//! address, its length and its name (Linux, tools/perf/Documentation/jit-interface.txt).

use alloc::{format, vec::Vec};
use core::ffi::CStr;

use super::{names::Names, piece::Piece};
use crate::sys::{self, Errno, Fd};

/// Opens the file, or makes it.
fn open() -> Result<Fd, Errno> {
    let path = format!("/tmp/perf-{}.map\0", sys::pid());
    let path = CStr::from_bytes_until_nul(path.as_bytes()).map_err(|_| sys::EINVAL)?;
    // Others may have put a link there, or a file of theirs, of which one is known by another name, too.
    let file = Fd::append(path)?;
    let status = file.status()?;
    let own = status.is_regular && status.links == 1 && status.owner == sys::effective_user();
    if own { Ok(file) } else { Err(Errno(libc::EPERM)) }
}

/// Sees to it that the file can be written, and has no lines of an earlier process of this number: what was written last before
/// this process began.
pub(crate) fn begin() -> Result<(), Errno> {
    let file = open()?;
    let written = file.status()?.written;
    // Times of files are as exact as the kernel's ticks, and those of processes are cut.
    const SLACK: u64 = 2;
    if sys::began().is_some_and(|began| written + SLACK < began) { file.empty() } else { Ok(()) }
}

/// Adds lines.
pub(crate) fn write(pieces: &[Piece], names: &Names) -> Result<(), Errno> {
    let mut lines = Vec::new();
    for piece in pieces {
        lines.extend_from_slice(format!("{:x} {:x} ", piece.slot.at, piece.slot.len).as_bytes());
        lines.extend(names.get(piece.target).into_iter().map(|byte| if byte == b'\n' { b'?' } else { byte }));
        lines.extend_from_slice(piece.kind.text());
        lines.push(b'\n');
    }
    let file = open()?;
    let mut rest = &lines[..];
    while !rest.is_empty() {
        let written = file.write(rest)?;
        rest = rest.get(written.max(1)..).unwrap_or(&[]);
    }
    Ok(())
}
