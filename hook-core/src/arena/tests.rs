//! The arena and its regions.

use super::*;

/// An address in this program's code. Hidden from the optimiser, which would have the linker compute what is far from
/// it.
fn some_code() -> usize {
    core::hint::black_box(sys::pid as *const () as usize)
}

/// An emulator may not notice what is written through `/proc/self/mem`.
fn is_to_be_had(way: &CodeWay) -> bool {
    *way != CodeWay::ProcMem || MemoryView::open().is_file() != Err(Errno(libc::EOPNOTSUPP))
}

#[test]
fn places_are_found_near_with_and_without_a_list_of_mappings() {
    let near = some_code();
    let reach =
        near.saturating_sub(native::NEAR_REACH as usize) + PAGE..near + native::NEAR_REACH as usize - PAGE;
    let maps = Maps::read().unwrap();
    for way in CodeWay::ALL.into_iter().filter(is_to_be_had) {
        let mut arena = Arena::with_ways(&[way]);
        for maps in [Some(&maps), None] {
            let slot = arena.allocate(near, 100, &reach, maps).unwrap();
            assert!(reach.contains(&slot.at) && slot.at.is_multiple_of(ALIGN) && slot.len >= 100);
            let memory = MemoryView::open();
            assert!(arena.write(&slot, native::ANSWER_5, &memory));
            arena.seal(&memory).unwrap();
            // SAFETY: the code just written is a function of this type.
            let f: extern "C" fn() -> i32 = unsafe { core::mem::transmute(slot.at) };
            assert_eq!(f(), 5);
            arena = Arena::with_ways(&[way]);
        }
        let slot = arena.allocate(near, 1 << 20, &reach, Some(&maps)).unwrap();
        assert!(slot.len >= 1 << 20);
        assert!(arena.regions().all(|(_, used)| used == way));
    }
}

#[test]
fn slots_do_not_overlap_and_a_full_reach_is_an_error() {
    let near = some_code();
    let reach =
        near.saturating_sub(native::NEAR_REACH as usize) + PAGE..near + native::NEAR_REACH as usize - PAGE;
    let maps = Maps::read().unwrap();
    let mut arena = Arena::new();
    let view = MemoryView::open();
    let mut slots: Vec<CodeSlot> = Vec::new();
    let site = near as u64;
    for i in 1..200 {
        slots.push(arena.allocate(near, i, &reach, Some(&maps)).unwrap());
        let ways = [1, 1, 0, (i & 1) as u64, 0];
        if let Some(pattern) = Pattern::of(native::ISAS[0], site + i as u64, &ways) {
            slots.push(arena.allocate_matching(&pattern, 14, Some(&maps)).unwrap());
        }
    }
    slots.sort_by_key(|slot| slot.at);
    assert!(slots.windows(2).all(|pair| pair[0].at + pair[0].len <= pair[1].at));
    assert!(slots.iter().all(|slot| arena.write(slot, &[0xc3], &view)));
    let code = near..near + 16;
    assert!(arena.allocate(near, 100, &code, Some(&maps)).is_err());
    assert!(arena.allocate(near, 100, &(8..4096), Some(&maps)).is_err());
    assert!(!arena.write(&CodeSlot { at: near, len: 16 }, &[0xc3], &view));
}

#[test]
fn islands_go_on_in_further_regions() {
    let mut arena = Arena::new();
    // On x86-64 two bytes are fixed: eighteen islands in each 64 KiB, within 16 MiB. In T32 some hundreds.
    let Some(pattern) = Pattern::of(native::ISAS[0], some_code() as u64, &[1, 0, 1, 0, 1]) else {
        return;
    };
    let mut islands = 0;
    while islands < 100 || arena.regions().count() <= 3 {
        // The list goes stale with each new region.
        let maps = Maps::read().unwrap();
        assert!(arena.allocate_matching(&pattern, 14, Some(&maps)).is_ok(), "island {islands}");
        islands += 1;
    }
}

