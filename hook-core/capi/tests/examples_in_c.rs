//! The C examples are compiled against the header, linked to the shared and to the static library, and run.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

/// Where the libraries are. Cargo builds a package's C libraries for nobody's tests, so that is asked for here.
static LIBRARIES: LazyLock<PathBuf> = LazyLock::new(|| {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let release: &[&str] = if profile.ends_with("release") { &["--release"] } else { &[] };
    let status = Command::new(env!("CARGO"))
        .args(["build", "-q", "-p", "grapnel-hook-capi"])
        .args(release)
        .arg("--target-dir")
        .arg(profile.parent().unwrap())
        .status()
        .unwrap();
    assert!(status.success());
    profile.to_path_buf()
});

fn compile(language: &str, compiler: &str, name: &str, libs: &[&str]) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = LIBRARIES.join(format!("{name}-{language}-{}", libs[0].trim_matches(|c| "-:.".contains(c))));
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-x", language, "-I"])
        .arg(package.join("include"))
        .arg(package.join("examples").join(name).with_extension(if language == "c++" { "cc" } else { "c" }))
        .args(["-x", "none", "-L"])
        .arg(&*LIBRARIES)
        .args(libs)
        .arg("-o")
        .arg(&out)
        .output()
        .expect("a C compiler is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    out
}

fn run(program: &Path) -> String {
    let output = Command::new(program).env("LD_LIBRARY_PATH", &*LIBRARIES).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{:?} {text} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[test]
fn malloc_and_free_are_counted_through_the_shared_library() {
    let text = run(&compile("c", "cc", "count_malloc", &["-lgrapnel_hook"]));
    assert!(text.contains("1000 mallocs, 1000 frees, restored"), "{text}");
    assert!(text.contains("is not in executable memory"), "{text}");
    assert!(text.contains("libc.so.6") && text.contains("no_such_function"), "{text}");
    assert!(text.contains("malloc begins where it was found"), "{text}");
}

#[test]
fn malloc_and_free_are_counted_through_the_static_library() {
    let libs = ["-l:libgrapnel_hook.a", "-lpthread", "-ldl", "-lm", "-lgcc_s"];
    let text = run(&compile("c", "cc", "count_malloc", &libs));
    assert!(text.contains("1000 mallocs, 1000 frees, restored"), "{text}");
}

#[test]
fn a_function_is_listened_to_and_probed() {
    let text = run(&compile("c", "cc", "listen", &["-lgrapnel_hook"]));
    assert!(text.contains("10 entered, 10 left, 30 turns, restored"), "{text}");
}

#[test]
fn exceptions_of_c_plus_plus_pass() {
    let text = run(&compile("c++", "c++", "throw", &["-lgrapnel_hook"]));
    assert!(text.contains("20000 calls, 10000 caught, 10000 left"), "{text}");
}

#[test]
fn imports_are_bound_to_another_function() {
    let text = run(&compile("c", "cc", "rebind", &["-lgrapnel_hook"]));
    assert!(text.contains("no object defines no_such_function"), "{text}");
    assert!(text.contains("rebound and back"), "{text}");
}
