//! Rules by a quick look at broken tables, and at instructions that no compiler writes: those by gimli, or none, and never a
//! panic or a fault.
//!
//! # Safety
//! Made-up modules lie in mappings of this file, which hold all that their program headers say.

use crate::modules::{Listed, listed, table};
use crate::quick::{agree, section};
use fastrand::Rng;
use gimli::{CieOrFde, EhFrame, UnwindSection};
use grapnel_unwind::{CfiScratch, ModuleTable, ProgramHeader};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
/// Readable and executable.
const READ_EXECUTE: u32 = 5;

/// A module in a mapping of its own.
struct Image {
    start: u64,
    len: u64,
    /// Where its header lies.
    header: u64,
}

impl Image {
    fn new(len: u64, header: u64) -> Self {
        // SAFETY: a fresh anonymous mapping.
        let start = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), len as usize, protection, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        Image { start: start as u64, len, header: start as u64 + header }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let offset = at.checked_sub(self.start).expect("an address of the image");
        assert!(offset + bytes.len() as u64 <= self.len);
        // SAFETY: within the mapping; no table is in use.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    }

    fn byte(&self, at: u64) -> u8 {
        assert!((self.start..self.start + self.len).contains(&at));
        // SAFETY: within the mapping.
        unsafe { (at as *const u8).read() }
    }

    /// As a module whose tables are in a segment that ends here. What lies behind it is code too.
    fn module(&self, tables_end: u64) -> Listed {
        let header = |p_type, start: u64, end: u64| ProgramHeader {
            p_type,
            p_flags: READ_EXECUTE,
            p_vaddr: start - self.start,
            p_filesz: end - start,
            p_memsz: end - start,
            ..ProgramHeader::default()
        };
        let phdrs = vec![
            header(PT_LOAD, self.start, tables_end),
            header(PT_GNU_EH_FRAME, self.header, tables_end),
            header(PT_LOAD, tables_end, self.start + self.len),
        ];
        Listed { name: String::new(), bias: self.start, phdrs }
    }

    /// Compares both ways at these addresses, and says how often the quick one knows.
    fn check(&self, module: &Listed, scratch: &mut CfiScratch, addresses: &[u64]) -> usize {
        // SAFETY: the mapping is unchanged while the table is in use.
        let table = unsafe { table([module]) };
        addresses.iter().filter(|address| agree_or_panics(&table, scratch, **address)).count()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        unsafe { libc::munmap(self.start as *mut _, self.len as usize) };
    }
}

/// As [`agree`]; where arithmetic is checked, gimli panics at some broken tables, and the quick look must know nothing of these.
fn agree_or_panics(table: &ModuleTable, scratch: &mut CfiScratch, address: u64) -> bool {
    if !cfg!(debug_assertions) {
        return agree(table, scratch, address);
    }
    let rule = |pc, is_return_address| {
        let quick = table.quick_rule(pc, is_return_address);
        let mut scratch = CfiScratch::new();
        let whole = catch_unwind(AssertUnwindSafe(|| table.rule(&mut scratch, pc, is_return_address)));
        assert!(quick.is_none() || quick == whole.ok(), "{pc:#x}");
        quick.is_some()
    };
    rule(address, false) & rule(address + 1, true)
}

fn rounds(many: u32) -> u32 {
    if std::env::var_os("GRAPNEL_EMULATED").is_some() { many / 20 } else { many }
}

#[test]
fn tables_with_other_bytes() {
    // One of C, and one of code that has cleanups.
    let modules = listed();
    let is_program = |module: &&Listed| module.name.is_empty();
    change_bytes(modules.iter().find(|m| m.name.contains("libc.so")).expect("a libc"), 3);
    change_bytes(modules.iter().find(is_program).expect("a program"), 4);
}

