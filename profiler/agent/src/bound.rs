//! Recording without a change in any code: the words by which objects call the allocation functions lead to the hooks.
//!
//! For functions whose code can't be read or written. What it doesn't see: calls that go through no such word, as those of
//! an allocator in its own object, addresses that a program asked for and keeps, and code that is linked statically.
//!
//! The dynamic linker tells of nothing without a hook in its code. So calls of `dlopen`, `dlmopen` and `dlclose` are
//! noticed when they begin, and the list is looked at in the next of them, in `dlsym`, and in the events that follow. They must
//! be called by their caller: `dlopen` looks at who called it.
//!
//! Any thread may look, while another unloads an object: so objects are looked at under the dynamic linker's own lock. A thread
//! that has it may wait for what another one holds, so nobody waits for [`LOCK`] who may have it; a fork does, since in a child
//! whose parent had it in another thread it would never be free.
//!
//! # Safety
//! [`STATE`] is used under [`LOCK`]. The stubs, which are in [`native`](crate::native::loading), change no register, and go on in the function as if they weren't there.

use crate::hooks::{self, ORIGINALS};
use crate::install::bound::{Wanted, wanted};
use crate::lock::{Guard, Lock};
use crate::native::loading::{
    grapnel_agent_dlclose, grapnel_agent_dlmopen, grapnel_agent_dlopen, grapnel_agent_dlsym,
};
use crate::{life, listing, modules, sandbox, session, sys};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use grapnel_hook::module::{self, Module};
use grapnel_hook::rebind::{self, Rebinding};
use grapnel_trace::ring::Producer;
use grapnel_trace::shared::{failure, session_flags};

static ON: AtomicBool = AtomicBool::new(false);
/// How many of the next events look at the list.
static PENDING: AtomicU32 = AtomicU32::new(0);
/// As many as a `dlopen` may cause before it returns.
const LOOKS: u32 = 512;
/// How many of the next look-ups by name do: events of other threads may have used up theirs by then.
static LOOKUPS: AtomicU32 = AtomicU32::new(0);
/// As many as others may make until a `dlopen` returns, and one.
const MOST_LOOKUPS: u32 = 64;
/// Objects came that may not have been relocated when their words were last changed.
static AGAIN: AtomicBool = AtomicBool::new(false);
/// The dynamic linker was at work on some of them.
static UNDONE: AtomicBool = AtomicBool::new(false);

struct State(UnsafeCell<Vec<Rebinding>>);
// SAFETY: used under LOCK only.
unsafe impl Sync for State {}
static STATE: State = State(UnsafeCell::new(Vec::new()));
static LOCK: Lock = Lock::new();

/// Whether that is asked for.
pub(crate) fn is_wanted() -> bool {
    session::header().is_some_and(|header| header.flags.load(Ordering::Relaxed) & session_flags::GOT != 0)
}

/// The functions that change the list, and where their own code is.
pub(crate) static LOADING: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
/// The number of the one that doesn't, and is called next after one that did.
const LOOKUP: usize = 3;

/// One of these functions is about to be called.
pub(crate) unsafe extern "C" fn loading(number: usize) {
    // In a child that isn't recorded, or not yet, a thread that is gone may hold any lock.
    if life::current() != 0 && LOOKUPS.load(Ordering::Relaxed) != 0 {
        let look = |all: &mut Vec<Rebinding>| {
            less(&LOOKUPS);
            let before = modules::version();
            modules::update(None);
            if modules::changes(before, modules::version()).0 || AGAIN.load(Ordering::Relaxed) {
                AGAIN.store(false, Ordering::Relaxed);
                rebind(all);
            }
        };
        let mut turns = if IN_VAIN.load(Ordering::Relaxed) { 1 } else { LOOKUP_TURNS };
        // Also for another thread that changes the list: what this one has opened is about to be used.
        while !at_rest(look) {
            turns -= 1;
            if turns == 0 {
                IN_VAIN.store(true, Ordering::Relaxed);
                break;
            }
            sys::sleep_briefly();
        }
    }
    if number != LOOKUP {
        PENDING.store(LOOKS, Ordering::Relaxed);
        LOOKUPS.store(MOST_LOOKUPS, Ordering::Relaxed);
        modules::look_again();
    }
}

/// Puts the hooks into the words.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn install() -> Result<(), String> {
    let Wanted { modules, hooks } = wanted()?;
    let mut all = Vec::new();
    for ((name, stub, function), symbol) in hooks {
        ORIGINALS[function as usize].store(symbol.addr, Ordering::Release);
        hooks::remember_target(function, &symbol.range());
        let names: &[&[u8]] = match name {
            b"free" => &[b"free", b"cfree"],
            _ => &[name],
        };
        for name in names {
            // SAFETY: the objects are loaded and relocated: this is the constructor that runs before all others.
            if let Ok(found) = unsafe { Rebinding::find(&modules, name, stub as *const ()) } {
                all.push(found);
            }
        }
    }
    let loading: [(&[u8], unsafe extern "C" fn()); 4] = [
        (b"dlopen", grapnel_agent_dlopen),
        (b"dlmopen", grapnel_agent_dlmopen),
        (b"dlclose", grapnel_agent_dlclose),
        (b"dlsym", grapnel_agent_dlsym),
    ];
    for (own, (name, stub)) in LOADING.iter().zip(loading) {
        // SAFETY: as above.
        if let Ok(found) = unsafe { Rebinding::find(&modules, name, stub as *const ()) } {
            own.store(found.original().expose_provenance(), Ordering::Release);
            all.push(found);
        }
    }
    let (mut written, mut failed) = (0, 0);
    for rebinding in &mut all {
        // SAFETY: as above; the stubs have the functions' ABI and stay.
        let report = unsafe { rebinding.update(&modules) };
        written += report.written;
        failed += report.failed.len() + report.foreign.len();
    }
    if written == 0 {
        return Err("no object calls an allocation function through a table; record without --via got".into());
    }
    {
        let _guard = LOCK.lock();
        // SAFETY: LOCK is held.
        unsafe { *STATE.0.get() = all };
    }
    // SAFETY: the functions are this library's, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    ON.store(true, Ordering::Relaxed);
    let lost = if failed == 0 { String::new() } else { format!("; {failed} of them can't be changed") };
    let note = format!(
        "{written} words of tables were changed and no code{lost}: docs/via-got.md says what is not seen"
    );
    session::report_failure(failure::NOTE, note.as_bytes());
    Ok(())
}

