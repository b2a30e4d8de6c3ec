//! Functions as the compiler makes them, of both instruction sets, hooked from this program, which is of one of them.

use std::{
    ffi::CString,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use grapnel_hook::{Error, Hook, Liveness, Transaction, symbol};

use crate::{cc, heap};

pub(crate) type Function = extern "C" fn(i32, i32, i32, i32, i32, i32) -> i64;

pub(crate) const NAMES: [&str; 13] = [
    "leaf",
    "literals",
    "branches",
    "loops",
    "calls",
    "tail",
    "recursive",
    "switches",
    "globals",
    "stack",
    "wides",
    "selects",
    "variadic",
];

fn compile(source: &str, set: &str, file: &Path) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/arm/");
    let mut compile = cc::command();
    compile
        .args(["-O2", "-shared", "-fPIC", &format!("-m{set}"), &format!("{folder}{source}"), "-o"])
        .arg(file);
    if source.ends_with(".cc") {
        compile.arg("-lstdc++");
    }
    assert!(compile.status().expect("a C compiler for this machine").success());
}

/// The functions of `functions.c`.
pub(crate) struct Library {
    pub(crate) set: &'static str,
    handle: *mut libc::c_void,
    file: PathBuf,
}

impl Library {
    pub(crate) fn load(set: &'static str) -> Self {
        Self::load_from("functions.c", set)
    }

    /// A file of this folder, as a library in one of the instruction sets.
    pub(crate) fn load_from(source: &str, set: &'static str) -> Self {
        let file = format!("grapnel-arm-{source}-{set}-{}.so", std::process::id());
        let file = std::env::temp_dir().join(file);
        match std::env::var_os("GRAPNEL_COMPILED") {
            // Where there is no compiler, they have been compiled before.
            Some(folder) => {
                let compiled = PathBuf::from(folder).join(format!("{source}-{set}.so"));
                std::fs::copy(compiled, &file).expect("what was compiled");
            }
            None => compile(source, set, &file),
        }
        let name = CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: the sources have no constructors, and those of libstdc++ only set up what it has for itself.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        Self { set, handle, file }
    }

    pub(crate) fn function(&self, name: &str) -> *const () {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is of a loaded library.
        let at = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!at.is_null());
        assert_eq!(at as usize & 1 != 0, self.set == "thumb");
        at.cast_const().cast()
    }
}

