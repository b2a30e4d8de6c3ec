//! Functions that aren't exported, found in files.

use std::{fs, path::Path};

use grapnel_hook::{
    CodeAddr, HookPlan, Options, Proof,
    module::Module,
    symbol::{
        Lookup, LookupError, SymbolKind,
        files::{FileError, FileSymbols, Source},
    },
};

use crate::{
    find,
    library::{Library, run},
};

/// What isn't exported is found, by its name and by its address, and has the right address.
fn finds_inside(library: &Library, module: &Module, roots: &[&[u8]], source: Source) {
    let inside = library.address_of_inside(module);
    let lookup = Lookup::with_debug_roots(module, roots);
    let files = lookup.files().unwrap_or_else(|error| panic!("{}: {error}", library.text()));
    assert_eq!(files.source(), source);
    let found = lookup.find(b"inside").unwrap();
    assert_eq!((found.addr, found.kind), (inside, SymbolKind::Function));
    assert!(found.size > 0);
    for address in [inside, inside + 1, inside + found.size - 1] {
        let function = lookup.function_at(address).unwrap();
        assert_eq!((function.name.as_deref(), function.range), (Some(&b"inside"[..]), found.range()));
    }
    assert!(
        matches!(lookup.find(b"twin"), Err(LookupError::Ambiguous { addresses, .. }) if addresses.len() == 2)
    );
    assert!(matches!(lookup.find(b"no_such_function"), Err(LookupError::Missing { .. })));
    // What is exported is found without any file.
    let exported = lookup.find(b"exported").unwrap();
    assert_eq!(lookup.function_at(exported.addr).unwrap().name.as_deref(), Some(&b"exported"[..]));
}

fn path(path: &Path) -> &[u8] {
    path.to_str().unwrap().as_bytes()
}

#[test]
fn in_the_table_of_the_objects_own_file() {
    let library = Library::build("own", &[]);
    let module = library.load();
    assert!(module.build_id().is_some());
    assert_eq!(module.soname(), Some(&b"libfunctions.so.1"[..]));
    assert!(module.is_called(b"libfunctions.so.1") && module.is_called(b"libfunctions.so"));
    assert!(module.is_called(b"own/libfunctions.so") && !module.is_called(b"functions.so"));
    assert!(!module.is_called(b""));
    finds_inside(&library, &module, &[], Source::Own);
    let indirect = Lookup::new(&module).find(b"indirect_inside").unwrap();
    assert_eq!(indirect.kind, SymbolKind::Indirect);
    // SAFETY: the library is relocated.
    let resolved = unsafe { indirect.resolve() };
    assert_eq!(resolved as usize, Lookup::new(&module).find(b"chosen").unwrap().addr);
}

#[test]
fn in_a_debug_file_by_build_id() {
    let library = Library::build("by_id", &["-Wl,--build-id=0xab0102030405060708"]);
    let root = library.folder().join("root");
    library.split(&root.join(".build-id/ab/0102030405060708.debug"));
    let module = library.load();
    finds_inside(&library, &module, &[path(&root)], Source::Separate);
    assert!(matches!(FileSymbols::open_in(&module, &[]), Err(FileError::Stripped { .. })));
    // Also when the file itself is gone.
    fs::remove_file(&library.path).unwrap();
    finds_inside(&library, &module, &[path(&root)], Source::Separate);
}

#[test]
fn in_a_debug_file_by_link() {
    for (name, flag) in [("link", "-Wl,--build-id"), ("link_without_id", "-Wl,--build-id=none")] {
        let library = Library::build(name, &[flag]);
        let debug = library.folder().join("functions.debug");
        library.split(&debug);
        library.link(&debug);
        let module = library.load();
        let root = library.folder().join("root");
        let below = root.join(library.folder().strip_prefix("/").unwrap()).join("functions.debug");
        fs::create_dir_all(below.parent().unwrap()).unwrap();
        let hidden = library.folder().join(".debug/functions.debug");
        fs::create_dir_all(hidden.parent().unwrap()).unwrap();
        let mut before = debug;
        finds_inside(&library, &module, &[path(&root)], Source::Separate);
        for place in [hidden, below] {
            fs::rename(&before, &place).unwrap();
            finds_inside(&library, &module, &[path(&root)], Source::Separate);
            before = place;
        }
        // One that belongs to another build doesn't count.
        let other = Library::build(&format!("{name}_other"), &[flag, "-O0"]);
        other.split(&before);
        let error = FileSymbols::open_in(&module, &[path(&root)]).unwrap_err();
        assert!(matches!(error, FileError::Stripped { .. }), "{error}");
    }
}

#[test]
fn in_what_is_left_compressed() {
    for (name, compressor) in [
        ("compressed", &["xz"][..]),
        ("compressed_best", &["xz", "-9e", "--check=crc32"]),
        ("compressed_unchecked", &["xz", "-0", "--check=none"]),
    ] {
        let library = Library::build(name, &[]);
        library.compress(compressor);
        finds_inside(&library, &library.load(), &[], Source::Compressed);
    }
    let library = Library::build("compressed_otherwise", &[]);
    library.compress(&["xz", "--check=sha256"]);
    let error = FileSymbols::open_in(&library.load(), &[]).unwrap_err();
    assert!(matches!(error, FileError::Malformed { .. }), "{error}");
}

