//! Tail calls, by both compilers that do them differently: clang jumps where a function says it must, gcc where it may.

use crate::common::{self, Fixture, State, check};
use grapnel_unwind::{Config, Registers};

/// Another compiler's code for this machine, and that of the compiler which all fixtures have.
fn by_each_compiler(run: impl Fn(&Fixture)) {
    for (tag, flag) in [("plain", "-fomit-frame-pointer"), ("framed", "-fno-omit-frame-pointer")] {
        let flags = ["-foptimize-sibling-calls", flag];
        run(&Fixture::new("tail.c", tag, &flags));
        // Under an emulator there is no clang for this machine.
        if std::env::var_os("GRAPNEL_CC").is_none() {
            let tag = format!("clang-{tag}");
            run(&Fixture::open(&common::compile_by("clang", "tail.c", &tag, &flags, &[])));
        }
    }
}

#[test]
fn frames_are_taken_by_those_who_are_called_last() {
    by_each_compiler(|f| {
        let depth = check(1, || f.call(c"even", 0)).deepest;
        let state = check(2001, || f.call(c"even", 2000));
        assert_eq!(state.deepest, depth, "calls that should be jumps");
    });
}

#[test]
fn steps_that_jump_to_each_other_by_pointers() {
    by_each_compiler(|f| {
        let on_probe = |state: &mut State, registers: &Registers| state.check(registers);
        let state = common::with_probe(Config::default(), on_probe, || f.call(c"dispatched", 60));
        assert!(state.probes > 500, "{}", state.probes);
    });
}
