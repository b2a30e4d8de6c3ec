//! The session's memory, from the command's side.
//!
//! # Safety
//! The maps are of a memory file of our own, whose length is sealed; they live as long as the value that holds
//! them, and what is lent out borrows from it. All that lies in them is atomics (`repr(C)`, any bytes are valid), so
//! whatever a target writes there is data, never undefined behaviour.

use super::agent_file::{MemoryFile, memory_file, seal};
use grapnel_trace::ring::Consumer;
use grapnel_trace::shared::{
    HEADER_BYTES, LAYOUT, MAGIC, RINGS_AT, RingPlace, SegmentHeader, SessionHeader, segment_state,
};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};

/// Address space between segments: the largest that a target maps. Where words have 32 bits less than two thousand threads have
/// rings in it.
const STRIDE: u64 = if cfg!(target_pointer_width = "64") { 512 << 20 } else { 128 << 20 };
/// More processes than a session will see. Where words have 32 bits, as many as there are pages to be named in the file.
pub(crate) const LIMIT: u32 = if cfg!(target_pointer_width = "64") { 1 << 20 } else { 1 << 16 };

/// Which allocations are recorded, when not all are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    /// The mean of the bytes between two of a thread.
    pub(crate) bytes: u64,
    /// What the choice is drawn from.
    pub(crate) seed: u64,
    /// The part of a thread's time that records may take; 0 for any.
    pub(crate) budget_millionths: u64,
}

/// The session: its file and its header.
#[derive(Debug)]
pub(crate) struct Session {
    memory: MemoryFile,
    map: MmapRaw,
}

impl Session {
    /// Makes a session whose targets load the agent from `agent_path`.
    pub(crate) fn new(
        agent_path: &str,
        flags: u32,
        max_frames: u32,
        sampling: Option<Sampling>,
    ) -> io::Result<Self> {
        let memory = memory_file(c"grapnel-session", libc::MFD_ALLOW_SEALING)?;
        Self::in_memory(memory, agent_path, flags, max_frames, sampling)
    }

    /// The same in a memory file that is there, and that nobody else has touched.
    pub(crate) fn in_memory(
        memory: MemoryFile,
        agent_path: &str,
        flags: u32,
        max_frames: u32,
        sampling: Option<Sampling>,
    ) -> io::Result<Self> {
        memory.file.set_len(HEADER_BYTES + u64::from(LIMIT) * STRIDE)?;
        // A target could cut it off below our feet.
        seal(&memory.file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
        let map = MmapOptions::new().len(HEADER_BYTES as usize).map_raw(&memory.file)?;
        let session = Self { memory, map };
        let header = session.header();
        header.layout.store(LAYOUT, Ordering::Relaxed);
        header.flags.store(flags, Ordering::Relaxed);
        header.segment_stride.store(STRIDE, Ordering::Relaxed);
        header.segment_limit.store(LIMIT, Ordering::Relaxed);
        header.max_frames.store(max_frames, Ordering::Relaxed);
        if let Some(Sampling { bytes, seed, budget_millionths }) = sampling {
            header.sample_bytes.store(bytes, Ordering::Relaxed);
            header.sample_seed.store(seed, Ordering::Relaxed);
            header.budget_millionths.store(budget_millionths, Ordering::Relaxed);
        }
        if let Ok(agent) = std::fs::metadata(agent_path) {
            header.agent_device.store(agent.dev(), Ordering::Relaxed);
            header.agent_inode.store(agent.ino(), Ordering::Relaxed);
        }
        header.agent_path.set([agent_path.as_bytes()]);
        header.session_path.set([session.memory.path.as_bytes()]);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(session)
    }

    pub(crate) fn path(&self) -> &str {
        &self.memory.path
    }

    pub(crate) fn header(&self) -> &SessionHeader {
        // SAFETY: HEADER_BYTES are mapped, page-aligned, and hold the header.
        unsafe { &*self.map.as_ptr().cast() }
    }

    /// The number by which the memory is known in `/proc/PID/maps`.
    pub(crate) fn inode(&self) -> u64 {
        self.memory.file.metadata().map_or(0, |metadata| metadata.ino())
    }

    /// The state of the segment of this number, without mapping it.
    pub(crate) fn state_of(&self, index: u32) -> u32 {
        use std::os::unix::fs::FileExt;
        const { assert!(std::mem::offset_of!(SegmentHeader, state) == 0) };
        let mut state = [0; 4];
        let offset = HEADER_BYTES + u64::from(index) * STRIDE;
        match self.memory.file.read_exact_at(&mut state, offset) {
            Ok(()) => u32::from_ne_bytes(state),
            Err(_) => segment_state::FREE,
        }
    }

    /// The segment of this number, below [`LIMIT`].
    pub(crate) fn segment(&self, index: u32) -> io::Result<Segment> {
        let offset = HEADER_BYTES + u64::from(index) * STRIDE;
        let file = self.memory.file.try_clone()?;
        let header = MmapOptions::new().offset(offset).len(RINGS_AT as usize).map_raw(&file)?;
        Ok(Segment { file, offset, header, rings: Vec::new() })
    }

    /// Gives the memory of a segment that is done with back to the system.
    pub(crate) fn release(&self, index: u32) {
        let offset = HEADER_BYTES + u64::from(index) * STRIDE;
        // Where that can't be, the memory stays until the end.
        let _ = fallocate(
            &self.memory.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            offset,
            STRIDE,
        );
    }

    /// Takes the lock by whose fate targets learn of the drain's. The calling thread must be the drain, and keep
    /// running as long as it drains.
    pub(crate) fn own(&self) -> io::Result<()> {
        let header = self.header();
        assert!(size_of_val(&header.owner) >= size_of::<libc::pthread_mutex_t>());
        let mutex: *mut libc::pthread_mutex_t = header.owner.as_ptr().cast_mut().cast();
        // SAFETY: the words are zero, large enough and aligned (the header is, to 64, and they come at a multiple
        // of 8); the attributes are initialised before use. Nobody else locks: others only read the first word.
        let error = unsafe {
            let mut attributes = std::mem::zeroed();
            libc::pthread_mutexattr_init(&mut attributes);
            libc::pthread_mutexattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(&mut attributes, libc::PTHREAD_MUTEX_ROBUST);
            match libc::pthread_mutex_init(mutex, &attributes) {
                0 => libc::pthread_mutex_lock(mutex),
                error => error,
            }
        };
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    }
}

/// A process's segment. Rings are mapped one by one, as they come into use: this process's address space may be
/// limited too.
#[derive(Debug)]
pub(crate) struct Segment {
    file: File,
    offset: u64,
    header: MmapRaw,
    rings: Vec<(RingPlace, MmapRaw)>,
}

impl Segment {
    pub(crate) fn header(&self) -> &SegmentHeader {
        // SAFETY: RINGS_AT bytes are mapped, page-aligned, and begin with the header.
        unsafe { &*self.header.as_ptr().cast() }
    }

