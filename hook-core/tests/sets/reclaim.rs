//! Giving back what was removed.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    arch::global_asm,
    ffi::c_void,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering::*},
        mpsc,
    },
};

use grapnel_hook::{
    Arena, CodeWay, Doubt, HookSet, Listener, Liveness, Options, Probe, Reclaimed,
    listen::{Entry, Exit, Hit},
};

use crate::{Function, at, attach, function, remove};

/// How many bytes of the heap are in use.
static IN_USE: AtomicIsize = AtomicIsize::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: all is passed on.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

fn reclaim(set: &mut HookSet, liveness: Liveness) -> Reclaimed {
    // SAFETY: what `liveness` says is so, no original is called any more, and there are no coroutines.
    unsafe { set.reclaim(liveness) }
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

static TOLD: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn enter(_: &mut Entry, data: *mut c_void) {
    TOLD.fetch_add(data as u64, Relaxed);
}

unsafe extern "C" fn leave(_: &mut Exit, data: *mut c_void) {
    TOLD.fetch_add(data as u64, Relaxed);
}

unsafe extern "C" fn hit(_: &mut Hit, data: *mut c_void) {
    TOLD.fetch_add(data as u64, Relaxed);
}

extern "C" fn seven(_: u64) -> u64 {
    7
}

/// Attaches and removes with ever new data. Each call must be told with the data of its round.
fn ever_new_data_leaks_nothing() {
    const ROUNDS: usize = 100_000;
    let target = at("frame");
    let call = function(target);
    let mut set = HookSet::new();
    let round = |set: &mut HookSet, i: usize| {
        let data = i as *mut c_void;
        TOLD.store(0, Relaxed);
        let (attached, expected) = match i % 4 {
            0 => (attach(set, |b| b.replace(target, seven as *const ())), 0),
            1 => (attach(set, |b| b.listen(target, Listener::new(data).on_enter(enter))), i),
            2 => {
                let listener = Listener::new(data).on_enter(enter).on_leave(leave);
                (attach(set, |b| b.listen(target, listener)), 2 * i)
            }
            _ => {
                let inside = (target as usize + 4) as *const ();
                let range = target as u64..target as u64 + 25;
                let ask = |b: &mut grapnel_hook::Batch<'_>| {
                    b.probe_with(inside, Some(range), Probe::new(hit, data), Options::default())
                };
                (attach(set, ask), i)
            }
        };
        assert_eq!(call(1), if i.is_multiple_of(4) { 7 } else { 2 });
        assert_eq!(TOLD.load(Relaxed), expected as u64, "round {i}");
        remove(set, attached.unwrap()).unwrap();
        if i.is_multiple_of(1000) {
            let reclaimed = reclaim(set, Liveness::SingleThreaded);
            // A word that was left in a frame of the test may look like an address, and then counts as one.
            assert!(reclaimed.doubt.is_none() && reclaimed.awaited <= 16, "round {i}: {reclaimed:?}");
            assert!(set.kept() < 512, "round {i}: {reclaimed:?}");
        }
    };
    (1..=4000).for_each(|i| round(&mut set, i));
    let (maps, bytes) = (mappings(), IN_USE.load(Relaxed));
    (4001..=ROUNDS).for_each(|i| round(&mut set, i));
    assert_eq!(mappings(), maps);
    let grown = IN_USE.load(Relaxed) - bytes;
    assert!(grown < 4096, "{grown} bytes");
    println!("  ever new data: {ROUNDS} rounds, {maps} mappings, {grown} bytes more");
}

/// What the blocking listener and function wait for.
static BLOCK: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicBool = AtomicBool::new(false);

fn block() {
    INSIDE.store(true, SeqCst);
    while BLOCK.load(SeqCst) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    INSIDE.store(false, SeqCst);
}

unsafe extern "C" fn blocking_enter(_: &mut Entry, _: *mut c_void) {
    block();
}

unsafe extern "C" fn blocking_leave(_: &mut Exit, _: *mut c_void) {
    block();
}

extern "C" fn blocking_call() {
    block();
}

