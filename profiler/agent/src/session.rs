//! The shared memory: the session's header and this process's segment.
//!
//! # Safety
//! Both are mapped once, at the start (a segment again in each child of a fork), never unmapped while the
//! process lives, and consist of atomics only: references to them are `'static` and valid whatever another
//! process writes.

use crate::sys;
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use grapnel_trace::ring::RingControl;
use grapnel_trace::shared::{
    HEADER_BYTES, LAYOUT, MAGIC, OWNER_DIED, RingPlace, SegmentHeader, SessionHeader, failure, segment_state,
};

/// Virtual memory that a segment takes when it can; a process with a limit on its address space takes less.
const SEGMENT_BYTES: [usize; 3] = [512 << 20, 64 << 20, 4 << 20];

static HEADER: AtomicPtr<SessionHeader> = AtomicPtr::new(core::ptr::null_mut());
static SEGMENT: AtomicPtr<SegmentHeader> = AtomicPtr::new(core::ptr::null_mut());

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

/// Maps the header of the session at `path`. False when it is not there or not of our kind.
pub(crate) fn open(path: &CStr) -> bool {
    let Ok(fd) = sys::open(path, libc::O_RDWR) else { return false };
    let address = sys::map_file(fd, HEADER_BYTES as usize, 0);
    sys::close(fd);
    let Some(address) = address else { return false };
    HEADER.store(address.cast(), Ordering::Release);
    header().is_some_and(|header| {
        header.magic.load(Ordering::Acquire) == MAGIC && header.layout.load(Ordering::Relaxed) == LAYOUT
    })
}

/// Takes a new segment for this process and maps it.
pub(crate) fn take_segment() -> Option<&'static SegmentHeader> {
    let header = header()?;
    let index = header.next_segment.fetch_add(1, Ordering::Relaxed);
    if index >= header.segment_limit.load(Ordering::Relaxed) {
        return None;
    }
    let stride = header.segment_stride.load(Ordering::Relaxed);
    let offset = HEADER_BYTES + u64::from(index) * stride;
    let mut path = [0; grapnel_trace::shared::TEXT_BYTES];
    let path = CStr::from_bytes_until_nul(header.session_path.get(&mut path)).ok()?;
    let fd = sys::open(path, libc::O_RDWR).ok();
    let mut mapped = None;
    for len in SEGMENT_BYTES.into_iter().filter(|&len| len as u64 <= stride) {
        mapped = match fd {
            Some(fd) => sys::map_file(fd, len, offset),
            None => sys::map_again(HEADER.load(Ordering::Relaxed).cast(), offset, len),
        }
        .map(|address| (address, len));
        if mapped.is_some() {
            break;
        }
    }
    if let Some(fd) = fd {
        sys::close(fd);
    }
    let (address, len) = mapped?;
    // A core dump of the target is the target's.
    let _ = sys::advise(address, len, libc::MADV_DONTDUMP);
    SEGMENT.store(address.cast(), Ordering::Release);
    let segment = segment()?;
    segment.mapped.store(len as u64, Ordering::Relaxed);
    Some(segment)
}

/// The memory of ring `index` of this process's segment, if it has room for that many.
pub(crate) fn ring(index: u32) -> Option<(&'static RingControl, &'static [AtomicU64])> {
    let segment = segment()?;
    let place = RingPlace::of(index);
    if place.end() > segment.mapped.load(Ordering::Relaxed) {
        return None;
    }
    let base: *const u8 = core::ptr::from_ref(segment).cast();
    // SAFETY: the segment is mapped for `mapped` bytes, within which the place lies.
    unsafe {
        let control = &*base.add(place.control as usize).cast::<RingControl>();
        let words = core::slice::from_raw_parts(base.add(place.words as usize).cast(), place.len);
        Some((control, words))
    }
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
