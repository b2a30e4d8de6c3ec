//! Clocks, where one of them may not be asked.
//!
//! Reading the processor's clock is a fault after `PR_SET_TSC`, and on x86-64 in seccomp's strict mode. Such threads go by the kernel's clock,
//! by how fast the processor's was until then, as long as they may ask for it; else by the last moment that any thread of the
//! process knew, so that their events are in the order that their numbers say, with times that stand still.
//!
//! Where a filter is against asking the kernel's clock, the processor's stands for it in the same way.

use crate::record::ticks_of_processor;
use crate::{sys, tls};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether there is, or was, a thread that can't read the processor's clock.
pub(crate) static ANY: AtomicBool = AtomicBool::new(false);
/// The last moment that is known, in the processor's ticks.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Both clocks at a moment.
struct Moment {
    ticks: AtomicU64,
    ns: AtomicU64,
}

impl Moment {
    const fn new() -> Self {
        Self { ticks: AtomicU64::new(0), ns: AtomicU64::new(0) }
    }

    /// Now, if both can be had.
    fn look(&self) {
        if let Some(ns) = sys::clock_ns(libc::CLOCK_MONOTONIC) {
            self.ticks.store(ticks_of_processor(), Ordering::Relaxed);
            self.ns.store(ns, Ordering::Relaxed);
        }
    }

    fn get(&self) -> (u64, u64) {
        (self.ticks.load(Ordering::Relaxed), self.ns.load(Ordering::Relaxed))
    }
}

/// At the start, and before the first filter, or the first thread without the processor's clock.
static START: Moment = Moment::new();
static THEN: Moment = Moment::new();

/// At the start.
pub(crate) fn prepare() {
    START.look();
}

/// A clock may be lost from now on.
pub(super) fn look() {
    if THEN.get().1 == 0 && !tls::get().no_clock.get() {
        THEN.look();
    }
}

/// `passed` of one clock as so much of another, where `from` of the one were `to` of the other.
fn converted(passed: u64, from: u64, to: u64) -> u64 {
    let converted = u128::from(passed) * u128::from(to) / u128::from(from.max(1));
    converted as u64
}

/// How many ticks and nanoseconds there were from the start to then.
fn measured() -> (u64, u64) {
    let ((ticks, ns), (ticks_then, ns_then)) = (START.get(), THEN.get());
    (ticks_then.saturating_sub(ticks), ns_then.saturating_sub(ns))
}

/// The kernel's clock by the processor's.
#[cold]
pub(crate) fn estimated_ns() -> u64 {
    let (ticks_then, ns_then) = THEN.get();
    let (ticks, ns) = measured();
    ns_then + converted(self::ticks().saturating_sub(ticks_then), ticks, ns)
}

/// Whether some thread can't read the processor's clock.
#[inline(always)]
pub(crate) fn is_lacking() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// This thread may not be able to read the clock from now on.
pub(super) fn lose() {
    look();
    LAST.fetch_max(THEN.get().0, Ordering::Relaxed);
    ANY.store(true, Ordering::Release);
    set(true);
}

/// Whether this thread can read the clock is known.
pub(super) fn set(is_lost: bool) {
    tls::get().no_clock.set(is_lost);
}

/// The processor's clock, or what stands for it.
#[cold]
#[inline(never)]
pub(crate) fn ticks() -> u64 {
    // Where threads begin unseen nobody knows which have it.
    if !is_lacking() || cfg!(not(grapnel_attached)) && !tls::get().no_clock.get() {
        let now = ticks_of_processor();
        if is_lacking() {
            LAST.fetch_max(now, Ordering::Relaxed);
        }
        return now;
    }
    let (ticks_then, ns_then) = THEN.get();
    if let Some(now) = sys::clock_ns(libc::CLOCK_MONOTONIC) {
        let (ticks, ns) = measured();
        let passed = converted(now.saturating_sub(ns_then), ns, ticks);
        LAST.fetch_max(ticks_then.saturating_add(passed), Ordering::Relaxed);
    }
    LAST.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_clock_is_converted_to_the_other() {
        // 3 ticks in a nanosecond.
        assert_eq!(converted(30, 10, 30), 90);
        assert_eq!(converted(90, 30, 10), 30);
        assert_eq!(converted(u64::MAX / 2, 1 << 40, 1 << 40), u64::MAX / 2);
        assert_eq!(converted(7, 0, 0), 0);
    }
}