// A function that calls before anything else: the call is made in the trampoline, and returns there. And one whose call lies
// behind what a patch takes.
global_asm!(
    ".pushsection .text.blocking, \"ax\", @progbits",
    ".p2align 4",
    ".globl blocking_first",
    ".type blocking_first, @function",
    "blocking_first: .cfi_startproc",
    "call {block}; lea rax, [rdi + 1]; ret",
    ".cfi_endproc; .size blocking_first, . - blocking_first",
    ".p2align 4",
    ".globl blocking_later",
    ".type blocking_later, @function",
    "blocking_later: .cfi_startproc",
    "push rbp; mov rbp, rsp; and rsp, -16; nop dword ptr [rax]; call {block}; leave; ret",
    ".cfi_endproc; .size blocking_later, . - blocking_later",
    ".popsection",
    block = sym blocking_call,
);

unsafe extern "C" {
    fn blocking_first(x: u64) -> u64;
    fn blocking_later(x: u64) -> u64;
}

/// Calls a function in another thread, which blocks somewhere; meanwhile it is looked at, and again afterwards.
fn while_blocked(call: Function, during: impl FnOnce(), after: impl FnOnce()) {
    BLOCK.store(true, SeqCst);
    let thread = std::thread::spawn(move || call(1));
    while !INSIDE.load(SeqCst) {
        std::thread::yield_now();
    }
    during();
    BLOCK.store(false, SeqCst);
    thread.join().unwrap();
    after();
}

fn code_is_kept_while_a_thread_is_in_it() {
    let listeners = [
        (at("frame"), Listener::new(core::ptr::null_mut()).on_enter(blocking_enter), "in a listener"),
        (at("frame"), Listener::new(core::ptr::null_mut()).on_leave(blocking_leave), "in a leave listener"),
        (
            blocking_first as *const (),
            Listener::new(core::ptr::null_mut()).on_enter(enter),
            "in a call in the trampoline",
        ),
        (
            blocking_later as *const (),
            Listener::new(core::ptr::null_mut()).on_leave(leave),
            "in a function that will return",
        ),
    ];
    for (target, listener, place) in listeners {
        let set = Mutex::new(HookSet::new());
        let mut locked = set.lock().unwrap();
        let attached = attach(&mut locked, |b| b.listen(target, listener)).unwrap();
        drop(locked);
        let seen = AtomicUsize::new(0);
        while_blocked(
            function(target),
            || {
                let mut set = set.lock().unwrap();
                // SAFETY: the other thread is in the listener or behind the first instructions.
                unsafe { set.remove(attached, Liveness::SingleThreaded) }.unwrap();
                let kept = set.kept();
                for _ in 0..3 {
                    let reclaimed = reclaim(&mut set, Liveness::Live);
                    assert_eq!(reclaimed.doubt, None, "{place}");
                    assert!(reclaimed.kept > 0 || reclaimed.awaited > 0, "{place}: {reclaimed:?}");
                }
                seen.store(kept - set.kept(), Relaxed);
            },
            || {
                let mut set = set.lock().unwrap();
                let reclaimed = reclaim(&mut set, Liveness::Live);
                assert_eq!((reclaimed.kept, reclaimed.awaited, reclaimed.doubt), (0, 0, None), "{place}");
                assert_eq!(set.kept(), 0, "{place}");
            },
        );
        println!("  kept {place}; {} bytes could be freed", seen.load(Relaxed));
    }
}

fn who_does_not_answer_is_named() {
    // SAFETY: only this thread's mask changes, and it ends with the test.
    let mask = |how: i32| unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(how, &raw const all, std::ptr::null_mut());
    };
    let (say, hear) = mpsc::channel();
    let (end, is_end) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        mask(libc::SIG_BLOCK);
        // SAFETY: gettid has no preconditions.
        say.send(unsafe { libc::gettid() }).unwrap();
        is_end.recv().unwrap();
        mask(libc::SIG_UNBLOCK);
    });
    let id = hear.recv().unwrap();
    let mut set = HookSet::new();
    let attached =
        attach(&mut set, |b| b.listen(at("frame"), Listener::new(core::ptr::null_mut()).on_enter(enter)))
            .unwrap();
    remove(&mut set, attached).unwrap();
    let kept = set.kept();
    let reclaimed = reclaim(&mut set, Liveness::Live);
    assert_eq!((reclaimed.doubt, reclaimed.freed), (Some(Doubt::NoAnswer(id)), 0));
    assert_eq!(set.kept(), kept);
    end.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!(reclaim(&mut set, Liveness::Live).doubt, None);
    assert_eq!(set.kept(), 0);
}

