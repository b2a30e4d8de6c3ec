//! What is seen in code against what tables say of the same code: at every call of every function of some libraries.

use super::super::code::{Code, layout};
use super::super::compile::compile;
use super::super::effect::{Effect, Instruction};
use super::super::rule::UnwindRule;
use super::super::table::{Entry, Found};
use crate::module::{ModuleInfo, ModuleTable, ProgramHeader};
use std::path::PathBuf;

/// The libraries of this process, which has its own code too; on other machines those that `GRAPNEL_ARM_FILES` names.
fn files() -> Vec<PathBuf> {
    if let Ok(names) = std::env::var("GRAPNEL_ARM_FILES") {
        return names.split_whitespace().map(PathBuf::from).collect();
    }
    if cfg!(not(target_arch = "arm")) {
        return Vec::new();
    }
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the list of mappings");
    let executable = maps.lines().filter(|line| line.contains(" r-xp ") || line.contains(" r--p "));
    let mut files: Vec<PathBuf> =
        executable.filter_map(|line| line.split_whitespace().nth(5)).map(PathBuf::from).collect();
    files.sort_unstable();
    files.dedup();
    files.retain(|file| file.is_file());
    files
}

/// A file as it lies in memory, not relocated.
struct Loaded {
    table: ModuleTable,
    code: Vec<(u64, u64)>,
}

impl Loaded {
    fn new(file: &PathBuf) -> Self {
        let bytes = std::fs::read(file).expect("a file");
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
        let (phoff, phnum) = (word(28) as usize, half(44) as usize);
        let headers: Vec<ProgramHeader> = (0..phnum)
            .map(|number| {
                let at = |field: usize| u64::from(word(phoff + 32 * number + 4 * field));
                ProgramHeader {
                    p_type: at(0) as u32,
                    p_flags: at(6) as u32,
                    p_offset: at(1),
                    p_vaddr: at(2),
                    p_paddr: at(3),
                    p_filesz: at(4),
                    p_memsz: at(5),
                    p_align: at(7),
                }
            })
            .collect();
        let loads = || headers.iter().filter(|header| header.p_type == 1);
        let first = loads().map(|header| header.p_vaddr).min().unwrap();
        let end = loads().map(|header| header.p_vaddr + header.p_memsz).max().unwrap();
        // Never freed: the table has addresses of it.
        let memory: &'static mut [u8] = vec![0; (end - first) as usize + 8192].leak();
        let bias = (memory.as_ptr() as u64).next_multiple_of(4096).wrapping_sub(first);
        for header in loads() {
            let to = (bias.wrapping_add(header.p_vaddr) - memory.as_ptr() as u64) as usize;
            let (from, len) = (header.p_offset as usize, header.p_filesz as usize);
            memory[to..to + len].copy_from_slice(&bytes[from..from + len]);
        }
        let code = loads().filter(|header| header.p_flags & 1 != 0).map(|header| {
            let start = bias.wrapping_add(header.p_vaddr);
            (start, start + header.p_filesz)
        });
        let code = code.collect();
        // SAFETY: the memory stays.
        let table = unsafe { ModuleTable::build([ModuleInfo { id: 1, bias, phdrs: &headers }]) };
        Loaded { table, code }
    }

    /// The entries of the functions.
    fn functions(&self) -> impl Iterator<Item = Found<'_>> {
        let all = self.code.iter().flat_map(move |(start, end)| {
            let mut at = *start;
            std::iter::from_fn(move || {
                let found = self.table.arm_entry(at).filter(|_| at < *end)?;
                at = found.code.map_or(*end, |code| code.end.max(at + 1));
                Some(found)
            })
        });
        all.filter(|found| found.code.is_some())
    }
}

/// What was seen at calls.
#[derive(Debug, Default)]
struct Counts {
    calls: u32,
    same: u32,
    /// The CFA is told by another register.
    another_base: u32,
    none: u32,
    differs: u32,
}

impl Counts {
    fn add(&mut self, found: Option<UnwindRule>, expected: UnwindRule) {
        self.calls += 1;
        let count = match found {
            None => &mut self.none,
            Some(rule) if rule == expected => &mut self.same,
            Some(rule) if rule.kind != expected.kind => &mut self.another_base,
            Some(_) => &mut self.differs,
        };
        *count += 1;
    }
}

/// Where code says nothing is behind calls that never return, in landing pads most of all, of which code without tables has none.
/// Where it says something else, the table is right behind the prologue only, or the call ends the function: none of 4,254 in
/// Debian's libc for armhf, 2 of 17,735 in its libstdc++, and one in two hundred in Rust, where many calls end in panics.
#[test]
fn code_says_at_calls_what_tables_say() {
    let t32 = match std::env::var_os("GRAPNEL_ARM_T32") {
        Some(_) => 1,
        None => files as *const () as u64 & u64::from(cfg!(target_arch = "arm")),
    };
    let mut all = 0;
    for file in files() {
        let loaded = Loaded::new(&file);
        // With each function's own code to look at, and with all code, as where linkers made one entry of many.
        let (mut own, mut merged) = (Counts::default(), Counts::default());
        // An emulator is slow, and this program large.
        let is_library = file.to_string_lossy().contains(".so");
        for found in loaded.functions().step_by(if is_library { 1 } else { 16 }) {
            let (Some(Entry::Program(program)), Some(span)) = (found.entry, found.code) else { continue };
            let Some(expected) = compile(&program) else { continue };
            let whole = Found { code: found.module.segment_at(span.start), ..found };
            let code = Code::around(span.start | t32, &found).unwrap();
            let mut at = span.start;
            while let Some(Instruction { effect, len, .. }) = code.instruction(at) {
                at += len;
                if effect == Effect::Call {
                    for (counts, found) in [(&mut own, &found), (&mut merged, &whole)] {
                        counts.add(layout(at | t32, true, found).and_then(|layout| layout.rule()), expected);
                    }
                }
            }
        }
        println!("{}: {own:?}, without the functions' bounds {merged:?}", file.display());
        for counts in [own, merged] {
            assert!(100 * counts.differs <= counts.calls + 100, "{}: {counts:?}", file.display());
            assert!(3 * counts.none <= counts.calls, "{}: {counts:?}", file.display());
            all += counts.calls;
        }
    }
    assert!(all > 5000 || cfg!(not(target_arch = "arm")), "{all} calls");
}
