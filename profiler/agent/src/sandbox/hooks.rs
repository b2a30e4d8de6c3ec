//! The functions by which filters are installed: `prctl` and `syscall`; and `pthread_create`, which hands them on.
//!
//! Each is gone through as if it weren't hooked, unless it is called for one of these: `sandbox` in [`native`](crate::native).
//!
//! # Safety
//! The hooks are entered as the functions are, and call them once with the same arguments. What a program says of its filter is
//! read only after the kernel has read it.

use super::{
    ALWAYS, ANY, CLOSED_FOR_ALL, NOTHING_PASSES, Node, borrower, clock, set_selector, threads_begin_unseen,
};
use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{Function, Hooked, original, original_as};
use crate::native::sandbox as native;
use crate::{forked, session, tls};
use core::ffi::{c_int, c_long};
use core::ptr;
use core::sync::atomic::Ordering;
use grapnel_seccomp::Instruction;
use grapnel_trace::shared::failure;
use syscalls::Sysno;

/// Arguments of `seccomp` and of `prctl`, from `linux/seccomp.h` and `linux/prctl.h`.
const SET_MODE_STRICT: usize = 0;
const SET_MODE_FILTER: usize = 1;
const FLAG_TSYNC: usize = 1;
const FLAG_NEW_LISTENER: usize = 8;
pub(crate) const PR_SET_SECCOMP: usize = 22;
pub(crate) const PR_SET_TSC: usize = 26;
pub(crate) const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
const DISPATCH_OFF: usize = 0;
const MODE_STRICT: usize = 1;
const MODE_FILTER: usize = 2;
const TSC_SIGSEGV: usize = 2;

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    len: u16,
    instructions: *const Instruction,
}

/// What a call is about to change.
#[derive(Clone, Copy, Debug)]
enum Change {
    Nothing,
    Strict,
    Filter {
        program: *const Program,
        flags: usize,
    },
    Clock {
        is_lost: bool,
    },
    /// Where it is said whether system calls are signals; 0 for nowhere.
    Dispatch {
        selector: usize,
    },
}

impl Change {
    fn of_prctl([option, mode, program, _, selector]: [usize; 5]) -> Self {
        // The kernel takes the option as an `int`.
        match (option as u32 as usize, mode) {
            (PR_SET_SECCOMP, MODE_STRICT) => Self::Strict,
            (PR_SET_SECCOMP, MODE_FILTER) => {
                Self::Filter { program: ptr::with_exposed_provenance(program), flags: 0 }
            }
            (PR_SET_TSC, mode) => Self::Clock { is_lost: mode as u32 as usize == TSC_SIGSEGV },
            (PR_SET_SYSCALL_USER_DISPATCH, DISPATCH_OFF) => Self::Dispatch { selector: 0 },
            (PR_SET_SYSCALL_USER_DISPATCH, _) => Self::Dispatch { selector: selector.max(ALWAYS) },
            _ => Self::Nothing,
        }
    }

    fn of_syscall(number: usize, arguments: [usize; 5]) -> Self {
        let [operation, flags, program, ..] = arguments;
        match native::call_number(number) {
            number if number == Sysno::prctl as usize => Self::of_prctl(arguments),
            number if number == Sysno::seccomp as usize => match operation as u32 as usize {
                SET_MODE_STRICT => Self::Strict,
                SET_MODE_FILTER => Self::Filter { program: ptr::with_exposed_provenance(program), flags },
                _ => Self::Nothing,
            },
            _ => Self::Nothing,
        }
    }

    /// Whether the kernel has made the change, by what the call returned.
    fn was_made(self, result: c_long) -> bool {
        match self {
            // The descriptor of a listener; without one, the id of a thread that can't be put under the filter.
            Self::Filter { flags, .. } if flags & FLAG_NEW_LISTENER != 0 => result >= 0,
            _ => result == 0,
        }
    }
}

