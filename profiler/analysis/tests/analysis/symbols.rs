//! Symbols of programs that are compiled here.

use crate::common::{read, write};
use crate::programs::{
    C, C_FRAMES, CPP, CPP_FRAMES, Program, RUST, events, look_up, look_up_in, nowhere, run,
};
use grapnel_analysis::analyse_and_open;
use grapnel_analysis::symbols::{Embedded, FileStore, Symbols, embed};
use grapnel_trace::event::Event;
use grapnel_trace::reader::Reader;
use std::process::Command;

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
fn cpp_names_have_their_scopes() {
    let program = Program::build(CPP, "cc", &["-O1", "-g"]);
    let (frames, _) = look_up(&program.trace(&program.build_id()), nowhere());
    assert_eq!(frames, CPP_FRAMES);
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
fn files_that_are_opened_ahead_give_the_same_and_nothing_is_said_of_them_unasked() {
    let program = Program::build(C, "c", &["-O2", "-g"]);
    let trace = |build_id: &[u8]| write(&events(&program.path, build_id, &program.offsets), 0);
    let store = FileStore::new();
    for build_id in [&[][..], &[1; 20], &program.build_id()] {
        let trace = trace(build_id);
        let mut symbols = Symbols::new(&store, nowhere());
        let analysis = analyse_and_open(Reader::new(&*trace).unwrap(), &mut symbols);
        assert_eq!(symbols.notes(), [""; 0]);
        assert_eq!(look_up_in(&mut symbols, &analysis), look_up(&read(&trace), nowhere()));
    }
    let mut symbols = Symbols::new(&store, nowhere());
    let analysis = analyse_and_open(Reader::new(&*trace(&program.build_id())).unwrap(), &mut symbols);
    std::fs::remove_file(&program.path).unwrap();
    assert_eq!(look_up_in(&mut symbols, &analysis).0, C_FRAMES);
}

#[test]
fn a_trace_carries_its_names() {
    let program = Program::build(C, "c", &["-O2", "-g"]);
    let mut events = events(&program.path, &program.build_id(), &program.offsets);
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, nowhere());
    let count = |embedded: Embedded| (embedded.named, embedded.before, embedded.unknown);
    let add = |names| {
        events.push(Event::Names(names));
        Ok::<_, ()>(())
    };
    let embedded = embed(&program.trace(&program.build_id()), &mut symbols, add).unwrap();
    assert_eq!(count(embedded), (2, 0, 0));
    std::fs::remove_file(&program.path).unwrap();
    let named = read(&write(&events, 0));
    assert_eq!(look_up(&named, nowhere()), (C_FRAMES.map(str::to_owned).to_vec(), vec![]));

    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, nowhere());
    assert_eq!(count(embed(&named, &mut symbols, |_| Err(())).unwrap()), (0, 2, 0));
    let bare = program.trace(&[1; 20]);
    assert_eq!(count(embed(&bare, &mut symbols, |_| Err(())).unwrap()), (0, 0, 2));
}
