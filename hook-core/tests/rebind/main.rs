//! Words of a library that hold the addresses of functions, bound to others and back.

#[path = "../common/cc.rs"]
mod cc;
#[path = "../common/find.rs"]
mod find;

use std::{
    ffi::{CStr, CString},
    path::PathBuf,
};

use grapnel_hook::rebind::{NotDefined, Rebinding, Report, are_protected};

/// A library that is loaded.
struct Library {
    handle: *mut libc::c_void,
    path: PathBuf,
}

impl Library {
    fn build(name: &str, flags: &[&str]) -> PathBuf {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{name}.so"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rebind/library.c");
        let output = cc::command()
            .args(["-O1", "-fPIC", "-shared", "-Wall", "-Werror", source, "-o"])
            .arg(&path)
            .args(flags)
            .output()
            .expect("a C compiler is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        path
    }

    fn load(path: PathBuf) -> Self {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the library has no constructors.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
        assert!(!handle.is_null(), "{:?}", unsafe_error());
        Self { handle, path }
    }

    fn symbol(&self, name: &CStr) -> *mut libc::c_void {
        // SAFETY: the library is loaded.
        let at = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!at.is_null(), "{name:?}");
        at
    }

    fn call(&self, name: &CStr, argument: i32) -> i32 {
        // SAFETY: the functions of the library take an integer or nothing, and return one.
        let function: extern "C" fn(i32) -> i32 = unsafe { std::mem::transmute(self.symbol(name)) };
        function(argument)
    }

    /// What its mappings are allowed.
    fn rights(&self) -> Vec<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = self.path.to_str().unwrap();
        maps.lines().filter(|line| line.ends_with(path)).map(String::from).collect()
    }

    /// What all ways to the imported function give.
    fn imported(&self) -> Vec<i32> {
        let mut all = vec![self.call(c"call_imported", 0), self.call(c"call_changing", 0)];
        all.extend([0, 1, 3].map(|i| self.call(c"call_table", i)));
        all
    }

    fn own(&self) -> [i32; 3] {
        [0, 2, 3].map(|i| self.call(c"call_own", i))
    }

    fn indirect(&self) -> [i32; 3] {
        [c"call_indirect", c"call_indirect_table", c"call_indirect_inside"].map(|name| self.call(name, 0))
    }
}

