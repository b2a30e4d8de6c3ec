//! Which kinds of rules the call sites of libraries have.
//!
//! `cargo run --release -p grapnel-unwind --example rule_kinds -- /lib/x86_64-linux-gnu/libstdc++.so.6 ...`
//!
//! Call sites are found by scanning for direct calls that lead into the same module, which is good enough for counts.

use grapnel_unwind::{CfiScratch, ModuleInfo, ModuleTable, ProgramHeader, RuleKind};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int, c_void};

struct Loaded {
    name: String,
    bias: u64,
    phdrs: &'static [ProgramHeader],
}

unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, list: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid record, and the argument is the list in `main`.
    unsafe {
        let phdrs = (*info).dlpi_phdr.cast::<ProgramHeader>();
        (*list.cast::<Vec<Loaded>>()).push(Loaded {
            name: CStr::from_ptr((*info).dlpi_name).to_string_lossy().into_owned(),
            bias: (*info).dlpi_addr,
            phdrs: std::slice::from_raw_parts(phdrs, (*info).dlpi_phnum.into()),
        });
    }
    0
}

fn main() {
    for path in std::env::args().skip(1) {
        let name = CString::new(path.as_str()).expect("no NUL");
        // SAFETY: the libraries named are trusted to have harmless constructors.
        if unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null() {
            eprintln!("{path} can't be loaded");
        }
    }
    let mut list: Vec<Loaded> = Vec::new();
    // SAFETY: nothing is unloaded.
    let table = unsafe {
        libc::dl_iterate_phdr(Some(add), (&raw mut list).cast());
        let infos = list.iter().zip(1..).map(|(m, id)| ModuleInfo { id, bias: m.bias, phdrs: m.phdrs });
        ModuleTable::build(infos)
    };
    let mut scratch = CfiScratch::new();
    for module in &list {
        let mut kinds: BTreeMap<String, (u64, Vec<u64>)> = BTreeMap::new();
        for header in module.phdrs.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & 5 == 5) {
            let start = module.bias.wrapping_add(header.p_vaddr);
            // SAFETY: a mapped, readable segment.
            let code = unsafe { std::slice::from_raw_parts(start as *const u8, header.p_filesz as usize) };
            for (index, window) in code.windows(5).enumerate() {
                let [0xe8, displacement @ ..] = window else { continue };
                let displacement = i32::from_le_bytes(displacement.try_into().expect("4 bytes"));
                let pc = start + index as u64 + 5;
                let target = pc.wrapping_add(i64::from(displacement) as u64);
                if !(start..start + header.p_filesz).contains(&target) {
                    continue;
                }
                let kind = table.rule(&mut scratch, pc, true).rule.kind;
                let (count, examples) = kinds.entry(format!("{kind:?}")).or_default();
                *count += 1;
                if matches!(kind, RuleKind::Full | RuleKind::Root | RuleKind::FramePointer) {
                    examples.push(pc - module.bias);
                }
            }
        }
        println!("{}", if module.name.is_empty() { "(this program)" } else { &module.name });
        for (kind, (count, examples)) in kinds {
            println!("  {count:>8} {kind} {:x?}", &examples[..examples.len().min(8)]);
        }
    }
}
