//! Filters for system calls (seccomp) that the program puts itself under.
//!
//! A call that a filter doesn't foresee may end the process, and the agent makes some. So the functions by which a program
//! installs filters are hooked (`hooks`), each filter is kept here, and before a system call of the agent's own it is asked
//! as the kernel will ask it. What it wouldn't let pass isn't made, and counts as failed by `ENOSYS`. As long as there is
//! no filter that is one load and a branch in front of calls that the hot path doesn't make.
//!
//! A filter holds for the thread that installed it and for what that makes: threads, forks, programs. A thread's block has
//! the newest of its filters, which leads to the older ones, and hands it on to threads that it starts. Where threads can begin
//! unseen, each filter counts for all of them, and so does one that was installed for all threads
//! (`SECCOMP_FILTER_FLAG_TSYNC`).
//!
//! While a filter is being installed, nothing passes: nobody can say whether the kernel has it already. If the kernel
//! refuses it, it is taken away again.
//!
//! What the next program is under can't be handed to it. It is followed only if the agent can make all of its calls there,
//! whatever their arguments ([`leaves_all`]), and so it needs to know nothing.
//!
//! A thread may also have its system calls answered by a handler of its own (`PR_SET_SYSCALL_USER_DISPATCH`), where and whenever a byte of its memory says
//! so. None is made then.
//!
//! # Safety
//! Nodes are mappings that are never unmapped; one that is no longer needed is used again. Its instructions are written by
//! whoever installs it, and read by others only when its state says that they are whole. Links are written before
//! a node can be found, and never led to a newer one.

mod calls;
pub(crate) mod clock;
pub(crate) mod hooks;

pub(crate) use hooks::functions;
#[cfg(not(grapnel_attached))]
pub(crate) use hooks::thread_functions;

use crate::hooks::{Function, original};
use crate::{life, sys, tls};
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use grapnel_seccomp::{ARCH_NATIVE, Call, Instruction, MOST_INSTRUCTIONS};
use syscalls::Sysno;

/// A filter.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Node {
    /// The filter that the thread had before.
    older: AtomicPtr<Node>,
    /// The next of all nodes.
    next: AtomicPtr<Node>,
    state: AtomicU32,
    /// The child of a `vfork` that installed it while it ran on its parent's block, by its thread's id; or 0.
    borrower: AtomicU32,
    /// Whether it holds for all threads.
    shared: AtomicBool,
    len: AtomicUsize,
    instructions: UnsafeCell<[Instruction; MOST_INSTRUCTIONS]>,
}

/// Of [`Node::state`]: nothing passes; the instructions are there; the node is free.
mod state {
    pub(super) const CLOSED: u32 = 0;
    pub(super) const WHOLE: u32 = 1;
    pub(super) const FREE: u32 = 2;
}

// SAFETY: the instructions are read only when the state says that they are written; all else is atomic.
unsafe impl Sync for Node {}

const NO_INSTRUCTION: Instruction = Instruction { code: 0, jt: 0, jf: 0, k: 0 };

/// Lets nothing pass: strict mode, or a filter that there was no memory to keep.
static NOTHING_PASSES: Node = Node {
    older: AtomicPtr::new(ptr::null_mut()),
    next: AtomicPtr::new(ptr::null_mut()),
    state: AtomicU32::new(state::CLOSED),
    borrower: AtomicU32::new(0),
    shared: AtomicBool::new(false),
    len: AtomicUsize::new(0),
    instructions: UnsafeCell::new([NO_INSTRUCTION; MOST_INSTRUCTIONS]),
};

/// Whether there is, or was, any filter.
pub(crate) static ANY: AtomicBool = AtomicBool::new(false);
/// All nodes.
static ALL: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());
/// Some thread can do nothing, and nobody knows which.
static CLOSED_FOR_ALL: AtomicBool = AtomicBool::new(false);

/// So often is looked whether a filter is installed: some tenths of a second at most.
const PATIENCE: u32 = 1 << 22;
/// That was too short once.
static IN_VAIN: AtomicBool = AtomicBool::new(false);

/// Whether a filter may have something against a system call of this thread's, which then is not to be made.
#[inline(always)]
pub(crate) fn refuses(number: Sysno, arguments: &[usize; 6]) -> bool {
    ANY.load(Ordering::Relaxed) && is_refused(number, arguments)
}

/// Whether there may be one.
pub(crate) fn is_any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// [`refuses`], of a call by its number.
pub(crate) fn refuses_number(number: usize, arguments: &[usize; 6]) -> bool {
    Sysno::new(number).is_none_or(|number| refuses(number, arguments))
}

