//! The examples, and the programs in `programs`, are built as their readers would build them: with `pkg-config`, against
//! what `install` has put into a prefix.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};

use tempfile::TempDir;

/// A prefix with the shared library, and one with the static.
static SHARED: LazyLock<Prefix> = LazyLock::new(|| Prefix::new("--shared"));
static STATIC: LazyLock<Prefix> = LazyLock::new(|| Prefix::new("--static"));

struct Prefix {
    dir: TempDir,
    pkg_config: &'static [&'static str],
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {:?} {text} {errors}", output.status);
    text
}

impl Prefix {
    fn new(kind: &str) -> Self {
        let test = std::env::current_exe().unwrap();
        let target = test.ancestors().nth(3).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut install = Command::new(package().join("install"));
        run(install.arg(kind).arg(dir.path()).env("CARGO", env!("CARGO")).env("CARGO_TARGET_DIR", target));
        let pkg_config = match kind {
            "--static" => &["--static", "--cflags", "--libs", "grapnel-hook"][..],
            _ => &["--cflags", "--libs", "grapnel-hook"],
        };
        Self { dir, pkg_config }
    }

    fn build(&self, source: &str) -> PathBuf {
        self.build_with(source, "", &[])
    }

    fn build_with(&self, source: &str, suffix: &str, options: &[&str]) -> PathBuf {
        let source = package().join(source);
        let compiler = if source.extension().is_some_and(|e| e == "cc") { "c++" } else { "cc" };
        let program = source.file_stem().unwrap().to_str().unwrap();
        let program = self.dir.path().join(format!("{program}{suffix}"));
        let search = self.dir.path().join("lib/pkgconfig");
        let flags = run(Command::new("pkg-config").args(self.pkg_config).env("PKG_CONFIG_PATH", search));
        let mut compile = Command::new(compiler);
        compile.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(options).arg(source);
        run(compile.args(flags.split_whitespace()).arg("-o").arg(&program));
        program
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.dir.path().join("lib"));
        command
    }

    fn run(&self, source: &str) -> String {
        run(&mut self.command(self.build(source)))
    }

    /// Under memcheck, which fails on memory that is misused or lost.
    fn check(&self, source: &str) -> String {
        let program = self.build(source);
        let mut valgrind = self.command("valgrind");
        valgrind.args(["-q", "--smc-check=all", "--leak-check=full", "--error-exitcode=99"]);
        let suppressions = package().join("tests/valgrind.supp");
        run(valgrind.arg(format!("--suppressions={}", suppressions.display())).arg(program))
    }

    /// Instrumented by the compiler, which makes the hooked functions other ones; and with the library's memory in the
    /// sanitizer's heap.
    fn sanitize(&self, source: &str) -> String {
        let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        run(&mut self.command(self.build_with(source, "-sanitized", &options)))
    }
}

fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text}");
    }
}

const COUNTED: [&str; 4] = [
    "malloc begins where it was found",
    "1000 mallocs, 1000 frees, restored",
    "is not in executable memory",
    "no_such_function",
];
const LISTENED: [&str; 1] = ["10 entered, 10 left, 30 turns, restored"];
const THROWN: [&str; 1] = ["20000 calls, 10000 caught, 10000 left"];
const WAITED: [&str; 1] = ["hooked in three loads: yes"];
const REBOUND: [&str; 2] = ["no object defines no_such_function", "rebound and back"];

#[test]
fn the_readme_shows_the_first_examples_as_they_are() {
    let read = |path: &str| std::fs::read_to_string(package().join(path)).unwrap();
    let readme = read("../../README.md");
    assert!(readme.contains(&format!("```c\n{}```", read("examples/malloc.c"))));
    assert!(readme.contains(&format!("```rust\n{}```", read("../examples/malloc.rs"))));
    for prefix in [&SHARED, &STATIC] {
        let text = prefix.run("examples/malloc.c");
        // The library's own calls, and those of printf, are among them.
        let calls: u32 = text.split(' ').next().and_then(|calls| calls.parse().ok()).unwrap();
        assert!((100..120).contains(&calls), "{text}");
    }
}

