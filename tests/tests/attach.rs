//! `grapnel attach`: into a process that runs, and out of it without a trace.

use grapnel_tests::attaching::{Running, State, attach, may_trace, state};
use grapnel_tests::going::until;
use grapnel_tests::programs;
use grapnel_tests::run::{descendants, grapnel, kill, report, temporary_dir, traces_in};
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
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

/// Children that do nothing of their own don't have traces, also where their parent has left an allocation in its middle.
#[test]
fn idle_children_have_no_traces() {
    if !may_trace() {
        return;
    }
    for arguments in [&["10"][..], &["10", "jump"]] {
        let dir = temporary_dir();
        let mut command = Command::new(programs::program("fork_loop"));
        let mut program = Running::start(command.args(arguments).stdout(Stdio::piped()));
        let mut out = program.out();
        out.read_line(&mut String::new()).expect("a line");
        let outcome = attach(dir.path(), program.pid(), &["-q", "--for", "0.7"]);
        assert_eq!((outcome.status.code(), outcome.err()), (Some(0), String::new()));
        let mut forks = String::new();
        out.read_to_string(&mut forks).expect("a number");
        assert!(program.0.wait().expect("its end").success());
        assert!(forks.trim().parse::<u64>().expect("a number") > 10, "{forks}");
        assert_eq!(traces_in(dir.path()).len(), 1, "{arguments:?}");
        assert!(report(&dir.path().join("t.grapnel")).totals.allocations >= 20);
    }
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
    let mut sharing = Command::new(programs::program("guest_sleeps"));
    let mut sharing = Running::start(sharing.stdout(Stdio::piped()));
    sharing.out().read_line(&mut String::new()).expect("a line");
    refused(sharing.pid(), "shares its memory with process");
    drop(sharing);
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

/// What the agent reads at its start may go just then: it is read again while nothing is being opened or closed.
#[test]
fn a_process_that_does_nothing_but_load_and_unload_can_be_attached_to() {
    if !may_trace() {
        return;
    }
    lasting("opens_and_closes", 16, "0.02");
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

/// A thread is not given anything else to do in the middle of making another.
#[test]
fn a_thread_that_makes_threads_is_left_well() {
    if !may_trace() {
        return;
    }
    lasting("makes_threads", 10, "0.02");
}

/// Nothing says where a stack ends in memory that the program gives to several threads.
#[test]
fn threads_with_stacks_in_one_large_mapping_are_left() {
    if !may_trace() {
        return;
    }
    lasting("stack_pool", 3, "0.2");
}

/// Attaches to a program again and again that runs until its input ends, and then says that all is well.
fn lasting(name: &str, rounds: usize, seconds: &str) {
    let dir = temporary_dir();
    let mut command = Command::new(programs::program(name));
    let mut program =
        Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut out = program.out();
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    for round in 0..rounds {
        let outcome = attach(dir.path(), program.pid(), &["-q", "--for", seconds]);
        assert_eq!(program.0.try_wait().expect("its status"), None, "round {round}: {}", outcome.err());
        assert_eq!((outcome.status.code(), outcome.err()), (Some(0), String::new()), "round {round}");
    }
    drop(program.0.stdin.take());
    assert!(program.0.wait().expect("it ends").success());
    line.clear();
    out.read_line(&mut line).expect("a line");
    assert_eq!(line, "well\n");
}

/// The thread that was asked to stop is the first one of another program by then.
#[test]
fn a_process_that_becomes_another_program_is_held_by_nobody() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let mut program = Running::start(&mut Command::new(programs::program("becomes_anew")));
    for round in 0..10 {
        let started = Instant::now();
        let outcome = attach(dir.path(), program.pid(), &["-q", "--for", "0.02"]);
        let text = format!("round {round}, after {:?}: {}", started.elapsed(), outcome.err());
        assert!(!outcome.err().contains("another grapnel"), "{text}");
        assert_eq!(program.0.try_wait().expect("its status"), None, "{text}");
        until(&text, || {
            let status = fs::read_to_string(format!("/proc/{}/status", program.pid())).ok()?;
            status.lines().any(|line| line == "TracerPid:\t0").then_some(())
        });
    }
}
