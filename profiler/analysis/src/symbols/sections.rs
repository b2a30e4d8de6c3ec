//! The content of sections, decompressed where it is compressed, within bounds.

use super::data::Data;
use super::discarded::{Discarded, Slice};
use super::files::{ElfFile, FileStore, Opened};
use flate2::{Decompress, FlushDecompress};
use gimli::{RunTimeEndian, SectionId};
use object::CompressionFormat;
use object::read::{CompressedData, Object, ObjectSection};
use xz4rust::XzDecoder;

/// A section that claims to be this much longer than what it is compressed to is refused; debug information becomes 3
/// to 10 times as long, and its tables of nearly equal words up to 200 times. Small ones may be anything.
const MAX_RATIO: u64 = 500;
const SMALL: u64 = 64 << 20;
/// All decompressed sections together: of browsers with all their debug information it is half of that.
const MAX_KEPT: u64 = 16 << 30;
/// More than the symbols of the largest programs have.
const MAX_SYMBOLS: usize = 1 << 28;
/// The largest dictionary that `xz -9` uses. What is larger needs an option that nobody uses here.
const MAX_DICTIONARY: usize = 1 << 26;

/// The DWARF section `id` of a file: `name` is how it is called there. Empty if it isn't there, isn't needed, or can't be
/// read, of which a note is taken. With `discarded`, addresses of discarded code are told apart.
pub(crate) fn dwarf<'a>(
    store: &'a FileStore,
    file: &Opened<'a>,
    id: SectionId,
    name: Option<&str>,
    discarded: Option<&'a [Discarded; 2]>,
) -> Slice<'a> {
    let needed = !matches!(
        id,
        SectionId::DebugLoc
            | SectionId::DebugLocLists
            | SectionId::DebugMacinfo
            | SectionId::DebugMacro
            | SectionId::DebugNames
            | SectionId::DebugTypes
    );
    // A package's index reaches into all of its sections.
    let section =
        name.filter(|name| needed || name.ends_with(".dwo")).and_then(|name| file.elf.section_by_name(name));
    // What a debug file has been stripped of has a size, and nothing in the file.
    let section = section.filter(|section| section.file_range().is_some());
    let bytes = section.map_or(Ok(&[][..]), |section| content(store, &section)).unwrap_or_else(|why| {
        store.trouble(format!("{} of {} can't be read: {why}", id.name(), file.path.display()));
        &[]
    });
    let discarded = discarded.and_then(|[addresses, with_lengths]| match id {
        SectionId::DebugInfo | SectionId::DebugAddr | SectionId::DebugRngLists | SectionId::DebugLine => {
            Some(addresses)
        }
        SectionId::DebugAranges => Some(with_lengths),
        // In .debug_ranges an address counts from another. Linkers write something else there.
        _ => None,
    });
    Slice::new(bytes, endian(&file.elf), discarded)
}

pub(crate) fn endian(elf: &ElfFile<'_>) -> RunTimeEndian {
    if elf.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big }
}

fn content<'a>(
    store: &'a FileStore,
    section: &object::read::Section<'a, '_, Data<'a>>,
) -> Result<&'a [u8], String> {
    let compressed = section.compressed_data().map_err(|error| error.to_string())?;
    if compressed.format == CompressionFormat::None {
        return Ok(compressed.data);
    }
    let len = compressed.uncompressed_size;
    let plausible = len <= SMALL || len / MAX_RATIO <= compressed.data.len() as u64;
    if !plausible || store.kept().saturating_add(len) > MAX_KEPT {
        return Err(format!("it claims {len} bytes, which is more than is decompressed"));
    }
    Ok(store.keep(decompress(&compressed, len as usize)?))
}

fn decompress(compressed: &CompressedData<'_>, len: usize) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    out.try_reserve_exact(len).map_err(|error| error.to_string())?;
    match compressed.format {
        CompressionFormat::Zlib => {
            Decompress::new(true)
                .decompress_vec(compressed.data, &mut out, FlushDecompress::Finish)
                .map_err(|error| error.to_string())?;
        }
        CompressionFormat::Zstandard => {
            zstd::bulk::Decompressor::new()
                .and_then(|mut decompressor| decompressor.decompress_to_buffer(compressed.data, &mut out))
                .map_err(|error| error.to_string())?;
        }
        format => return Err(format!("its compression ({format:?}) isn't known")),
    }
    if out.len() != len { Err("it has another length than it claims".to_owned()) } else { Ok(out) }
}

/// The object file in `.gnu_debugdata`, compressed with xz: a table of the functions that aren't exported.
pub(crate) fn mini_debug_info<'a>(store: &'a FileStore, file: &Opened<'a>) -> Option<Opened<'a>> {
    let section = file.elf.section_by_name(".gnu_debugdata")?;
    let opened = section.data().map_err(|error| error.to_string()).and_then(|data| {
        let inner = unpack_xz(data).ok_or("it can't be decompressed")?;
        store.open_inner(inner, file).map_err(|error| error.to_string())
    });
    opened
        .map_err(|why| store.trouble(format!(".gnu_debugdata of {} isn't used: {why}", file.path.display())))
        .ok()
}

fn unpack_xz(mut input: &[u8]) -> Option<Vec<u8>> {
    // On the heap, as it is some 40 KiB long.
    let mut decoder = XzDecoder::in_heap_with_alloc_dict_size(0, MAX_DICTIONARY);
    let (mut out, mut len) = (Vec::new(), 0);
    loop {
        if out.len() - len < 1 << 16 {
            out.resize((2 * out.len()).clamp(1 << 20, MAX_SYMBOLS), 0);
        }
        let step = decoder.decode(input, &mut out[len..]).ok()?;
        len += step.output_produced();
        input = input.get(step.input_consumed()..)?;
        if step.is_end_of_stream() {
            out.truncate(len);
            return Some(out);
        }
        // It needs more input than there is, or more room than there may be.
        if !step.made_progress() {
            return None;
        }
    }
}
