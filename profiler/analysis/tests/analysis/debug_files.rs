//! Debug information that lies elsewhere than in the program.

use crate::programs::{C, C_FRAMES, CPP, CPP_FRAMES, Program, look_up, nowhere, run, search};
use grapnel_analysis::symbols::SearchPath;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A function that isn't exported.
const STATIC: &str = r#"void record(void);
static __attribute__((noinline)) void hidden(int n) {
    record();
    __asm__ volatile("" : : "r"(n));
}
int main(int argc, char **argv) {
    hidden(argc);
    record();
    return 0;
}
"#;

/// The return addresses in `fixtures/split.so`.
const SPLIT_RETURNS: &[u64] = &[0x1068, 0x107f];

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
    in_dir(&program, "touch -d 2001-01-01 program");
    assert_eq!(look_up(&program.trace(&[]), nowhere()).0, C_FRAMES, "by the program's own build id");

    in_dir(&program, "objcopy --remove-section .note.gnu.build-id program.debug");
    let (frames, notes) = look_up(&trace, nowhere());
    assert_eq!(frames, ["- -:0", "- -:0"]);
    assert!(notes[0].contains("program.debug isn't used: it is of another build (none)"), "{notes:?}");
}

#[test]
fn a_debug_file_without_build_id_is_checked_by_its_checksum() {
    let program = Program::build(C, "c", &["-O2", "-g", "-Wl,--build-id=none"]);
    in_dir(&program, "objcopy --only-keep-debug program program.debug; strip program");
    in_dir(&program, "objcopy --add-gnu-debuglink=program.debug program; touch -d 2001-01-01 program");
    let trace = program.trace(&[]);
    assert_eq!(look_up(&trace, nowhere()), (C_FRAMES.map(str::to_owned).to_vec(), vec![]));
    in_dir(&program, "printf x >> program.debug");
    let (frames, notes) = look_up(&trace, nowhere());
    assert_eq!(frames, ["- -:0", "- -:0"]);
    assert!(notes[0].contains("its checksum is not the one in the debug link"), "{notes:?}");
}

fn in_dir(program: &Program, command: &str) {
    run(Command::new("sh").args(["-ec", command]).current_dir(program.dir.path()));
}

#[test]
fn compressed_sections_of_every_kind() {
    for kind in ["zlib", "zlib-gnu", "zstd"] {
        let program = Program::build(C, "c", &["-O2", "-g"]);
        in_dir(&program, &format!("objcopy --compress-debug-sections={kind} program"));
        let (frames, notes) = look_up(&program.trace(&program.build_id()), nowhere());
        assert_eq!((&frames[..], notes), (&C_FRAMES.map(str::to_owned)[..], vec![]), "{kind}");
    }
}

#[test]
fn units_whose_addresses_are_listed_nowhere_and_units_of_types() {
    let program = Program::build(CPP, "cc", &["-O1", "-g", "-gdwarf-4", "-fdebug-types-section"]);
    in_dir(&program, "objcopy --remove-section .debug_aranges program");
    assert_eq!(look_up(&program.trace(&program.build_id()), nowhere()).0, CPP_FRAMES);
}

#[test]
fn split_units_behind_units_of_types() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let flags = ["-O1", "-g", version, "-gsplit-dwarf", "-fdebug-types-section"];
        let program = Program::build(CPP, "cc", &flags);
        let trace = program.trace(&program.build_id());
        assert_eq!(look_up(&trace, nowhere()).0, CPP_FRAMES, "{version}");
        // Moved together with the program, as when both were copied from another machine.
        in_dir(&program, "mkdir moved && mv *.dwo moved && cp program moved");
        let (_, notes) = look_up(&trace, nowhere());
        assert!(notes.iter().any(|note| note.contains(".dwo, which isn't there")), "{notes:?}");
        let moved = crate::programs::trace(
            &program.dir.path().join("moved/program"),
            &program.build_id(),
            &program.offsets,
        );
        assert_eq!(look_up(&moved, nowhere()).0, CPP_FRAMES, "{version}, moved");
    }
}

#[test]
fn link_time_optimisation_across_units() {
    let program = Program::build(C, "c", &["-O2", "-g", "-flto"]);
    assert_eq!(look_up(&program.trace(&program.build_id()), nowhere()).0, C_FRAMES);
}

#[test]
fn what_dwz_moved_to_a_common_file() {
    for version in ["", "--dwarf-5"] {
        let program = Program::build(CPP, "cc", &["-O1", "-g"]);
        in_dir(&program, &format!("cp program other; dwz {version} -l none -L none -m common program other"));
        let link = if version.is_empty() { ".gnu_debugaltlink" } else { ".debug_sup" };
        in_dir(&program, &format!("readelf -SW program | grep -F {link}"));
        let trace = program.trace(&program.build_id());
        assert_eq!(look_up(&trace, nowhere()), (CPP_FRAMES.map(str::to_owned).to_vec(), vec![]), "{version}");
        in_dir(&program, "mv common elsewhere");
        let (_, notes) = look_up(&trace, nowhere());
        assert!(notes.iter().any(|note| note.contains("common, which isn't there")), "{notes:?}");
    }
}

