//! What a thread waits in that is about to be stopped. On x86-64 its registers say so afterwards.

use std::fs;

/// The system call that a thread waits in, as the kernel says while it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnderWay {
    /// Its number, or [`NONE`].
    pub(crate) number: i32,
    /// Its first argument.
    pub(crate) first: u64,
    pub(crate) sp: u64,
    /// Behind its instruction.
    pub(crate) pc: u64,
}

/// The number of no system call.
pub(crate) const NONE: i32 = -1;

impl Default for UnderWay {
    fn default() -> Self {
        Self::NOTHING
    }
}

impl UnderWay {
    /// That of a thread of which nothing is known.
    pub(crate) const NOTHING: Self = Self { number: NONE, first: 0, sp: 0, pc: 0 };

    /// That of a thread that has not been told to stop yet. One that runs waits for nothing.
    pub(crate) fn of(tid: i32) -> Self {
        let text = fs::read_to_string(format!("/proc/{tid}/syscall")).unwrap_or_default();
        Self::parsed(&text).unwrap_or(Self::NOTHING)
    }

    /// `73 0xffffd4c8f010 ... 0xSP 0xPC`: the number, and six arguments.
    pub(crate) fn parsed(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let number = words.next()?.parse().ok().filter(|&number: &i32| number >= 0)?;
        let mut hex = words.map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        Some(Self { number, first: hex.next()??, sp: hex.nth(5)??, pc: hex.next()?? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_waits_in_is_read() {
        let found = UnderWay::parsed("73 0xa 0xb 0xc 0xd 0xe 0xf 0x7ff0 0x1004\n").unwrap();
        assert_eq!(found, UnderWay { number: 73, first: 0xa, sp: 0x7ff0, pc: 0x1004 });
        for text in ["running\n", "-1 0x7ff0 0x1004\n", ""] {
            assert!(UnderWay::parsed(text).is_none(), "{text}");
        }
    }
}