#[test]
fn malloc_and_free_are_counted() {
    assert_has(&SHARED.run("examples/count_malloc.c"), &COUNTED);
    assert_has(&STATIC.run("examples/count_malloc.c"), &COUNTED);
}

#[test]
fn a_function_is_listened_to_and_probed() {
    assert_has(&SHARED.run("examples/listen.c"), &LISTENED);
    assert_has(&STATIC.run("examples/listen.c"), &LISTENED);
}

#[test]
fn exceptions_of_c_plus_plus_pass() {
    assert_has(&SHARED.run("examples/throw.cc"), &THROWN);
    assert_has(&STATIC.run("examples/throw.cc"), &THROWN);
}

#[test]
fn imports_are_bound_to_another_function() {
    assert_has(&SHARED.run("examples/rebind.c"), &REBOUND);
    assert_has(&STATIC.run("examples/rebind.c"), &REBOUND);
}

#[test]
fn a_library_that_comes_and_goes_is_waited_for() {
    assert_has(&SHARED.run("examples/wait.c"), &WAITED);
    assert_has(&STATIC.run("examples/wait.c"), &WAITED);
}

#[test]
fn what_was_removed_is_given_back() {
    assert_has(&SHARED.run("tests/programs/reclaim.c"), &["given back"]);
}

// Not those that count: memcheck and the sanitizer have functions of their own in place of malloc and free.
#[test]
fn memcheck_has_nothing_to_say() {
    assert_has(&STATIC.check("examples/listen.c"), &LISTENED);
    assert_has(&SHARED.check("examples/listen.c"), &LISTENED);
    assert_has(&SHARED.check("examples/throw.cc"), &THROWN);
    assert_has(&SHARED.check("examples/rebind.c"), &REBOUND);
    assert_has(&SHARED.check("examples/wait.c"), &WAITED);
}

#[test]
fn sanitizers_have_nothing_to_say() {
    for prefix in [&SHARED, &STATIC] {
        assert_has(&prefix.sanitize("examples/listen.c"), &LISTENED);
        assert_has(&prefix.sanitize("examples/throw.cc"), &THROWN);
        assert_has(&prefix.sanitize("examples/rebind.c"), &REBOUND);
        assert_has(&prefix.sanitize("examples/wait.c"), &WAITED);
    }
}

#[test]
fn out_pointers_are_right_after_failures() {
    assert_has(&SHARED.run("tests/programs/outs.c"), &["0 failures"]);
}

#[test]
fn what_would_crash_is_refused() {
    assert_has(&SHARED.run("tests/programs/refused.c"), &["0 failures"]);
}

#[test]
fn a_fork_in_the_middle_of_a_commit_leaves_a_child_that_can_hook() {
    assert_has(&SHARED.run("tests/programs/fork.c"), &["the child exited with 42"]);
}

#[test]
fn a_fork_in_the_middle_of_the_first_hook_leaves_a_child_that_can_hook() {
    let program = SHARED.build("tests/programs/first_hook.c");
    for microseconds in (0..600).step_by(15) {
        assert_has(&run(SHARED.command(&program).arg(microseconds.to_string())), &["ended with 0\n"]);
    }
}

#[test]
fn what_the_library_itself_uses_may_be_listened_to() {
    assert_has(&SHARED.run("tests/programs/own.c"), &["told, 2000 signals"]);
    let program = SHARED.dir.path().join("own");
    assert_has(&run(SHARED.command(program).arg("live")), &["told, 2000 signals"]);
}