/// A change that is under way.
struct Begun {
    change: Change,
    /// The filter, and what the thread had before it.
    node: Option<(&'static Node, *const Node)>,
    had_no_clock: bool,
}

fn begin(change: Change) -> Begun {
    let tls = tls::get();
    let mut begun = Begun { change, node: None, had_no_clock: tls.no_clock.get() };
    match change {
        Change::Nothing | Change::Clock { is_lost: false } => {}
        Change::Dispatch { .. } => {
            clock::look();
            ANY.store(true, Ordering::SeqCst);
        }
        Change::Clock { is_lost: true } => {
            clock::lose();
        }
        Change::Strict | Change::Filter { .. } => {
            clock::look();
            let before = tls.filters.get();
            // Both before anything passes no more.
            let borrower = borrower();
            let node = match change {
                Change::Filter { .. } => Node::begin(before.cast_mut()),
                _ => {
                    if native::STRICT_TAKES_CLOCK {
                        clock::lose();
                    }
                    &NOTHING_PASSES
                }
            };
            if !ptr::eq(node, &NOTHING_PASSES) {
                node.borrower.store(borrower, Ordering::Relaxed);
                let for_all = matches!(change, Change::Filter { flags, .. } if flags & FLAG_TSYNC != 0);
                // The child of a vfork is the only thread of its process.
                node.shared.store(for_all && borrower == 0, Ordering::Release);
            }
            tls.filters.set(node);
            begun.node = Some((node, before));
            ANY.store(true, Ordering::SeqCst);
        }
    }
    begun
}

fn end(Begun { change, node, had_no_clock }: &Begun, result: c_long) {
    let (change, made) = (*change, change.was_made(result));
    if let Some((node, before)) = *node {
        match change {
            Change::Filter { program, flags } if made => {
                // SAFETY: the kernel has just read both.
                unsafe {
                    let Program { len, instructions } = program.read_unaligned();
                    if !ptr::eq(node, &NOTHING_PASSES) {
                        node.keep(instructions, len.into());
                    } else if threads_begin_unseen() || flags & FLAG_TSYNC != 0 {
                        CLOSED_FOR_ALL.store(true, Ordering::Relaxed);
                    }
                }
            }
            Change::Strict if made => {
                if threads_begin_unseen() {
                    CLOSED_FOR_ALL.store(true, Ordering::Relaxed);
                }
            }
            _ => {
                tls::get().filters.set(before);
                node.give_back();
            }
        }
        if made && !super::answers_all(grapnel_seccomp::lets_pass) {
            let note = "the program lets itself make certain system calls only (seccomp), and not all that recording it takes: \
                        what needs others is left out";
            session::report_failure(failure::NOTE, note.as_bytes());
        }
    }
    match change {
        Change::Dispatch { selector } if made => set_selector(selector),
        Change::Clock { is_lost } if made => clock::set(is_lost),
        Change::Clock { .. } | Change::Strict if !made => clock::set(*had_no_clock),
        _ => {}
    }
}

/// Makes the call that `change` is about.
fn changing(
    saved: &SavedRegisters,
    function: Function,
    change: Change,
    call: impl FnOnce() -> c_long,
) -> c_long {
    let begun = rescued(saved, ptr::null_mut(), original(function), || {
        // What is said of the change is said of this process, and what a child needs for its life may be more than the kernel lets it do
        // afterwards.
        if !matches!(change, Change::Nothing) {
            forked::settle(saved);
        }
        begin(change)
    });
    let result = call();
    rescued(saved, ptr::without_provenance_mut(result as usize), 0, || end(&begun, result));
    result
}

stub!(grapnel_agent_prctl_watched, prctl, 5);
unsafe extern "C" fn prctl(
    option: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    saved: &SavedRegisters,
) -> c_long {
    type Call = unsafe extern "C" fn(usize, ...) -> c_int;
    changing(saved, Function::Prctl, Change::of_prctl([option, a, b, c, d]), || {
        // SAFETY: the caller's call, passed on; the kernel looks at no more arguments.
        c_long::from(unsafe { original_as::<Call>(Function::Prctl)(option, a, b, c, d) })
    })
}

stub!(grapnel_agent_syscall_watched, syscall, 6);
unsafe extern "C" fn syscall(
    number: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    saved: &SavedRegisters,
) -> c_long {
    type Call = unsafe extern "C" fn(usize, ...) -> c_long;
    changing(saved, Function::Syscall, Change::of_syscall(number, [a, b, c, d, e]), || {
        // SAFETY: the caller's call, passed on; neither `prctl` nor `seccomp` has a sixth argument.
        unsafe { original_as::<Call>(Function::Syscall)(number, a, b, c, d, e, 0usize) }
    })
}

/// The functions to hook, as [`crate::hooks::allocation_functions`] lists its.
pub(crate) fn functions() -> [Hooked; 2] {
    [
        (b"prctl", native::grapnel_agent_prctl, Function::Prctl),
        (b"syscall", native::grapnel_agent_syscall, Function::Syscall),
    ]
}

#[cfg(not(grapnel_attached))]
pub(super) use threads::lost_a_thread;
#[cfg(not(grapnel_attached))]
pub(crate) use threads::thread_functions;

#[cfg(grapnel_attached)]
pub(super) fn lost_a_thread() -> bool {
    false
}

/// Threads that are started by one that has filters, or no clock.
#[cfg(not(grapnel_attached))]
pub(crate) mod threads {
    use super::super::Node;
    use crate::entry::{SavedRegisters, rescued, stub};
    use crate::hooks::{Function, Hooked, original, original_as};
    use crate::native::sandbox as native;
    use crate::tls;
    use alloc::alloc::{alloc, dealloc};
    use core::alloc::Layout;
    use core::ffi::c_int;
    use core::ptr;
    use core::sync::atomic::{AtomicBool, Ordering};

