//! Programs that execute others, at bad moments or such as the agent can't go along with: they run as without grapnel.

use grapnel_tests::programs;
use grapnel_tests::run::{Case, Outcome, temporary_dir};
use grapnel_tests::{is_root, skipped};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// Runs a case recorded, with the summary that says how many could not be followed.
fn told(case: &Case, arguments: &[&str]) -> String {
    let dir = temporary_dir();
    let told = Case::new(programs::recorder())
        .args(["run", "-o"])
        .arg(dir.path().join("t.grapnel"))
        .arg("--")
        .args(arguments)
        .bare();
    assert!(told.status.code().is_some(), "{case:?}");
    told.err()
}

/// Checks that a program sees and does the same, and that it is said that so many of its children were not followed.
fn runs_alone(arguments: &[&str], unfollowed: u32) -> Outcome {
    let case = Case::new(arguments[0]).args(&arguments[1..]).env("SHOW", "variables");
    let bare = case.bare();
    case.recorded().outcome.same_as(&bare);
    let told = told(&case, arguments);
    let expected = format!("; {unfollowed} could not be followed");
    let is_told = if unfollowed == 0 { !told.contains("followed") } else { told.contains(&expected) };
    assert!(is_told, "{arguments:?}, {unfollowed}: {told}");
    bare
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path of a test is a text")
}

/// A thread of 16 KiB has no room for many variables.
#[test]
fn many_variables_on_a_small_stack() {
    for count in ["20", "100", "160", "400", "2000"] {
        let case = Case::ours("small_exec").args([count, "/bin/true"]);
        let bare = case.bare();
        assert!(bare.out().ends_with("status 0\n"), "{}", bare.out());
        let recorded = case.recorded();
        recorded.outcome.same_as(&bare);
        assert_eq!(recorded.traces().len(), 2, "{count}: it was followed");
    }
}

/// The auxiliary vector is found behind the environment, also where the user has an LD_PRELOAD.
#[test]
fn what_is_behind_the_environment() {
    for preload in [None, Some("libm.so.6")] {
        let case = Case::ours("auxiliary");
        let case = preload.map_or(case.clone(), |library| case.env("LD_PRELOAD", library));
        let bare = case.bare();
        assert!(
            bare.out().ends_with("\n-1 Invalid argument\n")
                && bare.out().contains("pages of 4096, 0 strange")
        );
        let recorded = case.recorded();
        recorded.outcome.same_as(&bare);
        assert_eq!(recorded.traces().len(), 2, "it was followed");
    }
}

/// Where the number of grapnel's process is another's: the path to the agent leads to that one's file.
#[test]
fn in_a_proc_in_which_grapnels_number_is_anothers() {
    let script = "exec 3</etc/passwd 4</etc/passwd 5</etc/passwd 6</etc/passwd 7</etc/passwd 8</etc/passwd\n\
                  exec unshare -pf --mount-proc sh -c '/bin/echo one; sh -c \"/bin/echo two; env | grep LD_PRELOAD; true\"'";
    let dir = temporary_dir();
    let within = |arguments: &[&str]| {
        let all = ["-pf", "--mount-proc"].iter().chain(arguments);
        Case::new("/usr/bin/unshare").args(all).bare()
    };
    let bare = within(&["sh", "-c", script]);
    if bare.out() != "one\ntwo\n" {
        return skipped("another /proc", &bare.err());
    }
    let (recorder, trace) = (programs::recorder(), dir.path().join("t.grapnel"));
    let recorded = within(&[text(&recorder), "run", "-q", "-o", text(&trace), "--", "sh", "-c", script]);
    recorded.same_as(&bare);
}

/// What another thread makes of an environment while it is read is no worse than the kernel's refusal.
#[test]
fn an_environment_that_changes() {
    let case = Case::ours("changing_environment").args(["200", "/bin/true"]);
    let outcome = case.recorded().outcome;
    assert!(outcome.status.success(), "{:?}", outcome.status);
    assert_eq!((outcome.out(), outcome.err()), ("0 odd ends\n".into(), String::new()));
}

/// Nothing is opened for a program that can't be executed: another thread would see it.
#[test]
fn descriptors_of_failing_execs() {
    let dir = temporary_dir();
    let file = dir.path().join("file");
    fs::write(&file, "no program").expect("a file can be written");
    let script = dir.path().join("script");
    fs::write(&script, "#!/nowhere/at/all\n").expect("a file can be written");
    for path in ["/nowhere", "/", "/dev/null", text(&file)] {
        let outcome = Case::ours("descriptor_race").arg(path).recorded().outcome;
        assert_eq!(outcome.out(), "0 other numbers, 0 lost\n", "{path}");
    }
}

/// Each way to execute a static program: it sees nothing of grapnel.
#[test]
fn static_programs_by_any_call() {
    let executes = programs::program("executes");
    let variables = programs::static_program("variables");
    for how in ["execve", "execvp", "execveat", "folder", "empty", "path", "fexecve"] {
        let bare = runs_alone(&[text(&executes), how, text(&variables)], 1);
        assert!(bare.out().contains("HOME="), "{how}: {}", bare.out());
    }
    // Those that can be are followed.
    let variables = programs::program("variables");
    for how in ["execve", "execvp", "execveat", "folder", "empty", "path", "fexecve"] {
        runs_alone(&[text(&executes), how, text(&variables)], 0);
        let recorded = Case::new(&executes).arg(how).arg(&variables).recorded();
        assert_eq!(recorded.traces().len(), 2, "{how}");
    }
}

