//! The functions that a heap profiler hooks, hooked in this process: the replacements count and pass on.

#[path = "common/code.rs"]
mod code;
#[path = "common/find.rs"]
mod find;

use std::{
    ffi::{c_char, c_void},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use grapnel_hook::{
    CodeWay, Error, Hook, HookId, Liveness, PatchWay, Transaction,
    symbol::{self, Symbol},
};

struct Row {
    name: &'static str,
    calls: &'static AtomicUsize,
    original: &'static AtomicUsize,
    replacement: *const (),
}

/// One replacement per function: it counts, and calls the original that was published before the commit.
macro_rules! pass_through {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        /// The calls seen and the original of each function.
        mod counted {
            use super::*;
            $(pub(crate) mod $name {
                use super::*;
                pub(crate) static CALLS: AtomicUsize = AtomicUsize::new(0);
                pub(crate) static ORIGINAL: AtomicUsize = AtomicUsize::new(0);
                pub(crate) extern "C" fn replacement($($arg: $type),*) -> $result {
                    CALLS.fetch_add(1, Relaxed);
                    let original: extern "C" fn($($type),*) -> $result =
                        // SAFETY: the original was published before the patch went in, and has this type.
                        unsafe { std::mem::transmute(ORIGINAL.load(Relaxed)) };
                    original($($arg),*)
                }
            })*
        }
        fn rows() -> Vec<Row> {
            vec![$(Row {
                name: stringify!($name),
                calls: &counted::$name::CALLS,
                original: &counted::$name::ORIGINAL,
                replacement: counted::$name::replacement as *const (),
            }),*]
        }
    };
}

pass_through! {
    malloc(size: usize) -> *mut c_void;
    calloc(count: usize, size: usize) -> *mut c_void;
    realloc(old: *mut c_void, size: usize) -> *mut c_void;
    reallocarray(old: *mut c_void, count: usize, size: usize) -> *mut c_void;
    free(old: *mut c_void) -> ();
    posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> i32;
    memalign(align: usize, size: usize) -> *mut c_void;
    aligned_alloc(align: usize, size: usize) -> *mut c_void;
    valloc(size: usize) -> *mut c_void;
    pvalloc(size: usize) -> *mut c_void;
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> i32;
    _dl_debug_state() -> ();
    getppid() -> i32;
}

unsafe extern "C" {
    fn valloc(size: usize) -> *mut c_void;
    fn pvalloc(size: usize) -> *mut c_void;
}

fn symbol_of(name: &str) -> Symbol {
    let object = find::module(if name == "_dl_debug_state" { "ld-" } else { "libc.so" });
    symbol::find(&object, name.as_bytes()).expect(name)
}

/// Calls every function through its ordinary name, and uses what it returns.
fn allocate_in_every_way() {
    // SAFETY: the functions are called as their manual pages say.
    unsafe {
        let mut blocks = vec![
            libc::malloc(100),
            libc::calloc(10, 10),
            libc::realloc(std::ptr::null_mut(), 100),
            libc::reallocarray(std::ptr::null_mut(), 10, 10),
            libc::memalign(64, 100),
            libc::aligned_alloc(64, 128),
            valloc(100),
            pvalloc(100),
        ];
        let mut block = std::ptr::null_mut();
        assert_eq!(libc::posix_memalign(&raw mut block, 256, 100), 0);
        blocks.push(block);
        for block in &mut blocks {
            assert!(!block.is_null());
            std::ptr::write_bytes(block.cast::<u8>(), 0x5a, 100);
            *block = libc::realloc(*block, 5000);
            assert_eq!(*block.cast::<[u8; 100]>(), [0x5a; 100]);
        }
        assert_eq!(blocks[6] as usize % 16, 0);
        for block in blocks {
            libc::free(block);
        }
        assert!(std::hint::black_box(libc::realloc(std::ptr::null_mut(), usize::MAX / 2)).is_null());
    }
}

fn open_and_close_a_library() {
    // SAFETY: libm's neighbour in every glibc; it has no constructors to speak of.
    unsafe {
        let handle = libc::dlopen(c"libBrokenLocale.so.1".as_ptr(), libc::RTLD_NOW);
        if !handle.is_null() {
            libc::dlclose(handle);
        }
    }
}

fn run_a_program() {
    let output = std::process::Command::new("/bin/echo").arg("hello").output().expect("echo runs");
    assert_eq!(output.stdout, b"hello\n");
}

