//! Moments that somebody marked: the program itself, or whoever watches it.

use alloc::vec::Vec;

/// Names are cut to this many bytes.
pub const MAX_MARK: usize = 128;

/// What a moment is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// One with a name. Any bytes.
    Named(Vec<u8>),
    /// From here on blocks that are given out may be left out, until [`Mark::Resumed`]. Blocks that are given back are
    /// told of all the time, so that those which were recorded are followed to their end; a `realloc` ends its block.
    Paused,
    /// All is recorded again.
    Resumed,
    /// The program asked for a snapshot.
    Snapshot,
    /// The recording began in a process that ran already.
    Attached,
    /// The recording ended, and the process goes on.
    Detached,
    /// Which blocks are older than the recording isn't known, and why not, in a sentence.
    BeforeUnknown(Vec<u8>),
}

impl Mark {
    /// What it is, as a number.
    pub fn code(&self) -> u8 {
        match self {
            Self::Named(_) => 0,
            Self::Paused => 1,
            Self::Resumed => 2,
            Self::Snapshot => 3,
            Self::Attached => 4,
            Self::Detached => 5,
            Self::BeforeUnknown(_) => 6,
        }
    }

    /// The mark with this number, and this name where it has one.
    pub fn from_code(code: u8, name: &[u8]) -> Option<Self> {
        Some(match code {
            0 => Self::Named(name[..name.len().min(MAX_MARK)].to_vec()),
            1 => Self::Paused,
            2 => Self::Resumed,
            3 => Self::Snapshot,
            4 => Self::Attached,
            5 => Self::Detached,
            6 => Self::BeforeUnknown(name[..name.len().min(MAX_MARK)].to_vec()),
            _ => return None,
        })
    }

    /// Its name; empty where it has none.
    pub fn name(&self) -> &[u8] {
        match self {
            Self::Named(name) | Self::BeforeUnknown(name) => &name[..name.len().min(MAX_MARK)],
            _ => &[],
        }
    }

    /// The number, then the name.
    pub fn encode(&self) -> Vec<u8> {
        [&[self.code()], self.name()].concat()
    }

    /// The inverse of [`Mark::encode`]; `None` for bytes that it can't have made.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&code, name) = bytes.split_first()?;
        let mark = Self::from_code(code, name)?;
        (mark.name() == name).then_some(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn marks_come_back_and_nothing_else_does() {
        let named = Mark::Named(vec![b'n'; MAX_MARK]);
        let plain = [Mark::Paused, Mark::Resumed, Mark::Snapshot, Mark::Attached, Mark::Detached];
        let unknown = Mark::BeforeUnknown(b"why".to_vec());
        for mark in [named, Mark::Named(vec![]), unknown].into_iter().chain(plain) {
            assert_eq!(Mark::decode(&mark.encode()), Some(mark));
        }
        for bad in [&[][..], &[1, b'x'], &[7], &[0; MAX_MARK + 2]] {
            assert_eq!(Mark::decode(bad), None);
        }
    }
}
