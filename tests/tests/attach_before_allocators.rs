//! What a process had allocated before `grapnel attach` from jemalloc or mimalloc, against its own count.

use grapnel_tests::attaching::{Running, may_trace};
use grapnel_tests::older::{Older, attached, is_as_it_counts_in_storms};
use grapnel_tests::report::Before;
use grapnel_tests::run::{grapnel, report, temporary_dir};
use grapnel_tests::{programs, skipped};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const JEMALLOC: &str = "libjemalloc.so.2";
const MIMALLOC: &str = "libmimalloc.so.2";

/// A library of Debian's, if it is installed.
fn library(name: &str) -> Option<PathBuf> {
    let library = Path::new("/usr/lib/x86_64-linux-gnu").join(name);
    let is_there = library.exists();
    if !is_there {
        skipped("blocks of another allocator", &format!("there is no {name}"));
    }
    is_there.then_some(library)
}

/// How `older` is started with another's `malloc`: preloaded, or linked into it.
fn with(name: &str) -> Option<Command> {
    let mut command;
    if name.ends_with(".a") {
        library(name)?;
        command = Command::new(programs::c_program_with("older", name));
    } else {
        let library = library(name)?;
        command = Command::new(programs::program("older"));
        command.env("LD_PRELOAD", library);
    }
    Some(command)
}

/// What is there is what it counts, each time that it is looked at, and what it frees then is what was there.
fn is_as_it_counts(name: &str, options: &[&str], bytes: impl Fn(u64, u64) -> bool) {
    let Some(mut command) = with(name).filter(|_| may_trace()) else { return };
    let dir = temporary_dir();
    let mut older = Older::of(command.arg("").args(options));
    let before = |older: &Older| {
        let (found, said) = attached(dir.path(), older.pid());
        found.totals.before.unwrap_or_else(|| panic!("{name}: {said}"))
    };
    // What libc has for itself.
    let bare = before(&older);
    let (stage, own) = older.go_on();
    assert!(stage == 2 && own.allocations > 50_000, "{own:?}");
    for _ in 0..3 {
        let all = before(&older);
        assert_eq!(all.allocations - own.allocations, bare.allocations, "{name}");
        assert!(bytes(all.bytes - bare.bytes, own.bytes), "{name}: {all:?}, {own:?}, {bare:?}");
    }
    let trace = dir.path().join("t.grapnel");
    let mut command = Command::new(programs::grapnel());
    command.args(["attach", "-o"]).arg(&trace).arg(older.pid().to_string()).stderr(Stdio::piped());
    let mut recorder = Running::start(&mut command);
    let mut said = BufReader::new(recorder.0.stderr.take().expect("what it says")).lines();
    let begun = said.next().expect("a line").expect("text");
    assert!(begun.contains(" of before, with "), "{begun}");
    assert_eq!(older.go_on(), (3, Before { allocations: 0, bytes: 0 }));
    let detached = grapnel(["detach", &older.pid().to_string()]);
    assert_eq!(detached.status.code(), Some(0), "{}", detached.err());
    assert_eq!(recorder.0.wait().expect("it ends").code(), Some(0));
    let totals = report(&trace).totals;
    assert_eq!((totals.allocations, totals.reallocations, totals.lost_events), (0, 0, 0), "{name}");
    assert_eq!(totals.frees, own.allocations, "{name}");
    assert_eq!((totals.live_allocations, totals.live_bytes), (bare.allocations, bare.bytes), "{name}");
    // And all that is left is as it was.
    assert_eq!(before(&older), bare, "{name}");
}

#[test]
fn blocks_of_jemalloc_are_known_to_the_byte() {
    is_as_it_counts(JEMALLOC, &[], |all, own| all == own);
}

#[test]
fn blocks_of_jemalloc_in_the_program_are_known_to_the_byte() {
    is_as_it_counts("libjemalloc.a", &[], |all, own| all == own);
}

#[test]
fn blocks_of_mimalloc_are_known_to_the_byte() {
    is_as_it_counts(MIMALLOC, &["unaligned"], |all, own| all == own);
}

