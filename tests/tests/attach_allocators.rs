//! `grapnel attach` to programs whose `new` is an allocator's own, or that have an allocator besides.

use grapnel_tests::attaching::{Running, State, may_trace};
use grapnel_tests::counted::{Attached, leads};
use grapnel_tests::programs;
use grapnel_tests::report::Report;
use grapnel_tests::run::temporary_dir;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// A program that works when it is asked by a byte, and says so by a line.
struct Asked {
    running: Running,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Asked {
    fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let input = child.stdin.take().expect("its input");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut asked = Self { running: Running(child), input, lines };
        asked.line();
        asked
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("a line").expect("text")
    }

    fn work(&mut self) -> String {
        self.input.write_all(b"g").expect("it is told");
        self.line()
    }
}

/// Blocks and bytes of the sites in a function.
fn of(report: &Report, function: &str) -> (u64, u64) {
    let own = report.sites.iter().filter(|site| leads(site, &[function, "main"]));
    own.fold((0, 0), |(blocks, bytes), site| (blocks + site.allocations, bytes + site.allocated_bytes))
}

/// Each block of `new` is one, at its place, and is given back; what is thrown comes where it is caught, and the handler is asked.
#[test]
fn what_an_allocators_own_new_gives_is_recorded_and_what_it_throws_is_caught() {
    if !may_trace() {
        return;
    }
    for name in ["libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4", "libjemalloc.a"] {
        let library = Path::new("/usr/lib/x86_64-linux-gnu").join(name);
        assert!(library.exists(), "{name}: ./test installs it");
        let start = || {
            if name.ends_with(".a") {
                let program = programs::program_with("news", name);
                return Asked::start(Command::new(program).stderr(Stdio::null()));
            }
            let mut command = Command::new(programs::program("news"));
            // mimalloc, which is C, aborts where an operator has to throw.
            command.args(name.starts_with("libmimalloc").then_some("plenty"));
            Asked::start(command.env("LD_PRELOAD", &library).stderr(Stdio::null()))
        };
        // How it goes where nobody looks.
        let mut bare = start();
        let bare: Vec<String> = (0..7).map(|_| bare.work()).collect();
        let dir = temporary_dir();
        let mut asked = start();
        assert_eq!(asked.work(), bare[0]);
        let before = State::of(asked.running.pid());
        for round in bare[1..].chunks(2) {
            let attached = Attached::to(asked.running.pid(), dir.path(), &[]);
            for line in round {
                assert_eq!(&asked.work(), line, "{name}");
            }
            let (report, said) = attached.end();
            assert!(said.contains("nothing of the agent is left"), "{said}");
            assert!(!said.contains("is not recorded"), "{said}");
            let bytes = 2 * 6 * (0..100).map(|i| 24 + i * 11).sum::<u64>();
            assert_eq!(of(&report, "by_new()"), (2 * 600, bytes), "{name}");
            assert_eq!(of(&report, "by_new_array()"), (2 * 600, bytes), "{name}");
            // The C++ runtime has some for want of memory.
            let before = report.totals.before.map_or(0, |before| before.allocations);
            assert_eq!(report.totals.live_allocations, before, "{name}: {:?}", report.sites);
            // What is thrown is allocated too.
            assert_eq!(report.totals.allocations, report.totals.frees, "{name}");
            assert!(report.mismatches.is_empty(), "{name}: {:?}", report.mismatches);
            // Where both forms are one function, it can't be known which was called.
            let new = ["new", "new[]"].iter().map(|&function| report.totals.functions[function]).sum::<u64>();
            assert_eq!(new, 2 * 1200, "{name}: {:?}", report.totals.functions);
        }
        let after = State::of(asked.running.pid());
        assert_eq!(
            (after.code, after.descriptors, after.threads),
            (before.code, before.descriptors, before.threads)
        );
    }
}

/// Without symbols nobody can tell that `new` is jemalloc's, and which threads are in the middle of it.
#[test]
fn of_an_allocator_in_a_program_without_symbols_it_is_said_what_is_not_known() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let stripped = dir.path().join("stripped");
    let program = programs::program_with("news", "libjemalloc.a");
    let output = Command::new("strip").arg("-o").args([&stripped, &program]).output().expect("strip");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut asked = Asked::start(&mut Command::new(&stripped));
    let attached = Attached::to(asked.running.pid(), dir.path(), &[]);
    let line = asked.work();
    assert!(line.starts_with("asked 24, threw 4"), "{line}");
    let (report, said) = attached.end();
    assert_eq!(report.totals.before, None);
    let unknown =
        "its malloc is in stripped, which has no symbols that say where all of the allocator's code is";
    assert!(said.contains(unknown), "{said}");
    assert!(
        said.contains("new and delete are those of the program: what new gives out is not recorded"),
        "{said}"
    );
    assert_eq!(report.totals.functions["new"], 0);
}