/// A thread that is in a handler on a stack of its own may have left a listener below on the other.
fn who_is_on_another_stack_is_named() {
    extern "C" fn handle(_: i32) {
        block();
    }
    let (say, hear) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut room = vec![0u8; 64 << 10];
        let stack = libc::stack_t { ss_sp: room.as_mut_ptr().cast(), ss_flags: 0, ss_size: room.len() };
        // SAFETY: the stack outlives its use, and this thread has its own back afterwards.
        unsafe {
            let mut before: libc::stack_t = std::mem::zeroed();
            assert_eq!(libc::sigaltstack(&raw const stack, &raw mut before), 0);
            say.send(libc::gettid()).unwrap();
            libc::raise(libc::SIGUSR1);
            assert_eq!(libc::sigaltstack(&raw const before, std::ptr::null_mut()), 0);
        }
    });
    let handler: extern "C" fn(i32) = handle;
    BLOCK.store(true, SeqCst);
    // SAFETY: the handler may run anywhere.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler as usize, libc::SA_ONSTACK);
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let id = hear.recv().unwrap();
    while !INSIDE.load(SeqCst) {
        std::thread::yield_now();
    }
    let mut set = HookSet::new();
    let attached = attach(&mut set, |b| b.replace(at("frame"), seven as *const ())).unwrap();
    remove(&mut set, attached).unwrap();
    assert_eq!(reclaim(&mut set, Liveness::Live).doubt, Some(Doubt::OtherStack(id)));
    BLOCK.store(false, SeqCst);
    thread.join().unwrap();
    assert_eq!(reclaim(&mut set, Liveness::Live).doubt, None);
    assert_eq!(set.kept(), 0);
}

/// What is in stays in, and what was attached before it is found again.
fn what_is_in_stays() {
    let target = at("frame");
    let call = function(target);
    let mut set = HookSet::new();
    let data = |i: usize| i as *mut c_void;
    let listen = |set: &mut HookSet, i| {
        attach(set, |b| b.listen(target, Listener::new(data(i)).on_enter(enter))).unwrap()
    };
    let first = listen(&mut set, 1);
    let middle = listen(&mut set, 10);
    let last = listen(&mut set, 100);
    remove(&mut set, middle).unwrap();
    let reclaimed = reclaim(&mut set, Liveness::SingleThreaded);
    assert_eq!((reclaimed.kept, reclaimed.doubt), (0, None));
    assert!(reclaimed.freed > 0);
    let again = listen(&mut set, 1000);
    TOLD.store(0, Relaxed);
    assert_eq!((call(1), TOLD.load(Relaxed)), (2, 1101));
    for (attached, told) in [(last, 1001), (first, 1000), (again, 0)] {
        remove(&mut set, attached).unwrap();
        reclaim(&mut set, Liveness::SingleThreaded);
        TOLD.store(0, Relaxed);
        assert_eq!((call(1), TOLD.load(Relaxed)), (2, told));
    }
    assert_eq!(set.kept(), 0);
}

/// A child made by fork keeps the hooks that its parent gives back.
fn a_child_keeps_what_its_parent_frees() {
    let target = at("frame");
    let call = function(target);
    for arena in [None, Some(Arena::with_ways(&[CodeWay::TwoViews]))] {
        let mut set = arena.map_or_else(HookSet::new, HookSet::with_arena);
        let attached = attach(&mut set, |b| b.replace(target, seven as *const ())).unwrap();
        // Another function keeps the memory mapped.
        let other = attach(&mut set, |b| b.replace(blocking_later as *const (), seven as *const ())).unwrap();
        let mut pipe = [0; 2];
        // SAFETY: two descriptors are written.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        // SAFETY: the child only reads, calls the function and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = 0u8;
            // SAFETY: as above.
            unsafe {
                libc::read(pipe[0], (&raw mut byte).cast(), 1);
                libc::_exit(call(1) as i32);
            }
        }
        remove(&mut set, attached).unwrap();
        assert_eq!(reclaim(&mut set, Liveness::SingleThreaded).doubt, None);
        let mut status = 0;
        // SAFETY: the descriptors and the child are this test's.
        unsafe {
            libc::write(pipe[1], (&raw const status).cast(), 1);
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
        }
        remove(&mut set, other).unwrap();
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    }
}

