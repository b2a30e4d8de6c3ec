//! From the numbers that a trace gives its nodes to ids of nodes that all differ.
//!
//! A recorder may send a node again: a thread's tree forgets nodes when it is full, and each thread has its own. So a long
//! recording may have many more numbers than stacks. Nodes are made one as they come, and what is kept grows with the stacks
//! that differ, but for what [`Ids`] has of each number: any of them may still be meant.

use crate::analyse::Violation;
use crate::ids::Ids;
use crate::stacks::{MAX_NODES, Node, ParentAndFrame, Stacks};
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::{Event, MappingEvent};

/// More numbers than recordings have, a gigabyte of them: a hundred million events with as many stacks as a tree can't hold
/// take two thirds of these.
const MAX_NUMBERS: u32 = 1 << 28;
/// Numbers whose ids are kept in whole: 4 MiB of them. Long recordings with more have these besides.
const FLAT: usize = if cfg!(test) { 1 << 14 } else { 1 << 20 };
/// Nodes that are looked up together.
const BATCH: usize = 512;

/// The hash of a stack, by that of its parent and the number of its frame.
#[inline]
fn hash(parent: u32, frame: u32) -> u32 {
    let both = u64::from(parent) << 32 | u64::from(frame);
    let product = u128::from(both ^ 0x5851_f42d_4c95_7f2d) * 0xff51_afd7_ed55_8ccd;
    ((product >> 64) ^ product) as u32
}

/// Finds the ids of nodes: open addressing in a power of two of slots, at most three of four in use. A slot has an id, or 0, and
/// the lowest bits of its hash above; the highest bits of the hash say where to begin.
#[derive(Debug)]
struct Index {
    slots: Vec<u32>,
    used: usize,
}

const ID_BITS: u32 = 26;
const _: () = assert!(MAX_NODES < 1 << ID_BITS);
const FIRST_SLOTS: usize = 1 << 12;

impl Default for Index {
    fn default() -> Self {
        Self { slots: vec![0; FIRST_SLOTS], used: 0 }
    }
}

impl Index {
    #[inline]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.slots.len() as u64) >> 32) as usize
    }

    /// What lies where a hash begins.
    #[inline]
    fn peek(&self, hash: u32) -> u32 {
        self.slots[self.home(hash)] & ((1 << ID_BITS) - 1)
    }

    /// The id that has this hash and is meant, or where there is room for it.
    #[inline]
    fn find(&self, hash: u32, is_meant: impl Fn(u32) -> bool) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut at = self.home(hash);
        loop {
            let slot = self.slots[at];
            let id = slot & ((1 << ID_BITS) - 1);
            if id == 0 {
                return Err(at);
            }
            if slot >> ID_BITS == hash & ((1 << (u32::BITS - ID_BITS)) - 1) && is_meant(id) {
                return Ok(id);
            }
            at = (at + 1) & mask;
        }
    }

    /// Puts an id where there is room. `hashes` are those of all ids from 1, this one's too.
    fn put(&mut self, at: usize, id: u32, hashes: &[u32]) {
        self.slots[at] = hashes[id as usize - 1] << ID_BITS | id;
        self.used += 1;
        if self.used >= self.slots.len() / 4 * 3 {
            // The old ones are not needed for that.
            let len = 2 * std::mem::take(&mut self.slots).len();
            self.slots = vec![0; len];
            for (id, &hash) in (1..).zip(hashes) {
                if let Err(at) = self.find(hash, |_| false) {
                    self.slots[at] = hash << ID_BITS | id;
                }
            }
        }
    }
}

/// A node whose id is not known yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// Its parent's number.
    parent: u32,
    frame: u32,
    hash: u32,
    id: u32,
}

/// Takes in nodes and translates what events say of them.
///
/// The ids of nodes are found by batches: the hash of a stack is made of its frames', so it is known before the id of
/// its parent is, and the slots of a whole batch are loaded before the first is used.
#[derive(Debug, Default)]
pub(crate) struct Numbering {
    stacks: Stacks,
    /// The hash of each node, from id 1.
    hashes: Vec<u32>,
    index: Index,
    /// Those that came last.
    pending: Vec<Pending>,
    /// The id of each number that was given, but for those that are pending, from 1, as soon as one differs from its number.
    ids: Ids,
    /// The same of the lowest [`FLAT`] numbers, to be found at once.
    flat: Vec<u32>,
    /// Whether numbers may differ from ids.
    differ: bool,
    /// How many numbers were given.
    given: u32,
    /// What was wrong, after which no ids are found.
    failed: Option<Violation>,
}