#[test]
fn functions_in_gnu_debugdata() {
    let program = Program::build(STATIC, "c", &["-O1"]);
    let trace = program.trace(&program.build_id());
    assert_eq!(look_up(&trace, nowhere()).0, ["hidden -:0", "main -:0"]);
    in_dir(
        &program,
        "objcopy -S --keep-symbol=hidden --keep-symbol=main program mini; cp program whole; strip program
         objcopy --only-keep-debug --strip-unneeded --keep-symbol=hidden --keep-symbol=main whole mini
         xz -k9 mini; cp program bare
         objcopy --add-section .gnu_debugdata=mini.xz program",
    );
    assert_eq!(look_up(&trace, nowhere()), (vec!["hidden -:0".to_owned(), "main -:0".to_owned()], vec![]));
    in_dir(
        &program,
        "head -c 100 mini.xz > cut.xz; objcopy --add-section .gnu_debugdata=cut.xz bare program",
    );
    let (frames, notes) = look_up(&trace, nowhere());
    assert_eq!(frames, ["- -:0", "- -:0"]);
    assert!(notes[0].contains(".gnu_debugdata") && notes[0].contains("decompressed"), "{notes:?}");
}

#[test]
fn files_of_another_machine_below_a_sysroot() {
    let program = Program::build(C, "c", &["-O2", "-g"]);
    in_dir(
        &program,
        "mkdir -p root/opt/app root/usr/lib/debug/opt/app root/srv
         objcopy --only-keep-debug program root/usr/lib/debug/opt/app/name.debug
         strip program; cp program root/srv/real; ln -s /srv/real root/opt/app/program
         objcopy --add-gnu-debuglink=root/usr/lib/debug/opt/app/name.debug root/srv/real
         mkdir -p root/usr/lib/debug/srv; mv root/usr/lib/debug/opt/app/name.debug root/usr/lib/debug/srv",
    );
    let id = program.build_id();
    let trace = crate::programs::trace("/opt/app/program".as_ref(), &id, &program.offsets);
    let (frames, notes) = look_up(&trace, nowhere());
    assert_eq!(frames, ["- -:0", "- -:0"]);
    assert!(notes[0].contains("/opt/app/program"), "{notes:?}");
    let root = SearchPath::of_sysroot(program.dir.path().join("root"));
    assert_eq!(look_up(&trace, root.clone()), (C_FRAMES.map(str::to_owned).to_vec(), vec![]));
    // Another program of that name on this machine is no matter.
    let climbing = crate::programs::trace("/../../opt/app/program".as_ref(), &id, &program.offsets);
    assert_eq!(look_up(&climbing, root).0, C_FRAMES);
}

#[test]
fn a_module_is_found_by_its_build_id_or_its_name_in_a_debug_directory() {
    let program = Program::build(C, "c", &["-O2", "-g"]);
    let id = program.build_id();
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = hex.split_at(2);
    let trace = crate::programs::trace("/gone/program".as_ref(), &id, &program.offsets);
    for place in [
        format!(".build-id/{first}/{rest}"),
        format!("{hex}/executable"),
        "gone/program".to_owned(),
        "program".to_owned(),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(&place);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::copy(&program.path, &path).unwrap();
        assert_eq!(
            look_up(&trace, search(dir.path())),
            (C_FRAMES.map(str::to_owned).to_vec(), vec![]),
            "{place}"
        );
        let other = crate::programs::trace("/gone/program".as_ref(), &[7; 20], &program.offsets);
        assert_eq!(look_up(&other, search(dir.path())).0, ["- -:0", "- -:0"]);
    }
}

#[test]
fn files_of_other_architectures() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    // Of T32 code a return address is odd.
    for (file, returns) in [("aarch64.so", [0x38c, 0x374]), ("thumb.so", [0x221, 0x219])] {
        let file = fixtures.join(file);
        let id = crate::programs::build_id_of(&file);
        let (frames, notes) = look_up(&crate::programs::trace(&file, &id, &returns), nowhere());
        assert_eq!(
            frames,
            ["> inner callee.c:3; outer callee.c:6", "hidden callee.c:10"],
            "{}",
            file.display()
        );
        assert_eq!(notes, [""; 0]);
        // Marks of code and data are no functions.
        let dir = tempfile::tempdir().unwrap();
        let bare = dir.path().join("bare.so");
        let bytes = crate::programs::without_debug_info(&file);
        std::fs::write(&bare, bytes).unwrap();
        let (frames, _) = look_up(&crate::programs::trace(&bare, &id, &returns), nowhere());
        assert_eq!(frames, ["outer -:0", "hidden -:0"], "{}", file.display());
    }
}

#[test]
fn a_package_of_clang_with_units_of_types() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/split.so");
    let trace = crate::programs::trace(&file, &crate::programs::build_id_of(&file), SPLIT_RETURNS);
    let (frames, notes) = look_up(&trace, nowhere());
    assert_eq!(
        frames,
        [
            "store::(anonymous namespace)::Inner::hide(int) split.cc:8",
            "store::Bucket<long>::grow(long) split.cc:5"
        ]
    );
    assert_eq!(notes, [""; 0]);
}
