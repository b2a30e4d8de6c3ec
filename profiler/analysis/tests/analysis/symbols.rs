//! Symbols of programs that are compiled here. Each program tells where its own calls return to, and that is
//! what is looked up.

use grapnel_analysis::Analysis;
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use grapnel_trace::event::{Event, Module, Source};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `record` prints its return address as an offset in the program.
const RECORD: &str = r#"
#include <stdio.h>
extern char __executable_start[];
__attribute__((noinline)) void record(void) {
    printf("%lx\n", (unsigned long)((char *)__builtin_return_address(0) - __executable_start));
}
"#;

const C: &str = r#"void record(void);
static inline __attribute__((always_inline)) void inner(int n) {
    if (n)
        record();
}
__attribute__((noinline)) void outer(int n) {
    inner(n);
    __asm__ volatile("");
}
int main(int argc, char **argv) {
    outer(argc);
    record();
    return 0;
}
"#;

const CPP: &str = r#"extern "C" void record();
namespace store {
template <typename T> struct Bucket {
    __attribute__((noinline)) void grow(T n) {
        record();
        __asm__ volatile("" : : "r"(n));
    }
};
}
namespace {
__attribute__((noinline)) void hidden(int n) {
    record();
    __asm__ volatile("" : : "r"(n));
}
}
int main(int argc, char **) {
    store::Bucket<long>().grow(argc);
    hidden(argc);
}
"#;

const RUST: &str = r#"unsafe extern "C" { safe fn record(); }
mod deep {
    #[inline(always)]
    pub fn inner() {
        crate::record();
    }
    pub struct Bucket;
    impl Bucket {
        #[inline(never)]
        pub fn grow(&mut self, n: usize) -> usize {
            inner();
            n + 1
        }
    }
}
fn main() {
    std::process::exit((deep::Bucket.grow(std::env::args().count()) > 100) as i32);
}
"#;

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

struct Program {
    dir: tempfile::TempDir,
    path: PathBuf,
    offsets: Vec<u64>,
}

impl Program {
    fn build(source: &str, extension: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("record.c"), RECORD).unwrap();
        run(Command::new("gcc").args(["-O1", "-c", "-o"]).arg(at("record.o")).arg(at("record.c")));
        let file = at("program").with_extension(extension);
        std::fs::write(&file, source).unwrap();
        let path = at("program");
        let mut compiler = match extension {
            "c" => Command::new("gcc"),
            "cc" => Command::new("g++"),
            _ => Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into())),
        };
        if extension == "rs" {
            compiler.args(["--edition", "2024", "-C"]).arg(format!("link-arg={}", at("record.o").display()));
            compiler.args(["-C", "link-arg=-Wl,--build-id"]);
        } else {
            compiler.arg(at("record.o")).arg("-Wl,--build-id");
        }
        run(compiler.args(flags).arg("-o").arg(&path).arg(&file));
        let mut program = Self { dir, path, offsets: Vec::new() };
        let output = run(&mut Command::new(&program.path));
        program.offsets = output.lines().map(|line| u64::from_str_radix(line, 16).unwrap()).collect();
        program
    }

    fn build_id(&self) -> Vec<u8> {
        use object::Object;
        let bytes = std::fs::read(&self.path).unwrap();
        object::File::parse(&*bytes).unwrap().build_id().unwrap().unwrap().to_vec()
    }

    /// A trace with one site for each offset, in a module loaded at `bias`.
    fn trace(&self, build_id: &[u8]) -> Analysis {
        trace(&self.path, build_id, &self.offsets)
    }
}

fn trace(path: &Path, build_id: &[u8], offsets: &[u64]) -> Analysis {
    use std::os::unix::ffi::OsStrExt;
    let bias = 0x5555_0000_0000;
    let path = path.as_os_str().as_bytes().to_vec();
    let module = Module { id: 7, bias, range: (bias, bias + 0x10_0000), build_id: build_id.to_vec(), path };
    let mut events = vec![Event::Module(module)];
    for (id, offset) in (1..).zip(offsets) {
        events.push(Event::Node { id, parent: 0, pc: bias + offset, module: 7, flags: 0 });
        events.push(Event::Alloc {
            thread: 0,
            stack: id,
            address: offset * 16,
            size: 8,
            source: Source::Malloc,
        });
    }
    crate::common::read(&crate::common::write(&events, 0))
}

