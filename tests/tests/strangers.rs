//! Programs that the agent can't go along into: as children they run as without it, by themselves they are refused.

use grapnel_tests::run::{Case, Outcome};
use grapnel_tests::{programs, skipped};

/// The lines without the addresses, which differ from run to run.
fn without_addresses(outcome: &Outcome) -> Vec<String> {
    outcome.out().lines().map(|line| line.split(" (0x").next().unwrap_or_default().to_owned()).collect()
}

/// ldd(1) starts the loader to list what it would load: nothing of ours is among it.
#[test]
fn ldd() {
    let case = Case::new("/usr/bin/ldd").arg("/bin/ls");
    let bare = case.bare();
    assert!(bare.out().contains("libc.so.6"), "{}", bare.out());
    let outcome = case.recorded().outcome;
    assert_eq!(without_addresses(&outcome), without_addresses(&bare), "left: with grapnel");
    assert_eq!((outcome.err(), outcome.status.code()), (bare.err(), bare.status.code()));

    let script = "LD_TRACE_LOADED_OBJECTS=1 /bin/ls";
    let case = Case::new("/bin/sh").args(["-c", script]);
    assert_eq!(without_addresses(&case.recorded().outcome), without_addresses(&case.bare()));
}

/// The sanitizer's runtime insists on being the first library.
#[test]
fn address_sanitizer() {
    let Some(program) = programs::sanitized_program("plain") else {
        skipped("programs with the address sanitizer", "libasan isn't installed");
        return;
    };
    let bare = Case::new(&program).bare();
    assert_eq!(bare.out(), "plain 1\n", "{}", bare.err());
    let outcome = Case::new(&program).recorded().outcome;
    assert_eq!(outcome.status.code(), Some(126), "{}", outcome.err());
    assert_eq!((outcome.out().as_str(), outcome.err().lines().count()), ("", 1), "{}", outcome.err());

    let case = Case::new("/bin/sh").arg("-c").arg("\"$0\"; echo $?").arg(&program);
    let without_pids = |outcome: Outcome| (outcome.out(), outcome.err().replace(char::is_numeric, ""));
    assert_eq!(without_pids(case.recorded().outcome), without_pids(case.bare()));
}

/// A static child, and one with a loader that isn't glibc's, see the environment that their parent gave them.
#[test]
fn static_children_and_other_loaders() {
    let programs =
        [programs::static_program("odd_environment"), programs::program_with_loader("odd_environment")];
    for program in programs {
        let case = Case::new("/bin/sh").args(["-c", "\"$0\"; env \"$0\"; echo $?"]).arg(&program);
        let bare = case.bare();
        assert!(
            bare.out().contains("[HOME=/nonexistent]\n") && bare.out().ends_with("\n0\n"),
            "{}",
            bare.out()
        );
        case.recorded().outcome.same_as(&bare);
        let outcome = Case::new(&program).recorded().outcome;
        assert_eq!(outcome.status.code(), Some(126), "{}", outcome.err());
        assert_eq!((outcome.out().as_str(), outcome.err().lines().count()), ("", 1), "{}", outcome.err());
    }
}
