//! `grapnel attach`: into a process that runs, and out of it without a trace.

use grapnel_tests::attaching::{Running, State, attach, may_trace, recorder, state};
use grapnel_tests::going::until;
use grapnel_tests::programs;
use grapnel_tests::report::Report;
use grapnel_tests::run::{descendants, grapnel, kill, report, temporary_dir, traces_in};
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_process_is_recorded_and_then_as_it_was() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let before = State::of(program.pid());
    let outcome = attach(dir.path(), program.pid(), &["--for", "2"]);
    assert_eq!(outcome.status.code(), Some(0), "{}", outcome.err());
    assert!(outcome.err().contains("nothing of the agent is left"), "{}", outcome.err());
    assert_eq!(State::of(program.pid()), before);

    let recorded = report(&dir.path().join("t.grapnel"));
    assert!(recorded.totals.allocations >= 1000, "{:?}", recorded.totals);
    assert_eq!(recorded.totals.lost_events, 0);
    // Of ten blocks one is kept.
    let kept = recorded.totals.live_allocations as f64 / recorded.totals.allocations as f64;
    assert!((0.05..0.2).contains(&kept), "{:?}", recorded.totals);
    let trace = dir.path().join("t.grapnel");
    let text = grapnel([Path::new("report"), &trace]);
    assert!(text.out().contains("main at ") && text.out().contains("steady.c"), "{}", text.out());
    let ended = ", attached to while it ran, detached from while it went on; ";
    assert!(text.out().contains(ended), "{}", text.out());
    // Nobody else's business.
    assert_eq!(trace.metadata().expect("a trace").mode() & 0o777, 0o600);
}

/// An exception finds its handler above whatever is hooked.
#[test]
fn what_new_throws_is_caught() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let mut program = Running::at_work(&programs::program("throws"), "3000");
    let outcome = attach(dir.path(), program.pid(), &["--for", "1"]);
    assert_eq!(outcome.status.code(), Some(0), "{}", outcome.err());
    assert_eq!(program.0.try_wait().expect("its status"), None, "it runs on");
    let recorded = report(&dir.path().join("t.grapnel"));
    assert!(recorded.totals.allocations >= 100, "{:?}", recorded.totals);
}

#[test]
fn a_process_can_be_attached_to_again_and_again() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("3000");
    let before = State::of(program.pid());
    for _ in 0..10 {
        let outcome = attach(dir.path(), program.pid(), &["-q", "--for", "0.05"]);
        assert_eq!((outcome.status.code(), outcome.err()), (Some(0), String::new()));
    }
    assert_eq!(State::of(program.pid()), before);
}

#[test]
fn waits_end_as_if_nobody_had_come() {
    if !may_trace() {
        return;
    }
    let waits = programs::program("waits");
    let sorted = |out: &[u8]| {
        let mut lines: Vec<_> = String::from_utf8_lossy(out).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let start = || {
        Command::new(&waits)
            .arg("4000")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts")
    };
    let (bare, child) = (start(), start());
    let pid = child.id();
    std::thread::sleep(Duration::from_millis(500));
    let dir = temporary_dir();
    for _ in 0..3 {
        let outcome = attach(dir.path(), pid, &["-q", "--for", "0.1"]);
        assert_eq!((outcome.status.code(), outcome.err()), (Some(0), String::new()));
    }
    let [bare, attached] = [bare, child].map(|child| child.wait_with_output().expect("it ends"));
    assert_eq!(attached.status.code(), Some(0));
    assert_eq!(sorted(&attached.stdout), sorted(&bare.stdout));
}

#[test]
fn a_process_that_has_just_begun_can_be_attached_to() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let steady = programs::program("steady");
    for _ in 0..20 {
        // With addresses that aren't random, those of this program are the next one's.
        let mut command = Command::new("setarch");
        let program = Running::start(command.arg("-R").arg(&steady).arg("3000").stdout(Stdio::null()));
        let outcome = attach(dir.path(), program.pid(), &["-q", "--for", "0.05"]);
        assert_eq!((outcome.status.code(), outcome.err().as_str()), (Some(0), ""));
    }
}

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