/// Each frame as `function file:line`, with `>` before an inlined one; frames of one stack joined.
fn look_up(analysis: &Analysis, search: SearchPath) -> (Vec<String>, Vec<String>) {
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, search);
    let mut stacks = Vec::new();
    for id in 1..=analysis.stacks.len() as u32 {
        let node = analysis.stacks.node(id).unwrap();
        let frames = symbols.frames(&analysis.modules, node).iter().map(|frame| {
            let file = frame.file().and_then(|file| file.rsplit('/').next()).unwrap_or("-");
            let line = frame.line().unwrap_or(0);
            let inlined = if frame.inlined() { "> " } else { "" };
            format!("{inlined}{} {file}:{line}", frame.function().unwrap_or("-"))
        });
        stacks.push(frames.collect::<Vec<_>>().join("; "));
    }
    (stacks, symbols.notes())
}

fn search(dir: &Path) -> SearchPath {
    let mut search = SearchPath::default();
    search.debug_dirs = vec![dir.to_owned()];
    search
}

fn nowhere() -> SearchPath {
    search(Path::new("/nonexistent"))
}

const C_FRAMES: [&str; 2] = ["> inner program.c:4; outer program.c:7", "main program.c:12"];

#[test]
fn c_with_inlined_functions_in_every_kind_of_dwarf() {
    for kind in ["-gdwarf-2", "-gdwarf-3", "-gdwarf-4", "-gdwarf-5", "-gz=zlib"] {
        let program = Program::build(C, "c", &["-O2", "-g", kind]);
        let (frames, notes) = look_up(&program.trace(&program.build_id()), nowhere());
        assert_eq!(frames, C_FRAMES, "{kind}");
        assert_eq!(notes, [""; 0]);
    }
}

#[test]
fn split_units_from_their_own_files_and_from_a_package() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let program = Program::build(C, "c", &["-O2", "-g", version, "-gsplit-dwarf"]);
        let trace = program.trace(&program.build_id());
        let dwo: Vec<PathBuf> = std::fs::read_dir(program.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "dwo"))
            .collect();
        assert_eq!(dwo.len(), 1);
        assert_eq!(look_up(&trace, nowhere()).0, C_FRAMES, "{version}, .dwo");
        let package = program.path.with_extension("dwp");
        // binutils' dwp knows no DWARF 5.
        if version == "-gdwarf-4" {
            run(Command::new("dwp").arg("-e").arg(&program.path).arg("-o").arg(&package));
            std::fs::remove_file(&dwo[0]).unwrap();
            assert_eq!(look_up(&trace, nowhere()).0, C_FRAMES, "{version}, .dwp");
            std::fs::remove_file(&package).unwrap();
        } else {
            std::fs::remove_file(&dwo[0]).unwrap();
        }
        assert_eq!(look_up(&trace, nowhere()).0[1], "main program.c:12", "{version}, the skeleton's lines");
    }
}

#[test]
fn cpp_names_have_their_scopes() {
    let program = Program::build(CPP, "cc", &["-O1", "-g"]);
    let (frames, _) = look_up(&program.trace(&program.build_id()), nowhere());
    assert_eq!(
        frames,
        ["store::Bucket<long>::grow(long) program.cc:5", "(anonymous namespace)::hidden(int) program.cc:12"]
    );
}

#[test]
fn rust_names_have_no_hash() {
    for flags in [&["-g", "-O"][..], &["-g", "-O", "-C", "symbol-mangling-version=v0"]] {
        let program = Program::build(RUST, "rs", flags);
        let (frames, _) = look_up(&program.trace(&program.build_id()), nowhere());
        let [stack] = &frames[..] else { panic!("{frames:?}") };
        let (inner, outer) = stack.split_once("; ").unwrap();
        assert_eq!(inner, "> program::deep::inner program.rs:5");
        // The v0 scheme names the impl block by its type.
        assert!(
            outer.ends_with("::Bucket>::grow program.rs:11")
                || outer.ends_with("::Bucket::grow program.rs:11"),
            "{outer}"
        );
    }
}

