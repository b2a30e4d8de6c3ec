//! The session: the memory that the command and all its targets share.
//!
//! A sparse file: a header, then one segment per process, `segment_stride` bytes apart. A segment is a
//! [`SegmentHeader`], then its rings; memory is used only where something was written. Everything is atomics
//! in `repr(C)`, so that a reference to it is valid whatever another process wrote there.

use crate::meter::MeterCells;
use crate::ring::RingControl;
use crate::wire::SHARDS;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// First word of a session.
pub const MAGIC: u64 = u64::from_le_bytes(*b"GRAPNEL\x01");
/// Changes with every change of the layout: command and agent must be of one build.
pub const LAYOUT: u32 = 11;

/// Room for a path or a command line in shared memory.
pub const TEXT_BYTES: usize = 4096;

/// Bytes from the start of the file to the first segment.
pub const HEADER_BYTES: u64 = 64 << 10;

/// The environment variable that names the session's file to the agent.
pub const SESSION_VARIABLE: &str = "GRAPNEL_SESSION";

/// Set in the owner word by the kernel when the thread that held the robust lock died.
pub const OWNER_DIED: u32 = 0x4000_0000;

/// Text that is written once, before the field that announces it.
#[repr(C)]
pub struct Text {
    len: AtomicU32,
    bytes: [AtomicU8; TEXT_BYTES - 4],
}

impl core::fmt::Debug for Text {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Text({} bytes)", self.len.load(Ordering::Relaxed))
    }
}

impl Text {
    /// Stores as much of it as there is room for, whole `pieces` only, each followed by a zero byte.
    pub fn set<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) {
        let mut at = 0;
        for piece in pieces {
            if at + piece.len() + 1 > self.bytes.len() {
                break;
            }
            for (to, &byte) in self.bytes[at..].iter().zip(piece.iter().chain(&[0])) {
                to.store(byte, Ordering::Relaxed);
            }
            at += piece.len() + 1;
        }
        self.len.store(at as u32, Ordering::Release);
    }

    /// Stores what another has.
    pub fn copy(&self, from: &Text) {
        let len = (from.len.load(Ordering::Acquire) as usize).min(self.bytes.len());
        for (to, byte) in self.bytes[..len].iter().zip(&from.bytes) {
            to.store(byte.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.len.store(len as u32, Ordering::Release);
    }

    /// The bytes stored, each piece followed by a zero. Copies into `out`; returns the part that was filled.
    pub fn get<'o>(&self, out: &'o mut [u8]) -> &'o [u8] {
        let len = (self.len.load(Ordering::Acquire) as usize).min(self.bytes.len()).min(out.len());
        for (to, from) in out[..len].iter_mut().zip(&self.bytes) {
            *to = from.load(Ordering::Relaxed);
        }
        &out[..len]
    }
}

/// The head of a session.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SessionHeader {
    /// [`MAGIC`], stored last by the command.
    pub magic: AtomicU64,
    /// [`LAYOUT`].
    pub layout: AtomicU32,
    /// Bit set of [`session_flags`].
    pub flags: AtomicU32,
    /// Bytes from one segment to the next.
    pub segment_stride: AtomicU64,
    /// How many segments the file has room for.
    pub segment_limit: AtomicU32,
    /// The next segment that a process may take.
    pub next_segment: AtomicU32,
    /// The most frames that a stack may have.
    pub max_frames: AtomicU32,
    /// Not zero: nothing more is recorded, everybody passes through.
    pub stopped: AtomicU32,
    /// Processes that could not be followed.
    pub unfollowed: AtomicU32,
    /// How many execs are under way that will look for the agent. One that is killed stays counted.
    pub execs: AtomicU32,
    /// A robust process-shared lock that the drain holds while it lives. Its first word is the futex word,
    /// in which the kernel sets [`OWNER_DIED`] when the drain dies however it dies.
    pub owner: [AtomicU32; 16],
    /// Futex on which the drain sleeps; writers add one and wake it when `asleep` says so.
    pub wake: AtomicU32,
    /// Not zero while the drain sleeps on `wake`.
    pub asleep: AtomicU32,
    /// The mean of the bytes between two allocations that are recorded; 0 when all are.
    pub sample_bytes: AtomicU64,
    /// What threads' choices are drawn from.
    pub sample_seed: AtomicU64,
    /// Not zero: the mean is adapted so that records take so many millionths of a thread's time.
    pub budget_millionths: AtomicU64,
    /// Where in each target the agent's ledger lies ([`crate::attached`]), of a session that was attached; else 0.
    pub ledger: AtomicU64,
    /// How much of each target was mapped for the agent in one piece, this header first, of a session that was attached.
    pub reserved: AtomicU64,
    /// Where in each target the code lies of the thread that was made to bring the agent in, of a session that was attached.
    pub thread_code: AtomicU64,
    /// The device of the file under which targets find the agent, as `stat` has it; 0 where it isn't known.
    pub agent_device: AtomicU64,
    /// Its number there.
    pub agent_inode: AtomicU64,
    /// The path under which targets find the agent.
    pub agent_path: Text,
    /// The path under which targets find this session.
    pub session_path: Text,
}