/// A call in a trampoline may be one whose return address a listener has taken from the stack.
fn return_addresses_that_listeners_took_are_looked_at() {
    let target = blocking_first as *const ();
    let set = Mutex::new(HookSet::new());
    let attached = attach(&mut set.lock().unwrap(), |b| {
        b.listen(target, Listener::new(core::ptr::null_mut()).on_enter(enter))
    });
    let attached = attached.unwrap();
    let mut other = HookSet::new();
    let within = attach(&mut other, |b| {
        b.listen(blocking_call as *const (), Listener::new(core::ptr::null_mut()).on_leave(leave))
    });
    while_blocked(
        function(target),
        || {
            let mut set = set.lock().unwrap();
            // SAFETY: the other thread is behind the first instructions.
            unsafe { set.remove(attached, Liveness::SingleThreaded) }.unwrap();
            let reclaimed = reclaim(&mut set, Liveness::Live);
            assert_eq!(reclaimed.doubt, None);
            assert!(reclaimed.kept > 0, "{reclaimed:?}");
        },
        || {
            let mut set = set.lock().unwrap();
            assert_eq!(reclaim(&mut set, Liveness::Live).doubt, None);
            assert_eq!(set.kept(), 0);
        },
    );
    remove(&mut other, within.unwrap()).unwrap();
}

/// A thread that can't be asked hasn't ended. In a child, whose limit it is.
fn who_can_not_be_asked_is_a_doubt() {
    // SAFETY: no other thread runs, so the child can go on as this process.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let target = blocking_later as *const ();
        let mut set = HookSet::new();
        let listener = Listener::new(core::ptr::null_mut()).on_enter(blocking_enter);
        let attached = attach(&mut set, |b| b.listen(target, listener)).unwrap();
        let mut doubt = None;
        while_blocked(
            function(target),
            || {
                // SAFETY: the other thread is behind the first instructions; the limit is this process's.
                unsafe {
                    set.remove(attached, Liveness::SingleThreaded).unwrap();
                    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                    assert_eq!(libc::setrlimit(libc::RLIMIT_SIGPENDING, &raw const none), 0);
                }
                doubt = reclaim(&mut set, Liveness::Live).doubt;
            },
            || {},
        );
        // SAFETY: the test ends here.
        unsafe { libc::_exit(i32::from(!matches!(doubt, Some(Doubt::NotAsked(_))))) };
    }
    let mut status = 0;
    // SAFETY: the child is this test's.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "{status:#x}");
}

/// A thread may yet trap in what another set has put in since.
fn the_ways_of_other_sets_stay() {
    extern "C" fn none(_: u64) -> u64 {
        0
    }
    let target = blocking_first as *const ();
    let live = |set: &mut HookSet| {
        let mut batch = set.begin().live();
        batch.replace(target, none as *const ());
        // SAFETY: the function may be running, and is replaced by one of its type.
        unsafe { batch.commit(Liveness::Live) }.remove(0)
    };
    let (mut set, mut other) = (HookSet::new(), HookSet::new());
    let attached = live(&mut set).unwrap();
    // SAFETY: as above.
    unsafe { set.remove(attached, Liveness::Live) }.unwrap();
    let mut later = None;
    while_blocked(
        function(target),
        || {
            // The call returns into this patch.
            later = live(&mut other).ok();
            assert_eq!(reclaim(&mut set, Liveness::Live).doubt, None);
            assert_eq!(set.kept(), 0);
        },
        || {},
    );
    // SAFETY: as above.
    unsafe { other.remove(later.unwrap(), Liveness::Live) }.unwrap();
}

pub(crate) fn run() {
    a_child_keeps_what_its_parent_frees();
    return_addresses_that_listeners_took_are_looked_at();
    who_can_not_be_asked_is_a_doubt();
    the_ways_of_other_sets_stay();
    ever_new_data_leaks_nothing();
    code_is_kept_while_a_thread_is_in_it();
    who_does_not_answer_is_named();
    who_is_on_another_stack_is_named();
    what_is_in_stays();
}