#[test]
fn a_program_that_is_no_pie_is_rebound() {
    let library = SHARED.dir.path().join("libkept.so");
    let source = "#include <unistd.h>\nstatic pid_t (*volatile kept)(void) = getppid;\n\
                  int call_kept(void) { return kept(); }\n\
                  int is_kept(pid_t (*function)(void)) { return function == kept; }\n";
    let file = library.with_extension("c");
    std::fs::write(&file, source).unwrap();
    run(Command::new("cc").args(["-O1", "-fPIC", "-shared", "-o"]).arg(&library).arg(&file));
    let library = library.to_str().unwrap();
    // Bound at once, and when it is first called.
    for (suffix, bound) in [("-now", "-Wl,-z,now"), ("-lazy", "-Wl,-z,lazy")] {
        let options = ["-fno-pie", "-no-pie", "-Wl,--no-as-needed", bound, library];
        let program = SHARED.build_with("tests/programs/canonical.c", suffix, &options);
        assert_has(&run(&mut SHARED.command(program)), &["rebound by name and by address"]);
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn programs_near_the_start_of_memory_are_hooked_while_they_run() {
    let program = SHARED.build_with("tests/programs/low.c", "", &["-fno-pie", "-no-pie"]);
    assert_has(&run(&mut SHARED.command(program)), &["12 of 12 at ", ", 1 of its own\n"]);
}

#[test]
fn exceptions_pass_relocated_calls() {
    let caught = "4000 replaced, 1000 caught inside, 1000 outside, 2000 cleaned";
    for prefix in [&*SHARED, &*STATIC] {
        assert_has(&prefix.run("tests/programs/relocated_call.cc"), &[caught]);
        let program = prefix.dir.path().join("relocated_call");
        let with = |arguments: &[&str]| prefix.command(&program).args(arguments).output().unwrap();
        for arguments in [&["listen"][..], &["told"], &["told", "memory"]] {
            let output = with(arguments);
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            assert_has(&String::from_utf8_lossy(&output.stdout), &[caught]);
        }
        // Else nothing would be shown by being told.
        let untold = with(&["memory"]);
        assert!(!untold.status.success() && untold.stdout.is_empty(), "{untold:?}");
    }
}

#[test]
fn debuggers_and_perf_know_names() {
    let names = SHARED.run("tests/programs/debugged.c");
    assert_has(&names, &["outer [grapnel trampoline]\n", "outer [grapnel stub], the original\n"]);
    let mut gdb = SHARED.command("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "break inner", "-ex", "run"]);
    let whose = "info symbol (long)original";
    let text = run(gdb.args(["-ex", "bt", "-ex", whose]).arg(SHARED.dir.path().join("debugged")));
    let frames: Vec<_> = text.lines().filter(|line| line.starts_with('#')).collect();
    // A call at the window's end returns past what was made.
    let expected = ["inner ()", "in outer ()", "in replacement ()", "in main ()"];
    assert_eq!(frames.len(), expected.len(), "{text}");
    for (frame, expected) in frames.iter().zip(expected) {
        assert!(frame.contains(expected), "{text}");
    }
    assert!(text.contains("outer [grapnel stub]"), "{text}");
}

#[test]
fn calls_are_left_from_within_listeners() {
    assert_has(&SHARED.run("tests/programs/leaving.c"), &["left and told"]);
    // In guarded ones, which the jump leaves as well.
    let program = SHARED.dir.path().join("leaving");
    assert_has(&run(SHARED.command(program).arg("guarded")), &["left and told"]);
}

#[test]
fn a_debugger_is_attached_to_a_hooked_process_and_detached() {
    let program = SHARED.build("tests/programs/attached.c");
    let mut command = SHARED.command(&program);
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
    let number = output.next().unwrap().unwrap();
    let mut gdb = SHARED.command("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-p", &number]);
    for said in ["break *original", "continue", "bt", "delete", "set var stop = 1", "detach"] {
        gdb.args(["-ex", said]);
    }
    let found = gdb.output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&found.stderr));
    if text.contains("Operation not permitted") {
        process.kill().unwrap();
        process.wait().unwrap();
        return println!("nobody may attach a debugger here, so what it would see was not looked at");
    }
    let frames: Vec<_> = text.lines().filter(|line| line.starts_with('#')).collect();
    let expected = ["outer [grapnel stub] ()", "in outer (", "in replacement (", "in main ("];
    let seen = frames.len() == expected.len()
        && frames.iter().zip(expected).all(|(frame, expected)| frame.contains(expected));
    if !seen || !text.contains("detached]") {
        process.kill().unwrap();
        panic!("{text}");
    }
    let said: Vec<_> = output.map(Result::unwrap).collect();
    assert!(process.wait().unwrap().success(), "{said:?} {text}");
    assert_eq!(said, ["stopped and removed"], "{text}");
}

