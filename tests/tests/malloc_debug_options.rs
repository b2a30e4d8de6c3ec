//! Android's malloc_debug: each option, with the agent alone in a program that does what it mustn't.

use grapnel_tests::programs::{machine, recorder};
use grapnel_tests::run::{Case, Outcome, temporary_dir};
use std::collections::HashMap;
use std::path::Path;

/// Runs `malloc_wrong WHAT 100 FILE` with these options.
fn run(dir: &Path, options: &str, what: &str) -> Outcome {
    let path = Case::new(recorder()).arg("agent-path").env("XDG_CACHE_HOME", dir).bare();
    Case::ours("malloc_wrong")
        .args([what, "100"])
        .arg(dir.join("asked"))
        .env("LD_PRELOAD", path.out().trim_end())
        .env("LIBC_DEBUG_MALLOC_OPTIONS", options.replace("DIR", &dir.display().to_string()))
        .bare()
}

/// The lines of standard error, without the name before each.
fn said(outcome: &Outcome) -> Vec<String> {
    let text = outcome.err();
    let line = |line: &str| line.strip_prefix("malloc_debug: ").expect("each line has the name").to_owned();
    text.lines().map(line).collect()
}

/// The functions of the frames below a line.
fn frames(lines: &[String], below: &str) -> Vec<String> {
    let at = lines.iter().position(|line| line == below).unwrap_or_else(|| panic!("no {below}: {lines:#?}"));
    let frames = lines[at + 1..].iter().take_while(|line| line.contains("  pc "));
    frames.map(|line| line.split(['(', '+']).nth(1).unwrap_or_default().to_owned()).collect()
}

/// What the program printed, by lines; the first is the address of the block that it did something to.
fn printed(outcome: &Outcome) -> (String, Vec<String>) {
    let text = outcome.out();
    let mut lines = text.lines().map(str::to_owned);
    (lines.next().expect("an address"), lines.collect())
}

fn fine(outcome: &Outcome) {
    assert!(outcome.status.success(), "{:?}: {}{}", outcome.status, outcome.out(), outcome.err());
}

#[test]
fn a_write_beyond_either_end_is_told_with_both_backtraces() {
    let dir = temporary_dir();
    for (options, what, name, bytes) in [
        ("rear_guard", "rear", "REAR", ["100] = 0x12 (expected 0xbb)", "131] = 0x00 (expected 0xbb)"]),
        ("front_guard", "front", "FRONT", ["-32] = 0x07 (expected 0xaa)", "-1] = 0x00 (expected 0xaa)"]),
    ] {
        let outcome = run(dir.path(), &format!("bt bt_full {options}"), what);
        fine(&outcome);
        let (lines, (address, _)) = (said(&outcome), printed(&outcome));
        let first = format!("+++ ALLOCATION {address} SIZE 100 HAS A CORRUPTED {name} GUARD");
        let shown: Vec<String> = bytes.iter().map(|text| format!("  allocation[{text}")).collect();
        assert_eq!((&lines[1], &lines[2..4]), (&first, &shown[..]), "{lines:#?}");
        assert_eq!(lines.iter().filter(|line| line.starts_with("*** ")).count(), 2, "one report: {lines:#?}");
        assert_eq!(frames(&lines, "Backtrace at time of allocation:")[..2], ["allocate_here", "main"]);
        assert_eq!(frames(&lines, "Backtrace at time of failure:")[..2], ["free_here", "main"]);
        // With the other guard, or a guard that is smaller, nobody notices.
        let other = if what == "rear" { "front_guard" } else { "rear_guard" };
        assert_eq!(run(dir.path(), other, "sound").err(), "");
    }
    // A block that shrinks has its guard where it ends now.
    let lines = said(&run(dir.path(), "guard", "shrunk"));
    assert!(lines[1].ends_with("SIZE 50 HAS A CORRUPTED REAR GUARD"), "{lines:#?}");
    assert_eq!(lines[2], "  allocation[50] = 0x12 (expected 0xbb)");
}

