//! Hooks on functions of the test program itself. One thread runs: the functions are called by it alone.

#[path = "../common/code.rs"]
mod code;
#[path = "../common/gate.rs"]
mod gate;
mod gates;
#[cfg(target_arch = "x86_64")]
mod gone;
mod no_proc;
mod owned;
#[path = "../common/poke.rs"]
mod poke;
mod refusals;
#[path = "../common/samples.rs"]
mod samples;
mod security;
mod sharing;
#[cfg(target_arch = "x86_64")]
mod traps;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use grapnel_hook::{Arena, CodeWay, Errno, Error, Hook, HookId, Liveness, PatchKind, Transaction};

type Function = extern "C" fn(u64) -> u64;

/// The original of the function that is hooked at the moment.
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

fn function(at: *const ()) -> Function {
    // SAFETY: the samples and their trampolines have this type.
    unsafe { std::mem::transmute(at) }
}

/// Calls the original twice and adds a mark.
extern "C" fn replacement(x: u64) -> u64 {
    let original = function(ORIGINAL.load(Relaxed) as *const ());
    let result = original(x);
    assert_eq!(original(x), result);
    result + 1000
}

fn hook_one(transaction: Transaction<'_>, id: HookId) -> Result<Hook, Error> {
    let prepared = transaction.prepare();
    ORIGINAL.store(prepared.original(id)? as usize, Relaxed);
    // SAFETY: one thread, and the types agree.
    unsafe { prepared.commit(Liveness::SingleThreaded) }.remove(0)
}

/// Hooks every sample with a new transaction, and takes it out again.
fn every_prologue(mut arena: Arena, way: CodeWay) {
    for sample in samples::all() {
        let Some(expected) = sample.expected else { continue };
        let before = code::bytes(sample.at, 48);
        let plain = function(sample.at);
        for x in [0, 1, 10, 11, 12345] {
            assert_eq!(plain(x), expected(x), "{}", sample.name);
        }
        let mut transaction = Transaction::with_arena(&mut arena);
        let id = transaction.replace(sample.at, replacement as *const ());
        let mut hook = match hook_one(transaction, id) {
            Ok(hook) => hook,
            // Each hook takes new memory this way.
            Err(Error::Clobbers { .. }) if way == CodeWay::Protect => {
                println!("  {:20} no room is left close enough", sample.name);
                continue;
            }
            Err(error) => panic!("{}: {error}", sample.name),
        };
        for x in [0, 1, 10, 11, 12345] {
            assert_eq!(plain(x), expected(x) + 1000, "{} hooked", sample.name);
        }
        assert_eq!(code::writable_code(), Vec::<String>::new());
        // SAFETY: one thread.
        unsafe { hook.remove(Liveness::SingleThreaded) }.unwrap();
        assert_eq!(code::bytes(sample.at, 48), before, "{}", sample.name);
        assert_eq!(plain(12345), expected(12345));
        assert_eq!(function(hook.original())(12345), expected(12345), "the original stays callable");
        match sample.name {
            "landing_pad" | "signed" => {
                assert_eq!(hook.displaced().0, hook.original() as u64 + 4);
                assert_eq!(code::bytes(hook.original(), 4), before[..4]);
            }
            "no_room" => assert_eq!(hook.kind(), PatchKind::Short),
            _ => {}
        }
        println!("  {:20} {:?}, {}", sample.name, hook.kind(), hook.proof());
    }
    assert!(arena.regions().all(|(_, used)| used == way));
    assert!(arena.regions().count() > 0);
}

/// All at once: every patch is in before the first call.
fn one_transaction() {
    extern "C" fn mark(x: u64) -> u64 {
        x.wrapping_sub(1)
    }
    let samples: Vec<_> = samples::all().into_iter().filter(|s| s.expected.is_some()).collect();
    let mut transaction = Transaction::new();
    for sample in &samples {
        transaction.replace(sample.at, mark as *const ());
    }
    let prepared = transaction.prepare();
    let originals: Vec<_> = prepared.plans().map(|plan| plan.unwrap().target()).zip(&samples).collect();
    assert!(originals.iter().all(|(target, sample)| target.0 == code::start(sample.at) as u64));
    // SAFETY: one thread, and the types agree.
    let hooks = unsafe { prepared.commit(Liveness::SingleThreaded) };
    for (hook, sample) in hooks.into_iter().zip(&samples) {
        let mut hook = hook.unwrap();
        assert_eq!(function(sample.at)(7), 6, "{}", sample.name);
        let expected = sample.expected.unwrap();
        if sample.name != "tail_through_memory" {
            assert_eq!(function(hook.original())(7), expected(7), "{}", sample.name);
        }
        // SAFETY: one thread.
        unsafe { hook.remove(Liveness::SingleThreaded) }.unwrap();
        assert_eq!(
            function(sample.at)(7),
            if sample.name == "tail_through_memory" { 8 } else { expected(7) }
        );
    }
}

/// Whether memory for code can be had that way: an emulator may not notice what is written through `/proc/self/mem`.
fn is_to_be_had(way: CodeWay) -> bool {
    let mut arena = Arena::with_ways(&[way]);
    let mut transaction = Transaction::with_arena(&mut arena);
    let id = transaction.replace(samples::all()[0].at, replacement as *const ());
    match transaction.prepare().original(id) {
        Ok(_) => true,
        Err(Error::NoCodeMemory { errno: Errno(libc::EOPNOTSUPP), .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// In a child that may not write itself through /proc: it isn't dumpable, and not root's.
fn without_proc_mem(works: impl FnOnce() -> bool) {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: changes this child alone.
        let reduced = unsafe { libc::setresuid(65534, 65534, 65534) } == 0
            // SAFETY: as above.
            && unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) } == 0
            && std::fs::File::open("/proc/self/mem").is_err();
        let code = if reduced { 8 - i32::from(works()) } else { 9 };
        // SAFETY: leaves the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    match libc::WEXITSTATUS(status) {
        7 => {}
        9 => println!("  not root: a process without /proc/self/mem was not tried"),
        other => panic!("{other}"),
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// In a child: what it leaves behind would fill the only memory that is close enough for some.
fn in_way(way: CodeWay) {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        if cfg!(not(target_arch = "x86_64")) && !is_to_be_had(way) {
            println!("{way:?}: not under this emulator");
        } else {
            println!("{way:?}:");
            every_prologue(Arena::with_ways(&[way]), way);
        }
        // SAFETY: leaves the child at once; what it printed ended with a line.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "{way:?}: {status:#x}");
}

fn main() {
    let files = open_files();
    // What the others leave behind may fill the only memory that is close enough for some.
    every_prologue(Arena::new(), CodeWay::TwoViews);
    println!("one transaction");
    one_transaction();
    gates::run();
    in_way(CodeWay::TwoViews);
    in_way(CodeWay::ProcMem);
    refusals::run();
    sharing::run();
    security::run();
    #[cfg(target_arch = "x86_64")]
    traps::run();
    #[cfg(target_arch = "x86_64")]
    gone::run();
    #[cfg(target_arch = "x86_64")]
    sharing::all_removed_at_once_live();
    gates::run_live();
    no_proc::run();
    owned::run();
    // Takes new memory for each hook, and leaves none that is close enough.
    in_way(CodeWay::Protect);
    assert_eq!(open_files(), files, "no descriptor is left open");
    println!("ok");
}
