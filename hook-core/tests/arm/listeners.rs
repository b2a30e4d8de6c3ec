//! Listeners and several hooks on one function, in both instruction sets.

use std::{
    arch::global_asm,
    ffi::c_void,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use grapnel_hook::{
    Attachment, Batch, BatchId, Error, HookSet, Listener, Liveness,
    listen::{self, Entry, Exit},
    symbol,
};

use crate::{
    compiled::{Function, Library, NAMES, bytes, function, results},
    heap,
};

const NOTHING: *mut c_void = std::ptr::null_mut();

pub(crate) fn run() {
    for set in ["arm", "thumb"] {
        let library = Library::load(set);
        for name in NAMES {
            seen_and_changed(&library, name);
        }
        floating(&library);
        kept_by_callers(&library);
        orders(&library);
        nested(&library);
        println!("listeners: {set}");
    }
    libc_is_listened_to();
    assert_eq!(listen::missed(), 0);
}

/// Attaches what one request asks for.
pub(crate) fn attach<'a>(
    set: &'a mut HookSet,
    ask: impl FnOnce(&mut Batch<'a>) -> BatchId,
) -> Result<Attachment, Error> {
    let mut batch = set.begin();
    ask(&mut batch);
    // SAFETY: one thread calls the functions, the types agree, and the listeners are for these functions.
    unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0)
}

pub(crate) fn remove(set: &mut HookSet, attachment: Attachment) -> Result<(), Error> {
    // SAFETY: one thread calls the functions.
    unsafe { set.remove(attachment, Liveness::SingleThreaded) }
}

static ENTERED: AtomicUsize = AtomicUsize::new(0);
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Sees all six arguments, and adds to the fourth and the last, which is in memory.
unsafe extern "C" fn enter(call: &mut Entry, data: *mut c_void) {
    ENTERED.fetch_add(1, Relaxed);
    assert_eq!(call.registers().r[15] as usize, data as usize & !1);
    assert_ne!(call.return_address(), 0);
    // SAFETY: the functions have six arguments.
    unsafe {
        assert_eq!(u64::from(call.registers().r[1]), call.argument(1));
        assert_eq!(call.argument(3), 40 + call.argument(0));
        call.set_word(call.argument(0) << 32 | 7);
        call.set_argument(3, call.argument(3) + 1);
        call.set_argument(5, call.argument(5) + 2);
        assert_eq!(call.argument(5), 62);
    }
    // Whatever the stub doesn't keep is lost.
    call.set_vector(9, [1, 2]);
    clobber();
}

unsafe extern "C" fn leave(call: &mut Exit, data: *mut c_void) {
    LEFT.fetch_add(1, Relaxed);
    assert_eq!(call.word() as u32, 7);
    assert_ne!(data as usize, 0);
    let high = call.registers().r[1];
    call.registers_mut().r[1] = high + 1;
    clobber();
}

/// Changes every register that a C function may change.
fn clobber() {
    // SAFETY: says what it changes.
    #[cfg(not(target_abi = "eabihf"))]
    unsafe {
        std::arch::asm!(
            "mov r0, #1", "mov r1, #2", "mov r2, #3", "mov r3, #4", "mov r12, #5", "mov lr, #6",
            out("r0") _, out("r1") _, out("r2") _, out("r3") _, out("r12") _, out("lr") _,
        );
    }
    // SAFETY: as above.
    #[cfg(target_abi = "eabihf")]
    unsafe {
        std::arch::asm!(
            "mov r0, #1", "mov r1, #2", "mov r2, #3", "mov r3, #4", "mov r12, #5", "mov lr, #6",
            out("r0") _, out("r1") _, out("r2") _, out("r3") _, out("r12") _, out("lr") _,
            out("d0") _, out("d1") _, out("d2") _, out("d3") _, out("d4") _, out("d5") _, out("d6") _, out("d7") _,
        );
        std::arch::asm!("vmov.f64 d0, #1.0", "vmov.f64 d1, #1.0", "vmov.f64 d7, #1.0", out("d0") _, out("d1") _, out("d7") _);
    }
}

/// The same arguments as [`results`].
fn changed(function: Function) -> Vec<i64> {
    (0..9)
        .flat_map(|a| [(a, 5, 9), (a, -7, 3), (a, 1 << 30, -1)])
        .map(|(a, b, c)| function(a, b, c, 41 + a, 50, 62) + (1 << 32))
        .collect()
}

fn seen_and_changed(library: &Library, name: &str) {
    if ["recursive", "globals", "tail", "calls"].contains(&name) {
        return;
    }
    let at = library.function(name);
    let (before, plain, expected) = (bytes(at), results(function(at)), changed(function(at)));
    let mut set = HookSet::new();
    let listener = Listener::new(at.cast_mut().cast()).on_enter(enter).on_leave(leave);
    for listener in [listener, listener.guarded(), listener.with_vectors()] {
        (ENTERED.store(0, Relaxed), LEFT.store(0, Relaxed));
        let attached = attach(&mut set, |batch| batch.listen(at, listener)).unwrap();
        assert_eq!(results(function(at)), expected, "{} {name}", library.set);
        assert_eq!((ENTERED.load(Relaxed), LEFT.load(Relaxed)), (plain.len(), plain.len()));
        assert_eq!(set.awaited(attached), 0);
        remove(&mut set, attached).unwrap();
        assert_eq!(bytes(at), before);
        assert_eq!(results(function(at)), plain);
    }
}

