//! Files whose headers say that much is to be read, or whose tables grow when they are decompressed: what they take of memory has
//! limits. Each is looked at by a process of its own, which says how much it had at most.

use std::{
    fs,
    io::{Seek as _, SeekFrom, Write as _},
    process::Command,
};

use grapnel_hook::symbol::files::{FileError, FileSymbols};

use crate::library::{Library, run};

/// How long the files are. What is behind the library is a hole.
const LEN: usize = 512 << 20;
/// What looking at one may take.
const TAKES_MAX: usize = 48 << 20;

const SHT_SYMTAB: u32 = 2;
const SHT_NOTE: u32 = 7;

fn half(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// Where the headers of sections are.
fn sections(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let (start, count) = (long(bytes, 40), half(bytes, 60));
    (0..count).map(move |i| start + 64 * i)
}

fn named(bytes: &[u8], name: &str) -> usize {
    let names = sections(bytes).nth(half(bytes, 62)).unwrap();
    let names = long(bytes, names + 24);
    let is =
        |at: &usize| bytes[names + word(bytes, *at) as usize..].starts_with(format!("{name}\0").as_bytes());
    sections(bytes).find(is).unwrap()
}

fn put(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Has a section begin behind the library, and end where the file does.
fn spread(bytes: &mut [u8], section: usize) {
    let start = bytes.len().next_multiple_of(4096);
    put(bytes, section + 24, start);
    put(bytes, section + 32, (LEN - start) / 24 * 24);
}

fn most_memory() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Changes a library's file and has it looked at, in a process of this test's own.
fn look(test: &str, prepare: impl FnOnce(&Library), change: impl FnOnce(&mut Vec<u8>)) -> Option<FileError> {
    const CHILD: &str = "GRAPNEL_TEST_GREEDY";
    if std::env::var_os(CHILD).is_none() {
        let name = format!("greedy::{test}");
        let arguments = ["--exact", &name, "--test-threads=1", "--nocapture"];
        let program = std::env::current_exe().unwrap();
        let output = Command::new(program).args(arguments).env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("1 passed"), "{text}");
        return None;
    }
    let library = Library::build(&format!("greedy_{test}"), &[]);
    prepare(&library);
    let module = library.load();
    let mut bytes = fs::read(&library.path).unwrap();
    change(&mut bytes);
    library.replace(&[]);
    let mut file = fs::File::options().write(true).open(&library.path).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(&bytes).unwrap();
    file.set_len(LEN as u64).unwrap();
    drop((file, bytes));
    let before = most_memory();
    let error = FileSymbols::open_in(&module, &[]).expect_err("it is no use");
    let taken = most_memory() - before;
    fs::remove_file(&library.path).unwrap();
    assert!(taken <= TAKES_MAX, "{error}: {taken} bytes");
    Some(error)
}

fn whole(_: &Library) {}

#[test]
fn notes() {
    let error = look("notes", whole, |bytes| {
        for section in sections(bytes).collect::<Vec<_>>() {
            if word(bytes, section + 4) == SHT_NOTE {
                spread(bytes, section);
            }
        }
        // The segments, which are looked at first.
        let end = bytes.len();
        for header in (0..half(bytes, 56)).map(|i| long(bytes, 32) + 56 * i).collect::<Vec<_>>() {
            if word(bytes, header) == libc::PT_NOTE {
                put(bytes, header + 8, end);
                put(bytes, header + 32, LEN - end);
            }
        }
    });
    assert!(matches!(error, None | Some(FileError::Replaced { found: None, .. })), "{error:?}");
}

#[test]
fn headers_of_sections() {
    let error = look("headers_of_sections", whole, |bytes| {
        let first = sections(bytes).next().unwrap();
        bytes[60..62].fill(0);
        put(bytes, first + 32, (LEN - first) / 64);
    });
    assert!(matches!(error, None | Some(FileError::Malformed { .. })), "{error:?}");
}

#[test]
fn symbols() {
    let error = look("symbols", whole, |bytes| {
        let table = sections(bytes).find(|at| word(bytes, at + 4) == SHT_SYMTAB).unwrap();
        spread(bytes, table);
    });
    assert!(matches!(error, None | Some(FileError::Malformed { .. })), "{error:?}");
}

#[test]
fn links_to_debug_files() {
    let prepare = |library: &Library| {
        let debug = library.folder().join("functions.debug");
        library.split(&debug);
        library.link(&debug);
    };
    let error = look("links_to_debug_files", prepare, |bytes| {
        let link = named(bytes, ".gnu_debuglink");
        spread(bytes, link);
    });
    assert!(matches!(error, None | Some(FileError::Stripped { .. })), "{error:?}");
}

#[test]
fn compressed_tables_that_are_long() {
    let error = look(
        "compressed_tables_that_are_long",
        |library| library.compress(&["xz"]),
        |bytes| {
            let section = named(bytes, ".gnu_debugdata");
            spread(bytes, section);
        },
    );
    assert!(matches!(error, None | Some(FileError::TooLarge { .. })), "{error:?}");
}

#[test]
fn compressed_tables_that_grow() {
    let prepare = |library: &Library| {
        run("strip", &["--strip-unneeded", library.text()]);
        let zeros = library.folder().join("zeros");
        fs::File::create(&zeros).unwrap().set_len(200 << 20).unwrap();
        run("xz", &["-0", zeros.to_str().unwrap()]);
        run("objcopy", &[&format!("--add-section=.gnu_debugdata={}.xz", zeros.display()), library.text()]);
    };
    let error = look("compressed_tables_that_grow", prepare, |_| ());
    assert!(matches!(error, None | Some(FileError::TooLarge { .. })), "{error:?}");
}
