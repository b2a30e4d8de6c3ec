//! Files that are not what they should be: no panic, and a note that says so.

use crate::common;
use crate::programs::{C, C_FRAMES, Program, look_up, nowhere, run, trace};
use grapnel_trace::event::Event;
use object::{Object, ObjectSection};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

#[test]
fn another_build_is_not_used_and_that_is_said() {
    let program = Program::build(C, "c", &["-O2", "-g"]);
    let (frames, notes) = look_up(&program.trace(&[1; 20]), nowhere());
    assert_eq!(frames, ["- -:0", "- -:0"]);
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.contains("changed since the recording"), "{note}");
}

#[test]
fn a_program_without_build_id_that_was_written_since() {
    let program = Program::build(C, "c", &["-O2", "-g", "-Wl,--build-id=none"]);
    let (frames, notes) = look_up(&program.trace(&[]), nowhere());
    assert_eq!(frames, ["- -:0", "- -:0"]);
    assert!(notes[0].contains("it was written after it was loaded"), "{notes:?}");
    program.replace(&std::fs::read(&program.path).unwrap());
    assert_eq!(look_up(&program.trace(&[]), nowhere()).0, C_FRAMES);
}

/// Before the recording's end, but after the program was loaded.
#[test]
fn a_program_without_build_id_that_was_replaced_while_it_ran() {
    let program = Program::build(C, "c", &["-O2", "-g", "-Wl,--build-id=none"]);
    let written = Duration::from_nanos(common::info().started_unix_ns) + Duration::from_secs(1);
    let file = File::options().write(true).open(&program.path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + written).unwrap();
    let mut events = crate::programs::events(&program.path, &[], &program.offsets);
    let looked = |events: &[Event]| look_up(&common::read(&common::write(events, 0)), nowhere());
    let (frames, notes) = looked(&events);
    assert_eq!(frames, ["- -:0", "- -:0"]);
    assert!(notes[0].contains("it was written after it was loaded"), "{notes:?}");
    events.insert(0, Event::Time(1_500_000_000));
    assert_eq!(looked(&events).0, C_FRAMES, "a library that was built meanwhile and loaded then");
}

/// The linker throws it away. It is longer than what lies before the code of a program, and shorter than with
/// [`LONG`]'s code.
const DISCARDED: &str = "void discarded(void) { __asm__ volatile(\".skip 0x10000, 0x90\"); }";
const LONG: &str = "void last(void) { __asm__ volatile(\".skip 0x40000, 0x90\"); }";

#[test]
fn functions_that_the_linker_threw_away_name_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let [source, object] = ["discarded.c", "discarded.o"].map(|name| dir.path().join(name));
    std::fs::write(&source, DISCARDED).unwrap();
    let toolchain = run(Command::new("rustc").args(["--print", "sysroot"]));
    let host = run(Command::new("rustc").args(["--print", "host-tuple"]));
    // Where rustc brings LLVM's linker.
    let lld = format!("-B{}/lib/rustlib/{}/bin/gcc-ld", toolchain.trim(), host.trim());
    for kind in [&["-gdwarf-2"][..], &["-gdwarf-4"], &["-gdwarf-5"], &["-gdwarf-5", "-gsplit-dwarf"]] {
        let compile = |compiler: &str| {
            run(Command::new(compiler)
                .args(["-O1", "-g", "-ffunction-sections", "-c", "-o"])
                .args([&object, &source])
                .args(kind));
        };
        for compiler in ["gcc", "clang"] {
            compile(compiler);
            for linker in [&["-fuse-ld=bfd"][..], &["-fuse-ld=gold"], &["-fuse-ld=lld", &lld]] {
                let flags = ["-O1", "-g", "-Wl,--gc-sections,--undefined=last", object.to_str().unwrap()];
                let flags = [&flags[..], linker, kind].concat();
                let program = Program::build(&format!("{C}{LONG}"), "c", &flags);
                let names = run(Command::new("nm").arg(&program.path));
                let address = |name: &str| {
                    let line = names.lines().find(|line| line.ends_with(&format!(" {name}")));
                    line.map(|line| u64::from_str_radix(&line[..16], 16).unwrap())
                };
                assert_eq!(address("discarded"), None);
                // The one has no debug information, and what the others have is found after the discarded one's.
                let mut offsets = vec![address("_start").unwrap() + 10];
                offsets.extend(&program.offsets);
                let trace = trace(&program.path, &program.build_id(), &offsets);
                let (frames, notes) = look_up(&trace, nowhere());
                assert_eq!(frames[0], "_start -:0", "{compiler}, {flags:?}");
                assert_eq!(frames[1..], C_FRAMES, "{compiler}, {flags:?}");
                assert_eq!(notes, [""; 0]);
            }
        }
    }
}