/// What is asked of a recording is answered, whichever way it began.
#[test]
fn a_recording_of_what_ran_already_can_be_asked() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let pid = program.pid().to_string();
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(programs::grapnel());
        command.args(arguments).env("XDG_RUNTIME_DIR", dir.path()).current_dir(dir.path());
        let outcome = grapnel_tests::run::finish(&mut command, b"");
        assert!(outcome.status.success(), "{arguments:?}: {}", outcome.err());
        outcome.out()
    };
    let mut command = Command::new(programs::grapnel());
    command.args(["attach", "--serve", "0", "-o"]).arg(dir.path().join("t.grapnel")).arg(&pid);
    let mut recorder = Running::start(command.env("XDG_RUNTIME_DIR", dir.path()).stderr(Stdio::piped()));
    let mut said = BufReader::new(recorder.0.stderr.take().expect("what it says")).lines();
    let host = said.by_ref().map_while(Result::ok).find_map(|line| {
        line.split_once("serving at http://").map(|(_, host)| host.trim_end_matches('/').to_owned())
    });
    let host = host.expect("an address");
    // Whatever it says meanwhile.
    let listening = std::thread::spawn(move || said.map_while(Result::ok).collect::<Vec<_>>());
    let events = || {
        let status: serde_json::Value =
            serde_json::from_str(&ask(&["status", "--json", &pid])).expect("JSON");
        let process = &status["processes"][0];
        (process["events"].as_u64().unwrap_or(0), process["paused"].clone())
    };
    until("events", || (events().0 > 1000).then_some(()));
    assert!(ask(&["list"]).starts_with(&pid));
    ask(&["mark", &pid, "loaded"]);
    ask(&["snapshot", "-o", "s.grapnel", &pid]);
    let text = ask(&["report", "s.grapnel"]);
    assert!(text.contains("loaded") && text.contains("attached to while it ran, how it ended"), "{text}");
    assert!(ask(&["top", "--once", &pid]).contains("main"));
    ask(&["pause", &pid]);
    assert_eq!(events().1, true);
    ask(&["resume", &pid]);
    let get = |path: &str| {
        let mut stream = TcpStream::connect(&host).expect("a connection");
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
            .expect("a request");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    };
    let metrics = get("/metrics");
    assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains("grapnel_heap_live_bytes{"), "{metrics}");
    let profile = get("/debug/pprof/heap?debug=1");
    assert!(profile.contains("heap profile: ") && profile.contains("\tmain\t"), "{profile}");
    assert!(get("/debug/pprof/allocs").starts_with("HTTP/1.1 200"));
    kill(Signal::INT, recorder.pid());
    assert_eq!(recorder.0.wait().expect("it ends").code(), Some(0));
    let said = listening.join().expect("what it said").join("\n");
    assert!(said.contains("nothing of the agent is left"), "{said}");
    let report = grapnel([Path::new("report"), &dir.path().join("t.grapnel")]).out();
    assert!(report.contains("loaded") && report.contains("detached from while it went on"), "{report}");
}

fn report_is_there(trace: &Path) -> bool {
    let json = grapnel([Path::new("report"), Path::new("--format"), Path::new("json"), trace]);
    serde_json::from_slice(&json.stdout).is_ok_and(|report: Report| report.totals.allocations > 0)
}