#[test]
fn what_is_right_passes_with_every_option() {
    let dir = temporary_dir();
    for options in [
        "",
        "guard",
        "front_guard=100 rear_guard=1",
        "guard=16384 fill expand_alloc=3 free_track=2 verify_pointers bt abort_on_error",
        "expand_alloc=16384 fill free_track",
        "record_allocs=3 bt_sz=100",
    ] {
        for what in ["sound", "aligned"] {
            let outcome = run(dir.path(), options, what);
            fine(&outcome);
            let full = "Maximum number of records added, all new operations will be dropped.";
            assert!(said(&outcome).iter().all(|line| line == full), "{options}: {}", outcome.err());
        }
    }
}

#[test]
fn blocks_are_filled_and_expanded() {
    let dir = temporary_dir();
    let printed_with = |options, what| printed(&run(dir.path(), options, what)).1;
    assert_eq!(printed_with("fill_on_alloc", "filled"), ["1 0", "1", "1 1", "1"]);
    assert_eq!(printed_with("fill_on_alloc=5", "filled"), ["0 1", "1", "1 0", "0"]);
    assert_eq!(printed_with("fill guard", "filled"), ["1 0", "1", "1 1", "1"]);
    assert_eq!(printed_with("fill_on_free", "filled")[0], "0 0");
    assert_eq!(printed_with("fill_on_free", "freed"), ["1 0"]);
    assert_eq!(printed_with("fill=20", "freed"), ["0 1"]);
    assert_eq!(printed_with("fill_on_alloc", "freed"), ["0 0"]);
    // The allocator rounds 24 + 100 up to 136; where words have 4 bytes, 24 up to 28.
    let is_narrow = machine().is_some_and(|machine| machine.starts_with("arm"));
    let [usual, expanded] = if is_narrow { ["28", "124"] } else { ["24", "136"] };
    assert_eq!(printed_with("expand_alloc=100", "expanded"), [expanded]);
    assert_eq!(printed_with("rear_guard", "expanded"), ["24"]);
    assert_eq!(printed_with("", "expanded"), [usual]);
}

#[test]
fn a_write_after_free_is_told_when_the_block_goes_and_at_the_exit() {
    let dir = temporary_dir();
    for options in ["free_track=3 bt_full", "free_track bt_full", "free_track guard bt_full"] {
        let outcome = run(dir.path(), options, "after");
        fine(&outcome);
        let (lines, (address, _)) = (said(&outcome), printed(&outcome));
        assert_eq!(
            lines[1..5],
            [
                format!("+++ ALLOCATION {address} USED AFTER FREE"),
                "  allocation[20] = 0xaf (expected 0xef)".into(),
                "  allocation[99] = 0x12 (expected 0xef)".into(),
                "Backtrace at time of free:".into(),
            ],
            "{options}"
        );
        assert_eq!(frames(&lines, "Backtrace at time of free:")[..2], ["free_here", "main"]);
        assert_eq!(lines.iter().filter(|line| line.starts_with("+++")).count(), 1, "{lines:#?}");
    }
    let lines = said(&run(dir.path(), "free_track free_track_backtrace_num_frames=0", "after"));
    assert!(!lines.iter().any(|line| line.contains("Backtrace")), "{lines:#?}");
    let lines = said(&run(dir.path(), "free_track free_track_backtrace_num_frames=1 bt_full", "after"));
    assert_eq!(frames(&lines, "Backtrace at time of free:"), ["free_here"]);
}

#[test]
fn pointers_that_nobody_gave_out_are_told_and_left_alone() {
    let dir = temporary_dir();
    let outcome = run(dir.path(), "free_track bt_full", "twice");
    fine(&outcome);
    let (lines, (address, rest)) = (said(&outcome), printed(&outcome));
    let headers: Vec<&String> = lines.iter().filter(|line| line.starts_with("+++")).collect();
    let used = |name| format!("+++ ALLOCATION {address} USED AFTER FREE ({name})");
    assert_eq!(headers, [&used("free"), &used("realloc")]);
    assert_eq!(rest, ["(nil)"]);
    assert_eq!(frames(&lines, "Backtrace of original free:")[0], "free_here");
    for options in ["verify_pointers", "bt", "guard", "leak_track"] {
        let outcome = run(dir.path(), options, "unknown");
        fine(&outcome);
        let (lines, (address, rest)) = (said(&outcome), printed(&outcome));
        let address = u64::from_str_radix(&address[2..], 16).expect("an address");
        let headers: Vec<&String> = lines.iter().filter(|line| line.starts_with("+++ ALLOC")).collect();
        let unknown =
            |offset, name| format!("+++ ALLOCATION {:#x} UNKNOWN POINTER ({name})", address + offset);
        let right = [unknown(16, "free"), unknown(32, "malloc_usable_size"), unknown(48, "realloc")];
        assert_eq!(headers, right.iter().collect::<Vec<_>>(), "{options}");
        assert_eq!(rest, ["0", "(nil)"]);
    }
    let outcome = run(dir.path(), "verify_pointers abort_on_error", "unknown");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&outcome.status), Some(6), "{}", outcome.err());
    assert_eq!(outcome.err().matches("+++").count(), 1);
}

