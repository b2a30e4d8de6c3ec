//! Code without CFI: what a JIT compiler might have made, with and without frame pointers.
//!
//! # Safety
//! The bytes written here are functions of the types that they are called as, and keep what the ABI has them keep.

use crate::common::{self, Probe, State, Walk, grapnel_test_probe, with_probe};
use crate::native::{self, with_frame, with_frame_last, with_frame_pointer, without_frame};
use grapnel_unwind::{Config, End, Frame, FrameFlags, Registers};
use std::cell::RefCell;
use std::rc::Rc;

#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C" {
    /// Of the compiler's library: lets new code be seen where instructions are fetched.
    fn __clear_cache(start: *mut std::ffi::c_char, end: *mut std::ffi::c_char);
}

/// A page of code outside all modules.
struct Page(*mut u8);

impl Page {
    fn new() -> Self {
        // SAFETY: a fresh anonymous mapping.
        let page = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        Page(page.cast())
    }

    fn put(&self, offset: usize, code: &[u8]) -> u64 {
        assert!(offset + code.len() <= 4096);
        // SAFETY: within the page.
        unsafe {
            let at = self.0.add(offset);
            at.copy_from_nonoverlapping(code.as_ptr(), code.len());
            #[cfg(not(target_arch = "x86_64"))]
            __clear_cache(at.cast(), at.add(code.len()).cast());
            native::entry(at as u64)
        }
    }