fn change_bytes(module: &Listed, seed: u64) {
    let (frames, header, bases) = section(module).expect("tables");
    let eh_frame = bases.eh_frame.section.expect("where it was found");
    let loads = module.phdrs.iter().filter(|h| h.p_type == PT_LOAD);
    let end = loads.map(|h| h.p_vaddr + h.p_memsz).max().expect("segments");
    let (mut entries, mut frames_end) = (Vec::new(), 0);
    let mut all = frames.entries(&bases);
    while let Ok(Some(entry)) = all.next() {
        let (offset, len) = match &entry {
            CieOrFde::Cie(cie) => (cie.offset(), cie.entry_len()),
            CieOrFde::Fde(fde) => (fde.offset(), fde.entry_len()),
        };
        frames_end = frames_end.max(eh_frame + (offset + len + 4) as u64);
        if let CieOrFde::Fde(fde) = entry {
            let cie = fde.cie_offset().0;
            let fde = fde.parse(EhFrame::cie_from_offset).expect("an FDE");
            entries.push((offset..offset + len + 4, cie, fde.initial_address()..fde.end_address()));
        }
    }
    assert!(header < eh_frame && entries.len() > 1000);

    // A copy, with all at the same distances. Its segment ends where `.eh_frame` does, so that it can be cut.
    let image = Image::new(end, header - module.bias);
    let moved = |address: u64| address - module.bias + image.start;
    // SAFETY: what lies from the header to the last entry is in one segment.
    let tables = unsafe { std::slice::from_raw_parts(header as *const u8, (frames_end - header) as usize) };
    image.write(image.header, tables);
    let (ends, mut scratch, mut random) = (moved(frames_end), CfiScratch::new(), Rng::with_seed(seed));
    let whole = image.module(ends);
    let (mut known, mut looked_at) = (0, 0);
    for round in 0..rounds(15_000) {
        let (entry, cie, code) = &entries[random.usize(..entries.len())];
        let at = |offset: usize| moved(eh_frame) + offset as u64;
        let mut module = whole.clone();
        let mut undo = Vec::new();
        for _ in 0..random.u32(1..4) {
            let place = match random.u32(..20) {
                // The header is what gimli reads all of the section for if it has no table any more.
                0 if round % 50 == 0 => image.header + random.u64(..12),
                0..3 => image.header + 12 + random.u64(..8 * entries.len() as u64),
                3..7 => at(*cie) + random.u64(..32),
                _ => at(random.usize(entry.clone())),
            };
            undo.push((place, image.byte(place)));
            let byte = match random.u32(..3) {
                0 => random.u8(..),
                1 => image.byte(place) ^ (1 << random.u32(..8)),
                _ => {
                    *random.choice(&[0, 1, 7, 0x0a, 0x0b, 0x7f, 0x80, 0xff, b'S', b'P', b'R']).expect("some")
                }
            };
            image.write(place, &[byte]);
        }
        if random.u32(..10) == 0 {
            // In the middle of the entry, or anywhere.
            let end =
                if random.bool() { at(random.usize(entry.clone())) } else { random.u64(image.header..ends) };
            for header in &mut module.phdrs[..2] {
                header.p_filesz = end.saturating_sub(module.bias + header.p_vaddr);
            }
            if random.bool() {
                module.phdrs[1].p_memsz = random.u64(..64);
            }
        }
        let (start, end) = (moved(code.start), moved(code.end));
        let mut addresses = vec![start, end - 1, end, start - 1];
        addresses.extend((0..8).map(|_| random.u64(start..end)));
        looked_at += addresses.len();
        known += image.check(&module, &mut scratch, &addresses);
        for (place, byte) in undo.into_iter().rev() {
            image.write(place, &[byte]);
        }
    }
    // Both happen: what is broken is given up on, and what is another table is read as one.
    assert!((looked_at / 10..looked_at * 9 / 10).contains(&known), "{known} of {looked_at}");
}

