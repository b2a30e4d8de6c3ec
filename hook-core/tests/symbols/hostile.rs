//! Damaged and hostile files and tables: answers are errors or what is there, and come soon.

use std::fs;

use grapnel_hook::{
    module::Module,
    symbol::{
        self, Lookup, LookupError,
        files::{FileError, FileSymbols},
    },
};

use crate::library::Library;

/// Everything that can be asked.
fn ask(module: &Module) -> Result<usize, FileError> {
    let lookup = Lookup::with_debug_roots(module, &[]);
    let files = match lookup.find(b"inside") {
        Err(LookupError::NotExported { source, .. }) => return Err(source),
        _ => lookup.files().map_err(Clone::clone)?,
    };
    for offset in [0, 1, 0x1000, 0x1100, 0x10000] {
        let _ = lookup.function_at(module.bias() + offset);
    }
    Ok(files.iter().map(|found| found.name.len()).sum())
}

/// xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 as usize % end
    }
}

fn offset(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

#[test]
fn files_cut_short() {
    let library = Library::build("cut", &[]);
    let module = library.load();
    let bytes = fs::read(&library.path).unwrap();
    assert!(ask(&module).is_ok());
    let mut errors = 0;
    for len in (0..bytes.len()).step_by(97).chain([0, 1, 63, 64, 65, bytes.len() - 1]) {
        library.replace(&bytes[..len]);
        errors += usize::from(ask(&module).is_err());
    }
    assert!(errors > 50, "{errors}");
    // Cut while it is read: what is not there any more can't be read, and no signal comes.
    library.replace(&bytes);
    let files = FileSymbols::open(&module).unwrap();
    fs::File::options().write(true).open(&library.path).unwrap().set_len(16).unwrap();
    let names = files.iter().count();
    assert!(names < 1000, "{names}");
}

#[test]
fn offsets_and_lengths_that_lead_anywhere() {
    let library = Library::build("offsets", &[]);
    let module = library.load();
    let bytes = fs::read(&library.path).unwrap();
    let headers = offset(&bytes, 40)..bytes.len();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut errors, mut answers) = (0, 0);
    let wild = [0, 1, u64::MAX, u64::MAX / 2, 1 << 32, 1 << 47, bytes.len() as u64];
    for _ in 0..1000 {
        let mut bytes = bytes.clone();
        for _ in 0..1 + random.below(3) {
            // In the file's header, in a section's, or anywhere.
            let at = match random.below(4) {
                0 => 16 + random.below(48),
                1 => random.below(bytes.len() - 8),
                _ => headers.start + random.below(headers.len() - 8) / 8 * 8,
            };
            bytes[at..at + 8].copy_from_slice(&wild[random.below(wild.len())].to_le_bytes());
        }
        library.replace(&bytes);
        match ask(&module) {
            Ok(_) => answers += 1,
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 100 && answers > 100, "{errors} {answers}");
}

#[test]
fn compressed_tables_that_were_changed() {
    let library = Library::build("compressed_changed", &[]);
    // Without checksums more gets through to the parser.
    library.compress(&["xz", "--check=none"]);
    let module = library.load();
    let bytes = fs::read(&library.path).unwrap();
    let start = bytes.windows(6).position(|six| six == b"\xfd7zXZ\0").unwrap();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let (mut errors, mut answers) = (0, 0);
    for _ in 0..1000 {
        let mut bytes = bytes.clone();
        for _ in 0..1 + random.below(4) {
            bytes[start + 24 + random.below(600)] = random.below(256) as u8;
        }
        library.replace(&bytes);
        match ask(&module) {
            Ok(_) => answers += 1,
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 100, "{errors} {answers}");
}

/// A library as it would be mapped, not relocated, which can be changed.
struct Image {
    memory: Vec<u64>,
    headers: usize,
    count: usize,
}

impl Image {
    fn of(library: &Library) -> Self {
        let file = fs::read(&library.path).unwrap();
        let (headers, count) = (offset(&file, 32), usize::from(u16::from_le_bytes([file[56], file[57]])));
        let mut bytes = vec![0; 1 << 20];
        for header in (0..count).map(|i| &file[headers + i * 56..][..56]) {
            if u32::from_le_bytes(header[..4].try_into().unwrap()) == libc::PT_LOAD {
                let (from, to, len) = (offset(header, 8), offset(header, 16), offset(header, 32));
                bytes[to..to + len].copy_from_slice(&file[from..from + len]);
            }
        }
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        Self { memory: words.collect(), headers, count }
    }

    fn module(&self) -> Module {
        let at = self.memory.as_ptr() as usize;
        // SAFETY: the headers are in the memory, and so is all that they name.
        unsafe { Module::from_program_headers(b"image", at, (at + self.headers) as *const (), self.count) }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let len = self.memory.len() * 8;
        // SAFETY: the memory of the vector, as bytes.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), len) }
    }

    /// The address of a table that the dynamic section names.
    fn table(&mut self, tag: u64) -> usize {
        let words = self.memory.windows(2);
        words
            .filter(|pair| pair[0] == tag && pair[1] > 0 && pair[1] < 1 << 16)
            .map(|pair| pair[1])
            .next()
            .unwrap() as usize
    }
}

#[test]
fn hash_chains_without_end() {
    const DT_HASH: u64 = 4;
    let mut image = Image::of(&Library::build("cyclic", &["-Wl,--hash-style=sysv"]));
    assert!(symbol::find(&image.module(), b"exported").is_some());
    let at = image.table(DT_HASH);
    let word =
        |bytes: &[u8], i: usize| u32::from_le_bytes(bytes[at + 4 * i..][..4].try_into().unwrap()) as usize;
    let (buckets, chains) = (word(image.bytes(), 0), word(image.bytes(), 1));
    // Every entry leads to itself.
    for i in 1..chains {
        let entry = at + 4 * (2 + buckets + i);
        image.bytes()[entry..entry + 4].copy_from_slice(&(i as u32).to_le_bytes());
    }
    assert!(symbol::find(&image.module(), b"no such symbol").is_none());
    // There are more symbols than memory.
    image.bytes()[at + 4..at + 8].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut count = 0;
    symbol::for_each(&image.module(), &mut |_, _| count += 1);
    assert!(count < 1 << 20, "{count}");
}

#[test]
fn tables_of_garbage() {
    const DT_GNU_HASH: u64 = 0x6fff_fef5;
    let map = format!("-Wl,--version-script={}/tests/symbols/versions.map", env!("CARGO_MANIFEST_DIR"));
    let flags = ["-DVERSIONS", &map, "-Wl,--hash-style=gnu"];
    let library = Library::build("garbage", &flags);
    let mut image = Image::of(&library);
    let at = image.table(DT_GNU_HASH);
    assert!(symbol::find(&image.module(), b"exported").is_some());
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..2000 {
        let mut image = Image::of(&library);
        for _ in 0..1 + random.below(8) {
            // In the hash table, or in any of the tables near it.
            let place = if round % 2 == 0 { at + random.below(64) } else { 0x200 + random.below(0x800) };
            let value = [0, u32::MAX, 1, random.below(1 << 31) as u32][random.below(4)];
            image.bytes()[place..place + 4].copy_from_slice(&value.to_le_bytes());
        }
        let module = image.module();
        for name in [&b"exported"[..], b"versioned", b""] {
            let _ = (symbol::find(&module, name), symbol::find_version(&module, name, b"OLD_1"));
        }
        if round % 8 == 0 {
            let _ = symbol::function_at(&module, module.bias() + 0x1100);
        }
        let _ = module.build_id();
    }
}