/// Takes over what was loaded or unloaded, if a call that does so may be under way. Whether the next event should look again.
#[cold]
pub(crate) fn look(ring: &mut Producer<'static>) -> bool {
    if !ON.load(Ordering::Relaxed) {
        return false;
    }
    // A call of the dynamic linker's saw what it loaded, and had no ring to say so.
    modules::describe_all(life::current(), ring);
    if PENDING.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let mut left = 0;
    let done = at_rest(|all| {
        left = less(&PENDING);
        let before = modules::version();
        modules::update(Some(ring));
        let (is_new, _) = modules::changes(before, modules::version());
        if is_new {
            AGAIN.store(true, Ordering::Relaxed);
        }
        // What was loaded may not have been relocated yet: at last once more.
        if is_new || left == 0 || UNDONE.load(Ordering::Relaxed) {
            rebind(all);
        }
    });
    !done || left != 0
}

/// Takes one off. How many are left.
fn less(number: &AtomicU32) -> u32 {
    let less = |left: u32| left.checked_sub(1);
    number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).map_or(0, |before| before - 1)
}

/// Does `work` while no object that is loaded goes, but where the list is being changed, or another thread is at it. Whether it did.
fn at_rest(mut work: impl FnMut(&mut Vec<Rebinding>)) -> bool {
    if !is_at_rest() {
        return false;
    }
    let Some(_guard) = LOCK.try_lock() else { return false };
    // SAFETY: LOCK is held.
    let all = unsafe { &mut *STATE.0.get() };
    let mut done = false;
    listing::kept(&mut || {
        if is_at_rest() {
            work(all);
            done = true;
            IN_VAIN.store(false, Ordering::Relaxed);
        }
    });
    done
}

/// Whether nobody is changing the list.
fn is_at_rest() -> bool {
    // SAFETY: the dynamic linker's structure, which stays.
    module::r_debug_of_this_process()
        .and_then(|debug| unsafe { debug.as_ref() })
        .is_some_and(|debug| debug.is_consistent())
}

fn rebind(all: &mut Vec<Rebinding>) {
    if !sandbox::leaves_all() {
        return;
    }
    let listed = listing::listed();
    let mut modules: Vec<Module> = listed.iter().map(modules::described).collect();
    // Another thread relocates an object while it is listed, and nothing says so but that it isn't protected yet.
    let mut protected = rebind::are_protected(&modules).into_iter();
    let before = modules.len();
    modules.retain(|_| protected.next().unwrap_or(true));
    let is_undone = modules.len() < before;
    UNDONE.store(is_undone, Ordering::Relaxed);
    if is_undone {
        AGAIN.store(true, Ordering::Relaxed);
    }
    for rebinding in all {
        // SAFETY: no object goes meanwhile: this is within `at_rest`.
        let _ = unsafe { rebinding.update(&modules) };
    }
}

struct Held(UnsafeCell<Option<Guard<'static>>>);
// SAFETY: used by the thread that forks, under the lock that it holds.
unsafe impl Sync for Held {}
static HELD: Held = Held(UnsafeCell::new(None));
/// How often a look-up asks whether another thread's look is over, a tenth of a millisecond apart or more: that may wait for this
/// thread, which then has the linker's lock. Turns and no time: on a busy machine the other one may not run for longer than any time
/// that could be given here, and a turn takes longer there too.
const LOOKUP_TURNS: u32 = 1000;
/// A look-up has waited for one in vain: until somebody has looked again, the others ask once.
static IN_VAIN: AtomicBool = AtomicBool::new(false);
/// How long a fork waits, in nanoseconds. Who is looked for may wait for a lock of the program's that the thread holds which forks.
const PATIENCE: u64 = 1_000_000_000;

unsafe extern "C" fn before_fork() {
    let start = sys::monotonic_ns();
    loop {
        if let Some(guard) = LOCK.try_lock() {
            // SAFETY: LOCK is held.
            unsafe { *HELD.0.get() = Some(guard) };
            return;
        }
        if sys::monotonic_ns() - start > PATIENCE {
            return;
        }
        sys::sleep_briefly();
    }
}

/// In the parent, and in the child before anything else.
unsafe extern "C" fn after_fork() {
    // A thread that waited in vain leaves it to the one that has it, which may be in a fork itself.
    if LOCK.is_own() {
        // SAFETY: this thread, or its other self, took it in `before_fork`.
        drop(unsafe { (*HELD.0.get()).take() });
    }
}

/// In the child of a fork, in its only thread.
pub(crate) fn renew() {
    LOCK.renew();
    // Of another thread of the parent's, which was about to fork itself.
    // SAFETY: this is the only thread.
    core::mem::forget(unsafe { (*HELD.0.get()).take() });
}