#[test]
fn leaks_are_listed_at_the_exit() {
    let dir = temporary_dir();
    let outcome = run(dir.path(), "bt bt_full leak_track", "lost");
    fine(&outcome);
    let lines = said(&outcome);
    let headers: Vec<&str> =
        lines.iter().filter(|line| line.starts_with("+++")).map(String::as_str).collect();
    for (number, size) in [(1, 10002), (2, 10001), (3, 10000)] {
        let header = headers[number - 1];
        assert!(
            header.starts_with(&format!("+++ malloc_wrong leaked block of size {size} at 0x")),
            "{header}"
        );
        assert!(header.ends_with(&format!("(leak {number} of 3)")), "{header}");
        let at = lines.iter().position(|line| line == header).expect("it is there");
        assert_eq!(frames(&lines[at..], "Backtrace at time of allocation:")[..2], ["allocate_here", "main"]);
    }
    assert_eq!(headers.len(), 3);
    let outcome = run(dir.path(), "leak_track", "lost");
    assert_eq!(said(&outcome).len(), 3, "{}", outcome.err());
    // Who closes standard error before is told all the same, but for a child that does: what reads it may wait for its end.
    let outcome = run(dir.path(), "leak_track", "closing");
    fine(&outcome);
    assert_eq!(said(&outcome).len(), 1, "{}", outcome.err());
    assert_eq!(printed(&outcome).1, ["-1"], "what it is told by is closed in children");
    // Who ends by `_exit` has no exit.
    assert_eq!(run(dir.path(), "leak_track", "leave").err(), "");
}

/// Mark, size, blocks, frames.
type Record = (u64, u64, u64, usize);

/// A dump's header, and its records.
fn dump(text: &str) -> ([String; 3], Vec<Record>) {
    let (head, rest) = text.split_once("\n\nz ").expect("a blank line before the records");
    let rest = format!("z {rest}");
    let (records, maps) = rest.split_once("MAPS\n").expect("MAPS");
    assert!(maps.ends_with("\nEND\n"), "{maps}");
    assert!(maps.lines().any(|line| line.contains("libc.so.6")), "{maps}");
    let figures: Vec<String> = head
        .strip_prefix("Android Native Heap Dump v1.2\n\nBuild fingerprint: 'unknown'\n\n")
        .expect("the header")
        .lines()
        .map(str::to_owned)
        .collect();
    let record = |line: &str| {
        // "z %d  sz %8zu  num    %zu  bt"
        let (mark, rest) = line.strip_prefix("z ")?.split_once("  sz ")?;
        let (size, rest) = rest.split_once("  num    ")?;
        let (count, frames) = rest.split_once("  bt")?;
        assert!(size.len() >= 8, "{line}");
        let frames = frames.split(' ').filter(|frame| !frame.is_empty());
        let frames: Vec<u64> =
            frames.map(|frame| u64::from_str_radix(frame, 16).expect("a number")).collect();
        Some((mark.parse().ok()?, size.trim_start().parse().ok()?, count.parse().ok()?, frames.len()))
    };
    let lines = records.lines().filter(|line| !line.starts_with("  bt_info"));
    let all = lines.map(|line| record(line).unwrap_or_else(|| panic!("{line}"))).collect();
    (figures.try_into().expect("three lines"), all)
}

fn files(dir: &Path, prefix: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = std::fs::read_dir(dir)
        .expect("the directory is there")
        .flatten()
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .filter(|(name, _)| name.starts_with(prefix))
        .map(|(name, path)| (name, std::fs::read_to_string(path).expect("a text")))
        .collect();
    found.sort();
    found
}

