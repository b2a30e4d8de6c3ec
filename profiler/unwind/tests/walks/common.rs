//! What the walking tests share: a probe that any code can call, and libgcc's unwinder to compare with.
//!
//! # Safety
//! The probe is called with the registers of its caller; fixtures are libraries compiled from `tests/fixtures`, whose
//! functions have the types given here.

use crate::modules;
use crate::native::{FLAGS, LIBGCC_SHOWS_ROOT, LIBGCC_TELLS_EXACT, address};
use grapnel_unwind::{
    Backtrace, CfiScratch, Config, End, Frame, FrameFlags, ModuleTable, NodeId, Registers, Start,
    TableResolver, Walker,
};
use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_long, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The probe as fixtures see it.
pub(crate) type Probe = unsafe extern "C-unwind" fn();

unsafe extern "C-unwind" {
    /// Saves the registers as they are after its return and gives them to the [`Checker`] of this thread.
    pub(crate) fn grapnel_test_probe();
}

/// What the probe calls.
pub(crate) unsafe extern "C-unwind" fn on_probe(registers: *const Registers) {
    // SAFETY: the probe passes its own stack slots.
    let registers = unsafe { *registers };
    CHECKER.with_borrow_mut(|checker| {
        let checker = checker.as_mut().expect("a probe was hit without a checker");
        if checker.failure.is_some() {
            return;
        }
        // A panic must not unwind through coroutines and handlers. It goes on after the body.
        let run = AssertUnwindSafe(|| (checker.on_probe)(&mut checker.state, &registers));
        if let Err(payload) = catch_unwind(run) {
            checker.failure.get_or_insert(payload);
        }
    });
}

thread_local! {
    static CHECKER: RefCell<Option<Checker>> = const { RefCell::new(None) };
}

type OnProbe = Box<dyn FnMut(&mut State, &Registers)>;

struct Checker {
    state: State,
    on_probe: OnProbe,
    failure: Option<Box<dyn Any + Send>>,
}

/// A walker with all that it needs, and the tree as told to its sink.
pub(crate) struct State {
    pub(crate) table: ModuleTable,
    pub(crate) scratch: CfiScratch,
    pub(crate) walker: Walker,
    /// Whether walks tell nodes without looking them up.
    tells_all: bool,
    pub(crate) nodes: Vec<(NodeId, Frame)>,
    pub(crate) probes: u64,
    pub(crate) deepest: usize,
    pub(crate) last: Vec<Frame>,
    pub(crate) last_end: End,
}

/// Which of the walks to make.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Walk {
    Memoised,
    Unmemoised,
    ByCfi,
    ByBacktrace,
}

impl State {
    pub(crate) fn new(config: Config) -> Self {
        State {
            table: loaded_modules(),
            scratch: CfiScratch::new(),
            walker: Walker::new(config).expect("memory"),
            tells_all: config.tells,
            nodes: Vec::new(),
            probes: 0,
            deepest: 0,
            last: Vec::new(),
            last_end: End::Open,
        }
    }

    pub(crate) fn walk(&mut self, how: Walk, registers: &Registers) -> NodeId {
        let State { table, scratch, walker, nodes, .. } = self;
        let mut sink = |id: NodeId, parent: NodeId, frame: Frame| {
            nodes.push((parent, frame));
            assert_eq!(nodes.len(), id.0 as usize, "nodes are told in the order of their ids");
        };
        let resolver = &mut TableResolver::new(table, scratch);
        match how {
            Walk::Memoised => walker.walk(registers, resolver, &mut sink),
            Walk::Unmemoised => walker.walk_unmemoised(registers, resolver, &mut sink),
            Walk::ByCfi => walker.walk_by_cfi(registers, resolver, &mut sink),
            Walk::ByBacktrace => walker.walk_by_backtrace(registers, &libgcc(), resolver, &mut sink),
        }
    }

    /// The frames of a stack, leaf first.
    pub(crate) fn frames(&self, mut node: NodeId) -> Vec<Frame> {
        let mut frames = Vec::new();
        while node != NodeId::ROOT {
            let (parent, frame) = self.nodes[node.0 as usize - 1];
            frames.push(frame);
            node = parent;
        }
        frames
    }

