//! The functions of an ELF file, by its symbols and unwind tables.

use std::{collections::BTreeMap, fs, path::Path};

use bytes::Bytes;
use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use grapnel_relocator::{CodeAddr, Isa};
use object::{Architecture, Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

use super::{CorpusError, Function, Library, arm};

/// How many bytes behind a function are kept.
const BEHIND: usize = 64;

/// Where functions start, and how long they are where that is known.
pub(super) type Extents = BTreeMap<u64, Option<u64>>;

/// The functions of an instruction set, and the constant data.
pub(super) fn library(path: &Path, isa: Isa) -> Result<Library, CorpusError> {
    let name = || path.display().to_string();
    let data = Bytes::from(fs::read(path).map_err(|error| CorpusError::Io { path: name(), error })?);
    let file = object::File::parse(&*data).map_err(|error| CorpusError::Object { path: name(), error })?;
    let machine = match isa {
        Isa::X86_64 => Architecture::X86_64,
        Isa::Aarch64 => Architecture::Aarch64,
        Isa::A32 | Isa::T32 => Architecture::Arm,
    };
    if file.architecture() != machine {
        let machine = format!("{:?}", file.architecture());
        return Err(CorpusError::Machine { path: name(), isa, machine });
    }
    let mut extents: Extents = BTreeMap::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        if symbol.kind() == SymbolKind::Text && symbol.is_definition() {
            // Of several symbols at one address, one may have no size.
            let known = extents.entry(symbol.address()).or_default();
            *known = known.or(Some(symbol.size()).filter(|&size| size > 0));
        }
    }
    // In assembly, a label without a size is not always a function; on Arm, the lowest bit has to be looked at first.
    extents.retain(|_, size| size.is_some());
    for (start, size) in described(&file) {
        extents.entry(start).or_insert(Some(size));
    }
    let marks = arm::Marks::read(&file);
    if machine == Architecture::Arm {
        extents = arm::of_isa(&file, &extents, &marks, isa);
    }
    extents.retain(|&start, _| !marks.is_data(start));
    let texts: Vec<_> = file
        .sections()
        .filter(|section| section.kind() == SectionKind::Text)
        .filter_map(|section| Some((section.address(), data.slice_ref(section.data().ok()?))))
        .collect();
    let function = |(&addr, &len): (&u64, &Option<u64>)| {
        let find = |(start, text): &&(u64, Bytes)| {
            CodeAddr(addr).offset_within(CodeAddr(*start), text.len() as u64).is_some()
        };
        let (start, text) = texts.iter().find(find)?;
        let rest = text.slice((addr - start) as usize..);
        let extent = len.map(|len| (len as usize).min(rest.len()));
        let kept = (extent.unwrap_or(0) + BEHIND).min(rest.len());
        Some(Function { addr: CodeAddr(addr), extent, entry: true, bytes: rest.slice(..kept) })
    };
    let constants = file
        .sections()
        .filter(|section| matches!(section.kind(), SectionKind::ReadOnlyData))
        .filter_map(|section| Some((section.address(), data.slice_ref(section.data().ok()?))))
        .collect();
    Ok(Library { functions: extents.iter().filter_map(function).collect(), constants })
}

/// The starts and lengths that FDEs in `.eh_frame` describe.
fn described(file: &object::File<'_>) -> Vec<(u64, u64)> {
    let Some(section) = file.section_by_name(".eh_frame") else { return Vec::new() };
    let Ok(data) = section.data() else { return Vec::new() };
    let mut frames = EhFrame::new(data, LittleEndian);
    frames.set_address_size(if file.is_64() { 8 } else { 4 });
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut entries = frames.entries(&bases);
    let mut found = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        if let Ok(fde) = partial.parse(EhFrame::cie_from_offset)
            && fde.len() > 0
        {
            found.push((fde.initial_address(), fde.len()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    /// What lies between two functions in the file lies between their bytes in memory.
    #[test]
    fn functions_share_the_bytes_of_the_file() {
        // Its own.
        let isa = env::consts::ARCH.parse().expect("these tests run on a machine whose code is known");
        let functions = library(&env::current_exe().unwrap(), isa).unwrap().functions;
        let (mut pairs, mut apart) = (0, 0);
        for pair in functions.windows(2) {
            let (first, second) = (&pair[0], &pair[1]);
            let distance = second.addr.displacement_from(first.addr) as usize;
            if distance < first.bytes.len() {
                pairs += 1;
                apart += usize::from(second.bytes.as_ptr().addr() - first.bytes.as_ptr().addr() != distance);
            }
        }
        assert!(pairs > 100, "{pairs}");
        assert_eq!(apart, 0, "of {pairs}");
    }
}
