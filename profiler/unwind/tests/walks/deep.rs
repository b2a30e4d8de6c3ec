//! Recursion deeper than the limit of a stack's frames.

use crate::common::{Fixture, State, Walk, with_probe};
use grapnel_unwind::{Config, End, FrameFlags, Registers};

/// By turns to the limit and far beyond it, with and without a walk at each depth on the way.
#[test]
fn windows_are_the_frames_nearest_to_the_leaf() {
    for (every, kept_frames, tells) in
        [(1, 1 << 16, true), (7, 1 << 16, false), (31, 200, true), (97, 1 << 16, true)]
    {
        let config = Config { max_frames: 100, kept_frames, tells, ..Config::default() };
        let mut number = 0;
        let on_probe = move |state: &mut State, registers: &Registers| {
            number += 1;
            if number % every != 0 {
                return;
            }
            let memoised = state.walk(Walk::Memoised, registers);
            let end = state.walker.last_end();
            let unmemoised = state.walk(Walk::Unmemoised, registers);
            state.same(memoised, unmemoised, "without the memo");
            assert_eq!(state.walker.last_end(), end);
            let frames = state.frames(memoised);
            let is_cut = frames.last().is_some_and(|frame| frame.flags == FrameFlags::TRUNCATED);
            assert_eq!((is_cut, frames.len() == 101), (end == End::Depth, end == End::Depth));
            state.deepest = state.deepest.max(frames.len());
        };
        let f = Fixture::new("deep.c", "deep", &["-fomit-frame-pointer"]);
        let state = with_probe(config, on_probe, || {
            [300, 60, 150, 90].iter().for_each(|&deep| f.call(c"recurse", deep));
            // Frames differ that are anywhere within the window, right beyond it, or far.
            f.call(c"meet", 130);
        });
        assert_eq!(state.deepest, 101);
    }
}
