//! What the process has mapped.

use crate::sys;
use core::ops::Range;

/// What a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Memory,
    /// One stack and nothing else: the process's first, or what has a guard below.
    Stack,
    /// Of libc's own data.
    Libc,
    Device,
}

/// Tells of each mapping that can be read and written, and what it is.
pub(super) fn for_each_mapping(each: &mut dyn FnMut(Range<usize>, Kind)) {
    let Ok(maps) = sys::open(c"/proc/self/maps", libc::O_RDONLY) else { return };
    let mut text = [0u8; 8192];
    let (mut filled, mut at) = (0, 0);
    let mut guard_end = 0;
    loop {
        let len = sys::read_at(maps, &mut text[filled..], at);
        at += len as u64;
        filled += len;
        let mut start = 0;
        while let Some(len) = text[start..filled].iter().position(|&byte| byte == b'\n') {
            if let Some((range, rights, kind)) = mapping(&text[start..start + len]) {
                let kind = match kind {
                    Kind::Memory if guard_end == range.start => Kind::Stack,
                    kind => kind,
                };
                guard_end = if rights == b"---" { range.end } else { 0 };
                if rights.starts_with(b"rw") {
                    each(range, kind);
                }
            }
            start += len + 1;
        }
        // A line that is longer than all of the buffer is left out.
        if start == 0 && filled == text.len() {
            start = filled;
        }
        text.copy_within(start..filled, 0);
        filled -= start;
        if len == 0 {
            break;
        }
    }
    sys::close(maps);
}

/// `START-END rwx. OFFSET DEVICE INODE PATH`
fn mapping(line: &[u8]) -> Option<(Range<usize>, &[u8], Kind)> {
    let number = |text: &[u8]| {
        let digit = |n: usize, &byte: &u8| Some(n << 4 | char::from(byte).to_digit(16)? as usize);
        text.iter().try_fold(0, digit)
    };
    let dash = line.iter().position(|&byte| byte == b'-')?;
    let space = line.iter().position(|&byte| byte == b' ')?;
    let range = number(&line[..dash])?..number(line.get(dash + 1..space)?)?;
    let rights = line.get(space + 1..space + 4)?;
    let path = line.iter().position(|&byte| byte == b'/').map_or(&[][..], |at| &line[at..]);
    let is_device =
        path.starts_with(b"/dev/") && !path.starts_with(b"/dev/zero") && !path.starts_with(b"/dev/shm");
    let file = path.strip_suffix(b" (deleted)").unwrap_or(path).rsplit(|&byte| byte == b'/').next();
    // Until 2.33 its file had its version in its name.
    let is_libc = file.is_some_and(|file| file == crate::install::LIBC || file.starts_with(b"libc-2."));
    let kind = match () {
        () if is_device => Kind::Device,
        () if is_libc => Kind::Libc,
        () if line.ends_with(b"[stack]") => Kind::Stack,
        () => Kind::Memory,
    };
    Some((range, rights, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mappings_are_read() {
        fn read(line: &str) -> Option<(Range<usize>, &[u8], Kind)> {
            mapping(line.as_bytes())
        }
        assert_eq!(
            read("7f00-8f10 rw-p 00000000 00:00 0                  [heap]"),
            Some((0x7f00..0x8f10, &b"rw-"[..], Kind::Memory))
        );
        assert_eq!(
            read("7f00-8f10 rw-s 00000000 00:05 7 /dev/dri/card0"),
            Some((0x7f00..0x8f10, &b"rw-"[..], Kind::Device))
        );
        assert_eq!(
            read("7f00-8f10 rw-s 00000000 00:05 7 /dev/zero (deleted)"),
            Some((0x7f00..0x8f10, &b"rw-"[..], Kind::Memory))
        );
        assert_eq!(
            read("7f00-8f10 r-xp 00000000 08:01 9 /usr/lib/libc.so.6"),
            Some((0x7f00..0x8f10, &b"r-x"[..], Kind::Libc))
        );
        assert_eq!(
            read("7f00-8f10 r--p 00000000 08:01 9 /lib/libc-2.31.so (deleted)"),
            Some((0x7f00..0x8f10, &b"r--"[..], Kind::Libc))
        );
        assert_eq!(
            read("7f00-8f10 rw-p 00000000 00:00 0                  [stack]"),
            Some((0x7f00..0x8f10, &b"rw-"[..], Kind::Stack))
        );
        assert_eq!(read("nothing"), None);
        let mut found = 0;
        for_each_mapping(&mut |range, kind| {
            found += usize::from(range.contains(&(&raw const range).addr()) && matches!(kind, Kind::Stack));
        });
        assert_eq!(found, 1, "this stack");
    }
}
