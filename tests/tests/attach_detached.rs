//! The end of `grapnel attach` from outside: by `grapnel detach`, by its death, and where several want the same process.

use grapnel_tests::attaching::{Running, State, attach, may_trace, recorder, state};
use grapnel_tests::going::until;
use grapnel_tests::programs;
use grapnel_tests::report::Report;
use grapnel_tests::run::{descendants, grapnel, kill, temporary_dir};
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

#[test]
fn when_grapnel_is_killed_the_process_is_left_as_it_was() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let before = State::of(program.pid());
    let mut recorder = recorder(dir.path(), program.pid());
    let memory = || fs::read_to_string(format!("/proc/{}/maps", program.pid())).expect("mappings");
    until("it is attached to", || (State::of(program.pid()).code != before.code).then_some(()));
    // It may still be at it.
    let again = attach(dir.path(), program.pid(), &[]);
    assert_eq!(again.status.code(), Some(125));
    assert!(again.err().contains("is recorded already"), "{}", again.err());
    kill(Signal::KILL, recorder.pid());
    recorder.0.wait().expect("it ends");
    until("nothing of the agent is left", || (!memory().contains("memfd:grapnel")).then_some(()));
    until("all is as it was", || (State::of(program.pid()) == before).then_some(()));
}

#[test]
fn detaching_ends_the_recording_from_elsewhere() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let before = State::of(program.pid());
    let pid = program.pid().to_string();
    let nothing = grapnel(["detach", &pid]);
    assert_eq!(nothing.status.code(), Some(125));
    assert!(nothing.err().contains("isn't recorded"), "{}", nothing.err());
    let mut recorder = recorder(dir.path(), program.pid());
    let start = Instant::now();
    while !report_is_there(&dir.path().join("t.grapnel")) {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing was recorded");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Whoever comes second finds nothing to do.
    let both = [(); 2].map(|()| {
        Command::new(programs::grapnel())
            .args(["detach", &pid])
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    });
    let both = both.map(|child| child.wait_with_output().expect("it ends"));
    assert!(both.iter().any(|output| output.status.code() == Some(0)), "{both:?}");
    let is_well = |output: &Output| {
        let said = String::from_utf8_lossy(&output.stderr);
        output.status.code() == Some(0) || said.contains("isn't recorded") || said.contains("has ended")
    };
    assert!(both.iter().all(is_well), "{both:?}");
    assert_eq!(recorder.0.wait().expect("it ends").code(), Some(0));
    assert_eq!(State::of(program.pid()), before);
}

/// Whatever it has seen until then: at each moment at which a second one looks, the first one is done.
#[test]
fn detaching_while_another_does_is_well_at_any_moment() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("6000");
    let before = State::of(program.pid());
    let pid = program.pid().to_string();
    for moment in 1..=16 {
        let trace = dir.path().join(format!("{moment}.grapnel"));
        let mut command = Command::new(programs::grapnel());
        let mut recorder = Running::start(command.args(["attach", "-q", "-o"]).arg(&trace).arg(&pid));
        until("events", || report_is_there(&trace).then_some(()));
        let mut second = Command::new(programs::program("killed_at"))
            .arg(format!("halt{moment}"))
            .arg(programs::grapnel())
            .args(["detach", &pid])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut halted = String::new();
        let out = second.stdout.as_mut().expect("its output");
        BufReader::new(out).read_line(&mut halted).expect("a line");
        assert_eq!(halted.trim(), moment.to_string(), "it halts");
        // One that stands where it traces the process is in the way.
        let is_traced = !fs::read_to_string(format!("/proc/{pid}/status"))
            .expect("the process")
            .contains("TracerPid:\t0");
        if !is_traced {
            let first = grapnel(["detach", &pid]);
            assert_eq!(first.status.code(), Some(0), "moment {moment}: {}", first.err());
            assert_eq!(recorder.0.wait().expect("it ends").code(), Some(0));
        }
        second.stdin.take().expect("its input").write_all(b"\n").expect("it goes on");
        let second = second.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&second.stderr);
        let is_well =
            ["nothing of the agent is left", "isn't recorded", "another grapnel has taken the agent out"];
        assert!(is_well.iter().any(|well| said.contains(well)), "moment {moment}: {said}");
        assert_eq!(recorder.0.wait().expect("it ends").code(), Some(0));
        assert_eq!(State::of(program.pid()), before, "moment {moment}");
        if is_traced {
            assert!(moment > 4, "it looks before it traces");
            break;
        }
    }
}

/// Who records has the session's memory too, and at the same addresses where none are random.
#[test]
fn detaching_does_nothing_to_who_records() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let fixed = || {
        let mut command = Command::new("setarch");
        command.arg("-R");
        command
    };
    let mut program =
        Running::start(fixed().arg(programs::program("steady")).arg("600").stdout(Stdio::piped()));
    let out = program.0.stdout.as_mut().expect("its output");
    BufReader::new(out).read_line(&mut String::new()).expect("a line");
    for round in 0..3 {
        let trace = dir.path().join(format!("{round}.grapnel"));
        let mut command = fixed();
        command.arg(programs::grapnel()).args(["attach", "-q", "-o"]).arg(&trace);
        let mut recorder = Running::start(command.arg(program.pid().to_string()));
        until("events", || report_is_there(&trace).then_some(()));
        let detached = grapnel(["detach", &program.pid().to_string()]);
        assert_eq!(detached.status.code(), Some(0), "{}", detached.err());
        let ended = recorder.0.wait().expect("it ends");
        assert_eq!(ended.code(), Some(0), "{ended:?}");
    }
}

