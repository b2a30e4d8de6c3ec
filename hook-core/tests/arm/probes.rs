//! Probes at every place of functions of both instruction sets: at instructions, inside them, and in tables and constants.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use grapnel_hook::{Error, HookSet, Options, Probe, listen::Hit};

use crate::{
    compiled::{Library, NAMES, bytes, function, results},
    listeners::{attach, remove},
};

static HITS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn count(hit: &mut Hit, data: *mut c_void) {
    HITS.fetch_add(1, Relaxed);
    assert_eq!(hit.address() as usize, data as usize & !1);
    assert_eq!(hit.registers().r[15], hit.address() as u32);
    assert_eq!(hit.registers().r[13] % 4, 0);
    // SAFETY: says what it changes, the flags among it.
    unsafe {
        std::arch::asm!(
            "mov r0, #1", "mov r1, #2", "mov r2, #3", "mov r3, #4", "mov r12, #5", "mov lr, #6", "cmp r0, r1",
            out("r0") _, out("r1") _, out("r2") _, out("r3") _, out("r12") _, out("lr") _,
        );
        #[cfg(target_abi = "eabihf")]
        std::arch::asm!("vmov.f64 d0, #1.0", "vmov.f64 d7, #1.0", out("d0") _, out("d7") _);
    }
}

pub(crate) fn run() {
    for set in ["arm", "thumb"] {
        let library = Library::load(set);
        let (mut probed, mut refused) = (0, 0);
        for name in NAMES {
            let (ok, not) = every_place(&library, name);
            (probed, refused) = (probed + ok, refused + not);
        }
        println!("probes: {set}, {probed} of {} places", probed + refused);
        assert!(probed > refused);
        registers_are_changed(&library);
    }
}

fn every_place(library: &Library, name: &str) -> (usize, usize) {
    let at = library.function(name);
    let size = library.size(name);
    let unit = if library.set == "thumb" { 2 } else { 4 };
    let start = at as usize & !1;
    // SAFETY: the function's code.
    let code = unsafe { std::slice::from_raw_parts(start as *const u8, size) };
    let plain = results(function(at));
    let before = code.to_vec();
    let (mut probed, mut refused) = (0, 0);
    let mut set = HookSet::new();
    for place in (start..start + size).step_by(unit) {
        let pointer = (place | at as usize & 1) as *const ();
        let probe = Probe::new(count, pointer.cast_mut().cast());
        let function_range = Some(at as usize as u64..(start + size) as u64);
        match attach(&mut set, |batch| batch.probe_with(pointer, function_range, probe, Options::default())) {
            Ok(attached) => {
                HITS.store(0, Relaxed);
                let now = results(function(at));
                if name != "globals" {
                    assert_eq!(now, plain, "{} {name} probed at {:#x}", library.set, place - start);
                }
                remove(&mut set, attached).unwrap();
                probed += 1;
            }
            Err(Error::Relocation { .. } | Error::InboundBranch { .. } | Error::Clobbers { .. }) => {
                refused += 1
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
    assert_eq!(code, before);
    (probed, refused)
}

fn registers_are_changed(library: &Library) {
    unsafe extern "C" fn change(hit: &mut Hit, _: *mut c_void) {
        let registers = hit.registers_mut();
        registers.r[0] += 100;
        // No instruction of the function reads it.
        registers.r[12] = 7;
        registers.cpsr = 0xf000_0000;
    }
    let at = library.function("leaf");
    let before = bytes(at);
    let mut set = HookSet::new();
    let range = Some(at as usize as u64..(at as usize & !1) as u64 + library.size("leaf") as u64);
    let probe = Probe::new(change, std::ptr::null_mut());
    // SAFETY: the function uses general registers only.
    for probe in [probe, unsafe { probe.general_only() }] {
        let range = range.clone();
        let attached =
            attach(&mut set, |batch| batch.probe_with(at, range, probe, Options::default())).unwrap();
        assert_eq!(function(at)(5, 0, 0, 0, 0, 0), 106);
        remove(&mut set, attached).unwrap();
    }
    assert_eq!(bytes(at), before);
}
