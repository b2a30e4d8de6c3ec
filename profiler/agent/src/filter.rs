//! Where recorded blocks lie, as far as the quick beginnings of the hooks want to know: of a block that is given back, most often that it
//! was not recorded.
//!
//! Two tables by address. [`COARSE`] has a byte for 16 KiB, which is asked first: of a large program's heap it is a few
//! pages, and what it takes to ask is five instructions of a gate. Where one recorded block begins there, as in nearly all of those where any does, the
//! byte says in which 128 bytes: who asks has it at hand, and most that is given back there lies elsewhere. [`FILTER`] has a counter for 32 bytes,
//! so nearly one for each block: programs
//! give the same few blocks back again and again, and those beside one that was recorded and stays would be looked up exactly each time. But it is
//! seldom asked, and its lines have to come from memory.
//!
//! Both are by address, not by a hash of it: what the program gives back lies close together for a while, and so do the few cache
//! lines that are taken from it. What lies 4 GiB apart shares the former, what lies 4 MiB apart the latter.

use core::sync::atomic::{AtomicU8, Ordering};

/// How many recorded blocks begin in 32 bytes. A counter that is full stays so.
pub(crate) static FILTER: [AtomicU8; 1 << 17] = [const { AtomicU8::new(0) }; 1 << 17];

/// Of 16 KiB, whether recorded blocks begin there: 0 for none, [`ALONE`] with the number of a slot for one in that slot, and else how many, in
/// slots that nobody knows. [`FULL`] stays so. What is left of the lower half of an address, when it was shifted, is the
/// place in this table: a gate need not take away what is above.
pub(crate) static COARSE: Coarse = Coarse([const { AtomicU8::new(0) }; 1 << 18]);

/// The bytes of [`COARSE`], at an address whose low bits are known when compiling.
#[repr(C, align(64))]
pub(crate) struct Coarse([AtomicU8; 1 << 18]);

#[cfg(all(target_arch = "x86_64", not(grapnel_attached)))]
impl Coarse {
    /// Where it begins: gates are told.
    pub(crate) fn addr(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

/// The logarithms of the bytes that a counter of each stands for.
pub(crate) const FINE_SHIFT: u32 = 5;
pub(crate) const COARSE_SHIFT: u32 = 14;
const _: () = assert!((size_of::<Coarse>() as u64) << COARSE_SHIFT == 1 << 32);

/// One block begins there, in the slot that the other bits say.
pub(crate) const ALONE: u8 = 0x80;
/// So many blocks that no more can be counted.
const FULL: u8 = ALONE - 1;
/// The logarithm of the bytes of a slot.
pub(crate) const SLOT_SHIFT: u32 = COARSE_SHIFT - ALONE.ilog2();

/// What remains of an address that was shifted by [`FINE_SHIFT`], as the place in the table.
pub(crate) const COUNTERS: usize = FILTER.len() - 1;

fn fine(address: usize) -> &'static AtomicU8 {
    &FILTER[address >> FINE_SHIFT & COUNTERS]
}

fn coarse(address: usize) -> &'static AtomicU8 {
    &COARSE.0[address as u32 as usize >> COARSE_SHIFT]
}

/// What a byte of [`COARSE`] becomes with one more block, which begins at this address.
fn coarse_with(said: u8, address: usize) -> u8 {
    match said {
        0 => ALONE | (address >> SLOT_SHIFT) as u8,
        FULL => FULL,
        ALONE.. => 2,
        _ => said + 1,
    }
}

/// What it becomes with one less. Of several, nobody knows where the last one is.
fn coarse_without(said: u8) -> u8 {
    match said {
        0 | ALONE.. => 0,
        FULL => FULL,
        _ => said - 1,
    }
}

/// Whether a recorded block may begin at an address, as the quick beginnings ask.
#[inline]
pub(crate) fn may_have(address: usize) -> bool {
    let said = coarse(address).load(Ordering::Relaxed);
    let is_elsewhere = said & ALONE != 0 && said != ALONE | (address >> SLOT_SHIFT) as u8;
    said != 0 && !is_elsewhere && fine(address).load(Ordering::Relaxed) != 0
}

fn change(byte: &AtomicU8, to: impl Fn(u8) -> u8) {
    let _ = byte.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |said| Some(to(said)));
}

/// A block is recorded. Before the program is told of it.
pub(crate) fn note(address: usize) {
    change(fine(address), |count| count.saturating_add(1));
    change(coarse(address), |said| coarse_with(said, address));
}

/// One that was [noted](note) is given back.
pub(crate) fn forget(address: usize) {
    change(fine(address), |count| if count == u8::MAX { count } else { count.saturating_sub(1) });
    change(coarse(address), coarse_without);
}

/// Has the processor fetch what [`note`] changes.
pub(crate) fn expect(address: usize) {
    [fine(address), coarse(address)].into_iter().for_each(crate::native::prefetch);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn counts(address: usize) -> [u8; 2] {
        [fine(address), coarse(address)].map(|counter| counter.load(Ordering::Relaxed))
    }

    #[test]
    fn counters_stand_for_all_blocks_of_their_memory() {
        let blocks = [0x7123_0000_usize, 0x7123_0010, 0x7123_0200, 0x7123_3ff0];
        blocks.iter().for_each(|&block| note(block));
        assert_eq!(blocks.map(counts), [[2, 4], [2, 4], [1, 4], [1, 4]]);
        assert_eq!([0x7122_fff0, 0x7123_4000].map(counts), [[0; 2]; 2]);
        assert_eq!(counts(0x7123_0020), [0, 4]);
        for (at, &block) in blocks.iter().enumerate() {
            assert!(blocks[at..].iter().all(|&block| counts(block).iter().all(|&count| count != 0)));
            forget(block);
        }
        assert_eq!(blocks.map(counts), [[0; 2]; 4]);
    }

    #[test]
    fn of_one_block_it_is_known_where_it_begins() {
        for (slot, block) in (0..ALONE).zip((0x7345_4000_usize..).step_by(1 << SLOT_SHIFT)) {
            note(block + 16);
            assert_eq!(counts(block)[1], ALONE | slot);
            assert!(may_have(block + 16) && !may_have(block + 32) && !may_have(block ^ 1 << SLOT_SHIFT));
            forget(block + 16);
        }
        let [one, other] = [0x7345_8000_usize, 0x7345_8100];
        note(one);
        note(other);
        forget(one);
        assert_eq!(counts(other), [1, 1], "which of the two is left isn't");
        note(one);
        assert_eq!(counts(other), [1, 2]);
        [one, other].into_iter().for_each(forget);
        note(other);
        assert_eq!(counts(other), [1, ALONE | 2], "it is again where all were given back");
        forget(other);
    }

    #[test]
    fn what_was_counted_beyond_its_range_stays_noted() {
        let block = 0x7234_0000_usize;
        (0..300).for_each(|_| note(block));
        (0..300).for_each(|_| forget(block));
        assert_eq!(counts(block), [u8::MAX, FULL]);
    }

    #[test]
    fn no_block_is_without_its_counters_while_others_forget_theirs() {
        let times = if cfg!(miri) { 200 } else { 300_000 };
        thread::scope(|scope| {
            for thread in 0..3_usize {
                scope.spawn(move || {
                    for number in 0..times {
                        let block = 0x5456_0000 + thread * 0x10 + number % 2 * 0x800;
                        note(block);
                        assert!(counts(block).iter().all(|&count| count != 0), "{block:x}");
                        forget(block);
                    }
                });
            }
        });
        assert_eq!(counts(0x5456_0000), [0; 2]);
    }
}
