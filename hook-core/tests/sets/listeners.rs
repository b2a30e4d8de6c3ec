//! What listeners see, change and keep.

use std::{
    cell::Cell,
    ffi::{CStr, c_void},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use grapnel_hook::{
    HookSet, Listener,
    listen::{self, Entry, Exit},
};

use crate::{at, attach, code, find, function, isa, remove};

const NOTHING: *mut c_void = std::ptr::null_mut();

pub(crate) fn run() {
    arguments_in_registers_and_memory();
    floating_point();
    errno_is_kept();
    guarded();
    variadic();
    more_returns_than_there_are_places();
    other_stacks();
    in_threads();
}

extern "C" fn ten(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64, i: u64, j: u64) -> u64 {
    [a, b, c, d, e, f, g, h, i, j].iter().fold(0, |sum, x| sum * 10 + std::hint::black_box(x))
}

fn arguments_in_registers_and_memory() {
    unsafe extern "C" fn enter(call: &mut Entry, data: *mut c_void) {
        assert_eq!(data as usize, 77);
        for i in 0..10 {
            // SAFETY: the function has ten arguments.
            assert_eq!(unsafe { call.argument(i) }, i as u64 % 9);
        }
        assert_eq!(isa::pc(call.registers()), code::start(ten as *const ()) as u64);
        // SAFETY: as above; each is a digit.
        unsafe {
            call.set_argument(1, 7);
            call.set_argument(8, 6);
            call.set_word(call.argument(9) + 1000);
        }
    }
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        assert_eq!(call.word(), 1000);
        assert_eq!(call.result(), 723_456_760);
        call.set_result(5);
    }
    let ten: extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u64 =
        std::hint::black_box(ten);
    let mut set = HookSet::new();
    let listener = Listener::new(77 as *mut c_void).on_enter(enter).on_leave(leave);
    let attached = attach(&mut set, |batch| batch.listen(ten as *const (), listener)).unwrap();
    assert_eq!(ten(0, 1, 2, 3, 4, 5, 6, 7, 8, 0), 5);
    remove(&mut set, attached).unwrap();
    assert_eq!(ten(0, 1, 2, 3, 4, 5, 6, 7, 8, 0), 123_456_780);
}

fn floating_point() {
    extern "C" fn weighted(a: f64, n: u64, b: f64) -> f64 {
        std::hint::black_box(a) * n as f64 + b
    }
    unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
        assert_eq!(f64::from_bits(call.vector(0).unwrap()[0]), 1.5);
        assert_eq!(f64::from_bits(call.vector(1).unwrap()[0]), 0.25);
        assert!(call.set_vector(1, [f64::to_bits(0.5), 0]));
    }
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        assert_eq!(f64::from_bits(call.vector(0).unwrap()[0]), 3.5);
        assert!(call.set_vector(0, [f64::to_bits(9.0), 0]));
    }
    let weighted: extern "C" fn(f64, u64, f64) -> f64 = std::hint::black_box(weighted);
    let mut set = HookSet::new();
    let plain = Listener::new(NOTHING).on_enter(enter).on_leave(leave);
    for listener in [plain, plain.with_vectors()] {
        let attached = attach(&mut set, |batch| batch.listen(weighted as *const (), listener)).unwrap();
        assert_eq!(weighted(1.5, 2, 0.25), 9.0);
        remove(&mut set, attached).unwrap();
        assert_eq!(weighted(1.5, 2, 0.25), 3.25);
    }
}

