//! The few ELF structures and numbers that are read, in the width of this machine (System V ABI, "Object Files" and
//! "Program Loading and Dynamic Linking").
//!
//! # Safety
//! `Plain` is only implemented for types of plain integers without padding, for which any bytes are a value.

pub(crate) const PT_LOAD: u32 = 1;
pub(crate) const PT_DYNAMIC: u32 = 2;
pub(crate) const PT_NOTE: u32 = 4;
pub(crate) const PT_PHDR: u32 = 6;
pub(crate) const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
pub(crate) const PT_GNU_RELRO: u32 = 0x6474_e552;
pub(crate) const PF_X: u32 = 1;
pub(crate) const PF_W: u32 = 2;
pub(crate) const PF_R: u32 = 4;

/// `e_ident[EI_CLASS]` of objects of this machine.
pub(crate) const CLASS: u8 = if size_of::<usize>() == 8 { 2 } else { 1 };

pub(crate) const DT_NULL: usize = 0;
pub(crate) const DT_PLTRELSZ: usize = 2;
pub(crate) const DT_HASH: usize = 4;
pub(crate) const DT_STRTAB: usize = 5;
pub(crate) const DT_SYMTAB: usize = 6;
pub(crate) const DT_RELA: usize = 7;
pub(crate) const DT_RELASZ: usize = 8;
pub(crate) const DT_STRSZ: usize = 10;
pub(crate) const DT_SONAME: usize = 14;
pub(crate) const DT_REL: usize = 17;
pub(crate) const DT_RELSZ: usize = 18;
pub(crate) const DT_PLTREL: usize = 20;
pub(crate) const DT_DEBUG: usize = 21;
pub(crate) const DT_JMPREL: usize = 23;
pub(crate) const DT_RELRSZ: usize = 35;
pub(crate) const DT_RELR: usize = 36;
/// As bionic had them before `DT_RELR` was given to all.
pub(crate) const DT_ANDROID_RELR: usize = 0x6fff_e000;
pub(crate) const DT_ANDROID_RELRSZ: usize = 0x6fff_e001;
/// Packed tables, which bionic's dynamic linker reads.
pub(crate) const DT_ANDROID_REL: usize = 0x6000_000f;
pub(crate) const DT_ANDROID_RELSZ: usize = 0x6000_0010;
pub(crate) const DT_ANDROID_RELA: usize = 0x6000_0011;
pub(crate) const DT_ANDROID_RELASZ: usize = 0x6000_0012;
pub(crate) const DT_GNU_HASH: usize = 0x6fff_fef5;
pub(crate) const DT_VERSYM: usize = 0x6fff_fff0;
pub(crate) const DT_VERDEF: usize = 0x6fff_fffc;
pub(crate) const DT_VERDEFNUM: usize = 0x6fff_fffd;

pub(crate) const SHN_UNDEF: u16 = 0;
pub(crate) const SHN_ABS: u16 = 0xfff1;
pub(crate) const STT_OBJECT: u8 = 1;
pub(crate) const STT_FUNC: u8 = 2;
pub(crate) const STT_TLS: u8 = 6;
pub(crate) const STT_GNU_IFUNC: u8 = 10;
/// Set in a version index: a version kept for old programs, not chosen by the linker.
pub(crate) const VERSION_HIDDEN: u16 = 0x8000;

/// The header of an object. Not all that libc knows of ELF is known of every C library, so the structures are here.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ehdr {
    pub(crate) e_ident: [u8; 16],
    pub(crate) e_type: u16,
    pub(crate) e_machine: u16,
    pub(crate) e_version: u32,
    pub(crate) e_entry: usize,
    pub(crate) e_phoff: usize,
    pub(crate) e_shoff: usize,
    pub(crate) e_flags: u32,
    pub(crate) e_ehsize: u16,
    pub(crate) e_phentsize: u16,
    pub(crate) e_phnum: u16,
    pub(crate) e_shentsize: u16,
    pub(crate) e_shnum: u16,
    pub(crate) e_shstrndx: u16,
}

/// A program header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phdr {
    pub(crate) p_type: u32,
    #[cfg(target_pointer_width = "64")]
    pub(crate) p_flags: u32,
    pub(crate) p_offset: usize,
    pub(crate) p_vaddr: usize,
    pub(crate) p_paddr: usize,
    pub(crate) p_filesz: usize,
    pub(crate) p_memsz: usize,
    #[cfg(target_pointer_width = "32")]
    pub(crate) p_flags: u32,
    pub(crate) p_align: usize,
}

/// A symbol.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sym {
    pub(crate) st_name: u32,
    #[cfg(target_pointer_width = "32")]
    pub(crate) st_value: usize,
    #[cfg(target_pointer_width = "32")]
    pub(crate) st_size: usize,
    pub(crate) st_info: u8,
    pub(crate) st_other: u8,
    pub(crate) st_shndx: u16,
    #[cfg(target_pointer_width = "64")]
    pub(crate) st_value: usize,
    #[cfg(target_pointer_width = "64")]
    pub(crate) st_size: usize,
}

const _: () = assert!(size_of::<Ehdr>() == if size_of::<usize>() == 8 { 64 } else { 52 });
const _: () = assert!(size_of::<Phdr>() == if size_of::<usize>() == 8 { 56 } else { 32 });
const _: () = assert!(size_of::<Sym>() == if size_of::<usize>() == 8 { 24 } else { 16 });

/// An entry of the dynamic section.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dyn {
    pub(crate) tag: usize,
    pub(crate) value: usize,
}

/// A relocation without an addend, which is in the word that it changes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rel {
    pub(crate) offset: usize,
    pub(crate) info: usize,
}

impl Rel {
    /// The symbol's index and the relocation's kind (`ELF32_R_SYM`, `ELF64_R_SYM` and so on).
    pub(crate) fn symbol_and_kind(self) -> (usize, u32) {
        const KIND_BITS: u32 = if size_of::<usize>() == 8 { 32 } else { 8 };
        (self.info >> KIND_BITS, (self.info & ((1 << KIND_BITS) - 1)) as u32)
    }
}

/// A relocation with its addend.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rela {
    pub(crate) rel: Rel,
    pub(crate) addend: isize,
}

/// The definition of a version (`ElfNN_Verdef`, the same in both widths), and the first of its names (`ElfNN_Verdaux`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct VersionDefinition {
    pub(crate) version: u16,
    pub(crate) flags: u16,
    /// What symbols name it by.
    pub(crate) index: u16,
    pub(crate) names: u16,
    pub(crate) hash: u32,
    /// From this structure to its first name, and to the next definition; 0 at the last.
    pub(crate) to_name: u32,
    pub(crate) to_next: u32,
}

/// A type of which every bit pattern is a value, so that it can be read from any readable bytes.
///
/// # Safety
/// That is so: integers, and `repr(C)` structures of integers.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers and structures of integers.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for usize {}
// SAFETY: as above.
unsafe impl Plain for Dyn {}
// SAFETY: as above.
unsafe impl Plain for Rel {}
// SAFETY: as above.
unsafe impl Plain for Rela {}
// SAFETY: as above.
unsafe impl Plain for VersionDefinition {}
// SAFETY: as above.
unsafe impl Plain for Sym {}
