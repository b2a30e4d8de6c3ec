//! The table of ways on.

use super::{TAKEN, table::*};
use std::sync::Mutex;
use std::sync::atomic::Ordering::*;

fn way_on(pc: u64) -> Option<u64> {
    super::table::way_on(pc, || true)
}

/// As the patching right does.
static RIGHT: Mutex<()> = Mutex::new(());

#[test]
fn what_was_unmapped_is_forgotten() {
    let _right = RIGHT.lock();
    let base = 0x4_0010;
    enter(base, ways(&[1, 2]));
    enter(base + 0x1000, ways(&[3]));
    forget(&(0x4_0000..0x4_1000));
    assert_eq!([0, 1, 0x1000].map(|offset| way_on(base + offset)), [None, None, Some(3)]);
    enter(base, ways(&[4]));
    assert_eq!(way_on(base), Some(4));
}

#[test]
fn ways_that_were_entered_since_stay() {
    let _right = RIGHT.lock();
    let site = 0x4_2010;
    enter(site, ways(&[1, 2]));
    enter(site, ways(&[3, 2]));
    forget_ways(site, &ways(&[1, 2]));
    assert_eq!([0, 1].map(|offset| way_on(site + offset)), [Some(3), None]);
}

#[test]
fn a_trap_where_a_patch_was_is_another_s() {
    let _right = RIGHT.lock();
    let site = 0x8_0010;
    enter(site, ways(&[1, 2]));
    assert_eq!(way_on(site + 1), Some(2));
    leave(site, true);
    assert_eq!([0, 1].map(|offset| way_on(site + offset)), [None; 2]);
    assert_eq!([0, 1].map(|offset| super::table::way_on(site + offset, || false)), [Some(1), Some(2)]);
    enter(site, ways(&[3]));
    assert_eq!(way_on(site), Some(3));
}

#[test]
fn a_patch_that_comes_back_in_the_meantime_owns_the_trap() {
    let _right = RIGHT.lock();
    let site = 0x8_1010;
    enter(site, ways(&[1]));
    leave(site, true);
    let comes_back = || {
        enter(site, ways(&[1]));
        true
    };
    assert_eq!(super::table::way_on(site, comes_back), Some(1));
    leave(site, true);
    // Even if it is out again by then.
    let comes_and_goes = || {
        enter(site, ways(&[1]));
        leave(site, true);
        true
    };
    assert_eq!(super::table::way_on(site, comes_and_goes), Some(1));
    assert_eq!(way_on(site), None);
}

#[test]
fn places_may_lie_close_together() {
    let _right = RIGHT.lock();
    let base = 0x8010;
    enter(base, ways(&[1, 2, 3]));
    enter(base + 2, ways(&[4, 0, 5]));
    enter(base + 3, ways(&[6]));
    assert_eq!(
        [0, 1, 2, 3, 4, 5].map(|offset| way_on(base + offset)),
        [1, 2, 4, 6, 5, 0].map(|way| Some(way).filter(|&way| way != 0))
    );
}

#[test]
fn places_are_found_and_reused() {
    let _right = RIGHT.lock();
    // Addresses that no code has, so that tests beside this one don't meet them.
    let base = 0x10;
    for i in 0..1000 {
        enter(base + 16 * i, ways(&[i + 1, 0, i + 2]));
    }
    assert_eq!(way_on(base), Some(1));
    assert_eq!(way_on(base + 16 * 999), Some(1000));
    assert_eq!(way_on(base + 16 * 999 + 2), Some(1001));
    assert_eq!(way_on(base + 16 * 999 + 1), None);
    assert_eq!(way_on(base + 16 * 999 + 5), None);
    let taken = TAKEN.load(Relaxed);
    enter(base + 16 * 999, [7; POSITIONS]);
    assert_eq!(way_on(base + 16 * 999), Some(7));
    assert_eq!(TAKEN.load(Relaxed), taken);
    forget_ways_into(base + 16 * 999, &(8..20));
    assert_eq!(way_on(base + 16 * 999), Some(7));
    forget_ways_into(base + 16 * 999, &(7..8));
    assert_eq!(way_on(base + 16 * 999), None);
    enter(base + 16 * 999, [8; POSITIONS]);
    assert_eq!((way_on(base + 16 * 999), TAKEN.load(Relaxed)), (Some(8), taken));
}

/// As 32-bit kernels do that know no hardware breakpoints.
#[test]
#[cfg(target_arch = "arm")]
fn traps_may_be_told_as_bus_errors() {
    let _right = RIGHT.lock();
    let site = 0x8_2010;
    enter(site, ways(&[0x1234, 0, 0x5678]));
    super::handler::install(super::handler::is_usual).unwrap();
    let ours = super::handler::on_trap as *const () as usize;
    for signal in [libc::SIGTRAP, libc::SIGBUS] {
        assert_eq!(crate::sys::signal_action(signal).unwrap().handler, ours);
    }
    // SAFETY: both are plain numbers.
    let (mut info, mut context): (libc::siginfo_t, libc::ucontext_t) = unsafe { std::mem::zeroed() };
    for (offset, way) in [(0, 0x1234), (2, 0x5678)] {
        context.uc_mcontext.arm_pc = (site + offset) as _;
        super::handler::on_trap(libc::SIGBUS, &raw mut info, (&raw mut context).cast());
        assert_eq!(context.uc_mcontext.arm_pc, way);
    }
}