    /// Maps the rings that have come into use. How many there may be is limited by the room there is, whatever the
    /// header says.
    pub(crate) fn map_rings(&mut self) -> io::Result<()> {
        let claimed = self.header().rings.load(Ordering::Acquire);
        while (self.rings.len() as u64) < u64::from(claimed) {
            let place = RingPlace::of(self.rings.len() as u32);
            if place.end() > STRIDE {
                break;
            }
            let len = (place.end() - place.control) as usize;
            let map = MmapOptions::new().offset(self.offset + place.control).len(len).map_raw(&self.file)?;
            self.rings.push((place, map));
        }
        Ok(())
    }

    /// Bytes of the segment that take memory.
    pub(crate) fn touched_bytes(&self) -> u64 {
        let end = self.offset + STRIDE;
        let seek = |to| seek(&self.file, to).ok();
        let (mut at, mut sum) = (self.offset, 0);
        // Each run of pages with something in them: no more of them than rings, twice.
        while let Some(start) = seek(SeekFrom::Data(at))
            && start < end
        {
            let stop = seek(SeekFrom::Hole(start)).unwrap_or(end).min(end);
            sum += stop.saturating_sub(start);
            at = stop.max(start + 1);
        }
        sum
    }

    /// How many rings are mapped.
    pub(crate) fn count_of_rings(&self) -> usize {
        self.rings.len()
    }

    /// The reading end of the ring of this number, if it is mapped and ready.
    #[inline]
    pub(crate) fn ring(&self, index: usize) -> Option<Consumer<'_>> {
        let (place, map) = self.rings.get(index)?;
        let words = (place.words - place.control) as usize;
        let base = map.as_ptr();
        // SAFETY: the map holds the ring from its control to the end of its words, of which no more are used.
        unsafe {
            let control = &*base.cast();
            let used = place.used(control)?;
            Some(Consumer::new(control, std::slice::from_raw_parts(base.add(words).cast(), used)))
        }
    }
}

/// Sleeps until the futex no longer has the value `expected`, is woken, or the time is over.
pub(crate) fn futex_wait(futex: &AtomicU32, expected: u32, nanoseconds: libc::c_long) {
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: futex and timeout are live for the call.
    unsafe {
        libc::syscall(libc::SYS_futex, futex.as_ptr(), libc::FUTEX_WAIT, expected, &raw const timeout);
    }
}

/// Wakes all who sleep on the futex.
pub(crate) fn futex_wake(futex: &AtomicU32) {
    // SAFETY: the futex is live for the call.
    unsafe {
        libc::syscall(libc::SYS_futex, futex.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}
