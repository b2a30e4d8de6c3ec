//! Where traces go: what was there before, who else writes there, and links that lie in wait.

use grapnel_tests::programs;
use grapnel_tests::run::{Case, finish, report, temporary_dir, wait};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A program that the kernel refuses although it looks right: its loader doesn't exist.
fn without_loader(dir: &Path) -> std::path::PathBuf {
    let mut bytes = std::fs::read(programs::program("plain")).expect("the program can be read");
    let loader = b"/lib64/ld-linux-x86-64.so.2";
    let at = bytes.windows(loader.len()).position(|window| window == loader).expect("it has a loader");
    bytes[at + loader.len() - 1] = b'9';
    let path = dir.join("refused");
    std::fs::write(&path, bytes).expect("the file can be written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("the mode can be set");
    path
}

/// When the program can't be executed, the trace of an earlier run stays, and no empty one is made.
#[test]
fn failed_exec_leaves_the_old_trace() {
    let dir = temporary_dir();
    let refused = without_loader(dir.path());
    let trace = dir.path().join("t.grapnel");
    let outcome = finish(&mut Case::new(&refused).grapnel_command(dir.path()), b"");
    assert!(matches!(outcome.status.code(), Some(126 | 127)), "{:?} {}", outcome.status, outcome.err());
    assert_eq!(outcome.err().lines().count(), 1, "{}", outcome.err());
    assert!(!trace.exists(), "no trace of a program that never ran");

    assert!(finish(&mut Case::ours("plain").grapnel_command(dir.path()), b"").status.success());
    let before = std::fs::read(&trace).expect("a trace");
    let outcome = finish(&mut Case::new(&refused).grapnel_command(dir.path()), b"");
    assert!(matches!(outcome.status.code(), Some(126 | 127)), "{:?} {}", outcome.status, outcome.err());
    assert!(std::fs::read(&trace).is_ok_and(|now| now == before), "the old trace is as it was");
    assert_eq!(report(&trace).totals.live_allocations, 2);
}

/// A longer trace is replaced whole by a shorter one.
#[test]
fn an_old_trace_is_replaced() {
    let dir = temporary_dir();
    let trace = dir.path().join("t.grapnel");
    assert!(
        finish(&mut Case::ours("flood").args(["20", "100"]).grapnel_command(dir.path()), b"")
            .status
            .success()
    );
    let long = std::fs::metadata(&trace).expect("a trace").len();
    assert!(finish(&mut Case::ours("plain").grapnel_command(dir.path()), b"").status.success());
    assert!(std::fs::metadata(&trace).expect("a trace").len() < long);
    assert_eq!(report(&trace).totals.live_allocations, 2);
}

/// Two recordings into one file: the second is refused, and the first is whole.
#[test]
fn two_into_one() {
    let dir = temporary_dir();
    let out = dir.path().join("out");
    let first = Case::ours("steady").arg("12");
    let mut child = first
        .grapnel_command(dir.path())
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&out).expect("a file for stdout"))
        .spawn()
        .expect("grapnel starts");
    let start = Instant::now();
    while std::fs::read_to_string(&out).is_ok_and(|text| text.is_empty()) {
        assert!(start.elapsed() < Duration::from_secs(60), "the first never starts");
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = finish(&mut Case::ours("plain").grapnel_command(dir.path()), b"");
    assert!(child.try_wait().expect("a child").is_none(), "the first still runs");
    assert_eq!(second.status.code(), Some(125), "{}", second.err());
    assert_eq!((second.out().as_str(), second.err().lines().count()), ("", 1), "{}", second.err());
    let status = wait(&mut child, Duration::from_secs(60)).expect("grapnel ends");
    assert_eq!(status.code(), Some(12));
    let (_, counted) = first.counted(false);
    assert_eq!(report(&dir.path().join("t.grapnel")).totals(), counted[0].totals);
}

/// The name of a child's trace can be foretold: a link that lies there is replaced, not followed.
#[test]
fn planted_links() {
    for _ in 0..5 {
        let dir = temporary_dir();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "precious").expect("a file can be written");
        let before = format!("{}/t.", dir.path().display());
        let case = Case::ours("planted").arg(before).arg(&victim).arg(".true.grapnel");
        let outcome = finish(&mut case.grapnel_command(dir.path()), b"");
        assert!(outcome.status.success(), "{:?} {}", outcome.status, outcome.err());
        assert_eq!(outcome.err(), "");
        let out = outcome.out();
        let numbers: Vec<u32> = out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [pid, planted, 0] = numbers[..] else { panic!("true failed: {out}") };
        assert_eq!(std::fs::read_to_string(&victim).expect("the victim"), "precious");
        if planted == 1 {
            let trace = dir.path().join(format!("t.{pid}.true.grapnel"));
            assert!(trace.symlink_metadata().is_ok_and(|facts| facts.is_file()), "a file of its own");
            assert_eq!(report(&trace).process.pid, u64::from(pid));
            return;
        }
    }
    grapnel_tests::skipped("planted links", "process ids are handed out too fast here to foretell them");
}
