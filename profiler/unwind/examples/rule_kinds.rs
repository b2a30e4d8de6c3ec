//! Which kinds of rules the call sites of libraries have.
//!
//! `cargo run --release -p grapnel-unwind --example rule_kinds -- /lib/x86_64-linux-gnu/libstdc++.so.6 ...`
//!
//! Call sites are found by scanning for direct calls that lead into the same module, which is good enough for counts.

mod loaded;

use grapnel_unwind::{CfiScratch, RuleKind};
use std::collections::BTreeMap;

fn main() {
    let (list, table) = loaded::from_arguments();
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
