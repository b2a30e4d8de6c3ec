//! Random call trees: the memo against full walks, a few of them against full CFI and libgcc.

use crate::common::{Fixture, State, Walk, with_probe};
use grapnel_unwind::{Config, End, FrameFlags, Registers};
use std::ffi::CStr;

/// An emulator takes its time.
fn of_this_machine(probes: i64) -> i64 {
    if std::env::var_os("GRAPNEL_EMULATED").is_some() { probes / 20 } else { probes }
}

fn run(name: &CStr, probes: i64, config: Config, flags: &[&str], tag: &str) -> State {
    let probes = of_this_machine(probes);
    let f = Fixture::new("random.c", tag, flags);
    let Config { max_frames, tells, .. } = config;
    let on_probe = move |state: &mut State, registers: &Registers| {
        if tells && state.probes.is_multiple_of(97) {
            state.walker.renumber();
            state.nodes.clear();
        }
        if state.probes.is_multiple_of(1024) && max_frames == 1024 {
            state.check(registers);
            return;
        }
        if state.probes.is_multiple_of(256) {
            let frames = state.check_walks(registers);
            let truncated = frames.last().is_some_and(|f| f.flags == FrameFlags::TRUNCATED);
            assert_eq!(truncated, state.last_end == End::Depth);
            assert!(!truncated || frames.len() == max_frames + 1);
            return;
        }
        state.probes += 1;
        let memoised = state.walk(Walk::Memoised, registers);
        // Not after every walk, so that the memo is also as many walks old as it is in use.
        if !state.probes.is_multiple_of(3) {
            let unmemoised = state.walk(Walk::Unmemoised, registers);
            state.same(memoised, unmemoised, "without the memo");
        }
    };
    let state = with_probe(config, on_probe, || f.call(name, probes));
    assert_eq!(state.probes, probes as u64);
    assert_eq!(state.walker.tree().len() as usize, state.nodes.len());
    assert_eq!(state.walker.tree().lost_frames(), 0);
    state
}

#[test]
fn memo_equals_full_walk() {
    for (tag, flags) in [("omit", "-fomit-frame-pointer"), ("keep", "-fno-omit-frame-pointer")] {
        let state = run(c"random_calls", 200_000, Config::default(), &[flags], tag);
        assert!(state.deepest > 40, "{}", state.deepest);
        run(c"random_shallow_calls", 50_000, Config::default(), &[flags], &format!("shallow-{tag}"));
        // Where walks tell what they need.
        let tells = Config { tells: true, ..Config::default() };
        run(c"random_calls", 100_000, tells, &[flags], tag);
        // Where nothing is kept but rules and the last walk.
        run(c"random_calls", 100_000, Config { chain_bits: 0, recent_bits: 0, ..tells }, &[flags], tag);
    }
}

#[test]
fn deep_and_cut() {
    let flags = &["-fomit-frame-pointer"];
    run(c"random_deep_calls", 20_000, Config::default(), flags, "deep");
    for max_frames in [1, 2, 24, 32, 40] {
        let (chain_bits, recent_bits) = (max_frames as u32 % 5 * 2, 8 + (max_frames % 7) as u32);
        // Walks that end at the limit, that go on in all memory there is, and where there is too little, so that they do both.
        for (kept_frames, tells) in [
            (0, max_frames % 3 == 0),
            (1 << 16, max_frames % 3 == 0),
            (1 << 16, max_frames % 3 != 0),
            (44, max_frames % 3 == 0),
        ] {
            let config = Config {
                max_frames,
                kept_frames,
                cache_bits: 6,
                chain_bits,
                tree_bits: 28,
                tells,
                recent_bits,
            };
            run(c"random_calls", 20_000, config, flags, &format!("cut-{max_frames}"));
        }
    }
}

/// Beyond the depth limit no node of the last walk is one to go on from: nodes are looked up then, also where others are told
/// without that.
#[test]
fn stacks_that_were_cut_are_not_told_whole_each_time() {
    let f = Fixture::new("random.c", "cut-told", &["-fomit-frame-pointer"]);
    let told = [(false, 0), (true, 0), (true, 1 << 16)].map(|(tells, kept_frames)| {
        let config = Config { max_frames: 8, kept_frames, recent_bits: 8, tells, ..Config::default() };
        let on_probe = |state: &mut State, registers: &Registers| {
            state.probes += 1;
            state.walk(Walk::Memoised, registers);
        };
        with_probe(config, on_probe, || f.call(c"random_calls", of_this_machine(20_000))).nodes.len()
    });
    assert!(told[1] < 2 * told[0] && told[2] < 2 * told[0], "{told:?}");
}