/// Bits of [`SessionHeader::flags`].
pub mod session_flags {
    /// The agent goes along through fork and exec.
    pub const FOLLOW: u32 = 1;
    /// A full ring drops and counts; else the thread waits.
    pub const DROP: u32 = 2;
    /// Every stack is walked a second time without the memo and compared; for tests.
    pub const CHECK_STACKS: u32 = 4;
    /// The agent hooks nothing and records nothing.
    pub const OFF: u32 = 8;
    /// Before a process ends it waits for a look for leaks.
    pub const LEAKS: u32 = 16;
    /// No code is changed, but the tables of addresses by which objects call functions.
    pub const GOT: u32 = 32;
}

/// Values of [`SegmentHeader::scan`].
pub mod scan {
    /// Nobody has asked.
    pub const NONE: u32 = 0;
    /// The process is about to end, and waits.
    pub const ASKED: u32 = 1;
    /// It may end.
    pub const DONE: u32 = 2;
}

/// States of a segment.
pub mod segment_state {
    /// Nobody's yet.
    pub const FREE: u32 = 0;
    /// The process has filled in the header; its rings may be drained.
    pub const READY: u32 = 1;
    /// The agent gave up; `failure` says why.
    pub const FAILED: u32 = 2;
}

/// The head of a process's segment.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SegmentHeader {
    /// See [`segment_state`]; stored after all else.
    pub state: AtomicU32,
    /// The process.
    pub pid: AtomicU32,
    /// Its parent.
    pub ppid: AtomicU32,
    /// How many rings were ever used: rings `0..rings` may hold something.
    pub rings: AtomicU32,
    /// Events that found no ring or no room.
    pub lost: AtomicU64,
    /// Stacks that the check of [`session_flags::CHECK_STACKS`] found to differ.
    pub bad_stacks: AtomicU32,
    /// Not zero when the agent stopped itself, by a code of [`failure`].
    pub failure: AtomicU32,
    /// How many arguments it has; there may be room for the first of them only.
    pub arguments: AtomicU32,
    /// Not zero while blocks that are given out are left out of the record.
    pub paused: AtomicU32,
    /// Futex on which the end of the process waits for a look for leaks; see [`scan`].
    pub scan: AtomicU32,
    /// Not zero: the process began as a fork's child, with blocks that are its parent's in the trace.
    pub forked: AtomicU32,
    /// The inode of its namespace of process ids; 0 when that isn't known. In another namespace than the drain's, `pid`
    /// is not what the drain would call it.
    pub process_namespace: AtomicU64,
    /// When the recording began, in nanoseconds of CLOCK_MONOTONIC.
    pub started_ns: AtomicU64,
    /// Bytes of the agent's own memory in the process, rings left out.
    pub agent_bytes: AtomicU64,
    /// What recording costs the process.
    pub meter: MeterCells,
    /// The arguments.
    pub command: Text,
    /// The executable's path.
    pub executable: Text,
    /// What went wrong, for a person.
    pub message: Text,
    /// Sequence numbers of the shards of the address space (see [`crate::wire`]).
    pub shards: [AtomicU32; SHARDS],
}