/// Which of the families of fewer functions are allocators shows in what they do from then on.
#[test]
fn families_of_fewer_functions_are_told_apart() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let mut asked = Asked::start(Command::new(programs::program("may_be_allocators")).arg("asked"));
    asked.work();
    for _ in 0..2 {
        let attached = Attached::to(asked.running.pid(), dir.path(), &[]);
        asked.work();
        asked.work();
        let (report, said) = attached.end();
        assert!(said.contains("nothing of the agent is left"), "{said}");
        let mut found: Vec<_> =
            report.heaps.iter().map(|heap| (heap.name.as_str(), heap.totals.allocations)).collect();
        found.sort_unstable();
        let right =
            [("arena_malloc", 804), ("mapped_malloc", 600), ("nodes_malloc", 600), ("pieces_malloc", 2040)];
        assert_eq!(found, right);
    }
}

/// An allocator with a prefix, which the program has in itself and exports to nobody.
#[test]
fn a_family_with_a_prefix_is_a_heap_of_its_own() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let mut asked = Asked::start(Command::new(programs::program("own_family")).arg("asked"));
    asked.work();
    let before = State::of(asked.running.pid());
    for _ in 0..3 {
        let attached = Attached::to(asked.running.pid(), dir.path(), &[]);
        asked.work();
        asked.work();
        let (report, said) = attached.end();
        assert!(said.contains("nothing of the agent is left"), "{said}");
        let heap = report.heaps.iter().find(|heap| heap.name == "own_malloc").expect("a heap");
        let totals = &heap.totals;
        assert_eq!((totals.allocations, totals.reallocations), (600, 200), "{totals:?}");
        assert_eq!((totals.live_allocations, totals.live_bytes), (1, 139), "{totals:?}");
        assert!(report.totals.functions["malloc"] >= 600, "{:?}", report.totals);
        assert_eq!(report.totals.functions["aligned_alloc"], 200);
    }
    assert_eq!(State::of(asked.running.pid()), before);
}

/// What is mimalloc's by names of its own is of the same heap as what is by libc's.
#[test]
fn other_names_of_the_programs_allocator_are_its_heap() {
    if !may_trace() {
        return;
    }
    let library = Path::new("/usr/lib/x86_64-linux-gnu/libmimalloc.so.2");
    assert!(library.exists(), "./test installs it");
    let dir = temporary_dir();
    let mut command = Command::new(programs::program("by_prefix"));
    let mut asked = Asked::start(command.arg("mi_").env("LD_PRELOAD", library));
    let attached = Attached::to(asked.running.pid(), dir.path(), &[]);
    asked.work();
    let (report, said) = attached.end();
    assert!(said.contains("nothing of the agent is left"), "{said}");
    let totals = &report.totals;
    assert_eq!((totals.allocations, totals.frees, totals.live_allocations), (200, 200, 0), "{totals:?}");
    assert_eq!(of(&report, "work"), (200, 100 * 100 + 100 * 200));
}

/// What a function of a family throws comes where it is caught: such a family is left alone, also where the unwinder has no name.
#[test]
fn a_family_that_throws_is_left_alone() {
    if !may_trace() {
        return;
    }
    let named = programs::program("throwing_family");
    for program in [named, programs::program_with_own_unwinder("throwing_family", "pool_")] {
        let dir = temporary_dir();
        let mut asked = Asked::start(&mut Command::new(program));
        let attached = Attached::to(asked.running.pid(), dir.path(), &[]);
        assert_eq!(asked.work(), "100 caught");
        let (report, _) = attached.end();
        assert!(report.totals.functions["malloc"] >= 200, "{:?}", report.totals);
        assert!(report.heaps.iter().all(|heap| heap.totals.allocations == 0));
        assert_eq!(asked.work(), "100 caught");
    }
}

/// The same of one that comes when the process is recorded already.
#[test]
fn a_family_that_comes_later_and_throws_is_left_alone() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let library = programs::cxx_library("throwing_family");
    let mut asked = Asked::start(Command::new(programs::program("late_family")).arg(library));
    let attached = Attached::to(asked.running.pid(), dir.path(), &[]);
    for _ in 0..2 {
        assert_eq!(asked.work(), "100 caught");
    }
    let (report, said) = attached.end();
    assert!(said.contains("nothing of the agent is left"), "{said}");
    assert!(report.totals.functions["malloc"] >= 200, "{:?}", report.totals);
    assert_eq!(asked.work(), "100 caught");
}