impl Numbering {
    /// Takes in the node with the next number.
    pub(crate) fn push(&mut self, number: u32, node: &Node) -> Result<(), Violation> {
        if number != self.given.wrapping_add(1) {
            return Err(Violation::NodeOrder { id: number, expected: u64::from(self.given) + 1 });
        }
        if node.parent >= number {
            return Err(Violation::NodeParent { id: number, parent: node.parent });
        }
        if self.given >= MAX_NUMBERS {
            return Err(Violation::TooMany { what: "stack nodes", limit: u64::from(MAX_NUMBERS) });
        }
        let frame = self.stacks.frame(node);
        self.pending.push(Pending { parent: node.parent, frame, hash: 0, id: 0 });
        self.given = number;
        if self.pending.len() >= BATCH { self.settle() } else { Ok(()) }
    }

    /// Finds the ids of all nodes that came. Where there are too many nodes, nothing that names one can be translated any more.
    pub(crate) fn settle(&mut self) -> Result<(), Violation> {
        if let Some(violation) = &self.failed {
            return Err(violation.clone());
        }
        let mut pending = std::mem::take(&mut self.pending);
        let result = self.settle_all(&mut pending);
        pending.clear();
        self.pending = pending;
        self.failed = result.clone().err();
        result
    }

    fn settle_all(&mut self, pending: &mut [Pending]) -> Result<(), Violation> {
        let before = self.given - pending.len() as u32;
        let among = |parent: u32| parent.checked_sub(before + 1).map(|at| at as usize);
        let mut seen = 0;
        for at in 0..pending.len() {
            let Pending { parent, frame, .. } = pending[at];
            let of_parent = match among(parent) {
                Some(at) => pending[at].hash,
                None => match self.id(parent) {
                    0 => 0,
                    id => self.hashes[id as usize - 1],
                },
            };
            pending[at].hash = hash(of_parent, frame);
            pending[at].id = self.index.peek(pending[at].hash);
            seen |= pending[at].id;
        }
        for node in pending.iter() {
            seen |= self.stacks.at(node.id).map_or(0, |node| node.frame);
        }
        std::hint::black_box(seen);
        for at in 0..pending.len() {
            let Pending { parent, frame, hash, .. } = pending[at];
            let parent = among(parent).map_or_else(|| self.id(parent), |at| pending[at].id);
            let node = ParentAndFrame { parent, frame };
            let id = match self.index.find(hash, |id| self.stacks.at(id) == Some(node)) {
                Ok(id) => id,
                Err(free) => {
                    let id = self.stacks.push(node)?;
                    self.hashes.push(hash);
                    self.index.put(free, id, &self.hashes);
                    id
                }
            };
            pending[at].id = id;
            let number = before + 1 + at as u32;
            if !self.differ && id != number {
                for (id, node) in (1..number).zip(self.stacks.iter()) {
                    self.ids.push(id, node.parent + 1 == id);
                }
                self.flat.extend((0..number).take(FLAT));
                self.differ = true;
            }
            if self.differ {
                self.ids.push(id, pending[at].parent + 1 == number);
                if self.flat.len() < FLAT {
                    self.flat.push(id);
                }
            }
        }
        Ok(())
    }

    /// The id of a number that was given and is not pending.
    #[inline]
    fn id(&self, number: u32) -> u32 {
        if !self.differ {
            return number;
        }
        // Number 0, the empty stack, is one of these.
        match self.flat.get(number as usize) {
            Some(&id) => id,
            None => self.ids.get(number, &self.stacks),
        }
    }

    /// Whether a stack was described before; else that is what's wrong.
    #[inline]
    fn check(&self, stack: u32) -> Result<(), Violation> {
        if stack <= self.given { Ok(()) } else { Err(Violation::UnknownStack { stack }) }
    }

    /// Looks at events that have just come, up to the first that names an unknown stack. That event goes, and all after it.
    pub(crate) fn check_all(&self, events: &mut Vec<HeapEvent>, from: usize) -> Result<(), Violation> {
        for at in from..events.len() {
            if let Err(violation) = stack_of(&mut events[at]).map_or(Ok(()), |stack| self.check(*stack)) {
                events.truncate(at);
                return Err(violation);
            }
        }
        Ok(())
    }

    /// As [`Numbering::check_all`], for an event that isn't of the heap.
    pub(crate) fn check_other(&self, event: &mut Event) -> Result<(), Violation> {
        stack_of_other(event).map_or(Ok(()), |stack| self.check(*stack))
    }

