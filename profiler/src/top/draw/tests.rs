//! Drawn screens.

use super::super::names::{Label, clean};
use super::super::once::line_of;
use super::super::view::{Frame, Level, View};
use super::*;
use grapnel_analysis::Totals;
use grapnel_analysis::stacks::Node;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn frame(id: u32) -> Frame {
    Frame { id, node: Node { parent: id.saturating_sub(1), module: 0, pc: 0x1000 + u64::from(id), flags: 0 } }
}

fn row(stack: u32, growth: i64) -> Row {
    let figures =
        Figures { live_bytes: 12 << 20, live_blocks: 12_345, growth, bytes_per_s: 1536.0, calls_per_s: 7.0 };
    let frames = (0..3).map(|caller| frame(stack + caller)).collect();
    Row { stack, figures, frames }
}

fn app(rows: u32) -> App {
    let rows: Vec<Row> = (0..rows).map(|at| row(10 * at + 1, 4096 - i64::from(at) * 1024)).collect();
    let totals = Totals {
        live_bytes: 123 << 20,
        live_allocations: 54_321,
        peak_bytes: 200 << 20,
        peak_time_ns: 3_200_000_000,
        allocations: 1_000_000,
        allocated_bytes: 1 << 30,
        ..Totals::default()
    };
    let mut app = App::new(Order::Growth, true, true);
    app.view = View {
        state: State::Recording,
        pid: 4711,
        command: "./server --port 8080".into(),
        time_ns: 12_300_000_000,
        totals,
        all: row(0, -2048).figures,
        trend: vec![1, 2, 3, 8, 4],
        base: ("top-1".into(), 10_000_000_000),
        sites: rows.len(),
        rows,
        ..View::default()
    };
    app
}

fn names() -> Names {
    let mut names = Names::default();
    let label =
        |name: &str| Label { function: clean(name), place: "at src/a.c:12 [app]".into(), inlined: false };
    names.learn((1..=600).map(|id| (id, vec![label(&format!("function_{id}"))])).collect());
    names
}

/// The lines of a screen.
fn drawn(app: &mut App, names: &mut Names, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame.buffer_mut(), app, names)).unwrap();
    let buffer = terminal.backend().buffer();
    (0..height).map(|y| line_of(buffer, y)).collect()
}

#[test]
fn all_is_there_on_the_usual_terminal() {
    let lines = drawn(&mut app(30), &mut names(), 80, 24);
    assert!(lines[0].starts_with("4711 ./server --port 8080") && lines[0].ends_with("recorded for 12.3 s"));
    assert_eq!(lines[1], "live 123.0 MiB in 54,321 blocks -2.0K  peak 200.0 MiB at 3.2 s");
    assert_eq!(lines[2], "allocates 1.5KB/s in 7 calls/s   in all 1.0 GiB in 1,000,000 calls");
    assert!(lines[4].contains('█'), "{}", lines[4]);
    assert_eq!(lines[5], " GROWTH  LIVE BLOCKS BYTES/S CALLS/S   SITE");
    assert_eq!(lines[6], "  +4.0K 12.0M  12.3k    1.5K       7  function_1 < function_2 < function_3");
    // As many as there is room for.
    assert!(lines[21].contains("function_151"), "{}", lines[21]);
    assert_eq!(lines[22], "growth since top-1, 2.3 s ago   30 sites");
    assert!(lines[23].starts_with("? help  q quit  Enter stack"), "{}", lines[23]);
}

#[test]
fn the_cursor_stays_on_the_page() {
    let (mut app, mut names) = (app(100), names());
    app.chosen = Some(501);
    let lines = drawn(&mut app, &mut names, 80, 24);
    assert!(lines.iter().any(|line| line.contains("function_501 ")), "{lines:?}");
    app.chosen = Some(991);
    let lines = drawn(&mut app, &mut names, 80, 24);
    // The last page is full; what isn't known has its address.
    assert!(lines[21].contains("[0x13df]"), "{}", lines[21]);
    assert_eq!(app.room, 16);
}

