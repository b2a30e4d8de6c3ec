//! Who traces is gone in the middle of it: the thread goes on as if nothing had been, and one that was made ends.
//!
//! # Safety
//! The processes are forks of the test's, of one thread each, which take no lock that another may hold. Their code touches their own registers, and memory that is mapped for the test.

use super::super::native::turns::{counts_right, restarts_right};
use super::*;
use crate::attach::freeze::threads;
use crate::attach::target::mappings;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the thread is about, in turn.
const WAYS: u64 = 3;
/// Long enough to be stopped in the middle.
const TURNS: u64 = 2_000_000;
/// Long enough for most stops to come in one of them.
const SECTIONS: u32 = 100;

/// Memory that forks share.
fn shared() -> &'static AtomicU64 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, which stays.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        &*at.cast()
    }
}

fn in_fork(run: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs what it is given and ends.
    match unsafe { libc::fork() } {
        0 => {
            let status = run();
            // SAFETY: ends the process.
            unsafe { libc::_exit(status) }
        }
        child => child,
    }
}

/// Whether a wait is as long as it should be, and ends by itself.
fn waits_right() -> bool {
    let begun = Instant::now();
    // SAFETY: no descriptors are given.
    let result = unsafe { libc::poll(std::ptr::null_mut(), 0, 20) };
    result == 0 && begun.elapsed() >= Duration::from_millis(20)
}

fn blocks_right() -> bool {
    // SAFETY: the set is written before it is read.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
        libc::sigismember(&set, libc::SIGUSR1) == 0 && libc::sigismember(&set, libc::SIGUSR2) == 1
    }
}

/// Goes on for ever, and counts.
fn program(count: &AtomicU64, borrowed: &AtomicU64) -> i32 {
    // SAFETY: this process's own settings.
    unsafe {
        libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGUSR2);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
    loop {
        let right = match count.fetch_add(1, Ordering::Relaxed) % WAYS {
            0 => counts_right(TURNS),
            // Mostly this, and many short ones: the kernel aborts those that it takes the processor from.
            1 => (0..SECTIONS).all(|_| restarts_right(borrowed)),
            _ => waits_right(),
        };
        if !right || !blocks_right() {
            return 1;
        }
    }
}

/// The moments at which there is nobody any more who traces.
const MOMENTS: u32 = 8;

/// Borrows the thread, and stops in the middle of it. 0 if it got there.
fn borrow(pid: i32, moment: u32, times: &AtomicU64) -> i32 {
    let borrowed = || -> io::Result<bool> {
        let mut tracee = Tracee::seize(pid, WORKING)?;
        tracee.interrupt()?;
        tracee.wait_until(Instant::now() + PATIENCE);
        let maps = mappings(pid.cast_unsigned())?;
        let memory = Memory::open(pid.cast_unsigned())?;
        let instructions = Instructions::find(&memory, &maps, |_| true, |_| true)?;
        let room = is_on_own_stack(&tracee.registers()?, &maps);
        let mut borrowed = Borrowed::new(tracee, instructions, &memory, room)?;
        times.fetch_add(1, Ordering::Relaxed);
        let has_way = borrowed.way_back.is_some();
        let mut set = borrowed.worker.registers;
        set.call_system(borrowed.worker.instruction, libc::SYS_getpid, [0; 6]);
        match moment {
            0 => {}
            1 => borrowed.worker.tracee.set_registers(&set)?,
            2 => borrowed.worker.begin(libc::SYS_getpid, [0; 6])?,
            3 => {
                borrowed.worker.begin(libc::SYS_getpid, [0; 6])?;
                borrowed.worker.tracee.go_to_system_call()?;
                wait_for(&mut borrowed.worker.tracee, Stop::SystemCall, Tracee::go_to_system_call)?;
            }
            _ => {
                let code = borrowed.map_code(&memory, None)?;
                let mut made = borrowed.make_thread(code)?;
                match moment {
                    4 => {}
                    5 => borrowed.give_back(&memory)?,
                    6 => {
                        borrowed.give_back(&memory)?;
                        made.begin(libc::SYS_sched_yield, [0; 6])?;
                    }
                    _ => {
                        borrowed.give_back(&memory)?;
                        made.call(libc::SYS_sched_yield, [0; 6])?;
                    }
                }
            }
        }
        Ok(has_way)
    };
    match borrowed() {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(_) => 2,
    }
}

fn ended(pid: i32, options: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the status is live; the process is our child.
    let found = unsafe { libc::waitpid(pid, &mut status, options) };
    (found == pid).then_some(status)
}

#[test]
fn a_borrowed_thread_goes_on_when_nobody_traces_it_any_more() {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if matches!(scope.trim(), "2" | "3") {
        eprintln!("left out: Yama lets nobody trace here");
        return;
    }
    let (count, borrowed) = (shared(), shared());
    let pid = in_fork(|| program(count, borrowed));
    let goes_on = |moment| {
        let begun = (count.load(Ordering::Relaxed), Instant::now());
        while count.load(Ordering::Relaxed) < begun.0 + 2 * WAYS
            || threads(pid.cast_unsigned()).is_ok_and(|threads| threads.len() != 1)
        {
            assert_eq!(ended(pid, libc::WNOHANG), None, "after moment {moment}");
            assert!(begun.1.elapsed() < 4 * PATIENCE, "it stands still after moment {moment}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    goes_on(MOMENTS);
    for round in 0..20 * MOMENTS {
        let moment = round % MOMENTS;
        // Not always at the same place.
        std::thread::sleep(Duration::from_millis(u64::from(round * 7 % 23)));
        let tracer = in_fork(|| borrow(pid, moment, borrowed));
        assert_eq!(ended(tracer, 0), Some(0), "moment {moment}");
        goes_on(moment);
    }
    // SAFETY: our own child.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    ended(pid, 0);
}
