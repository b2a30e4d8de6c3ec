//! The ids that the numbers of a trace's nodes have, in less than four bytes for each.
//!
//! A recorder tells a new stack by its nodes, each the child of the one before. So of such a *run* only the last id is kept:
//! those of the others are its parents'. Runs end after [`LONGEST`] nodes, so that few steps lead from the last one to any.

use crate::stacks::Stacks;

/// The most nodes of a run.
const LONGEST: u32 = 16;

/// The ids of all numbers from 1.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    /// Whether each number is the last of its run, 64 of them to a word; and how many runs end before these.
    ends: Vec<(u64, u32)>,
    /// The id of each run's last number.
    last: Vec<u32>,
    given: u32,
    /// How long the last run is.
    run: u32,
}

impl Ids {
    /// Gives the next number an id. `is_child` says that it's that of a child of the number before.
    #[inline]
    pub(crate) fn push(&mut self, id: u32, is_child: bool) {
        let at = self.given as usize;
        self.given += 1;
        let goes_on = is_child && self.run > 0 && self.run < LONGEST;
        if goes_on {
            self.ends[(at - 1) / 64].0 &= !(1 << ((at - 1) % 64));
            self.last.pop();
        }
        if at.is_multiple_of(64) {
            self.ends.push((0, self.last.len() as u32));
        }
        self.ends[at / 64].0 |= 1 << (at % 64);
        self.last.push(id);
        self.run = if goes_on { self.run + 1 } else { 1 };
    }

    /// The id of a number that has one and isn't 0. `stacks` knows all of them.
    #[inline]
    pub(crate) fn get(&self, number: u32, stacks: &Stacks) -> u32 {
        let at = number as usize - 1;
        let (ends, mut before) = self.ends[at / 64];
        let here = ends >> (at % 64);
        let mut steps = here.trailing_zeros();
        before += (ends & ((1 << (at % 64)) - 1)).count_ones();
        if here == 0 {
            // The last number always ends a run, so there is a next word; no run is as long as a word.
            let (ends, up_to_there) = self.ends[at / 64 + 1];
            steps = 64 - (at % 64) as u32 + ends.trailing_zeros();
            before = up_to_there;
        }
        let last = self.last[before as usize];
        (0..steps).fold(last, |id, _| stacks.at(id).map_or(0, |node| node.parent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::ParentAndFrame;

    #[test]
    fn each_number_has_the_id_that_it_was_given() {
        let mut stacks = Stacks::default();
        // Stacks of up to 40 frames, some of them with common beginnings.
        let mut children: Vec<Vec<u32>> = vec![Vec::new()];
        let mut state = 0x1234_5678_9abc_def1_u64;
        let mut random = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) % n
        };
        let (mut ids, mut given, mut before) = (Ids::default(), Vec::new(), None);
        while given.len() < 50_000 {
            let mut id = 0;
            let length = [1, 3, 40][random(3) as usize];
            for _ in 0..1 + random(length) {
                let parent = id;
                let choice = random(4) as usize;
                id = match children[parent as usize].get(choice) {
                    Some(&child) => child,
                    None => {
                        let frame = children[parent as usize].len() as u32;
                        let id = stacks.push(ParentAndFrame { parent, frame }).unwrap();
                        children[parent as usize].push(id);
                        children.push(Vec::new());
                        id
                    }
                };
                ids.push(id, before == Some(parent));
                given.push(id);
                before = Some(id);
                // What was given before stays, whether its run is still open or not.
                let back = random(100.min(given.len() as u64)) as usize;
                let number = given.len() - back;
                assert_eq!(ids.get(number as u32, &stacks), given[number - 1]);
            }
        }
        assert!((1..).zip(&given).all(|(number, &id)| ids.get(number, &stacks) == id));
        assert!(ids.last.len() < given.len() / 4, "{} runs", ids.last.len());
    }
}
