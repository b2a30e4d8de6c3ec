//! Where the function around an address ends: from the unwind table of its object, else from its symbol, exported or in a file.
//!
//! # Safety
//! Nothing here is unsafe but the description of the object around an address; the object stays loaded, because the
//! caller is about to patch it, or attaches a listener in it.

use alloc::vec::Vec;
use core::{
    cell::{OnceCell, RefCell},
    ops::Range,
};

use gimli::{BaseAddresses, EhFrame, EhFrameHdr, NativeEndian, UnwindSection};

use crate::{memory::maps::Maps, module::Module, symbol};

/// The objects that were asked about.
#[derive(Debug, Default)]
pub(crate) struct Objects(RefCell<Vec<Object>>);

#[derive(Debug)]
struct Object {
    module: Module,
    /// What it exports, by where that begins.
    exported: OnceCell<Functions>,
    /// What its files have besides.
    #[cfg(feature = "files")]
    in_files: OnceCell<Functions>,
}

/// The addresses of functions, by where they begin, and of those that begin together the longest last.
#[derive(Debug)]
struct Functions(Vec<Range<usize>>);

/// How many functions that begin later are passed by on the way to the one around an address.
const WITHIN: usize = 16;

impl Objects {
    /// The range of the frame description entry that holds `address`, with the mappings of one time. Where there is none, that of the
    /// function as its symbol says, exported or in the object's files: these are read when the first is asked for that nothing
    /// mapped has.
    pub(crate) fn extent(&self, maps: &Maps, address: usize) -> Option<Range<usize>> {
        self.ask(maps, address, |object| object.function_around(address))
    }

    /// The same for an address beside the function at `own`. Only that function's object is asked: another may be unloaded
    /// meanwhile. Whoever asks has seen a reason to: the object's files may have to be read.
    pub(crate) fn neighbour(&self, maps: &Maps, own: usize, address: usize) -> Option<Range<usize>> {
        self.ask(maps, own, |object| {
            object.module.holds_code(address).then(|| object.function_around(address))?
        })
    }

    /// That of the entry alone.
    ///
    /// It is what the compiler or the writer of the assembly said: one may span several functions of hand-written
    /// code, and a function whose cold part was split off has two. 32-bit Arm has none.
    pub(crate) fn described(&self, maps: &Maps, address: usize) -> Option<Range<usize>> {
        self.ask(maps, address, |object| in_module(&object.module, address))
    }

    fn ask(
        &self,
        maps: &Maps,
        address: usize,
        ask: impl FnOnce(&Object) -> Option<Range<usize>>,
    ) -> Option<Range<usize>> {
        let mut known = self.0.borrow_mut();
        let at = match known.iter().position(|object| object.module.holds_code(address)) {
            Some(at) => at,
            None => {
                // SAFETY: the object stays for as long as this value is used: the caller is about to patch its code, or attaches a
                // listener in it, which must stay for as long as it is attached.
                known.push(Object::new(unsafe { Module::around(maps, address) }?));
                known.len() - 1
            }
        };
        ask(known.get(at)?)
    }
}

impl Object {
    fn new(module: Module) -> Self {
        Self {
            module,
            exported: OnceCell::new(),
            #[cfg(feature = "files")]
            in_files: OnceCell::new(),
        }
    }

    fn function_around(&self, address: usize) -> Option<Range<usize>> {
        let mapped = in_module(&self.module, address).or_else(|| self.exported(address));
        mapped.or_else(|| self.in_files(address))
    }

    fn exported(&self, address: usize) -> Option<Range<usize>> {
        let find = || {
            let mut all = symbol::functions(&self.module);
            all.retain(|range| self.module.holds_code(range.start));
            Functions::new(all)
        };
        self.exported.get_or_init(find).around(address)
    }

    #[cfg(feature = "files")]
    fn in_files(&self, address: usize) -> Option<Range<usize>> {
        let find = || {
            // Without files nothing more is known. What was found around an address has no name of its own.
            let module = self.module.clone().with_path_at(address);
            let files = symbol::files::FileSymbols::open(&module).ok();
            let mut all = Vec::new();
            for range in files.iter().flat_map(|files| files.functions()) {
                // A file may have as many as it likes.
                if self.module.holds_code(range.start) && all.try_reserve(1).is_ok() {
                    all.push(range);
                }
            }
            Functions::new(all)
        };
        self.in_files.get_or_init(find).around(address)
    }

    #[cfg(not(feature = "files"))]
    fn in_files(&self, _: usize) -> Option<Range<usize>> {
        None
    }
}

impl Functions {
    fn new(mut all: Vec<Range<usize>>) -> Self {
        all.sort_unstable_by_key(|range| (range.start, range.end));
        Self(all)
    }

    /// The function around an address that begins last.
    fn around(&self, address: usize) -> Option<Range<usize>> {
        let behind = self.0.partition_point(|range| range.start <= address);
        let mut before = self.0.get(..behind)?.iter().rev().take(WITHIN);
        before.find(|range| range.contains(&address)).cloned()
    }
}

/// The same with nothing kept.
#[cfg(test)]
pub(crate) fn of(maps: &Maps, address: usize) -> Option<Range<usize>> {
    Objects::default().described(maps, address)
}

/// That of the entry, with the object known.
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
    fn the_innermost_function_is_found_but_not_behind_too_many() {
        // One with too many in it, and two that begin at one place.
        let crowded = (0..WITHIN + 1).map(|number| 1000 + number..1001 + number);
        let some =
            [40..50, 10..30, 12..14, 30..32, 60..70, 60..62, 990..2000, 1000..2000, 2000..3000, 2000..2010];
        let few = (0..WITHIN - 1).map(|number| 2100 + number..2101 + number);
        let functions = Functions::new(some.into_iter().chain(crowded).chain(few).collect());
        assert_eq!(functions.around(61), Some(60..70));
        assert_eq!(functions.around(1900), None);
        assert_eq!(functions.around(2900), Some(2000..3000));
        assert_eq!(functions.around(9), None);
        assert_eq!(functions.around(11), Some(10..30));
        assert_eq!(functions.around(13), Some(12..14));
        assert_eq!(functions.around(14), Some(10..30));
        assert_eq!(functions.around(30), Some(30..32));
        assert_eq!(functions.around(50), None);
    }

    #[test]
    #[cfg_attr(
        target_arch = "arm",
        ignore = "nothing in a program says where its functions end but symbols that are in files"
    )]
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
