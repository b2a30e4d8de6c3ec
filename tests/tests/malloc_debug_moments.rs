//! Android's malloc_debug where it could hang the program or end it: amid other threads, signals, forks, and limits.

use grapnel_tests::programs::recorder;
use grapnel_tests::run::{Case, Outcome, temporary_dir};
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// Runs `debug_moments WHAT` with these options. It takes seconds, unless it hangs.
fn run(dir: &Path, options: &str, what: &str) -> Outcome {
    let path = Case::new(recorder()).arg("agent-path").env("XDG_CACHE_HOME", dir).bare();
    Case::ours("debug_moments")
        .args([OsStr::new(what), dir.as_os_str()])
        .env("LD_PRELOAD", path.out().trim_end())
        .env("LIBC_DEBUG_MALLOC_OPTIONS", options.replace("DIR", &dir.display().to_string()))
        .patience(Duration::from_secs(100))
        .bare()
}

/// Checks that the program came to its end and printed this before.
fn goes_on(outcome: &Outcome, printed: &str) {
    assert!(outcome.status.success(), "{:?}: {}{}", outcome.status, outcome.out(), outcome.err());
    assert_eq!(outcome.out(), format!("{printed}goes on\n"), "{}", outcome.err());
}

/// Also where a thread allocates under a lock of libc's that the fork waits for.
#[test]
fn forks_while_threads_begin_come_to_their_end() {
    let dir = temporary_dir();
    let path = Case::new(recorder()).arg("agent-path").env("XDG_CACHE_HOME", dir.path()).bare();
    for options in ["backtrace", "backtrace guard free_track record_allocs"] {
        let outcome = Case::ours("fork_at_starts")
            .env("LD_PRELOAD", path.out().trim_end())
            .env("LIBC_DEBUG_MALLOC_OPTIONS", options)
            .patience(Duration::from_secs(100))
            .bare();
        assert!(outcome.status.success(), "{:?}: {}", outcome.status, outcome.err());
        assert_eq!(outcome.out(), "good 100\n", "{}", outcome.err());
    }
}

#[test]
fn a_thread_that_others_wait_for_in_the_allocator_is_asked_for_the_record() {
    let dir = temporary_dir();
    std::fs::create_dir(dir.path().join("child")).expect("a directory");
    for options in ["", "guard free_track bt=4"] {
        let options = format!("record_allocs=100000 record_allocs_file=calls {options}");
        let outcome = run(dir.path(), &options, "realloc");
        goes_on(&outcome, "25\n");
    }
    assert!(dir.path().join("calls").exists());
    assert!(!dir.path().join("child/calls").exists(), "nobody asked the children");
}

#[test]
fn the_allocator_ends_the_program_in_a_realloc_and_its_handlers_go_on() {
    let dir = temporary_dir();
    for (what, status, printed) in [("inside", 7, "6 0\n"), ("jump", 0, "goes on\n"), ("fault", 7, "11\n")] {
        let outcome = run(dir.path(), "record_allocs", what);
        assert_eq!((outcome.status.code(), outcome.out().as_str()), (Some(status), printed), "{what}");
    }
}

#[test]
fn blocks_that_were_freed_are_looked_at_while_other_threads_free() {
    let dir = temporary_dir();
    let outcome = run(dir.path(), "free_track=4", "end");
    goes_on(&outcome, "");
    assert_eq!(outcome.err(), "");
}

#[test]
fn a_handler_of_the_programs_for_the_end_may_allocate() {
    let dir = temporary_dir();
    let outcome = run(dir.path(), "guard record_allocs abort_on_error", "abort");
    assert_eq!(outcome.status.code(), Some(7), "{}", outcome.err());
    assert_eq!(outcome.out(), "6 0\n", "its signal, and none blocked");
}

#[test]
fn a_message_that_nobody_reads_and_a_file_that_is_too_long_end_nothing() {
    let dir = temporary_dir();
    goes_on(&run(dir.path(), "free_track", "unheard"), "");
    let outcome = run(dir.path(), "bt bt_dmp_pre=DIR/heap", "limit");
    goes_on(&outcome, "");
    assert!(outcome.err().contains(" is not whole: "), "{}", outcome.err());
}

#[test]
fn a_list_that_grew_at_its_front_is_found_with_all_that_hangs_on_it() {
    let dir = temporary_dir();
    let outcome = run(dir.path(), "check_unreachable_on_signal", "list");
    goes_on(&outcome, "lost\n");
    let text = outcome.err();
    assert!(text.contains("  4800000 bytes in 300000 unreachable allocations\n"), "{text}");
    assert!(text.contains("   referencing 4799984 unreachable bytes in 299999 allocations\n"), "{text}");
}

#[test]
fn each_request_for_a_look_counts_beside_a_thread_that_does_not_stand_still() {
    let dir = temporary_dir();
    let outcome = run(dir.path(), "check_unreachable_on_signal", "asked");
    goes_on(&outcome, "");
    let text = outcome.err();
    assert_eq!(text.matches("Starting to check").count(), 3, "{text}");
    assert_eq!(text.matches("1 threads did not stand still").count(), 2, "{text}");
}

#[test]
fn what_an_alternate_stack_holds_and_what_lies_below_it_is_known() {
    let dir = temporary_dir();
    let outcome = run(dir.path(), "check_unreachable_on_signal", "alternate");
    goes_on(&outcome, "");
    assert!(outcome.err().contains("No unreachable memory."), "{}", outcome.err());
}

#[test]
fn a_pipe_that_nobody_reads_is_not_waited_for() {
    let dir = temporary_dir();
    let pipe = dir.path().join("pipe");
    assert!(Case::new("mkfifo").arg(&pipe).bare().status.success());
    let outcome = run(dir.path(), "record_allocs record_allocs_file=DIR/pipe", "pipe");
    goes_on(&outcome, "");
    assert!(outcome.err().contains("Cannot create record alloc file"), "{}", outcome.err());
}

#[test]
fn a_block_that_lies_far_into_what_was_asked_for_is_refused() {
    let dir = temporary_dir();
    let outcome = run(dir.path(), "guard", "huge");
    goes_on(&outcome, "1\n");
    assert_eq!(outcome.err(), "");
}
