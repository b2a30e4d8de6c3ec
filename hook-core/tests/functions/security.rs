//! Processes that may not make memory executable, or not in every way.

#[cfg(not(target_arch = "arm"))]
use libc::SYS_mmap;
#[cfg(target_arch = "arm")]
use libc::SYS_mmap2 as SYS_mmap;

use std::ffi::c_void;

use grapnel_hook::{
    Arena, CodeWay, Errno, Error, Hook, HookSet, Listener, Liveness, PatchWay, Refusal, Transaction,
    listen::Entry, module, rebind::Rebinding,
};

use crate::{code, function, samples};

extern "C" fn plus_100(x: u64) -> u64 {
    x + 100
}

extern "C" fn always_7() -> libc::pid_t {
    7
}

fn at(name: &str) -> *const () {
    samples::all().into_iter().find(|s| s.name == name).unwrap().at
}

fn put(arena: &mut Arena, target: *const ()) -> Result<Hook, Error> {
    put_so(arena, target, Liveness::SingleThreaded)
}

fn put_so(arena: &mut Arena, target: *const (), liveness: Liveness) -> Result<Hook, Error> {
    let mut transaction = Transaction::with_arena(arena);
    if liveness == Liveness::Live {
        transaction = transaction.live();
    }
    transaction.replace(target, plus_100 as *const ());
    // SAFETY: no other thread runs the function, and the types agree.
    unsafe { transaction.commit(liveness) }.remove(0)
}

/// Runs it in a child, and passes on what it says. `None` if the kernel doesn't know what the test needs.
pub(crate) fn in_child(test: impl FnOnce() -> Option<bool>) -> Option<bool> {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = test().map_or(9, |works| if works { 7 } else { 8 });
        // SAFETY: leaves the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    match libc::WEXITSTATUS(status) {
        7 => Some(true),
        9 => None,
        _ => Some(false),
    }
}

/// What may not be written any more may not become executable (`PR_SET_MDWE`, Linux 6.3).
fn nothing_gains_the_right_to_run() {
    const PR_SET_MDWE: i32 = 65;
    const PR_MDWE_REFUSE_EXEC_GAIN: usize = 1;
    let works = in_child(|| {
        // SAFETY: changes this child alone.
        if unsafe { libc::prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) } != 0 {
            return None;
        }
        let mut works = true;
        for way in [CodeWay::TwoViews, CodeWay::ProcMem] {
            let mut arena = Arena::with_ways(&[way]);
            let mut hook = put(&mut arena, at("frame")).unwrap();
            works &= function(at("frame"))(1) == 101
                && function(hook.original())(1) == 2
                && hook.way() == PatchWay::ProcMem
                && arena.regions().all(|(_, used)| used == way)
                && code::writable_code().is_empty();
            // SAFETY: one thread.
            works &= unsafe { hook.remove(Liveness::SingleThreaded) }.is_ok();
        }
        let error = put(&mut Arena::with_protection_only(), at("frame")).unwrap_err();
        works &= matches!(error, Error::NotSealed { .. }) && error.remedy().contains("GOT");
        Some(works && function(at("frame"))(1) == 2)
    });
    match works {
        Some(works) => assert!(works),
        None => println!("  the kernel has no PR_SET_MDWE"),
    }
}

fn statement(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

pub(crate) fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

pub(crate) fn answer(value: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}

pub(crate) fn is(value: libc::c_long, jt: u8, jf: u8) -> libc::sock_filter {
    statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, value as u32)
}

/// Has the kernel ask the filter before each system call of this child.
pub(crate) fn begin(filter: &mut [libc::sock_filter]) -> bool {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: changes this child alone; the program outlives the call.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    }
}

