//! What a process had allocated before `grapnel attach`.

use grapnel_tests::attaching::{Running, may_trace};
use grapnel_tests::going::until;
use grapnel_tests::older::{MARK, Older, attached, is_as_it_counts_in_storms, site};
use grapnel_tests::report::Before;
use grapnel_tests::run::{grapnel, report, temporary_dir};
use grapnel_tests::{programs, skipped};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn blocks_of_before_are_known_to_the_byte() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let mut older = Older::start("");
    // What libc has for itself.
    let (bare, _) = attached(dir.path(), older.pid());
    let bare = bare.totals.before.expect("they are known");
    let (stage, own) = older.go_on();
    assert!(stage == 2 && own.allocations > 50_000, "{own:?}");
    let trace = dir.path().join("t.grapnel");
    let mut command = Command::new(programs::grapnel());
    command.args(["attach", "-o"]).arg(&trace).arg(older.pid().to_string()).stderr(Stdio::piped());
    let mut recorder = Running::start(&mut command);
    let mut said = BufReader::new(recorder.0.stderr.take().expect("what it says")).lines();
    let begun = said.next().expect("a line").expect("text");
    assert!(begun.contains("attached to older") && begun.contains(" of before, with "), "{begun}");
    let (stage, left) = older.go_on();
    assert_eq!((stage, left), (3, Before { allocations: 0, bytes: 0 }));
    let detached = grapnel(["detach", &older.pid().to_string()]);
    assert_eq!(detached.status.code(), Some(0), "{}", detached.err());
    assert_eq!(recorder.0.wait().expect("it ends").code(), Some(0));

    let found = report(&trace);
    let before = found.totals.before.expect("they are known");
    let others =
        Before { allocations: before.allocations - own.allocations, bytes: before.bytes - own.bytes };
    assert_eq!(others, bare);
    let totals = &found.totals;
    assert_eq!((totals.allocations, totals.reallocations, totals.allocated_bytes), (0, 0, 0));
    assert_eq!((totals.frees, totals.lost_events), (own.allocations, 0));
    assert_eq!((totals.live_allocations, totals.live_bytes), (bare.allocations, bare.bytes));
    assert_eq!(totals.peak_bytes, before.bytes);
    assert!(totals.functions.values().all(|&count| count == 0), "{:?}", totals.functions);
    let site = site(&found).expect("a site");
    assert_eq!((site.allocations, site.allocated_bytes), (0, 0));
    assert_eq!((site.live_allocations, site.live_bytes), (bare.allocations, bare.bytes));
    assert_eq!((site.peak_bytes, site.temporary_allocations), (before.bytes, 0));
    assert_eq!(site.frames.len(), 1);

    let text = grapnel([Path::new("report"), &trace]);
    assert!(text.out().contains(MARK) && text.out().contains("blocks, allocated before grapnel attached"));
    let page = dir.path().join("t.html");
    let made = grapnel([Path::new("report"), Path::new("--html"), &page, &trace]);
    assert_eq!(made.status.code(), Some(0), "{}", made.err());
    for (format, name) in
        [("collapsed", "t.folded"), ("csv", "t.csv"), ("heaptrack", "t.heaptrack"), ("massif", "t.massif")]
    {
        let file = dir.path().join(name);
        let made = grapnel([Path::new("export"), Path::new("-o"), &file, &trace]);
        assert_eq!(made.status.code(), Some(0), "{format}: {}", made.err());
        let text = std::fs::read_to_string(&file).expect("text");
        assert!(text.contains(MARK), "{format}");
    }
    let query = grapnel([Path::new("query"), Path::new("--by"), Path::new("source"), &trace]);
    assert!(query.out().contains("before"), "{}", query.out());
}

/// The library's file has another name until 2.33, and its heap another layout from release to release: since 2.42 caches have other
/// numbers and lists, since 2.43 arenas have other variables, and mappings other chunks.
#[test]
fn blocks_of_before_are_known_in_glibc_of_other_releases() {
    if !may_trace() {
        return;
    }
    for (glibc, how) in programs::other_glibcs().iter().flat_map(|glibc| [(glibc, ""), (glibc, "narrow")]) {
        let dir = temporary_dir();
        let mut older = Older::of(Command::new(programs::program_with_glibc("older", glibc)).arg(how));
        let before = |older: &Older| {
            let (found, said) = attached(dir.path(), older.pid());
            found.totals.before.ok_or(said)
        };
        let bare = match before(&older) {
            Ok(bare) => bare,
            // A release that isn't out yet gets newer ones.
            Err(said) if glibc.0 == "forky" && said.contains("keeps its heap in a way that isn't known") => {
                skipped("glibc of Debian's forky", &said);
                continue;
            }
            Err(said) => panic!("{}: {said}", glibc.0),
        };
        let (stage, own) = older.go_on();
        assert!(stage == 2 && own.allocations > 50_000, "{own:?}");
        let all = before(&older).unwrap_or_else(|said| panic!("{}, {how}: {said}", glibc.0));
        let others = Before { allocations: all.allocations - own.allocations, bytes: all.bytes - own.bytes };
        assert_eq!(others, bare, "{}, {how}", glibc.0);
    }
}