#[test]
fn signals_toggle_backtraces_and_ask_for_dumps() {
    let dir = temporary_dir();
    let outcome = run(dir.path(), "bt_en_on_sig=4 bt_full bt_dmp_pre=DIR/heap verbose", "toggled");
    fine(&outcome);
    let found = files(dir.path(), "heap.");
    assert_eq!(found.len(), 1, "{found:#?}");
    let (name, text) = &found[0];
    let process =
        name.strip_prefix("heap.").and_then(|rest| rest.strip_suffix(".txt")).expect("heap.PID.txt");
    let lines = said(&outcome);
    for line in [
        format!("Run: 'kill -45 {process}' to enable backtracing."),
        format!("Run: 'kill -47 {process}' to dump the backtrace."),
        format!("Dumping to file: {}", dir.path().join(name).display()),
    ] {
        assert!(lines.contains(&line), "{line}: {lines:#?}");
    }
    let (figures, records) = dump(text);
    assert_eq!(figures, ["Total memory: 21106", "Allocation records: 4", "Backtrace size: 4"]);
    assert_eq!(records, [(0, 7003, 1, 0), (0, 7002, 1, 4), (0, 7001, 1, 0), (0, 100, 1, 0)]);
    let info: Vec<&str> = text.lines().filter(|line| line.starts_with("  bt_info {\"")).collect();
    assert_eq!(info.len(), 1, "{text}");
    assert!(info[0].contains("malloc_wrong\" ") && info[0].contains(" \"allocate_here\" "), "{}", info[0]);
    assert!(info[0].contains(" \"main\" ") && info[0].matches('{').count() == 4, "{}", info[0]);
    // It was asked for when the block was there, and made in the call that freed it.
    assert_eq!(printed(&outcome).1, ["-1", "-1"]);
}

#[test]
fn a_dump_is_made_at_the_exit_with_backtraces_of_the_sizes_that_are_asked_for() {
    let dir = temporary_dir();
    let sizes = |options: &str, prefix: &str| {
        let outcome =
            run(dir.path(), &format!("bt=2 bt_dmp_on_ex bt_dmp_pre=DIR/{prefix} {options}"), "lost");
        fine(&outcome);
        let found = files(dir.path(), &format!("{prefix}."));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].0.ends_with(".exit.txt"), "{}", found[0].0);
        let traced = dump(&found[0].1).1.into_iter();
        traced.map(|(_, size, _, frames)| (size, frames)).collect::<Vec<_>>()
    };
    assert_eq!(sizes("", "all"), [(10002, 2), (10001, 2), (10000, 2)]);
    assert_eq!(sizes("bt_sz=10001", "one"), [(10002, 0), (10001, 2), (10000, 0)]);
    assert_eq!(sizes("bt_min_sz=10001", "least"), [(10002, 2), (10001, 2), (10000, 0)]);
    assert_eq!(sizes("bt_max_sz=10001", "most"), [(10002, 0), (10001, 2), (10000, 2)]);
    let outcome = run(dir.path(), "bt bt_dmp_on_ex bt_dmp_pre=DIR/none/heap", "leave-in-order");
    fine(&outcome);
    let [line] = &said(&outcome)[..] else { panic!("{}", outcome.err()) };
    assert!(
        line.starts_with("Cannot create file ") && line.ends_with(".exit.txt: No such file or directory"),
        "{line}"
    );
}