/// Has the kernel refuse `mmap` and `mprotect` with the right to execute, as SELinux does without `execmem` and
/// `execmod`.
fn refuse_executable_memory() -> bool {
    let has = |bits: i32| statement(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, bits as u32);
    // `struct seccomp_data`: the number is the first word, the third argument is at 32.
    let mut filter = [
        load(0),
        is(SYS_mmap, 1, 0),
        is(libc::SYS_mprotect, 0, 3),
        load(32),
        has(libc::PROT_EXEC),
        answer(libc::SECCOMP_RET_ERRNO | libc::EACCES as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    begin(&mut filter)
}

/// Has the kernel refuse each write at an offset, as it does on `/proc/self/mem` for code since Linux 6.12 with
/// `proc_mem.force_override=never`.
fn refuse_writes() -> bool {
    begin(&mut [
        load(0),
        is(libc::SYS_pwrite64, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EIO as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ])
}

/// `/proc/self/mem` can be opened and read, and not be written.
fn the_file_refuses_writes() {
    if !crate::is_to_be_had(CodeWay::ProcMem) {
        println!("  writes that are refused were not tried: nothing is written so under this emulator");
        return;
    }
    let works = in_child(|| {
        // What was made while it could be written.
        let mut arena = Arena::with_ways(&[CodeWay::ProcMem]);
        let mut earlier = put(&mut arena, at("compact")).unwrap();
        if !refuse_writes() {
            return None;
        }
        let mut works = true;
        for (liveness, way) in
            [(Liveness::SingleThreaded, PatchWay::Protect), (Liveness::Live, PatchWay::Exchange)]
        {
            let (plain, before) = (function(at("frame"))(1), code::bytes(at("frame"), 48));
            let mut hook = put_so(&mut Arena::new(), at("frame"), liveness).unwrap();
            works &= hook.way() == way
                && function(at("frame"))(1) == 101
                && function(hook.original())(1) == plain
                && code::writable_code().is_empty();
            // SAFETY: no other thread runs the function.
            works &= unsafe { hook.remove(liveness) }.is_ok() && code::bytes(at("frame"), 48) == before;
        }
        let mut later = put(&mut arena, at("frame")).unwrap();
        works &= function(at("frame"))(1) == 101 && function(later.original())(1) == 2;
        // SAFETY: one thread.
        works &= unsafe { later.remove(Liveness::SingleThreaded) }.is_ok();
        // SAFETY: one thread.
        works &= unsafe { earlier.remove(Liveness::SingleThreaded) }.is_ok();
        let error = put(&mut Arena::with_ways(&[CodeWay::ProcMem]), at("frame")).unwrap_err();
        works &= matches!(error, Error::NoCodeMemory { errno: Errno(libc::EIO), .. });
        Some(works)
    });
    match works {
        Some(works) => assert!(works),
        None => println!("  the kernel has no seccomp"),
    }
}

/// Where code can't be written as a file, its pages are made writable only if they can be made executable again: nothing that
/// lies in them could run any more.
fn pages_that_could_not_run_again_are_left_alone() {
    if !crate::is_to_be_had(CodeWay::ProcMem) {
        println!("  rights that can't be given back were not tried: emulators don't know them");
        return;
    }
    const PR_SET_MDWE: i32 = 65;
    let works = in_child(|| {
        // SAFETY: changes this child alone.
        if unsafe { libc::prctl(PR_SET_MDWE, 1, 0, 0, 0) } != 0 || !refuse_writes() {
            return None;
        }
        let before = code::bytes(at("frame"), 48);
        let error = put(&mut Arena::new(), at("frame")).unwrap_err();
        let refused = matches!(error, Error::Write { way: PatchWay::Protect, .. });
        Some(
            refused
                && error.remedy().contains("GOT")
                && function(at("frame"))(1) == 2
                && code::bytes(at("frame"), 48) == before,
        )
    });
    match works {
        Some(works) => assert!(works),
        None => println!("  the kernel has no PR_SET_MDWE"),
    }
    // As SELinux does without `execmod`, which asks about written pages of a file and not about others.
    let page = at("frame") as usize & !4095;
    let works = in_child(|| {
        // `mprotect`'s first argument is at 16, low half first, its third at 32.
        let mut filter = [
            load(0),
            is(libc::SYS_mprotect, 0, 5),
            load(16),
            is(page as u32 as libc::c_long, 0, 3),
            load(32),
            statement(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, libc::PROT_EXEC as u32),
            answer(libc::SECCOMP_RET_ERRNO | libc::EACCES as u32),
            answer(libc::SECCOMP_RET_ALLOW),
        ];
        if !refuse_writes() || !begin(&mut filter) {
            return None;
        }
        let before = code::bytes(at("frame"), 48);
        let mut hook = put(&mut Arena::new(), at("frame")).unwrap();
        let hooked = hook.way() == PatchWay::Exchange
            && function(at("frame"))(1) == 101
            && function(hook.original())(1) == 2;
        // SAFETY: one thread.
        let removed = unsafe { hook.remove(Liveness::SingleThreaded) }.is_ok();
        Some(hooked && removed && function(at("frame"))(1) == 2 && code::bytes(at("frame"), 48) == before)
    });
    match works {
        Some(works) => assert!(works),
        None => println!("  the kernel has no seccomp"),
    }
}

/// Cores can't be had to synchronise: code that was written where they may have fetched other code can't be come to while
/// other threads run, however often that is tried.
fn cores_do_not_synchronise() {
    unsafe extern "C" fn enter(_: &mut Entry, _: *mut c_void) {}
    let works = in_child(|| {
        let listener = Listener::new(std::ptr::null_mut()).on_enter(enter);
        let mut set = HookSet::new();
        let mut batch = set.begin();
        batch.listen(at("frame"), listener);
        // SAFETY: one thread runs.
        let attached = unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0).unwrap();
        // SAFETY: as above; nobody is in the function or has its original.
        unsafe {
            set.remove(attached, Liveness::SingleThreaded).unwrap();
            set.reclaim(Liveness::SingleThreaded);
        }
        let mut filter = [
            load(0),
            is(libc::SYS_membarrier, 0, 1),
            answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            answer(libc::SECCOMP_RET_ALLOW),
        ];
        if !begin(&mut filter) {
            return None;
        }
        let mut works = true;
        for _ in 0..2 {
            let mut batch = set.begin().live();
            let id = batch.listen(at("frame"), listener);
            let error = batch.prepare().original(id).unwrap_err();
            works &= matches!(error, Error::NotLive { refusal: Refusal::Kernel(Errno(libc::EPERM)), .. })
                && error.remedy().contains("others stopped");
        }
        let mut batch = set.begin();
        batch.listen(at("frame"), listener);
        // SAFETY: one thread runs.
        works &= unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0).is_ok();
        Some(works && function(at("frame"))(1) == 2)
    });
    match works {
        Some(works) => assert!(works),
        None => println!("  the kernel has no seccomp"),
    }
}

fn nothing_new_may_run_and_words_can_be_rebound() {
    let works = in_child(|| {
        let before = code::bytes(at("frame"), 32);
        if !refuse_executable_memory() {
            return None;
        }
        let error = put(&mut Arena::new(), at("frame")).unwrap_err();
        let mut works = matches!(error, Error::NoCodeMemory { .. } | Error::NotSealed { .. })
            && error.remedy().contains("GOT")
            && code::bytes(at("frame"), 32) == before;
        let debug = module::r_debug_of_this_process().unwrap();
        // SAFETY: nothing is loaded or unloaded meanwhile.
        let modules = unsafe { module::loaded_modules(debug) };
        // SAFETY: the objects are relocated, and the types agree.
        let mut rebinding = unsafe { Rebinding::find(&modules, b"getppid", always_7 as *const ()) }.unwrap();
        // SAFETY: as above.
        let report = unsafe { rebinding.update(&modules) };
        // SAFETY: it has no preconditions.
        works &= report.written > 0 && unsafe { libc::getppid() } == 7;
        Some(works)
    });
    match works {
        Some(works) => assert!(works),
        None => println!("  the kernel has no seccomp"),
    }
}

pub(crate) fn run() {
    nothing_gains_the_right_to_run();
    nothing_new_may_run_and_words_can_be_rebound();
    the_file_refuses_writes();
    pages_that_could_not_run_again_are_left_alone();
    cores_do_not_synchronise();
}
