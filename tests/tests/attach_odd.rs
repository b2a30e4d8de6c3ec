//! `grapnel attach` to processes in states that are rare, and with things happening to it that are.

use grapnel_tests::attaching::{Running, State, attach, may_trace, recorder, state};
use grapnel_tests::going::until;
use grapnel_tests::programs;
use grapnel_tests::run::{finish, grapnel, kill, report, temporary_dir};
use rustix::process::Signal;
use std::fs;
use std::io::BufRead;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The kernel shows nobody's memory by the process's own number then.
#[test]
fn the_first_thread_may_have_ended() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::at_work(&programs::program("first_ends"), "");
    until("the first thread's end", || (state(program.pid()) == Some('Z')).then_some(()));
    for _ in 0..2 {
        let outcome = attach(dir.path(), program.pid(), &["--for", "0.5"]);
        assert_eq!(outcome.status.code(), Some(0), "{}", outcome.err());
        assert!(outcome.err().contains("nothing of the agent is left"), "{}", outcome.err());
        let recorded = report(&dir.path().join("t.grapnel"));
        assert!(recorded.totals.allocations >= 100, "{:?}", recorded.totals);
    }
    assert!(grapnel(["detach", &program.pid().to_string()]).err().contains("isn't recorded"));
}

/// What looks like a signal's frame, and leads to the agent's data.
#[test]
#[cfg(target_arch = "x86_64")]
fn words_that_look_like_a_frame_keep_nobody() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let mut command = Command::new(programs::program("stale_words"));
    let mut program = Running::start(command.stdout(Stdio::piped()));
    let mut line = String::new();
    program.out().read_line(&mut line).expect("a line");
    for _ in 0..2 {
        let outcome = attach(dir.path(), program.pid(), &["--for", "0.4"]);
        assert_eq!(outcome.status.code(), Some(0), "{}", outcome.err());
        assert!(outcome.err().contains("nothing of the agent is left"), "{}", outcome.err());
    }
}

/// A thread there would take an address of 64-bit code for one of its own.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_thread_in_32_bit_code_is_not_borrowed() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    // Nearly always there, and about half of the time.
    for (rounds, each, is_seldom) in [("20000000", "1", true), ("200", "100000", false)] {
        let mut command = Command::new(programs::program("other_code"));
        let mut program = Running::start(command.args([rounds, each]).stdout(Stdio::piped()));
        let mut out = program.out();
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        let outcome = attach(dir.path(), program.pid(), &["--for", "0.2"]);
        let said = outcome.err();
        match outcome.status.code() {
            Some(0) => assert!(said.contains("nothing of the agent is left"), "{said}"),
            _ => assert!(said.contains("32-bit code") || said.contains("found in 64-bit code"), "{said}"),
        }
        // One that is seldom in 64-bit code may be met there once, and not again when the agent is to leave.
        let stays = said.contains("it goes on with the agent in it");
        assert!(is_seldom || !stays, "{said}");
        let maps = fs::read_to_string(format!("/proc/{}/maps", program.pid())).expect("it runs on");
        assert_eq!(maps.contains("memfd:grapnel"), stays, "{maps}\n{said}");
        for _ in 0..3 {
            line.clear();
            assert_ne!(out.read_line(&mut line).expect("it runs on"), 0);
        }
        assert_eq!(program.0.try_wait().expect("its state"), None);
    }
}

/// Who doesn't say where a trace goes loses none that is there.
#[test]
fn a_second_recording_leaves_the_first_where_it_is() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let pid = program.pid();
    let names = [
        format!("steady.{pid}.grapnel"),
        format!("steady.{pid}.2.grapnel"),
        format!("steady.{pid}.3.grapnel"),
    ];
    // A link that leads nowhere is in the way of the third.
    std::os::unix::fs::symlink("elsewhere", dir.path().join(&names[2])).expect("a link");
    let last = format!("steady.{pid}.4.grapnel");
    let mut first = Vec::new();
    for name in [&names[0], &names[1], &last] {
        let mut command = Command::new(programs::grapnel());
        command.args(["attach", "--for", "0.3", &pid.to_string()]).current_dir(dir.path());
        let outcome = finish(&mut command, b"");
        assert_eq!(outcome.status.code(), Some(0), "{}", outcome.err());
        assert!(outcome.err().contains(name), "{}", outcome.err());
        assert!(report(&dir.path().join(name)).totals.allocations > 0);
        let kept = fs::read(dir.path().join(&names[0])).expect("the first trace");
        if first.is_empty() {
            first.clone_from(&kept);
        }
        assert!(kept == first, "the first trace was written to by {name}");
    }
    assert!(!dir.path().join("elsewhere").exists());
    // One that never came to be leaves no file.
    let before = fs::read_dir(dir.path()).expect("files").count();
    let mut command = Command::new(programs::grapnel());
    command.args(["attach", "--for", "0.3", &std::process::id().to_string()]).arg("--serve=192.0.2.1:1");
    let outcome = finish(command.current_dir(dir.path()), b"");
    assert_eq!(outcome.status.code(), Some(125), "{}", outcome.err());
    assert_eq!(fs::read_dir(dir.path()).expect("files").count(), before);
}