    fn holds(&self, pc: u64) -> bool {
        (self.0 as u64..self.0 as u64 + 4096).contains(&pc)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page is ours and no code of it runs.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

/// Calls code at an address with the probe, and with another address.
#[inline(never)]
fn call(code: u64, other: u64) {
    // SAFETY: see the module's header.
    unsafe {
        let f: unsafe extern "C-unwind" fn(Probe, usize) = std::mem::transmute(code as usize as *const ());
        f(grapnel_test_probe, other as usize);
    }
    std::hint::black_box(());
}

/// The frames at each probe, with all walks compared.
fn stacks(body: impl FnOnce()) -> (Vec<Vec<Frame>>, State) {
    let all = Rc::new(RefCell::new(Vec::new()));
    let list = all.clone();
    let on_probe = move |state: &mut State, registers: &Registers| {
        let frames = state.check_walks(registers);
        list.borrow_mut().push(frames);
    };
    let state = with_probe(Config::default(), on_probe, body);
    (all.take(), state)
}

#[test]
fn frame_pointers_bridge_code_without_cfi() {
    let page = Page::new();
    let last = page.put(0, &with_frame_last());
    let first = page.put(64, &with_frame());
    let (stacks, state) = stacks(|| {
        for _ in 0..20 {
            for (code, other) in [(last, 0), (first, last), (grapnel_test_probe as *const () as u64, 0)] {
                call(code, other);
            }
        }
    });
    assert_eq!(state.last_end, End::Root);
    for three in stacks.chunks(3) {
        let [one, two, direct] = three else { panic!("three probes in a round") };
        for (stack, guesses) in [(one, 1), (two, 2)] {
            let (jit, rest) = stack.split_at(guesses);
            assert!(jit.iter().all(|f| page.holds(f.pc) && f.flags == FrameFlags::GUESS && f.module == 0));
            // The caller of `call` has three call sites if its loop was unrolled.
            assert_eq!(rest[0], direct[0]);
            assert_eq!(rest[2..], direct[2..]);
        }
    }
}

/// A page of a module's data.
#[repr(align(4096))]
struct Data(std::cell::UnsafeCell<[u8; 4096]>);

// SAFETY: one test alone writes to it.
unsafe impl Sync for Data {}

#[test]
fn code_in_data_of_a_module_is_code() {
    static DATA: Data = Data(std::cell::UnsafeCell::new([0; 4096]));
    let at = DATA.0.get();
    // SAFETY: a whole page, where nothing but the code of this test lies.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        assert_eq!(libc::mprotect(at.cast(), 4096, protection), 0);
    }
    let page = std::mem::ManuallyDrop::new(Page(at.cast()));
    let code = page.put(0, &with_frame_last());
    let (stacks, state) = stacks(|| {
        for code in [code, code, grapnel_test_probe as *const () as u64] {
            call(code, 0);
        }
    });
    let [one, two, direct] = &stacks[..] else { panic!("three probes") };
    let module = state.table.module_at(at as u64).expect("the data is this program's");
    for stack in [one, two] {
        assert!(page.holds(stack[0].pc) && stack[0].flags == FrameFlags::GUESS);
        assert_eq!(stack[0].module, module);
        assert_eq!(stack[2..].len(), direct[1..].len());
        assert_eq!(stack[3..], direct[2..]);
    }
}

#[test]
fn what_a_chain_says_of_data_is_no_frame() {
    /// In one page.
    #[repr(align(64))]
    struct Chain([usize; 4]);
    let page = Page::new();
    let mut chain = Chain([0; 4]);
    let chain = &mut chain.0;
    let on_stack = &raw mut *chain as u64;
    // Also where what lies there could be an instruction, but none that calls.
    chain[3] = usize::MAX;
    for data in [on_stack, on_stack + 4, &raw const chain[2] as u64, &raw const chain[3] as u64 + 8] {
        (chain[0], chain[1]) = (&raw const chain[2] as usize, data as usize);
        std::hint::black_box(&mut *chain);
        let code = page.put(0, &with_frame_pointer(on_stack));
        let (stacks, _) = stacks(|| call(code, 0));
        let is_one = |stack: &Vec<Frame>| stack.len() == 2 && stack[1].flags == FrameFlags::NO_CALLER;
        assert!(stacks.iter().all(is_one), "{stacks:?}");
    }
    std::hint::black_box(&mut *chain);
}

/// As interpreters do: a return address is pushed, and no call lies before it.
#[cfg(target_arch = "x86_64")]
#[test]
fn code_that_pushes_return_addresses_is_code() {
    let page = Page::new();
    let last = page.put(0, &with_frame_last());
    // push rbp; mov rbp, rsp; lea rax, [rip + 3]; push rax; jmp rsi; pop rbp; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x05, 3, 0, 0, 0, 0x50, 0xff, 0xe6, 0x5d, 0xc3];
    let first = page.put(64, &code);
    let (stacks, state) = stacks(|| call(first, last));
    assert_eq!(state.last_end, End::Root);
    let [stack] = &stacks[..] else { panic!("one probe") };
    assert_eq!(stack[1].pc, first + 14);
    assert!(stack[..2].iter().all(|frame| frame.flags == FrameFlags::GUESS));
    assert!(stack[2..].iter().all(|frame| frame.flags == FrameFlags::NONE));
}

#[test]
fn what_was_no_code_may_be_some_later() {
    let (page, other) = (Page::new(), Page::new());
    let last = page.put(0, &with_frame_last());
    let first = other.put(0, &with_frame());
    let at = other.0 as usize;
    let lengths = Rc::new(RefCell::new(Vec::new()));
    let list = lengths.clone();
    let on_probe = move |state: &mut State, registers: &Registers| {
        let protect = |protection| {
            // SAFETY: the page is ours, and its code can be read and run again when it goes on.
            assert_eq!(unsafe { libc::mprotect(at as *mut _, 4096, protection) }, 0);
        };
        protect(libc::PROT_NONE);
        let without = state.check_walks(registers).len();
        protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        list.borrow_mut().push((without, state.check_walks(registers).len()));
    };
    with_probe(Config::default(), on_probe, || call(first, last));
    let lengths = lengths.take();
    let [(without, with)] = lengths[..] else { panic!("one probe") };
    assert!(without == 2 && with > 4, "{without} {with}");
}

#[test]
fn no_fault_without_frame_pointers() {
    let page = Page::new();
    let code = page.put(0, &without_frame());
    let (stacks, _) = stacks(|| {
        for _ in 0..5 {
            call(code, 0);
        }
    });
    for stack in stacks {
        assert!(page.holds(stack[0].pc) && stack[0].flags == FrameFlags::GUESS);
    }
}

#[test]
fn no_fault_on_a_broken_chain() {
    let page = Page::new();
    let hole = Page::new();
    let unmapped = hole.0 as u64;
    drop(hole);
    let heap = vec![0x4141_4141_4141_4141u64; 64];
    let mut chain = [0usize; 4];
    let on_stack = &raw mut chain as u64;
    // A frame that is its own caller.
    chain[0] = on_stack as usize;
    chain[1] = page.0 as usize + 5;
    let values = [
        0,
        1,
        8,
        7 + on_stack,
        on_stack,
        on_stack + 4096,
        on_stack + 4097,
        on_stack + (1 << 19),
        on_stack + (1 << 30),
        unmapped,
        heap.as_ptr() as u64,
        0xdead_beef_dead_beef,
        0x8000_0000_0000_0000,
        0xffff_ffff_ffff_fff8,
    ];
    let (stacks, _) = stacks(|| {
        for _ in 0..3 {
            for value in values {
                let code = page.put(0, &with_frame_pointer(value));
                call(code, 0);
            }
        }
    });
    assert_eq!(stacks.len(), 3 * values.len());
    for (stack, value) in stacks.iter().zip(values.iter().cycle()) {
        assert!(page.holds(stack[0].pc) && stack[0].flags == FrameFlags::GUESS);
        assert!(stack.len() < 64);
        // Code that was made at run time has a caller.
        assert!(*value != 0 || (stack.len() == 2 && stack[1].flags == FrameFlags::NO_CALLER));
    }
    std::hint::black_box((&mut chain, &heap));
}

#[test]
fn start_registers_may_be_anything() {
    let mut state = State::new(Config::default());
    let code = common::loaded_modules as *const () as u64;
    let values = [0, 1, 8, 4096, code, 1 << 47, u64::MAX, u64::MAX - 7, 0x8000_0000_0000_0000];
    for pc in values {
        for sp in values {
            for fp in values {
                let registers = native::registers(pc, sp, fp);
                let frames = state.check_walks(&registers);
                assert_eq!(frames.first().map(|f| f.pc), Some(native::address(pc)));
            }
        }
    }
}

/// Numbers below a bound, the same in each run.
fn random() -> impl FnMut(u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(7);
    move |below| random.u64(..below)
}

#[test]
fn chains_of_anything_end_without_a_fault() {
    const PAGES: u64 = 6;
    const WORD: u64 = size_of::<usize>() as u64;
    let pages = PAGES * 4096;
    // SAFETY: a fresh anonymous mapping, of which one page can't be read. Given back, it could come to be another test's.
    let stack = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let stack = libc::mmap(std::ptr::null_mut(), pages as usize, protection, flags, -1, 0);
        assert_ne!(stack, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(stack.byte_add(4096 * 4), 4096, libc::PROT_NONE), 0);
        stack as u64
    };
    let code = common::loaded_modules as *const () as u64;
    let mut random = random();
    let mut state = State::new(Config::default());
    state.table = std::mem::take(&mut state.table).by_frame_pointers();
    let (mut longest, mut walks) = (0, 0);
    for _ in 0..if std::env::var_os("GRAPNEL_EMULATED").is_some() { 40 } else { 400 } {
        for at in (0..pages).step_by(WORD as usize).filter(|at| at / 4096 != 4) {
            // Most records could be some: where the next is, and code.
            let is_second = (at / WORD) % 2 * 4;
            let word = match if random(8) == 0 { random(8) } else { is_second + random(4) } {
                // Up to a record near by, to one anywhere, back, or to itself; whole or not.
                0..3 => stack + at + WORD * random(64),
                3 => stack + random(pages + 4096),
                // Code, perhaps with a signature or as T32 code.
                4 | 5 => code + 4 * random(64) + random(2),
                6 => code | random(1 << 16) << 48,
                _ => random(u64::MAX),
            };
            // SAFETY: within the part of the mapping that is left.
            unsafe { ((stack + at) as *mut usize).write_volatile(word as usize) };
        }
        for turn in 0..40 {
            // A thread is on the stack below its stack pointer, which may be where that ends.
            let sp = match turn {
                0..4 => stack + 4 * 4096,
                _ => stack + WORD + WORD * random(4 * 4096 / WORD),
            };
            let fp = if random(8) == 0 { random(u64::MAX) } else { sp + WORD * random(256) };
            let registers = native::registers(code, sp, fp);
            let memoised = state.walk(Walk::Memoised, &registers);
            for how in [Walk::Unmemoised, Walk::Memoised] {
                let other = state.walk(how, &registers);
                state.same(memoised, other, "without the memo, or a second time");
            }
            let frames = state.frames(memoised);
            assert!(frames.len() as u64 <= pages / WORD);
            (longest, walks) = (longest.max(frames.len()), walks + frames.len());
        }
    }
    assert!(longest > 4 && walks > 1000, "{longest} frames at most, {walks} in all");
    // SAFETY: nothing reads there any more.
    unsafe { libc::munmap(stack as *mut _, pages as usize) };
}