fn errno_is_kept() {
    fn errno() -> *mut i32 {
        // SAFETY: no preconditions.
        unsafe { libc::__errno_location() }
    }
    unsafe extern "C" fn spoil_at_entry(_: &mut Entry, _: *mut c_void) {
        // SAFETY: fails, and says so in errno.
        unsafe { assert_eq!(libc::close(-1), -1) };
    }
    unsafe extern "C" fn spoil_at_exit(_: &mut Exit, _: *mut c_void) {
        // SAFETY: as above.
        unsafe { assert_eq!(libc::close(-1), -1) };
    }
    let mut set = HookSet::new();
    let listener = Listener::new(NOTHING).on_enter(spoil_at_entry).on_leave(spoil_at_exit);
    let attached = attach(&mut set, |batch| batch.listen(at("frame"), listener)).unwrap();
    // SAFETY: this thread's errno.
    unsafe { *errno() = 1234 };
    assert_eq!(function(at("frame"))(1), 2);
    // SAFETY: as above.
    assert_eq!(unsafe { *errno() }, 1234);
    std::thread::spawn(|| {
        // SAFETY: as above.
        unsafe { *errno() = 77 };
        assert_eq!(function(at("frame"))(1), 2);
        // SAFETY: as above.
        assert_eq!(unsafe { *errno() }, 77);
    })
    .join()
    .unwrap();
    remove(&mut set, attached).unwrap();
}

fn guarded() {
    static ENTERED: AtomicU64 = AtomicU64::new(0);
    static LEFT: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn enter(_: &mut Entry, _: *mut c_void) {
        ENTERED.fetch_add(1, Relaxed);
        // Without the guard this would never end.
        assert_eq!(function(at("frame"))(5), 6);
    }
    unsafe extern "C" fn leave(_: &mut Exit, _: *mut c_void) {
        LEFT.fetch_add(1, Relaxed);
        assert_eq!(function(at("frame"))(5), 6);
    }
    let mut set = HookSet::new();
    let listener = Listener::new(NOTHING).on_enter(enter).on_leave(leave).guarded();
    let attached = attach(&mut set, |batch| batch.listen(at("frame"), listener)).unwrap();
    for _ in 0..100 {
        assert_eq!(function(at("frame"))(1), 2);
    }
    assert_eq!((ENTERED.load(Relaxed), LEFT.load(Relaxed)), (100, 100));
    remove(&mut set, attached).unwrap();
}

/// The number of arguments isn't known, and they are of all kinds and in all places.
fn variadic() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
        SEEN.fetch_add(1, Relaxed);
        // SAFETY: the format is a string.
        assert!(unsafe { CStr::from_ptr(call.argument(2) as *const _) }.to_bytes().starts_with(b"%d"));
    }
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        SEEN.fetch_add(call.result() as usize * 100, Relaxed);
    }
    let libc_so = find::module("libc.so");
    let snprintf = grapnel_hook::symbol::find(&libc_so, b"snprintf").unwrap();
    let mut set = HookSet::new();
    let listener = Listener::new(NOTHING).on_enter(enter).on_leave(leave);
    let attached = attach(&mut set, |batch| batch.listen(snprintf.pointer(), listener)).unwrap();
    let mut text = [0u8; 200];
    // SAFETY: the arguments are those that the format names.
    let n = unsafe {
        libc::snprintf(
            text.as_mut_ptr().cast(),
            200,
            c"%d %d %d %s %g %g %g %g %g %g %g %g %g %g %d %s".as_ptr(),
            1,
            2,
            3,
            c"four".as_ptr(),
            0.5,
            1.5,
            2.5,
            3.5,
            4.5,
            5.5,
            6.5,
            7.5,
            8.5,
            9.5,
            16,
            c"end".as_ptr(),
        )
    };
    remove(&mut set, attached).unwrap();
    let text = CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap();
    assert_eq!(text, "1 2 3 four 0.5 1.5 2.5 3.5 4.5 5.5 6.5 7.5 8.5 9.5 16 end");
    assert_eq!(SEEN.load(Relaxed), 1 + 100 * n as usize);
}

fn more_returns_than_there_are_places() {
    static LEFT: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn leave(_: &mut Exit, _: *mut c_void) {
        LEFT.fetch_add(1, Relaxed);
    }
    #[inline(never)]
    extern "C" fn depth(n: u64) -> u64 {
        if n == 0 { 0 } else { 1 + std::hint::black_box(depth as extern "C" fn(u64) -> u64)(n - 1) }
    }
    let depth: extern "C" fn(u64) -> u64 = std::hint::black_box(depth);
    let mut set = HookSet::new();
    let listener = Listener::new(NOTHING).on_leave(leave);
    let attached = attach(&mut set, |batch| batch.listen(depth as *const (), listener)).unwrap();
    let missed = listen::missed();
    assert_eq!(depth(999), 999);
    assert_eq!((LEFT.load(Relaxed), listen::missed() - missed), (1000, 0));
    assert_eq!(depth(9999), 9999);
    assert_eq!(LEFT.load(Relaxed) + listen::missed() - missed, 11_000);
    assert_eq!(LEFT.load(Relaxed), 1000 + 8 * 384);
    assert_eq!(set.awaited(attached), 0);
    remove(&mut set, attached).unwrap();
}

