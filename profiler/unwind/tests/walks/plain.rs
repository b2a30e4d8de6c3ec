//! Stacks of C code against libgcc's unwinder.

use crate::common::{self, Fixture, State, check};
use grapnel_unwind::{Config, Registers};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

const PLAIN: &[&str] = &["-fomit-frame-pointer"];
const FRAMED: &[&str] = &["-fno-omit-frame-pointer"];
const UNOPTIMISED: &[&str] = &["-O0"];

fn in_all_variants(mut run: impl FnMut(&Fixture)) {
    for (tag, flags) in [("plain", PLAIN), ("framed", FRAMED), ("unoptimised", UNOPTIMISED)] {
        run(&Fixture::new("stacks.c", tag, flags));
    }
}

#[test]
fn deep_recursion() {
    in_all_variants(|f| {
        for depth in [0, 1, 600, 900, 601] {
            let state = check(1, || f.call(c"recurse", depth));
            assert!(state.deepest > depth as usize);
        }
    });
}

#[test]
fn variable_frames() {
    in_all_variants(|f| {
        check(41, || f.call(c"vla", 40));
        check(60 + 20 * 3, || f.call(c"with_alloca", 60));
    });
}

#[test]
fn arguments_and_registers() {
    in_all_variants(|f| {
        check(9, || f.call(c"stack_arguments", 9));
        check(31, || f.call(c"saved_registers", 30));
    });
}

#[test]
fn through_libc() {
    in_all_variants(|f| {
        let on_probe = |state: &mut State, registers: &_| state.check(registers);
        let state = common::with_probe(Config::default(), on_probe, || f.call(c"sort", 50));
        assert!(state.probes > 100);
    });
}

#[test]
fn past_the_end_of_a_function() {
    let f = Fixture::new("stacks.c", "plain", PLAIN);
    check(10, || f.call(c"noreturn", 5));
}

#[test]
fn frames_of_megabytes() {
    in_all_variants(|f| {
        let state = check(3, || f.call(c"huge", 2));
        assert!(state.deepest > 3);
    });
}

#[test]
fn a_library_replaced_by_another() {
    if std::env::var_os("GRAPNEL_EMULATED").is_some() {
        // QEMU maps each library behind the last one.
        return;
    }
    let changed = Rc::new(Cell::new(true));
    let seen = changed.clone();
    let on_probe = move |state: &mut State, registers: &Registers| {
        if seen.take() {
            state.table = common::loaded_modules();
            state.nodes.clear();
            state.walker.reset();
        }
        state.check(registers);
    };
    let libraries = [PLAIN, FRAMED].map(|flags| common::compile("stacks.c", &flags[0][2..], flags, &[]));
    let mut places: [BTreeSet<usize>; 2] = Default::default();
    let mut rounds = 0;
    let state = common::with_probe(Config::default(), on_probe, || {
        // Other tests map memory too, so it may take some rounds until one lies where the other was.
        while rounds < 500 && places[0].is_disjoint(&places[1]) {
            for (library, places) in libraries.iter().zip(&mut places) {
                let f = Fixture::open(library);
                changed.set(true);
                f.call(c"saved_registers", 20);
                // SAFETY: the address alone is used.
                places.insert(unsafe { f.get::<usize>(c"saved_registers") } & !0xfff);
                f.close();
            }
            rounds += 1;
        }
    });
    assert_eq!(state.probes, rounds * 2 * 21);
    assert!(!places[0].is_disjoint(&places[1]), "{places:x?}");
}

#[test]
fn in_a_thread() {
    let f = Fixture::new("stacks.c", "plain", PLAIN);
    let depths = [3, 700, 10];
    std::thread::scope(|s| {
        for depth in depths {
            let f = &f;
            s.spawn(move || check(1, || f.call(c"recurse", depth)).deepest);
        }
    });
}
