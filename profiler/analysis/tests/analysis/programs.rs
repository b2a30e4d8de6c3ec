//! Programs that are compiled here. Each tells where its own calls return to, and that is what is looked up.

use grapnel_analysis::Analysis;
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use grapnel_trace::event::{Event, Module, Source};
use object::Object;
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

pub(crate) const C: &str = r#"void record(void);
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

pub(crate) const CPP: &str = r#"extern "C" void record();
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

pub(crate) const RUST: &str = r#"unsafe extern "C" { safe fn record(); }
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

pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) struct Program {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
    pub(crate) offsets: Vec<u64>,
}

impl Program {
    pub(crate) fn build(source: &str, extension: &str, flags: &[&str]) -> Self {
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

    pub(crate) fn build_id(&self) -> Vec<u8> {
        build_id_of(&self.path)
    }

    /// Puts other bytes in its place, with a date before that of all recordings.
    pub(crate) fn replace(&self, bytes: &[u8]) {
        std::fs::write(&self.path, bytes).unwrap();
        let file = std::fs::File::options().write(true).open(&self.path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    }

    /// A trace with one site for each offset, in a module loaded at `bias`.
    pub(crate) fn trace(&self, build_id: &[u8]) -> Analysis {
        trace(&self.path, build_id, &self.offsets)
    }
}

pub(crate) fn build_id_of(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    object::File::parse(&*bytes).unwrap().build_id().unwrap().unwrap().to_vec()
}

/// A file's bytes, where its sections with debug information have other names.
pub(crate) fn without_debug_info(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).unwrap();
    let at = (0..bytes.len() - 8).filter(|&at| &bytes[at..at + 8] == b"\0.debug_").collect::<Vec<_>>();
    assert!(!at.is_empty());
    at.into_iter().for_each(|at| bytes[at + 2] = b'x');
    bytes
}

pub(crate) fn trace(path: &Path, build_id: &[u8], offsets: &[u64]) -> Analysis {
    crate::common::read(&crate::common::write(&events(path, build_id, offsets), 0))
}

/// What [`trace`] holds.
pub(crate) fn events(path: &Path, build_id: &[u8], offsets: &[u64]) -> Vec<Event> {
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
    events
}

/// Each frame as `function file:line`, with `>` before an inlined one; frames of one stack joined.
pub(crate) fn look_up(analysis: &Analysis, search: SearchPath) -> (Vec<String>, Vec<String>) {
    let store = FileStore::new();
    look_up_in(&mut Symbols::new(&store, search), analysis)
}

/// As [`look_up`], and by what is there.
pub(crate) fn look_up_in(symbols: &mut Symbols<'_>, analysis: &Analysis) -> (Vec<String>, Vec<String>) {
    let mut stacks = Vec::new();
    for id in 1..=analysis.stacks.len() as u32 {
        let node = analysis.stacks.node(id).unwrap();
        let frames = symbols.frames(&analysis.modules, &node).iter().map(|frame| {
            let file = frame.file().and_then(|file| file.rsplit('/').next()).unwrap_or("-");
            let line = frame.line().unwrap_or(0);
            let inlined = if frame.inlined() { "> " } else { "" };
            format!("{inlined}{} {file}:{line}", frame.function().unwrap_or("-"))
        });
        stacks.push(frames.collect::<Vec<_>>().join("; "));
    }
    (stacks, symbols.notes())
}

pub(crate) fn search(dir: &Path) -> SearchPath {
    let mut search = SearchPath::default();
    search.debug_dirs = vec![dir.to_owned()];
    search
}

pub(crate) fn nowhere() -> SearchPath {
    search(Path::new("/nonexistent"))
}

/// What [`C`] must give.
pub(crate) const C_FRAMES: [&str; 2] = ["> inner program.c:4; outer program.c:7", "main program.c:12"];

/// What [`CPP`] must give.
pub(crate) const CPP_FRAMES: [&str; 2] =
    ["store::Bucket<long>::grow(long) program.cc:5", "(anonymous namespace)::hidden(int) program.cc:12"];
