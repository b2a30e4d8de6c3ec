//! Planning and emitting allocate nothing, once the decoder has built its tables.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    hint::black_box,
};

use grapnel_relocator::{CodeAddr, Isa, RelocationPlan, Window, redirect};

/// The system's allocator, counting the calls of each thread.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to `System` as it came; the counter neither allocates nor unwinds, since it is
// initialised at compile time and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract, and `alloc` is System's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn accepted_windows_allocate_nothing() {
    // push rbp; mov rbp, rsp; je +0x40; mov rax, [rip + 0x1000]; call +0x100; loop +0x10
    let bytes = [
        0x55, 0x48, 0x89, 0xe5, 0x74, 0x40, 0x48, 0x8b, 0x05, 0, 0x10, 0, 0, 0xe8, 0, 1, 0, 0, 0xe2, 0x10,
        0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
    ];
    let from = CodeAddr(0x7f00_0000_1000);
    let relocate = |to| {
        let window = Window::decode(Isa::X86_64, from, black_box(&bytes), 20).unwrap();
        let relocated = RelocationPlan::new(&window).unwrap().emit(CodeAddr(to)).unwrap();
        let near = redirect::near(Isa::X86_64, from, from.add(0x1000)).unwrap();
        black_box((relocated, near));
    };
    relocate(0x7f00_1000_0000);
    let before = CALLS.get();
    relocate(0x7f00_1000_0000);
    relocate(0x1000_0000);
    assert_eq!(CALLS.get() - before, 0);
}

/// A register kept on the stack, one found dead ahead, R11 at a call, and `push` and `pop` beyond 2 GiB.
#[test]
fn operands_beyond_reach_allocate_nothing() {
    // add [rip + 0x100], eax; push [rip + 0x100]; pop [rip + 0x100]; call [rip + 0x100]; cmp [rip + 0x100], 0;
    // je +2; xor eax, eax; xor eax, eax; ret
    let bytes = [
        0x01, 0x05, 0, 1, 0, 0, 0xff, 0x35, 0, 1, 0, 0, 0x8f, 0x05, 0, 1, 0, 0, 0xff, 0x15, 0, 1, 0, 0, 0x83,
        0x3d, 0, 1, 0, 0, 0, 0x74, 0x02, 0x31, 0xc0, 0x31, 0xc0, 0xc3,
    ];
    let from = CodeAddr(0x7f00_0000_1000);
    let relocate = || {
        let window = Window::decode(Isa::X86_64, from, black_box(&bytes), 31).unwrap();
        RelocationPlan::new(&window).unwrap().emit(CodeAddr(0x1000_0000)).unwrap()
    };
    let relocated = relocate();
    assert_eq!(relocated.clobbers().names().collect::<Vec<_>>(), ["rax", "r11"]);
    let before = CALLS.get();
    black_box(relocate());
    assert_eq!(CALLS.get() - before, 0);
}