impl Library {
    /// The function's length, from its symbol.
    pub(crate) fn size(&self, name: &str) -> usize {
        let file_name = self.file.file_name().unwrap().to_str().unwrap();
        let module = heap::module(file_name);
        symbol::find(&module, name.as_bytes()).expect(name).size
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// The bytes of a function, whose address may say that it is T32.
pub(crate) fn bytes(at: *const ()) -> [u8; 16] {
    // SAFETY: the tests ask for code that is mapped.
    unsafe { ((at as usize & !1) as *const [u8; 16]).read() }
}

pub(crate) fn function(at: *const ()) -> Function {
    // SAFETY: the functions, their trampolines and replacements have this type.
    unsafe { std::mem::transmute(at) }
}

/// Some arguments of each kind.
pub(crate) fn results(function: Function) -> Vec<i64> {
    (0..9)
        .flat_map(|a| [(a, 5, 9), (a, -7, 3), (a, 1 << 30, -1)])
        .map(|(a, b, c)| function(a, b, c, 40 + a, 50, 60))
        .collect()
}

static ORIGINAL: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn replacement(a: i32, b: i32, c: i32, d: i32, e: i32, f: i32) -> i64 {
    CALLS.fetch_add(1, Relaxed);
    function(ORIGINAL.load(Relaxed) as *const ())(a, b, c, d, e, f) + 1_000_000
}

pub(crate) fn run() {
    for set in ["arm", "thumb"] {
        let library = Library::load(set);
        for name in NAMES {
            one(&library, name);
        }
        together(&library);
        floating(&library);
        if set == "thumb" {
            entered_behind_its_start(&library);
        }
        println!("compiled functions: {set}");
    }
}

fn commit(transaction: Transaction<'_>) -> Vec<Hook> {
    // SAFETY: one thread, and the types agree.
    unsafe { transaction.commit(Liveness::SingleThreaded) }.into_iter().map(Result::unwrap).collect()
}

fn remove(hook: &mut Hook) {
    // SAFETY: one thread.
    unsafe { hook.remove(Liveness::SingleThreaded) }.unwrap();
}

fn one(library: &Library, name: &str) {
    let at = library.function(name);
    let (before, plain) = (bytes(at), results(function(at)));
    // `globals` counts.
    let again = results(function(at));
    let mut transaction = Transaction::new();
    let id = transaction.replace(at, replacement as *const ());
    let prepared = transaction.prepare();
    ORIGINAL.store(prepared.original(id).unwrap_or_else(|e| panic!("{name}: {e}")) as usize, Relaxed);
    // SAFETY: one thread, and the types agree.
    let mut hook = unsafe { prepared.commit(Liveness::SingleThreaded) }.remove(0).unwrap();
    assert_ne!(bytes(at), before);
    CALLS.store(0, Relaxed);
    let hooked = results(function(at));
    assert!(CALLS.load(Relaxed) >= hooked.len(), "{name}");
    if name == "globals" {
        assert_ne!(plain, again);
    } else if name == "recursive" {
        // Its inner calls are hooked too, but for those that the compiler made a loop.
        assert!(hooked.iter().zip(&plain).all(|(hooked, plain)| (hooked - plain) % 1_000_000 == 0));
    } else {
        let expected: Vec<_> = plain.iter().map(|x| x + 1_000_000).collect();
        assert_eq!(hooked, expected, "{} {name}", library.set);
    }
    remove(&mut hook);
    assert_eq!(bytes(at), before, "{name} is as before");
    if name != "globals" {
        assert_eq!(results(function(at)), plain);
        assert_eq!(results(function(hook.original())), plain, "the original stays callable");
    }
}

/// All in one transaction, and all originals.
fn together(library: &Library) {
    extern "C" fn mark(a: i32, _: i32, _: i32, _: i32, _: i32, _: i32) -> i64 {
        i64::from(a) + 1 << 40
    }
    let names = NAMES.iter().filter(|name| !["globals", "tail", "recursive"].contains(name));
    let functions: Vec<_> = names.map(|name| library.function(name)).collect();
    let plain: Vec<_> = functions.iter().map(|at| results(function(*at))).collect();
    let before: Vec<_> = functions.iter().map(|at| bytes(*at)).collect();
    let mut transaction = Transaction::new();
    for at in &functions {
        transaction.replace(*at, mark as *const ());
    }
    let mut hooks = commit(transaction);
    for (i, (at, hook)) in functions.iter().zip(&hooks).enumerate() {
        assert_eq!(function(*at)(6, 0, 0, 0, 0, 0), 7 << 40);
        assert_eq!(results(function(hook.original())), plain[i]);
    }
    for hook in &mut hooks {
        remove(hook);
    }
    assert_eq!(functions.iter().map(|at| bytes(*at)).collect::<Vec<_>>(), before);
}

/// A patch would lie over two instructions, of which another function goes on at the second.
fn entered_behind_its_start(library: &Library) {
    let (enters, entered) = (library.function("like_stpcpy"), library.function("like_strcpy"));
    let put = |at: *const ()| {
        let mut transaction = Transaction::new();
        transaction.replace(at, replacement as *const ());
        // SAFETY: one thread, and the types agree.
        unsafe { transaction.commit(Liveness::SingleThreaded) }.remove(0)
    };
    let error = put(entered).unwrap_err();
    assert!(matches!(error, Error::InboundBranch { .. }), "{error}");
    assert_eq!(error.address().0 as usize, (enters as usize & !1) + 2, "{error}");
    let call = |at| function(at)(7, 0, 0, 0, 0, 0);
    assert_eq!((call(enters), call(entered)), (12, 8));
    let mut hook = put(enters).unwrap();
    ORIGINAL.store(hook.original() as usize, Relaxed);
    assert_eq!((call(enters), call(entered)), (1_000_012, 8));
    remove(&mut hook);
    assert_eq!(call(enters), 12);
}

/// Arguments and results in floating-point registers.
fn floating(library: &Library) {
    type Floating = extern "C" fn(f64, f32, i32) -> f64;
    extern "C" fn replacement(x: f64, y: f32, z: i32) -> f64 {
        // SAFETY: the original of `floating` was stored.
        let original: Floating = unsafe { std::mem::transmute(ORIGINAL.load(Relaxed)) };
        original(x, y, z) * 10.0
    }
    let at = library.function("floating");
    // SAFETY: the function's type.
    let plain: Floating = unsafe { std::mem::transmute(at) };
    assert_eq!(plain(1.5, 0.25, 2), 1.25);
    let mut transaction = Transaction::new();
    let id = transaction.replace(at, replacement as *const ());
    let prepared = transaction.prepare();
    ORIGINAL.store(prepared.original(id).unwrap() as usize, Relaxed);
    // SAFETY: one thread, and the types agree.
    let mut hook = unsafe { prepared.commit(Liveness::SingleThreaded) }.remove(0).unwrap();
    assert_eq!(plain(1.5, 0.25, 2), 12.5);
    remove(&mut hook);
    assert_eq!(plain(1.5, 0.25, 2), 1.25);
}
