//! `grapnel attach` to processes below another root directory and in other namespaces, whose paths and numbers aren't ours, and
//! to those that it has no right to.

use grapnel_tests::attaching::{Running, State, attach, may_trace};
use grapnel_tests::counted::{Attached, Counted, Counts, leads, recorded};
use grapnel_tests::programs::{self, Linking};
use grapnel_tests::run::{Outcome, descendants, finish, temporary_dir};
use grapnel_tests::{is_root, skipped};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's musl, which glibc's `ldd` doesn't list.
const MUSL: &str = "/lib/ld-musl-x86_64.so.1";

/// Copies a file that is to be executed. A process of its own does it: while this one had the copy open to write, another thread's
/// child would inherit that, and nobody could execute it.
fn copy(file: &Path, to: &Path) {
    let copied = finish(Command::new("cp").arg(file).arg(to), b"");
    assert!(copied.status.success(), "{}", copied.err());
}

/// A root directory with a program and what it loads, and nothing else: no `/proc`, no `/tmp`.
fn root_with(program: &Path, dir: &Path) -> PathBuf {
    let root = dir.join("root");
    fs::create_dir(&root).expect("a directory can be made");
    let put = |file: &Path| {
        let to = root.join(file.strip_prefix("/").expect("a path from the root"));
        fs::create_dir_all(to.parent().expect("a directory")).expect("a directory can be made");
        copy(file, &to);
    };
    let listed = finish(Command::new("ldd").arg(program), b"").out();
    let words = listed.split_whitespace();
    // Of musl's program it also says what glibc's loader makes of it.
    let files = words.map(Path::new).filter(|path| path.starts_with("/") && path.is_file());
    files.for_each(put);
    if Path::new(MUSL).exists() {
        put(Path::new(MUSL));
    }
    copy(program, &root.join("counted"));
    root
}

/// The process that a launcher became or made: the one that runs the program.
fn program_of(counted: &Counted) -> u32 {
    let own = counted.running.pid();
    let runs = |&pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "counted")
    };
    std::iter::once(own).chain(descendants(own)).find(runs).expect("the program runs")
}

/// Attaches to it, has it work, and compares.
fn is_recorded(counted: &mut Counted, dir: &Path) -> Outcome {
    let pid = program_of(counted);
    let before = State::of(pid);
    let idle = attach(dir, pid, &["-q", "--for", "0.1"]);
    assert_eq!((idle.status.code(), idle.err().as_str()), (Some(0), ""));
    assert_eq!(State::of(pid), before, "nothing happened meanwhile");
    let attached = Attached::to(pid, dir, &[]);
    let done = counted.work();
    let (report, said) = attached.end();
    assert!(said.contains("nothing of the agent is left"), "{said}");
    assert_eq!(State::of(pid).code, before.code, "its code is as it was");
    let seen = recorded(&report);
    assert_eq!(Counts { gave: done.gave, ..seen }, done, "{said}");
    let stack = ["make", "work", "bout", "main"];
    assert!(report.sites.iter().any(|site| leads(site, &stack)), "names: {:?}", report.sites);
    Outcome { stdout: Vec::new(), stderr: said.into_bytes(), status: idle.status }
}

fn can_unshare(options: &[&str]) -> bool {
    let done = Command::new("unshare").args(options).arg("true").output();
    let can = done.as_ref().is_ok_and(|output| output.status.success());
    if !can {
        skipped("attaching to a process in other namespaces", &format!("unshare {options:?}: {done:?}"));
    }
    can
}

#[test]
fn below_another_root_without_proc() {
    if !may_trace() {
        return;
    }
    if !is_root() {
        return skipped("attaching to a process below another root", "only root can make one");
    }
    for linking in [Linking::Glibc, Linking::GlibcStatic, Linking::Musl] {
        let dir = temporary_dir();
        let root = root_with(&programs::linked_program("counted", linking), dir.path());
        let mut counted = Counted::start(Command::new("chroot").arg(&root).arg("/counted"));
        is_recorded(&mut counted, dir.path());
    }
}

/// Mounts, process ids and users of its own, as a container has them: its root directory leads nowhere from ours, and it is
/// process 1 there.
#[test]
fn in_namespaces_of_its_own() {
    let options = ["--user", "--map-root-user", "--mount", "--pid", "--fork"];
    if !may_trace() || !can_unshare(&options) {
        return;
    }
    for (linking, proc) in [(Linking::Glibc, true), (Linking::Glibc, false), (Linking::GlibcStatic, false)] {
        let dir = temporary_dir();
        let root = root_with(&programs::linked_program("counted", linking), dir.path());
        for made in ["proc", "old"] {
            fs::create_dir(root.join(made)).expect("a directory");
        }
        let mount = if proc { "mount -t proc proc proc &&" } else { "" };
        let script = format!(
            "mount --bind {root} {root} && cd {root} && {mount} pivot_root . old && exec /counted",
            root = root.display()
        );
        let inside = || {
            let mut command = Command::new("unshare");
            command.args(options).args(["sh", "-c", &script]);
            command
        };
        // Without input it ends at once. Where a sandbox forbids some of that, it doesn't begin.
        let trial = finish(&mut inside(), b"");
        if !trial.status.success() {
            skipped("attaching to a process in other namespaces", &trial.err());
            continue;
        }
        let mut counted = Counted::start(&mut inside());
        is_recorded(&mut counted, dir.path());
    }
}

/// grapnel, run with less than all rights.
fn attach_by(launcher: &[&str], dir: &Path, pid: u32) -> Outcome {
    // Others may not look into the target directory.
    let grapnel = dir.join("grapnel");
    copy(programs::grapnel(), &grapnel);
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("rights can be given");
    let (first, rest) = launcher.split_first().expect("a launcher");
    let mut command = Command::new(first);
    command.args(rest).arg(grapnel).args(["attach", "--for", "0.1", "-o"]).arg(dir.join("t.grapnel"));
    finish(command.arg(pid.to_string()).current_dir(dir), b"")
}

#[test]
fn what_there_is_no_right_to_is_left_alone_with_a_reason_and_a_remedy() {
    if !is_root() {
        return skipped("rights that are missing", "only root can give them up");
    }
    let program = Running::steady("600");
    let before = State::of(program.pid());
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let lacking = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];
    let reasons = [
        (&nobody[..], ["it belongs to another user (uid 0)", "run grapnel as that user or as root"]),
        (&lacking[..], ["CAP_SYS_PTRACE", "--cap-add=SYS_PTRACE"]),
    ];
    for (launcher, words) in reasons {
        let dir = temporary_dir();
        let outcome = attach_by(launcher, dir.path(), program.pid());
        let said = outcome.err();
        assert_eq!(outcome.status.code(), Some(125), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert!(!dir.path().join("t.grapnel").exists(), "nothing is written");
    }
    assert_eq!(State::of(program.pid()), before);

    let inside = ["unshare", "--user", "--map-root-user"];
    if can_unshare(&inside[1..]) {
        let dir = temporary_dir();
        let outcome = attach_by(&inside, dir.path(), program.pid());
        assert_eq!(outcome.status.code(), Some(125), "{}", outcome.err());
        assert!(outcome.err().contains("on the host"), "{}", outcome.err());
        assert_eq!(State::of(program.pid()), before);
    }
}
