//! Filters made at random, asked here and by the kernel: a child puts itself under the filter, makes the calls, and says in
//! shared memory what came of each.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use grapnel_seccomp::{ARCH_NATIVE, Call, Instruction, always, answer};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};

/// Calls with smaller numbers are let through, so that the child can live; none of these exists.
const FIRST: u32 = 1000;
const CALLS: usize = 24;

const RET_K: u16 = 0x06;

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

/// An answer that can be told from the others.
fn some_answer(random: &mut fastrand::Rng) -> u32 {
    let data = random.u32(1..4000);
    match random.u8(0..12) {
        0..3 => libc::SECCOMP_RET_ALLOW,
        3 => libc::SECCOMP_RET_LOG,
        4..9 => libc::SECCOMP_RET_ERRNO | data,
        9 => libc::SECCOMP_RET_TRAP | data,
        10 => libc::SECCOMP_RET_TRACE | data,
        _ => libc::SECCOMP_RET_KILL_PROCESS,
    }
}

fn some_number(random: &mut fastrand::Rng) -> u32 {
    match random.u8(0..6) {
        0 => random.u32(..),
        1 => random.u32(0..40),
        2 => FIRST + random.u32(0..8),
        3 => u32::MAX - random.u32(0..4),
        4 => 1 << random.u32(0..32),
        _ => ARCH_NATIVE,
    }
}

/// A filter that may be one that the kernel takes.
fn some_filter(random: &mut fastrand::Rng) -> Vec<Instruction> {
    // if number < FIRST { return ALLOW }
    let mut filter = vec![
        instruction(0x20, 0, 0, 0),
        instruction(0x35, 1, 0, FIRST),
        instruction(RET_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let len = random.usize(3..60);
    for at in 0..len {
        let left = len - at;
        let near = |random: &mut fastrand::Rng| random.u8(0..left.min(6) as u8);
        let word = 4 * random.u32(0..16);
        filter.push(match random.u8(0..20) {
            // The address of the call isn't known here.
            0..4 => instruction(0x20, 0, 0, if matches!(word, 8 | 12) { 16 } else { word }),
            4 => instruction(*random.choice(&[0x00, 0x01]).unwrap(), 0, 0, some_number(random)),
            5 => instruction(*random.choice(&[0x80, 0x81]).unwrap(), 0, 0, 0),
            6 => instruction(*random.choice(&[0x02, 0x03]).unwrap(), 0, 0, random.u32(0..2)),
            7 => instruction(*random.choice(&[0x60, 0x61]).unwrap(), 0, 0, random.u32(0..2)),
            8 => instruction(*random.choice(&[0x07, 0x87]).unwrap(), 0, 0, 0),
            9..13 => {
                let operation =
                    *random.choice(&[0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0xa0]).unwrap();
                let by_x = if random.bool() && operation != 0x80 { 0x08 } else { 0 };
                let shifts = matches!(operation, 0x60 | 0x70) && by_x == 0;
                let k = if shifts { random.u32(0..32) } else { some_number(random) };
                instruction(0x04 | operation | by_x, 0, 0, k)
            }
            13..18 => {
                let comparison = *random.choice(&[0x10, 0x20, 0x30, 0x40]).unwrap();
                let by_x = if random.u8(0..4) == 0 { 0x08 } else { 0 };
                instruction(0x05 | comparison | by_x, near(random), near(random), some_number(random))
            }
            18 => instruction(0x05, 0, 0, near(random).into()),
            _ => instruction(RET_K, 0, 0, some_answer(random)),
        });
    }
    filter.push(instruction(RET_K, 0, 0, some_answer(random)));
    if random.u8(0..8) == 0 {
        filter.push(instruction(0x16, 0, 0, 0));
    }
    filter.push(instruction(RET_K, 0, 0, some_answer(random)));
    filter
}

fn some_call(random: &mut fastrand::Rng) -> Call {
    let arguments = std::array::from_fn(|_| match random.u8(0..3) {
        0 => random.u64(..),
        1 => random.u64(0..4),
        _ => u64::from(some_number(random)) << (32 * random.u32(0..2)),
    });
    Call { number: FIRST + random.u32(0..8), arch: ARCH_NATIVE, instruction: None, arguments }
}

/// What the child and its parent share.
#[repr(C)]
struct Told {
    /// 0 before the filter is in, then how many calls came back.
    state: AtomicUsize,
    results: [AtomicI64; CALLS],
    /// What SIGSYS said during the call: the filter's number, plus one.
    trapped: [AtomicU32; CALLS],
}

static TOLD: std::sync::atomic::AtomicPtr<Told> = std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());

fn told() -> &'static Told {
    // SAFETY: the mapping that the test made first, which stays.
    unsafe { &*TOLD.load(Ordering::Relaxed) }
}

