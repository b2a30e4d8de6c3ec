//! Signals, coroutines, exceptions and lazy binding.

use crate::common::{self, Fixture, State};
use crate::native::RESOLVER_HAS_CFI;
use grapnel_unwind::{Config, End, FrameFlags, Registers};
use std::cell::Cell;
use std::rc::Rc;

fn check_at_every_probe(body: impl FnOnce()) -> State {
    let on_probe = |state: &mut State, registers: &Registers| state.check(registers);
    common::with_probe(Config::default(), on_probe, body)
}

/// Runs `body` with comparisons and returns how many stacks had a signal frame in them, and what was stopped.
fn signal_stacks(config: Config, body: impl FnOnce()) -> u32 {
    let seen = Rc::new(Cell::new(0));
    let counted = seen.clone();
    let on_probe = move |state: &mut State, registers: &Registers| {
        // libgcc knows no limit.
        if config.max_frames < Config::default().max_frames {
            state.check_walks(registers);
        } else {
            state.check(registers);
        }
        let signal = state.last.iter().position(|f| f.flags.contains(FrameFlags::SIGNAL));
        if let Some(signal) = signal.filter(|signal| state.last.len() > signal + 2) {
            assert!(state.last[signal + 1].flags.contains(FrameFlags::EXACT));
            counted.set(counted.get() + 1);
        }
    };
    common::with_probe(config, on_probe, body);
    seen.get()
}

#[test]
fn signal_handlers() {
    // One test, since the handlers are the process's.
    for (tag, flags) in [("plain", "-fomit-frame-pointer"), ("framed", "-fno-omit-frame-pointer")] {
        let f = Fixture::new("control.c", tag, &[flags]);
        for (max_frames, tells) in
            [(1024, false), (1024, true), (45, true), (40, false), (38, true), (20, false)]
        {
            let config = Config { max_frames, tells, ..Config::default() };
            // Four probes in each of two handlers.
            assert_eq!(signal_stacks(config, || f.call(c"signals", 30)), 8, "{config:?}");
            assert_eq!(signal_stacks(config, || f.call(c"signals_on_alternate_stack", 30)), 8, "{config:?}");
            // Handlers in the middle of handlers, and again and again at one place, to which calls return as well.
            assert_eq!(signal_stacks(config, || f.call(c"signals_in_turn", 30)), 2 * (16 + 6), "{config:?}");
        }
    }
}

#[test]
fn coroutines() {
    for (tag, flags) in [("plain", "-fomit-frame-pointer"), ("framed", "-fno-omit-frame-pointer")] {
        let f = Fixture::new("control.c", tag, &[flags]);
        let state = check_at_every_probe(|| f.call(c"coroutines", 20));
        assert!(state.probes > 100);
        let state = check_at_every_probe(|| f.call(c"shrinking_stacks", 9));
        assert_eq!(state.probes, 5 * 2 * (10 + 1 + 10));
    }
}

#[test]
fn exceptions() {
    let f = Fixture::new("exceptions.cc", "plain", &["-fomit-frame-pointer"]);
    let state = check_at_every_probe(|| f.call(c"exceptions", 12));
    assert!(state.probes > 200);
}

#[test]
fn lazy_binding() {
    let library = common::compile("ifunc.c", "callee", &[], &[]);
    let ifunc = Fixture::open(&library);
    let lazy = Fixture::linked("lazy.c", "caller", &["-Wl,-z,lazy", "-fomit-frame-pointer"], &[&library]);
    let on_probe = |state: &mut State, registers: &Registers| {
        if state.probes == 0 && !RESOLVER_HAS_CFI {
            // The frames up to the dynamic linker's, which are right.
            let symbols = state.check_walks(registers);
            assert!(symbols.len() >= 3 && symbols.iter().take(3).all(|f| f.flags == FrameFlags::NONE));
            return;
        }
        state.check(registers);
    };
    let state = common::with_probe(Config::default(), on_probe, || {
        ifunc.call(c"set_probe", 0);
        lazy.call(c"call_lazily", 3);
    });
    assert_eq!(state.probes, 2, "one inside the resolver, one after it");
    assert_eq!(state.last_end, End::Root);
}

#[cfg(not(target_arch = "arm"))]
#[test]
fn stacks_whose_callers_lie_below() {
    for (tag, flags) in [("plain", "-fomit-frame-pointer"), ("framed", "-fno-omit-frame-pointer")] {
        let f = Fixture::new("control.c", tag, &[flags]);
        let state = check_at_every_probe(|| f.call(c"on_other_stacks", 20));
        assert_eq!(state.probes, 4 * (2 * 18 + 4 + 1));
    }
}
