//! Programs in which every function of libc is listened to do what they do without. The library that listens is an
//! example, so that a user can do the same.
//!
//! For another machine `GRAPNEL_ROOT` is the folder of its system, `GRAPNEL_EMULATOR` what runs its programs, and
//! `GRAPNEL_LIBRARY` the example, built for it.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::LazyLock,
};

/// The example as a library. Cargo builds examples for tests only sometimes, so that is asked for here.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(library) = env::var_os("GRAPNEL_LIBRARY") {
        return library.into();
    }
    let test = env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let release: &[&str] = if profile.ends_with("release") { &["--release"] } else { &[] };
    let status = Command::new(env!("CARGO"))
        .args(["build", "-q", "-p", "grapnel-hook", "--example", "listen_to_libc"])
        .args(release)
        .arg("--target-dir")
        .arg(profile.parent().unwrap())
        .status()
        .unwrap();
    assert!(status.success());
    profile.join("examples/liblisten_to_libc.so")
});

/// A program with these variables only.
fn command(program: &str, variables: &[(&str, &str)]) -> Command {
    let (mut command, own) = match (env::var_os("GRAPNEL_ROOT"), env::var_os("GRAPNEL_EMULATOR")) {
        (Some(root), Some(emulator)) => {
            let mut command = Command::new(emulator);
            command.arg("-L").arg(&root);
            for (name, value) in variables {
                command.args(["-E", &format!("{name}={value}")]);
            }
            command.arg(Path::new(&root).join(program.trim_start_matches('/')));
            (command, &[][..])
        }
        _ => (Command::new(program), variables),
    };
    command.env_clear().env("PATH", "/usr/bin:/bin").envs(own.iter().copied());
    command
}

/// A process, as the library reports it at its end.
#[derive(Debug)]
struct Process {
    listened: usize,
    functions: usize,
    calls: u64,
    returns: u64,
    missed: u64,
    refused: Vec<String>,
}

fn processes(report: &str) -> Vec<Process> {
    let mut processes = Vec::new();
    for line in report.lines().filter(|line| !line.is_empty()) {
        if line.starts_with("process ") {
            let numbers: Vec<u64> =
                line.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
            let [_, listened, functions, calls, returns, missed] = numbers[..] else { panic!("{line}") };
            processes.push(Process {
                listened: listened as usize,
                functions: functions as usize,
                calls,
                returns,
                missed,
                refused: Vec::new(),
            });
        } else {
            processes.last_mut().unwrap().refused.push(line.to_owned());
        }
    }
    processes
}

/// Runs a program without the library and with it: what it prints and how it ends must be the same. Answers how it ended
/// and what was listened to.
fn both(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> (Output, Vec<Process>) {
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("listened-{}", arguments.len()));
    let report = report.with_extension(Path::new(program).file_name().unwrap());
    let _ = std::fs::remove_file(&report);
    let run = |preload: bool| {
        let mut variables = variables.to_vec();
        if preload {
            let [library, report] = [&LIBRARY, &report].map(|path| path.to_str().unwrap());
            variables.extend([("LD_PRELOAD", library), ("LISTEN_TO_LIBC", report)]);
        }
        let output = command(program, &variables).args(arguments).output();
        output.unwrap_or_else(|error| panic!("{program}: {error}"))
    };
    let (bare, listened) = (run(false), run(true));
    let text = |bytes: &[u8]| timeless(&String::from_utf8_lossy(bytes));
    assert_eq!(text(&bare.stdout), text(&listened.stdout), "{program}");
    assert_eq!(text(&bare.stderr), text(&listened.stderr), "{program}");
    assert_eq!(bare.status, listened.status, "{program}");
    let processes = processes(&std::fs::read_to_string(&report).expect("the process reported"));
    for process in &processes {
        println!(
            "{program}: {} of {} functions, {} calls, {} returns, {} missed",
            process.listened, process.functions, process.calls, process.returns, process.missed
        );
        for line in &process.refused {
            println!("  {line}");
        }
        assert!(process.listened * 100 > process.functions * 98, "{process:?}");
        assert!(process.refused.iter().all(|line| line.contains(": ")), "each refusal has a reason");
        assert_eq!(process.missed, 0);
    }
    (listened, processes)
}

