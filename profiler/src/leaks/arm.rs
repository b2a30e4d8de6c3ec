//! System calls of 32-bit Arm that a stop cuts short, for a thread that is about to be let go. On machines of 64 bits `attach` sees
//! to them.
//!
//! A thread that is stopped in a system call has been seen to by the kernel already (`do_signal`, arch/arm/kernel/signal.c, and
//! arch/arm64/kernel/signal.c for a 64-bit kernel's 32-bit programs): what is begun anew stands in front of its instruction again. What
//! ends with EINTR has that in the register in which the first argument was.

use super::handled::is_handled;
use super::registers::{GENERAL, transfer};
use super::under_way::UnderWay;
use std::io;

/// `struct pt_regs` of asm/ptrace.h: r0 to r15, the processor's state, and what r0 was when the system call began.
type General = [u32; 18];

const NUMBER: usize = 7;
const SP: usize = 13;
const PC: usize = 15;
const STATE: usize = 16;
/// The bit of the state that says that T32 code runs, in which `svc` has two bytes and not four.
const THUMB: u32 = 1 << 5;

/// System calls that end with EINTR when their thread is stopped and goes on, although no handler ran: the kernel begins
/// them anew for nobody. Some do so only where a socket has a time limit (SO_RCVTIMEO, SO_SNDTIMEO: signal(7)). Their numbers are
/// those of the EABI (arch/arm/tools/syscall.tbl), so that they can be asked about on any machine.
#[rustfmt::skip]
const NOT_BEGUN_ANEW: [i32; 28] = [
    3,   // read
    4,   // write
    145, // readv
    146, // writev
    177, // rt_sigtimedwait
    245, // io_getevents
    252, // epoll_wait
    283, // connect
    285, // accept
    289, // send
    290, // sendto
    291, // recv
    292, // recvfrom
    296, // sendmsg
    297, // recvmsg
    298, // semop
    312, // semtimedop
    346, // epoll_pwait
    365, // recvmmsg
    366, // accept4
    374, // sendmmsg
    399, // io_pgetevents
    416, // io_pgetevents_time64
    417, // recvmmsg_time64
    420, // semtimedop_time64
    421, // rt_sigtimedwait_time64
    426, // io_uring_enter
    441, // epoll_pwait2
];

/// Registers with which a thread's system call begins anew that was cut short. `under_way`: what it waited in when it was told to stop.
fn anew(mut general: General, under_way: UnderWay) -> Option<General> {
    let is_cut_short = general[0].cast_signed() == -libc::EINTR
        && NOT_BEGUN_ANEW.contains(&under_way.number)
        && general[NUMBER].cast_signed() == under_way.number
        && (u64::from(general[PC]), u64::from(general[SP])) == (under_way.pc, under_way.sp);
    if !is_cut_short {
        return None;
    }
    general[0] = under_way.first as u32;
    general[PC] -= if general[STATE] & THUMB == 0 { 4 } else { 2 };
    Some(general)
}

/// Has a system call that a stop has cut short begin anew, unless a signal waits whose handler will run: then it was cut short by
/// right.
pub(crate) fn begin_call_anew(thread: u32, under_way: UnderWay) {
    let Ok(general) = general(thread) else { return };
    if let Some(general) = anew(general, under_way).filter(|_| !is_handled(thread.cast_signed(), 0)) {
        let mut bytes = general.map(u32::to_ne_bytes);
        // One that is gone by now needs nothing.
        let _ = transfer(libc::PTRACE_SETREGSET, thread, GENERAL, bytes.as_flattened_mut());
    }
}

fn general(thread: u32) -> io::Result<General> {
    let mut words = [[0; 4]; size_of::<General>() / 4];
    transfer(libc::PTRACE_GETREGSET, thread, GENERAL, words.as_flattened_mut())?;
    Ok(words.map(u32::from_ne_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_cut_short_begins_anew_at_its_instruction() {
        let under_way = UnderWay::parsed("252 0x9 0x1 0x2 0x3 0x4 0x5 0xbeff0000 0xf7e01002").unwrap();
        let mut general: General = [1; 18];
        general[0] = (-libc::EINTR).cast_unsigned();
        (general[NUMBER], general[SP], general[PC], general[STATE]) = (252, 0xbeff_0000, 0xf7e0_1002, 0x10);
        let found = |general| anew(general, under_way).map(|general| (general[0], general[PC]));
        assert_eq!(found(general), Some((9, 0xf7e0_0ffe)));
        general[STATE] |= THUMB;
        assert_eq!(found(general), Some((9, 0xf7e0_1000)));
        // One that has begun anew already, another call, another place, and one that has ended well.
        for (register, value) in [(PC, 0xf7e0_1000), (NUMBER, 3), (SP, 0xbeff_0008), (0, 0)] {
            let mut other = general;
            other[register] = value;
            assert_eq!(found(other), None, "r{register}");
        }
        // The kernel begins this one anew itself (nanosleep).
        let other = UnderWay { number: 162, ..under_way };
        general[NUMBER] = 162;
        assert_eq!(anew(general, other), None);
        assert_eq!(anew(general, UnderWay::NOTHING), None);
    }
}