/// Arguments and results in floating-point registers are seen, changed and kept.
fn floating(library: &Library) {
    if !cfg!(target_abi = "eabihf") {
        return;
    }
    unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
        let [x, y] = call.vector(0).unwrap();
        assert_eq!((f64::from_bits(x), f32::from_bits(y as u32)), (1.5, 0.25));
        call.set_vector(0, [2.5f64.to_bits(), y]);
        clobber();
    }
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        let [result, other] = call.vector(0).unwrap();
        assert_eq!(f64::from_bits(result), 3.25);
        call.set_vector(0, [7.5f64.to_bits(), other]);
        clobber();
    }
    let at = library.function("floating");
    // SAFETY: the function's type.
    let plain: extern "C" fn(f64, f32, i32) -> f64 = unsafe { std::mem::transmute(at) };
    let mut set = HookSet::new();
    let listener = Listener::new(NOTHING).on_enter(enter).on_leave(leave);
    for listener in [listener, listener.with_vectors()] {
        let attached = attach(&mut set, |batch| batch.listen(at, listener)).unwrap();
        assert_eq!(plain(1.5, 0.25, 2), 7.5);
        remove(&mut set, attached).unwrap();
        assert_eq!(plain(1.5, 0.25, 2), 1.25);
    }
}

// arm_call_with_vectors(function, before, after): calls with values in those vector registers that a function needn't keep.
// arm_clobber_vectors(): changes them.
global_asm!(
    ".pushsection .text.arm_vectors, \"ax\", %progbits",
    ".arm",
    ".fpu neon",
    ".type arm_call_with_vectors, %function",
    "arm_call_with_vectors:",
    "push {{r4, lr}}",
    "mov r4, r2",
    "vldmia r1!, {{d0-d7}}",
    "vldmia r1, {{d16-d31}}",
    "blx r0",
    "vstmia r4!, {{d0-d7}}",
    "vstmia r4, {{d16-d31}}",
    "pop {{r4, pc}}",
    ".type arm_clobber_vectors, %function",
    "arm_clobber_vectors:",
    "vmov.i32 q0, #5",
    "vmov.i32 q3, #5",
    "vmov.i32 q8, #5",
    "vmov.i32 q9, #5",
    "vmov.i32 q12, #5",
    "vmov.i32 q15, #5",
    "bx lr",
    ".popsection",
);

unsafe extern "C" {
    fn arm_call_with_vectors(function: Function, before: &[u64; 24], after: &mut [u64; 24]);
    fn arm_clobber_vectors();
}

/// A caller that knows the function may have values in registers that it needn't keep.
fn kept_by_callers(library: &Library) {
    const HWCAP_NEON: libc::c_ulong = 1 << 12;
    unsafe extern "C" fn enter(_: &mut Entry, _: *mut c_void) {
        // SAFETY: it changes what any function may change.
        unsafe { arm_clobber_vectors() };
    }
    unsafe extern "C" fn leave(_: &mut Exit, _: *mut c_void) {
        // SAFETY: as above.
        unsafe { arm_clobber_vectors() };
    }
    // SAFETY: it has no preconditions.
    if unsafe { libc::getauxval(libc::AT_HWCAP) } & HWCAP_NEON == 0 {
        return;
    }
    let at = library.function("leaf");
    let before = std::array::from_fn(|i| 0x0102_0304_0506_0708 * (i as u64 + 1));
    let mut set = HookSet::new();
    let listener = Listener::new(NOTHING).on_enter(enter);
    for listener in [listener, listener.on_leave(leave), listener.on_leave(leave).with_vectors()] {
        let attached = attach(&mut set, |batch| batch.listen(at, listener)).unwrap();
        let mut after = [0; 24];
        // SAFETY: the function looks at registers only.
        unsafe { arm_call_with_vectors(function(at), &before, &mut after) };
        assert_eq!(after, before);
        remove(&mut set, attached).unwrap();
    }
}

