//! Threads that are in what was removed, or of which that isn't known.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering::*},
    mpsc,
};

use grapnel_hook::{Doubt, HookSet, Listener, Liveness, Refusal, module};

use super::{
    BLOCK, INSIDE, block, blocking_enter, blocking_first, blocking_later, blocking_leave, enter, leave,
    reclaim, seven, while_blocked,
};
use crate::{at, attach, function, remove};

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
    assert_eq!(pending(id), 0, "a signal that waits would be there after an exec, too");
    end.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!(reclaim(&mut set, Liveness::Live).doubt, None);
    assert_eq!(set.kept(), 0);
}

/// The signals that wait for a thread.
fn pending(thread: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("SigPnd:\t")).unwrap();
    u64::from_str_radix(line, 16).unwrap()
}

/// A thread that takes signals by `sigwait` would take one that isn't its own.
fn who_waits_for_signals_gets_none() {
    let (say, hear) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: only this thread's mask changes, and it ends with the test.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
            say.send((libc::gettid(), libc::pthread_self())).unwrap();
            let mut signal = 0;
            assert_eq!(libc::sigwait(&raw const all, &raw mut signal), 0);
            signal
        }
    });
    let (id, handle) = hear.recv().unwrap();
    // Asleep in sigwait.
    while !std::fs::read_to_string(format!("/proc/self/task/{id}/stat")).unwrap().contains(") S ") {
        std::thread::yield_now();
    }
    let mut set = HookSet::new();
    let attached = attach(&mut set, |b| b.replace(at("frame"), seven as *const ())).unwrap();
    remove(&mut set, attached).unwrap();
    assert_eq!(reclaim(&mut set, Liveness::Live).doubt, Some(Doubt::NoAnswer(id)));
    // SAFETY: the thread runs.
    unsafe { libc::pthread_kill(handle, libc::SIGUSR2) };
    assert_eq!(thread.join().unwrap(), libc::SIGUSR2);
    assert_eq!(reclaim(&mut set, Liveness::Live).doubt, None);
    assert_eq!(set.kept(), 0);
}

/// While threads begin and end, lists of them may lack one, and new ones don't matter.
fn threads_may_come_and_go() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let some: Vec<_> =
                        (0..12).map(|_| std::thread::spawn(|| function(at("frame"))(1))).collect();
                    some.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 2));
                }
            });
        }
        let mut doubts = Vec::new();
        for _ in 0..30 {
            let mut set = HookSet::new();
            // Elsewhere than where they are, so that none is in it.
            let attached = attach(&mut set, |b| b.replace(blocking_later as *const (), seven as *const ()));
            remove(&mut set, attached.unwrap()).unwrap();
            let reclaimed = reclaim(&mut set, Liveness::Live);
            match reclaimed.doubt {
                None => assert_eq!(set.kept(), 0, "{reclaimed:?}"),
                Some(doubt) => doubts.push(doubt),
            }
        }
        stop.store(true, Relaxed);
        assert!(doubts.len() < 15, "{doubts:?}");
        println!("  while threads come and go, {} of 30 in doubt", doubts.len());
    });
}

/// The first thread may end by itself, while others go on: it is there without memory, and answers no more. In a child.
fn the_first_thread_may_be_gone() {
    // SAFETY: no other thread runs, so the child can go on as this process.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let first = std::process::id();
        std::thread::spawn(move || {
            let state = || std::fs::read_to_string(format!("/proc/self/task/{first}/stat")).unwrap();
            while !state().contains(") Z ") {
                std::thread::yield_now();
            }
            let mut set = HookSet::new();
            let target = at("frame");
            let attached = attach(&mut set, |b| b.replace(target, seven as *const ())).unwrap();
            let during = function(target)(1);
            remove(&mut set, attached).unwrap();
            let reclaimed = reclaim(&mut set, Liveness::Live);
            let good = (during, function(target)(1), reclaimed.doubt, set.kept()) == (7, 2, None, 0);
            // In a mapping that the first thread doesn't show any more.
            let found = module::r_debug_of_this_process().is_some();
            // SAFETY: the test ends here.
            unsafe { libc::_exit(i32::from(!good) + 2 * i32::from(!found)) };
        });
        // SAFETY: this thread alone ends.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    let mut status = 0;
    // SAFETY: the child is this test's.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "{status:#x}");
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

/// In a namespace of processes of its own and with the `/proc` of another, a process finds its threads by other numbers than
/// those by which it can send them a signal.
fn numbers_of_another_namespace_are_a_doubt() {
    const NOT_ALLOWED: i32 = 77;
    // SAFETY: no other thread runs, so that the children can go on as this process. Each ends here.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            if libc::unshare(libc::CLONE_NEWPID) != 0 {
                libc::_exit(NOT_ALLOWED);
            }
            let first = libc::fork();
            if first == 0 {
                libc::_exit(i32::from(!is_kept_in_another_namespace()));
            }
            let mut status = -1;
            libc::waitpid(first, &raw mut status, 0);
            libc::_exit(i32::from(status != 0));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    };
    if libc::WEXITSTATUS(status) == NOT_ALLOWED {
        println!("  namespaces aren't allowed here: left out");
        return;
    }
    assert_eq!(status, 0, "{status:#x}");
}

fn is_kept_in_another_namespace() -> bool {
    let target = blocking_later as *const ();
    let mut set = HookSet::new();
    let listener = Listener::new(core::ptr::null_mut()).on_enter(blocking_enter);
    let attached = attach(&mut set, |b| b.listen(target, listener)).unwrap();
    let mut reclaimed = Default::default();
    while_blocked(
        function(target),
        || {
            remove(&mut set, attached).unwrap();
            reclaimed = reclaim(&mut set, Liveness::Live);
        },
        || {},
    );
    reclaimed.doubt == Some(Doubt::NotAsked(Refusal::OtherNamespace)) && reclaimed.freed == 0
}

pub(super) fn run() {
    numbers_of_another_namespace_are_a_doubt();
    who_can_not_be_asked_is_a_doubt();
    code_is_kept_while_a_thread_is_in_it();
    who_does_not_answer_is_named();
    who_waits_for_signals_gets_none();
    who_is_on_another_stack_is_named();
    threads_may_come_and_go();
    the_first_thread_may_be_gone();
}
