//! Lines of heaptrack's files: a letter, then hexadecimal numbers and strings between spaces.

use std::io::{self, BufRead, Read};

/// No line is longer, but of a hostile file.
const MAX_LINE: u64 = 1 << 20;

/// Reads lines, each of bounded length.
pub(super) struct Lines<R> {
    input: R,
    line: Vec<u8>,
    pub(super) number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, line: Vec::new(), number: 0 }
    }

    /// The next line without its end; `None` at the end of the file.
    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        let len = (&mut self.input).take(MAX_LINE).read_until(b'\n', &mut self.line)?;
        if len == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if len as u64 == MAX_LINE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is longer than a mebibyte"));
        }
        Ok(Some(&self.line))
    }
}

/// The rest of a line, behind its letter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'l> {
    rest: &'l [u8],
    /// Whether strings have their length ahead.
    sized: bool,
}

impl<'l> Fields<'l> {
    pub(super) fn new(line: &'l [u8], sized: bool) -> Self {
        Self { rest: line.get(2..).unwrap_or_default(), sized }
    }

    /// All that is left.
    pub(super) fn rest(&self) -> &'l [u8] {
        self.rest
    }

    /// The next number, up to a space or the end.
    #[inline]
    pub(super) fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        let mut len = 0;
        for &byte in self.rest {
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                b' ' => break,
                _ => return None,
            };
            value = value << 4 | u64::from(digit);
            len += 1;
        }
        if !(1..=16).contains(&len) {
            return None;
        }
        self.skip(len);
        Some(value)
    }

    /// The next number, of 32 bits.
    #[inline]
    pub(super) fn index(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// The next string.
    pub(super) fn string(&mut self) -> Option<&'l [u8]> {
        let len = if self.sized {
            usize::try_from(self.number()?).ok()?
        } else {
            self.rest.iter().position(|&byte| byte == b' ').unwrap_or(self.rest.len())
        };
        let text = self.rest.get(..len)?;
        self.skip(len);
        Some(text)
    }

    /// Passes over so many bytes and a space.
    fn skip(&mut self, len: usize) {
        self.rest = self.rest.get(len + 1..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_strings_end_at_spaces() {
        let mut fields = Fields::new(b"m 5 a b/c ff 0", true);
        assert_eq!(fields.string(), Some(&b"a b/c"[..]));
        assert_eq!((fields.number(), fields.number(), fields.number()), (Some(0xff), Some(0), None));
        let mut old = Fields::new(b"m a/b 1f", false);
        assert_eq!((old.string(), old.index()), (Some(&b"a/b"[..]), Some(0x1f)));
        for bad in ["+ 1g", "+ ", "+", "+ 12345678123456781", "+  1"] {
            assert_eq!(Fields::new(bad.as_bytes(), true).number(), None, "{bad}");
        }
        assert_eq!(Fields::new(b"s 9 short", true).string(), None);
        assert_eq!(Fields::new(b"+ 100000000", true).index(), None);
    }

    #[test]
    fn lines_are_bounded() {
        let long = vec![b'x'; MAX_LINE as usize + 5];
        assert!(Lines::new(&*long).next().is_err());
        let mut lines = Lines::new(&b"a\n\nlast"[..]);
        assert_eq!(lines.next().unwrap(), Some(&b"a"[..]));
        assert_eq!(lines.next().unwrap(), Some(&b""[..]));
        assert_eq!(lines.next().unwrap(), Some(&b"last"[..]));
        assert_eq!(lines.next().unwrap(), None);
        assert_eq!(lines.number, 3);
    }
}