    /// Makes all three walks and panics unless they agree. Returns the frames.
    pub(crate) fn check_walks(&mut self, registers: &Registers) -> Vec<Frame> {
        self.probes += 1;
        let memoised = self.walk(Walk::Memoised, registers);
        self.last_end = self.walker.last_end();
        let unmemoised = self.walk(Walk::Unmemoised, registers);
        self.same(memoised, unmemoised, "without the memo");
        assert_eq!(self.walker.last_end(), self.last_end);
        let by_cfi = self.walk(Walk::ByCfi, registers);
        self.same(memoised, by_cfi, "by full CFI");
        assert_eq!(self.walker.last_end(), self.last_end);
        // Again: now all of it comes from the memo.
        let again = self.walk(Walk::Memoised, registers);
        self.same(memoised, again, "a second time");
        let frames = self.frames(memoised);
        let mark =
            frames.last().map(|frame| frame.flags).filter(|flags| flags.contains(FrameFlags::TRUNCATED));
        let due = match self.last_end {
            End::Root => None,
            End::Depth => Some(FrameFlags::TRUNCATED),
            End::Open => Some(FrameFlags::NO_CALLER),
        };
        assert_eq!(mark, due, "probe {}: {frames:#x?}", self.probes);
        self.deepest = self.deepest.max(frames.len());
        self.last = frames.clone();
        frames
    }

    pub(crate) fn same(&self, left: NodeId, right: NodeId, what: &str) {
        // A stack has one node, until the tree of 1 << 15 slots was emptied for the first time; or many, of walks that tell them.
        let has_many = self.tells_all || self.walker.tree().len() > 3 << 13;
        if left != right && !(has_many && self.frames(left) == self.frames(right)) {
            panic!(
                "probe {}: {what}: {:#x?}\ninstead of {:#x?}",
                self.probes,
                self.frames(right),
                self.frames(left)
            );
        }
    }

    /// As [`check_walks`](Self::check_walks), and compares with libgcc frame by frame.
    pub(crate) fn check(&mut self, registers: &Registers) {
        let frames = self.check_walks(registers);
        let expected = libgcc_frames(address(registers.pc()));
        let found: Vec<(u64, bool)> = frames
            .iter()
            .map(|f| (f.pc, LIBGCC_TELLS_EXACT && f.flags.contains(FrameFlags::EXACT)))
            .collect();
        let shown = shown_by_libgcc(&frames);
        assert!(
            found[..shown] == expected,
            "probe {}: found {:x?}\nlibgcc has {:x?}",
            self.probes,
            symbols(&found),
            symbols(&expected)
        );
        assert_eq!(self.last_end, End::Root, "{:x?}", symbols(&found));
        for frame in &frames {
            // An emulator's trampoline of signals is in none.
            assert_eq!(self.table.module_at(frame.pc - 1).unwrap_or(0), frame.module);
        }
    }
}

/// Runs `body`; each probe that it hits goes to `on_probe`.
pub(crate) fn with_probe(
    config: Config,
    on_probe: impl FnMut(&mut State, &Registers) + 'static,
    body: impl FnOnce(),
) -> State {
    let state = State::new(config);
    let checker = Checker { state, on_probe: Box::new(on_probe), failure: None };
    CHECKER.with_borrow_mut(|slot| *slot = Some(checker));
    body();
    let checker = CHECKER.with_borrow_mut(Option::take).expect("the checker is where it was put");
    if let Some(payload) = checker.failure {
        resume_unwind(payload);
    }
    checker.state
}

/// Runs `body` and compares with libgcc at each probe. There must be `probes` of them.
pub(crate) fn check(probes: u64, body: impl FnOnce()) -> State {
    let state = with_probe(Config::default(), |state, registers| state.check(registers), body);
    assert_eq!(state.probes, probes);
    state
}

/// libgcc's unwinder, which Rust's panics are thrown by.
pub(crate) fn libgcc() -> Backtrace {
    let functions = Backtrace::NAMES.map(|name| {
        let name = CString::new(name).expect("no NUL");
        // SAFETY: a look-up by name.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?} is missing");
        address.cast_const().cast()
    });
    // SAFETY: the functions of these names, of the one library that has them.
    unsafe { Backtrace::new(functions) }
}

/// What libgcc finds from the frame at `first` on, leaf first: the pc and whether it is exact.
fn libgcc_frames(first: u64) -> Vec<(u64, bool)> {
    let mut frames: Vec<(u64, bool)> = Vec::new();
    let end = libgcc().frames(first, |pc, exact| {
        frames.push((pc, exact));
        true
    });
    assert_eq!(end, End::Root, "libgcc sees the probe's caller");
    frames
}

/// How many of the frames of a whole stack libgcc shows, leaf first.
pub(crate) fn shown_by_libgcc(frames: &[Frame]) -> usize {
    // Without a table it goes no further, and doesn't show the frame.
    let guess = frames.iter().position(|frame| frame.flags.contains(FrameFlags::GUESS));
    match guess {
        _ if LIBGCC_SHOWS_ROOT => frames.len(),
        Some(guess) => guess,
        None => frames.len() - 1,
    }
}

