//! Rules by a quick look are those by gimli, or none: for every function of the libraries here, wherever what is said of it changes.
//!
//! # Safety
//! What is read are the loader's mappings of libraries that nobody unloads.

use crate::modules::{Listed, listed, table};
use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, NativeEndian, UnwindSection};
use grapnel_unwind::{CfiScratch, ModuleTable};
use std::ffi::CString;

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

/// Libraries to look at if they are here, beside those that this test needs itself.
const LIBRARIES: [&str; 4] =
    ["libstdc++.so.6", "libclang-cpp.so.14", "libcrypto.so.3", "libpython3.11.so.1.0"];

type Section = EhFrame<EndianSlice<'static, NativeEndian>>;

/// The `.eh_frame` of a module to the end of its segment, where its header lies, and bases for both.
pub(crate) fn section(module: &Listed) -> Option<(Section, u64, BaseAddresses)> {
    let spans = |kind| {
        let headers = module.phdrs.iter().filter(move |h| h.p_type == kind);
        headers.map(|h| (module.bias + h.p_vaddr, module.bias + h.p_vaddr + h.p_filesz))
    };
    // SAFETY: mapped, as the module's headers say.
    let bytes = |start: u64, end| unsafe {
        EndianSlice::new(std::slice::from_raw_parts(start as *const u8, (end - start) as usize), NativeEndian)
    };
    let (start, end) = spans(PT_GNU_EH_FRAME).next()?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(start);
    let header = EhFrameHdr::from(bytes(start, end)).parse(&bases, 8).ok()?;
    let eh_frame = header.eh_frame_ptr().direct().ok()?;
    let (_, end) = spans(PT_LOAD).find(|(start, end)| (*start..*end).contains(&eh_frame))?;
    let mut section = EhFrame::from(bytes(eh_frame, end));
    section.set_address_size(8);
    section.set_vendor(gimli::Vendor::AArch64);
    Some((section, start, bases.set_eh_frame(eh_frame)))
}

/// Compares both ways at an address, of an instruction that a signal stopped and of a call. True if the quick one knows.
pub(crate) fn agree(table: &ModuleTable, scratch: &mut CfiScratch, address: u64) -> bool {
    let quick = [table.quick_rule(address, false), table.quick_rule(address.wrapping_add(1), true)];
    for (quick, is_return_address) in quick.into_iter().zip([false, true]) {
        let pc = address.wrapping_add(u64::from(is_return_address));
        let Some(quick) = quick else { continue };
        assert_eq!(quick, table.rule(scratch, pc, is_return_address), "{pc:#x} {is_return_address}");
    }
    quick.iter().all(Option::is_some)
}

#[test]
fn every_row_of_every_function() {
    for library in LIBRARIES {
        let name = CString::new(library).expect("no NUL");
        // SAFETY: the libraries' constructors are harmless.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    }
    // Other tests close the libraries that they compiled.
    let modules: Vec<Listed> =
        listed().into_iter().filter(|m| !m.name.contains(env!("CARGO_TARGET_TMPDIR"))).collect();
    // SAFETY: none of these is unloaded.
    let table = unsafe { table(&modules) };
    let (mut scratch, mut context) = (CfiScratch::new(), gimli::UnwindContext::new());
    let mut seen = Vec::new();
    for module in &modules {
        let Some((section, _, bases)) = section(module) else { continue };
        let mut entries = section.entries(&bases);
        let (mut functions, mut addresses, mut known) = (0u64, 0u64, 0u64);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(fde) = entry else { continue };
            let fde = fde.parse(EhFrame::cie_from_offset).expect("an FDE");
            let (start, end) = (fde.initial_address(), fde.end_address());
            functions += 1;
            let mut at = vec![start, start + 1, end.wrapping_sub(1), end, start.wrapping_sub(1)];
            let mut rows = fde.rows(&section, &bases, &mut context).expect("a CIE's instructions");
            while let Ok(Some(row)) = rows.next_row() {
                let row = row.start_address();
                at.extend([row.wrapping_sub(1), row, row + 1]);
            }
            at.sort_unstable();
            at.dedup();
            for address in at {
                let is_known = agree(&table, &mut scratch, address);
                if (start..end).contains(&address) {
                    addresses += 1;
                    known += u64::from(is_known);
                }
            }
        }
        let share = (addresses - known) as f64 * 100.0 / addresses.max(1) as f64;
        println!("{share:.3} % of {addresses} addresses in {functions} functions unknown: {}", module.name);
        if ["libc.so", "libstdc++"].iter().any(|name| module.name.contains(name)) {
            assert!(functions > 1000 && share < 3.0, "{}: {share} %", module.name);
            seen.push(&module.name);
        }
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
}

#[test]
fn by_frame_pointers_both_ways() {
    let code = every_row_of_every_function as *const () as u64;
    let by_frame_pointers = crate::common::loaded_modules().by_frame_pointers();
    let mut scratch = CfiScratch::new();
    assert!(agree(&by_frame_pointers, &mut scratch, code));
    for address in [0, 1, 4096, u64::MAX, &raw const scratch as u64] {
        assert!(!agree(&by_frame_pointers, &mut scratch, address));
    }
}
