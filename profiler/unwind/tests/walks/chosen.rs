//! Walks that somebody chose: by frame pointers alone, and by the process's own unwinder.

use crate::common::{Fixture, State, Walk, shown_by_libgcc, with_probe};
use crate::native::WITH_FRAME_POINTERS;
use grapnel_unwind::{Config, End, FrameFlags, Registers};

const DEPTH: i64 = 60;

#[test]
fn frame_pointers_find_what_tables_find() {
    let f = Fixture::new("stacks.c", "chosen", WITH_FRAME_POINTERS);
    let on_probe = |state: &mut State, registers: &Registers| {
        let by_tables = state.check_walks(registers);
        state.table = std::mem::take(&mut state.table).by_frame_pointers();
        state.walker.flush();
        let node = state.walk(Walk::Memoised, registers);
        let by_pointers = state.frames(node);
        // Rust's own code has none, so that the walks part there.
        let of_fixture = DEPTH as usize;
        for (tables, pointers) in by_tables.iter().zip(&by_pointers).take(of_fixture) {
            assert_eq!((pointers.pc, pointers.module), (tables.pc, tables.module));
            assert_eq!(pointers.flags, FrameFlags::GUESS);
        }
        assert!(by_pointers.len() >= of_fixture);
    };
    let state = with_probe(Config::default(), on_probe, || f.call(c"recurse", DEPTH));
    assert_eq!(state.probes, 1);
}

#[test]
fn the_processs_own_unwinder_finds_what_tables_find() {
    let f = Fixture::new("stacks.c", "plain", &["-fomit-frame-pointer"]);
    for max_frames in [1024, 20] {
        let config = Config { max_frames, ..Config::default() };
        let on_probe = move |state: &mut State, registers: &Registers| {
            let by_tables = state.check_walks(registers);
            let node = state.walk(Walk::ByBacktrace, registers);
            let shown = if max_frames == 20 { by_tables.len() } else { shown_by_libgcc(&by_tables) };
            assert_eq!(state.frames(node), by_tables[..shown]);
            assert_eq!(state.walker.last_end(), if max_frames == 20 { End::Depth } else { End::Root });
        };
        let state = with_probe(config, on_probe, || f.call(c"recurse", DEPTH));
        assert_eq!(state.probes, 1);
    }
}
