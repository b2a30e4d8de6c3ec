//! Reads what the counting library wrote.

use std::path::Path;

/// The figures that grapnel and the counting library must agree on. Bytes are as requested by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Successful allocations; a reallocation of a block isn't one.
    pub allocations: u64,
    /// Blocks given back.
    pub frees: u64,
    /// Blocks that were replaced by `realloc` or `reallocarray`.
    pub reallocations: u64,
    /// Sum of the sizes of allocations and reallocations.
    pub allocated_bytes: u64,
    /// The most that was live at a time.
    pub peak_bytes: u64,
    /// Blocks still live at the end.
    pub live_allocations: u64,
    /// Bytes still live at the end.
    pub live_bytes: u64,
}

/// One process, between its start (or fork, or exec) and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u64,
    /// Its arguments, the program's name first.
    pub command: Vec<String>,
    /// What was counted.
    pub totals: Totals,
}

/// Reads all files of a directory, ordered by process and by exec.
///
/// # Panics
/// If a file is not what the library writes, or if its table overflowed.
pub fn read_dir(dir: &Path) -> Vec<Process> {
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .expect("the directory is there")
        .map(|entry| entry.expect("the directory can be read").path())
        .filter(|path| path.extension().is_some_and(|end| end == "truth"))
        .collect();
    paths.sort_by_key(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.split('.').map(|part| part.parse().unwrap_or(u64::MAX)).collect::<Vec<_>>()
    });
    paths.iter().map(|path| read(path)).collect()
}

/// The fields of `struct truth` in truth.c up to the table.
fn read(path: &Path) -> Process {
    use std::io::Read;
    let mut header = vec![0u8; 96 + 4000];
    let mut file = std::fs::File::open(path).expect("the file can be opened");
    file.read_exact(&mut header).expect("the file has a header");
    assert_eq!(&header[..8], b"TRUTH 1\0", "{} is not of the counting library", path.display());
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[8 + at * 8..16 + at * 8]);
        u64::from_le_bytes(bytes)
    };
    assert_eq!(number(9), 0, "{}: the table of live blocks overflowed", path.display());
    let command_len = number(10) as usize;
    let command = header[96..96 + command_len].split(|byte| *byte == 0);
    let mut command: Vec<String> = command.map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    command.pop();
    Process {
        pid: number(0),
        command,
        totals: Totals {
            allocations: number(1),
            frees: number(2),
            reallocations: number(3),
            allocated_bytes: number(4),
            peak_bytes: number(5),
            live_allocations: number(6),
            live_bytes: number(7),
        },
    }
}
