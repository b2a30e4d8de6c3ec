//! What goes in and out without end takes no memory.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ffi::c_void,
    sync::atomic::{AtomicIsize, Ordering::*},
};

use grapnel_hook::{HookSet, Listener, Liveness, Options, Probe};

use super::{TOLD, enter, hit, leave, reclaim, seven};
use crate::{at, attach, function, remove};

/// How many bytes of the heap are in use.
static IN_USE: AtomicIsize = AtomicIsize::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: all is passed on.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

pub(super) fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// How many bytes of this process are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Attaches and removes with ever new data. Each call must be told with the data of its round. `GRAPNEL_LEAK_ROUNDS` says how
/// often; 50,000 times without it.
fn ever_new_data_leaks_nothing() {
    let rounds = std::env::var("GRAPNEL_LEAK_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let rounds: usize = rounds.unwrap_or(50_000);
    let target = at("frame");
    let call = function(target);
    let mut set = HookSet::new();
    let round = |set: &mut HookSet, i: usize| {
        let data = i as *mut c_void;
        TOLD.store(0, Relaxed);
        let (attached, expected) = match i % 4 {
            0 => (attach(set, |b| b.replace(target, seven as *const ())), 0),
            1 => (attach(set, |b| b.listen(target, Listener::new(data).on_enter(enter))), i),
            2 => {
                let listener = Listener::new(data).on_enter(enter).on_leave(leave);
                (attach(set, |b| b.listen(target, listener)), 2 * i)
            }
            _ => {
                let inside = (target as usize + 4) as *const ();
                let range = target as u64..target as u64 + 25;
                let ask = |b: &mut grapnel_hook::Batch<'_>| {
                    b.probe_with(inside, Some(range), Probe::new(hit, data), Options::default())
                };
                (attach(set, ask), i)
            }
        };
        assert_eq!(call(1), if i.is_multiple_of(4) { 7 } else { 2 });
        assert_eq!(TOLD.load(Relaxed), expected as u64, "round {i}");
        remove(set, attached.unwrap()).unwrap();
        if i.is_multiple_of(1000) {
            let reclaimed = reclaim(set, Liveness::SingleThreaded);
            // A word that was left in a frame of the test may look like an address, and then counts as one.
            assert!(reclaimed.doubt.is_none() && reclaimed.awaited <= 16, "round {i}: {reclaimed:?}");
            assert!(set.kept() < 512, "round {i}: {reclaimed:?}");
        }
    };
    (1..=4000).for_each(|i| round(&mut set, i));
    let (maps, bytes, memory) = (mappings(), IN_USE.load(Relaxed), resident());
    (4001..=rounds).for_each(|i| round(&mut set, i));
    assert_eq!(mappings(), maps);
    let grown = IN_USE.load(Relaxed) - bytes;
    assert!(grown < 4096, "{grown} bytes");
    let (kept, resident) = (set.kept(), resident());
    assert!(resident < memory + (1 << 20), "{memory} bytes resident, then {resident}");
    println!(
        "  ever new data: {rounds} rounds, {maps} mappings, {grown} bytes of the heap more, {memory} bytes resident after 4,000 \
         rounds and {resident} at the end, {kept} bytes of code and words kept"
    );
}

pub(super) fn run() {
    ever_new_data_leaks_nothing();
}