    /// Puts ids in the place of numbers, in events that were looked at, once all nodes before them are settled.
    pub(crate) fn translate<'e>(
        &self,
        heap: &'e mut [HeapEvent],
        others: impl Iterator<Item = &'e mut Event>,
    ) {
        if self.differ {
            heap.iter_mut().filter_map(stack_of).for_each(|stack| *stack = self.id(*stack));
            others.filter_map(stack_of_other).for_each(|stack| *stack = self.id(*stack));
        }
    }

    /// The nodes that are settled.
    pub(crate) fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// All of them.
    pub(crate) fn into_stacks(self) -> Stacks {
        self.stacks
    }
}

#[inline]
fn stack_of(event: &mut HeapEvent) -> Option<&mut u32> {
    match event {
        HeapEvent::Alloc { stack, .. } | HeapEvent::ReallocEnd { stack, .. } => Some(stack),
        _ => None,
    }
}

fn stack_of_other(event: &mut Event) -> Option<&mut u32> {
    match event {
        Event::FreedAs(said) => Some(&mut said.stack),
        Event::Mapping(MappingEvent::Map { stack, .. } | MappingEvent::Remap { stack, .. }) => Some(stack),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn node(parent: u32, pc: u64) -> Node {
        Node { parent, module: 0, pc, flags: 0 }
    }

    #[test]
    fn numbers_out_of_order_and_parents_ahead_are_refused() {
        let mut nodes = Numbering::default();
        assert!(nodes.push(2, &node(1, 0)).is_err());
        assert!(nodes.push(0, &node(0, 0)).is_err());
        assert!(nodes.push(1, &node(1, 0)).is_err());
        nodes.push(1, &node(0, 10)).unwrap();
        nodes.push(2, &node(1, 20)).unwrap();
        assert_eq!(nodes.check(3), Err(Violation::UnknownStack { stack: 3 }));
        nodes.settle().unwrap();
        let stacks = nodes.into_stacks();
        assert_eq!(stacks.frames(2).map(|n| n.pc).collect::<Vec<_>>(), [20, 10]);
    }

    #[test]
    fn equal_nodes_are_one_under_each_of_their_numbers() {
        let mut nodes = Numbering::default();
        for (number, (parent, pc)) in (1..).zip([(0, 10), (1, 20), (0, 10), (3, 20), (3, 30), (2, 30)]) {
            nodes.push(number, &node(parent, pc)).unwrap();
        }
        nodes.settle().unwrap();
        let ids: Vec<_> = (0..=6).map(|number| nodes.id(number)).collect();
        assert_eq!(ids, [0, 1, 2, 1, 2, 3, 4]);
    }

    /// Stacks that come again and again, in batches of all lengths, against a map that can't be wrong.
    #[test]
    fn ids_are_those_of_an_ordered_map() {
        let mut nodes = Numbering::default();
        let mut model: BTreeMap<(u32, u64), u32> = BTreeMap::new();
        let mut ids = vec![0];
        let mut state = 0x1234_5678_9abc_def1_u64;
        for number in 1..=60_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // The last one, one of the last, or any.
            let back = [1, 1 + state % 20, 1 + state % 100_000][(state >> 32) as usize % 3];
            let (parent, pc) = (u64::from(number).saturating_sub(back) as u32, state >> 40 & 3);
            nodes.push(number, &node(parent, pc)).unwrap();
            let next = model.len() as u32 + 1;
            ids.push(*model.entry((ids[parent as usize], pc)).or_insert(next));
            if state >> 20 & 63 == 0 {
                nodes.settle().unwrap();
                assert_eq!(nodes.id(number), ids[number as usize]);
            }
        }
        nodes.settle().unwrap();
        assert!((0..).zip(&ids).all(|(number, &id)| nodes.id(number) == id));
        assert!(model.len() > 2 * FIRST_SLOTS && model.len() < 50_000, "{}", model.len());
        let stacks = nodes.into_stacks();
        assert!(model.iter().all(|(&(parent, pc), &id)| stacks.node(id) == Some(node(parent, pc))));
    }

    #[test]
    fn events_up_to_one_with_an_unknown_stack_are_kept() {
        let mut nodes = Numbering::default();
        for number in 1..=2 {
            nodes.push(number, &node(0, 10)).unwrap();
        }
        let (thread, address, size, source) = (0, 0, 0, grapnel_trace::Source::Malloc);
        let event = |stack| HeapEvent::Alloc { thread, stack, address, size, source };
        let mut events = Vec::from([2, 1, 2, 3, 1].map(event));
        assert_eq!(nodes.check_all(&mut events, 1), Err(Violation::UnknownStack { stack: 3 }));
        nodes.settle().unwrap();
        nodes.translate(&mut events[1..], [].into_iter());
        assert_eq!(events, [2, 1, 1].map(event));
    }
}
