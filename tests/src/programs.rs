//! Builds the programs of `tests/programs/` and the counting library, each once and only when it is asked for.
//!
//! They are for this machine, or for the one whose compilers' names begin with `$GRAPNEL_MACHINE` (`aarch64-linux-gnu`), where
//! an emulator runs such programs. `$GRAPNEL_RECORDER` is then the command that records them, while this machine's own reads
//! the traces and finds the libraries below `$GRAPNEL_SYSROOT`.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The folder with the sources.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// The folder of the header that programs include.
fn header_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiler/header")
}

/// Cargo's target directory: this very executable lies somewhere in `<target>/<profile>/`.
pub fn target_dir() -> PathBuf {
    let own = std::env::current_exe().expect("/proc/self/exe can be read");
    let found = own.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists());
    found.map_or_else(std::env::temp_dir, Path::to_path_buf)
}

/// How the names of compilers for another machine begin, if the programs are for one.
pub fn machine() -> Option<String> {
    std::env::var("GRAPNEL_MACHINE").ok().filter(|machine| !machine.is_empty())
}

fn output_dir() -> PathBuf {
    let dir = target_dir().join("grapnel-tests").join(machine().unwrap_or_default());
    std::fs::create_dir_all(&dir).expect("the target directory can be written");
    dir
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|facts| facts.modified()).ok()
}

/// Waits until nobody else makes this output: what a test runs is not made anew beneath it, when two find it old at once.
/// The lock goes with the file that is returned.
fn lock_of(output: &Path) -> File {
    let mut name = output.as_os_str().to_owned();
    name.push(".lock");
    let lock = File::create(name).expect("the target directory can be written");
    lock.lock().expect("files can be locked");
    lock
}

/// Runs the compiler unless the output is newer than the source and the shared header. The output appears
/// whole or not at all, and once, since tests in other threads and processes may ask for it at the same time.
fn compile(compiler: &str, flags: &[&str], source: &Path, output_name: &str) -> PathBuf {
    let output = output_dir().join(output_name);
    let headers = [
        sources().join("keep.h"),
        sources().join("deep.h"),
        sources().join("where.h"),
        header_dir().join("grapnel_heap.h"),
        header_dir().join("grapnel_malloc_debug.h"),
    ];
    let newest = headers.iter().map(|header| modified(header)).max().flatten().max(modified(source));
    let _lock = lock_of(&output);
    if modified(&output).is_some() && modified(&output) > newest {
        return output;
    }
    let partial = output_dir().join(format!("{output_name}.{}", std::process::id()));
    let compiler = machine().map_or_else(|| compiler.to_owned(), |machine| format!("{machine}-{compiler}"));
    let result = Command::new(&compiler)
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fomit-frame-pointer"])
        .arg("-I")
        .arg(header_dir())
        .args(flags)
        .arg("-o")
        .args([&partial, source])
        .output()
        .unwrap_or_else(|error| panic!("{compiler} can't be started ({error}): ./test installs it"));
    assert!(result.status.success(), "{compiler} {}: {}", source.display(), text(&result.stderr));
    std::fs::rename(&partial, &output).expect("the target directory can be written");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const C: &[&str] = &["-std=gnu11", "-fno-builtin-malloc", "-pthread"];
const LIBRARY: &[&str] = &["-std=gnu11", "-fno-builtin-malloc", "-fPIC", "-shared"];

/// The executable of `programs/<name>.c` or `programs/<name>.cc`.
pub fn program(name: &str) -> PathBuf {
    let c = sources().join(format!("{name}.c"));
    if c.exists() {
        return compile("gcc", C, &c, name);
    }
    compile("g++", &["-std=c++17", "-pthread"], &sources().join(format!("{name}.cc")), name)
}

/// The executable of `programs/<name>.cc` with a library that is linked into it.
pub fn program_with(name: &str, library: &str) -> PathBuf {
    let source = sources().join(format!("{name}.cc"));
    // All of it: nothing that comes before asks for it.
    let flag = format!("-Wl,--whole-archive,-l:{library},--no-whole-archive");
    compile("g++", &["-std=c++17", "-pthread", &flag, "-ldl"], &source, &format!("{name}-{library}"))
}

/// The executable of `programs/<name>.cc` with the C++ runtime and its unwinder linked into it, stripped: there are no names but
/// those of functions that begin with `exported`.
pub fn program_with_own_unwinder(name: &str, exported: &str) -> PathBuf {
    let source = sources().join(format!("{name}.cc"));
    let export = format!("-Wl,--export-dynamic-symbol={exported}*");
    let flags = ["-std=c++17", "-static-libgcc", "-static-libstdc++", "-s", &export];
    compile("g++", &flags, &source, &format!("{name}-own-unwinder"))
}

/// The executable of `programs/<name>.cc` with the C++ runtime in it, which it exports nothing of.
pub fn program_with_runtime(name: &str) -> PathBuf {
    let source = sources().join(format!("{name}.cc"));
    let flags = ["-std=c++17", "-static-libgcc", "-static-libstdc++", "-Wl,--exclude-libs,ALL", "-ldl"];
    compile("g++", &flags, &source, &format!("{name}-runtime"))
}

/// The executable of `programs/<name>.c` with a library that is linked into it, and what that needs.
pub fn c_program_with(name: &str, library: &str) -> PathBuf {
    let flag = format!("-Wl,--whole-archive,-l:{library},--no-whole-archive");
    let flags = [C, &[&flag, "-lm", "-ldl", "-lstdc++"]].concat();
    compile("gcc", &flags, &sources().join(format!("{name}.c")), &format!("{name}-{library}"))
}

/// The executable of a source that lies elsewhere, in C or, as `.cc`, in C++. Its name is the source's.
pub fn executable_of(source: &Path) -> PathBuf {
    let name = source.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let output = format!("elsewhere-{name}");
    if source.extension().is_some_and(|extension| extension == "cc") {
        return compile("g++", &["-std=c++17", "-pthread"], source, &output);
    }
    compile("gcc", C, source, &output)
}

/// The executable of `programs/<name>.c`, linked statically.
pub fn static_program(name: &str) -> PathBuf {
    let source = sources().join(format!("{name}.c"));
    compile("gcc", &["-std=gnu11", "-static"], &source, &format!("{name}-static"))
}

/// How a program comes to its C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linking {
    /// glibc is loaded.
    Glibc,
    /// glibc is in it, at an address of its own.
    GlibcStatic,
    /// The same, wherever it is put.
    GlibcStaticPie,
    /// musl is loaded.
    Musl,
    /// musl is in it.
    MuslStatic,
}

