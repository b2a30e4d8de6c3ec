//! Who takes the agent out when grapnel is killed: a process of its own that waits for nothing else.
//!
//! It is made before grapnel opens the trace or starts a thread, and is told what is mapped in the process, where the agent is,
//! and that all is done. What can be known before it is mapped is told before, and all is looked at before it is unmapped.

use super::detach::clean_up;
use super::leave::{Begun, Place};
use super::memory::Memory;
use crate::run::process::Process;
use crate::watcher::Watcher;
use std::fs::File;
use std::io::{self, Read};

/// What is said in the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Done,
    /// The made thread's code is about to be mapped at this address, or has been.
    Code(u64),
    /// The session's memory, whose number this is, is about to be mapped.
    Session(u64),
    /// The ledger's address, and the number of the session's memory.
    At(u64, u64),
}

/// In one write.
type Bytes = [u8; 24];

impl Word {
    fn to_bytes(self) -> Bytes {
        let words = match self {
            Self::Done => [0, 0, 0],
            Self::Code(at) => [1, at, 0],
            Self::Session(inode) => [2, inode, 0],
            Self::At(ledger, inode) => [3, ledger, inode],
        };
        let mut bytes = Bytes::default();
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn of_bytes(bytes: &Bytes) -> Self {
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        match word(0) {
            1 => Self::Code(word(8)),
            2 => Self::Session(word(8)),
            3 => Self::At(word(8), word(16)),
            _ => Self::Done,
        }
    }
}

/// The guard, while grapnel lives.
#[derive(Debug)]
pub(crate) struct Guard(Watcher);

impl Guard {
    /// Has a process wait for this one's end, to take the agent out of `pid` then.
    pub(crate) fn start(pid: u32, process: &Process) -> io::Result<Self> {
        // Of the program that is there now.
        let memory = Memory::open(pid).ok();
        let watch = |mut pipe: File| {
            let (mut place, mut begun) = (None, Begun::default());
            loop {
                let mut bytes = Bytes::default();
                if pipe.read_exact(&mut bytes).is_err() {
                    break clean_up(pid, place, begun, memory.as_ref(), process.has_ended());
                }
                match Word::of_bytes(&bytes) {
                    Word::Done => break,
                    Word::Code(at) => begun.code = Some(at),
                    Word::Session(inode) => begun.session = Some(inode),
                    Word::At(ledger, inode) => place = Some(Place { ledger, inode }),
                }
            }
        };
        Watcher::start(c"grapnel-guard", watch).map(Self)
    }

    /// Tells it where the agent is: in the process, and in children that are there when it has ended.
    pub(crate) fn tell(&mut self, place: Place) {
        self.say(Word::At(place.ledger, place.inode));
    }

    /// Tells it where the made thread's code is about to be mapped, or has been.
    pub(crate) fn tell_code(&mut self, at: u64) {
        self.say(Word::Code(at));
    }

    /// Tells it the number of the session's memory, by which it finds that before it is told where it was mapped.
    pub(crate) fn tell_session(&mut self, inode: u64) {
        self.say(Word::Session(inode));
    }

    fn say(&mut self, word: Word) {
        self.0.say(&word.to_bytes());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // After a fault of our own nothing is done: the pipe's end is for that.
        if std::thread::panicking() {
            return;
        }
        self.say(Word::Done);
        self.0.wait();
    }
}
