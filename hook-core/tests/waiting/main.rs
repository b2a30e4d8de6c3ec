//! Hooks that wait for libraries, which are loaded and unloaded.

#[path = "../common/cc.rs"]
mod cc;
mod library;
mod threads;

use std::{
    ffi::c_void,
    path::{Path, PathBuf},
    ptr,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*},
};

use grapnel_hook::{
    Listener, Liveness,
    listen::Entry,
    module,
    rebind::Rebinding,
    waiting::{Hooks, Status, WaitError, WaitId, Waiting},
};
use library::{Library, build};

pub(crate) static ORIGINAL: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

pub(crate) extern "C" fn plus_1000(x: i32) -> i32 {
    // SAFETY: the original has this type.
    let original: extern "C" fn(i32) -> i32 = unsafe { std::mem::transmute(ORIGINAL.load(Acquire)) };
    original(x) + 1000
}

extern "C" fn minus_1(_: i32) -> i32 {
    -1
}

extern "C" fn minus_7() -> i32 {
    -7
}

unsafe extern "C" fn count(_: &mut Entry, data: *mut c_void) {
    // SAFETY: the counter that was attached.
    unsafe { &*data.cast::<AtomicUsize>() }.fetch_add(1, Relaxed);
}

pub(crate) fn replace(
    hooks: &mut Hooks<'_>,
    object: &str,
    function: &str,
    replacement: extern "C" fn(i32) -> i32,
    original: Option<&'static AtomicPtr<()>>,
    liveness: Liveness,
) -> Result<WaitId, WaitError> {
    // SAFETY: the types agree, and `liveness` is right.
    unsafe {
        hooks.replace(object.as_bytes(), function.as_bytes(), replacement as *const (), original, liveness)
    }
}

/// From the first load through several, at the same and at another address.
fn comes_and_goes(waiting: Waiting, path: &Path, liveness: Liveness) {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let mut hooks = waiting.lock().unwrap();
    let number =
        replace(&mut hooks, "libcomes.so.1", "number", plus_1000, Some(&ORIGINAL), liveness).unwrap();
    let inside = replace(&mut hooks, "waiting/libcomes.so", "inside", minus_1, None, liveness).unwrap();
    let indirect = replace(&mut hooks, "libcomes.so", "indirect", minus_1, None, liveness).unwrap();
    let listener = Listener::new((&raw const CALLS).cast_mut().cast()).on_enter(count);
    // SAFETY: the listener is good for all threads.
    let listened = unsafe { hooks.listen(b"libcomes.so.1", b"number", listener, liveness) }.unwrap();
    assert_eq!(hooks.sees_relocation(), Some(true));
    for id in [number, inside, indirect, listened] {
        assert_eq!(hooks.status(id), Ok(Status::Waiting));
    }
    drop(hooks);
    let (mut before, mut kept) = (Vec::new(), Vec::new());
    let mut blocks = Vec::new();
    for round in 0..6 {
        CALLS.store(0, Relaxed);
        let library = Library::load(path);
        assert_eq!(library.constructor_saw()[..3], [1001, -1, -1]);
        assert_eq!(CALLS.load(Relaxed), 1);
        assert_eq!(
            [c"number", c"call_inside", c"call_indirect"].map(|name| library.call(name, 5)),
            [1006, -1, -1]
        );
        assert_eq!(CALLS.load(Relaxed), 2);
        let at = library.at(c"number");
        let Ok(Status::In { function, .. }) = waiting.lock().unwrap().status(number) else { panic!() };
        assert_eq!(function as usize, at);
        before.push(at);
        kept.push(waiting.lock().unwrap().set().kept());
        library.unload();
        for id in [number, inside, indirect, listened] {
            assert!(matches!(waiting.lock().unwrap().status(id), Ok(Status::Unloaded { .. })));
        }
        assert_eq!(waiting.lock().unwrap().status(number), Ok(Status::Unloaded { function }));
        if round == 2 {
            // Something else lies where the library was, and is not written to.
            let block = Page::at(at & !4095);
            blocks.push(block);
        } else if round > 0 && before[round] == before[round - 1] {
            // What was made for that place was used again.
            assert_eq!(kept[round], kept[round - 1]);
        }
    }
    // The kernel gives out again what has become free; an emulator need not.
    let emulated = std::env::var_os("GRAPNEL_EMULATED").is_some();
    assert!(emulated || before[0] == before[1] && before[3] == before[4], "{before:x?}");
    assert!(before[2] != before[3], "{before:x?}");
    let library = Library::load(path);
    let mut hooks = waiting.lock().unwrap();
    for id in [number, inside, indirect, listened] {
        // SAFETY: `liveness` is right.
        unsafe { hooks.remove(id, liveness) }.unwrap();
        assert!(matches!(hooks.status(id), Err(WaitError::NoSuchWait { .. })));
    }
    drop(hooks);
    let call = |name| library.call(name, 5);
    assert_eq!([c"number", c"call_inside", c"call_indirect"].map(call), [6, 15, 105]);
    // One that is loaded already is hooked at once.
    let mut hooks = waiting.lock().unwrap();
    let again = replace(&mut hooks, "libcomes.so.1", "indirect", minus_1, None, liveness).unwrap();
    assert!(matches!(hooks.status(again), Ok(Status::In { .. })));
    drop(hooks);
    assert_eq!(library.call(c"call_indirect", 5), -1);
    // SAFETY: `liveness` is right.
    unsafe { waiting.lock().unwrap().remove(again, liveness) }.unwrap();
    library.unload();
    for block in blocks {
        assert!(block.is_as_it_was());
    }
    // What was made for it can be freed, wherever it was.
    let mut hooks = waiting.lock().unwrap();
    let before = hooks.set().kept();
    // SAFETY: one thread runs, and nobody calls the originals.
    let reclaimed = unsafe { hooks.set().reclaim(Liveness::SingleThreaded) };
    assert!(reclaimed.freed > 0 && hooks.set().kept() < before, "{reclaimed:?} of {before}");
}

