//! Threads that stand still, with their registers on their stacks.
//!
//! # Safety
//! A thread waits in the handler of a signal, which interrupts it only where it holds no lock of the agent's.

use crate::sys::{self, syscall};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use syscalls::{Errno, Sysno};

static ASKED: AtomicBool = AtomicBool::new(false);
/// 1 while threads are to stand still.
static STOPPING: AtomicU32 = AtomicU32::new(0);
static TOLD: AtomicU32 = AtomicU32::new(0);
static ARRIVED: AtomicU32 = AtomicU32::new(0);
/// Where the stacks of the threads end, and their alternate stacks begin.
static STACKS: [[AtomicUsize; 2]; 1024] = [const { [const { AtomicUsize::new(0) }; 2] }; 1024];

/// The kernel's structure of a signal that was queued.
#[repr(C)]
struct Queued {
    signal: i32,
    error: i32,
    code: i32,
    from: Sender,
    _rest: [u32; 26],
}

#[repr(C)]
struct Sender {
    process: u32,
    user: u32,
    value: usize,
}

const _: () = assert!(size_of::<Queued>() >= size_of::<libc::siginfo_t>());

const PATIENCE_NS: u64 = 500_000_000;

/// What an order to stand still brings along; a request doesn't.
fn order() -> usize {
    (&raw const STOPPING).addr()
}

/// The signal's handler: a request, or the order to stand still. An order may come late, to a thread that had the signal
/// blocked.
pub(crate) unsafe extern "C" fn handler(_signal: i32, info: *const libc::siginfo_t) {
    // SAFETY: the kernel's own, and of this code it has a value.
    let is_order =
        unsafe { (*info).si_code == libc::SI_QUEUE && (*info).si_value().sival_ptr.addr() == order() };
    if !is_order {
        return ASKED.store(true, Ordering::Relaxed);
    }
    if STOPPING.load(Ordering::Acquire) == 0 {
        return;
    }
    let here = 0usize;
    let stacks = stacks((&raw const here).addr());
    // Told before it is said that somebody has come.
    if let Some(places) = STACKS.get(TOLD.fetch_add(1, Ordering::AcqRel) as usize) {
        places.iter().zip(stacks).for_each(|(place, stack)| place.store(stack, Ordering::Release));
    }
    ARRIVED.fetch_add(1, Ordering::AcqRel);
    while STOPPING.load(Ordering::Acquire) != 0 {
        sys::futex_wait(&STOPPING, 1, 20_000_000);
    }
}

/// Whether a look was asked for since the last call.
#[inline]
pub(super) fn was_asked() -> bool {
    ASKED.load(Ordering::Relaxed) && ASKED.swap(false, Ordering::Relaxed)
}

/// Where the calling thread's stack ends, if it is at `here`, and where its alternate stack begins; 0 for what isn't known, or
/// isn't there. On the alternate stack it isn't known where the other one ends.
pub(super) fn stacks(here: usize) -> [usize; 2] {
    match sys::alternate_stack() {
        Some((start, true)) => [0, start],
        Some((start, false)) => [here, start],
        None => [here, 0],
    }
}

fn known(which: usize) -> impl Iterator<Item = usize> {
    STACKS.iter().map(move |places| places[which].load(Ordering::Acquire)).filter(|&known| known != 0)
}

/// Where the stacks of the threads that stand still end, as far as that is known.
pub(super) fn ends() -> impl Iterator<Item = usize> {
    known(0)
}

/// Where their alternate stacks begin, which the kernel leads to, and perhaps nobody else.
pub(super) fn alternates() -> impl Iterator<Item = usize> {
    known(1)
}

/// Lets all go on.
pub(super) fn go_on() {
    STOPPING.store(0, Ordering::Release);
    sys::futex_wake(&STOPPING);
}

/// Has all other threads stand still, and says how many didn't come.
pub(super) fn stop_others(signal: i32) -> u32 {
    ARRIVED.store(0, Ordering::Relaxed);
    TOLD.store(0, Ordering::Relaxed);
    STACKS.iter().flatten().for_each(|place| place.store(0, Ordering::Relaxed));
    STOPPING.store(1, Ordering::Release);
    let (process, own) = (sys::process_id(), sys::thread_id());
    let from = Sender { process, user: 0, value: order() };
    let info = Queued { signal, error: 0, code: libc::SI_QUEUE, from, _rest: [0; 26] };
    let (mut sent, mut refused) = (0, 0);
    for_each_thread(&mut |thread| {
        if thread != own {
            // SAFETY: a signal to a thread of this process, which handles it.
            match unsafe { syscall!(Sysno::rt_tgsigqueueinfo, process, thread, signal, &raw const info) } {
                Ok(_) => sent += 1,
                // It is gone.
                Err(Errno::ESRCH) => {}
                Err(_) => refused += 1,
            }
        }
    });
    let start = sys::monotonic_ns();
    while ARRIVED.load(Ordering::Acquire) < sent && sys::monotonic_ns() - start < PATIENCE_NS {
        sys::sleep_briefly();
    }
    refused + sent - ARRIVED.load(Ordering::Acquire).min(sent)
}

/// Tells of each thread of this process.
fn for_each_thread(each: &mut dyn FnMut(u32)) {
    let Ok(folder) = sys::open(c"/proc/self/task", libc::O_RDONLY | libc::O_DIRECTORY) else { return };
    let mut entries = [0u8; 2048];
    loop {
        // SAFETY: the buffer is live and as long as said.
        let len = unsafe { syscall!(Sysno::getdents64, folder, entries.as_mut_ptr(), entries.len()) };
        let Some(mut left) = len.ok().filter(|&len| len != 0).and_then(|len| entries.get(..len)) else {
            break;
        };
        // Inode and offset, then the entry's length, a kind, and the name with its zero.
        while let Some(&[low, high, ..]) = left.get(16..) {
            let len = usize::from(u16::from_le_bytes([low, high]));
            let name = left.get(19..len).unwrap_or(&[]);
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
            let thread = digits.fold(0u32, |n, digit| n.wrapping_mul(10).wrapping_add((digit - b'0').into()));
            if thread != 0 {
                each(thread);
            }
            left = left.get(len.max(1)..).unwrap_or(&[]);
        }
    }
    sys::close(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_is_among_those_of_the_process() {
        let mut found = false;
        for_each_thread(&mut |thread| found |= thread == sys::thread_id());
        assert!(found);
    }
}