fn fork_and_allocate() {
    // SAFETY: this process has one thread, so the child may do what it likes.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let before = counted::malloc::CALLS.load(Relaxed);
        allocate_in_every_way();
        let ok = counted::malloc::CALLS.load(Relaxed) > before;
        // SAFETY: leaves the child without running anything of the parent's.
        unsafe { libc::_exit(if ok { 7 } else { 8 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
}

fn main() {
    let rows = rows();
    let symbols: Vec<_> = rows.iter().map(|row| symbol_of(row.name)).collect();
    let before: Vec<_> = symbols.iter().map(|s| code::bytes(s.pointer(), 32)).collect();

    let mut transaction = Transaction::new();
    let ids: Vec<HookId> = rows
        .iter()
        .zip(&symbols)
        .map(|(row, s)| transaction.replace_sized(s.pointer(), s.size, row.replacement))
        .collect();
    let prepared = transaction.prepare();
    for ((row, id), s) in rows.iter().zip(&ids).zip(&symbols) {
        match prepared.original(*id) {
            Ok(original) => row.original.store(original as usize, Relaxed),
            // memalign and aligned_alloc are one function in glibc 2.36.
            Err(Error::AlreadyPlanned { first, .. }) => {
                assert_eq!((row.name, rows[first.index()].name), ("aligned_alloc", "memalign"));
            }
            Err(error) => panic!("{}: {error}; {}", row.name, error.remedy()),
        }
        assert_eq!(code::bytes(s.pointer(), 32), before[id.index()], "{} changed too early", row.name);
    }
    for (plan, row) in prepared.plans().zip(&rows) {
        if let Ok(plan) = plan {
            println!("{:16} {} {:?}, {}", row.name, plan.target(), plan.kind(), plan.proof());
        }
    }
    for (range, way) in prepared.regions() {
        assert_eq!(way, CodeWay::TwoViews);
        println!("code at {range:x?}, {way:?}");
    }
    // SAFETY: one thread; the replacements have their targets' types.
    let mut hooks: Vec<Option<Hook>> =
        unsafe { prepared.commit(Liveness::SingleThreaded) }.into_iter().map(Result::ok).collect();
    assert_eq!(hooks.iter().flatten().count(), rows.len() - 1);
    for hook in hooks.iter().flatten() {
        // An emulator may not see the one way.
        assert!(hook.way() == PatchWay::ProcMem || cfg!(not(target_arch = "x86_64")));
    }
    assert_eq!(code::writable_code(), Vec::<String>::new());
    #[cfg(target_arch = "x86_64")]
    let short = hooks[rows.iter().position(|r| r.name == "_dl_debug_state").unwrap()].as_ref().unwrap();
    #[cfg(target_arch = "x86_64")]
    assert_eq!(short.kind(), grapnel_hook::PatchKind::NearOverPadding);

    for row in &rows {
        row.calls.store(0, Relaxed);
    }
    allocate_in_every_way();
    let called: Vec<_> = rows.iter().map(|row| (row.name, row.calls.load(Relaxed))).collect();
    println!("{called:?}");
    let calls = |name: &str| rows.iter().find(|r| r.name == name).unwrap().calls.load(Relaxed);
    for (name, least) in [
        ("malloc", 1),
        ("calloc", 1),
        ("realloc", 11),
        ("reallocarray", 1),
        ("free", 9),
        ("posix_memalign", 1),
        ("memalign", 2),
        ("valloc", 1),
        ("pvalloc", 1),
    ] {
        assert!(calls(name) >= least, "{name}: {}", calls(name));
    }
    // SAFETY: no preconditions.
    let parent = unsafe { libc::getppid() };
    assert_eq!(calls("getppid"), 1);
    assert_eq!(parent as u32, std::os::unix::process::parent_id());
    open_and_close_a_library();
    assert!(calls("_dl_debug_state") >= 2, "{}", calls("_dl_debug_state"));
    fork_and_allocate();
    run_a_program();

    for (i, hook) in hooks.iter_mut().enumerate() {
        if let Some(hook) = hook {
            // SAFETY: one thread.
            unsafe { hook.remove(Liveness::SingleThreaded) }.unwrap();
            // SAFETY: one thread.
            let again = unsafe { hook.remove(Liveness::SingleThreaded) };
            assert!(matches!(again, Err(Error::AlreadyRemoved { .. })));
        }
        assert_eq!(code::bytes(symbols[i].pointer(), 32), before[i], "{} is not as before", rows[i].name);
    }
    let counted = calls("malloc");
    allocate_in_every_way();
    assert_eq!(calls("malloc"), counted);
    assert_eq!(code::writable_code(), Vec::<String>::new());
    println!("ok");
}