fn unsafe_error() -> String {
    // SAFETY: the message is a string or null.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

extern "C" fn minus_1() -> i32 {
    -1
}

extern "C" fn minus_2() -> i32 {
    -2
}

fn find(name: &[u8], replacement: extern "C" fn() -> i32) -> Result<Rebinding, NotDefined> {
    // SAFETY: the test loads nothing meanwhile; the types agree.
    unsafe { Rebinding::find(&find::modules(), name, replacement as *const ()) }
}

fn update(rebinding: &mut Rebinding) -> Report {
    // SAFETY: as above.
    unsafe { rebinding.update(&find::modules()) }
}

fn undo(rebinding: &mut Rebinding) -> Report {
    // SAFETY: as above.
    unsafe { rebinding.undo(&find::modules()) }
}

fn every_kind(library: &Library) {
    // SAFETY: no preconditions.
    let parent = unsafe { libc::getppid() };
    let rights = library.rights();
    // Only the objects in the list are changed.
    let mut in_libc = find(b"getppid", minus_1).unwrap();
    // SAFETY: the test loads nothing meanwhile.
    assert!(unsafe { in_libc.update(&[find::module("libc.so")]) }.foreign.is_empty());
    assert_eq!(library.imported(), [parent; 5]);
    undo(&mut in_libc);

    assert!(rights.iter().any(|line| line.contains(" r--p ")));

    let mut getppid = find(b"getppid", minus_1).unwrap();
    // SAFETY: the original has this type.
    let original: extern "C" fn() -> i32 = unsafe { std::mem::transmute(getppid.original()) };
    assert_eq!(original(), parent);
    let report = update(&mut getppid);
    assert!(report.written >= 5 && report.foreign.is_empty() && report.failed.is_empty(), "{report:?}");
    assert_eq!(library.imported(), [-1; 5]);
    assert_eq!(update(&mut getppid), Report::default());
    assert_eq!(library.rights(), rights);

    let mut own = find(b"own", minus_2).unwrap();
    let report = update(&mut own);
    assert!(report.written >= 3 && report.failed.is_empty(), "{report:?}");
    assert_eq!(library.own(), [-2; 3]);
    let mut indirect = find(b"indirect", minus_2).unwrap();
    assert_eq!(library.indirect(), [11; 3]);
    let report = update(&mut indirect);
    assert!(report.written >= 1 && report.failed.is_empty(), "{report:?}");
    assert_eq!(library.indirect(), [-2; 3]);
    assert_eq!(library.call(c"has_absent", 0), 0);

    for rebinding in [&mut getppid, &mut own, &mut indirect] {
        let words = rebinding.words();
        let report = undo(rebinding);
        assert_eq!((report.written, rebinding.words()), (words, 0));
    }
    assert_eq!(library.imported(), [parent; 5]);
    assert_eq!(library.own(), [5; 3]);
    assert_eq!(library.indirect(), [11; 3]);
    assert_eq!(library.rights(), rights);
    println!("  {}: {} words", library.path.display(), report.written);
}

/// What someone else put there is left alone.
fn others(library: &Library) {
    let mut first = find(b"getppid", minus_1).unwrap();
    update(&mut first);
    // SAFETY: the word holds a function of this type.
    let word = unsafe { &mut *library.symbol(c"changing").cast::<extern "C" fn() -> i32>() };
    *word = minus_2;
    let mut second = find(b"getppid", minus_1).unwrap();
    let report = update(&mut second);
    assert_eq!(report.foreign, [&raw const *word as usize]);
    let report = undo(&mut first);
    assert_eq!(report.foreign, [&raw const *word as usize]);
    assert_eq!(library.call(c"call_changing", 0), -2);
    // SAFETY: the type is that of the word.
    *word = unsafe { std::mem::transmute::<*const (), extern "C" fn() -> i32>(first.original()) };
}

/// A word that was put back by someone else and changed again counts once.
fn changed_again(library: &Library) {
    let mut getppid = find(b"getppid", minus_1).unwrap();
    update(&mut getppid);
    let words = getppid.words();
    // SAFETY: the word holds a function of this type.
    let word = unsafe { &mut *library.symbol(c"changing").cast::<extern "C" fn() -> i32>() };
    // SAFETY: the type is that of the word.
    *word = unsafe { std::mem::transmute::<*const (), extern "C" fn() -> i32>(getppid.original()) };
    assert_eq!(update(&mut getppid).written, 1);
    assert_eq!(getppid.words(), words);
    let report = undo(&mut getppid);
    assert_eq!((report.written, report.foreign.len()), (words, 0));
}

/// Protected words of one page, changed by two threads at once.
fn at_once() {
    let names: [&[u8]; 2] = [b"getppid", b"indirect"];
    let work = |name: &[u8]| {
        for _ in 0..40 {
            let mut rebinding = find(name, minus_1).unwrap();
            let report = update(&mut rebinding);
            assert!(report.written > 0 && report.failed.is_empty(), "{report:?}");
            let report = undo(&mut rebinding);
            assert!(report.failed.is_empty() && report.foreign.is_empty(), "{report:?}");
        }
    };
    std::thread::scope(|scope| {
        for name in names {
            scope.spawn(move || work(name));
        }
    });
}

/// Whether the linker is done with a library's tables is seen by what their page may.
fn protected_or_not_yet(library: &Library) {
    let modules = find::modules();
    let at = modules.iter().position(|module| module.name() == library.path.to_str().unwrap().as_bytes());
    let at = at.expect("it is listed");
    let is_protected = || are_protected(&modules)[at];
    assert!(is_protected());
    // What is protected lies right below what isn't.
    let rights = library.rights();
    let writable = rights.iter().position(|line| line.contains(" rw")).expect("words that may be written");
    let (start, end) = rights[writable - 1].split_once(' ').unwrap().0.split_once('-').unwrap();
    let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
    let allow = |rights| {
        // SAFETY: data of a library that nobody uses meanwhile.
        assert_eq!(unsafe { libc::mprotect(start as *mut libc::c_void, end - start, rights) }, 0);
    };
    allow(libc::PROT_READ | libc::PROT_WRITE);
    assert!(!is_protected());
    allow(libc::PROT_READ);
    assert!(is_protected());
}

/// Two libraries have a function of one name, and that of the one is meant.
fn one_of_two() {
    let [first, second] =
        ["first", "second"].map(|name| Library::load(Library::build(name, &["-Wl,-z,lazy", "-Wl,-z,relro"])));
    let modules = find::modules();
    // SAFETY: the objects are relocated, and the types agree.
    let of = |function| unsafe { Rebinding::of(&modules, function, minus_2 as *const ()) };
    let mut own = of(second.symbol(c"own").cast_const().cast()).unwrap();
    let report = update(&mut own);
    // The calls by name are not bound yet, and can't be told apart.
    assert!(
        report.undecided.len() >= 2 && report.foreign.is_empty() && report.failed.is_empty(),
        "{report:?}"
    );
    assert!(report.written >= 3, "{report:?}");
    assert_eq!([first.own(), second.own()], [[5; 3], [-2; 3]]);
    // Bound now, each library's to its own.
    assert_eq!([&first, &second].map(|library| library.call(c"call_own_by_name", 0)), [5, 5]);
    let report = update(&mut own);
    assert_eq!(report.written, 1, "{report:?}");
    assert_eq!([&first, &second].map(|library| library.call(c"call_own_by_name", 0)), [5, -2]);
    let words = own.words();
    assert_eq!(undo(&mut own).written, words);
    assert_eq!([first.own(), second.own()], [[5; 3]; 2]);
    // A function that nobody else defines is found by its address as by its name, indirect ones too.
    // SAFETY: the default handle and a valid name.
    let getppid = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getppid".as_ptr()) };
    let mut getppid = of(getppid.cast_const().cast()).unwrap();
    let report = update(&mut getppid);
    assert!(report.undecided.is_empty() && report.failed.is_empty(), "{report:?}");
    assert_eq!([first.imported(), second.imported()], [vec![-2; 5], vec![-2; 5]]);
    undo(&mut getppid);
    let data = 0;
    assert!(of((&raw const data).cast()).is_err());
    for library in [first, second] {
        // SAFETY: nothing of the library is used any more.
        unsafe { libc::dlclose(library.handle) };
    }
}

/// The list of objects is older than that one of them is gone.
fn gone_from_the_list(path: PathBuf) {
    let library = Library::load(path);
    let mut getppid = find(b"getppid", minus_1).unwrap();
    update(&mut getppid);
    let (words, modules) = (getppid.words(), find::modules());
    // SAFETY: nothing of the library is used any more.
    assert_eq!(unsafe { libc::dlclose(library.handle) }, 0);
    assert_eq!(library.rights(), Vec::<String>::new());
    // SAFETY: what is written is looked for first.
    let report = unsafe { getppid.undo(&modules) };
    assert!(report.written + 5 <= words && report.failed.is_empty(), "{report:?} of {words}");
    assert_eq!((report.foreign.len(), getppid.words()), (0, 0));
}

fn later_and_gone(path: PathBuf) {
    let mut getppid = find(b"getppid", minus_1).unwrap();
    update(&mut getppid);
    let words = getppid.words();
    let library = Library::load(path);
    assert_ne!(library.imported()[0], -1);
    assert!(update(&mut getppid).written >= 5);
    assert_eq!(library.imported(), [-1; 5]);
    // SAFETY: nothing of the library is used any more.
    assert_eq!(unsafe { libc::dlclose(library.handle) }, 0);
    assert_eq!(library.rights(), Vec::<String>::new());
    assert_eq!(update(&mut getppid), Report::default());
    assert_eq!(getppid.words(), words);
    undo(&mut getppid);
}

fn main() {
    assert!(matches!(find(b"no_such_function", minus_1), Err(NotDefined { .. })));
    // Bound at the first call, and everything named.
    let lazy = Library::load(Library::build("lazy", &["-Wl,-z,lazy", "-Wl,-z,relro"]));
    every_kind(&lazy);
    others(&lazy);
    changed_again(&lazy);
    // Bound at once and protected, and the library's own functions not named.
    let now = Library::build("now", &["-Wl,-z,now", "-Wl,-z,relro", "-Wl,-Bsymbolic"]);
    let packed = Library::build(
        "packed",
        &["-Wl,-z,now", "-Wl,-z,relro", "-Wl,-Bsymbolic", "-Wl,-z,pack-relative-relocs"],
    );
    for path in [now.clone(), packed] {
        let library = Library::load(path);
        every_kind(&library);
        protected_or_not_yet(&library);
        let rights = library.rights();
        at_once();
        assert_eq!(library.rights(), rights);
        // SAFETY: nothing of the library is used any more.
        unsafe { libc::dlclose(library.handle) };
    }
    gone_from_the_list(now.clone());
    later_and_gone(now);
    one_of_two();
    println!("ok");
}
