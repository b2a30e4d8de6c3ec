//! The shared memory: the session's header and this process's segment.
//!
//! # Safety
//! Both are mapped once, at the start, never unmapped while the process lives, and consist of atomics only:
//! references to them are `'static` and valid whatever another process writes. In the child of a fork its own
//! segment takes the place of its parent's, at the same address. If the fork came amid a recording, memory that nobody reads does, also in the
//! place of the ring: whoever still holds a reference then writes into that.

use crate::{ledger, sys};
use core::ffi::CStr;
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use grapnel_trace::ring::RingControl;
use grapnel_trace::shared::{
    HEADER_BYTES, LAYOUT, MAGIC, OWNER_DIED, RingPlace, SegmentHeader, SessionHeader, failure, segment_state,
};

/// What is mapped of a segment at first: its header and some rings. The others are mapped one by one, when a thread
/// needs them: a target may have all that is mapped locked into memory.
const FIRST_RINGS: u32 = 2;

fn first_bytes() -> usize {
    RingPlace::of(FIRST_RINGS).control as usize
}

/// The session's path is `/proc/PID/fd/N`.
const SESSION_PATH_BYTES: usize = 64;

static HEADER: AtomicPtr<SessionHeader> = AtomicPtr::new(core::ptr::null_mut());
static SEGMENT: AtomicPtr<SegmentHeader> = AtomicPtr::new(core::ptr::null_mut());
/// Where that begins in the session's file.
static SEGMENT_OFFSET: AtomicU64 = AtomicU64::new(0);

/// The session's header, once mapped.
pub(crate) fn header() -> Option<&'static SessionHeader> {
    // SAFETY: see the module's header.
    unsafe { HEADER.load(Ordering::Acquire).as_ref() }
}

/// This process's segment, once mapped.
pub(crate) fn segment() -> Option<&'static SegmentHeader> {
    // SAFETY: see the module's header.
    unsafe { SEGMENT.load(Ordering::Acquire).as_ref() }
}

/// Which of the session's segments that is, from 0.
pub(crate) fn segment_number() -> u64 {
    let stride = header().map_or(0, |header| header.segment_stride.load(Ordering::Relaxed));
    let before = SEGMENT_OFFSET.load(Ordering::Relaxed).saturating_sub(HEADER_BYTES);
    before.checked_div(stride).unwrap_or(0)
}

/// Maps the header of the session at `path`. False when it is not there or not of our kind.
#[cfg(not(grapnel_attached))]
pub(crate) fn open(path: &CStr) -> bool {
    let Ok(fd) = sys::open(path, libc::O_RDWR) else { return false };
    let address = sys::map_file(fd, HEADER_BYTES as usize, 0);
    sys::close(fd);
    address.is_some_and(adopt)
}

/// Takes the header of a session that is mapped at `address`. False when it is not of our kind.
pub(crate) fn adopt(address: *mut u8) -> bool {
    HEADER.store(address.cast(), Ordering::Release);
    header().is_some_and(|header| {
        header.magic.load(Ordering::Acquire) == MAGIC && header.layout.load(Ordering::Relaxed) == LAYOUT
    })
}

/// Takes a new segment for this process and maps it.
pub(crate) fn take_segment() -> Option<&'static SegmentHeader> {
    let (address, offset) = map_next_segment()?;
    SEGMENT_OFFSET.store(offset, Ordering::Relaxed);
    SEGMENT.store(address.cast(), Ordering::Release);
    segment()
}