/// One of two that come at once goes in, or none, and nothing of the other stays.
#[test]
fn two_that_come_at_once_leave_nothing() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("3000");
    let before = State::of(program.pid());
    for round in 0..10 {
        let both = [0, 1].map(|which| {
            let trace = dir.path().join(format!("{round}.{which}.grapnel"));
            let mut command = Command::new(programs::grapnel());
            command.args(["attach", "-q", "--for", "0.1", "-o"]).arg(trace).arg(program.pid().to_string());
            command.stderr(Stdio::piped()).spawn().expect("it starts")
        });
        for child in both {
            let output = child.wait_with_output().expect("it ends");
            let said = String::from_utf8_lossy(&output.stderr);
            let reasons = ["another grapnel", "is recorded already", "is traced by", "can't be stopped"];
            let is_refused =
                output.status.code() == Some(125) && reasons.iter().any(|why| said.contains(why));
            assert!(output.status.success() || is_refused, "{said}");
        }
        until("all as it was", || (State::of(program.pid()) == before).then_some(()));
    }
}

/// Whose session a process has is said, and what helps.
#[test]
fn who_records_a_process_is_told_to_the_next_who_wants_to() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let said = |pid: u32| {
        let outcomes = [attach(dir.path(), pid, &[]), grapnel(["detach", &pid.to_string()])];
        outcomes.map(|outcome| {
            assert_eq!(outcome.status.code(), Some(125), "{}", outcome.err());
            outcome.err()
        })
    };
    let started = |script: &str, command: &mut Command| {
        let mut program = Running::start(command.args(["-c", script]).stdout(Stdio::piped()));
        let mut line = String::new();
        let out = program.0.stdout.as_mut().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        (program, line.trim().parse::<u32>().expect("a process"))
    };
    let script = "import os, time\nchild = os.fork()\nchild and print(child, flush=True)\ntime.sleep(60)";
    let mut run = Command::new(programs::grapnel());
    run.args(["run", "-q", "-o"]).arg(dir.path().join("other")).args(["--", "/usr/bin/python3"]);
    let (mut recorder, child) = started(script, &mut run);
    let family = descendants(recorder.pid());
    assert!(family.len() == 2 && family.contains(&child), "{family:?}");
    for &pid in &family {
        let said = said(pid);
        assert!(said.iter().all(|said| said.contains("and stays recorded until it ends")), "{said:?}");
    }
    kill(Signal::KILL, recorder.pid());
    recorder.0.wait().expect("it ends");
    for &pid in &family {
        let said = said(pid);
        assert!(said.iter().all(|said| said.contains("`grapnel run`, which has ended")), "{said:?}");
        kill(Signal::KILL, pid);
    }

    let script = "import mmap, os, time\nfile = os.memfd_create('grapnel-session')\nos.ftruncate(file, 4096)\n\
                  kept = mmap.mmap(file, 4096)\nprint(os.getpid(), flush=True)\ntime.sleep(60)";
    let (_program, pid) = started(script, &mut Command::new("/usr/bin/python3"));
    let said = said(pid);
    assert!(said.iter().all(|said| said.contains("or somebody else's")), "{said:?}");
}

#[test]
fn the_guard_leaves_children_whose_parent_has_ended() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let script = "import os, time\nprint('up', flush=True)\n\
                  while 'memfd:grapnel' not in open('/proc/self/maps').read(): time.sleep(0.05)\n\
                  time.sleep(1)\nchild = os.fork()\n\
                  child and print(child, flush=True)\ntime.sleep(60)";
    let mut program = Running::python(script);
    let mut out = program.out();
    out.read_line(&mut String::new()).expect("a line");
    let mut recorder = recorder(dir.path(), program.pid());
    let mut child = String::new();
    out.read_line(&mut child).expect("a line");
    let child: u32 = child.trim().parse().expect("the child's id");
    let has_agent =
        || fs::read_to_string(format!("/proc/{child}/maps")).expect("mappings").contains("memfd:grapnel");
    assert!(has_agent());
    // So that the recorder can't see its end.
    kill(Signal::STOP, recorder.pid());
    program.0.kill().expect("it is killed");
    kill(Signal::KILL, recorder.pid());
    recorder.0.wait().expect("it ends");
    until("the child is left", || (!has_agent()).then_some(()));
    assert!(matches!(state(child), Some('S' | 'R' | 't')));
    kill(Signal::KILL, child);
}

fn report_is_there(trace: &Path) -> bool {
    let json = grapnel([Path::new("report"), Path::new("--format"), Path::new("json"), trace]);
    serde_json::from_slice(&json.stdout).is_ok_and(|report: Report| report.totals.allocations > 0)
}
