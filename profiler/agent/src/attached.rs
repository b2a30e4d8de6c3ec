//! The start in a process that runs: what the command calls on a thread of its making.
//!
//! The command has mapped the image and the session's header, and traces the thread, which shares the process's memory
//! and nothing else: it has its own descriptors, all signals are blocked, and no libc knows of it. Here everything is
//! prepared while the process runs on. Then the command stops all other threads, and puts the hooks in. The thread ends;
//! what goes on is what happens in the hooks.
//!
//! Nothing here follows the process into another program: after an exec, nothing of the agent is left.
//!
//! # Safety
//! What the command passes is as it says. It undoes what stands in the [`ledger`] by itself, from outside.

use crate::ledger::{self, LEDGER};
use crate::sandbox::{self, clock};
use crate::tls::attached as threads;
use crate::{heap, install, life, meter, modules, own_stack, session, stack, sys};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use grapnel_trace::attached::{order, state};
use grapnel_trace::shared::{SegmentHeader, failure, segment_state};

/// The thread that is at work here, by its id; 0 for none.
static STARTER: AtomicU32 = AtomicU32::new(0);

/// Attaches: `header` is the session's, `thread_at` how far from the thread pointer threads keep their ids. The command has
/// noted what it mapped.
#[unsafe(export_name = "grapnel_agent_attach")]
extern "C" fn attach(header: usize, thread_at: u32) -> ! {
    STARTER.store(sys::thread_id(), Ordering::Relaxed);
    for (to, mark) in LEDGER.stubs.iter().zip(crate::native::entry::marks()) {
        to.store(mark, Ordering::Relaxed);
    }
    if !threads::prepare(thread_at) {
        give_up();
    }
    // SAFETY: the thread pointer is that of the block which the command made for this thread; the header is as it says.
    unsafe { begin(header) }
}

/// # Safety
/// The session's header is mapped at `header`.
unsafe fn begin(header: usize) -> ! {
    clock::prepare();
    grapnel_unwind::ask_before_probing(sandbox::refuses_number);
    if !session::adopt(ptr::with_exposed_provenance_mut(header)) {
        give_up();
    }
    let Some(segment) = session::take_segment() else { give_up() };
    ledger::with_maps(|| {
        modules::update(None);
        own_stack::prepare();
    });
    if !life::prepare() || !stack::prepare() {
        fail(failure::MEMORY, b"no memory, or a kernel older than 4.14");
    }
    let ready = match ledger::with_maps(install::prepare) {
        Ok(ready) => ready,
        Err(message) => fail(failure::HOOK, message.as_bytes()),
    };
    if let Err(message) = ready.note() {
        drop(ready);
        fail(failure::HOOK, message.as_bytes());
    }
    segment.agent_bytes.store(heap::mapped(), Ordering::Relaxed);
    meter::prepare(&segment.meter);
    LEDGER.state.store(state::PREPARED, Ordering::Release);
    if !is_told_to_commit() {
        // What its code was written through is mapped for as long as it is there, and noted nowhere.
        drop(ready);
        give_up();
    }
    ready.go_on();
    go_on(segment)
}

/// Waits for the command's word. False if it has gone, or wants nothing more.
fn is_told_to_commit() -> bool {
    loop {
        match LEDGER.order.load(Ordering::Acquire) {
            order::COMMIT => return true,
            order::WAIT if !session::header().is_none_or(session::is_over) => sys::sleep_briefly(),
            _ => return false,
        }
    }
}

/// All is in: from here on the process is recorded.
fn go_on(segment: &SegmentHeader) -> ! {
    let took = sys::monotonic_ns().saturating_sub(segment.started_ns.load(Ordering::Relaxed));
    segment.meter.startup_ns.store(took, Ordering::Relaxed);
    session::announce(segment, segment_state::READY);
    life::begin();
    LEDGER.state.store(state::COMMITTED, Ordering::Release);
    sys::exit_thread()
}

fn fail(code: u32, message: &[u8]) -> ! {
    session::report_failure(code, message);
    give_up()
}

fn give_up() -> ! {
    life::end();
    LEDGER.state.store(state::FAILED, Ordering::Release);
    sys::exit_thread()
}

/// After a fault of our own: ends this thread, if it is the one that starts the agent, and nothing else.
pub(crate) fn give_up_if_starting() {
    if STARTER.load(Ordering::Relaxed) == sys::thread_id()
        && LEDGER.state.load(Ordering::Relaxed) < state::COMMITTED
    {
        give_up();
    }
}
