//! From the numbers that a trace gives its nodes to ids of nodes that all differ.
//!
//! A recorder may send a node again: a thread's tree forgets nodes when it is full, and each thread has its own. So a long
//! recording may have many more numbers than stacks. Nodes are made one as they come, and what is kept grows with the stacks
//! that differ, but for four bytes for each number: any of them may still be meant.

use crate::analyse::Violation;
use crate::hash::FoldHash;
use crate::stacks::{Node, Stacks};
use crate::table::Table;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::{Event, MappingEvent};
use std::collections::HashMap;

/// More numbers than recordings have, a gigabyte of them: a hundred million events with as many stacks as a tree can't hold
/// take two thirds of these.
const MAX_NUMBERS: u32 = 1 << 28;

/// Different ones for different nodes, and none is 0: what is multiplied isn't, and the factor is odd.
fn key(parent: u32, frame: u32) -> u64 {
    (u64::from(parent) << 32 | u64::from(frame)).wrapping_mul(0xff51_afd7_ed55_8ccd)
}

/// Takes in nodes and translates what events say of them.
#[derive(Debug, Default)]
pub(crate) struct Numbering {
    stacks: Stacks,
    /// A number from 1 for each frame. They are few: these stay near the processor.
    frames: HashMap<(u64, u32, u8), u32, FoldHash>,
    /// The ids of all nodes, by parent and frame.
    known: Table<2>,
    /// The id of each number that was given, from 1, as soon as one differs from its number.
    ids: Vec<u32>,
    /// Whether numbers may differ from ids.
    differ: bool,
    /// How many numbers were given.
    given: u32,
}

impl Numbering {
    /// Takes in the node with the next number.
    pub(crate) fn push(&mut self, number: u32, node: Node) -> Result<(), Violation> {
        if number != self.given.wrapping_add(1) {
            return Err(Violation::NodeOrder { id: number, expected: u64::from(self.given) + 1 });
        }
        if node.parent >= number {
            return Err(Violation::NodeParent { id: number, parent: node.parent });
        }
        if self.given >= MAX_NUMBERS {
            return Err(Violation::TooMany { what: "stack nodes", limit: u64::from(MAX_NUMBERS) });
        }
        let node = Node { parent: self.id(node.parent)?, ..node };
        let frame = self.frames.len() as u32 + 1;
        let frame = *self.frames.entry((node.pc, node.module, node.flags)).or_insert(frame);
        let key = key(node.parent, frame);
        let id = match self.known.get(key) {
            Some(&[_, id]) => id as u32,
            None => {
                let id = self.stacks.push(node)?;
                self.known.insert([key, u64::from(id)]);
                id
            }
        };
        self.given = number;
        if !self.differ && id != number {
            self.ids.extend(1..number);
            self.differ = true;
        }
        if self.differ {
            self.ids.push(id);
        }
        Ok(())
    }

    #[inline]
    fn id(&self, number: u32) -> Result<u32, Violation> {
        let id = match number.checked_sub(1) {
            Some(at) if self.differ => self.ids.get(at as usize).copied(),
            _ => (number <= self.given).then_some(number),
        };
        id.ok_or(Violation::UnknownStack { stack: number })
    }

    /// Puts ids in the place of numbers, up to the first event that names an unknown one. That event goes, and all after it.
    pub(crate) fn translate(&self, events: &mut Vec<HeapEvent>, from: usize) -> Result<(), Violation> {
        let result = events[from..].iter_mut().enumerate().try_for_each(|(at, event)| match event {
            HeapEvent::Alloc { stack, .. } | HeapEvent::ReallocEnd { stack, .. } => {
                *stack = self.id(*stack).map_err(|violation| (at, violation))?;
                Ok(())
            }
            _ => Ok(()),
        });
        result.map_err(|(at, violation)| {
            events.truncate(from + at);
            violation
        })
    }

    /// As [`Numbering::translate`], for an event that isn't of the heap.
    pub(crate) fn translate_other(&self, event: &mut Event) -> Result<(), Violation> {
        match event {
            Event::FreedAs(said) => said.stack = self.id(said.stack)?,
            Event::Mapping(MappingEvent::Map { stack, .. } | MappingEvent::Remap { stack, .. }) => {
                *stack = self.id(*stack)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The nodes so far.
    pub(crate) fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// All nodes.
    pub(crate) fn into_stacks(self) -> Stacks {
        self.stacks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(parent: u32, pc: u64) -> Node {
        Node { parent, module: 0, pc, flags: 0 }
    }

    #[test]
    fn numbers_out_of_order_and_parents_ahead_are_refused() {
        let mut nodes = Numbering::default();
        assert!(nodes.push(2, node(1, 0)).is_err());
        assert!(nodes.push(0, node(0, 0)).is_err());
        assert!(nodes.push(1, node(1, 0)).is_err());
        nodes.push(1, node(0, 10)).unwrap();
        nodes.push(2, node(1, 20)).unwrap();
        assert_eq!(nodes.id(3), Err(Violation::UnknownStack { stack: 3 }));
        let stacks = nodes.into_stacks();
        assert_eq!(stacks.frames(2).map(|n| n.pc).collect::<Vec<_>>(), [20, 10]);
    }

    #[test]
    fn equal_nodes_are_one_under_each_of_their_numbers() {
        let mut nodes = Numbering::default();
        for (number, (parent, pc)) in (1..).zip([(0, 10), (1, 20), (0, 10), (3, 20), (3, 30), (2, 30)]) {
            nodes.push(number, node(parent, pc)).unwrap();
        }
        let ids: Vec<_> = (0..=6).map(|number| nodes.id(number).unwrap()).collect();
        assert_eq!(ids, [0, 1, 2, 1, 2, 3, 4]);
        assert!(nodes.id(7).is_err());
    }

    #[test]
    fn events_up_to_one_with_an_unknown_stack_are_kept() {
        let mut nodes = Numbering::default();
        for number in 1..=2 {
            nodes.push(number, node(0, 10)).unwrap();
        }
        let (thread, address, size, source) = (0, 0, 0, grapnel_trace::Source::Malloc);
        let event = |stack| HeapEvent::Alloc { thread, stack, address, size, source };
        let mut events = Vec::from([2, 1, 2, 3, 1].map(event));
        assert_eq!(nodes.translate(&mut events, 1), Err(Violation::UnknownStack { stack: 3 }));
        assert_eq!(events, [2, 1, 1].map(event));
    }
}