/// unittest says how long it took.
fn timeless(text: &str) -> String {
    let line = |line: &str| match line.split_once(" tests in ") {
        Some((count, _)) if line.starts_with("Ran ") => count.to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn python_passes_its_own_tests_of_json() {
    let variables = [("PYTHONHASHSEED", "0"), ("PYTHONDONTWRITEBYTECODE", "1")];
    let mut arguments = vec!["-m", "unittest", "-v"];
    if env::var_os("GRAPNEL_ROOT").is_some() {
        // All but those of the module that start programs, which no emulator would run.
        arguments.extend(["-k", "TestC", "-k", "TestPy"]);
    }
    arguments.push("test.test_json");
    let (output, processes) = both("/usr/bin/python3", &arguments, &variables);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("\nOK"), "{text}");
    assert!(processes.iter().map(|process| process.calls).sum::<u64>() > 100_000, "{processes:?}");
}

/// Debian's python3 is linked for low addresses. The library comes while three threads of it run.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_functions_of_a_running_python_are_listened_to() {
    let script = "
import ctypes, json, os, threading, time
stop = threading.Event()
rounds = [0] * 3
def work(which):
    while not stop.is_set():
        rounds[which] += 1
        assert json.loads(json.dumps({'a': [1, 2, {'b': 'c'}], 'x': 3.5}))['a'][2]['b'] == 'c'
threads = [threading.Thread(target=work, args=(which,)) for which in range(3)]
for thread in threads: thread.start()
while min(rounds) == 0: time.sleep(0.01)
if 'LIBRARY' in os.environ: ctypes.CDLL(os.environ['LIBRARY'])
before = list(rounds)
while min(map(int.__sub__, rounds, before)) < 3000: time.sleep(0.01)
stop.set()
for thread in threads: thread.join()
print('done')
";
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join("listened-running.python3");
    let _ = std::fs::remove_file(&report);
    let [library, path] = [&LIBRARY, &report].map(|path| path.to_str().unwrap());
    let variables = [("LIBRARY", library), ("LISTEN_TO", ""), ("LISTEN_LIVE", "1"), ("LISTEN_TO_LIBC", path)];
    let output = command("/usr/bin/python3", &variables).args(["-c", script]).output().unwrap();
    assert!(output.status.success() && output.stdout == b"done\n", "{output:?}");
    let processes = processes(&std::fs::read_to_string(&report).expect("the process reported"));
    let [process] = &processes[..] else { panic!("{processes:?}") };
    println!("{} of {} functions, {} calls", process.listened, process.functions, process.calls);
    assert!(process.listened * 100 > process.functions * 98 && process.calls > 10_000, "{process:?}");
    assert!(process.refused.iter().all(|line| line.contains("can't be hooked: ")), "{process:?}");
}

#[test]
fn sqlite_runs_a_script() {
    let script = "create table t(a integer primary key, b text, c real);\
        with recursive n(i) as (values(1) union all select i + 1 from n where i < 20000)\
        insert into t select i, printf('row %d', i * 7919 % 10007), i / 3.0 from n;\
        create index x on t(b); select count(*), sum(a), avg(c), max(b) from t;\
        select b, c from t where b like 'row 99%' order by c desc limit 20; pragma integrity_check;";
    let (output, processes) = both("/usr/bin/sqlite3", &["-batch", ":memory:", script], &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.ends_with("ok\n"), "{text}");
    assert!(processes[0].calls > 100_000, "{processes:?}");
    // What was called when the process ended never returned.
    assert!(processes[0].calls - processes[0].returns < 1000, "{processes:?}");
}

#[test]
fn a_shell_starts_programs_and_ends_as_they_do() {
    let script =
        "for i in 1 2 3; do /usr/bin/printf '%s\\n' $i | /usr/bin/sort -r | /usr/bin/wc -c; done; exit 7";
    let (output, processes) = both("/bin/sh", &["-c", script], &[]);
    assert_eq!(output.status.code(), Some(7));
    // The shell itself ends by `_exit`, which runs no end of a library.
    assert!(processes.len() >= 9, "{processes:?}");
}