#[test]
fn a_child_is_recorded_by_itself_and_left_too() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    // It goes on when it is attached to, which takes as long as the machine is busy.
    let go = dir.path().join("go");
    let script = format!(
        "import os, time\nprint('up', flush=True)\n\
         while not os.path.exists('{}'): time.sleep(0.05)\n\
         child = os.fork()\n\
         rows = [bytearray(600 + i % 7) for i in range(2000)]\n\
         os.write(1, b'%d\\n' % os.getpid())\ntime.sleep(600)",
        go.display()
    );
    let mut program = Running::python(&script);
    let mut out = program.out();
    out.read_line(&mut String::new()).expect("a line");
    let mut command = Command::new(programs::grapnel());
    command.args(["attach", "-o"]).arg(dir.path().join("t.grapnel")).arg(program.pid().to_string());
    let mut recorder = Running::start(command.stderr(Stdio::piped()));
    let mut said = BufReader::new(recorder.0.stderr.take().expect("what it says")).lines();
    let first = said.next().expect("a line").expect("a line");
    assert!(first.contains("attached to"), "{first}");
    // Whatever it says meanwhile.
    let listening = std::thread::spawn(move || said.map_while(Result::ok).collect::<Vec<_>>());
    fs::write(go, "").expect("a file");
    let mut family = [(); 2].map(|()| {
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        line.trim().parse::<u32>().expect("an id")
    });
    family.sort_by_key(|&pid| pid != program.pid());
    let child = family[1];
    kill(Signal::INT, recorder.pid());
    let ended = recorder.0.wait().expect("it ends");
    let said = listening.join().expect("what it said").join("\n");
    assert_eq!(ended.code(), Some(0), "{said}");
    for pid in [program.pid(), child] {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings");
        assert!(!maps.contains("memfd:grapnel"), "{maps}");
    }
    kill(Signal::KILL, child);
    let traces = traces_in(dir.path());
    assert_eq!(traces.len(), 2, "{traces:?}: {said}");
    assert!(traces.iter().all(|trace| report(trace).totals.allocations > 1000), "{said}");
}

#[test]
fn what_cannot_be_attached_to_is_left_alone_with_a_reason() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let refused = |pid: u32, why: &str| {
        let outcome = attach(dir.path(), pid, &[]);
        assert_eq!(outcome.status.code(), Some(125), "{}", outcome.err());
        assert!(outcome.err().contains(why), "{}", outcome.err());
        assert!(!dir.path().join("t.grapnel").exists(), "nothing is written");
    };
    refused(u32::MAX >> 2, "there is no process");
    refused(2, "thread of the kernel");
    let mut ended = Running::start(&mut Command::new("/bin/true"));
    until("its end", || (state(ended.pid()) == Some('Z')).then_some(()));
    refused(ended.pid(), "has ended");
    ended.0.wait().expect("it ends");

    let recorded = Running::start(
        Command::new(programs::grapnel())
            .args(["run", "-q", "-o"])
            .arg(dir.path().join("other"))
            .args(["--", "sleep", "60"]),
    );
    let is_recorded = |&child: &u32| {
        let exe = fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|exe| exe.ends_with("sleep"));
        exe && fs::read_to_string(format!("/proc/{child}/maps"))
            .is_ok_and(|maps| maps.contains("memfd:grapnel"))
    };
    let child = until("a child", || descendants(recorded.pid()).into_iter().find(is_recorded));
    refused(child, "was started by `grapnel run`");
    let detached = grapnel(["detach", &child.to_string()]);
    assert!(detached.err().contains("was started by `grapnel run`"), "{}", detached.err());

    let mut traced = Command::new("gdb");
    let program = Running::steady("600");
    let pid = program.pid().to_string();
    let debugger = Running::start(
        traced
            .args(["-q", "-batch", "-ex", "shell sleep 20", "-p", &pid])
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    );
    let start = Instant::now();
    while !fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| !text.contains("TracerPid:\t0"))
    {
        assert!(start.elapsed() < Duration::from_secs(60), "the debugger came");
        std::thread::sleep(Duration::from_millis(50));
    }
    refused(program.pid(), "is traced by gdb");
    drop(debugger);
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
fn what_fails_before_the_agent_starts_leaves_nothing() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let before = State::of(program.pid());
    // No room for the memory that is shared.
    let script = "ulimit -f 1000; exec \"$0\" attach -o \"$1\" \"$2\"";
    let outcome = Command::new("sh")
        .args(["-c", script])
        .args([programs::grapnel(), &dir.path().join("t.grapnel")])
        .arg(program.pid().to_string())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(125), "{said}");
    assert!(said.contains("shared with the process"), "{said}");
    assert_eq!(State::of(program.pid()), before);
}

