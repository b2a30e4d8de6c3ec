//! Which module an address lay in when it was recorded.

use grapnel_trace::Module;
use std::collections::{BTreeMap, HashMap};

/// More loads and segments than a recording has.
const MAX: usize = 1 << 16;

/// The modules that are loaded. heaptrack tells all of them anew whenever one comes or goes.
#[derive(Default)]
pub(super) struct Loaded {
    /// Segments by their start: the end, and the module.
    segments: BTreeMap<u64, (u64, u32)>,
    /// The ids of those that were told of, by path, bias and end.
    known: HashMap<(Vec<u8>, u64, u64), u32>,
}

impl Loaded {
    pub(super) fn clear(&mut self) {
        self.segments.clear();
    }

    /// Takes in a module with its segments, each with its address in the file and its size. The module, if it is a new one;
    /// an error says that there are too many.
    pub(super) fn add(
        &mut self,
        path: &[u8],
        bias: u64,
        segments: &[(u64, u64)],
    ) -> Result<Option<Module>, &'static str> {
        let ranges = segments.iter().map(|&(address, size)| {
            let start = bias.wrapping_add(address);
            (start, start.saturating_add(size))
        });
        let start = ranges.clone().map(|(start, _)| start).min().unwrap_or(bias);
        let end = ranges.clone().map(|(_, end)| end).max().unwrap_or(bias);
        let next = self.known.len() as u32 + 1;
        let id = *self.known.entry((path.to_vec(), bias, end)).or_insert(next);
        for (start, end) in ranges {
            self.segments.insert(start, (end, id));
        }
        if self.known.len() > MAX || self.segments.len() > MAX {
            return Err("has more modules than are kept");
        }
        let module = Module { id, bias, range: (start, end), build_id: Vec::new(), path: path.to_vec() };
        Ok((id == next).then_some(module))
    }

    /// The module that an address lies in; 0 for none.
    pub(super) fn at(&self, address: u64) -> u32 {
        let before = self.segments.range(..=address).next_back();
        before.filter(|(_, (end, _))| address < *end).map_or(0, |(_, (_, id))| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_again_is_the_same_module() {
        let mut loaded = Loaded::default();
        let first = loaded.add(b"/a", 0x1000, &[(0, 0x10), (0x100, 0x10)]).unwrap().unwrap();
        assert_eq!((first.id, first.range), (1, (0x1000, 0x1110)));
        assert_eq!((loaded.at(0x1005), loaded.at(0x1010), loaded.at(0x110f), loaded.at(0xfff)), (1, 0, 1, 0));
        loaded.clear();
        assert_eq!(loaded.at(0x1005), 0);
        assert_eq!(loaded.add(b"/b", 0x1000, &[(0, 0x10)]).unwrap().unwrap().id, 2);
        assert_eq!(loaded.add(b"/a", 0x1000, &[(0, 0x10), (0x100, 0x10)]).unwrap(), None);
        assert_eq!(loaded.at(0x1105), 1);
    }
}
