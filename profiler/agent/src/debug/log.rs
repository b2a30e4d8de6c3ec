//! What Android writes to its log goes to standard error, a line at a time, with one system call each.
//!
//! A program may close standard error and have another file of its own under that number: then there is nobody to tell.

use super::kernel;
use crate::lock::Quiet;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};

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
    if kernel::identity(STANDARD_ERROR)
        != Some((DEVICE.load(Ordering::Relaxed), INODE.load(Ordering::Relaxed)))
    {
        return;
    }
    let mut line = Line { bytes: [0; LINE], len: 0 };
    line.put(NAME);
    let _ = line.write_fmt(text);
    let quiet = Quiet::new();
    line.bytes[line.len] = b'\n';
    let _ = kernel::write_all(STANDARD_ERROR, &line.bytes[..=line.len], &quiet);
}

/// Writes a line as `format!` would make it.
macro_rules! log {
    ($($text:tt)*) => {
        $crate::debug::log::line(format_args!($($text)*))
    };
}
pub(crate) use log;
