//! Functions whose memory is gone when their hook is to be taken out.

use std::{ffi::CStr, io::Write, os::fd::AsRawFd, sync::atomic::Ordering::*};

use grapnel_hook::{Arena, Error, Hook, HookSet, Liveness, Options, RemoveOutcome, Transaction};

use crate::{code, function, traps};

const PAGE: usize = 4096;

/// `lea rax, [rdi + 1]`, four `nop`, `ret`.
const PLUS_1: &[u8] = &[0x48, 0x8d, 0x47, 1, 0x90, 0x90, 0x90, 0x90, 0xc3];
/// `int3`, where the patch was and where an instruction of the function was, which the other tool answers with 5.
const OTHER: &[u8] = &[0xcc, 0x90, 0x90, 0x90, 0xcc, 0x90, 0x90, 0x90, 0xc3];

extern "C" fn plus_100(x: u64) -> u64 {
    x + 100
}

extern "C" fn plus_200(x: u64) -> u64 {
    x + 200
}

/// An object of which one page is mapped.
struct Object(std::fs::File);

impl Object {
    fn new(code: &[u8]) -> Self {
        let mut file = tempfile();
        let page: Vec<u8> = code.iter().copied().chain(std::iter::repeat(0xf4)).take(PAGE).collect();
        file.write_all(&page).unwrap();
        Self(file)
    }

    /// At an address, in the place of what is there, or anywhere.
    fn map(&self, at: Option<*const ()>) -> *const () {
        let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
        let at = at.unwrap_or(std::ptr::null()).cast_mut().cast();
        let rights = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: a new mapping, or one in the place of another of this test.
        let got = unsafe { libc::mmap(at, PAGE, rights, libc::MAP_PRIVATE | fixed, self.0.as_raw_fd(), 0) };
        assert_ne!(got, libc::MAP_FAILED);
        got.cast_const().cast()
    }
}

/// A file without a name.
fn tempfile() -> std::fs::File {
    // SAFETY: a new descriptor, which nobody else has.
    unsafe {
        let fd = libc::memfd_create(c"object".as_ptr(), 0);
        assert!(fd >= 0);
        std::os::fd::FromRawFd::from_raw_fd(fd)
    }
}

fn unmap(at: *const ()) {
    // SAFETY: a mapping of this test.
    assert_eq!(unsafe { libc::munmap(at.cast_mut().cast(), PAGE) }, 0);
}

fn put(arena: &mut Arena, target: *const ()) -> Hook {
    replace(arena, target, plus_100)
}

fn replace(arena: &mut Arena, target: *const (), replacement: extern "C" fn(u64) -> u64) -> Hook {
    let mut transaction = Transaction::with_arena(arena).live();
    transaction.replace_sized(target, PLUS_1.len(), replacement as *const ());
    // SAFETY: the types agree, and no thread has the trap signal blocked.
    let hook = unsafe { transaction.commit(Liveness::Live) }.remove(0).unwrap();
    assert_eq!(function(target)(1), replacement(1));
    hook
}

fn take(hook: &mut Hook) -> Result<RemoveOutcome, Error> {
    // SAFETY: no thread has the trap signal blocked.
    unsafe { hook.remove(Liveness::Live) }
}

/// The traps at a place where a patch was are those of what is there now.
fn traps_are_another_s(at: *const ()) {
    for entry in [at as usize, at as usize + 4] {
        let before = traps::CAUGHT.load(Relaxed);
        assert_eq!(function(entry as *const ())(1), 5);
        assert_eq!(traps::CAUGHT.load(Relaxed), before + 1);
    }
}