/// In the child of a fork: puts a segment of its own in the place of its parent's, after `fill` has taken over what
/// the two have in common. Not at its address where the fork came amid a recording, which holds references to its parent's.
pub(crate) fn replace_segment(
    is_amid: bool,
    fill: impl FnOnce(&SegmentHeader, &SegmentHeader),
) -> Option<&'static SegmentHeader> {
    let (old, len) = (segment()?, first_bytes());
    let (address, offset) = map_next_segment()?;
    // SAFETY: the segment that was just mapped.
    let new = unsafe { &*address.cast::<SegmentHeader>() };
    if new.ppid.load(Ordering::Relaxed) == 0 {
        new.ppid.store(old.pid.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    fill(old, new);
    let parents = SEGMENT.load(Ordering::Relaxed).cast();
    let is_gone = if is_amid { part_with(parents, len) } else { sys::move_over(address, len, parents) };
    if !is_gone {
        sys::unmap(address, len);
        return None;
    }
    if is_amid {
        SEGMENT.store(address.cast(), Ordering::Release);
    }
    SEGMENT_OFFSET.store(offset, Ordering::Relaxed);
    segment()
}

/// Part of the session's file, which is opened for it. `None` where no path leads there from here, without /proc, or with no
/// descriptor left.
fn map_opened(offset: u64, len: usize) -> Option<*mut u8> {
    let mut path = [0; SESSION_PATH_BYTES];
    let path = CStr::from_bytes_until_nul(header()?.session_path.get(&mut path)).ok()?;
    let fd = sys::open(path, libc::O_RDWR).ok()?;
    let mut magic = [0; size_of::<u64>()];
    sys::read_at(fd, &mut magic, offset_of!(SessionHeader, magic) as u64);
    // In another /proc the path may lead to anybody's file.
    let address = if u64::from_ne_bytes(magic) == MAGIC { sys::map_file(fd, len, offset) } else { None };
    sys::close(fd);
    address
}

/// A new segment for this process, and where it begins in the session's file.
fn map_next_segment() -> Option<(*mut u8, u64)> {
    let len = first_bytes();
    let header = header()?;
    let index = header.next_segment.fetch_add(1, Ordering::Relaxed);
    if index >= header.segment_limit.load(Ordering::Relaxed) {
        return None;
    }
    let offset = HEADER_BYTES + u64::from(index) * header.segment_stride.load(Ordering::Relaxed);
    let address = map_opened(offset, len)
        .or_else(|| sys::map_again(HEADER.load(Ordering::Relaxed).cast(), offset, len))?;
    // A core dump of the target is the target's.
    let _ = sys::advise(address, len, libc::MADV_DONTDUMP);
    // SAFETY: the segment that was just mapped.
    let segment = unsafe { &*address.cast::<SegmentHeader>() };
    // Nobody has had it. But where offsets in files have 32 bits, as in QEMU's user mode of 32-bit Arm, this may be another process's.
    if segment.pid.load(Ordering::Relaxed) != 0 {
        sys::unmap(address, len);
        return None;
    }
    let namespace = match sys::process_namespace() {
        0 => ledger::namespace(),
        seen => seen,
    };
    segment.process_namespace.store(namespace, Ordering::Relaxed);
    segment.started_ns.store(sys::monotonic_ns(), Ordering::Relaxed);
    segment.pid.store(sys::process_id(), Ordering::Relaxed);
    if let Some(parent) = sys::parent_id() {
        segment.ppid.store(parent, Ordering::Relaxed);
    }
    Some((address, offset))
}

/// The memory of ring `index` of this process's segment, if the segment has room for that many and the process for
/// one more: `most` words of it, a power of two, or all that there are. To be asked for once in a ring's life.
pub(crate) fn ring(index: u32, most: usize) -> Option<(&'static RingControl, &'static [AtomicU64])> {
    let place = RingPlace::of(index);
    if place.end() > header()?.segment_stride.load(Ordering::Relaxed) {
        return None;
    }
    let segment: *mut u8 = SEGMENT.load(Ordering::Acquire).cast();
    let start = if index < FIRST_RINGS {
        // SAFETY: within what is mapped of the segment at first.
        unsafe { segment.add(place.control as usize) }
    } else {
        let len = (place.end() - place.control) as usize;
        // QEMU's user mode makes no second view of a mapping.
        let start = sys::map_again(segment, place.control, len)
            .or_else(|| map_opened(SEGMENT_OFFSET.load(Ordering::Relaxed) + place.control, len))?;
        let _ = sys::advise(start, len, libc::MADV_DONTDUMP);
        start
    };
    // SAFETY: the ring is mapped from its control to the end of its words.
    unsafe {
        let words = start.add((place.words - place.control) as usize);
        Some((&*start.cast::<RingControl>(), core::slice::from_raw_parts(words.cast(), place.len.min(most))))
    }
}

/// In the child of a fork that isn't recorded, and in which no call is under way: it has none.
pub(crate) fn leave_segment() {
    SEGMENT.store(core::ptr::null_mut(), Ordering::Release);
}

/// In the child of a fork that isn't recorded: puts memory that nobody reads in the place of its parent's segment. False where that can't
/// be.
pub(crate) fn part_with_segment() -> bool {
    let segment = SEGMENT.load(Ordering::Acquire);
    segment.is_null() || part_with(segment.cast(), first_bytes())
}

/// The same for ring `index` of its parent's. Some come and go with the segment.
pub(crate) fn part_with_ring(control: &RingControl, index: u32) -> bool {
    let place = RingPlace::of(index);
    let len = (place.end() - place.control) as usize;
    index < FIRST_RINGS || part_with(core::ptr::from_ref(control).cast_mut().cast(), len)
}

/// Zeroes, in which a ring is not ready: nobody waits for room there.
fn part_with(parents: *mut u8, len: usize) -> bool {
    let parted = sys::map_zeroes_over(parents, len);
    if parted {
        let _ = sys::advise(parents, len, libc::MADV_DONTDUMP);
    }
    parted
}

/// Tells the drain that this segment is to be looked at, in state `state`.
pub(crate) fn announce(segment: &SegmentHeader, state: u32) {
    segment.state.store(state, Ordering::Release);
    wake_drain(true);
}

/// Wakes the drain if it sleeps; `now`: whether or not it seems to.
pub(crate) fn wake_drain(now: bool) {
    if let Some(header) = header()
        && (now || header.asleep.load(Ordering::Relaxed) != 0)
    {
        header.wake.fetch_add(1, Ordering::Release);
        sys::futex_wake(&header.wake);
    }
}

/// Whether blocks that are given out are left out of the record.
pub(crate) fn is_paused() -> bool {
    segment().is_some_and(|segment| segment.paused.load(Ordering::Relaxed) != 0)
}

/// Begins or ends a pause of this process. Whether that is a change.
pub(crate) fn set_paused(paused: bool) -> bool {
    segment().is_some_and(|segment| segment.paused.swap(paused.into(), Ordering::AcqRel) != u32::from(paused))
}

/// Whether the recording is over for everybody: it was stopped, or the drain died.
pub(crate) fn is_over(header: &SessionHeader) -> bool {
    header.stopped.load(Ordering::Relaxed) != 0 || drain_died(&header.owner[0])
}

fn drain_died(owner: &AtomicU32) -> bool {
    owner.load(Ordering::Relaxed) & OWNER_DIED != 0
}

/// Says why nothing is recorded in this process. Later reasons do not replace the first.
pub(crate) fn report_failure(code: u32, message: &[u8]) {
    if let Some(segment) = segment()
        && segment.failure.compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    {
        segment.message.set([message]);
        if code != failure::NOTE && segment.state.load(Ordering::Relaxed) == segment_state::FREE {
            announce(segment, segment_state::FAILED);
        }
    }
}