/// Codes of [`SegmentHeader::failure`].
pub mod failure {
    /// An allocation function could not be hooked.
    pub const HOOK: u32 = 1;
    /// The agent met a fault of its own and went silent.
    pub const PANIC: u32 = 2;
    /// No memory for the agent's own needs.
    pub const MEMORY: u32 = 3;
    /// Not a failure: something to know about the recording, which goes on.
    pub const NOTE: u32 = 4;
}

/// Bytes from a segment's start to its first ring.
pub const RINGS_AT: u64 = (size_of::<SegmentHeader>() as u64 + 4095) & !4095;

/// The first rings are large, for the threads that do most: the first thread, and eight that work. The others are small, for
/// the many.
pub const LARGE_RINGS: u64 = 9;
const LARGE_WORDS_LOG2: u32 = 17;
const SMALL_WORDS_LOG2: u32 = 13;
/// Words of the largest ring.
pub const LARGEST_RING: usize = 1 << LARGE_WORDS_LOG2;
/// What a writer uses of its ring that has little to write: a ring that is large goes round seldom, and each page of it that is touched first
/// costs more than what is written there.
pub const QUIET_RING: usize = 1 << 15;
const CONTROL_BYTES: u64 = 4096;
const LARGE_BYTES: u64 = CONTROL_BYTES + (8 << LARGE_WORDS_LOG2);
const SMALL_BYTES: u64 = CONTROL_BYTES + (8 << SMALL_WORDS_LOG2);
const _: () = assert!(size_of::<RingControl>() as u64 <= CONTROL_BYTES);
const _: () = assert!(size_of::<SessionHeader>() as u64 <= HEADER_BYTES);

/// Where a ring lies in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// Bytes from the segment's start to the [`RingControl`].
    pub control: u64,
    /// Bytes from the segment's start to the words.
    pub words: u64,
    /// How many words, a power of two.
    pub len: usize,
}

impl RingPlace {
    /// The place of ring `index`.
    pub fn of(index: u32) -> Self {
        let index = u64::from(index);
        let large = index.min(LARGE_RINGS);
        let small = index - large;
        let control = RINGS_AT + large * LARGE_BYTES + small * SMALL_BYTES;
        let log2 = if index < LARGE_RINGS { LARGE_WORDS_LOG2 } else { SMALL_WORDS_LOG2 };
        Self { control, words: control + CONTROL_BYTES, len: 1 << log2 }
    }

    /// Bytes from the segment's start to the ring's end.
    pub fn end(self) -> u64 {
        self.words + 8 * self.len as u64
    }

    /// How many of its words are in use, by what its control says: all of them where no ring can have as few or as many as stands
    /// there. `None` until the writer has made the ring ready.
    pub fn used(self, control: &RingControl) -> Option<usize> {
        let log2 = control.capacity_log2.load(Ordering::Acquire);
        let can_be = (SMALL_WORDS_LOG2..=LARGE_WORDS_LOG2).contains(&log2);
        (log2 != 0).then(|| if can_be { self.len.min(1 << log2) } else { self.len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_of_a_ring_is_used_than_there_is() {
        let (place, control) = (RingPlace::of(0), RingControl::default());
        assert_eq!(place.used(&control), None);
        let (quiet, all) = (QUIET_RING.ilog2(), LARGEST_RING);
        for (said, used) in [(1, all), (quiet, QUIET_RING), (17, all), (18, all), (u32::MAX, all)] {
            control.capacity_log2.store(said, Ordering::Relaxed);
            assert_eq!(place.used(&control), Some(used), "{said}");
        }
    }

    #[test]
    fn rings_follow_each_other_without_overlap() {
        let mut end = RINGS_AT;
        for index in 0..100 {
            let place = RingPlace::of(index);
            assert_eq!(place.control, end);
            assert_eq!(place.control % 4096, 0);
            assert!(place.len.is_power_of_two());
            end = place.end();
        }
    }
}