/// Two replacements and two listeners, removed in any order.
fn orders(library: &Library) {
    static INNER: AtomicUsize = AtomicUsize::new(0);
    static OUTER: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn inner(a: i32, b: i32, c: i32, d: i32, e: i32, f: i32) -> i64 {
        function(INNER.load(Relaxed) as *const ())(a, b, c, d, e, f) * 10 + 1
    }
    extern "C" fn outer(a: i32, b: i32, c: i32, d: i32, e: i32, f: i32) -> i64 {
        function(OUTER.load(Relaxed) as *const ())(a, b, c, d, e, f) * 10 + 2
    }
    unsafe extern "C" fn times_ten(call: &mut Exit, data: *mut c_void) {
        let result = call.result();
        call.set_result(result * 10 + data as u64);
    }
    let at = library.function("leaf");
    let before = bytes(at);
    let call = || function(at)(4, 0, 0, 0, 0, 0);
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
        let mut set = HookSet::new();
        let listen = |digit: usize| Listener::new(digit as *mut c_void).on_leave(times_ten);
        let mut batch = set.begin();
        let first = batch.replace(at, inner as *const ());
        batch.listen(at, listen(3));
        let third = batch.replace(at, outer as *const ());
        batch.listen(at, listen(4));
        let prepared = batch.prepare();
        INNER.store(prepared.original(first).unwrap() as usize, Relaxed);
        OUTER.store(prepared.original(third).unwrap() as usize, Relaxed);
        // SAFETY: one thread, and the types agree.
        let attached = unsafe { prepared.commit(Liveness::SingleThreaded) };
        let attached: Vec<Attachment> = attached.into_iter().map(Result::unwrap).collect();
        assert_eq!(call(), 51324);
        let mut digits = vec![(0, 1), (1, 3), (2, 2), (3, 4)];
        for index in order {
            remove(&mut set, attached[index]).unwrap();
            digits.retain(|(of, _)| *of != index);
            assert_eq!(call(), digits.iter().fold(5, |sum, (_, digit)| sum * 10 + digit));
        }
        assert_eq!(bytes(at), before);
    }
}

/// A recursion, each call of which has a return point, on several stacks.
fn nested(library: &Library) {
    static DEPTH: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
        DEPTH.fetch_add(1, Relaxed);
        call.set_word(DEPTH.load(Relaxed) as u64);
    }
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        assert_eq!(call.word(), DEPTH.fetch_sub(1, Relaxed) as u64);
    }
    let at = library.function("recursive");
    let plain = results(function(at));
    let mut set = HookSet::new();
    let listener = Listener::new(NOTHING).on_enter(enter).on_leave(leave);
    let attached = attach(&mut set, |batch| batch.listen(at, listener)).unwrap();
    assert_eq!(results(function(at)), plain);
    AT.store(at as usize, Relaxed);
    let in_thread = std::thread::spawn(|| function(AT.load(Relaxed) as *const ())(3, 0, 0, 0, 1, 5));
    assert_eq!(in_thread.join().unwrap(), 11);
    assert_eq!(DEPTH.load(Relaxed), 0);
    remove(&mut set, attached).unwrap();
    assert_eq!(results(function(at)), plain);
}

/// What another thread calls.
static AT: AtomicUsize = AtomicUsize::new(0);

/// The functions of libc are T32 in Debian's armhf, and A32 elsewhere.
fn libc_is_listened_to() {
    unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
        ENTERED.fetch_add(1, Relaxed);
        // SAFETY: R0 is there for all of them.
        call.set_word(unsafe { call.argument(0) });
    }
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        LEFT.fetch_add(1, Relaxed);
        assert_ne!((call.word(), call.result()), (100, 0));
    }
    let libc = heap::module("libc.so");
    let names =
        ["malloc", "free", "calloc", "realloc", "getppid", "strlen", "memcpy", "strtol", "snprintf", "qsort"];
    let mut set = HookSet::new();
    let mut batch = set.begin();
    let mut before = Vec::new();
    for name in names {
        let symbol = symbol::find(&libc, name.as_bytes()).expect(name);
        // SAFETY: libc is loaded and relocated.
        let at = unsafe { symbol.resolve() };
        before.push((at, bytes(at)));
        batch.listen(at, Listener::new(NOTHING).on_enter(enter).on_leave(leave));
    }
    // SAFETY: one thread, and the listeners change nothing.
    let attached = unsafe { batch.commit(Liveness::SingleThreaded) };
    let mut refused = Vec::new();
    let attached: Vec<_> = attached
        .into_iter()
        .zip(names)
        .filter_map(|(attached, name)| attached.map_err(|error| refused.push((name, error))).ok())
        .collect();
    for (name, error) in &refused {
        println!("{name}: {error}; {}", error.remedy());
    }
    assert!(!attached.is_empty());
    (ENTERED.store(0, Relaxed), LEFT.store(0, Relaxed));
    assert_eq!(heap::allocate(), heap::allocate());
    let mut text = [0u8; 100];
    // SAFETY: as the manual page says.
    let written = unsafe {
        libc::snprintf(text.as_mut_ptr().cast(), 100, c"%d %s %.3f".as_ptr(), 42, c"text".as_ptr(), 1.5f64)
    };
    assert_eq!(&text[..written as usize], b"42 text 1.500");
    println!("{} listened calls of libc, {} refused", ENTERED.load(Relaxed), refused.len());
    assert!(ENTERED.load(Relaxed) > 200);
    assert_eq!(ENTERED.load(Relaxed), LEFT.load(Relaxed));
    for attached in attached {
        remove(&mut set, attached).unwrap();
    }
    for (at, bytes_before) in before {
        assert_eq!(bytes(at), bytes_before);
    }
    assert_eq!(refused.len(), 0);
}