#[test]
fn every_call_is_recorded_in_androids_lines() {
    let dir = temporary_dir();
    let outcome =
        run(dir.path(), "record_allocs record_allocs_file=DIR/asked record_allocs_on_exit", "recorded");
    fine(&outcome);
    let found = files(dir.path(), "asked");
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let (asked, rest) = (&found[0].1, &found[1].1);
    let (first, printed) = printed(&outcome);
    let process = names[1].strip_prefix("asked.").expect("asked.PID").to_owned();
    let [second, zeroed, aligned, page, pages, thread, there] = &printed[..] else {
        panic!("{printed:?}");
    };
    assert_eq!(there, "0", "the signal's handler writes the file itself");
    let mut times = 0;
    let mut lines: Vec<String> = Vec::new();
    for line in asked.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let stamps = if words[1] == "thread_done" { 1 } else { 2 };
        let (said, stamps) = words.split_at(words.len() - stamps);
        let stamps: Vec<u64> = stamps.iter().map(|stamp| stamp.parse().expect("nanoseconds")).collect();
        assert!(stamps.is_sorted() && stamps[0] > 0, "{line}");
        times += 1;
        lines.push(said.join(" "));
    }
    assert!(times > 10);
    for right in [
        format!("{process}: malloc {first} 100"),
        format!("{process}: realloc {second} {first} 200"),
        format!("{process}: free {second}"),
        format!("{process}: calloc {zeroed} 3 5"),
        format!("{process}: memalign {aligned} 64 40"),
        format!("{process}: memalign {page} 4096 41"),
        format!("{process}: memalign {pages} 4096 4096"),
        format!("{thread}: thread_done 0x0"),
    ] {
        assert_eq!(lines.iter().filter(|line| **line == right).count(), 1, "{right}: {lines:#?}");
    }
    let in_thread: Vec<&String> = lines.iter().filter(|line| line.starts_with(thread.as_str())).collect();
    assert!(in_thread[0].ends_with(" 70") && in_thread.len() == 3, "{in_thread:#?}");
    // A block's end is before it is given out again, as a reader of the lines sees it.
    let mut live: HashMap<&str, bool> = HashMap::new();
    for line in &lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words[1] {
            "free" => assert_eq!(live.remove(words[2]), Some(true), "{line}"),
            "thread_done" => {}
            "realloc" => {
                live.remove(words[3]);
                assert_eq!(live.insert(words[2], true), None, "{line}");
            }
            _ => assert_eq!(live.insert(words[2], true), None, "{line}"),
        }
    }
    // What came after is left for the exit.
    assert!(
        rest.lines().next().is_some_and(|line| line.contains(": malloc ") && line.contains(" 77 ")),
        "{rest}"
    );
    assert_eq!(rest.lines().count(), 2, "{rest}");
    // When so many are there, no more are.
    let few = temporary_dir();
    let outcome =
        run(few.path(), "record_allocs=4 record_allocs_file=DIR/calls record_allocs_on_exit", "recorded");
    assert_eq!(said(&outcome)[0], "Maximum number of records added, all new operations will be dropped.");
    assert_eq!(files(few.path(), "calls")[0].1.lines().count(), 4);
}

#[test]
fn a_signal_has_the_process_find_what_nothing_leads_to() {
    let dir = temporary_dir();
    let outcome = run(dir.path(), "bt bt_full verbose check_unreachable_on_signal", "unreachable");
    fine(&outcome);
    let lines = said(&outcome);
    assert!(
        lines.iter().any(|line| line.starts_with("Run: 'kill -48 ") && line.ends_with("unreachable memory.")),
        "{lines:#?}"
    );
    let at =
        lines.iter().position(|line| line == "Unreachable memory").unwrap_or_else(|| panic!("{lines:#?}"));
    let text: Vec<&str> =
        lines[at..].iter().map(String::as_str).filter(|line| !line.contains(" 0x")).collect();
    let all = 2 * (8002 + 8003) + 8004 + 8005;
    assert_eq!(text[1], format!("  {all} bytes in 6 unreachable allocations"), "{lines:#?}");
    let sites: Vec<&&str> = text.iter().filter(|line| line.contains(" bytes unreachable at ")).collect();
    assert_eq!(sites.len(), 2, "a circle and two chains: {lines:#?}");
    assert!(sites[0].starts_with("  8004 bytes ") && sites[1].starts_with("  8002 bytes "), "{lines:#?}");
    for right in [
        "   referencing 8005 unreachable bytes in 1 allocation",
        "   and 8002 similar unreachable bytes in 1 allocation",
        "   referencing 16006 unreachable bytes in 2 allocations",
    ] {
        assert!(text.contains(&right), "{right}: {lines:#?}");
    }
    let frames = lines[at..].iter().filter(|line| line.contains("(lose+")).count();
    assert_eq!(frames, 2, "{lines:#?}");
    // The program never sees the copy of itself that looked.
    assert_eq!(printed(&outcome).1, ["-1"]);
}