fn hooks() {
    let (object, other) = (Object::new(PLUS_1), Object::new(OTHER));
    let mut arena = Arena::new();
    traps::install(traps::other_tool);
    let is_gone = |outcome, hook: &Hook| {
        assert_eq!(outcome, Ok(RemoveOutcome::Gone { code: hook.code() }));
    };

    // Nothing is there any more.
    let at = object.map(None);
    let mut hook = put(&mut arena, at);
    unmap(at);
    is_gone(take(&mut hook), &hook);
    assert!(matches!(take(&mut hook), Err(Error::AlreadyRemoved { .. })));
    other.map(Some(at));
    traps_are_another_s(at);

    // Another object is there.
    object.map(Some(at));
    let mut hook = put(&mut arena, at);
    other.map(Some(at));
    is_gone(take(&mut hook), &hook);
    assert_eq!(code::bytes(at, OTHER.len()), OTHER);
    traps_are_another_s(at);

    // The same is there, loaded again.
    object.map(Some(at));
    let mut hook = put(&mut arena, at);
    object.map(Some(at));
    assert!(matches!(take(&mut hook), Ok(RemoveOutcome::CodeKept { padding: None, .. })));
    assert_eq!(function(at)(1), 2);

    // Another owner has hooked what is there now: its traps stay its own.
    let mut hook = put(&mut arena, at);
    let again = Object::new(PLUS_1);
    again.map(Some(at));
    let mut second = replace(&mut arena, at, plus_200);
    is_gone(take(&mut hook), &hook);
    // As a thread goes on that was in front of the second instruction.
    let caught = traps::CAUGHT.load(Relaxed);
    function((at as usize + 4) as *const ())(1);
    assert_eq!(traps::CAUGHT.load(Relaxed), caught);
    assert_eq!(function(at)(1), 201);
    take(&mut second).unwrap();
    assert_eq!(function(at)(1), 2);

    // Memory of no file, which may be somebody's copy of the pages.
    let mut hook = put(&mut arena, at);
    let patched = code::bytes(at, PAGE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: in the place of a mapping of this test, which has no other thread.
    unsafe {
        let page = at.cast_mut().cast();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(libc::mmap(page, PAGE, rights, flags, -1, 0), page);
        page.cast::<u8>().copy_from(patched.as_ptr(), PAGE);
        page.cast::<u8>().write(0xcc);
        assert_eq!(libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_EXEC), 0);
    }
    assert!(matches!(take(&mut hook), Err(Error::ForeignPatch { .. })));
    traps::poke(at, &patched[..1]);
    take(&mut hook).unwrap();
    assert_eq!(function(at)(1), 2);
    unmap(at);
}

fn unloaded_library() {
    // SAFETY: libm's neighbour in every glibc; it has no constructors to speak of.
    let handle = unsafe { libc::dlopen(c"libBrokenLocale.so.1".as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        println!("  there is no library to be unloaded");
        return;
    }
    let name: &CStr = c"__ctype_get_mb_cur_max";
    // SAFETY: the library is loaded.
    let at = unsafe { libc::dlsym(handle, name.as_ptr()) }.cast_const().cast::<()>();
    assert!(!at.is_null());
    let mut transaction = Transaction::new();
    transaction.replace(at, plus_100 as *const ());
    // SAFETY: one thread; the function has no arguments.
    let mut hook = unsafe { transaction.commit(Liveness::SingleThreaded) }.remove(0).unwrap();
    assert_eq!(function(at)(1), 101);
    // SAFETY: nothing of the library is used any more.
    assert_eq!(unsafe { libc::dlclose(handle) }, 0);
    // SAFETY: one thread.
    let outcome = unsafe { hook.remove(Liveness::SingleThreaded) };
    assert_eq!(outcome, Ok(RemoveOutcome::Gone { code: hook.code() }));
}

fn sets() {
    let (object, other) = (Object::new(PLUS_1), Object::new(OTHER));
    let at = object.map(None);
    let mut set = HookSet::new();
    let attach = |set: &mut HookSet| {
        let mut batch = set.begin();
        let options = Options { size: Some(PLUS_1.len()), ..Options::default() };
        batch.replace_with(at, plus_100 as *const (), options);
        // SAFETY: one thread, and the types agree.
        unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0).unwrap()
    };
    let remove = |set: &mut HookSet, attachment| {
        // SAFETY: one thread.
        unsafe { set.remove(attachment, Liveness::SingleThreaded) }
    };
    for there in [None, Some(&other), Some(&object)] {
        let attachment = attach(&mut set);
        assert_eq!(function(at)(1), 101);
        unmap(at);
        if let Some(there) = there {
            there.map(Some(at));
        }
        let found = there.map(|_| code::bytes(at, OTHER.len()));
        assert_eq!(remove(&mut set, attachment), Ok(()));
        assert!(matches!(remove(&mut set, attachment), Err(Error::NotAttached { .. })));
        assert_eq!(there.map(|_| code::bytes(at, OTHER.len())), found);
        object.map(Some(at));
        assert_eq!(function(at)(1), 2);
    }
    // SAFETY: one thread, which is in nothing that was removed.
    let reclaimed = unsafe { set.reclaim(Liveness::SingleThreaded) };
    assert_eq!((reclaimed.kept, reclaimed.doubt), (0, None));
    unmap(at);
}

pub(crate) fn run() {
    println!("functions that are gone");
    unloaded_library();
    sets();
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let works = std::panic::catch_unwind(hooks).is_ok();
        // SAFETY: leaves the child at once.
        unsafe { libc::_exit(if works { 7 } else { 8 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
}