#[test]
fn perf_reports_stubs_by_their_names() {
    let program = SHARED.build("tests/programs/attached.c");
    let data = SHARED.dir.path().join("perf.data");
    let mut perf = SHARED.command("perf");
    let perf =
        perf.args(["record", "-q", "-e", "cpu-clock", "-o"]).arg(&data).arg(program).arg("perf").output();
    let recorded = match perf {
        Ok(output) if output.status.success() => output,
        other => return println!("perf can't record here: {other:?}"),
    };
    let report = run(Command::new("perf").args(["report", "--stdio", "-q", "-i"]).arg(&data));
    let number = String::from_utf8(recorded.stdout).unwrap();
    let number = number.lines().next().unwrap();
    std::fs::remove_file(format!("/tmp/perf-{number}.map")).unwrap();
    assert_has(&report, &["outer [grapnel "]);
}

#[test]
fn a_backtrace_in_malloc_waits_for_no_lock_of_its_own_thread() {
    assert_has(&SHARED.run("tests/programs/unwinding_malloc.c"), &["told before, told after, 6"]);
}

#[test]
fn no_trap_is_met_where_libc_blocks_all_signals() {
    assert_has(&SHARED.run("tests/programs/blocked.c"), &["entered, no trap was met", "pages mapped anew"]);
}

#[test]
fn functions_that_are_not_exported_have_names() {
    let library = SHARED.dir.path().join("libhidden.so");
    let source = "static int __attribute__((noinline)) hidden(int x) { __asm__ volatile(\"\"); return x * 3 + 1; }\n\
                  int shown(int x) { return hidden(x) + hidden(x + 1); }\n";
    let file = library.with_extension("c");
    std::fs::write(&file, source).unwrap();
    run(Command::new("cc").args(["-O1", "-fPIC", "-shared", "-o"]).arg(&library).arg(&file));
    let program = SHARED.build("tests/programs/found.c");
    let text = run(SHARED.command(program).arg(library));
    assert_has(&text, &["memcpy: one size\n", "hidden [grapnel trampoline]\n", "hidden [grapnel stub]\n"]);
}

#[test]
fn the_libraries_define_no_other_symbols() {
    for (library, option) in [
        (SHARED.dir.path().join("lib/libgrapnel_hook.so"), "--dynamic"),
        (STATIC.dir.path().join("lib/libgrapnel_hook.a"), "--extern-only"),
    ] {
        let names = run(Command::new("nm").args(["--defined-only", "--format=posix", option]).arg(&library));
        let names: Vec<_> = names.lines().filter_map(|l| l.split_once(' ')).map(|(name, _)| name).collect();
        assert!(names.contains(&"grapnel_replace"), "{names:?}");
        assert!(names.iter().all(|name| name.starts_with("grapnel_")), "{library:?}: {names:?}");
    }
    let dynamic =
        run(Command::new("readelf").arg("-d").arg(SHARED.dir.path().join("lib/libgrapnel_hook.so")));
    // Its handlers must stay.
    assert_has(&dynamic, &["Library soname: [libgrapnel_hook.so.0.1]", "NODELETE"]);
}

#[test]
fn a_plugin_with_the_static_library_stays() {
    let options = ["-shared", "-fPIC"];
    let plugin = STATIC.build_with("examples/listen.c", "-plugin.so", &options);
    assert_has(&run(Command::new("readelf").arg("-d").arg(plugin)), &["NODELETE"]);
}