    /// What a new thread is handed.
    #[repr(C)]
    pub(crate) struct Handed {
        start: usize,
        argument: usize,
        filters: *const Node,
        no_clock: bool,
    }

    const LAYOUT: Layout = Layout::new::<Handed>();

    static LOST: AtomicBool = AtomicBool::new(false);

    /// Whether a thread was started that could not be handed its maker's filters.
    pub(in super::super) fn lost_a_thread() -> bool {
        LOST.load(Ordering::Relaxed)
    }

    stub!(grapnel_agent_pthread_create_watched, create, 4);
    unsafe extern "C" fn create(
        thread: usize,
        attributes: usize,
        start: usize,
        argument: usize,
        saved: &SavedRegisters,
    ) -> c_int {
        type Call = unsafe extern "C" fn(usize, usize, usize, usize) -> c_int;
        let handed = rescued(saved, ptr::null_mut(), original(Function::PthreadCreate), || {
            let tls = tls::get();
            let (filters, no_clock) = (tls.filters.get(), tls.no_clock.get());
            if filters.is_null() && !no_clock {
                return ptr::null_mut();
            }
            // SAFETY: the layout has a size.
            let handed: *mut Handed = unsafe { alloc(LAYOUT) }.cast();
            if handed.is_null() {
                LOST.store(true, Ordering::Relaxed);
            } else {
                // SAFETY: new memory for it.
                unsafe { handed.write(Handed { start, argument, filters, no_clock }) };
            }
            handed
        });
        let (mut begin, mut with) = (start, argument);
        if !handed.is_null() {
            (begin, with) =
                ((native::grapnel_agent_thread_begins as *const ()).addr(), handed.expose_provenance());
        }
        // SAFETY: the caller's call, passed on; where the new thread begins, it takes what it is handed and goes on to where
        // it was to begin.
        let error = unsafe { original_as::<Call>(Function::PthreadCreate)(thread, attributes, begin, with) };
        if error != 0 && !handed.is_null() {
            let result = ptr::without_provenance_mut(error as usize);
            // SAFETY: there is no thread that it could have been handed to.
            rescued(saved, result, 0, || unsafe { dealloc(handed.cast(), LAYOUT) });
        }
        error
    }

    /// A new thread begins: where it is to begin, with which argument.
    pub(crate) unsafe extern "C" fn begins(handed: *mut Handed, to: *mut [usize; 2]) {
        // SAFETY: what `create` wrote for this thread alone, and two words of the stub's.
        unsafe {
            let Handed { start, argument, filters, no_clock } = handed.read();
            let tls = tls::get();
            tls.filters.set(filters);
            tls.no_clock.set(no_clock);
            to.write([start, argument]);
            dealloc(handed.cast(), LAYOUT);
        }
    }

    /// The function to hook.
    pub(crate) fn thread_functions() -> [Hooked; 1] {
        [(b"pthread_create", native::grapnel_agent_pthread_create, Function::PthreadCreate)]
    }
}
