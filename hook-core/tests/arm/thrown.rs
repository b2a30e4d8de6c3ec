//! Exceptions of C++ from a callee that is called at a window's end: the call is the trampoline's, and returns to the original.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use grapnel_arch::{CodeAddr, a32, t32};
use grapnel_hook::{HookSet, Liveness, Options, Probe, listen::Hit};

use crate::{
    compiled::{Library, bytes},
    listeners::{attach, remove},
};

type Function = extern "C" fn(i32) -> i32;
type Calls = extern "C" fn(Function, i32) -> i32;

const ROUNDS: i32 = 2000;

static HITS: AtomicUsize = AtomicUsize::new(0);
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);
static REPLACED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn hit(_: &mut Hit, _: *mut c_void) {
    HITS.fetch_add(1, Relaxed);
}

fn function(at: *const ()) -> Function {
    // SAFETY: the functions, and their trampolines, have this type.
    unsafe { std::mem::transmute(at) }
}

extern "C-unwind" fn replacement(x: i32) -> i32 {
    REPLACED.fetch_add(1, Relaxed);
    // SAFETY: the original has this type, and may throw.
    let original: extern "C-unwind" fn(i32) -> i32 = unsafe { std::mem::transmute(ORIGINAL.load(Relaxed)) };
    original(x)
}

/// How far into a function its first call is, and how long that is.
fn first_call(at: *const ()) -> (usize, usize) {
    let start = at as usize & !1;
    let mut offset = 0;
    loop {
        let here = CodeAddr((start + offset) as u64);
        let code = bytes((at as usize + offset) as *const ());
        let (is_call, len) = if at as usize == start {
            let inst = a32::decode(here, &code).unwrap();
            (matches!(inst.flow(), a32::Flow::Call { .. }), a32::INST_LEN)
        } else {
            let inst = t32::decode(here, &code).unwrap();
            (matches!(inst.flow(), t32::Flow::Call { .. }), inst.bytes().len())
        };
        if is_call {
            return (offset, len);
        }
        offset += len;
        assert!(offset < 16, "no call at {at:?}");
    }
}

pub(crate) fn run() {
    for set in ["arm", "thumb"] {
        let library = Library::load_from("thrown.cc", set);
        // SAFETY: the function's type.
        let calls: Calls = unsafe { std::mem::transmute(library.function("calls")) };
        // SAFETY: as above.
        let cleaned: extern "C" fn() -> i32 =
            unsafe { std::mem::transmute(library.function("count_cleaned")) };
        let pass = |name: &str, thrown: fn(i32) -> i32| {
            let at = function(library.function(name));
            let before = cleaned();
            for x in 0..ROUNDS {
                assert_eq!(calls(at, x), if x % 2 == 1 { thrown(x) } else { 0 }, "{set} {name}");
            }
            let expected = if name == "cleans" { ROUNDS } else { 0 };
            assert_eq!(cleaned() - before, expected, "{set} {name}");
        };
        for (name, thrown) in [("catches", (|_| 1) as fn(i32) -> i32), ("cleans", |x| 2 + x)] {
            pass(name, thrown);
            probed(&library, name, || pass(name, thrown));
            replaced(&library, name, || pass(name, thrown));
        }
        println!("exceptions at a window's end: {set}");
    }
}

/// The call itself.
fn probed(library: &Library, name: &str, pass: impl Fn()) {
    let at = library.function(name);
    let (call, _) = first_call(at);
    let range = at as usize as u64..(at as usize & !1) as u64 + library.size(name) as u64;
    let mut set = HookSet::new();
    let probe = Probe::new(hit, std::ptr::null_mut());
    let attached = attach(&mut set, |batch| {
        batch.probe_with((at as usize + call) as *const (), Some(range), probe, Options::default())
    });
    HITS.store(0, Relaxed);
    pass();
    assert_eq!(HITS.load(Relaxed), ROUNDS as usize);
    remove(&mut set, attached.unwrap()).unwrap();
}

/// The function, which in T32 has the call in its window.
fn replaced(library: &Library, name: &str, pass: impl Fn()) {
    let at = library.function(name);
    let (call, len) = first_call(at);
    assert!(library.set == "arm" || call < 4 && call + len >= 4, "the call of {name} is moved");
    let mut set = HookSet::new();
    let mut batch = set.begin();
    let id = batch.replace(at, replacement as *const ());
    let prepared = batch.prepare();
    ORIGINAL.store(prepared.original(id).unwrap() as usize, Relaxed);
    // SAFETY: one thread, and the types agree.
    let attached = unsafe { prepared.commit(Liveness::SingleThreaded) }.remove(0).unwrap();
    REPLACED.store(0, Relaxed);
    pass();
    assert_eq!(REPLACED.load(Relaxed), ROUNDS as usize);
    remove(&mut set, attached).unwrap();
}