/// Calls that are under way on several stacks and return in another order than they came in.
fn other_stacks() {
    thread_local! {
        static CONTEXTS: Cell<[*mut libc::ucontext_t; 3]> = const { Cell::new([std::ptr::null_mut(); 3]) };
    }
    static LEFT: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        LEFT.fetch_add(call.result(), Relaxed);
    }
    #[inline(never)]
    extern "C" fn switch(from: u64, to: u64) -> u64 {
        let contexts = CONTEXTS.get();
        // SAFETY: the contexts are those of this test, and each is left before it is gone on with.
        unsafe { assert_eq!(libc::swapcontext(contexts[from as usize], contexts[to as usize]), 0) };
        std::hint::black_box(from) + 1
    }
    extern "C" fn coroutine(number: u64) {
        let switch: extern "C" fn(u64, u64) -> u64 = std::hint::black_box(switch);
        for _ in 0..100 {
            assert_eq!(switch(number, number % 2 + 1), number + 1);
        }
        switch(number, 0);
    }
    let mut set = HookSet::new();
    let listener = Listener::new(NOTHING).on_leave(leave);
    let attached = attach(&mut set, |batch| batch.listen(switch as *const (), listener)).unwrap();
    let mut stacks = [vec![0u8; 64 << 10], vec![0u8; 64 << 10]];
    // SAFETY: plain data, filled by getcontext below.
    let mut contexts: [libc::ucontext_t; 3] = unsafe { std::mem::zeroed() };
    let [main, first, second] = &mut contexts;
    for (number, (context, stack)) in [&mut *first, &mut *second].into_iter().zip(&mut stacks).enumerate() {
        // SAFETY: the stacks live until the coroutines are done or abandoned.
        unsafe {
            assert_eq!(libc::getcontext(context), 0);
            context.uc_stack.ss_sp = stack.as_mut_ptr().cast();
            context.uc_stack.ss_size = stack.len();
            let function: extern "C" fn() = std::mem::transmute(coroutine as extern "C" fn(u64));
            libc::makecontext(context, function, 1, number as i32 + 1);
        }
    }
    CONTEXTS.set([&raw mut *main, &raw mut *first, &raw mut *second]);
    let before = LEFT.load(Relaxed);
    std::hint::black_box(switch as extern "C" fn(u64, u64) -> u64)(0, 1);
    // The first coroutine is done, and left for good in its last call; the second in one of its turns.
    assert_eq!(LEFT.load(Relaxed) - before, 100 * 2 + 99 * 3 + 1);
    assert_eq!(set.awaited(attached), 2);
    remove(&mut set, attached).unwrap();
}

fn in_threads() {
    static BALANCE: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
        // SAFETY: the function has an argument.
        call.set_word(unsafe { call.argument(0) } * 3);
    }
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        assert_eq!(call.word(), (call.result() - 1) * 3);
        BALANCE.fetch_add(1, Relaxed);
    }
    let mut set = HookSet::new();
    for guard in [false, true] {
        let listener = Listener::new(NOTHING).on_enter(enter).on_leave(leave);
        let listener = if guard { listener.guarded() } else { listener };
        let attached = attach(&mut set, |batch| batch.listen(at("frame"), listener)).unwrap();
        let threads: Vec<_> = (0..4)
            .map(|t| {
                std::thread::spawn(move || {
                    for i in 0..20_000 {
                        assert_eq!(function(at("frame"))(t * 100_000 + i), t * 100_000 + i + 1);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(BALANCE.swap(0, Relaxed), 80_000);
        remove(&mut set, attached).unwrap();
    }
}