/// Where in a block the program was given an address is known to nobody else: up to the alignment and more is counted that
/// it can't use.
#[test]
fn of_mimallocs_pages_with_aligned_blocks_all_is_counted() {
    is_as_it_counts(MIMALLOC, &[], |all, own| (own..own + own / 10).contains(&all));
    let Some(mut command) = with(MIMALLOC).filter(|_| may_trace()) else { return };
    let dir = temporary_dir();
    let mut older = Older::of(command.arg(""));
    older.go_on();
    let (_, said) = attached(dir.path(), older.pid());
    assert!(said.contains("the program may use less than is counted"), "{said}");
}

#[test]
fn threads_in_the_middle_of_another_malloc_are_waited_for() {
    for name in [JEMALLOC, "libjemalloc.a", MIMALLOC] {
        let Some(mut command) = with(name).filter(|_| may_trace()) else { continue };
        is_as_it_counts_in_storms(&mut command, &["unaligned"]);
    }
}

#[test]
fn a_heap_of_mimalloc_that_was_overwritten_is_refused() {
    let Some(mut command) = with(MIMALLOC).filter(|_| may_trace()) else { return };
    let dir = temporary_dir();
    let mut older = Older::of(command.arg("freed-over"));
    assert_eq!(older.go_on().0, 2);
    let (found, said) = attached(dir.path(), older.pid());
    assert_eq!(found.totals.before, None, "{said}");
    let why = "the heap's structure was not understood: a list of free blocks at 0x4141414141414141";
    assert!(said.contains(why), "{said}");
}

/// jemalloc keeps nothing in blocks: an arena's own variables are changed from outside.
#[test]
fn a_heap_of_jemalloc_that_does_not_agree_with_what_it_counts_is_refused() {
    let Some(mut command) = with(JEMALLOC).filter(|_| may_trace()) else { return };
    let dir = temporary_dir();
    let mut older = Older::of(command.arg(""));
    assert_eq!(older.go_on().0, 2);
    let (found, said) = attached(dir.path(), older.pid());
    assert!(found.totals.before.is_some(), "{said}");
    let changed = jemallocs_first_arena(older.pid()).map(|(memory, arena)| {
        // How many of the smallest blocks it has given out.
        let counted = arena + 0x13468 + 136;
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, counted).expect("its memory");
        let more = u64::from_ne_bytes(bytes) + 1;
        memory.write_all_at(&more.to_ne_bytes(), counted).expect("its memory");
    });
    assert!(changed.is_some(), "an arena");
    let (found, said) = attached(dir.path(), older.pid());
    assert_eq!(found.totals.before, None, "{said}");
    let why = "the heap's structure was not understood: an arena with other blocks than it has counted at 0x";
    assert!(said.contains(why), "{said}");
}

/// The first arena, and the memory that it lies in: what has the number 0 twice, and two words alike before and behind that.
fn jemallocs_first_arena(pid: u32) -> Option<(File, u64)> {
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).ok()?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    for line in maps.lines().filter(|line| line.contains("rw-p") && line.ends_with(" 0 ")) {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap_or(0));
        let mut bytes = vec![0; usize::try_from(end - start).ok()?];
        if bytes.len() > 64 << 20 || memory.read_exact_at(&mut bytes, start).is_err() {
            continue;
        }
        let word = |at: usize| {
            bytes.get(at..at + 8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
        };
        let is_arena = |&at: &usize| {
            let base = word(at + 0x13448);
            word(at + 0x13428) == Some(0)
                && word(at + 0x13450) == Some(0)
                && base.is_some_and(|base| base > 4096)
                && word(at + 0x13458) == base
                && word(at + 0x13440).is_some_and(|tree| tree > 4096)
        };
        if let Some(at) = (0..bytes.len()).step_by(64).find(is_arena) {
            return Some((memory, start + at as u64));
        }
    }
    None
}

#[test]
fn of_allocators_that_are_not_known_it_is_said() {
    let Some(mut command) = with("libtcmalloc_minimal.so.4").filter(|_| may_trace()) else { return };
    let dir = temporary_dir();
    let mut older = Older::of(command.arg(""));
    assert_eq!(older.go_on().0, 2);
    let (found, said) = attached(dir.path(), older.pid());
    assert_eq!(found.totals.before, None, "{said}");
    let why = "what was allocated before isn't known: its malloc is that of libtcmalloc_minimal.so.4";
    assert!(said.contains(why), "{said}");
}
