//! `grapnel attach` to programs of other C libraries, and to those that have theirs in themselves: what is recorded is what the
//! program counts, and nothing is left.

use grapnel_tests::attaching::{Running, State, attach, may_trace};
use grapnel_tests::counted::{Attached, Counted, leads, recorded};
use grapnel_tests::programs::{self, Linking};
use grapnel_tests::run::{finish, temporary_dir};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Blocks from threads that were there, that begin and end meanwhile, some of which others give back later.
fn is_as_it_counts(program: &Path) {
    is_as_it_counts_with(program, None);
}

/// `preloaded`: the library whose `malloc` it calls.
fn is_as_it_counts_with(program: &Path, preloaded: Option<&Path>) {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let start = || {
        let mut command = Command::new(program);
        if let Some(library) = preloaded {
            command.env("LD_PRELOAD", library);
        }
        command
    };
    let mut counted = Counted::start(&mut start());
    let pid = counted.running.pid();
    let before = State::of(pid);
    let idle = attach(dir.path(), pid, &["--for", "0.1"]);
    assert_eq!(idle.status.code(), Some(0), "{}", idle.err());
    assert!(idle.err().contains("nothing of the agent is left"), "{}", idle.err());
    assert_eq!(State::of(pid), before, "nothing happened meanwhile");

    for round in 0..3 {
        let attached = Attached::to(pid, dir.path(), &[]);
        let first = counted.work();
        let second = counted.work();
        let (report, said) = attached.end();
        assert!(said.contains("nothing of the agent is left"), "{said}");
        assert!(!said.contains("is not recorded"), "{said}");
        assert_eq!(State::of(pid).code, before.code, "its code is as it was");
        assert_eq!(report.totals.lost_events, 0);
        let mut seen = recorded(&report);
        // What libc gives back of its own, and what is from before, is nobody's figure.
        assert!(seen.gave >= second.gave, "{seen:?}");
        seen.gave = first.gave + second.gave;
        let (got, changed) = (first.got + second.got, first.changed + second.changed);
        assert_eq!((seen.got, seen.changed), (got, changed), "round {round}: blocks");
        assert_eq!(seen.bytes, first.bytes + second.bytes, "round {round}: bytes");
        assert_eq!((seen.live, seen.live_bytes), (second.live, second.live_bytes), "round {round}: live");
        // From the block to the program's start: of threads to theirs.
        let stacks = [["make", "work", "bout", "main"].as_slice(), &["make", "work", "work_once"]];
        for stack in stacks {
            assert!(report.sites.iter().any(|site| leads(site, stack)), "{stack:?}: {:?}", report.sites);
        }
        // Each thread maps pages once in a bout; the heap's own and those of stacks are none of these. tcmalloc has a `mmap` too.
        let has_own = preloaded.is_some_and(|library| library.ends_with("libtcmalloc_minimal.so.4"));
        let mapped = if has_own { 0 } else { 2 * 43 };
        assert_eq!(report.mappings.totals.mappings, mapped, "{:?}", report.mappings.sites);
        assert_eq!(report.mappings.totals.live_mappings, 0);
    }
    let bare = finish(&mut start(), b"ggggggg");
    let last = bare.out().lines().last().map(str::to_owned);
    let next = counted.work();
    assert_eq!(next.got, 4300);
    assert!(
        last.is_some_and(|line| line.starts_with(&format!("{} ", counted.so_far.got))),
        "it works as ever"
    );
}

#[test]
fn with_glibc() {
    is_as_it_counts(&programs::linked_program("counted", Linking::Glibc));
}

/// With those of before 2.34 and their library for threads, and with a newer one.
#[test]
fn with_glibc_of_other_releases() {
    for glibc in programs::other_glibcs() {
        is_as_it_counts(&programs::program_with_glibc("counted", &glibc));
    }
}

/// Whose `malloc` the program calls, from the loader's point of view, is its heap.
#[test]
fn with_an_allocator_that_is_preloaded() {
    for name in ["libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let library = Path::new("/usr/lib/x86_64-linux-gnu").join(name);
        is_as_it_counts_with(&programs::linked_program("counted", Linking::Glibc), Some(&library));
    }
}

#[test]
fn with_glibc_in_it() {
    is_as_it_counts(&programs::linked_program("counted", Linking::GlibcStatic));
}

#[test]
fn with_glibc_in_it_at_any_address() {
    is_as_it_counts(&programs::linked_program("counted", Linking::GlibcStaticPie));
}

#[test]
fn with_musl() {
    is_as_it_counts(&programs::linked_program("counted", Linking::Musl));
}

#[test]
fn with_musl_in_it() {
    is_as_it_counts(&programs::linked_program("counted", Linking::MuslStatic));
}

/// A program that `strip` went over, in a directory of its own.
fn stripped(program: &Path, dir: &Path, options: &[&str]) -> std::path::PathBuf {
    let copy = dir.join("stripped");
    let output =
        Command::new("strip").args(options).arg("-o").arg(&copy).arg(program).output().expect("strip");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    copy
}

#[test]
fn a_static_program_without_symbols_is_left_alone_with_a_reason() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    for linking in [Linking::GlibcStatic, Linking::MuslStatic] {
        let program = programs::linked_program("steady", linking);
        let without = Running::at_work(&stripped(&program, dir.path(), &[]), "600");
        let before = State::of(without.pid());
        let outcome = attach(dir.path(), without.pid(), &[]);
        assert_eq!(outcome.status.code(), Some(125), "{}", outcome.err());
        assert!(outcome.err().contains("static program without symbols"), "{}", outcome.err());
        assert!(outcome.err().contains("strip --strip-debug"), "{}", outcome.err());
        assert_eq!(State::of(without.pid()), before);
        drop(without);

        // What is said to help does.
        let program = stripped(&program, dir.path(), &["--strip-debug"]);
        let with = Running::at_work(&program, "600");
        let outcome = attach(dir.path(), with.pid(), &["--for", "0.5"]);
        assert_eq!(outcome.status.code(), Some(0), "{}", outcome.err());
    }
}

#[test]
fn a_static_program_without_a_heap_is_left_alone_with_a_reason() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let source = dir.path().join("heapless.c");
    // pause, for ever.
    let text = "void _start(void) { for (;;) { long result; __asm__ volatile(\"syscall\" : \"=a\"(result) : \"a\"(34) \
                : \"rcx\", \"r11\", \"memory\"); } }";
    fs::write(&source, text).expect("a file");
    let program = dir.path().join("heapless");
    let flags = ["-O1", "-static", "-nostdlib", "-ffreestanding", "-o"];
    let output = Command::new("gcc").args(flags).args([&program, &source]).output().expect("gcc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let running = Running::start(Command::new(&program).stdout(Stdio::null()));
    let outcome = attach(dir.path(), running.pid(), &[]);
    assert_eq!(outcome.status.code(), Some(125), "{}", outcome.err());
    assert!(outcome.err().contains("has no malloc and free"), "{}", outcome.err());
}