fn symbols(frames: &[(u64, bool)]) -> Vec<String> {
    let name = |pc: u64| {
        // SAFETY: a zeroed Dl_info is valid, and dladdr fills it.
        unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            libc::dladdr((pc - 1) as *const c_void, &raw mut info);
            if info.dli_sname.is_null() {
                return String::from("?");
            }
            CStr::from_ptr(info.dli_sname).to_string_lossy().into_owned()
        }
    };
    frames
        .iter()
        .map(|(pc, exact)| format!("{pc:x}{} {}", if *exact { "!" } else { "" }, name(*pc)))
        .collect()
}

/// The modules that are loaded now.
pub(crate) fn loaded_modules() -> ModuleTable {
    // SAFETY: no test unloads a module while its table is in use.
    unsafe { modules::table(&modules::listed()) }
}

/// A library compiled from `tests/fixtures`.
pub(crate) struct Fixture(*mut c_void);

// SAFETY: a handle of the loader may be used by any thread.
unsafe impl Sync for Fixture {}

impl Fixture {
    /// Compiles and loads. `tag` keeps variants of one source apart.
    pub(crate) fn new(source: &str, tag: &str, flags: &[&str]) -> Self {
        Self::linked(source, tag, flags, &[])
    }

    pub(crate) fn linked(source: &str, tag: &str, flags: &[&str], libraries: &[&Path]) -> Self {
        Self::open(&compile(source, tag, flags, libraries))
    }

    pub(crate) fn open(library: &Path) -> Self {
        let name = CString::new(library.to_str().expect("a UTF-8 path")).expect("no NUL");
        // SAFETY: the fixture's constructors do nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} can't be loaded", library.display());
        Fixture(handle)
    }

    /// A function of the fixture, as a value of the pointer type `F`.
    ///
    /// # Safety
    /// `F` is the type of the function.
    pub(crate) unsafe fn get<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: the handle is open; the caller vouches for the type.
        unsafe {
            let address = libc::dlsym(self.0, name.as_ptr());
            assert!(!address.is_null(), "{name:?} is missing");
            std::mem::transmute_copy(&address)
        }
    }

    pub(crate) fn close(self) {
        // SAFETY: no code of the library runs and nothing of it is used any more.
        unsafe { libc::dlclose(self.0) };
    }

    /// Calls a `void f(probe, long)`.
    pub(crate) fn call(&self, name: &CStr, argument: i64) {
        // SAFETY: all functions of the fixtures that are called so have this type.
        unsafe {
            let f = self.get::<unsafe extern "C-unwind" fn(Probe, c_long)>(name);
            f(grapnel_test_probe, argument as _);
        }
    }
}

/// Compiles a source into a library, once in this process for each variant.
pub(crate) fn compile(source: &str, tag: &str, flags: &[&str], libraries: &[&Path]) -> PathBuf {
    let is_cpp = source.ends_with("cc");
    // Under an emulator `GRAPNEL_CC` says which compiler makes code for this machine.
    let words =
        std::env::var("GRAPNEL_CC").unwrap_or_else(|_| String::from(if is_cpp { "c++" } else { "cc" }));
    let words = if is_cpp { words.replacen("-gcc", "-g++", 1) } else { words };
    compile_by(&words, source, tag, flags, libraries)
}

/// As [`compile`], by the compiler with this command.
pub(crate) fn compile_by(
    words: &str,
    source: &str,
    tag: &str,
    flags: &[&str],
    libraries: &[&Path],
) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<String, Vec<String>>> = Mutex::new(BTreeMap::new());
    let name = format!("{source}-{tag}.so");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let out = directory.join(&name);
    let flags_given: Vec<String> = flags.iter().map(|f| (*f).to_owned()).collect();
    let mut compiled = COMPILED.lock().expect("no test failed while it compiled");
    if let Some(earlier) = compiled.get(&name) {
        assert_eq!(*earlier, flags_given, "{name} names two variants");
        return out;
    }
    let mut words = words.split_whitespace();
    // Renamed into place, so that a library that is in use by another process is not written to.
    let fresh = directory.join(format!("{name}.{}", std::process::id()));
    let status = Command::new(words.next().expect("a compiler in GRAPNEL_CC"))
        .args(words)
        .args(["-O2", "-g", "-shared", "-fPIC", "-Wall", "-fno-optimize-sibling-calls"])
        .args(["-Wno-unused-but-set-variable", "-Wno-unused-variable"])
        .args(FLAGS)
        .args(flags)
        .arg("-o")
        .arg(&fresh)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(source))
        .args(libraries)
        .status()
        .expect("a C compiler");
    assert!(status.success());
    std::fs::rename(&fresh, &out).expect("one file system");
    compiled.insert(name, flags_given);
    out
}