#[test]
fn a_stack_tells_what_goes_through_its_frames() {
    let (mut app, mut names) = (app(3), names());
    let inner = Label { function: "inlined_one".into(), place: "at src/b.c:3 [app]".into(), inlined: true };
    let outer = Label { function: "outer".into(), place: "at src/b.c:9 [app]".into(), inlined: false };
    names.learn(vec![(3, vec![inner, outer])]);
    let level = |id: u32, guess| Level { frame: frame(id), guess, through: 1 << 20, growth: 512 };
    let levels = vec![level(3, false), level(2, false), level(1, true)];
    app.view.drill = Some(Drill { row: row(3, 512), levels, more: 2 });
    app.page = Page::Stack;
    let lines = drawn(&mut app, &mut names, 80, 24);
    assert_eq!(lines[5], "this stack: live 12.0 MiB in 12,345 blocks, +512, 1.5KB/s, 7 calls/s");
    assert_eq!(lines[7], "   +512  1.0M  inlined_one (inlined) at src/b.c:3 [app]");
    assert_eq!(lines[8], "               outer at src/b.c:9 [app]");
    assert_eq!(lines[10], "   +512  1.0M  function_1 (guess) at src/a.c:12 [app]");
    assert_eq!(lines[11], "               and 2 more frames");
    app.level = 2;
    assert!(drawn(&mut app, &mut names, 80, 24)[7].contains("function_1 (guess)"));
    for (width, short) in [
        (40, "at …/Objects/obmalloc.c:801 [python3.11]"),
        (30, "at obmalloc.c:801 [python3.11]"),
        (29, "at obmalloc.c:801"),
        (3, "at obmalloc.c:801"),
    ] {
        assert_eq!(shortened("at …/Objects/obmalloc.c:801 [python3.11]", width), short);
    }
    assert_eq!(shortened("[libc.so.6+0x1234]", 5), "[libc.so.6+0x1234]");
}

#[test]
fn every_state_is_said() {
    let mut app = app(0);
    for (state, text) in [
        (State::Reading(42), "reading, 42% so far"),
        (State::Quiet(9), "nothing new for 9 s"),
        (State::Over("ended: killed by signal 9".into()), "ended: killed by signal 9"),
    ] {
        app.view.state = state;
        let lines = drawn(&mut app, &mut names(), 80, 24);
        assert!(lines[0].ends_with(text), "{}", lines[0]);
        assert_eq!(lines[6], "nothing was allocated yet");
    }
    (app.paused, app.frozen, app.view.state) = (true, true, State::Recording);
    app.view.totals.lost_events = 1234;
    app.say("snapshot t.snapshot-1.grapnel".into());
    let lines = drawn(&mut app, &mut names(), 80, 24);
    assert!(lines[0].ends_with(" FROZEN recording is paused"), "{}", lines[0]);
    assert!(lines[2].ends_with("   1,234 lost"), "{}", lines[2]);
    assert_eq!(lines[22], "snapshot t.snapshot-1.grapnel");
}

#[test]
fn no_size_is_too_small_or_too_large() {
    for page in [Page::Sites, Page::Stack, Page::Help] {
        for width in [0, 1, 2, 3, 19, 20, 21, 37, 38, 39, 40, 53, 80, 300] {
            for height in (0..30).chain([100]) {
                let (mut app, mut names) = (app(40), names());
                app.page = page;
                if height % 2 == 0 {
                    app.say("日本語".repeat(50));
                }
                app.view.command = "./日本語 ".repeat(40);
                app.view.drill = Some(Drill { row: row(3, 1), ..Drill::default() });
                let lines = drawn(&mut app, &mut names, width, height);
                assert!(lines.iter().all(|line| columns(line) <= usize::from(width)));
            }
        }
    }
}

#[test]
fn names_of_the_program_stay_in_their_lines() {
    let hostile = [
        "\x1b[2J\x1b[31mred".to_owned(),
        "two\nlines\rand\ttabs".to_owned(),
        "\u{202e}drawkcab".to_owned(),
        "\u{9b}31m\u{7}\u{0}".to_owned(),
        "日本語".repeat(200),
        format!("e{}", "\u{301}".repeat(5000)),
        "👨‍👩‍👧‍👦".repeat(40),
        "שלום<עולם>".repeat(9),
        String::new(),
    ];
    for width in [20, 60, 80, 81, 200] {
        for name in &hostile {
            for page in [Page::Sites, Page::Stack] {
                let (mut app, mut names) = (app(3), names());
                app.page = page;
                let label = |id| Label { function: clean(name), place: clean(name), inlined: id == 2 };
                names.learn((1..40).map(|id| (id, vec![label(id)])).collect());
                let level = Level { frame: frame(2), guess: true, through: 1, growth: 1 };
                app.view.drill = Some(Drill { row: row(3, 1), levels: vec![level], more: 0 });
                let lines = drawn(&mut app, &mut names, width, 24);
                let text = lines.join("");
                assert!(
                    !text
                        .chars()
                        .any(|c| c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202e}'))
                );
                // What is below and above is where it was.
                assert!(lines[0].starts_with("47") && lines[23].starts_with("? help"), "{lines:?}");
            }
        }
    }
}

#[test]
fn without_colors_there_are_none() {
    let colored = |colors: bool| {
        let mut app = app(5);
        app.colors = colors;
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(frame.buffer_mut(), &mut app, &mut names())).unwrap();
        let cells = terminal.backend().buffer().content();
        cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(colored(true) && !colored(false));
}
