//! `grapnel top` in a real terminal.

use grapnel_tests::going::until;
use grapnel_tests::run::{Case, grapnel, kill, report, temporary_dir};
use grapnel_tests::stepping::Stepping;
use grapnel_tests::terminal::Terminal;
use grapnel_trace::event::{Event, Exit, Module, ProcessInfo, Source};
use grapnel_trace::names::{NamedFrame, Names};
use grapnel_trace::writer::Writer;
use rustix::process::Signal;
use std::path::{Path, PathBuf};

/// A program that is recorded, and a terminal.
fn stepping(width: u16, height: u16) -> (Stepping, Terminal) {
    let stepping = Stepping::new(&[]);
    let terminal = Terminal::new(width, height, &stepping.going.dir.path().join("run"));
    (stepping, terminal)
}

/// Begins to look at a program.
fn look(stepping: &Stepping, terminal: &Terminal) {
    terminal.line(&format!("grapnel top {}; echo \"status $?\"", stepping.going.pid()));
    terminal.shows("recorded for");
}

/// The process of `grapnel top` in the terminal.
fn process_in(terminal: &Terminal) -> u32 {
    let shell = terminal.done(&["display-message", "-p", "#{pane_pid}"]);
    let shell: u32 = shell.trim().parse().unwrap();
    let is_it = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"grapnel\0top\0"))
    };
    until("grapnel top", || grapnel_tests::run::descendants(shell).into_iter().find(is_it))
}

/// The terminal as a shell wants it: its modes, nobody's screen, the cursor to be seen.
fn is_given_back(terminal: &Terminal, modes: &str, status: &str) {
    terminal.shows(status);
    assert_eq!(terminal.taken(), (false, false));
    terminal.until("the modes", |_| terminal.modes() == modes);
    // What was there before is there again.
    assert!(terminal.screen()[0].contains("grapnel top"), "{:?}", terminal.screen());
}

#[test]
fn growth_is_seen_as_it_comes() {
    let (mut stepping, terminal) = stepping(80, 24);
    let modes = terminal.modes();
    stepping.step("100");
    // Growth counts from what is in the trace when the view begins.
    let once = || stepping.going.grapnel(&["top", "--once", &stepping.going.pid()]).out();
    until("what was written", || once().contains("5.2M    100").then_some(()));
    look(&stepping, &terminal);
    assert_eq!(terminal.taken(), (true, true));
    let lines = terminal.shows("grapnel top began");
    assert!(lines[0].starts_with(&format!("{} /usr/bin/python3 -c", stepping.going.pid())), "{}", lines[0]);
    assert!(lines[23].starts_with("? help  q quit"), "{}", lines[23]);
    // Ten blocks of 54,321 bytes are 530.5 KiB.
    stepping.step("10");
    let is_first = |lines: &[String], growth: &str| lines[6].trim_start().starts_with(growth);
    terminal.until("growth", |lines| is_first(lines, "+530K") || is_first(lines, "+531K"));
    // A mark, and growth from there on.
    terminal.keys(&["m"]);
    terminal.shows("growth since top-1");
    stepping.step("20");
    let lines = terminal.until("growth since the mark", |lines| is_first(lines, "+1.0M"));
    // Of all, what the interpreter itself needed for the step included.
    assert!(lines[1].contains("blocks +1.0M"), "{}", lines[1]);
    // From the beginning on.
    terminal.keys(&["c"]);
    terminal.until("all", |lines| is_first(lines, "+6.7M"));
    // Its stack, with the interpreter's functions, looked up beside the drawing.
    terminal.keys(&["Enter"]);
    let lines = terminal.shows("this stack: live 6.7 MiB in 130 blocks");
    assert!(lines[7].trim_start().starts_with("+6.7M  6.7M"), "{}", lines[7]);
    terminal.shows("ffi_call");
    terminal.keys(&["Escape"]);
    terminal.shows("LIVE BLOCKS");
    // Frozen, it stays as it is.
    terminal.keys(&["Space"]);
    terminal.shows("FROZEN");
    stepping.step("50");
    let frozen = terminal.screen();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(terminal.screen(), frozen);
    terminal.keys(&["Space"]);
    terminal.until("what came since", |lines| is_first(lines, "+9.3M"));
    // A snapshot, which has all up to its moment.
    terminal.keys(&["w"]);
    terminal.shows("snapshot t.snapshot-1.grapnel");
    let totals = report(&terminal.dir.path().join("t.snapshot-1.grapnel")).totals;
    assert!(totals.live_bytes > 180 * 54321, "{}", totals.live_bytes);
    // The recording is paused, and goes on.
    let paused = || stepping.going.status().unwrap()["processes"][0]["paused"] == true;
    terminal.keys(&["p"]);
    terminal.until("the pause", |lines| lines[0].ends_with("recording is paused"));
    assert!(paused());
    terminal.keys(&["p"]);
    terminal.until("its end", |lines| lines[0].contains("recorded for"));
    assert!(!paused());
    terminal.keys(&["?"]);
    terminal.shows("write a snapshot of the trace");
    terminal.keys(&["q"]);
    is_given_back(&terminal, &modes, "status 0");
    // The mark is in the trace.
    stepping.going.end();
    let trace = stepping.going.dir.path().join("t.grapnel");
    let text = grapnel([Path::new("report"), &trace]).out();
    assert!(text.contains("top-1"), "{text}");
}