extern "C" fn trapped(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let at = told().state.load(Ordering::Relaxed) - 1;
    // SAFETY: the kernel's description of this signal.
    let errno = unsafe { (*info).si_errno };
    told().trapped[at].store(errno as u32 + 1, Ordering::Relaxed);
}

/// Makes the calls in a child under the filter. How the child ended; `None` if the kernel doesn't take the filter.
fn asked(filter: &[Instruction], calls: &[Call; CALLS]) -> Option<i32> {
    told().state.store(0, Ordering::Relaxed);
    told().trapped.iter().for_each(|trapped| trapped.store(0, Ordering::Relaxed));
    // SAFETY: the child makes system calls, and nothing else.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let program =
                libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut().cast() };
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = trapped as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut());
            // Whoever is killed leaves no core.
            libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0 {
                libc::_exit(77);
            }
            for (at, call) in calls.iter().enumerate() {
                told().state.store(at + 1, Ordering::Relaxed);
                let [a, b, c, d, e, f] = call.arguments;
                *libc::__errno_location() = 0;
                let result = libc::syscall(call.number.into(), a, b, c, d, e, f);
                let result = if result == -1 { -i64::from(*libc::__errno_location()) } else { result };
                told().results[at].store(result, Ordering::Relaxed);
            }
            told().state.store(CALLS + 1, Ordering::Relaxed);
            libc::_exit(0);
        }
        assert!(child > 0, "fork");
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 77 {
            return None;
        }
        Some(status)
    }
}

#[test]
fn the_kernel_answers_the_same() {
    // SAFETY: a new mapping, which stays.
    let shared = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), size_of::<Told>(), rights, flags, -1, 0)
    };
    assert_ne!(shared, libc::MAP_FAILED);
    TOLD.store(shared.cast(), Ordering::Relaxed);
    let mut random = fastrand::Rng::with_seed(0x5ecc);
    let (mut filters, mut seen) = (0, std::collections::BTreeMap::<u32, usize>::new());
    while filters < 400 {
        let filter = some_filter(&mut random);
        let calls = std::array::from_fn(|_| some_call(&mut random));
        let Some(status) = asked(&filter, &calls) else { continue };
        filters += 1;
        for (at, call) in calls.iter().enumerate() {
            let expected = answer(&filter, call).expect("the kernel took the filter");
            // `always` may be too careful, and never the other way.
            let known = always(&filter, call.number, call.arch, |answer| answer != expected);
            assert!(!known, "{expected:#x} to {call:x?} by {filter:x?}");
            let action = expected & libc::SECCOMP_RET_ACTION_FULL;
            *seen.entry(action).or_default() += 1;
            let what = format!("call {at}, {expected:#x} to {call:x?} by {filter:x?}");
            let is_last = told().state.load(Ordering::Relaxed) == at + 1;
            if is_last {
                assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS, "{what}");
                let kills = [libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_KILL_THREAD];
                // What no kernel knows kills the process too.
                let is_known = [
                    libc::SECCOMP_RET_TRAP,
                    libc::SECCOMP_RET_ERRNO,
                    libc::SECCOMP_RET_USER_NOTIF,
                    libc::SECCOMP_RET_TRACE,
                    libc::SECCOMP_RET_LOG,
                    libc::SECCOMP_RET_ALLOW,
                ]
                .contains(&action);
                assert!(kills.contains(&action) || !is_known, "{what}");
                break;
            }
            let data = i64::from(expected & libc::SECCOMP_RET_DATA);
            let missing = i64::from(-libc::ENOSYS);
            let result = told().results[at].load(Ordering::Relaxed);
            match action {
                libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG | libc::SECCOMP_RET_TRACE => {
                    assert_eq!(result, missing, "{what}");
                }
                libc::SECCOMP_RET_ERRNO => assert_eq!(result, -data.min(4095), "{what}"),
                libc::SECCOMP_RET_TRAP => {
                    let trapped = told().trapped[at].load(Ordering::Relaxed);
                    assert_eq!(i64::from(trapped), data + 1, "{what}");
                }
                libc::SECCOMP_RET_USER_NOTIF => assert_eq!(result, missing, "{what}"),
                _ => panic!("{what}: it came back with {result}"),
            }
        }
    }
    for action in [
        libc::SECCOMP_RET_ALLOW,
        libc::SECCOMP_RET_ERRNO,
        libc::SECCOMP_RET_TRAP,
        libc::SECCOMP_RET_KILL_PROCESS,
        libc::SECCOMP_RET_KILL_THREAD,
    ] {
        assert!(seen.get(&action).is_some_and(|&count| count > 10), "{action:#x} among {seen:x?}");
    }
}

