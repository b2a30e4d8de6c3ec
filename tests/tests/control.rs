//! Control of a recording that goes on: who is found, what is answered, and who is not.

use grapnel_tests::going::{Going, until};
use grapnel_tests::group::Group;
use grapnel_tests::run::{Case, kill, temporary_dir};
use grapnel_tests::stepping::Stepping;
use grapnel_tests::{is_root, programs, skipped};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Waits for the end of its input.
fn waiting() -> Case {
    Case::new("/usr/bin/python3")
        .args(["-c", "import sys; kept = [bytes(1000) for n in range(500)]; sys.stdin.read()"])
}

#[test]
fn a_recording_is_found_while_it_goes_on() {
    let mut going = Going::new(&waiting());
    let status = going.status().unwrap();
    let process = &status["processes"][0];
    assert_eq!(status["grapnel"], going.child.id());
    assert_eq!((process["pid"].to_string(), &process["command"][1]), (going.pid(), &Value::from("-c")));
    assert!(Path::new(process["trace"].as_str().unwrap()).ends_with("t.grapnel"));
    until("events", || (going.status()?["processes"][0]["events"].as_u64()? > 500).then_some(()));
    let list = going.grapnel(&["list"]);
    assert!(list.out().starts_with(&going.pid()) && list.out().contains("t.grapnel"), "{}", list.out());
    // By the process's own id too.
    assert!(going.grapnel(&["status", &going.pid()]).status.success());
    let other = going.grapnel(&["status", "1"]);
    assert_eq!((other.status.code(), other.out()), (Some(1), String::new()));
    assert!(other.err().contains("no process of this id is recorded"), "{}", other.err());
    going.end();
    assert!(!going.socket().exists());
    assert_eq!(going.status(), None);
}

#[test]
fn the_socket_of_a_recording_that_was_killed_is_removed() {
    let mut going = Going::new(&waiting());
    let pid: u32 = going.pid().parse().unwrap();
    kill(Signal::KILL, going.child.id());
    going.child.wait().unwrap();
    assert!(going.socket().exists());
    // Its guard takes a moment to be gone.
    until("the socket is removed", || {
        going.grapnel(&["list"]);
        (!going.socket().exists()).then_some(())
    });
    assert_eq!(going.grapnel(&["list"]).err(), "grapnel: nothing is being recorded\n");
    kill(Signal::KILL, pid);
}

#[test]
fn nonsense_is_refused_and_holds_up_nobody() {
    let going = Going::new(&waiting());
    // These say nothing, or too little, and stay.
    let silent: Vec<UnixStream> = (0..8).map(|_| UnixStream::connect(going.socket()).unwrap()).collect();
    for mut stream in &silent {
        stream.write_all(b"{\"request\"").unwrap();
    }
    let ask = |request: &[u8]| {
        let mut stream = UnixStream::connect(going.socket()).unwrap();
        let _ = stream.write_all(request);
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    for nonsense in
        [&b"\n"[..], b"{}\n", b"[[[[\n", b"\xff\xff\0\n", b"{\"request\":\"halt\"}\n", &[b'x'; 5000]]
    {
        let answer = ask(nonsense);
        assert_eq!(answer["answer"], "refused", "{answer}");
        assert!(answer["error"].as_str().unwrap().len() < 300, "{answer}");
    }
    assert_eq!(ask(b"{\"request\":\"status\"}\n")["answer"], "status");
    // More than are served at once: closed, and the recording goes on.
    let many: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(going.socket()).unwrap()).collect();
    let closed = |mut stream: &UnixStream| {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.read(&mut [0]).is_ok_and(|len| len == 0)
    };
    assert!(closed(many.last().unwrap()));
    drop((many, silent));
    until("an answer", || going.status());
}