#[cold]
#[inline(never)]
fn is_refused(number: Sysno, arguments: &[usize; 6]) -> bool {
    if is_dispatched() {
        return true;
    }
    let call = Call {
        number: number.id() as u32,
        arch: ARCH_NATIVE,
        // Calls are made in many places.
        instruction: None,
        arguments: arguments.map(|argument| argument as u64),
    };
    !all_in_effect(&|filter| grapnel_seccomp::answer(filter, &call).is_some_and(grapnel_seccomp::lets_pass))
}

/// In the place of a selector: system calls are signals always.
const ALWAYS: usize = 1;

/// The last selector of any thread. Where the agent was put into a process that runs, it counts for all: a thread's block isn't to be had before its first system call.
static SELECTOR: AtomicUsize = AtomicUsize::new(0);

/// From now on this thread says there whether its system calls are signals; 0 for nowhere.
fn set_selector(selector: usize) {
    SELECTOR.store(selector, Ordering::Relaxed);
    tls::get().selector.set(selector);
}

/// Whether system calls of this thread are signals now.
fn is_dispatched() -> bool {
    let last = SELECTOR.load(Ordering::Relaxed);
    match if cfg!(grapnel_attached) { last } else { tls::get().selector.get() } {
        0 => false,
        ALWAYS => true,
        // SAFETY: the kernel reads it before each system call, and ends the process where it can't.
        at => unsafe { ptr::with_exposed_provenance::<u8>(at).read_volatile() != 0 },
    }
}

/// In the child of a fork, whose system calls are none of a handler's any more.
pub(crate) fn dispatch_ends() {
    set_selector(0);
}

/// Whether all system calls of the agent are made here or come back with an error, whatever their arguments are. Then it
/// may do what it hasn't foreseen: patch functions, go along into the next program.
pub(crate) fn leaves_all() -> bool {
    !ANY.load(Ordering::Relaxed) || answers_all(grapnel_seccomp::is_quiet)
}

/// Whether filters answer all system calls of the agent so.
fn answers_all(so: fn(u32) -> bool) -> bool {
    all_in_effect(&|filter| {
        calls::all().all(|call| grapnel_seccomp::always(filter, call.id() as u32, ARCH_NATIVE, so))
    })
}

/// Whether threads can begin without being handed their maker's filters.
fn threads_begin_unseen() -> bool {
    cfg!(grapnel_attached) || original(Function::PthreadCreate) == 0 || hooks::lost_a_thread()
}

type Accepts<'a> = &'a dyn Fn(&[Instruction]) -> bool;

/// Whether all filters accept that hold for this thread.
fn all_in_effect(accepts: Accepts<'_>) -> bool {
    if CLOSED_FOR_ALL.load(Ordering::Relaxed) || is_dispatched() {
        return false;
    }
    if threads_begin_unseen() {
        return nodes().all(|node| node.accepts(accepts));
    }
    let shared = |node: &&Node| node.shared.load(Ordering::Acquire);
    own().is_none_or(|newest| newest.and_older().all(|node| node.accepts(accepts)))
        && nodes().filter(shared).all(|node| node.and_older().all(|node| node.accepts(accepts)))
}

impl Node {
    /// The state. While another thread installs the filter that is waited for, for as long as its system call may take: what
    /// this thread wants would fail meanwhile.
    fn settled(&self) -> u32 {
        let is_others = || !ptr::eq(self, &NOTHING_PASSES) && !ptr::eq(self, tls::get().filters.get());
        for _ in 0..PATIENCE {
            let state = self.state.load(Ordering::Acquire);
            if state != state::CLOSED || IN_VAIN.load(Ordering::Relaxed) || !is_others() {
                return state;
            }
            // Nothing may be asked of the kernel.
            core::hint::spin_loop();
        }
        // A handler may have left it half way: nobody waits again.
        IN_VAIN.store(true, Ordering::Relaxed);
        self.state.load(Ordering::Acquire)
    }

    fn accepts(&self, accepts: Accepts<'_>) -> bool {
        match self.settled() {
            state::FREE => true,
            // SAFETY: whole, and written no more; so long is what was copied.
            state::WHOLE => accepts(unsafe {
                core::slice::from_raw_parts(self.instructions.get().cast(), self.len.load(Ordering::Relaxed))
            }),
            _ => false,
        }
    }

    fn and_older(&self) -> impl Iterator<Item = &Node> {
        core::iter::successors(Some(self), |node| node.older())
    }

