//! The start in a process that runs: what the command calls on a thread of its making.
//!
//! The command has mapped the image and the session's header, and traces the thread, which shares the process's memory
//! and nothing else: it has its own descriptors, all signals are blocked, and no libc knows of it. Here everything is
//! prepared while the process runs on. Then the command stops all other threads, and the hooks go in. The thread ends;
//! what goes on is what happens in the hooks.
//!
//! Nothing here follows the process into another program: after an exec, nothing of the agent is left.
//!
//! # Safety
//! What the command passes is as it says. It undoes what stands in the [`ledger`] by itself, from outside.

use crate::ledger::{self, LEDGER};
use crate::tls::attached as threads;
use crate::{heap, install, life, meter, modules, session, stack, sys};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use grapnel_trace::attached::{order, state};
use grapnel_trace::shared::{SegmentHeader, failure, segment_state};

/// The thread that is at work here, by its id; 0 for none.
static STARTER: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    #[link_name = "__start_grapnel_stubs"]
    static STUBS_START: u8;
    #[link_name = "__stop_grapnel_stubs"]
    static STUBS_STOP: u8;
}

/// Attaches: `header` is the session's, `thread_at` where threads keep their ids behind the thread pointer, and the two
/// ranges are this thread's stack and the agent's image.
#[unsafe(export_name = "grapnel_agent_attach")]
extern "C" fn attach(
    header: usize,
    header_len: usize,
    stack: usize,
    stack_len: usize,
    image_len: usize,
    thread_at: u32,
) -> ! {
    STARTER.store(sys::thread_id(), Ordering::Relaxed);
    let image = LEDGER.image.load(Ordering::Relaxed) as usize;
    let stubs = [&raw const STUBS_START, &raw const STUBS_STOP];
    for (to, stub) in LEDGER.stubs.iter().zip(stubs) {
        to.store(stub.addr() as u64, Ordering::Relaxed);
    }
    for (start, len) in [(image, image_len), (header, header_len), (stack, stack_len)] {
        ledger::mapped(start, len);
    }
    if !threads::prepare(thread_at) {
        give_up();
    }
    // SAFETY: the thread pointer is that of the block which the command made for this thread; the ranges are as it says.
    unsafe { begin(header) }
}

/// # Safety
/// The session's header is mapped at `header`.
unsafe fn begin(header: usize) -> ! {
    if !session::adopt(ptr::with_exposed_provenance_mut(header)) {
        give_up();
    }
    let Some(segment) = session::take_segment() else { give_up() };
    modules::update(None);
    if !life::prepare() || !stack::prepare() {
        fail(failure::MEMORY, b"no memory, or a kernel older than 4.14");
    }
    let ready = match install::prepare() {
        Ok(ready) => ready,
        Err(message) => fail(failure::HOOK, message.as_bytes()),
    };
    if !ledger::has_room(ready.hooks()) {
        fail(failure::HOOK, b"too many functions are to be hooked");
    }
    if !ready.is_kept() {
        fail(failure::MEMORY, b"no room to note what is mapped");
    }
    segment.agent_bytes.store(heap::mapped(), Ordering::Relaxed);
    meter::prepare(&segment.meter);
    LEDGER.state.store(state::PREPARED, Ordering::Release);
    if !is_told_to_commit() {
        give_up();
    }
    // SAFETY: the command has stopped all other threads, none of which is in the middle of what changes; this one has all
    // signals blocked.
    if let Err(message) = unsafe { ready.commit() } {
        fail(failure::HOOK, message.as_bytes());
    }
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