/// The C library that it runs with is no more where it was.
#[test]
fn blocks_of_before_are_known_after_an_upgrade_of_libc() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let [library, loader] = ["libc.so.6", "ld-linux-x86-64.so.2"].map(|name| {
        let own = dir.path().join(name);
        std::fs::copy(Path::new("/lib/x86_64-linux-gnu").join(name), &own).expect("a copy");
        own
    });
    let mut command = Command::new(loader);
    command.arg("--library-path").arg(dir.path()).arg(programs::program("older")).arg("");
    let mut older = Older::of(&mut command);
    let (stage, own) = older.go_on();
    assert_eq!(stage, 2);
    let new = dir.path().join("new");
    std::fs::copy(&library, &new).and_then(|_| std::fs::rename(&new, &library)).expect("another file");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", older.pid())).expect("mappings");
    assert!(maps.contains("libc.so.6 (deleted)"), "{maps}");
    let (found, said) = attached(dir.path(), older.pid());
    let all = found.totals.before.unwrap_or_else(|| panic!("{said}"));
    assert!((0..20).contains(&(all.allocations - own.allocations)), "{all:?}, {own:?}");
}

#[test]
fn a_heap_that_was_overwritten_is_refused_and_recorded_all_the_same() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let mut older = Older::start("broken");
    assert_eq!(older.go_on().0, 2);
    let trace = dir.path().join("t.grapnel");
    let mut command = Command::new(programs::grapnel());
    command.args(["attach", "-o"]).arg(&trace).arg(older.pid().to_string()).stderr(Stdio::piped());
    let mut recorder = Running::start(&mut command);
    let mut said = BufReader::new(recorder.0.stderr.take().expect("what it says")).lines();
    let begun: Vec<String> = said.by_ref().take(2).map(|line| line.expect("text")).collect();
    let why = "what was allocated before isn't known: the heap's structure was not understood: a chunk of a wrong size at 0x";
    assert!(begun[1].contains(why), "{begun:?}");
    // What it frees is recorded.
    assert_eq!(older.go_on().0, 3);
    let detached = grapnel(["detach", &older.pid().to_string()]);
    assert_eq!(detached.status.code(), Some(0), "{}", detached.err());
    assert_eq!(recorder.0.wait().expect("it ends").code(), Some(0));
    let found = report(&trace);
    assert_eq!(found.totals.before, None);
    assert!(found.totals.frees > 50_000 && found.totals.live_allocations == 0, "{:?}", found.totals);
    let mark = found.marks.iter().find(|mark| mark.kind == "before_unknown").expect("a mark");
    assert!(mark.name.as_ref().is_some_and(|why| why.contains("a chunk of a wrong size")), "{mark:?}");
    let text = grapnel([Path::new("report"), &trace]);
    assert!(text.out().contains("what was allocated before grapnel attached isn't known"), "{}", text.out());
    assert!(!text.out().contains(MARK), "{}", text.out());
}

#[test]
fn blocks_that_were_lost_before_are_found() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let mut older = Older::start("lost");
    assert_eq!(older.go_on().0, 2);
    let trace = dir.path().join("t.grapnel");
    let mut command = Command::new(programs::grapnel());
    command.args(["attach", "-q", "-o"]).arg(&trace).arg(older.pid().to_string());
    let mut recorder = Running::start(command.env("XDG_RUNTIME_DIR", dir.path()));
    let pid = older.pid().to_string();
    let found = until("it is recorded", || {
        let mut command = Command::new(programs::grapnel());
        command.args(["leaks", &pid]).env("XDG_RUNTIME_DIR", dir.path());
        let outcome = grapnel_tests::run::finish(&mut command, b"");
        outcome.status.success().then(|| outcome.out())
    });
    assert!(found.contains(MARK), "{found}");
    let line = found.lines().find(|line| line.contains("directly lost")).expect("a line");
    let blocks = line.rsplit(" in ").next().and_then(|text| text.strip_suffix(" blocks"));
    let blocks: u64 = blocks.expect("a number").replace(',', "").parse().expect("a number");
    // Registers and what lies below a stack may hold one or the other still.
    assert!((4900..=5000).contains(&blocks), "{found}");
    let detached = grapnel(["detach", &pid]);
    assert_eq!(detached.status.code(), Some(0), "{}", detached.err());
    recorder.0.wait().expect("it ends");
}

/// Threads that do little but allocate are let come out of it: what they have at that moment is known, and no free of it a
/// riddle. On a busy machine that may take more than one look.
#[test]
fn threads_in_the_middle_of_malloc_are_waited_for() {
    if may_trace() {
        is_as_it_counts_in_storms(&mut Command::new(programs::program("older")), &[]);
    }
}