    fn older(&self) -> Option<&'static Node> {
        // SAFETY: null, or a node; nodes are never unmapped.
        unsafe { self.older.load(Ordering::Acquire).as_ref() }
    }

    /// The node of a filter that is being installed by this thread, which has `older` ones. Nothing passes.
    fn begin(older: *mut Self) -> &'static Self {
        let to_be_had = |node: &&Node| {
            let (free, closed) = (state::FREE, state::CLOSED);
            node.state.compare_exchange(free, closed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let node = match nodes().find(to_be_had) {
            Some(node) => node,
            None => match sys::map_anonymous(size_of::<Self>().next_multiple_of(sys::PAGE)) {
                // SAFETY: a new mapping of this size; zeroes are a node in which nothing passes.
                Some(memory) => unsafe { &*memory.cast::<Self>() }.listed(),
                None => return &NOTHING_PASSES,
            },
        };
        node.older.store(older, Ordering::Release);
        node
    }

    /// Adds the node to all.
    fn listed(&'static self) -> &'static Self {
        let mut first = ALL.load(Ordering::Acquire);
        loop {
            self.next.store(first, Ordering::Relaxed);
            let own = ptr::from_ref(self).cast_mut();
            match ALL.compare_exchange_weak(first, own, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return self,
                Err(other) => first = other,
            }
        }
    }

    /// Keeps the instructions, which from now on decide what passes.
    ///
    /// # Safety
    /// `instructions` is readable for `len` instructions; the node is the caller's own, and closed.
    unsafe fn keep(&self, instructions: *const Instruction, len: usize) {
        let len = len.min(MOST_INSTRUCTIONS);
        // SAFETY: the caller's promise; nobody reads what the node has while it is closed.
        unsafe { ptr::copy_nonoverlapping(instructions, self.instructions.get().cast(), len) };
        self.len.store(len, Ordering::Relaxed);
        self.state.store(state::WHOLE, Ordering::Release);
    }

    /// The kernel hasn't taken the filter.
    fn give_back(&self) {
        if !ptr::eq(self, &NOTHING_PASSES) {
            self.shared.store(false, Ordering::Relaxed);
            self.borrower.store(0, Ordering::Relaxed);
            self.state.store(state::FREE, Ordering::Release);
        }
    }
}

fn nodes() -> impl Iterator<Item = &'static Node> {
    // SAFETY: null, or a node; nodes are never unmapped.
    let get = |node: &AtomicPtr<Node>| unsafe { node.load(Ordering::Acquire).as_ref() };
    core::iter::successors(get(&ALL), move |node| get(&node.next))
}

/// The newest filter of this thread's own.
///
/// The child of a `vfork` runs on its parent's block, and what it installs is not its parent's. It takes it along when it
/// executes a program ([`leave`]). If it ended otherwise, that is found out here, provided that asking for a thread's id is
/// allowed to it; if not, the parent is held to the child's filters.
fn own() -> Option<&'static Node> {
    let tls = tls::get();
    loop {
        // SAFETY: null, or a node; nodes are never unmapped.
        let newest = unsafe { tls.filters.get().as_ref() }?;
        let borrower = newest.borrower.load(Ordering::Relaxed);
        if borrower == 0 {
            return Some(newest);
        }
        let always = |filter: &[Instruction]| {
            let number = Sysno::gettid.id() as u32;
            grapnel_seccomp::always(filter, number, ARCH_NATIVE, grapnel_seccomp::lets_pass)
        };
        if !newest.and_older().all(|node| node.accepts(&always)) || sys::thread_id_unasked() == borrower {
            return Some(newest);
        }
        tls.filters.set(newest.older.load(Ordering::Acquire));
    }
}

/// This thread is about to become another program, or to return. If it is the child of a `vfork`, its parent is to have back
/// what it had; what the child had is returned, for the case that it stays.
#[cfg(not(grapnel_attached))]
pub(crate) fn leave() -> *const Node {
    let tls = tls::get();
    let before = tls.filters.get();
    let mut newest = before;
    // SAFETY: null, or a node; nodes are never unmapped.
    while let Some(node) = unsafe { newest.as_ref() }
        && node.borrower.load(Ordering::Relaxed) != 0
    {
        newest = node.older.load(Ordering::Acquire);
    }
    tls.filters.set(newest);
    before
}

/// It has not become another program.
#[cfg(not(grapnel_attached))]
pub(crate) fn stay(before: *const Node) {
    tls::get().filters.set(before);
}

/// The id of the thread that is at work, if it is the child of a `vfork`, or one that was made like it; else 0.
fn borrower() -> u32 {
    let (known, thread) = (sys::thread_id_of_libc(), sys::thread_id());
    // A fork has a block of its own, and no life yet.
    if known != 0 && known != thread && life::current() != 0 { thread } else { 0 }
}