/// A page of memory, all zero.
struct Page(usize);

impl Page {
    fn at(at: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is mapped there, or the call fails.
        let page = unsafe { libc::mmap(at as *mut _, 4096, libc::PROT_READ, flags, -1, 0) };
        assert_eq!(page as usize, at);
        Self(at)
    }

    fn is_as_it_was(&self) -> bool {
        // SAFETY: the page is mapped.
        unsafe { std::slice::from_raw_parts(self.0 as *const u8, 4096) }.iter().all(|&byte| byte == 0)
    }
}

/// Objects of other namespaces are seen as well.
fn namespaces(waiting: Waiting, path: &Path) {
    let single = Liveness::SingleThreaded;
    let mut hooks = waiting.lock().unwrap();
    let ids = ["number", "indirect"]
        .map(|function| replace(&mut hooks, "libapart.so.1", function, minus_1, None, single).unwrap());
    drop(hooks);
    for _ in 0..3 {
        let library = Library::load_apart(path);
        let saw = library.constructor_saw();
        assert_eq!([saw[0], saw[2]], [-1, -1]);
        library.unload();
        let hooks = waiting.lock().unwrap();
        assert!(ids.iter().all(|&id| matches!(hooks.status(id), Ok(Status::Unloaded { .. }))));
    }
    for id in ids {
        // SAFETY: one thread runs.
        unsafe { waiting.lock().unwrap().remove(id, single) }.unwrap();
    }
}

/// What can't be found or hooked is said at once, or when the object is loaded.
fn failures(waiting: Waiting, path: &Path) {
    let single = Liveness::SingleThreaded;
    let mut hooks = waiting.lock().unwrap();
    let missing = replace(&mut hooks, "libfails.so.1", "no_such_function", minus_1, None, single).unwrap();
    let number = replace(&mut hooks, "libfails.so.1", "number", minus_1, None, single).unwrap();
    drop(hooks);
    let library = Library::load(path);
    let mut hooks = waiting.lock().unwrap();
    assert!(matches!(hooks.status(missing), Ok(Status::Failed(WaitError::NotFound(_)))));
    assert!(matches!(hooks.status(number), Ok(Status::In { .. })));
    let error = replace(&mut hooks, "libfails.so.1", "no_such_function", minus_1, None, single).unwrap_err();
    assert!(error.to_string().contains("no_such_function") && !error.remedy().is_empty(), "{error}");
    // While this thread has the hooks, it can't have them again, and a library that it loads isn't seen.
    assert!(matches!(waiting.lock(), Err(WaitError::Busy { .. })));
    drop(hooks);
    library.unload();
    let mut hooks = waiting.lock().unwrap();
    assert_eq!(hooks.status(missing), Ok(Status::Waiting));
    for id in [missing, number] {
        // SAFETY: one thread runs.
        unsafe { hooks.remove(id, single) }.unwrap();
    }
    drop(hooks);
    assert_eq!(waiting.missed(), 0);
}

