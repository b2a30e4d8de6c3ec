//! What a process has mapped, as `/proc/PID/maps` says.

use std::io;
use std::ops::Range;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    pub(crate) range: Range<u64>,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) private: bool,
    /// The file's path, `[stack]` and its like, or nothing.
    pub(crate) path: String,
}

impl Map {
    /// Whether no file is behind it: memory for allocators, stacks, and the zeroed end of a module's variables.
    pub(crate) fn is_anonymous(&self) -> bool {
        // A mapping that a program has named has its name in brackets.
        self.path.is_empty() || self.path == "[heap]" || self.path.starts_with("[anon:")
    }

    /// Whether it is memory that processes share, with no file of the disk behind it: `mmap` with `MAP_SHARED` and
    /// `MAP_ANONYMOUS`, `shmat`.
    pub(crate) fn is_shared_memory(&self) -> bool {
        !self.private
            && (self.is_anonymous()
                || ["/dev/zero (deleted)", "/SYSV"].iter().any(|start| self.path.starts_with(start)))
    }

    /// Whether it is the agent's, or what it shares with the command.
    pub(crate) fn is_grapnels(&self) -> bool {
        ["/memfd:libgrapnel_agent.so", "/memfd:grapnel-session"].iter().any(|own| self.path.starts_with(own))
    }
}

/// Reads the mappings of a process, by address.
///
/// # Errors
/// When they can't be read.
pub(crate) fn read(pid: u32) -> io::Result<Vec<Map>> {
    let text = std::fs::read(format!("/proc/{pid}/maps"))?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(parse).collect())
}

/// Whether a process has the memory of a recording mapped, whose number is `inode`.
///
/// # Errors
/// When its mappings can't be read.
pub(crate) fn have_session(pid: u32, inode: u64) -> io::Result<bool> {
    let text = std::fs::read(format!("/proc/{pid}/maps"))?;
    Ok(String::from_utf8_lossy(&text).lines().any(|line| is_session(line, inode)))
}

fn is_session(line: &str, inode: u64) -> bool {
    let mut fields = line.splitn(6, ' ').skip(4);
    let number = fields.next().and_then(|number| number.parse().ok());
    number == Some(inode)
        && fields.next().is_some_and(|path| path.trim_start().starts_with("/memfd:grapnel-session"))
}

/// What of mappings lies outside of these ranges.
pub(crate) fn without(maps: &[Map], ranges: &[Range<u64>]) -> Vec<Map> {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut left = Vec::with_capacity(maps.len());
    for map in maps {
        let mut start = map.range.start;
        let cuts = |range: &&Range<u64>| range.start < map.range.end && map.range.start < range.end;
        for range in ranges.iter().filter(cuts) {
            if start < range.start {
                left.push(Map { range: start..range.start, ..map.clone() });
            }
            start = start.max(range.end);
        }
        if start < map.range.end {
            left.push(Map { range: start..map.range.end, ..map.clone() });
        }
    }
    left
}

/// `start-end rwxp offset device inode path`
fn parse(line: &str) -> Option<Map> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let rights = fields.next()?.as_bytes();
    let has = |at: usize, right: u8| rights.get(at) == Some(&right);
    let path = fields.nth(3).unwrap_or_default().trim_start().to_owned();
    Some(Map { range, readable: has(0, b'r'), writable: has(1, b'w'), private: has(3, b'p'), path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_told_by_its_number() {
        let line =
            "7f00a000-7f00c000 rw-s 00000000 00:01 123                    /memfd:grapnel-session (deleted)";
        assert!(is_session(line, 123) && !is_session(line, 124));
        assert!(!is_session(&line.replace("grapnel-session", "other"), 123));
        assert!(!is_session("nonsense", 123));
    }

    #[test]
    fn what_is_left_out_may_be_any_part() {
        let map = |range: Range<u64>| Map {
            range,
            readable: true,
            writable: true,
            private: true,
            path: String::new(),
        };
        let left = |ranges: &[Range<u64>]| -> Vec<_> {
            without(&[map(0x10..0x20), map(0x20..0x40)], ranges).into_iter().map(|map| map.range).collect()
        };
        assert_eq!(left(&[]), [0x10..0x20, 0x20..0x40]);
        assert_eq!(left(&[0x30..0x38, 0x18..0x28]), [0x10..0x18, 0x28..0x30, 0x38..0x40]);
        assert_eq!(left(&[0..0x20, 0x30..0x40]), vec![0x20..0x30; 1]);
        assert_eq!(left(&[0..0x50, 0x12..0x13]), []);
    }

    #[test]
    fn lines_are_taken_apart() {
        let map =
            parse("7f00a000-7f00c000 rw-p 0001f000 fe:01 123                    /usr/lib/a b.so").unwrap();
        assert_eq!((map.range.clone(), map.path.as_str()), (0x7f00a000..0x7f00c000, "/usr/lib/a b.so"));
        assert!(map.readable && map.writable && map.private && !map.is_anonymous());
        let map = parse("7f00a000-7f00c000 r--s 00000000 00:00 0 ").unwrap();
        assert!(!map.writable && !map.private && map.is_anonymous());
        assert!(parse("7f00-7e rw-p 0 0 0 [heap]").unwrap().is_anonymous());
        assert!(!parse("0-1 rw-p 0 0 0 [stack]").unwrap().is_anonymous());
        assert_eq!(parse("nonsense"), None);
    }
}