/// A filter as sandboxes have it: a list of what is allowed, one call of which may have some arguments only.
fn list(allowed: &[u32], otherwise: u32) -> Vec<Instruction> {
    let mut filter = vec![
        instruction(0x20, 0, 0, 4),
        instruction(0x15, 1, 0, ARCH_NATIVE),
        instruction(RET_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        instruction(0x20, 0, 0, 0),
        // Call 9 by its third argument.
        instruction(0x15, 0, 4, 9),
        instruction(0x20, 0, 0, 32),
        instruction(0x45, 0, 1, 4),
        instruction(RET_K, 0, 0, libc::SECCOMP_RET_ERRNO | 13),
        instruction(RET_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    for &number in allowed {
        filter.push(instruction(0x15, 0, 1, number));
        filter.push(instruction(RET_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    }
    filter.push(instruction(RET_K, 0, 0, otherwise));
    filter
}

#[test]
fn what_is_always_answered_is_found_out() {
    use grapnel_seccomp::{is_quiet, lets_pass};
    let allowed: Vec<u32> = (100..300).collect();
    let filter = list(&allowed, libc::SECCOMP_RET_KILL_THREAD);
    for number in 0..400 {
        let is_listed = allowed.contains(&number);
        assert_eq!(always(&filter, number, ARCH_NATIVE, lets_pass), is_listed, "{number}");
        assert_eq!(always(&filter, number, ARCH_NATIVE, is_quiet), is_listed || number == 9, "{number}");
        assert!(!always(&filter, number, 1, is_quiet), "of another machine");
    }
    let call = |rights: u64| Call {
        number: 9,
        arch: ARCH_NATIVE,
        instruction: None,
        arguments: [0, 0, rights, 0, 0, 0],
    };
    assert_eq!(answer(&filter, &call(3)), Some(libc::SECCOMP_RET_ALLOW));
    assert_eq!(answer(&filter, &call(7)), Some(libc::SECCOMP_RET_ERRNO | 13));
    // What looks at the address of the call is answered where that is known.
    let by_address = [
        instruction(0x20, 0, 0, 12),
        instruction(0x15, 0, 1, 0x7f00),
        instruction(RET_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        instruction(RET_K, 0, 0, libc::SECCOMP_RET_KILL_THREAD),
    ];
    assert_eq!(answer(&by_address, &call(0)), None);
    let known = Call { instruction: Some(0x7f00_1234_5678), ..call(0) };
    assert_eq!(answer(&by_address, &known), Some(libc::SECCOMP_RET_ALLOW));
    assert!(!always(&by_address, 9, ARCH_NATIVE, lets_pass));
}

#[test]
fn rubbish_is_answered_with_nothing() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let filter: Vec<Instruction> = (0..random.usize(0..40))
            .map(|_| {
                instruction(random.u16(0..0x100), random.u8(0..8), random.u8(0..8), some_number(&mut random))
            })
            .collect();
        let call = some_call(&mut random);
        if let Some(answered) = answer(&filter, &call) {
            assert!(!always(&filter, call.number, call.arch, |answer| answer != answered), "{filter:x?}");
        }
    }
    assert_eq!(answer(&[], &some_call(&mut random)), None);
    assert!(!always(&[], 1, ARCH_NATIVE, |_| true));
}
