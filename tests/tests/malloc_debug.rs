//! Android's malloc_debug: the functions that a program calls, with the agent alone in it and under `grapnel run`.

use grapnel_tests::programs::recorder;
use grapnel_tests::run::{Case, Outcome, temporary_dir};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// What `grapnel agent-path` prints where this is the cache.
fn agent_path(cache: &Path) -> Outcome {
    Case::new(recorder()).arg("agent-path").env("XDG_CACHE_HOME", cache).bare()
}

fn agent(cache: &Path) -> PathBuf {
    let outcome = agent_path(cache);
    assert!(outcome.status.success(), "{}", outcome.err());
    PathBuf::from(outcome.out().trim_end())
}

/// The program with the agent alone and these options.
fn preloaded(case: Case, cache: &Path, options: &str) -> Case {
    case.env("LD_PRELOAD", agent(cache)).env("LIBC_DEBUG_MALLOC_OPTIONS", options)
}

fn info(cache: &Path, what: &str, options: &str, frames: &str) -> Outcome {
    preloaded(Case::ours("malloc_info").arg(what).arg(frames), cache, options).bare()
}

fn fine(outcome: &Outcome) {
    assert!(outcome.status.success(), "{:?}: {}", outcome.status, outcome.err());
}

#[test]
fn a_program_asks_for_its_blocks_and_each_field_is_right() {
    let dir = temporary_dir();
    for (options, frames) in [
        ("backtrace", "16"),
        ("bt=1", "1"),
        ("backtrace=256 leak_track verify_pointers", "256"),
        ("backtrace_enable_on_signal=5 backtrace=8 guard", "8"),
        ("bt=100 fill expand_alloc", "100"),
    ] {
        let outcome = info(dir.path(), "single", options, frames);
        fine(&outcome);
        assert_eq!(
            outcome.err().matches("At least one invalid parameter").count(),
            5,
            "{options}: {}",
            outcome.err()
        );
    }
}

#[test]
fn it_asks_while_other_threads_allocate_and_fork_sees_a_whole_table() {
    let dir = temporary_dir();
    for (options, frames) in [("backtrace", "16"), ("bt=3 guard fill", "3")] {
        let outcome = info(dir.path(), "threads", options, frames);
        fine(&outcome);
        assert_eq!(outcome.err(), "");
    }
}

#[test]
fn nothing_is_told_where_nothing_is_asked_for() {
    let dir = temporary_dir();
    let fine_with = |outcome: Outcome, right: &str| {
        fine(&outcome);
        assert_eq!(outcome.err(), right);
    };
    let untracked = "malloc_debug: get_malloc_leak_info: Allocations not being tracked, to enable set the option 'backtrace'.\n";
    fine_with(info(dir.path(), "off", "", "0"), untracked);
    fine_with(info(dir.path(), "off", "verify_pointers", "0"), untracked);
    let wrong = "malloc_debug: LIBC_DEBUG_MALLOC_OPTIONS: unknown option bactrace; docs/malloc-debug.md lists those that exist. Nothing is done\n";
    fine_with(info(dir.path(), "off", "backtrace bactrace", "0"), &format!("{wrong}{untracked}"));
    // From a signal on that doesn't come.
    fine_with(info(dir.path(), "off", "bt_en_on_sig", "0"), "");
    fine_with(Case::ours("malloc_info").arg("absent").bare(), "");
}

#[test]
fn a_recording_and_the_table_are_kept_at_once() {
    let case = Case::ours("malloc_info").args(["single", "16"]);
    let with = case.clone().env("LIBC_DEBUG_MALLOC_OPTIONS", "backtrace guard").option("--no-follow");
    let recorded = with.recorded();
    fine(&recorded.outcome);
    // The buffers of the table are in no record: all that was recorded was given back.
    let table = recorded.report().totals();
    assert!(table.allocations > 50, "{table:?}");
    assert_eq!((table.frees, table.live_allocations), (table.allocations, 0), "{table:?}");
    let (_, counted) = Case::ours("plain").counted(false);
    let plain = Case::ours("plain").env("LIBC_DEBUG_MALLOC_OPTIONS", "bt guard fill free_track leak_track");
    let recorded = plain.recorded();
    fine(&recorded.outcome);
    assert_eq!(recorded.report().totals(), counted[0].totals, "left: grapnel");
}

#[test]
fn the_agent_lies_where_only_its_user_can_write() {
    let dir = temporary_dir();
    let path = agent(dir.path());
    assert_eq!(agent(dir.path()), path);
    assert!(path.starts_with(dir.path().join("grapnel")), "{}", path.display());
    assert_eq!(path.metadata().expect("it is there").mode() & 0o777, 0o500);
    let folder = path.parent().expect("a folder");
    assert_eq!(folder.metadata().expect("it is there").mode() & 0o777, 0o700);
    // Another's bytes are replaced, and nothing is left beside.
    let good = std::fs::read(&path).expect("it can be read");
    std::fs::remove_file(&path).expect("it can be removed");
    std::fs::write(&path, b"something else").expect("the folder is ours");
    assert_eq!((agent(dir.path()), std::fs::read(&path).expect("it can be read")), (path.clone(), good));
    assert_eq!(std::fs::read_dir(folder).expect("it can be read").count(), 1);
    // Where others may write, or a link leads elsewhere, it isn't put.
    let open = temporary_dir();
    let own = open.path().join("grapnel");
    std::fs::create_dir(&own).expect("a folder");
    std::fs::set_permissions(&own, PermissionsExt::from_mode(0o777)).expect("ours");
    let led = temporary_dir();
    symlink(dir.path().join("grapnel"), led.path().join("grapnel")).expect("a link");
    for cache in [open.path(), led.path()] {
        let refused = agent_path(cache);
        assert_eq!((refused.status.code(), refused.out().as_str()), (Some(1), ""));
        assert!(refused.err().contains("this is not the user's own folder"), "{}", refused.err());
    }
    let spaced = dir.path().join("a b");
    assert!(agent_path(&spaced).err().contains("separates libraries"), "{}", agent_path(&spaced).err());
}
