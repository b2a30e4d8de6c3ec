//! Debug information of code that the linker threw away (`--gc-sections`, further copies of inline functions).
//!
//! Linkers leave its entries there, and put 0 where the code's address would be: a function of 64 KiB then seems to be
//! at 0 to 0x10000, where the first functions of the program are. DWARF 5 wants the highest address in its place, which
//! all readers pass over. So that is what is read here.

use super::files::ElfFile;
use gimli::{EndianSlice, Error, Reader, ReaderOffsetId, RunTimeEndian};
use object::read::{Object, ObjectSection};
use object::{SectionFlags, elf};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What addresses of discarded code look like in a file.
#[derive(Debug)]
pub(crate) struct Discarded {
    /// There is no code below this address.
    first_code: u64,
    /// Where the entries of units that have a list of ranges are read from, in order, but for units of which nothing is
    /// left. Their address is what the ranges count from, and 0 if they count from nothing. Until they are known, all is
    /// read as it is there.
    roots: OnceLock<Vec<Range<u64>>>,
    /// Where a length follows each address, the next one.
    length_at: Option<AtomicU64>,
}

impl Discarded {
    /// For the sections of a file that have addresses, and for those that have addresses and lengths in turn.
    pub(crate) fn of(elf: &ElfFile<'_>) -> [Self; 2] {
        let is_code = |flags| {
            let SectionFlags::Elf { sh_flags, .. } = flags else { return false };
            let wanted = elf::SHF_ALLOC | elf::SHF_EXECINSTR;
            sh_flags & wanted == wanted
        };
        let code = elf.sections().filter(|section| section.size() > 0 && is_code(section.flags()));
        let first_code = code.map(|section| section.address()).min().unwrap_or(0);
        let with = |roots, length_at| Self { first_code, roots, length_at };
        [with(OnceLock::new(), None), with(OnceLock::from(Vec::new()), Some(AtomicU64::new(0)))]
    }

    /// From here on, addresses of discarded code are told apart, but for those in these places.
    pub(crate) fn tell_apart(&self, mut roots: Vec<Range<u64>>) {
        roots.sort_unstable_by_key(|root| root.start);
        // A second call would find them the same.
        let _ = self.roots.set(roots);
    }

    /// Whether this address is one of discarded code.
    pub(crate) fn has(&self, address: u64) -> bool {
        address < self.first_code
    }

    fn address(&self, at: u64, size: u8, address: u64) -> u64 {
        if let Some(length_at) = &self.length_at
            && length_at.swap(at + u64::from(size), Relaxed) == at
        {
            length_at.store(0, Relaxed);
            return address;
        }
        if !self.has(address) {
            return address;
        }
        let Some(roots) = self.roots.get() else { return address };
        let next = roots.partition_point(|root| root.end <= at);
        if roots.get(next).is_some_and(|root| root.contains(&at)) { address } else { u64::MAX }
    }
}

/// The bytes of a section of DWARF, or some of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice<'a> {
    bytes: EndianSlice<'a, RunTimeEndian>,
    /// Whether its addresses may be of discarded code.
    discarded: Option<&'a Discarded>,
}

impl<'a> Slice<'a> {
    pub(crate) fn new(bytes: &'a [u8], endian: RunTimeEndian, discarded: Option<&'a Discarded>) -> Self {
        Self { bytes: EndianSlice::new(bytes, endian), discarded }
    }

    pub(crate) fn slice(&self) -> &'a [u8] {
        self.bytes.slice()
    }
}

impl Reader for Slice<'_> {
    type Endian = RunTimeEndian;
    type Offset = usize;

    #[inline]
    fn read_address(&mut self, address_size: u8) -> Result<u64, Error> {
        let at = self.bytes.offset_id().0;
        let address = self.bytes.read_address(address_size)?;
        Ok(self.discarded.map_or(address, |discarded| discarded.address(at, address_size, address)))
    }

    #[inline]
    fn endian(&self) -> RunTimeEndian {
        self.bytes.endian()
    }

    #[inline]
    fn len(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    fn empty(&mut self) {
        self.bytes.empty();
    }

    #[inline]
    fn truncate(&mut self, len: usize) -> Result<(), Error> {
        self.bytes.truncate(len)
    }

    #[inline]
    fn offset_from(&self, base: &Self) -> usize {
        self.bytes.offset_from(base.bytes)
    }

    #[inline]
    fn offset_id(&self) -> ReaderOffsetId {
        self.bytes.offset_id()
    }

    #[inline]
    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        self.bytes.lookup_offset_id(id)
    }

    #[inline]
    fn find(&self, byte: u8) -> Result<usize, Error> {
        Reader::find(&self.bytes, byte)
    }

    #[inline]
    fn skip(&mut self, len: usize) -> Result<(), Error> {
        self.bytes.skip(len)
    }

    #[inline]
    fn split(&mut self, len: usize) -> Result<Self, Error> {
        Ok(Self { bytes: self.bytes.split(len)?, discarded: self.discarded })
    }

    #[inline]
    fn to_slice(&self) -> Result<Cow<'_, [u8]>, Error> {
        Ok(Cow::Borrowed(self.slice()))
    }

    #[inline]
    fn to_string(&self) -> Result<Cow<'_, str>, Error> {
        Reader::to_string(&self.bytes)
    }

    #[inline]
    fn to_string_lossy(&self) -> Result<Cow<'_, str>, Error> {
        Reader::to_string_lossy(&self.bytes)
    }

    #[inline]
    fn read_slice(&mut self, buffer: &mut [u8]) -> Result<(), Error> {
        Reader::read_slice(&mut self.bytes, buffer)
    }

    #[inline]
    fn read_u8(&mut self) -> Result<u8, Error> {
        self.bytes.read_u8()
    }
}