/// A program that puts itself under a filter by which `ptrace` fails, and becomes another.
const FILTERED: &str = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, int(sys.argv[1])), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(rules), ctypes.addressof(code)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
os.execv(sys.argv[2], sys.argv[2:])";

/// It isn't for want of rights: root is refused too.
#[test]
fn a_filter_that_grapnel_is_under_is_named() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let number = if cfg!(target_arch = "aarch64") { "117" } else { "101" };
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", FILTERED, number]).arg(programs::grapnel()).args(["attach", "--for", "0.3"]);
    let outcome = finish(command.arg(program.pid().to_string()).current_dir(dir.path()), b"");
    assert_eq!(outcome.status.code(), Some(125), "{}", outcome.err());
    assert!(outcome.err().contains("seccomp=unconfined"), "{}", outcome.err());
    assert_eq!(fs::read_dir(dir.path()).expect("files").count(), 0);
}

/// The process would soon wait for it.
#[test]
fn a_terminals_signals_do_not_stop_who_records() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let before = State::of(program.pid());
    let mut recorder = recorder(dir.path(), program.pid());
    until("it is attached to", || (State::of(program.pid()).code != before.code).then_some(()));
    for signal in [Signal::TSTP, Signal::TTIN, Signal::TTOU] {
        kill(signal, recorder.pid());
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(200) {
            assert_ne!(state(recorder.pid()), Some('T'), "{signal:?}");
        }
    }
    kill(Signal::INT, recorder.pid());
    assert_eq!(recorder.0.wait().expect("it ends").code(), Some(0));
    assert_eq!(State::of(program.pid()), before);
}

/// `nohup` has the signal ignored.
#[test]
fn a_hangup_that_is_ignored_ends_nothing() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let trace = dir.path().join("t.grapnel");
    let mut command = Command::new("nohup");
    command.arg(programs::grapnel()).args(["attach", "-q", "--for", "1e19", "-o"]).arg(&trace);
    let mut recorder = Running::start(command.arg(program.pid().to_string()).stdout(Stdio::null()));
    until("a trace", || trace.metadata().is_ok_and(|facts| facts.len() > 4096).then_some(()));
    kill(Signal::HUP, recorder.pid());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(recorder.0.try_wait().expect("its state"), None);
    kill(Signal::TERM, recorder.pid());
    assert_eq!(recorder.0.wait().expect("it ends").code(), Some(0));
}

#[test]
fn limits_in_the_way_are_said_with_what_raises_them() {
    if !may_trace() {
        return;
    }
    for (limit, remedy) in [("--nofile=0", "--nofile=64"), ("--as=1", "--as=unlimited")] {
        let dir = temporary_dir();
        let program = Running::steady("600");
        let pid = program.pid().to_string();
        let before = State::of(program.pid());
        let limited = Command::new("prlimit").args(["--pid", &pid, limit]).output().expect("prlimit");
        assert!(limited.status.success(), "{}", String::from_utf8_lossy(&limited.stderr));
        let outcome = attach(dir.path(), program.pid(), &[]);
        assert_eq!(outcome.status.code(), Some(125), "{}", outcome.err());
        let wanted = format!("`prlimit --pid {pid} {remedy}`");
        assert!(outcome.err().contains(&wanted), "{}", outcome.err());
        assert_eq!(State::of(program.pid()), before);
    }
}

/// Where the session's header begins in a process.
fn header(pid: u32) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings");
    let line =
        maps.lines().find(|line| line.contains("memfd:grapnel-session") && line.contains(" 00000000 "));
    let start = line.and_then(|line| line.split('-').next()).expect("a session");
    u64::from_str_radix(start, 16).expect("a number")
}

/// What is taken out, and from where, isn't asked of memory that the process can write to.
#[test]
fn a_process_that_spoils_what_is_shared_is_left_all_the_same() {
    if !may_trace() {
        return;
    }
    // Nearly all of it; and the word that says that another grapnel has taken the agent out.
    for spoilt in [64..4096u64, 36..40] {
        let dir = temporary_dir();
        let program = Running::steady("600");
        let before = State::of(program.pid());
        let mut recorder = recorder(dir.path(), program.pid());
        until("it is attached to", || (State::of(program.pid()).code != before.code).then_some(()));
        std::thread::sleep(Duration::from_millis(300));
        let memory = Path::new("/proc").join(program.pid().to_string()).join("mem");
        let memory = fs::File::options().write(true).open(memory).expect("its memory");
        let garbage = vec![0x5a; (spoilt.end - spoilt.start) as usize];
        memory.write_all_at(&garbage, header(program.pid()) + spoilt.start).expect("it can be written");
        std::thread::sleep(Duration::from_millis(300));
        kill(Signal::INT, recorder.pid());
        recorder.0.wait().expect("it ends");
        assert_eq!(State::of(program.pid()), before, "{spoilt:?}");
    }
}
