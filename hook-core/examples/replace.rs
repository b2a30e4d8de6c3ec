//! Replaces two functions of libc in one transaction, while another thread calls them, and takes the hooks out again.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*},
    thread,
};

use grapnel_hook::{Error, Liveness, Transaction};

static ORIGINAL: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
static CALLS: AtomicUsize = AtomicUsize::new(0);

type Malloc = unsafe extern "C" fn(usize) -> *mut libc::c_void;

unsafe extern "C" fn counting_malloc(size: usize) -> *mut libc::c_void {
    CALLS.fetch_add(1, Relaxed);
    // SAFETY: it was stored before the first call could come here, and has this type.
    unsafe { std::mem::transmute::<*mut (), Malloc>(ORIGINAL.load(Acquire))(size) }
}

extern "C" fn always_7() -> libc::pid_t {
    7
}

/// Counts a thousand calls of malloc by another thread.
fn count() -> Result<(), Error> {
    let mut transaction = Transaction::new().live();
    let malloc = transaction.replace(libc::malloc as *const (), counting_malloc as *const ());
    transaction.replace(libc::getppid as *const (), always_7 as *const ());
    let prepared = transaction.prepare();
    ORIGINAL.store(prepared.original(malloc)?.cast_mut(), Release);
    // SAFETY: the types agree, and no thread has SIGTRAP blocked.
    let hooks = unsafe { prepared.commit(Liveness::Live) };
    let mut hooks = hooks.into_iter().collect::<Result<Vec<_>, _>>()?;

    // SAFETY: no preconditions.
    assert_eq!(unsafe { libc::getppid() }, 7);
    while CALLS.load(Relaxed) < 1000 {
        thread::yield_now();
    }
    for hook in &mut hooks {
        // SAFETY: no thread has SIGTRAP blocked.
        unsafe { hook.remove(Liveness::Live) }?;
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                drop(black_box(Box::new(1)));
            }
        });
        let counted = count();
        done.store(true, Relaxed);
        counted
    })?;
    // SAFETY: no preconditions.
    assert_ne!(unsafe { libc::getppid() }, 7);
    println!("{} calls of malloc were counted", CALLS.load(Relaxed));
    Ok(())
}