/// The executable of `programs/<name>.c`, linked in this way.
pub fn linked_program(name: &str, linking: Linking) -> PathBuf {
    let (compiler, flag) = match linking {
        Linking::Glibc => return program(name),
        Linking::GlibcStatic => ("gcc", "-static"),
        Linking::GlibcStaticPie => ("gcc", "-static-pie"),
        Linking::Musl => ("musl-gcc", "-fPIE"),
        Linking::MuslStatic => ("musl-gcc", "-static"),
    };
    let output = format!("{name}-{linking:?}");
    compile(compiler, &[C, &[flag]].concat(), &sources().join(format!("{name}.c")), &output)
}

/// glibc of other Debian releases that `tests/other-glibcs` has unpacked: the folders with `libc.so.6`, by release. What isn't
/// there is told of.
pub fn other_glibcs() -> Vec<(&'static str, PathBuf)> {
    let unpacked = target_dir().join("glibc");
    let found = |release: &'static str| {
        let folders =
            ["usr/lib", "lib"].map(|folder| unpacked.join(release).join(folder).join("x86_64-linux-gnu"));
        let found = folders.into_iter().find(|folder| folder.join("libc.so.6").exists());
        if found.is_none() {
            crate::skipped(
                &format!("glibc of Debian's {release}"),
                &format!("tests/other-glibcs has not unpacked it into {}", unpacked.display()),
            );
        }
        found.map(|folder| (release, folder))
    };
    ["bullseye", "trixie", "forky"].into_iter().filter_map(found).collect()
}

