//! Signals, timers and stops: a program, its family and whoever started it see what they would see without grapnel.

use grapnel_tests::programs;
use grapnel_tests::run::{Case, Outcome, temporary_dir, wait};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn case(arguments: &[&str]) -> Case {
    Case::ours("as_without").args(arguments).patience(PATIENCE)
}

/// The program itself, as a path that is passed on.
fn ours() -> String {
    programs::program("as_without").display().to_string()
}

/// Runs it with and without grapnel, which makes no difference, and returns how it was.
fn the_same(case: &Case) -> Outcome {
    let bare = case.bare();
    case.recorded().outcome.same_as(&bare);
    bare
}

/// A timer that the program was started with rings there, not in grapnel, and goes on ringing.
#[test]
fn inherited_timers() {
    let ours = ours();
    for (name, signal) in [("real", 14), ("virtual", 26), ("prof", 27)] {
        let set = |interval: &'static str, first| [ours.as_str(), "sets", name, interval, first];
        let bare = the_same(&case(&["rings"]).launcher(set("0", "300000")));
        assert_eq!(bare.out(), format!("rang {signal}\n"), "{}", bare.err());
        let bare = the_same(&case(&["asks", name]).launcher(set("700000", "900000")));
        assert_eq!(bare.out(), "runs 1, every 0 s 700000 us\n", "{}", bare.err());
        let bare = the_same(&case(&["asks", name]));
        assert_eq!(bare.out(), "runs 0, every 0 s 0 us\n", "{}", bare.err());
    }
}

/// What a program or its descendants send to their group comes once.
#[test]
fn signals_to_the_own_group() {
    let bare = the_same(&case(&["sends"]).launcher(["/usr/bin/setsid"]));
    for who in ["itself", "a child", "a child's child"] {
        for signal in [15, 10, 2, 1, 3, 12, 14, 28, 20] {
            let line = format!("from {who}: signal {signal} 1 times, value 0\n");
            assert!(bare.out().contains(&line), "{line} {}", bare.out());
        }
    }
}

/// What a program sends to its parent does not come back.
#[test]
fn signals_to_the_parent() {
    let script = "trap '' USR1; \"$@\"; exit $?";
    let bare = the_same(&case(&["sends", "up"]).launcher(["/usr/bin/setsid", "/bin/sh", "-c", script, "sh"]));
    assert_eq!((bare.out().as_str(), bare.status.code()), ("", Some(4)), "{}", bare.err());
}

/// What the program prints when this was done to it, or to grapnel in its place.
fn counted(mut command: Command, to_do: impl Fn(&str)) -> (String, Option<i32>) {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn().expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut text = String::new();
    output.read_line(&mut text).expect("it is ready");
    to_do(&child.id().to_string());
    let status = wait(&mut child, PATIENCE).expect("it ends");
    output.read_to_string(&mut text).expect("text");
    (text, status.code())
}

/// All signals that can be caught, but those of faults and children, are the program's, with the values that they were
/// queued with.
#[test]
fn signals_from_others() {
    let ours = ours();
    let send = |arguments: &[&str]| {
        assert!(Command::new(&ours).args(arguments).status().is_ok_and(|status| status.success()));
        // One after the other: they come in another order otherwise.
        std::thread::sleep(Duration::from_millis(20));
    };
    let to_do = |pid: &str| {
        // Without those that the terminal's driver or a shell sends to a whole group.
        for signal in [1, 2, 3, 6, 10, 12, 14, 16, 18, 20, 23, 24, 25, 26, 27, 28, 29, 30, 34, 40, 64] {
            send(&["kill", pid, &signal.to_string()]);
        }
        for signal in [10, 35, 64] {
            send(&["queue", pid, &signal.to_string(), "77"]);
        }
        send(&["kill", pid, "15"]);
    };
    let case = case(&["counts"]);
    let bare = Command::new(&ours);
    let bare = {
        let mut bare = bare;
        bare.arg("counts");
        counted(bare, to_do)
    };
    let dir = temporary_dir();
    let with = counted(case.grapnel_command(dir.path()), to_do);
    assert_eq!(with, bare);
    for line in ["signal 28 1 times", "signal 10 2 times, value 77", "signal 64 2 times, value 77"] {
        assert!(bare.0.contains(line), "{line} {}", bare.0);
    }
}