#[test]
fn without_dwarf_the_symbol_tables_give_the_function() {
    let program = Program::build(C, "c", &["-O2", "-rdynamic"]);
    let trace = program.trace(&program.build_id());
    let functions = ["outer -:0", "main -:0"];
    assert_eq!(look_up(&trace, nowhere()).0, functions);
    run(Command::new("strip").arg(&program.path));
    assert_eq!(look_up(&trace, nowhere()).0, functions, "from .dynsym");
}

#[test]
fn separate_debug_files_are_found_by_build_id_and_by_link() {
    let program = Program::build(C, "c", &["-O2", "-g"]);
    let debug = program.dir.path().join("program.debug");
    run(Command::new("objcopy").arg("--only-keep-debug").arg(&program.path).arg(&debug));
    run(Command::new("strip").arg(&program.path));
    let id = program.build_id();
    let trace = program.trace(&id);
    assert_eq!(look_up(&trace, nowhere()).0, ["- -:0", "- -:0"]);

    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let dir = program.dir.path().join("debug/.build-id").join(&hex[..2]);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::copy(&debug, dir.join(format!("{}.debug", &hex[2..]))).unwrap();
    assert_eq!(look_up(&trace, search(&program.dir.path().join("debug"))).0, C_FRAMES);

    run(Command::new("objcopy").arg(format!("--add-gnu-debuglink={}", debug.display())).arg(&program.path));
    assert_eq!(look_up(&trace, nowhere()).0, C_FRAMES);
    assert_eq!(look_up(&program.trace(&[]), nowhere()).0, C_FRAMES, "checked by the checksum");
    std::fs::write(&debug, std::fs::read(&debug).unwrap().into_iter().chain([0]).collect::<Vec<_>>())
        .unwrap();
    assert_eq!(look_up(&program.trace(&[]), nowhere()).0[1], "- -:0", "the checksum is another");
}

#[test]
fn another_build_is_not_used_and_that_is_said() {
    let program = Program::build(C, "c", &["-O2", "-g"]);
    let (frames, notes) = look_up(&program.trace(&[1; 20]), nowhere());
    assert_eq!(frames, ["- -:0", "- -:0"]);
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.contains("changed since the recording"), "{note}");
}

#[test]
fn what_is_no_regular_file_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    run(Command::new("mkfifo").arg(&fifo));
    let text = dir.path().join("text");
    std::fs::write(&text, "no object").unwrap();
    for (path, reason) in [
        (fifo.as_path(), "not a regular file"),
        (dir.path(), "not a regular file"),
        (Path::new("/dev/zero"), "not a regular file"),
        (text.as_path(), "not a readable ELF file"),
        (Path::new("/gone/lib.so (deleted)"), "No such file"),
    ] {
        let (frames, notes) = look_up(&trace(path, &[], &[0x1000]), nowhere());
        assert_eq!(frames, ["- -:0"]);
        assert!(notes[0].contains(reason), "{notes:?}");
    }
    let (frames, notes) = look_up(&trace(Path::new("[vdso]"), &[], &[0x1000]), nowhere());
    assert_eq!((frames, notes), (vec!["- -:0".to_owned()], vec![]));
}

#[test]
fn broken_object_files_give_no_panic() {
    let program = Program::build(C, "c", &["-O2", "-g"]);
    let good = std::fs::read(&program.path).unwrap();
    let mut random = crate::common::Random(42);
    for round in 0..150 {
        let mut bad = good.clone();
        for _ in 0..1 + round % 20 {
            let at = random.below(bad.len() as u64) as usize;
            bad[at] = random.next() as u8;
        }
        if round % 5 == 0 {
            bad.truncate(random.below(bad.len() as u64) as usize);
        }
        std::fs::write(&program.path, bad).unwrap();
        look_up(&program.trace(&[]), nowhere());
    }
}