/// Instructions of a CIE or an FDE: most of them could be some.
fn instructions(random: &mut Rng, many: u32) -> Vec<u8> {
    const REGISTERS: [u8; 16] = [6, 6, 6, 7, 7, 16, 16, 29, 29, 29, 30, 30, 31, 31, 3, 34];
    fn register(random: &mut Rng) -> u8 {
        if random.u8(..40) == 0 { random.u8(..128) } else { REGISTERS[random.usize(..REGISTERS.len())] }
    }
    fn number(random: &mut Rng, bytes: &mut Vec<u8>) {
        for _ in 0..[0, 0, 0, 1, 1, 9][random.usize(..6)] {
            bytes.push(random.u8(..) | 0x80);
        }
        let below = if random.bool() { 16 } else { 128 };
        bytes.push(random.u8(..below));
    }
    let mut bytes = Vec::new();
    for _ in 0..random.u32(..many) {
        match random.u8(..24) {
            0..5 => bytes.push(0x40 | random.u8(..8)),
            5..8 => {
                bytes.push(0x80 | register(random) & 0x3f);
                number(random, &mut bytes);
            }
            8..10 => bytes.push(0xc0 | register(random) & 0x3f),
            // def_cfa, def_cfa_offset and the like, with what they take.
            10..13 => {
                bytes.extend([0x0c, register(random)]);
                number(random, &mut bytes);
            }
            13..15 => {
                bytes.push(if random.bool() { 0x0e } else { 0x13 });
                number(random, &mut bytes);
            }
            15 => bytes.extend([0x0d, register(random)]),
            16 => bytes.push(0x0a),
            17 => bytes.push(0x0b),
            18 => bytes.extend([[0x07, 0x08, 0x06][random.usize(..3)], register(random)]),
            // An expression: of the frame pointer, and of anything.
            19 => {
                let opcode = if random.bool() { 6 } else { 29 } + 0x70;
                let deref = random.bool();
                if random.bool() {
                    bytes.extend([0x10, register(random)]);
                } else {
                    bytes.push(0x0f);
                }
                bytes.push(2 + u8::from(deref) + random.u8(..40) / 39);
                bytes.extend([opcode, random.u8(..128)]);
                bytes.extend(deref.then_some(0x06));
            }
            20 => {
                bytes.extend([[0x05, 0x11, 0x12, 0x14][random.usize(..4)], register(random)]);
                number(random, &mut bytes);
            }
            21 => bytes.extend([0x02, random.u8(..16)]),
            22 => bytes.push([0x00, 0x2d, 0x2e][random.usize(..3)]),
            _ => bytes.push(random.u8(..)),
        }
    }
    bytes
}

/// An entry with its length ahead, which is that of the contents but for what is said.
fn entry(contents: &[u8]) -> Vec<u8> {
    [&(contents.len() as u32).to_ne_bytes(), contents].concat()
}

#[test]
fn any_instructions() {
    const CODE: u64 = 4096;
    let image = Image::new(3 * 4096, 2 * 4096);
    let module = image.module(image.start + image.len);
    let (mut scratch, mut random) = (CfiScratch::new(), Rng::with_seed(5));
    let (mut known, mut looked_at) = (0, 0);
    let mut rules = BTreeSet::new();
    for _ in 0..rounds(40_000) {
        let (start, len) = (image.start + CODE, random.u64(..24));
        let eh_frame = image.header + 20;
        // Id, version, augmentation, alignments, the register of the return address, and the encoding of pointers.
        let version = if random.bool() { 1 } else { 3 };
        let mut cie = vec![0, 0, 0, 0, version, b'z', b'R', 0];
        // In most of them it is as compilers have it: else nearly all are roots, or need a full step.
        if random.u32(..4) == 0 {
            cie.extend([1 + random.u8(..4), *random.choice(&[0x78, 0x7c, 8, 1]).expect("some")]);
            cie.extend([*random.choice(&[16, 16, 16, 30, 30, 30, 6, 34]).expect("some"), 1, 0x1b]);
        } else {
            let (sp, return_address) = if random.bool() { (7, 16) } else { (31, 30) };
            cie.extend([1 + random.u8(..2), 0x78, return_address, 1, 0x1b]);
            cie.extend([0x0c, sp, 8, 0x80 | return_address, 1]);
        }
        cie.extend(instructions(&mut random, 4));
        let mut tables = entry(&cie);
        let fde_at = eh_frame + tables.len() as u64;
        let mut fde = (tables.len() as u32 + 4).to_ne_bytes().to_vec();
        fde.extend((start.wrapping_sub(fde_at + 8) as u32).to_ne_bytes());
        fde.extend((len as u32).to_ne_bytes());
        fde.push(0);
        fde.extend(instructions(&mut random, 12));
        tables.extend(entry(&fde));
        let header = [
            &[1, 0x1b, 0x03, 0x3b][..],
            &16u32.to_ne_bytes(),
            &1u32.to_ne_bytes(),
            &(start.wrapping_sub(image.header) as u32).to_ne_bytes(),
            &((fde_at - image.header) as u32).to_ne_bytes(),
        ];
        image.write(image.header, &[&header.concat()[..], &tables, &[0; 4]].concat());
        let addresses: Vec<u64> = (start - 2..start + 32).collect();
        looked_at += addresses.len();
        known += image.check(&module, &mut scratch, &addresses);
        // SAFETY: the mapping is unchanged while the table is in use.
        let table = unsafe { table([&module]) };
        rules.extend(table.quick_rule(start, false).map(|found| format!("{:?}", found.rule)));
    }
    assert!(known > looked_at / 20 && rules.len() > 10, "{known} of {looked_at}, {} rules", rules.len());
    println!("{known} of {looked_at} known, {} rules", rules.len());
}