/// Who waits for a program that stops itself is told, and continues it: its group, or what he started, or the program itself,
/// which he need not have been told of.
#[test]
fn stops_of_its_own() {
    let ours = ours();
    for whom in ["group", "job", "program"] {
        let watched = case(&["stops", "19", "20", "19"]).launcher([ours.as_str(), "watches", whom]);
        let bare = the_same(&watched);
        let part = |signal| format!("stopped by {signal}\ncontinued 1 times\n");
        let expected = [part(19), part(20), part(19), "ended by 500\n".to_owned()].concat();
        assert_eq!(bare.out(), expected, "{}", bare.err());
    }
    // Without a moment in between.
    let script = "kill -STOP $$; kill -STOP $$; kill -TSTP $$; exit 5";
    let twice = Case::new("/bin/sh").args(["-c", script]).patience(PATIENCE);
    let bare = the_same(&twice.launcher([ours.as_str(), "watches", "group"]));
    assert_eq!(bare.out(), "stopped by 19\nstopped by 19\nstopped by 20\nended by 500\n", "{}", bare.err());
}

/// Also where its first thread has ended, of which the kernel shows nothing else then.
#[test]
fn stops_without_a_first_thread() {
    let ours = ours();
    let watched = case(&["stops_in_a_thread", "20", "19"]).launcher([ours.as_str(), "watches", "group"]);
    let part = |signal| format!("stopped by {signal}\ncontinued 1 times\n");
    let expected = [part(20), part(19), "ended by 500\n".to_owned()].concat();
    assert_eq!(the_same(&watched).out(), expected);
}

/// What a terminal's user types reaches a program that went to a group of its own: started by a shell, it would have been its group's leader before.
#[test]
fn a_terminals_interrupt() {
    let script = "import os, pty, re, sys
shell, terminal = pty.fork()
if shell == 0:
    os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])
seen = b''
def until(what):
    global seen
    while not (found := re.search(what, seen)):
        seen += os.read(terminal, 4096)
    return found
os.write(terminal, (' '.join(sys.argv[1:]) + '\\n').encode())
until(b'ready')
os.write(terminal, b'\\x03')
os.write(terminal, b'echo status $(($? + 0))\\n')
print(until(b'status ([0-9]+)').group(1).decode())
";
    let typed = |command: &[&str]| {
        let all = ["-c", script].into_iter().chain(command.iter().copied());
        Case::new("/usr/bin/python3").args(all).patience(PATIENCE).bare().out()
    };
    let (ours, recorder, dir) = (ours(), programs::recorder(), temporary_dir());
    let trace = dir.path().join("t.grapnel");
    let [recorder, trace] =
        [&recorder, &trace].map(|path| path.to_str().expect("the path of a test is a text"));
    let bare = typed(&[&ours, "leaves"]);
    assert_eq!(bare, "130\n");
    assert_eq!(typed(&[recorder, "run", "-q", "-o", trace, "--", &ours, "leaves"]), bare);
}

/// A program that is killed while it stands still ends, as far as anybody can tell.
#[test]
fn killed_while_it_stands() {
    let script = "\"$@\" & job=$!
sleep 1
program=$(cat /proc/$job/task/$job/children)
program=${program%% *}
kill -KILL ${program:-$job}
wait $job
echo $?";
    let case = case(&["stops", "19"]).launcher(["/usr/bin/setsid", "/bin/sh", "-c", script, "sh"]);
    assert_eq!(the_same(&case).out(), "137\n");
}

/// Children of a program that stops go on, whatever they record.
#[test]
fn a_child_goes_on() {
    let flood = programs::program("flood");
    let script = format!("({} 2000 4000; kill -CONT $$) & kill -STOP $$; wait; echo over", flood.display());
    let case = Case::new("/bin/sh").args(["-c", &script]).patience(Duration::from_secs(120));
    let recorded = case.recorded();
    assert_eq!(recorded.outcome.out(), "flooded\nover\n", "{}", recorded.outcome.err());
}
