//! The first line of a script, read as the kernel does (`fs/binfmt_script.c`).

use crate::sys;
use core::ffi::{CStr, c_int};

/// How many interpreters of interpreters the kernel follows.
pub(super) const MAX_INTERPRETERS: usize = 5;

/// So much of a file the kernel looks at.
const LOOKED_AT: usize = 256;

/// The beginning of a script, with zeroes behind its end.
#[derive(Debug)]
pub(super) struct Line([u8; LOOKED_AT]);

impl Line {
    pub(super) fn new() -> Self {
        Self([0; LOOKED_AT])
    }

    pub(super) fn read(&mut self, fd: c_int) {
        self.0.fill(0);
        sys::read_at(fd, &mut self.0, 0);
    }

    /// The path of the interpreter; `None` where the kernel sees none.
    pub(super) fn interpreter(&mut self) -> Option<&CStr> {
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let is_end = |byte: &u8| is_blank(byte) || matches!(byte, 0 | b'\n');
        let start = 2 + self.0.get(2..)?.iter().position(|byte| !is_blank(byte))?;
        // A path that goes on behind what is looked at is none.
        let len = self.0.get(start..)?.iter().position(is_end)?;
        *self.0.get_mut(start + len)? = 0;
        let path = CStr::from_bytes_with_nul(self.0.get(start..=start + len)?).ok()?;
        (len != 0).then_some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interpreter(text: &[u8]) -> Option<Vec<u8>> {
        let mut line = Line::new();
        line.0[..text.len()].copy_from_slice(text);
        line.interpreter().map(|path| path.to_bytes().to_vec())
    }

    #[test]
    fn interpreters() {
        for (text, path) in [
            (&b"#!/bin/sh\necho"[..], &b"/bin/sh"[..]),
            (b"#! \t/usr/bin/env  python3 -u\n", b"/usr/bin/env"),
            (b"#!/bin/sh", b"/bin/sh"),
            (b"#!sh\t\n", b"sh"),
            (b"#!/bin/sh\0x\n", b"/bin/sh"),
            (b"#!/bin/sh\r\n", b"/bin/sh\r"),
        ] {
            assert_eq!(interpreter(text).as_deref(), Some(path), "{}", text.escape_ascii());
        }
        let long = [&b"#!"[..], &[b'x'; LOOKED_AT - 2]].concat();
        for text in [&b"#!"[..], b"#!\n/bin/sh\n", b"#! \t\n", b"#!  ", &long] {
            assert_eq!(interpreter(text), None, "{}", text.escape_ascii());
        }
        assert_eq!(interpreter(&long[..LOOKED_AT - 1]).map(|path| path.len()), Some(LOOKED_AT - 3));
    }
}