#[test]
fn any_size_of_the_terminal_will_do() {
    let (mut stepping, terminal) = stepping(80, 24);
    let modes = terminal.modes();
    stepping.step("100");
    look(&stepping, &terminal);
    for (width, height) in [(120, 40), (60, 12), (40, 6), (200, 50), (80, 24)] {
        terminal.resize(width, height);
        let height = usize::from(height);
        let pid = stepping.going.pid();
        terminal.until("all of it", |lines| {
            let ends = lines.first().zip(lines.get(height - 1));
            ends.is_some_and(|(first, last)| first.starts_with(&pid) && last.starts_with("? help  q quit"))
        });
    }
    terminal.resize(10, 3);
    terminal.shows("grapnel");
    terminal.resize(80, 24);
    terminal.shows("LIVE BLOCKS");
    terminal.keys(&["q"]);
    is_given_back(&terminal, &modes, "status 0");
}

#[test]
fn the_terminal_is_given_back_whatever_ends_the_view() {
    let (stepping, terminal) = stepping(80, 24);
    let modes = terminal.modes();
    // Core dumps are nobody's wish here.
    terminal.line("ulimit -c 0");
    for (signal, status) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        terminal.line("clear");
        look(&stepping, &terminal);
        assert_ne!(terminal.modes(), modes);
        kill(signal, process_in(&terminal));
        is_given_back(&terminal, &modes, &format!("status {status}"));
    }
    // Of this signal the shell takes it that the user wants an end of the whole line.
    for by_key in [true, false] {
        terminal.line("clear");
        look(&stepping, &terminal);
        if by_key {
            terminal.keys(&["C-c"]);
        } else {
            kill(Signal::INT, process_in(&terminal));
        }
        until("the end", || (terminal.modes() == modes && terminal.taken() == (false, false)).then_some(()));
        terminal.line("echo \"status $?\"");
        terminal.shows("status 130");
    }
    // Nobody can catch this one. The shell's words may come before the terminal is given back.
    terminal.line("clear");
    look(&stepping, &terminal);
    kill(Signal::KILL, process_in(&terminal));
    until("the end", || (terminal.modes() == modes && terminal.taken() == (false, false)).then_some(()));
    terminal.line("stty -a | tr ' ' '\\n' | grep -x icanon; echo the''re");
    assert!(terminal.shows("there").iter().any(|line| line == "icanon"), "{:?}", terminal.screen());
    // Stopped, it has given the terminal back: what is there then is somebody else's.
    terminal.line("clear");
    look(&stepping, &terminal);
    let pid = process_in(&terminal);
    let guards = grapnel_tests::run::descendants(pid);
    assert_eq!(guards.len(), 1);
    terminal.keys(&["C-z"]);
    terminal.shows("Stopped");
    terminal.line("clear; tput smcup; echo of another program");
    terminal.until("another program", |lines| lines[0] == "of another program");
    kill(Signal::KILL, pid);
    until("the guard's end", || (!Path::new(&format!("/proc/{}", guards[0])).exists()).then_some(()));
    assert!(terminal.taken().0, "{:?}", terminal.screen());
}

#[test]
fn it_stops_and_goes_on() {
    let (stepping, terminal) = stepping(80, 24);
    let modes = terminal.modes();
    look(&stepping, &terminal);
    for by_key in [true, false, true] {
        if by_key {
            terminal.keys(&["C-z"]);
        } else {
            kill(Signal::TSTP, process_in(&terminal));
        }
        terminal.shows("Stopped");
        assert_eq!((terminal.taken(), terminal.modes() == modes), ((false, false), true));
        // Somebody else has the terminal meanwhile.
        terminal.line("clear; echo in between");
        terminal.shows("in between");
        terminal.line("fg");
        let lines = terminal.shows("recorded for");
        assert!(lines[23].starts_with("? help") && !lines.iter().any(|line| line.contains("in between")));
        assert_eq!(terminal.taken(), (true, true));
    }
    // Stopped in a way that nobody can catch, it draws anew when it goes on.
    kill(Signal::STOP, process_in(&terminal));
    terminal.shows("Stopped");
    terminal.line("fg");
    terminal.until("all of it", |lines| lines[0].contains("recorded for") && lines[23].starts_with("? help"));
    terminal.keys(&["q"]);
    terminal.until("the modes", |_| terminal.modes() == modes && terminal.taken() == (false, false));
}

