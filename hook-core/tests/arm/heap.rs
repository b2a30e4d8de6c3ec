//! The allocation functions of this machine's libc, which calls itself through them.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use grapnel_hook::{
    Liveness, Transaction,
    module::{self, Module},
    symbol,
};

use crate::compiled::bytes;

macro_rules! counted {
    ($($number:literal $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(extern "C" fn $name($($arg: $type),*) -> $result {
            CALLS[$number].fetch_add(1, Relaxed);
            // SAFETY: the original was stored before the patch went in, and has this type.
            let original: extern "C" fn($($type),*) -> $result =
                unsafe { std::mem::transmute(ORIGINALS[$number].load(Relaxed)) };
            original($($arg),*)
        })*
        const ROWS: &[(&str, *const ())] = &[$((stringify!($name), $name as *const ())),*];
    };
}

const COUNT: usize = 6;
static CALLS: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];
static ORIGINALS: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

counted! {
    0 malloc(size: usize) -> *mut c_void;
    1 free(old: *mut c_void) -> ();
    2 calloc(count: usize, size: usize) -> *mut c_void;
    3 realloc(old: *mut c_void, size: usize) -> *mut c_void;
    4 memalign(align: usize, size: usize) -> *mut c_void;
    5 getppid() -> i32;
}

/// The loaded object whose file name begins so.
pub(crate) fn module(name: &str) -> Module {
    let debug = module::r_debug_of_this_process().expect("the test program is linked dynamically");
    // SAFETY: nothing is loaded or unloaded meanwhile.
    let modules = unsafe { module::loaded_modules(debug) };
    modules.into_iter().find(|m| m.file_name().starts_with(name.as_bytes())).expect(name)
}

/// Allocates directly, and in the ways of Rust and of libc itself.
pub(crate) fn allocate() -> usize {
    let text: Vec<String> = (0..100).map(|i| format!("{i} {}", i * i)).collect();
    // SAFETY: the functions are called as their manual pages say.
    unsafe {
        let mut blocks = [libc::malloc(100), libc::calloc(10, 10), libc::memalign(64, 100)];
        for block in &mut blocks {
            std::ptr::write_bytes(block.cast::<u8>(), 0x5a, 100);
            *block = libc::realloc(*block, 5000);
            assert_eq!(*block.cast::<[u8; 100]>(), [0x5a; 100]);
        }
        for block in blocks {
            libc::free(block);
        }
        let copy = libc::strdup(c"copied".as_ptr());
        assert_eq!(libc::strlen(copy), 6);
        libc::free(copy.cast());
        assert_eq!(libc::getppid() as u32, std::os::unix::process::parent_id());
    }
    text.iter().map(String::len).sum()
}

pub(crate) fn run() {
    let libc = module("libc.so");
    let symbols: Vec<_> =
        ROWS.iter().map(|(name, _)| symbol::find(&libc, name.as_bytes()).expect(name)).collect();
    let before: Vec<_> = symbols.iter().map(|s| bytes(s.pointer())).collect();
    let sum = allocate();

    let mut transaction = Transaction::new();
    let ids: Vec<_> = symbols
        .iter()
        .zip(ROWS)
        .map(|(s, (_, replacement))| transaction.replace_sized(s.pointer(), s.size, *replacement))
        .collect();
    let prepared = transaction.prepare();
    for ((id, original), (name, _)) in ids.iter().zip(&ORIGINALS).zip(ROWS) {
        let at = prepared.original(*id).unwrap_or_else(|e| panic!("{name}: {e}; {}", e.remedy()));
        original.store(at as usize, Relaxed);
    }
    for (plan, (name, _)) in prepared.plans().zip(ROWS) {
        if let Ok(plan) = plan {
            println!("{name:10} {} {:?}, {}", plan.target(), plan.kind(), plan.proof());
        }
    }
    // SAFETY: one thread, and the types agree.
    let hooks = unsafe { prepared.commit(Liveness::SingleThreaded) };
    assert_eq!(allocate(), sum);
    let calls: Vec<_> = CALLS.iter().map(|calls| calls.load(Relaxed)).collect();
    println!("{calls:?}");
    for (hook, symbol) in hooks.into_iter().zip(&symbols) {
        let mut hook = hook.unwrap();
        println!("{} by {:?}", symbol.addr, hook.way());
        // SAFETY: one thread.
        unsafe { hook.remove(Liveness::SingleThreaded) }.unwrap();
    }
    assert!(calls.iter().zip([2, 4, 1, 3, 1, 1]).all(|(calls, least)| *calls >= least));
    assert_eq!(symbols.iter().map(|s| bytes(s.pointer())).collect::<Vec<_>>(), before);
    assert_eq!(allocate(), sum);
}
