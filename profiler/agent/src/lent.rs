//! A value that is replaced while others read it, none of whom waits: who reads says so first, and what is read isn't freed
//! (hazard pointers).
//!
//! # Safety
//! A reader names the value in its [`Reading`], and uses it only if it is still the current one after that. Whoever replaces it
//! looks at all readings after that, and frees what none of them names. Both have a full fence in between: either the reader
//! finds the new value, or its reading is found.
//!
//! The trap: a store and a load that are both `SeqCst` say the same, and on AArch64 are two instructions without a fence. QEMU on
//! x86-64 lets the one load go before the other store, and what was read was freed there.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering, fence};

/// Such a value; at first there is none.
#[derive(Debug)]
pub(crate) struct Lent<T>(AtomicPtr<T>);

/// Of one who reads: what is read just now, or null. Used by one at a time. Where that one is stopped in the middle for good, one
/// value stays for good.
#[derive(Debug)]
pub(crate) struct Reading<T>(AtomicPtr<T>);

impl<T> Reading<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Whether it is this value that is read.
    pub(crate) fn is_of(&self, value: *mut T) -> bool {
        self.0.load(Ordering::Acquire) == value
    }
}

impl<T> Lent<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Lends the value to `look`, if there is one.
    pub(crate) fn lend<R>(&self, reading: &Reading<T>, look: impl FnOnce(&T) -> R) -> Option<R> {
        let mut value = self.0.load(Ordering::Acquire);
        loop {
            reading.0.store(value, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let current = self.0.load(Ordering::Acquire);
            if current == value {
                break;
            }
            value = current;
        }
        // SAFETY: null, or current after the reading named it; see the module's header.
        let result = unsafe { value.as_ref() }.map(look);
        reading.0.store(ptr::null_mut(), Ordering::Release);
        result
    }

    /// The value, for those who keep others from replacing it.
    ///
    /// # Safety
    /// It isn't replaced as long as the reference lives.
    pub(crate) unsafe fn kept(&self) -> Option<&T> {
        // SAFETY: null, or a value that is freed only after it was replaced.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Puts a value in the place of another, and frees of those that were there before, and of those in `retired`, what nobody
    /// reads. The others stay in `retired`.
    ///
    /// # Safety
    /// Nobody else replaces it meanwhile. `retired` is what earlier calls left there, and `is_read` asks all who ever are lent it.
    pub(crate) unsafe fn replace(
        &self,
        value: T,
        retired: &mut Vec<*mut T>,
        is_read: impl Fn(*mut T) -> bool,
    ) {
        let old = self.0.swap(Box::into_raw(Box::new(value)), Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if !old.is_null() {
            retired.push(old);
        }
        retired.retain(|&old| {
            let is_read = is_read(old);
            if !is_read {
                // SAFETY: made by `into_raw`, replaced, and read by nobody: who begins to read finds another.
                drop(unsafe { Box::from_raw(old) });
            }
            is_read
        });
    }

    /// Whether the value is read by anybody just now. `is_read` asks all who ever are lent it.
    pub(crate) fn is_lent(&self, is_read: impl Fn(*mut T) -> bool) -> bool {
        let value = self.0.load(Ordering::Acquire);
        !value.is_null() && is_read(value)
    }

    /// There is none again, and what there was is left where it lies.
    pub(crate) fn leave(&self) {
        self.0.store(ptr::null_mut(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    /// Knows when it is gone.
    struct Marked<'a> {
        number: usize,
        live: &'a AtomicBool,
        count: &'a AtomicUsize,
    }

    impl Drop for Marked<'_> {
        fn drop(&mut self) {
            self.live.store(false, Ordering::SeqCst);
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn what_is_read_is_not_freed_and_all_else_is() {
        const ROUNDS: usize = 20_000;
        const READERS: usize = 3;
        let live: Vec<AtomicBool> = (0..=ROUNDS).map(|_| AtomicBool::new(true)).collect();
        let count = AtomicUsize::new(0);
        let lent = Lent::new();
        let readings: [Reading<Marked<'_>>; READERS] = [const { Reading::new() }; READERS];
        let (over, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
        assert_eq!(lent.lend(&readings[0], |_| ()), None);
        let (mut retired, mut most) = (Vec::new(), 0);
        let seen = std::thread::scope(|scope| {
            let readers: Vec<_> = readings
                .iter()
                .map(|reading| {
                    scope.spawn(|| {
                        let (mut seen, mut last) = (0, 0);
                        while !over.load(Ordering::Relaxed) {
                            let looked = lent.lend(reading, |value| {
                                let before = value.live.load(Ordering::SeqCst);
                                std::hint::spin_loop();
                                (value.number, before && value.live.load(Ordering::SeqCst))
                            });
                            let Some((number, lived)) = looked else { continue };
                            assert!(lived && number >= last, "{number} after {last}");
                            if last == 0 {
                                begun.fetch_add(1, Ordering::SeqCst);
                            }
                            seen += usize::from(number != last);
                            last = number;
                        }
                        seen
                    })
                })
                .collect();
            for (number, live) in live.iter().enumerate().skip(1) {
                count.fetch_add(1, Ordering::SeqCst);
                let value = Marked { number, live, count: &count };
                // SAFETY: the only one that replaces it; all readings are asked.
                unsafe {
                    lent.replace(value, &mut retired, |old| readings.iter().any(|reading| reading.is_of(old)))
                };
                // Looked at when the readers have ended, who wait for this thread.
                most = most.max(retired.len()).max(count.load(Ordering::SeqCst) - 1);
                while begun.load(Ordering::SeqCst) < READERS
                    && !readers.iter().any(|reader| reader.is_finished())
                {
                    std::thread::yield_now();
                }
                if number % 100 == 0 {
                    std::thread::yield_now();
                }
            }
            over.store(true, Ordering::Relaxed);
            readers
                .into_iter()
                .map(|reader| reader.join().expect("no reader saw what was gone"))
                .sum::<usize>()
        });
        // A reader may name one after the other while they are asked for.
        assert!(seen >= READERS && most < 10 * READERS, "{seen}, {most}");
        let last = readings[0].0.swap(lent.0.load(Ordering::SeqCst), Ordering::SeqCst);
        assert!(last.is_null());
        let mut replace = |number: usize, live| {
            count.fetch_add(1, Ordering::SeqCst);
            // SAFETY: as above.
            unsafe {
                let value = Marked { number, live, count: &count };
                lent.replace(value, &mut retired, |old| readings.iter().any(|reading| reading.is_of(old)))
            };
            retired.len()
        };
        // Somebody stopped in the middle of reading.
        assert_eq!([replace(0, &live[0]), replace(0, &live[0])], [1, 1]);
        readings[0].0.store(ptr::null_mut(), Ordering::SeqCst);
        assert_eq!(replace(0, &live[0]), 0);
        assert_eq!(count.load(Ordering::SeqCst), 1);
        // SAFETY: nobody reads any more.
        drop(unsafe { Box::from_raw(lent.0.load(Ordering::SeqCst)) });
    }
}