/// The executable of `programs/<name>.c` for one of these: it is loaded by that one's loader, and finds its libraries only.
pub fn program_with_glibc(name: &str, (release, folder): &(&'static str, PathBuf)) -> PathBuf {
    let in_folder = |file: &str| folder.join(file).display().to_string();
    // Until 2.33 threads had a library of their own.
    let libraries = ["libpthread.so.0", "libc.so.6"].map(in_folder);
    let loader = format!("-Wl,--dynamic-linker={}", in_folder("ld-linux-x86-64.so.2"));
    let path = format!("-Wl,-rpath,{}", folder.display());
    let more = ["-nodefaultlibs", "-Wl,--no-as-needed", &loader, &path, libraries[0].as_str(), &libraries[1]];
    compile("gcc", &[C, &more].concat(), &sources().join(format!("{name}.c")), &format!("{name}-{release}"))
}

/// The executable of `programs/<name>.c` with the address sanitizer, where the compiler has it.
pub fn sanitized_program(name: &str) -> Option<PathBuf> {
    let probe = Command::new("gcc").arg("-print-file-name=libasan.so").output().ok()?;
    let source = sources().join(format!("{name}.c"));
    // A name without a folder is the answer for a library that isn't there.
    text(&probe.stdout)
        .starts_with('/')
        .then(|| compile("gcc", &["-std=gnu11", "-fsanitize=address"], &source, &format!("{name}-sanitized")))
}

/// The executable of `programs/<name>.c` with the leak sanitizer.
pub fn leak_sanitized_program(name: &str) -> PathBuf {
    let output = format!("{name}-leak-sanitized");
    let c = sources().join(format!("{name}.c"));
    if c.exists() {
        return compile("gcc", &[C, &["-fsanitize=leak"]].concat(), &c, &output);
    }
    let source = sources().join(format!("{name}.cc"));
    compile("g++", &["-std=c++17", "-pthread", "-fsanitize=leak"], &source, &output)
}

/// The executable of `programs/<name>.c` whose loader is a copy of the usual one under musl's name.
pub fn program_with_loader(name: &str) -> PathBuf {
    let loader = output_dir().join("ld-musl-x86_64.so.1");
    let lock = lock_of(&loader);
    if !loader.exists() {
        let partial = output_dir().join(format!("ld-musl.{}", std::process::id()));
        std::fs::copy("/lib64/ld-linux-x86-64.so.2", &partial)
            .and_then(|_| std::fs::rename(&partial, &loader))
            .expect("the loader can be copied");
    }
    drop(lock);
    let flag = format!("-Wl,--dynamic-linker={}", loader.display());
    compile("gcc", &[C, &[&flag]].concat(), &sources().join(format!("{name}.c")), &format!("{name}-loader"))
}

/// The shared library of `programs/<name>.c`.
pub fn library(name: &str) -> PathBuf {
    compile("gcc", LIBRARY, &sources().join(format!("{name}.c")), &format!("lib{name}.so"))
}

/// The shared library of `programs/<name>.cc`.
pub fn cxx_library(name: &str) -> PathBuf {
    let source = sources().join(format!("{name}.cc"));
    compile("g++", &["-std=c++17", "-fPIC", "-shared"], &source, &format!("lib{name}.so"))
}

/// The same, with what it calls bound to its own functions.
pub fn bound_cxx_library(name: &str) -> PathBuf {
    let source = sources().join(format!("{name}.cc"));
    let flags = ["-std=c++17", "-fPIC", "-shared", "-Wl,-Bsymbolic"];
    compile("g++", &flags, &source, &format!("lib{name}-bound.so"))
}

/// The shared library of a C source that lies elsewhere. Its name is the source's.
pub fn library_of(source: &Path) -> PathBuf {
    let name = source.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    compile("gcc", LIBRARY, source, &format!("elsewhere-lib{name}.so"))
}

/// One of the two libraries of `programs/plug.c`: `a` or `b`.
pub fn plug(which: &str) -> PathBuf {
    let count = if which == "a" { "-DCOUNT=3" } else { "-DCOUNT=5" };
    let name = format!("-DNAME={which}");
    let flags = [LIBRARY, &[count, &name]].concat();
    compile("gcc", &flags, &sources().join("plug.c"), &format!("libplug_{which}.so"))
}

/// One of the libraries of `programs/opened.c`, which differ by their names.
pub fn opened(which: &str) -> PathBuf {
    compile("gcc", LIBRARY, &sources().join("opened.c"), &format!("libopened_{which}.so"))
}

/// The counting library.
pub fn truth_library() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("truth/truth.c");
    let flags = [LIBRARY, &["-fvisibility=hidden", "-fno-builtin"]].concat();
    compile("gcc", &flags, &source, "libtruth.so")
}

/// The line of a source where `mark` stands, counted from 1.
///
/// # Panics
/// If the mark stands on no line, or on more than one.
pub fn marked_line(source: &str, mark: &str) -> u64 {
    let text = std::fs::read_to_string(sources().join(source)).expect("the source is there");
    let lines: Vec<usize> =
        text.lines().enumerate().filter(|(_, line)| line.contains(mark)).map(|(at, _)| at + 1).collect();
    assert_eq!(lines.len(), 1, "{source} has the mark {mark:?} once");
    lines[0] as u64
}

/// `env`, for the machine that the programs are for.
pub fn env() -> PathBuf {
    match machine() {
        None => "/usr/bin/env".into(),
        Some(_) => executable_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("emulated/env.c")),
    }
}

/// The executable `grapnel` that records: `$GRAPNEL_RECORDER`, or else [`grapnel`].
pub fn recorder() -> PathBuf {
    std::env::var_os("GRAPNEL_RECORDER").map_or_else(|| grapnel().to_owned(), PathBuf::from)
}

/// The executable `grapnel`: `$GRAPNEL`, or what `cargo build --release -p grapnel` makes.
pub fn grapnel() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| std::env::var_os("GRAPNEL").map_or_else(build_grapnel, PathBuf::from))
}

fn build_grapnel() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // What cargo tells this test of its own package. Build scripts that ask cargo to be run again when it changes would be run
    // again, and all behind them built anew.
    let told = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_", "CARGO_PRIMARY_"];
    let is_told =
        |name: &OsString| told.iter().any(|start| name.as_encoded_bytes().starts_with(start.as_bytes()));
    let mut build = Command::new(cargo);
    for name in std::env::vars_os().map(|(name, _)| name).filter(is_told) {
        build.env_remove(name);
    }
    let result = build
        .args(["build", "--release", "-p", "grapnel", "--message-format=json-render-diagnostics"])
        .arg("--target-dir")
        .arg(target_dir())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo can be started");
    assert!(result.status.success(), "grapnel does not build: {}", text(&result.stderr));
    let executable = text(&result.stdout).lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let path = message.get("executable")?.as_str()?;
        path.ends_with("/grapnel").then(|| PathBuf::from(path))
    });
    executable.expect("cargo build names the executable")
}
