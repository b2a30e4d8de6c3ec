//! An FDE and its CIE, of the common forms.
//!
//! What gimli takes for an error must be none here, or be given up on: by an error code has no CFI.

use super::bytes::Bytes;
use gimli::{DW_EH_PE_indirect, DW_EH_PE_pcrel, DW_EH_PE_sdata4, DwEhPe, Register};

/// From here on lengths have another meaning.
const LENGTHS: u32 = 0xffff_fff0;

/// What a CIE and an FDE say.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    /// The first address.
    pub(super) start: u64,
    /// The one behind the last.
    pub(super) end: u64,
    /// The CIE's instructions.
    pub(super) initial: Bytes<'a>,
    /// The FDE's.
    pub(super) instructions: Bytes<'a>,
    pub(super) code_alignment: u64,
    pub(super) data_alignment: i64,
    pub(super) return_address: Register,
}

impl<'a> Entry<'a> {
    /// The one at this offset of `.eh_frame`.
    pub(super) fn read(section: &'a [u8], offset: usize) -> Option<Self> {
        let (id, mut fde) = contents(section, offset)?;
        // What is relative to this field is the CIE, behind which an FDE always lies.
        let cie_offset = offset.checked_add(4)?.checked_sub(usize::try_from(id).ok()?)?;
        let (0, mut cie) = contents(section, cie_offset)? else { return None };
        if id == 0 {
            return None;
        }

        let version = cie.u8()?;
        let augmentation = until_zero(&mut cie)?;
        let code_alignment = cie.uleb()?;
        let data_alignment = cie.sleb()?;
        let return_address = match version {
            1 => cie.u8()?.into(),
            3 => cie.uleb()?.try_into().ok()?,
            _ => return None,
        };
        let (&b'z', letters) = augmentation.split_first()? else { return None };
        let len = cie.uleb()?;
        let mut data = cie.split(len)?;
        let (mut is_relative, mut lsda) = (false, 0);
        for letter in letters {
            let encoding = DwEhPe(data.u8()?);
            match letter {
                b'R' if encoding == DW_EH_PE_pcrel | DW_EH_PE_sdata4 => is_relative = true,
                b'R' if encoding.0 == 0 => is_relative = false,
                b'L' => lsda = pointer_size(encoding)?,
                b'P' => {
                    data.split(pointer_size(encoding)?)?;
                }
                _ => return None,
            }
        }

        let at = fde.address();
        let (start, len) = match is_relative {
            true => (at.wrapping_add(fde.offset()?), fde.offset()?),
            false => (fde.u64()?, fde.u64()?),
        };
        let data_len = fde.uleb()?;
        // The pointer to what a personality wants must be there.
        fde.split(data_len)?.split(lsda)?;
        Some(Entry {
            start,
            end: start.wrapping_add(len),
            initial: cie,
            instructions: fde,
            code_alignment,
            data_alignment,
            return_address: Register(return_address),
        })
    }
}

/// The first word of an entry, which tells CIEs from FDEs, and what lies behind it.
fn contents(section: &[u8], offset: usize) -> Option<(u32, Bytes<'_>)> {
    let mut rest = Bytes(section.get(offset..)?);
    let len = rest.u32().filter(|len| (1..LENGTHS).contains(len))?;
    let mut contents = rest.split(len.into())?;
    Some((contents.u32()?, contents))
}

/// A string, of no more letters than are known here.
fn until_zero<'a>(bytes: &mut Bytes<'a>) -> Option<&'a [u8]> {
    let len = bytes.0.iter().take(8).position(|byte| *byte == 0)?;
    let string = bytes.split(len as u64)?;
    bytes.u8()?;
    Some(string.0)
}

/// The bytes that a pointer of this encoding takes, if it is relative to nothing or to itself.
fn pointer_size(encoding: DwEhPe) -> Option<u64> {
    match encoding.0 & !(DW_EH_PE_indirect | DW_EH_PE_pcrel).0 {
        0x00 | 0x04 | 0x0c => Some(8),
        0x02 | 0x0a => Some(2),
        0x03 | 0x0b => Some(4),
        _ => None,
    }
}