#[test]
fn the_end_of_the_recording_is_told() {
    let (mut stepping, terminal) = stepping(80, 24);
    let modes = terminal.modes();
    stepping.step("100");
    look(&stepping, &terminal);
    stepping.going.end();
    let lines = terminal.shows("ended: exited with status 0");
    assert!(lines[1].contains("peak "), "{}", lines[1]);
    terminal.keys(&["w"]);
    terminal.shows("the recording has ended");
    terminal.keys(&["q"]);
    is_given_back(&terminal, &modes, "status 0");
    // By its name it can be looked at again.
    let trace = stepping.going.dir.path().join("t.grapnel");
    terminal.line(&format!("clear; grapnel top {}", trace.display()));
    let lines = terminal.shows("ended: exited with status 0");
    assert!(lines[22].contains("growth since the recording began"), "{}", lines[22]);
    // There is nobody to mark it, and growth from here on is none.
    terminal.keys(&["m"]);
    terminal.shows("growth is counted from here");
    terminal.keys(&["q"]);
    until("the end", || (terminal.modes() == modes).then_some(()));
}

#[test]
fn a_recorder_that_is_killed_leaves_what_there_was() {
    let (mut stepping, terminal) = stepping(80, 24);
    stepping.step("100");
    look(&stepping, &terminal);
    terminal.until("the blocks", |lines| lines[6].contains("5.2M"));
    let pid: u32 = stepping.going.pid().parse().unwrap();
    kill(Signal::KILL, stepping.going.child.id());
    terminal.shows("nothing new for");
    terminal.keys(&["m"]);
    terminal.shows("which nobody writes");
    terminal.keys(&["q"]);
    terminal.shows("status 0");
    kill(Signal::KILL, pid);
}

#[test]
fn a_terminal_that_goes_away_ends_it() {
    let (stepping, terminal) = stepping(80, 24);
    look(&stepping, &terminal);
    let process = process_in(&terminal);
    drop(terminal);
    until("its end", || (!Path::new(&format!("/proc/{process}")).exists()).then_some(()));
    assert!(stepping.going.status().is_some());
}

#[test]
fn where_nothing_can_be_drawn_it_says_what_can_be_done() {
    let (mut stepping, terminal) = stepping(80, 24);
    stepping.step("100");
    let pid = stepping.going.pid();
    let piped = stepping.going.grapnel(&["top", &pid]);
    assert_eq!(piped.status.code(), Some(1));
    assert_eq!(
        piped.err(),
        "grapnel: standard output is no terminal; `grapnel top --once` prints one view of it\n"
    );
    terminal.line(&format!("TERM=dumb grapnel top {pid}; echo \"status $?\""));
    let lines = terminal.shows("status 1").join("");
    assert!(lines.contains("a dumb one, which can't show a view that changes"), "{lines}");
    let nobody = stepping.going.grapnel(&["top", "1"]);
    assert!(nobody.err().contains("no process of this id is recorded"), "{}", nobody.err());
    let nothing = stepping.going.grapnel(&["top", "/dev/null"]);
    assert_eq!((nothing.status.code(), nothing.out().as_str()), (Some(1), ""), "{}", nothing.err());
    // Once: the same as text.
    let figures = |what: &[&str]| {
        let outcome = stepping.going.grapnel(&[&["top", "--once", "--top", "3"], what].concat());
        assert!(outcome.status.success() && outcome.err().is_empty(), "{}", outcome.err());
        outcome.out()
    };
    let text = until("what was written", || {
        let text = figures(&[&pid]);
        text.contains("+5.2M  5.2M    100").then_some(text)
    });
    assert!(text.starts_with(&format!("{pid} /usr/bin/python3")) && !text.contains('\x1b'), "{text}");
    assert!(text.contains("ffi_call"), "{text}");
    // By the recorder's number, by the trace, and in another order.
    let trace = stepping.going.dir.path().join("t.grapnel");
    for what in [&stepping.going.child.id().to_string(), trace.to_str().unwrap()] {
        assert!(figures(&[what, "--sort", "live"]).contains("+5.2M  5.2M    100"));
    }
    // Colours are for those who want them.
    for (variables, colors) in [("NO_COLOR=1", false), ("NO_COLOR=", true)] {
        terminal.line(&format!("clear; {variables} grapnel top --sort live {}", trace.display()));
        terminal.shows("grapnel top began");
        terminal.keys(&["c"]);
        terminal.shows("+5.2M  5.2M");
        let styled = terminal.styled();
        let is_color = |code: &str| styled.contains(&format!("\x1b[{code}m"));
        // By name, or by number of the palette.
        let all = ["31", "32", "33", "91", "92", "93"];
        let has_colors = styled.contains("\x1b[38;5;") || all.iter().any(|code| is_color(code));
        assert_eq!(has_colors, colors, "{variables}: {styled:?}");
        terminal.keys(&["q"]);
        until("the end", || (terminal.taken() == (false, false)).then_some(()));
    }
}