#[test]
fn others_can_neither_enter_nor_mislead() {
    let going = Going::new(&waiting());
    let directory = going.dir.path().join("run/grapnel");
    let facts = directory.metadata().unwrap();
    assert_eq!((facts.mode() & 0o7777, facts.uid()), (0o700, rustix::process::geteuid().as_raw()));
    drop(going);
    // A directory that others can enter, or a link to one, is not used; the recording goes on without.
    for prepare in [
        (|path: &Path| {
            std::fs::create_dir(path).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        }) as fn(&Path),
        |path| {
            let other = path.with_file_name("other");
            std::fs::create_dir(&other).unwrap();
            symlink(other, path).unwrap();
        },
    ] {
        let dir = temporary_dir();
        let runtime = dir.path().join("run");
        std::fs::create_dir(&runtime).unwrap();
        prepare(&runtime.join("grapnel"));
        let list = r#"ls "$XDG_RUNTIME_DIR"/grapnel/"#;
        let case = Case::new("/bin/sh").args(["-c", list]).env("XDG_RUNTIME_DIR", &runtime);
        let recorded = case.recorded();
        assert!(recorded.outcome.status.success());
        assert_eq!(recorded.outcome.out(), "", "a socket is there");
    }
    if !is_root() {
        skipped("another user who asks", "needs root");
        return;
    }
    let going = Going::new(&waiting());
    // What keeps others out is the directory, and behind it who they are.
    for open in [&directory_of(&going), &going.dir.path().join("run"), going.dir.path()] {
        std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    std::fs::set_permissions(going.socket(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let script = "import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
try:
    s.sendall(b'{\"request\":\"status\"}\\n')
    print(s.recv(10))
except (BrokenPipeError, ConnectionResetError):
    print(b'')";
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", script]);
    let answer = grapnel_tests::run::finish(other.arg(going.socket()), b"");
    assert_eq!(answer.out(), "b''\n", "{}", answer.err());
    // Nor are the trace and the memory with the rings for others.
    let script = "import os, sys
for what, look in [('trace', lambda: open(sys.argv[1], 'rb')), ('memory', lambda: os.listdir(sys.argv[2]))]:
    try:
        look()
        print(what, 'open')
    except PermissionError:
        print(what, 'closed')";
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", script]);
    other.arg(going.dir.path().join("t.grapnel")).arg(format!("/proc/{}/fd", going.child.id()));
    let answer = grapnel_tests::run::finish(&mut other, b"");
    assert_eq!(answer.out(), "trace closed\nmemory closed\n", "{}", answer.err());
}

/// Root asks the recordings of all users, who may claim what they like. Below a `/tmp` that nobody else sees.
#[test]
fn who_claims_another_users_process_is_not_believed() {
    if !is_root() {
        skipped("another user who claims to record a process", "needs root");
        return;
    }
    let script = "import json, os, signal, socket, subprocess, sys
listens, told = os.pipe()
child = os.fork()
if child == 0:
    os.setgroups([]); os.setgid(64321); os.setuid(64321)
    os.makedirs('/tmp/grapnel-64321', 0o700)
    s = socket.socket(socket.AF_UNIX)
    s.bind('/tmp/grapnel-64321/7.socket')
    s.listen(8)
    process = lambda pid: dict(pid=pid, command=['x'], trace='x', duration_ns=1, events=1, trace_bytes=1, totals=None,
        sampled=False, lost_events=0, paused=False)
    status = dict(answer='status', grapnel=1, version='x', program=1, processes=[process(1), process(os.getpid())])
    os.write(told, b'.')
    while True:
        client, _ = s.accept()
        client.recv(100)
        client.sendall(json.dumps(status).encode() + b'\\n')
os.read(listens, 1)
for pid in [child, 1]:
    done = subprocess.run([sys.argv[1], 'status', str(pid)], capture_output=True, text=True)
    lines = [line.split()[0] == str(child) for line in done.stdout.splitlines()]
    print(done.returncode, lines, 'no process of this id is recorded' in done.stderr)
os.kill(child, signal.SIGKILL)";
    let mut hidden = Command::new("unshare");
    // grapnel itself may lie below the other one.
    let mount = "exec 9<\"$1\" && mount -t tmpfs -o mode=1777 none /tmp && exec /usr/bin/python3 -c \"$0\" /proc/$$/fd/9";
    hidden.args(["--mount", "sh", "-c", mount, script]).arg(programs::grapnel());
    let said = grapnel_tests::run::finish(&mut hidden, b"");
    // What may be true is told.
    assert_eq!(said.out(), "0 [True] False\n1 [] True\n", "{}", said.err());
}

/// Who asks has no number where the recording is.
#[test]
fn a_recording_in_a_namespace_of_its_own_answers() {
    let options = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    if !is_root() {
        skipped("a recording in a namespace of processes", "needs root");
        return;
    }
    let dir = temporary_dir();
    let mut command = Command::new("unshare");
    command
        .args(options)
        .arg(programs::grapnel())
        .args(["run", "-q", "-o"])
        .arg(dir.path().join("t.grapnel"));
    command.args(["--", "sleep", "60"]).env("XDG_RUNTIME_DIR", dir.path());
    let _recording = grapnel_tests::attaching::Running::start(&mut command);
    let listed = || {
        let list = Case::new(programs::grapnel()).args(["list"]).env("XDG_RUNTIME_DIR", dir.path());
        list.bare().out().contains("sleep 60").then_some(())
    };
    until("an answer", listed);
}

fn directory_of(going: &Going) -> PathBuf {
    going.dir.path().join("run/grapnel")
}

trait Snapshots {
    fn snapshot(&self, name: &str) -> PathBuf;
    fn trace(&self) -> PathBuf;
}

impl Snapshots for Stepping {
    fn snapshot(&self, name: &str) -> PathBuf {
        let path = self.going.dir.path().join(name);
        self.ask("snapshot", &["-o", path.to_str().unwrap()]);
        path
    }

    fn trace(&self) -> PathBuf {
        self.going.dir.path().join("t.grapnel")
    }
}

/// How many blocks of the program's own size were allocated and are live, by a query of a trace.
fn blocks(trace: &Path, more: &[&str]) -> (u64, i64) {
    let trace = trace.to_str().unwrap();
    let only = ["query", "--format", "json", "--min-size", "54321", "--max-size", "54321", trace];
    let outcome = grapnel_tests::run::grapnel(only.iter().chain(more));
    assert!(outcome.status.success(), "{}", outcome.err());
    let answer: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let whole = &answer["whole"];
    (whole["allocations"].as_u64().unwrap(), whole["grown_blocks"].as_i64().unwrap())
}

#[test]
fn a_snapshot_has_all_up_to_its_moment() {
    let mut stepping = Stepping::new(&[]);
    for (number, expected) in [(100, 100_u64), (1, 101), (1000, 1101)] {
        stepping.step(&number.to_string());
        let path = stepping.snapshot("s.grapnel");
        assert_eq!(blocks(&path, &[]), (expected, expected.cast_signed()));
        // A report of it has nothing to complain of.
        grapnel_tests::run::report(&path);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    }
    assert_eq!(stepping.trace().metadata().unwrap().mode() & 0o777, 0o600);
    // Without a name it gets one that is free.
    let pid = stepping.going.pid();
    let mut here = Command::new(programs::grapnel());
    here.args(["snapshot", &pid]).env("XDG_RUNTIME_DIR", stepping.going.dir.path().join("run"));
    for number in 1..3 {
        let outcome = grapnel_tests::run::finish(here.current_dir(stepping.going.dir.path()), b"");
        assert_eq!(outcome.out(), format!("t.snapshot-{number}.grapnel\n"), "{}", outcome.err());
    }
    // A link that lies in the way is replaced, and leads nobody astray.
    let (link, other) =
        (stepping.going.dir.path().join("link.grapnel"), stepping.going.dir.path().join("other"));
    std::fs::write(&other, "precious").unwrap();
    symlink(&other, &link).unwrap();
    stepping.snapshot("link.grapnel");
    assert!(!link.is_symlink());
    assert_eq!(std::fs::read(&other).unwrap(), b"precious");
    stepping.going.end();
    assert_eq!(blocks(&stepping.trace(), &[]), (1101, 1101));
}

#[test]
fn what_lies_between_two_marks_is_what_happened_between_them() {
    let mut stepping = Stepping::new(&[]);
    stepping.step("10");
    stepping.ask("mark", &["loaded"]);
    stepping.step("200");
    stepping.ask("mark", &["done"]);
    stepping.step("3");
    stepping.going.end();
    let trace = stepping.trace();
    let between = |from: &str, to: &str| {
        let given = |option: &'static str, mark: &str| match mark {
            "" => vec![],
            mark => vec![option.to_owned(), format!("mark:{mark}")],
        };
        let more = [given("--from", from), given("--to", to)].concat();
        blocks(&trace, &more.iter().map(String::as_str).collect::<Vec<_>>()).0
    };
    assert_eq!(
        [between("", "loaded"), between("loaded", "done"), between("done", ""), between("", "")],
        [10, 200, 3, 213]
    );
    let text = grapnel_tests::run::grapnel(["report", trace.to_str().unwrap()]).out();
    assert!(text.contains("loaded") && text.contains("done"), "{text}");
    let json = grapnel_tests::run::grapnel(["report", "--format", "json", trace.to_str().unwrap()]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let names: Vec<_> =
        json["marks"].as_array().unwrap().iter().map(|mark| mark["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["loaded", "done"]);
    let missing = grapnel_tests::run::grapnel(["query", "--from", "mark:never", trace.to_str().unwrap()]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(missing.err().contains("no mark is called \"never\"; it has loaded, done"), "{}", missing.err());
}

#[test]
fn a_pause_leaves_out_what_comes_and_follows_what_was_there() {
    let mut stepping = Stepping::new(&[]);
    stepping.step("5000");
    stepping.ask("pause", &[]);
    assert_eq!(stepping.going.status().unwrap()["processes"][0]["paused"], true);
    // The thread notices within some hundred events.
    stepping.step("2000");
    let noticed = blocks(&stepping.snapshot("noticed.grapnel"), &[]).0;
    assert!(noticed < 7000, "{noticed}");
    stepping.step("3000");
    assert_eq!(blocks(&stepping.snapshot("paused.grapnel"), &[]).0, noticed);
    // What was recorded is followed to its end, also while nothing else is recorded.
    stepping.step("free");
    assert_eq!(blocks(&stepping.snapshot("freed.grapnel"), &[]), (noticed, 0));
    stepping.ask("resume", &[]);
    stepping.step("7");
    stepping.going.end();
    assert_eq!(blocks(&stepping.trace(), &[]), (noticed + 7, 7));
    let report = grapnel_tests::run::report(&stepping.trace());
    assert_eq!(report.totals.lost_events, 0);
}

#[test]
fn a_pause_goes_on_behind_an_exec() {
    let script = "read line; exec /usr/bin/python3 -c 'import sys
for line in sys.stdin:
    kept = [bytes(54289) for n in range(int(line))]
    print(len(kept), flush=True)'";
    let case = Case::new("/bin/sh").args(["-c", script]).env("PYTHONMALLOC", "malloc");
    let mut going = Going::new(&case);
    let pid = going.pid();
    assert!(going.grapnel(&["pause", &pid]).status.success());
    let mut answers = BufReader::new(going.child.stdout.take().unwrap());
    let mut step = |going: &mut Going, line: &str| {
        writeln!(going.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
    };
    // The new program's threads notice as those of the old one.
    step(&mut going, "exec\n1000");
    let process = || going.status().unwrap()["processes"][0].clone();
    let (now, trace) = (process(), process()["trace"].as_str().unwrap().to_owned());
    assert_eq!((&now["pid"].to_string(), &now["paused"]), (&pid, &Value::from(true)));
    assert!(now["command"][0].as_str().unwrap().contains("python3"), "{now}");
    step(&mut going, "2000");
    assert!(going.grapnel(&["resume", &pid]).status.success());
    step(&mut going, "300");
    going.end();
    let trace = going.dir.path().join(trace);
    // `bytes` has a header, and a zero behind.
    let of_size = |from: &str| -> u64 {
        let size = ["query", "--format", "json", "--min-size", "54322", "--max-size", "54322"];
        let trace = trace.to_str().unwrap();
        let outcome = grapnel_tests::run::grapnel(size.iter().chain(&["--from", from, trace]));
        let answer: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        answer["whole"]["allocations"].as_u64().unwrap()
    };
    // Until they had noticed, some hundred events, some may have come through.
    let seen = of_size("0s");
    assert!((300..1300).contains(&seen), "{seen}");
}

/// Snapshots beside the trace, once there are so many.
fn snapshots(dir: &Path, number: usize) -> Vec<PathBuf> {
    until("snapshots", || {
        let mut all = grapnel_tests::run::traces_in(dir);
        all.retain(|path| path.to_string_lossy().contains("snapshot-"));
        (all.len() >= number).then_some(all)
    })
}

#[test]
fn snapshots_come_on_a_signal_and_at_thresholds() {
    let mut stepping = Stepping::new(&["--snapshot-on", "SIGUSR1", "--snapshot-at", "100M"]);
    let dir = stepping.going.dir.path().to_owned();
    stepping.step("1500");
    kill(Signal::USR1, stepping.going.child.id());
    let all = snapshots(&dir, 1);
    assert_eq!(blocks(&all[0], &[]), (1500, 1500));
    stepping.step("1000");
    let live = |number: usize| blocks(&snapshots(&dir, number)[number - 1], &[]).1;
    let second = live(2);
    assert!(second * 54321 >= 100 << 20 && second <= 2500, "{second}");
    // Not the same again: so much more, once more.
    stepping.step("900");
    stepping.step("1100");
    let third = live(3);
    assert!((third - second) * 54321 >= 100 << 20 && third <= 4500, "{third}");
    stepping.going.end();
}

#[test]
fn a_program_marks_pauses_and_asks_by_itself() {
    let recorded = Case::ours("moments").recorded();
    assert!(recorded.outcome.status.success(), "{}", recorded.outcome.err());
    let trace = recorded.trace();
    assert_eq!(blocks(&trace, &["--to", "mark:first"]).0, 10);
    assert_eq!(blocks(&trace, &["--from", "mark:first", "--to", "mark:second"]).0, 20);
    // The thread that pauses notices at once.
    assert_eq!(blocks(&trace, &["--from", "mark:second"]).0, 40);
    // It was taken at some moment behind the call.
    let snapshot = &snapshots(recorded.dir.path(), 1)[0];
    assert!(blocks(snapshot, &[]).0 >= 30);
    let bare = Case::ours("moments").bare();
    recorded.outcome.same_as(&bare);
}

/// Of which each of its blocks is a part.
#[test]
fn a_program_marks_pauses_and_asks_in_a_sample_too() {
    let case = Case::ours("moments").option("--sample=256");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let report = recorded.report();
    // And what `puts` writes into.
    assert!((70..=71).contains(&report.totals.allocations), "{}", report.totals.allocations);
    let kinds: Vec<&str> = report.marks.iter().map(|mark| mark.kind.as_str()).collect();
    assert_eq!(kinds, ["mark", "snapshot", "mark", "paused", "resumed"]);
    let snapshot = &snapshots(recorded.dir.path(), 1)[0];
    assert!(grapnel_tests::run::report(snapshot).totals.allocations >= 30);
}

const LIMIT: u64 = 200 << 20;

#[test]
fn a_snapshot_comes_before_memory_ends() {
    let Some(group) = Group::new(LIMIT) else {
        skipped("a snapshot before memory ends", "no control group with a limit can be made here");
        return;
    };
    let case = Case::new("/usr/bin/python3").args(group.filler(LIMIT, "")).option("--snapshot-before-oom");
    let mut going = Going::new(&case);
    let all = snapshots(going.dir.path(), 1);
    going.end();
    let report = grapnel_tests::run::report(&all[0]);
    assert!(report.totals.live_bytes > LIMIT / 10 * 8, "{}", report.totals.live_bytes);
    drop(group);
}
