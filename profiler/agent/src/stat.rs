//! What the kernel says of this process in a line: `/proc/self/stat`.

use crate::sys;
use core::str;

/// The line, behind the program's name: that may have any bytes in it, and stands in brackets.
#[derive(Debug)]
pub(crate) struct Stat {
    line: [u8; 1024],
    len: usize,
    behind_name: usize,
}

impl Stat {
    /// As it is now.
    pub(crate) fn read() -> Option<Self> {
        let fd = sys::open(c"/proc/self/stat", libc::O_RDONLY).ok()?;
        let mut line = [0; 1024];
        let len = sys::read_at(fd, &mut line, 0);
        sys::close(fd);
        Self::of(line, len)
    }

    fn of(line: [u8; 1024], len: usize) -> Option<Self> {
        let behind_name = line.get(..len)?.iter().rposition(|&byte| byte == b')')? + 2;
        Some(Self { line, len, behind_name })
    }

    /// A line that somebody else has written.
    #[cfg(test)]
    pub(crate) fn written(text: &[u8]) -> Option<Self> {
        let mut line = [0; 1024];
        line.get_mut(..text.len())?.copy_from_slice(text);
        Self::of(line, text.len())
    }

    /// The field of this number in proc(5), if it is a number itself and behind the name, which is the second.
    pub(crate) fn field(&self, number: usize) -> Option<u64> {
        let fields = str::from_utf8(self.line.get(self.behind_name..self.len)?).ok()?;
        fields.trim_end().split(' ').nth(number.checked_sub(3)?)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_behind_any_name() {
        let stat = Stat::written(b"7 (a ) b) R 40 -1 60\n").expect("a line");
        assert_eq!([3, 4, 5, 6, 7].map(|number| stat.field(number)), [None, Some(40), None, Some(60), None]);
        assert!(Stat::written(b"7 (a").is_none());
        assert!(Stat::written(b"").is_none());
        let own = Stat::read().expect("a process can read its own");
        assert_eq!(own.field(4), Some(std::os::unix::process::parent_id().into()));
    }
}