/// A library that can't be loaded in the end comes and goes without having been there.
fn load_that_fails(waiting: Waiting) {
    let path = build("broken", 1, &["-DBROKEN"]);
    let mut hooks = waiting.lock().unwrap();
    let id =
        replace(&mut hooks, "libbroken.so.1", "number", minus_1, None, Liveness::SingleThreaded).unwrap();
    drop(hooks);
    assert!(Library::try_load(&path).is_none());
    let mut hooks = waiting.lock().unwrap();
    assert!(matches!(hooks.status(id), Ok(Status::Unloaded { .. })), "{:?}", hooks.status(id));
    // SAFETY: one thread runs.
    unsafe { hooks.remove(id, Liveness::SingleThreaded) }.unwrap();
}

/// Importers of a function are rebound before their constructors run.
fn rebinding(waiting: Waiting, paths: &[PathBuf]) {
    // SAFETY: no preconditions.
    let parent = unsafe { libc::getppid() };
    let debug = module::r_debug_of_this_process().unwrap();
    // SAFETY: the test loads nothing meanwhile.
    let modules = unsafe { module::loaded_modules(debug) };
    // SAFETY: the types agree.
    let found = unsafe { Rebinding::find(&modules, b"getppid", minus_7 as *const ()) }.unwrap();
    let single = Liveness::SingleThreaded;
    // SAFETY: one thread runs.
    let (id, report) = unsafe { waiting.lock().unwrap().rebind(found, single) }.unwrap();
    assert!(report.failed.is_empty() && report.foreign.is_empty(), "{report:?}");
    let words = waiting.lock().unwrap().rebinding(id).unwrap().words();
    for path in paths {
        for _ in 0..3 {
            let library = Library::load(path);
            assert_eq!(library.constructor_saw()[3..], [-7, -7], "{}", path.display());
            assert_eq!([c"imported", c"from_table"].map(|name| library.call(name, 0)), [-7, -7]);
            assert!(waiting.lock().unwrap().rebinding(id).unwrap().words() >= words + 2);
            library.unload();
            assert_eq!(waiting.lock().unwrap().rebinding(id).unwrap().words(), words);
        }
    }
    let library = Library::load(&paths[0]);
    // SAFETY: nothing is loaded meanwhile.
    let report = unsafe { waiting.lock().unwrap().unbind(id) }.unwrap();
    assert!(report.written >= words + 2 && report.failed.is_empty(), "{report:?}");
    assert_eq!([c"imported", c"from_table"].map(|name| library.call(name, 0)), [parent; 2]);
    library.unload();
}

fn main() {
    let waiting = Waiting::new();
    let comes = build("comes", 1, &[]);
    comes_and_goes(waiting, &comes, Liveness::SingleThreaded);
    comes_and_goes(waiting, &comes, Liveness::Live);
    println!("comes and goes");
    namespaces(waiting, &build("apart", 1, &[]));
    failures(waiting, &build("fails", 1, &[]));
    load_that_fails(waiting);
    println!("failures");
    let relro = ["-Wl,-z,now", "-Wl,-z,relro"];
    let packed = [&relro[..], &["-Wl,-z,pack-relative-relocs"]].concat();
    rebinding(
        waiting,
        &[build("lazy", 1, &["-Wl,-z,lazy"]), build("now", 1, &relro), build("packed", 1, &packed)],
    );
    println!("rebinding");
    threads::several(waiting);
    println!("ok");
}
