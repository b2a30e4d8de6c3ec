//! The stacks that are shown, as a tree of named frames.

use super::fold::{Folding, Group};
use crate::Analysis;
use crate::history::History;
use crate::report::words::harmless;
use crate::stacks::Node;
use crate::symbols::{Frame, Symbols};
use grapnel_trace::event::node_flags;
use std::collections::HashMap;

/// Texts, each kept once. Number 0 is the empty text, which stands for what isn't known.
#[derive(Debug)]
pub(super) struct Texts {
    pub(super) list: Vec<String>,
    known: HashMap<String, u32>,
}

impl Texts {
    fn new() -> Self {
        Self { list: vec![String::new()], known: HashMap::from([(String::new(), 0)]) }
    }

    fn number(&mut self, text: &str) -> u32 {
        let text = harmless(text);
        if let Some(&number) = self.known.get(&*text) {
            return number;
        }
        let number = self.list.len() as u32;
        self.list.push(text.clone().into_owned());
        self.known.insert(text.into_owned(), number);
        number
    }
}

/// The compiler inlined the function into that of the frame towards the root.
const INLINED: u8 = 1;
/// The kernel's frame of a signal.
const SIGNAL: u8 = 4;

/// A frame as it is shown. Numbers are those of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NamedFrame {
    pub(super) function: u32,
    pub(super) module: u32,
    pub(super) file: u32,
    pub(super) line: u32,
    pub(super) flags: u8,
    /// In the module, or where there is none the address; 0 where the function has a name.
    pub(super) offset: u64,
}

/// A frame in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TreeNode {
    /// The caller's place; 0 is the root, which is no frame.
    pub(super) parent: u32,
    /// The frame's place.
    pub(super) frame: u32,
}

/// What is shown of the stacks.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) texts: Texts,
    pub(super) frames: Vec<NamedFrame>,
    /// From number 1; parents come before their children.
    pub(super) nodes: Vec<TreeNode>,
    /// Whether a frame was found by a frame pointer, by its node's number.
    pub(super) is_guess: Vec<bool>,
    /// Groups of sites, by nodes of this tree.
    pub(super) groups: Vec<Group>,
    /// The group of each site, at the site's number.
    pub(super) of_site: Vec<u32>,
}

impl Tree {
    /// Looks up the names of what is shown.
    pub(super) fn new(
        analysis: &Analysis,
        history: &History,
        folding: &Folding,
        symbols: &mut Symbols<'_>,
    ) -> Self {
        let mut builder = Builder {
            analysis,
            symbols,
            texts: Texts::new(),
            frames: Vec::new(),
            frame_numbers: HashMap::new(),
            nodes: Vec::new(),
            node_numbers: HashMap::new(),
            is_guess: vec![false],
        };
        let mut place = vec![0_u32; folding.is_shown.len()];
        for (id, node) in (1..).zip(analysis.stacks.iter()) {
            if folding.is_shown[id] {
                let parent = place[history.canonical[node.parent as usize] as usize];
                place[id] = builder.add(parent, &node);
            }
        }
        let moved = |group: Group| Group { node: place[group.node as usize], ..group };
        let mut groups: Vec<Group> = folding.groups.iter().map(|&group| moved(group)).collect();
        groups.sort_unstable();
        groups.dedup();
        let number = |&old: &u32| {
            let group = moved(folding.groups[old as usize]);
            groups.partition_point(|other| *other < group) as u32
        };
        let of_site = folding.of_site.iter().map(number).collect();
        let Builder { texts, frames, nodes, is_guess, .. } = builder;
        Self { texts, frames, nodes, is_guess, groups, of_site }
    }
}

struct Builder<'b, 'a> {
    analysis: &'b Analysis,
    symbols: &'b mut Symbols<'a>,
    texts: Texts,
    frames: Vec<NamedFrame>,
    frame_numbers: HashMap<NamedFrame, u32>,
    nodes: Vec<TreeNode>,
    node_numbers: HashMap<TreeNode, u32>,
    is_guess: Vec<bool>,
}

impl Builder<'_, '_> {
    /// Adds the frames at a node's address, and answers the place of the innermost one.
    fn add(&mut self, parent: u32, node: &Node) -> u32 {
        if node.caller_is_guess() {
            self.is_guess[parent as usize] = true;
        }
        let module = self.analysis.modules.get(node.module);
        let path = module.map(|module| String::from_utf8_lossy(&module.path));
        let module_text = path.map_or(0, |path| self.texts.number(&path));
        let offset = node.pc.wrapping_sub(module.map_or(0, |module| module.bias));
        let frames: Vec<Frame> = self.symbols.frames(&self.analysis.modules, node).to_vec();
        let mut place = parent;
        // Innermost first.
        for frame in frames.iter().rev() {
            let function = node.mark().or(frame.function()).map_or(0, |name| self.texts.number(name));
            let mut flags = if frame.inlined() { INLINED } else { 0 };
            if node.flags & node_flags::SIGNAL != 0 {
                flags |= SIGNAL;
            }
            let frame = NamedFrame {
                function,
                module: module_text,
                file: frame.file().map_or(0, |file| self.texts.number(file)),
                line: frame.line().unwrap_or(0),
                flags,
                offset: if function == 0 { offset } else { 0 },
            };
            place = self.child(place, frame);
        }
        place
    }

    fn child(&mut self, parent: u32, frame: NamedFrame) -> u32 {
        let frames = &mut self.frames;
        let frame = *self.frame_numbers.entry(frame).or_insert_with(|| {
            frames.push(frame);
            frames.len() as u32 - 1
        });
        let node = TreeNode { parent, frame };
        let (nodes, is_guess) = (&mut self.nodes, &mut self.is_guess);
        *self.node_numbers.entry(node).or_insert_with(|| {
            nodes.push(node);
            is_guess.push(false);
            nodes.len() as u32
        })
    }
}
