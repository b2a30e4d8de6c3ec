//! The child of a fork begins its own life, or its recording ends there.
//!
//! Most children are noticed at their first event. But the handler of a signal may fork while its thread writes a record, and the child
//! returns from the handler into the middle of that. The record is the parent's: what the child would write of it must not reach the
//! parent's ring. So the function by which libc forks is hooked, and the child of such a fork is seen to before the handler goes on.
//!
//! How forks wait for what a child needs whole is [`crate::forking`]'s.
//!
//! # Safety
//! The hook is entered as the function is, and returns what it does.

use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{Function, Hooked, original_as};
use crate::lock::Quiet;
use crate::record::{self, under_way};
use crate::{context, heap, life, modules, sampling, sandbox, session, tls};
use core::ptr;
use core::sync::atomic::Ordering;
use grapnel_trace::shared::{segment_state, session_flags};
use libc::pid_t;

stub!(grapnel_agent_fork, fork, 0);
unsafe extern "C" fn fork(saved: &SavedRegisters) -> pid_t {
    let seed = sampling::is_on().then(sampling::seed_of_child);
    // SAFETY: the caller's call, passed on.
    let child = unsafe { original_as::<unsafe extern "C" fn() -> pid_t>(Function::Fork)() };
    if child == 0 {
        if let Some(seed) = seed {
            sampling::renew(seed);
        }
        rescued(saved, ptr::null_mut(), 0, || {
            if under_way(tls::get().level.get(), Some(saved)) != 0 {
                begin(Some(saved));
            }
        });
    }
    child
}

/// The function to hook: that in which all forks of libc's end, by its names from the newest to the oldest. The first that there is.
pub(crate) fn functions() -> [Hooked; 2] {
    [&b"_Fork"[..], b"fork"].map(|name| (name, grapnel_agent_fork as _, Function::Fork))
}

/// In the child of a fork, in its only thread, before the program goes on there: begins its own life at once. What is left of a recording
/// that the fork came amid then goes nowhere. `saved`: of the call that is under way in the agent, where that is known.
pub(crate) fn begin(saved: Option<&SavedRegisters>) {
    sandbox::dispatch_ends();
    // QEMU's user mode agrees to empty the page, and doesn't.
    #[cfg(not(grapnel_attached))]
    if session::segment()
        .is_some_and(|segment| segment.pid.load(Ordering::Relaxed) != crate::sys::process_id())
    {
        life::empty();
    }
    let level = tls::get().level.get();
    if life::is_over() {
        let level = under_way(level, saved);
        if level != 0 {
            make_whole();
        }
        part_with_parents(level);
    } else if life::current() == 0 {
        let _ = revive(level, saved);
    }
}

/// In the child of a fork: begins its own life, with its own segment. In its parent, or when another thread
/// of the child is at it, `None`. `level`: how many recordings the thread was in the middle of, if none was left for good.
pub(crate) fn revive(level: usize, saved: Option<&SavedRegisters>) -> Option<()> {
    // Before there was one, it is a process that shares the memory, which runs while the agent goes in.
    if life::is_over() || !life::has_been() {
        return None;
    }
    let level = under_way(level, saved);
    // A handler that forks in here would have its child go on with this.
    let _quiet = Quiet::new();
    let _revival = life::revival()?;
    let done = revive_in_child(level);
    if done.is_none() {
        if let Some(header) = session::header() {
            header.unfollowed.fetch_add(1, Ordering::Relaxed);
        }
        life::end();
    }
    if life::is_over() {
        part_with_parents(level);
    }
    done
}

/// Before what is the process's own is changed by something that is no event: begins the life of a fork's child that has had no event yet.
pub(crate) fn settle(saved: &SavedRegisters) {
    // By its number a process isn't known: in a namespace of its own a child may have its parent's.
    if life::current() == 0 && life::has_been() {
        let _ = revive(tls::get().level.get(), Some(saved));
    }
}

/// In a child that isn't recorded: what it is in the middle of recording is its parent's, and goes nowhere. Nor does what it may have to say
/// later, of itself.
fn part_with_parents(level: usize) {
    if level == 0 {
        // No call is under way that has a reference to it.
        return session::leave_segment();
    }
    session::part_with_segment();
    context::rings_amid(tls::get(), level).for_each(|(ring, index)| _ = session::part_with_ring(ring, index));
}

/// Whether all that a child needs whole is. Where another thread of the parent's was in the middle of a change, what it was changing can't be
/// used, and nobody waits for that thread. To begin anew, the linker's list would have to be read, whose lock may be that thread's, which isn't
/// there any more. Where signals can't be blocked, it may be this very thread, which goes on with it: it is left as it is.
fn make_whole() -> bool {
    #[cfg(not(grapnel_attached))]
    crate::forking::renew();
    let is_whole = !life::PROCESS.is_locked() && !heap::is_busy();
    if !is_whole && !life::PROCESS.is_own() && !heap::LOCK.is_own() {
        heap::abandon();
        life::PROCESS.renew();
        modules::leave();
        #[cfg(not(grapnel_attached))]
        crate::forking::TORN.store(true, Ordering::Relaxed);
    }
    // Held while tables are looked at, with none of the others.
    #[cfg(not(grapnel_attached))]
    crate::bound::renew();
    is_whole
}

fn revive_in_child(level: usize) -> Option<()> {
    let header = session::header()?;
    let is_whole = make_whole();
    let follow = header.flags.load(Ordering::Relaxed) & session_flags::FOLLOW != 0;
    if !follow || session::is_over(header) {
        life::end();
        return Some(());
    }
    if !is_whole {
        // The child goes on alone.
        return None;
    }
    let segment = session::replace_segment(level != 0, |parent, child| {
        child.arguments.store(parent.arguments.load(Ordering::Relaxed), Ordering::Relaxed);
        child.paused.store(parent.paused.load(Ordering::Relaxed), Ordering::Relaxed);
        child.command.copy(&parent.command);
        child.executable.copy(&parent.executable);
        child.forked.store(1, Ordering::Relaxed);
    })?;
    // Of a recording that the handler of a signal forked in the middle of, and that goes on when the handler returns, the event is the
    // parent's, and half of it may stand in the parent's ring.
    if !context::rings_amid(tls::get(), level).all(|(ring, index)| session::part_with_ring(ring, index)) {
        return None;
    }
    context::take_over(level, header, segment)?;
    if sampling::is_on() {
        sampling::renew_at_first_event();
    }
    record::number_events_if(segment.rings.load(Ordering::Relaxed) > 1);
    session::announce(segment, segment_state::READY);
    life::begin();
    Some(())
}