/// Scripts whose interpreter is static, at once and by other scripts, by whole paths and by others.
#[test]
fn scripts_of_static_interpreters() {
    let dir = temporary_dir();
    let executes = programs::program("executes");
    let interpreters = [(programs::static_program("variables"), 1), (programs::program("variables"), 0)];
    for (variables, unfollowed) in interpreters {
        let mut interpreter = variables.clone();
        for depth in 1..=6 {
            let script = dir.path().join(format!("script{depth}"));
            fs::write(&script, format!("#! \t{} word\n", interpreter.display()))
                .expect("a file can be written");
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
                .expect("a file can be made executable");
            let is_too_deep = depth == 6;
            let count = if is_too_deep { 0 } else { unfollowed };
            let bare = runs_alone(&[text(&executes), "execve", text(&script)], count);
            assert_eq!(bare.out().contains("symbolic links"), is_too_deep, "{depth}: {}", bare.out());
            interpreter = script;
        }
        let relative = dir.path().join("relative");
        fs::write(&relative, "#!./variables").expect("a file can be written");
        fs::set_permissions(&relative, fs::Permissions::from_mode(0o755))
            .expect("a file can be made executable");
        fs::copy(&variables, dir.path().join("variables")).expect("a file can be copied");
        let script = format!("cd {} && exec ./relative", dir.path().display());
        let bare = runs_alone(&["/bin/sh", "-c", &script], unfollowed);
        assert!(bare.out().contains("HOME="), "{}", bare.out());
    }
}

/// What is no program to the kernel is one to a shell.
#[test]
fn texts_without_an_interpreter() {
    let dir = temporary_dir();
    let file = dir.path().join("text");
    fs::write(&file, "echo \"[$LD_PRELOAD$GRAPNEL_SESSION]\"\n").expect("a file can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a file can be made executable");
    let executes = programs::program("executes");
    let bare = runs_alone(&[text(&executes), "execvp", text(&file)], 0);
    assert_eq!(bare.out(), "[]\n");
    let bare = runs_alone(&[text(&executes), "execve", text(&file)], 0);
    assert_eq!(bare.out(), "Exec format error\n");
}

/// Programs that get other rights than their caller has, whose loader therefore takes no agent.
#[test]
fn programs_with_rights_of_their_own() {
    if !is_root() {
        skipped("programs that are set-uid", "making one needs root");
        return;
    }
    let dir = temporary_dir();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))
        .expect("a folder can be opened to all");
    let variables = programs::program("variables");
    let copy = |name: &str| {
        let path = dir.path().join(name);
        fs::copy(&variables, &path).expect("a file can be copied");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode can be set");
        path
    };
    let executes = programs::program("executes");
    let run = |path: &Path, unfollowed| runs_alone(&[text(&executes), "execve", text(path)], unfollowed);
    run(&copy("plain"), 0);
    for (name, mode, unfollowed) in [("user", 0o4755, 1), ("group", 0o2755, 1), ("locked", 0o2745, 0)] {
        let path = copy(name);
        chown(&path, Some(1234), Some(1234)).expect("a file can be given away");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode can be set");
        run(&path, unfollowed);
    }
    // root's own rights are no others.
    let path = copy("roots");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).expect("its mode can be set");
    run(&path, 0);
    let path = copy("able");
    let able = Command::new("setcap").arg("cap_net_raw=ep").arg(&path).status();
    if !able.is_ok_and(|status| status.success()) {
        skipped("programs with capabilities", "setcap(8) can't give one any");
        return;
    }
    run(&path, 0);
}

/// Under limits that leave no room for the agent a program runs without.
#[test]
fn narrow_limits() {
    for limit in ["-S -d 1000", "-S -d 12000", "-S -v 4000", "-S -v 12000", "-S -v 30000"] {
        let script = format!("ulimit {limit}; exec /bin/echo hi");
        let bare = runs_alone(&["/bin/sh", "-c", &script], 1);
        assert_eq!(bare.out(), "hi\n", "{limit}");
    }
    for limit in ["-S -d 17000", "-S -v 40000", "-S -d unlimited"] {
        let script = format!("ulimit {limit}; exec /bin/echo hi");
        let bare = runs_alone(&["/bin/sh", "-c", &script], 0);
        assert_eq!(bare.out(), "hi\n", "{limit}");
    }
}

/// Whether the kernel is one that lets a process say where its environment ends.
fn lets_move_the_end() -> bool {
    let case = Case::ours("variables");
    let (bare, recorded) = (case.bare(), case.recorded().outcome);
    if recorded.out() != bare.out() {
        skipped("the end of the environment that is shown", "this kernel doesn't let it be moved");
        return false;
    }
    true
}

/// What the kernel shows of a process's environment is the program's own.
#[test]
fn the_environment_that_the_kernel_shows() {
    let plug = programs::plug("a");
    let executes = programs::program("executes");
    let variables = programs::program("variables");
    for preload in [None, Some(&plug)] {
        for case in [Case::new(&variables), Case::new(&executes).arg("execve").arg(&variables)] {
            let case = preload.into_iter().fold(case, |case, preload| case.env("LD_PRELOAD", preload));
            let case = case.env("ZZZ", "last");
            let bare = case.bare();
            assert!(
                bare.out().contains("shown:\n") && !bare.out().contains('o'.to_string().repeat(9).as_str())
            );
            let recorded = case.recorded();
            let without_zeroes = |outcome: &Outcome| -> Vec<String> {
                let zeroes = |line: &str| line.trim_start_matches('o').to_owned();
                outcome.out().lines().map(zeroes).filter(|line| line != "end").collect()
            };
            assert_eq!(without_zeroes(&recorded.outcome), without_zeroes(&bare));
            // The user's own comes behind zeroes.
            if preload.is_none() && lets_move_the_end() {
                recorded.outcome.same_as(&bare);
            }
        }
    }
}
