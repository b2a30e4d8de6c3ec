//! C code that has no unwind tables, as compilers make it for 32-bit Arm unless told otherwise: its stacks against those of
//! the same code with tables, which are compared with libgcc's.

use crate::common::{Fixture, State, with_probe};
use grapnel_unwind::{Config, End, FrameFlags, Registers};
use std::cell::RefCell;
use std::rc::Rc;

const WITHOUT: &[&str] = &["-fno-unwind-tables", "-fno-asynchronous-unwind-tables"];

/// A frame of a fixture, by how far it lies from one of its functions, or one of others.
type Place = Option<u64>;

/// The stacks at each probe, and how often a frame of the fixture was a guess.
fn stacks(
    fixture: &Fixture,
    function: &std::ffi::CStr,
    argument: i64,
    tabled: bool,
) -> (Vec<Vec<Place>>, usize) {
    // SAFETY: the address alone is used.
    let anchor = unsafe { fixture.get::<usize>(c"recurse") } as u64 & !1;
    let all = Rc::new(RefCell::new((Vec::new(), 0)));
    let found = all.clone();
    let on_probe = move |state: &mut State, registers: &Registers| {
        if tabled {
            state.check(registers);
        } else {
            state.check_walks(registers);
        }
        assert_eq!(state.last_end, End::Root);
        let own = state.table.module_at(anchor);
        let (stacks, guesses) = &mut *found.borrow_mut();
        let place = |pc: u64| (state.table.module_at(pc - 1) == own).then(|| pc.wrapping_sub(anchor));
        stacks.push(state.last.iter().map(|frame| place(frame.pc)).collect::<Vec<Place>>());
        let is_guess = |flags: FrameFlags| flags.contains(FrameFlags::GUESS);
        let ours = state.last.iter().filter(|frame| place(frame.pc).is_some());
        *guesses += ours.filter(|frame| is_guess(frame.flags)).count();
    };
    with_probe(Config::default(), on_probe, || fixture.call(function, argument));
    all.take()
}

#[test]
fn stacks_are_those_of_the_same_code_with_tables() {
    let mut probes = 0;
    for set in ["-marm", "-mthumb"] {
        for (tag, more) in [
            ("plain", &["-fomit-frame-pointer"][..]),
            ("framed", &["-fno-omit-frame-pointer"]),
            ("unoptimised", &["-O0"]),
            ("small", &["-Os"]),
        ] {
            let flags = [&[set], more].concat();
            let tabled = Fixture::new("stacks.c", &format!("tabled{set}-{tag}"), &flags);
            let without = [&flags[..], WITHOUT].concat();
            let untabled = Fixture::new("stacks.c", &format!("untabled{set}-{tag}"), &without);
            for (function, argument) in [
                (c"recurse", 60),
                (c"vla", 40),
                (c"with_alloca", 40),
                (c"stack_arguments", 9),
                (c"saved_registers", 30),
                (c"noreturn", 5),
                (c"huge", 2),
                (c"sort", 20),
            ] {
                let (expected, none) = stacks(&tabled, function, argument, true);
                let (found, guesses) = stacks(&untabled, function, argument, false);
                assert_eq!(none, 0);
                assert_eq!(found, expected, "{set} {tag}: {function:?}");
                let ours = found.iter().flatten().flatten().count();
                assert_eq!(guesses, ours, "{set} {tag}: {function:?}: each frame without a table is a guess");
                probes += found.len();
            }
        }
    }
    assert!(probes > 1000, "{probes}");
}
