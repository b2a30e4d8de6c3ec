//! Where the function around an address ends, from the unwind table of its object.
//!
//! # Safety
//! Nothing here is unsafe but the description of the object around an address; the object stays loaded, because the
//! caller is about to patch it, or attaches a listener in it.

use core::ops::Range;

use gimli::{BaseAddresses, EhFrame, EhFrameHdr, NativeEndian, UnwindSection};

use crate::{memory::maps::Maps, module::Module};

/// The range of the frame description entry that holds `address`.
///
/// It is what the compiler or the writer of the assembly said: one entry may span several functions of hand-written
/// code, and a function whose cold part was split off has two.
pub(crate) fn of(maps: &Maps, address: usize) -> Option<Range<usize>> {
    // SAFETY: the object stays: the caller is about to patch its code, or attaches a listener in it, which must stay for as
    // long as it is attached.
    let module = unsafe { Module::around(maps, address) }?;
    in_module(&module, address)
}

/// The same with the object known.
pub(crate) fn in_module(module: &Module, address: usize) -> Option<Range<usize>> {
    let (hdr_at, hdr) = module.eh_frame_hdr()?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(hdr_at as u64);
    let hdr = EhFrameHdr::new(hdr, NativeEndian).parse(&bases, size_of::<usize>() as u8).ok()?;
    let frame_at = hdr.eh_frame_ptr().direct().ok()? as usize;
    let frame = EhFrame::new(module.slice(frame_at, None)?, NativeEndian);
    let bases = bases.set_eh_frame(frame_at as u64);
    let fde = hdr.table()?.fde_for_address(&frame, &bases, address as u64, EhFrame::cie_from_offset).ok()?;
    Some(fde.initial_address() as usize..fde.end_address() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn somewhere(x: u64) -> u64 {
        core::hint::black_box(x).wrapping_mul(3)
    }

    #[test]
    #[cfg_attr(target_arch = "arm", ignore = "nothing in an object says where its functions end but symbols")]
    fn a_function_of_this_program_has_its_extent() {
        let maps = Maps::read().unwrap();
        let at = somewhere as *const () as usize;
        assert_eq!(somewhere(2), 6);
        let range = of(&maps, at).unwrap();
        assert_eq!(range.start, at);
        assert!(range.end > at && range.end < at + 4096);
        assert_eq!(of(&maps, &raw const maps as usize), None);
        assert_eq!(of(&maps, 16), None);
    }
}
