//! Planning and emitting allocate nothing, once the decoder has built its tables. A look through a function takes memory
//! by its length.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    hint::black_box,
};

use grapnel_relocator::{
    CodeAddr, Isa, RelocationPlan, Window,
    flow::{self, Surroundings, Verdict},
    redirect,
};

/// The system's allocator, counting the calls of each thread and what it holds.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST_HELD: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to `System` as it came; the counters neither allocate nor unwind, since they are
// initialised at compile time and have no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        HELD.set(HELD.get().wrapping_add(layout.size()));
        MOST_HELD.set(MOST_HELD.get().max(HELD.get()));
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // What one thread allocates another may free.
        HELD.set(HELD.get().saturating_sub(layout.size()));
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

/// Relocates a window twice to each destination; the second time nothing may be allocated.
#[track_caller]
fn allocates_nothing(isa: Isa, code: &[u8], min_len: usize, destinations: [u64; 2]) {
    let from = CodeAddr(0x40_1000);
    let relocate = |to| {
        let window = Window::decode(isa, from, black_box(code), min_len).unwrap();
        assert_eq!(window.len(), min_len);
        let relocated = RelocationPlan::new(&window).unwrap().emit(CodeAddr(to)).unwrap();
        let redirects = [redirect::near(isa, from, from.add(0x1000)), redirect::absolute(isa, from, from)];
        black_box((relocated, redirects.map(Result::unwrap)));
    };
    destinations.into_iter().for_each(relocate);
    let before = CALLS.get();
    destinations.into_iter().for_each(relocate);
    assert_eq!(CALLS.get() - before, 0);
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn accepted_aarch64_windows_allocate_nothing() {
    let code = words([
        0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
        0x9000_0000, // adrp x0, 0
        0x5800_0801, // ldr x1, +0x100
        0x9c00_0802, // ldr q2, +0x100
        0xb400_0801, // cbz x1, +0x100
        0x3708_0803, // tbnz w3, #1, +0x100
        0x5400_0040, // b.eq +8, in the window
        0x9400_0040, // bl +0x100
        0xa8c1_7bfd, // ldp x29, x30, [sp], #16
        0xd65f_03c0, // ret
    ]);
    allocates_nothing(Isa::Aarch64, &code, 32, [0x50_0000, 0x7f00_0000_0000]);
}

#[test]
fn accepted_a32_windows_allocate_nothing() {
    let code = words([
        0xe92d_4800, // push {r11, lr}
        0xe59f_0100, // ldr r0, [pc, #256]
        0xe08f_1000, // add r1, pc, r0
        0x059f_2100, // ldreq r2, [pc, #256]
        0x1a00_0000, // bne +8, in the window
        0x0b00_0040, // bleq
        0xe1cf_41d0, // ldrd r4, r5, [pc, #16]: behind the window
        0xe58d_f004, // str pc, [sp, #4]
        0xe8bd_8800, // pop {r11, pc}
        0,
        0,
        0,
        0,
    ]);
    allocates_nothing(Isa::A32, &code, 32, [0x50_0000, 0x7000_0000]);
}

#[test]
fn accepted_t32_windows_allocate_nothing() {
    let halfwords: [u16; 20] = [
        0xb510, // push {r4, lr}
        0x4810, // ldr r0, [pc, #64]
        0xa110, // adr r1, +64
        0xb110, // cbz r0, +8, in the window
        0xbf0c, // ite eq
        0x4a10, // ldreq r2, [pc, #64]
        0x2301, // movne r3, #1
        0xf000, 0xf840, // bl +0x80
        0x4478, // add r0, pc
        0xf8df, 0x4040, // ldr.w r4, [pc, #64]
        0xd010, // beq +0x20
        0xf43f, 0xaf00, // beq.w -0x200
        0xbd10, // pop {r4, pc}
        0xbf00, 0xbf00, 0xbf00, 0xbf00,
    ];
    let code: Vec<u8> = halfwords.iter().flat_map(|halfword| halfword.to_le_bytes()).collect();
    allocates_nothing(Isa::T32, &code, 30, [0x50_0000, 0x7000_0000]);
}

/// The most bytes that are held at a time while a function is looked through.
fn looked_through(isa: Isa, code: &[u8], around: &Surroundings<'_>) -> (usize, Verdict) {
    let before = HELD.get();
    MOST_HELD.set(before);
    let verdict = flow::check_with(isa, black_box(code), CodeAddr(0x40_1000), 4, around);
    (MOST_HELD.get() - before, verdict)
}

/// Each of these branches could lead to a switch whose bound lies before it, so the code before it is kept.
#[test]
fn branches_into_switches_take_memory_by_the_length_of_the_function() {
    // b.ls +8; ret; ret
    let code: Vec<u8> = [0x5400_0049_u32]
        .repeat(8000)
        .into_iter()
        .chain([0xd65f_03c0; 2])
        .flat_map(u32::to_le_bytes)
        .collect();
    let (held, verdict) = looked_through(Isa::Aarch64, &code, &Surroundings::default());
    assert_eq!(verdict, Verdict::Proven);
    assert!(held < 4 << 20, "{held} bytes were held");
}

/// As many entries as a table may have, from each of many jumps.
#[test]
fn tables_without_end_are_not_read() {
    // cmp eax, 0xfff; ja +7; jmp [rax * 8 + 0x10000000]
    let turn = [0x3d, 0xff, 0x0f, 0, 0, 0x77, 0x07, 0xff, 0x24, 0xc5, 0, 0, 0, 0x10];
    let code = turn.repeat(4000);
    let read_bytes = Cell::new(0);
    let read = |at: CodeAddr, out: &mut [u8]| {
        read_bytes.set(read_bytes.get() + out.len());
        for (number, entry) in out.chunks_exact_mut(8).enumerate() {
            // To the turn of that number.
            let turn = (at.0 - 0x1000_0000) / 8 + number as u64;
            entry.copy_from_slice(&(0x40_1000 + 14 * turn).to_le_bytes());
        }
        true
    };
    let (held, verdict) =
        looked_through(Isa::X86_64, &code, &Surroundings { read: Some(&read), ..Surroundings::default() });
    assert!(matches!(verdict, Verdict::Assumed(_)), "{verdict:?}");
    let read_bytes = read_bytes.get();
    assert!(read_bytes < 16 * code.len() + (1 << 20), "{read_bytes} bytes of tables were read");
    assert!(held < 4 << 20, "{held} bytes were held");
}