#[test]
fn a_replaced_file_is_noticed() {
    for (name, flag) in [("replaced", "-Wl,--build-id"), ("replaced_without_id", "-Wl,--build-id=none")] {
        let library = Library::build(name, &[flag]);
        let module = library.load();
        let bytes = fs::read(&library.path).unwrap();
        let other = fs::read(Library::build("replacing", &[flag, "-O0"]).path).unwrap();
        library.replace(&other);
        let error = Lookup::new(&module).find(b"inside").unwrap_err();
        let LookupError::NotExported { source: FileError::Replaced { .. }, .. } = &error else {
            panic!("{error}")
        };
        assert!(!error.remedy().is_empty());
        // What is exported is still found, and all is with the right file.
        assert!(Lookup::new(&module).find(b"exported").is_ok());
        library.replace(&bytes);
        finds_inside(&library, &module, &[], Source::Own);
    }
}

#[test]
fn versions_are_told_apart() {
    let map = format!("-Wl,--version-script={}/tests/symbols/versions.map", env!("CARGO_MANIFEST_DIR"));
    let library = Library::build("versions", &["-DVERSIONS", &map]);
    let module = library.load();
    let lookup = Lookup::new(&module);
    let call = |name: &[u8]| {
        let symbol = lookup.find(name).unwrap();
        // SAFETY: the functions have this type.
        let function: extern "C" fn() -> i32 = unsafe { std::mem::transmute(symbol.pointer()) };
        (function(), symbol.hidden)
    };
    assert_eq!(call(b"versioned"), (2, false));
    assert_eq!(call(b"versioned@OLD_1"), (1, true));
    assert_eq!(call(b"versioned@NEW_2"), (2, false));
    assert_eq!(call(b"versioned@@NEW_2"), (2, false));
    assert!(lookup.find(b"versioned@NEW_3").is_err());
    assert!(lookup.find(b"inside@NEW_2").is_err());
    // libc's own.
    let libc = find::module("libc.so");
    let versions =
        [&b"memcpy@GLIBC_2.2.5"[..], b"memcpy@GLIBC_2.14"].map(|name| Lookup::new(&libc).find(name));
    let [old, new] = versions.map(Result::unwrap);
    assert!(old.hidden && !new.hidden);
    // Data of the name is no function.
    assert!(grapnel_hook::symbol::find(&libc, b"environ").is_some());
    assert!(Lookup::new(&libc).find(b"environ").is_err());
}

#[test]
fn with_either_hash_table_and_by_address() {
    for style in ["sysv", "gnu", "both"] {
        let library = Library::build(style, &[&format!("-Wl,--hash-style={style}")]);
        run("strip", &["--strip-unneeded", library.text()]);
        let module = library.load();
        let lookup = Lookup::with_debug_roots(&module, &[]);
        let exported = lookup.find(b"exported").unwrap();
        let function = lookup.function_at(exported.addr + 1).unwrap();
        assert_eq!((function.name.as_deref(), function.range), (Some(&b"exported"[..]), exported.range()));
        // Of what isn't exported the unwind table knows where it ends.
        let inside = library.address_of_inside(&module);
        let function = lookup.function_at(inside + 1).unwrap();
        assert_eq!((function.name, function.range.start), (None, inside));
        assert!(lookup.function_at(module.bias()).is_none());
        let error = lookup.find(b"inside").unwrap_err();
        assert!(
            matches!(error, LookupError::NotExported { source: FileError::Stripped { .. }, .. }),
            "{error}"
        );
    }
}

#[test]
fn the_program_itself_and_what_has_no_file() {
    #[inline(never)]
    fn somewhere(x: u64) -> u64 {
        std::hint::black_box(x) + 1
    }
    let modules = find::modules();
    let program = Lookup::new(&modules[0]);
    let at = somewhere as *const () as usize;
    assert_eq!(somewhere(1), 2);
    let function = program.function_at(at).unwrap();
    assert_eq!(function.range.start, at);
    let name = String::from_utf8(function.name.unwrap()).unwrap();
    assert!(name.contains("somewhere"), "{name}");
    assert_eq!(program.find(name.as_bytes()).unwrap().addr, at);
    let vdso = modules.iter().find(|module| module.name().starts_with(b"linux-vdso"));
    let error = vdso.map(|vdso| FileSymbols::open(vdso).unwrap_err());
    assert!(matches!(error, None | Some(FileError::Unreadable { .. })), "{error:?}");
}

/// What a plan knows of functions without unwind entries.
#[test]
fn a_function_has_the_length_of_its_symbol() {
    let library = |name| Library::build(name, &["-fno-asynchronous-unwind-tables"]);
    let (whole, stripped) = (library("no_entries"), library("no_entries_stripped"));
    run("strip", &["--strip-unneeded", stripped.text()]);
    for (library, expected) in [(whole, Proof::Proven), (stripped, Proof::ExtentUnknown)] {
        let module = library.load();
        let proof = |address: usize| {
            let plan = HookPlan::new(CodeAddr(address as u64), Options::default()).unwrap();
            plan.proof().clone()
        };
        assert_eq!(proof(Lookup::new(&module).find(b"exported").unwrap().addr), Proof::Proven);
        // What isn't exported has one in a file only.
        assert_eq!(proof(library.address_of_inside(&module)), expected);
    }
}