#[test]
fn stop_signals_meanwhile_are_the_programs() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("3000");
    let pid = program.pid();
    let before = State::of(pid);
    for round in 0..8 {
        let mut recorder = Running::start(
            Command::new(programs::grapnel())
                .args(["attach", "-q", "--for", "0.05", "-o"])
                .arg(dir.path().join("t.grapnel"))
                .arg(pid.to_string()),
        );
        let mut stops = 0u32;
        let ended = loop {
            if let Some(status) = recorder.0.try_wait().expect("its state") {
                break status;
            }
            kill(Signal::STOP, pid);
            std::thread::sleep(Duration::from_micros(200 + 70 * round));
            // Not one of them is a fault of the agent; what is kept stopped by a late one goes on by this.
            kill(Signal::CONT, pid);
            stops += 1;
            // On a busy machine it needs longer to get anywhere.
            std::thread::sleep(Duration::from_micros(200 + 10 * u64::from(stops)));
        };
        assert_eq!(ended.code(), Some(0), "after {stops} stops");
    }
    kill(Signal::CONT, pid);
    until("it goes on", || matches!(state(pid), Some('R' | 'S')).then_some(()));
    assert_eq!(State::of(pid), before);

    for round in 0..6 {
        let recorder = Command::new(programs::grapnel())
            .args(["attach", "-q", "--for", "0.05", "-o"])
            .arg(dir.path().join("t.grapnel"))
            .arg(pid.to_string())
            .spawn();
        std::thread::sleep(Duration::from_millis(12 * round));
        kill(Signal::STOP, pid);
        assert_eq!(recorder.expect("it starts").wait().expect("it ends").code(), Some(0));
        until("it is stopped, as it was told to be", || (state(pid) == Some('T')).then_some(()));
        kill(Signal::CONT, pid);
    }
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

#[test]
fn a_process_that_loads_and_unloads_is_left_in_the_middle_of_it() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let script = "import ctypes, _ctypes\nprint('up', flush=True)\n\
                  while True:\n    _ctypes.dlclose(ctypes.CDLL('libstdc++.so.6')._handle)";
    let mut program = Running::python(script);
    program.out().read_line(&mut String::new()).expect("a line");
    for round in 0..8 {
        let outcome = attach(dir.path(), program.pid(), &["--for", &format!("0.0{round}1")]);
        assert_eq!(outcome.status.code(), Some(0), "{}", outcome.err());
        assert!(outcome.err().contains("nothing of the agent is left"), "{}", outcome.err());
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(program.0.try_wait().expect("its state").is_none(), "it goes on");
}

#[test]
fn a_filter_of_one_thread_counts() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    // It may take longer than the program lives.
    programs::grapnel();
    // One instruction, which allows everything, in the second thread only.
    let script = "import ctypes, struct, threading, time\n\
                  libc = ctypes.CDLL(None)\n\
                  code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n\
                  filter = struct.pack('HxxxxxxQ', 1, ctypes.addressof(code))\n\
                  def run():\n    libc.prctl(38, 1, 0, 0, 0)\n    print(libc.prctl(22, 2, filter), flush=True)\n    \
                  time.sleep(60)\n\
                  threading.Thread(target=run).start()\ntime.sleep(60)";
    let mut program = Running::python(script);
    let mut line = String::new();
    program.out().read_line(&mut line).expect("a line");
    assert_eq!(line, "0\n");
    let outcome = attach(dir.path(), program.pid(), &[]);
    assert_eq!(outcome.status.code(), Some(125), "{}", outcome.err());
    assert!(outcome.err().contains("has a filter for system calls"), "{}", outcome.err());
}