#[test]
fn what_comes_back_is_given_out_again() {
    let near = some_code();
    let reach =
        near.saturating_sub(native::NEAR_REACH as usize) + PAGE..near + native::NEAR_REACH as usize - PAGE;
    let (maps, memory) = (Maps::read().unwrap(), MemoryView::open());
    for way in [CodeWay::ProcMem, CodeWay::Protect].into_iter().filter(is_to_be_had) {
        let mut arena = Arena::with_ways(&[way]);
        let mut held: Vec<(CodeSlot, &AtomicU64)> = Vec::new();
        let mut most = 0;
        for round in 0..3000 {
            let slot = arena.allocate(near, 16 + round % 200, &reach, Some(&maps)).unwrap();
            assert!(arena.write(&slot, native::ANSWER_5, &memory));
            held.push((slot, arena.word(&slot, Some(&maps)).unwrap()));
            if held.len() > 50 {
                let (slot, word) = held.swap_remove(round * 7 % 50);
                // SAFETY: nobody ran it, and the word is used no more.
                unsafe {
                    arena.give_back(&slot, &memory);
                    arena.give_word_back(word);
                }
                assert_eq!(memory.bytes(slot.at, FILL.len()).as_slice(), FILL);
            }
            most = most.max(arena.used());
        }
        assert!(most < 51 * 232, "{most}");
        assert_eq!(arena.regions().map(|(_, used)| used).collect::<Vec<_>>(), [way]);
        for (slot, word) in held {
            // SAFETY: as above.
            unsafe {
                arena.give_back(&slot, &memory);
                arena.give_word_back(word);
            }
        }
        assert_eq!(arena.used(), 0);
        arena.seal(&memory).unwrap();
        arena.trim();
        assert_eq!(arena.regions().count(), usize::from(way != CodeWay::Protect));
    }
}

#[test]
fn what_children_share_stays_as_it_is_until_all_of_it_goes() {
    let near = some_code();
    let reach =
        near.saturating_sub(native::NEAR_REACH as usize) + PAGE..near + native::NEAR_REACH as usize - PAGE;
    let memory = MemoryView::open();
    let mut arena = Arena::with_ways(&[CodeWay::TwoViews]);
    let slots = [0; 2].map(|_| arena.allocate(near, 16, &reach, None).unwrap());
    for slot in &slots {
        assert!(arena.write(slot, native::ANSWER_5, &memory));
    }
    for (slot, left) in slots.iter().zip([32, 0]) {
        // SAFETY: nobody ran it.
        unsafe { arena.give_back(slot, &memory) };
        assert_eq!(
            memory.bytes(slot.at, native::ANSWER_5.len()).as_slice(),
            native::ANSWER_5,
            "a child may run it"
        );
        arena.trim();
        assert_eq!(arena.used(), left);
    }
    assert_eq!(arena.regions().count(), 0);
}

#[test]
fn an_island_goes_with_the_last_who_shares_it() {
    let (maps, memory) = (Maps::read().unwrap(), MemoryView::open());
    if !is_to_be_had(&CodeWay::ProcMem) {
        return;
    }
    let mut arena = Arena::for_reuse();
    let ways = [1, 0, 1, 0, 0];
    let Some(pattern) = Pattern::of(native::ISAS[0], some_code() as u64, &ways) else { return };
    let slot = arena.allocate_matching(&pattern, 14, Some(&maps)).unwrap();
    arena.add_island(slot.at as u64, 5);
    assert_eq!(arena.share_island(&pattern, 5), Some(slot.at as u64));
    assert_eq!(arena.share_island(&pattern, 4), None);
    for left in [14, 0, 0] {
        // SAFETY: nobody runs it.
        unsafe { arena.leave_island(5, &slot, &memory) };
        assert_eq!(arena.used(), left);
    }
    assert_eq!(arena.share_island(&pattern, 5), None);
}
