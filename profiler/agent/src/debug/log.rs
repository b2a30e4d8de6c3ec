//! What Android writes to its log goes to standard error, a line at a time, with one system call each.
//!
//! A program may close standard error and have another file of its own under that number: then there is nobody to tell. Many close it
//! at their exit (all of GNU's coreutils do), before what there is to say then. For that it is kept under another number.

use super::kernel;
use crate::lock::Quiet;
use crate::sys;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

const STANDARD_ERROR: i32 = 2;
/// Longer lines are cut.
const LINE: usize = 1024;
const NAME: &[u8] = b"malloc_debug: ";

/// Stands before and after what is wrong.
pub(crate) const DIVIDER: &str = "*** *** *** *** *** *** *** *** *** *** *** *** *** *** *** ***";

static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Remembers what standard error is.
pub(crate) fn prepare() {
    let (device, inode) = kernel::identity(STANDARD_ERROR).unwrap_or_default();
    DEVICE.store(device, Ordering::Relaxed);
    INODE.store(inode, Ordering::Relaxed);
}

/// Standard error once more; -1 if it isn't kept.
static KEPT: AtomicI32 = AtomicI32::new(-1);
/// The numbers from which on one is looked for: programs expect to get the lowest ones.
const KEPT_FROM: [i32; 2] = [1000, 200];

/// Keeps standard error until this program's end.
pub(crate) fn keep() {
    if let Some(kept) = KEPT_FROM.into_iter().find_map(|from| kernel::duplicate(STANDARD_ERROR, from)) {
        KEPT.store(kept, Ordering::Relaxed);
    }
}

/// In the child of a fork, which may go on for longer than whoever reads standard error waits for, and has closed it then.
pub(crate) fn renew() {
    let kept = KEPT.swap(-1, Ordering::Relaxed);
    if is_standard_error(kept) {
        sys::close(kept);
    }
}

/// Whether a descriptor leads to where standard error did at the start.
fn is_standard_error(fd: i32) -> bool {
    kernel::identity(fd) == Some((DEVICE.load(Ordering::Relaxed), INODE.load(Ordering::Relaxed)))
}

struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Line {
    fn put(&mut self, bytes: &[u8]) {
        // One byte is left for the end of the line.
        for (to, from) in self.bytes[..LINE - 1].iter_mut().skip(self.len).zip(bytes) {
            *to = *from;
            self.len += 1;
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}

/// Writes a line. Who doesn't read standard error any more doesn't end the program.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let both = [STANDARD_ERROR, KEPT.load(Ordering::Relaxed)];
    let Some(fd) = both.into_iter().find(|&fd| is_standard_error(fd)) else { return };
    let mut line = Line { bytes: [0; LINE], len: 0 };
    line.put(NAME);
    let _ = line.write_fmt(text);
    let quiet = Quiet::new();
    line.bytes[line.len] = b'\n';
    let _ = kernel::write_all(fd, &line.bytes[..=line.len], &quiet);
}

/// Writes a line as `format!` would make it.
macro_rules! log {
    ($($text:tt)*) => {
        $crate::debug::log::line(format_args!($($text)*))
    };
}
pub(crate) use log;
