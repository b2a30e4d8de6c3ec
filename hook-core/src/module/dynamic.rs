//! The dynamic section of a loaded object.

use super::Module;
use crate::elf::{self, Dyn};

/// More dynamic entries than any object has.
const DYNAMIC_MAX: usize = 1 << 12;

/// What the dynamic section says, as addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Dynamic {
    pub(crate) symbols: Option<usize>,
    pub(crate) strings: Option<usize>,
    pub(crate) strings_len: usize,
    pub(crate) gnu_hash: Option<usize>,
    pub(crate) hash: Option<usize>,
    /// A version's index for each symbol, and the definitions of versions, with how many they are.
    pub(crate) versions: Option<usize>,
    pub(crate) version_definitions: (Option<usize>, usize),
    /// An offset into the strings.
    pub(crate) soname: Option<usize>,
    pub(crate) debug: Option<usize>,
    /// Tables of relocations, with their lengths in bytes: the ordinary ones with and without
    /// addend, those of the PLT, and the packed ones that are relative.
    pub(crate) rela: (Option<usize>, usize),
    pub(crate) rel: (Option<usize>, usize),
    pub(crate) plt: (Option<usize>, usize),
    pub(crate) relr: (Option<usize>, usize),
    /// Android's packed ones, with and without addend.
    pub(crate) packed: (Option<usize>, usize),
    /// The tag of the kind that the PLT's are of.
    pub(crate) plt_kind: usize,
}

impl Dynamic {
    /// Reads the section at `at`.
    pub(super) fn read(module: &Module, at: usize) -> Self {
        let mut out = Self::default();
        let pointer = |value| pointer(module, value);
        for i in 0..DYNAMIC_MAX {
            let Some(Dyn { tag, value }) = module.read::<Dyn>(at.wrapping_add(i * size_of::<Dyn>())) else {
                break;
            };
            match tag {
                elf::DT_NULL => break,
                elf::DT_SYMTAB => out.symbols = pointer(value),
                elf::DT_STRTAB => out.strings = pointer(value),
                elf::DT_STRSZ => out.strings_len = value,
                elf::DT_GNU_HASH => out.gnu_hash = pointer(value),
                elf::DT_HASH => out.hash = pointer(value),
                elf::DT_VERSYM => out.versions = pointer(value),
                elf::DT_VERDEF => out.version_definitions.0 = pointer(value),
                elf::DT_VERDEFNUM => out.version_definitions.1 = value,
                elf::DT_SONAME => out.soname = Some(value),
                elf::DT_RELA => out.rela.0 = pointer(value),
                elf::DT_RELASZ => out.rela.1 = value,
                elf::DT_REL => out.rel.0 = pointer(value),
                elf::DT_RELSZ => out.rel.1 = value,
                elf::DT_JMPREL => out.plt.0 = pointer(value),
                elf::DT_PLTRELSZ => out.plt.1 = value,
                elf::DT_PLTREL => out.plt_kind = value,
                elf::DT_RELR | elf::DT_ANDROID_RELR => out.relr.0 = pointer(value),
                elf::DT_RELRSZ | elf::DT_ANDROID_RELRSZ => out.relr.1 = value,
                elf::DT_ANDROID_REL | elf::DT_ANDROID_RELA => out.packed.0 = pointer(value),
                elf::DT_ANDROID_RELSZ | elf::DT_ANDROID_RELASZ => out.packed.1 = value,
                elf::DT_DEBUG => out.debug = (value != 0).then_some(value),
                _ => {}
            }
        }
        out
    }
}

/// An address in a dynamic entry. Some dynamic linkers relocate these in place (glibc, once the object is relocated),
/// others don't (musl), and nobody does in the vDSO.
fn pointer(module: &Module, value: usize) -> Option<usize> {
    let mapped = |at: usize| module.segments.iter().any(|s| s.range.contains(&at));
    [value, module.bias.wrapping_add(value)].into_iter().find(|&at| mapped(at))
}