/// A trace whose names are made to spoil a screen.
fn hostile_trace(dir: &Path) -> PathBuf {
    let hostile: [&[u8]; 6] = [
        b"\x1b[2J\x1b[1;1Hcleared",
        b"two\nlines\r\x08\x07",
        "\u{202e}sdrawkcab\u{2066}".as_bytes(),
        "日本語".as_bytes(),
        "e\u{301}\u{301}\u{301}\u{200d}x".as_bytes(),
        b"\x9b31m\xff\xfe",
    ];
    let path = dir.join("hostile.grapnel");
    let info = ProcessInfo { command: vec![b"\x1b]0;title\x07\nevil".to_vec()], ..ProcessInfo::default() };
    let mut writer = Writer::new(Vec::new(), &info, 1).unwrap();
    let mut push = |event: Event| writer.push(&event).unwrap();
    push(Event::Module(Module { id: 1, path: b"/lib/\x1b[31mx\n.so".to_vec(), ..Module::default() }));
    for (id, name) in (1..).zip(hostile) {
        push(Event::Node { id, parent: 0, module: 1, pc: u64::from(id) * 16, flags: 0 });
        let address = u64::from(id) * 16 - 1;
        let frames = vec![NamedFrame { function: name.repeat(40), file: name.to_vec(), line: 7 }];
        push(Event::Names(Names { module: 1, address, frames }));
        let size = 1000 * u64::from(id);
        push(Event::Alloc {
            thread: 0,
            stack: id,
            address: u64::from(id) << 12,
            size,
            source: Source::Malloc,
        });
    }
    std::fs::write(&path, writer.finish(Some(Exit::Code(0)), 1, 0).unwrap()).unwrap();
    path
}

#[test]
fn names_of_the_program_can_not_spoil_the_screen() {
    let dir = temporary_dir();
    let trace = hostile_trace(dir.path());
    let terminal = Terminal::new(80, 24, dir.path());
    let title = terminal.done(&["display-message", "-p", "#{pane_title}"]);
    terminal.line(&format!("grapnel top --sort live {}; echo \"status $?\"", trace.display()));
    let all = |lines: &[String]| {
        lines[0].ends_with("ended: exited with status 0")
            && lines[23].starts_with("? help")
            && lines[5].ends_with("SITE")
            && (6..12).all(|at| lines[at].contains('…'))
    };
    let lines = terminal.until("six sites in their lines", all);
    assert!(lines[0].contains("\\u{1b}]0;title\\u{7}\\nevil"), "{}", lines[0]);
    assert!(lines[7].contains("e\\u{301}") && lines[8].contains("日本"), "{lines:?}");
    for _ in 0..6 {
        terminal.keys(&["Enter"]);
        let lines = terminal.shows("this stack:");
        assert!(lines[23].starts_with("? help") && lines[7].contains(" at "), "{lines:?}");
        assert!(lines[8..22].iter().all(String::is_empty), "{lines:?}");
        terminal.keys(&["Escape"]);
        terminal.shows("LIVE BLOCKS");
        terminal.keys(&["Down"]);
    }
    assert_eq!(terminal.done(&["display-message", "-p", "#{pane_title}"]), title);
    terminal.keys(&["q"]);
    terminal.shows("status 0");
}

/// What is shown agrees with a report, of a program that many threads allocate in.
#[test]
fn figures_are_those_of_a_report() {
    let recorded = Case::ours("threads").recorded();
    let totals = recorded.report().totals;
    let trace = recorded.trace();
    let text = grapnel([Path::new("top"), Path::new("--once"), &trace]).out();
    let calls = totals.allocations + totals.reallocations;
    let grouped = |n: u64| {
        let text = n.to_string();
        let mut out = String::new();
        for (at, digit) in text.chars().enumerate() {
            let is_group = at > 0 && (text.len() - at).is_multiple_of(3);
            out.extend(is_group.then_some(',').into_iter().chain([digit]));
        }
        out
    };
    assert!(text.contains(&format!(" in {} call", grouped(calls))), "{calls}: {text}");
    assert!(text.contains(&format!(" in {} block", grouped(totals.live_allocations))), "{text}");
}