/// Debug information by hand: what covers `outer` is nested this deep, or names itself as its origin.
const NESTED: &str = r#"
.section .debug_abbrev,"",@progbits
.uleb128 1, 0x11; .byte 1; .uleb128 0x11, 0x01, 0x12, 0x07, 0, 0
.uleb128 2, 0x2e; .byte 1; .uleb128 0x11, 0x01, 0x12, 0x07, 0, 0
.uleb128 3, 0x1d; .byte 1; .uleb128 0x11, 0x01, 0x12, 0x07, 0, 0
.uleb128 4, 0x2e; .byte 0; .uleb128 0x11, 0x01, 0x12, 0x07, 0x31, 0x13, 0, 0
.byte 0
.section .debug_info,"",@progbits
start: .long end - behind
behind: .short 4; .long .debug_abbrev; .byte 8
.uleb128 1; .quad outer, 0x40
"#;

fn by_hand(entries: &str) -> (Vec<String>, Vec<String>) {
    let mut program = Program::build(C, "c", &["-O2"]);
    let at = |name: &str| program.dir.path().join(name);
    std::fs::write(at("tree.s"), format!("{NESTED}{entries}\n.byte 0\nend:\n")).unwrap();
    std::fs::write(at("program.c"), C).unwrap();
    let files = ["record.o", "program.c", "tree.s"].map(at);
    run(Command::new("gcc").args(["-O2", "-Wl,--build-id", "-o"]).arg(&program.path).args(files));
    let output = run(&mut Command::new(&program.path));
    program.offsets = output.lines().map(|line| u64::from_str_radix(line, 16).unwrap()).collect();
    look_up(&program.trace(&program.build_id()), nowhere())
}

#[test]
fn inlined_calls_are_followed_only_as_deep_as_programs_have_them() {
    let nested = |depth: u32| {
        let level = ".uleb128 3; .quad outer, 0x40";
        by_hand(&format!(
            ".uleb128 2; .quad outer, 0x40\n.rept {depth}; {level}; .endr\n.fill {depth} + 1, 1, 0"
        ))
    };
    let (frames, notes) = nested(300);
    assert_eq!(frames[0].matches("> ").count(), 300);
    assert!(frames[0].ends_with("; outer -:0"), "{frames:?}");
    assert_eq!(notes, [""; 0]);
    let (frames, notes) = nested(300_000);
    assert_eq!(frames, ["outer -:0", "main -:0"]);
    assert!(notes[0].contains("nested deeper than"), "{notes:?}");
}

#[test]
fn a_function_that_is_its_own_origin_has_its_symbol() {
    let (frames, _) = by_hand("self: .uleb128 4; .quad outer, 0x40; .long self - start");
    assert_eq!(frames, ["outer -:0", "main -:0"]);
}

#[test]
fn sections_that_claim_to_be_huge_are_not_decompressed() {
    let program = Program::build(C, "c", &["-O2", "-g", "-gz=zlib"]);
    let mut bytes = std::fs::read(&program.path).unwrap();
    let mut bad = Vec::new();
    {
        let file = object::File::parse(&*bytes).unwrap();
        for section in file.sections() {
            if let (Ok(".debug_info" | ".debug_line"), Some((at, _))) = (section.name(), section.file_range())
            {
                bad.push(at as usize);
            }
        }
    }
    assert_eq!(bad.len(), 2);
    // The length in `Elf64_Chdr`.
    bad.iter().for_each(|at| bytes[at + 8..at + 16].copy_from_slice(&(1u64 << 40).to_le_bytes()));
    std::fs::write(&program.path, &bytes).unwrap();
    let (frames, notes) = look_up(&program.trace(&program.build_id()), nowhere());
    assert_eq!(frames, ["outer -:0", "main -:0"]);
    assert!(notes.iter().any(|note| note.contains(".debug_info") && note.contains("claims")), "{notes:?}");
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
    let mut random = common::Random(42);
    for round in common::cases(150) {
        let mut bad = good.clone();
        for _ in 0..1 + round % 20 {
            let at = random.below(bad.len() as u64) as usize;
            bad[at] = random.next() as u8;
        }
        if round % 5 == 0 {
            bad.truncate(random.below(bad.len() as u64) as usize);
        }
        program.replace(&bad);
        look_up(&program.trace(&[]), nowhere());
    }
}
