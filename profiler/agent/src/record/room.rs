//! Room in a ring: it is waited for, or what comes is dropped.

use super::{NotWritten, count_lost};
use crate::{life, meter, session, sys};
use core::sync::atomic::Ordering;
use grapnel_trace::ring::{Full, Producer};
use grapnel_trace::shared::{SessionHeader, session_flags};

/// Writes a record that has no sequence number, waiting for room as the session says.
#[inline(always)]
pub(crate) fn push(ring: &mut Producer<'static>, record: &[u64]) -> Result<(), NotWritten> {
    match ring.push_slice(record) {
        Ok(()) => Ok(()),
        Err(Full) => {
            make_room(ring, record.len() as u64)?;
            ring.push_slice(record).map_err(|Full| NotWritten)
        }
    }
}

/// Waits until so many words have room. Nodes and modules are never dropped, but in a ring that nobody reads: events that come later need them. Where the
/// session says to drop, a walk isn't begun without room for its nodes, and only modules come to wait.
#[inline(always)]
pub(super) fn make_room(ring: &mut Producer<'static>, words: u64) -> Result<(), NotWritten> {
    if ring.has_room(words) { Ok(()) } else { wait(ring, words) }
}

#[cold]
#[inline(never)]
pub(super) fn wait_for_room(ring: &mut Producer<'static>, words: u64) -> Result<(), NotWritten> {
    let header = session::header().ok_or(NotWritten)?;
    if header.flags.load(Ordering::Relaxed) & session_flags::DROP != 0 && ring.is_ready() {
        session::wake_drain(false);
        count_lost();
        return Err(NotWritten);
    }
    wait(ring, words)
}

/// Waits until the drain made room, or is seen to be gone: then recording ends, and the target goes on alone. Not in a ring that nobody
/// reads: one that was given up, or that the child of a fork has amid a recording of its parent's.
#[cold]
#[inline(never)]
fn wait(ring: &mut Producer<'static>, words: u64) -> Result<(), NotWritten> {
    let header = session::header().ok_or(NotWritten)?;
    meter::waiting(|| wait_in(header, ring, words))
}

fn wait_in(header: &SessionHeader, ring: &mut Producer<'static>, words: u64) -> Result<(), NotWritten> {
    const NANOSECONDS: libc::c_long = 5_000_000;
    let mut turns = 0u32;
    while !ring.has_room(words) {
        if session::is_over(header) {
            life::end();
            return Err(NotWritten);
        }
        if !ring.is_ready() {
            return Err(NotWritten);
        }
        session::wake_drain(false);
        turns += 1;
        if turns < 100 {
            core::hint::spin_loop();
            continue;
        }
        ring.waiting(|ring, room| {
            let seen = room.load(Ordering::Acquire);
            if !ring.has_room(words) {
                sys::futex_wait(room, seen, NANOSECONDS);
            }
        });
    }
    Ok(())
}
