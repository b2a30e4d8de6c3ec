//! What LeakSanitizer and memcheck say of the same programs. docs/leaks.md tells where they differ, and why.

use grapnel_tests::leaks::{at, kinds, leak_sanitizer, memcheck, paths, total};
use grapnel_tests::programs;
use grapnel_tests::run::{Case, grapnel};
use serde_json::Value;
use std::ffi::OsStr;

/// What is found at a program's end. `more`: what else is asked for.
fn found(case: &Case, options: &[&str], more: &[&str]) -> Value {
    let case = options.iter().fold(case.clone().option("--leaks"), |case, option| case.option(option));
    let recorded = case.recorded();
    let options = ["leaks", "--format", "json"].iter().chain(more).map(OsStr::new);
    let outcome = grapnel(options.chain([recorded.trace().as_ref()]));
    assert!(outcome.status.success(), "{}", outcome.err());
    serde_json::from_slice(&outcome.stdout).unwrap()
}

/// Lost blocks and bytes, directly or not.
fn lost(found: &Value) -> (u64, u64) {
    let (direct, indirect) = (total(found, "direct"), total(found, "indirect"));
    (direct.0 + indirect.0, direct.1 + indirect.1)
}

/// LeakSanitizer looks through no memory that the program mapped, and takes any pointer into a block for one to it.
fn agrees_with_leak_sanitizer(name: &str) {
    let Some(theirs) = leak_sanitizer(&Case::new(programs::leak_sanitized_program(name)), false) else {
        return;
    };
    assert_eq!(lost(&found(&Case::ours(name), &["--no-mappings"], &[])), theirs, "{name}");
}

/// By memcheck's policy its figures are found. What libc keeps of threads both call possibly lost, larger by what the agent adds
/// to it; and memcheck lets libc free what it keeps of threads that have ended.
fn agrees_with_memcheck(name: &str, ended: u64) {
    let found = found(&Case::ours(name), &["--interior", "known"], &[]);
    let [definitely, indirectly, possibly] = memcheck(&Case::ours(name));
    assert_eq!([total(&found, "direct"), total(&found, "indirect")], [definitely, indirectly], "{name}");
    assert_eq!(total(&found, "possible").0, possibly.0 + ended, "{name}");
}

#[test]
fn blocks_of_c_are_judged_alike() {
    agrees_with_leak_sanitizer("lost");
    agrees_with_memcheck("lost", 0);
}

#[test]
fn objects_of_cxx_are_judged_alike() {
    agrees_with_leak_sanitizer("lost_objects");
    agrees_with_memcheck("lost_objects", 1);
}

#[test]
fn what_threads_hold_is_judged_alike() {
    agrees_with_leak_sanitizer("lost_threads");
    agrees_with_memcheck("lost_threads", 1);
    let found = found(&Case::ours("lost_threads"), &[], &["--reachable"]);
    for (mark, bytes, root) in [
        ("HELD variable", 1001, "thread-local"),
        ("HELD key", 1002, "thread-local"),
        ("HELD below a signal", 1003, "stack"),
        ("HELD below another stack", 1004, "stack"),
    ] {
        assert_eq!(at(&found, "lost_threads.c", mark), kinds(&[("reachable", 1, bytes)]), "{mark}");
        assert_eq!(paths(&found, "lost_threads.c", mark)[0]["root"]["kind"], root, "{mark}");
    }
    assert_eq!(at(&found, "lost_threads.c", "LOST with a thread"), kinds(&[("direct", 1, 2001)]));
    assert_eq!(at(&found, "lost_threads.c", "LOST with a stack"), kinds(&[("direct", 1, 2002)]));
}

/// Blocks that a real program has lost by hand, among its own: both others find these and nothing else.
const LOSES: &str = "
import ctypes, json, re, threading
libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
for n in range(20):
    libc.calloc(1, 1000 + n)
threading.Thread(target=lambda: json.dumps([1] * 9)).start()
print(len(re.findall('a+', 'abaab')))
";

#[test]
fn real_programs_are_judged_alike() {
    let python = Case::new("/usr/bin/python3").args(["-c", LOSES]).env("PYTHONMALLOC", "malloc");
    let jq = Case::new("/usr/bin/jq")
        .args(["-n", "[range(2000) | {a: ., b: \"x\\(.)\"}] | group_by(.a % 7) | length"]);
    let sql = "create table t(x); insert into t values (1), (2); select sum(x) from t";
    let sqlite = Case::new("/usr/bin/sqlite3").args([":memory:", sql]);
    for (case, expected) in [(python, (20, 20_190)), (jq, (0, 0)), (sqlite, (0, 0))] {
        let [definitely, indirectly, _] = memcheck(&case);
        assert_eq!(
            (definitely.0 + indirectly.0, definitely.1 + indirectly.1),
            expected,
            "{case:?}: memcheck"
        );
        if let Some(theirs) = leak_sanitizer(&case, true) {
            assert_eq!(theirs, expected, "{case:?}: LeakSanitizer");
        }
        for options in [&["--no-mappings"][..], &["--interior", "known"]] {
            let ours = lost(&found(&case, options, &[]));
            // libc gives memory out anew: a word that was left in it may hold one or two of them.
            let hidden = (expected.0 - ours.0.min(expected.0), expected.1 - ours.1.min(expected.1));
            assert!(ours.0 <= expected.0 && hidden.0 <= 2 && hidden.1 <= 2 * 1020, "{case:?}: {ours:?}");
        }
    }
}
