//! A stretch of a recording, and how two that follow each other become one.

/// What a site did within a bucket. Where only some blocks were recorded, figures are in 65,536ths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// The site's number.
    pub site: u32,
    /// Blocks freed before the thread that allocated them allocated again. They count where they were freed.
    pub temporary: u32,
    /// Blocks that the site gave out.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// By how much the bytes that it holds grew from the bucket's beginning to its end; a negative number wraps.
    pub grown: u64,
    /// By how much they had grown at the bucket's highest moment.
    pub grown_at_peak: u64,
}

/// Cells in the order of their sites' numbers, packed: there may be millions of them, most with small figures.
///
/// A cell is its site's distance to the one before, and its figures, each as a varint; growth has its sign in the lowest bit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cells {
    bytes: Box<[u8]>,
    count: usize,
}

impl Cells {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Cell> {
        let (mut rest, mut site) = (&*self.bytes, 0_u32);
        (0..self.count).map(move |_| {
            let mut number = || take(&mut rest);
            site = site.wrapping_add(number() as u32);
            Cell {
                site,
                temporary: number() as u32,
                allocations: number(),
                allocated_bytes: number(),
                grown: unsigned(number()),
                grown_at_peak: unsigned(number()),
            }
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl FromIterator<Cell> for Cells {
    fn from_iter<T: IntoIterator<Item = Cell>>(cells: T) -> Self {
        let (mut bytes, mut count, mut last) = (Vec::new(), 0, 0_u32);
        for cell in cells {
            put(&mut bytes, cell.site.wrapping_sub(last).into());
            last = cell.site;
            let figures = [cell.temporary.into(), cell.allocations, cell.allocated_bytes];
            let grown = [cell.grown, cell.grown_at_peak].map(signed);
            figures.into_iter().chain(grown).for_each(|figure| put(&mut bytes, figure));
            count += 1;
        }
        Self { bytes: bytes.into(), count }
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Of what [`put`] wrote.
fn take(rest: &mut &[u8]) -> u64 {
    let mut number = 0;
    let mut shift = 0;
    while let Some((&byte, behind)) = rest.split_first() {
        *rest = behind;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
        shift += 7;
    }
    number
}

/// A difference as a number that is small when it is near to 0 on either side.
fn signed(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64) >> 63) as u64
}

/// The inverse of [`signed`].
fn unsigned(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

/// Blocks whose size has the same number of binary digits: 0, 1, 2 to 3, 4 to 7, and so on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeClass {
    /// Blocks given out.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// By how much the number of live blocks grew; a negative number wraps.
    pub grown_blocks: u64,
    /// By how much their bytes grew.
    pub grown_bytes: u64,
}

/// A class for each number of binary digits that a size can have.
pub(super) const SIZE_CLASSES: usize = 65;

/// All classes of sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(Box<[SizeClass; SIZE_CLASSES]>);

impl Default for Sizes {
    fn default() -> Self {
        Self(Box::new([SizeClass::default(); SIZE_CLASSES]))
    }
}

impl Sizes {
    /// The classes, at the number of their sizes' binary digits.
    pub fn iter(&self) -> impl Iterator<Item = &SizeClass> {
        self.0.iter()
    }

    /// The class of blocks of this size.
    #[inline]
    pub(super) fn of(&mut self, size: u64) -> &mut SizeClass {
        &mut self.0[(u64::BITS - size.leading_zeros()) as usize]
    }

    fn add(&mut self, later: &Self) {
        for (own, later) in self.0.iter_mut().zip(later.0.iter()) {
            own.allocations = own.allocations.saturating_add(later.allocations);
            own.allocated_bytes = own.allocated_bytes.saturating_add(later.allocated_bytes);
            own.grown_blocks = own.grown_blocks.wrapping_add(later.grown_blocks);
            own.grown_bytes = own.grown_bytes.wrapping_add(later.grown_bytes);
        }
    }
}

/// A stretch of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// When it ends, in nanoseconds since the recording began. It begins where the one before it ends.
    pub end_ns: u64,
    /// Whether that is when the clock was read, rather than in between.
    pub(super) is_exact: bool,
    /// Changes of the live set from the recording's beginning to this bucket's end.
    pub end_change: u64,
    /// Changes in it.
    pub changes: u64,
    /// The most bytes that were live in it, its beginning and its end included.
    pub peak_bytes: u64,
    /// Bytes live at its end.
    pub live_bytes: u64,
    /// Blocks given out.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Blocks freed before the thread that allocated them allocated again.
    pub temporary: u64,
    /// The same by sizes.
    pub sizes: Sizes,
    /// What each site did, by the sites' numbers.
    pub cells: Cells,
}

impl Bucket {
    /// Takes in the bucket that follows.
    pub(super) fn append(&mut self, later: &Self) {
        // The highest moment is the first of equals, as it is of the whole recording.
        let is_first = self.peak_bytes >= later.peak_bytes;
        self.cells = joined(&self.cells, &later.cells, is_first);
        self.peak_bytes = self.peak_bytes.max(later.peak_bytes);
        self.end_ns = later.end_ns;
        self.is_exact = later.is_exact;
        self.end_change = later.end_change;
        self.changes += later.changes;
        self.live_bytes = later.live_bytes;
        self.allocations = self.allocations.saturating_add(later.allocations);
        self.allocated_bytes = self.allocated_bytes.saturating_add(later.allocated_bytes);
        self.temporary += later.temporary;
        self.sizes.add(&later.sizes);
    }
}

/// The cells of two buckets as those of one. `is_first` when the highest moment lies in the first of them.
fn joined(first: &Cells, second: &Cells, is_first: bool) -> Cells {
    let (mut a, mut b) = (first.iter().peekable(), second.iter().peekable());
    core::iter::from_fn(|| {
        let site = match (a.peek(), b.peek()) {
            (Some(one), Some(two)) => one.site.min(two.site),
            (Some(one), None) => one.site,
            (None, Some(two)) => two.site,
            (None, None) => return None,
        };
        // One who isn't there has not changed.
        let still = Cell { site, ..Cell::default() };
        let one = a.next_if(|cell| cell.site == site).unwrap_or(still);
        let two = b.next_if(|cell| cell.site == site).unwrap_or(still);
        Some(Cell {
            site,
            temporary: one.temporary.saturating_add(two.temporary),
            allocations: one.allocations.saturating_add(two.allocations),
            allocated_bytes: one.allocated_bytes.saturating_add(two.allocated_bytes),
            grown: one.grown.wrapping_add(two.grown),
            grown_at_peak: if is_first {
                one.grown_at_peak
            } else {
                one.grown.wrapping_add(two.grown_at_peak)
            },
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(peak_bytes: u64, cells: &[(u32, u64, u64)]) -> Bucket {
        let cells = cells.iter().map(|&(site, grown, grown_at_peak)| Cell {
            site,
            grown,
            grown_at_peak,
            allocations: 1,
            ..Cell::default()
        });
        Bucket { peak_bytes, cells: cells.collect(), ..Bucket::default() }
    }

    #[test]
    fn cells_come_back() {
        let edges = [0, 1, 127, 128, 1 << 32, u64::MAX >> 1, 1 << 63, u64::MAX - 1, u64::MAX];
        let cells: Vec<Cell> = (0..edges.len())
            .map(|at| Cell {
                site: [3, 4, 200, 20_000, 1 << 30, (1 << 30) + 1, 1 << 31, u32::MAX - 1, u32::MAX][at],
                temporary: edges[(at + 1) % edges.len()] as u32,
                allocations: edges[(at + 2) % edges.len()],
                allocated_bytes: edges[(at + 3) % edges.len()],
                grown: edges[(at + 4) % edges.len()],
                grown_at_peak: edges[(at + 5) % edges.len()],
            })
            .collect();
        let packed: Cells = cells.iter().copied().collect();
        assert_eq!(packed.len(), cells.len());
        assert_eq!(packed.iter().collect::<Vec<_>>(), cells);
    }

    #[test]
    fn two_buckets_have_the_higher_ones_peak() {
        let (low, high) = (bucket(10, &[(1, 5, 7), (3, 2, 0)]), bucket(20, &[(1, 1, 9), (2, 4, 4)]));
        let shape = |bucket: &Bucket| {
            let cells = bucket.cells.iter();
            cells
                .map(|cell| (cell.site, cell.grown, cell.grown_at_peak, cell.allocations))
                .collect::<Vec<_>>()
        };
        let mut rising = low.clone();
        rising.append(&high);
        assert_eq!(shape(&rising), [(1, 6, 14, 2), (2, 4, 4, 1), (3, 2, 2, 1)]);
        let mut falling = high.clone();
        falling.append(&low);
        assert_eq!(shape(&falling), [(1, 6, 9, 2), (2, 4, 4, 1), (3, 2, 0, 1)]);
        assert_eq!((rising.peak_bytes, falling.peak_bytes), (20, 20));
    }
}
