//! Stacks that are the same although their nodes are not.
//!
//! A library that was closed and opened again has other addresses. Two stacks are the same if their frames lie at the same
//! offsets of the same files, and then they are one site. Modules may be described after the frames in them, so this
//! is known only at the end. All figures of a site add up, also its share of the peak.

use crate::hash::FoldHash;
use crate::modules::Modules;
use crate::sites::Site;
use crate::stacks::{Node, Stacks};
use hashbrown::HashTable;
use std::collections::HashMap;
use std::hash::BuildHasher;

#[derive(PartialEq, Eq, Hash)]
struct FrameKey {
    parent: u32,
    /// The first module with this path and build id.
    file: u32,
    /// In the file, or in no module the address itself.
    offset: u64,
    flags: u8,
}

/// Adds up sites with the same stack, under the first node that has it. Their errors are not added up, see
/// [`Sites::merged`](crate::sites::Sites::merged).
pub(crate) fn merge_sites(sites: Vec<Site>, canonical: &[u32]) -> Vec<Site> {
    if is_each_its_own(canonical) {
        return sites;
    }
    let mut place: HashMap<u32, usize, FoldHash> = HashMap::default();
    let mut merged: Vec<Site> = Vec::new();
    for mut site in sites {
        site.stack = canonical[site.stack as usize];
        let at = *place.entry(site.stack).or_insert(merged.len());
        match merged.get_mut(at) {
            Some(sum) => sum.add(&site),
            None => merged.push(site),
        }
    }
    merged
}

/// Whether no two nodes are the same.
pub(crate) fn is_each_its_own(canonical: &[u32]) -> bool {
    (0..).zip(canonical).all(|(id, &first)| id == first)
}

/// For each node, from 0 for the empty stack, the first node that is the same.
pub(crate) fn canonical_nodes(stacks: &Stacks, modules: &Modules) -> Vec<u32> {
    let files = modules.files();
    // Nodes differ by module and address. While no file has several modules they differ by file and offset too.
    if is_each_its_own(&files) {
        return (0..=stacks.len() as u32).collect();
    }
    let mut canonical = vec![0];
    canonical.reserve(stacks.len());
    let key = |canonical: &[u32], node: &Node| {
        let (file, bias) = match modules.index(node.module) {
            Some(index) => (files[index], modules.at(index).bias),
            None => (u32::MAX, 0),
        };
        let parent = canonical[node.parent as usize];
        FrameKey { parent, file, offset: node.pc.wrapping_sub(bias), flags: node.flags }
    };
    let hash = |key: &FrameKey| FoldHash::default().hash_one(key);
    let mut first: HashTable<u32> = HashTable::new();
    for (id, node) in (1..).zip(stacks.iter()) {
        // Parents come before their children.
        let own = key(&canonical, &node);
        let of = |id: u32| stacks.node(id).map(|node| key(&canonical, &node));
        let found = first.find(hash(&own), |&id| of(id).as_ref() == Some(&own)).copied();
        if found.is_none() {
            first.insert_unique(hash(&own), id, |&id| of(id).as_ref().map_or(0, hash));
        }
        canonical.push(found.unwrap_or(id));
    }
    canonical
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::Node;
    use grapnel_trace::Module;

    fn site(stack: u32, n: u64) -> Site {
        Site { stack, allocations: n, peak_bytes: 10 * n, ..Site::default() }
    }

    #[test]
    fn a_library_loaded_twice_has_one_site_for_one_place() {
        let mut modules = Modules::default();
        let mut stacks = Stacks::default();
        for (id, bias, path) in [(1, 0x1000, "/a"), (2, 0x5000, "/a"), (3, 0x5000, "/b")] {
            modules.push(Module { id, bias, path: path.into(), ..Module::default() }).unwrap();
        }
        let nodes = [(0, 0, 9), (0, 0, 9), (1, 1, 0x1010), (2, 2, 0x5010), (2, 3, 0x5010), (4, 1, 0x1020)];
        for (parent, module, pc) in nodes {
            stacks.push_whole(&Node { parent, module, pc, flags: 0 }).unwrap();
        }
        let canonical = canonical_nodes(&stacks, &modules);
        assert_eq!(canonical, [0, 1, 1, 3, 3, 5, 6]);
        let merged = merge_sites(vec![site(4, 1), site(5, 2), site(0, 4), site(3, 8)], &canonical);
        assert_eq!(merged, [site(3, 9), site(5, 2), site(0, 4)]);
    }
}
